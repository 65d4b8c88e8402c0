//! The notification channel.

use futures_util::StreamExt as _;
use leasehold_core::{Acquire, ClientId, Mode, Release, Store as _, Wake};
use leasehold_redis::{RedisStore, redis};
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server::{self, RedisServer};
use tokio::time::timeout;

use crate::common::{Caller, WITHIN, connection, key};

/// Makes the queue grant a lease, and returns the notification of the waiter's client.
async fn hand_over(store: &RedisStore, client: ClientId) {
    let key = key();
    let holder = Caller::new(store, &key);
    let fences = holder.take().await;
    Caller::patient(store, &key, client).wait().await;
    let released = store.release(&holder.ending(fences), WITHIN).await.unwrap();
    assert_eq!(released, Release::Released);
}

#[tokio::test]
async fn a_killed_subscription_comes_back_and_says_that_messages_may_be_lost() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await.unwrap();
    hand_over(&store, client).await;
    let wake = timeout(WITHIN, listener.next()).await.unwrap();
    assert!(matches!(wake, Wake::Granted { ticket: 7, heartbeat: 0, .. }), "{wake:?}");
    for _ in 0..2 {
        assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]), "1");
        assert_eq!(timeout(WITHIN, listener.next()).await.unwrap(), Wake::Resync);
        hand_over(&store, client).await;
        let wake = timeout(WITHIN, listener.next()).await.unwrap();
        assert!(matches!(wake, Wake::Granted { .. }), "{wake:?}");
    }
}

#[tokio::test]
async fn a_restarted_server_is_subscribed_to_again() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await.unwrap();
    server.restart();
    assert_eq!(timeout(WITHIN, listener.next()).await.unwrap(), Wake::Resync);
}

#[tokio::test]
async fn a_dropped_listener_closes_its_channel() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let client = ClientId::generate().unwrap();
    let listener = store.listen(client, WITHIN).await.unwrap();
    let channel = format!("leasehold:wake:{client}");
    assert_eq!(server.cli(&["PUBSUB", "NUMSUB", &channel]), format!("{channel}\n1"));
    drop(listener);
    let deadline = tokio::time::Instant::now() + WITHIN;
    while server.cli(&["PUBSUB", "NUMSUB", &channel]) != format!("{channel}\n0") {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[test]
fn the_channel_lives_on_the_runtime_that_was_named() {
    let server = RedisServer::start();
    let connections = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    // This runtime has no sockets.
    let callers = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let url = server.url();
    callers.block_on(async {
        let builder = RedisStore::builder().runtime(connections.handle().clone());
        let store = builder.connect(&url).await.unwrap();
        let client = ClientId::generate().unwrap();
        let mut listener = store.listen(client, WITHIN).await.unwrap();
        for again in [false, true] {
            if again {
                assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]), "1");
                assert_eq!(timeout(WITHIN, listener.next()).await.unwrap(), Wake::Resync);
            }
            hand_over(&store, client).await;
            let wake = timeout(WITHIN, listener.next()).await.unwrap();
            assert!(matches!(wake, Wake::Granted { .. }), "{wake:?}");
        }
    });
}

#[tokio::test]
async fn strangers_messages_are_ignored() {
    let server = server::shared();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await.unwrap();
    for rubbish in ["", "granted", "granted a b c", "first -1 -1", "\u{1b}[2J"] {
        drop(server.cli(&["PUBLISH", &format!("leasehold:wake:{client}"), rubbish]));
    }
    hand_over(&store, client).await;
    let wake = timeout(WITHIN, listener.next()).await.unwrap();
    assert!(matches!(wake, Wake::Granted { .. }), "{wake:?}");
}

