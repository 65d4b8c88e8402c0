//! Builds a client: its settings, and how it connects to its store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_clock::{Driver, SystemClock, TokioClock};
use leasehold_core::retry::{Exponential, RetryStrategy as _};
use leasehold_core::{Clock, Error, OwnerName, Result, Store, Ttl, length};

#[cfg(doc)]
use crate::ErrorKind;
use crate::client::Client;
use crate::config::{Config, DEFAULT_CALL_TIMEOUT, DEFAULT_LOCAL_HANDOFFS, DEFAULT_TTL};
use crate::connect::store_url;
use crate::options::{self, LockOptions};
use crate::owner;
use crate::rt;
use crate::shared::Inner;

/// Pauses between tries to reach a store.
const RETRY_STORE_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_STORE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Called with the error of each failed try to reach the store.
type OnRetryStore = Arc<dyn Fn(&Error) + Send + Sync>;

/// Settings of a [`Client`].
///
/// Each setting is named after what it sets. Finish with [`connect`](Self::connect) for a URL or
/// [`store`](Self::store) for a store of your own.
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    ttl: Duration,
    min_ttl: Duration,
    min_renewal: Option<Duration>,
    owner: Option<String>,
    options: LockOptions,
    call_timeout: Duration,
    local_handoffs: u32,
    clock: Option<Arc<dyn Clock>>,
    tokio_time: bool,
    detached: bool,
    password: Option<String>,
    #[cfg(feature = "redis")]
    credentials: Option<store_url::Provide>,
    #[cfg(feature = "redis")]
    sentinel_credentials: Option<store_url::Provide>,
    log: u32,
    fence_retention: Option<Duration>,
    create_tables: bool,
    retry_store: Duration,
    on_retry_store: Option<OnRetryStore>,
    #[cfg(feature = "interop")]
    layout: Option<leasehold_redis::interop::Layout>,
    #[cfg(feature = "interop")]
    leftovers: Option<Duration>,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ttl,
            min_ttl,
            min_renewal,
            owner,
            options,
            call_timeout,
            local_handoffs,
            clock,
            tokio_time,
            detached,
            password,
            log,
            fence_retention,
            create_tables,
            retry_store,
            on_retry_store: _,
            #[cfg(feature = "redis")]
                credentials: _,
            #[cfg(feature = "redis")]
                sentinel_credentials: _,
            #[cfg(feature = "interop")]
                layout: _,
            #[cfg(feature = "interop")]
                leftovers: _,
        } = self;
        f.debug_struct("ClientBuilder")
            .field("ttl", ttl)
            .field("min_ttl", min_ttl)
            .field("min_renewal", min_renewal)
            .field("owner", owner)
            .field("options", options)
            .field("call_timeout", call_timeout)
            .field("local_handoffs", local_handoffs)
            .field("clock", clock)
            .field("tokio_time", tokio_time)
            .field("detached", detached)
            .field("password", &password.as_ref().map(|_| "***"))
            .field("log", log)
            .field("fence_retention", fence_retention)
            .field("create_tables", create_tables)
            .field("retry_store", retry_store)
            .finish_non_exhaustive()
    }
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            min_ttl: Ttl::MIN.duration(),
            min_renewal: None,
            owner: None,
            options: LockOptions::new(),
            call_timeout: DEFAULT_CALL_TIMEOUT,
            local_handoffs: DEFAULT_LOCAL_HANDOFFS,
            clock: None,
            tokio_time: false,
            detached: false,
            password: None,
            #[cfg(feature = "redis")]
            credentials: None,
            #[cfg(feature = "redis")]
            sentinel_credentials: None,
            log: 0,
            fence_retention: None,
            create_tables: false,
            retry_store: Duration::ZERO,
            on_retry_store: None,
            #[cfg(feature = "interop")]
            layout: None,
            #[cfg(feature = "interop")]
            leftovers: None,
        }
    }
}

