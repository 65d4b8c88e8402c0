//! What every store promises, on each way to reach a server.

use std::sync::Arc;

use leasehold_postgres::PostgresStore;

use crate::common::{SERVER, store_at};

async fn open(url: &str) -> Arc<PostgresStore> {
    Arc::new(store_at(url).await)
}

leasehold_testkit::conformance_tests!(socket, async || {
    open(&format!("{}?create=yes", SERVER.url())).await
});
leasehold_testkit::conformance_tests_by_module!(
    tcp_without_a_channel,
    async || open(&format!("{}?create=yes&listen=none&schema=polled", SERVER.tcp_url())).await,
    lacks: [wake],
);
