//! The re-entrant mutex, for threads.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use leasehold_core::{Key, Result};

use super::driven::Driven;
use super::guard::HeldLease;
use super::value::{holding_setters, waiting_setters};
use crate::release::Release;

/// A lock that one [`Owner`](crate::Owner) has at a time, and may take again while it has it. The
/// blocking twin of [`crate::Reentrant`].
///
/// The owner is the value, never the thread that calls.
///
/// # Errors
///
/// Methods that lock fail with [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) inside an async
/// runtime and in a fork's child, besides what their twins say.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is locked"]
pub struct Reentrant(Driven<crate::Reentrant>);

holding_setters!(Reentrant);
waiting_setters!(Reentrant);

impl Reentrant {
    pub(super) const fn new(driven: Driven<crate::Reentrant>) -> Self {
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

    /// Tries to take the lock, once. `None` when another owner has it. See
    /// [`crate::Reentrant::try_lock`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        let guard = self.0.wait(crate::Reentrant::try_lock)??;
        Ok(guard.map(|guard| self.guard(guard)))
    }

    /// Takes the lock, waiting for as long as it takes. See [`crate::Reentrant::lock`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn lock(&self) -> Result<ReentrantGuard> {
        self.0.wait(crate::Reentrant::lock)?.map(|guard| self.guard(guard))
    }

    /// Takes the lock, waiting for at most `limit`. See [`crate::Reentrant::lock_within`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn lock_within(&self, limit: Duration) -> Result<ReentrantGuard> {
        self.0.wait(|lock| lock.lock_within(limit))?.map(|guard| self.guard(guard))
    }

    fn guard(&self, guard: crate::ReentrantGuard) -> ReentrantGuard {
        ReentrantGuard::new(self.0.with(guard))
    }
}

/// A hold of a [`Reentrant`] lock. The blocking twin of [`crate::ReentrantGuard`].
///
/// # Dropping is not releasing
///
/// A dropped guard counts down on the client's thread, and gives the lease up there if it is the
/// last. Use [`release`](Self::release) to know.
///
/// # Errors
///
/// As those of [`Guard`](super::Guard).
#[must_use = "dropping the guard counts down in the background; call release() to be sure"]
#[clippy::has_significant_drop]
pub struct ReentrantGuard {
    driven: Driven<crate::ReentrantGuard>,
    lease: HeldLease,
}

impl ReentrantGuard {
    fn new(driven: Driven<crate::ReentrantGuard>) -> Self {
        let lease = HeldLease::new(driven.with(driven.part().lease().clone()));
        Self { driven, lease }
    }

    /// A view of the lease, to be given to the work. It is of the lease, not of this one hold.
    #[must_use]
    pub const fn lease(&self) -> &HeldLease {
        &self.lease
    }

    /// How many guards this owner has of the lock at this moment.
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.driven.part().holds()
    }

    /// Ends this hold, and with the last one the lease; returns how many holds of the same owner
    /// remain. See [`crate::ReentrantGuard::release`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release(self) -> Result<u32> {
        self.driven.end(crate::ReentrantGuard::release)
    }

    /// As [`release`](Self::release), and says how that went. See
    /// [`crate::ReentrantGuard::release_outcome`].
    ///
    /// # Errors
    ///
    /// As its twin.
    pub fn release_outcome(self) -> Result<Release> {
        self.driven.end(crate::ReentrantGuard::release_outcome)
    }
}

impl Deref for ReentrantGuard {
    type Target = HeldLease;

    fn deref(&self) -> &HeldLease {
        &self.lease
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.driven.part().fmt(f)
    }
}
