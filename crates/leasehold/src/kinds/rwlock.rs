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

/// Which goes first where readers and writers wait for the same lock.
///
/// All users of a name should have the same preference: each brings its own to the line.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum RwPreference {
    /// First come, first served, whatever they want: neither a stream of readers nor one of writers
    /// keeps the others out.
    #[default]
    Fifo,
    /// A waiting writer goes before all readers that wait or come. A stream of writers keeps
    /// readers out.
    Writers,
    /// A reader goes before all waiting writers, and shares with readers that are there although a
    /// writer waits: a stream of readers keeps writers out.
    Readers,
}

/// A lock that many readers share, or one writer has alone, in any process that uses the same
/// store.
///
/// A value: making one sends nothing and cannot fail. Each reader has its own lease, so a crashed
/// reader keeps writers out for the rest of that lease and no longer. All leases have fences, and a
/// writer's is above those of all readers before it.
///
/// A name used by a [`Mutex`](crate::Mutex) and as a read-write lock is one lock; the mutex is a
/// writer.
///
/// It is not re-entrant, in any direction; [`ReadGuard::upgrade`] is how to write after reading.
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
    /// What is wrong with the name, or the first setting that is wrong.
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
    /// Cancel safe: if the request was on its way, its token is given up in the background.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.reading().try_take().await?.map(ReadGuard))
    }

    /// Takes the lock for reading, and waits for as long as that takes.
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
    /// Cancel safe: dropping the future gives up the place in line, in the background.
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
    /// Cancel safe: dropping the future gives up the place in line, in the background.
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
    /// Cancel safe: if the request was on its way, its token is given up in the background.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.writing().try_take().await?.map(WriteGuard))
    }

    /// Takes the lock for writing, and waits for as long as that takes.
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
    /// Cancel safe: dropping the future gives up the place in line, in the background.
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
    /// Cancel safe: dropping the future gives up the place in line, in the background.
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

/// A lock held for reading, beside other readers.
///
/// It derefs to the view of its lease, which has the fence, the time left and the loss.
#[must_use = "dropping the guard gives the lock up in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct ReadGuard(Guard);

/// A lock held for writing, alone.
///
/// It derefs to the view of its lease, which has the fence, the time left and the loss.
#[must_use = "dropping the guard gives the lock up in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct WriteGuard(Guard);

impl ReadGuard {
    /// Turns this read lock into a write lock in one step, so no writer comes in between. It fails
    /// at once if there are other readers, since two readers that wait for each other to leave
    /// would wait for ever. Waiting writers don't hinder it; they come after.
    ///
    /// The new guard has a fence above those of all readers. Views of the lease that were handed
    /// out before ([`Guard::lease`]) hold nothing any more.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// The guard for reading comes back with every error, held as before where that can be proven:
    ///
    /// * [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) – others read too.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Late`](crate::ErrorKind::Late)
    ///   – the lease is gone.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) – the store did not answer. It
    ///   counts as read here; the store may keep other readers out until it is released.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease is given up in the background.
    pub async fn upgrade(self) -> std::result::Result<WriteGuard, NotChanged<Self>> {
        change_mode::upgrade(self.0).await.map(WriteGuard).map_err(|not| not.map(Self))
    }
}

impl WriteGuard {
    /// Turns this write lock into a read lock in one step, so no writer comes in between. Waiting
    /// readers are let in, as far as no writer goes before them.
    ///
    /// The fence stays the same. Views of the lease that were handed out before
    /// ([`Guard::lease`]) hold nothing any more.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// A guard for reading comes with every error, because that much is held in any case:
    ///
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost), [`ErrorKind::Late`](crate::ErrorKind::Late)
    ///   – the lease is gone.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) – the store did not answer. It
    ///   may keep other readers out until the guard is released, and the guard can't be upgraded.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease is given up in the background.
    pub async fn downgrade(self) -> std::result::Result<ReadGuard, NotChanged<ReadGuard>> {
        change_mode::downgrade(self.0).await.map(ReadGuard).map_err(|not| not.map(ReadGuard))
    }

    /// What a downgrade that was never begun leaves: at least as much as a reader has.
    #[cfg(feature = "blocking")]
    pub(crate) fn counts_as_reader(self) -> ReadGuard {
        ReadGuard(self.0)
    }
}

typed_guard!(ReadGuard);
typed_guard!(WriteGuard);
