//! Locks with one value per key, whose token is compared when they are renewed and released.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::RetryStrategy;
use leasehold_core::{Error, ErrorKind, IntoKey, Key, Metadata, Result, Store};
use leasehold_redis::interop::{InteropStore, Layout};

use crate::client::Client;
use crate::kinds::mutex::Mutex;
use crate::lease::guard::Guard;
use crate::lease::held_lease::HeldLease;
use crate::lease::not_changed::NotChanged;
use crate::lease::release::Release;
use crate::lease::run::RunError;
use crate::options::{Fairness, LockOptions, delegate, holding_options, patience_options};

/// Locks in the layout of a library that keeps one value per lock. Such libraries are redis-py,
/// python-redis-lock, redlock for Node, redis-semaphore's mutex, bsm/redislock, redsync on one
/// server, Symfony's Lock, Spring Integration's registry, and ShedLock.
///
/// Cheap to clone; clones share everything.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::interop::{Layout, Plain};
///
/// // Go programs take the same locks with bsm/redislock.
/// let locks = Plain::connect("redis://127.0.0.1", Layout::Redislock).await?;
/// let guard = locks.mutex("orders:42").metadata("billing").lock().await?;
/// // … no other program has it, in Go or in Rust …
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Plain {
    client: Client,
    layout: Layout,
    options: LockOptions,
}

impl Plain {
    /// Connects to the server at a URL; see [`Client::connect`] for its forms.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// As [`Client::connect`], and [`ErrorKind::Config`] for a layout of Redisson.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(url: impl AsRef<str>, layout: Layout) -> Result<Self> {
        check(&layout)?;
        let client = Client::builder().interop(layout.clone()).connect(url).await?;
        Ok(Self { client, layout, options: LockOptions::new() })
    }

    /// Locks in a store, such as one on a connection that the program has already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a layout of Redisson, [`ErrorKind::Unavailable`] when the thread
    /// that renews leases can't be started.
    pub fn new(store: InteropStore) -> Result<Self> {
        let layout = store.layout().clone();
        check(&layout)?;
        let store: Arc<dyn Store> = Arc::new(store);
        let client = Client::builder().local_handoffs(0).store(store)?;
        Ok(Self { client, layout, options: LockOptions::new() })
    }

    /// The options of these locks: for how long to wait, when to try again, how long a lease is.
    /// The first method that locks reports a wrong one.
    #[must_use]
    pub fn options(self, options: &LockOptions) -> Self {
        Self { options: options.clone(), ..self }
    }

    /// The lock of this name: a value, which can't fail and sends its first request when it is
    /// locked.
    ///
    /// The name is the key in the server, with the prefix of the [`Layout`] and without one of
    /// leasehold.
    pub fn mutex(&self, key: impl IntoKey) -> PlainMutex {
        let mutex = self.client.mutex(key).options(&self.options);
        PlainMutex { mutex, layout: self.layout.clone() }
    }

    /// The text that is kept with the holder's lease; `None` if the lock is not held.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name, [`ErrorKind::Foreign`] when the key has another value,
    /// and what the store says when it can't be reached.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn metadata(&self, key: impl IntoKey) -> Result<Option<Metadata>> {
        let info = self.client.inspect(key).await?;
        let holder = info.and_then(|info| info.holders.into_iter().next());
        Ok(holder.map(|holder| holder.metadata))
    }

    /// Releases what is held, and ends the work in the background. See [`Client::close`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(closing)]
    ///
    /// # Errors
    ///
    /// As [`Client::close`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it goes on in the background.
    pub async fn close(&self) -> Result<()> {
        self.client.close().await
    }
}

fn check(layout: &Layout) -> Result<()> {
    if layout.counts_holds() {
        let why = format!("{layout} counts holds; use leasehold::interop::Redisson for it");
        return Err(Error::new(ErrorKind::Config, why));
    }
    Ok(())
}

/// A lock that one holder has at a time, in a program of this library or of the other one.
///
/// A value, which can't fail and sends its first request when it is locked. Waiters are woken when
/// the lock comes free, but don't queue.
#[derive(Clone, Debug)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct PlainMutex {
    mutex: Mutex,
    layout: Layout,
}

holding_options!([delegate] PlainMutex);
patience_options!([delegate] PlainMutex);

impl PlainMutex {
    /// Sets these options. An option that this layout can't keep is [`ErrorKind::Unsupported`] when
    /// the lock is locked.
    pub fn options(self, options: &LockOptions) -> Self {
        Self { mutex: self.mutex.options(options), ..self }
    }

    /// The name of the holder, for people; by default `host_pid_tag`. Only [`Layout::ShedLock`]
    /// keeps it, in place of the host's name.
    pub fn owner(self, owner: impl AsRef<str>) -> Self {
        self.options(&LockOptions::new().owner(owner))
    }

    /// When to try again while waiting, and when to stop waiting, in place of being woken.
    pub fn retry(self, strategy: impl RetryStrategy) -> Self {
        self.options(&LockOptions::new().retry(strategy).fairness(Fairness::Barging))
    }

    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    pub fn key(&self) -> Result<&Key> {
        self.mutex.key()
    }

    /// Tries to take the lock, once. `None` if another holder has it.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying)]
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`] – a bad name or setting.
    /// * [`ErrorKind::Foreign`] – the key has a value that is not a lock of this layout.
    /// * [`ErrorKind::Unsupported`] – [metadata](Self::metadata) in a layout that can't keep it.
    /// * [`ErrorKind::Unavailable`] and others – the server could not be reached; see
    ///   [`Error::effect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the request was on its way, what it acquires is released in the background.
    pub async fn try_lock(&self) -> Result<Option<PlainGuard>> {
        Ok(self.mutex.try_lock().await?.map(|guard| self.guard(guard)))
    }

