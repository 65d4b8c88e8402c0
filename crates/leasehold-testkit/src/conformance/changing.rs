//! Cases about modes, several locks at once, preference, cooldowns, and release requests.

use std::num::NonZeroU32;

use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, Convert, ConvertRequest, FenceBlock, Key,
    Kind, Leave, LeaveRequest, Mode, OwnerName, Refusal, Release, Renew, SetLimit, SetLimitRequest,
};

use super::context::{CALL, Context, LONG, Patience, SLACK, cool};
use super::party::{Lease, Party};

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("cases count from 1")
}

fn permits(count: u32, limit: u32) -> Mode {
    Mode::Permits { count: number(count), limit: number(limit) }
}

fn conversion(lease: &Lease, mode: Mode) -> ConvertRequest {
    ConvertRequest::new(lease.key.clone(), lease.token, lease.fences, mode)
}

async fn convert(cx: &Context, lease: &Lease, mode: Mode) -> Convert {
    cx.store().convert(&conversion(lease, mode), CALL).await.expect("convert answers")
}

async fn converted(cx: &Context, lease: &Lease, mode: Mode) -> FenceBlock {
    match convert(cx, lease, mode).await {
        Convert::Converted(converted) => converted.fences,
        other => panic!("{} was not converted: {other:?}", lease.key),
    }
}

async fn set_limit(cx: &Context, key: &Key, limit: u32) -> SetLimit {
    let request = SetLimitRequest::new(key.clone(), number(limit));
    cx.store().set_limit(&request, CALL).await.expect("set_limit answers")
}

async fn ask(cx: &Context, request: &AskRequest) -> Ask {
    cx.store().ask(request, CALL).await.expect("ask answers")
}

fn asking(key: &Key) -> AskRequest {
    AskRequest::new(key.clone(), OwnerName::new("o p%s").expect("cases use good names"))
}

async fn all(cx: &Context, parties: &[&Party]) -> AcquireAll {
    let requests: Vec<AcquireRequest> = parties.iter().map(|party| party.request.clone()).collect();
    cx.store().acquire_all(&requests, CALL).await.expect("acquire_all answers")
}

pub(super) async fn a_downgrade_lets_readers_in_and_keeps_its_fence_and_end(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).owner("w").metadata("a b").take().await;
    let reader = cx.party(&key).shared().owner("r").queued();
    reader.wait().await;
    let next = cx.party(&key).owner("w2").queued();
    next.wait().await;
    assert_eq!(converted(cx, &lease, Mode::Shared).await, lease.fences);
    assert_eq!(converted(cx, &lease, Mode::Shared).await, lease.fences);
    assert_eq!(cx.holders(&key).await, ["w", "r"]);
    let info = cx.show(&key).await;
    assert_eq!(info.holders[0].metadata.as_str(), "a b");
    let left = info.holders[0].remaining;
    assert!(left > LONG / 2 && left <= LONG + SLACK, "{left:?}");
    assert_eq!(lease.renew(LONG).await, Renew::Renewed);
    reader.leave().await;
    next.leave().await;
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn only_a_lone_reader_is_upgraded_past_the_queue_with_a_higher_fence(
    cx: &Context,
) {
    let key = cx.key();
    let mut a = cx.party(&key).shared().owner("a").take().await;
    let b = cx.party(&key).shared().owner("b").take().await;
    let writer = cx.party(&key).owner("writer").queued();
    writer.wait().await;
    assert_eq!(convert(cx, &a, Mode::Exclusive).await, Convert::Busy { others: 1 });
    assert_eq!(cx.holders(&key).await, ["a", "b"], "both still read");
    let highest = a.fences.last().max(b.fences.last());
    b.end().await;
    let fences = converted(cx, &a, Mode::Exclusive).await;
    assert!(fences.first() > highest, "{fences:?} is not above {highest}");
    assert_eq!(converted(cx, &a, Mode::Exclusive).await, fences, "sent again");
    a.fences = fences;
    assert_eq!(cx.show(&key).await.holders[0].mode, Mode::Exclusive);
    assert_eq!(cx.waiters(&key).await, ["writer"]);
    assert_eq!(a.renew(LONG).await, Renew::Renewed);
    a.end().await;
    assert_eq!(cx.holders(&key).await, ["writer"]);
    writer.leave().await;
}

