//! Guards: what is held, for threads and for tasks.

use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::{
    Cooldown, Error, ErrorKind, HeldLease, HeldLeases, MultiGuard, NotChanged, OnceGuard,
    ReadGuard, ReentrantGuard, Result, SemaphoreGuard, WriteGuard,
};
use pyo3::exceptions::{PyGeneratorExit, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use crate::awaiting::{Waiting, Watch};
use crate::calls::{self, Call, Face, nothing, plain};
use crate::client::Core;
use crate::clock::Timed;
use crate::convert::raising;
use crate::errors;
use crate::options::{count, length, limit};
use crate::process::Ours;

/// A guard of any kind.
pub(crate) enum Held {
    Plain(leasehold::Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permits(SemaphoreGuard),
    Once(OnceGuard),
    Multi(MultiGuard),
    Reentrant(ReentrantGuard),
}

/// One lease, or several that were taken together.
#[derive(Clone)]
enum View {
    One(HeldLease),
    Several(HeldLeases),
}

impl View {
    /// The name of the lock, or of all of them.
    fn key(&self) -> String {
        match self {
            Self::One(lease) => lease.key().as_str().to_owned(),
            Self::Several(leases) => {
                let keys: Vec<_> = leases.leases().iter().map(|one| one.key().as_str()).collect();
                keys.join(", ")
            }
        }
    }
}

/// Calls a method that both views have.
macro_rules! of_view {
    ($view:expr, $lease:ident => $call:expr) => {
        match $view {
            View::One($lease) => $call,
            View::Several($lease) => $call,
        }
    };
}

impl Held {
    fn view(&self) -> View {
        View::One(match self {
            Self::Plain(guard) => guard.lease().clone(),
            Self::Read(guard) => (**guard).clone(),
            Self::Write(guard) => (**guard).clone(),
            Self::Permits(guard) => (**guard).clone(),
            Self::Once(guard) => (**guard).clone(),
            Self::Reentrant(guard) => guard.lease().clone(),
            Self::Multi(guard) => return View::Several(guard.lease().clone()),
        })
    }

    /// Ends it. In a box, since the futures of some kinds are large.
    fn release(self, cooldown: Option<Cooldown>) -> Ending {
        let guard: leasehold::Guard = match self {
            Self::Plain(guard) => guard,
            Self::Read(guard) => guard.into(),
            Self::Write(guard) => guard.into(),
            Self::Permits(guard) => guard.into(),
            Self::Once(guard) => guard.into(),
            Self::Multi(guard) => {
                return match cooldown {
                    None => Box::pin(guard.release()),
                    Some(cooldown) => Box::pin(guard.release_with_cooldown(cooldown)),
                };
            }
            Self::Reentrant(guard) => {
                return match cooldown {
                    None => Box::pin(async { guard.release().await.map(drop) }),
                    Some(cooldown) => {
                        let release = guard.release_with_cooldown(cooldown);
                        Box::pin(async { release.await.map(drop) })
                    }
                };
            }
        };
        match cooldown {
            None => Box::pin(guard.release()),
            Some(cooldown) => Box::pin(guard.release_with_cooldown(cooldown)),
        }
    }
}

type Ending = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A guard until it is released.
pub(crate) struct Slot(Ours<Parts>);

struct Parts {
    view: View,
    guard: Mutex<Option<Held>>,
}

impl Slot {
    fn new(guard: Held, view: View) -> Self {
        Self(Ours::new(Parts { view, guard: Mutex::new(Some(guard)) }))
    }

    fn view(&self) -> Result<&View> {
        self.0.get().map(|parts| &parts.view)
    }

    /// Whether it was released. A parent process's is not over here.
    pub(crate) fn is_over(&self) -> bool {
        self.0.get().is_ok_and(|parts| locked(&parts.guard).is_none())
    }

    pub(crate) fn take(&self) -> Result<Held> {
        let taken = locked(&self.0.get()?.guard).take();
        taken.ok_or_else(|| misuse(OVER))
    }

    /// For a change that failed: the guard is what it was.
    fn put_back(&self, guard: Held) {
        if let Ok(parts) = self.0.get() {
            *locked(&parts.guard) = Some(guard);
        }
    }

    fn failed<G>(&self, wrap: fn(G) -> Held) -> impl FnOnce(NotChanged<G>) -> Error {
        move |not| {
            let (guard, error) = not.into_parts();
            self.put_back(wrap(guard));
            error
        }
    }

    fn wrong_kind<T>(&self, guard: Held) -> Result<T> {
        self.put_back(guard);
        Err(Error::new(ErrorKind::Unsupported, "this kind of lock can't do that"))
    }

    /// Releases it. It is taken with the call: the object of the guard may be gone at the await.
    fn release(&self, cooldown: Option<Cooldown>) -> Ending {
        match self.take() {
            Ok(guard) => guard.release(cooldown),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    async fn detach(self: Arc<Self>, taken: Result<Held>) -> Result<String> {
        let detached = match taken? {
            Held::Plain(guard) => guard.detach().await.map_err(self.failed(Held::Plain)),
            Held::Read(guard) => guard.detach().await.map_err(self.failed(Held::Read)),
            Held::Write(guard) => guard.detach().await.map_err(self.failed(Held::Write)),
            Held::Permits(guard) => guard.detach().await.map_err(self.failed(Held::Permits)),
            Held::Once(guard) => guard.detach().await.map_err(self.failed(Held::Once)),
            other => self.wrong_kind(other),
        };
        detached.map(|lease| lease.to_secret_text())
    }

    async fn upgrade(self: Arc<Self>, taken: Result<Held>) -> Result<Held> {
        match taken? {
            Held::Read(guard) => {
                guard.upgrade().await.map(Held::Write).map_err(self.failed(Held::Read))
            }
            other => self.wrong_kind(other),
        }
    }

    async fn downgrade(self: Arc<Self>, taken: Result<Held>) -> Result<Held> {
        match taken? {
            Held::Write(guard) => {
                guard.downgrade().await.map(Held::Read).map_err(self.failed(Held::Read))
            }
            other => self.wrong_kind(other),
        }
    }

    async fn release_permits(self: Arc<Self>, taken: Result<Held>, n: u32) -> Result<Held> {
        match taken? {
            Held::Permits(guard) => {
                let kept = guard.release_permits(n).await;
                kept.map(Held::Permits).map_err(self.failed(Held::Permits))
            }
            other => self.wrong_kind(other),
        }
    }

    async fn reopen(self: Arc<Self>, taken: Result<Held>) -> Result<()> {
        match taken? {
            Held::Once(guard) => guard.release_and_reopen().await,
            other => self.wrong_kind(other),
        }
    }

    /// How many times its owner has a re-entrant lock; 0 once this hold has ended.
    fn holds(&self) -> Result<u32> {
        Ok(match &*locked(&self.0.get()?.guard) {
            Some(Held::Reentrant(guard)) => guard.holds(),
            _ => 0,
        })
    }

    /// Takes a mutex's guard for another call, which gives it back if it fails.
    pub(crate) async fn relock(
        self: Arc<Self>,
        taken: Result<Held>,
        mutex: leasehold::Mutex,
    ) -> Result<Option<Held>> {
        match taken? {
            Held::Plain(guard) => {
                let anew = mutex.relock(guard).await.map_err(self.failed(Held::Plain))?;
                Ok(anew.map(Held::Plain))
            }
            other => self.wrong_kind(other),
        }
    }
}

fn locked(guard: &Mutex<Option<Held>>) -> std::sync::MutexGuard<'_, Option<Held>> {
    guard.lock().unwrap_or_else(PoisonError::into_inner)
}

const OVER: &str = "this guard was released, detached or changed before";

fn misuse(why: &str) -> Error {
    Error::new(ErrorKind::Misuse, why)
}

/// What a grant brings: a guard, and its client.
pub(crate) struct Grant {
    pub(crate) guard: Held,
    pub(crate) core: Arc<Core>,
}

impl Grant {
    /// The guard that Python gets.
    pub(crate) fn give(self, py: Python<'_>, face: Face) -> PyResult<Py<PyAny>> {
        let view = self.guard.view();
        let key = view.key();
        // Of the class that belongs to each kind, with the guard's class for this face as its base.
        macro_rules! made {
            ($base:expr; $plain:ident $($kind:ident $class:ident)*) => {{
                let class: fn(Python<'_>, _) -> PyResult<Py<PyAny>> = match &self.guard {
                    Held::$plain(_) => |py, guard| Ok(Py::new(py, guard)?.into_any()),
                    $(Held::$kind(_) => |py, guard: PyClassInitializer<_>| {
                        Ok(Py::new(py, guard.add_subclass($class))?.into_any())
                    },)*
                };
                let slot = Arc::new(Slot::new(self.guard, view));
                let (core, calls) = (self.core, Mutex::default());
                let is_entered = AtomicBool::default();
                let lease = Lease { face, key, slot, core, calls, is_entered };
                class(py, PyClassInitializer::from(($base, lease)))
            }};
        }
        match face {
            Face::Threads => made!(
                Guard; Plain Read Read Write Write Permits Permits Once Once Multi Multi
                Reentrant Reentrant
            ),
            Face::Tasks => made!(
                AGuard(Mutex::default()); Plain Read ARead Write AWrite Permits APermits
                Once AOnce Multi AMulti Reentrant AReentrant
            ),
        }
    }

    /// The guard, or `None` where there is no grant.
    pub(crate) fn give_some(
        grant: Option<Self>,
        py: Python<'_>,
        face: Face,
    ) -> PyResult<Py<PyAny>> {
        grant.map_or_else(|| Ok(py.None()), |grant| grant.give(py, face))
    }
}

#[doc = about!("Lease")]
#[pyclass(subclass, frozen, weakref, module = "leasehold")]
pub(crate) struct Lease {
    face: Face,
    key: String,
    pub(crate) slot: Arc<Slot>,
    core: Arc<Core>,
    /// What is called on a loss. They live no longer than the hold.
    calls: Mutex<Vec<Py<PyAny>>>,
    is_entered: AtomicBool,
}

impl Lease {
    fn view(&self, py: Python<'_>) -> PyResult<&View> {
        self.slot.view().map_err(raising(py))
    }

    /// Refuses a body that would run without the lock.
    pub(crate) fn enter(&self, py: Python<'_>) -> PyResult<()> {
        let view = self.view(py)?;
        let entered = if self.slot.is_over() {
            Err(misuse(OVER))
        } else if self.is_entered.swap(true, Ordering::AcqRel) {
            Err(misuse("this guard was entered before; the end of the first `with` releases it"))
        } else {
            // A lease that is lost needs no release.
            of_view!(view, lease => lease.check()).inspect_err(|_| drop(self.slot.take()))
        };
        entered.map_err(raising(py))
    }

    fn changed(
        &self,
        py: Python<'_>,
        change: impl Future<Output = Result<Held>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let (face, core) = (self.face, Arc::clone(&self.core));
        face.run(py, self.core.timed(change), move |py, guard| Grant { guard, core }.give(py, face))
    }

    /// Carries out an operation during which the guard's object has to live.
    fn looks<T: Send + 'static>(
        slf: &Bound<'_, Self>,
        operation: impl Future<Output = Result<T>> + Send + 'static,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let (guard, lease) = (slf.clone().unbind(), slf.get());
        lease.face.run_with(slf.py(), Some(guard), lease.core.timed(operation), give)
    }

    pub(crate) fn forget_calls(&self) {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner));
        drop(calls);
    }

    pub(crate) async fn until_lost(slot: Arc<Slot>, limit: Option<Duration>) -> Result<bool> {
        let view = slot.view()?;
        within(limit, async { of_view!(view, lease => lease.lost().await) }).await;
        Ok(of_view!(view, lease => !lease.is_held()))
    }

    async fn until_asked(slot: Arc<Slot>, limit: Option<Duration>) -> Result<bool> {
        let view = slot.view()?;
        within(limit, async { of_view!(view, lease => lease.asked().await) }).await;
        Ok(of_view!(view, lease => lease.is_asked()))
    }
}

