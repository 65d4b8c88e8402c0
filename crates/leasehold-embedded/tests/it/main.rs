//! The stores from outside: what they promise, and how they behave on bad days.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[cfg(unix)]
mod promises;
