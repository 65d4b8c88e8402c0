//! The kinds of locks: values, made again in a fork's child.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Key, LockOptions, Result, RwPreference};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::awaiting::Acquiring;
use crate::calls::{Face, plain, wait};
use crate::client::{AnyClient, Core};
use crate::clock::Timed;
use crate::convert::{self, raising};
use crate::guard::{Grant, Held, Lease};
use crate::options::{self, count, length, limit, refused};
use crate::process::PerProcess;
use crate::watching;

/// A lock of one kind: the library's value, of which each process has its own.
pub(crate) struct Kind<V> {
    pub(crate) core: Arc<Core>,
    face: Face,
    make: Box<dyn Fn(&leasehold::Client) -> V + Send + Sync>,
    made: PerProcess<V>,
}

impl<V: Clone + Send + Sync + 'static> Kind<V> {
    /// Reports a wrong setting at once if the client is connected, else at the first use.
    fn new(
        py: Python<'_>,
        client: &AnyClient,
        check: fn(&V) -> Result<()>,
        make: impl Fn(&leasehold::Client) -> V + Send + Sync + 'static,
    ) -> PyResult<Arc<Self>> {
        let AnyClient { core, face } = client;
        let made = PerProcess::new();
        if let Some(client) = core.connected() {
            let value = make(client);
            check(&value).map_err(raising(py))?;
            made.set(value);
        }
        Ok(Arc::new(Self { core: Arc::clone(core), face: *face, make: Box::new(make), made }))
    }

    pub(crate) async fn value(&self) -> Result<V> {
        if let Some(value) = self.made.get() {
            return Ok(value.clone());
        }
        let client = self.core.client().await?;
        Ok(self.made.set((self.make)(&client)).clone())
    }

    /// Carries out an operation of the value.
    fn run<T, F>(
        self: &Arc<Self>,
        py: Python<'_>,
        operation: impl FnOnce(V) -> F + Send + 'static,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let this = Arc::clone(self);
        let operation = async move { operation(this.value().await?).await };
        self.face.run(py, self.core.timed(operation), give)
    }

    /// Tries to take it: a guard or `None`.
    fn attempt<F>(
        self: &Arc<Self>,
        py: Python<'_>,
        operation: impl FnOnce(V) -> F + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<Option<Held>>> + Send + 'static,
    {
        let (core, face) = (Arc::clone(&self.core), self.face);
        self.run(py, operation, move |py, guard| {
            Grant::give_some(guard.map(|guard| Grant { guard, core }), py, face)
        })
    }

    /// Takes it.
    fn take<F, O>(
        self: &Arc<Self>,
        operation: O,
    ) -> Timed<impl Future<Output = Result<Grant>> + Send + 'static + use<V, F, O>>
    where
        O: FnOnce(V) -> F + Send + 'static,
        F: Future<Output = Result<Held>> + Send + 'static,
    {
        let this = Arc::clone(self);
        self.core.timed(async move {
            let guard = operation(this.value().await?).await?;
            Ok(Grant { guard, core: Arc::clone(&this.core) })
        })
    }
}

/// Checks a name that no value has checked.
fn key(py: Python<'_>, name: &str) -> PyResult<Key> {
    Key::new(name).map_err(raising(py))
}

