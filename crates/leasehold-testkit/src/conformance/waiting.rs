//! Cases about waiting in the queue, and being served.

use std::sync::{Arc, Mutex};

use leasehold_core::{Acquire, Already, Leave, Mode, Refusal, Release, Renew};
use tokio::task::JoinSet;

use super::context::{Context, LONG, Patience, SLACK};
use super::party::{Lease, Party};

pub(super) async fn a_queue_request_is_granted_a_free_lock(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).queued().take().await;
    assert!(cx.show(&key).await.waiters.is_empty());
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn waiters_stand_in_the_order_of_their_arrival(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).owner("holder").take().await;
    let line = ["a", "b", "c"].map(|owner| cx.party(&key).owner(owner).queued());
    let mut last = None;
    for (position, waiter) in (0..).zip(&line) {
        let waiting = waiter.wait().await;
        assert_eq!(waiting.position, position);
        assert!(Some(waiting.place) > last, "a later place is a larger one");
        last = Some(waiting.place);
        assert!(!waiting.retry_after.is_zero() && waiting.retry_after <= LONG + SLACK);
        assert_eq!(waiting.holder.expect("it has a holder").owner.as_str(), "holder");
    }
    let info = cx.show(&key).await;
    assert_eq!(cx.waiters(&key).await, ["a", "b", "c"]);
    assert!(info.waiters.iter().all(|waiter| waiter.mode == Mode::Exclusive));
    lease.end().await;
    for waiter in line {
        waiter.leave().await;
    }
}

pub(super) async fn a_released_lock_goes_to_the_head_in_the_same_step(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let line = ["a", "b", "c"].map(|owner| cx.party(&key).owner(owner).queued());
    for waiter in &line {
        waiter.wait().await;
    }
    assert_eq!(lease.release().await, Release::Released);
    for served in 0..3 {
        let owners = ["a", "b", "c"];
        assert_eq!(cx.holders(&key).await, owners[served..=served]);
        assert_eq!(cx.waiters(&key).await, owners[served + 1..]);
        cx.party(&key).fail().await;
        let fences = line[served].clone().next_beat().take_again().await.fences;
        assert_eq!(line[served].lease(fences).release().await, Release::Released);
    }
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_lease_of_the_queue_has_what_the_waiter_requested(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let waiter = cx.party(&key).owner("w").metadata("second").fence_block(16).queued();
    waiter.wait().await;
    lease.clone().end().await;
    let holder = cx.show(&key).await.holders[0].clone();
    assert_eq!((holder.owner.as_str(), holder.metadata.as_str()), ("w", "second"));
    assert_eq!((holder.mode, holder.holds), (Mode::Exclusive, 1));
    assert!(holder.fence > lease.fences.last());
    let already = waiter.next_beat().take_again().await;
    assert_eq!((already.fences.first(), already.fences.count()), (holder.fence, 16));
    assert_eq!(cx.show(&key).await.last_fence, already.fences.last());
}

pub(super) async fn a_lease_of_the_queue_runs_for_the_heartbeat_timeout_and_then_for_the_ttl(
    cx: &Context,
) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let waiter = cx.party(&key).ttl(LONG * 10).queued().window(LONG);
    waiter.wait().await;
    lease.end().await;
    assert!(cx.show(&key).await.holders[0].remaining <= LONG + SLACK);
    waiter.next_beat().take_again().await;
    assert!(cx.show(&key).await.holders[0].remaining > LONG * 2);
}

pub(super) async fn a_lease_of_the_queue_can_be_renewed_and_released_like_any_other(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let waiter = cx.party(&key).queued();
    waiter.wait().await;
    lease.clone().end().await;
    let fences = waiter.clone().next_beat().take_again().await.fences;
    let handed = waiter.lease(fences);
    assert_eq!(handed.renew(LONG * 2).await, Renew::Renewed);
    assert_eq!(lease.release().await, Release::NotHeld, "a waiter was granted it since");
    handed.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn an_expired_holder_makes_room_for_the_head(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).ttl(cx.short()).take().await;
    let head = cx.party(&key).owner("head").queued();
    let (mut asks, mut patience) = (head.clone(), Patience::for_what("the holder to expire"));
    let fences = loop {
        match asks.ask().await {
            Acquire::Waiting(waiting) => assert_eq!(waiting.position, 0),
            Acquire::Already(Already { fences, .. }) => break fences,
            // The machine stalled, and the lock was free before any wait.
            Acquire::Granted(granted) => break granted.fences,
            other => panic!("neither waiting nor served: {other:?}"),
        }
        patience.pause().await;
        asks = asks.next_beat();
    };
    assert_eq!(lease.renew(LONG).await, Renew::NotHeld);
    assert_eq!(lease.release().await, Release::NotHeld);
    assert_eq!(cx.holders(&key).await, ["head"]);
    head.lease(fences).end().await;
}

