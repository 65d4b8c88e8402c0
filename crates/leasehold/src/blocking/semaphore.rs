//! The semaphore, for threads.

use std::time::Duration;

use leasehold_core::{Key, Result};

use super::guard::{Guard, HeldLease, into_guard};
use super::table::{ends, guard, methods, options, value};
use crate::lease::not_changed::NotChanged;

value! {
    /// Permits, of which there is a limited number for all processes that use the same store. For
    /// threads what [`crate::Semaphore`] is for tasks.
    #[derive(Clone)]
    #[must_use = "a semaphore does nothing until a permit is acquired"]
    Semaphore
}

options!(Semaphore: holding_options owner_option waiting_options patience_options);

methods! { Semaphore {
    /// Whether a name that is in use with another limit is taken under that limit, instead of being
    /// refused. See [`crate::Semaphore::stored_limit`].
    sets stored_limit(stored_limit: bool);
    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    checks key() -> &Key;
    /// Tries to take a permit, once. `None` if none is free, or if there are waiters.
    asks try_acquire() -> Option<SemaphoreGuard>, errors trying, costs trying;
    /// Takes a permit, and waits until one is free.
    asks acquire() -> SemaphoreGuard, errors taking, costs taking;
    /// Takes a permit, and waits for at most `limit`; with a limit of zero it tries once.
    asks acquire_within(limit: Duration) -> SemaphoreGuard, errors taking_within, costs taking_within;
    /// Tries to take `n` permits at once, all or none.
    asks try_acquire_many(n: u32) -> Option<SemaphoreGuard>, errors trying, costs trying;
    /// Takes `n` permits at once, and waits until they are free.
    asks acquire_many(n: u32) -> SemaphoreGuard, errors taking, costs taking;
    /// Takes `n` permits at once, and waits for at most `limit`.
    asks acquire_many_within(n: u32, limit: Duration) -> SemaphoreGuard, errors taking_within, costs taking_within;
    /// The number of free permits in the store's view; it may have changed when the answer comes.
    asks available_permits() -> u32, errors trying, costs request;
    /// Changes the limit for all users of the name, and returns the semaphore with the new limit.
    asks set_limit(limit: u32) -> Self, errors trying, costs request;
} }

guard! {
    /// Held permits of a semaphore. For threads what [`crate::SemaphoreGuard`] is for tasks.
    SemaphoreGuard: HeldLease
}
ends!(SemaphoreGuard);
into_guard!(SemaphoreGuard);

impl SemaphoreGuard {
    /// Releases `n` of the permits and keeps the others. See
    /// [`crate::SemaphoreGuard::release_permits`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    #[doc = super::errors::errors!(changing)]
    pub fn release_permits(self, n: u32) -> Result<Self, NotChanged<Self>> {
        self.0.change(|guard| guard, |guard| guard.release_permits(n))
    }
}

impl TryFrom<Guard> for SemaphoreGuard {
    type Error = NotChanged<Guard>;

    /// The guard of permits that were detached and [adopted](super::Client::adopt).
    fn try_from(guard: Guard) -> Result<Self, NotChanged<Guard>> {
        let (guard, io) = guard.into_driven().into_inner();
        match crate::SemaphoreGuard::try_from(guard) {
            Ok(guard) => Ok(super::face::Face::of(guard, &io)),
            Err(not) => Err(not.map(|guard| super::face::Face::of(guard, &io))),
        }
    }
}
