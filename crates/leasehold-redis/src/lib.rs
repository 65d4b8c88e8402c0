//! Locks in Redis and Valkey.
//!
//! [`RedisStore`] is a [`leasehold_core::Store`] on one server, under sentinels, or on a cluster.
//! It supports Redis 6.2 or later and Valkey 8.0 or later, over TCP, TLS or a Unix socket. Most
//! users need only the `leasehold` crate. Depend on this one to use a program's own connection or
//! pool.
//!
//! `docs/wire.md` specifies what is stored in the server and sent over the wire. The scripts
//! (`src/scripts/`) are the second implementation of the lock table, [`leasehold_core::table`]. The
//! rest of this crate sends them to a server and judges the answers.

#![forbid(unsafe_code)]

pub mod acl;
mod classify;
mod connect;
#[cfg(test)]
mod differential;
mod doctor;
#[cfg(feature = "interop")]
pub mod interop;
mod script;
mod store;
mod topology;
mod wire;

pub use connect::credentials::{Credentials, CredentialsResult};
pub use connect::passwords::{Passwords, passwords_of, without_passwords};
pub use store::RedisStore;
pub use store::builder::RedisStoreBuilder;

/// The client library, whose types are part of this crate's interface.
pub use redis;
