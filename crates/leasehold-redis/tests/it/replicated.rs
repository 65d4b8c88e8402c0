//! Grants that count only after replicas have confirmed them.

use std::time::Duration;

use leasehold_core::{
    Acquire, AskRequest, ClientId, ConvertRequest, Effect, Error, ErrorKind, Fence, FenceBlock,
    Mode, OwnerName, Renew, Store as _, Wake,
};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Caller, WITHIN, connection, key, ttl};

/// A primary and one replica in step with it.
pub(crate) async fn pair() -> (RedisServer, RedisServer) {
    let primary = RedisServer::start();
    let replica = RedisServer::builder().replica_of(&primary).start();
    let deadline = Instant::now() + WITHIN;
    while !primary.info("replication").get("slave0").is_some_and(|it| it.contains("online")) {
        assert!(Instant::now() < deadline, "{}", replica.log());
        sleep(Duration::from_millis(5)).await;
    }
    (primary, replica)
}

async fn careful(primary: &RedisServer) -> RedisStore {
    let url = format!("{}?replicas=1&keep_leases=yes&replicate_timeout=300ms", primary.url());
    RedisStore::connect(&url).await.unwrap()
}

/// Acquires a lock, however long the replica takes to be in step again.
pub(crate) async fn take_at_last(caller: &Caller) -> leasehold_core::FenceBlock {
    let deadline = Instant::now() + WITHIN;
    loop {
        match caller.try_take().await {
            Ok(Acquire::Granted(granted)) => return granted.fences,
            Err(error) if error.kind() == ErrorKind::NotReplicated => {}
            other => panic!("{other:?}"),
        }
        assert!(Instant::now() < deadline, "the replica never had it");
    }
}

#[tokio::test]
async fn a_grant_that_no_replica_has_is_withdrawn() {
    let (primary, replica) = pair().await;
    let store = careful(&primary).await;
    let held = Caller::new(&store, &key());
    take_at_last(&held).await;
    replica.pause();
    let caller = Caller::new(&store, &key());
    let error = caller.try_take().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::NotReplicated, Effect::NotApplied));
    assert!(error.to_string().contains("0 of 1 replicas had it within 300ms"), "{error}");
    assert!(error.is_retryable());
    let look = store.inspect(&caller.request.key, WITHIN).await.unwrap();
    assert_eq!(look, None, "nothing is left of it");
    let plain = RedisStore::connect(&primary.url()).await.unwrap();
    Caller::new(&plain, &caller.request.key).take().await;
    replica.resume();
    take_at_last(&Caller::new(&store, &key())).await;
}

#[tokio::test]
async fn a_renewal_that_no_replica_has_does_not_count() {
    let (primary, replica) = pair().await;
    let store = careful(&primary).await;
    let one = Caller::new(&store, &key());
    let fences = take_at_last(&one).await;
    replica.pause();
    let error = store.renew(&[one.renewal(fences)], WITHIN).await.remove(0).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::NotReplicated, Effect::Applied));
    let gone = Caller::new(&store, &key());
    let answers = store.renew(&[gone.renewal(fences)], WITHIN).await.remove(0);
    assert_eq!(answers.unwrap(), Renew::NotHeld, "a loss is a loss wherever it is known");
    replica.resume();
    let deadline = Instant::now() + WITHIN;
    while store.renew(&[one.renewal(fences)], WITHIN).await.remove(0).is_err() {
        assert!(Instant::now() < deadline);
    }
}

#[tokio::test]
async fn a_renewal_with_a_release_request_counts_no_sooner_than_another() {
    let (primary, replica) = pair().await;
    let store = careful(&primary).await;
    let one = Caller::new(&store, &key());
    let fences = take_at_last(&one).await;
    let by = OwnerName::new("operator").unwrap();
    store.ask(&AskRequest::new(one.request.key.clone(), by), WITHIN).await.unwrap();
    replica.pause();
    let error = store.renew(&[one.renewal(fences)], WITHIN).await.remove(0).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::NotReplicated, Effect::Applied));
    replica.resume();
    let deadline = Instant::now() + WITHIN;
    loop {
        match store.renew(&[one.renewal(fences)], WITHIN).await.remove(0) {
            Ok(answer) => break assert_eq!(answer, Renew::Asked),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotReplicated),
        }
        assert!(Instant::now() < deadline);
    }
}

/// Carries out all that must be confirmed, after the right to wait for replicas was removed, or the
/// append-only file. A change that was carried out is never reported as undone.
async fn what_is_done_stays_done(store: &RedisStore, refuse: impl FnOnce(), kind: ErrorKind) {
    let (free, mut reader) = (Caller::new(store, &key()), Caller::new(store, &key()));
    let holder = Caller::new(store, &key());
    let fences = take_at_last(&holder).await;
    reader.request.mode = Mode::Shared;
    let shared = take_at_last(&reader).await;
    refuse();
    let judge = |error: Error, effect| {
        assert_eq!((error.kind(), error.effect()), (kind, effect), "{error}");
        assert!(error.to_string().contains("not confirmed"), "{error}");
    };

    judge(free.try_take().await.unwrap_err(), Effect::NotApplied);
    let look = store.inspect(&free.request.key, WITHIN).await.unwrap();
    assert_eq!(look, None, "it was given back");

    let mut shorter = holder.renewal(fences);
    (shorter.ttl, shorter.shorten) = (ttl(2), true);
    judge(store.renew(&[shorter], WITHIN).await.remove(0).unwrap_err(), Effect::Applied);
    if let Some(look) = store.inspect(&holder.request.key, WITHIN).await.unwrap() {
        assert!(look.holders[0].remaining <= ttl(2).duration(), "it is as short as it was told");
    }

    let Caller { request, .. } = &reader;
    let upgrade = ConvertRequest::new(request.key.clone(), request.token, shared, Mode::Exclusive);
    judge(store.convert(&upgrade, WITHIN).await.unwrap_err(), Effect::Applied);
    let look = store.inspect(&request.key, WITHIN).await.unwrap().unwrap();
    assert_eq!(look.holders[0].mode, Mode::Exclusive);

    let pair = [free.request.clone(), Caller::new(store, &key()).request];
    judge(store.acquire_all(&pair, WITHIN).await.unwrap_err(), Effect::NotApplied);
    for request in &pair {
        assert_eq!(store.inspect(&request.key, WITHIN).await.unwrap(), None);
    }
}

