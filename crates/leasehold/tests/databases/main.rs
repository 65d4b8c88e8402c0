//! The fence checks for PostgreSQL and MariaDB, run by real servers.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "a bound on hangs; no lease depends on it")]

mod galera;
mod mariadb;
mod postgresql;
mod scenario;

use leasehold::Fence;

fn fence(value: u64) -> Fence {
    Fence::from_value(value).unwrap()
}
