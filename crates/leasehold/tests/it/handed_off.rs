//! Leases that come by a message or inside the process: from when they count, and what may still
//! be on the way when they come.

use std::sync::Arc;

use leasehold::Release;
use leasehold_testkit::fault_store::{Fault, FaultStore, Messages, Op};

use crate::support::{World, ms, secs};

fn faulty(world: &World) -> FaultStore {
    FaultStore::new(Arc::new(world.store.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_notified_lease_counts_from_the_heartbeat_and_not_from_the_message() {
    let world = World::new();
    let guard = world.client().mutex("a").lock().await.unwrap();
    let mutex = world.client().mutex("a").ttl(secs(30)).renew(false);
    let waiter = tokio::spawn(async move { mutex.lock().await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    tokio::time::sleep(secs(8)).await;
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let guard = waiter.await.unwrap();
    assert!(guard.is_held());
    assert!(guard.remaining() <= secs(22), "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_from_when_it_was_sent() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(30)).lock().await.unwrap();
    faults.next(Op::Renew, Fault::Delay { before: ms(0), after: secs(2) });
    while faults.count(Op::Renew) == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    tokio::time::sleep(secs(2) + ms(10)).await;
    assert!(guard.remaining() > secs(20), "it was renewed");
    assert!(guard.lease().until_deadline() <= secs(28), "{:?}", guard.lease().until_deadline());
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_on_its_way_when_the_lease_comes_puts_no_ghost_in_the_queue() {
    let world = World::new();
    let faults = faulty(&world);
    let guard = world.client().mutex("a").lock().await.unwrap();
    let client = world.client_of(Arc::new(faults.clone()));
    let waiter = tokio::spawn({
        let mutex = client.mutex("a");
        async move { mutex.lock().await.unwrap() }
    });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let sent = faults.count(Op::Acquire);
    faults.next(Op::Acquire, Fault::Delay { before: secs(1), after: ms(0) });
    while faults.count(Op::Acquire) == sent {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    assert_eq!(waiter.await.unwrap().release_outcome().await.unwrap(), Release::Released);
    tokio::time::sleep(secs(2)).await;
    assert!(world.is_idle("a").await, "a ghost");
}

#[tokio::test(start_paused = true)]
async fn a_lease_goes_back_through_the_store_after_fifty_milliseconds() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let tasks: Vec<_> = (0..30)
        .map(|_| {
            let mutex = client.mutex("a");
            tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                tokio::time::sleep(ms(10)).await;
                guard.release_outcome().await.unwrap()
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), Release::Released);
    }
    let releases = faults.count(Op::Release);
    assert!((4..15).contains(&releases), "{releases} releases");
}

#[tokio::test(start_paused = true)]
async fn a_contender_that_takes_a_position_over_waits_under_its_own_limit() {
    let world = World::new();
    let _held = world.stranger_takes("a", secs(3)).await;
    let client = world.client();
    let impatient = tokio::spawn({
        let mutex = client.mutex("a");
        async move { mutex.lock_within(secs(1)).await.map(drop) }
    });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let patient = tokio::spawn(async move { client.mutex("a").lock_within(secs(9)).await });
    assert!(impatient.await.unwrap().is_err());
    assert!(patient.await.unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_channel_that_comes_back_makes_its_waiters_poll_at_once() {
    let world = World::new();
    let faults = faulty(&world);
    let guard = world.client().mutex("a").lock().await.unwrap();
    let mutex = world.client_of(Arc::new(faults.clone())).mutex("a");
    let waiter = tokio::spawn(async move { mutex.lock().await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    faults.black_out(true);
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    tokio::time::sleep(ms(1)).await;
    faults.black_out(false);
    let started = tokio::time::Instant::now();
    assert!(waiter.await.unwrap().is_held());
    assert!(started.elapsed() < secs(1), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_becomes_the_first_is_up_when_the_holders_lease_expires() {
    let world = World::new();
    let _dead = world.stranger_takes("a", secs(2)).await;
    let started = tokio::time::Instant::now();
    let mut waiters = Vec::new();
    for n in 1..=2 {
        let mutex = world.client().mutex("a");
        waiters.push(tokio::spawn(async move { mutex.lock().await.unwrap() }));
        while world.waiters("a").await < n {
            tokio::time::sleep(ms(1)).await;
        }
    }
    waiters.remove(0).abort();
    assert!(waiters.remove(0).await.unwrap().is_held());
    assert!(started.elapsed() < secs(3), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_keeps_its_position_though_every_other_heartbeat_is_lost() {
    let world = World::new();
    let faults = faulty(&world);
    faults.messages(Messages::Vanish);
    let _guard = world.client().mutex("a").lock().await.unwrap();
    let mutex = world.client_of(Arc::new(faults.clone())).mutex("a").ttl(ms(2_500));
    let waiter = tokio::spawn(async move { mutex.lock().await.map(drop) });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let mut lost = false;
    faults.decide(move |call| {
        lost = call.op == Op::Acquire && !lost;
        if lost { Fault::DropRequest } else { Fault::None }
    });
    for _ in 0..300 {
        tokio::time::sleep(ms(100)).await;
        assert_eq!(world.waiters("a").await, 1);
    }
    waiter.abort();
}

#[tokio::test(start_paused = true)]
async fn a_contender_that_leaves_keeps_the_position_for_its_process() {
    let world = World::new();
    let held = world.client().mutex("a").lock().await.unwrap();
    let client = world.client();
    let impatient = tokio::spawn({
        let mutex = client.mutex("a");
        async move { mutex.lock_within(secs(1)).await.map(drop) }
    });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let behind = tokio::spawn(async move { client.mutex("a").lock().await.unwrap() });
    let other = world.client().mutex("a");
    let other = tokio::spawn(async move { other.lock().await.unwrap() });
    while world.waiters("a").await < 2 {
        tokio::time::sleep(ms(1)).await;
    }
    assert!(impatient.await.unwrap().is_err());
    tokio::time::sleep(secs(1)).await;
    assert_eq!(held.release_outcome().await.unwrap(), Release::Released);
    let behind = tokio::time::timeout(secs(5), behind).await.expect("its place was lost");
    let first = behind.unwrap().fence().unwrap();
    assert!(other.await.unwrap().fence().unwrap() > first);
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_renewal_is_on_its_way_goes_back_through_the_store() {
    let world = World::new();
    let faults = faulty(&world);
    let mutex = world.client_of(Arc::new(faults.clone())).mutex("a").ttl(ms(100));
    let guard = mutex.lock().await.unwrap();
    let next = tokio::spawn(async move { mutex.lock().await.map(drop) });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    faults.next(Op::Renew, Fault::Delay { before: ms(5), after: ms(5) });
    while faults.count(Op::Renew) == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    assert!(faults.count(Op::Release) > 0, "handed on though a renewal was on its way");
    next.await.unwrap().unwrap();
    world.idle("a").await;
}
