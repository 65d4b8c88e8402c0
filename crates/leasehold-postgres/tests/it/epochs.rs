//! What a crash, a restart and a promoted standby mean for leases and fences.

use std::time::Duration;

use leasehold_core::{Acquire, Renew, RenewRequest, Store as _};
use leasehold_testkit::sql::PostgreSql;

use crate::common::{WITHIN, key, request, session, store_at, take, ttl};

#[tokio::test]
async fn a_crash_keeps_leases_and_begins_an_epoch_and_a_clean_restart_does_not() {
    let mut server = PostgreSql::start();
    let store = store_at(&format!("{}?create=yes", server.url())).await;
    let (kept, other) = (key(), key());
    let before = take(&store, &request(&kept)).await;
    assert_eq!(before.first().epoch(), 1);
    server.restart();
    assert_eq!(take(&store, &request(&key())).await.first().epoch(), 1);
    server.crash();
    let answer = store.acquire(&request(&kept), WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
    let after = take(&store, &request(&other)).await;
    assert_eq!(after.first().epoch(), 2);
    assert!(after.first() > before.last());
}

#[tokio::test]
async fn a_promoted_standby_grants_no_lease_until_the_longest_one_has_ended() {
    let mut server = PostgreSql::start();
    let settings = "create=yes&connections=1";
    let store = store_at(&format!("{}?{settings}", server.tcp_url())).await;
    let held = request(&key());
    let mut longest = request(&key());
    longest.ttl = ttl(Duration::from_secs(600));
    let fences = take(&store, &held).await;
    take(&store, &longest).await;
    let standby = server.standby();
    server.stop();
    let both = format!("127.0.0.1:{},127.0.0.1:{}", server.port(), standby.port());
    let both = store_at_when_promoted(
        &format!("postgres://leasehold@{both}/postgres?{settings}"),
        &standby,
    )
    .await;
    let fresh = request(&key());
    let Acquire::Busy(busy) = both.acquire(&fresh, WITHIN).await.unwrap() else {
        panic!("granted")
    };
    let left = busy.retry_after;
    assert!(left > Duration::from_secs(500) && left <= Duration::from_secs(600), "{left:?}");
    let renewal = RenewRequest::new(held.key.clone(), held.token, fences, held.ttl);
    assert_eq!(both.renew(&[renewal], WITHIN).await.remove(0).unwrap(), Renew::Renewed);
    // The time passes.
    let session = session(&standby).await;
    let sql = "UPDATE leasehold.alive SET grants_from = clock_timestamp() - interval '1 second'";
    session.batch_execute(sql).await.unwrap();
    let after = take(&both, &fresh).await;
    assert!(after.first() > fences.last() && after.first().epoch() == 2, "{after:?}");
}

async fn store_at_when_promoted(
    url: &str,
    standby: &PostgreSql,
) -> leasehold_postgres::PostgresStore {
    let error = leasehold_postgres::PostgresStore::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Unavailable, "{error}");
    standby.promote();
    store_at(url).await
}