async fn within(limit: Option<Duration>, happens: impl Future<Output = ()>) {
    match limit {
        None => happens.await,
        Some(limit) => {
            // The caller looks for itself whether it happened.
            tokio::time::timeout(limit, happens).await.ok();
        }
    }
}

#[pymethods]
impl Lease {
    #[doc = about!("Lease.key")]
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    #[doc = about!("Lease.metadata")]
    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<String> {
        Ok(match self.view(py)? {
            View::One(lease) => lease.metadata().to_owned(),
            View::Several(leases) => {
                leases.leases().first().map(|one| one.metadata().to_owned()).unwrap_or_default()
            }
        })
    }

    #[doc = about!("Lease.permits")]
    #[getter]
    fn permits(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        Ok(match self.view(py)? {
            View::One(lease) => lease.permits(),
            View::Several(_) => None,
        })
    }

    #[doc = about!("Lease.fence")]
    #[getter]
    fn fence(&self, py: Python<'_>) -> PyResult<i64> {
        match self.view(py)? {
            View::One(lease) => lease.fence().map(leasehold::Fence::as_i64),
            View::Several(_) => Err(several()),
        }
        .map_err(raising(py))
    }

    #[doc = about!("Lease.fence_even_if_lost")]
    #[getter]
    fn fence_even_if_lost(&self, py: Python<'_>) -> PyResult<i64> {
        match self.view(py)? {
            View::One(lease) => Ok(lease.fence_even_if_lost().as_i64()),
            View::Several(_) => Err(raising(py)(several())),
        }
    }

