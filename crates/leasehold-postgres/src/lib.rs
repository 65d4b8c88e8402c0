//! Locks in a PostgreSQL table.
//!
//! [`PostgresStore`] is a [`leasehold_core::Store`] in a database of PostgreSQL 13 or later. Most users need only the
//! `leasehold` crate, with its feature `postgres`.
//!
//! A lock is a row. Each step reads it, carries the operation out by the [lock table](leasehold_core::table), and
//! writes the row if it is still as it was read. Each of these is one statement and a transaction of its own, and no
//! state of a session is needed. So the store works through a pooler as well.

#![forbid(unsafe_code)]

mod address;
mod builder;
mod classify;
mod doctor;
pub mod hold;
mod listen;
mod log;
mod pool;
mod row;
mod setup;
mod statements;
mod step;
mod store;
mod tls;

pub use address::{Passwords, passwords_of, without_passwords};
pub use builder::PostgresStoreBuilder;
pub use store::PostgresStore;