pub(super) async fn a_downgrade_that_arrives_again_does_not_undo_an_upgrade(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    converted(cx, &lease, Mode::Shared).await;
    let fences = converted(cx, &lease, Mode::Exclusive).await;
    assert_ne!(fences, lease.fences);
    assert_eq!(convert(cx, &lease, Mode::Shared).await, Convert::NotHeld);
    cx.party(&key).shared().fail().await;
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn who_holds_nothing_converts_nothing(cx: &Context) {
    let key = cx.key();
    let brief = cx.party(&key).shared().ttl(cx.short()).take().await;
    cx.until_idle(&key).await;
    assert_eq!(convert(cx, &brief, Mode::Exclusive).await, Convert::Late);
    assert_eq!(cx.inspect(&key).await, None);
    let lease = cx.party(&key).take().await;
    assert_eq!(convert(cx, &brief, Mode::Shared).await, Convert::NotHeld);
    let stored = Kind::Lock;
    let refused = Convert::Refused(Refusal::WrongKind { stored });
    assert_eq!(convert(cx, &lease, permits(1, 2)).await, refused);
    lease.end().await;
}

pub(super) async fn permits_can_be_released_and_added_one_by_one(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).permits(2, 4).owner("a").take().await;
    assert_eq!(converted(cx, &lease, permits(4, 4)).await, lease.fences);
    let waiter = cx.party(&key).permits(2, 4).owner("b").queued();
    waiter.wait().await;
    assert_eq!(converted(cx, &lease, permits(2, 4)).await, lease.fences);
    assert_eq!(cx.holders(&key).await, ["a", "b"]);
    assert_eq!(convert(cx, &lease, permits(3, 4)).await, Convert::Busy { others: 2 });
    let limit = number(4);
    let too_many = Convert::Refused(Refusal::TooManyPermits { limit });
    assert_eq!(convert(cx, &lease, permits(5, 4)).await, too_many);
    let wrong = Convert::Refused(Refusal::WrongKind { stored: Kind::Semaphore { limit } });
    assert_eq!(convert(cx, &lease, permits(1, 3)).await, wrong);
    waiter.leave().await;
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_raised_limit_serves_the_queue_and_binds_newcomers(cx: &Context) {
    let key = cx.key();
    assert_eq!(set_limit(cx, &key, 3).await, SetLimit::NotInUse);
    let lease = cx.party(&key).permits(2, 2).owner("a").take().await;
    let waiter = cx.party(&key).permits(1, 2).owner("b").queued();
    waiter.wait().await;
    assert_eq!(set_limit(cx, &key, 3).await, SetLimit::Set { before: number(2) });
    assert_eq!(cx.holders(&key).await, ["a", "b"]);
    let stored = Kind::Semaphore { limit: number(3) };
    assert_eq!(cx.show(&key).await.kind, stored);
    let refusal = cx.party(&key).permits(1, 2).be_refused().await;
    assert_eq!(refusal, Refusal::WrongKind { stored });
    waiter.take_again().await;
    waiter.leave().await;
    lease.end().await;
}

pub(super) async fn a_lowered_limit_takes_nothing_from_holders(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).permits(3, 3).owner("a").take().await;
    let big = cx.party(&key).permits(3, 3).owner("big").queued();
    big.wait().await;
    let small = cx.party(&key).permits(1, 3).owner("small").queued();
    small.wait().await;
    assert_eq!(set_limit(cx, &key, 2).await, SetLimit::Set { before: number(3) });
    assert_eq!(cx.holders(&key).await, ["a"]);
    assert_eq!(cx.waiters(&key).await, ["small"], "who wants more than there is can't wait");
    assert_eq!(lease.renew(LONG).await, Renew::Renewed);
    cx.party(&key).permits(1, 2).fail().await;
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["small"]);
    small.leave().await;
}

pub(super) async fn a_lowered_limit_ends_every_wait_for_more_wherever_it_stands(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).permits(5, 5).owner("a").take().await;
    let mut line = Vec::new();
    for (owner, count) in [("b", 2), ("c", 3), ("d", 5), ("e", 1), ("f", 4)] {
        let waiter = cx.party(&key).permits(count, 5).owner(owner).queued();
        waiter.wait().await;
        line.push(waiter);
    }
    assert_eq!(set_limit(cx, &key, 2).await, SetLimit::Set { before: number(5) });
    assert_eq!(cx.waiters(&key).await, ["b", "e"], "c, d and f want more than there is");
    let stored = Kind::Semaphore { limit: number(2) };
    for gone in [&line[1], &line[2], &line[4]] {
        assert_eq!(gone.be_refused().await, Refusal::WrongKind { stored });
    }
    // Dropped acquisitions get no grants, and block no other.
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["b"]);
    assert_eq!(cx.waiters(&key).await, ["e"]);
    for waiter in line {
        waiter.leave().await;
    }
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_lock_has_no_limit(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let refused = SetLimit::Refused(Refusal::WrongKind { stored: Kind::Lock });
    assert_eq!(set_limit(cx, &key, 3).await, refused);
    lease.end().await;
}

