//! Locks of every kind, all of them in use, while servers are moved about.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{
    Client, ErrorKind, Fence, Guard, HeldLease, Key, Owner, ReentrantGuard, Release, Result,
};
use leasehold_clock::SystemClock;
use leasehold_core::{Clock as _, Mode, Moment};
use leasehold_testkit::history::{Event, Record, Recorder, fence_faults, overlaps};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cell::{PATIENCE, believe, ms};

/// Every wait comes to a grant before.
const WAIT: Duration = Duration::from_secs(20);
const LIMIT: u32 = 3;

/// How a lock is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Use {
    Mutex,
    /// Held until there is a release request, which all waiters send.
    Asked,
    /// Never released: it expires.
    Expired,
    Read,
    Write,
    Permit,
    /// Taken twice by its owner.
    Reentrant,
}

impl Use {
    /// Three permits there are, of which one can be [kept](Load::keep).
    fn mode(self) -> Mode {
        let permits = |n| NonZeroU32::new(n).unwrap();
        match self {
            Self::Read => Mode::Shared,
            Self::Permit => Mode::Permits { count: permits(1), limit: permits(LIMIT) },
            _ => Mode::Exclusive,
        }
    }

    /// Whether the holder takes a while to release.
    fn is_slow(self) -> bool {
        matches!(self, Self::Asked | Self::Expired)
    }
}

enum Hold {
    Once(Guard),
    Twice(ReentrantGuard, ReentrantGuard),
}

impl Hold {
    fn lease(&self) -> &HeldLease {
        match self {
            Self::Once(guard) => guard.lease(),
            Self::Twice(outer, _) => outer.lease(),
        }
    }

    async fn release(self) -> Result<Release> {
        match self {
            Self::Once(guard) => guard.release_outcome().await,
            Self::Twice(outer, inner) => match inner.release_outcome().await? {
                Release::StillHeld { .. } => outer.release_outcome().await,
                other => Ok(other),
            },
        }
    }
}

/// One that uses a lock over and over.
struct Worker {
    client: Client,
    name: &'static str,
    how: Use,
    ttl: Duration,
    owner: Owner,
    grants: Arc<AtomicU64>,
}

impl Worker {
    async fn take(&self) -> Result<Hold> {
        let Self { client, name, ttl, .. } = self;
        let mutex = client.mutex(name).ttl(*ttl);
        let rwlock = || client.rwlock(name).ttl(*ttl);
        Ok(match self.how {
            Use::Mutex | Use::Expired => Hold::Once(mutex.lock_within(WAIT).await?),
            Use::Asked => {
                let ask = async {
                    loop {
                        tokio::time::sleep(ms(100)).await;
                        if let Err(error) = mutex.ask().await {
                            return error;
                        }
                    }
                };
                tokio::select! {
                    guard = mutex.lock_within(WAIT) => Hold::Once(guard?),
                    error = ask => return Err(error),
                }
            }
            Use::Read => Hold::Once(rwlock().read_within(WAIT).await?.into_guard()),
            Use::Write => Hold::Once(rwlock().write_within(WAIT).await?.into_guard()),
            Use::Permit => {
                let semaphore = client.semaphore(name, LIMIT).ttl(*ttl);
                Hold::Once(semaphore.acquire_within(WAIT).await?.into_guard())
            }
            Use::Reentrant => {
                let lock = client.reentrant(name, &self.owner).ttl(*ttl);
                let outer = lock.lock_within(WAIT).await?;
                let inner = lock.lock_within(WAIT).await?;
                Hold::Twice(outer, inner)
            }
        })
    }
}

/// What went wrong, and how often what went right.
#[derive(Default)]
struct Tally {
    lost: AtomicU64,
    waits: AtomicU64,
    errors: Mutex<Vec<String>>,
    stop: CancellationToken,
}

impl Tally {
    fn error(&self, what: impl fmt::Display) {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).push(what.to_string());
    }
}

