//! Our own connection to one server, and the supervisor that replaces it.
//!
//! All calls share one multiplexed connection. It is made when it is first needed, by one attempt
//! that everybody who waits for it shares and nobody waits for longer than its own deadline. It is
//! thrown away when it breaks, when the server turns out to be a read-only replica, and when two
//! calls in a row got no answer: a network that swallows packets never says that it does.
//!
//! Nothing is sent twice here.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{BoxFuture, Result as StoreResult};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, RedisConnectionInfo, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::address::{Address, Endpoint};
use crate::classify::{self, Next, Stage, Verdict};
use crate::dial::dial;
use crate::tls::Tls;
use crate::transport::{Deadline, Transport, judged};

/// Time-outs in a row after which a connection is given up.
const SILENT_MAX: u32 = 2;

/// Pauses between attempts to connect: short enough for a server that restarts, long enough that
/// a thousand clients leave one that is down alone. Each is lengthened by up to half at random.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pause after so many failures in a row.
pub(crate) fn pause_after(failures: u32) -> Duration {
    let pause = PAUSE_MIN.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(PAUSE_MAX);
    pause.saturating_add(pause.mul_f64(fastrand::f64() / 2.0))
}

/// How to reach a server and log in to it.
pub(crate) struct Access {
    endpoint: Endpoint,
    tls: Tls,
    login: RedisConnectionInfo,
    /// How long one attempt may take.
    pub(crate) connect_timeout: Duration,
    /// Where connections live; fixed when the first one is made, if not told.
    runtime: Mutex<Option<Handle>>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, tls, login: _, connect_timeout, runtime: _ } = self;
        f.debug_struct("Access")
            .field("endpoint", endpoint)
            .field("tls", tls)
            .field("connect_timeout", connect_timeout)
            .finish_non_exhaustive()
    }
}

impl Access {
    pub(crate) fn new(
        address: &Address,
        connect_timeout: Duration,
        runtime: Option<Handle>,
    ) -> StoreResult<Self> {
        let tls = Tls::of(&address.endpoint)?;
        let protocol = if address.resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
        let mut login = RedisConnectionInfo::default()
            .set_db(address.database)
            .set_protocol(protocol)
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &address.user {
            login = login.set_username(user);
        }
        if let Some(password) = &address.password {
            login = login.set_password(password);
        }
        let runtime = Mutex::new(runtime);
        Ok(Self { endpoint: address.endpoint.clone(), tls, login, connect_timeout, runtime })
    }

    /// The runtime on which connections live.
    pub(crate) fn runtime(&self) -> Result<Handle, Verdict> {
        let mut runtime = lock(&self.runtime);
        if let Some(handle) = &*runtime {
            return Ok(handle.clone());
        }
        let handle = Handle::try_current().map_err(|_| {
            Verdict::misconfigured("a Redis store works inside a tokio runtime only")
        })?;
        Ok(runtime.insert(handle).clone())
    }

    /// Opens a connection for requests. Runs on the runtime.
    async fn open(&self) -> Result<Link, Verdict> {
        let attempt = async {
            let socket = dial(&self.endpoint, &self.tls).await?;
            // Deadlines are ours: the library's own time-out would end calls that may take longer.
            let config = AsyncConnectionConfig::new()
                .set_response_timeout(None)
                .set_connection_timeout(None);
            MultiplexedConnection::new_with_config(&self.login, socket, config)
                .await
                .map_err(|error| classify::judge(&error, Stage::Connecting))
        };
        let (connection, driver) = self.in_time(attempt).await?;
        let closed = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&closed);
        let driver = tokio::spawn(async move {
            driver.await;
            flag.store(true, Ordering::Release);
        });
        Ok(Link { connection, closed, driver: driver.abort_handle(), silent: AtomicU32::new(0) })
    }

    /// Opens a connection for messages, on the runtime that this is called on.
    pub(crate) async fn open_pubsub(&self) -> Result<PubSub, Verdict> {
        let attempt = async {
            let socket = dial(&self.endpoint, &self.tls).await?;
            let login = self.login.clone().set_protocol(ProtocolVersion::RESP2);
            PubSub::new(&login, socket)
                .await
                .map_err(|error| classify::judge(&error, Stage::Connecting))
        };
        self.in_time(attempt).await
    }

    async fn in_time<T>(
        &self,
        attempt: impl Future<Output = Result<T, Verdict>>,
    ) -> Result<T, Verdict> {
        timeout(self.connect_timeout, attempt).await.unwrap_or_else(|_| {
            let waited = self.connect_timeout;
            // A server without TLS takes the greeting for the start of a command and waits.
            let hint = match &self.endpoint {
                Endpoint::Tcp { tls: Some(_), .. } => "; does this port speak TLS",
                Endpoint::Tcp { tls: None, .. } | Endpoint::Unix(_) => "",
            };
            Err(Verdict::unconnected(format!("the server did not answer within {waited:?}{hint}")))
        })
    }
}

