//! Passwords, users and certificates that change while a store is in use.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Reason, RenewRequest, Store as _};
use leasehold_redis::{Credentials, RedisStore};
use leasehold_testkit::server::RedisServer;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Caller, WITHIN, key};

/// Gives a user this password and no other, and cuts its connections.
fn rotate(server: &RedisServer, user: &str, password: &str) {
    let new = format!(">{password}");
    let rule = ["ACL", "SETUSER", user, "on", "resetpass", &new, "~*", "&*", "+@all"];
    assert_eq!(server.cli(&rule), "OK");
    cut(server, user);
}

fn cut(server: &RedisServer, user: &str) {
    drop(server.try_cli(&["CLIENT", "KILL", "USER", user]));
}

/// The ids of a user's connections.
fn connections(server: &RedisServer, user: &str) -> Vec<String> {
    let all = server.cli(&["CLIENT", "LIST"]);
    let own = format!(" user={user} ");
    let of_user = all.lines().filter(|line| line.contains(&own));
    of_user.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("it never happened that {what}");
}

/// The error of a renewal, once it tells this. On a busy machine the time of a renewal may end
/// before the server has answered.
async fn told_at_last(
    store: &RedisStore,
    renewal: &[RenewRequest],
    tells: impl Fn(&Error) -> bool,
) -> Error {
    let deadline = Instant::now() + WITHIN;
    loop {
        let error = store.renew(renewal, Duration::from_secs(1)).await.remove(0).unwrap_err();
        if tells(&error) || Instant::now() > deadline {
            return error;
        }
    }
}

#[tokio::test]
async fn a_user_without_a_password_is_that_user() {
    let server = RedisServer::builder()
        .acl_user("open on nopass ~* &* +@all")
        .acl_user("shut on >pw ~* &* +@all")
        .start();
    let store = RedisStore::connect(&format!("redis://open@{}", server.addr())).await.unwrap();
    Caller::new(&store, &key()).take().await;
    assert_eq!(connections(&server, "open").len(), 1);
    let refused =
        RedisStore::connect(&format!("redis://shut@{}", server.addr())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(connections(&server, "default").is_empty());
}

#[tokio::test]
async fn a_refusal_after_a_success_is_an_outage_that_ends_with_it() {
    let server = RedisServer::builder().acl_user("u on >one ~* &* +@all").start();
    let store = RedisStore::connect(&server.url_for("u", "one")).await.unwrap();
    let caller = Caller::new(&store, &key());
    let fences = caller.take().await;
    rotate(&server, "u", "two");
    let renewal = [caller.renewal(fences)];
    // The first request may be the one that finds the connection ended.
    drop(store.renew(&renewal, Duration::from_secs(1)).await);
    let wrong = |away: &Error| away.reason() == Some(Reason::WrongPassword);
    let away = told_at_last(&store, &renewal, wrong).await;
    let seen = (away.kind(), away.reason());
    assert_eq!(seen, (ErrorKind::Unavailable, Some(Reason::WrongPassword)), "{away}");
    let elsewhere = RedisStore::connect(&server.url_for("u", "one")).await.unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::Denied, "who was never let in is told at once");
    rotate(&server, "u", "one");
    store.renew(&renewal, WITHIN).await.remove(0).unwrap();
}

#[tokio::test]
async fn a_password_file_is_read_again_whichever_changes_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    let server = RedisServer::builder().acl_user("u on >one ~* &* +@all").start();
    fs::write(&file, "one\n").unwrap();
    let url = format!("redis://u@{}?password_file={}", server.addr(), file.display());
    let store = RedisStore::connect(&url).await.unwrap();
    let caller = Caller::new(&store, &key());
    let renewal = [caller.renewal(caller.take().await)];
    let renew = async |within| store.renew(&renewal, within).await.remove(0);
    // The server changes first.
    rotate(&server, "u", "two");
    drop(renew(Duration::from_secs(1)).await);
    assert_eq!(renew(Duration::from_secs(1)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    fs::write(&file, "two\n").unwrap();
    renew(WITHIN).await.unwrap();
    // The file changes first: the old password is used as long as the server accepts it.
    fs::write(&file, "three\n").unwrap();
    cut(&server, "u");
    drop(renew(WITHIN).await);
    renew(WITHIN).await.unwrap();
    rotate(&server, "u", "three");
    drop(renew(WITHIN).await);
    renew(WITHIN).await.unwrap();
    // If the new one can't be read, the error reports that with the refusal.
    fs::remove_file(&file).unwrap();
    rotate(&server, "u", "four");
    drop(renew(Duration::from_secs(1)).await);
    let unread = |away: &Error| away.to_string().contains("can't read the password file");
    let away = told_at_last(&store, &renewal, unread).await;
    assert!(unread(&away), "{away}");
    let none = RedisStore::connect(&url).await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Config, "{none}");
}

