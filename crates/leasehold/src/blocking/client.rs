//! The client, for threads.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{
    Clock, Cooldown, Fence, ForceRelease, IntoKey, Listing, LockInfo, LogEntry, OwnerName, Result,
    Store,
};

use super::driven::Driven;
use super::election::Election;
use super::face::Face;
use super::guard::{Guard, HeldLease};
use super::io::{Io, check_caller};
use super::multi::Multi;
use super::mutex::Mutex;
use super::once::OncePer;
use super::reentrant::Reentrant;
use super::rwlock::RwLock;
use super::semaphore::Semaphore;
use super::table::{methods, value};
use crate::lease::detached::DetachedLease;
use crate::lease::prolonged::Prolonged;
use crate::lease::release::{Release, Releases};
use crate::owner::Owner;

value! {
    /// A connection to a store of locks. For threads what [`crate::Client`] is for tasks.
    ///
    /// Cheap to clone; all clones share one store.
    #[derive(Clone)]
    Client
}

value! {
    /// The events of a client's leases. For threads what [`crate::LockEvents`] is for tasks.
    #[must_use = "events are lost unless they are read"]
    LockEvents
}

methods! { LockEvents {
    /// How many events were not read in time, and are gone.
    tells missed() -> u64;
} }

impl LockEvents {
    /// Waits for the next event. `None` when the client and all of its leases are gone. See
    /// [`crate::LockEvents::next`].
    ///
    /// # Cost
    ///
    /// No round trip. It waits for an event without a limit.
    ///
    /// # Errors
    ///
    #[doc = super::errors::errors!(waiting)]
    #[expect(
        clippy::should_implement_trait,
        reason = "named as in the async API, and waiting may be wrong here"
    )]
    pub fn next(&mut self) -> Result<Option<crate::LockEvent>> {
        self.0.wait_mut(crate::LockEvents::next)
    }
}

methods! { Client {
    /// A mutex of this name: a value, which can't fail and sends its first request when it is
    /// locked.
    makes mutex(key: impl IntoKey) -> Mutex;
    /// A read-write lock of this name.
    makes rwlock(key: impl IntoKey) -> RwLock;
    /// An election of this name, with one leader at a time.
    makes election(key: impl IntoKey) -> Election;
    /// A job of this name that starts at most once per `period`, on all hosts together.
    makes once_per(key: impl IntoKey, period: Duration) -> OncePer;
    /// A lock of this name that `owner` may take again while it has it.
    makes reentrant(key: impl IntoKey, owner: &Owner) -> Reentrant;
    /// A semaphore of this name with `limit` permits.
    makes semaphore(key: impl IntoKey, limit: u32) -> Semaphore;
    /// The store's name for people: scheme and host or path.
    tells location() -> &str;
    /// The store.
    tells store() -> &Arc<dyn Store>;
    /// The owner that this client's locks show by default.
    tells owner() -> &OwnerName;
    /// Reports the events of this client's leases from now on.
    makes events() -> LockEvents;
    /// The last events of a lock in the log of its store, the oldest first.
    asks log(key: impl IntoKey, last: usize) -> Vec<LogEntry>, errors asking, costs request;
    /// How many events of this client are missing in the log of its store.
    tells log_missed() -> u64;
    /// Whether a holder or waiter of an inspection is this client's own, by its `mark`.
    tells is_own(mark: u32) -> bool;
    /// Describes a lock: its holders and its waiters. `None` if it is not in use.
    asks inspect(key: impl IntoKey) -> Option<LockInfo>, errors asking, costs request;
    /// What a Redis store has stored for a lock, in words for people, with a line for each field.
    asks raw(key: impl IntoKey) -> Vec<String>, errors asking, costs request;
    /// Describes the locks in use whose names start with `prefix`, ordered by name.
    asks list(prefix: impl AsRef<str>) -> Listing, errors store, costs listing;
    /// Checks whether the store is set up well for locks, and returns its findings, the worst
    /// first.
    asks examine() -> Vec<Finding>, errors store, costs examining;
    /// Force-releases a lease, whose holder learns of that at its next renewal. The fence must be
    /// the one that [`inspect`](Self::inspect) showed; another holder's lease is left alone.
    asks force_release(key: impl IntoKey, fence: Fence) -> ForceRelease, errors asking, costs request;
    /// Requests release from all holders of a lock. Returns how many there are.
    asks ask(key: impl IntoKey) -> u32, errors asking, costs request;
    /// Requests release from the holder of one lease, by the fence that [`inspect`](Self::inspect)
    /// showed.
    asks ask_holder(key: impl IntoKey, fence: Fence) -> u32, errors asking, costs request;
    /// Adopts a detached lease by renewing it.
    asks adopt(lease: &DetachedLease) -> Guard, errors renewing, costs adopting;
    /// Renews a detached lease without adopting it.
    asks renew(lease: &DetachedLease, ttl: Duration) -> DetachedLease, errors renewing, costs request;
    /// Renews a detached lease. Takes the lock again if the lease has expired and the lock had no
    /// holder since. See [`crate::Client::prolong`].
    asks prolong(lease: &DetachedLease, ttl: Duration) -> Prolonged<DetachedLease>, errors renewing, costs prolonging;
    /// Ends a detached lease, and starts a cooldown if one is given. An `Ok` says that the lease
    /// was held to its end.
    asks release(lease: &DetachedLease, cooldown: Option<Cooldown>) -> (), errors releasing_detached, costs request;
    /// Ends a detached lease, and reports how that went.
    asks release_outcome(lease: &DetachedLease, cooldown: Option<Cooldown>) -> Release, errors store, costs request;
    /// Releases every lease that this client holds, at the same time. An `Ok` says that all were
    /// held to their end.
    asks release_all() -> (), errors releasing_detached, costs request_in_turn_each;
    /// Releases every lease that this client holds, and reports for each how its release went.
    waits release_all_outcomes() -> Releases, costs request_in_turn_each;
    /// Sets a new length for all that this client holds under a name.
    asks renew_held(key: impl IntoKey, ttl: Duration) -> (), errors renewing, costs request_in_turn_each;
    /// Releases all that this client holds under a name; the guards that remain hold no lease. An
    /// `Ok` says that it was held to its end.
    asks release_held(key: impl IntoKey) -> (), errors releasing_detached, costs request_in_turn_each;
    /// Releases all that this client holds under a name, and reports for each lease how that went.
    asks release_held_outcomes(key: impl IntoKey) -> Releases, errors releasing_detached, costs request_in_turn_each;
    /// Closes the client: no lock can be acquired any more, everything held is released, and so is
    /// what dropped guards left behind. Takes [`CLOSE_WITHIN`](crate::CLOSE_WITHIN) at most.
    ///
    /// Call it before `main` returns: the process does not wait for leasehold's thread.
    asks close() -> (), errors store, costs closing;
} }

