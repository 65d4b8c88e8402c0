//! Awaits in asyncio: a future is polled on its event loop's own thread.
//!
//! No mutex of this file is held over a call of Python, which may run anything, also a `__del__`.

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
use pyo3::{PyTraverseError, PyVisit};

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
    fn put(&self, number: u64, sleeper: Sleeper) {
        let before = locked(&self.sleeping).insert(number, sleeper);
        drop(before);
    }

    fn take(&self, number: u64) -> Option<Sleeper> {
        locked(&self.sleeping).remove(&number)
    }

    fn sleeps(&self, number: u64) -> bool {
        locked(&self.sleeping).contains_key(&number)
    }

    fn forget(&self, number: u64) {
        let begun = locked(&self.begun).remove(&number);
        if begun.is_none() {
            drop(self.take(number));
        }
    }
}

/// What sleeps under this number is forgotten with it.
struct Number {
    sleepers: Weak<Sleepers>,
    number: u64,
}

impl Number {
    fn new(sleepers: &Arc<Sleepers>) -> Self {
        let number = sleepers.next.fetch_add(1, Ordering::Relaxed);
        Self { sleepers: Arc::downgrade(sleepers), number }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Some(sleepers) = self.sleepers.upgrade() {
            sleepers.forget(self.number);
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
        // A fork's child may go on with its parent's loop.
        let Ok(sleepers) = self.sleepers.get() else { return Ok(()) };
        sleepers.looks.store(false, Ordering::Release);
        let next = || locked(&sleepers.begun).pop_first();
        let look = |(number, body): (u64, Arc<Body>)| {
            let lost = Lease::until_lost(Arc::clone(&body.slot), None);
            let lost = Box::pin(Timed::new(lost, body.time.clone()));
            let loss = Loss { lost, waker: self.bell.waker(number), body };
            look(py, sleepers, number, loss)
        };
        std::iter::from_fn(next).map(look).fold(Ok(()), PyResult::and)
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

/// The hubs of all loops, by the loop's address. Weak: each belongs to its loop.
static HUBS: Mutex<BTreeMap<usize, Py<PyWeakrefReference>>> = Mutex::new(BTreeMap::new());

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
    let address = event_loop.as_ptr().addr();
    let known = locked(&HUBS).get(&address).map(|hub| hub.clone_ref(py));
    if let Some(known) = known.and_then(|hub| hub.bind(py).upgrade()) {
        let hub = known.cast_into::<Hub>()?;
        let it = hub.get();
        if it.event_loop.is(&event_loop) && it.sleepers.is_ours() {
            return Ok(hub);
        }
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
    let before = locked(&HUBS).insert(address, weak);
    drop(before);
    forget_gone(py);
    Ok(hub)
}

fn forget_gone(py: Python<'_>) {
    let all = |hubs: &BTreeMap<usize, Py<PyWeakrefReference>>| -> Vec<_> {
        hubs.iter().map(|(address, hub)| (*address, hub.clone_ref(py))).collect()
    };
    let all = all(&locked(&HUBS));
    for (address, hub) in all {
        if hub.bind(py).upgrade().is_none() {
            let gone = locked(&HUBS).remove(&address);
            drop(gone);
        }
    }
}

/// The loop on which an await began.
struct Place {
    bell: Arc<Bell>,
    waker: Waker,
    number: Number,
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
    /// The guard whose object has to live meanwhile.
    guard: Option<Py<Lease>>,
}

impl Await {
    fn new<T: Send + 'static>(
        guard: Option<Py<Lease>>,
        operation: Timed<impl Future<Output = Result<T>> + Send + 'static>,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let steps = Box::new(Operation { operation, give: Some(give) });
        Self(Ours::new(Mutex::new(Some(Open { steps, place: None, guard }))))
    }

    fn step(&self, py: Python<'_>) -> PyResult<Step> {
        let open = self.0.get().map_err(raising(py))?;
        let misuse = |why| raising(py)(Error::new(ErrorKind::Misuse, why));
        let taken = locked(open).take();
        let Some(mut taken) = taken else {
            return Err(misuse("this was awaited before; call its method again for another await"));
        };
        // Where no loop runs, such as in the end of a generator, only a wait is refused.
        if taken.place.is_none()
            && let Poll::Ready(value) = taken.steps.poll(py, Waker::noop())
        {
            return value.map(Step::Ready);
        }
        let hub = hub(py)?;
        let hub = hub.get();
        let sleepers = hub.sleepers.get().map_err(raising(py))?;
        let place = taken.place.get_or_insert_with(|| {
            let number = Number::new(sleepers);
            let (bell, waker) = (Arc::clone(&hub.bell), hub.bell.waker(number.number));
            Place { bell, waker, number }
        });
        if !Arc::ptr_eq(&place.bell, &hub.bell) {
            return Err(misuse("this is awaited on another event loop already"));
        }
        let number = place.number.number;
        if sleepers.sleeps(number) {
            *locked(open) = Some(taken);
            return Err(misuse("this is awaited by another task already"));
        }
        if let Poll::Ready(value) = taken.steps.poll(py, &place.waker) {
            return value.map(Step::Ready);
        }
        let future = hub.create_future.bind(py).call0()?;
        future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        sleepers.put(number, Sleeper::Task(future.clone().unbind()));
        *locked(open) = Some(taken);
        Ok(Step::Pending(future.unbind()))
    }

    /// Ends it: what it has begun is undone in the background.
    fn stop(&self) {
        if let Ok(open) = self.0.get() {
            let taken = locked(open).take();
            drop(taken);
        }
    }

    fn throw(&self, kind: Bound<'_, PyAny>, value: Option<Bound<'_, PyAny>>) -> PyErr {
        self.stop();
        match (kind.cast_into::<PyType>(), value) {
            (Ok(kind), Some(value)) if !value.is_none() => PyErr::from_type(kind, value.unbind()),
            (Ok(kind), _) => PyErr::from_type(kind, ()),
            (Err(raised), _) => PyErr::from_value(raised.into_inner()),
        }
    }

    /// Shows the collector what it holds.
    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        // Only what is polled at this moment is locked, and so it is in use.
        let Some(open) = self.0.get().ok().and_then(|open| open.try_lock().ok()) else {
            return Ok(());
        };
        visit.call(open.as_ref().and_then(|open| open.guard.as_ref()))
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
     , { $($more:tt)* }) => {
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
                kind: Bound<'_, PyAny>,
                value: Option<Bound<'_, PyAny>>,
                traceback: Option<Bound<'_, PyAny>>,
            ) -> PyResult<Py<PyAny>> {
                drop(traceback);
                let $this = self;
                Err($awaits.throw(kind, value))
            }

            #[doc = about!("aio.Acquiring.close")]
            fn close(&self) {
                let $this = self;
                $awaits.stop();
            }

            fn __clear__(&self) {
                let $this = self;
                $awaits.stop();
            }

            $($more)*
        }
    };
}

