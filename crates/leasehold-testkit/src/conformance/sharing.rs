//! Cases about locks with several holders, and about names in use by another kind of lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_core::{Acquire, Bond, Kind, Mode, Refusal, Release, Renew};
use tokio::task::JoinSet;

use super::context::{Context, LONG, Patience, SLACK};
use super::party::{Lease, Party};

pub(super) async fn shared_holders_keep_an_exclusive_one_out_until_the_last_is_gone(cx: &Context) {
    let key = cx.key();
    let a = cx.party(&key).shared().owner("a").take().await;
    let b = cx.party(&key).shared().owner("b").take().await;
    assert_eq!(cx.holders(&key).await, ["a", "b"]);
    assert_eq!(cx.show(&key).await.kind, Kind::Lock);
    cx.party(&key).fail().await;
    a.end().await;
    cx.party(&key).fail().await;
    b.end().await;
    cx.party(&key).take().await.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn an_exclusive_holder_keeps_shared_ones_out(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let busy = cx.party(&key).shared().fail().await;
    assert_eq!(busy.holder.expect("it has a holder").mode, Mode::Exclusive);
    lease.end().await;
    cx.party(&key).shared().take().await.end().await;
}

pub(super) async fn a_shared_acquisition_sent_twice_is_one_hold(cx: &Context) {
    let key = cx.key();
    let party = cx.party(&key).shared();
    let lease = party.take().await;
    assert_eq!(party.take_again().await.fences, lease.fences);
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn each_shared_lease_ends_for_itself(cx: &Context) {
    let key = cx.key();
    let brief = cx.party(&key).shared().owner("brief").ttl(cx.short()).take().await;
    let long = cx.party(&key).shared().owner("long").take().await;
    let mut patience = Patience::for_what("the brief lease to end");
    while cx.holders(&key).await != ["long"] {
        patience.pause().await;
    }
    assert_eq!(brief.release().await, Release::NotHeld, "another caller got it since");
    assert_eq!(cx.holders(&key).await, ["long"]);
    long.end().await;
}

pub(super) async fn holders_with_one_bond_are_one_owner_and_keep_all_others_out(cx: &Context) {
    let key = cx.key();
    let (ours, theirs) = (Mode::Joint(Bond::new(7)), Mode::Joint(Bond::new(8)));
    let here = cx.party(&key).mode(ours).owner("here").take().await;
    let there = cx.party(&key).mode(ours).owner("there").take().await;
    assert!(there.fences.first() > here.fences.last(), "each has a fence of its own");
    let info = cx.show(&key).await;
    assert_eq!((info.kind, info.holders.len()), (Kind::Lock, 2));
    assert!(info.holders.iter().all(|holder| holder.mode == Mode::Exclusive), "{info:?}");
    let others = [theirs, Mode::Exclusive, Mode::Shared];
    for mode in others {
        let busy = cx.party(&key).mode(mode).fail().await;
        assert_eq!(busy.holder.expect("it has a holder").mode, Mode::Exclusive);
    }
    assert_eq!(here.renew(LONG).await, Renew::Renewed);
    // The lock is free once the last sharer has released it.
    here.end().await;
    for mode in others {
        cx.party(&key).mode(mode).fail().await;
    }
    there.end().await;
    for mode in others {
        let other = cx.party(&key).mode(mode).take().await;
        cx.party(&key).mode(ours).fail().await;
        other.end().await;
    }
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_caller_with_the_holders_bond_comes_in_past_the_queue_and_from_within_it(
    cx: &Context,
) {
    let key = cx.key();
    let ours = Mode::Joint(Bond::new(7));
    let stranger = cx.party(&key).owner("stranger").take().await;
    let first = cx.party(&key).owner("first").queued();
    first.wait().await;
    let late = cx.party(&key).mode(ours).owner("late").queued();
    late.wait().await;
    stranger.end().await;
    let first = first.took().await;
    let outer = cx.party(&key).mode(ours).owner("outer").queued();
    outer.wait().await;
    let last = cx.party(&key).owner("last").queued();
    last.wait().await;
    let back = cx.party(&key).mode(ours).owner("back").queued();
    back.wait().await;
    first.end().await;
    // Both waiters at the head have it. The one behind them is granted it at its heartbeat.
    assert_eq!(cx.holders(&key).await, ["late", "outer"]);
    let back = back.next_beat().take().await;
    let new = cx.party(&key).mode(ours).owner("new").take().await;
    assert_eq!(cx.holders(&key).await, ["late", "outer", "back", "new"]);
    assert_eq!(cx.waiters(&key).await, ["last"]);
    let (late, outer) = (late.took().await, outer.took().await);
    for lease in [late, outer, back, new] {
        lease.end().await;
    }
    last.took().await.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn readers_and_writers_never_meet(cx: &Context) {
    const WRITER: u32 = 1_000;
    let key = cx.key();
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (store, key, inside) = (cx.shared_store(), key.clone(), Arc::clone(&inside));
        tasks.spawn(async move {
            for round in 0..10 {
                let writes = (task + round) % 3 == 0;
                let mode = if writes { Mode::Exclusive } else { Mode::Shared };
                let lease =
                    sooner_or_later(|| Party::new(Arc::clone(&store), &key).mode(mode)).await;
                let weight = if writes { WRITER } else { 1 };
                let before = inside.fetch_add(weight, Ordering::SeqCst);
                assert!(before == 0 || (!writes && before < WRITER), "{weight} met {before}");
                tokio::task::yield_now().await;
                inside.fetch_sub(weight, Ordering::SeqCst);
                lease.end().await;
            }
        });
    }
    tasks.join_all().await;
}

pub(super) async fn a_semaphore_grants_permits_up_to_its_limit(cx: &Context) {
    let key = cx.key();
    let a = cx.party(&key).permits(2, 4).owner("a").take().await;
    let b = cx.party(&key).permits(1, 4).owner("b").take().await;
    let busy = cx.party(&key).permits(2, 4).fail().await;
    assert!(busy.holder.is_some() && busy.retry_after <= LONG + SLACK);
    let c = cx.party(&key).permits(1, 4).owner("c").take().await;
    cx.party(&key).permits(1, 4).fail().await;
    let info = cx.show(&key).await;
    let Kind::Semaphore { limit } = info.kind else { panic!("no semaphore: {info:?}") };
    assert_eq!((limit.get(), info.holders.len()), (4, 3));
    a.end().await;
    let d = cx.party(&key).permits(2, 4).take().await;
    for lease in [b, c, d] {
        lease.end().await;
    }
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_semaphore_can_be_taken_whole_up_to_the_largest_limit(cx: &Context) {
    let key = cx.key();
    let all = cx.party(&key).permits(u32::MAX, u32::MAX).take().await;
    cx.party(&key).permits(1, u32::MAX).fail().await;
    all.end().await;
    let most = cx.party(&key).permits(u32::MAX - 1, u32::MAX).take().await;
    let rest = cx.party(&key).permits(1, u32::MAX).take().await;
    cx.party(&key).permits(u32::MAX, u32::MAX).fail().await;
    most.end().await;
    rest.end().await;
}

pub(super) async fn permits_of_an_expired_holder_come_back_by_themselves(cx: &Context) {
    let key = cx.key();
    cx.party(&key).permits(3, 3).ttl(cx.short()).take().await;
    let lease = sooner_or_later(|| cx.party(&key).permits(3, 3)).await;
    lease.end().await;
}

pub(super) async fn permits_never_exceed_the_limit_under_contention(cx: &Context) {
    const LIMIT: u32 = 3;
    let key = cx.key();
    let taken = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..8_u32 {
        let (store, key, taken) = (cx.shared_store(), key.clone(), Arc::clone(&taken));
        tasks.spawn(async move {
            for round in 0..10 {
                let count = (task + round) % 3 + 1;
                let party = || Party::new(Arc::clone(&store), &key).permits(count, LIMIT);
                let lease = sooner_or_later(party).await;
                let before = taken.fetch_add(count, Ordering::SeqCst);
                assert!(before + count <= LIMIT, "{count} more than {before}");
                tokio::task::yield_now().await;
                taken.fetch_sub(count, Ordering::SeqCst);
                lease.end().await;
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn another_kind_or_limit_is_refused_and_changes_nothing(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).owner("holder").take().await;
    let refusal = cx.party(&key).permits(1, 4).be_refused().await;
    assert_eq!(refusal, Refusal::WrongKind { stored: Kind::Lock });
    assert_eq!(cx.holders(&key).await, ["holder"]);
    lease.end().await;

    let lease = cx.party(&key).permits(1, 4).owner("holder").take().await;
    let stored = cx.show(&key).await.kind;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let refusal = cx.party(&key).mode(mode).be_refused().await;
        assert_eq!(refusal, Refusal::WrongKind { stored });
    }
    for limit in [3, 5] {
        let refusal = cx.party(&key).permits(1, limit).be_refused().await;
        assert_eq!(refusal, Refusal::WrongKind { stored });
    }
    assert_eq!(cx.holders(&key).await, ["holder"]);
    lease.end().await;
}

pub(super) async fn more_permits_than_there_are_are_refused(cx: &Context) {
    let key = cx.key();
    let refusal = cx.party(&key).permits(5, 4).be_refused().await;
    let Refusal::TooManyPermits { limit } = refusal else { panic!("{refusal:?}") };
    assert_eq!(limit.get(), 4);
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn an_idle_name_can_be_used_as_another_kind(cx: &Context) {
    let key = cx.key();
    cx.party(&key).take().await.end().await;
    cx.party(&key).permits(1, 4).take().await.end().await;
    cx.party(&key).permits(1, 5).ttl(cx.short()).take().await;
    cx.until_idle(&key).await;
    cx.party(&key).shared().take().await.end().await;
}

pub(super) async fn newcomers_do_not_overtake_the_queue(cx: &Context) {
    let key = cx.key();
    let reader = cx.party(&key).shared().take().await;
    let writer = cx.party(&key).owner("writer").queued();
    writer.wait().await;
    cx.party(&key).shared().fail().await;
    let second = cx.party(&key).shared().owner("reader").queued();
    assert_eq!(second.wait().await.position, 1);
    reader.end().await;
    assert_eq!(cx.holders(&key).await, ["writer"]);
    assert_eq!(cx.waiters(&key).await, ["reader"]);
    writer.leave().await;
    assert_eq!(cx.holders(&key).await, ["reader"]);
    second.leave().await;
}

pub(super) async fn a_small_wish_does_not_overtake_a_big_one(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).permits(2, 3).take().await;
    let big = cx.party(&key).permits(3, 3).owner("big").queued();
    big.wait().await;
    cx.party(&key).permits(1, 3).fail().await;
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["big"]);
    big.leave().await;
}

pub(super) async fn all_who_fit_together_are_served_together(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let mut line = Vec::new();
    for owner in ["r1", "r2", "r3"] {
        line.push(cx.party(&key).shared().owner(owner).queued());
    }
    line.push(cx.party(&key).owner("w").queued());
    line.push(cx.party(&key).shared().owner("r4").queued());
    for waiter in &line {
        waiter.wait().await;
    }
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["r1", "r2", "r3"]);
    assert_eq!(cx.waiters(&key).await, ["w", "r4"]);
    for waiter in line {
        waiter.leave().await;
    }
}

/// Retries until it is granted.
async fn sooner_or_later(party: impl Fn() -> Party) -> Lease {
    let mut patience = Patience::for_what("a turn");
    loop {
        let party = party();
        match party.ask().await {
            Acquire::Granted(granted) => return party.lease(granted.fences),
            Acquire::Busy(_) => patience.pause().await,
            other => panic!("neither granted nor busy: {other:?}"),
        }
    }
}
