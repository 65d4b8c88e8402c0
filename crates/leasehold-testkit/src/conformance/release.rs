//! Cases about releasing leases.

use leasehold_core::{Leave, Release, ReleaseRequest};
use tokio::task::JoinSet;

use super::context::{Context, no_fences, token};

pub(super) async fn a_released_lock_is_free_at_once(cx: &Context) {
    let key = cx.key();
    for _ in 0..3 {
        let lease = cx.party(&key).take().await;
        assert_eq!(lease.release().await, Release::Released);
        assert_eq!(cx.inspect(&key).await, None);
    }
}

pub(super) async fn a_release_sent_again_is_still_released(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    for _ in 0..3 {
        assert_eq!(lease.release().await, Release::Released);
    }
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_release_sent_many_times_at_once_is_released(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let lease = lease.clone();
        tasks.spawn(async move { lease.release().await });
    }
    assert!(tasks.join_all().await.iter().all(|answer| *answer == Release::Released));
}

pub(super) async fn a_release_after_the_end_is_late_while_no_other_caller_came(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).ttl(cx.short()).take().await;
    cx.until_idle(&key).await;
    for _ in 0..2 {
        assert_eq!(lease.release().await, Release::Late);
    }
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_stale_release_leaves_the_new_holder_alone(cx: &Context) {
    let key = cx.key();
    let stale = cx.party(&key).ttl(cx.short()).take().await;
    cx.until_idle(&key).await;
    let new = cx.party(&key).owner("new").take().await;
    assert_eq!(stale.release().await, Release::NotHeld);
    assert_eq!(cx.holders(&key).await, ["new"]);
    assert_eq!(cx.show(&key).await.holders[0].fence, new.fences.first());
    new.end().await;
    assert_eq!(stale.release().await, Release::NotHeld, "another caller has held it since");
}

pub(super) async fn a_release_sent_again_does_not_touch_the_next_holder(cx: &Context) {
    let key = cx.key();
    let first = cx.party(&key).take().await;
    assert_eq!(first.release().await, Release::Released);
    let second = cx.party(&key).owner("second").take().await;
    assert_eq!(first.release().await, Release::NotHeld);
    assert_eq!(cx.holders(&key).await, ["second"]);
    second.end().await;
}

pub(super) async fn a_stranger_releases_nothing(cx: &Context) {
    let key = cx.key();
    let stranger = ReleaseRequest::new(key.clone(), token(), no_fences());
    assert_eq!(cx.release(&stranger).await, Release::NotHeld);
    assert_eq!(cx.inspect(&key).await, None);
    let lease = cx.party(&key).owner("holder").take().await;
    assert_eq!(cx.release(&stranger).await, Release::NotHeld);
    assert_eq!(cx.holders(&key).await, ["holder"]);
    lease.end().await;
}

pub(super) async fn a_partial_release_leaves_the_holds_that_it_says(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).holds(3).take().await;
    let mut partial = lease.ending();
    partial.remaining = 2;
    for _ in 0..2 {
        let answer = lease.release_with(&partial).await;
        assert_eq!(answer, Release::StillHeld { holds: 2 }, "an absolute number counts once");
    }
    assert_eq!(cx.show(&key).await.holders[0].holds, 2);
    cx.party(&key).fail().await;
    partial.remaining = 1;
    assert_eq!(lease.release_with(&partial).await, Release::StillHeld { holds: 1 });
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn leaving_ends_a_lease(cx: &Context) {
    let key = cx.key();
    let party = cx.party(&key);
    let lease = party.take().await;
    assert_eq!(party.leave().await, Leave::Released);
    assert_eq!(cx.inspect(&key).await, None);
    assert_eq!(party.leave().await, Leave::NotHeld);
    assert_eq!(lease.release().await, Release::Released, "it ended by its own token's word");
}

pub(super) async fn leaving_with_nothing_touches_no_holder(cx: &Context) {
    let key = cx.key();
    assert_eq!(cx.leave(&key, token()).await, Leave::NotHeld);
    assert_eq!(cx.inspect(&key).await, None);
    let lease = cx.party(&key).owner("holder").take().await;
    assert_eq!(cx.leave(&key, token()).await, Leave::NotHeld);
    assert_eq!(cx.holders(&key).await, ["holder"]);
    lease.end().await;
}

pub(super) async fn leaving_after_the_end_leaves_the_new_holder_alone(cx: &Context) {
    let key = cx.key();
    let old = cx.party(&key).ttl(cx.short());
    old.take().await;
    cx.until_idle(&key).await;
    let lease = cx.party(&key).owner("new").take().await;
    assert_eq!(old.leave().await, Leave::NotHeld);
    assert_eq!(cx.holders(&key).await, ["new"]);
    lease.end().await;
}