/// An operation that is awaited.
#[pyclass(frozen, module = "leasehold.aio")]
pub(crate) struct Waiting(Await);

impl Waiting {
    pub(crate) fn new<T: Send + 'static>(
        guard: Option<Py<Lease>>,
        operation: Timed<impl Future<Output = Result<T>> + Send + 'static>,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        Self(Await::new(guard, operation, give))
    }
}

awaited!(Waiting, |this| this.0, |slf, py| slf.get().0.step(py), {
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        self.0.traverse(&visit)
    }
});

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
        Self { awaits: Await::new(None, operation, give), cancel_on_loss, enters, entered }
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
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        let entered = self.entered.try_lock();
        visit.call(entered.as_deref().ok().and_then(Option::as_ref))
    }

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
pub(crate) struct Watch(Ours<(Arc<Body>, Number)>);

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
        let number = Number::new(sleepers);
        locked(&sleepers.begun).insert(number.number, Arc::clone(&body));
        let this = Self(Ours::new((body, number)));
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
        let (body, _) = self.0.get().map_err(raising(py))?;
        if !body.is_told.load(Ordering::Acquire) {
            return Ok(None);
        }
        let left = match body.task.bind(py).upgrade() {
            Some(task) => task.call_method0(intern!(py, "uncancel"))?.extract()?,
            None => 0,
        };
        let is_cancelled = match raised {
            Some(raised) => raised.is_instance(asyncio(py, "CancelledError")?.bind(py))?,
            None => true,
        };
        Ok(Some(is_cancelled && body.cancelling >= left))
    }
}
