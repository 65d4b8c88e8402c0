//! A clock that follows a tokio runtime.

use leasehold_core::{Clock, Moment};
use tokio::time::Instant;

/// The clock of the tokio runtime, counted from when the `TokioClock` was made.
///
/// Where a test has paused the runtime's time, this clock moves with the runtime's timers; read
/// it on a thread of that runtime. It stands still while the machine sleeps, so real leases take
/// [`SystemClock`](crate::SystemClock).
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: Instant,
}

impl TokioClock {
    /// A clock whose origin is now.
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
        Moment::from_origin(Instant::now().saturating_duration_since(self.origin))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_moves_with_the_timers_of_a_paused_runtime() {
        let clock = TokioClock::new();
        assert_eq!(clock.now(), Moment::default());
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now().since_origin(), Duration::from_secs(3600));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.now().since_origin(), Duration::from_secs(3601));
    }
}