pub(super) async fn preferred_waiters_stand_before_all_others(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let mut line = Vec::new();
    for (owner, preferred) in [("a", false), ("b", true), ("c", false), ("d", true)] {
        let mut party = cx.party(&key).owner(owner).queued();
        party.request.preferred = preferred;
        party.wait().await;
        line.push(party);
    }
    assert_eq!(cx.waiters(&key).await, ["b", "d", "a", "c"]);
    lease.end().await;
    assert_eq!(cx.holders(&key).await, ["b"]);
    for party in line {
        party.leave().await;
    }
}

pub(super) async fn a_preferred_reader_joins_readers_past_a_waiting_writer(cx: &Context) {
    let key = cx.key();
    let reader = cx.party(&key).shared().take().await;
    let writer = cx.party(&key).owner("writer").queued();
    writer.wait().await;
    let mut preferred = cx.party(&key).shared();
    preferred.fail().await;
    preferred.request.preferred = true;
    preferred.take().await.end().await;
    assert_eq!(cx.waiters(&key).await, ["writer"]);
    reader.end().await;
    writer.leave().await;
}

pub(super) async fn several_locks_are_taken_all_or_none(cx: &Context) {
    let (a, b, c) = (cx.key(), cx.key(), cx.key());
    let held = cx.party(&b).owner("other").take().await;
    let parties = [&cx.party(&a), &cx.party(&b).owner("all"), &cx.party(&c)];
    match all(cx, &parties).await {
        AcquireAll::Blocked { index: 1, answer: Acquire::Busy(busy) } => {
            assert_eq!(busy.holder.expect("it is held").owner.as_str(), "other");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((cx.inspect(&a).await, cx.inspect(&c).await), (None, None), "none was taken");
    held.end().await;
    let AcquireAll::Granted(fences) = all(cx, &parties).await else { panic!("all are free") };
    assert_eq!(cx.holders(&b).await, ["all"]);
    let AcquireAll::Granted(again) = all(cx, &parties).await else { panic!("all are held") };
    assert_eq!(fences, again, "sent again");
    for (party, fences) in parties.iter().zip(fences) {
        party.lease(fences).end().await;
    }
}

pub(super) async fn several_locks_that_can_not_be_taken_as_asked_are_refused(cx: &Context) {
    let (a, b) = (cx.key(), cx.key());
    let semaphore = cx.party(&b).permits(1, 2).take().await;
    match all(cx, &[&cx.party(&a), &cx.party(&b)]).await {
        AcquireAll::Blocked { index: 1, answer: Acquire::Refused(refusal) } => {
            let stored = Kind::Semaphore { limit: number(2) };
            assert_eq!(refusal, Refusal::WrongKind { stored });
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(cx.inspect(&a).await, None);
    semaphore.end().await;
    let twice = [cx.party(&a).request, cx.party(&a).request];
    let error = cx.store().acquire_all(&twice, CALL).await.expect_err("the same lock twice");
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Config);
}

pub(super) async fn sets_that_overlap_are_never_held_together(cx: &Context) {
    let keys = [cx.key(), cx.key(), cx.key()];
    let inside = std::sync::Arc::new(std::array::from_fn::<_, 3, _>(|_| {
        std::sync::atomic::AtomicU32::new(0)
    }));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6_usize {
        let (store, keys) = (cx.shared_store(), keys.clone());
        let inside = std::sync::Arc::clone(&inside);
        tasks.spawn(async move {
            let set = [task % 3, (task + 1) % 3];
            for _ in 0..5 {
                let parties = set.map(|at| Party::new(std::sync::Arc::clone(&store), &keys[at]));
                let requests = parties.each_ref().map(|party| party.request.clone());
                let mut patience = Patience::for_what("a turn");
                let fences = loop {
                    match store.acquire_all(&requests, CALL).await.expect("acquire_all answers") {
                        AcquireAll::Granted(fences) => break fences,
                        _ => patience.pause().await,
                    }
                };
                for at in set {
                    let before = inside[at].fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert_eq!(before, 0, "two at once");
                }
                tokio::task::yield_now().await;
                for at in set {
                    inside[at].fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                }
                for (party, fences) in parties.iter().zip(fences) {
                    party.lease(fences).end().await;
                }
            }
        });
    }
    tasks.join_all().await;
}

pub(super) async fn a_closing_grant_outlasts_its_lease_and_its_release(cx: &Context) {
    let key = cx.key();
    let mut brief = cx.party(&key).ttl(cx.short());
    brief.request.cooldown = cool(LONG);
    brief.take().await;
    let mut patience = Patience::for_what("the lease to end");
    while !cx.holders(&key).await.is_empty() {
        patience.pause().await;
    }
    let busy = cx.party(&key).learn_why_not().await;
    assert!(busy.retry_after > LONG / 2 && busy.holder.is_none(), "{busy:?}");

    let key = cx.key();
    let mut party = cx.party(&key);
    party.request.cooldown = cool(LONG);
    let lease = party.take().await;
    party.take_again().await;
    assert_eq!(lease.renew(LONG).await, Renew::Renewed);
    lease.end().await;
    let closed = cx.show(&key).await.closed_for.expect("it stays closed");
    assert!(closed > LONG / 2 && closed <= LONG + SLACK, "{closed:?}");
    cx.party(&key).fail().await;
}

pub(super) async fn a_release_can_open_what_its_grant_has_closed(cx: &Context) {
    let key = cx.key();
    let mut party = cx.party(&key);
    party.request.cooldown = cool(LONG);
    let lease = party.take().await;
    let mut ending = lease.ending();
    ending.reopen = true;
    assert_eq!(lease.release_with(&ending).await, Release::Released);
    assert_eq!(cx.inspect(&key).await, None);
    let lease = party_of(cx, &key).take().await;
    let mut ending = lease.ending();
    ending.reopen = true;
    ending.cooldown = cool(LONG / 3);
    assert_eq!(lease.release_with(&ending).await, Release::Released);
    let closed = cx.show(&key).await.closed_for.expect("a cooldown of its own");
    assert!(closed <= LONG / 3 + SLACK, "{closed:?}");
}

pub(super) async fn leaving_can_open_what_its_grant_has_closed(cx: &Context) {
    let key = cx.key();
    let party = party_of(cx, &key);
    party.take().await;
    let mut undoing = LeaveRequest::new(key.clone(), party.token());
    undoing.reopen = true;
    assert_eq!(cx.store().leave(&undoing, CALL).await.expect("leave answers"), Leave::Released);
    assert_eq!(cx.inspect(&key).await, None);
    let party = party_of(cx, &key);
    party.take().await;
    party.leave().await;
    cx.party(&key).fail().await;
}

/// A party whose grant has a long cooldown.
fn party_of(cx: &Context, key: &Key) -> Party {
    let mut party = cx.party(key);
    party.request.cooldown = cool(LONG);
    party
}

pub(super) async fn a_holder_that_is_asked_learns_of_it_by_renewing(cx: &Context) {
    let key = cx.key();
    assert_eq!(ask(cx, &asking(&key)).await, Ask::NotHeld);
    let lease = cx.party(&key).owner("a").metadata("m").take().await;
    let mut other = asking(&key);
    other.fence = Some(lease.fences.last().saturating_add(1));
    assert_eq!(ask(cx, &other).await, Ask::NotHeld);
    assert_eq!(lease.renew(LONG).await, Renew::Renewed);
    assert_eq!(ask(cx, &asking(&key)).await, Ask::Asked { holders: 1 });
    assert_eq!(ask(cx, &asking(&key)).await, Ask::Asked { holders: 1 }, "asked again");
    assert_eq!(lease.renew(LONG).await, Renew::Asked);
    let probe = lease.renewal(leasehold_core::Ttl::MIN.duration());
    assert_eq!(cx.renew(probe).await, Renew::Asked);
    let holder = &cx.show(&key).await.holders[0];
    assert_eq!(holder.asked_by.as_ref().map(OwnerName::as_str), Some("o p%s"));
    assert_eq!((holder.owner.as_str(), holder.metadata.as_str()), ("a", "m"));
    assert!(holder.remaining > LONG / 2, "the probe shortened it: {:?}", holder.remaining);
    lease.end().await;
    let next = cx.party(&key).take().await;
    assert_eq!(next.renew(LONG).await, Renew::Renewed, "the next holder is not asked");
    next.end().await;
}

pub(super) async fn those_who_share_are_asked_together_or_by_their_fence(cx: &Context) {
    let key = cx.key();
    let a = cx.party(&key).permits(1, 3).owner("a").take().await;
    let b = cx.party(&key).permits(2, 3).owner("b").take().await;
    let mut one = asking(&key);
    one.fence = Some(b.fences.first());
    assert_eq!(ask(cx, &one).await, Ask::Asked { holders: 1 });
    assert_eq!((a.renew(LONG).await, b.renew(LONG).await), (Renew::Renewed, Renew::Asked));
    assert_eq!(ask(cx, &asking(&key)).await, Ask::Asked { holders: 2 });
    assert_eq!((a.renew(LONG).await, b.renew(LONG).await), (Renew::Asked, Renew::Asked));
    a.end().await;
    b.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}
