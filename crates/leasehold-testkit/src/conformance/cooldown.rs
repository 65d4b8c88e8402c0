//! Cases about cooldowns: a lock stays closed for a while after a release.

use std::time::{Duration, Instant};

use leasehold_core::{Acquire, Kind, Refusal, Release};

use super::context::{Context, LONG, Patience, SLACK, cool};

pub(super) async fn a_cooldown_closes_the_lock_to_all_callers(cx: &Context) {
    let key = cx.key();
    let party = cx.party(&key);
    let lease = party.take().await;
    assert_eq!(lease.release_and_close(LONG).await, Release::Released);
    for party in [party.again(), cx.party(&key)] {
        let busy = party.learn_why_not().await;
        assert_eq!(busy.holder, None, "nobody holds it");
        assert!(!busy.retry_after.is_zero() && busy.retry_after <= LONG + SLACK, "{busy:?}");
    }
    let info = cx.show(&key).await;
    assert_eq!((info.holders.len(), info.kind), (0, Kind::Lock));
    assert!(info.closed_for.is_some_and(|left| left <= LONG + SLACK && !left.is_zero()));
}

pub(super) async fn a_cooldown_ends_by_itself_and_not_before_its_time(cx: &Context) {
    let key = cx.key();
    let cooldown = Duration::from_millis(400);
    let lease = cx.party(&key).take().await;
    let closed_at = Instant::now();
    assert_eq!(lease.release_and_close(cooldown).await, Release::Released);
    let mut patience = Patience::for_what("a cooldown to end");
    let next = loop {
        let party = cx.party(&key);
        match party.ask().await {
            Acquire::Granted(granted) => break party.lease(granted.fences),
            Acquire::Busy(_) => patience.pause().await,
            other => panic!("neither granted nor busy: {other:?}"),
        }
    };
    let lasted = closed_at.elapsed();
    assert!(lasted + cooldown / 100 + SLACK >= cooldown, "it ended after {lasted:?}");
    assert!(next.fences.first() > lease.fences.last());
    next.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_release_sent_again_does_not_close_for_longer(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    assert_eq!(lease.release_and_close(LONG).await, Release::Released);
    assert_eq!(lease.release_and_close(LONG * 10).await, Release::Released);
    let closed_for = cx.show(&key).await.closed_for;
    assert!(closed_for.is_some_and(|left| left <= LONG + SLACK), "{closed_for:?}");
}

pub(super) async fn a_late_release_closes_too(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).ttl(cx.short()).take().await;
    cx.until_idle(&key).await;
    assert_eq!(lease.release_and_close(LONG).await, Release::Late);
    assert_eq!(cx.party(&key).fail().await.holder, None);
}

pub(super) async fn a_release_of_what_is_lost_closes_nothing(cx: &Context) {
    let key = cx.key();
    let stale = cx.party(&key).ttl(cx.short()).take().await;
    cx.until_idle(&key).await;
    cx.party(&key).take().await.end().await;
    assert_eq!(stale.release_and_close(LONG).await, Release::NotHeld);
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_partial_release_closes_nothing(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).holds(2).take().await;
    let mut partial = lease.ending();
    partial.remaining = 1;
    partial.cooldown = cool(LONG);
    assert_eq!(lease.release_with(&partial).await, Release::StillHeld { holds: 1 });
    assert_eq!(cx.show(&key).await.closed_for, None);
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn no_time_and_next_to_no_time_are_no_cooldown(cx: &Context) {
    let key = cx.key();
    cx.party(&key).take().await.release_and_close(Duration::ZERO).await;
    assert_eq!(cx.inspect(&key).await, None);
    cx.party(&key).take().await.release_and_close(Duration::from_nanos(1)).await;
    cx.until_idle(&key).await;
    cx.party(&key).take().await.end().await;
}

pub(super) async fn a_closed_name_keeps_its_kind(cx: &Context) {
    let key = cx.key();
    cx.party(&key).permits(1, 3).take().await.release_and_close(LONG).await;
    let Kind::Semaphore { limit } = cx.show(&key).await.kind else { panic!("no semaphore") };
    assert_eq!(limit.get(), 3);
    let refusal = cx.party(&key).be_refused().await;
    assert_eq!(refusal, Refusal::WrongKind { stored: Kind::Semaphore { limit } });
}

pub(super) async fn a_cooldown_keeps_the_queue_waiting_and_then_serves_it(cx: &Context) {
    let key = cx.key();
    let cooldown = Duration::from_millis(400);
    let lease = cx.party(&key).take().await;
    let mut waiter = cx.party(&key).owner("waiter").queued();
    waiter.wait().await;
    let closed_at = Instant::now();
    assert_eq!(lease.release_and_close(cooldown).await, Release::Released);
    let mut patience = Patience::for_what("the waiter to be served after a cooldown");
    let fences = loop {
        waiter = waiter.next_beat();
        match waiter.ask().await {
            Acquire::Waiting(waiting) => {
                assert_eq!(waiting.position, 0);
                patience.pause().await;
            }
            Acquire::Already(already) => break already.fences,
            other => panic!("neither waiting nor served: {other:?}"),
        }
    };
    let lasted = closed_at.elapsed();
    assert!(lasted + cooldown / 100 + SLACK >= cooldown, "it was served after {lasted:?}");
    waiter.lease(fences).end().await;
}

pub(super) async fn a_caller_can_join_the_queue_during_a_cooldown(cx: &Context) {
    let key = cx.key();
    cx.party(&key).take().await.release_and_close(LONG).await;
    let waiter = cx.party(&key).owner("waiter").queued();
    let waiting = waiter.wait().await;
    assert_eq!((waiting.position, waiting.holder), (0, None));
    assert!(waiting.retry_after <= LONG + SLACK && !waiting.retry_after.is_zero());
    assert_eq!(cx.waiters(&key).await, ["waiter"]);
    waiter.leave().await;
}
