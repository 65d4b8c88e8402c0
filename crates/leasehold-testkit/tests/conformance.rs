//! The conformance suite against the store in memory, which runs the lock table as it is.

use std::sync::Arc;

use leasehold_embedded::MemoryStore;
use leasehold_testkit::conformance_tests;

conformance_tests!(memory, async || Arc::new(MemoryStore::new()));
