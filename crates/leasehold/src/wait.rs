//! Waits for a future on the caller's thread, for programs without a runtime.

use std::cell::Cell;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use leasehold_clock::{Driver, SystemClock};
use leasehold_core::{Clock as _, Error, ErrorKind, Result};
use tokio::runtime::Handle;

use crate::lease::not_changed::NotChanged;
use crate::lease::release::Releases;
use crate::rt;

/// Waits for a future in a thread, without a runtime.
///
/// ```
/// use leasehold::{Client, Wait};
///
/// # fn main() -> leasehold::Result<()> {
/// let client = Client::connect("memory:").wait()?;
/// if let Some(guard) = client.mutex("reports/daily").try_lock().wait()? {
///     // … the report …
///     guard.release().wait()?;
/// }
/// client.close().wait()
/// # }
/// ```
///
/// Any future can be waited for, also an `async` block with several calls. Its output must be one
/// of the [`Outcome`]s. All clients, locks and guards can be shared between threads, and any number
/// of threads may wait at once.
///
/// The future runs on the calling thread. Its timers and connections, and what it spawns, are on
/// leasehold's [own thread](crate::driver). A body under a lock may compute, block, and wait
/// itself.
///
/// ```
/// # use leasehold::{Client, Wait};
/// # fn main() -> leasehold::Result<()> {
/// # let client = Client::connect("memory:").wait()?;
/// let mutex = client.mutex("reports/daily");
/// let pages = mutex.run(async |lease| {
///     let mut pages = 0;
///     while pages < 3 && lease.is_held() {
///         pages += 1;
///     }
///     pages
/// });
/// assert_eq!(pages.wait()?, 3);
/// # Ok(()) }
/// ```
///
/// A thread can't be stopped from outside. If the lease is lost, such a body goes on until it
/// looks: call [`check`](crate::HeldLease::check) before each side effect, and give the
/// [fencing token](crate::fencing) to the resource.
///
/// # Inside an async runtime
///
/// A task that waits for a thread holds up all other tasks of its thread. So in code that tokio
/// polls the wait is refused with [`ErrorKind::Misuse`]: use `.await` there, or wait in
/// `spawn_blocking`. The future is then dropped before its first step, and no request was sent.
/// Dropping a guard is fine anywhere. Code under `tokio::task::unconstrained` looks like code in
/// `spawn_blocking`, so a wait there blocks its thread. Other runtimes can't be recognised.
///
/// # Signals
///
/// A signal's handler runs at once, also while its thread waits, and the wait goes on. To end waits
/// at a Ctrl-C, call [`Client::close`](crate::Client::close) from another thread. The waits then
/// fail with
/// [`ErrorKind::Closed`], and no position stays in a queue.
///
/// # At the end of the process
///
/// leasehold's thread releases what guards leave behind while the process lives. Call
/// [`Client::close`](crate::Client::close) before `main` returns. Functions that run after it
/// (`atexit`, destructors of thread-local values and of a C library) come too late: waits there are
/// refused, or find no thread. A guard in a `static` is never dropped. Such a lease expires.
///
/// # After `fork`
///
/// A child made by `fork` holds no lease. Calls of the parent's clients are refused there with
/// [`ErrorKind::Misuse`]. Dropping such a client or guard leaves the parent's leases alone. The
/// child can make clients of its own.
pub trait Wait: Future + Sized {
    /// Waits until the future is done, on this thread.
    ///
    /// # Cost
    ///
    /// The cost of the future. If it has to wait, the thread sleeps and is woken once for each
    /// step. The wait has no limit of its own: a lock has
    /// [`lock_within`](crate::Mutex::lock_within) and
    /// [`wait_limit`](crate::LockOptions::wait_limit).
    ///
    /// # Errors
    ///
    /// The errors of the future, and these of the wait. The future is dropped then, and its first
    /// step was not made:
    ///
    /// * [`ErrorKind::Misuse`] – inside an async runtime, on leasehold's own thread, or while the
    ///   thread ends.
    /// * [`ErrorKind::Unavailable`] – leasehold's thread can't be started.
    fn wait(self) -> Result<<Self::Output as Outcome>::Value, <Self::Output as Outcome>::Error>
    where
        Self::Output: Outcome,
    {
        Self::Output::of(block_on(self))
    }

    /// As [`wait`](Self::wait), for at most `limit`; `None` if the future is not done by then. It
    /// is dropped then, which is as its method says under *Cancel safety*.
    ///
    /// It is for what has no limit itself: a loss, a release request, an event. For locks use
    /// `lock_within`, whose error names the holder.
    ///
    /// ```
    /// # use leasehold::{Client, Wait};
    /// # use std::time::Duration;
    /// # fn main() -> leasehold::Result<()> {
    /// # let client = Client::connect("memory:").wait()?;
    /// let guard = client.mutex("reports/daily").lock().wait()?;
    /// let pause = Duration::from_millis(10);
    /// for page in 1..=3 {
    ///     // … the page …
    ///     if guard.lost().wait_within(pause)?.is_some() {
    ///         break;
    ///     }
    /// }
    /// # guard.release().wait() }
    /// ```
    ///
    /// # Cost
    ///
    /// As of [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// As of [`wait`](Self::wait): [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    fn wait_within(
        self,
        limit: Duration,
    ) -> Result<Option<<Self::Output as Outcome>::Value>, <Self::Output as Outcome>::Error>
    where
        Self::Output: Outcome,
    {
        match block_on(within(limit, self)) {
            Ok(None) => Ok(None),
            Ok(Some(output)) => Self::Output::of(Ok(output)).map(Some),
            Err(refusal) => Self::Output::of(Err(refusal)).map(Some),
        }
    }
}