#[tokio::test]
async fn messages_carry_no_token() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let client = ClientId::generate().unwrap();
    let raw = redis::Client::open(server.url()).unwrap();
    let mut pubsub = raw.get_async_pubsub().await.unwrap();
    pubsub.subscribe(format!("leasehold:wake:{client}")).await.unwrap();
    let key = key();
    let holder = Caller::new(&store, &key);
    let fences = holder.take().await;
    let waiter = Caller::patient(&store, &key, client);
    waiter.wait().await;
    store.release(&holder.ending(fences), WITHIN).await.unwrap();
    let Acquire::Already(already) = waiter.try_take().await.unwrap() else { panic!("handed over") };
    let mut stream = pubsub.into_on_message();
    let message: Vec<u8> =
        timeout(WITHIN, stream.next()).await.unwrap().unwrap().get_payload().unwrap();
    let first = already.fences.first();
    let sequence = first.sequence() + leasehold_core::Fence::ORIGIN_UNIX_US;
    #[expect(clippy::cast_precision_loss, reason = "sequences are below 2^53")]
    let sequence = (sequence as f64).to_le_bytes();
    let ticket = 7_u64.to_le_bytes();
    assert_eq!(message, [b"g", &ticket[..], &[0; 6], &sequence, &[1, 0, 0, 0]].concat());
}

#[tokio::test]
async fn opening_the_channel_is_bounded_and_says_why_it_failed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = RedisStore::connect(&proxy.url()).await.unwrap();
    proxy.set(Fault::BlackHole);
    let opening = store.listen(ClientId::generate().unwrap(), crate::common::SHORT);
    let error = timeout(WITHIN, opening).await.unwrap().map(drop).unwrap_err();
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_borrowed_connection_has_a_channel_once_a_client_is_given() {
    let server = server::shared();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = connection(&client).await.unwrap();
    let store = RedisStore::builder().subscriptions(client).from_connection(connection.clone());
    assert!(store.capability().wake);
    let id = ClientId::generate().unwrap();
    let mut listener = store.listen(id, WITHIN).await.unwrap();
    hand_over(&store, id).await;
    let wake = timeout(WITHIN, listener.next()).await.unwrap();
    assert!(matches!(wake, Wake::Granted { .. }), "{wake:?}");

    let without = RedisStore::from_connection(connection);
    assert!(!without.capability().wake);
    let error = without.listen(id, WITHIN).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_pool_of_any_kind_can_be_used() {
    let client = redis::Client::open(server::shared().url()).unwrap();
    let store = RedisStore::from_fn(move || {
        let client = client.clone();
        async move { connection(&client).await }
    });
    Caller::new(&store, &key()).take().await;

    let empty = RedisStore::from_fn(|| async {
        Err::<redis::aio::MultiplexedConnection, _>("all connections are in use")
    });
    let error = empty.inspect(&key(), WITHIN).await.unwrap_err();
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Unavailable);
    assert_eq!(error.effect(), leasehold_core::Effect::NotApplied);
    assert!(error.to_string().contains("all connections are in use"), "{error}");
}

#[tokio::test]
async fn messages_that_the_server_refuses_are_counted_and_the_lock_is_granted() {
    let rule = "u on >pw ~* &* +@all -publish";
    let server = RedisServer::builder().acl_user(rule).start();
    let store = RedisStore::connect(&server.url_for("u", "pw")).await.unwrap();
    let found = |findings: &[leasehold_core::doctor::Finding]| {
        findings.iter().any(|finding| finding.found.contains("refused 2 notifications"))
    };
    assert!(!found(&store.examine(WITHIN).await.unwrap()));
    for (sharers, refused) in [(0, 1), (2, 2)] {
        let key = key();
        let mut holders = vec![Caller::new(&store, &key)];
        if sharers > 0 {
            // The scripts' early exits don't cover such a release.
            holders = (0..sharers).map(|_| Caller::new(&store, &key)).collect();
            holders.iter_mut().for_each(|holder| holder.request.mode = Mode::Shared);
        }
        let mut fences = Vec::new();
        for holder in &holders {
            fences.push(holder.take().await);
        }
        let waiter = Caller::patient(&store, &key, ClientId::generate().unwrap());
        waiter.wait().await;
        for (holder, fences) in holders.iter().zip(fences) {
            let released = store.release(&holder.ending(fences), WITHIN).await.unwrap();
            assert_eq!(released, Release::Released);
        }
        assert_eq!(store.messages_lost(), refused);
        let answer = waiter.try_take().await.unwrap();
        assert!(matches!(answer, Acquire::Already(_)), "{answer:?}");
    }
    assert_eq!(store.clone().messages_lost(), 2);
    assert!(found(&store.examine(WITHIN).await.unwrap()));
}
