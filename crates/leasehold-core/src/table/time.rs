//! A lock's own time, which never goes back.
//!
//! A store's clock may go back: a server's is the time of day of its machine, which people and
//! services set. Earlier leases would then end later by the step, and the lease of a dead client
//! could not be shortened.

use std::time::Duration;

use super::StoreTime;

/// How a lock's time follows from the store's clock.
///
/// Whatever is given at a moment of this time ends within its length from then, so at any moment no
/// lease has more left than its length.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(super) struct LockTime {
    /// When a lease, a position or a cooldown was last given or prolonged; the origin while the
    /// lock is not in use.
    given_at: StoreTime,
    /// How far this time is ahead of the store's clock, in microseconds.
    #[cfg_attr(feature = "serde", serde(with = "crate::fixed"))]
    ahead_us: u64,
}

impl LockTime {
    /// The time of a lock that was last given at this point of the store's clock.
    pub(super) const fn since(given_at: StoreTime) -> Self {
        Self { given_at, ahead_us: 0 }
    }

    /// When something was last given or prolonged.
    pub(super) const fn given_at(self) -> StoreTime {
        self.given_at
    }

    /// How far it is ahead of the store's clock, in microseconds.
    pub(super) const fn ahead_us(self) -> u64 {
        self.ahead_us
    }

    /// The present: no earlier than the last grant, whatever the store's clock shows.
    pub(super) fn present(self, clock: StoreTime) -> StoreTime {
        clock.saturating_add(self.ahead()).max(self.given_at)
    }

    /// As [`present`](Self::present); from there this time goes on with the store's clock.
    pub(super) fn go_on(&mut self, clock: StoreTime) -> StoreTime {
        let present = self.present(clock);
        self.ahead_us = present.as_micros().saturating_sub(clock.as_micros());
        present
    }

    /// Records that something is given or prolonged now.
    pub(super) const fn give(&mut self, at: StoreTime) {
        self.given_at = at;
    }

    /// What the store's clock shows at a moment of this time.
    pub(super) fn on_clock(self, at: StoreTime) -> StoreTime {
        StoreTime::from_micros(at.as_micros().saturating_sub(self.ahead_us))
    }

    /// By how much the store's clock was set back since this time began, as noticed.
    pub(super) const fn ahead(self) -> Duration {
        Duration::from_micros(self.ahead_us)
    }
}
