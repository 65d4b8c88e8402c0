//! The client: a connection of each process, with the settings that all of them share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use leasehold::interop::Layout;
use leasehold::{ClientBuilder, DetachedLease, Error, ErrorKind, Fence, Result};
use leasehold_clock::Process;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use tokio::runtime::Handle;

use crate::calls::{Face, nothing, plain, wait};
use crate::clock::{FakeClock, Time, Timed};
use crate::convert::{self, raising};
use crate::guard::{Grant, Held};
use crate::kinds::{self, Owner};
use crate::options::{self, count, length};
use crate::process::{PerProcess, driver};
use crate::watching;

/// Where the locks are if no store is named.
const DEFAULT_URL: &str = "embedded:";

/// A client of Python, which has one client of Rust in each process.
pub(crate) struct Core {
    url: String,
    builder: ClientBuilder,
    made: PerProcess<leasehold::Client>,
    connecting: PerProcess<tokio::sync::Mutex<()>>,
    born: Process,
    is_closed: AtomicBool,
    closes_at_exit: bool,
    /// A clock that a test moves.
    time: Option<Arc<Time>>,
}

/// The clients that are connected in this process, for its end.
static CONNECTED: PerProcess<Mutex<Vec<Weak<Core>>>> = PerProcess::new();

impl Core {
    /// The settings; connects nowhere.
    fn new(
        py: Python<'_>,
        url: Option<String>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Arc<Self>> {
        let url =
            url.or_else(|| std::env::var("LEASEHOLD_STORE").ok().filter(|url| !url.is_empty()));
        let mut closes_at_exit = true;
        let mut time = None;
        let mut kept = Some(leasehold::Client::builder());
        let options = options::read(settings, "Client", &mut |name, value| {
            let Some(builder) = kept.take() else { return Ok(false) };
            let is_none = value.is_none();
            let (builder, is_known) = match name {
                "password" if is_none => (builder, true),
                "password" => (builder.password(value.extract::<String>()?), true),
                "call_timeout" => (builder.call_timeout(length(value)?), true),
                "retry_store" => (builder.retry_store(length(value)?), true),
                "local_handoffs" => (builder.local_handoffs(count(value)?), true),
                "log" => (builder.log(count(value)?), true),
                "detached" => (builder.detached(value.extract()?), true),
                "min_ttl" => (builder.min_ttl(length(value)?), true),
                "min_renewal" => (builder.min_renewal(length(value)?), true),
                "fence_retention" => (builder.fence_retention(length(value)?), true),
                "create_tables" => (builder.create_tables(value.extract()?), true),
                "interop" if is_none => (builder, true),
                "interop" => (builder.interop(layout(value)?), true),
                "clock" if is_none => (builder, true),
                "clock" => {
                    let clock = value.cast::<FakeClock>()?.get();
                    time = Some(clock.time().map_err(raising(value.py()))?);
                    (builder, true)
                }
                "leftovers" if is_none => (builder, true),
                "leftovers" => (builder.leftovers(length(value)?), true),
                "close_at_exit" => {
                    closes_at_exit = value.extract()?;
                    (builder, true)
                }
                _ => (builder, false),
            };
            kept = Some(builder);
            Ok(is_known)
        })?;
        let mut builder = kept.unwrap_or_default().options(&options);
        let url = url.unwrap_or_else(|| DEFAULT_URL.to_owned());
        if let Some(time) = &time {
            if url != "memory:" {
                let why = "a client with a clock of a test has its store in memory: give memory:";
                return Err(raising(py)(Error::new(ErrorKind::Config, why)));
            }
            builder = time.set(builder);
        }
        Ok(Arc::new(Self {
            url,
            builder,
            made: PerProcess::new(),
            connecting: PerProcess::new(),
            born: Process::current(),
            is_closed: AtomicBool::new(false),
            closes_at_exit,
            time,
        }))
    }

    /// Carries out an operation on the client's time.
    pub(crate) fn timed<F>(&self, operation: F) -> Timed<F> {
        Timed::new(operation, self.time())
    }

    /// The clock of a test, if it has one.
    pub(crate) fn time(&self) -> Option<Arc<Time>> {
        self.time.clone()
    }

    /// Where tasks run on the client's time.
    pub(crate) fn runtime(&self) -> Result<&Handle> {
        match &self.time {
            Some(time) => Ok(time.runtime()),
            None => driver(),
        }
    }

    /// This process's client, if it is connected.
    pub(crate) fn connected(&self) -> Option<&leasehold::Client> {
        self.made.get()
    }

    /// This process's client. A process connects at its first use.
    pub(crate) async fn client(self: &Arc<Self>) -> Result<leasehold::Client> {
        if let Some(client) = self.made.get() {
            return Ok(client.clone());
        }
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "this client was closed"));
        }
        if self.url.starts_with("memory:") && !self.born.is_current() {
            let why = "a memory store belongs to the process that made it; use embedded: to share \
                       locks with processes that it forks";
            return Err(Error::new(ErrorKind::Misuse, why));
        }
        // Tasks that begin together should not connect once each.
        let one_at_a_time = self.connecting.get_or(tokio::sync::Mutex::default).lock().await;
        if let Some(client) = self.made.get() {
            return Ok(client.clone());
        }
        let client = self.builder.clone().connect(&self.url).await?;
        let connected = CONNECTED.get_or(Mutex::default);
        let mut connected = connected.lock().unwrap_or_else(PoisonError::into_inner);
        connected.retain(|core| core.strong_count() > 0);
        connected.push(Arc::downgrade(self));
        drop(connected);
        let client = self.made.set(client).clone();
        drop(one_at_a_time);
        Ok(client)
    }

    async fn close(self: Arc<Self>) -> Result<()> {
        self.is_closed.store(true, Ordering::Release);
        match self.made.get() {
            Some(client) => client.close().await,
            None => Ok(()),
        }
    }
}