/// One connection and what is known of it.
struct Link {
    connection: MultiplexedConnection,
    /// Set once the socket is closed.
    closed: Arc<AtomicBool>,
    driver: AbortHandle,
    /// Calls without an answer since the last answer.
    silent: AtomicU32,
}

impl Drop for Link {
    fn drop(&mut self) {
        // Left alone, the driver would wait for the answers still owed to calls that gave up.
        self.driver.abort();
    }
}

type Attempt = watch::Receiver<Option<Result<Arc<Link>, Verdict>>>;

enum Phase {
    Idle,
    Connecting(Attempt),
    Open(Arc<Link>),
}

struct State {
    phase: Phase,
    /// Whether there was ever a connection: then a failure to connect is a bad time, not a wrong
    /// address, and worth waiting for.
    was_connected: bool,
    failures: u32,
    not_before: Option<Instant>,
    last_failure: Option<Verdict>,
}

/// The connection to one server, made anew as often as needed.
pub(crate) struct Supervised {
    inner: Arc<Inner>,
}

struct Inner {
    access: Arc<Access>,
    state: Mutex<State>,
}

impl fmt::Debug for Supervised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervised").field("access", &self.inner.access).finish_non_exhaustive()
    }
}

/// What a caller without a connection has to do.
enum Step {
    Use(Arc<Link>),
    Await(Attempt),
    Sleep(Instant),
}

impl Supervised {
    pub(crate) fn new(access: Arc<Access>) -> Self {
        let state = State {
            phase: Phase::Idle,
            was_connected: false,
            failures: 0,
            not_before: None,
            last_failure: None,
        };
        Self { inner: Arc::new(Inner { access, state: Mutex::new(state) }) }
    }

    /// Waits for a connection until the deadline.
    async fn link(&self, deadline: Deadline) -> Result<Arc<Link>, Verdict> {
        loop {
            match self.step()? {
                Step::Use(link) => return Ok(link),
                Step::Sleep(until) => {
                    sleep_until(until.min(deadline.at)).await;
                }
                Step::Await(mut attempt) => {
                    let ended = timeout_at(deadline.at, attempt.wait_for(Option::is_some))
                        .await
                        .map(|ended| ended.map(|outcome| outcome.clone()));
                    let outcome = match ended {
                        Ok(Ok(outcome)) => outcome,
                        Ok(Err(_)) => {
                            self.inner.abandon(&attempt);
                            return Err(Verdict::unconnected(
                                "the runtime that the connections lived on has ended",
                            )
                            .give_up());
                        }
                        Err(_) => None,
                    };
                    match outcome {
                        Some(Ok(link)) => return Ok(link),
                        Some(Err(verdict))
                            if verdict.next != Next::Reconnect || !self.inner.was_connected() =>
                        {
                            return Err(verdict.give_up());
                        }
                        Some(Err(_)) | None => {}
                    }
                }
            }
            if deadline.is_over() {
                return Err(deadline.missed_unsent(self.inner.state().last_failure.as_ref()));
            }
        }
    }