    #[doc = about!("Lease.is_held")]
    #[getter]
    fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(of_view!(self.view(py)?, lease => lease.is_held()))
    }

    #[doc = about!("Lease.is_at_risk")]
    #[getter]
    fn is_at_risk(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(of_view!(self.view(py)?, lease => lease.is_at_risk()))
    }

    #[doc = about!("Lease.is_asked")]
    #[getter]
    fn is_asked(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(of_view!(self.view(py)?, lease => lease.is_asked()))
    }

    #[doc = about!("Lease.remaining")]
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(of_view!(self.view(py)?, lease => lease.remaining()).as_secs_f64())
    }

    #[doc = about!("Lease.until_deadline")]
    #[getter]
    fn until_deadline(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(of_view!(self.view(py)?, lease => lease.until_deadline()).as_secs_f64())
    }

    #[doc = about!("Lease.check")]
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        of_view!(self.view(py)?, lease => lease.check()).map_err(raising(py))
    }

    #[doc = about!("Lease.progress")]
    fn progress(&self, py: Python<'_>) -> PyResult<()> {
        of_view!(self.view(py)?, lease => lease.progress());
        Ok(())
    }

    #[doc = about!("Lease.note_result")]
    fn note_result(&self, py: Python<'_>, result: &str) -> PyResult<()> {
        match self.view(py)? {
            View::One(lease) => lease.note_result(result),
            View::Several(leases) => leases.leases().iter().for_each(|one| one.note_result(result)),
        }
        Ok(())
    }

    #[doc = about!("Lease.lost")]
    #[pyo3(signature = (timeout=None))]
    fn lost(slf: &Bound<'_, Self>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let slot = Arc::clone(&slf.get().slot);
        Self::looks(slf, Self::until_lost(slot, limit(timeout)?), plain)
    }

    #[doc = about!("Lease.asked")]
    #[pyo3(signature = (timeout=None))]
    fn asked(slf: &Bound<'_, Self>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let slot = Arc::clone(&slf.get().slot);
        Self::looks(slf, Self::until_asked(slot, limit(timeout)?), plain)
    }

    #[doc = about!("Lease.on_lost")]
    fn on_lost(slf: &Bound<'_, Self>, call: Bound<'_, PyAny>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        if !call.is_callable() {
            return Err(PyTypeError::new_err("on_lost() takes what can be called"));
        }
        let view = this.view(py)?;
        this.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call.unbind());
        let registered = py.import("leasehold._calls")?.getattr("register")?.call1((slf,))?;
        let number: Option<u64> = registered.extract()?;
        let Some(number) = number else { return Ok(()) };
        let slot = Arc::downgrade(&this.slot);
        let view = view.clone();
        this.core.runtime().map_err(raising(py))?.spawn(async move {
            of_view!(&view, lease => lease.lost().await);
            if slot.upgrade().is_some_and(|slot| !slot.is_over()) {
                calls::tell(Call::Lost(number));
            }
        });
        Ok(())
    }

    #[doc = about!("Lease.renew_to")]
    fn renew_to(slf: &Bound<'_, Self>, ttl: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let (ttl, slot) = (length(ttl)?, Arc::clone(&slf.get().slot));
        let renewal = async move { of_view!(slot.view()?, lease => lease.renew_to(ttl).await) };
        Self::looks(slf, renewal, nothing)
    }

    #[doc = about!("Lease.is_held_by_store")]
    fn is_held_by_store(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let slot = Arc::clone(&slf.get().slot);
        let look = async move { of_view!(slot.view()?, lease => lease.is_held_by_store().await) };
        Self::looks(slf, look, plain)
    }

    #[doc = about!("Lease.release")]
    #[pyo3(signature = (*, cooldown=None))]
    fn release(&self, py: Python<'_>, cooldown: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let cooldown = limit(cooldown)?.map(Cooldown::new).transpose().map_err(raising(py))?;
        self.forget_calls();
        self.face.run(py, self.core.timed(self.slot.release(cooldown)), nothing)
    }

    #[doc = about!("Lease.detach")]
    fn detach(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let detach = Arc::clone(&self.slot).detach(self.slot.take());
        self.face.run(py, self.core.timed(detach), plain)
    }

    /// A call on a loss often has the guard: the collector finds such a circle.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Only a method that runs at this moment has it locked, and so it is in use.
        let Ok(calls) = self.calls.try_lock() else { return Ok(()) };
        calls.iter().try_for_each(|call| visit.call(call))
    }

    fn __clear__(&self) {
        self.forget_calls();
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let this = slf.get();
        let state = match this.slot.view() {
            Ok(view) if of_view!(view, lease => lease.is_held()) => "held",
            Ok(_) if this.slot.is_over() => "released",
            Ok(_) => "lost",
            Err(_) => "of the parent process",
        };
        Ok(format!("<{} {:?}, {state}>", slf.get_type().fully_qualified_name()?, this.key))
    }
}

