//! What a crash, a restart and a promoted standby mean for leases and fences.

use std::time::Duration;

use leasehold_core::{Acquire, Effect, Error, ErrorKind, Reason, Renew, RenewRequest, Store as _};
use leasehold_postgres::PostgresStore;
use leasehold_testkit::sql::PostgreSql;

use crate::common::{LEASE, WITHIN, key, request, session, store_at, take, ttl, until};

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
    longest.ttl = ttl(LEASE * 2);
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
    let left = warm_up(&both.acquire(&fresh, WITHIN).await.unwrap_err());
    assert!(left > LEASE && left <= LEASE * 2, "{left:?}");
    let renewal = RenewRequest::new(held.key.clone(), held.token, fences, held.ttl);
    assert_eq!(both.renew(&[renewal], WITHIN).await.remove(0).unwrap(), Renew::Renewed);
    // The time passes.
    let session = session(&standby).await;
    let sql = "UPDATE leasehold.alive SET grants_from = clock_timestamp() - interval '1 second'";
    session.batch_execute(sql).await.unwrap();
    let after = take(&both, &fresh).await;
    assert!(after.first() > fences.last() && after.first().epoch() == 2, "{after:?}");
}

/// For how long a database that was restarted or promoted grants no free lock.
fn warm_up(error: &Error) -> Duration {
    assert_eq!(error.reason(), Some(Reason::TooYoung), "{error}");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    error.retry_after().unwrap()
}

/// Asks until a server that is there refuses.
async fn refused(store: &PostgresStore, request: &leasehold_core::AcquireRequest) -> Error {
    let mut refusal = None;
    until("a refusal", async || {
        let error = store.acquire(request, WITHIN).await.expect_err("granted");
        let is_there = error.retry_after().is_some();
        refusal = Some(error);
        is_there
    })
    .await;
    refusal.unwrap()
}

/// Asks until the server answers again.
async fn patiently(store: &PostgresStore, request: &leasehold_core::AcquireRequest) -> Acquire {
    let mut answer = None;
    until("an answer", async || {
        answer = store.acquire(request, WITHIN).await.ok();
        answer.is_some()
    })
    .await;
    answer.unwrap()
}

#[tokio::test]
async fn a_killed_backend_restarts_the_server_which_keeps_leases_and_begins_an_epoch() {
    let server = PostgreSql::start();
    let store = store_at(&format!("{}?create=yes", server.url())).await;
    let held = request(&key());
    let before = take(&store, &held).await;
    let pid =
        server.sql("SELECT min(pid) FROM pg_stat_activity WHERE application_name = 'leasehold'");
    let killed = std::process::Command::new("kill").args(["-9", &pid]).status().unwrap();
    assert!(killed.success());
    until("it restarts", async || server.log().contains("reinitializing")).await;
    let other = request(&held.key);
    let answer = patiently(&store, &other).await;
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
    let after = patiently(&store, &request(&key())).await.fences().unwrap();
    assert!(after.first().epoch() == 2 && after.first() > before.last(), "{after:?}");
    let renewal = RenewRequest::new(held.key.clone(), held.token, before, held.ttl);
    assert_eq!(store.renew(&[renewal], WITHIN).await.remove(0).unwrap(), Renew::Renewed);
}

#[tokio::test]
async fn a_crash_that_loses_leases_grants_none_until_the_longest_one_has_ended() {
    for grants in [false, true] {
        let mut server = PostgreSql::start_with(&["fsync=on"]);
        let after = if grants { "&after_failover=grant" } else { "" };
        let url = format!("{}?create=yes&durability=async{after}", server.url());
        let store = store_at(&url).await;
        let before = take(&store, &request(&key())).await.last();
        server.crash();
        let other = request(&key());
        // A client with durable commits learns from the database that leases may be lost.
        let first = if grants { store.clone() } else { store_at(&server.url()).await };
        if grants {
            let answer = patiently(&first, &other).await;
            assert!(answer.fences().is_some_and(|next| next.first() > before), "{answer:?}");
            continue;
        }
        let left = warm_up(&refused(&first, &other).await);
        assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
        server.sql("UPDATE leasehold.alive SET grants_from = clock_timestamp()");
        let after = take(&first, &other).await;
        assert!(after.first() > before && after.first().epoch() == 2, "{after:?}");
        assert!(store.remembers_for(WITHIN).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_user_whose_commits_wait_for_no_disk_keeps_leases_over_a_crash() {
    let mut server = PostgreSql::start_with(&["fsync=on", "wal_writer_delay=10s"]);
    server.sql("ALTER ROLE leasehold SET synchronous_commit = off");
    let store = store_at(&format!("{}?create=yes", server.url())).await;
    let alone = PostgresStore::builder().table_alone(true);
    let alone = alone.connect(&server.url()).await.unwrap();
    for store in [store, alone] {
        let held = request(&key());
        let fences = take(&store, &held).await;
        let renewal = RenewRequest::new(held.key.clone(), held.token, fences, ttl(LEASE * 2));
        assert_eq!(store.renew(&[renewal], WITHIN).await.remove(0).unwrap(), Renew::Renewed);
        server.crash();
        let answer = patiently(&store, &request(&held.key)).await;
        let Acquire::Busy(busy) = answer else { panic!("granted: {answer:?}") };
        assert!(busy.retry_after > LEASE, "{busy:?}");
    }
}

#[tokio::test]
async fn a_standby_that_lags_grants_no_lock_whose_lease_it_lacks() {
    let mut server = PostgreSql::start();
    let settings = "create=yes&connections=1";
    let store = store_at(&format!("{}?{settings}", server.tcp_url())).await;
    let seen = request(&key());
    take(&store, &seen).await;
    let standby = server.standby();
    let count = |of: &str| format!("SELECT count(*) FROM {of}");
    standby.set("primary_conninfo", "");
    while standby.sql(&count("pg_stat_wal_receiver")) != "0" {}
    let unseen = request(&key());
    let before = take(&store, &unseen).await;
    let both = format!("127.0.0.1:{},127.0.0.1:{}", server.port(), standby.port());
    let both = format!("postgres://leasehold@{both}/postgres?{settings}");
    let follower = store_at(&both).await;
    // Named alone, the standby says what to do.
    let alone = store_at(&standby.tcp_url()).await;
    let error = alone.acquire(&request(&key()), WITHIN).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::NotPrimary), "{error}");
    assert!(
        error.to_string().contains("is a standby") && error.to_string().contains("all hosts"),
        "{error}"
    );
    let findings = alone.examine(WITHIN).await.unwrap();
    assert_eq!(findings.iter().map(|finding| &*finding.topic).collect::<Vec<_>>(), ["role"]);
    server.stop();
    standby.promote();
    assert_eq!(standby.sql(&count("leasehold.lock")), "1", "the standby lacks a lease");
    // The holder is known, and no time ends its lease earlier.
    let answer = patiently(&follower, &request(&seen.key)).await;
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
    warm_up(&refused(&follower, &request(&unseen.key)).await);
    standby.sql("UPDATE leasehold.alive SET grants_from = clock_timestamp()");
    let after = take(&follower, &request(&unseen.key)).await;
    assert!(after.first() > before.last() && after.first().epoch() == 2, "{after:?}");
    assert!(matches!(patiently(&follower, &request(&seen.key)).await, Acquire::Busy(_)));
}

async fn store_at_when_promoted(url: &str, standby: &PostgreSql) -> PostgresStore {
    let error = PostgresStore::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Unavailable, "{error}");
    standby.promote();
    store_at(url).await
}
