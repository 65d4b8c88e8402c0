//! Access: by each kind of address, and with each user's rights.

use leasehold_core::{
    ClientId, Effect, Error, ErrorKind, ForceReleaseRequest, ListRequest, Mode, Store as _,
};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::{self, RedisServer};
use tokio::time::timeout;

use crate::common::{Caller, WITHIN, key};

/// Uses every feature of a store.
async fn use_it_all(store: &RedisStore) -> Result<(), Error> {
    let key = key();
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await?;
    let holder = Caller::new(store, &key);
    let leasehold_core::Acquire::Granted(granted) = holder.try_take().await? else {
        panic!("it is free");
    };
    let waiter = Caller::patient(store, &key, client);
    for heartbeat in 0..2 {
        let mut request = waiter.request.clone();
        if let Some(queue) = &mut request.queue {
            queue.heartbeat = heartbeat;
        }
        store.acquire(&request, WITHIN).await?;
    }
    store.renew(&[holder.renewal(granted.fences)], WITHIN).await.remove(0)?;
    store.inspect(&key, WITHIN).await?;
    store.list(&ListRequest::default(), WITHIN).await?;
    store.release(&holder.ending(granted.fences), WITHIN).await?;
    let woken = timeout(std::time::Duration::from_secs(2), listener.next()).await;
    let handed = match store.acquire(&waiter.request, WITHIN).await? {
        leasehold_core::Acquire::Already(already) => already,
        other => panic!("{other:?}"),
    };
    let force = ForceReleaseRequest::new(key.clone(), handed.fences.first());
    store.force_release(&force, WITHIN).await?;
    let mut sharer = Caller::new(store, &key);
    sharer.request.mode = Mode::Shared;
    let leasehold_core::Acquire::Granted(shared) = sharer.try_take().await? else {
        panic!("it is free");
    };
    store.renew(&[sharer.renewal(shared.fences)], WITHIN).await.remove(0)?;
    store.leave(&sharer.leaving(), WITHIN).await?;
    let simple = Caller::new(store, &key);
    let leasehold_core::Acquire::Granted(granted) = simple.try_take().await? else {
        panic!("it is free");
    };
    store.renew(&[simple.renewal(granted.fences)], WITHIN).await.remove(0)?;
    store.release(&simple.ending(granted.fences), WITHIN).await?;
    woken.map(drop).map_err(|_| Error::new(ErrorKind::Unavailable, "nobody was woken"))
}

/// The rule that the documentation gives.
fn documented_rule() -> String {
    let wire = include_str!("../../../../docs/wire.md");
    let rule = wire.lines().find_map(|line| line.strip_prefix("user locks on >PASSWORD "));
    rule.expect("docs/wire.md gives a rule").to_owned()
}

#[tokio::test]
async fn the_documented_rights_are_enough_and_each_of_them_is_needed() {
    let server = RedisServer::start();
    let rule = documented_rule();
    let set = |rule: &str| {
        let mut words = vec!["ACL", "SETUSER", "locks", "reset", "on", ">secret"];
        words.extend(rule.split(' '));
        assert_eq!(server.cli(&words), "OK");
    };
    let url = server.url_for("locks", "secret");
    set(&rule);
    use_it_all(&RedisStore::connect(&url).await.unwrap()).await.unwrap();

    let rights: Vec<&str> = rule.split(' ').filter(|word| word.starts_with('+')).collect();
    assert!(rights.len() > 10);
    for right in rights {
        let others: Vec<&str> = rule.split(' ').filter(|word| *word != right).collect();
        set(&others.join(" "));
        // A script that the server has needs no EVAL.
        drop(server.cli(&["SCRIPT", "FLUSH"]));
        let tried = async { use_it_all(&RedisStore::connect(&url).await?).await }.await;
        let error = tried.expect_err(right);
        if right == "+publish" {
            assert_eq!(error.to_string(), "nobody was woken", "all else goes on");
            continue;
        }
        // A missing right is detected before the script's first write, or else the effect is
        // unknown.
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        let command = right[1..].to_ascii_uppercase();
        if matches!(&*command, "PING" | "EVALSHA" | "SCAN" | "SUBSCRIBE") {
            assert!(error.to_string().contains(&format!("may not run {command}")), "{error}");
        }
        assert!(error.to_string().contains("which locks need"), "{error}");
    }
}

#[tokio::test]
async fn keys_and_channels_of_others_are_out_of_reach() {
    let rule = format!("locks on >secret {}", documented_rule());
    let server = RedisServer::builder().acl_user(rule).start();
    let url = format!("{}?prefix=other", server.url_for("locks", "secret"));
    let store = RedisStore::connect(&url).await.unwrap();
    let error = Caller::new(&store, &key()).try_take().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::NotApplied));
    assert!(error.to_string().contains("may not use the keys"), "{error}");
    let error = store.listen(ClientId::generate().unwrap(), WITHIN).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("may not use the channels"), "{error}");
}

#[tokio::test]
async fn wrong_and_missing_passwords_are_refused_with_advice() {
    let server = RedisServer::builder().password("right").start();
    for protocol in ["resp2", "resp3"] {
        let right = format!("{}?protocol={protocol}", server.url());
        use_it_all(&RedisStore::connect(&right).await.unwrap()).await.unwrap();

        let wrong = right.replace("right", "wrong-secret");
        let error = RedisStore::connect(&wrong).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::NotApplied));
        assert!(error.to_string().contains("user name or password"), "{protocol}: {error}");
        assert!(!error.is_retryable());

        let none = right.replace(":right@", "");
        let error = RedisStore::connect(&none).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::NotApplied));
        assert!(error.to_string().contains("password"), "{protocol}: {error}");
    }
}

#[tokio::test]
async fn a_database_number_keeps_locks_apart() {
    let server = server::shared();
    let store = RedisStore::connect(&format!("{}/3", server.url())).await.unwrap();
    assert!(store.location().ends_with("/3"), "{}", store.location());
    let key = key();
    Caller::new(&store, &key).take().await;
    let other = RedisStore::connect(&server.url()).await.unwrap();
    assert_eq!(other.inspect(&key, WITHIN).await.unwrap(), None);
    use_it_all(&store).await.unwrap();

    let error = RedisStore::connect(&format!("{}/99", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("database"), "{error}");
}

#[tokio::test]
async fn a_socket_takes_user_password_and_database_from_its_query() {
    let rule = format!("locks on >a&b {} +select", documented_rule());
    let server = RedisServer::builder().unix_socket().acl_user(rule).start();
    let path = server.unix_path();
    for scheme in ["redis+unix", "unix", "valkey+unix"] {
        let url = format!("{scheme}://{}?user=locks&pass=a%26b&db=2", path.display());
        let store = RedisStore::connect(&url).await.unwrap();
        use_it_all(&store).await.unwrap();
        assert!(!store.location().contains("pass"), "{}", store.location());
    }
    let missing = format!("redis+unix://{}/nothing", server.dir().display());
    let error = RedisStore::connect(&missing).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("the path is right"), "{error}");
}

#[tokio::test]
async fn valkey_is_another_name_of_the_scheme() {
    let url = server::shared().url().replace("redis://", "valkey://");
    use_it_all(&RedisStore::connect(&url).await.unwrap()).await.unwrap();
}
