//! Commits that wait for a standby: the requirement, fail-over, and waits that are cut short.

use std::time::Duration;

use leasehold_core::{
    Acquire, Effect, ErrorKind, Mode, Reason, Release, ReleaseRequest, Renew, RenewRequest,
    Store as _,
};
use leasehold_postgres::PostgresStore;
use leasehold_testkit::sql::PostgreSql;

use crate::common::{WITHIN, key, request, session, store_at, take, until};

/// A primary whose commits wait for its standby.
fn pair() -> (PostgreSql, PostgreSql) {
    let server = PostgreSql::start();
    let standby = server.standby();
    server.set("synchronous_standby_names", "*");
    let attached = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    while server.sql(attached) != "1" {}
    (server, standby)
}

#[tokio::test]
async fn a_server_whose_commits_wait_for_no_standby_is_refused_if_the_url_says_so() {
    let server = PostgreSql::start();
    let url = format!("{}?create=yes", server.url());
    store_at(&url).await;
    let required = format!("{url}&synchronous=require");
    let refused = async || {
        let error = PostgresStore::connect(&required).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Config, Some(Reason::StoreSettings)),
            "{error}"
        );
        assert!(error.to_string().contains("synchronous_standby_names"), "{error}");
    };
    refused().await;
    server.sql("ALTER ROLE leasehold SET synchronous_commit = 'local'");
    server.set("synchronous_standby_names", "*");
    refused().await;
}

#[tokio::test]
async fn a_client_learns_when_commits_no_longer_wait_for_a_standby() {
    let (server, _standby) = pair();
    // One, since the server tells its sessions of new settings one after the other.
    let url = format!("{}?create=yes&synchronous=require&connections=1", server.url());
    let alone = PostgresStore::builder().table_alone(true);
    for store in [store_at(&url).await, alone.connect(&url).await.unwrap()] {
        server.set("synchronous_standby_names", "*");
        let mut held = request(&key());
        let mut fences = None;
        // The server reads its settings a moment later.
        until("a grant", async || {
            held = request(&key());
            fences = store.acquire(&held, WITHIN).await.ok().and_then(|answer| answer.fences());
            fences.is_some()
        })
        .await;
        let fences = fences.unwrap();
        server.set("synchronous_standby_names", "");
        until("a refusal", async || match store.acquire(&request(&key()), WITHIN).await {
            Ok(answer) => answer.fences().is_none(),
            Err(error) => error.reason() == Some(Reason::StoreSettings),
        })
        .await;
        let renewal = RenewRequest::new(held.key.clone(), held.token, fences, held.ttl);
        let error = store.renew(&[renewal], WITHIN).await.remove(0).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::StoreSettings), "{error}");
        let release = ReleaseRequest::new(held.key.clone(), held.token, fences);
        assert_eq!(store.release(&release, WITHIN).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn a_promoted_standby_that_has_every_lease_can_grant_at_once() {
    let (mut server, standby) = pair();
    let settings = "create=yes&synchronous=require&after_failover=grant";
    let both = format!("127.0.0.1:{},127.0.0.1:{}", server.port(), standby.port());
    let url = format!("postgres://leasehold@{both}/postgres?{settings}");
    let held = request(&key());
    let before = take(&store_at(&url).await, &held).await;
    // The promoted standby has none itself.
    let store = store_at(&url.replace("synchronous=require", "synchronous=any")).await;
    server.stop();
    standby.promote();
    let other = request(&key());
    let fences = loop {
        match store.acquire(&other, WITHIN).await {
            Ok(answer) => break answer.fences().expect("granted"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    };
    assert!(fences.first() > before.last() && fences.first().epoch() == 2, "{fences:?}");
    let answer = store.acquire(&request(&held.key), WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
}

#[tokio::test]
async fn a_commit_whose_wait_for_the_standby_is_cut_short_has_an_unknown_effect() {
    let (server, mut standby) = pair();
    let url = format!("{}?create=yes&synchronous=require&connections=1", server.url());
    let store = store_at(&url).await;
    take(&store, &request(&key())).await;
    standby.stop();
    for (how, kind) in [
        ("pg_cancel_backend", ErrorKind::NotReplicated),
        ("pg_terminate_backend", ErrorKind::Unavailable),
    ] {
        let held = request(&key());
        let of =
            "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'leasehold'";
        // What is done in the background commits too, before it or with it.
        let cut = async || loop {
            server.sql(&format!("SELECT {how}(pid) {of}"));
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let error = loop {
            let answer = tokio::select! {
                answer = store.acquire(&held, WITHIN) => answer,
                never = cut() => never,
            };
            let error = answer.unwrap_err();
            if error.effect() != Effect::NotApplied {
                break error;
            }
        };
        assert_eq!((error.kind(), error.effect()), (kind, Effect::Unknown), "{how}: {error}");
        let there = store.inspect(&held.key, WITHIN).await.unwrap();
        assert!(there.is_some_and(|lock| lock.holders.len() == 1), "{how}: it is on the primary");
    }
}

#[tokio::test]
async fn asynchronous_commits_wait_for_nothing() {
    let server = PostgreSql::start();
    let url = format!("{}?create=yes", server.url());
    let (store, durable) =
        (store_at(&format!("{url}&durability=async")).await, store_at(&url).await);
    take(&store, &request(&key())).await;
    // No standby comes.
    server.set("synchronous_standby_names", "*");
    until("the setting holds", async || server.sql("SHOW synchronous_standby_names") == "*").await;
    let mut shared = request(&key());
    shared.mode = Mode::Shared;
    for held in [request(&key()), shared] {
        let fences = take(&store, &held).await;
        let renewal = RenewRequest::new(held.key.clone(), held.token, fences, held.ttl);
        assert_eq!(store.renew(&[renewal], WITHIN).await.remove(0).unwrap(), Renew::Renewed);
        let release = ReleaseRequest::new(held.key.clone(), held.token, fences);
        assert_eq!(store.release(&release, WITHIN).await.unwrap(), Release::Released);
    }
    // Nor do deletions in the background, behind which requests would wait.
    let session = session(&server).await;
    let forgetting = session.batch_execute("SELECT leasehold.forget_1(1, 3600)");
    tokio::time::timeout(WITHIN, forgetting).await.expect("it waits for a standby").unwrap();
    let error = durable.acquire(&request(&key()), Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (ErrorKind::Unavailable, Effect::Unknown),
        "{error}"
    );
}
