//! Cases about fencing tokens, the numbers that a protected resource compares.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::{Fence, FenceBlock, ForceRelease, Leave, Renew};

use super::context::{Context, LONG};

pub(super) async fn fences_grow_over_every_way_to_lose_a_lease(cx: &Context) {
    let key = cx.key();
    let mut last = Fence::ZERO;
    for round in 0..8 {
        let length = if round % 4 == 2 { cx.short() } else { Duration::from_secs(30) };
        let party = cx.party(&key).ttl(length).fence_block(16);
        let lease = party.take().await;
        assert!(lease.fences.first() > last, "round {round}");
        assert_eq!(lease.fences.count(), 16);
        last = lease.fences.last();
        match round % 4 {
            0 => lease.end().await,
            1 => assert_eq!(party.leave().await, Leave::Released),
            2 => cx.until_idle(&key).await,
            _ => {
                let answer = cx.force_release(&key, lease.fences.first()).await;
                assert_eq!(answer, ForceRelease::Released);
            }
        }
    }
}

pub(super) async fn a_block_is_reserved_whole(cx: &Context) {
    let key = cx.key();
    let first = cx.party(&key).fence_block(1_000).take().await;
    assert_eq!(first.fences.count(), 1_000);
    assert_eq!(cx.show(&key).await.last_fence, first.fences.last());
    first.clone().end().await;
    let second = cx.party(&key).take().await;
    assert!(second.fences.first() > first.fences.last());
    second.end().await;
}

pub(super) async fn a_lease_takes_over_higher_fences_and_later_ones_are_above_them(cx: &Context) {
    let key = cx.key();
    let party = cx.party(&key).fence_block(16);
    let lease = party.take().await;
    let higher = FenceBlock::new(lease.fences.first().saturating_add(100_000_000), 16);
    let raised = party.lease(higher);
    assert_eq!(raised.renew(LONG).await, Renew::Renewed);
    assert_eq!(party.take_again().await.fences, higher);
    assert_eq!(lease.renew(LONG).await, Renew::Renewed);
    let shown = cx.show(&key).await;
    assert_eq!((shown.holders[0].fence, shown.last_fence), (higher.first(), higher.last()));
    raised.end().await;
    let next = cx.party(&key).take().await;
    assert!(next.fences.first() > higher.last());
    next.end().await;
}

/// A block of ten seconds' worth of fences runs far ahead of the clock. A store that forgets an
/// idle name would issue lower fences after it.
pub(super) async fn fences_grow_even_when_blocks_outrun_the_clock(cx: &Context) {
    let key = cx.key();
    let mut last = Fence::ZERO;
    for round in 0..4 {
        let lease = cx.party(&key).fence_block(10_000_000).take().await;
        assert!(lease.fences.first() > last, "round {round}: {:?} after {last}", lease.fences);
        last = lease.fences.last();
        lease.end().await;
        assert_eq!(cx.inspect(&key).await, None);
    }
    let lease = cx.party(&key).ttl(cx.short()).take().await;
    assert!(lease.fences.first() > last);
    cx.until_idle(&key).await;
    assert!(cx.party(&key).take().await.fences.first() > lease.fences.last());
}

pub(super) async fn a_fence_is_constant_for_its_lease(cx: &Context) {
    let key = cx.key();
    let party = cx.party(&key).fence_block(4);
    let lease = party.take().await;
    lease.renew(Duration::from_secs(60)).await;
    assert_eq!(party.take_again().await.fences, lease.fences);
    cx.party(&key).fail().await;
    assert_eq!(cx.show(&key).await.holders[0].fence, lease.fences.first());
    lease.end().await;
}

/// The time recovers a counter that was lost.
pub(super) async fn the_first_fence_of_a_name_is_the_time_since_2020(cx: &Context) {
    let lease = cx.party(&cx.key()).take().await;
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    let unix_us = u64::try_from(unix.as_micros()).expect("the clock is before the year 500000");
    let now_us = unix_us.checked_sub(Fence::ORIGIN_UNIX_US).expect("the clock is past 2020");
    let day_us = 86_400_000_000;
    let sequence = lease.fences.first().sequence();
    assert!(sequence.abs_diff(now_us) < day_us, "{sequence} is not about {now_us}");
    lease.end().await;
}

pub(super) async fn a_failed_acquisition_does_not_need_a_fence(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let before = cx.show(&key).await.last_fence;
    for _ in 0..10 {
        cx.party(&key).fence_block(100).fail().await;
    }
    assert_eq!(cx.show(&key).await.last_fence, before);
    lease.end().await;
}

pub(super) async fn shared_holders_have_fences_below_the_next_writers(cx: &Context) {
    let key = cx.key();
    let mut last = Fence::ZERO;
    let mut readers = Vec::new();
    for _ in 0..5 {
        let reader = cx.party(&key).shared().fence_block(3).take().await;
        assert!(reader.fences.first() > last);
        last = reader.fences.last();
        readers.push(reader);
    }
    for reader in readers {
        reader.end().await;
    }
    let writer = cx.party(&key).take().await;
    assert!(writer.fences.first() > last);
    writer.end().await;
}