/// The two classes of a kind, for threads and for tasks, with the methods that take it and wait.
macro_rules! faces {
    ($name:literal, $base:ident, $threads:ident, $tasks:ident
     $(, $method:ident [$($signature:tt)*] ($($argument:ident: $type:ty = $read:path),*))*) => {
        #[doc = about!($name)]
        #[pyclass(frozen, extends = $base, name = $name, module = "leasehold")]
        pub(crate) struct $threads;

        #[doc = about!("aio.", $name)]
        #[pyclass(frozen, extends = $base, name = $name, module = "leasehold.aio")]
        pub(crate) struct $tasks;

        #[pymethods]
        impl $threads {
            $(#[doc = about!($name, ".", stringify!($method))]
            #[pyo3(signature = ($($signature)* timeout=None))]
            fn $method(
                slf: &Bound<'_, Self>,
                $(#[pyo3(from_py_with = $read)] $argument: $type,)*
                timeout: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<Py<PyAny>> {
                let py = slf.py();
                let taking = slf.as_super().get().$method($($argument,)* limit(timeout)?);
                wait(py, taking)?.map_err(raising(py))?.give(py, Face::Threads)
            })*
        }

        #[pymethods]
        impl $tasks {
            $(#[doc = about!("aio.", $name, ".", stringify!($method))]
            #[pyo3(signature = ($($signature)* timeout=None, *, cancel_on_loss=true))]
            fn $method(
                slf: &Bound<'_, Self>,
                $(#[pyo3(from_py_with = $read)] $argument: $type,)*
                timeout: Option<&Bound<'_, PyAny>>,
                cancel_on_loss: bool,
            ) -> PyResult<Acquiring> {
                let taking = slf.as_super().get().$method($($argument,)* limit(timeout)?);
                let give = |py: Python<'_>, grant: Grant| grant.give(py, Face::Tasks);
                Ok(Acquiring::new(taking, give, cancel_on_loss))
            })*
        }

        impl $base {
            fn of(self, py: Python<'_>, face: Face) -> PyResult<Py<PyAny>> {
                Ok(match face {
                    Face::Threads => Py::new(py, ($threads, self))?.into_any(),
                    Face::Tasks => Py::new(py, ($tasks, self))?.into_any(),
                })
            }
        }
    };
}

/// The text of a lock for people.
fn shown(of: &Bound<'_, PyAny>, key: &str) -> PyResult<String> {
    Ok(format!("<{} {key:?}>", of.get_type().fully_qualified_name()?))
}

/// A mutex.
#[pyclass(subclass, frozen, module = "leasehold._leasehold")]
pub(crate) struct AnyMutex {
    key: String,
    kind: Arc<Kind<leasehold::Mutex>>,
}

type Keywords<'a, 'py> = Option<&'a Bound<'py, PyDict>>;

pub(crate) fn mutex(
    client: &Bound<'_, AnyClient>,
    name: String,
    keywords: Keywords<'_, '_>,
) -> PyResult<Py<PyAny>> {
    let py = client.py();
    let key = key(py, &name)?;
    let options = options::read(keywords, "mutex", &mut options::none)?;
    let make = move |client: &leasehold::Client| client.mutex(&key).options(&options);
    let kind = Kind::new(py, client.get(), |mutex| mutex.key().map(drop), make)?;
    let face = kind.face;
    AnyMutex { key: name, kind }.of(py, face)
}

impl AnyMutex {
    fn lock(
        &self,
        limit: Option<Duration>,
    ) -> Timed<impl Future<Output = Result<Grant>> + Send + use<>> {
        self.kind.take(async move |mutex: leasehold::Mutex| match limit {
            Some(limit) => mutex.lock_within(limit).await.map(Held::Plain),
            None => mutex.lock().await.map(Held::Plain),
        })
    }
}

#[pymethods]
impl AnyMutex {
    #[doc = about!("Mutex.key")]
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    #[doc = about!("Mutex.try_lock")]
    fn try_lock(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let attempt =
            async move |mutex: leasehold::Mutex| Ok(mutex.try_lock().await?.map(Held::Plain));
        self.kind.attempt(py, attempt)
    }

    #[doc = about!("Mutex.relock")]
    fn relock(&self, py: Python<'_>, guard: &Bound<'_, Lease>) -> PyResult<Py<PyAny>> {
        let slot = Arc::clone(&guard.get().slot);
        let taken = slot.take();
        self.kind.attempt(py, async move |mutex: leasehold::Mutex| slot.relock(taken, mutex).await)
    }

    #[doc = about!("Mutex.ask")]
    fn ask(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.kind.run(py, async move |mutex: leasehold::Mutex| mutex.ask().await, plain)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        shown(slf, &slf.get().key)
    }
}

faces!("Mutex", AnyMutex, Mutex, AMutex, lock[]());

/// A read-write lock.
#[pyclass(subclass, frozen, module = "leasehold._leasehold")]
pub(crate) struct AnyRwLock {
    key: String,
    kind: Arc<Kind<leasehold::RwLock>>,
}

pub(crate) fn rwlock(
    client: &Bound<'_, AnyClient>,
    name: String,
    keywords: Keywords<'_, '_>,
) -> PyResult<Py<PyAny>> {
    let py = client.py();
    let key = key(py, &name)?;
    let mut preference = RwPreference::Fifo;
    let options = options::read(keywords, "rwlock", &mut |name, value| {
        if name != "preference" {
            return Ok(false);
        }
        preference = match value.extract::<String>()?.as_str() {
            "fifo" => RwPreference::Fifo,
            "writers" => RwPreference::Writers,
            "readers" => RwPreference::Readers,
            _ => return Err(refused(value, "preference", "'fifo', 'writers' or 'readers'")),
        };
        Ok(true)
    })?;
    let make = move |client: &leasehold::Client| {
        client.rwlock(&key).options(&options).preference(preference)
    };
    let kind = Kind::new(py, client.get(), |lock| lock.key().map(drop), make)?;
    let face = kind.face;
    AnyRwLock { key: name, kind }.of(py, face)
}

impl AnyRwLock {
    fn read(
        &self,
        limit: Option<Duration>,
    ) -> Timed<impl Future<Output = Result<Grant>> + Send + use<>> {
        self.kind.take(async move |lock: leasehold::RwLock| match limit {
            Some(limit) => lock.read_within(limit).await.map(Held::Read),
            None => lock.read().await.map(Held::Read),
        })
    }

    fn write(
        &self,
        limit: Option<Duration>,
    ) -> Timed<impl Future<Output = Result<Grant>> + Send + use<>> {
        self.kind.take(async move |lock: leasehold::RwLock| match limit {
            Some(limit) => lock.write_within(limit).await.map(Held::Write),
            None => lock.write().await.map(Held::Write),
        })
    }
}

#[pymethods]
impl AnyRwLock {
    #[doc = about!("RwLock.key")]
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    #[doc = about!("RwLock.try_read")]
    fn try_read(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let attempt =
            async move |lock: leasehold::RwLock| Ok(lock.try_read().await?.map(Held::Read));
        self.kind.attempt(py, attempt)
    }

    #[doc = about!("RwLock.try_write")]
    fn try_write(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let attempt =
            async move |lock: leasehold::RwLock| Ok(lock.try_write().await?.map(Held::Write));
        self.kind.attempt(py, attempt)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        shown(slf, &slf.get().key)
    }
}

faces!("RwLock", AnyRwLock, RwLock, ARwLock, read[](), write[]());

/// A semaphore.
#[pyclass(subclass, frozen, module = "leasehold._leasehold")]
pub(crate) struct AnySemaphore {
    key: String,
    limit: u32,
    kind: Arc<Kind<leasehold::Semaphore>>,
    client: Py<AnyClient>,
    keywords: Option<Py<PyDict>>,
}

pub(crate) fn semaphore(
    client: &Bound<'_, AnyClient>,
    name: String,
    limit: u32,
    keywords: Keywords<'_, '_>,
) -> PyResult<Py<PyAny>> {
    let py = client.py();
    let key = key(py, &name)?;
    let mut stored = false;
    let options = options::read(keywords, "semaphore", &mut |name, value| {
        let is_it = name == "stored_limit";
        if is_it {
            stored = value.extract()?;
        }
        Ok(is_it)
    })?;
    let make = move |client: &leasehold::Client| {
        client.semaphore(&key, limit).options(&options).stored_limit(stored)
    };
    let kind = Kind::new(py, client.get(), |permits| permits.key().map(drop), make)?;
    let face = kind.face;
    let keywords = keywords.map(|keywords| keywords.clone().unbind());
    AnySemaphore { key: name, limit, kind, client: client.clone().unbind(), keywords }.of(py, face)
}

impl AnySemaphore {
    fn acquire(
        &self,
        n: u32,
        limit: Option<Duration>,
    ) -> Timed<impl Future<Output = Result<Grant>> + Send + use<>> {
        self.kind.take(async move |permits: leasehold::Semaphore| match limit {
            Some(limit) => permits.acquire_many_within(n, limit).await.map(Held::Permits),
            None => permits.acquire_many(n).await.map(Held::Permits),
        })
    }
}

#[pymethods]
impl AnySemaphore {
    #[doc = about!("Semaphore.key")]
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    #[doc = about!("Semaphore.limit")]
    #[getter]
    fn limit(&self) -> u32 {
        self.limit
    }

    #[doc = about!("Semaphore.try_acquire")]
    #[pyo3(signature = (n=1))]
    fn try_acquire(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] n: u32,
    ) -> PyResult<Py<PyAny>> {
        let attempt = async move |permits: leasehold::Semaphore| {
            Ok(permits.try_acquire_many(n).await?.map(Held::Permits))
        };
        self.kind.attempt(py, attempt)
    }

    #[doc = about!("Semaphore.available")]
    fn available(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let look = async move |permits: leasehold::Semaphore| permits.available_permits().await;
        self.kind.run(py, look, plain)
    }

    #[doc = about!("Semaphore.set_limit")]
    fn set_limit(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count)] limit: u32,
    ) -> PyResult<Py<PyAny>> {
        let (client, name) = (self.client.clone_ref(py), self.key.clone());
        let keywords = self.keywords.as_ref().map(|keywords| keywords.clone_ref(py));
        let set = async move |permits: leasehold::Semaphore| permits.set_limit(limit).await;
        self.kind.run(py, set, move |py, _| {
            let keywords = keywords.as_ref().map(|keywords| keywords.bind(py));
            semaphore(client.bind(py), name, limit, keywords)
        })
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        shown(slf, &slf.get().key)
    }
}