/// No server answers in less time.
fn check_call_timeout(length: Duration) -> Result<()> {
    options::long_enough("a call timeout", Some(length)).map(drop)
}

impl ClientBuilder {
    /// The ttl of this client's locks that set none themselves: 10 ms to 30 days, by default
    /// [`DEFAULT_TTL`].
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Refuses a shorter ttl than this, for locking and for every change of a lease's length, so
    /// that no lock expires early by mistake. By default any ttl in range is accepted.
    pub const fn min_ttl(mut self, min_ttl: Duration) -> Self {
        self.min_ttl = min_ttl;
        self
    }

    /// Refuses to set a held lease to a shorter length than this, counted from then
    /// ([`Guard::renew_to`](crate::HeldLease::renew_to), [`Client::renew`]). So no lock is
    /// shortened too much by mistake. If this is set, it alone decides; by default it is the
    /// [shortest ttl](Self::min_ttl).
    pub const fn min_renewal(mut self, min_renewal: Duration) -> Self {
        self.min_renewal = Some(min_renewal);
        self
    }

    /// The name of the holder of this client's locks, for people; by default `host_pid_tag`.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// The options of this client's locks that set none themselves: for how long to wait, when to
    /// try again, and all others of [`LockOptions`]. A wrong option is reported when the client is
    /// made. A ttl and an owner among them count before [`ttl`](Self::ttl) and
    /// [`owner`](Self::owner).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// use leasehold::retry::Linear;
    /// use leasehold::{Client, ErrorKind, LockOptions, WaitLimit};
    /// use std::time::Duration;
    ///
    /// // A lease of 5 s, requested every 100 ms, for 5 s at most.
    /// let usual = LockOptions::new()
    ///     .ttl(Duration::from_secs(5))
    ///     .retry(Linear::new(Duration::from_millis(100)))
    ///     .wait_limit(WaitLimit::Ttl);
    /// let client = Client::builder().options(&usual).connect("memory:").await?;
    /// let guard = client.mutex("stock").lock().await?;
    /// let other = client.mutex("stock").wait_limit(Duration::from_millis(20));
    /// assert_eq!(other.lock().await.unwrap_err().kind(), ErrorKind::Timeout);
    /// # guard.release().await
    /// # }
    /// ```
    pub fn options(mut self, options: &LockOptions) -> Self {
        self.options = options.clone();
        self
    }

    /// How long one request to the store may take, at least 10 ms, [`DEFAULT_CALL_TIMEOUT`] by
    /// default. A request under a shorter ttl has no more time than the ttl. Connecting has twice
    /// this: once for the connection, and once for the first request.
    pub const fn call_timeout(mut self, call_timeout: Duration) -> Self {
        self.call_timeout = call_timeout;
        self
    }

    /// How often in a row a released lock goes to the next waiter of this same client without a
    /// request to the store, [`DEFAULT_LOCAL_HANDOFFS`] by default; 0 turns that off. Only waiters
    /// with the same settings take part, and only for 50 ms after a grant by the store, so that
    /// waiters elsewhere get their turn. The leadership of an [`Election`](crate::Election) always
    /// goes through the store, where all can see each leader.
    pub const fn local_handoffs(mut self, handoffs: u32) -> Self {
        self.local_handoffs = handoffs;
        self
    }

    /// The clock on which leases are counted. The default counts while the machine sleeps; tests
    /// may bring their own. It is read on several threads.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// For tests whose runtime's time is paused (`#[tokio::test(start_paused = true)]`). The client
    /// counts on the runtime's time, and so does a `memory:` store that it connects to. Tasks of
    /// that runtime renew the leases in place of a thread. A lease of 30 s then expires at once
    /// when all tasks wait, and at the same point in every run of the test.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()
    /// #     .unwrap().block_on(async {
    /// let client = leasehold::Client::builder().tokio_time().connect("memory:").await?;
    /// let guard = client.mutex("stock").renew(false).lock().await?;
    /// guard.lost().await; // 30 s, in no time
    /// # Ok::<(), leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// In a test without this, leases and waits take real time, while the runtime's own timers,
    /// such as `tokio::time::timeout`, end at once. Stores other than memory count on real time,
    /// and connections to servers can't be made while time is paused. Only for tests: leases depend
    /// on the runtime here.
    pub const fn tokio_time(mut self) -> Self {
        self.tokio_time = true;
        self
    }

