//! What every store promises, on each way to reach a server.

use std::sync::{Arc, LazyLock};

use leasehold_redis::RedisStore;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use leasehold_testkit::server::{self, RedisServer};

/// One server with a socket for all cases; it ends with this process.
static WITH_SOCKET: LazyLock<RedisServer> =
    LazyLock::new(|| RedisServer::builder().unix_socket().start());

/// One of each for all cases. No case causes a fail-over, so that no other case meets one.
static SENTINELS: LazyLock<SentinelSet> =
    LazyLock::new(|| SentinelSet::builder().replicas(1).start());
static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::builder().replicas(0).start());

async fn open(url: &str) -> Arc<RedisStore> {
    Arc::new(RedisStore::connect(url).await.expect("the server runs"))
}

leasehold_testkit::conformance_tests!(tcp_resp2, async || open(&server::shared().url()).await);
leasehold_testkit::conformance_tests!(tcp_resp3, async || {
    open(&format!("{}?protocol=resp3", server::shared().url())).await
});
leasehold_testkit::conformance_tests!(unix_socket, async || open(&WITH_SOCKET.unix_url()).await);
leasehold_testkit::conformance_tests_by_module!(sentinel, async || open(&SENTINELS.url()).await);
leasehold_testkit::conformance_tests_by_module!(
    cluster,
    async || open(&CLUSTER.url()).await,
    lacks: [sets],
);

/// Without a notification channel, the rest must work.
mod borrowed {
    use super::*;
    use crate::common::connection;

    async fn lent() -> Arc<RedisStore> {
        let client = leasehold_redis::redis::Client::open(server::shared().url()).unwrap();
        let connection = connection(&client).await.unwrap();
        Arc::new(RedisStore::from_connection(connection))
    }

    leasehold_testkit::conformance_tests!(multiplexed, async || lent().await, lacks: [wake]);
}
