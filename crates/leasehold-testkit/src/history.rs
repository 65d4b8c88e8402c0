//! Records what happened in real time, and checks whether it may have happened.
//!
//! Processes and tasks under test record what they asked for, what they believed and until when.
//! Afterwards the checkers look for what a lock must never allow:
//!
//! * [`overlaps`] (H1): believed holds that exclude each other at the same instant. A hold is
//!   believed from the moment its grant was *returned* to the moment its release was *invoked* or
//!   its loss signalled, whichever came first.
//! * [`fence_faults`] (H2): fences that repeat, or that order two acquisitions against real time.
//!   Since fences are unique this decides whether the fenced lock was linearizable without a
//!   search.
//!
//! Times of different processes compare only when all of them record on one clock of one machine.
//! A record is also one line of text, so that each process can append to a file of its own and the
//! files can be joined.

mod check;
mod record;
#[cfg(test)]
mod tests;

pub use check::{FenceFault, Overlap, fence_faults, overlaps};
pub use record::{Event, Record};

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Clock, Fence, Key, Mode, Moment};

/// Collects the records of one process. Clones share them.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    attempts: AtomicU64,
    records: Mutex<Vec<Record>>,
}

impl Recorder {
    /// A recorder on this clock. `process` tells the recorders of one history apart.
    #[must_use]
    pub fn new(process: u32, clock: Arc<dyn Clock>) -> Self {
        let attempts = AtomicU64::new(u64::from(process) << 32);
        Self { shared: Arc::new(Shared { clock, attempts, records: Mutex::default() }) }
    }

    /// Records that a lock is asked for; call it right before asking.
    #[must_use = "what came of it has to be recorded too"]
    pub fn acquire(&self, key: &Key, mode: Mode) -> Attempt {
        let id = self.shared.attempts.fetch_add(1, Ordering::Relaxed);
        let attempt = Attempt { recorder: self.clone(), key: key.clone(), mode, id };
        attempt.record(Event::Asked);
        attempt
    }

    /// All records so far, in the order of their times.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let mut records = self.locked().clone();
        records.sort_by_key(|record| record.at);
        records
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Record>> {
        self.shared.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An acquisition that has been asked for. Dropped without a word, its outcome is unknown.
#[derive(Debug)]
pub struct Attempt {
    recorder: Recorder,
    key: Key,
    mode: Mode,
    id: u64,
}

impl Attempt {
    fn record(&self, event: Event) {
        self.record_by(Moment::from_origin(Duration::MAX), event);
    }

    /// Records what happens now, or happened at `latest` if that has passed.
    fn record_by(&self, latest: Moment, event: Event) {
        let mut records = self.recorder.locked();
        // The time is read under the lock, so that the order of the records is that of the times.
        let at = self.recorder.shared.clock.now().min(latest);
        let (attempt, key, mode) = (self.id, self.key.clone(), self.mode);
        records.push(Record { at, attempt, key, mode, event });
    }

    /// It was granted with this fence; call it right after the answer.
    #[must_use = "the end of the hold has to be recorded too"]
    pub fn granted(self, fence: Fence) -> Held {
        self.record(Event::Granted { fence });
        Held { attempt: self }
    }

    /// It was not granted.
    pub fn failed(self) {
        self.record(Event::NotGranted);
    }

    /// Nobody knows.
    pub fn unknown(self) {
        self.record(Event::Unknown);
    }
}

/// A hold that its holder believes in. Dropped without a word, it is believed to the end of the
/// history.
#[derive(Debug)]
pub struct Held {
    attempt: Attempt,
}

impl Held {
    /// The holder was told that the lease is lost, and believes no more. It may release after
    /// that all the same.
    pub fn lost(&self) {
        self.attempt.record(Event::Lost);
    }

    /// The same for a holder that may hear of it late, being short of processor time: whoever asked
    /// its guard was told so from `latest` on.
    pub fn lost_by(&self, latest: Moment) {
        self.attempt.record_by(latest, Event::Lost);
    }

    /// The holder gives it back; call it right before the request.
    #[must_use = "what came of it has to be recorded too"]
    pub fn release(self) -> Releasing {
        self.attempt.record(Event::ReleaseAsked);
        Releasing { attempt: self.attempt }
    }

    /// The holder's process has died.
    pub fn died(self) {
        self.attempt.record(Event::Died);
    }
}

/// A release that is on its way.
#[derive(Debug)]
pub struct Releasing {
    attempt: Attempt,
}

impl Releasing {
    /// The store has answered.
    pub fn done(self) {
        self.attempt.record(Event::Released);
    }

    /// Nobody knows.
    pub fn unknown(self) {
        self.attempt.record(Event::Unknown);
    }
}
