//! What futures cost that are dropped one after the other: no more than what they took.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Mutex};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use tokio::task::yield_now;

use crate::support::{World, ms, secs};

/// Polls the acquisition so many times and drops it, whatever has come of it.
async fn drop_after(polls: usize, mutex: &Mutex) {
    tokio::select! {
        biased;
        outcome = mutex.lock() => drop(outcome),
        () = async {
            for _ in 1..polls {
                yield_now().await;
            }
        } => {}
    }
}

/// A client of a store that takes a while to answer each `leave`.
fn slow_to_leave(world: &World) -> (FaultStore, Client) {
    let store = FaultStore::new(Arc::new(world.store.clone()));
    store.decide(|call| match call.op {
        Op::Leave | Op::Release => Fault::Delay { before: ms(50), after: Duration::ZERO },
        _ => Fault::None,
    });
    (store.clone(), world.client_of(Arc::new(store)))
}

#[tokio::test(start_paused = true)]
async fn futures_dropped_behind_a_cleanup_under_way_send_nothing() {
    let world = World::new();
    let (store, client) = slow_to_leave(&world);
    let holder = world.client();
    let guard = holder.mutex("k").lock().await.unwrap();
    let mutex = client.mutex("k");
    while world.waiters("k").await == 0 {
        drop_after(8, &mutex).await;
    }
    store.forget_calls();
    for polls in 0..1_000 {
        drop_after(1 + polls % 8, &mutex).await;
    }
    assert_eq!(store.count(Op::Acquire), 0);
    while world.waiters("k").await > 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(store.count(Op::Leave), 1);
    // One that stays is sent as soon as the others are out of the way.
    let (next, ()) = tokio::join!(mutex.lock(), async { guard.release().await.unwrap() });
    next.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn futures_dropped_for_many_locks_fill_a_queue_that_delays_the_next() {
    let world = World::new();
    let (store, client) = slow_to_leave(&world);
    let holder = world.client();
    let names: Vec<String> = (0..2_000).map(|n| format!("k{n}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(holder.mutex(name).lock().await.unwrap());
    }
    for name in &names {
        drop_after(8, &client.mutex(name)).await;
    }
    let left = client.list("").await.unwrap().locks.iter().map(|lock| lock.waiters.len()).sum();
    assert!((1..=256_usize).contains(&left), "{left}");
    client.close().await.unwrap();
    // Each is abandoned once, and once more if its answer was lost with its future.
    assert!(store.count(Op::Leave) <= 2 * left, "{}", store.count(Op::Leave));
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn a_try_is_not_delayed_for_long_by_a_cleanup_that_fails() {
    let world = World::new();
    let store = FaultStore::new(Arc::new(world.store.clone()));
    store.decide(|call| match call.op {
        Op::Leave => Fault::Hang { applied: true },
        _ => Fault::None,
    });
    let client = world.client_of(Arc::new(store));
    let guard = world.client().mutex("k").lock().await.unwrap();
    let mutex = client.mutex("k");
    while world.waiters("k").await == 0 {
        drop_after(8, &mutex).await;
    }
    guard.release().await.unwrap();
    let since = tokio::time::Instant::now();
    let guard = mutex.lock().await.unwrap();
    assert!(since.elapsed() <= secs(1), "{:?}", since.elapsed());
    drop(guard);
}

/// Drops thousands of futures for a lock that is held and for one that is free; then another client
/// wants both.
#[cfg(any(feature = "embedded", feature = "redis"))]
async fn leaves_its_locks_to_others(what: &str, client: Client, other: Client) {
    const DROPS: usize = 5_000;
    let guard = other.mutex("held").lock().await.unwrap();
    for key in ["held", "free"] {
        let mutex = client.mutex(key);
        for polls in 0..DROPS {
            drop_after(1 + polls % 7, &mutex).await;
        }
        let info = other.inspect(key).await.unwrap();
        let waiters = info.map_or(0, |info| info.waiters.len());
        // One that is being abandoned, and one that was sent behind it.
        assert!(waiters <= 2, "{what}: {waiters} wait that are gone");
    }
    guard.release().await.unwrap();
    for key in ["held", "free"] {
        let next = other.mutex(key).lock_within(secs(10)).await;
        let next = next.unwrap_or_else(|error| panic!("{what}: {error}"));
        next.release().await.unwrap();
    }
    let closed = tokio::time::timeout(secs(30), client.close()).await;
    closed.unwrap_or_else(|_| panic!("{what}: nothing comes to an end")).unwrap();
}

#[cfg(feature = "embedded")]
#[tokio::test]
async fn thousands_of_dropped_futures_leave_their_locks_to_others_without_a_server() {
    let store: Arc<dyn leasehold_core::Store> = Arc::new(leasehold_embedded::MemoryStore::new());
    let [client, other] = [(); 2].map(|()| Client::new(Arc::clone(&store)).unwrap());
    leaves_its_locks_to_others("memory", client, other).await;
    let place = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", place.path().join("locks").display());
    let (client, other) =
        (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    leaves_its_locks_to_others("embedded", client, other).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn thousands_of_dropped_futures_leave_their_locks_to_others_on_servers() {
    use leasehold_testkit::server::RedisServer;
    use leasehold_testkit::server::cluster::Cluster;
    use leasehold_testkit::server::sentinel::SentinelSet;

    let server = RedisServer::start();
    let (sentinels, cluster) = (SentinelSet::start(), Cluster::start());
    let nodes: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let nodes_at: Vec<_> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let quorum = format!("quorum+redis://{}?keep_leases=yes", nodes_at.join(","));
    let stores = [
        ("a server", server.url()),
        ("Sentinel", sentinels.url()),
        ("Cluster", cluster.url()),
        ("a quorum", quorum),
    ];
    for (what, url) in stores {
        if what == "a quorum" && cfg!(not(feature = "quorum")) {
            continue;
        }
        let client = Client::connect(&url).await.unwrap();
        let other = Client::connect(&url).await.unwrap();
        leaves_its_locks_to_others(what, client, other).await;
    }
}
