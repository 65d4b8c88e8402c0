//! One lock store made of several independent ones: [`QuorumStore`].
//!
//! A lease is held while a majority of the nodes holds it. The nodes are independent, so a
//! fail-over of one node can't hand a lease to another holder. Fewer than half of the nodes may be
//! gone at any time.
//!
//! The algorithm is Redlock's (the Redis documentation, "Distributed locks with Redis"), with three
//! additions. Fencing tokens grow strictly. A node's vote counts only if it surely remembers every
//! lease. Each attempt has its own token, so that undoing one can't hit a later one.
//!
//! This crate uses stores through their common trait, so the nodes may be of different kinds.

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
