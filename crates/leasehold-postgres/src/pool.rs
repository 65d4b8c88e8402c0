//! The connections of a store, which live on the process's own thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{join, try_join3};
use leasehold_clock::Driver;
use leasehold_core::{Effect, Error, ErrorKind, Reason, Result, escape};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::config::{ChannelBinding, SslMode, TargetSessionAttrs};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, Connection, NoTls, Row};

use crate::address::{Address, Host};
use crate::classify::{Deadline, Fault, Next, judge, not_replicated};
use crate::passfile;
use crate::tls::Tls;

/// A parameter of a statement, with its type, so that the statement needs no preparation.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection that was silent for this long, with a request under way, is replaced.
const SILENT: Duration = Duration::from_secs(1);
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The server ends a transaction that waits for a row, or for its client, for longer.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; \
    SET LOCAL idle_in_transaction_session_timeout = '5s'";
/// The part of the server that waits for a standby. It warns if its wait is cancelled, and the
/// commit then succeeds.
const WAITS_FOR_STANDBY: &str = "SyncRepWaitForLSN";

/// How to connect.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    pub(crate) address: Address,
    pub(crate) timeout: Duration,
}

impl Dial {
    fn config(&self, name: &str) -> Result<Config> {
        let Address { hosts, user, password, password_file, database, tls, .. } = &self.address;
        let host = |host| passfile::password(host, database, user);
        let mut config = Config::new();
        config.user(user).dbname(database).application_name(name).connect_timeout(self.timeout);
        config.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE);
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        if hosts.len() > 1 {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        for host in hosts {
            match host {
                Host::Tcp(host, port) => config.host(host).port(*port),
                Host::Unix(folder, port) => config.host_path(folder).port(*port),
            };
        }
        // Read at each login, so a new password is found once the old one is refused.
        let from_file = match password_file {
            Some(path) => Some(std::fs::read_to_string(path).map_err(|error| {
                let shown = path.to_string_lossy();
                let why = format!("can't read the password file {}", escape::terminal(&shown));
                Error::new(ErrorKind::Config, why)
                    .with_reason(Reason::StoreSettings)
                    .caused_by(error)
            })?),
            None => None,
        };
        let from_file = from_file.as_deref().map(|text| text.lines().next().unwrap_or_default());
        let password = from_file.or(password.as_deref()).map(ToOwned::to_owned);
        // Without one, a server that wants one refuses the login itself.
        config.password(password.or_else(|| hosts.iter().find_map(host)).unwrap_or_default());
        if self.address.binds_channel {
            config.channel_binding(ChannelBinding::Require);
        }
        Ok(config)
    }

    /// Connects. What the server sends by itself goes to `hear`, until it returns `false`.
    pub(crate) async fn open(&self, name: &str, hear: Hear) -> Result<Client, Fault> {
        let config = self.config(name)?;
        let connecting = async {
            match &self.address.tls {
                Some(files) => {
                    let (client, connection) =
                        config.connect(Tls::read(files)?).await.map_err(|e| judge(&e, false))?;
                    tokio::spawn(carry(connection, hear));
                    Ok(client)
                }
                None => {
                    let (client, connection) =
                        config.connect(NoTls).await.map_err(|e| judge(&e, false))?;
                    tokio::spawn(carry(connection, hear));
                    Ok(client)
                }
            }
        };
        let hosts = u32::try_from(self.address.hosts.len()).unwrap_or(1);
        // The handshake has no limit of its own.
        let deadline = Deadline::after(self.timeout.saturating_mul(hosts));
        let outcome = timeout_at(deadline.at, connecting)
            .await
            .unwrap_or_else(|_| Err(deadline.missed(Effect::NotApplied)));
        let Address { password, password_file, .. } = &self.address;
        if password.is_some() || password_file.is_some() {
            return outcome;
        }
        outcome.map_err(passfile::explained)
    }

    /// Has the server end the statement that runs on a connection. Otherwise it would occupy a
    /// session for as long as it waits.
    async fn cancel(&self, token: CancelToken) {
        let cancelling = async {
            match &self.address.tls {
                Some(files) => match Tls::read(files) {
                    Ok(tls) => token.cancel_query(tls).await.ok(),
                    Err(_) => None,
                },
                None => token.cancel_query(NoTls).await.ok(),
            }
        };
        // Without an answer the statement ends as the server likes.
        drop(timeout(self.timeout, cancelling).await);
    }
}

/// Receives what a server sends by itself. Returns whether to go on.
pub(crate) type Hear = Box<dyn FnMut(AsyncMessage) -> bool + Send>;

/// Moves the bytes of a connection until it ends.
async fn carry<S, T>(mut connection: Connection<S, T>, mut hear: Hear)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(said)) => {
                if !hear(said) {
                    return;
                }
            }
            Some(Err(error)) => {
                tracing::debug!(target: "leasehold", %error, "a connection to PostgreSQL ended");
                return;
            }
            None => return,
        }
    }
}

