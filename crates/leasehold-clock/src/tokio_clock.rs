//! tokio's time, which tests can pause.

use leasehold_core::{Clock, Moment};

/// A clock that follows tokio's: under `tokio::time::pause` it stands still and advances with the
/// runtime's timers, so that a test sees hours pass in no time. It does not count sleep; real
/// clients use the system's clock.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that stands at one day, so that moments can be moved back.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        let since_origin = tokio::time::Instant::now().saturating_duration_since(self.origin);
        Moment::from_origin(since_origin.saturating_add(std::time::Duration::from_secs(86_400)))
    }
}
