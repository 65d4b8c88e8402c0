//! Several locks as one, for threads.

use std::time::Duration;

use leasehold_core::{Key, Result};

use super::face::Face as _;
use super::guard::{Guard, HeldLeases};
use super::table::{guard, methods, options, value};
use crate::lease::release::Releases;
use crate::lease::run::RunError;

value! {
    /// Several locks that are taken together: all of them or none. For threads what
    /// [`crate::Multi`] is for tasks.
    #[derive(Clone)]
    #[must_use = "locks do nothing until they are locked"]
    Multi
}

options!(Multi: holding_options owner_option waiting_options patience_options);

methods! { Multi {
    /// The names, in the order in which a caller waits for them.
    ///
    /// # Errors
    ///
    /// The error of the names, or of the first wrong setting.
    checks keys() -> &[Key];
    /// Tries to take all of the locks, once. `None` if another holder has one of them.
    asks try_lock() -> Option<MultiGuard>, errors trying, costs trying_several;
    /// Takes all of the locks, and waits until they are free. After an error no lock is held.
    asks lock() -> MultiGuard, errors taking, costs taking_several;
    /// Takes all of the locks, and waits for at most `limit` in all. After an error no lock is
    /// held.
    asks lock_within(limit: Duration) -> MultiGuard, errors taking_within, costs taking_several_within;
} }

impl Multi {
    /// Takes all of the locks, runs `body` under them, and releases them. See [`MultiGuard::run`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(locking_and_running)]
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock) and [`MultiGuard::run`].
    pub fn run<T>(&self, body: impl FnOnce(&HeldLeases) -> T) -> Result<T, RunError<T>> {
        self.lock()?.run(body)
    }

    /// As [`run`](Self::run), if all of the locks are free; `None` if another holder has one of
    /// them.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying_and_running)]
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock) and [`MultiGuard::run`].
    pub fn try_run<T>(
        &self,
        body: impl FnOnce(&HeldLeases) -> T,
    ) -> Result<Option<T>, RunError<T>> {
        self.try_lock()?.map(|guard| guard.run(body)).transpose()
    }
}

guard! {
    /// Several held locks. Lost when any of them is lost. For threads what [`crate::MultiGuard`] is
    /// for tasks.
    MultiGuard: HeldLeases, crate::MultiGuard::end
}

methods! { MultiGuard {
    /// Ends all leases, at the same time. An `Ok` says that all were held to their end.
    ends release() -> (), errors releasing, costs releasing_several;
    /// Ends all leases, at the same time, and starts `cooldown` for each lock.
    ends release_with_cooldown(cooldown: crate::Cooldown) -> (), errors releasing, costs request_in_turn_each;
} }

impl MultiGuard {
    /// Ends all leases, at the same time, and reports for each how its release went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing_several)]
    ///
    /// # Errors
    ///
    #[doc = super::errors::errors!(waiting)]
    ///
    /// The leases are then released in the background.
    pub fn release_outcomes(self) -> Result<Releases> {
        self.0.end(|guard| async move { Ok(guard.release_outcomes().await) })
    }

    /// The guards of the single locks, to be released one by one.
    pub fn into_guards(self) -> Vec<Guard> {
        let (guard, io) = self.0.into_inner();
        guard.into_guards().into_iter().map(|guard| Guard::of(guard, &io)).collect()
    }
}
