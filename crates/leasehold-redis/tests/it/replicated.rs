//! Grants that count only when replicas have them.

use std::time::Duration;

use leasehold_core::{Acquire, ClientId, Effect, ErrorKind, Renew, Store as _, Wake};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;
use tokio::time::{Instant, sleep, timeout};

use crate::common::{Caller, WITHIN, key};

/// A primary and one replica in step with it.
async fn pair() -> (RedisServer, RedisServer) {
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
    let url = format!("{}?replicas=1&replicate_timeout=300ms", primary.url());
    RedisStore::connect(&url).await.unwrap()
}

/// Takes a lock, however long it takes the replica to be back in step.
async fn take_at_last(caller: &Caller) -> leasehold_core::FenceBlock {
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
async fn a_grant_that_no_replica_has_is_given_back() {
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
async fn a_lease_handed_over_is_confirmed_before_it_counts() {
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
async fn replicas_are_waited_for_on_connections_that_hold_up_nobody_else() {
    let (primary, replica) = pair().await;
    let url = format!("{}?replicas=1&replicate_timeout=5s", primary.url());
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
        assert_eq!(server.command_calls("waitaof"), 1);
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
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let builder = RedisStore::builder().replicate(1, Duration::from_millis(100)).unwrap();
    let store = builder.from_connection(connection);
    let error = Caller::new(&store, &key()).try_take().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::NotApplied));
}
