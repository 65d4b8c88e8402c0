//! Settings of a store, and the ways to make one.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Result, Ttl};
use tokio::runtime::Handle;

use crate::connect::access::{Access, Sources};
use crate::connect::borrowed::Borrowed;
use crate::connect::connection::Supervised;
#[cfg(doc)]
use crate::connect::credentials::Credentials;
use crate::connect::credentials::{CredentialsResult, Provide};
use crate::connect::listen::Source;
use crate::connect::transport::Transport;
use crate::script::SCRIPTS;
use crate::store::{RedisStore, Shared};
use crate::topology::address::{
    Address, Endpoint, MAX_TTL, REPLICATE_TIMEOUT, Topology, checked_max_ttl, checked_patience,
    checked_retention,
};
use crate::topology::cluster::Cluster;
use crate::topology::replication::Replication;
use crate::wire::names::Names;

/// How a server is reached, for the question who could listen in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LinkSecurity {
    Tls,
    Socket,
    Loopback,
    /// Not encrypted. `private` is false for a public address.
    Plain {
        private: bool,
    },
    /// A connection of the program's own.
    Lent,
}

impl LinkSecurity {
    fn of(endpoint: &Endpoint) -> Self {
        let host = match endpoint {
            Endpoint::Unix(_) => return Self::Socket,
            Endpoint::Tcp { tls: Some(_), .. } => return Self::Tls,
            Endpoint::Tcp { host, .. } => host,
        };
        match host.parse::<IpAddr>() {
            Ok(address) if address.is_loopback() => Self::Loopback,
            Ok(IpAddr::V4(v4)) => Self::Plain { private: v4.is_private() || v4.is_link_local() },
            Ok(IpAddr::V6(v6)) => {
                Self::Plain { private: v6.is_unique_local() || v6.is_unicast_link_local() }
            }
            Err(_) if host == "localhost" => Self::Loopback,
            // What a name stands for may change, and most that are used like this are private.
            Err(_) => Self::Plain { private: true },
        }
    }
}

/// Settings of a [`RedisStore`]. A setting in the URL overrides the same setting here.
#[derive(Clone)]
#[must_use]
pub struct RedisStoreBuilder {
    names: Names,
    fence_retention: Duration,
    log: u32,
    connect_timeout: Duration,
    password: Option<String>,
    sentinel_password: Option<String>,
    credentials: Option<Provide>,
    sentinel_credentials: Option<Provide>,
    replicas: u32,
    replicate_timeout: Duration,
    fsync: bool,
    max_ttl: Duration,
    keep_leases: bool,
    runtime: Option<Handle>,
    subscriptions: Option<redis::Client>,
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| "***");
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.names.prefix())
            .field("fence_retention", &self.fence_retention)
            .field("log", &self.log)
            .field("connect_timeout", &self.connect_timeout)
            .field("password", &hidden(&self.password))
            .field("sentinel_password", &hidden(&self.sentinel_password))
            .field("credentials", &self.credentials.is_some())
            .field("sentinel_credentials", &self.sentinel_credentials.is_some())
            .field("replicas", &self.replicas)
            .field("replicate_timeout", &self.replicate_timeout)
            .field("fsync", &self.fsync)
            .field("max_ttl", &self.max_ttl)
            .field("keep_leases", &self.keep_leases)
            .field("subscriptions", &self.subscriptions.is_some())
            .finish_non_exhaustive()
    }
}

impl RedisStoreBuilder {
    pub(crate) fn new() -> Self {
        Self {
            names: Names::standard(),
            fence_retention: Duration::from_secs(10 * 60),
            log: 0,
            connect_timeout: Duration::from_secs(5),
            password: None,
            sentinel_password: None,
            credentials: None,
            sentinel_credentials: None,
            replicas: 0,
            replicate_timeout: REPLICATE_TIMEOUT,
            fsync: false,
            max_ttl: MAX_TTL,
            keep_leases: false,
            runtime: None,
            subscriptions: None,
        }
    }