impl Client {
    /// Connects to a store. See [`crate::Client::connect`] for the URLs.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect`].
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

    /// The leases that this client and its clones hold under a name, wherever their guards are.
    /// Sends no request. See [`crate::Client::held`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a bad name.
    pub fn held(&self, key: impl IntoKey) -> Result<Vec<HeldLease>> {
        Ok(Face::of(self.0.part().held(key)?, self.0.io()))
    }

    /// Whether this client or a clone of it holds a lease under a name. Sends no request. See
    /// [`crate::Client::is_held`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a bad name.
    pub fn is_held(&self, key: impl IntoKey) -> Result<bool> {
        self.0.part().is_held(key)
    }

    /// Several locks that are taken together, all or none, in any order. See
    /// [`crate::Client::multi`].
    pub fn multi<K: IntoKey>(&self, keys: impl IntoIterator<Item = K>) -> Multi {
        Face::of(self.0.part().multi(keys), self.0.io())
    }
}

/// The async builder's setters, for threads.
macro_rules! setters {
    ($type:ident { $(
        $(#[$doc:meta])*
        $name:ident($argument:ident: $argument_type:ty);
    )* }) => {
        impl $type { $(
            $(#[$doc])*
            #[doc = concat!("See [`", stringify!($name), "`](crate::", stringify!($type), "::", stringify!($name), ").")]
            pub fn $name(self, $argument: $argument_type) -> Self {
                Self(self.0.$name($argument))
            }
        )* }
    };
}

/// Settings of a [`Client`]. For threads what [`crate::ClientBuilder`]
/// is for tasks.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ClientBuilder(crate::ClientBuilder);

setters! { ClientBuilder {
    /// The ttl of this client's locks.
    ttl(ttl: Duration);
    /// Refuses locks with a shorter ttl.
    min_ttl(min_ttl: Duration);
    /// Refuses shorter lengths for leases that are held.
    min_renewal(min_renewal: Duration);
    /// The name of the holder of this client's locks, for people.
    owner(owner: impl Into<String>);
    /// The options of locks that set none themselves.
    options(options: &crate::LockOptions);
    /// How long one request to the store may take.
    call_timeout(call_timeout: Duration);
    /// How often in a row a released lock stays inside this client.
    local_handoffs(handoffs: u32);
    /// The clock on which leases are counted.
    clock(clock: Arc<dyn Clock>);
    /// Takes leases that outlive this process.
    detached(detached: bool);
    /// The store's password, if the URL has none. No output shows it.
    password(password: impl Into<String>);
    /// The credentials for servers, if the URL has none. It may block.
    #[cfg(feature = "redis")]
    credentials(provide: impl Fn() -> leasehold_redis::CredentialsResult + Send + Sync + 'static);
    /// As `credentials`, for sentinels.
    #[cfg(feature = "redis")]
    sentinel_credentials(provide: impl Fn() -> leasehold_redis::CredentialsResult + Send + Sync + 'static);
    /// How many events the store logs if its URL does not say so.
    log(events: u32);
    /// For how long a server keeps the last fence of an idle lock, if its URL does not say.
    fence_retention(length: Duration);
    /// Makes the tables of locks in a PostgreSQL database that lacks them.
    create_tables(create: bool);
    /// For how long to go on trying to reach a store that is away at first.
    retry_store(length: Duration);
    /// Called after each failed try to reach the store.
    on_retry_store(tell: impl Fn(&crate::Error) + Send + Sync + 'static);
    /// Keeps locks as another library does, so that its programs and this client's exclude each
    /// other.
    #[cfg(feature = "interop")]
    interop(layout: leasehold_redis::interop::Layout);
    /// Sets this expiry on a lock in another library's layout that is found without one.
    #[cfg(feature = "interop")]
    leftovers(expiry: Duration);
} }

impl ClientBuilder {
    /// Connects to the store at a URL. See [`crate::Client::connect`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`](crate::ErrorKind::Config) – the URL or a setting can't be used.
    /// * [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) – this build leaves that store
    ///   out.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and others – the store or the
    ///   thread fails to start.
    /// * [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) – inside an async runtime.
    ///
    /// No message repeats the URL's password.
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
