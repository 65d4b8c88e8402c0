//! Awaits in asyncio: a future is polled on its event loop's own thread.
//!
//! No mutex of this file is held over a call of Python, which may run anything, also a `__del__`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Poll, Waker};

use leasehold::{Error, ErrorKind, Result};
use pyo3::exceptions::PyStopIteration;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyType, PyWeakrefMethods, PyWeakrefReference};

use crate::bell::Bell;
use crate::convert::raising;
use crate::guard::{AGuard, Slot};
use crate::process::{Ours, driver};
use crate::wait;

/// Makes Python's value of an outcome.
type Made = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Running = Pin<Box<dyn Future<Output = Result<Made>> + Send>>;

/// What sleeps on an event loop, by number.
#[derive(Default)]
pub(crate) struct Sleepers {
    sleeping: Mutex<HashMap<u64, Sleeper>>,
    next: AtomicU64,
}

enum Sleeper {
    /// The task that awaits this future of asyncio goes on.
    Task(Py<PyAny>),
    /// If the lease is lost, the task is cancelled.
    Loss(Loss),
}

struct Loss {
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
    waker: Waker,
    /// Weak, since the task has the guard: else the two would keep each other.
    task: Py<PyWeakrefReference>,
    slot: Weak<Slot>,
    is_told: Arc<AtomicBool>,
}

impl Sleepers {
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn put(&self, number: u64, sleeper: Sleeper) {
        let before = self.locked().insert(number, sleeper);
        drop(before);
    }

