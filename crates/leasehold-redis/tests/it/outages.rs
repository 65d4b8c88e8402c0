//! Outages of a server and of the network to it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Acquire, Effect, Error, ErrorKind, Leave, ListRequest, Mode, Reason, Release, Renew, Store as _,
};
use leasehold_redis::{RedisStore, acl, redis};
use leasehold_testkit::proxy::{AfterLoss, Fault, Proxy};
use leasehold_testkit::server::RedisServer;
use tokio::time::{Instant, timeout};

use crate::common::{Caller, SHORT, WITHIN, connection, key};

/// Ends tests with hanging calls; all other tests need less than a tenth of it.
const HANGS: Duration = Duration::from_secs(60);

async fn inspect_shortly(store: &RedisStore) -> Result<(), Error> {
    timeout(HANGS, store.inspect(&key(), SHORT)).await.expect("it is bounded").map(drop)
}

#[tokio::test]
async fn a_flushed_lease_is_not_held_and_is_not_made_again() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let caller = Caller::new(&store, &key());
    let fences = caller.take().await;
    drop(server.cli(&["FLUSHALL"]));
    let renewed = store.renew(&[caller.renewal(fences)], WITHIN).await.remove(0).unwrap();
    assert_eq!(renewed, Renew::NotHeld);
    let released = store.release(&caller.ending(fences), WITHIN).await.unwrap();
    assert_eq!(released, Release::NotHeld);
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    assert!(Caller::new(&store, &caller.request.key).take().await.first() > fences.last());
}

#[tokio::test]
async fn renewals_are_all_sent_to_a_server_from_which_no_answer_comes() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = RedisStore::connect(&proxy.url()).await.unwrap();
    let mut requests = Vec::new();
    for _ in 0..250 {
        let caller = Caller::new(&store, &key());
        requests.push(caller.renewal(caller.take().await));
    }
    // One call, so that the server has the script.
    assert_eq!(store.renew(&requests[..1], WITHIN).await.remove(0).unwrap(), Renew::Renewed);
    let before = server.command_calls("hset");
    proxy.set(Fault::DropReplies(AfterLoss::Silence));
    let renewed = store.renew(&requests, Duration::from_secs(3)).await;
    assert_eq!(renewed.len(), 250);
    for error in renewed.into_iter().map(Result::unwrap_err) {
        let told = (error.kind(), error.effect());
        assert_eq!(told, (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    }
    assert_eq!(server.command_calls("hset") - before, 250);
}

#[tokio::test]
async fn a_full_server_grants_nothing_but_lets_holders_go_on_and_go() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let (held, shared) = (key(), key());
    let holder = Caller::new(&store, &held);
    let fences = holder.take().await;
    let next = Caller::patient(&store, &held, leasehold_core::ClientId::generate().unwrap());
    next.wait().await;
    let gone = Caller::patient(&store, &held, leasehold_core::ClientId::generate().unwrap());
    gone.wait().await;
    let simple = Caller::new(&store, &key());
    let simple_fences = simple.take().await;
    let mut sharer = Caller::new(&store, &shared);
    sharer.request.mode = Mode::Shared;
    let shared_fences = sharer.take().await;

    drop(server.cli(&["CONFIG", "SET", "maxmemory", "1"]));
    let error = Caller::new(&store, &key()).try_take().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    assert!(error.is_retryable());
    let renewals =
        [holder.renewal(fences), simple.renewal(simple_fences), sharer.renewal(shared_fences)];
    for renewed in store.renew(&renewals, WITHIN).await {
        assert_eq!(renewed.unwrap(), Renew::Renewed);
    }
    assert_eq!(store.leave(&gone.leaving(), WITHIN).await.unwrap(), Leave::Left);
    for (caller, fences) in [(&holder, fences), (&simple, simple_fences), (&sharer, shared_fences)]
    {
        let released = store.release(&caller.ending(fences), WITHIN).await.unwrap();
        assert_eq!(released, Release::Released);
    }
    drop(server.cli(&["CONFIG", "SET", "maxmemory", "0"]));
    assert!(matches!(next.try_take().await.unwrap(), Acquire::Already(_)), "it was handed over");
}

/// A primary and a replica that follows it.
async fn followed() -> (RedisServer, RedisServer) {
    let primary = RedisServer::start();
    let replica = RedisServer::builder().replica_of(&primary).start();
    follows(&replica).await;
    (primary, replica)
}

