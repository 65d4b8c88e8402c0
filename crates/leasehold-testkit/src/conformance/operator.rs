//! Cases about operators: force-releasing a lease, examining the store.

use leasehold_core::doctor::Severity;
use leasehold_core::{Fence, ForceRelease, Release, Renew};

use super::context::{CALL, Context, LONG};

pub(super) async fn force_release_ends_the_lease_that_was_seen(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).fence_block(8).take().await;
    let seen = cx.show(&key).await.holders[0].fence;
    assert_eq!(cx.force_release(&key, seen).await, ForceRelease::Released);
    assert_eq!(cx.inspect(&key).await, None);
    assert_eq!(lease.renew(LONG).await, Renew::NotHeld, "it learns of it at its next renewal");
    assert_eq!(lease.release().await, Release::NotHeld);
    let next = cx.party(&key).take().await;
    assert!(next.fences.first() > lease.fences.last(), "above all it could still hand on");
    assert_eq!(lease.renew(LONG).await, Renew::NotHeld);
    next.end().await;
}

pub(super) async fn force_release_takes_any_fence_of_the_lease(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).fence_block(8).take().await;
    assert_eq!(cx.force_release(&key, lease.fences.last()).await, ForceRelease::Released);
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn force_release_with_another_fence_changes_nothing(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).owner("holder").fence_block(8).take().await;
    let fences = vec![lease.fences.first()];
    for wrong in [Fence::ZERO, lease.fences.last().saturating_add(1)] {
        let answer = cx.force_release(&key, wrong).await;
        assert_eq!(answer, ForceRelease::OtherFence { fences: fences.clone() });
    }
    assert_eq!(cx.holders(&key).await, ["holder"]);
    assert_eq!(lease.renew(LONG).await, Renew::Renewed);
    lease.end().await;
}

pub(super) async fn force_release_of_a_free_lock_finds_no_holder(cx: &Context) {
    let key = cx.key();
    assert_eq!(cx.force_release(&key, Fence::ZERO).await, ForceRelease::NotHeld);
    assert_eq!(cx.inspect(&key).await, None);
    let lease = cx.party(&key).take().await;
    lease.clone().end().await;
    assert_eq!(cx.force_release(&key, lease.fences.first()).await, ForceRelease::NotHeld);
}

pub(super) async fn an_old_fence_takes_nothing_from_the_next_holder(cx: &Context) {
    let key = cx.key();
    let first = cx.party(&key).take().await;
    first.clone().end().await;
    let second = cx.party(&key).owner("second").take().await;
    let answer = cx.force_release(&key, first.fences.first()).await;
    assert_eq!(answer, ForceRelease::OtherFence { fences: vec![second.fences.first()] });
    assert_eq!(cx.holders(&key).await, ["second"]);
    second.end().await;
}

pub(super) async fn force_release_of_one_shared_holder_leaves_the_others(cx: &Context) {
    let key = cx.key();
    let a = cx.party(&key).shared().owner("a").take().await;
    let b = cx.party(&key).shared().owner("b").take().await;
    assert_eq!(cx.force_release(&key, a.fences.first()).await, ForceRelease::Released);
    assert_eq!(cx.holders(&key).await, ["b"]);
    let answer = cx.force_release(&key, a.fences.first()).await;
    assert_eq!(answer, ForceRelease::OtherFence { fences: vec![b.fences.first()] });
    assert_eq!(b.renew(LONG).await, Renew::Renewed);
    b.end().await;
}

pub(super) async fn force_release_serves_the_queue(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let waiter = cx.party(&key).owner("waiter").queued();
    waiter.wait().await;
    assert_eq!(cx.force_release(&key, lease.fences.first()).await, ForceRelease::Released);
    assert_eq!(cx.holders(&key).await, ["waiter"]);
    let fences = waiter.next_beat().take_again().await.fences;
    assert!(fences.first() > lease.fences.last());
}

pub(super) async fn an_examination_explains_itself_and_leaves_locks_alone(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let before = cx.show(&key).await;
    let findings = cx.store().examine(CALL).await.expect("examine answers");
    assert!(!findings.is_empty(), "there is always something to say");
    for finding in findings {
        for text in [&finding.topic, &finding.found, &finding.means] {
            assert!(!text.is_empty() && !text.contains(char::is_control), "{finding:?}");
        }
        assert!(finding.severity < Severity::Warning || finding.advice.is_some(), "{finding:?}");
    }
    let after = cx.show(&key).await;
    assert_eq!(after.holders[0].fence, before.holders[0].fence);
    assert_eq!(after.last_fence, before.last_fence);
    assert_eq!(lease.renew(LONG).await, Renew::Renewed);
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}