    fn take(&self, number: u64) -> Option<Sleeper> {
        self.locked().remove(&number)
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Sleeper>> {
        self.sleeping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// leasehold's part of one event loop, which owns it by watching its descriptor.
#[pyclass(frozen, weakref, module = "leasehold._leasehold")]
pub(crate) struct Hub {
    bell: Arc<Bell>,
    sleepers: Ours<Arc<Sleepers>>,
    event_loop: Py<PyAny>,
    create_future: Py<PyAny>,
}

#[pymethods]
impl Hub {
    /// The loop calls this when the bell was rung.
    fn wake(&self, py: Python<'_>) -> PyResult<()> {
        let sleepers = self.sleepers.get().map_err(raising(py))?;
        // All are woken, whatever goes wrong with one of them.
        let wake = |number| match sleepers.take(number) {
            Some(Sleeper::Task(future)) => go_on(future.bind(py)),
            Some(Sleeper::Loss(loss)) => look(py, sleepers, number, loss),
            None => Ok(()),
        };
        self.bell.answer().into_iter().map(wake).fold(Ok(()), PyResult::and)
    }
}

/// Has the task that awaits this future go on.
fn go_on(future: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    if future.call_method0(intern!(py, "done"))?.is_truthy()? {
        return Ok(());
    }
    future.call_method1(intern!(py, "set_result"), (py.None(),)).map(drop)
}

/// Cancels the task if the lease is lost; else waits on.
fn look(py: Python<'_>, sleepers: &Sleepers, number: u64, mut loss: Loss) -> PyResult<()> {
    let driver = driver().map_err(raising(py))?;
    if wait::poll(driver, loss.lost.as_mut(), &loss.waker).is_pending() {
        sleepers.put(number, Sleeper::Loss(loss));
        return Ok(());
    }
    // A guard that was released has no loss.
    if loss.slot.upgrade().is_none_or(|slot| slot.is_over()) {
        return Ok(());
    }
    if let Some(task) = loss.task.bind(py).upgrade() {
        loss.is_told.store(true, Ordering::Release);
        task.call_method0(intern!(py, "cancel"))?;
    }
    Ok(())
}

thread_local! {
    /// The hubs of the loops that ran in this thread. Weak: each belongs to its loop.
    static HUBS: RefCell<Vec<Py<PyWeakrefReference>>> = const { RefCell::new(Vec::new()) };
}

fn asyncio(py: Python<'_>, name: &'static str) -> PyResult<Py<PyAny>> {
    py.import("asyncio")?.getattr(name).map(Bound::unbind)
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    GET.get_or_try_init(py, || asyncio(py, "get_running_loop"))?.bind(py).call0()
}

/// The hub of the loop that runs in this thread, made if it is not there.
fn hub(py: Python<'_>) -> PyResult<Bound<'_, Hub>> {
    let event_loop = running_loop(py)?;
    let known = HUBS.with_borrow(|hubs| {
        hubs.iter().rev().find_map(|hub| {
            let hub = hub.bind(py).upgrade()?.cast_into::<Hub>().ok()?;
            let it = hub.get();
            (it.event_loop.is(&event_loop) && it.sleepers.is_ours()).then_some(hub)
        })
    });
    if let Some(known) = known {
        return Ok(known);
    }
    let bell = Arc::new(Bell::new()?);
    let descriptor = bell.descriptor();
    let create_future = event_loop.getattr(intern!(py, "create_future"))?.unbind();
    let hub = Hub {
        bell,
        sleepers: Ours::new(Arc::default()),
        event_loop: event_loop.clone().unbind(),
        create_future,
    };
    let hub = Bound::new(py, hub)?;
    let wake = hub.getattr(intern!(py, "wake"))?;
    event_loop.call_method1(intern!(py, "add_reader"), (descriptor, wake))?;
    let weak = PyWeakrefReference::new(&hub)?.unbind();
    let gone = HUBS.with_borrow_mut(|hubs| {
        let (live, gone) =
            std::mem::take(hubs).into_iter().partition(|hub| hub.bind(py).upgrade().is_some());
        *hubs = live;
        hubs.push(weak);
        let gone: Vec<_> = gone;
        gone
    });
    drop(gone);
    Ok(hub)
}

/// How far an await has come.
enum State {
    /// Awaited or not yet.
    Open(Running),
    /// It is polled at this moment.
    Polled,
    Over,
}

/// The loop on which an await began.
struct Place {
    bell: Arc<Bell>,
    sleepers: Weak<Sleepers>,
    number: u64,
    waker: Waker,
}

/// One step of an await.
enum Step {
    Ready(Py<PyAny>),
    Pending(Py<PyAny>),
}

impl Step {
    /// As an iterator tells it.
    fn told(self) -> PyResult<Py<PyAny>> {
        match self {
            Self::Pending(future) => Ok(future),
            Self::Ready(value) => Err(PyStopIteration::new_err((value,))),
        }
    }
}

/// An operation that is awaited once, on one loop. Dropped or cancelled, it leaves nothing.
struct Await(Ours<Mutex<(State, Option<Place>)>>);

impl Await {
    fn new<T: Send + 'static>(
        operation: impl Future<Output = Result<T>> + Send + 'static,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let running: Running = Box::pin(async move {
            let value = operation.await?;
            Ok(Box::new(move |py: Python<'_>| give(py, value)) as Made)
        });
        Self(Ours::new(Mutex::new((State::Open(running), None))))
    }

    fn step(&self, py: Python<'_>) -> PyResult<Step> {
        let parts = self.0.get().map_err(raising(py))?;
        let locked = || parts.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, place) = {
            let mut parts = locked();
            (std::mem::replace(&mut parts.0, State::Polled), parts.1.take())
        };
        let State::Open(mut running) = state else {
            locked().0 = state;
            let why = "this was awaited before; call its method again for another await";
            return Err(raising(py)(Error::new(ErrorKind::Misuse, why)));
        };
        let driver = driver().map_err(raising(py))?;
        let hub = match hub(py) {
            Ok(hub) => hub,
            // Where no loop runs, such as in the end of a generator, only a wait is refused.
            Err(error) => match wait::poll(driver, running.as_mut(), Waker::noop()) {
                Poll::Ready(outcome) => return outcome.map_err(raising(py))?(py).map(Step::Ready),
                Poll::Pending => return Err(error),
            },
        };
        let hub = hub.get();
        let sleepers = hub.sleepers.get().map_err(raising(py))?;
        let place = match place {
            Some(place) if Arc::ptr_eq(&place.bell, &hub.bell) => place,
            Some(_) => {
                let why = "this is awaited on another event loop already";
                return Err(raising(py)(Error::new(ErrorKind::Misuse, why)));
            }
            None => {
                let number = sleepers.number();
                let (bell, waker) = (Arc::clone(&hub.bell), hub.bell.waker(number));
                Place { bell, sleepers: Arc::downgrade(sleepers), number, waker }
            }
        };
        match wait::poll(driver, running.as_mut(), &place.waker) {
            Poll::Ready(outcome) => {
                locked().0 = State::Over;
                drop(running);
                outcome.map_err(raising(py))?(py).map(Step::Ready)
            }
            Poll::Pending => {
                let future = hub.create_future.bind(py).call0()?;
                future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
                sleepers.put(place.number, Sleeper::Task(future.clone().unbind()));
                *locked() = (State::Open(running), Some(place));
                Ok(Step::Pending(future.unbind()))
            }
        }
    }

    /// Ends it: what it has begun is undone in the background.
    fn stop(&self) {
        let Ok(parts) = self.0.get() else { return };
        let (state, place) = {
            let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::replace(&mut parts.0, State::Over), parts.1.take())
        };
        drop(state);
        if let Some(place) = place
            && let Some(sleepers) = place.sleepers.upgrade()
        {
            drop(sleepers.take(place.number));
        }
    }

    fn throw(
        &self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
    ) -> PyErr {
        self.stop();
        let raised = value.filter(|value| !value.is_none()).unwrap_or(kind);
        let raised = if raised.is_instance_of::<PyType>() { raised.call0() } else { Ok(raised) };
        let _ = py;
        raised.map_or_else(|failed| failed, PyErr::from_value)
    }
}

impl Drop for Await {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The methods of what a task awaits, by the one that steps it.
macro_rules! awaited {
    ($class:ident, |$this:ident| $awaits:expr, |$slf:ident, $py:ident| $step:expr
     $(, { $($more:tt)* })?) => {
        #[pymethods]
        impl $class {
            fn __await__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            fn __iter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            fn __next__($slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
                let $py = $slf.py();
                $step?.told()
            }

            #[doc = about!("aio.Acquiring.send")]
            #[pyo3(signature = (value=None))]
            fn send(
                slf: &Bound<'_, Self>,
                value: Option<Bound<'_, PyAny>>,
            ) -> PyResult<Py<PyAny>> {
                drop(value);
                Self::__next__(slf)
            }

            #[doc = about!("aio.Acquiring.throw")]
            #[pyo3(signature = (kind, value=None, traceback=None))]
            fn throw(
                &self,
                py: Python<'_>,
                kind: Bound<'_, PyAny>,
                value: Option<Bound<'_, PyAny>>,
                traceback: Option<Bound<'_, PyAny>>,
            ) -> PyResult<Py<PyAny>> {
                drop(traceback);
                let $this = self;
                Err($awaits.throw(py, kind, value))
            }

            #[doc = about!("aio.Acquiring.close")]
            fn close(&self) {
                let $this = self;
                $awaits.stop();
            }

            $($($more)*)?
        }
    };
}

/// An operation that is awaited.
#[pyclass(frozen, module = "leasehold.aio")]
pub(crate) struct Waiting(Await);

impl Waiting {
    pub(crate) fn new<T: Send + 'static>(
        operation: impl Future<Output = Result<T>> + Send + 'static,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        Self(Await::new(operation, give))
    }
}

awaited!(Waiting, |this| this.0, |slf, py| slf.get().0.step(py));

#[doc = about!("aio.Acquiring")]
#[pyclass(frozen, generic, module = "leasehold.aio")]
pub(crate) struct Acquiring {
    awaits: Await,
    cancel_on_loss: bool,
    entered: Mutex<Option<Py<PyAny>>>,
}

impl Acquiring {
    pub(crate) fn new<T: Send + 'static>(
        operation: impl Future<Output = Result<T>> + Send + 'static,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
        cancel_on_loss: bool,
    ) -> Self {
        Self { awaits: Await::new(operation, give), cancel_on_loss, entered: Mutex::default() }
    }

