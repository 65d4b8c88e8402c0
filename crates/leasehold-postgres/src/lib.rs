//! Locks in a PostgreSQL table.
//!
//! [`PostgresStore`] is a [`leasehold_core::Store`] in a database of PostgreSQL 13 or later. Most
//! users need only the `leasehold` crate, with its feature `postgres`.
//!
//! A lock is a row. Each step reads it, carries the operation out by the [lock
//! table](leasehold_core::table), and writes the row if it is still as it was read. Each of these
//! is one statement and a transaction of its own, and no state of a session is needed. So the store
//! works through a pooler as well.
//!
//! A lock without a queue has a shorter way: functions in the database take, renew and release it
//! in one statement. If they can't, they answer with the row for a step as above. A step that
//! another process undid locks the row first, in a transaction of two round trips, unless a pooler
//! refuses that.

#![forbid(unsafe_code)]

mod address;
mod builder;
mod carry;
mod chores;
mod classify;
mod combine;
#[cfg(test)]
mod differential;
mod doctor;
pub mod hold;
mod listen;
mod log;
mod passfile;
mod pool;
mod row;
mod setup;
mod short;
mod statements;
mod step;
mod store;
mod tls;

pub use address::{Passwords, passwords_of, without_passwords};
pub use builder::PostgresStoreBuilder;
pub use setup::{Rights, setup_sql};
pub use store::PostgresStore;
