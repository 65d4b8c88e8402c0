//! The channel for notifications: one connection a process, lost, and found again.

use std::time::Duration;

use leasehold_core::{
    Acquire, ClientId, ErrorKind, Listener, QueueRequest, ReleaseRequest, Renew, RenewRequest,
    Store, Wake,
};
use leasehold_postgres::PostgresStore;
use leasehold_testkit::sql::{PgBouncer, PostgreSql};
use tokio::time::timeout;

use crate::common::{SERVER, WITHIN, fresh, key, request, session, store_at, take};

async fn next(listener: &mut Box<dyn Listener>) -> Wake {
    timeout(WITHIN, listener.next()).await.expect("a notification comes")
}

async fn until(listener: &mut Box<dyn Listener>, wanted: &Wake) {
    while next(listener).await != *wanted {}
}

async fn granted(listener: &mut Box<dyn Listener>) {
    while !matches!(next(listener).await, Wake::Granted { .. }) {}
}

/// Waits behind a holder that releases.
async fn hand_on(store: &PostgresStore, client: ClientId) {
    let held = request(&key());
    let fences = take(store, &held).await;
    let mut waiter = request(&held.key);
    waiter.queue = Some(QueueRequest::new(client, 7, held.ttl));
    let answer = store.acquire(&waiter, WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Waiting(_)), "{answer:?}");
    let release = ReleaseRequest::new(held.key.clone(), held.token, fences);
    store.release(&release, WITHIN).await.unwrap();
}

#[tokio::test]
async fn the_clients_of_a_process_share_a_connection_that_is_opened_again_when_it_is_lost() {
    let server = PostgreSql::start();
    let url = format!("{}?create=yes", server.url());
    let (one, two) = (store_at(&url).await, store_at(&url).await);
    let session = session(&server).await;
    let subscriptions =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold-listen'";
    let count = async || session.query_one(subscriptions, &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!(count().await, 0, "nobody waits yet");
    let clients = [ClientId::generate().unwrap(), ClientId::generate().unwrap()];
    let mut first = one.listen(clients[0], WITHIN).await.unwrap();
    let mut second = two.listen(clients[1], WITHIN).await.unwrap();
    assert_eq!(count().await, 1);
    hand_on(&one, clients[1]).await;
    granted(&mut second).await;
    hand_on(&two, clients[0]).await;
    granted(&mut first).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leasehold-listen'";
    session.batch_execute(end).await.unwrap();
    for listener in [&mut first, &mut second] {
        until(listener, &Wake::Silent).await;
        until(listener, &Wake::Resync).await;
    }
    hand_on(&one, clients[0]).await;
    granted(&mut first).await;
    assert_eq!(count().await, 1);
    drop(first);
    hand_on(&one, clients[1]).await;
    granted(&mut second).await;
}

#[tokio::test]
async fn a_channel_on_which_nothing_arrives_is_silent_and_the_doctor_says_so() {
    let (database, schema) = (fresh("deaf"), fresh("deaf"));
    session(&SERVER).await.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    // Notifications stay within a database.
    let other = SERVER.url().replace("/postgres", &format!("/{database}"));
    let other = other.replace('%', "%25").replace("postgres://", "postgres:%2F%2F");
    let store =
        store_at(&format!("{}?create=yes&schema={schema}&listen={other}", SERVER.url())).await;
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await.unwrap();
    until(&mut listener, &Wake::Silent).await;
    let findings = store.examine(WITHIN).await.unwrap();
    let wake = findings.iter().find(|finding| finding.topic == "wake").unwrap();
    assert_eq!(wake.severity, leasehold_core::doctor::Severity::Warning);
    assert!(wake.found.contains("pooler"), "{wake:?}");
}

#[tokio::test]
async fn a_wait_behind_a_channel_that_can_not_be_opened_is_refused_and_polls() {
    let schema = fresh("nowhere");
    let nowhere = "postgres:%2F%2Fleasehold@127.0.0.1:1%2Fpostgres";
    let store =
        store_at(&format!("{}?create=yes&schema={schema}&listen={nowhere}", SERVER.url())).await;
    let error =
        store.listen(ClientId::generate().unwrap(), Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Unavailable, "{error}");
    take(&store, &request(&key())).await;
}

#[tokio::test]
async fn behind_a_pooler_the_channel_is_silent_and_locks_work() {
    for pool_mode in ["transaction", "statement"] {
        let server = PostgreSql::start();
        let pooler = PgBouncer::start(&server, pool_mode);
        let store = store_at(&format!("{}?create=yes", pooler.url())).await;
        let mut listener = store.listen(ClientId::generate().unwrap(), WITHIN).await.unwrap();
        until(&mut listener, &Wake::Silent).await;
        take(&store, &request(&key())).await;
        // The channel, which opens again and again, may take the session in between.
        crate::common::until("the pooler is named", async || {
            let findings = store.examine(WITHIN).await.unwrap();
            let seen = findings.iter().find(|finding| finding.topic == "pooler");
            seen.is_some_and(|seen| seen.found.contains(pool_mode))
        })
        .await;
    }
}

#[tokio::test]
async fn a_pooler_that_is_restarted_delays_locks_and_ends_no_lease() {
    let server = PostgreSql::start();
    let mut pooler = PgBouncer::start(&server, "transaction");
    let direct = server.url().replace('%', "%25");
    let url = format!("{}?create=yes&connections=1&listen={direct}", pooler.url());
    let store = store_at(&url).await;
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await.unwrap();
    let held = request(&key());
    let fences = take(&store, &held).await;
    pooler.restart();
    let renewal = RenewRequest::new(held.key.clone(), held.token, fences, held.ttl);
    let renewed = loop {
        match store.renew(std::slice::from_ref(&renewal), WITHIN).await.remove(0) {
            Ok(renewed) => break renewed,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
    };
    assert_eq!(renewed, Renew::Renewed);
    hand_on(&store, client).await;
    granted(&mut listener).await;
}
