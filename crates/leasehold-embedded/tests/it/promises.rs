//! The promises that every store makes, on the stores of this crate.

use std::sync::Arc;

#[cfg(unix)]
use leasehold_embedded::EmbeddedStore;
use leasehold_embedded::MemoryStore;
use leasehold_testkit::conformance_tests;

conformance_tests!(memory, async || Arc::new(MemoryStore::new()));
#[cfg(unix)]
conformance_tests!(one_machine, async || {
    let (path, keep) = crate::place();
    (Arc::new(EmbeddedStore::open(path).unwrap()), keep)
});
