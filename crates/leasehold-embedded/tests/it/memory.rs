//! What the memory store keeps and forgets, on a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use leasehold_clock::ManualClock;
use leasehold_core::{
    Fence, Leave, LeaveRequest, Moment, QueueRequest, Release, ReleaseRequest, Store,
};
use leasehold_embedded::MemoryStore;

use crate::ask::{WITHIN, granted, key, request, ttl};

fn store() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new();
    (MemoryStore::with_clock(Arc::new(clock.clone())), clock)
}

/// Uses other names until the store has looked for names to forget.
async fn be_busy(store: &MemoryStore) {
    for _ in 0..store.entries() + 66 {
        let asked = request("busy");
        let fences = granted(store.acquire(&asked, WITHIN).await.unwrap());
        let ending = ReleaseRequest::new(asked.key, asked.token, fences);
        store.release(&ending, WITHIN).await.unwrap();
    }
}

#[tokio::test]
async fn idle_names_are_forgotten_ten_minutes_after_their_last_use() {
    let (store, clock) = store();
    for n in 0..1_000 {
        let asked = request(&format!("name-{n}"));
        granted(store.acquire(&asked, WITHIN).await.unwrap());
    }
    assert_eq!((store.entries(), store.in_use()), (1_000, 1_000));
    clock.advance(Duration::from_secs(1_800));
    be_busy(&store).await;
    assert_eq!((store.entries(), store.in_use()), (1_001, 0));
    clock.advance(Duration::from_secs(600));
    be_busy(&store).await;
    assert_eq!(store.entries(), 1);
}

#[tokio::test]
async fn a_late_release_is_distinguished_from_a_lost_one_for_ten_minutes() {
    let (store, clock) = store();
    let asked = request("k");
    let fences = granted(store.acquire(&asked, WITHIN).await.unwrap());
    let ending = ReleaseRequest::new(asked.key, asked.token, fences);
    clock.advance(Duration::from_secs(1_800 + 599));
    be_busy(&store).await;
    assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Late);
    clock.advance(Duration::from_secs(601));
    be_busy(&store).await;
    assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::NotHeld);
}

#[tokio::test]
async fn a_forgotten_name_never_gets_an_old_fence_again() {
    let (store, clock) = store();
    let mut asked = request("k");
    asked.fence_block = 64.try_into().unwrap();
    let before = granted(store.acquire(&asked, WITHIN).await.unwrap());
    clock.advance(Duration::from_secs(3_600));
    be_busy(&store).await;
    // Fences don't depend on the clock of leases, and the time of day has hardly moved.
    clock.go_back(Duration::from_secs(7_200));
    let after = granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    assert!(after.first() > before.last());
}

#[tokio::test]
async fn asking_in_vain_leaves_nothing_behind() {
    let (store, _) = store();
    let asked = LeaveRequest::new(key("k"), request("k").token);
    assert_eq!(store.leave(&asked, WITHIN).await.unwrap(), Leave::NotHeld);
    assert!(store.inspect(&asked.key, WITHIN).await.unwrap().is_none());
    assert_eq!(store.entries(), 0);
}

#[tokio::test]
async fn closed_channels_are_dropped() {
    let (store, _) = store();
    let client = leasehold_core::ClientId::generate().unwrap();
    let channel = store.listen(client, WITHIN).await.unwrap();
    assert_eq!(store.channels(), 1);
    drop(channel);
    assert_eq!(store.channels(), 0);
}

#[tokio::test]
async fn clones_share_what_is_held() {
    let (store, _) = store();
    let other = store.clone();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    let mut asked = request("k");
    asked.queue =
        Some(QueueRequest::new(leasehold_core::ClientId::generate().unwrap(), 1, ttl(1_000)));
    let answer = other.acquire(&asked, WITHIN).await.unwrap();
    assert!(matches!(answer, leasehold_core::Acquire::Waiting(_)), "{answer:?}");
    assert_eq!(store.inspect(&key("k"), WITHIN).await.unwrap().unwrap().waiters.len(), 1);
}

#[tokio::test]
async fn fences_are_seeded_from_the_time_of_day_that_is_given() {
    let (clock, time_of_day) = (ManualClock::new(), ManualClock::new());
    let store = MemoryStore::with_clocks(Arc::new(clock.clone()), Arc::new(time_of_day.clone()));
    time_of_day.set(Moment::from_nanos((Fence::ORIGIN_UNIX_US + 5) * 1_000));
    let mut fences = Vec::new();
    for name in ["a", "b"] {
        let answer = store.acquire(&request(name), WITHIN).await.unwrap();
        fences.push(granted(answer).first().sequence());
        clock.advance(Duration::from_secs(3_600));
        time_of_day.advance(Duration::from_micros(7));
    }
    assert_eq!(fences, [5, 12]);
}