    fn enter(&self, py: Python<'_>) -> PyResult<Step> {
        let step = self.awaits.step(py)?;
        if let Step::Ready(guard) = &step {
            let entered = guard.bind(py).cast::<AGuard>()?;
            entered.as_super().get().enter(py)?;
            if self.cancel_on_loss {
                AGuard::watch(entered)?;
            }
            let guard = guard.clone_ref(py);
            *self.entered.lock().unwrap_or_else(PoisonError::into_inner) = Some(guard);
        }
        Ok(step)
    }
}

awaited!(Acquiring, |this| this.awaits, |slf, py| slf.get().awaits.step(py), {
    fn __aenter__(slf: Py<Self>) -> Entering {
        Entering(slf)
    }

    fn __aexit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        raised: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Waiting> {
        drop((kind, traceback));
        let guard = self.entered.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(guard) = guard else {
            return Err(raising(py)(Error::new(ErrorKind::Misuse, "this was not entered")));
        };
        AGuard::leave(guard.bind(py).cast::<AGuard>()?, raised)
    }
});

/// The way into `async with`.
#[pyclass(frozen, module = "leasehold.aio")]
pub(crate) struct Entering(Py<Acquiring>);

awaited!(Entering, |this| this.0.get().awaits, |slf, py| slf.get().0.get().enter(py));