    /// Takes leases that outlive this process: on the embedded store a lease normally ends with its
    /// process; a detached one expires. Only for clients made by [`connect`](Self::connect). With
    /// other stores it has no effect.
    pub const fn detached(mut self, detached: bool) -> Self {
        self.detached = detached;
        self
    }

    /// The store's password, if the URL has none. No output shows it.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The credentials for servers, if the URL has no password or `password_file`. It counts before
    /// [`password`](Self::password). The client calls it when it first connects to the store, when
    /// a server refuses what it returned, and before that
    /// [ends](crate::redis::Credentials::valid_for). Open connections log in again then, and no
    /// lease is at risk. It may block. See
    /// [`RedisStoreBuilder::credentials`](crate::redis::RedisStoreBuilder::credentials).
    ///
    /// ```no_run
    /// # async fn doc() -> leasehold::Result<()> {
    /// use leasehold::Client;
    /// use leasehold::redis::Credentials;
    /// use std::time::Duration;
    ///
    /// # fn token() -> std::io::Result<String> { Ok(String::new()) }
    /// let client = Client::builder()
    ///     .credentials(|| Ok(Credentials::new(token()?).valid_for(Duration::from_secs(15 * 60))))
    ///     .connect("rediss://app@cache.example.com")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    pub fn credentials(
        mut self,
        provide: impl Fn() -> leasehold_redis::CredentialsResult + Send + Sync + 'static,
    ) -> Self {
        self.credentials = Some(Arc::new(provide));
        self
    }

    /// As [`credentials`](Self::credentials), for sentinels, which have users of their own: if the
    /// URL has no `sentinel_password` or `sentinel_password_file`.
    #[cfg(feature = "redis")]
    pub fn sentinel_credentials(
        mut self,
        provide: impl Fn() -> leasehold_redis::CredentialsResult + Send + Sync + 'static,
    ) -> Self {
        self.sentinel_credentials = Some(Arc::new(provide));
        self
    }

    /// For how long to go on trying to reach a store that is away when the client first needs it.
    /// By default there is one try, so that a wrong address is reported at once.
    ///
    /// [`connect`](Self::connect) tries for this time, with pauses of up to a second. A client that
    /// was made of a [`store`](Self::store) has sent it no request yet, so its waits for locks go
    /// on for this time until the store has answered one. Errors that time can't mend (a wrong
    /// password, an unusable URL) end the tries at once.
    ///
    /// Once the store was reached, waits for locks ride out its absence anyway: within their limit,
    /// and without one for 30 s, or for this time if it is longer.
    pub const fn retry_store(mut self, length: Duration) -> Self {
        self.retry_store = length;
        self
    }

    /// Called after each failed try to reach the store, when another follows; see
    /// [`retry_store`](Self::retry_store). It must not block.
    pub fn on_retry_store(mut self, tell: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.on_retry_store = Some(Arc::new(tell));
        self
    }

    /// Keeps locks as another library does, so that its programs and this client's exclude each
    /// other. For programs that get the layout from their users, such as the command: features that
    /// this layout lacks are [`ErrorKind::Unsupported`] when they are used. If the layout is known
    /// while the program is written, use [`interop`](crate::interop), whose types lack these
    /// features. Only for URLs of one Redis server, of sentinels, or of a cluster.
    ///
    /// Each lease goes [through the store](Self::local_handoffs), so that the other programs get
    /// their turn.
    #[cfg(feature = "interop")]
    pub fn interop(mut self, layout: leasehold_redis::interop::Layout) -> Self {
        self.layout = Some(layout);
        self.local_handoffs(0)
    }

    /// Sets this expiry, 10 ms to 30 days, on a lock in [another library's layout](Self::interop)
    /// that is found without one, so that it comes free. See
    /// [`InteropStore::leftovers`](crate::interop::InteropStore::leftovers).
    #[cfg(feature = "interop")]
    pub const fn leftovers(mut self, expiry: Duration) -> Self {
        self.leftovers = Some(expiry);
        self
    }

    /// Has the store log about this many events, up to 100 000, if its URL has no `log` (`log=0`
    /// turns it off); 0 by default. A server keeps them for each lock, a directory for all locks
    /// together. See [`Client::log`].
    pub const fn log(mut self, events: u32) -> Self {
        self.log = events;
        self
    }

    /// For how long a server keeps the last fence of an idle lock, if its URL does not say
    /// (`fence_retention=10m`): 1 s to 30 days, by default 10 minutes. After it, the server's clock
    /// alone keeps fences growing: set it longer than that clock could ever be set back. With other
    /// stores it has no effect.
    pub const fn fence_retention(mut self, length: Duration) -> Self {
        self.fence_retention = Some(length);
        self
    }

    /// Makes the schema and the tables of locks in a PostgreSQL database that lacks them;
    /// `create=yes` in its URL does the same. By default such a database is refused. With other
    /// stores it has no effect.
    pub const fn create_tables(mut self, create: bool) -> Self {
        self.create_tables = create;
        self
    }

    /// Connects to the store at a URL; see [`Client::connect`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// As [`Client::connect`], and [`ErrorKind::Config`] when a setting is out of range.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(mut self, url: impl AsRef<str>) -> Result<Client> {
        rt::current()?;
        check_call_timeout(self.call_timeout)?;
        let clock = self.own_clock();
        let options = store_url::Options {
            clock: Arc::clone(&clock),
            detached: self.detached,
            password: self.password.clone(),
            #[cfg(feature = "redis")]
            credentials: self.credentials.clone(),
            #[cfg(feature = "redis")]
            sentinel_credentials: self.sentinel_credentials.clone(),
            timeout: self.call_timeout,
            log: leasehold_core::checked_log(&self.log.to_string())?,
            fence_retention: self.fence_retention,
            create: self.create_tables,
            #[cfg(feature = "interop")]
            layout: self.layout.clone(),
            #[cfg(feature = "interop")]
            leftovers: self.leftovers.map(Ttl::new).transpose()?,
        };
        self.clock = Some(clock);
        let store = self.reach(url.as_ref(), &options).await?;
        let client = self.start(store)?;
        client.heard(client.clock.now());
        Ok(Client::of(client))
    }

    /// Opens the store, and goes on trying for [`retry_store`](Self::retry_store).
    async fn reach(&self, url: &str, options: &store_url::Options) -> Result<Arc<dyn Store>> {
        let clock = &*options.clock;
        let pauses = Exponential::new(RETRY_STORE_PAUSE_MIN, RETRY_STORE_PAUSE_MAX);
        let until = clock.now().saturating_add(self.retry_store);
        // The first try takes its own time, as it does when it is the only one.
        let mut error = match store_url::open(url, options.clone()).await {
            Err(error) if error.is_retryable() && clock.now() < until => error,
            outcome => return outcome,
        };
        for tries in 1.. {
            tracing::debug!(target: "leasehold", %error, tries, "the store can't be reached");
            if let Some(tell) = &self.on_retry_store {
                tell(&error);
            }
            let pause = pauses.pause(tries).unwrap_or(RETRY_STORE_PAUSE_MAX);
            let again = clock.now().saturating_add(pause).min(until);
            rt::sleep_until(clock, again).await;
            let opened = tokio::select! {
                biased;
                opened = store_url::open(url, options.clone()) => opened,
                () = rt::sleep_until(clock, until) => break,
            };
            match opened {
                Err(failed) if failed.is_retryable() => error = failed,
                outcome => return outcome,
            }
        }
        let within = length::typed(self.retry_store);
        let why = format!("not reached within {within}");
        let in_vain = Error::new(error.kind(), why).during("connect");
        let in_vain = match error.store() {
            Some(store) => in_vain.at_store(store),
            None => in_vain,
        };
        Err(in_vain.caused_by(error))
    }

    fn own_clock(&self) -> Arc<dyn Clock> {
        match &self.clock {
            Some(clock) => Arc::clone(clock),
            None if self.tokio_time => Arc::new(TokioClock::new()),
            None => Arc::new(SystemClock::new()),
        }
    }

    /// Makes a client of a store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] when a setting is out of range, [`ErrorKind::Unavailable`] when the
    /// thread that renews leases can't be started, [`ErrorKind::Misuse`] when
    /// [`tokio_time`](Self::tokio_time) is set outside a tokio runtime.
    pub fn store(self, store: Arc<dyn Store>) -> Result<Client> {
        self.start(store).map(Client::of)
    }

    fn start(self, store: Arc<dyn Store>) -> Result<Arc<Inner>> {
        let clock = self.own_clock();
        let Self {
            ttl,
            min_ttl,
            min_renewal,
            owner,
            options,
            call_timeout,
            local_handoffs,
            tokio_time,
            retry_store,
            ..
        } = self;
        check_call_timeout(call_timeout)?;
        if let Some(wrong) = options.wrong {
            return Err(wrong);
        }
        let config = Config {
            ttl: options.ttl.map_or_else(|| Ttl::new(ttl), Ok)?,
            min_ttl: Ttl::new(min_ttl)?,
            min_renewal: Ttl::new(min_renewal.unwrap_or(min_ttl))?,
            owner: match (&options.owner, owner) {
                (Some(owner), _) => owner.clone(),
                (None, Some(owner)) => OwnerName::new(owner)?,
                (None, None) => owner::of_this_process(),
            },
            call_timeout,
            local_handoffs,
            retry_store,
            options,
        };
        let background =
            if tokio_time { rt::current()? } else { Driver::current()?.runtime().clone() };
        Inner::start(store, clock, config, background)
    }
}