    /// Takes the lock, and waits until it is free.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(entering_plain)]
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), and [`ErrorKind::Timeout`] when the retry strategy ends. A
    /// server that goes away during the wait has 30 s to come back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: whatever a request on its way acquires is released in the background.
    pub async fn lock(&self) -> Result<PlainGuard> {
        self.mutex.lock().await.map(|guard| self.guard(guard))
    }

    /// Takes the lock, and waits for at most `limit`; with a limit of zero it tries once.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(entering_plain_within)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock_within`](crate::Mutex::lock_within).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: whatever a request on its way acquires is released in the background.
    pub async fn lock_within(&self, limit: Duration) -> Result<PlainGuard> {
        self.mutex.lock_within(limit).await.map(|guard| self.guard(guard))
    }

    /// Renews the lease of `guard` to this value's ttl. If the lease is gone, takes the lock again;
    /// `None` if another holder has it. It waits for that as
    /// [`Mutex::relock`](crate::Mutex::relock) does.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(refreshing)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::relock`](crate::Mutex::relock). The guard comes back with the error, and holds
    /// what it held.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease is released in the background.
    pub async fn relock(
        &self,
        guard: PlainGuard,
    ) -> Result<Option<PlainGuard>, NotChanged<PlainGuard>> {
        match self.mutex.relock(guard.guard).await {
            Ok(anew) => Ok(anew.map(|guard| self.guard(guard))),
            Err(not_changed) => Err(not_changed.map(|guard| self.guard(guard))),
        }
    }

    fn guard(&self, guard: Guard) -> PlainGuard {
        let lease = PlainLease(guard.lease().clone(), self.layout.clone());
        PlainGuard { guard, lease }
    }
}

/// A held lease of a [`PlainMutex`].
///
/// # Dropping is not releasing
///
/// A dropped guard releases the lock in the background. Use [`release`](Self::release) to be sure.
#[must_use = "dropping the guard releases the lock in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct PlainGuard {
    guard: Guard,
    lease: PlainLease,
}

impl PlainGuard {
    /// A view of the lease.
    #[must_use]
    pub const fn lease(&self) -> &PlainLease {
        &self.lease
    }

    /// Ends the lease. An `Ok` says that it was held to its end.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// As [`Guard::release`], without [`ErrorKind::Late`]: a lease that is gone is
    /// [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }

    /// Ends the lease, and reports how that went: [`Release::Released`], [`Release::NotHeld`] or
    /// [`Release::Unknown`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// As [`Guard::release_outcome`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release_outcome(self) -> Result<Release> {
        self.guard.release_outcome().await
    }

    /// Runs `body` under the lease, and releases it. See [`Guard::run`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(running_here)]
    ///
    /// # Errors
    ///
    /// As [`Guard::run`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the lease released in the background.
    pub async fn run<T, F>(self, body: impl FnOnce(PlainLease) -> F) -> Result<T, RunError<T>>
    where
        F: Future<Output = T>,
    {
        let layout = self.lease.1;
        self.guard.run(|lease| body(PlainLease(lease, layout))).await
    }
}

impl Deref for PlainGuard {
    type Target = PlainLease;

    fn deref(&self) -> &PlainLease {
        &self.lease
    }
}

impl fmt::Debug for PlainGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PlainGuard").field(&self.lease).finish()
    }
}

/// A view of a held lease: what the work under it needs to know. It does not keep the lock.
#[derive(Clone)]
pub struct PlainLease(HeldLease, Layout);

impl PlainLease {
    /// The lock's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// The token that the server has for this lease, written as the library writes its own. A
    /// secret: with it a program of that library can renew and release the lease.
    #[must_use]
    pub fn token(&self) -> String {
        self.1.token(&self.0.handle().token)
    }

    /// The text that is kept with the lease; empty if none was set.
    #[must_use]
    pub fn metadata(&self) -> &str {
        self.0.metadata()
    }

    /// Whether the lease is held at this moment. Sends no request. See [`HeldLease::is_held`].
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// How long the lease is held for certain; zero once it is lost. Renewals extend it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Returns when the lease is lost: `stop_grace` before the server can grant the lock to another
    /// holder, or as soon as it says that another program has ended the lease. It also returns when
    /// the guard has been released or dropped.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(losing)]
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        self.0.lost().await;
    }

    /// Succeeds while the lease is held.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] once it is not.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Reports that the work makes progress, for a lease that is renewed only [while it
    /// does](PlainMutex::progress_within).
    pub fn progress(&self) {
        self.0.progress();
    }

    /// Reads from the server how long the lease runs on there; zero when it is not held there.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// As [`HeldLease::ttl`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ttl(&self) -> Result<Duration> {
        self.0.ttl().await
    }

    /// Checks whether the server still has this very lease.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// As [`ttl`](Self::ttl).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn is_held_by_store(&self) -> Result<bool> {
        self.0.is_held_by_store().await
    }

    /// Sets a new length: the lease expires `ttl` from now unless it is renewed, even if that is
    /// earlier than before. See [`HeldLease::renew_to`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// As [`HeldLease::renew_to`], without [`ErrorKind::Late`].
    ///
    /// # Cancel safety
    ///
    /// As [`HeldLease::renew_to`].
    pub async fn renew_to(&self, ttl: Duration) -> Result<()> {
        self.0.renew_to(ttl).await
    }
}

impl fmt::Debug for PlainLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainLease")
            .field("key", &self.key().as_str())
            .field("held", &self.is_held())
            .finish()
    }
}
