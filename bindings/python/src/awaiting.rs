//! Awaits in asyncio: a future is polled on its event loop's own thread.
//!
//! No mutex of this file is held over a call of Python, which may run anything, also a `__del__`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker, ready};

use leasehold::{Error, ErrorKind, Result};
use pyo3::exceptions::PyStopIteration;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyType, PyWeakrefMethods, PyWeakrefReference};

use crate::bell::Bell;
use crate::clock::{Time, Timed};
use crate::convert::raising;
use crate::guard::{AGuard, Lease, Slot};
use crate::process::{Ours, driver};
use crate::wait;

/// An operation, and what makes Python's value of its outcome.
struct Operation<F, G> {
    operation: Timed<F>,
    give: Option<G>,
}

/// An operation of any type.
trait Steps: Send {
    fn poll(&mut self, py: Python<'_>, waker: &Waker) -> Poll<PyResult<Py<PyAny>>>;
}

impl<T, F, G> Steps for Operation<F, G>
where
    F: Future<Output = Result<T>> + Send,
    G: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send,
{
    fn poll(&mut self, py: Python<'_>, waker: &Waker) -> Poll<PyResult<Py<PyAny>>> {
        let driver = driver().map_err(raising(py))?;
        let outcome = ready!(wait::poll(driver, Pin::new(&mut self.operation), waker));
        let value = outcome.map_err(raising(py))?;
        // It is polled no more, so this is there.
        Poll::Ready(self.give.take().map_or_else(|| Ok(py.None()), |give| give(py, value)))
    }
}
/// What sleeps on an event loop, by number.
#[derive(Default)]
pub(crate) struct Sleepers {
    sleeping: Mutex<BTreeMap<u64, Sleeper>>,
    /// Bodies that began since the loop's last turn.
    begun: Mutex<BTreeMap<u64, Arc<Body>>>,
    /// Whether the loop's next turn looks at those.
    looks: AtomicBool,
    next: AtomicU64,
}

enum Sleeper {
    /// The task that awaits this future of asyncio goes on.
    Task(Py<PyAny>),
    /// If the lease is lost, its task is cancelled.
    Loss(Loss),
}

struct Loss {
    lost: Pin<Box<dyn Future<Output = Result<bool>> + Send>>,
    waker: Waker,
    body: Arc<Body>,
}

impl Sleepers {
    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn put(&self, number: u64, sleeper: Sleeper) {
        let before = locked(&self.sleeping).insert(number, sleeper);
        drop(before);
    }

    fn take(&self, number: u64) -> Option<Sleeper> {
        locked(&self.sleeping).remove(&number)
    }