/// An open connection.
#[derive(Debug)]
struct Link {
    client: Client,
    made_at: Instant,
    /// When the first request was sent since the last answer: milliseconds since the connection was
    /// made. Far ahead if there is none.
    unanswered_ms: AtomicU64,
    /// Warnings that a commit's wait for a standby was cancelled. Each comes before the answer.
    warnings: Arc<AtomicU64>,
}

type Slot = Arc<Mutex<Option<Arc<Link>>>>;

/// The connections of a store. Each name has its own among them, so a later statement about a name
/// follows an earlier one.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) dial: Arc<Dial>,
    pub(crate) driver: Driver,
    slots: Vec<Slot>,
    /// One more, for transactions of several statements, one at a time.
    alone: Slot,
    turn: Arc<Mutex<()>>,
    /// Whether the first transaction succeeded.
    begins: OnceLock<bool>,
}

/// How a pooler lends sessions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pooler {
    ByTransaction,
    ByStatement,
}

/// A transaction of several statements. Unless it is ended, its connection is: the server then
/// undoes it.
pub(crate) struct Transaction {
    _turn: OwnedMutexGuard<()>,
    slot: Slot,
    link: Arc<Link>,
    ended: bool,
}

impl Transaction {
    /// Carries its last statement out, and commits.
    pub(crate) async fn commit(
        mut self,
        sql: &str,
        params: &[Param<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Row>, Fault> {
        let Link { client, warnings, .. } = &*self.link;
        let before = warnings.load(Ordering::Acquire);
        let both = join(client.query_typed(sql, params), client.batch_execute("COMMIT"));
        let outcome = timeout_at(deadline.at, both).await;
        let (answer, committed) = outcome.map_err(|_| deadline.missed(Effect::Unknown))?;
        let rows = answer.map_err(|error| judge(&error, true))?;
        committed.map_err(|error| judge(&error, true))?;
        self.ended = true;
        if warnings.load(Ordering::Acquire) != before {
            return Err(not_replicated());
        }
        Ok(rows)
    }

    /// Ends it without another statement. Nothing depends on the answer.
    pub(crate) fn end(mut self) {
        self.ended = self.link.client.batch_execute("COMMIT").now_or_never().is_none();
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // Only callers with the turn use this connection.
        if !self.ended
            && let Ok(mut slot) = self.slot.try_lock()
        {
            *slot = None;
        }
    }
}

impl Pool {
    pub(crate) fn new(dial: Dial) -> Result<Self> {
        let slots = (0..dial.address.connections.max(1)).map(|_| Slot::default()).collect();
        let (dial, driver) = (Arc::new(dial), Driver::current()?);
        let (alone, turn, begins) = (Slot::default(), Arc::default(), OnceLock::new());
        Ok(Self { dial, driver, slots, alone, turn, begins })
    }

    /// Whether transactions of several statements are possible: not through a pooler by statement.
    pub(crate) fn may_begin(&self) -> bool {
        self.begins.get().copied().unwrap_or(true)
    }

    /// Begins a transaction with two statements, and returns the rows of the second.
    pub(crate) async fn begin(
        &self,
        [first, second]: [&str; 2],
        params: &[Param<'_>],
        deadline: Deadline,
    ) -> Result<(Transaction, Vec<Row>), Fault> {
        let missed = || deadline.missed(Effect::NotApplied);
        let waiting = timeout_at(deadline.at, Arc::clone(&self.turn).lock_owned());
        let turn = waiting.await.map_err(|_| missed())?;
        let begun = async {
            let link = self.link(&self.alone, deadline).await?;
            let slot = Arc::clone(&self.alone);
            let begun = Transaction { _turn: turn, slot, link, ended: false };
            let client = &begun.link.client;
            let all = try_join3(
                client.batch_execute(BEGIN),
                client.query_typed(first, params),
                client.query_typed(second, params),
            );
            let answers = timeout_at(deadline.at, all).await.map_err(|_| missed())?;
            let (_, _, rows) = answers.map_err(|error| judge(&error, true))?;
            Ok((begun, rows))
        };
        let begun: Result<_, Fault> = begun.await;
        let refused = begun.as_ref().is_err_and(|fault| fault.next == Next::Reconnect);
        if begun.is_ok() || refused {
            self.begins.get_or_init(|| begun.is_ok());
        }
        begun.map_err(|fault| fault.with_effect(Effect::NotApplied))
    }

    /// Which pooler is in the way, if one is.
    pub(crate) async fn pooler(&self, deadline: Deadline) -> Result<Option<Pooler>, Fault> {
        const SESSION: &str = "SELECT pg_backend_pid()";
        let session = |rows: Vec<Row>| rows.first().and_then(|row| row.try_get::<_, i32>(0).ok());
        let before = session(self.ask(0, SESSION, &[], deadline).await?);
        let (transaction, rows) = match self.begin(["SELECT", SESSION], &[], deadline).await {
            Err(_) if !self.may_begin() => return Ok(Some(Pooler::ByStatement)),
            begun => begun?,
        };
        // Its session is not free for the other connection meanwhile.
        let after = session(self.ask(0, SESSION, &[], deadline).await?);
        transaction.end();
        let is_lent = after != before || session(rows) == before;
        Ok(is_lent.then_some(Pooler::ByTransaction))
    }

    pub(crate) fn connections(&self) -> usize {
        self.slots.len()
    }

    /// The number of the connection for a name with this hash.
    pub(crate) fn place(&self, hash: u64) -> usize {
        let count = u64::try_from(self.slots.len()).unwrap_or(1);
        usize::try_from(hash % count).unwrap_or_default()
    }

    fn slot(&self, hash: u64) -> &Slot {
        self.slots.get(self.place(hash)).unwrap_or(&self.alone)
    }

    /// The connection of this slot, made if it is not there.
    async fn link(&self, slot: &Slot, deadline: Deadline) -> Result<Arc<Link>, Fault> {
        if tokio::runtime::Handle::try_current().is_err() {
            let why = "a PostgreSQL store works inside a tokio runtime only";
            return Err(Error::new(ErrorKind::Misuse, why).into());
        }
        if !self.driver.is_ours() {
            let why = "the store was made before a fork; make one in the child";
            return Err(Error::new(ErrorKind::Misuse, why).into());
        }
        let unsent = || deadline.missed(Effect::NotApplied);
        let guard =
            timeout_at(deadline.at, Arc::clone(slot).lock_owned()).await.map_err(|_| unsent())?;
        if let Some(link) = guard.as_ref().filter(|link| !link.client.is_closed()) {
            return Ok(Arc::clone(link));
        }
        let (tell, told) = oneshot::channel();
        // It goes on without this caller, so callers that wait briefly don't start it again and
        // again.
        self.driver.runtime().spawn(connect(Arc::clone(&self.dial), guard, tell));
        match timeout_at(deadline.at, told).await {
            Ok(Ok(made)) => made,
            Ok(Err(_)) | Err(_) => Err(unsent()),
        }
    }

    /// Carries one statement out, which is a transaction of its own.
    pub(crate) async fn ask(
        &self,
        hash: u64,
        sql: &str,
        params: &[Param<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Row>, Fault> {
        let slot = self.slot(hash);
        let link = self.link(slot, deadline).await?;
        let warnings = link.warnings.load(Ordering::Acquire);
        let now_ms = || u64::try_from(link.made_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        link.unanswered_ms.fetch_min(now_ms(), Ordering::Relaxed);
        match timeout_at(deadline.at, link.client.query_typed(sql, params)).await {
            Ok(Ok(rows)) => {
                link.unanswered_ms.store(u64::MAX, Ordering::Relaxed);
                if link.warnings.load(Ordering::Acquire) != warnings {
                    return Err(not_replicated());
                }
                Ok(rows)
            }
            Ok(Err(error)) => {
                link.unanswered_ms.store(u64::MAX, Ordering::Relaxed);
                let fault = judge(&error, true);
                if fault.next == Next::Reconnect {
                    replace(slot, &link).await;
                }
                Err(fault)
            }
            Err(_) => {
                let silent_ms = now_ms().saturating_sub(link.unanswered_ms.load(Ordering::Relaxed));
                if Duration::from_millis(silent_ms) >= SILENT && replace(slot, &link).await {
                    let (dial, token) = (Arc::clone(&self.dial), link.client.cancel_token());
                    self.driver.runtime().spawn(async move { dial.cancel(token).await });
                }
                Err(deadline.missed(Effect::Unknown))
            }
        }
    }

    /// Carries several statements out in one transaction, without parameters.
    pub(crate) async fn batch(&self, sql: &str, deadline: Deadline) -> Result<(), Fault> {
        let link = self.link(self.slot(0), deadline).await?;
        match timeout_at(deadline.at, link.client.batch_execute(sql)).await {
            Ok(outcome) => outcome.map_err(|error| judge(&error, true)),
            Err(_) => Err(deadline.missed(Effect::Unknown)),
        }
    }
}

/// Lets the next caller connect again. Returns whether this caller is the first to do so.
async fn replace(slot: &Slot, link: &Arc<Link>) -> bool {
    let mut current = slot.lock().await;
    let is_current = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, link));
    if is_current {
        *current = None;
    }
    is_current
}

async fn connect(
    dial: Arc<Dial>,
    mut slot: OwnedMutexGuard<Option<Arc<Link>>>,
    tell: oneshot::Sender<Result<Arc<Link>, Fault>>,
) {
    let warnings = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&warnings);
    let hear = move |said| {
        if let AsyncMessage::Notice(said) = said
            && said.routine() == Some(WAITS_FOR_STANDBY)
        {
            counter.fetch_add(1, Ordering::Release);
        }
        true
    };
    let made = dial.open("leasehold", Box::new(hear)).await.map(|client| {
        let made_at = Instant::now();
        Arc::new(Link { client, made_at, unanswered_ms: AtomicU64::new(u64::MAX), warnings })
    });
    *slot = made.as_ref().ok().cloned();
    // Its caller may have gone. It is woken before the next, so that its statement is sent first.
    drop(tell.send(made));
    drop(slot);
}
