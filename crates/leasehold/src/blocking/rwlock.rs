//! The read-write lock, for threads.

use std::ops::Deref;
use std::time::Duration;

use leasehold_core::{Key, Result};

use super::driven::Driven;
use super::guard::Guard;
use super::value::{holding_setters, owner_setter, waiting_setters};
use crate::change::{self, NotChanged};
use crate::release::Release;
use crate::rwlock::Preference;

/// A lock that many readers share, or one writer has alone. The blocking twin of
/// [`crate::RwLock`].
///
/// # Errors
///
/// Methods that ask the store fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an
/// async runtime and in a fork's child, besides what their twins say.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is locked"]
pub struct RwLock(Driven<crate::RwLock>);

holding_setters!(RwLock);
owner_setter!(RwLock);
waiting_setters!(RwLock);

impl RwLock {
    pub(super) const fn new(driven: Driven<crate::RwLock>) -> Self {
        Self(driven)
    }

    /// Who goes first. See [`crate::RwLock::preference`].
    pub fn preference(self, preference: Preference) -> Self {
        Self(self.0.map(|lock| lock.preference(preference)))
    }

    /// The lock's name.
    ///
    /// # Errors
    ///
    /// What is wrong with the name, or the first setting that is wrong.
    pub fn key(&self) -> Result<&Key> {
        self.0.part().key()
    }

    /// See [`crate::RwLock::try_read`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        let guard = self.0.wait(crate::RwLock::try_read)??;
        Ok(guard.map(|guard| ReadGuard(self.guard(guard.into_guard()))))
    }

    /// See [`crate::RwLock::read`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn read(&self) -> Result<ReadGuard> {
        let guard = self.0.wait(crate::RwLock::read)??;
        Ok(ReadGuard(self.guard(guard.into_guard())))
    }

    /// See [`crate::RwLock::read_within`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn read_within(&self, limit: Duration) -> Result<ReadGuard> {
        let guard = self.0.wait(|lock| lock.read_within(limit))??;
        Ok(ReadGuard(self.guard(guard.into_guard())))
    }

    /// See [`crate::RwLock::try_write`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        let guard = self.0.wait(crate::RwLock::try_write)??;
        Ok(guard.map(|guard| WriteGuard(self.guard(guard.into_guard()))))
    }

    /// See [`crate::RwLock::write`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn write(&self) -> Result<WriteGuard> {
        let guard = self.0.wait(crate::RwLock::write)??;
        Ok(WriteGuard(self.guard(guard.into_guard())))
    }

    /// See [`crate::RwLock::write_within`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn write_within(&self, limit: Duration) -> Result<WriteGuard> {
        let guard = self.0.wait(|lock| lock.write_within(limit))??;
        Ok(WriteGuard(self.guard(guard.into_guard())))
    }

    fn guard(&self, guard: crate::Guard) -> Guard {
        Guard::new(self.0.with(guard))
    }
}

/// A lock held for reading. The blocking twin of [`crate::ReadGuard`].
#[derive(Debug)]
#[must_use = "dropping the guard gives the lock up in the background; call release() to be sure"]
#[clippy::has_significant_drop]
pub struct ReadGuard(Guard);

/// A lock held for writing. The blocking twin of [`crate::WriteGuard`].
#[derive(Debug)]
#[must_use = "dropping the guard gives the lock up in the background; call release() to be sure"]
#[clippy::has_significant_drop]
pub struct WriteGuard(Guard);

impl ReadGuard {
    /// Holds the lock alone from here on, or is refused at once. See
    /// [`crate::ReadGuard::upgrade`].
    ///
    /// # Errors
    ///
    /// As its twin; where waiting is wrong nothing was asked.
    pub fn upgrade(self) -> std::result::Result<WriteGuard, NotChanged<Self>> {
        if let Err(error) = self.0.can_wait() {
            return Err(NotChanged::new(self, error));
        }
        let (guard, io) = self.0.into_driven().into_inner();
        match io.wait(change::upgrade(guard)) {
            Ok(guard) => Ok(WriteGuard(Guard::new(Driven::new(guard, io)))),
            Err(not) => {
                let (guard, error) = not.into_parts();
                Err(NotChanged::new(Self(Guard::new(Driven::new(guard, io))), error))
            }
        }
    }

    /// Ends the lease. See [`crate::Guard::release`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release(self) -> Result<()> {
        self.0.release()
    }

    /// As [`release`](Self::release), and says how that went.
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_outcome(self) -> Result<Release> {
        self.0.release_outcome()
    }

    /// The plain guard.
    pub fn into_guard(self) -> Guard {
        self.0
    }
}

impl WriteGuard {
    /// Shares the lock with other readers from here on. See [`crate::WriteGuard::downgrade`].
    ///
    /// # Errors
    ///
    /// As its twin; where waiting is wrong nothing was asked, and the store goes on keeping other
    /// readers out.
    pub fn downgrade(self) -> std::result::Result<ReadGuard, NotChanged<ReadGuard>> {
        if let Err(error) = self.0.can_wait() {
            return Err(NotChanged::new(ReadGuard(self.0), error));
        }
        let (guard, io) = self.0.into_driven().into_inner();
        match io.wait(change::downgrade(guard)) {
            Ok(guard) => Ok(ReadGuard(Guard::new(Driven::new(guard, io)))),
            Err(not) => {
                let (guard, error) = not.into_parts();
                Err(NotChanged::new(ReadGuard(Guard::new(Driven::new(guard, io))), error))
            }
        }
    }

    /// Ends the lease. See [`crate::Guard::release`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release(self) -> Result<()> {
        self.0.release()
    }

    /// As [`release`](Self::release), and says how that went.
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_outcome(self) -> Result<Release> {
        self.0.release_outcome()
    }

    /// The plain guard.
    pub fn into_guard(self) -> Guard {
        self.0
    }
}

impl Deref for ReadGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl Deref for WriteGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
