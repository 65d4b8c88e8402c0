//! The mutex, for threads.

use std::time::Duration;

use leasehold_core::{Key, Result};

use super::face::Face;
use super::guard::{Guard, HeldLease};
use super::table::{methods, options, value};
use crate::lease::not_changed::NotChanged;
use crate::lease::prolonged::Prolonged;
use crate::lease::run::RunError;

value! {
    /// A lock that one holder has at a time, in any process that uses the same store. For threads
    /// what [`crate::Mutex`] is for tasks.
    ///
    /// A value, which can't fail and sends its first request when it is locked. The first method
    /// that locks reports a wrong name or setting. It is not re-entrant: a thread that locks it
    /// twice waits for itself.
    #[derive(Clone)]
    #[must_use = "a mutex does nothing until it is locked"]
    Mutex
}

options!(Mutex: holding_options owner_option waiting_options patience_options);

methods! { Mutex {
    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    checks key() -> &Key;
    /// Tries to take the lock, once. `None` if another holder has it.
    asks try_lock() -> Option<Guard>, errors trying, costs trying;
    /// Takes the lock, and waits until it is free.
    asks lock() -> Guard, errors taking, costs taking;
    /// Takes the lock, and waits for at most `limit`; with a limit of zero it tries once.
    asks lock_within(limit: Duration) -> Guard, errors taking_within, costs taking_within;
    /// Requests release from the holder of the lock; `false` if the lock is not held.
    asks ask() -> bool, errors asking, costs request;
} }

impl Mutex {
    /// Takes the lock, runs `body` under it, and releases it. See [`Guard::run`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(locking_and_running)]
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock) and [`Guard::run`].
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

    /// As [`run`](Self::run), if the lock is free; `None` if another holder has it.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying_and_running)]
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock) and [`Guard::run`].
    pub fn try_run<T>(&self, body: impl FnOnce(&HeldLease) -> T) -> Result<Option<T>, RunError<T>> {
        self.try_lock()?.map(|guard| guard.run(body)).transpose()
    }

    /// Renews the lease of `guard`, or takes the lock again with a new fence; `None` if the lease
    /// is gone and another holder has the lock. See [`crate::Mutex::relock`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(refreshing)]
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock) and [`HeldLease::renew_to`], and
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) when the guard is of another lock. The guard
    /// comes back with the error, and holds what it held.
    pub fn relock(&self, guard: Guard) -> Result<Option<Guard>, NotChanged<Guard>> {
        if let Err(error) = self.0.io().check() {
            return Err(NotChanged::new(guard, error));
        }
        let (guard, io) = guard.into_driven().into_inner();
        match self.0.io().wait(self.0.part().relock(guard)) {
            Ok(guard) => Ok(guard.map(|guard| Guard::of(guard, self.0.io()))),
            // The guard's own thread: it may be of another client.
            Err(not) => Err(not.map(|guard| Guard::of(guard, &io))),
        }
    }

    /// Prolongs a lock that `guard` may still hold. Takes it again if the lease has expired and the
    /// lock had no holder since. See [`crate::Mutex::prolong`].
    ///
    /// # Cost
    ///
    /// As [`crate::Mutex::prolong`].
    ///
    /// # Errors
    ///
    /// As [`crate::Mutex::prolong`]. The guard comes back with the error.
    pub fn prolong(&self, guard: Guard) -> Result<Prolonged<Guard>, NotChanged<Guard>> {
        if let Err(error) = self.0.io().check() {
            return Err(NotChanged::new(guard, error));
        }
        let (guard, io) = guard.into_driven().into_inner();
        match self.0.io().wait(self.0.part().prolong(guard)) {
            Ok(prolonged) => Ok(prolonged.map(|guard| Guard::of(guard, self.0.io()))),
            Err(not) => Err(not.map(|guard| Guard::of(guard, &io))),
        }
    }
}
