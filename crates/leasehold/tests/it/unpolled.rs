//! Contenders whose futures are not polled: they delay others for a bounded time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold::{Client, Guard, Mutex, Result};
use leasehold_testkit::fault_store::{FaultStore, Op};
use tokio::time::Instant;

use crate::support::{World, ms, secs};

type Locking<'a> = Pin<Box<dyn Future<Output = Result<Guard>> + 'a>>;

/// A future that waits for the lock, and is polled this once.
fn left_alone(mutex: &Mutex) -> Locking<'_> {
    let mut locking: Locking<'_> = Box::pin(mutex.lock());
    poll(&mut locking);
    locking
}

fn poll(locking: &mut Locking<'_>) {
    let poll = locking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending());
}

/// Two clients as in two processes, and a mutex of the first whose lease may be handed off.
fn world(ttl: Duration) -> (World, Client, Mutex) {
    let world = World::new();
    let client = world.client();
    let mutex = client.mutex("a").ttl(ttl);
    (world, client, mutex)
}

#[tokio::test(start_paused = true)]
async fn a_lease_handed_to_an_unpolled_future_goes_back_to_the_store() {
    for ttl in [ms(500), secs(30)] {
        let (world, _client, mutex) = world(ttl);
        let held = mutex.lock().await.unwrap();
        let sleeper = left_alone(&mutex);
        held.release().await.unwrap();
        let begun = Instant::now();
        let other = world.client();
        let next = other.mutex("a").lock_within(secs(600)).await.unwrap();
        assert!(begun.elapsed() <= ms(1_200), "{ttl:?}: {:?}", begun.elapsed());
        // Polled after all, it waits like all others, and gets it in the end.
        let mut sleeper = sleeper;
        poll(&mut sleeper);
        assert!(next.is_held());
        next.release().await.unwrap();
        let late = tokio::time::timeout(secs(600), sleeper).await.unwrap().unwrap();
        assert!(late.is_held());
        late.release().await.unwrap();
        world.idle("a").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_handed_to_an_unpolled_future_goes_to_the_next_of_its_client() {
    let (world, _client, mutex) = world(secs(30));
    let held = mutex.lock().await.unwrap();
    let sleeper = left_alone(&mutex);
    let awake = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    while world.waiters("a").await > 0 || awake.is_finished() {
        tokio::time::sleep(ms(1)).await;
    }
    tokio::time::sleep(ms(10)).await;
    held.release().await.unwrap();
    let begun = Instant::now();
    let next = tokio::time::timeout(secs(600), awake).await.unwrap().unwrap().unwrap();
    assert!(next.is_held() && begun.elapsed() <= ms(5_200), "{:?}", begun.elapsed());
    drop(sleeper);
    next.release().await.unwrap();
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_contender_on_the_wire_is_overtaken_by_those_behind_it() {
    let (world, client, mutex) = world(secs(2));
    let held = world.stranger_takes("a", secs(10)).await;
    let mut sleeper = left_alone(&mutex);
    for _ in 0..5 {
        tokio::time::sleep(ms(10)).await;
        poll(&mut sleeper);
    }
    let behind: Vec<_> = (0..3)
        .map(|_| {
            let mutex = client.mutex("a").ttl(secs(2));
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    let begun = Instant::now();
    drop(held);
    for task in behind {
        tokio::time::timeout(secs(600), task).await.expect("it waits for a sleeper").unwrap();
    }
    // The other client's lease, and the heartbeat timeout of the unpolled position, and no more
    // than the bound.
    assert!(begun.elapsed() <= secs(17), "{:?}", begun.elapsed());
    drop(sleeper);
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_handed_off_is_renewed_at_its_time_once_it_was_taken() {
    let world = World::new();
    let faults = Arc::new(FaultStore::new(Arc::new(world.store.clone())));
    let client = world.client_of(Arc::<FaultStore>::clone(&faults));
    let mutex = client.mutex("a").ttl(secs(30));
    let held = mutex.lock().await.unwrap();
    let next = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await.unwrap() }
    });
    tokio::time::sleep(ms(10)).await;
    held.release().await.unwrap();
    let next = next.await.unwrap();
    tokio::time::sleep(secs(5)).await;
    assert_eq!(faults.count(Op::Renew), 0);
    tokio::time::sleep(secs(10)).await;
    assert_eq!(faults.count(Op::Renew), 1);
    tokio::time::sleep(secs(3600)).await;
    assert!(next.is_held());
}
