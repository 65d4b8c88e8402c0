//! Locks in Redis and Valkey.
//!
//! [`RedisStore`] is a [`leasehold_core::Store`] on one server, on one that sentinels fail over, or
//! on a cluster: Redis 6.2 or later, Valkey 8.0 or later, over TCP, TLS or a Unix socket. Users
//! take it through the `leasehold` crate; depend on this one to put locks on a connection or a pool
//! that a program has already.
//!
//! What stands in the server, and what goes over the wire, is specified in `docs/wire.md`. The
//! lock table itself is in the scripts (`src/scripts/`), the second implementation of
//! [`leasehold_core::table`]; everything else here gets a script to a server and judges what
//! comes back.

#![forbid(unsafe_code)]

mod access;
pub mod acl;
mod address;
mod addresses;
mod alert;
mod builder;
mod call;
mod classify;
mod cluster;
mod connection;
mod credentials;
mod dial;
#[cfg(test)]
mod differential;
mod doctor;
mod ear;
mod forms;
mod homes;
#[cfg(feature = "interop")]
pub mod interop;
mod listen;
mod log;
mod login;
mod names;
mod passwords;
mod pipe;
mod raw;
mod replication;
mod reply;
mod resp;
mod role;
mod room;
mod script;
mod sentinel;
mod server_clock;
mod slot;
mod spelling;
mod store;
mod stored;
mod tls;
mod transport;
mod unsent;
mod words;

pub use builder::RedisStoreBuilder;
pub use credentials::{Credentials, CredentialsResult};
pub use passwords::{Passwords, passwords_of, without_passwords};
pub use store::RedisStore;

/// The client library whose types stand in this crate's interface.
pub use redis;