#[tokio::test]
async fn a_living_connection_logs_in_again_before_its_credentials_end() {
    let server = RedisServer::builder()
        .acl_user("u1 on >one ~* &* +@all")
        .acl_user("u2 on >two ~* &* +@all")
        .start();
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let builder = RedisStore::builder().credentials(move || {
        Ok(match count.fetch_add(1, Ordering::Relaxed) {
            0 => Credentials::new("one").user("u1").valid_for(Duration::from_secs(2)),
            1 => return Err("the vault is away".into()),
            2 => Credentials::new("wrong").user("u2").valid_for(Duration::from_secs(60)),
            _ => Credentials::new("two").user("u2"),
        })
    });
    let url = format!("redis://{}", server.addr());
    let store = builder.connect(&url).await.unwrap();
    let caller = Caller::new(&store, &key());
    let fences = caller.take().await;
    let before = connections(&server, "u1");
    assert_eq!(before.len(), 1);
    until("the connection is the second user's", || connections(&server, "u2") == before).await;
    assert_eq!(asked.load(Ordering::Relaxed), 4, "an error and a refusal were survived");
    assert_eq!(server.cli(&["ACL", "DELUSER", "u1"]), "1");
    store.renew(&[caller.renewal(fences)], WITHIN).await.remove(0).unwrap();
    assert_eq!(connections(&server, "u2"), before, "no connection was made anew");
}

#[tokio::test]
async fn a_source_that_hangs_is_read_once_and_keeps_no_caller_from_leaving() {
    let server = RedisServer::start();
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let builder = RedisStore::builder().connect_timeout(Duration::from_millis(200));
    let builder = builder.credentials(move || {
        count.fetch_add(1, Ordering::Relaxed);
        loop {
            std::thread::park();
        }
    });
    for _ in 0..3 {
        let store = builder.clone().connect_lazy(&format!("redis://{}", server.addr())).unwrap();
        for _ in 0..3 {
            let waited = timeout(WITHIN, store.inspect(&key(), Duration::from_millis(300))).await;
            let error = waited.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
    assert_eq!(asked.load(Ordering::Relaxed), 3, "once by each store");
}

#[test]
fn a_url_names_one_source_of_a_password() {
    for (url, advice) in [
        ("redis://:pw@h?password_file=/p", "keep one"),
        ("redis+sentinel://h/m?sentinel_password=x&sentinel_password_file=/p", "keep one"),
        ("redis://h?password_file=p", "absolute path"),
        ("redis://h?sentinel_password_file=/p", "redis+sentinel:// only"),
    ] {
        let error = RedisStore::connect_lazy(url).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(error.to_string().contains(advice), "{url}: {error}");
    }
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
mod with_tls {
    use std::path::Path;

    use leasehold_testkit::server::ClientCertificate;
    use leasehold_testkit::tls::{Identity, Pki};

    use super::*;

    fn copy(from: &Identity, certificate: &Path, key: &Path) {
        fs::copy(from.certificate_path(), certificate).unwrap();
        fs::copy(from.key_path(), key).unwrap();
    }

    #[tokio::test]
    async fn authorities_and_certificates_are_read_again_when_refused() {
        for asked_for in [ClientCertificate::Ignored, ClientCertificate::Required] {
            let (old, new) = (Pki::generate(), Pki::generate());
            let server = RedisServer::builder().tls(&old, asked_for).start();
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            let (ca, certificate, secret) = (at("ca.pem"), at("own.pem"), at("own.key"));
            fs::copy(old.ca().certificate_path(), &ca).unwrap();
            copy(old.client(), &certificate, &secret);
            let url = format!(
                "{}?cafile={}&certfile={}&keyfile={}",
                server.tls_url(),
                ca.display(),
                certificate.display(),
                secret.display()
            );
            let store = RedisStore::connect(&url).await.unwrap();
            let caller = Caller::new(&store, &key());
            let renewal = [caller.renewal(caller.take().await)];
            let renew = async |within| store.renew(&renewal, within).await.remove(0);
            server.change_authority(&new);
            drop(renew(Duration::from_secs(1)).await);
            let of_it = |away: &Error| away.reason() == Some(Reason::Certificate);
            let away = told_at_last(&store, &renewal, of_it).await;
            let seen = (away.kind(), away.reason());
            assert_eq!(seen, (ErrorKind::Unavailable, Some(Reason::Certificate)), "{away}");
            fs::copy(new.ca().certificate_path(), &ca).unwrap();
            if asked_for == ClientCertificate::Required {
                drop(renew(Duration::from_secs(1)).await);
                let away = told_at_last(&store, &renewal, of_it).await;
                assert_eq!(away.reason(), Some(Reason::Certificate), "{away}");
                copy(new.client(), &certificate, &secret);
            }
            renew(WITHIN).await.unwrap();
        }
    }
}
