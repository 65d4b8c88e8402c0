//! The read-write lock: many readers or one writer, in any process.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Key, Mode, Result};

use crate::kinds::lock_value::{LockValue, lock};
use crate::kinds::typed_guard::typed_guard;
use crate::lease::change_mode;
use crate::lease::guard::Guard;
use crate::lease::not_changed::NotChanged;
use crate::options::setters;
use crate::waiting::gate::Gates;

/// Which of them goes first if readers and writers wait for the same lock.
///
/// All users of a name should have the same preference, since each brings its own to the queue.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum RwPreference {
    /// First come, first served, readers and writers alike: no stream of readers or writers
    /// excludes the others.
    #[default]
    Fifo,
    /// A waiting writer goes before all readers that wait or arrive. A stream of writers excludes
    /// readers.
    Writers,
    /// A reader goes before all waiting writers, and shares the lock with present readers even if a
    /// writer waits. A stream of readers excludes writers.
    Readers,
}

/// A lock that many readers share, or one writer has alone, in any process that uses the same
/// store.
///
/// A value, which can't fail and sends its first request when it is locked. Each reader has its own
/// lease, so a crashed reader excludes writers only for the rest of that lease. All leases have
/// fencing tokens, and a writer's is above all earlier readers' tokens.
///
/// A name used by a [`Mutex`](crate::Mutex) and as a read-write lock is one lock; the mutex is a
/// writer.
///
/// It is not re-entrant, in any direction; use [`ReadGuard::upgrade`] to write after reading.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let prices = client.rwlock("prices");
/// let one = prices.read().await?;
/// let two = prices.read().await?;
/// assert!(prices.try_write().await?.is_none());
/// let two = two.upgrade().await.expect_err("another reader is there").into_guard();
/// two.release().await?;
///
/// let writer = one.upgrade().await?;
/// assert!(prices.try_read().await?.is_none());
/// let reader = writer.downgrade().await?;
/// assert!(prices.try_read().await?.is_some());
/// # drop(reader); client.close().await
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a lock does nothing until it is locked"]
pub struct RwLock {
    value: LockValue,
    preference: RwPreference,
}

lock!(RwLock);
setters!(RwLock: holding_options owner_option waiting_options patience_options);

impl RwLock {
    pub(crate) fn new(gates: &Arc<Gates>, key: Result<Key>) -> Self {
        let value = LockValue::new(gates, key, Mode::Shared);
        Self { value, preference: RwPreference::default() }
    }

    /// Which waiters go first; by default [in the order of arrival](RwPreference::Fifo).
    pub const fn preference(mut self, preference: RwPreference) -> Self {
        self.preference = preference;
        self
    }

    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    pub fn key(&self) -> Result<&Key> {
        self.value.key()
    }

    /// Tries to take the lock for reading, once. `None` if a writer has it, or waits and goes
    /// before.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the request was on its way, what it acquires is released in the background.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.reading().try_take().await?.map(ReadGuard))
    }

    /// Takes the lock for reading, and waits until it can.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn read(&self) -> Result<ReadGuard> {
        self.reading().take(None).await.map(ReadGuard)
    }

    /// Takes the lock for reading, and waits for at most `limit`.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_within)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock_within`](crate::Mutex::lock_within).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn read_within(&self, limit: Duration) -> Result<ReadGuard> {
        self.reading().take(Some(limit)).await.map(ReadGuard)
    }

    /// Tries to take the lock for writing, once. `None` if it is held, or a waiter goes before.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the request was on its way, what it acquires is released in the background.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.writing().try_take().await?.map(WriteGuard))
    }

    /// Takes the lock for writing, and waits until it can.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn write(&self) -> Result<WriteGuard> {
        self.writing().take(None).await.map(WriteGuard)
    }

    /// Takes the lock for writing, and waits for at most `limit`.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_within)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock_within`](crate::Mutex::lock_within).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn write_within(&self, limit: Duration) -> Result<WriteGuard> {
        self.writing().take(Some(limit)).await.map(WriteGuard)
    }

    fn reading(&self) -> LockValue {
        self.in_mode(Mode::Shared, RwPreference::Readers)
    }

    fn writing(&self) -> LockValue {
        self.in_mode(Mode::Exclusive, RwPreference::Writers)
    }

    fn in_mode(&self, mode: Mode, preferred_by: RwPreference) -> LockValue {
        self.value.with(|settings| {
            settings.mode = mode;
            settings.preferred = self.preference == preferred_by;
            Ok(())
        })
    }
}

/// A lock held for reading, with other readers.
///
/// It derefs to the view of its lease, which has the fencing token, the time left and the loss.
#[must_use = "dropping the guard releases the lock in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct ReadGuard(Guard);

/// A lock held for writing, alone.
///
/// It derefs to the view of its lease, which has the fencing token, the time left and the loss.
#[must_use = "dropping the guard releases the lock in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct WriteGuard(Guard);

impl ReadGuard {
    /// Turns this read lock into a write lock in one step, so no writer comes in between. It fails
    /// at once if there are other readers, since two upgrades would wait for each other for ever.
    /// Waiting writers don't delay it; they come after.
    ///
    /// The new guard has a fence above all readers' fences. Views of the lease that were handed out
    /// before ([`Guard::lease`]) hold no lease any more.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// The guard for reading comes back with every error, held as before if that can be proven:
    ///
    /// * [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) – others read too.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Late`](crate::ErrorKind::Late) –
    ///   the lease is gone.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) – the store did not answer. It
    ///   counts as read here; the store may exclude other readers until it is released.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease is released in the background.
    pub async fn upgrade(self) -> std::result::Result<WriteGuard, NotChanged<Self>> {
        change_mode::upgrade(self.0).await.map(WriteGuard).map_err(|not| not.map(Self))
    }
}

impl WriteGuard {
    /// Turns this write lock into a read lock in one step, so no writer comes in between. Waiting
    /// readers before the next writer come in as well.
    ///
    /// The fence stays the same. Views of the lease that were handed out before ([`Guard::lease`])
    /// hold no lease any more.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// A guard for reading comes with every error, because a reader's part is held in any case:
    ///
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Late`](crate::ErrorKind::Late) –
    ///   the lease is gone.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) – the store did not answer. It
    ///   may exclude other readers until the guard is released, and the guard can't be upgraded.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease is released in the background.
    pub async fn downgrade(self) -> std::result::Result<ReadGuard, NotChanged<ReadGuard>> {
        change_mode::downgrade(self.0).await.map(ReadGuard).map_err(|not| not.map(ReadGuard))
    }
}

typed_guard!(ReadGuard);
typed_guard!(WriteGuard);
