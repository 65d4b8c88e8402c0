//! The setters of all kinds of locks, for threads.

/// The setters of how a lock is held. The twins of those of the async API.
macro_rules! holding_setters {
    ($type:ident) => {
        impl $type {
            /// The length of a lease. See [`ttl`](crate::Mutex::ttl).
            pub fn ttl(self, ttl: std::time::Duration) -> Self {
                Self(self.0.map(|value| value.ttl(ttl)))
            }

            /// How long before the end of a lease its loss is told. See
            /// [`stop_grace`](crate::Mutex::stop_grace).
            pub fn stop_grace(self, grace: std::time::Duration) -> Self {
                Self(self.0.map(|value| value.stop_grace(grace)))
            }

            /// Whether leases are renewed in the background. See [`renew`](crate::Mutex::renew).
            pub fn renew(self, renew: bool) -> Self {
                Self(self.0.map(|value| value.renew(renew)))
            }

            /// The longest time for which one lease is held. See
            /// [`max_hold`](crate::Mutex::max_hold).
            pub fn max_hold(self, max_hold: impl Into<Option<std::time::Duration>>) -> Self {
                Self(self.0.map(|value| value.max_hold(max_hold)))
            }

            /// Renews only while the work gets on. See
            /// [`progress_within`](crate::Mutex::progress_within).
            pub fn progress_within(self, limit: impl Into<Option<std::time::Duration>>) -> Self {
                Self(self.0.map(|value| value.progress_within(limit)))
            }

            /// Text that is kept with the lease. See [`metadata`](crate::Mutex::metadata).
            pub fn metadata(self, metadata: impl AsRef<str>) -> Self {
                Self(self.0.map(|value| value.metadata(metadata)))
            }
        }
    };
}
pub(super) use holding_setters;

/// The setter of who holds a lock.
macro_rules! owner_setter {
    ($type:ident) => {
        impl $type {
            /// Who holds the lock, for people. See [`owner`](crate::Mutex::owner).
            pub fn owner(self, owner: impl AsRef<str>) -> Self {
                Self(self.0.map(|value| value.owner(owner)))
            }
        }
    };
}
pub(super) use owner_setter;

/// The setters of how a lock is waited for.
macro_rules! waiting_setters {
    ($type:ident) => {
        impl $type {
            /// Whether to wait in line or to compete. See [`order`](crate::Mutex::order).
            pub fn order(self, order: crate::Order) -> Self {
                Self(self.0.map(|value| value.order(order)))
            }

            /// When to try again while waiting. See [`retry`](crate::Mutex::retry).
            pub fn retry(self, strategy: impl crate::retry::RetryStrategy) -> Self {
                Self(self.0.map(|value| value.retry(strategy)))
            }

            /// Gives up at once when waiting would be in vain. See
            /// [`not_in_vain`](crate::Mutex::not_in_vain).
            pub fn not_in_vain(self, not_in_vain: bool) -> Self {
                Self(self.0.map(|value| value.not_in_vain(not_in_vain)))
            }

            /// Refuses to wait when so many wait already. See
            /// [`max_waiters`](crate::Mutex::max_waiters).
            pub fn max_waiters(self, max: impl Into<Option<u32>>) -> Self {
                Self(self.0.map(|value| value.max_waiters(max)))
            }
        }
    };
}
pub(super) use waiting_setters;