#[tokio::test]
async fn what_was_done_before_a_wait_for_replicas_was_refused_is_not_called_undone() {
    let (primary, _replica) = pair().await;
    let user = |rules: &[&str]| {
        let answer = primary.cli(&[&["ACL", "SETUSER", "careful"], rules].concat());
        assert_eq!(answer, "OK");
    };
    user(&["on", ">pw", "~*", "&*", "+@all"]);
    let url = primary.url_for("careful", "pw");
    let url = format!("{url}?replicas=1&keep_leases=yes&replicate_timeout=300ms");
    let store = RedisStore::connect(&url).await.unwrap();
    what_is_done_stays_done(&store, || user(&["-wait"]), ErrorKind::Denied).await;
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_before_it_is_to_wait_is_an_outage() {
    let other = RedisServer::start();
    // The replica still accepts writes, as it does until it learns of its role, and waits for no
    // replicas.
    let primary = RedisServer::builder().config("replica-read-only no").start();
    let store = careful(&primary).await;
    let caller = Caller::new(&store, &key());
    // Opens the connection on which this lock's grants wait.
    let error = caller.try_take().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert_eq!(primary.cli(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]), "OK");
    let soon = Duration::from_secs(1);
    let error = store.acquire(&caller.request, soon).await.unwrap_err();
    assert!(error.passes(), "{error}");
    assert!(error.to_string().contains("connect to the primary"), "{error}");
}

#[tokio::test]
async fn what_was_done_before_the_append_only_file_was_gone_is_not_called_undone() {
    let server = RedisServer::builder().appendonly().start();
    if server.version() < (7, 2) {
        return;
    }
    let store = RedisStore::connect(&format!("{}?fsync=yes", server.url())).await.unwrap();
    let refuse = || drop(server.cli(&["CONFIG", "SET", "appendonly", "no"]));
    what_is_done_stays_done(&store, refuse, ErrorKind::Unsupported).await;
}

#[tokio::test]
async fn a_lease_of_the_queues_head_is_confirmed_before_it_counts() {
    let (primary, replica) = pair().await;
    let store = careful(&primary).await;
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await.unwrap();
    let holder = Caller::new(&store, &key());
    let fences = take_at_last(&holder).await;
    let waiter = Caller::patient(&store, &holder.request.key, client);
    waiter.wait().await;
    replica.pause();
    store.release(&holder.ending(fences), WITHIN).await.unwrap();
    let wake = timeout(WITHIN, listener.next()).await.unwrap();
    let ask_now = Wake::First { ticket: 7, retry_after: Duration::ZERO };
    assert_eq!(wake, ask_now, "a message is no proof of replicas");
    let error = waiter.try_take().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::NotReplicated, Effect::NotApplied));
    replica.resume();
    take_at_last(&Caller::new(&store, &holder.request.key)).await;
}

#[tokio::test]
async fn replicas_are_waited_for_on_connections_that_delay_no_other_caller() {
    let (primary, replica) = pair().await;
    let url = format!("{}?replicas=1&keep_leases=yes&replicate_timeout=5s", primary.url());
    let store = RedisStore::connect(&url).await.unwrap();
    let free = key();
    store.inspect(&free, WITHIN).await.unwrap();
    replica.pause();
    let waiting = Caller::new(&store, &key());
    let waiting = tokio::spawn(async move { waiting.try_take().await });
    let deadline = Instant::now() + WITHIN;
    while primary.info("clients")["blocked_clients"] != "1" {
        assert!(Instant::now() < deadline, "nobody waits for the replica");
        sleep(Duration::from_millis(5)).await;
    }
    store.inspect(&free, WITHIN).await.unwrap();
    assert!(!waiting.is_finished(), "the look was answered while the grant waited");
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::NotReplicated);
    replica.resume();
}

#[tokio::test]
async fn disks_are_waited_for_where_the_server_can() {
    let server = RedisServer::builder().appendonly().config("appendfsync everysec").start();
    let store = RedisStore::connect(&format!("{}?fsync=yes", server.url())).await.unwrap();
    let caller = Caller::new(&store, &key());
    if server.version() >= (7, 2) {
        take_at_last(&caller).await;
        assert!(server.command_calls("waitaof") > 0);
    } else {
        let error = caller.try_take().await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::NotApplied));
        assert!(error.to_string().contains("leave fsync out"), "{error}");
        assert_eq!(store.inspect(&caller.request.key, WITHIN).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_borrowed_connection_waits_for_no_replica() {
    let server = RedisServer::start();
    let client = leasehold_redis::redis::Client::open(server.url()).unwrap();
    let connection = connection(&client).await.unwrap();
    let builder = RedisStore::builder().replicate(1, Duration::from_millis(100)).unwrap();
    let store = builder.from_connection(connection);
    let error = Caller::new(&store, &key()).try_take().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::NotApplied));
    let fences = FenceBlock::new(Fence::ZERO, 1);
    let renewals: Vec<_> = (0..250).map(|_| Caller::new(&store, &key()).renewal(fences)).collect();
    for answer in store.renew(&renewals, WITHIN).await {
        let error = answer.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::NotApplied));
    }
}
