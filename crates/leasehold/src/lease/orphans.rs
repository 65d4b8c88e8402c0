//! The reaper: releases what dropped futures and dropped guards leave behind.
//!
//! It works with deadlines of its own, never the caller's, in the background of the process, and
//! outlives the client, and the runtime that the client was used on, until what it was given is
//! done or has expired by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::retry::{Exponential, RetryStrategy as _};
use leasehold_core::{
    Acquire, Clock, Effect, Error, ErrorKind, Key, Leave, LeaveRequest, Mode, Moment,
    ReleaseRequest, Store, Token, VALID_FOR, margin,
};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use crate::LOCK;
use crate::audit::LockEventKind;
use crate::events;
use crate::lease::ahead::{Ahead, Untried};
use crate::lease::handle::LeaseHandle;
use crate::lease::outcome::{Release, end_in};
use crate::rt;

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long a request on its way is waited for: it is finished on a runtime of the caller's, which may be held up.
const LANDS_WITHIN: Duration = Duration::from_millis(250);
/// How many requests are on their way at a time.
const AT_ONCE: usize = 64;

/// When a request is carried out at the latest that nobody repeats from now on, and whose call ends then. A store may
/// have sent it a moment ago.
pub(crate) fn last_of(call_ends: Moment, now: Moment) -> Moment {
    call_ends.min(now.saturating_add(VALID_FOR).saturating_add(margin(VALID_FOR)))
}

/// Something to give up.
#[derive(Debug)]
pub(crate) enum Orphan {
    /// An acquisition whose outcome is unknown, or a place in line.
    Acquisition {
        key: Key,
        token: Token,
        /// When it has expired by itself at the latest.
        until: Moment,
        /// Until when a request that was not answered may be carried out.
        in_doubt_until: Option<Moment>,
        /// Whether it was the only one: what it got is all that there is to give up.
        is_only: bool,
        /// Brings the answer of one that is on its way, which is waited for, and until when that may be carried out.
        landing: Option<(Landing, Moment)>,
        /// Where one was sent that was dropped on its way: what is sent from there comes after it.
        sent_from: Option<Handle>,
        /// Whether a grant would have closed the lock, which is undone too.
        reopen: bool,
    },
    /// What a request may take that was not answered, though its token was given up. It is carried out before
    /// `in_doubt_until`, and what it takes has expired by itself at `until`.
    Ghost { key: Key, token: Token, in_doubt_until: Moment, until: Moment },
    /// A lease.
    Lease { handle: Arc<LeaseHandle>, request: ReleaseRequest },
}

/// The way to the reaper; cloning is cheap and sending never blocks. What is sent holds up the tries
/// that come after it, which bounds the queue.
#[derive(Clone, Debug)]
pub(crate) struct Reaper {
    queue: mpsc::UnboundedSender<(Orphan, Ticket)>,
    /// What is in the queue and was not tried.
    ahead: Arc<Ahead>,
    /// What was handed over and is not done.
    pending: Arc<Pending>,
    /// What may have to be handed over yet.
    armed: Arc<Pending>,
}

/// Brings the answer of a request on its way; ends without one when nobody waits for that any more.
pub(crate) type Landing = oneshot::Receiver<Result<Acquire, Error>>;

/// Returns once the store has answered, or there is nothing to give up any more.
pub(crate) type GivenUp = oneshot::Receiver<()>;

#[derive(Debug, Default)]
struct Pending {
    count: AtomicUsize,
    /// Whether the last of them was ever waited for.
    waited_for: AtomicBool,
    changed: Notify,
}

impl Reaper {
    /// Starts the reaper's task. It ends when the last sender is gone and all is done.
    pub(crate) fn start(
        background: &Handle,
        store: Arc<dyn Store>,
        separate: Option<Arc<dyn Store>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (queue, orphans) = mpsc::unbounded_channel();
        let separate = separate.unwrap_or_else(|| Arc::clone(&store));
        background.spawn(run(orphans, Stores { callers: store, separate }, clock));
        Self { queue, ahead: Arc::default(), pending: Arc::default(), armed: Arc::default() }
    }

    /// Hands something over. Without a running reaper it is left to its ttl.
    pub(crate) fn send(&self, orphan: Orphan) -> GivenUp {
        let (answered, given_up) = oneshot::channel();
        let untried = Ahead::add(&self.ahead, orphan.in_the_way_of().cloned());
        let ticket = Ticket { over: Pending::count(&self.pending), untried, answered };
        if self.queue.send((orphan, ticket)).is_err() {
            tracing::debug!(target: "leasehold", "no reaper is left; a lease is left to its ttl");
        }
        given_up
    }

