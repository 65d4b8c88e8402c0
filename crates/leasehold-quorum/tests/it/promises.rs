//! The promises that every store makes, by quorums of different sizes and kinds.

use std::sync::Arc;

use leasehold_core::{Store, Ttl};
use leasehold_embedded::MemoryStore;
use leasehold_quorum::QuorumStore;
use leasehold_testkit::conformance_tests;

use crate::support::memories;

/// A quorum that allows leases of any length.
fn quorum(nodes: Vec<Arc<dyn Store>>) -> Arc<QuorumStore> {
    let builder = QuorumStore::builder(nodes).max_ttl(Ttl::MAX.duration());
    Arc::new(builder.build().unwrap())
}

conformance_tests!(one_of_memory, async || quorum(memories(1)), lacks: [queue, wake, shared, sets]);
conformance_tests!(three_of_memory, async || quorum(memories(3)), lacks: [queue, wake, shared, sets]);
conformance_tests!(five_of_memory, async || quorum(memories(5)), lacks: [queue, wake, shared, sets]);

/// Nodes of different kinds.
#[cfg(unix)]
mod mixed {
    use leasehold_embedded::EmbeddedStore;
    use leasehold_redis::RedisStore;
    use leasehold_testkit::server;

    use super::*;

    async fn mixed() -> (Arc<QuorumStore>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let nodes: Vec<Arc<dyn Store>> = vec![
            Arc::new(MemoryStore::new()),
            Arc::new(EmbeddedStore::open(folder.path()).unwrap()),
            Arc::new(RedisStore::connect(&server::shared().url()).await.unwrap()),
        ];
        let builder = QuorumStore::builder(nodes).nodes_keep_leases(true);
        (Arc::new(builder.build().unwrap()), folder)
    }

    conformance_tests!(stores, mixed, lacks: [queue, wake, shared, sets]);
}

/// Real servers, one set for all cases; they end with this process.
mod servers {
    use std::sync::LazyLock;
    use std::time::Duration;

    use leasehold_testkit::server::RedisServer;

    use super::*;
    use crate::support::{CALL, connected, key};

    static SERVERS: LazyLock<Vec<RedisServer>> =
        LazyLock::new(|| (0..5).map(|_| RedisServer::start()).collect());

    async fn of(count: usize) -> Arc<QuorumStore> {
        let nodes = connected(&SERVERS[..count]);
        let builder = QuorumStore::builder(nodes).nodes_keep_leases(true);
        let builder = builder.node_timeout(Duration::from_secs(5));
        let quorum = builder.build().unwrap();
        // Its stores connect now. A short lease leaves little time for that.
        drop(quorum.inspect(&key(), CALL).await);
        Arc::new(quorum)
    }

    conformance_tests!(three, async || of(3).await, lacks: [queue, wake, shared, sets]);
    conformance_tests!(five, async || of(5).await, lacks: [queue, wake, shared, sets]);
}
