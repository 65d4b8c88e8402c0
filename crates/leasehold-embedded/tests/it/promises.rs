//! The promises that every store makes, on the stores of this crate.

use std::sync::Arc;

use leasehold_core::Store;
use leasehold_embedded::{EmbeddedStore, MemoryStore};
use leasehold_testkit::conformance_tests;
use tempfile::TempDir;

fn embedded() -> (Arc<dyn Store>, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path().join("locks")).unwrap();
    (Arc::new(store), directory)
}

conformance_tests!(memory, async || Arc::new(MemoryStore::new()));
conformance_tests!(one_machine, async || embedded());
