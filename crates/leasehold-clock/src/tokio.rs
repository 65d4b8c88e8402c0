//! A clock that follows a tokio runtime.

use std::time::Duration;

use leasehold_core::{Clock, Moment};
use tokio::time::Instant;

/// The clock of the tokio runtime; it stands at one day when the `TokioClock` is made, so that
/// moments can be moved back.
///
/// If a test has paused the runtime's time, this clock moves with the runtime's timers; read it on
/// a thread of that runtime. It stands still while the machine sleeps, so real leases take
/// [`SystemClock`](crate::SystemClock).
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: Instant,
}

impl TokioClock {
    const START: Duration = Duration::from_secs(24 * 60 * 60);

    /// A clock that stands at one day now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        let passed = Instant::now().saturating_duration_since(self.origin);
        Moment::from_origin(passed.saturating_add(Self::START))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_moves_with_the_timers_of_a_paused_runtime() {
        let clock = TokioClock::new();
        let start = clock.now();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now().saturating_since(start), Duration::from_secs(3600));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.now().saturating_since(start), Duration::from_secs(3601));
    }
}