/// Whether this process has had a client.
pub(crate) fn any() -> bool {
    CONNECTED.get().is_some()
}

/// Closes this process's clients at its end, all at the same time.
pub(crate) async fn close_all() -> Result<()> {
    let Some(connected) = CONNECTED.get() else { return Ok(()) };
    let cores = std::mem::take(&mut *connected.lock().unwrap_or_else(PoisonError::into_inner));
    let mut closing = Vec::new();
    for core in cores.iter().filter_map(Weak::upgrade).filter(|core| core.closes_at_exit) {
        closing.push(core.runtime()?.clone().spawn(core.close()));
    }
    for one in closing {
        // What could not be released expires; no caller is left who could learn of it.
        drop(one.await);
    }
    Ok(())
}

fn layout(value: &Bound<'_, PyAny>) -> PyResult<Layout> {
    value.extract::<String>()?.parse().map_err(raising(value.py()))
}

/// What both clients have.
#[pyclass(subclass, frozen, weakref, module = "leasehold._leasehold")]
pub(crate) struct AnyClient {
    pub(crate) face: Face,
    pub(crate) core: Arc<Core>,
}

impl AnyClient {
    /// Carries out an operation of the library's client.
    fn run<T, F>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(leasehold::Client) -> F + Send + 'static,
        give: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let core = Arc::clone(&self.core);
        let operation = async move { operation(core.client().await?).await };
        self.face.run(py, self.core.timed(operation), give)
    }

    fn known(&self, py: Python<'_>) -> PyResult<&leasehold::Client> {
        self.core.connected().ok_or_else(|| {
            let why = "this client is not connected in this process yet";
            raising(py)(Error::new(ErrorKind::Misuse, why))
        })
    }
}

fn fence(fence: &Bound<'_, PyAny>) -> PyResult<Fence> {
    let py = fence.py();
    let why = || Error::new(ErrorKind::Config, "a fence is a number from 0 to 2**63 - 1");
    let fence = match fence.extract::<u64>() {
        Ok(fence) => Fence::from_value(fence),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => Err(why()),
        Err(error) => return Err(error),
    };
    fence.map_err(raising(py))
}

#[pymethods]
impl AnyClient {
    #[doc = about!("Client.location")]
    #[getter]
    fn location(&self, py: Python<'_>) -> PyResult<String> {
        self.known(py).map(|client| client.location().to_owned())
    }

    #[doc = about!("Client.owner")]
    #[getter]
    fn owner(&self, py: Python<'_>) -> PyResult<String> {
        self.known(py).map(|client| client.owner().as_str().to_owned())
    }

    #[doc = about!("Client.mutex")]
    #[pyo3(signature = (key, **options))]
    fn mutex(
        slf: &Bound<'_, Self>,
        key: String,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        kinds::mutex(slf, key, options)
    }

    #[doc = about!("Client.rwlock")]
    #[pyo3(signature = (key, **options))]
    fn rwlock(
        slf: &Bound<'_, Self>,
        key: String,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        kinds::rwlock(slf, key, options)
    }

    #[doc = about!("Client.semaphore")]
    #[pyo3(signature = (key, limit, **options))]
    fn semaphore(
        slf: &Bound<'_, Self>,
        key: String,
        #[pyo3(from_py_with = count)] limit: u32,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        kinds::semaphore(slf, key, limit, options)
    }

    #[doc = about!("Client.multi")]
    #[pyo3(signature = (keys, **options))]
    fn multi(
        slf: &Bound<'_, Self>,
        keys: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        kinds::multi(slf, keys, options)
    }

    #[doc = about!("Client.reentrant")]
    #[pyo3(signature = (key, by, **options))]
    fn reentrant(
        slf: &Bound<'_, Self>,
        key: String,
        by: &Bound<'_, Owner>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        kinds::reentrant(slf, key, by.get(), options)
    }

    #[doc = about!("Client.once_per")]
    #[pyo3(signature = (key, period, **options))]
    fn once_per(
        slf: &Bound<'_, Self>,
        key: String,
        period: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        kinds::once_per(slf, key, period, options)
    }

    #[doc = about!("Client.election")]
    #[pyo3(signature = (key, **options))]
    fn election(
        slf: &Bound<'_, Self>,
        key: String,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        kinds::election(slf, key, options)
    }