/// All who use locks.
pub(crate) struct Load {
    recorder: Recorder,
    tally: Arc<Tally>,
    uses: Vec<(Use, &'static str, Arc<AtomicU64>)>,
    tasks: Vec<JoinHandle<()>>,
    kept: Vec<Guard>,
}

impl Load {
    pub(crate) fn new() -> Self {
        Self {
            recorder: Recorder::new(0, Arc::new(SystemClock::new())),
            tally: Arc::default(),
            uses: Vec::new(),
            tasks: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Brings one more that uses this lock so.
    pub(crate) fn join(&mut self, client: Client, name: &'static str, how: Use, ttl: Duration) {
        let known = self.uses.iter().find(|(other, at, _)| (*other, *at) == (how, name));
        let grants = match known {
            Some((_, _, grants)) => Arc::clone(grants),
            None => {
                self.uses.push((how, name, Arc::default()));
                Arc::clone(&self.uses[self.uses.len() - 1].2)
            }
        };
        let worker = Worker { client, name, how, ttl, owner: Owner::new(), grants };
        let (recorder, tally) = (self.recorder.clone(), Arc::clone(&self.tally));
        self.tasks.push(tokio::spawn(async move {
            while !tally.stop.is_cancelled() {
                work(&worker, &recorder, &tally).await;
            }
        }));
    }

    /// Holds this to the end.
    pub(crate) fn keep(&mut self, guard: Guard) {
        self.kept.push(guard);
    }

    /// What to look at from elsewhere.
    pub(crate) fn progress(&self) -> Progress {
        Progress { uses: self.uses.clone(), tally: Arc::clone(&self.tally) }
    }

    /// Ends all.
    pub(crate) async fn end(self) -> Outcome {
        self.tally.stop.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
        let mut kept = 0;
        for guard in self.kept {
            match guard.release().await {
                Ok(()) => kept += 1,
                Err(error) => self.tally.error(error),
            }
        }
        let history = self.recorder.records();
        let count = |grants: &AtomicU64| grants.load(Ordering::Relaxed);
        let errors = self.tally.errors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Outcome {
            grants: self.uses.iter().map(|(how, _, grants)| (*how, count(grants))).collect(),
            kept,
            lost: count(&self.tally.lost),
            waits: count(&self.tally.waits),
            overlaps: overlaps(&history).len(),
            fence_faults: fence_faults(&history).len(),
            pause: longest_pause(&history),
            errors,
        }
    }
}

/// The longest time in which a lock had no grant.
fn longest_pause(history: &[Record]) -> Duration {
    let mut last: HashMap<&Key, Moment> = HashMap::new();
    let granted = history.iter().filter(|record| matches!(record.event, Event::Granted { .. }));
    let pauses = granted.filter_map(|record| {
        let before = last.insert(&record.key, record.at)?;
        Some(record.at.saturating_since(before))
    });
    pauses.max().unwrap_or_default()
}

async fn work(worker: &Worker, recorder: &Recorder, tally: &Tally) {
    let attempt = recorder.acquire(&Key::new(worker.name).unwrap(), worker.how.mode());
    let hold = match worker.take().await {
        Ok(hold) => hold,
        Err(error) => {
            attempt.unknown();
            if error.kind() == ErrorKind::Timeout {
                tally.waits.fetch_add(1, Ordering::Relaxed);
            } else {
                tally.error(format_args!("{}: {error}", worker.name));
            }
            return tokio::time::sleep(ms(20)).await;
        }
    };
    let fence: Fence = hold.lease().fence_even_if_lost();
    let held = attempt.granted(fence);
    worker.grants.fetch_add(1, Ordering::Relaxed);
    if let (Use::Expired, Hold::Once(guard)) = (worker.how, &hold) {
        let clock = SystemClock::new();
        let (looked_at, remaining) = (clock.now(), guard.remaining());
        held.died();
        let Hold::Once(guard) = hold else { return };
        // So short a lease may end by itself while the machine is busy, which is no loss.
        if guard.detach().await.is_err() && clock.now().saturating_since(looked_at) < remaining {
            tally.lost.fetch_add(1, Ordering::Relaxed);
        }
        return tokio::time::sleep(ms(20)).await;
    }
    let section = async {
        if worker.how == Use::Asked {
            tokio::select! {
                () = hold.lease().asked() => {}
                () = tally.stop.cancelled() => {}
            }
        } else {
            tokio::time::sleep(ms(5)).await;
        }
    };
    if !believe(hold.lease(), &held, section).await {
        tally.lost.fetch_add(1, Ordering::Relaxed);
    }
    let releasing = held.release();
    match hold.release().await {
        Ok(Release::Released) => releasing.done(),
        answer => {
            releasing.unknown();
            tally.error(format_args!("{}: released: {answer:?}", worker.name));
        }
    }
}

/// How the load gets on.
pub(crate) struct Progress {
    uses: Vec<(Use, &'static str, Arc<AtomicU64>)>,
    tally: Arc<Tally>,
}

impl Progress {
    /// Blocks until every use has been granted its lock so many times more; `all` counts those in
    /// that are slow.
    pub(crate) fn grants(&self, more: u64, all: bool) {
        let count = |grants: &AtomicU64| grants.load(Ordering::Relaxed);
        let mut behind: Vec<_> = self
            .uses
            .iter()
            .filter(|(how, _, _)| all || !how.is_slow())
            .map(|(how, name, grants)| (how, name, grants, count(grants) + more))
            .collect();
        let clock = SystemClock::new();
        let begun = clock.now();
        while !behind.is_empty() {
            let waited = clock.now().saturating_since(begun);
            assert!(waited < PATIENCE, "{behind:?}: {:?}", self.tally.errors);
            std::thread::sleep(ms(2));
            behind.retain(|(_, _, grants, target)| count(grants) < *target);
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    grants: Vec<(Use, u64)>,
    /// Leases that were held from the beginning to the end.
    pub(crate) kept: usize,
    lost: u64,
    /// Waits that timed out.
    waits: u64,
    overlaps: usize,
    fence_faults: usize,
    /// For how long a lock had no grant, at most.
    pause: Duration,
    pub(crate) errors: Vec<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grants, kept, lost, waits, overlaps, fence_faults, pause, errors } = self;
        write!(
            f,
            "granted {grants:?}; held throughout {kept}, lost {lost}; overlaps {overlaps}; fence \
             faults {fence_faults}; without a grant for {} ms at most; waits that ran out {waits}; \
             errors {errors:?}",
            pause.as_millis()
        )
    }
}

impl Outcome {
    /// No lease was lost, no lock had a second holder, and all fences grew.
    pub(crate) fn judge(&self) {
        println!("{self}");
        assert_eq!((self.lost, self.overlaps, self.fence_faults), (0, 0, 0), "{self:?}");
    }
}
