//! Calls between Python and leasehold: waits, and messages to a thread of Python.
//!
//! This is the only file that takes the interpreter's lock, and it does so on Python's own threads
//! alone. A thread of leasehold that waited for it would renew no lease meanwhile.

use std::convert::Infallible;
use std::ffi::CString;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use leasehold::{Error, ErrorKind, Result};
use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::{PyResourceWarning, PyRuntimeWarning};
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::awaiting::Waiting;
use crate::client;
use crate::clock::Timed;
use crate::convert::raising;
use crate::errors;
use crate::guard::Lease;
use crate::log;
use crate::process::{PerProcess, driver};
use crate::wait::{self, Signal};

/// Whether the thread `leasehold-calls` has begun in this process.
static READS: PerProcess<()> = PerProcess::new();

/// How many log events may wait for the thread that writes them.
const LOGS_WAITING: usize = 10_000;

/// Who calls: a thread, which waits, or a task of an event loop, which awaits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Face {
    Threads,
    Tasks,
}

impl Face {
    /// Carries out an operation, and makes Python's value of its outcome.
    pub(crate) fn run<T: Send + 'static>(
        self,
        py: Python<'_>,
        operation: Timed<impl Future<Output = Result<T>> + Send + 'static>,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        self.run_with(py, None, operation, give)
    }

    /// As [`run`](Self::run), with a guard whose object has to live meanwhile.
    pub(crate) fn run_with<T: Send + 'static>(
        self,
        py: Python<'_>,
        guard: Option<Py<Lease>>,
        operation: Timed<impl Future<Output = Result<T>> + Send + 'static>,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        if log::is_on() && READS.get().is_none() {
            // A fork's child has its parent's logger, and not its thread.
            py.import("leasehold._calls")?.getattr("start")?.call0()?;
        }
        match self {
            Self::Threads => {
                let outcome = wait(py, operation)?;
                drop(guard);
                give(py, outcome.map_err(raising(py))?)
            }
            Self::Tasks => Waiting::new(guard, operation, give).into_py_any(py),
        }
    }
}

/// Makes Python's value of a value that has one.
pub(crate) fn plain<T>(py: Python<'_>, value: T) -> PyResult<Py<PyAny>>
where
    T: for<'py> IntoPyObject<'py>,
{
    value.into_py_any(py)
}

/// Makes `None` of an outcome without a value.
pub(crate) fn nothing(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

/// The thread in which the interpreter ends, once it does.
fn end_of_process() -> &'static OnceLock<ThreadId> {
    static END: PerProcess<OnceLock<ThreadId>> = PerProcess::new();
    END.get_or(OnceLock::new)
}

/// Whether the interpreter ends in another thread. Only daemon threads are left then.
fn ends_elsewhere() -> bool {
    end_of_process().get().is_some_and(|ends| *ends != thread::current().id())
}

/// The end of a daemon thread: it stands still, as in the interpreter's own waits. An error would
/// be printed. To take the lock could end the thread in the midst of Rust's frames. If the process
/// is still there after this time, something waits for the thread, so it goes on.
fn stand_still() {
    thread::sleep(Duration::from_secs(10));
}

/// Waits in this thread, without the interpreter's lock, until a future is done. A signal's handler
/// that raises ends the wait: the future is dropped.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = Result<T>> + Send,
) -> PyResult<Result<T>> {
    if ends_elsewhere() {
        py.detach(stand_still);
    }
    let driver = driver().map_err(raising(py))?;
    if let Err(error) = Handle::try_current()
        && error.is_thread_local_destroyed()
    {
        return py.detach(|| Ok(wait_elsewhere(driver, future)));
    }
    let mut future = pin!(future);
    let signal = Signal::of_this_thread();
    let waker = Waker::from(Arc::clone(&signal));
    // What needs no wait runs under the GIL: a release of that costs more than most of it.
    let first = wait::poll(driver, future.as_mut(), &waker);
    let output = match first {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => py.detach(|| {
            let mut is_told = false;
            let look = |is_long: bool| {
                check_signals()?;
                let tells = is_long && !std::mem::replace(&mut is_told, is_long);
                if tells { warn_of_blocked_loop() } else { Ok(()) }
            };
            let output = wait::until_ready(driver, future.as_mut(), &signal, &waker, look);
            if ends_elsewhere() {
                stand_still();
            }
            output
        }),
    };
    drop(waker);
    signal.put_back();
    output
}

fn check_signals() -> PyResult<()> {
    if ends_elsewhere() {
        // Only the main thread handles signals, and the interpreter may have gone.
        return Ok(());
    }
    Python::attach(|py| py.check_signals())
}

