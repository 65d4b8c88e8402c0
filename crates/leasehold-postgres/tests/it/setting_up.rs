//! The tables and the rights that locks need, passwords, and TLS.

use leasehold_core::{
    ErrorKind, ListRequest, LogEntry, LogId, Mode, Reason, Release, ReleaseRequest, Renew,
    RenewRequest, Store as _,
};
use leasehold_postgres::{PostgresStore, Rights};
use leasehold_testkit::sql::PostgreSql;
use leasehold_testkit::tls::Pki;

use crate::common::{
    SERVER, WITHIN, fresh, key, request, session, session_of, store_at, take, until,
};

async fn refused(url: &str) -> leasehold_core::Error {
    PostgresStore::connect(url).await.unwrap_err()
}

#[tokio::test]
async fn tables_are_made_on_demand_alone_and_by_many_at_once() {
    let url = format!("{}?schema={}", SERVER.url(), fresh("made"));
    let error = refused(&url).await;
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Config, Some(Reason::StoreSettings)));
    assert!(error.to_string().contains("create=yes"), "{error}");
    let with = format!("{url}&create=yes");
    let all = (0..8).map(|_| store_at(&with));
    for store in futures_util::future::join_all(all).await {
        take(&store, &request(&key())).await;
    }
    store_at(&url).await;
    let error = PostgresStore::builder()
        .create(true)
        .connect(&format!("{url}x&create=no"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn another_format_of_the_tables_is_refused() {
    let schema = fresh("format");
    let url = format!("{}?create=yes&schema={schema}", SERVER.url());
    store_at(&url).await;
    let sql = format!("UPDATE {schema}.meta SET format = 2");
    session(&SERVER).await.batch_execute(&sql).await.unwrap();
    let error = refused(&url).await;
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Config, Some(Reason::OtherVersion)),
        "{error}"
    );
}

#[tokio::test]
async fn a_user_needs_the_rights_to_the_tables_and_no_others() {
    let (schema, user) = (fresh("rights"), fresh("user"));
    let session = session(&SERVER).await;
    session.batch_execute(&format!("CREATE ROLE {user} LOGIN")).await.unwrap();
    let url = format!("{}?schema={schema}", SERVER.url());
    let theirs = url.replace("leasehold@", &format!("{user}@"));
    let error = refused(&format!("{theirs}&create=yes")).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    store_at(&format!("{url}&create=yes")).await;
    let error = refused(&theirs).await;
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Denied, Some(Reason::MissingRight)),
        "{error}"
    );
    let grants = format!(
        "GRANT USAGE ON SCHEMA {schema} TO {user};
         GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.lock, {schema}.log TO {user};
         GRANT SELECT, INSERT ON {schema}.alive TO {user};
         GRANT SELECT, UPDATE ON {schema}.meta TO {user}"
    );
    session.batch_execute(&grants).await.unwrap();
    let store = store_at(&format!("{theirs}&log=10")).await;
    let held = request(&key());
    let fence = take(&store, &held).await.first();
    let log = store.log().unwrap();
    let event = leasehold_core::LogEntry::new(
        held.key.clone(),
        leasehold_core::LogId::default(),
        "granted",
        fence,
    );
    log.append(&[event], crate::common::WITHIN).await.unwrap();
    store.examine(crate::common::WITHIN).await.unwrap();
    store
        .listen(leasehold_core::ClientId::generate().unwrap(), crate::common::WITHIN)
        .await
        .unwrap();
}