pub(super) async fn a_look_grants_an_expired_lock_to_the_head(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).ttl(cx.short()).take().await;
    let head = cx.party(&key).owner("head").queued();
    if let Acquire::Waiting(_) = head.ask().await {
        let mut patience = Patience::for_what("a stranger's try to hand the lock on");
        while cx.holders(&key).await != ["head"] {
            cx.party(&key).owner("stranger").fail().await;
            patience.pause().await;
        }
    }
    assert_eq!(lease.release().await, Release::NotHeld);
    head.leave().await;
}

pub(super) async fn a_waiter_that_polls_twice_has_one_position(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let (a, b) = (cx.party(&key).owner("a").queued(), cx.party(&key).owner("b").queued());
    let (first, second) = (a.wait().await, b.wait().await);
    let again = a.wait().await;
    assert_eq!((again.place, again.position), (first.place, 0));
    let again = b.clone().next_beat().wait().await;
    assert_eq!((again.place, again.position), (second.place, 1));
    assert_eq!(cx.waiters(&key).await, ["a", "b"]);
    lease.end().await;
    a.leave().await;
    b.leave().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_waiter_that_polls_many_times_at_once_has_one_position(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let waiter = cx.party(&key).owner("a").queued();
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let waiter = waiter.clone();
        tasks.spawn(async move { waiter.wait().await.place });
    }
    let places = tasks.join_all().await;
    assert!(places.iter().all(|place| *place == places[0]));
    assert_eq!(cx.waiters(&key).await, ["a"]);
    lease.end().await;
    waiter.leave().await;
}

pub(super) async fn leaving_the_queue_disturbs_no_other_position(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).owner("holder").take().await;
    let [a, b, c] = ["a", "b", "c"].map(|owner| cx.party(&key).owner(owner).queued());
    a.wait().await;
    b.wait().await;
    let place = c.wait().await.place;
    assert_eq!(b.leave().await, Leave::Left);
    assert_eq!(b.leave().await, Leave::NotHeld);
    assert_eq!(cx.waiters(&key).await, ["a", "c"]);
    assert_eq!(cx.holders(&key).await, ["holder"]);
    let again = c.clone().next_beat().wait().await;
    assert_eq!((again.position, again.place), (1, place));
    assert_eq!(a.leave().await, Leave::Left);
    assert_eq!(c.clone().next_beat().wait().await.position, 0);
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["c"]);
    c.leave().await;
}

pub(super) async fn leaving_in_the_moment_of_the_grant_passes_the_lease_on(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let [a, b] = ["a", "b"].map(|owner| cx.party(&key).owner(owner).queued());
    a.wait().await;
    b.wait().await;
    lease.end().await;
    assert_eq!(a.leave().await, Leave::Released);
    assert_eq!(cx.holders(&key).await, ["b"]);
    assert_eq!(b.leave().await, Leave::Released);
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_queue_alone_keeps_a_name_in_use_until_it_is_gone(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let waiter = cx.party(&key).queued().window(cx.short());
    waiter.ask().await;
    lease.release().await;
    cx.until_idle(&key).await;
}

pub(super) async fn a_full_queue_refuses_newcomers(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let [a, b] = ["a", "b"].map(|owner| cx.party(&key).owner(owner).queued().max_waiters(2));
    a.wait().await;
    b.wait().await;
    let late = cx.party(&key).queued().max_waiters(2);
    assert_eq!(late.be_refused().await, Refusal::QueueFull { waiters: 2 });
    assert_eq!(cx.waiters(&key).await, ["a", "b"]);
    assert_eq!(a.clone().next_beat().wait().await.position, 0, "it is no newcomer");
    b.leave().await;
    assert_eq!(late.wait().await.position, 1);
    let none = cx.party(&key).queued().max_waiters(0);
    assert_eq!(none.be_refused().await, Refusal::QueueFull { waiters: 2 });
    lease.end().await;
    a.leave().await;
    late.leave().await;
    none.take().await.end().await;
}

pub(super) async fn a_crowd_is_served_in_order_and_to_the_last(cx: &Context) {
    const CROWD: usize = 20;
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..CROWD {
        let waiter = cx.party(&key).queued();
        let place = waiter.wait().await.place;
        let served = Arc::clone(&served);
        tasks.spawn(async move {
            let lease = be_served(waiter).await;
            served.lock().expect("no task panics with it").push((lease.fences.first(), place));
            lease.end().await;
        });
    }
    lease.end().await;
    tasks.join_all().await;
    let served = std::mem::take(&mut *served.lock().expect("no task panicked"));
    assert_eq!(served.len(), CROWD);
    assert!(served.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "out of order: {served:?}");
    assert_eq!(cx.inspect(&key).await, None);
}

/// Sends heartbeats until the lease is granted.
pub(super) async fn be_served(mut waiter: Party) -> Lease {
    let mut patience = Patience::for_what("a turn in line");
    loop {
        waiter = waiter.next_beat();
        match waiter.ask().await {
            Acquire::Already(Already { fences, .. }) => return waiter.lease(fences),
            Acquire::Granted(granted) => return waiter.lease(granted.fences),
            Acquire::Waiting(_) => patience.pause().await,
            other => panic!("neither waiting nor served: {other:?}"),
        }
    }
}
