//! The read-write lock, for threads.

use std::time::Duration;

use leasehold_core::{Key, Result};

use super::guard::{HeldLease, into_guard};
use super::table::{ends, guard, methods, options, value};
use crate::kinds::rwlock::RwPreference;
use crate::lease::not_changed::NotChanged;

value! {
    /// A lock that many readers share, or one writer has alone. For threads what [`crate::RwLock`]
    /// is for tasks.
    #[derive(Clone)]
    #[must_use = "a lock does nothing until it is locked"]
    RwLock
}

options!(RwLock: holding_options owner_option waiting_options patience_options);

methods! { RwLock {
    /// Which waiters go first; by default [in the order of arrival](RwPreference::Fifo).
    sets preference(preference: RwPreference);
    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    checks key() -> &Key;
    /// Tries to take the lock for reading, once. `None` if a writer has it, or waits and goes
    /// before.
    asks try_read() -> Option<ReadGuard>, errors trying, costs trying;
    /// Takes the lock for reading, and waits until it can.
    asks read() -> ReadGuard, errors taking, costs taking;
    /// Takes the lock for reading, and waits for at most `limit`.
    asks read_within(limit: Duration) -> ReadGuard, errors taking_within, costs taking_within;
    /// Tries to take the lock for writing, once. `None` if it is held, or a waiter goes before.
    asks try_write() -> Option<WriteGuard>, errors trying, costs trying;
    /// Takes the lock for writing, and waits until it can.
    asks write() -> WriteGuard, errors taking, costs taking;
    /// Takes the lock for writing, and waits for at most `limit`.
    asks write_within(limit: Duration) -> WriteGuard, errors taking_within, costs taking_within;
} }

guard! {
    /// A lock held for reading. For threads what [`crate::ReadGuard`] is for tasks.
    ReadGuard: HeldLease
}
ends!(ReadGuard);
into_guard!(ReadGuard);

guard! {
    /// A lock held for writing. For threads what [`crate::WriteGuard`] is for tasks.
    WriteGuard: HeldLease
}
ends!(WriteGuard);
into_guard!(WriteGuard);

impl ReadGuard {
    /// Makes the hold exclusive in one step, or is refused at once. See
    /// [`crate::ReadGuard::upgrade`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    #[doc = super::errors::errors!(changing)]
    pub fn upgrade(self) -> Result<WriteGuard, NotChanged<Self>> {
        self.0.change(|guard| guard, crate::ReadGuard::upgrade)
    }
}

impl WriteGuard {
    /// Shares the lock with other readers from here on, in one step. See
    /// [`crate::WriteGuard::downgrade`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    #[doc = super::errors::errors!(changing)]
    ///
    /// If waiting is wrong here, the store goes on excluding other readers.
    pub fn downgrade(self) -> Result<ReadGuard, NotChanged<ReadGuard>> {
        self.0.change(crate::WriteGuard::counts_as_reader, crate::WriteGuard::downgrade)
    }
}
