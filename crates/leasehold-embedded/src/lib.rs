//! Lock stores without a server: [`MemoryStore`], and [`EmbeddedStore`] for one machine.
//!
//! Both run the lock table of `leasehold-core` unchanged. This crate makes its steps atomic and
//! keeps its entries.

use std::time::Duration;

#[cfg(unix)]
mod embedded;
#[cfg(not(unix))]
#[path = "elsewhere.rs"]
mod embedded;
mod memory;
mod tokens;

pub use embedded::{EmbeddedStore, EmbeddedStoreOptions};
pub use memory::MemoryStore;

/// How long an idle name keeps its last fence, which distinguishes an expired release from a lost
/// one.
const RETENTION: Duration = Duration::from_secs(600);
