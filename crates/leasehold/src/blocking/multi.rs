//! Several locks as one, for threads.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Fence, Key, Result};

use super::driven::Driven;
use super::guard::Guard;
use super::value::{holding_setters, owner_setter, waiting_setters};
use crate::client::Inner;
use crate::multi::any;
use crate::release::Releases;

/// Several locks that are taken together: all of them or none. The blocking twin of
/// [`crate::Multi`].
///
/// # Errors
///
/// Methods that ask the store fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an
/// async runtime and in a fork's child, besides what their twins say.
#[derive(Clone, Debug)]
#[must_use = "locks do nothing until they are locked"]
pub struct Multi(Driven<crate::Multi>);

holding_setters!(Multi);
owner_setter!(Multi);
waiting_setters!(Multi);

impl Multi {
    pub(super) const fn new(driven: Driven<crate::Multi>) -> Self {
        Self(driven)
    }

    /// The names, in the order in which they are waited for.
    ///
    /// # Errors
    ///
    /// What is wrong with the names, or the first setting that is wrong.
    pub fn keys(&self) -> Result<&[Key]> {
        self.0.part().keys()
    }

    /// Tries to take all of the locks, once. See [`crate::Multi::try_lock`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn try_lock(&self) -> Result<Option<MultiGuard>> {
        let guard = self.0.wait(crate::Multi::try_lock)??;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Takes all of the locks, waiting for as long as it takes. See [`crate::Multi::lock`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn lock(&self) -> Result<MultiGuard> {
        self.0.wait(crate::Multi::lock)?.map(|guard| self.guard(guard))
    }

    /// Takes all of the locks, waiting for at most `limit` in all. See
    /// [`crate::Multi::lock_within`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn lock_within(&self, limit: Duration) -> Result<MultiGuard> {
        self.0.wait(|multi| multi.lock_within(limit))?.map(|guard| self.guard(guard))
    }

    fn guard(&self, guard: crate::MultiGuard) -> MultiGuard {
        let client = Arc::clone(guard.client());
        let guards = guard.into_guards().into_iter();
        let guards = guards.map(|guard| Guard::new(self.0.with(guard))).collect();
        MultiGuard { guards, thread: self.0.with(client) }
    }
}

/// Several held locks. Lost when any of them is lost. The blocking twin of [`crate::MultiGuard`].
#[derive(Debug)]
#[must_use = "dropping the guard gives the locks up in the background; call release() to be sure"]
#[clippy::has_significant_drop]
pub struct MultiGuard {
    guards: Vec<Guard>,
    thread: Driven<Arc<Inner>>,
}

impl MultiGuard {
    /// The guards of the single locks, in the order of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Each lock with its fencing token, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once any of them is lost.
    pub fn fences(&self) -> Result<Vec<(Key, Fence)>> {
        self.guards.iter().map(|guard| Ok((guard.key().clone(), guard.fence()?))).collect()
    }

    /// Whether all of them are held at this moment; asks nobody.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// How long all of them are held for certain; zero once any is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Passes when all of them are held; for a look before each side effect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when one is not.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// Waits until any of them is lost. See [`crate::MultiGuard::lost`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn lost(&self) -> Result<()> {
        self.thread.wait(|_| any(self.guards.iter().map(|guard| guard.part().lost())))
    }

    /// Waits until somebody asks to let go of any of them, or one is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong.
    pub fn asked(&self) -> Result<()> {
        self.thread.wait(|_| any(self.guards.iter().map(|guard| guard.part().asked())))
    }

    /// Ends all leases, at the same time. See [`crate::MultiGuard::release`].
    ///
    /// # Errors
    ///
    /// As its twin, and [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong; the
    /// leases are given up in the background then.
    pub fn release(self) -> Result<()> {
        self.release_outcomes()?.verdict()
    }

    /// Ends all leases, at the same time, and says for each how its release went. See
    /// [`crate::MultiGuard::release_outcomes`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) where waiting is wrong; the leases are
    /// given up in the background then.
    pub fn release_outcomes(self) -> Result<Releases> {
        let Self { guards, thread } = self;
        thread.io().check()?;
        let (client, io) = thread.into_inner();
        let guards = guards.into_iter().map(|guard| guard.into_driven().into_inner().0).collect();
        Ok(io.wait(crate::MultiGuard::new(client, guards).release_outcomes()))
    }

    /// The guards of the single locks, to be released one by one.
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }
}
