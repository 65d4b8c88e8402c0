//! Faults of servers and of the network, each on a topology that it hits: what they do to leases,
//! and what they do to a lock as it is usually written.
//!
//! A cell is one case of the fault matrix. While its fault lasts, a holder holds, others want the
//! lock, and a naive client does the same on the same servers. Afterwards the history is checked
//! for what the verdict forbids. The naive client must have failed: otherwise the fault did not
//! hurt, and the case shows nothing.
//!
//! Each case prints its row of the table in `docs/faults.md`:
//!
//! ```sh
//! cargo nextest run -p leasehold --all-features --test cells --no-capture
//! ```
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a helper that can't do its part has failed the test, as the test itself would"
)]

mod cell;
mod cluster;
#[path = "../it/connected.rs"]
mod connected;
mod load;
mod naive;
mod quorum;
mod resource;
mod restarts;
mod sentinel;
mod server;
mod slots;