/// Takes the calls that a loss causes.
#[pyfunction]
pub(crate) fn take_calls(lease: &Bound<'_, Lease>) -> Vec<Py<PyAny>> {
    std::mem::take(&mut *lease.get().calls.lock().unwrap_or_else(PoisonError::into_inner))
}

fn several() -> Error {
    misuse("each of several locks has a fence of its own; use `fences`")
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.slot.view().is_ok() && !self.slot.is_over() {
            calls::warn_of_forgotten(&self.key);
            // Something that waits for its loss may have the slot.
            drop(self.slot.take());
        }
    }
}

#[doc = about!("Guard")]
#[pyclass(subclass, frozen, extends = Lease, module = "leasehold")]
pub(crate) struct Guard;

#[pymethods]
impl Guard {
    fn __enter__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.as_super().get().enter(slf.py())?;
        Ok(slf)
    }

    fn __exit__(
        slf: &Bound<'_, Self>,
        kind: Option<Bound<'_, PyAny>>,
        raised: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        drop((kind, traceback));
        let (py, lease) = (slf.py(), slf.as_super().get());
        lease.forget_calls();
        if lease.slot.is_over() {
            return Ok(());
        }
        let released = calls::wait(py, lease.core.timed(lease.slot.release(None)))?;
        released.or_else(|error| left(py, &error, raised.as_ref()))
    }
}

