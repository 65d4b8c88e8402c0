//! A server that was started not long ago grants nothing for a while, and says for how long.

use std::sync::Arc;
use std::sync::Mutex as StdMutex;
use std::time::Duration;

use leasehold::{Client, ErrorKind};
use leasehold_core::Error;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use leasehold_testkit::server::RedisServer;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::support::{World, ms, patiently, secs};

/// A client of a store that names the time until which it grants nothing, and is away for as long
/// as is said after that.
fn scene(names: Duration, then_away: Duration) -> (FaultStore, Client, Instant) {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let grants_at = Instant::now() + names;
    faults.decide(move |call| {
        let left = grants_at.saturating_duration_since(Instant::now());
        if call.op != Op::Acquire || Instant::now() >= grants_at + then_away {
            Fault::None
        } else if left.is_zero() {
            Fault::Fail(Error::new(ErrorKind::Unavailable, "away"))
        } else {
            Fault::Fail(Error::new(ErrorKind::Unavailable, "young").passes_in(left))
        }
    });
    (faults.clone(), world.client_of(Arc::new(faults)), grants_at)
}

#[tokio::test(start_paused = true)]
async fn a_wait_sleeps_until_the_time_that_the_store_names() {
    let (faults, client, grants_at) = scene(secs(300), Duration::ZERO);
    let error = client.mutex("a").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.retry_after().is_some(), "{error}");
    assert_eq!(faults.count(Op::Acquire), 1, "what does not wait asks once");
    faults.forget_calls();
    let (mutex, permits) = (client.mutex("a"), client.semaphore("p", 1));
    let (one, other) = tokio::join!(async { mutex.lock().await.map(drop) }, async {
        permits.acquire().await.map(drop)
    },);
    one.unwrap();
    other.unwrap();
    let late = Instant::now().saturating_duration_since(grants_at);
    assert!(late < secs(1), "it was to be had for {late:?}");
    // A request every ten seconds keeps a position.
    let asked = faults.count(Op::Acquire);
    assert!(asked < 80, "{asked} requests by two in five minutes");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_when_it_was_to_grant_has_thirty_seconds_from_then() {
    let (_faults, client, grants_at) = scene(secs(60), secs(20));
    drop(client.mutex("a").lock().await.unwrap());
    assert!(Instant::now() >= grants_at + secs(20));

    let (_faults, client, grants_at) = scene(secs(60), secs(1_000));
    let error = client.mutex("a").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let after = Instant::now().saturating_duration_since(grants_at);
    assert!(after >= secs(30) && after < secs(50), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_ends_before_is_kept_and_the_time_is_reported() {
    let (_faults, client, grants_at) = scene(secs(60), Duration::ZERO);
    let began = Instant::now();
    for (mutex, waits) in
        [(client.mutex("a"), true), (client.mutex("b").give_up_early(true), false)]
    {
        let began = Instant::now();
        let error = mutex.lock_within(secs(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let left = grants_at.saturating_duration_since(Instant::now());
        let told = error.retry_after().unwrap();
        assert!(told >= left && told < left + secs(1), "{told:?} of {left:?}");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("; ready in 5"), "{error}: {cause}");
        assert_eq!(began.elapsed() >= secs(5), waits, "{:?}", began.elapsed());
    }
    assert!(began.elapsed() < secs(8), "{:?}", began.elapsed());
}

#[tokio::test]
async fn waiters_keep_their_positions_while_a_restarted_server_warms_up() {
    let start = || {
        let config = "appendfsync always";
        let primary = RedisServer::builder().appendonly().config(config).start();
        let replica = RedisServer::builder().replica_of(&primary).start();
        (primary, replica)
    };
    let (primary, replica) = spawn_blocking(start).await.unwrap();
    let url = format!("{}?replicas=1&max_ttl=6s", primary.url());
    let sure = Client::connect(primary.url()).await.unwrap();
    // It is held until all are in the queue, however long that takes.
    let holder = sure.mutex("a").ttl(secs(600)).lock().await.unwrap();
    let granted = Arc::new(StdMutex::new(Vec::new()));
    let restarted_at = Arc::new(StdMutex::new(None));
    let mut waits = tokio::task::JoinSet::new();
    let contender = |number: u32| {
        let (url, granted, restarted_at) =
            (url.clone(), Arc::clone(&granted), Arc::clone(&restarted_at));
        async move {
            let client = Client::builder().owner(number.to_string()).connect(&*url).await.unwrap();
            let guard = client.mutex("a").ttl(secs(6)).lock().await.unwrap();
            let restarted_at: Instant = restarted_at.lock().unwrap().expect("it was restarted");
            assert!(restarted_at.elapsed() > secs(6), "granted before the server's time");
            granted.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }
    };
    let in_line = async |count: usize| {
        patiently("all in the queue", async {
            let waiters = async || {
                let info = sure.inspect("a").await.ok().flatten();
                info.map_or(0, |info| info.waiters.len())
            };
            while waiters().await < count {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    };
    for number in 1..=3 {
        waits.spawn(contender(number));
        in_line(number as usize).await;
    }
    *restarted_at.lock().unwrap() = Some(Instant::now());
    let primary = spawn_blocking(move || {
        primary.restart();
        primary
    })
    .await
    .unwrap();
    let error =
        Client::connect(&*url).await.unwrap().mutex("a").ttl(secs(6)).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.retry_after().is_some(), "{error}");
    // A newcomer during the warm-up queues behind earlier waiters.
    waits.spawn(contender(4));
    in_line(4).await;
    holder.release().await.unwrap();
    while let Some(done) = patiently("the ends of the waits", waits.join_next()).await {
        done.unwrap();
    }
    assert_eq!(*granted.lock().unwrap(), [1, 2, 3, 4]);
    drop((primary, replica));
}
