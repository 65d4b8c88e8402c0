//! Cases about acquiring a lock exclusively.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{Acquire, Already, Fence, Kind, Mode, Release};
use tokio::task::JoinSet;

use super::context::{Context, LONG, Patience, SLACK};

pub(super) async fn a_free_lock_is_granted_and_shown(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).owner("worker").take().await;
    let info = cx.show(&key).await;
    assert_eq!((&info.key, info.kind), (&key, Kind::Lock));
    assert_eq!((info.holders.len(), info.waiters.len(), info.closed_for), (1, 0, None));
    let holder = &info.holders[0];
    assert_eq!((holder.owner.as_str(), holder.mode, holder.holds), ("worker", Mode::Exclusive, 1));
    assert_eq!(holder.fence, lease.fences.first());
    assert_eq!(info.last_fence, lease.fences.last());
    assert!(holder.remaining <= LONG + SLACK && !holder.remaining.is_zero());
    lease.end().await;
}

pub(super) async fn a_held_lock_says_who_holds_it_and_how_long_still(cx: &Context) {
    let key = cx.key();
    let asked_at = Instant::now();
    let lease = cx.party(&key).owner("first").metadata("night run").take().await;
    let busy = cx.party(&key).owner("second").fail().await;
    let passed = asked_at.elapsed();
    assert!(busy.retry_after <= LONG + SLACK, "{busy:?}");
    assert!(busy.retry_after + passed + LONG / 100 + SLACK >= LONG, "{busy:?} after {passed:?}");
    let holder = busy.holder.expect("it has a holder");
    assert_eq!((holder.owner.as_str(), holder.metadata.as_str()), ("first", "night run"));
    assert_eq!((holder.mode, holder.fence), (Mode::Exclusive, lease.fences.first()));
    assert!(holder.held_for <= passed + passed / 100 + SLACK, "{holder:?} after {passed:?}");
    assert!(holder.remaining <= LONG + SLACK);
    lease.end().await;
}

pub(super) async fn asking_without_waiting_leaves_nothing_behind(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    for _ in 0..10 {
        cx.party(&key).fail().await;
    }
    assert!(cx.show(&key).await.waiters.is_empty());
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn one_of_many_who_ask_at_once_is_granted(cx: &Context) {
    for _ in 0..5 {
        let key = cx.key();
        let mut tasks = JoinSet::new();
        for _ in 0..16 {
            tasks.spawn(cx.party(&key).ask_until_settled());
        }
        let mut granted = Vec::new();
        for (answer, party) in tasks.join_all().await {
            match answer {
                Acquire::Granted(got) => granted.push(party.lease(got.fences)),
                Acquire::Busy(_) => {}
                other => panic!("neither granted nor busy: {other:?}"),
            }
        }
        assert_eq!(granted.len(), 1);
        assert_eq!(cx.show(&key).await.holders[0].fence, granted[0].fences.first());
        assert_eq!(granted[0].release().await, Release::Released);
    }
}

pub(super) async fn holders_never_overlap_and_their_fences_grow_under_contention(cx: &Context) {
    const TASKS: usize = 8;
    const ROUNDS: usize = 12;
    let key = cx.key();
    let inside = Arc::new(AtomicU32::new(0));
    let fences = Arc::new(std::sync::Mutex::new(Vec::<Fence>::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (inside, fences) = (Arc::clone(&inside), Arc::clone(&fences));
        let key = key.clone();
        let store = cx.shared_store();
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let mut patience = Patience::for_what("a turn");
                let lease = loop {
                    let party = super::party::Party::new(Arc::clone(&store), &key);
                    match party.ask().await {
                        Acquire::Granted(granted) => break party.lease(granted.fences),
                        Acquire::Busy(_) => patience.pause().await,
                        other => panic!("neither granted nor busy: {other:?}"),
                    }
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it at once");
                fences.lock().expect("no task panics with it").push(lease.fences.first());
                tokio::task::yield_now().await;
                assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two held it at once");
                lease.end().await;
            }
        });
    }
    tasks.join_all().await;
    let fences = std::mem::take(&mut *fences.lock().expect("no task panicked"));
    assert_eq!(fences.len(), TASKS * ROUNDS);
    assert!(fences.is_sorted_by(|a, b| a < b), "fences fell or repeated: {fences:?}");
}

