//! One lock store made of several independent ones: [`QuorumStore`].
//!
//! A lease is held while a majority of the nodes holds it. Nodes share nothing, so no fail-over of
//! one of them can give a lease away, and fewer than half of them may be gone at any time. The
//! algorithm is Redlock's (the Redis documentation, "Distributed locks with Redis"), with what it
//! was found to lack: fences that grow strictly, nodes that count only once they are sure to
//! remember every lease, and undoing that can't hit a later attempt, since each has a token of its own.
//!
//! This crate knows stores, not servers: nodes may be of any sort, and of several.

mod acquire;
mod attempt;
#[doc(hidden)]
pub mod ballot;
mod builder;
mod debts;
mod doctor;
mod inspect;
mod log;
mod nodes;
mod operator;
mod pace;
mod release;
mod renew;
mod round;
mod store;
mod tokens;
mod undoing;

pub use builder::QuorumStoreBuilder;
pub use store::QuorumStore;