    /// What the keys and channels of this store start with, to keep its locks apart from other
    /// data. The default is `leasehold`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](leasehold_core::ErrorKind::Config) unless the prefix has 1 to 64
    /// bytes. It is also returned for blanks, control characters, braces and percent signs.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        self.names = Names::new(prefix)?;
        Ok(self)
    }

    /// How long the store keeps the last fence of an idle lock, and can distinguish
    /// [`Release::Late`](leasehold_core::Release::Late) from a lost lease. The default is 10 min.
    /// After that, only the server's clock keeps fences growing: set it longer than that clock
    /// could ever be set back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](leasehold_core::ErrorKind::Config) below a second and above 30 days.
    pub fn fence_retention(mut self, length: Duration) -> Result<Self> {
        self.fence_retention = checked_retention(length)?;
        Ok(self)
    }

    /// How many events to keep of each lock, in a stream beside its record: who got it, how that
    /// ended (see [`LogEntry`](leasehold_core::LogEntry)). 0, the default, keeps none, and at most
    /// it is
    /// [`LOG_MAX`](leasehold_core::LOG_MAX). The stream may have some more before it is cut, and is
    /// forgotten a week after the last event.
    ///
    /// A client writes each event after the fact, off the way of its locks: one more request to the
    /// server for each, or for several at once. What it can't write, it leaves out. The server's
    /// user needs the right to `XADD`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](leasehold_core::ErrorKind::Config) above that number.
    pub fn log(mut self, events: u32) -> Result<Self> {
        self.log = leasehold_core::checked_log(&events.to_string())?;
        Ok(self)
    }

    /// The limit of one attempt to connect, with TLS and login. The default is 5 s. Calls that wait
    /// for the connection still end at their own deadlines. [`connect`](Self::connect) has twice
    /// this time, because it also sends a first request.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The password to log in with, if the URL has none. It is shown nowhere.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self.credentials = None;
        self
    }

    /// The password to log in to sentinels with, if the URL has none. It is shown nowhere.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_password = Some(password.into());
        self.sentinel_credentials = None;
        self
    }

    /// Provides the login, unless the URL has a password or a `password_file`. An example is a
    /// secret store that issues a new password each hour.
    ///
    /// The store calls it for the first connection, after a server has refused its last result, and
    /// in time [before that result ends](Credentials::valid_for). Open connections then log in
    /// again, and stay open. It may block, since it has a thread of its own. It is called once at a
    /// time. An attempt to connect waits for it within its own [limit](Self::connect_timeout).
    /// After an error, the store tries the last result again.
    ///
    /// ```
    /// use leasehold_redis::{Credentials, RedisStore};
    ///
    /// let store = RedisStore::builder().credentials(|| {
    ///     let password = std::fs::read_to_string("/run/secrets/redis")?;
    ///     Ok(Credentials::new(password.trim_end()))
    /// });
    /// ```
    pub fn credentials(
        mut self,
        provide: impl Fn() -> CredentialsResult + Send + Sync + 'static,
    ) -> Self {
        self.credentials = Some(Provide::by(provide));
        self.password = None;
        self
    }

    /// The same for sentinels, unless the URL has a `sentinel_password` or a
    /// `sentinel_password_file`.
    pub fn sentinel_credentials(
        mut self,
        provide: impl Fn() -> CredentialsResult + Send + Sync + 'static,
    ) -> Self {
        self.sentinel_credentials = Some(Provide::by(provide));
        self.sentinel_password = None;
        self
    }

    /// Counts a grant or a renewal only when this many replicas have it. The store waits for them
    /// for this time, but at most for a quarter of the ttl. The default is 0: the store does not
    /// wait.
    ///
    /// If too few replicas have a grant in time, the store releases it and returns
    /// [`ErrorKind::NotReplicated`](leasehold_core::ErrorKind::NotReplicated). If too few have a
    /// renewal in time, the lease's deadline stays. A lease that passed to a waiter counts once its
    /// new holder has confirmed it by a request, which costs a round trip. With half of the
    /// replicas or more, a promoted replica is likely, but not certain, to have the grant; see
    /// `docs/faults.md`.
    ///
    /// In a URL: `?replicas=1&replicate_timeout=500ms`. With borrowed connections, acquiring fails
    /// with [`ErrorKind::Unsupported`](leasehold_core::ErrorKind::Unsupported), because a wait
    /// would delay their other users.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](leasehold_core::ErrorKind::Config) for a timeout below a millisecond
    /// or above a minute.
    pub fn replicate(mut self, replicas: u32, timeout: Duration) -> Result<Self> {
        self.replicate_timeout = checked_patience(timeout)?;
        self.replicas = replicas;
        Ok(self)
    }

    /// Counts a grant or a renewal only when the server has it on its disk, and as many replicas as
    /// [`replicate`](Self::replicate) sets have it on theirs. The default is no.
    ///
    /// Works on Redis 7.2, Valkey 7.2 and later, with an append-only file. In a URL: `?fsync=yes`.
    pub fn fsync(mut self, fsync: bool) -> Self {
        self.fsync = fsync;
        self
    }

    /// The longest lease on these servers, if [replicas](Self::replicate) confirm grants. A server
    /// that was started less than this ago may have forgotten leases, so its grants don't count
    /// yet. The error says when they will
    /// ([`Error::retry_after`](leasehold_core::Error::retry_after)), and a waiter keeps its
    /// position in the queue. Longer leases are refused. All users of the servers must set the same
    /// value. The default is 1 min. In a URL: `?replicas=1&max_ttl=2m`.
    ///
    /// Each connection reads its server's age once (`INFO server`). It does so only with
    /// [`replicate`](Self::replicate), and only if [`fsync`](Self::fsync) and
    /// [`keep_leases`](Self::keep_leases) are off.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](leasehold_core::ErrorKind::Config) below a second and above 30 days.
    pub fn max_ttl(mut self, longest: Duration) -> Result<Self> {
        self.max_ttl = checked_max_ttl(longest)?;
        Ok(self)
    }

    /// States that the servers keep their leases through restarts. A server's grants then count
    /// right after its start, and leases may have any length. The default is no. In a URL:
    /// `?replicas=1&keep_leases=yes`.
    pub fn keep_leases(mut self, keep: bool) -> Self {
        self.keep_leases = keep;
        self
    }

    /// The runtime that drives the connections, instead of the process's own thread. All requests
    /// need it, renewals included: if it stands still or ends, leases are lost. It is meant for
    /// tests that pause a runtime's time.
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// The client with which a store on borrowed connections opens its channel for notifications.
    /// Without it, waiters poll.
    pub fn subscriptions(mut self, client: redis::Client) -> Self {
        self.subscriptions = Some(client);
        self
    }

    /// As [`RedisStore::connect`], with these settings.
    ///
    /// # Errors
    ///
    /// As [`RedisStore::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it leaves no trace on the server.
    pub async fn connect(self, url: &str) -> Result<RedisStore> {
        let patience = self.connect_timeout.saturating_mul(2);
        let store = self.connect_lazy(url)?;
        store.ping(patience).await?;
        Ok(store)
    }

    /// As [`RedisStore::connect_lazy`], with these settings.
    ///
    /// # Errors
    ///
    /// As [`RedisStore::connect_lazy`].
    pub fn connect_lazy(mut self, url: &str) -> Result<RedisStore> {
        let mut address = Address::parse(url)?;
        if address.password_file.is_none() {
            address.password = address.password.or_else(|| self.password.take());
        }
        if address.sentinel_password_file.is_none() {
            address.sentinel_password =
                address.sentinel_password.or_else(|| self.sentinel_password.take());
        }
        let location = address.location();
        if let Some(names) = &address.prefix {
            self.names = names.clone();
        }
        self.fence_retention = address.fence_retention.unwrap_or(self.fence_retention);
        self.log = address.log.unwrap_or(self.log);
        let sources = Sources {
            of_servers: self.credentials.take().filter(|_| address.password.is_none()),
            of_sentinels: self
                .sentinel_credentials
                .take()
                .filter(|_| address.sentinel_password.is_none()),
        };
        let access = Access::new(&address, self.connect_timeout, self.runtime.take(), sources)
            .map_err(|error| error.during("connect").at_store(&*location))?;
        self.replicas = address.replicas.unwrap_or(self.replicas);
        self.replicate_timeout = address.replicate_timeout.unwrap_or(self.replicate_timeout);
        self.fsync = address.fsync.unwrap_or(self.fsync);
        self.max_ttl = address.max_ttl.unwrap_or(self.max_ttl);
        self.keep_leases = address.keep_leases.unwrap_or(self.keep_leases);
        let access = Arc::new(access);
        let reached = (LinkSecurity::of(&address.endpoint), Some(address.resp3));
        if address.topology == Topology::Cluster {
            let seeds = address.endpoints().cloned().collect();
            let cluster = Cluster::new(access, seeds, self.fence_retention);
            let wake = Source::Cluster(cluster.clone());
            return Ok(self.build(cluster, Some(wake), &location, reached));
        }
        let wake = Source::Own(Arc::clone(&access));
        Ok(self.build(Supervised::new(access), Some(wake), &location, reached))
    }

    /// As [`RedisStore::from_connection`], with these settings.
    #[must_use]
    pub fn from_connection<C>(self, connection: C) -> RedisStore
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        self.from_fn(move || {
            std::future::ready(Ok::<_, std::convert::Infallible>(connection.clone()))
        })
    }

    /// As [`RedisStore::from_fn`], with these settings.
    #[must_use]
    pub fn from_fn<F, Fut, C, E>(mut self, provide: F) -> RedisStore
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<C, E>> + Send + 'static,
        C: redis::aio::ConnectionLike + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let wake = self.subscriptions.take().map(|client| Source::Client(Box::new(client)));
        let reached = (LinkSecurity::Lent, None);
        self.build(Borrowed::new(provide), wake, "redis (borrowed connection)", reached)
    }

    fn build(
        self,
        transport: impl Transport,
        wake: Option<Source>,
        location: &str,
        (security, resp3): (LinkSecurity, Option<bool>),
    ) -> RedisStore {
        let Self { replicas, replicate_timeout: timeout, fsync, max_ttl, keep_leases, .. } = self;
        // What a server has on its disk it has after a restart.
        let longest = if keep_leases || fsync { None } else { Ttl::new(max_ttl).ok() };
        let replication =
            (replicas > 0 || fsync).then_some(Replication { replicas, timeout, fsync, longest });
        let combiner = transport.combines().then(Arc::default);
        let shared = Shared {
            transport: Arc::new(transport),
            combiner,
            wake: wake.map(Arc::new),
            scripts: &SCRIPTS,
            names: self.names,
            fence_retention: self.fence_retention,
            log: self.log,
            epoch: 0,
            highest_sequence: Arc::default(),
            acquaintance: Arc::default(),
            unsent: Arc::default(),
            replication,
            location: location.into(),
            security,
            resp3,
        };
        RedisStore { shared: Arc::new(shared) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_others_could_listen_in_is_known_by_the_address() {
        let security = |url: &str| LinkSecurity::of(&Address::parse(url).unwrap().endpoint);
        let plain = |private| LinkSecurity::Plain { private };
        for (url, expected) in [
            ("rediss://8.8.8.8", LinkSecurity::Tls),
            ("redis+unix:///run/redis.sock", LinkSecurity::Socket),
            ("redis://127.0.0.7", LinkSecurity::Loopback),
            ("redis://[::1]", LinkSecurity::Loopback),
            ("redis://localhost", LinkSecurity::Loopback),
            ("redis://10.1.2.3", plain(true)),
            ("redis://[fd00::1]", plain(true)),
            ("redis://redis.internal", plain(true)),
            ("redis://8.8.8.8", plain(false)),
            ("redis://[2001:4860::8888]", plain(false)),
        ] {
            assert_eq!(security(url), expected, "{url}");
        }
    }
}
