//! The mutex, for threads.

use std::time::Duration;

use leasehold_core::{Key, Result};

use super::driven::Driven;
use super::guard::{Guard, HeldLease};
use super::value::{holding_setters, owner_setter, waiting_setters};
use crate::change::NotChanged;
use crate::run::RunError;

/// A lock that one holder has at a time, in any process that uses the same store. The blocking
/// twin of [`crate::Mutex`].
///
/// A value: making one sends nothing and cannot fail. What is wrong with a name or a setting is
/// told by the first method that locks. It is not re-entrant: locking twice in one thread waits
/// for itself.
///
/// # Errors
///
/// Methods that lock fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an async runtime and in a fork's
/// child, besides what their twins say.
#[derive(Clone, Debug)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex(Driven<crate::Mutex>);

holding_setters!(Mutex);
owner_setter!(Mutex);
waiting_setters!(Mutex);

impl Mutex {
    pub(super) const fn new(driven: Driven<crate::Mutex>) -> Self {
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

    /// Tries to take the lock, once. `None` when somebody else has it. See
    /// [`crate::Mutex::try_lock`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn try_lock(&self) -> Result<Option<Guard>> {
        let guard = self.0.wait(crate::Mutex::try_lock)??;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Takes the lock, waiting for as long as it takes. See [`crate::Mutex::lock`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn lock(&self) -> Result<Guard> {
        self.0.wait(crate::Mutex::lock)?.map(|guard| self.guard(guard))
    }

    /// Takes the lock, waiting for at most `limit`. See [`crate::Mutex::lock_within`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn lock_within(&self, limit: Duration) -> Result<Guard> {
        self.0.wait(|mutex| mutex.lock_within(limit))?.map(|guard| self.guard(guard))
    }

    /// Takes the lock, runs `body` under it, and releases it.
    ///
    /// A thread can't be stopped from outside: when the lease is lost, the body goes on until it
    /// looks. Let it look, with [`HeldLease::check`] before each side effect, and give the fence
    /// to what it works on. A body that panics leaves the lock to be given up in the background.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was not held until the body had
    /// ended; [`ErrorKind::Late`](crate::ErrorKind::Late) when it had run out though nobody else took it. What the body
    /// has returned is in the error ([`RunError::into_output`]).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::blocking::Client::connect("memory:")?;
    /// let pages = client.mutex("reports/daily").run(|lease| {
    ///     let mut pages = 0;
    ///     while pages < 3 && lease.is_held() {
    ///         pages += 1;
    ///     }
    ///     pages
    /// })?;
    /// assert_eq!(pages, 3);
    /// # Ok(()) }
    /// ```
    pub fn run<T>(&self, body: impl FnOnce(&HeldLease) -> T) -> Result<T, RunError<T>> {
        self.lock()?.run(body)
    }

    /// As [`run`](Self::run), if the lock is free; `None` when somebody else has it.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn try_run<T>(&self, body: impl FnOnce(&HeldLease) -> T) -> Result<Option<T>, RunError<T>> {
        self.try_lock()?.map(|guard| guard.run(body)).transpose()
    }

    /// Asks whoever holds the lock to let go. See [`crate::Mutex::ask`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn ask(&self) -> Result<bool> {
        self.0.wait(crate::Mutex::ask)?
    }

    /// Refreshes a lock that `guard` may still hold, or takes it anew. See
    /// [`crate::Mutex::relock`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn relock(&self, guard: Guard) -> Result<Option<Guard>, NotChanged<Guard>> {
        if let Err(error) = self.0.io().check() {
            return Err(NotChanged::new(guard, error));
        }
        let (guard, io) = guard.into_driven().into_inner();
        match self.0.io().wait(self.0.part().relock(guard)) {
            Ok(guard) => Ok(guard.map(|guard| self.guard(guard))),
            Err(not) => {
                // The guard's own thread: it may be of another client.
                let (guard, error) = not.into_parts();
                Err(NotChanged::new(Guard::new(Driven::new(guard, io)), error))
            }
        }
    }

    fn guard(&self, guard: crate::Guard) -> Guard {
        Guard::new(self.0.with(guard))
    }
}
