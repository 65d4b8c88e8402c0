//! Writes the events of a client's leases into its store's log, if the store keeps one.
//!
//! A task of the background writes each event after the fact, and no caller waits for that. If too
//! many events wait, or the store refuses them, they are left out and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{
    Clock, Error, ErrorKind, Fence, Key, LockLog, LogEntry, LogId, Moment, OwnerName, Result, Store,
};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::audit::LockEventKind;
use crate::lease::outcome::Release;
use crate::owner;

/// How many events may wait to be written.
const WAITING: usize = 1_024;
/// How many are written at once.
const AT_ONCE: usize = 128;
/// An event is left out once it has waited for this many times the time of one request.
const PATIENCE: u32 = 2;

/// The way to the store's log.
#[derive(Debug)]
pub(crate) struct LogWriter {
    queue: mpsc::Sender<Item>,
    clock: Arc<dyn Clock>,
    client: u64,
    written: AtomicU64,
    owner: OwnerName,
    process: OwnerName,
    missed: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Item {
    Event(Box<LogEntry>, Moment),
    /// Answered once all before it is written, or left out.
    Flush(oneshot::Sender<()>),
}

impl LogWriter {
    /// For a store with a log.
    pub(crate) fn start(
        store: &Arc<dyn Store>,
        background: &Handle,
        clock: &Arc<dyn Clock>,
        owner: &OwnerName,
        within: Duration,
    ) -> Option<Self> {
        let log = store.log().filter(|log| log.keeps() > 0)?;
        let (queue, items) = mpsc::channel(WAITING);
        let missed = Arc::new(AtomicU64::new(0));
        let writing = write(items, log, Arc::clone(clock), within, Arc::clone(&missed));
        background.spawn(writing);
        Some(Self {
            queue,
            clock: Arc::clone(clock),
            client: fastrand::u64(..),
            written: AtomicU64::new(0),
            owner: owner.clone(),
            process: owner::of_this_process(),
            missed,
        })
    }

    /// Queues an event: of this owner's hold, or of the client's own.
    pub(crate) fn tell(
        &self,
        key: &Key,
        fence: Fence,
        owner: Option<&OwnerName>,
        (closed_for, result): (Option<Duration>, Option<&str>),
        what: LockEventKind,
    ) {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let id = LogId { client: self.client, number };
        let mut entry = LogEntry::new(key.clone(), id, what.name(), fence);
        entry.owner = owner.unwrap_or(&self.owner).clone();
        entry.process = self.process.clone();
        entry.closed_for = closed_for;
        entry.result = result.map(|result| result.to_owned().into());
        match what {
            LockEventKind::HandedOn { from } | LockEventKind::Changed { from } => {
                entry.from = Some(from);
            }
            LockEventKind::Released { outcome, cooldown } => {
                let how = match outcome {
                    Release::Released => None,
                    Release::Late { .. } => Some("late"),
                    Release::NotHeld => Some("not_held"),
                    Release::StillHeld { .. } => Some("still_held"),
                    Release::Unknown => Some("unknown"),
                };
                entry.how = how.map(Into::into);
                entry.closed_for = cooldown;
            }
            LockEventKind::Lost { reason, .. } => entry.how = Some(reason.name().into()),
            _ => {}
        }
        if self.queue.try_send(Item::Event(Box::new(entry), self.clock.now())).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns once all that was queued before is written, or left out. Cancel safe.
    pub(crate) async fn flushed(&self) {
        let (done, told) = oneshot::channel();
        if self.queue.send(Item::Flush(done)).await.is_ok() {
            drop(told.await);
        }
    }

    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

/// Writes until there is no sender left.
async fn write(
    mut items: mpsc::Receiver<Item>,
    log: Arc<dyn LockLog>,
    clock: Arc<dyn Clock>,
    within: Duration,
    missed: Arc<AtomicU64>,
) {
    let patience = within.saturating_mul(PATIENCE);
    let (mut batch, mut is_away) = (Vec::new(), false);
    while items.recv_many(&mut batch, AT_ONCE).await > 0 {
        let (mut entries, mut flushes, mut lost) = (Vec::new(), Vec::new(), 0);
        let now = clock.now();
        for item in batch.drain(..) {
            match item {
                Item::Event(mut entry, at) => {
                    entry.age = now.saturating_since(at);
                    if entry.age < patience { entries.push(*entry) } else { lost += 1 }
                }
                Item::Flush(done) => flushes.push(done),
            }
        }
        if !entries.is_empty() {
            match log.append(&entries, within).await {
                Ok(()) => is_away = false,
                Err(error) => {
                    lost += entries.len();
                    if !std::mem::replace(&mut is_away, true) {
                        tracing::warn!(target: "leasehold", %error, "events are left out of the log");
                    }
                }
            }
        }
        missed.fetch_add(u64::try_from(lost).unwrap_or(u64::MAX), Ordering::Relaxed);
        for done in flushes {
            // The caller may not wait any more.
            done.send(()).ok();
        }
    }
}

/// The log of a store, for a reader.
pub(crate) fn of(store: &dyn Store) -> Result<Arc<dyn LockLog>> {
    store.log().ok_or_else(|| {
        let why = "this store has no log; read Client::events in the process itself";
        Error::new(ErrorKind::Unsupported, why)
    })
}