/// Raises what went wrong at the end of a body, or notes it on what the body has raised.
fn left(py: Python<'_>, error: &Error, raised: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    match raised {
        None => Err(errors::raise(py, error)),
        Some(raised) => {
            raised.call_method1(intern!(py, "add_note"), (errors::text(error),)).map(drop)
        }
    }
}

#[doc = about!("aio.Guard")]
#[pyclass(subclass, frozen, extends = Lease, name = "Guard", module = "leasehold.aio")]
pub(crate) struct AGuard(Mutex<Option<Watch>>);

impl AGuard {
    /// From now on a loss cancels the task that runs.
    pub(crate) fn watch(slf: &Bound<'_, Self>) -> PyResult<()> {
        let lease = slf.as_super().get();
        let watch = Watch::begin(slf.py(), Arc::clone(&lease.slot), lease.core.time())?;
        let before = slf.get().0.lock().unwrap_or_else(PoisonError::into_inner).replace(watch);
        drop(before);
        Ok(())
    }

    /// Ends a body: releases, and raises the loss that has cancelled it.
    pub(crate) fn leave(
        slf: &Bound<'_, Self>,
        raised: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Waiting> {
        let (py, lease) = (slf.py(), slf.as_super().get());
        let watch = slf.get().0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let told = watch.map(|watch| watch.end(py, raised.as_ref())).transpose()?.flatten();
        lease.forget_calls();
        if raised.as_ref().is_some_and(|raised| raised.is_instance_of::<PyGeneratorExit>()) {
            // A coroutine that is closed can't wait: it goes on in the background.
            drop(lease.slot.take());
        }
        let release = (!lease.slot.is_over()).then(|| lease.slot.release(None));
        let release = async move {
            let released = match release {
                Some(release) => release.await,
                None => Ok(()),
            };
            Ok::<Result<()>, Error>(released)
        };
        let raised = raised.map(Bound::unbind);
        let slot = Arc::clone(&lease.slot);
        Ok(Waiting::new(
            None,
            lease.core.timed(release),
            move |py: Python<'_>, released: Result<()>| {
                let raised = raised.as_ref().map(|raised| raised.bind(py));
                let error = match (released, told) {
                    (Ok(()), None) => return Ok(py.None()),
                    (Err(error), _) => error,
                    // The store may have it still, but its holder learned otherwise.
                    (Ok(()), Some(_)) => {
                        let key = slot.view().map_err(raising(py))?.key();
                        let why = format!("{key:?}: the lease was lost while its work ran");
                        Error::new(ErrorKind::Lost, why)
                    }
                };
                if told == Some(true) {
                    let lost = errors::raise(py, &error);
                    lost.set_cause(py, raised.map(|raised| PyErr::from_value(raised.clone())));
                    return Err(lost);
                }
                left(py, &error, raised)?;
                Ok(py.None())
            },
        ))
    }
}

