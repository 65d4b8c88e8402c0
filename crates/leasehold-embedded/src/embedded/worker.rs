//! The thread that waits at the gate, so that no runtime's thread does.
//!
//! A thread tries the gate for them, and so no thread of an async runtime ever waits for another
//! process. A request whose time is over before it got in is dropped without having been carried
//! out: that is known for sure, so its caller learns that nothing happened. The thread sleeps
//! while nobody waits, and ends with the store.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold_clock::{Process, SystemClock};
use leasehold_core::{Clock, Moment};

use super::gate::{Gate, Pass, lock};

/// What a request does once it is inside, or when the gate can't be tried at all.
pub(super) type Job = Box<dyn FnOnce(io::Result<&Pass<'_>>) + Send>;

/// The first pause between two tries, and the longest: a transaction takes a few µs, so the first
/// is enough in a crowd; the longest is what waking a stopped process up may cost.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Worker {
    line: Arc<Line>,
    gate: Arc<Gate>,
    process: Process,
}

#[derive(Debug, Default)]
struct Line {
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

/// A request in line; dropping this takes it out of the line unless it is being carried out.
#[derive(Debug)]
pub(super) struct InLine {
    waiting: Arc<Waiting>,
    line: Arc<Line>,
}

impl Worker {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        Self { line: Arc::default(), gate, process: Process::current() }
    }

    /// Puts a request in line until its time is over.
    pub(super) fn wait(&self, until: Moment, job: Job) -> io::Result<InLine> {
        let waiting = Arc::new(Waiting { until, job: Mutex::new(Some(job)) });
        let mut state = lock(&self.line.state);
        if !state.started {
            let (line, gate) = (Arc::clone(&self.line), Arc::clone(&self.gate));
            thread::Builder::new()
                .name("leasehold-gate".to_owned())
                .spawn(move || serve(&line, &gate))?;
            state.started = true;
        }
        state.waiting.push_back(Arc::clone(&waiting));
        drop(state);
        self.line.changed.notify_one();
        Ok(InLine { waiting, line: Arc::clone(&self.line) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A fork has no such thread, and its copy of the lock may never be opened.
        if !self.process.is_current() {
            return;
        }
        lock(&self.line.state).closed = true;
        self.line.changed.notify_one();
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        let job = lock(&self.waiting.job).take();
        if job.is_some() {
            lock(&self.line.state).waiting.retain(|other| !Arc::ptr_eq(other, &self.waiting));
        }
    }
}

fn serve(line: &Line, gate: &Gate) {
    let mut pause = PAUSE_MIN;
    loop {
        {
            let mut state = lock(&line.state);
            while state.waiting.is_empty() {
                if state.closed {
                    return;
                }
                pause = PAUSE_MIN;
                state = line.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        match gate.try_follow() {
            Ok(Some(pass)) => {
                while let Some(job) = next(line) {
                    carry_out(job, Ok(&pass));
                }
                pause = PAUSE_MIN;
            }
            Ok(None) => {
                give_up_overdue(line);
                thread::sleep(pause);
                pause = pause.saturating_mul(2).min(PAUSE_MAX);
            }
            Err(error) => {
                while let Some(job) = next(line) {
                    carry_out(job, Err(again(&error)));
                }
            }
        }
    }
}

/// Carries a request out. One that panics takes its own answer along and nobody else's.
fn carry_out(job: Job, pass: io::Result<&Pass<'_>>) {
    if catch_unwind(AssertUnwindSafe(|| job(pass))).is_err() {
        tracing::error!("a request panicked inside the gate; this is a bug in leasehold");
    }
}

/// The request that has waited longest.
fn next(line: &Line) -> Option<Job> {
    loop {
        let waiting = lock(&line.state).waiting.pop_front()?;
        let job = lock(&waiting.job).take();
        if job.is_some() {
            return job;
        }
    }
}

/// Drops the requests whose time is over; their callers see that nobody will answer.
fn give_up_overdue(line: &Line) {
    let now = SystemClock::new().now();
    let mut overdue = Vec::new();
    lock(&line.state).waiting.retain(|waiting| {
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
