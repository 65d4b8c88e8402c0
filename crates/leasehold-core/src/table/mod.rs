//! The lock table: what acquiring, waiting, renewing and releasing mean.
//!
//! A [`LockEntry`] is all that a store keeps about one name, and each [`Operation`] is one step on
//! it, carried out on the store's time ([`Now`]). A store's work is to make such a step atomic, to
//! keep the entry in between, and to deliver the [`Notice`]s of the step. The memory and embedded
//! stores run this code; the Redis store's scripts are its second implementation, and a property
//! test holds the two together.
//!
//! The invariants to keep:
//!
//! * [`LockEntry::perform`] is the one way to an operation. Before each, it drops expired holders
//!   and waiters, and grants what came free to the queue; after it, it grants again and notifies a
//!   new head. So a free lock never has a live waiter that it could serve.
//! * Every operation is idempotent per token: a repeated one counts once, and leaves alone what
//!   other tokens have.
//! * Free is what live holders leave: there is no counter to return.
//! * A fence is larger than every fence issued for the name before, also when the entry was
//!   forgotten in between. It is at least the time, and an entry is kept until the time has passed
//!   its last fence ([`LockEntry::may_be_forgotten`]).
//! * A lock's time never goes back, even if the store's clock does: every lease, position or
//!   cooldown has at most its own length left.

mod acquire;
mod change;
mod entry;
mod line;
mod operation;
mod plain;
mod release;
mod renew;
#[cfg(test)]
mod tests;
mod time;

pub use acquire::{Entries, Obstacle, acquire_all};
pub use entry::{LockEntry, Notice};
pub use operation::{Current, Operation};
pub use plain::{Plain, PlainHolder};
pub use release::Bury;

use std::time::Duration;

use crate::fence::Fence;

/// A point on a store's clock, in microseconds since an origin of the store's own.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct StoreTime(#[cfg_attr(feature = "serde", serde(with = "crate::fixed"))] u64);

impl StoreTime {
    /// The point `us` microseconds after the origin.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us)
    }

    /// Microseconds since the origin.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This point moved forward.
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this point is; zero when it is not after it.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// The time at which an operation is carried out.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "stores make it for every step")]
pub struct Now {
    /// The present on the clock that leases run on.
    pub at: StoreTime,
    /// The smallest fence to issue: the store's fail-over epoch, and the microseconds since
    /// 2020-01-01 by a wall clock.
    pub fence_floor: Fence,
    /// The first moment on that clock at which the store may grant a lease. Until then callers
    /// queue, and holders renew and release. A store that may have forgotten leases sets it to the
    /// end of the longest one.
    pub grants_from: StoreTime,
}

impl Now {
    /// The time of a store that remembers all leases.
    #[must_use]
    pub const fn new(at: StoreTime, fence_floor: Fence) -> Self {
        Self { at, fence_floor, grants_from: StoreTime(0) }
    }

    /// For how long the store still grants no lease.
    pub(super) const fn no_grants_for(self) -> Duration {
        self.grants_from.saturating_since(self.at)
    }
}
