//! Changing the length of a held lease, on good days and bad.

use std::sync::Arc;

use leasehold::ErrorKind;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use crate::support::{World, ms, secs};

fn faulty(world: &World) -> FaultStore {
    FaultStore::new(Arc::new(world.store.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_length_that_leaves_no_time_to_work_is_refused_and_costs_nothing() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").ttl(secs(60)).lock().await.unwrap();
    assert_eq!(guard.renew_to(ms(2)).await.unwrap_err().kind(), ErrorKind::Config);
    assert!(guard.remaining() > secs(50));
}

#[tokio::test(start_paused = true)]
async fn shortening_without_an_answer_is_believed() {
    for fault in [Fault::DropReply, Fault::DropRequest] {
        let world = World::new();
        let faults = faulty(&world);
        let client = world.client_of(Arc::new(faults.clone()));
        let guard = client.mutex("a").ttl(secs(60)).renew(false).lock().await.unwrap();
        faults.next(Op::Renew, fault);
        assert!(guard.renew_to(secs(6)).await.is_err());
        assert!(guard.remaining() < secs(6), "{:?}", guard.remaining());
        guard.lost().await;
        let other = world.client().mutex("a").try_lock().await.unwrap();
        assert!(other.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn shortening_that_was_dropped_is_believed() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(60)).lock().await.unwrap();
    faults.next(Op::Renew, Fault::DropReply);
    assert!(tokio::time::timeout(ms(10), guard.renew_to(secs(6))).await.is_err());
    assert!(guard.remaining() < secs(6), "{:?}", guard.remaining());
    for _ in 0..600 {
        tokio::time::sleep(ms(100)).await;
        let other = world.client().mutex("a").try_lock().await.unwrap();
        assert!(other.is_none() || !guard.is_held(), "two holders");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_crosses_a_shortening_does_not_lengthen_the_belief() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(60)).lock().await.unwrap();
    // The renewer's answer is slow; the shortening is carried out and answered in between.
    faults.next(Op::Renew, Fault::Delay { before: ms(0), after: secs(1) });
    while faults.count(Op::Renew) == 0 {
        tokio::time::sleep(ms(10)).await;
    }
    guard.renew_to(secs(6)).await.unwrap();
    faults.always(Fault::DropRequest);
    tokio::time::sleep(secs(2)).await;
    assert!(guard.remaining() < secs(6), "{:?}", guard.remaining());
    tokio::time::sleep(secs(6)).await;
    assert!(!guard.is_held());
    assert!(world.client().mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_new_length_outlives_a_renewal_that_was_on_its_way() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(60)).lock().await.unwrap();
    faults.next(Op::Renew, Fault::Delay { before: ms(500), after: ms(500) });
    while faults.count(Op::Renew) == 0 {
        tokio::time::sleep(ms(10)).await;
    }
    guard.renew_to(secs(6)).await.unwrap();
    for _ in 0..300 {
        tokio::time::sleep(ms(100)).await;
        assert!(guard.is_held());
        assert!(guard.ttl().await.unwrap() <= secs(6), "{:?}", guard.ttl().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_length_that_the_store_refused_leaves_the_lease_as_it_was() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(60)).renew(false).lock().await.unwrap();
    let before = guard.remaining();
    faults.next(Op::Renew, Fault::Refuse);
    assert_eq!(guard.renew_to(secs(6)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(guard.remaining(), before);
}

/// The request may lie in a buffer until long after its timeout.
#[tokio::test(start_paused = true)]
async fn a_shortening_that_arrives_late_makes_no_second_holder() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(60)).lock().await.unwrap();
    faults.next(Op::Renew, Fault::Delay { before: secs(30), after: ms(0) });
    assert!(guard.renew_to(secs(6)).await.is_err());
    tokio::time::sleep(secs(27)).await;
    assert!(guard.is_held(), "it is renewed by the shorter length");
    faults.always(Fault::DropRequest);
    for _ in 0..600 {
        tokio::time::sleep(ms(100)).await;
        let other = world.client().mutex("a").try_lock().await.unwrap();
        assert!(other.is_none() || !guard.is_held(), "two holders");
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_length_is_not_handed_off_to_the_next_in_the_process() {
    for length in [secs(2), secs(600)] {
        let world = World::new();
        let mutex = world.client().mutex("a").ttl(secs(30));
        let guard = mutex.lock().await.unwrap();
        let next = tokio::spawn(async move { mutex.lock().await.unwrap() });
        while world.waiters("a").await == 0 {
            tokio::time::sleep(ms(1)).await;
        }
        guard.renew_to(length).await.unwrap();
        guard.release().await.unwrap();
        let next = next.await.unwrap();
        tokio::time::sleep(secs(15)).await;
        let runs = next.ttl().await.unwrap();
        assert!(runs > secs(15) && runs <= secs(30), "it runs for {runs:?} after {length:?}");
    }
}
