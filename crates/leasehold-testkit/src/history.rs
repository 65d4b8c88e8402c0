//! Records what happened in real time, and checks whether it may have happened.
//!
//! Processes and tasks under test record what they requested, what they believed and until when.
//! Afterwards the checkers look for violations:
//!
//! * [`overlaps`] (H1): believed holds that exclude each other at the same instant. A hold is
//!   believed from the moment its grant was *returned*. The belief ends when its release was
//!   *invoked* or its loss signalled, whichever came first.
//! * [`fence_faults`] (H2): fences that repeat, or that order two acquisitions against real time.
//!   Fences are unique, so this decides without a search whether the fenced lock was linearizable.
//!
//! Times of different processes can be compared only if all of them record on one clock of one
//! machine. A record is also one line of text, so that each process can append to its own file and
//! the files can be joined.

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
    /// A recorder on this clock. `process` identifies it among the recorders of one history.
    #[must_use]
    pub fn new(process: u32, clock: Arc<dyn Clock>) -> Self {
        let attempts = AtomicU64::new(u64::from(process) << 32);
        Self { shared: Arc::new(Shared { clock, attempts, records: Mutex::default() }) }
    }

    /// Records a request for a lock; call it right before the request.
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

/// A requested acquisition. If it is dropped, its outcome counts as unknown.
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

    /// Records an event now, or at `latest` if that has passed.
    fn record_by(&self, latest: Moment, event: Event) {
        let mut records = self.recorder.locked();
        // The time is read under the lock, so that the records are in the order of their times.
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

    /// The outcome is unknown.
    pub fn unknown(self) {
        self.record(Event::Unknown);
    }
}

/// A hold that its holder believes in. If it is dropped, the belief lasts to the end of the
/// history.
#[derive(Debug)]
pub struct Held {
    attempt: Attempt,
}

impl Held {
    /// The holder was notified of the loss, and believes in the hold no more. It may still release
    /// it.
    pub fn lost(&self) {
        self.attempt.record(Event::Lost);
    }

    /// As [`lost`](Self::lost), for a holder that may be notified late for lack of processor time.
    /// From `latest` on, its guard showed the loss.
    pub fn lost_by(&self, latest: Moment) {
        self.attempt.record_by(latest, Event::Lost);
    }

    /// The holder releases it; call this right before the request.
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

/// A release under way.
#[derive(Debug)]
pub struct Releasing {
    attempt: Attempt,
}

impl Releasing {
    /// The store has answered.
    pub fn done(self) {
        self.attempt.record(Event::Released);
    }

    /// The outcome is unknown.
    pub fn unknown(self) {
        self.attempt.record(Event::Unknown);
    }
}
