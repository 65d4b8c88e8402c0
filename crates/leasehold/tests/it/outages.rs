//! Waits go on while the store is away, wherever in a wait that begins and whatever is waited for.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, ErrorKind, Fairness, Owner};
use leasehold_testkit::fault_store::FaultStore;
use tokio::time::Instant;

use crate::support::{World, ms, secs};

/// A client whose store can fail, and has had no request yet.
fn scene(retry_store: Duration) -> (World, FaultStore, Client) {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let builder = Client::builder().tokio_time().clock(Arc::clone(&world.clock));
    let client = builder.retry_store(retry_store).store(Arc::new(faults.clone())).unwrap();
    (world, faults, client)
}

/// Takes every kind of lock, each within this time.
async fn take_all(client: &Client, limit: Duration) -> Vec<leasehold::Result<()>> {
    let owner = Owner::new();
    let barging = client.mutex("barging").fairness(Fairness::Barging);
    let all = [
        tokio::spawn({
            let lock = client.mutex("fifo");
            async move { lock.lock_within(limit).await.map(drop) }
        }),
        tokio::spawn(async move { barging.lock_within(limit).await.map(drop) }),
        tokio::spawn({
            let lock = client.rwlock("rw");
            async move { lock.read_within(limit).await.map(drop) }
        }),
        tokio::spawn({
            let lock = client.semaphore("permits", 2);
            async move { lock.acquire_within(limit).await.map(drop) }
        }),
        tokio::spawn({
            let lock = client.reentrant("again", &owner);
            async move { lock.lock_within(limit).await.map(drop) }
        }),
        tokio::spawn({
            let locks = client.multi(["one", "two"]);
            async move { locks.lock_within(limit).await.map(drop) }
        }),
        tokio::spawn({
            let post = client.election("post");
            async move { post.campaign_within(limit).await.map(drop) }
        }),
    ];
    let mut outcomes = Vec::new();
    for one in all {
        outcomes.push(one.await.unwrap());
    }
    outcomes
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_begins_in_an_outage_goes_on_until_its_end() {
    let (_world, faults, client) = scene(Duration::ZERO);
    drop(client.mutex("first").lock().await.unwrap());
    faults.black_out(true);
    let back = async {
        tokio::time::sleep(secs(50)).await;
        faults.black_out(false);
    };
    let (outcomes, ()) = tokio::join!(take_all(&client, secs(120)), back);
    for outcome in outcomes {
        outcome.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_lasts_is_waited_for_until_the_limit_or_for_half_a_minute() {
    let (_world, faults, client) = scene(Duration::ZERO);
    drop(client.mutex("first").lock().await.unwrap());
    faults.black_out(true);
    let began = Instant::now();
    let error = client.mutex("a").lock_within(secs(90)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(began.elapsed() >= secs(90), "{:?}", began.elapsed());
    let began = Instant::now();
    let error = client.mutex("b").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let waited = began.elapsed();
    assert!(waited >= secs(30) && waited <= secs(50), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_never_reached_is_waited_for_as_long_as_was_asked() {
    let (_world, faults, client) = scene(Duration::ZERO);
    faults.black_out(true);
    let began = Instant::now();
    let error = client.mutex("a").lock_within(secs(60)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // One request, and the `leave`.
    assert!(began.elapsed() <= secs(5), "{:?}", began.elapsed());

    let (_world, faults, client) = scene(secs(20));
    faults.black_out(true);
    let began = Instant::now();
    let error = client.mutex("a").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let waited = began.elapsed();
    assert!(waited >= secs(20) && waited <= secs(40), "{waited:?}");
    let back = async {
        tokio::time::sleep(ms(9_000)).await;
        faults.black_out(false);
    };
    let mutex = client.mutex("a");
    let (guard, ()) = tokio::join!(mutex.lock(), back);
    drop(guard.unwrap());
}

/// Nodes that know that they have just started count after a while, and say when.
#[cfg(feature = "quorum")]
#[tokio::test(start_paused = true)]
async fn nodes_that_say_when_they_count_are_waited_for_within_the_limit() {
    use leasehold_core::{Error, Store};
    use leasehold_embedded::MemoryStore;
    use leasehold_quorum::QuorumStore;
    use leasehold_testkit::fault_store::{Fault, Op};

    let clock = World::new().clock;
    let count_at = Instant::now() + secs(45);
    let young = || {
        let node = FaultStore::new(Arc::new(MemoryStore::with_clock(Arc::clone(&clock))));
        node.decide(move |call| {
            let left = count_at.saturating_duration_since(Instant::now());
            if call.op == Op::RemembersFor && !left.is_zero() {
                Fault::Fail(Error::new(ErrorKind::Unavailable, "young").passes_in(left))
            } else {
                Fault::None
            }
        });
        node
    };
    let nodes: Vec<Arc<dyn Store>> = (0..3).map(|_| Arc::new(young()) as Arc<dyn Store>).collect();
    let quorum = QuorumStore::builder(nodes).clock(Arc::clone(&clock)).build().unwrap();
    let client = Client::builder().tokio_time().clock(clock).store(Arc::new(quorum)).unwrap();
    let owner = Owner::new();
    let [one, two] = ["one", "two"];

    let error = client.mutex("a").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.retry_after().is_some_and(|after| after > secs(40)), "{error}");
    let error = client.mutex("a").lock_within(secs(5)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let (again, both) = (client.reentrant("again", &owner), client.multi([one, two]));
    let (mutex, post) = (client.mutex("a"), client.election("post"));
    let outcomes = tokio::join!(
        async { mutex.lock_within(secs(60)).await.map(drop) },
        async { mutex.clone().metadata("without a limit").lock().await.map(drop) },
        async { again.lock_within(secs(60)).await.map(drop) },
        async { both.lock_within(secs(60)).await.map(drop) },
        async { post.campaign().await.map(drop) },
    );
    for outcome in <[_; 5]>::from(outcomes) {
        outcome.unwrap();
    }
    let late = Instant::now().saturating_duration_since(count_at);
    assert!(late < secs(5), "the nodes had counted for {late:?}");
}