async fn follows(replica: &RedisServer) {
    let deadline = Instant::now() + WITHIN;
    while replica.info("replication").get("master_link_status").is_none_or(|link| link != "up") {
        assert!(Instant::now() < deadline, "{}", replica.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_replica_is_refused_for_locks_and_for_questions_whether_it_takes_writes_or_not() {
    let (primary, replica) = followed().await;
    let rule = acl::rule("redis://h", "locks", &acl::Feature::SERVICE).unwrap();
    let rule = rule.replace(">PASSWORD", ">pw");
    assert_eq!(replica.cli(&rule.split(' ').collect::<Vec<_>>()), "OK");
    for read_only in ["yes", "no"] {
        assert_eq!(replica.cli(&["CONFIG", "SET", "replica-read-only", read_only]), "OK");
        for url in
            [replica.url(), replica.url_for("locks", "pw"), replica.url() + "?protocol=resp3"]
        {
            let error = RedisStore::connect(&url).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.effect()),
                (ErrorKind::Unavailable, Effect::NotApplied)
            );
            assert!(error.to_string().contains("connect to the primary"), "{error}");
            let store = RedisStore::connect_lazy(&url).unwrap();
            let caller = Caller::new(&store, &key());
            for error in [
                caller.try_take().await.unwrap_err(),
                store.inspect(&caller.request.key, WITHIN).await.unwrap_err(),
                store.list(&ListRequest::new(""), WITHIN).await.unwrap_err(),
            ] {
                let seen = (error.kind(), error.effect());
                assert_eq!(seen, (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
                assert!(error.to_string().contains("is a replica"), "{error}");
            }
        }
    }
    let error = RedisStore::connect(&replica.url()).await.unwrap_err();
    assert!(error.to_string().contains(&format!("a replica of {}", primary.addr())), "{error}");
    let lent = redis::Client::open(replica.url()).unwrap();
    let lent = connection(&lent).await.unwrap();
    let error = RedisStore::from_connection(lent).inspect(&key(), WITHIN).await.unwrap_err();
    assert!(error.to_string().contains("is a replica"), "{error}");
}

#[tokio::test]
async fn a_primary_that_becomes_a_replica_that_takes_writes_is_soon_left() {
    let primary = RedisServer::start();
    let other = RedisServer::builder().config("replica-read-only no").start();
    let url = other.url();
    let store = RedisStore::connect(&url).await.unwrap();
    let lent = redis::Client::open(url).unwrap();
    let lent = connection(&lent).await.unwrap();
    let lent = RedisStore::from_connection(lent);
    for store in [&store, &lent] {
        Caller::new(store, &key()).take().await;
    }
    let port = primary.port().to_string();
    assert_eq!(other.cli(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    follows(&other).await;
    for store in [&store, &lent] {
        let deadline = Instant::now() + WITHIN;
        let error = loop {
            match store.inspect(&key(), WITHIN).await {
                Err(error) => break error,
                Ok(_) => assert!(Instant::now() < deadline, "the replica is believed for ever"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        assert!(error.to_string().contains("is a replica"), "{error}");
    }
}

#[tokio::test]
async fn a_promoted_replica_is_used_at_once() {
    let (_primary, replica) = followed().await;
    let store = RedisStore::connect_lazy(&replica.url()).unwrap();
    drop(Caller::new(&store, &key()).try_take().await.unwrap_err());
    drop(replica.cli(&["REPLICAOF", "NO", "ONE"]));
    Caller::new(&store, &key()).take().await;
}

#[tokio::test]
async fn a_loading_server_is_waited_for_within_the_deadline() {
    // A loading server handles its clients after every two megabytes, or as often as its settings
    // demand, from Redis 7 on. Here that must be several times during a call. It would load for
    // seconds, so the delay ends once it was seen.
    let server = RedisServer::builder().config("rdbcompression no");
    let (server, count, bytes) = if RedisServer::start().version() >= (7, 0) {
        let often = server.config("loading-process-events-interval-bytes 1024");
        (often.config("key-load-delay 5000"), 2_000, 2_000)
    } else {
        (server.config("key-load-delay 20000"), 100, 1_000_000)
    };
    let server = server.start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let fill = format!(
        "for i = 1, {count} do redis.call('SET', 'fill' .. i, string.rep('x', {bytes})) end"
    );
    let client = redis::Client::open(server.url()).unwrap();
    let mut raw = connection(&client).await.unwrap();
    let () = redis::cmd("EVAL").arg(&fill).arg(0).query_async(&mut raw).await.unwrap();
    let () = redis::cmd("SAVE").query_async(&mut raw).await.unwrap();
    let server = Arc::new(server);
    let restart = tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || server.restart()
    });
    let deadline = Instant::now() + WITHIN;
    loop {
        if let Err(error) = inspect_shortly(&store).await
            && error.to_string().contains("loading")
        {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.effect(), Effect::NotApplied);
            break;
        }
        assert!(Instant::now() < deadline, "the server was never seen loading");
    }
    let taken = tokio::spawn(async move {
        Caller::new(&store, &key()).take().await;
    });
    // Meanwhile the request is refused.
    tokio::time::sleep(SHORT).await;
    assert_eq!(server.cli(&["CONFIG", "SET", "key-load-delay", "0"]), "OK");
    taken.await.unwrap();
    restart.await.unwrap();
}

#[tokio::test]
async fn a_server_busy_with_a_script_is_waited_for_within_the_deadline() {
    let server = Arc::new(RedisServer::builder().config("lua-time-limit 50").start());
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let busy = tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || drop(server.try_cli(&["EVAL", "while true do end", "0"]))
    });
    let deadline = Instant::now() + WITHIN;
    loop {
        if let Err(error) = inspect_shortly(&store).await
            && error.effect() == Effect::NotApplied
        {
            assert!(error.to_string().contains("a long script"), "{error}");
            break;
        }
        assert!(Instant::now() < deadline, "the server was never seen busy");
    }
    let taken = tokio::spawn(async move {
        Caller::new(&store, &key()).take().await;
    });
    assert_eq!(server.cli(&["SCRIPT", "KILL"]), "OK");
    taken.await.unwrap();
    busy.await.unwrap();
}

#[tokio::test]
async fn a_refused_connection_is_reported_at_once() {
    let server = RedisServer::start();
    let url = server.url();
    server.kill();
    let before = Instant::now();
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    assert!(error.to_string().contains(&format!("redis://{}", server.addr())), "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
    assert!(before.elapsed() < Duration::from_secs(4), "a refusal is not waited out");

    let lazy = RedisStore::connect_lazy(&url).unwrap();
    let error = lazy.inspect(&key(), WITHIN).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
}

/// A server that ends each connection after these bytes.
async fn ending_after(bytes: &'static [u8]) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            // If it were closed with unread requests, the connection would be reset.
            drop(client.read(&mut [0; 4096]).await);
            drop(client.write_all(bytes).await);
        }
    });
    url
}

#[tokio::test]
async fn a_connection_that_ends_within_the_first_answer_is_an_outage_wherever_it_ends() {
    let answers: [&[u8]; 5] = [
        b"-ERR unknown subcommand 'SETINFO'. Try CLIENT HELP.\r\n",
        b"-ERR max number of clients reached\r\n",
        b"+OK\r\n",
        b"$6\r\nserver\r\n",
        b"%1\r\n$6\r\nserver\r\n",
    ];
    for answer in answers {
        for end in 0..=answer.len() {
            let error = RedisStore::connect(&ending_after(&answer[..end]).await).await.unwrap_err();
            let told = (error.kind(), error.effect());
            let cut = answer[..end].escape_ascii();
            assert_eq!(told, (ErrorKind::Unavailable, Effect::NotApplied), "{cut}: {error}");
        }
    }
}

#[tokio::test]
async fn a_server_that_stands_still_is_abandoned_at_the_deadline() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let caller = Caller::new(&store, &key());
    server.pause();
    let error = timeout(HANGS, store.acquire(&caller.request, SHORT)).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert!(error.to_string().contains("no answer within 300ms"), "{error}");
    server.resume();
    // It was carried out after all, which another request with the same token shows.
    let deadline = Instant::now() + WITHIN;
    while !matches!(caller.try_take().await.unwrap(), Acquire::Already(_)) {
        assert!(Instant::now() < deadline);
    }
}

