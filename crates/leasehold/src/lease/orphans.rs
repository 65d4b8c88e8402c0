//! The reaper: releases what dropped futures and dropped guards leave behind.
//!
//! It works in the background of the process, with deadlines of its own. It outlives the client and
//! the client's runtimes, until what it received is released or has expired.

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
/// How long it waits for a request on its way, which finishes on a caller's runtime and may be
/// delayed there.
const LANDS_WITHIN: Duration = Duration::from_millis(250);
/// How many requests it sends at a time.
const AT_ONCE: usize = 64;

/// The latest time at which a request can be carried out if it is not repeated from now on and its
/// call ends at `call_ends`. A store may have sent it a moment ago.
pub(crate) fn last_of(call_ends: Moment, now: Moment) -> Moment {
    call_ends.min(now.saturating_add(VALID_FOR).saturating_add(margin(VALID_FOR)))
}

/// Something to abandon.
#[derive(Debug)]
pub(crate) enum Orphan {
    /// An acquisition whose outcome is unknown, or a position in the queue.
    Acquisition {
        key: Key,
        token: Token,
        /// When it has expired at the latest.
        until: Moment,
        /// Until when an unanswered request may be carried out.
        in_doubt_until: Option<Moment>,
        /// Whether there was only one request: what it got is then all that there is to release.
        is_only: bool,
        /// Brings the answer of a request on its way, and until when that may be carried out.
        landing: Option<(Landing, Moment)>,
        /// Whether a grant would have started a cooldown, which is undone too.
        reopen: bool,
    },
    /// What an unanswered request may take although its token was abandoned. It is carried out
    /// before `in_doubt_until`, and what it takes has expired at `until`.
    Ghost { key: Key, token: Token, in_doubt_until: Moment, until: Moment },
    /// A lease.
    Lease { handle: Arc<LeaseHandle>, request: ReleaseRequest },
}

/// The way to the reaper; cloning is cheap and sending never blocks. What is sent delays later
/// tries, which bounds the queue.
#[derive(Clone, Debug)]
pub(crate) struct Reaper {
    queue: mpsc::UnboundedSender<(Orphan, Ticket)>,
    /// What is in the queue and was not tried.
    ahead: Arc<Ahead>,
    /// What was sent and is not done.
    pending: Arc<Pending>,
    /// What may still have to be sent.
    armed: Arc<Pending>,
}

/// Brings the answer of a request on its way; the sender stops when the receiver is dropped.
pub(crate) type Landing = oneshot::Receiver<Result<Acquire, Error>>;

/// Returns once the store has answered, or there is nothing left to abandon.
pub(crate) type GivenUp = oneshot::Receiver<()>;

#[derive(Debug, Default)]
struct Pending {
    count: AtomicUsize,
    /// Whether a task ever waited for the last of them.
    waited_for: AtomicBool,
    changed: Notify,
}

impl Reaper {
    /// Starts the reaper's task. It ends when the last sender is gone and all is done.
    pub(crate) fn start(background: &Handle, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let (queue, orphans) = mpsc::unbounded_channel();
        background.spawn(run(orphans, store, clock));
        Self { queue, ahead: Arc::default(), pending: Arc::default(), armed: Arc::default() }
    }

    /// Sends an orphan to the reaper. Without a running reaper it expires.
    pub(crate) fn send(&self, orphan: Orphan) -> GivenUp {
        let (answered, given_up) = oneshot::channel();
        let untried = Ahead::add(&self.ahead, orphan.in_the_way_of().cloned());
        let ticket = Ticket { over: Pending::count(&self.pending), untried, answered };
        if self.queue.send((orphan, ticket)).is_err() {
            tracing::debug!(target: "leasehold", "no reaper is left; a lease will expire");
        }
        given_up
    }