#[tokio::test]
async fn with_the_owners_rights_a_user_works_by_the_functions_alone() {
    let (schema, user) = (fresh("least"), fresh("user"));
    let session = session(&SERVER).await;
    session.batch_execute(&format!("CREATE ROLE {user} LOGIN")).await.unwrap();
    let url = format!("{}?schema={schema}", SERVER.url());
    let set_up = async |rights| {
        let builder = PostgresStore::builder();
        builder.set_up(&url, Some(&user), rights).await.unwrap();
    };
    // Rights that it had before are gone.
    set_up(Rights::OfCallers).await;
    set_up(Rights::OfOwner).await;
    let theirs = url.replace("leasehold@", &format!("{user}@"));
    let store = store_at(&format!("{theirs}&log=10&durability=async")).await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut held = request(&key());
        held.mode = mode;
        let fences = take(&store, &held).await;
        let renewal = RenewRequest::new(held.key.clone(), held.token, fences, held.ttl);
        assert_eq!(store.renew(&[renewal], WITHIN).await.remove(0).unwrap(), Renew::Renewed);
        assert_eq!(store.list(&ListRequest::default(), WITHIN).await.unwrap().locks.len(), 1);
        let event = LogEntry::new(held.key.clone(), LogId::default(), "granted", fences.first());
        let log = store.log().unwrap();
        log.append(&[event], WITHIN).await.unwrap();
        assert_eq!(log.read(&held.key, 10, WITHIN).await.unwrap().len(), 1);
        let release = ReleaseRequest::new(held.key.clone(), held.token, fences);
        assert_eq!(store.release(&release, WITHIN).await.unwrap(), Release::Released);
    }
    store.examine(WITHIN).await.unwrap();
    let held = request(&key());
    let fence = take(&store, &held).await.last().as_i64();
    let name = held.key.as_str();
    let their_session = session_of(&SERVER, &user).await;
    let job = format!(
        "BEGIN; SELECT {schema}.hold('{name}', {fence}); \
         SELECT {schema}.release_with('{name}', {fence}); COMMIT"
    );
    their_session.batch_execute(&job).await.unwrap();
    take(&store, &request(&held.key)).await;
    for table in ["lock", "meta", "alive", "log"] {
        let sql = format!("SELECT * FROM {schema}.{table}");
        let error = their_session.batch_execute(&sql).await.unwrap_err();
        assert_eq!(error.code().map(|code| code.code()), Some("42501"), "{error}");
    }
}

#[tokio::test]
async fn a_password_is_read_anew_at_each_login_and_a_wrong_one_is_denied() {
    let server = PostgreSql::start();
    let session = session(&server).await;
    session
        .batch_execute(
            "SET password_encryption = 'scram-sha-256';
             CREATE ROLE app LOGIN PASSWORD 'one' IN ROLE pg_monitor",
        )
        .await
        .unwrap();
    session.batch_execute("GRANT CREATE ON DATABASE postgres TO app").await.unwrap();
    let path: String = session.query_one("SHOW hba_file", &[]).await.unwrap().get(0);
    let rules = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("host all app 127.0.0.1/32 scram-sha-256\n{rules}")).unwrap();
    session.query("SELECT pg_reload_conf()", &[]).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let url = format!("postgres://app@127.0.0.1:{}/postgres?create=yes", server.port());
    let from_file = format!("{url}&password_file={}", file.display());
    // The reload takes effect for connections made a moment later.
    let mut error = None;
    while error.is_none() {
        error = PostgresStore::connect(&url.replace("app@", "app:wrong@")).await.err();
    }
    let error = error.unwrap();
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Denied, Some(Reason::WrongPassword)),
        "{error}"
    );
    assert!(!format!("{error:?}").contains("wrong@"), "{error:?}");
    std::fs::write(&file, "one\n").unwrap();
    let store = store_at(&from_file).await;
    take(&store, &request(&key())).await;
    let change = "ALTER ROLE app PASSWORD 'two'; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'";
    session.batch_execute(change).await.unwrap();
    std::fs::write(&file, "two\n").unwrap();
    while store.acquire(&request(&key()), crate::common::WITHIN).await.is_err() {}
}

