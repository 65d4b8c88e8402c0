//! Servers that are away, sessions that are ended, and settings that make transactions fail.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::Severity;
use leasehold_core::{Acquire, Effect, ErrorKind, Reason, ReleaseRequest, Store as _};
use leasehold_postgres::PostgresStore;
use leasehold_testkit::sql::PostgreSql;

use crate::common::{SERVER, WITHIN, fresh, key, own_store, request, session, store_at, take};

#[tokio::test]
async fn a_server_that_is_away_is_unavailable_and_found_again() {
    let mut server = PostgreSql::start();
    let store = store_at(&format!("{}?create=yes", server.tcp_url())).await;
    let held = request(&key());
    take(&store, &held).await;
    server.stop();
    let error = loop {
        let error = store.acquire(&request(&key()), WITHIN).await.unwrap_err();
        if error.reason() == Some(Reason::Unreachable) {
            break error;
        }
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Unavailable, Some(Reason::Disconnected))
        );
    };
    assert_eq!(
        (error.kind(), error.effect()),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error}"
    );
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    server.restart();
    assert!(matches!(store.acquire(&held, WITHIN).await.unwrap(), Acquire::Already(_)));
}

#[tokio::test]
async fn an_ended_session_is_replaced() {
    let server = PostgreSql::start();
    let store = store_at(&format!("{}?create=yes", server.url())).await;
    let session = session(&server).await;
    let end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    for _ in 0..5 {
        take(&store, &request(&key())).await;
        session.batch_execute(end).await.unwrap();
        let held = request(&key());
        // The end may be noticed with the next statement, which was not carried out then.
        let answer = match store.acquire(&held, WITHIN).await {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                store.acquire(&held, WITHIN).await.unwrap()
            }
            Ok(answer) => answer,
        };
        assert!(answer.fences().is_some(), "{answer:?}");
    }
}

/// Many tasks of several clients take one lock in turns, and count with it.
async fn contend(url: &str) {
    let name = key();
    let count = Arc::new(std::sync::Mutex::new(0));
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(store_at(url).await);
    }
    let tasks = stores.into_iter().map(|store| {
        let (name, count) = (name.clone(), Arc::clone(&count));
        tokio::spawn(async move {
            for _ in 0..6 {
                let mut held = request(&name);
                let fences = loop {
                    match store.acquire(&held, WITHIN).await.unwrap() {
                        Acquire::Granted(granted) => break granted.fences,
                        _ => held.token = crate::common::token(),
                    }
                };
                let before = *count.lock().unwrap();
                tokio::task::yield_now().await;
                *count.lock().unwrap() = before + 1;
                let release = ReleaseRequest::new(name.clone(), held.token, fences);
                store.release(&release, WITHIN).await.unwrap();
            }
        })
    });
    for outcome in futures_util::future::join_all(tasks).await {
        outcome.unwrap();
    }
    assert_eq!(*count.lock().unwrap(), 24);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_default_isolation_level_will_do() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let (schema, user) = (fresh("level"), fresh("leveled"));
        let sql = format!(
            "CREATE ROLE {user} LOGIN SUPERUSER; ALTER ROLE {user} SET default_transaction_isolation = '{level}'"
        );
        session(&SERVER).await.batch_execute(&sql).await.unwrap();
        let url = SERVER.url().replace("leasehold@", &format!("{user}@"));
        contend(&format!("{url}?create=yes&schema={schema}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contention_leaves_no_error_in_the_servers_log() {
    let server = PostgreSql::start();
    contend(&format!("{}?create=yes", server.url())).await;
    let log = server.log();
    assert!(log.contains("ready to accept connections"), "{log}");
    for line in log.lines() {
        assert!(!line.contains("ERROR") && !line.contains("WARNING"), "{line}");
    }
}

#[tokio::test]
async fn a_statement_that_the_server_cancels_has_no_effect() {
    let (schema, user) = (fresh("limit"), fresh("limited"));
    store_at(&format!("{}?create=yes&schema={schema}", SERVER.url())).await;
    let session = session(&SERVER).await;
    let sql = format!(
        "CREATE ROLE {user} LOGIN SUPERUSER; ALTER ROLE {user} SET statement_timeout = '300ms';
         BEGIN; LOCK TABLE {schema}.lock"
    );
    let url = SERVER.url().replace("leasehold@", &format!("{user}@"));
    session.batch_execute(&sql.replace("BEGIN", "COMMIT; BEGIN")).await.unwrap();
    let store = store_at(&format!("{url}?schema={schema}")).await;
    let held = request(&key());
    let error = store.acquire(&held, WITHIN).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (ErrorKind::Unavailable, Effect::NotApplied),
        "{error}"
    );
    session.batch_execute("ROLLBACK").await.unwrap();
    take(&store, &held).await;
}

#[tokio::test]
async fn no_answer_in_time_leaves_the_outcome_open_and_the_store_usable() {
    let (store, schema) = own_store().await;
    let session = session(&SERVER).await;
    session
        .batch_execute(&format!("BEGIN; LOCK TABLE {schema}.lock IN EXCLUSIVE MODE"))
        .await
        .unwrap();
    let held = request(&key());
    // It reads, and its write waits for the table.
    let error = store.acquire(&held, Duration::from_millis(500)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (ErrorKind::Unavailable, Effect::Unknown),
        "{error}"
    );
    assert_eq!(error.reason(), Some(Reason::NoAnswer));
    session.batch_execute("ROLLBACK").await.unwrap();
    let answer = store.acquire(&held, WITHIN).await.unwrap();
    assert!(answer.fences().is_some(), "{answer:?}");
}

#[tokio::test]
async fn the_doctor_names_settings_that_lose_leases() {
    let server = PostgreSql::start_with(&["synchronous_commit=off", "fsync=on"]);
    let store = store_at(&format!("{}?create=yes", server.url())).await;
    take(&store, &request(&key())).await;
    let findings = store.examine(WITHIN).await.unwrap();
    let of = |topic: &str| findings.iter().find(|finding| finding.topic == topic).unwrap();
    assert_eq!(of("persistence").severity, Severity::Warning);
    assert_eq!(of("version").severity, Severity::Fine);
    assert_eq!(of("wake").severity, Severity::Fine);
    assert!(of("identity").found.contains("schema leasehold"));
    assert!(store.remembers_for(WITHIN).await.unwrap().is_some());
    let off = PostgresStore::connect(&format!("{}?create=yes", SERVER.url())).await.unwrap();
    let findings = off.examine(WITHIN).await.unwrap();
    let persistence = findings.iter().find(|finding| finding.topic == "persistence").unwrap();
    assert_eq!(persistence.severity, Severity::Problem, "fsync is off there");
}
