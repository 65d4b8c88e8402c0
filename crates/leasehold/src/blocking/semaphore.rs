//! The semaphore, for threads.

use std::time::Duration;

use leasehold_core::{Key, Result};

use super::driven::Driven;
use super::guard::Guard;
use super::value::{holding_setters, owner_setter, waiting_setters};

/// Permits, of which there is a limited number for all processes that use the same store. The
/// blocking twin of [`crate::Semaphore`].
///
/// # Errors
///
/// Methods that ask the store fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an
/// async runtime and in a fork's child, besides what their twins say.
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore(Driven<crate::Semaphore>);

holding_setters!(Semaphore);
owner_setter!(Semaphore);
waiting_setters!(Semaphore);

impl Semaphore {
    pub(super) const fn new(driven: Driven<crate::Semaphore>) -> Self {
        Self(driven)
    }

    /// The lock's name.
    ///
    /// # Errors
    ///
    /// What is wrong with the name, or the first setting that is wrong.
    pub fn key(&self) -> Result<&Key> {
        self.0.part().key()
    }

    /// Tries to take a permit, once. See [`crate::Semaphore::try_acquire`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        self.try_acquire_many(1)
    }

    /// Takes a permit, waiting for as long as it takes. See [`crate::Semaphore::acquire`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn acquire(&self) -> Result<Guard> {
        self.acquire_many(1)
    }

    /// Takes a permit, waiting for at most `limit`. See [`crate::Semaphore::acquire_within`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.acquire_many_within(1, limit)
    }

    /// Tries to take `n` permits at once. See [`crate::Semaphore::try_acquire_many`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn try_acquire_many(&self, n: u32) -> Result<Option<Guard>> {
        let guard = self.0.wait(|semaphore| semaphore.try_acquire_many(n))??;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Takes `n` permits at once, waiting for as long as it takes. See
    /// [`crate::Semaphore::acquire_many`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn acquire_many(&self, n: u32) -> Result<Guard> {
        self.0.wait(|semaphore| semaphore.acquire_many(n))?.map(|guard| self.guard(guard))
    }

    /// Takes `n` permits at once, waiting for at most `limit`. See
    /// [`crate::Semaphore::acquire_many_within`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn acquire_many_within(&self, n: u32, limit: Duration) -> Result<Guard> {
        let guard = self.0.wait(|semaphore| semaphore.acquire_many_within(n, limit))?;
        guard.map(|guard| self.guard(guard))
    }

    /// How many permits nobody holds now. See [`crate::Semaphore::available_permits`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn available_permits(&self) -> Result<u32> {
        self.0.wait(crate::Semaphore::available_permits)?
    }

    /// Changes the limit for everybody. See [`crate::Semaphore::set_limit`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn set_limit(&self, limit: u32) -> Result<Self> {
        let semaphore = self.0.wait(|semaphore| semaphore.set_limit(limit))??;
        Ok(Self(self.0.with(semaphore)))
    }

    fn guard(&self, guard: crate::Guard) -> Guard {
        Guard::new(self.0.with(guard))
    }
}