    #[doc = about!("Client.inspect")]
    fn inspect(&self, py: Python<'_>, key: String) -> PyResult<Py<PyAny>> {
        let look = async move |client: leasehold::Client| client.inspect(key).await;
        self.run(py, look, |py, info| convert::optional(py, info.as_ref(), convert::lock))
    }

    #[doc = about!("Client.list")]
    #[pyo3(signature = (prefix=""))]
    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Py<PyAny>> {
        let prefix = prefix.to_owned();
        let list = async move |client: leasehold::Client| client.list(prefix).await;
        self.run(py, list, |py, listing| convert::listing(py, &listing))
    }

    #[doc = about!("Client.log")]
    #[pyo3(signature = (key, last=100))]
    fn log(
        &self,
        py: Python<'_>,
        key: String,
        #[pyo3(from_py_with = count)] last: usize,
    ) -> PyResult<Py<PyAny>> {
        let read = async move |client: leasehold::Client| client.log(key, last).await;
        self.run(py, read, |py, entries| convert::list(py, &entries, convert::log_entry))
    }

    #[doc = about!("Client.examine")]
    fn examine(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let examine = async move |client: leasehold::Client| client.examine().await;
        self.run(py, examine, |py, findings| convert::list(py, &findings, convert::finding))
    }

    #[doc = about!("Client.ask")]
    #[pyo3(signature = (key, fence=None))]
    fn ask(
        &self,
        py: Python<'_>,
        key: String,
        fence: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let fence = fence.map(self::fence).transpose()?;
        let ask = async move |client: leasehold::Client| match fence {
            Some(fence) => client.ask_holder(key, fence).await,
            None => client.ask(key).await,
        };
        self.run(py, ask, plain)
    }

    #[doc = about!("Client.force_release")]
    fn force_release(
        &self,
        py: Python<'_>,
        key: String,
        fence: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let fence = self::fence(fence)?;
        let force = async move |client: leasehold::Client| client.force_release(key, fence).await;
        self.run(py, force, |py, answer| plain(py, convert::force_release(&answer)))
    }

    #[doc = about!("Client.adopt")]
    fn adopt(&self, py: Python<'_>, secret: &str) -> PyResult<Py<PyAny>> {
        let lease: DetachedLease = secret.parse().map_err(raising(py))?;
        let (core, face) = (Arc::clone(&self.core), self.face);
        let adopt = async move |client: leasehold::Client| client.adopt(&lease).await;
        self.run(py, adopt, move |py, guard| {
            Grant { guard: Held::Plain(guard), core }.give(py, face)
        })
    }

    #[doc = about!("Client.release_all")]
    fn release_all(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let release = async move |client: leasehold::Client| client.release_all().await;
        self.run(py, release, nothing)
    }

    #[doc = about!("Client.close")]
    fn close(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.face.run(py, self.core.timed(Arc::clone(&self.core).close()), nothing)
    }

    #[doc = about!("Client.events")]
    fn events(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        watching::events(py, self.face, &self.core)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let name = slf.get_type().fully_qualified_name()?;
        let state = match slf.get().core.connected() {
            Some(client) => client.location(),
            None => "not connected",
        };
        Ok(format!("<{name} {state:?}>"))
    }
}

#[doc = about!("Client")]
#[pyclass(subclass, frozen, extends = AnyClient, module = "leasehold")]
pub(crate) struct Client;

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (url=None, **settings))]
    fn new(
        py: Python<'_>,
        url: Option<String>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let core = Core::new(py, url, settings)?;
        wait(py, core.timed(core.client()))?.map_err(raising(py))?;
        Ok(PyClassInitializer::from((Self, AnyClient { face: Face::Threads, core })))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(slf: &Bound<'_, Self>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let _ = exception;
        slf.as_super().get().close(slf.py()).map(drop)
    }
}

#[doc = about!("aio.Client")]
#[pyclass(subclass, frozen, extends = AnyClient, name = "Client", module = "leasehold.aio")]
pub(crate) struct AClient;

#[pymethods]
impl AClient {
    #[new]
    #[pyo3(signature = (url=None, **settings))]
    fn new(
        py: Python<'_>,
        url: Option<String>,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let core = Core::new(py, url, settings)?;
        Ok(PyClassInitializer::from((Self, AnyClient { face: Face::Tasks, core })))
    }

    #[doc = about!("aio.Client.of")]
    #[classmethod]
    fn of(class: &Bound<'_, PyType>, client: &Bound<'_, AnyClient>) -> PyResult<Py<Self>> {
        let core = Arc::clone(&client.get().core);
        Py::new(class.py(), (Self, AnyClient { face: Face::Tasks, core }))
    }

    fn __aenter__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let (py, this) = (slf.py(), slf.clone().unbind());
        let connect = async move |_: leasehold::Client| Ok(());
        slf.as_super().get().run(py, connect, move |_, ()| Ok(this.into_any()))
    }

    #[pyo3(signature = (*exception))]
    fn __aexit__(slf: &Bound<'_, Self>, exception: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        let _ = exception;
        slf.as_super().get().close(slf.py())
    }
}
