//! Servers that are away, sessions that are ended, and settings that make transactions fail.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::Severity;
use leasehold_core::{Acquire, Effect, ErrorKind, Reason, ReleaseRequest, Store as _};
use leasehold_postgres::PostgresStore;
use leasehold_testkit::sql::PostgreSql;

use crate::common::{
    SERVER, WITHIN, end_sessions, fresh, key, own_store, request, session, store_at, take, until,
};

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
    for _ in 0..5 {
        take(&store, &request(&key())).await;
        end_sessions(&server, "application_name = 'leasehold'").await;
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
    // A busy machine may keep a transaction from its row for a second.
    let in_vain = ["due to lock timeout", "current transaction is aborted"];
    for line in log.lines().filter(|line| !in_vain.iter().any(|part| line.contains(part))) {
        assert!(!line.contains("ERROR") && !line.contains("WARNING"), "{line}");
    }
}

#[tokio::test]
async fn a_statement_that_the_server_cancels_has_no_effect() {
    let (schema, user) = (fresh("limit"), fresh("limited"));
    store_at(&format!("{}?create=yes&schema={schema}", SERVER.url())).await;
    let session = session(&SERVER).await;
    let sql = format!(
        "CREATE ROLE {user} LOGIN SUPERUSER; ALTER ROLE {user} SET statement_timeout = '2s';
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
    let mut tries = 0;
    let error = loop {
        assert!(tries < 100, "nothing is written");
        tries += 1;
        let error = store.acquire(&held, Duration::from_millis(500)).await.unwrap_err();
        let seen = (error.kind(), error.reason());
        assert_eq!(seen, (ErrorKind::Unavailable, Some(Reason::NoAnswer)), "{error}");
        // Until it has connected and read, it has written nothing.
        if error.effect() != Effect::NotApplied {
            break error;
        }
    };
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    session.batch_execute("ROLLBACK").await.unwrap();
    let answer = store.acquire(&held, WITHIN).await.unwrap();
    assert!(answer.fences().is_some(), "{answer:?}");
}

#[tokio::test]
async fn the_doctor_names_settings_that_lose_leases() {
    let server = PostgreSql::start_with(&["synchronous_commit=off", "fsync=on"]);
    // leasehold's own commits are durable all the same.
    let store = store_at(&format!("{}?create=yes", server.url())).await;
    take(&store, &request(&key())).await;
    let findings = store.examine(WITHIN).await.unwrap();
    let of = |topic: &str| findings.iter().find(|finding| finding.topic == topic).unwrap();
    assert_eq!(of("persistence").severity, Severity::Fine);
    assert_eq!(of("version").severity, Severity::Fine);
    assert_eq!(of("wake").severity, Severity::Fine);
    assert!(of("identity").found.contains("schema leasehold"));
    assert!(store.remembers_for(WITHIN).await.unwrap().is_none());
    let off = PostgresStore::connect(&format!("{}?create=yes", SERVER.url())).await.unwrap();
    let findings = off.examine(WITHIN).await.unwrap();
    let persistence = findings.iter().find(|finding| finding.topic == "persistence").unwrap();
    assert_eq!(persistence.severity, Severity::Problem, "fsync is off there");
}

#[tokio::test]
async fn the_doctor_names_limits_functions_of_another_version_and_sessions_that_lock_rows() {
    let (store, schema) = own_store().await;
    let user = fresh("limited");
    SERVER.sql(&format!("CREATE ROLE {user} LOGIN SUPERUSER"));
    take(&store, &request(&key())).await;
    let named = async |store: &PostgresStore, topic: &str| {
        let findings = store.examine(WITHIN).await.unwrap();
        findings.into_iter().find(|finding| finding.topic == topic)
    };
    for topic in ["functions", "rows", "pooler"] {
        assert_eq!(named(&store, topic).await, None);
    }
    let limits = named(&store, "limits").await.unwrap();
    assert_eq!(
        (&*limits.found, limits.severity),
        ("statement_timeout is not set, lock_timeout not set", Severity::Note)
    );
    let stranger = session(&SERVER).await;
    stranger.batch_execute(&format!("BEGIN; SELECT FROM {schema}.lock FOR UPDATE")).await.unwrap();
    SERVER.sql(&format!(
        "ALTER ROLE {user} SET statement_timeout = '999ms';
         CREATE OR REPLACE FUNCTION {schema}.hold(p_name text, p_fence bigint) RETURNS void LANGUAGE plpgsql
         AS $$ BEGIN END $$"
    ));
    let url = SERVER.url().replace("leasehold@", &format!("{user}@"));
    let limited = store_at(&format!("{url}?schema={schema}")).await;
    let limits = named(&limited, "limits").await.unwrap();
    assert_eq!(limits.severity, Severity::Warning, "{limits:?}");
    assert_eq!(named(&store, "functions").await.unwrap().severity, Severity::Warning);
    until("the session is named", async || {
        let rows = named(&store, "rows").await;
        rows.is_some_and(|rows| rows.found.contains("of leasehold"))
    })
    .await;
    stranger.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(named(&store, "rows").await, None);
}

#[tokio::test]
async fn a_limit_that_no_statement_keeps_leaves_no_effect() {
    let (schema, user) = (fresh("hasty"), fresh("hasty"));
    let url = format!("{}?schema={schema}", SERVER.url());
    let judge = store_at(&format!("{url}&create=yes")).await;
    SERVER.sql(&format!("CREATE ROLE {user} LOGIN SUPERUSER"));
    let hasty = store_at(&url.replace("leasehold@", &format!("{user}@"))).await;
    // Each write takes longer than the limit.
    SERVER.sql(&format!(
        "CREATE FUNCTION {schema}.delay() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END';
         CREATE TRIGGER delay BEFORE INSERT ON {schema}.lock FOR EACH ROW
         EXECUTE FUNCTION {schema}.delay();
         ALTER ROLE {user} SET statement_timeout = '1ms'"
    ));
    // It holds for new sessions.
    end_sessions(&SERVER, &format!("usename = '{user}'")).await;
    until("a statement is cancelled", async || {
        let held = request(&key());
        let error = hasty.acquire(&held, WITHIN).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(judge.inspect(&held.key, WITHIN).await.unwrap(), None, "{error}");
        let is_cancelled = error.reason() == Some(Reason::Busy);
        assert!(!is_cancelled || error.effect() == Effect::NotApplied, "{error}");
        is_cancelled
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_is_reported_and_changes_nothing() {
    let (store, schema) = own_store().await;
    SERVER.sql(&format!(
        "CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
         CREATE TRIGGER fills BEFORE INSERT ON {schema}.lock FOR EACH ROW EXECUTE FUNCTION {schema}.full()"
    ));
    let held = request(&key());
    let error = store.acquire(&held, WITHIN).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.reason(), error.effect()),
        (ErrorKind::Full, Some(Reason::DiskFull), Effect::NotApplied),
        "{error}"
    );
    SERVER.sql(&format!("DROP TRIGGER fills ON {schema}.lock"));
    take(&store, &held).await;
}

#[tokio::test]
async fn a_session_that_does_not_answer_is_replaced_and_its_statement_ended() {
    let schema = fresh("silent");
    let store =
        store_at(&format!("{}?create=yes&connections=1&schema={schema}", SERVER.url())).await;
    take(&store, &request(&key())).await;
    let session = session(&SERVER).await;
    session.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.lock")).await.unwrap();
    for _ in 0..3 {
        let error = store.acquire(&request(&key()), Duration::from_secs(3)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let waiting = format!(
        "SELECT count(*) FROM pg_locks WHERE relation = '{schema}.lock'::regclass AND NOT granted"
    );
    until("their statements are ended", async || {
        session.query_one(&waiting, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    session.batch_execute("ROLLBACK").await.unwrap();
    take(&store, &request(&key())).await;
}

#[tokio::test]
async fn a_short_call_after_an_idle_time_keeps_its_session() {
    let (schema, user) = (fresh("idle"), fresh("idle"));
    SERVER.sql(&format!("CREATE ROLE {user} LOGIN SUPERUSER"));
    let url = SERVER.url().replace("leasehold@", &format!("{user}@"));
    let settings = format!("create=yes&connections=1&listen=none&schema={schema}");
    let store = store_at(&format!("{url}?{settings}")).await;
    let pid = format!("SELECT max(pid) FROM pg_stat_activity WHERE usename = '{user}'");
    let session = session(&SERVER).await;
    // The machine itself may stand still for a second, so there are several rounds.
    let mut is_kept = false;
    for _ in 0..5 {
        take(&store, &request(&key())).await;
        let before = SERVER.sql(&pid);
        session.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.lock")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let error = store.acquire(&request(&key()), Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.reason(), Some(Reason::NoAnswer), "{error}");
        session.batch_execute("ROLLBACK").await.unwrap();
        take(&store, &request(&key())).await;
        is_kept |= SERVER.sql(&pid) == before;
    }
    assert!(is_kept);
}

#[tokio::test]
async fn a_transaction_with_an_old_snapshot_changes_no_answer() {
    let (store, schema) = own_store().await;
    let session = session(&SERVER).await;
    let old = format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {schema}.lock");
    session.batch_execute(&old).await.unwrap();
    let name = key();
    let mut last = None;
    for _ in 0..50 {
        let held = request(&name);
        let fence = Some(take(&store, &held).await.first());
        assert!(fence > last);
        last = fence;
        let Acquire::Already(granted) = store.acquire(&held, WITHIN).await.unwrap() else {
            panic!("its own lease")
        };
        let release = ReleaseRequest::new(name.clone(), held.token, granted.fences);
        store.release(&release, WITHIN).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_opens_as_many_sessions_as_its_url_allows() {
    let (schema, user) = (fresh("few"), fresh("few"));
    SERVER.sql(&format!("CREATE ROLE {user} LOGIN SUPERUSER"));
    let url = SERVER.url().replace("leasehold@", &format!("{user}@"));
    let store = store_at(&format!("{url}?create=yes&connections=2&schema={schema}")).await;
    let all: Vec<_> = (0..64).map(|_| request(&key())).collect();
    futures_util::future::join_all(all.iter().map(|request| take(&store, request))).await;
    let sessions = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{user}'");
    assert_eq!(SERVER.sql(&sessions), "2");
}

#[tokio::test]
async fn the_doctor_names_what_keeps_dead_rows_and_a_standby_that_is_away() {
    let server = PostgreSql::start_with(&["max_prepared_transactions=2"]);
    let store = store_at(&format!("{}?create=yes", server.url())).await;
    take(&store, &request(&key())).await;
    let worse = async || {
        let findings = store.examine(WITHIN).await.unwrap();
        let worse = findings.into_iter().filter(|finding| finding.severity > Severity::Note);
        worse.map(|finding| finding.topic.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(worse().await, ["persistence"], "fsync is off");
    server.sql("ALTER TABLE leasehold.lock SET (fillfactor = 100)");
    server.sql("CREATE INDEX ON leasehold.lock (used_until)");
    server.sql(
        "DO $$ BEGIN FOR i IN 1 .. 1100 LOOP
         UPDATE leasehold.lock SET used_until = used_until + interval '1 ms'; END LOOP; END $$",
    );
    server.sql("SELECT pg_create_physical_replication_slot('left_over', true)");
    server.set("synchronous_standby_names", "*");
    until("replication and updates are named", async || {
        let worse = worse().await;
        ["replication", "updates"].iter().all(|topic| worse.iter().any(|it| it == topic))
    })
    .await;
}
