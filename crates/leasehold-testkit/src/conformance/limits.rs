//! Cases about each argument of each call at the ends of its range.
//!
//! The store accepts the argument, and after the lease's end the lock is free or cooling down. The
//! argument's type already refuses what no store could accept.

use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireRequest, Ask, AskRequest, Bond, ClientId, Convert, ConvertRequest, Cooldown,
    Fence, FenceBlock, ForceReleaseRequest, Key, ListRequest, Metadata, Mode, OwnerName, Place,
    QueueRequest, Refusal, Release, ReleaseRequest, Renew, RenewRequest, SetLimit, SetLimitRequest,
    Ttl,
};

use super::context::{CALL, Context, LONG, no_fences, patiently, token};
use super::party::{Lease, Party, client, number};

/// Sets one argument of a request to an end of its range.
type AtLimit<Request> = (&'static str, fn(&mut Request));

const MOST: u32 = u32::MAX;
const DUST: Duration = Duration::from_micros(1);

fn longest_text(bytes: usize) -> String {
    "x".repeat(bytes)
}

fn largest_fences() -> FenceBlock {
    let last = Fence::new(Fence::EPOCH_MAX, Fence::SEQUENCE_MAX).expect("both are the largest");
    FenceBlock::new(last, MOST)
}

const TO_ACQUIRE: &[AtLimit<AcquireRequest>] = &[
    ("the shortest ttl", |request| request.ttl = Ttl::MIN),
    ("the longest ttl", |request| request.ttl = Ttl::MAX),
    ("most holds", |request| request.holds = number(MOST)),
    ("most fences", |request| request.fence_block = number(MOST)),
    ("hardly a cooldown", |request| request.cooldown = cooldown(DUST)),
    ("the longest cooldown", |request| request.cooldown = Cooldown::MAX),
    ("preference", |request| request.preferred = true),
    ("the longest owner", |request| {
        request.owner = OwnerName::new(longest_text(OwnerName::MAX_BYTES)).expect("not too long");
    }),
    ("the longest metadata", |request| {
        request.metadata = Metadata::new(longest_text(Metadata::MAX_BYTES)).expect("not too long");
    }),
];

const TO_ACQUIRE_SHARED: &[AtLimit<AcquireRequest>] = &[
    ("a shared hold", |request| request.mode = Mode::Shared),
    ("the least bond", |request| request.mode = Mode::Joint(Bond::new(0))),
    ("the largest bond", |request| request.mode = Mode::Joint(Bond::new(u64::MAX))),
    ("the only permit", |request| request.mode = permits(1, 1)),
    ("one of most permits", |request| request.mode = permits(1, MOST)),
    ("most permits", |request| request.mode = permits(MOST, MOST)),
];

const TO_WAIT: &[AtLimit<QueueRequest>] = &[
    ("the least client", |queue| queue.client = ClientId::from_bytes([0; 16])),
    ("the largest client", |queue| queue.client = ClientId::from_bytes([u8::MAX; 16])),
    ("the last ticket", |queue| queue.ticket = u64::MAX),
    ("the last heartbeat", |queue| queue.heartbeat = MOST),
    ("the shortest window", |queue| queue.window = Ttl::MIN),
    ("the longest window", |queue| queue.window = Ttl::MAX),
    ("most contenders behind", |queue| queue.behind = MOST),
    ("the longest line", |queue| queue.max_waiters = Some(MOST)),
    ("the first place", |queue| queue.place = Some(Place::on_arrival(0, true))),
    ("the last place", |queue| queue.place = Some(Place::on_arrival(Place::BEHIND - 1, false))),
];

const TO_RENEW: &[AtLimit<RenewRequest>] = &[
    ("the longest ttl", |request| request.ttl = Ttl::MAX),
    ("a shorter lease", |request| (request.ttl, request.shorten) = (ttl(LONG / 2), true)),
    ("no fences", |request| request.fences = no_fences()),
    ("a successor", |request| request.successor = Some(request.token)),
];

const TO_RELEASE: &[AtLimit<ReleaseRequest>] = &[
    ("no cooldown", |request| request.cooldown = Cooldown::NONE),
    ("hardly a cooldown", |request| request.cooldown = cooldown(DUST)),
    ("the longest cooldown", |request| request.cooldown = Cooldown::MAX),
    ("no fences", |request| request.fences = no_fences()),
    ("the largest fences", |request| request.fences = largest_fences()),
    ("being in time", |request| request.in_time = true),
];

fn cooldown(length: Duration) -> Cooldown {
    Cooldown::new(length).expect("not too long")
}

fn ttl(length: Duration) -> Ttl {
    Ttl::new(length).expect("neither too short nor too long")
}

fn permits(count: u32, limit: u32) -> Mode {
    Mode::Permits { count: number(count), limit: number(limit) }
}

/// A way to end a lease.
#[derive(Debug)]
enum End {
    Release(Box<ReleaseRequest>),
    Leave,
    ForceRelease,
}

impl End {
    /// All ways to end this lease.
    fn all(lease: &Lease) -> Vec<(&'static str, Self)> {
        let releases = TO_RELEASE.iter().map(|(what, change)| {
            let mut request = lease.ending();
            change(&mut request);
            (*what, Self::Release(Box::new(request)))
        });
        let others = [("leaving", Self::Leave), ("force", Self::ForceRelease)];
        releases.chain(others).collect()
    }

    /// Ends the lease; returns the cooldown to expect.
    async fn carry_out(self, cx: &Context, lease: &Lease) -> Cooldown {
        match self {
            Self::Release(request) => {
                cx.release(&request).await;
                return request.cooldown;
            }
            Self::Leave => drop(cx.leave(&lease.key, lease.token).await),
            Self::ForceRelease => {
                let seen = cx.inspect(&lease.key).await;
                if let Some(holder) = seen.and_then(|info| info.holders.into_iter().next()) {
                    cx.force_release(&lease.key, holder.fence).await;
                }
            }
        }
        Cooldown::NONE
    }
}

/// Checks that the lock has no holder, and that its cooldown, if any, has this length.
async fn is_free_or_closed(cx: &Context, key: &Key, closed: Cooldown, what: &str) {
    let info = cx.inspect(key).await;
    if closed.is_none() {
        assert_eq!(info, None, "{what}: it is not free");
        return;
    }
    let (holders, closed_for) =
        info.map_or((0, None), |info| (info.holders.len(), info.closed_for));
    assert_eq!(holders, 0, "{what}: it is still held");
    let left = closed_for.unwrap_or_default();
    assert!(left <= closed.duration() + LONG, "{what}: {left:?}");
    assert!(closed != Cooldown::MAX || left + LONG * 20 > closed.duration(), "{what}: {left:?}");
}

/// Acquires a new lock in each of these ways, ends it in each way, and inspects it.
async fn taken_and_ended(cx: &Context, limits: &[AtLimit<AcquireRequest>]) {
    for (what, change) in limits {
        let ways = End::all(&cx.party(&cx.key()).lease(no_fences())).len();
        for way in 0..ways {
            let mut party = cx.party(&cx.key());
            change(&mut party.request);
            let fences = match party.ask_in_time().await {
                Some(Acquire::Granted(granted)) => granted.fences,
                None => {
                    party.leave().await;
                    continue;
                }
                other => panic!("{what}: {other:?}"),
            };
            let lease = party.lease(fences);
            let (how, end) = End::all(&lease).swap_remove(way);
            let closed = end.carry_out(cx, &lease).await.max(party.request.cooldown);
            let what = format!("{what}, then {how}");
            is_free_or_closed(cx, &lease.key, closed, &what).await;
        }
    }
}

pub(super) async fn every_argument_of_an_acquisition_is_taken_and_what_it_took_ends(cx: &Context) {
    taken_and_ended(cx, TO_ACQUIRE).await;
}

pub(super) async fn every_mode_is_taken_and_what_it_took_ends(cx: &Context) {
    taken_and_ended(cx, TO_ACQUIRE_SHARED).await;
}

pub(super) async fn every_argument_of_a_waiter_is_taken_and_the_queue_ends(cx: &Context) {
    for (what, change) in TO_WAIT {
        let lease = cx.party(&cx.key()).take().await;
        let mut waiter = cx.party(&lease.key).queued();
        change(waiter.request.queue.as_mut().expect("it is in the queue"));
        assert!(matches!(waiter.ask().await, Acquire::Waiting(_)), "{what}");
        let key = lease.key.clone();
        lease.end().await;
        waiter.leave().await;
        is_free_or_closed(cx, &key, Cooldown::NONE, what).await;
    }
    let lease = cx.party(&cx.key()).take().await;
    let refused = cx.party(&lease.key).queued().max_waiters(0).be_refused().await;
    assert_eq!(refused, Refusal::QueueFull { waiters: 0 });
    lease.end().await;
}

pub(super) async fn every_argument_of_a_renewal_is_taken_and_the_lease_ends(cx: &Context) {
    for (what, change) in TO_RENEW {
        let lease = cx.party(&cx.key()).take().await;
        let mut request = lease.renewal(LONG);
        change(&mut request);
        let token = request.renewed_token();
        assert_eq!(cx.renew(request).await, Renew::Renewed, "{what}");
        cx.leave(&lease.key, token).await;
        is_free_or_closed(cx, &lease.key, Cooldown::NONE, what).await;
        cx.party(&lease.key).take().await.end().await;
    }
    let lease = cx.party(&cx.key()).take().await;
    let mut shortest = lease.renewal(Ttl::MIN.duration());
    shortest.shorten = true;
    let answer = cx.renew(shortest).await;
    assert!(matches!(answer, Renew::Renewed | Renew::Late | Renew::NotHeld), "{answer:?}");
    cx.until_idle(&lease.key).await;
}

pub(super) async fn a_release_may_leave_as_many_holds_as_there_can_be(cx: &Context) {
    let lease = cx.party(&cx.key()).holds(MOST).take().await;
    let mut partly = lease.ending();
    partly.remaining = MOST;
    assert_eq!(lease.release_with(&partly).await, Release::StillHeld { holds: MOST });
    partly.remaining = 0;
    assert_eq!(lease.release_with(&partly).await, Release::Released);
    is_free_or_closed(cx, &lease.key, Cooldown::NONE, "the last hold's end").await;
}

pub(super) async fn operators_may_name_any_fence_and_list_by_any_text(cx: &Context) {
    let key = cx.key();
    let longest = OwnerName::new(longest_text(OwnerName::MAX_BYTES)).expect("not too long");
    for held in [false, true] {
        let lease = if held { Some(cx.party(&key).take().await) } else { None };
        for fence in [Fence::ZERO, largest_fences().first()] {
            cx.force_release(&key, fence).await;
            let mut request = AskRequest::new(key.clone(), longest.clone());
            request.fence = Some(fence);
            let asked = cx.store().ask(&request, CALL).await.expect("ask answers");
            assert_eq!(asked, Ask::NotHeld);
        }
        if let Some(lease) = lease {
            lease.end().await;
        }
        is_free_or_closed(cx, &key, Cooldown::NONE, "an operator's look").await;
    }
    if cx.store().capability().list {
        for prefix in ["", "\0", &longest_text(Key::MAX_BYTES), &longest_text(100_000)] {
            cx.store().list(&ListRequest::new(prefix), CALL).await.expect("list answers");
        }
    }
}

pub(super) async fn a_limit_may_be_anything_and_permits_come_back(cx: &Context) {
    for limit in [1, MOST] {
        let lease = cx.party(&cx.key()).permits(1, 2).take().await;
        let request = SetLimitRequest::new(lease.key.clone(), number(limit));
        let set = cx.store().set_limit(&request, CALL).await.expect("set_limit answers");
        assert_eq!(set, SetLimit::Set { before: number(2) });
        for count in [1, limit] {
            let mode = permits(count, limit);
            let mut request =
                ConvertRequest::new(lease.key.clone(), lease.token, lease.fences, mode);
            request.fence_block = number(MOST);
            let answer = cx.store().convert(&request, CALL).await.expect("convert answers");
            assert!(matches!(answer, Convert::Converted(_)), "{answer:?}");
        }
        let key = lease.key.clone();
        lease.end().await;
        is_free_or_closed(cx, &key, Cooldown::NONE, "most permits").await;
    }
}

pub(super) async fn a_call_may_take_as_long_as_a_number_can_say(cx: &Context) {
    let ever = Duration::MAX;
    let (key, store) = (cx.key(), cx.store());
    let party: Party = cx.party(&key);
    let all = async {
        let answer = store.acquire(&party.request, ever).await.expect("acquire answers");
        let lease = party.lease(answer.fences().expect("it is free"));
        let renewed = store.renew(&[lease.renewal(LONG)], ever).await;
        assert!(matches!(renewed[..], [Ok(Renew::Renewed)]), "{renewed:?}");
        let by = OwnerName::default();
        store.ask(&AskRequest::new(key.clone(), by), ever).await.expect("ask answers");
        assert!(store.inspect(&key, ever).await.expect("inspect answers").is_some());
        if store.capability().list {
            store.list(&ListRequest::new(cx.prefix()), ever).await.expect("list answers");
        }
        if store.capability().wake {
            store.listen(client(), ever).await.expect("listen answers");
        }
        // After a fail-over, a store's age is unknown.
        drop(store.remembers_for(ever).await);
        let other = ForceReleaseRequest::new(key.clone(), Fence::ZERO);
        store.force_release(&other, ever).await.expect("force_release answers");
        store.release(&lease.ending(), ever).await.expect("release answers");
        cx.leave(&key, token()).await;
    };
    patiently("answers", all).await;
    is_free_or_closed(cx, &key, Cooldown::NONE, "calls without end").await;
}