pub(super) async fn an_acquisition_sent_twice_is_one_lease_with_one_fence(cx: &Context) {
    let key = cx.key();
    let party = cx.party(&key).fence_block(8);
    let lease = party.take().await;
    for _ in 0..3 {
        assert_eq!(party.take_again().await, Already::new(lease.fences, 1));
    }
    assert_eq!(cx.show(&key).await.holders.len(), 1);
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None, "it must not have been counted");
}

pub(super) async fn an_acquisition_sent_many_times_at_once_is_one_lease(cx: &Context) {
    let key = cx.key();
    let party = cx.party(&key);
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let party = party.clone();
        tasks.spawn(async move { party.ask().await });
    }
    let mut granted = Vec::new();
    let mut already = Vec::new();
    for answer in tasks.join_all().await {
        match answer {
            Acquire::Granted(got) => granted.push(got.fences),
            Acquire::Already(got) => already.push(got.fences),
            other => panic!("its own lock was refused to it: {other:?}"),
        }
    }
    assert_eq!((granted.len(), already.len()), (1, 15));
    assert!(already.iter().all(|fences| *fences == granted[0]));
    party.lease(granted[0]).end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn acquiring_again_renews_and_never_shortens(cx: &Context) {
    let key = cx.key();
    let party = cx.party(&key);
    let lease = party.take().await;
    party.clone().ttl(LONG * 4).take_again().await;
    assert!(cx.show(&key).await.holders[0].remaining > LONG + SLACK);
    party.clone().ttl(cx.short()).take_again().await;
    assert!(cx.show(&key).await.holders[0].remaining > LONG + SLACK);
    lease.end().await;
}

pub(super) async fn acquiring_again_sets_how_many_times_it_is_held(cx: &Context) {
    let key = cx.key();
    let party = cx.party(&key);
    let lease = party.take().await;
    for _ in 0..2 {
        assert_eq!(party.clone().holds(3).take_again().await, Already::new(lease.fences, 3));
        assert_eq!(cx.show(&key).await.holders[0].holds, 3);
    }
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_lease_lasts_its_ttl_and_then_ends_by_itself(cx: &Context) {
    // If the machine stalls while a quorum asks its nodes, the case tries a longer lease.
    for length in [1, 2, 4, 8, 16].map(|times| Duration::from_millis(400) * times) {
        let key = cx.key();
        let asked_at = Instant::now();
        let Some(first) = cx.party(&key).ttl(length).take_in_time().await else { continue };
        let mut patience = Patience::for_what("a lease that nobody renews to end");
        let second = loop {
            let party = cx.party(&key);
            match party.ask().await {
                Acquire::Granted(granted) => break party.lease(granted.fences),
                Acquire::Busy(_) => patience.pause().await,
                other => panic!("neither granted nor busy: {other:?}"),
            }
        };
        let lasted = asked_at.elapsed();
        assert!(lasted + length / 100 + SLACK >= length, "it ended after {lasted:?}");
        assert!(second.fences.first() > first.fences.last());
        second.end().await;
        return;
    }
    panic!("the machine is too slow: five leases were granted too late");
}

pub(super) async fn only_one_of_many_takes_an_expired_lock_over(cx: &Context) {
    let key = cx.key();
    cx.party(&key).ttl(cx.short()).take().await;
    cx.until_idle(&key).await;
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        tasks.spawn(cx.party(&key).ask_until_settled());
    }
    let answers = tasks.join_all().await;
    let count = |is: fn(&Acquire) -> bool| answers.iter().filter(|(answer, _)| is(answer)).count();
    let granted = count(|answer| matches!(answer, Acquire::Granted(_)));
    let busy = count(|answer| matches!(answer, Acquire::Busy(_)));
    assert_eq!((granted, busy), (1, 15));
}

pub(super) async fn locks_of_other_names_are_independent(cx: &Context) {
    let (a, b) = (cx.key(), cx.key());
    let first = cx.party(&a).take().await;
    let second = cx.party(&b).take().await;
    first.end().await;
    assert_eq!(cx.inspect(&a).await, None);
    cx.party(&b).fail().await;
    second.end().await;
}

pub(super) async fn one_token_can_hold_several_locks(cx: &Context) {
    let (a, b) = (cx.key(), cx.key());
    let first = cx.party(&a);
    let mut second = cx.party(&b);
    second.request.token = first.token();
    let (first, second) = (first.take().await, second.take().await);
    first.end().await;
    assert_eq!(cx.show(&b).await.holders[0].fence, second.fences.first());
    second.end().await;
}
