//! Tools for tests: real servers, and faults of the servers and of the network.
//!
//! * [`server`] starts Redis or Valkey servers on loopback, pauses, kills and restarts them.
//! * [`sql`] starts PostgreSQL and MariaDB servers, a Galera pair included.
//! * [`proxy`] loses, delays or cuts the traffic between a client and a server.
//! * [`tls`] makes certificates, right and wrong ones.
//! * [`process`] is the child process underneath, for anything a test has to kill.
//!
//! This crate is for tests. It panics where a library would return an error: a test that cannot be
//! set up has failed, and an error passed around would only hide where.
#![allow(clippy::panic, reason = "a test that cannot be set up has failed")]
#![allow(
    clippy::disallowed_methods,
    reason = "waiting for a server needs a real clock, and no lease depends on it"
)]

pub mod conformance;
pub mod cut;
pub mod fault_store;
pub mod history;
pub mod linear;
pub mod process;
pub mod proxy;
mod resp;
pub mod server;
pub mod sql;
pub mod tls;
