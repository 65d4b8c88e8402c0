//! The machine's own clock, which counts while the machine sleeps.

use leasehold_core::{Clock, Moment};

/// The machine's clock: it only goes forward, independent of the time of day.
///
/// - Linux, Android and OpenBSD: `CLOCK_BOOTTIME`, which counts while the machine sleeps and is the
///   same for all processes of a time namespace.
/// - macOS and iOS: `CLOCK_MONOTONIC`, which there counts sleep too and is the same for all
///   processes.
/// - Other Unix systems: `CLOCK_MONOTONIC`; whether it counts sleep is up to the system.
/// - Windows and others: `std::time::Instant`, counted from the first reading in the process.
///   Windows' counter includes sleep. Moments of two processes can't be compared there.
///
/// A reading costs about 25 ns. It can't block or fail.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SystemClock;

impl SystemClock {
    /// The machine's clock.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        read()
    }
}

#[cfg(unix)]
fn read() -> Moment {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android", target_os = "openbsd"))]
    const COUNTS_SLEEP: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "openbsd")))]
    const COUNTS_SLEEP: ClockId = ClockId::Monotonic;

    let now = clock_gettime(COUNTS_SLEEP);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or_default();
    Moment::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

#[cfg(not(unix))]
#[expect(clippy::disallowed_methods, reason = "there is no better clock in the standard library")]
fn read() -> Moment {
    use std::sync::OnceLock;
    use std::time::Instant;

    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let now = Instant::now();
    Moment::from_origin(now.saturating_duration_since(*ORIGIN.get_or_init(|| now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let clock = SystemClock::new();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    /// Processes compare moments that they share through a store, so the origin must be the
    /// machine's, not the process's.
    #[test]
    #[cfg(target_os = "linux")]
    fn it_counts_from_the_start_of_the_machine_sleep_included() {
        let before = SystemClock::new().now().since_origin();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let after = SystemClock::new().now().since_origin();
        let uptime: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
        // The file is cut off at hundredths of a second.
        assert!(uptime > before.as_secs_f64() - 0.02 && uptime < after.as_secs_f64() + 0.02);
    }
}