    fn step(&self) -> Result<Step, Verdict> {
        let mut state = self.inner.state();
        if let Phase::Open(link) = &state.phase {
            if !link.closed.load(Ordering::Acquire) {
                return Ok(Step::Use(Arc::clone(link)));
            }
            state.phase = Phase::Idle;
        }
        if let Phase::Connecting(attempt) = &state.phase {
            return Ok(Step::Await(attempt.clone()));
        }
        if let Some(until) = state.not_before
            && until > Instant::now()
        {
            return Ok(Step::Sleep(until));
        }
        let (tell, attempt) = watch::channel(None);
        state.phase = Phase::Connecting(attempt.clone());
        let inner = Arc::clone(&self.inner);
        match self.inner.access.runtime() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    let outcome = inner.access.open().await.map(Arc::new);
                    inner.settle(&outcome);
                    tell.send_replace(Some(outcome));
                });
            }
            Err(verdict) => {
                state.phase = Phase::Idle;
                return Err(verdict);
            }
        }
        Ok(Step::Await(attempt))
    }

    /// Notes how a call went, and gives the connection up if that says so.
    fn note<T>(&self, link: &Arc<Link>, outcome: &Result<T, Verdict>) {
        match outcome {
            Ok(_) => link.silent.store(0, Ordering::Relaxed),
            Err(verdict) => {
                link.silent.store(0, Ordering::Relaxed);
                if matches!(verdict.next, Next::Drop | Next::Reconnect) {
                    self.inner.discard(link);
                }
            }
        }
    }

    fn note_silence(&self, link: &Arc<Link>) {
        if link.silent.fetch_add(1, Ordering::Relaxed).saturating_add(1) >= SILENT_MAX {
            self.inner.discard(link);
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn was_connected(&self) -> bool {
        self.state().was_connected
    }

    /// Takes in how an attempt to connect ended.
    fn settle(&self, outcome: &Result<Arc<Link>, Verdict>) {
        let mut state = self.state();
        match outcome {
            Ok(link) => {
                state.phase = Phase::Open(Arc::clone(link));
                state.was_connected = true;
                state.failures = 0;
                state.not_before = None;
                state.last_failure = None;
            }
            Err(verdict) => {
                state.phase = Phase::Idle;
                state.failures = state.failures.saturating_add(1);
                state.not_before = Some(Instant::now() + pause_after(state.failures));
                state.last_failure = Some(verdict.clone());
                tracing::debug!(why = verdict.message(), "no connection to the store");
            }
        }
    }

    /// Forgets an attempt whose task is gone, and the runtime that it was on.
    fn abandon(&self, attempt: &Attempt) {
        let mut state = self.state();
        if let Phase::Connecting(current) = &state.phase
            && current.same_channel(attempt)
        {
            state.phase = Phase::Idle;
            lock(&self.access.runtime).take();
        }
    }

    /// Stops using a connection. Calls that wait on it go on waiting.
    fn discard(&self, link: &Arc<Link>) {
        let mut state = self.state();
        if let Phase::Open(current) = &state.phase
            && Arc::ptr_eq(current, link)
        {
            state.phase = Phase::Idle;
            tracing::debug!("the connection to the store is given up");
        }
    }
}

impl Transport for Supervised {
    fn one<'a>(
        &'a self,
        cmd: &'a Cmd,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Value, Verdict>> {
        Box::pin(async move {
            let link = self.link(deadline).await?;
            if deadline.is_over() {
                return Err(deadline.missed_unsent(None));
            }
            let mut connection = link.connection.clone();
            match timeout_at(deadline.at, connection.send_packed_command(cmd)).await {
                Ok(answer) => {
                    let answer = judged(answer);
                    self.note(&link, &answer);
                    answer
                }
                Err(_) => {
                    self.note_silence(&link);
                    Err(deadline.missed())
                }
            }
        })
    }

    fn many<'a>(
        &'a self,
        pipeline: &'a Pipeline,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Vec<Value>, Verdict>> {
        Box::pin(async move {
            let link = self.link(deadline).await?;
            if deadline.is_over() {
                return Err(deadline.missed_unsent(None));
            }
            let mut connection = link.connection.clone();
            let answers = connection.send_packed_commands(pipeline, 0, pipeline.len());
            match timeout_at(deadline.at, answers).await {
                Ok(answers) => {
                    let answers = answers.map_err(|error| classify::judge(&error, Stage::Asked));
                    self.note(&link, &answers);
                    answers
                }
                Err(_) => {
                    self.note_silence(&link);
                    Err(deadline.missed())
                }
            }
        })
    }
}

/// A lock that a panic elsewhere cannot make unusable: what it guards is whole at every await.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
