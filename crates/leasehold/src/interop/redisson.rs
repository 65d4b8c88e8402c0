//! Redisson's re-entrant lock, and the fenced one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::RetryStrategy;
use leasehold_core::{Error, ErrorKind, IntoKey, Key, Result, Store};
use leasehold_redis::interop::{InteropStore, Layout};

use crate::client::Client;
use crate::kinds::reentrant::{Reentrant, ReentrantGuard};
use crate::lease::release::Release;
use crate::options::{Fairness, LockOptions, delegate, patience_options};
use crate::owner::Owner;

/// Locks that Redisson's `RLock` and `RFencedLock` take in Java programs.
///
/// Cheap to clone; clones share everything.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::Owner;
/// use leasehold::interop::Redisson;
///
/// // In Java: redisson.getLock("orders:42")
/// let locks = Redisson::connect("redis://127.0.0.1").await?;
/// let guard = locks.lock("orders:42", &Owner::new()).lock().await?;
/// // … no other program has it, in Java or in Rust …
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Redisson {
    client: Client,
    options: LockOptions,
    fenced: bool,
}

impl Redisson {
    /// Connects to the server at a URL, for locks that Java programs get by `getLock`.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// As [`Client::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        let client = Client::builder().interop(Layout::Redisson).connect(url).await?;
        Ok(Self { client, options: LockOptions::new(), fenced: false })
    }

    /// Connects to the server at a URL, for locks that Java programs get by `getFencedLock`.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(connecting)]
    ///
    /// # Errors
    ///
    /// As [`Client::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect_fenced(url: impl AsRef<str>) -> Result<Self> {
        let client = Client::builder().interop(Layout::RedissonFenced).connect(url).await?;
        Ok(Self { client, options: LockOptions::new(), fenced: true })
    }

    /// Locks in a store, such as one on a connection that the program has already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a layout of another library, [`ErrorKind::Unavailable`] when the
    /// thread that renews leases can't be started.
    pub fn new(store: InteropStore) -> Result<Self> {
        let layout = store.layout();
        if !layout.counts_holds() {
            let why =
                format!("{layout} is not a layout of Redisson; use leasehold::interop::Plain");
            return Err(Error::new(ErrorKind::Config, why));
        }
        let fenced = layout.has_fences();
        let store: Arc<dyn Store> = Arc::new(store);
        let client = Client::builder().local_handoffs(0).store(store)?;
        Ok(Self { client, options: LockOptions::new(), fenced })
    }

    /// The options of these locks: for how long to wait, when to try again, how long a lease is.
    /// The first method that locks reports a wrong one.
    #[must_use]
    pub fn options(self, options: &LockOptions) -> Self {
        Self { options: options.clone(), ..self }
    }

    /// The lock of this name, which `owner` may take again while it has it: a value, which can't
    /// fail and sends its first request when it is locked.
    pub fn lock(&self, key: impl IntoKey, owner: &Owner) -> RedissonLock {
        let lock = self.client.reentrant(key, owner).options(&self.options);
        RedissonLock { lock, fenced: self.fenced }
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

/// A lock of Redisson's, which one owner has at a time and may take again: a thread of a Java
/// program, or an [`Owner`] here.
///
/// A value, which can't fail and sends its first request when it is locked.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is locked"]
pub struct RedissonLock {
    lock: Reentrant,
    fenced: bool,
}

patience_options!([delegate] RedissonLock);

impl RedissonLock {
    /// Sets these options. An option that Redisson can't keep is [`ErrorKind::Unsupported`] when
    /// the lock is locked.
    pub fn options(self, options: &LockOptions) -> Self {
        self.with(|lock| lock.options(options))
    }

    fn with(self, set: impl FnOnce(Reentrant) -> Reentrant) -> Self {
        Self { lock: set(self.lock), ..self }
    }

    /// The length of a lease: 10 ms to 30 days, by default the client's. A live holder's lease is
    /// renewed every third of it.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|lock| lock.ttl(ttl))
    }

    /// Whether leases are renewed in the background; they are by default.
    pub fn renew(self, renew: bool) -> Self {
        self.with(|lock| lock.renew(renew))
    }

    /// How early a loss is reported, before the server can grant the lock to another holder. See
    /// [`Mutex::stop_grace`](crate::Mutex::stop_grace).
    pub fn stop_grace(self, grace: Duration) -> Self {
        self.with(|lock| lock.stop_grace(grace))
    }

    /// When to try again while waiting, and when to stop waiting, in place of being woken.
    pub fn retry(self, strategy: impl RetryStrategy) -> Self {
        self.with(|lock| lock.retry(strategy).fairness(Fairness::Barging))
    }

    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    pub fn key(&self) -> Result<&Key> {
        self.lock.key()
    }

    /// Tries to take the lock, once. `None` when another owner has it.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying_again)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock), and [`ErrorKind::Foreign`] when the key has
    /// a value that is not a lock of Redisson's.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what it may have taken, or counted, is released in the background.
    pub async fn try_lock(&self) -> Result<Option<RedissonGuard>> {
        let guard = self.lock.try_lock().await?;
        Ok(guard.map(|guard| RedissonGuard { guard, fenced: self.fenced }))
    }

    /// Takes the lock, and waits until it is free; at once when this owner has it.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(entering_redisson)]
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), and [`ErrorKind::Timeout`] when the retry strategy ends.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what it may have taken, or counted, is released in the background.
    pub async fn lock(&self) -> Result<RedissonGuard> {
        let guard = self.lock.lock().await?;
        Ok(RedissonGuard { guard, fenced: self.fenced })
    }

    /// Takes the lock, and waits for at most `limit`.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(entering_redisson_within)]
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`ErrorKind::Timeout`] when the limit is reached.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what it may have taken, or counted, is released in the background.
    pub async fn lock_within(&self, limit: Duration) -> Result<RedissonGuard> {
        let guard = self.lock.lock_within(limit).await?;
        Ok(RedissonGuard { guard, fenced: self.fenced })
    }
}