#[tokio::test]
async fn a_server_is_trusted_by_its_certificate_and_name() {
    let pki = Pki::generate();
    let server = PostgreSql::start_with_tls(pki.server());
    let base = format!(
        "postgres://leasehold@localhost:{}/postgres?create=yes&sslmode=verify-full",
        server.port()
    );
    let trusting = |ca: &leasehold_testkit::tls::Identity| {
        format!("{base}&sslrootcert={}", ca.certificate_path().display())
    };
    let store = store_at(&trusting(pki.ca())).await;
    take(&store, &request(&key())).await;
    let secured = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE s.ssl AND a.application_name = 'leasehold'";
    let secured: i64 = session(&server).await.query_one(secured, &[]).await.unwrap().get(0);
    assert!(secured > 0);
    let error = refused(&trusting(pki.unrelated_ca())).await;
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Config, Some(Reason::Certificate)),
        "{error}"
    );
    let misnamed = PostgreSql::start_with_tls(pki.misnamed());
    let url = trusting(pki.ca()).replace(&server.port().to_string(), &misnamed.port().to_string());
    assert_eq!(refused(&url).await.reason(), Some(Reason::Certificate));
    let plain = format!(
        "{}&sslmode=verify-full",
        SERVER.tcp_url().replace("/postgres", "/postgres?create=yes")
    );
    let error = refused(&plain).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "a server without TLS: {error}");
}

#[tokio::test]
async fn of_several_hosts_the_one_that_accepts_writes_is_used() {
    let server = PostgreSql::start();
    let standby = server.standby();
    let alone = format!("{}?create=yes", standby.tcp_url());
    let error = refused(&alone).await;
    assert_eq!(
        (error.kind(), error.reason()),
        (ErrorKind::Unavailable, Some(Reason::NotPrimary)),
        "{error}"
    );
    let hosts = format!("127.0.0.1:1,127.0.0.1:{},127.0.0.1:{}", standby.port(), server.port());
    let store = store_at(&format!("postgres://leasehold@{hosts}/postgres?create=yes")).await;
    take(&store, &request(&key())).await;
    assert_eq!(server.sql("SELECT count(*) FROM leasehold.lock"), "1");
}

#[tokio::test]
async fn a_login_is_bound_to_the_servers_certificate() {
    let pki = Pki::generate();
    let server = PostgreSql::start_with_tls(pki.server());
    server.sql(
        "SET password_encryption = 'scram-sha-256'; CREATE ROLE app SUPERUSER LOGIN PASSWORD 'one'",
    );
    let url = format!(
        "postgres://app:one@localhost:{}/postgres?create=yes&sslrootcert={}&channel_binding=require",
        server.port(),
        pki.ca().certificate_path().display()
    );
    let error = refused(&url).await;
    assert!(error.to_string().contains("channel binding"), "a login without a password: {error}");
    server.admit("hostssl all app all scram-sha-256");
    until("the rule holds", async || PostgresStore::connect(&url).await.is_ok()).await;
    let store = store_at(&url).await;
    take(&store, &request(&key())).await;
    let error = refused(&url.replace(":one@", ":two@")).await;
    assert_eq!(error.reason(), Some(Reason::WrongPassword), "{error}");
}

#[tokio::test]
async fn the_system_vouches_for_a_user_of_the_socket() {
    let server = PostgreSql::start();
    let user = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
    let user = String::from_utf8(user).unwrap().trim().to_owned();
    server.sql(&format!("CREATE ROLE \"{user}\" SUPERUSER LOGIN; CREATE ROLE another LOGIN"));
    server.admit(&format!("local all \"{user}\",another peer"));
    let url = format!("{}?create=yes", server.url());
    // Before the reload, only rights are missing.
    let another = url.replace("leasehold@", "another@");
    until("the rule holds", async || refused(&another).await.kind() == ErrorKind::Denied).await;
    let store = store_at(&url.replace("leasehold@", &format!("{user}@"))).await;
    take(&store, &request(&key())).await;
}

#[tokio::test]
async fn two_schemas_keep_two_sets_of_locks() {
    let [one, two] = ["one", "two"].map(|name| {
        let schema = fresh(name);
        async move { store_at(&format!("{}?create=yes&schema={schema}", SERVER.url())).await }
    });
    let (one, two) = (one.await, two.await);
    let name = key();
    take(&one, &request(&name)).await;
    take(&two, &request(&name)).await;
    let all = leasehold_core::ListRequest::default();
    assert_eq!(one.list(&all, crate::common::WITHIN).await.unwrap().locks.len(), 1);
}
