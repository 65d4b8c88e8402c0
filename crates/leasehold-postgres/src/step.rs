//! What a step may do, and how often it is tried.

use std::time::Duration;

use leasehold_core::table::{Now, StoreTime};
use leasehold_core::{AcquireRequest, Error, ErrorKind, Reason, VALID_FOR, margin};
use tokio::time::Instant;

use crate::classify::{Deadline, Fault};

/// Pauses between tries of a step that another process undid: up to this, at random.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// A row that is locked at this many tries is locked by a transaction that lasts.
const LOCKED_TRIES: u32 = 4;
/// For how long a grant is then put off.
const KEPT_OUT: Duration = Duration::from_secs(1);

/// What a step may do besides its operation.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Whether the server refuses it once its caller has gone.
    expires: bool,
    /// The longest lease that it can give.
    pub(crate) longest: Duration,
}

impl Step {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, expires: true, longest: Duration::ZERO }
    }

    /// One that gives something back: the server carries it out however late it comes.
    pub(crate) const fn returning(name: &'static str) -> Self {
        Self { name, expires: false, longest: Duration::ZERO }
    }

    /// The same, which can give a lease of this length.
    pub(crate) const fn of(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    pub(crate) fn lease(self, request: &AcquireRequest) -> Self {
        let window = request.queue.as_ref().map(|queue| queue.window.duration());
        Self { longest: request.ttl.duration().max(window.unwrap_or_default()), ..self }
    }
}

/// The outcome of a write.
pub(crate) enum Written {
    Yes,
    Changed,
    Late,
    Locked,
}

/// The length to note before a lease that is longer than all before is granted.
pub(crate) fn longer(step: Step, longest_ttl: i64) -> Option<i64> {
    let longest = i64::try_from(step.longest.as_micros()).unwrap_or(i64::MAX);
    Some(longest).filter(|longest| *longest > longest_ttl)
}

/// The tries of one step.
pub(crate) struct Tries {
    deadline: Deadline,
    /// The start of the present try.
    began: Instant,
    undone: u32,
    locked: u32,
}

impl Tries {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self { deadline, began: Instant::now(), undone: 0, locked: 0 }
    }

    /// The time of the step. The holder of a lease may still work in a transaction that keeps the row locked, and the
    /// lock can't be granted then.
    pub(crate) fn now(&self, now: Now) -> Now {
        if self.locked < LOCKED_TRIES {
            return now;
        }
        Now { grants_from: now.grants_from.max(now.at.saturating_add(KEPT_OUT)), ..now }
    }

    /// Until when the server may carry the write out, by its own clock: its caller may drop it at any time.
    pub(crate) fn not_after(&self, step: Step, now: Now) -> Option<StoreTime> {
        let valid = VALID_FOR.min(self.deadline.left());
        step.expires.then(|| now.at.saturating_add(valid.saturating_sub(margin(valid))))
    }

    pub(crate) async fn changed(&mut self) -> Result<(), Fault> {
        self.undone = self.undone.saturating_add(1);
        let why = "other clients changed the lock at each try";
        self.pause(why).await
    }

    pub(crate) async fn locked(&mut self) -> Result<(), Fault> {
        self.locked = self.locked.saturating_add(1);
        self.undone = self.undone.saturating_add(1);
        let why = "another transaction keeps the lock's row locked; look for it in pg_locks and pg_stat_activity";
        self.pause(why).await
    }

    pub(crate) async fn again(&mut self, fault: &Fault) -> Result<(), Fault> {
        self.undone = self.undone.saturating_add(1);
        let why = fault.error.to_string();
        self.pause(&why).await
    }

    /// Waits before the next try, if there is time for one.
    async fn pause(&mut self, why: &str) -> Result<(), Fault> {
        let longest =
            Duration::from_micros(500).saturating_mul(1 << self.undone.min(7)).min(PAUSE_MAX);
        let us = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        let pause = Duration::from_micros(fastrand::u64(0..=us));
        // A write that is cut off would leave the outcome open.
        let next = self.began.elapsed().saturating_mul(2).saturating_add(pause);
        if next >= self.deadline.left() {
            let error = Error::new(ErrorKind::Unavailable, why).with_reason(Reason::Busy);
            return Err(error.into());
        }
        tokio::time::sleep(pause).await;
        self.began = Instant::now();
        Ok(())
    }

    pub(crate) async fn late(&mut self) -> Result<(), Fault> {
        self.undone = self.undone.saturating_add(1);
        self.pause("the request reached the server too late, which refused it").await
    }
}