    /// Whether a try may be sent at once.
    pub(crate) fn has_none_ahead(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Returns once a try for these locks may be sent, after `limit` at the latest; how long that took.
    /// Cancel safe.
    pub(crate) async fn none_ahead(
        &self,
        keys: &[&Key],
        clock: &dyn Clock,
        limit: Duration,
    ) -> Duration {
        self.ahead.given_up(keys, clock, limit).await
    }

    /// Counts something that may have to be handed over, until [`disarm`](Self::disarm).
    pub(crate) fn arm(&self) {
        self.armed.one_more();
    }

    /// Counts it no more; what was handed over is with the reaper already.
    pub(crate) fn disarm(&self) {
        self.armed.one_less();
    }

    /// Returns once everything handed over so far and since is done. Cancel safe.
    pub(crate) async fn idle(&self) {
        self.pending.none().await;
    }

    /// Whether nothing is left to be given up, nor may be.
    pub(crate) fn is_idle_for_good(&self) -> bool {
        [&self.armed, &self.pending].iter().all(|left| left.count.load(Ordering::SeqCst) == 0)
    }

    /// As [`idle`](Self::idle), once nothing is left that may have to be handed over either.
    pub(crate) async fn idle_for_good(&self) {
        self.armed.none().await;
        self.pending.none().await;
    }
}

impl Pending {
    fn one_more(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    fn one_less(&self) {
        let was_last = self.count.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.waited_for.load(Ordering::SeqCst) {
            self.changed.notify_waiters();
        }
    }

    fn count(pending: &Arc<Self>) -> Counted {
        pending.one_more();
        Counted(Arc::clone(pending))
    }

    async fn none(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            // In one order with the end of the last one, which either sees this or is seen here.
            self.waited_for.store(true, Ordering::SeqCst);
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// One of those that are counted, until it is dropped.
#[derive(Debug)]
struct Counted(Arc<Pending>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.one_less();
    }
}

/// One thing that is still to be given up; dropping it says that it is over, one way or another.
#[derive(Debug)]
struct Ticket {
    over: Counted,
    /// Dropped once it was tried: what failed is repeated later, and holds up nothing meanwhile.
    untried: Untried,
    /// Dropped once the store has answered the first time.
    answered: oneshot::Sender<()>,
}

/// The two ways to the store.
#[derive(Clone, Debug)]
struct Stores {
    /// The one that callers take.
    callers: Arc<dyn Store>,
    /// The one that has connections of its own, where the other one has not.
    separate: Arc<dyn Store>,
}

impl Stores {
    /// The callers' way first; when it was tried in vain, since their connections may be held up, they
    /// take turns.
    fn way(&self, tries: u32) -> &dyn Store {
        if tries % 2 == 1 { &*self.callers } else { &*self.separate }
    }
}

async fn run(
    mut orphans: mpsc::UnboundedReceiver<(Orphan, Ticket)>,
    stores: Stores,
    clock: Arc<dyn Clock>,
) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some((orphan, ticket)) = orphans.recv().await {
        let (stores, clock) = (stores.clone(), Arc::clone(&clock));
        let places = Arc::clone(&places);
        tokio::spawn(async move {
            let Ticket { over, untried, answered } = ticket;
            orphan.give_up(&stores, &*clock, &places, untried, answered).await;
            drop(over);
        });
    }
}

impl Orphan {
    /// The lock that can't be had before this is given up.
    fn in_the_way_of(&self) -> Option<&Key> {
        match self {
            Self::Acquisition { key, .. } => Some(key),
            // Others share the lock with this one.
            Self::Ghost { .. } => None,
            Self::Lease { handle, .. } if handle.settings.mode != Mode::Exclusive => None,
            Self::Lease { handle, .. } => Some(&handle.key),
        }
    }

