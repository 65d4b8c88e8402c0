//! Tries the conformance suite on a store that keeps all promises, and on one that breaks them.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

mod broken_store;
mod planted_faults;

use std::sync::Arc;

use leasehold_embedded::MemoryStore;
use leasehold_testkit::conformance_tests;

conformance_tests!(memory, async || Arc::new(MemoryStore::new()));