/// Both may take long at a large server that answers.
#[tokio::test]
async fn a_silent_server_is_known_by_the_first_request_of_a_listing_and_an_examination() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    server.pause();
    let within = Duration::from_secs(15);
    let listed = store.list(&ListRequest::new(""), within).await.unwrap_err();
    let examined = store.examine(within).await.unwrap_err();
    for error in [listed, examined] {
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Unavailable, Some(Reason::NoAnswer))
        );
        assert!(error.to_string().contains("within 1.5s"), "{error}");
    }
    server.resume();
    store.list(&ListRequest::new(""), WITHIN).await.unwrap();
}

#[tokio::test]
async fn a_store_opened_to_a_server_that_stands_still_is_bounded_too() {
    let server = RedisServer::start();
    server.pause();
    let store = RedisStore::connect_lazy(&format!("{}?protocol=resp3", server.url())).unwrap();
    let error = timeout(HANGS, store.inspect(&key(), SHORT)).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    server.resume();
    store.inspect(&key(), WITHIN).await.unwrap();
}

#[tokio::test]
async fn a_server_killed_and_started_again_is_found_again() {
    let server = RedisServer::builder().appendonly().start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let caller = Caller::new(&store, &key());
    let fences = caller.take().await;
    server.kill();
    let error = store.release(&caller.ending(fences), SHORT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart();
    let renewed = store.renew(&[caller.renewal(fences)], WITHIN).await.remove(0).unwrap();
    assert_eq!(renewed, Renew::Renewed, "the lease is in the append-only file");
}

#[tokio::test]
async fn a_call_waits_for_a_server_that_is_away_for_a_moment() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    server.kill();
    let call = tokio::spawn({
        let store = store.clone();
        async move {
            // The first may have been under way on the old connection, and is never repeated.
            drop(store.inspect(&key(), WITHIN).await);
            store.inspect(&key(), WITHIN).await
        }
    });
    tokio::task::yield_now().await;
    server.restart();
    call.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_connection_that_swallows_everything_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = RedisStore::connect(&proxy.url()).await.unwrap();
    store.inspect(&key(), WITHIN).await.unwrap();
    proxy.set(Fault::BlackHole);
    for _ in 0..2 {
        let error = inspect_shortly(&store).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    }
    // The old connection stays mute for ever; a new one works.
    proxy.set(Fault::Pass);
    store.inspect(&key(), WITHIN).await.unwrap();
}

