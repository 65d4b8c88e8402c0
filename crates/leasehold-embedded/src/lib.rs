//! Lock stores without a server: [`MemoryStore`], and [`EmbeddedStore`] for one machine.
//!
//! Both run the lock table of `leasehold-core` as it is; here it is made atomic and kept.

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

/// How long the last fence of an idle name is kept: by it a late release is told from a lost one.
const RETENTION: Duration = Duration::from_secs(600);