faces!("Semaphore", AnySemaphore, Semaphore, ASemaphore, acquire[n=1,](n: u32 = count));

/// Several locks that are taken together.
#[pyclass(subclass, frozen, module = "leasehold._leasehold")]
pub(crate) struct AnyMulti {
    keys: Vec<String>,
    kind: Arc<Kind<leasehold::Multi>>,
}

pub(crate) fn multi(
    client: &Bound<'_, AnyClient>,
    names: &Bound<'_, PyAny>,
    keywords: Keywords<'_, '_>,
) -> PyResult<Py<PyAny>> {
    let py = client.py();
    if names.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("multi() takes several names, not one"));
    }
    let names: Vec<String> =
        names.try_iter()?.map(|name| name?.extract()).collect::<PyResult<_>>()?;
    let keys: Vec<Key> = names.iter().map(|name| key(py, name)).collect::<PyResult<_>>()?;
    let options = options::read(keywords, "multi", &mut options::none)?;
    let make = move |client: &leasehold::Client| client.multi(keys.iter()).options(&options);
    let kind = Kind::new(py, client.get(), |multi| multi.keys().map(drop), make)?;
    let face = kind.face;
    AnyMulti { keys: names, kind }.of(py, face)
}

impl AnyMulti {
    fn lock(
        &self,
        limit: Option<Duration>,
    ) -> Timed<impl Future<Output = Result<Grant>> + Send + use<>> {
        self.kind.take(async move |multi: leasehold::Multi| match limit {
            Some(limit) => multi.lock_within(limit).await.map(Held::Multi),
            None => multi.lock().await.map(Held::Multi),
        })
    }
}

