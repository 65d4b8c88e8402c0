//! The client, for threads.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{
    Clock, Fence, ForceRelease, IntoKey, Listing, LockInfo, OwnerName, Result, Store,
};

use super::driven::Driven;
use super::election::Election;
use super::guard::Guard;
use super::io::{Io, check_caller};
use super::multi::Multi;
use super::mutex::Mutex;
use super::once::OncePer;
use super::reentrant::Reentrant;
use super::rwlock::RwLock;
use super::semaphore::Semaphore;
use crate::detached::DetachedLease;
use crate::owner::Owner;
use crate::release::{Release, Releases};

/// A connection to a store of locks. The blocking twin of [`crate::Client`].
///
/// Cheap to clone; all clones share one store.
///
/// # Errors
///
/// Methods that ask the store fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an
/// async runtime and in a fork's child, besides what their twins say.
#[derive(Clone, Debug)]
pub struct Client(Driven<crate::Client>);

impl Client {
    /// Connects to a store. See [`crate::Client::connect`] for the URLs.
    ///
    /// # Errors
    ///
    /// As its twin, and [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no thread
    /// can be started.
    pub fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder().connect(url)
    }

    /// A client with settings of its own.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A client of this store, with default settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no thread can be started.
    pub fn new(store: Arc<dyn Store>) -> Result<Self> {
        Self::builder().store(store)
    }

    /// A mutex of this name. A value: nothing is sent, and nothing can fail before it is locked.
    pub fn mutex(&self, key: impl IntoKey) -> Mutex {
        Mutex::new(self.0.with(self.0.part().mutex(key)))
    }

    /// A read-write lock of this name. See [`crate::Client::rwlock`].
    pub fn rwlock(&self, key: impl IntoKey) -> RwLock {
        RwLock::new(self.0.with(self.0.part().rwlock(key)))
    }

    /// Several locks that are taken together. See [`crate::Client::multi`].
    pub fn multi<K: IntoKey>(&self, keys: impl IntoIterator<Item = K>) -> Multi {
        Multi::new(self.0.with(self.0.part().multi(keys)))
    }

    /// A post of this name that one candidate has at a time. See [`crate::Client::election`].
    pub fn election(&self, key: impl IntoKey) -> Election {
        Election::new(self.0.with(self.0.part().election(key)))
    }

    /// A job of this name that starts at most once per `period`. See
    /// [`crate::Client::once_per`].
    pub fn once_per(&self, key: impl IntoKey, period: Duration) -> OncePer {
        OncePer::new(self.0.with(self.0.part().once_per(key, period)))
    }

    /// A lock of this name that `owner` may take again. See [`crate::Client::reentrant`].
    pub fn reentrant(&self, key: impl IntoKey, owner: &Owner) -> Reentrant {
        Reentrant::new(self.0.with(self.0.part().reentrant(key, owner)))
    }

    /// A semaphore of this name with so many permits. See [`crate::Client::semaphore`].
    pub fn semaphore(&self, key: impl IntoKey, limit: u32) -> Semaphore {
        Semaphore::new(self.0.with(self.0.part().semaphore(key, limit)))
    }

    /// The store's name for people: scheme and host or path.
    #[must_use]
    pub fn location(&self) -> &str {
        self.0.part().location()
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        self.0.part().store()
    }

    /// The owner that this client's locks show by default.
    #[must_use]
    pub fn owner(&self) -> &OwnerName {
        self.0.part().owner()
    }

    /// Describes a lock: who holds it, who waits. `None` when nobody uses it.
    ///
    /// # Errors
    ///
    /// As [`crate::Client::inspect`].
    pub fn inspect(&self, key: impl IntoKey) -> Result<Option<LockInfo>> {
        self.0.wait(|client| client.inspect(key))?
    }

    /// Describes the locks in use whose names start with `prefix`. See [`crate::Client::list`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Listing> {
        self.0.wait(|client| client.list(prefix))?
    }

    /// Looks at where the locks are kept, and says what that means for them. See
    /// [`crate::Client::examine`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn examine(&self) -> Result<Vec<Finding>> {
        self.0.wait(crate::Client::examine)?
    }

    /// Takes a lease away from its holder. See [`crate::Client::force_release`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn force_release(&self, key: impl IntoKey, fence: Fence) -> Result<ForceRelease> {
        self.0.wait(|client| client.force_release(key, fence))?
    }

    /// Asks all holders of a lock to let go, and says how many were asked. See
    /// [`crate::Client::ask`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn ask(&self, key: impl IntoKey) -> Result<u32> {
        self.0.wait(|client| client.ask(key))?
    }

    /// Asks the holder of one lease to let go. See [`crate::Client::ask_holder`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn ask_holder(&self, key: impl IntoKey, fence: Fence) -> Result<u32> {
        self.0.wait(|client| client.ask_holder(key, fence))?
    }

    /// Takes over a detached lease by renewing it. See [`crate::Client::adopt`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn adopt(&self, lease: &DetachedLease) -> Result<Guard> {
        let guard = self.0.wait(|client| client.adopt(lease))??;
        Ok(Guard::new(self.0.with(guard)))
    }

    /// Renews a detached lease without taking it over. See [`crate::Client::renew`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn renew(&self, lease: &DetachedLease, ttl: Duration) -> Result<DetachedLease> {
        self.0.wait(|client| client.renew(lease, ttl))?
    }

    /// Ends a detached lease. See [`crate::Client::release`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release(&self, lease: &DetachedLease, cooldown: Option<Duration>) -> Result<()> {
        self.0.wait(|client| client.release(lease, cooldown))?
    }

    /// Ends a detached lease, and says how that went. See [`crate::Client::release_outcome`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_outcome(
        &self,
        lease: &DetachedLease,
        cooldown: Option<Duration>,
    ) -> Result<Release> {
        self.0.wait(|client| client.release_outcome(lease, cooldown))?
    }

    /// Releases every lease that this client holds. See [`crate::Client::release_all`].
    ///
    /// # Errors
    ///
    /// As its twin; where waiting is wrong nothing was released.
    pub fn release_all(&self) -> Result<()> {
        self.0.wait(crate::Client::release_all)?
    }

    /// Releases every lease that this client holds, and says how each release went. See
    /// [`crate::Client::release_all_outcomes`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong; nothing was
    /// released then.
    pub fn release_all_outcomes(&self) -> Result<Releases> {
        self.0.wait(crate::Client::release_all_outcomes)
    }

    /// Closes the client: nothing new can be acquired, everything held is released, and what
    /// dropped guards left behind is given up. Takes [`CLOSE_WITHIN`](crate::CLOSE_WITHIN) at
    /// most.
    ///
    /// Call it before `main` returns: the process does not wait for the client's thread.
    ///
    /// # Errors
    ///
    /// As [`crate::Client::close`].
    pub fn close(&self) -> Result<()> {
        self.0.wait(crate::Client::close)?
    }
}