/// Watches a lease for the task that entered `async with`.
pub(crate) struct Watch {
    sleepers: Weak<Sleepers>,
    number: u64,
    task: Py<PyWeakrefReference>,
    /// How many requests to cancel the task there were before.
    cancelling: u64,
    is_told: Arc<AtomicBool>,
}

impl Watch {
    /// From now on a loss cancels the running task.
    pub(crate) fn begin(
        py: Python<'_>,
        slot: &Arc<Slot>,
        lost: impl Future<Output = ()> + Send + 'static,
    ) -> PyResult<Self> {
        static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let current = CURRENT.get_or_try_init(py, || asyncio(py, "current_task"))?.bind(py);
        let task = current.call0()?;
        if task.is_none() {
            let why = "`async with` cancels its task on a loss, and there is no task here";
            return Err(raising(py)(Error::new(ErrorKind::Misuse, why)));
        }
        let cancelling = task.call_method0(intern!(py, "cancelling"))?.extract()?;
        let task = PyWeakrefReference::new(&task)?.unbind();
        let hub = hub(py)?;
        let hub = hub.get();
        let sleepers = hub.sleepers.get().map_err(raising(py))?;
        let number = sleepers.number();
        let is_told = Arc::new(AtomicBool::new(false));
        let loss = Loss {
            lost: Box::pin(lost),
            waker: hub.bell.waker(number),
            task: task.clone_ref(py),
            slot: Arc::downgrade(slot),
            is_told: Arc::clone(&is_told),
        };
        look(py, sleepers, number, loss)?;
        Ok(Self { sleepers: Arc::downgrade(sleepers), number, task, cancelling, is_told })
    }

    /// Ends it. Returns whether the exception that leaves the body is the loss's own cancel, as
    /// `asyncio.timeout` decides it. `None` without a loss.
    pub(crate) fn end(
        self,
        py: Python<'_>,
        raised: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<bool>> {
        if !self.is_told.load(Ordering::Acquire) {
            return Ok(None);
        }
        let left = match self.task.bind(py).upgrade() {
            Some(task) => task.call_method0(intern!(py, "uncancel"))?.extract()?,
            None => 0,
        };
        let is_cancelled = match raised {
            Some(raised) => raised.is_instance(asyncio(py, "CancelledError")?.bind(py))?,
            None => true,
        };
        Ok(Some(is_cancelled && self.cancelling >= left))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(sleepers) = self.sleepers.upgrade() {
            drop(sleepers.take(self.number));
        }
    }
}