#[pymethods]
impl AnyMulti {
    #[doc = about!("Multi.keys")]
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.keys)
    }

    #[doc = about!("Multi.try_lock")]
    fn try_lock(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let attempt =
            async move |multi: leasehold::Multi| Ok(multi.try_lock().await?.map(Held::Multi));
        self.kind.attempt(py, attempt)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        shown(slf, &slf.get().keys.join(", "))
    }
}

faces!("Multi", AnyMulti, Multi, AMulti, lock[]());

#[doc = about!("Owner")]
#[pyclass(frozen, module = "leasehold")]
pub(crate) struct Owner(leasehold::Owner);

#[pymethods]
impl Owner {
    #[new]
    #[pyo3(signature = (secret=None, *, name=None))]
    fn new(
        py: Python<'_>,
        secret: Option<&Bound<'_, PyAny>>,
        name: Option<&str>,
    ) -> PyResult<Self> {
        let owner = match (secret, name) {
            (None, None) => Ok(leasehold::Owner::new()),
            (None, Some(name)) => Ok(leasehold::Owner::named(name)),
            (Some(secret), None) => match secret.extract::<&[u8]>() {
                Ok(bytes) => leasehold::Owner::from_secret(bytes),
                Err(_) => leasehold::Owner::from_secret(secret.extract::<String>()?),
            },
            (Some(_), Some(_)) => {
                let why =
                    "an owner has a secret or a name: with a secret each process shows its own";
                Err(Error::new(ErrorKind::Config, why))
            }
        };
        owner.map(Self).map_err(raising(py))
    }
}

/// A lock that its owner may take again.
#[pyclass(subclass, frozen, module = "leasehold._leasehold")]
pub(crate) struct AnyReentrant {
    key: String,
    kind: Arc<Kind<leasehold::Reentrant>>,
}

pub(crate) fn reentrant(
    client: &Bound<'_, AnyClient>,
    name: String,
    by: &Owner,
    keywords: Keywords<'_, '_>,
) -> PyResult<Py<PyAny>> {
    let py = client.py();
    let key = key(py, &name)?;
    let options: LockOptions = options::read(keywords, "reentrant", &mut options::none)?;
    let owner = by.0.clone();
    let make = move |client: &leasehold::Client| client.reentrant(&key, &owner).options(&options);
    let kind = Kind::new(py, client.get(), |lock| lock.key().map(drop), make)?;
    let face = kind.face;
    AnyReentrant { key: name, kind }.of(py, face)
}

impl AnyReentrant {
    fn lock(
        &self,
        limit: Option<Duration>,
    ) -> Timed<impl Future<Output = Result<Grant>> + Send + use<>> {
        self.kind.take(async move |lock: leasehold::Reentrant| match limit {
            Some(limit) => lock.lock_within(limit).await.map(Held::Reentrant),
            None => lock.lock().await.map(Held::Reentrant),
        })
    }
}