/// Settings of a [`Client`]. The blocking twin of [`crate::ClientBuilder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ClientBuilder(crate::ClientBuilder);

impl ClientBuilder {
    /// The ttl of this client's locks. See [`crate::ClientBuilder::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// Refuses locks with a shorter ttl. See [`crate::ClientBuilder::min_ttl`].
    pub fn min_ttl(self, min_ttl: Duration) -> Self {
        Self(self.0.min_ttl(min_ttl))
    }

    /// Who holds this client's locks, for people. See [`crate::ClientBuilder::owner`].
    pub fn owner(self, owner: impl Into<String>) -> Self {
        Self(self.0.owner(owner))
    }

    /// How long one request to the store may take. See [`crate::ClientBuilder::call_timeout`].
    pub fn call_timeout(self, call_timeout: Duration) -> Self {
        Self(self.0.call_timeout(call_timeout))
    }

    /// How often in a row a released lock stays inside this client. See
    /// [`crate::ClientBuilder::local_handoffs`].
    pub fn local_handoffs(self, handoffs: u32) -> Self {
        Self(self.0.local_handoffs(handoffs))
    }

    /// The clock on which leases are counted. See [`crate::ClientBuilder::clock`].
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self(self.0.clock(clock))
    }

    /// Takes leases that outlive this process. See [`crate::ClientBuilder::detached`].
    pub fn detached(self, detached: bool) -> Self {
        Self(self.0.detached(detached))
    }

    /// The store's password, where the URL has none. Shown nowhere.
    pub fn password(self, password: impl Into<String>) -> Self {
        Self(self.0.password(password))
    }

    /// For how long to go on trying to reach a store that is away at first. See
    /// [`crate::ClientBuilder::retry_store`].
    pub fn retry_store(self, length: Duration) -> Self {
        Self(self.0.retry_store(length))
    }

    /// What to call after each failed try to reach the store. See
    /// [`crate::ClientBuilder::on_retry_store`].
    pub fn on_retry_store(self, tell: impl Fn(&crate::Error) + Send + Sync + 'static) -> Self {
        Self(self.0.on_retry_store(tell))
    }

    /// Connects to the store at a URL. See [`crate::Client::connect`].
    ///
    /// # Errors
    ///
    /// As its twin, [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an async runtime, and
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no thread can be started.
    pub fn connect(self, url: impl AsRef<str>) -> Result<Client> {
        check_caller()?;
        let io = Io::start()?;
        let client = io.wait(self.0.connect(url))?;
        Ok(Client(Driven::new(client, io)))
    }

    /// Makes a client of a store.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) when a setting is out of range,
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when no thread can be started.
    pub fn store(self, store: Arc<dyn Store>) -> Result<Client> {
        let io = Io::start()?;
        let entered = io.runtime().enter();
        let client = self.0.store(store);
        drop(entered);
        Ok(Client(Driven::new(client?, io)))
    }
}
