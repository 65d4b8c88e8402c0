//! What becomes of each lock, told to the log and, with the feature `metrics`, counted.
//!
//! The names of metrics and of spans are these here and no others. Neither has a token in it, and no
//! metric has the name of a lock: there may be any number of those.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_clock::SystemClock;
use leasehold_core::{Clock as _, Error, ErrorKind, Fence, Key, Mode, Moment};
use tracing::Span;
use tracing::field::Empty;

use crate::LOCK;
use crate::audit::{Audience, LockEventKind};

/// How long a contender waited, in seconds, by `outcome`: `acquired`, `busy`, `timeout`, another kind
/// of error, or `dropped`.
pub(crate) const WAIT: &str = "leasehold.lock.wait.duration";
/// How long a lease was held, in seconds, by `outcome`: `ended`, `handed_on`, `changed`, or `lost`.
pub(crate) const HOLD: &str = "leasehold.lock.hold.duration";
/// How many wait.
pub(crate) const WAITING: &str = "leasehold.lock.waiting";
/// How many leases are held.
pub(crate) const HELD: &str = "leasehold.lock.held";
/// How often a lock was found busy.
pub(crate) const CONTENDED: &str = "leasehold.lock.contended";
/// How often a lease was handed from one holder to the next, by `path`: `process` or `store`.
pub(crate) const HANDOFFS: &str = "leasehold.lock.handoffs";
/// How many leases were lost, by `reason`: `refuted`, `expired` or `max_hold`.
pub(crate) const LOST: &str = "leasehold.lease.lost";
/// How many renewals failed.
pub(crate) const RENEWALS_FAILED: &str = "leasehold.lease.renewal.failures";
/// How many places and leases without an owner were given up.
pub(crate) const ORPHANS: &str = "leasehold.lease.orphans";

/// Counts something that happened.
pub(crate) fn count(name: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(name).increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = name;
}

/// Counts something that happened, by what it was.
pub(crate) fn count_by(name: &'static str, label: &'static str, value: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(name, label => value).increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (name, label, value);
}

fn took(name: &'static str, outcome: &'static str, length: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!(name, "outcome" => outcome).record(length);
    #[cfg(not(feature = "metrics"))]
    let _ = (name, outcome, length);
}

/// One of those that are counted by a gauge for as long as it is there.
#[derive(Debug)]
struct Present(
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "nothing is counted"))]
    &'static str,
);

impl Present {
    fn new(name: &'static str) -> Self {
        #[cfg(feature = "metrics")]
        metrics::gauge!(name).increment(1.0);
        Self(name)
    }
}

#[cfg(feature = "metrics")]
impl Drop for Present {
    fn drop(&mut self) {
        metrics::gauge!(self.0).decrement(1.0);
    }
}

fn now() -> Moment {
    SystemClock::new().now()
}

/// A contender from its first request on, in a span of its own. Dropped before its outcome is known, it
/// has given up.
#[derive(Debug)]
pub(crate) struct Contender {
    span: Span,
    since: Moment,
    outcome: &'static str,
    _waiting: Present,
}

impl Contender {
    pub(crate) fn new(key: &Key, mode: Mode) -> Self {
        let span = tracing::debug_span!(
            target: LOCK, "wait", %key, ?mode, fence = Empty, outcome = Empty
        );
        let waiting = Present::new(WAITING);
        Self { span, since: now(), outcome: "dropped", _waiting: waiting }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Takes in what became of it: the fence of its lease, `None` of a lock that is busy, or an error.
    pub(crate) fn ended(mut self, outcome: Result<Option<Fence>, &Error>) {
        self.outcome = match outcome {
            Ok(Some(fence)) => {
                self.span.record("fence", fence.value());
                "acquired"
            }
            Ok(None) => "busy",
            Err(error) => name_of(error),
        };
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        self.span.record("outcome", self.outcome);
        took(WAIT, self.outcome, now().saturating_since(self.since));
    }
}

/// An error's kind as a word that means the same in every version.
fn name_of(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::Timeout => "timeout",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Closed => "closed",
        ErrorKind::Full => "full",
        ErrorKind::Denied => "denied",
        _ => "error",
    }
}

/// A lease that is held, in a span of its own, and to whom it is told what becomes of it.
#[derive(Debug)]
pub(crate) struct Holding {
    open: Mutex<Option<Open>>,
    audience: Arc<Audience>,
}

#[derive(Debug)]
struct Open {
    span: Span,
    since: Moment,
    _held: Present,
}

impl Holding {
    /// That it began, as `what`, is told.
    pub(crate) fn new(
        audience: &Arc<Audience>,
        key: &Key,
        mode: Option<Mode>,
        fence: Fence,
        what: LockEventKind,
    ) -> Self {
        audience.tell(key, fence, what);
        let span = tracing::debug_span!(
            target: LOCK, parent: None, "hold", %key, mode = ?mode, %fence, outcome = Empty
        );
        let open = Open { span, since: now(), _held: Present::new(HELD) };
        Self { open: Mutex::new(Some(open)), audience: Arc::clone(audience) }
    }

    /// Takes in how it ended. The first end counts; whether this was it.
    pub(crate) fn ended(&self, outcome: &'static str) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Open { span, since, .. }) = open else { return false };
        span.record("outcome", outcome);
        took(HOLD, outcome, now().saturating_since(since));
        true
    }

    /// Tells what became of it.
    pub(crate) fn tell(&self, key: &Key, fence: Fence, what: LockEventKind) {
        self.audience.tell(key, fence, what);
    }

    pub(crate) const fn audience(&self) -> &Arc<Audience> {
        &self.audience
    }
}
