//! The time of day, which only this module reads, because it steps when it is set.
//!
//! No lease expires by it. It seeds fences, so that they go on increasing after a store has
//! forgotten what it issued.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use leasehold_core::Fence;

/// Microseconds since 1970-01-01 UTC; 0 for a clock that stands before that.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "fences are seeded from the time of day")]
pub fn unix_micros() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// The smallest fence to issue now in a store without fail-over epochs: the microseconds since
/// 2020-01-01 UTC, and above [`Fence::ZERO`] for every time of day.
#[must_use]
pub fn fence_floor() -> Fence {
    fence_floor_at(unix_micros())
}

/// The fence that [`fence_floor`] gives at a time of day, in microseconds since 1970-01-01 UTC.
#[must_use]
pub fn fence_floor_at(unix_us: u64) -> Fence {
    let sequence = unix_us.saturating_sub(Fence::ORIGIN_UNIX_US).clamp(1, Fence::SEQUENCE_MAX);
    Fence::new(0, sequence).unwrap_or(Fence::ZERO)
}

/// The [`fence_floor`] for callers that know the time by another clock. It looks at the time of day
/// every [10 ms](Self::LOOK_EVERY) at most, and follows that clock in between. A change of the time
/// of day takes effect with that delay.
#[derive(Debug)]
pub struct FenceFloor {
    looked_at_us: AtomicU64,
    ahead_us: AtomicU64,
}

impl FenceFloor {
    /// How often it looks at the time of day.
    pub const LOOK_EVERY: Duration = Duration::from_millis(10);

    /// Looks at the time of day, when the other clock shows `now_us` microseconds.
    #[must_use]
    pub fn new(now_us: u64) -> Self {
        let floor = Self { looked_at_us: AtomicU64::new(0), ahead_us: AtomicU64::new(0) };
        floor.look(now_us);
        floor
    }

    /// The smallest fence to issue when the other clock shows `now_us` microseconds. Threads that
    /// call at the same time use the last look or the one before.
    #[must_use]
    pub fn at(&self, now_us: u64) -> Fence {
        let since_us = now_us.wrapping_sub(self.looked_at_us.load(Ordering::Relaxed));
        // A clock that went back wraps around.
        if Duration::from_micros(since_us) >= Self::LOOK_EVERY {
            self.look(now_us);
        }
        fence_floor_at(now_us.wrapping_add(self.ahead_us.load(Ordering::Relaxed)))
    }

    fn look(&self, now_us: u64) {
        self.ahead_us.store(unix_micros().wrapping_sub(now_us), Ordering::Relaxed);
        self.looked_at_us.store(now_us, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_another_clock_the_floor_follows_it_for_10_ms_and_then_the_time_of_day() {
        let now_us = 5_000_000;
        let before = fence_floor().sequence();
        let floor = FenceFloor::new(now_us);
        let after = fence_floor().sequence();
        let at = |us| floor.at(us).sequence();
        let first = at(now_us);
        assert!((before..=after).contains(&first));
        assert_eq!(at(now_us + 9_999), first + 9_999);
        // That clock goes on by an hour, the time of day by next to nothing; then it goes back.
        for us in [now_us + 3_600_000_000, now_us, 0] {
            let before = fence_floor().sequence();
            let found = at(us);
            assert!((before..=fence_floor().sequence()).contains(&found), "{us}");
        }
    }

    #[test]
    fn the_floor_is_the_microseconds_since_2020() {
        assert_eq!(fence_floor_at(Fence::ORIGIN_UNIX_US + 5).sequence(), 5);
        assert!(fence_floor().sequence() > 6 * 365 * 86_400 * 1_000_000);
    }

    #[test]
    fn a_wrong_time_of_day_still_gives_a_fence() {
        assert_eq!(fence_floor_at(0).sequence(), 1);
        assert_eq!(fence_floor_at(u64::MAX).sequence(), Fence::SEQUENCE_MAX);
    }
}
