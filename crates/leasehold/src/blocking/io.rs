//! The thread behind blocking clients, and waiting for what runs there.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use leasehold_clock::Driver;
use leasehold_core::{Error, ErrorKind, Result};
use tokio::runtime::Handle;

/// The process's own thread, which drives the timers, sockets and background tasks of blocking
/// clients.
#[derive(Clone, Debug)]
pub(super) struct Io(Driver);

impl Io {
    pub(super) fn start() -> Result<Self> {
        Driver::current().map(Self)
    }

    pub(super) const fn runtime(&self) -> &Handle {
        self.0.runtime()
    }

    /// Whether this process has the thread; it does not exist in a fork's child.
    pub(super) fn is_ours(&self) -> bool {
        self.0.is_ours()
    }

    /// Succeeds if the caller may wait here.
    pub(super) fn check(&self) -> Result<()> {
        if !self.is_ours() {
            return Err(Error::new(
                ErrorKind::Misuse,
                "this client belongs to the parent process; make one of its own after a fork",
            ));
        }
        if self.0.is_here() {
            return Err(Error::new(
                ErrorKind::Misuse,
                "leasehold's own thread can't wait for itself; don't use a blocking client from \
                 inside its store",
            ));
        }
        check_caller()
    }

    /// Runs a future on the caller's thread until it is done, with this thread's timers and
    /// sockets. [`check`](Self::check) comes first.
    pub(super) fn wait<F: Future>(&self, future: F) -> F::Output {
        // tokio's own `block_on` panics in places that `check` accepts, such as a future polled
        // without a budget; this one works wherever a thread can wait.
        let mut future = pin!(future);
        let signal = Arc::new(Signal::default());
        let waker = Waker::from(Arc::clone(&signal));
        let mut context = Context::from_waker(&waker);
        loop {
            let entered = self.runtime().enter();
            let poll = future.as_mut().poll(&mut context);
            drop(entered);
            if let Poll::Ready(output) = poll {
                return output;
            }
            signal.wait();
        }
    }
}

/// Succeeds outside of an async runtime.
pub(super) fn check_caller() -> Result<()> {
    match Handle::try_current() {
        Ok(_) if is_polled() => Err(Error::new(
            ErrorKind::Misuse,
            "a blocking call inside an async runtime would delay its tasks; use the async API \
             there, or spawn_blocking",
        )),
        Err(error) if error.is_thread_local_destroyed() => Err(Error::new(
            ErrorKind::Misuse,
            "the thread is ending; make blocking calls before its thread-local values go",
        )),
        _ => Ok(()),
    }
}

/// Whether a tokio runtime is polling the caller at this moment.
///
/// A runtime's handle is available in `spawn_blocking` too, where waiting is right. The budget
/// distinguishes the two without a panic. Code that tokio polls may take a limited number of steps
/// before it has to yield; other code may take any number.
fn is_polled() -> bool {
    let mut context = Context::from_waker(Waker::noop());
    (0..=BUDGET_MAX).any(|_| {
        let step = pin!(tokio::task::coop::consume_budget());
        step.poll(&mut context).is_pending()
    })
}

/// tokio's budget is 128 steps for one poll; this leaves room for it to grow, and costs a
/// microsecond, in `spawn_blocking` only.
const BUDGET_MAX: u32 = 1_024;

#[derive(Debug, Default)]
struct Signal {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    fn wait(&self) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.changed.wait_while(woken, |woken| !*woken);
        *wait.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}