/// Waits in a thread that is made for it. uWSGI ends the interpreter while its process exits, when
/// what libraries keep for the thread is gone. No signal ends such a wait.
fn wait_elsewhere<T: Send>(
    driver: &Handle,
    future: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    let waits = move || {
        let mut future = pin!(future);
        let signal = Signal::of_this_thread();
        let waker = Waker::from(Arc::clone(&signal));
        match wait::poll(driver, future.as_mut(), &waker) {
            Poll::Ready(output) => output,
            Poll::Pending => {
                let waited = wait::until_ready(driver, future, &signal, &waker, |_| Ok(()));
                waited.unwrap_or_else(|never: Infallible| match never {})
            }
        }
    };
    let failed = |_| Error::new(ErrorKind::Unavailable, "no thread could be made for a wait");
    thread::scope(|scope| {
        let waiting = thread::Builder::new().spawn_scoped(scope, waits);
        waiting.map_err(failed)?.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Warns of a wait that has kept an event loop of this thread from its other tasks for a second:
/// one of them may have the lock. Where warnings are errors, it ends the wait.
fn warn_of_blocked_loop() -> PyResult<()> {
    if ends_elsewhere() {
        return Ok(());
    }
    Python::attach(|py| {
        let modules = py.import("sys")?.getattr("modules")?;
        let asyncio = modules.call_method1("get", ("asyncio",))?;
        if asyncio.is_none() || asyncio.call_method0("_get_running_loop")?.is_none() {
            return Ok(());
        }
        let words = c"this wait has blocked its thread's event loop for a second; in a coroutine \
                      use leasehold.aio";
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), words, 1)
    })
}

/// Warns of a guard that was never released. It may be called while an exception is on its way.
pub(crate) fn warn_of_forgotten(key: &str) {
    if end_of_process().get().is_some() {
        return;
    }
    Python::attach(|py| {
        let raised = PyErr::take(py);
        let words = format!("the guard of {key:?} was never released; leave it by `with`");
        if let Ok(words) = CString::new(words) {
            let category = py.get_type::<PyResourceWarning>();
            if let Err(error) = PyErr::warn(py, &category, &words, 1) {
                error.write_unraisable(py, None);
            }
        }
        if let Some(raised) = raised {
            raised.restore(py);
        }
    });
}

/// A message to the thread `leasehold-calls`.
#[derive(Debug)]
pub(crate) enum Call {
    /// The guard with this number has lost its lease.
    Lost(u64),
    /// A log event: its level as `logging` counts, its target, and its text.
    Log(u8, &'static str, String),
}

#[derive(Debug)]
struct Queue {
    sender: UnboundedSender<Call>,
    receiver: Mutex<UnboundedReceiver<Call>>,
    logs: AtomicUsize,
    dropped: AtomicUsize,
}

fn queue() -> &'static Queue {
    static QUEUE: PerProcess<Queue> = PerProcess::new();
    QUEUE.get_or(|| {
        let (sender, receiver) = unbounded_channel();
        let receiver = Mutex::new(receiver);
        Queue { sender, receiver, logs: AtomicUsize::new(0), dropped: AtomicUsize::new(0) }
    })
}

/// Tells the thread `leasehold-calls`. Blocks never; any thread may call it.
pub(crate) fn tell(call: Call) {
    let queue = queue();
    if matches!(call, Call::Log(..)) && queue.logs.fetch_add(1, Ordering::AcqRel) >= LOGS_WAITING {
        queue.logs.fetch_sub(1, Ordering::AcqRel);
        queue.dropped.fetch_add(1, Ordering::AcqRel);
        return;
    }
    // The receiver lives as long as the process.
    queue.sender.send(call).ok();
}

/// The next message to the thread `leasehold-calls`.
#[pyfunction]
pub(crate) fn next_call(py: Python<'_>) -> PyResult<Py<PyAny>> {
    READS.set(());
    let queue = queue();
    let next = wait(py, async { Ok(queue.receiver.lock().await.recv().await) })?;
    match next.map_err(raising(py))? {
        Some(Call::Lost(number)) => plain(py, ("lost", number)),
        Some(Call::Log(level, target, text)) => {
            queue.logs.fetch_sub(1, Ordering::AcqRel);
            let dropped = queue.dropped.swap(0, Ordering::AcqRel);
            plain(py, ("log", level, target, text, dropped))
        }
        None => Ok(py.None()),
    }
}

/// Called once, at the end of the interpreter: closes all clients.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) -> PyResult<()> {
    // For finalisers, which run later.
    errors::module(py)?;
    // It is set once.
    end_of_process().set(thread::current().id()).ok();
    let closed = if client::any() { wait(py, client::close_all())? } else { Ok(()) };
    closed.map_err(raising(py))
}
