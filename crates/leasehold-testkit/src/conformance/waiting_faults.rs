//! Cases about waiters that are slow or dead.

use std::time::{Duration, Instant};

use leasehold_core::{Acquire, Refusal};

use super::context::{Context, Patience, SLACK};
use super::waiting::be_served;

pub(super) async fn a_heartbeat_keeps_the_position(cx: &Context) {
    // If the machine stalls for longer than the heartbeat timeout, the case proves nothing and
    // tries a longer one.
    for window in [1, 2, 4, 8, 16].map(|times| Duration::from_millis(600) * times) {
        let key = cx.key();
        let lease = cx.party(&key).take().await;
        let started = Instant::now();
        let mut sent_at = started;
        let mut waiter = cx.party(&key).owner("early").queued().window(window);
        let place = waiter.wait().await.place;
        let later = cx.party(&key).owner("later").queued();
        later.wait().await;
        let mut in_time = true;
        while started.elapsed() < window * 2 {
            tokio::time::sleep(window / 8).await;
            waiter = waiter.next_beat();
            let next_at = Instant::now();
            let waiting = waiter.wait().await;
            if sent_at.elapsed() >= window {
                in_time = false;
                break;
            }
            sent_at = next_at;
            assert_eq!((waiting.position, waiting.place), (0, place));
        }
        lease.end().await;
        if in_time {
            return;
        }
    }
    panic!("the machine is too slow: it never sent heartbeats in time");
}

pub(super) async fn a_dead_head_is_skipped(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    cx.party(&key).owner("dead").queued().window(cx.short()).wait().await;
    let live = cx.party(&key).owner("live").queued();
    live.wait().await;
    let mut patience = Patience::for_what("the dead waiter to be gone");
    while cx.waiters(&key).await != ["live"] {
        patience.pause().await;
    }
    assert_eq!(live.clone().next_beat().wait().await.position, 0);
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["live"]);
    live.leave().await;
}

pub(super) async fn a_waiter_with_less_than_half_its_timeout_left_is_passed_over(cx: &Context) {
    let window = Duration::from_secs(2);
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    cx.party(&key).owner("slow").queued().window(window).wait().await;
    let live = cx.party(&key).owner("live").queued();
    live.wait().await;
    let mut patience = Patience::for_what("half of a window to pass");
    while cx.show(&key).await.waiters[0].waited <= window / 2 + SLACK {
        if cx.waiters(&key).await == ["live"] {
            break;
        }
        patience.pause().await;
    }
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["live"]);
    live.leave().await;
}

pub(super) async fn a_forgotten_waiter_gets_its_old_position_back(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let slow = cx.party(&key).owner("slow").queued().window(cx.short());
    let place = slow.wait().await.place;
    let live = cx.party(&key).owner("live").queued();
    live.wait().await;
    let mut patience = Patience::for_what("the slow waiter to be forgotten");
    while cx.waiters(&key).await != ["live"] {
        patience.pause().await;
    }
    // A joining waiter clears the queue, so only the slow one's own request can restore it.
    let last = cx.party(&key).owner("last").queued();
    assert_eq!(last.wait().await.position, 1);
    let back = slow.next_beat().window(Duration::from_secs(30)).place(place);
    let waiting = back.wait().await;
    assert_eq!((waiting.position, waiting.place), (0, place));
    assert_eq!(cx.waiters(&key).await, ["slow", "live", "last"]);
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["slow"]);
    for party in [back, live, last] {
        party.leave().await;
    }
}

pub(super) async fn a_forgotten_waiter_comes_back_into_a_full_queue(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let slow = cx.party(&key).owner("slow").queued().window(cx.short());
    let place = slow.wait().await.place;
    let mut patience = Patience::for_what("the slow waiter to be forgotten");
    while !cx.waiters(&key).await.is_empty() {
        patience.pause().await;
    }
    let live = cx.party(&key).owner("live").queued().max_waiters(1);
    assert_eq!(live.wait().await.position, 0);
    let back = slow.next_beat().max_waiters(1);
    assert_eq!(back.be_refused().await, Refusal::QueueFull { waiters: 1 });
    let back = back.window(Duration::from_secs(30)).place(place);
    assert_eq!(back.wait().await.position, 0);
    lease.end().await;
    back.leave().await;
    live.leave().await;
}

pub(super) async fn a_position_of_another_waiter_is_not_given_twice(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let first = cx.party(&key).owner("first").queued();
    let place = first.wait().await.place;
    let thief = cx.party(&key).owner("thief").queued().place(place);
    let waiting = thief.wait().await;
    assert_eq!(waiting.position, 1);
    assert!(waiting.place > place);
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["first"]);
    first.leave().await;
    thief.leave().await;
}

pub(super) async fn dead_waiters_do_not_fill_the_queue(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let head = cx.party(&key).owner("head").queued();
    head.wait().await;
    for _ in 0..8 {
        cx.party(&key).owner("dead").queued().window(cx.short()).wait().await;
    }
    let mut patience = Patience::for_what("the dead waiters to be gone");
    while cx.waiters(&key).await != ["head"] {
        patience.pause().await;
    }
    let next = cx.party(&key).owner("next").queued().max_waiters(2);
    assert_eq!(next.wait().await.position, 1);
    lease.end().await;
    head.leave().await;
    next.leave().await;
}

pub(super) async fn a_waiter_with_a_late_heartbeat_is_served_at_once(cx: &Context) {
    let key = cx.key();
    let window = Duration::from_millis(300);
    let asked_at = Instant::now();
    let holder = cx.party(&key).ttl(window).take().await;
    let slow = cx.party(&key).owner("slow").queued().window(window);
    let Acquire::Waiting(waiting) = slow.ask().await else {
        // The machine stalled for as long as the lease, so there was nothing to wait for.
        return;
    };
    let next = cx.party(&key).owner("next").queued();
    next.ask().await;
    // A mere look serves no waiter, so the slow one finds an ended lease.
    while asked_at.elapsed() < window + window / 2 || !cx.holders(&key).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if cx.holders(&key).await == ["next"] {
            // It came after the end, and was rightly served.
            next.leave().await;
            return;
        }
    }
    let back = slow.next_beat().window(Duration::from_secs(30)).place(waiting.place);
    let lease = be_served(back).await;
    assert!(lease.fences.first() > holder.fences.last());
    assert_eq!(cx.holders(&key).await, ["slow"]);
    assert_eq!(cx.waiters(&key).await, ["next"]);
    lease.end().await;
    next.leave().await;
}