    async fn give_up(
        self,
        stores: &Stores,
        clock: &dyn Clock,
        places: &Semaphore,
        untried: Untried,
        answered: oneshot::Sender<()>,
    ) {
        events::count(events::ORPHANS);
        let mut untried = Some(untried);
        match self {
            Self::Acquisition {
                key,
                token,
                until,
                mut in_doubt_until,
                is_only,
                landing,
                sent_from,
                reopen,
            } => {
                if let Some((landing, may_land_until)) = landing {
                    let until = clock.now().saturating_add(LANDS_WITHIN);
                    let is_known = tokio::select! {
                        biased;
                        answer = landing => answer.is_ok_and(|answer| {
                            answer.map_or_else(|error| error.effect() != Effect::Unknown, |_| true)
                        }),
                        () = rt::sleep_until(clock, until) => false,
                    };
                    let last = last_of(may_land_until, clock.now());
                    in_doubt_until = in_doubt_until.max((!is_known).then_some(last));
                }
                let mut request = LeaveRequest::new(key, token);
                request.reopen = reopen;
                let leave = |tries| stores.way(tries).leave(&request, ATTEMPT);
                let mut first = None;
                if let Some(there) = sent_from {
                    let _place = places.acquire().await;
                    first = leave_from(&there, &stores.callers, &request, clock).await;
                    untried = None;
                }
                if first.is_none() {
                    first = persist(clock, places, until, &mut untried, leave).await;
                }
                tracing::debug!(target: LOCK, key = %request.key, answer = ?first, "gave up");
                let found = is_only && first != Some(Leave::NotHeld);
                if let Some(at) = in_doubt_until.filter(|_| !found) {
                    give_up_again(&request, at, until, stores, clock, places).await;
                }
                drop(answered);
            }
            Self::Ghost { key, token, in_doubt_until, until } => {
                let mut request = LeaveRequest::new(key, token);
                request.reopen = true;
                give_up_again(&request, in_doubt_until, until, stores, clock, places).await;
                drop(answered);
            }
            Self::Lease { handle, request } => {
                handle.settled().await;
                let until = handle.deadline().saturating_add(handle.ttl().duration() / 50);
                let release = |tries| end_in(stores.way(tries), &request, ATTEMPT);
                let answer = persist(clock, places, until, &mut untried, release).await;
                let (key, fence) = (&handle.key, handle.fence());
                tracing::debug!(target: LOCK, %key, %fence, ?answer, "release in the background");
                let outcome =
                    answer.as_ref().map_or(Release::Unknown, |answer| Release::of(answer, None));
                handle.tell(LockEventKind::Released {
                    outcome,
                    cooldown: request.cooldown.closes_for(),
                });
                if let Some(at) = handle.in_doubt_until() {
                    let mut leave = LeaveRequest::new(handle.key.clone(), handle.token);
                    leave.reopen = true;
                    let until = at.saturating_add(handle.ttl().duration());
                    give_up_again(&leave, at, until, stores, clock, places).await;
                }
            }
        }
    }
}

/// Gives up once more when no request of the token can be carried out any more. One that lay in a dead connection's
/// buffers may have been carried out after what gave it up, which went another way.
async fn give_up_again(
    request: &LeaveRequest,
    in_doubt_until: Moment,
    until: Moment,
    stores: &Stores,
    clock: &dyn Clock,
    places: &Semaphore,
) {
    if clock.now() < in_doubt_until {
        rt::sleep_until(clock, in_doubt_until).await;
        let leave = |tries| stores.way(tries).leave(request, ATTEMPT);
        let answer = persist(clock, places, until, &mut None, leave).await;
        tracing::debug!(target: LOCK, key = %request.key, ?answer, "gave up once more");
    }
}

/// Gives up on a runtime of a caller's; nothing where that ends or is held up.
async fn leave_from(
    there: &Handle,
    store: &Arc<dyn Store>,
    request: &LeaveRequest,
    clock: &dyn Clock,
) -> Option<Leave> {
    let (store, request) = (Arc::clone(store), request.clone());
    let leaving = there.spawn(async move { store.leave(&request, ATTEMPT).await });
    let until = clock.now().saturating_add(LANDS_WITHIN);
    tokio::select! {
        biased;
        left = leaving => left.ok()?.ok(),
        () = rt::sleep_until(clock, until) => None,
    }
}

/// Whether what stands at the lock's key can hold no lease of ours: asking again finds the same.
fn nothing_of_ours(error: &Error) -> bool {
    let kind = error.kind();
    error.effect() == Effect::NotApplied && matches!(kind, ErrorKind::Foreign | ErrorKind::Corrupt)
}

/// Repeats an attempt until it is answered, or until there is nothing left to give up.
async fn persist<T, F>(
    clock: &dyn Clock,
    places: &Semaphore,
    until: Moment,
    untried: &mut Option<Untried>,
    mut attempt: impl FnMut(u32) -> F,
) -> Option<T>
where
    F: Future<Output = Result<T, Error>>,
{
    let pauses = Exponential::new(Duration::from_millis(20), Duration::from_secs(1)).jitter(0.25);
    for tries in 1.. {
        let place = places.acquire().await;
        let answer = attempt(tries).await;
        // A place is not waited for while its owner only sleeps.
        drop(place);
        *untried = None;
        match answer {
            Ok(answer) => return Some(answer),
            Err(error) => {
                tracing::debug!(target: "leasehold", %error, tries, "giving up a lease failed");
                if error.effect() == Effect::Applied || nothing_of_ours(&error) {
                    return None;
                }
            }
        }
        let again = clock.now().saturating_add(pauses.pause(tries)?);
        if again >= until {
            return None;
        }
        rt::sleep_until(clock, again).await;
    }
    None
}