#[tokio::test]
async fn one_timeout_does_not_cost_the_connection() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    store.inspect(&key(), WITHIN).await.unwrap();
    let connections = || server.info("stats")["total_connections_received"].parse::<u64>().unwrap();
    let before = connections();
    server.pause();
    inspect_shortly(&store).await.unwrap_err();
    server.resume();
    store.inspect(&key(), WITHIN).await.unwrap();
    // The look itself needed a connection.
    assert_eq!(connections(), before + 1);
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_nothing_is_sent_twice() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = RedisStore::connect(&proxy.url()).await.unwrap();
    let warm = Caller::new(&store, &key());
    warm.take().await;
    let caller = Caller::new(&store, &key());
    proxy.set(Fault::DropReplies(AfterLoss::Close));
    let before = server.command_calls("evalsha");
    let error = caller.try_take().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    proxy.set(Fault::Pass);
    assert_eq!(server.command_calls("evalsha"), before + 1);
    let Acquire::Already(already) = caller.try_take().await.unwrap() else {
        panic!("the first request was carried out");
    };
    let released = store.release(&caller.ending(already.fences), WITHIN).await.unwrap();
    assert_eq!(released, Release::Released);
}

#[tokio::test]
async fn callers_share_one_attempt_to_connect_and_each_keeps_its_own_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    proxy.set(Fault::BlackHole);
    let url = format!("{}?protocol=resp3", proxy.url());
    let store = RedisStore::connect_lazy(&url).unwrap();
    let patient = tokio::spawn({
        let store = store.clone();
        async move { store.inspect(&key(), WITHIN).await }
    });
    let mut hasty = Vec::new();
    for _ in 0..20 {
        let store = store.clone();
        hasty.push(tokio::spawn(async move { inspect_shortly(&store).await }));
    }
    for call in hasty {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    }
    assert_eq!(proxy.stats().connections, 1, "one attempt for all");
    proxy.set(Fault::Pass);
    proxy.kill_connections();
    // The shared attempt failed as the first one, so the error is returned without a further wait.
    drop(patient.await.unwrap());
    store.inspect(&key(), WITHIN).await.unwrap();
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_costs_no_error() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let normal = || server.cli(&["CLIENT", "LIST", "TYPE", "normal"]);
    let id = normal()
        .lines()
        .find(|line| line.contains("cmd=ping"))
        .and_then(|line| line.strip_prefix("id="))
        .and_then(|line| line.split(' ').next().map(str::to_owned))
        .expect("the store's connection is there");
    drop(server.cli(&["CLIENT", "KILL", "ID", &id]));
    // It is unknown when the other end of a socket has noticed, so some calls may still fail. But
    // the store recovers by itself, without further failures.
    let deadline = Instant::now() + WITHIN;
    loop {
        if store.inspect(&key(), WITHIN).await.is_ok() {
            break;
        }
        assert!(Instant::now() < deadline);
    }
}