    fn forget(&self, number: u64) {
        let begun = locked(&self.begun).remove(&number);
        if begun.is_none() {
            drop(self.take(number));
        }
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// leasehold's part of one event loop, which owns it by watching its descriptor.
#[pyclass(frozen, weakref, module = "leasehold._leasehold")]
pub(crate) struct Hub {
    bell: Arc<Bell>,
    sleepers: Ours<Arc<Sleepers>>,
    event_loop: Py<PyAny>,
    create_future: Py<PyAny>,
    call_soon: Py<PyAny>,
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

    /// The loop calls this in the turn after bodies began.
    fn look(&self, py: Python<'_>) -> PyResult<()> {
        let sleepers = self.sleepers.get().map_err(raising(py))?;
        sleepers.looks.store(false, Ordering::Release);
        let begun = std::mem::take(&mut *locked(&sleepers.begun));
        let look = |(number, body): (u64, Arc<Body>)| {
            let lost = Lease::until_lost(Arc::clone(&body.slot), None);
            let lost = Box::pin(Timed::new(lost, body.time.clone()));
            let loss = Loss { lost, waker: self.bell.waker(number), body };
            look(py, sleepers, number, loss)
        };
        begun.into_iter().map(look).fold(Ok(()), PyResult::and)
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
    if loss.body.slot.is_over() {
        return Ok(());
    }
    if let Some(task) = loss.body.task.bind(py).upgrade() {
        loss.body.is_told.store(true, Ordering::Release);
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
    let call_soon = event_loop.getattr(intern!(py, "call_soon"))?.unbind();
    let hub = Hub {
        bell,
        sleepers: Ours::new(Arc::default()),
        event_loop: event_loop.clone().unbind(),
        create_future,
        call_soon,
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
    /// As `send` tells it.
    fn told(self) -> PyResult<Py<PyAny>> {
        match self {
            Self::Pending(future) => Ok(future),
            Self::Ready(value) => Err(PyStopIteration::new_err((value,))),
        }
    }

    /// As an iterator tells it. `None` is the end with the value `None`, without the cost of an
    /// exception.
    fn next(self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self {
            Self::Ready(value) if value.is_none(py) => Ok(None),
            other => other.told().map(Some),
        }
    }
}

/// An operation that is awaited once, on one loop. Dropped or cancelled, it leaves nothing.
struct Await(Ours<Mutex<Option<Open>>>);

/// An await that has not ended. While it is polled, it is not in its place.
struct Open {
    steps: Box<dyn Steps>,
    place: Option<Place>,
}

impl Await {
    fn new<T: Send + 'static>(
        operation: Timed<impl Future<Output = Result<T>> + Send + 'static>,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let steps = Box::new(Operation { operation, give: Some(give) });
        Self(Ours::new(Mutex::new(Some(Open { steps, place: None }))))
    }

    fn step(&self, py: Python<'_>) -> PyResult<Step> {
        let open = self.0.get().map_err(raising(py))?;
        let taken = locked(open).take();
        let Some(Open { mut steps, place }) = taken else {
            let why = "this was awaited before; call its method again for another await";
            return Err(raising(py)(Error::new(ErrorKind::Misuse, why)));
        };
        // Where no loop runs, such as in the end of a generator, only a wait is refused.
        if place.is_none()
            && let Poll::Ready(value) = steps.poll(py, Waker::noop())
        {
            return value.map(Step::Ready);
        }
        let hub = hub(py)?;
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
        if let Poll::Ready(value) = steps.poll(py, &place.waker) {
            return value.map(Step::Ready);
        }
        let future = hub.create_future.bind(py).call0()?;
        future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        sleepers.put(place.number, Sleeper::Task(future.clone().unbind()));
        *locked(open) = Some(Open { steps, place: Some(place) });
        Ok(Step::Pending(future.unbind()))
    }

    /// Ends it: what it has begun is undone in the background.
    fn stop(&self) {
        let Ok(open) = self.0.get() else { return };
        let taken = locked(open).take();
        let Some(Open { steps, place }) = taken else { return };
        drop(steps);
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

            fn __next__($slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
                let $py = $slf.py();
                $step?.next($py)
            }

            #[doc = about!("aio.Acquiring.send")]
            #[pyo3(signature = (value=None))]
            fn send(
                $slf: &Bound<'_, Self>,
                value: Option<Bound<'_, PyAny>>,
            ) -> PyResult<Py<PyAny>> {
                drop(value);
                let $py = $slf.py();
                $step?.told()
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
        operation: Timed<impl Future<Output = Result<T>> + Send + 'static>,
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
    /// Whether `async with` awaits it.
    enters: AtomicBool,
    entered: Mutex<Option<Py<PyAny>>>,
}

impl Acquiring {
    pub(crate) fn new<T: Send + 'static>(
        operation: Timed<impl Future<Output = Result<T>> + Send + 'static>,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
        cancel_on_loss: bool,
    ) -> Self {
        let (enters, entered) = (AtomicBool::new(false), Mutex::default());
        Self { awaits: Await::new(operation, give), cancel_on_loss, enters, entered }
    }

    fn step(&self, py: Python<'_>) -> PyResult<Step> {
        let step = self.awaits.step(py)?;
        if self.enters.load(Ordering::Acquire)
            && let Step::Ready(guard) = &step
        {
            let entered = guard.bind(py).cast::<AGuard>()?;
            entered.as_super().get().enter(py)?;
            if self.cancel_on_loss {
                AGuard::watch(entered)?;
            }
            let guard = guard.clone_ref(py);
            *locked(&self.entered) = Some(guard);
        }
        Ok(step)
    }
}

awaited!(Acquiring, |this| this.awaits, |slf, py| slf.get().step(py), {
    fn __aenter__(slf: Py<Self>) -> Py<Self> {
        slf.get().enters.store(true, Ordering::Release);
        slf
    }

    fn __aexit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        raised: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Waiting> {
        drop((kind, traceback));
        let guard = locked(&self.entered).take();
        let Some(guard) = guard else {
            return Err(raising(py)(Error::new(ErrorKind::Misuse, "this was not entered")));
        };
        AGuard::leave(guard.bind(py).cast::<AGuard>()?, raised)
    }
});

/// The body of an `async with`, whose task a loss cancels.
struct Body {
    slot: Arc<Slot>,
    time: Option<Arc<Time>>,
    /// Weak, since the task has the guard: else the two would keep each other.
    task: Py<PyWeakrefReference>,
    /// How many requests to cancel the task there were before.
    cancelling: u64,
    is_told: AtomicBool,
}

/// Watches the lease of a body. The loop's next turn is the first that can cancel its task, so only
/// a body that lasts until then is looked at.
pub(crate) struct Watch {
    sleepers: Weak<Sleepers>,
    number: u64,
    body: Arc<Body>,
}

impl Watch {
    /// From now on a loss cancels the running task.
    pub(crate) fn begin(
        py: Python<'_>,
        slot: Arc<Slot>,
        time: Option<Arc<Time>>,
    ) -> PyResult<Self> {
        static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let current = CURRENT.get_or_try_init(py, || asyncio(py, "current_task"))?.bind(py);
        let hub = hub(py)?;
        let it = hub.get();
        let task = current.call1((&it.event_loop,))?;
        if task.is_none() {
            let why = "`async with` cancels its task on a loss, and there is no task here";
            return Err(raising(py)(Error::new(ErrorKind::Misuse, why)));
        }
        let cancelling = task.call_method0(intern!(py, "cancelling"))?.extract()?;
        let task = PyWeakrefReference::new(&task)?.unbind();
        let body = Arc::new(Body { slot, time, task, cancelling, is_told: AtomicBool::new(false) });
        let sleepers = it.sleepers.get().map_err(raising(py))?;
        let number = sleepers.number();
        locked(&sleepers.begun).insert(number, Arc::clone(&body));
        let this = Self { sleepers: Arc::downgrade(sleepers), number, body };
        if !sleepers.looks.load(Ordering::Acquire) {
            it.call_soon.bind(py).call1((hub.getattr(intern!(py, "look"))?,))?;
            sleepers.looks.store(true, Ordering::Release);
        }
        Ok(this)
    }

    /// Ends it. Returns whether the exception that leaves the body is the loss's own cancel, as
    /// `asyncio.timeout` decides it. `None` without a loss.
    pub(crate) fn end(
        self,
        py: Python<'_>,
        raised: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<bool>> {
        if !self.body.is_told.load(Ordering::Acquire) {
            return Ok(None);
        }
        let left = match self.body.task.bind(py).upgrade() {
            Some(task) => task.call_method0(intern!(py, "uncancel"))?.extract()?,
            None => 0,
        };
        let is_cancelled = match raised {
            Some(raised) => raised.is_instance(asyncio(py, "CancelledError")?.bind(py))?,
            None => true,
        };
        Ok(Some(is_cancelled && self.body.cancelling >= left))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(sleepers) = self.sleepers.upgrade() {
            sleepers.forget(self.number);
        }
    }
}
