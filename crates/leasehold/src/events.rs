//! Logs what happens to each lock, and counts it with the feature `metrics`.
//!
//! The names of metrics and of spans are all here. Neither has a token in it. No metric has the
//! name of a lock, of which there may be any number.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use leasehold_clock::SystemClock;
use leasehold_core::{Clock as _, Error, ErrorKind, Fence, Key, Mode, Moment, RESULT_MAX};
use tracing::Span;
use tracing::field::Empty;

use crate::LOCK;
use crate::audit::LockEventKind;
use crate::settings::Settings;

/// How long a contender waited, in seconds, by `outcome`: `acquired`, `busy`, `timeout`, another
/// kind of error, or `dropped`.
pub(crate) const WAIT: &str = "leasehold.lock.wait.duration";
/// How long a lease was held, in seconds, by `outcome`: `ended`, `handed_on`, `changed`, or `lost`.
pub(crate) const HOLD: &str = "leasehold.lock.hold.duration";
/// How many contenders wait.
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
/// How many positions and leases without an owner were abandoned.
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

/// Something that a gauge counts while it is there, and a histogram measures when it has gone. With
/// metrics off it is empty, and reads no clock.
#[derive(Debug)]
struct Present {
    #[cfg(feature = "metrics")]
    gauge: &'static &'static str,
    #[cfg(feature = "metrics")]
    since: Moment,
}

impl Present {
    fn new(gauge: &'static &'static str) -> Self {
        #[cfg(feature = "metrics")]
        {
            metrics::gauge!(*gauge).increment(1.0);
            Self { gauge, since: SystemClock::new().now() }
        }
        #[cfg(not(feature = "metrics"))]
        {
            let _ = gauge;
            Self {}
        }
    }

    /// Takes it off the gauge.
    fn gone(&self) {
        #[cfg(feature = "metrics")]
        metrics::gauge!(*self.gauge).decrement(1.0);
    }

    /// Takes it off the gauge, and records for how long it was there.
    fn left(&self, name: &'static str, outcome: &'static str) {
        self.gone();
        #[cfg(feature = "metrics")]
        {
            let length = SystemClock::new().now().saturating_since(self.since);
            metrics::histogram!(name, "outcome" => outcome).record(length);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (name, outcome);
    }
}

/// A contender from its first request on, in a span of its own. Dropped without an outcome, it
/// counts as `dropped`.
#[derive(Debug)]
pub(crate) struct Contender {
    span: Span,
    outcome: &'static str,
    waiting: Present,
}

impl Contender {
    pub(crate) fn new(key: &Key, mode: Mode) -> Self {
        let span = tracing::debug_span!(
            target: LOCK, "wait", %key, ?mode, fence = Empty, outcome = Empty
        );
        Self { span, outcome: "dropped", waiting: Present::new(&WAITING) }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Records the outcome: the fence of its lease, `None` for a busy lock, or an error.
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
        self.waiting.left(WAIT, self.outcome);
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

/// A held lease, in a span of its own, with the readers of its events.
#[derive(Debug)]
pub(crate) struct Holding {
    is_over: AtomicBool,
    /// Only where a subscriber wants the span: leases are many, and most programs have none.
    told: Option<Box<Told>>,
    held: Present,
    /// What the holder noted about the end of its work.
    result: OnceLock<Box<str>>,
}

#[derive(Debug)]
struct Told {
    /// Its span lasts until the end of the hold.
    span: Mutex<Span>,
    since: Moment,
}

impl Holding {
    /// Reports that it began, as `what`.
    pub(crate) fn new(key: &Key, settings: &Settings, fence: Fence, what: LockEventKind) -> Self {
        let Settings { mode, owner, audience, .. } = settings;
        // Only a grant starts a cooldown while the lock is held.
        let closed_for = match what {
            LockEventKind::Granted => settings.cooldown.closes_for(),
            _ => None,
        };
        audience.tell(key, fence, Some(owner), closed_for, what);
        let span = tracing::debug_span!(
            target: LOCK, parent: None, "hold", %key, mode = ?mode, %fence, outcome = Empty
        );
        let told = (!span.is_disabled())
            .then(|| Box::new(Told { span: Mutex::new(span), since: SystemClock::new().now() }));
        Self {
            is_over: AtomicBool::new(false),
            told,
            held: Present::new(&HELD),
            result: OnceLock::new(),
        }
    }

    /// Records how it ended. The first end counts; returns whether this was it.
    pub(crate) fn ended(&self, outcome: &'static str) -> bool {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(Told { span, since }) = self.told.as_deref() {
            let mut span = span.lock().unwrap_or_else(PoisonError::into_inner);
            let span = std::mem::replace(&mut *span, Span::none());
            span.record("outcome", outcome);
            let held_for = SystemClock::new().now().saturating_since(*since);
            let _entered = span.enter();
            tracing::debug!(target: LOCK, held_for = %format_args!("{held_for:.1?}"), "hold ended");
        }
        self.held.left(HOLD, outcome);
        true
    }

    /// Reports an event.
    pub(crate) fn tell(&self, key: &Key, settings: &Settings, fence: Fence, what: LockEventKind) {
        let result = self.result.get().map(|result| &**result);
        let Settings { owner, audience, .. } = settings;
        audience.tell_with(key, fence, Some(owner), (None, result), what);
    }

    /// Notes how the work ended, for the log; the first note counts.
    pub(crate) fn note_result(&self, result: &str) {
        let result: String = result.chars().take(RESULT_MAX).collect();
        if !result.is_empty() {
            // Noted already.
            self.result.set(result.into()).ok();
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        // A hold whose end was not recorded has ended as well.
        if !*self.is_over.get_mut() {
            self.held.gone();
        }
    }
}