#[pymethods]
impl AnyReentrant {
    #[doc = about!("Reentrant.key")]
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    #[doc = about!("Reentrant.try_lock")]
    fn try_lock(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let attempt =
            async move |lock: leasehold::Reentrant| Ok(lock.try_lock().await?.map(Held::Reentrant));
        self.kind.attempt(py, attempt)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        shown(slf, &slf.get().key)
    }
}

faces!("Reentrant", AnyReentrant, Reentrant, AReentrant, lock[]());

/// A job that starts once per period.
#[pyclass(subclass, frozen, module = "leasehold._leasehold")]
pub(crate) struct AnyOncePer {
    key: String,
    kind: Arc<Kind<leasehold::OncePer>>,
}

pub(crate) fn once_per(
    client: &Bound<'_, AnyClient>,
    name: String,
    period: &Bound<'_, PyAny>,
    keywords: Keywords<'_, '_>,
) -> PyResult<Py<PyAny>> {
    let py = client.py();
    let (key, period) = (key(py, &name)?, length(period)?);
    let options = options::read(keywords, "once_per", &mut options::none)?;
    let make = move |client: &leasehold::Client| client.once_per(&key, period).options(&options);
    let kind = Kind::new(py, client.get(), |job| job.key().map(drop), make)?;
    let face = kind.face;
    AnyOncePer { key: name, kind }.of(py, face)
}

#[pymethods]
impl AnyOncePer {
    #[doc = about!("OncePer.key")]
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    #[doc = about!("OncePer.start")]
    fn start(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let attempt =
            async move |job: leasehold::OncePer| Ok(job.try_start().await?.map(Held::Once));
        self.kind.attempt(py, attempt)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        shown(slf, &slf.get().key)
    }
}

faces!("OncePer", AnyOncePer, OncePer, AOncePer);

/// An election.
#[pyclass(subclass, frozen, module = "leasehold._leasehold")]
pub(crate) struct AnyElection {
    key: String,
    kind: Arc<Kind<leasehold::Election>>,
    look_every: Duration,
}

pub(crate) fn election(
    client: &Bound<'_, AnyClient>,
    name: String,
    keywords: Keywords<'_, '_>,
) -> PyResult<Py<PyAny>> {
    let py = client.py();
    let key = key(py, &name)?;
    let mut look_every = leasehold::DEFAULT_LOOK_EVERY;
    let options = options::read(keywords, "election", &mut |name, value| {
        let is_it = name == "look_every";
        if is_it {
            look_every = length(value)?;
        }
        Ok(is_it)
    })?;
    let make = move |client: &leasehold::Client| {
        client.election(&key).options(&options).look_every(look_every)
    };
    let kind = Kind::new(py, client.get(), |election| election.key().map(drop), make)?;
    let face = kind.face;
    AnyElection { key: name, kind, look_every }.of(py, face)
}

impl AnyElection {
    fn campaign(
        &self,
        limit: Option<Duration>,
    ) -> Timed<impl Future<Output = Result<Grant>> + Send + use<>> {
        self.kind.take(async move |election: leasehold::Election| {
            let leadership = match limit {
                Some(limit) => election.campaign_within(limit).await,
                None => election.campaign().await,
            };
            leadership.map(|leadership| Held::Plain(leadership.into_guard()))
        })
    }
}

#[pymethods]
impl AnyElection {
    #[doc = about!("Election.key")]
    #[getter]
    fn key(&self) -> &str {
        &self.key
    }

    /// The pause after a campaign that failed, in seconds.
    #[getter]
    fn _pause(&self) -> f64 {
        self.look_every.as_secs_f64()
    }

    #[doc = about!("Election.try_campaign")]
    fn try_campaign(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.kind.attempt(py, async move |election: leasehold::Election| {
            let leadership = election.try_campaign().await?;
            Ok(leadership.map(|leadership| Held::Plain(leadership.into_guard())))
        })
    }

    #[doc = about!("Election.leader")]
    fn leader(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let look = async move |election: leasehold::Election| election.leader().await;
        self.kind
            .run(py, look, |py, leader| convert::optional(py, leader.as_ref(), convert::leader))
    }

    #[doc = about!("Election.observe")]
    fn observe(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        watching::leaders(py, self.kind.face, &self.kind)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        shown(slf, &slf.get().key)
    }
}

faces!("Election", AnyElection, Election, AElection, campaign[]());