    /// Whether a try may be sent at once.
    pub(crate) fn has_none_ahead(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Returns once a try for these locks may be sent, after `limit` at the latest; returns how
    /// long that took. Cancel safe.
    pub(crate) async fn none_ahead(
        &self,
        keys: &[&Key],
        clock: &dyn Clock,
        limit: Duration,
    ) -> Duration {
        self.ahead.given_up(keys, clock, limit).await
    }

    /// Counts something that may have to be sent, until [`disarm`](Self::disarm).
    pub(crate) fn arm(&self) {
        self.armed.one_more();
    }

    /// Counts it no more; if it was sent, the reaper has it already.
    pub(crate) fn disarm(&self) {
        self.armed.one_less();
    }

    /// Returns once everything sent before and meanwhile is done. Cancel safe.
    pub(crate) async fn idle(&self) {
        self.pending.none().await;
    }

    /// Whether all is abandoned, and no orphan can follow.
    pub(crate) fn is_idle_for_good(&self) -> bool {
        [&self.armed, &self.pending].iter().all(|left| left.count.load(Ordering::SeqCst) == 0)
    }

    /// As [`idle`](Self::idle), once no further orphan can follow.
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
            // Sequentially consistent with `one_less`: either it sees this store, or its count is
            // seen here.
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

/// An orphan that is not done; dropping it counts it as done, even after a failure.
#[derive(Debug)]
struct Ticket {
    over: Counted,
    /// Dropped after the first try: what failed is repeated later, and delays no try meanwhile.
    untried: Untried,
    /// Dropped once the store has answered the first time.
    answered: oneshot::Sender<()>,
}

async fn run(
    mut orphans: mpsc::UnboundedReceiver<(Orphan, Ticket)>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some((orphan, ticket)) = orphans.recv().await {
        let (store, clock) = (Arc::clone(&store), Arc::clone(&clock));
        let places = Arc::clone(&places);
        tokio::spawn(async move {
            let Ticket { over, untried, answered } = ticket;
            orphan.give_up(&*store, &*clock, &places, untried, answered).await;
            drop(over);
        });
    }
}

impl Orphan {
    /// The lock that no try can get before this is released.
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
        store: &dyn Store,
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
                let leave = || store.leave(&request, ATTEMPT);
                let first = persist(clock, places, until, &mut untried, leave).await;
                tracing::debug!(target: LOCK, key = %request.key, answer = ?first, "abandoned");
                let found = is_only && first != Some(Leave::NotHeld);
                if let Some(at) = in_doubt_until.filter(|_| !found) {
                    give_up_again(&request, at, until, store, clock, places).await;
                }
                drop(answered);
            }
            Self::Ghost { key, token, in_doubt_until, until } => {
                let mut request = LeaveRequest::new(key, token);
                request.reopen = true;
                give_up_again(&request, in_doubt_until, until, store, clock, places).await;
                drop(answered);
            }
            Self::Lease { handle, request } => {
                handle.settled().await;
                let ttl = handle.state().ttl().duration();
                let until = handle.state().deadline().saturating_add(ttl / 50);
                let release = || end_in(store, &request, ATTEMPT);
                let answer = persist(clock, places, until, &mut untried, release).await;
                let (key, fence) = (&handle.key, handle.fence());
                tracing::debug!(target: LOCK, %key, %fence, ?answer, "release in the background");
                let outcome =
                    answer.as_ref().map_or(Release::Unknown, |answer| Release::of(answer, None));
                handle.tell(LockEventKind::Released {
                    outcome,
                    cooldown: request.cooldown.closes_for(),
                });
                let in_doubt_until = handle.state().in_doubt_until();
                if let Some(at) = in_doubt_until {
                    let mut leave = LeaveRequest::new(handle.key.clone(), handle.token);
                    leave.reopen = true;
                    let until = at.saturating_add(ttl);
                    give_up_again(&leave, at, until, store, clock, places).await;
                }
            }
        }
    }
}

/// Abandons again when no request of the token can be carried out any more. A request in a dead
/// connection's buffers may have been carried out after the first `leave`, which went another way.
async fn give_up_again(
    request: &LeaveRequest,
    in_doubt_until: Moment,
    until: Moment,
    store: &dyn Store,
    clock: &dyn Clock,
    places: &Semaphore,
) {
    if clock.now() < in_doubt_until {
        rt::sleep_until(clock, in_doubt_until).await;
        let leave = || store.leave(request, ATTEMPT);
        let answer = persist(clock, places, until, &mut None, leave).await;
        tracing::debug!(target: LOCK, key = %request.key, ?answer, "abandoned again");
    }
}

/// Whether the content of the lock's key can have no lease of this library: another request finds
/// the same.
fn nothing_of_ours(error: &Error) -> bool {
    let kind = error.kind();
    error.effect() == Effect::NotApplied && matches!(kind, ErrorKind::Foreign | ErrorKind::Corrupt)
}

/// Repeats an attempt until it is answered, or until all has expired.
async fn persist<T, F>(
    clock: &dyn Clock,
    places: &Semaphore,
    until: Moment,
    untried: &mut Option<Untried>,
    mut attempt: impl FnMut() -> F,
) -> Option<T>
where
    F: Future<Output = Result<T, Error>>,
{
    let pauses = Exponential::new(Duration::from_millis(20), Duration::from_secs(1)).jitter(0.25);
    for tries in 1.. {
        let place = places.acquire().await;
        let answer = attempt().await;
        // A permit is not kept through a pause.
        drop(place);
        *untried = None;
        match answer {
            Ok(answer) => return Some(answer),
            Err(error) => {
                tracing::debug!(target: "leasehold", %error, tries, "releasing an orphan failed");
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
