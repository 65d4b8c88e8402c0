//! The thread that waits at the gate, so that no runtime's thread does.
//!
//! A thread tries the gate for queued requests, so no thread of an async runtime ever waits for
//! another process. A request that times out before it enters is dropped, certainly not carried
//! out, and its caller learns that. The thread sleeps while the queue is empty, and ends with the
//! store.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold_clock::{Process, SystemClock};
use leasehold_core::{Clock, Moment};

use super::gate::{Gate, Pass, lock};

/// What a request does inside, or when the gate can't be tried at all.
pub(super) type Job = Box<dyn FnOnce(io::Result<&Pass<'_>>) + Send>;

/// The first and the longest pause between two tries. A transaction takes a few µs, so the first
/// suffices in a crowd. The longest is what waking a stopped process may cost.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Worker {
    queue: Arc<Queue>,
    gate: Arc<Gate>,
    process: Process,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Arc<Waiting>>,
    started: bool,
    closed: bool,
}

struct Waiting {
    until: Moment,
    job: Mutex<Option<Job>>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("until", &self.until).finish_non_exhaustive()
    }
}

/// A queued request; dropping this withdraws it unless it is being carried out.
#[derive(Debug)]
pub(super) struct Queued {
    waiting: Arc<Waiting>,
    queue: Arc<Queue>,
}

impl Worker {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        Self { queue: Arc::default(), gate, process: Process::current() }
    }

    /// Queues a request until its time is over.
    pub(super) fn wait(&self, until: Moment, job: Job) -> io::Result<Queued> {
        let waiting = Arc::new(Waiting { until, job: Mutex::new(Some(job)) });
        let mut state = lock(&self.queue.state);
        if !state.started {
            let (queue, gate) = (Arc::clone(&self.queue), Arc::clone(&self.gate));
            thread::Builder::new()
                .name("leasehold-gate".to_owned())
                .spawn(move || serve(&queue, &gate))?;
            state.started = true;
        }
        state.waiting.push_back(Arc::clone(&waiting));
        drop(state);
        self.queue.changed.notify_one();
        Ok(Queued { waiting, queue: Arc::clone(&self.queue) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A fork lacks this thread, and its copy of the mutex may stay locked for ever.
        if !self.process.is_current() {
            return;
        }
        lock(&self.queue.state).closed = true;
        self.queue.changed.notify_one();
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let job = lock(&self.waiting.job).take();
        if job.is_some() {
            lock(&self.queue.state).waiting.retain(|other| !Arc::ptr_eq(other, &self.waiting));
        }
    }
}

fn serve(queue: &Queue, gate: &Gate) {
    let mut pause = PAUSE_MIN;
    loop {
        {
            let mut state = lock(&queue.state);
            while state.waiting.is_empty() {
                if state.closed {
                    return;
                }
                pause = PAUSE_MIN;
                state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        match gate.try_follow() {
            Ok(Some(pass)) => {
                while let Some(job) = next(queue) {
                    carry_out(job, Ok(&pass));
                }
                pause = PAUSE_MIN;
            }
            Ok(None) => {
                drop_overdue(queue);
                thread::sleep(pause);
                pause = pause.saturating_mul(2).min(PAUSE_MAX);
            }
            Err(error) => {
                while let Some(job) = next(queue) {
                    carry_out(job, Err(again(&error)));
                }
            }
        }
    }
}

/// Carries a request out. If it panics, only its own answer is lost.
fn carry_out(job: Job, pass: io::Result<&Pass<'_>>) {
    if catch_unwind(AssertUnwindSafe(|| job(pass))).is_err() {
        tracing::error!("a request panicked inside the gate; please report this bug");
    }
}

/// The request that has waited longest.
fn next(queue: &Queue) -> Option<Job> {
    loop {
        let waiting = lock(&queue.state).waiting.pop_front()?;
        let job = lock(&waiting.job).take();
        if job.is_some() {
            return job;
        }
    }
}

/// Drops the requests that have timed out; their callers see the closed channel.
fn drop_overdue(queue: &Queue) {
    let now = SystemClock::new().now();
    let mut overdue = Vec::new();
    lock(&queue.state).waiting.retain(|waiting| {
        let stays = waiting.until > now;
        if !stays {
            overdue.push(lock(&waiting.job).take());
        }
        stays
    });
}

fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
