//! A clock that tests move by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{Clock, Moment};

/// A clock that moves only by its methods. Clones show the same time.
///
/// It starts one day after its origin, so that it can also be set back: some tests are about clocks
/// that break the promise of [`Clock`].
///
/// ```
/// use std::time::Duration;
/// use leasehold_clock::ManualClock;
/// use leasehold_core::Clock;
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(clock.now().saturating_since(before), Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    since_origin_ns: Arc<AtomicU64>,
}

impl ManualClock {
    const START: Duration = Duration::from_secs(24 * 60 * 60);

    /// A clock that stands one day after its origin.
    #[must_use]
    pub fn new() -> Self {
        Self { since_origin_ns: Arc::new(AtomicU64::new(nanoseconds(Self::START))) }
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.change(|now| now.saturating_add(nanoseconds(by)));
    }

    /// Moves it back, which a sound clock never does; at most to its origin.
    pub fn go_back(&self, by: Duration) {
        self.change(|now| now.saturating_sub(nanoseconds(by)));
    }

    /// Moves it to a moment, earlier or later.
    pub fn set(&self, to: Moment) {
        self.change(|_| nanoseconds(to.since_origin()));
    }

    fn change(&self, change: impl Fn(u64) -> u64) {
        let mut now = self.since_origin_ns.load(Ordering::SeqCst);
        while let Err(moved) = self.since_origin_ns.compare_exchange_weak(
            now,
            change(now),
            Ordering::SeqCst,
            Ordering::SeqCst,
        ) {
            now = moved;
        }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_nanos(self.since_origin_ns.load(Ordering::SeqCst)))
    }
}

/// The whole of a duration in nanoseconds, at most 584 years.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_move_together_forward_back_and_to_a_moment() {
        let clock = ManualClock::new();
        let other = clock.clone();
        let start = clock.now();
        other.advance(Duration::from_nanos(7));
        assert_eq!(clock.now(), start.saturating_add(Duration::from_nanos(7)));
        clock.go_back(Duration::from_secs(1));
        assert!(other.now() < start);
        clock.set(start);
        assert_eq!(other.now(), start);
    }

    #[test]
    fn it_stays_within_what_can_be_counted() {
        let clock = ManualClock::new();
        clock.go_back(Duration::MAX);
        assert_eq!(clock.now(), Moment::default());
        clock.advance(Duration::MAX);
        clock.advance(Duration::MAX);
        assert!(clock.now() > Moment::default());
    }
}
