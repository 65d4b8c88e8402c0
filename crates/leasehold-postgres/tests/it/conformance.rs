//! What every store promises, on each way to reach a server.

use std::sync::{Arc, LazyLock};

use leasehold_postgres::PostgresStore;
use leasehold_testkit::sql::{PgBouncer, PostgreSql};

use crate::common::{SERVER, store_at};

async fn open(url: &str) -> Arc<PostgresStore> {
    Arc::new(store_at(url).await)
}

/// A server that must have nothing to complain about.
static CONTENT: LazyLock<PostgreSql> = LazyLock::new(|| {
    let server = PostgreSql::start();
    server.remove_at_exit();
    server
});

/// Looks into the server's log after each case.
struct Unmentioned;

impl Drop for Unmentioned {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let log = CONTENT.log();
            let complaints = ["WARNING:", "ERROR:", "FATAL:", "PANIC:"];
            let line = log.lines().find(|line| complaints.iter().any(|word| line.contains(word)));
            assert_eq!(line, None);
        }
    }
}

leasehold_testkit::conformance_tests!(socket, async || {
    (open(&format!("{}?create=yes", CONTENT.url())).await, Unmentioned)
});
leasehold_testkit::conformance_tests!(table_alone, async || {
    let url = format!("{}?create=yes&schema=table_alone", CONTENT.url());
    let store = PostgresStore::builder().table_alone(true).connect(&url).await.unwrap();
    (Arc::new(store), Unmentioned)
});
leasehold_testkit::conformance_tests_by_module!(
    tcp_without_a_channel,
    async || open(&format!("{}?create=yes&listen=none&schema=polled", SERVER.tcp_url())).await,
    lacks: [wake],
);

/// Notifications come past the pooler.
async fn pooled(pooler: &PgBouncer, schema: &str) -> Arc<PostgresStore> {
    let direct = SERVER.url().replace('%', "%25");
    open(&format!("{}?create=yes&schema={schema}&listen={direct}", pooler.url())).await
}

fn pooler(pool_mode: &str) -> PgBouncer {
    let pooler = PgBouncer::start(&SERVER, pool_mode);
    pooler.remove_at_exit();
    pooler
}

static TRANSACTIONS: LazyLock<PgBouncer> = LazyLock::new(|| pooler("transaction"));
static STATEMENTS: LazyLock<PgBouncer> = LazyLock::new(|| pooler("statement"));

leasehold_testkit::conformance_tests_by_module!(pooled_by_transaction, async || pooled(
    &TRANSACTIONS,
    "by_transaction"
)
.await,);
leasehold_testkit::conformance_tests_by_module!(pooled_by_statement, async || pooled(
    &STATEMENTS,
    "by_statement"
)
.await,);
