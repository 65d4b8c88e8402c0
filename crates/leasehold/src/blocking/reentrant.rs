//! The re-entrant mutex, for threads.

use std::time::Duration;

use leasehold_core::Key;

use super::guard::HeldLease;
use super::table::{guard, methods, options, value};
use crate::lease::release::Release;

value! {
    /// A lock that one [`Owner`](crate::Owner) has at a time, and may take again while it has it. For
    /// threads what [`crate::Reentrant`] is for tasks.
    ///
    /// The owner is the value, never the thread that calls.
    #[derive(Clone)]
    #[must_use = "a lock does nothing until it is locked"]
    Reentrant
}

options!(Reentrant: holding_options waiting_options patience_options);

methods! { Reentrant {
    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    checks key() -> &Key;
    /// Tries to take the lock, once. `None` when another owner has it.
    asks try_lock() -> Option<ReentrantGuard>, errors trying, costs trying_again;
    /// Takes the lock, and waits until it is free; at once when this owner has it.
    asks lock() -> ReentrantGuard, errors taking, costs taking_again;
    /// Takes the lock, and waits for at most `limit`.
    asks lock_within(limit: Duration) -> ReentrantGuard, errors taking_within, costs taking_again_within;
} }

guard! {
    /// A hold of a [`Reentrant`] lock. For threads what [`crate::ReentrantGuard`] is for tasks.
    ReentrantGuard: HeldLease, crate::ReentrantGuard::end
}

methods! { ReentrantGuard {
    /// How many guards this owner has of the lock at this moment.
    tells holds() -> u32;
    /// Ends this hold, and with the last one the lease. Returns how many holds of the same owner
    /// remain; with 0 the lock is free.
    ends release() -> u32, errors releasing, costs releasing_hold;
    /// Ends this hold, and reports how that went.
    ends release_outcome() -> Release, errors ending, costs releasing_hold;
    /// Ends this hold. The last one ends the lease and starts `cooldown`. Returns how many holds of
    /// the same owner remain.
    ends release_with_cooldown(cooldown: crate::Cooldown) -> u32, errors releasing, costs releasing_hold;
} }
