//! What a step may do, and how often it is tried.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::table::{Now, StoreTime};
use leasehold_core::{AcquireRequest, Error, ErrorKind, Reason, VALID_FOR, margin};
use tokio::time::Instant;

use crate::classify::{Deadline, Fault};

/// Pauses between tries of a step that another process undid: up to this, at random.
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// A row that is locked at this many tries is locked by a transaction that lasts.
const LOCKED_TRIES: u32 = 4;
const LOCKED: &str =
    "another transaction keeps the lock's row locked; look for it in pg_locks and pg_stat_activity";
/// For how long a grant is then put off.
const KEPT_OUT: Duration = Duration::from_secs(1);

/// What a step may do besides its operation.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Whether the server refuses it once its caller has gone.
    expires: bool,
    /// Whether it takes a lock.
    pub(crate) takes: bool,
    /// The longest lease that it can give.
    pub(crate) longest: Duration,
}

impl Step {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, expires: true, takes: false, longest: Duration::ZERO }
    }

    /// One that gives something back: the server carries it out however late it comes.
    pub(crate) const fn returning(name: &'static str) -> Self {
        Self { name, expires: false, takes: false, longest: Duration::ZERO }
    }

    /// The same, which can give a lease of this length.
    pub(crate) const fn of(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    pub(crate) fn lease(self, request: &AcquireRequest) -> Self {
        let window = request.queue.as_ref().map(|queue| queue.window.duration());
        let longest = request.ttl.duration().max(window.unwrap_or_default());
        Self { longest, takes: true, ..self }
    }
}

/// How a step keeps steps of other processes from undoing it.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Way {
    /// It does not, and ends when that happens.
    First,
    /// It locks the row before it reads it.
    Locked,
    /// It does not, and tries again.
    Only,
}

/// On which terms a row may be written.
pub(crate) struct Terms {
    pub(crate) epoch: i32,
    /// Until when, by the server's clock: the caller may drop the step at any time.
    pub(crate) not_after: Option<StoreTime>,
    /// The length to note before a lease that is longer than all before is granted.
    pub(crate) longest: Option<i64>,
}

/// Until when a server with this time may carry a request out.
pub(crate) fn not_after(deadline: Deadline, at: StoreTime) -> StoreTime {
    let valid = VALID_FOR.min(deadline.left());
    at.saturating_add(valid.saturating_sub(margin(valid)))
}

/// The server's clock, as its last answer showed it.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<(Instant, StoreTime)>>);

impl ServerClock {
    pub(crate) fn shows(&self, at: StoreTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), at));
    }

    /// The present. If the clock has been set since, a request counts as too late, and goes on with
    /// the time of the answer.
    pub(crate) fn now(&self) -> Option<StoreTime> {
        let (heard, at) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(at.saturating_add(heard.elapsed()))
    }
}

/// The outcome of a write.
pub(crate) enum Written {
    Yes,
    Changed,
    Late,
    Locked,
}

/// The tries of one step.
pub(crate) struct Tries {
    pub(crate) deadline: Deadline,
    /// The start of the present try.
    began: Instant,
    undone: u32,
    locked: u32,
}

impl Tries {
    pub(crate) fn new(deadline: Deadline) -> Self {
        Self { deadline, began: Instant::now(), undone: 0, locked: 0 }
    }

    /// The time of the step. The holder of a lease may still work in a transaction that keeps the
    /// row locked, and the lock can't be granted then.
    pub(crate) fn now(&self, now: Now) -> Now {
        if self.locked < LOCKED_TRIES {
            return now;
        }
        Now { grants_from: now.grants_from.max(now.at.saturating_add(KEPT_OUT)), ..now }
    }

    /// The terms of the write that follows a read with these answers.
    pub(crate) fn terms(&self, step: Step, epoch: i32, now: Now, longest_ttl: i64) -> Terms {
        let longest = i64::try_from(step.longest.as_micros()).unwrap_or(i64::MAX);
        Terms {
            epoch,
            not_after: step.expires.then(|| not_after(self.deadline, now.at)),
            longest: Some(longest).filter(|longest| *longest > longest_ttl),
        }
    }

    pub(crate) async fn changed(&mut self) -> Result<(), Fault> {
        self.undone = self.undone.saturating_add(1);
        let why =
            if self.locked == 0 { "other clients changed the lock at each try" } else { LOCKED };
        self.pause(why).await
    }

    pub(crate) async fn locked(&mut self) -> Result<(), Fault> {
        self.locked = self.locked.saturating_add(1);
        self.changed().await
    }

    /// The row stayed locked for as long as a statement waits.
    pub(crate) async fn waited_in_vain(&mut self) -> Result<(), Fault> {
        self.locked = LOCKED_TRIES;
        self.changed().await
    }

    pub(crate) const fn waited(&self) -> bool {
        self.locked >= LOCKED_TRIES
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