impl<F: Future> Wait for F {}

/// The output of a future that threads can wait for: one that can tell of a refused wait.
///
/// | output | waiting returns |
/// | --- | --- |
/// | `Result<T, E>`, with an `E` that is made of an [`Error`] | the same |
/// | `Result<T, NotChanged<G>>` | `Result<T, NotChanged<Option<G>>>`; a refused wait drops the guard, which releases its lease |
/// | `()`, `Option<T>`, [`Releases`] | `Result<(), Error>` and so on |
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't tell that a thread may not wait here",
    note = "end an `async` block with `Ok::<_, leasehold::Error>(value)`"
)]
pub trait Outcome: Sized {
    /// The value of a future that succeeds.
    type Value;
    /// The error of one that fails, or of a refused wait.
    type Error;

    /// The result of a wait, by the future's output or the error of a refused wait.
    ///
    /// # Errors
    ///
    /// The future's own, or the refusal.
    fn of(output: Result<Self>) -> Result<Self::Value, Self::Error>;
}

impl<T, E: From<Error>> Outcome for Result<T, E> {
    type Value = T;
    type Error = E;

    fn of(output: Result<Self>) -> Self {
        output?
    }
}

impl<T, G> Outcome for Result<T, NotChanged<G>> {
    type Value = T;
    type Error = NotChanged<Option<G>>;

    fn of(output: Result<Self>) -> Result<T, NotChanged<Option<G>>> {
        let changed = output.map_err(|refusal| NotChanged::new(None, refusal))?;
        changed.map_err(|not| not.map(Some))
    }
}

impl<T> Outcome for Option<T> {
    type Value = Self;
    type Error = Error;

    fn of(output: Result<Self>) -> Result<Self> {
        output
    }
}

impl Outcome for () {
    type Value = ();
    type Error = Error;

    fn of(output: Result<()>) -> Result<()> {
        output
    }
}

impl Outcome for Releases {
    type Value = Self;
    type Error = Error;

    fn of(output: Result<Self>) -> Result<Self> {
        output
    }
}

/// Runs a future on the caller's thread until it is done, with the timers and sockets of
/// leasehold's own thread.
fn block_on<F: Future>(future: F) -> Result<F::Output> {
    let driver = Driver::current()?;
    check_caller(&driver)?;
    // tokio's own `block_on` panics in places that the check accepts, such as a future polled
    // without a budget; this one works wherever a thread can wait.
    let mut future = pin!(future);
    let signal = Signal::of_this_thread();
    let waker = Waker::from(Arc::clone(&signal));
    let mut context = Context::from_waker(&waker);
    loop {
        let entered = driver.runtime().enter();
        let poll = future.as_mut().poll(&mut context);
        drop(entered);
        if let Poll::Ready(output) = poll {
            signal.put_back();
            return Ok(output);
        }
        signal.wait();
    }
}

/// Whether something happens within `limit`.
async fn within<F: Future>(limit: Duration, happens: F) -> Option<F::Output> {
    let clock = SystemClock::new();
    let until = clock.now().saturating_add(limit);
    tokio::select! {
        biased;
        output = happens => Some(output),
        () = rt::sleep_until(&clock, until) => None,
    }
}

/// Succeeds where a thread may wait.
fn check_caller(driver: &Driver) -> Result<()> {
    let refuse = |why| Err(Error::new(ErrorKind::Misuse, why));
    if driver.is_here() {
        return refuse(
            "leasehold's own thread can't wait for itself; don't wait inside a store or a clock",
        );
    }
    match Handle::try_current() {
        Ok(_) if is_polled() => refuse(
            "a thread's wait inside an async runtime would delay its tasks; use `.await` there, or \
             wait in `spawn_blocking`",
        ),
        Err(error) if error.is_thread_local_destroyed() => {
            refuse("the thread is ending; wait before its thread-local values go")
        }
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
/// microsecond, where a runtime was entered only.
const BUDGET_MAX: u32 = 1_024;

thread_local! {
    /// The signal that no wait of this thread uses at the moment.
    static IDLE: Cell<Option<Arc<Signal>>> = const { Cell::new(None) };
}

/// Wakes a thread that waits.
#[derive(Debug, Default)]
struct Signal {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// One that no other wait uses: a wait inside the poll of another one would take its wake-ups.
    fn of_this_thread() -> Arc<Self> {
        IDLE.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    /// For the next wait. A late wake-up from this one costs that one a poll.
    fn put_back(self: Arc<Self>) {
        IDLE.try_with(|idle| idle.set(Some(self))).ok();
    }

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
