//! The time of day: read here and nowhere else, because it steps when somebody sets it.
//!
//! Nothing expires by it. It seeds fences, so that they go on increasing after a store has
//! forgotten what it issued.

use std::time::SystemTime;

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
/// 2020-01-01 UTC, and above [`Fence::ZERO`] whatever the time of day.
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

#[cfg(test)]
mod tests {
    use super::*;

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
