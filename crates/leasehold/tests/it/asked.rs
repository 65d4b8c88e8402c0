//! Release requests.

use std::sync::Arc;

use leasehold::{Owner, Release};
use leasehold_testkit::fault_store::{FaultStore, Op};

use crate::cancel::cut;
use crate::support::{World, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_holder_that_waits_for_requests_learns_of_one_within_a_second_and_releases() {
    let world = World::new();
    let guard = world.client().mutex("a").ttl(secs(600)).lock().await.unwrap();
    let holder = tokio::spawn(async move {
        guard.asked().await;
        assert!(guard.is_asked() && guard.lease().is_asked());
        guard.release_outcome().await.unwrap()
    });
    tokio::time::sleep(secs(10)).await;
    assert!(!holder.is_finished());
    let mutex = world.client().mutex("a").owner("impatient");
    assert!(mutex.ask().await.unwrap());
    let info = world.client().inspect("a").await.unwrap().unwrap();
    assert_eq!(info.holders[0].asked_by.as_ref().unwrap().as_str(), "impatient");
    let started = tokio::time::Instant::now();
    let _mine = mutex.lock().await.unwrap();
    assert!(started.elapsed() < secs(2));
    assert_eq!(holder.await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn others_learn_of_it_with_their_next_renewal() {
    let world = World::new();
    let guard = world.client().mutex("a").ttl(secs(9)).lock().await.unwrap();
    assert_eq!(world.client().ask("a").await.unwrap(), 1);
    assert!(!guard.is_asked());
    tokio::time::sleep(secs(4)).await;
    assert!(guard.is_asked() && guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_waits_for_requests_learns_of_a_loss_within_a_second() {
    let world = World::new();
    let guard = world.client().mutex("a").ttl(secs(600)).lock().await.unwrap();
    world.client().force_release("a", guard.fence().unwrap()).await.unwrap();
    let started = tokio::time::Instant::now();
    guard.asked().await;
    assert!(started.elapsed() < secs(3), "{:?}", started.elapsed());
    assert!(!guard.is_held() && !guard.is_asked());
}

#[tokio::test(start_paused = true)]
async fn a_free_lock_has_no_holder_to_ask() {
    let world = World::new();
    let client = world.client();
    assert_eq!(client.ask("a").await.unwrap(), 0);
    assert!(!client.mutex("a").ask().await.unwrap());
    let guards = [
        client.semaphore("a", 3).acquire().await.unwrap(),
        client.semaphore("a", 3).acquire().await.unwrap(),
    ];
    assert_eq!(client.ask("a").await.unwrap(), 2);
    let fence = guards[1].fence().unwrap();
    assert_eq!(client.ask_holder("a", fence).await.unwrap(), 1);
    let no_such = guards[0].fence().unwrap().saturating_add(1_000_000);
    assert_eq!(client.ask_holder("a", no_such).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_release_request_changes_no_lease_and_ends_with_it() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(20)).renew(false).lock().await.unwrap();
    let started = tokio::time::Instant::now();
    guard.asked().await;
    assert!(!guard.is_asked() && !guard.is_held());
    assert!(started.elapsed() > secs(18) && started.elapsed() < secs(20));
    let looks = faults.count(Op::Renew);
    // Several waiting tasks don't wake each other in a circle.
    let again = client.mutex("a").ttl(secs(20)).renew(false).lock().await.unwrap();
    tokio::join!(again.asked(), again.lease().asked(), again.asked());
    assert!(faults.count(Op::Renew) - looks <= 60, "{}", faults.count(Op::Renew) - looks);
    assert!((15..=20).contains(&looks), "it looked {looks} times");
}

#[tokio::test(start_paused = true)]
async fn a_requested_lease_goes_back_through_the_store() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").lock().await.unwrap();
    let mine = client.mutex("a");
    let local = tokio::spawn(async move { mine.lock().await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    // Otherwise the process's own queue would be served first: its release is within 50 ms.
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let other = world.client_of(Arc::new(faults)).mutex("a");
    other.ask().await.unwrap();
    guard.asked().await;
    assert!(guard.is_asked());
    let token_before = guard.fence().unwrap();
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let next = local.await.unwrap();
    assert!(next.fence().unwrap() > token_before);
    assert!(!next.is_asked(), "the next holder was not asked");
}

/// Within the 50 ms in which it would be handed off otherwise.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_requested_early_is_not_handed_off_in_the_process() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let mutex = world.client_of(Arc::new(faults.clone())).mutex("a").ttl(ms(100));
    let guard = mutex.lock().await.unwrap();
    let granted = tokio::time::Instant::now();
    let next = tokio::spawn(async move { mutex.lock().await.map(drop) });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(world.client().ask("a").await.unwrap(), 1);
    while !guard.is_asked() {
        tokio::time::sleep(ms(1)).await;
    }
    assert!(granted.elapsed() < ms(50), "{:?}", granted.elapsed());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    assert!(faults.count(Op::Release) > 0, "handed off although another client requested release");
    next.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_guards_of_an_owner_are_asked() {
    let world = World::new();
    let (client, owner) = (world.client(), Owner::new());
    let guards = [
        client.reentrant("a", &owner).lock().await.unwrap(),
        client.reentrant("a", &owner).lock().await.unwrap(),
    ];
    assert_eq!(client.ask("a").await.unwrap(), 1);
    guards[0].asked().await;
    assert!(guards[1].is_asked());
    let multi = client.multi(["b", "c"]).lock().await.unwrap();
    client.ask("c").await.unwrap();
    multi.asked().await;
    assert!(multi.leases()[1].is_asked());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_release_request_can_be_dropped_at_every_await() {
    cut(Op::Renew, |trial| {
        let mutex = trial.client.mutex("a").ttl(secs(10));
        async move {
            let guard = mutex.lock().await.unwrap();
            drop(tokio::time::timeout(ms(2_500), guard.asked()).await);
            drop(guard.release().await);
        }
    })
    .await;
}