/// A hold of a [`RedissonLock`]: one of its owner's, which share one lease.
///
/// # Dropping is not releasing
///
/// A dropped guard counts down in the background, and the last one releases the lease there. Use
/// [`release`](Self::release) to be sure.
#[must_use = "dropping the guard counts down in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct RedissonGuard {
    guard: ReentrantGuard,
    fenced: bool,
}

impl RedissonGuard {
    /// The lock's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.guard.lease().key()
    }

    /// The fencing token of the lease in a fenced lock, for the protected resource; `None` in a
    /// lock without fences.
    ///
    /// It is above the tokens of all earlier holds, of Java programs too. Redisson gives each hold
    /// a new number when a lock is taken again. Here all holds of the lease share one number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] once the lease is lost.
    pub fn token(&self) -> Result<Option<u64>> {
        let fence = self.guard.fence()?;
        Ok(self.fenced.then(|| fence.sequence()))
    }

    /// How many guards this owner has of the lock at this moment.
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.guard.holds()
    }

    /// Whether the lease is held at this moment. Sends no request.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// How long the lease is held for certain; zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Returns when the lease is lost, in time or because another program has ended it, or when the
    /// last guard has been released or dropped.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(losing)]
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Succeeds while the lease is held.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] once it is not.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Ends this hold, and with the last one the lease. Returns how many holds of the same owner
    /// remain; with 0 the lock is free.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing_hold)]
    ///
    /// # Errors
    ///
    /// As [`Guard::release`](crate::Guard::release), without [`ErrorKind::Late`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release(self) -> Result<u32> {
        self.guard.release().await
    }

    /// As [`release`](Self::release), and reports how that went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing_hold)]
    ///
    /// # Errors
    ///
    /// As [`Guard::release_outcome`](crate::Guard::release_outcome).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release_outcome(self) -> Result<Release> {
        self.guard.release_outcome().await
    }
}

impl fmt::Debug for RedissonGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedissonGuard").field(&self.guard).finish()
    }
}