#[pymethods]
impl AGuard {
    fn __aenter__(slf: &Bound<'_, Self>) -> PyResult<Waiting> {
        slf.as_super().get().enter(slf.py())?;
        Self::watch(slf)?;
        let this = slf.clone().unbind();
        let ready = Timed::new(ready(Ok(())), None);
        Ok(Waiting::new(None, ready, move |_: Python<'_>, ()| Ok(this.into_any())))
    }

    fn __aexit__(
        slf: &Bound<'_, Self>,
        kind: Option<Bound<'_, PyAny>>,
        raised: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Waiting> {
        drop((kind, traceback));
        Self::leave(slf, raised)
    }
}

/// The guards of one kind of lock, for threads and for tasks, with what only they can do.
macro_rules! typed {
    ($name:literal, $threads:ident, $tasks:ident { $($method:tt)* }) => {
        #[doc = about!($name)]
        #[pyclass(frozen, extends = Guard, name = $name, module = "leasehold")]
        pub(crate) struct $threads;

        #[doc = about!("aio.", $name)]
        #[pyclass(frozen, extends = AGuard, name = $name, module = "leasehold.aio")]
        pub(crate) struct $tasks;

        #[pymethods]
        impl $threads { $($method)* }

        #[pymethods]
        impl $tasks { $($method)* }
    };
}

typed!("ReadGuard", Read, ARead {
    #[doc = about!("ReadGuard.upgrade")]
    fn upgrade(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let lease = slf.as_super().as_super().get();
        lease.changed(slf.py(), Arc::clone(&lease.slot).upgrade(lease.slot.take()))
    }
});

typed!("WriteGuard", Write, AWrite {
    #[doc = about!("WriteGuard.downgrade")]
    fn downgrade(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let lease = slf.as_super().as_super().get();
        lease.changed(slf.py(), Arc::clone(&lease.slot).downgrade(lease.slot.take()))
    }
});

typed!("SemaphoreGuard", Permits, APermits {
    #[doc = about!("SemaphoreGuard.release_permits")]
    fn release_permits(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = count)] n: u32,
    ) -> PyResult<Py<PyAny>> {
        let lease = slf.as_super().as_super().get();
        lease.changed(slf.py(), Arc::clone(&lease.slot).release_permits(lease.slot.take(), n))
    }
});

typed!("OnceGuard", Once, AOnce {
    #[doc = about!("OnceGuard.reopen")]
    fn reopen(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let lease = slf.as_super().as_super().get();
        lease.forget_calls();
        let reopen = Arc::clone(&lease.slot).reopen(lease.slot.take());
        lease.face.run(slf.py(), lease.core.timed(reopen), nothing)
    }
});

typed!("MultiGuard", Multi, AMulti {
    #[doc = about!("MultiGuard.fences")]
    #[getter]
    fn fences<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let (py, lease) = (slf.py(), slf.as_super().as_super().get());
        let fences = PyDict::new(py);
        if let View::Several(leases) = lease.view(py)? {
            for (key, fence) in leases.fences().map_err(raising(py))? {
                fences.set_item(key.as_str(), fence.as_i64())?;
            }
        }
        Ok(fences)
    }
});

typed!("ReentrantGuard", Reentrant, AReentrant {
    #[doc = about!("ReentrantGuard.holds")]
    #[getter]
    fn holds(slf: &Bound<'_, Self>) -> PyResult<u32> {
        let (py, lease) = (slf.py(), slf.as_super().as_super().get());
        lease.slot.holds().map_err(raising(py))
    }
});
