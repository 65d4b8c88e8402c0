//! Faults of servers and of the network, each on a topology that it hits: what they do to leases,
//! and what they do to a lock as it is usually written.
//!
//! A cell is one fault. While it lasts, a holder holds, others want the lock, and a naive client
//! does the same on the same servers. Afterwards the history is checked for what the cell's
//! verdict forbids, and the naive client must have come to grief: else the fault was none, and the
//! cell shows nothing.
//!
//! Each cell prints its line of the table in `docs/faults.md`:
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
mod load;
mod naive;
mod quorum;
mod resource;
mod restarts;
mod sentinel;
mod server;
mod slots;
