//! Settings of a store, and the ways to make one.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Result;
use tokio::runtime::Handle;

use crate::address::{Address, Endpoint, checked_retention};
use crate::connection::{Access, Supervised};
use crate::listen::Source;
use crate::names::Names;
use crate::script::SCRIPTS;
use crate::store::{RedisStore, Shared};
use crate::transport::{Borrowed, Transport};

/// How a server is reached, as far as it matters to who could listen in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Door {
    Tls,
    Socket,
    Loopback,
    /// Not encrypted; `private` unless the address is a public one.
    Plain {
        private: bool,
    },
    /// A connection of the program's own.
    Lent,
}

impl Door {
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

/// Settings of a [`RedisStore`]. What stands in a URL counts before what is set here.
#[derive(Clone)]
#[must_use]
pub struct RedisStoreBuilder {
    names: Names,
    fence_retention: Duration,
    connect_timeout: Duration,
    password: Option<String>,
    runtime: Option<Handle>,
    subscriptions: Option<redis::Client>,
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { names, fence_retention, connect_timeout, password, runtime: _, subscriptions } =
            self;
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &names.prefix())
            .field("fence_retention", fence_retention)
            .field("connect_timeout", connect_timeout)
            .field("password", &password.as_ref().map(|_| "***"))
            .field("subscriptions", &subscriptions.is_some())
            .finish_non_exhaustive()
    }
}

impl RedisStoreBuilder {
    pub(crate) fn new() -> Self {
        Self {
            names: Names::standard(),
            fence_retention: Duration::from_secs(10 * 60),
            connect_timeout: Duration::from_secs(5),
            password: None,
            runtime: None,
            subscriptions: None,
        }
    }

    /// What the keys and channels of this store start with, to keep its locks apart from other
    /// data. The default is `leasehold`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](leasehold_core::ErrorKind::Config) unless it has 1 to 64 bytes and no
    /// blanks, control characters, braces or percent signs.
    pub fn prefix(mut self, prefix: &str) -> Result<Self> {
        self.names = Names::new(prefix)?;
        Ok(self)
    }

    /// For how long the last fence of an idle lock is kept, which is also for how long a late
    /// release can be told from a lost one. The default is ten minutes. After it, the server's
    /// clock alone keeps fences growing: set it longer than that clock could ever be set back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](leasehold_core::ErrorKind::Config) below a second and above 30 days.
    pub fn fence_retention(mut self, length: Duration) -> Result<Self> {
        self.fence_retention = checked_retention(length)?;
        Ok(self)
    }

    /// How long one attempt to connect may take, TLS and login included. The default is 5 s. Calls
    /// that wait for it end at their own time all the same.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The password to log in with, where the URL has none. Shown nowhere.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The runtime on which connections live. The default is the one that the store is first used
    /// on; tell it when that one may end while the store is still used elsewhere.
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// A client with which a store on borrowed connections opens its wake channel. Without one,
    /// its waiters find out by asking.
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
    /// Cancel safe: nothing is left behind on the server.
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
        address.password = address.password.or_else(|| self.password.take());
        let location = address.location();
        if let Some(names) = &address.prefix {
            self.names = names.clone();
        }
        self.fence_retention = address.fence_retention.unwrap_or(self.fence_retention);
        let access = Access::new(&address, self.connect_timeout, self.runtime.take())
            .map_err(|error| error.during("connect").at_store(&*location))?;
        let access = Arc::new(access);
        let wake = Source::Own(Arc::clone(&access));
        let reached = (Door::of(&address.endpoint), Some(address.resp3));
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
        let wake = self.subscriptions.take().map(Source::Client);
        let reached = (Door::Lent, None);
        self.build(Borrowed(provide), wake, "redis (borrowed connection)", reached)
    }

    fn build(
        self,
        transport: impl Transport,
        wake: Option<Source>,
        location: &str,
        (door, resp3): (Door, Option<bool>),
    ) -> RedisStore {
        let shared = Shared {
            transport: Box::new(transport),
            wake: wake.map(Arc::new),
            scripts: &SCRIPTS,
            names: self.names,
            fence_retention: self.fence_retention,
            epoch: 0,
            location: location.into(),
            door,
            resp3,
        };
        RedisStore { shared: Arc::new(shared) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_could_listen_in_is_told_by_the_address() {
        let door = |url: &str| Door::of(&Address::parse(url).unwrap().endpoint);
        let plain = |private| Door::Plain { private };
        for (url, expected) in [
            ("rediss://8.8.8.8", Door::Tls),
            ("redis+unix:///run/redis.sock", Door::Socket),
            ("redis://127.0.0.7", Door::Loopback),
            ("redis://[::1]", Door::Loopback),
            ("redis://localhost", Door::Loopback),
            ("redis://10.1.2.3", plain(true)),
            ("redis://[fd00::1]", plain(true)),
            ("redis://redis.internal", plain(true)),
            ("redis://8.8.8.8", plain(false)),
            ("redis://[2001:4860::8888]", plain(false)),
        ] {
            assert_eq!(door(url), expected, "{url}");
        }
    }
}
