//! What the client promises, tried from outside.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a helper that can't do its part has failed the test, as the test itself would"
)]

mod acquire;
#[cfg(unix)]
mod alone;
mod api;
mod asked;
mod background;
mod cancel;
#[cfg(feature = "redis")]
mod channel;
#[cfg(all(feature = "embedded", unix))]
mod connect;
#[cfg(feature = "redis")]
mod connected;
#[cfg(feature = "quorum")]
mod contenders;
mod dropped;
mod election;
#[cfg(all(feature = "embedded", feature = "quorum", feature = "redis"))]
mod endings;
mod events;
#[cfg(feature = "embedded")]
mod examples;
#[cfg(feature = "redis")]
mod failover;
mod faults;
mod fencing;
mod guards;
mod handed_off;
mod hold;
#[cfg(feature = "interop")]
mod interop;
#[cfg(feature = "interop")]
mod interop_cluster;
mod leaving;
mod left_behind;
mod length;
#[cfg(all(feature = "embedded", feature = "macros"))]
mod locked;
mod losses;
mod multi;
mod once;
mod oneself;
mod outages;
mod parallel;
#[cfg(all(feature = "embedded", feature = "postgres", feature = "quorum"))]
mod postgres;
#[cfg(feature = "redis")]
mod processes;
#[cfg(all(feature = "embedded", feature = "redis"))]
mod programs;
#[cfg(feature = "redis")]
mod proofs;
mod queue;
#[cfg(all(feature = "embedded", feature = "quorum", feature = "redis"))]
mod quorum;
mod reentrant;
mod release;
mod replayed;
mod rwlock;
mod semaphore;
#[cfg(feature = "redis")]
mod server;
mod spread;
mod support;
#[cfg(all(feature = "embedded", feature = "tower"))]
mod tower;
mod unpolled;
#[cfg(feature = "embedded")]
mod wait;
#[cfg(feature = "redis")]
mod warm_up;
