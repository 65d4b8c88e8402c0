//! Distributed locks: the lock you can prove you hold.
//!
//! PLACEHOLDER-DOCS

mod acquire;
mod armed;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod connect;
mod detached;
pub mod fencing;
mod gate;
mod guard;
mod hold;
mod in_line;
mod mutex;
mod owner;
mod reap;
mod renew;
mod rt;
mod settings;
mod wake;
mod wire;

pub use client::{
    CLOSE_WITHIN, Client, ClientBuilder, DEFAULT_CALL_TIMEOUT, DEFAULT_LOCAL_HANDOFFS, DEFAULT_TTL,
};
pub use detached::DetachedLease;
pub use guard::{Guard, HeldLease, Release};
pub use mutex::Mutex;
pub use settings::Order;

pub use leasehold_clock as clock;
pub use leasehold_core as core;
pub use leasehold_core::{
    Effect, Error, ErrorKind, Fence, ForceRelease, HolderInfo, Key, LockInfo, Metadata, OwnerName,
    Result, Ttl, WaiterInfo, retry,
};
#[cfg(feature = "embedded")]
pub use leasehold_embedded as embedded;
#[cfg(feature = "redis")]
pub use leasehold_redis as redis;
