//! The client on a PostgreSQL server: alone, as a node of a quorum, and as a part of a sharded
//! store.

use leasehold::store::StoreUrl;
use leasehold::{Client, ErrorKind};
use leasehold_testkit::sql::PostgreSql;

use crate::support::{patiently, secs};

#[tokio::test]
async fn a_lock_is_held_waited_for_and_granted_to_the_waiter_in_a_table() {
    let server = PostgreSql::start();
    let error = Client::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let client = Client::builder().create_tables(true).connect(server.url()).await.unwrap();
    let other = Client::connect(server.tcp_url()).await.unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(other.mutex("k").try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.mutex("k").wait_limit(secs(60)).lock().await }
    });
    patiently("the waiter's position", async {
        while client.inspect("k").await.unwrap().is_none_or(|info| info.waiters.is_empty()) {
            tokio::time::sleep(crate::support::ms(5)).await;
        }
    })
    .await;
    let fence = guard.fence().unwrap();
    guard.release().await.unwrap();
    let next = patiently("the hand-off", waiting).await.unwrap().unwrap();
    assert!(next.fence().unwrap() > fence);
    let readers =
        [client.rwlock("r").read().await.unwrap(), other.rwlock("r").read().await.unwrap()];
    let two = other.semaphore("s", 2);
    let permits = [two.acquire().await.unwrap(), two.acquire().await.unwrap()];
    assert_eq!(client.list("").await.unwrap().locks.len(), 3);
    drop((readers, permits));
    next.release().await.unwrap();
}

#[tokio::test]
async fn it_is_a_node_of_a_quorum_and_a_part_of_a_sharded_store() {
    // Else they may have forgotten leases, and do not count yet.
    let start = || PostgreSql::start_with(&["fsync=on"]);
    let servers = (start(), start());
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (servers.0.tcp_url(), servers.1.tcp_url());
    let directory = directory.path().join("locks");
    for url in [
        format!("quorum:{one},{two},embedded:{}", directory.display()),
        format!("spread:a={one},b={two}"),
    ] {
        for node in [&one, &two] {
            Client::builder().create_tables(true).connect(node).await.unwrap();
        }
        let client = Client::connect(&url).await.unwrap();
        let guard = client.mutex("k").lock().await.unwrap();
        assert!(client.mutex("k").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
    }
}

#[test]
fn its_url_loses_its_password_and_nothing_else() {
    let read = StoreUrl::read("postgres://app:secret@db,db2/shop?schema=x&log=9").unwrap();
    assert!(read.has_password());
    assert_eq!(read.without_passwords(), "postgres://app@db,db2/shop?schema=x&log=9");
}
