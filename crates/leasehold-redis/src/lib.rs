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

mod access;
pub mod acl;
mod address;
mod addresses;
mod alert;
mod asking;
mod borrowed;
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
mod forms;
#[cfg(feature = "interop")]
pub mod interop;
mod listen;
mod log;
mod login;
mod names;
mod passwords;
mod pause;
mod pipe;
mod raw;
mod replication;
mod reply;
mod request;
mod request_text;
mod resp;
mod role;
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

pub use builder::RedisStoreBuilder;
pub use credentials::{Credentials, CredentialsResult};
pub use passwords::{Passwords, passwords_of, without_passwords};
pub use store::RedisStore;

/// The client library, whose types are part of this crate's interface.
pub use redis;