impl Client {
    /// Connects to a store: `memory:`, `embedded:` (one directory per user of this machine),
    /// `embedded:/path`, `redis://…`, `rediss://…` or `redis+unix:///path`.
    /// `redis+sentinel://host,host/name` and `redis+cluster://host,host` also exist as `rediss+…`.
    /// With the feature `postgres` there is `postgres://user@host/database`, a
    /// [table in a database](crate::postgres::PostgresStore::connect).
    /// With the feature `quorum` there is a majority of several stores:
    ///
    /// ```text
    /// quorum+redis://[user:password@]host,host,host[/database][?setting=value&…]
    /// quorum:STORE,STORE,STORE       stores of any kind; settings may stand among them
    /// ```
    ///
    /// or `spread:NAME=STORE,NAME=STORE`, a [sharded store](crate::store::SpreadStore), with each
    /// lock in one of several stores. All of them must be reachable when the client is made.
    ///
    /// A quorum has these settings:
    ///
    /// - `max_ttl` (`60s`): the longest lease that any client takes there. A restarted node counts
    ///   again after this time.
    /// - `node_timeout` (`500ms`).
    /// - `keep_leases` (`no`): `yes` if every node keeps its leases over restarts.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for an unusable URL, [`ErrorKind::Unsupported`] for a store that this
    /// build leaves out, and what the store says when it can't be opened or reached. No message
    /// repeats the URL's password.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// A client with settings of its own.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A client of this store, with default settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when the thread that renews leases can't be started.
    pub fn new(store: Arc<dyn Store>) -> Result<Self> {
        Self::builder().store(store)
    }
}
