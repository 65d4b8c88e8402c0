//! The stores from outside: what they promise, and how they behave on bad days.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a helper that can't do its part has failed the test, as the test itself would"
)]

mod ask;
mod memory;
#[cfg(unix)]
mod promises;
