//! A server for all tests, and short ways to what they need.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::{Acquire, AcquireRequest, FenceBlock, Key, Store, Token, Ttl};
use leasehold_postgres::PostgresStore;
use leasehold_testkit::sql::PostgreSql;
use tokio_postgres::{Client, NoTls};

pub(crate) const WITHIN: Duration = Duration::from_secs(30);
/// Longer than a test takes.
pub(crate) const LEASE: Duration = Duration::from_secs(600);

/// It ends with this process.
pub(crate) static SERVER: LazyLock<PostgreSql> = LazyLock::new(|| {
    let server = PostgreSql::start();
    server.remove_at_exit();
    server
});

pub(crate) fn fresh(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{what}_{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn key() -> Key {
    Key::new(fresh("key")).unwrap()
}

/// A store in a schema of its own, and the schema's name.
pub(crate) async fn own_store() -> (PostgresStore, String) {
    let schema = fresh("own");
    (store_at(&format!("{}?create=yes&schema={schema}", SERVER.url())).await, schema)
}

pub(crate) async fn store_at(url: &str) -> PostgresStore {
    PostgresStore::connect(url).await.unwrap()
}

/// A session of an operator, or of another program.
pub(crate) async fn session(server: &PostgreSql) -> Client {
    session_of(server, "leasehold").await
}

pub(crate) async fn session_of(server: &PostgreSql, user: &str) -> Client {
    let mut config = tokio_postgres::Config::new();
    config.host_path(server.socket_dir()).port(server.port()).user(user).dbname("postgres");
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn token() -> Token {
    Token::generate().unwrap()
}

pub(crate) fn ttl(length: Duration) -> Ttl {
    Ttl::new(length).unwrap()
}

pub(crate) fn request(key: &Key) -> AcquireRequest {
    AcquireRequest::new(key.clone(), token(), ttl(LEASE))
}

pub(crate) async fn take(store: &impl Store, request: &AcquireRequest) -> FenceBlock {
    match store.acquire(request, WITHIN).await.unwrap() {
        Acquire::Granted(granted) => granted.fences,
        other => panic!("not granted: {other:?}"),
    }
}

/// Asks again until it is so.
pub(crate) async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let outcome = tokio::time::timeout(WITHIN.saturating_mul(2), asking).await;
    assert!(outcome.is_ok(), "it does not come: {what}");
}

/// Ends sessions, and waits until they are gone.
pub(crate) async fn end_sessions(server: &PostgreSql, which: &str) {
    let of = format!("FROM pg_stat_activity WHERE {which}");
    let pids = server.sql(&format!("SELECT coalesce(string_agg(pid::text, ','), '0') {of}"));
    server.sql(&format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN ({pids})"
    ));
    let left = format!("SELECT count(*) FROM pg_stat_activity WHERE pid IN ({pids})");
    until("the sessions end", async || server.sql(&left) == "0").await;
}
