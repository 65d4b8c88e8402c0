//! Waits: until a moment, and between one explanation and the next.

use std::time::Duration;

use tokio::time::Instant;

/// A wait is explained after this time, and again after pauses that grow up to the last.
const EXPLAIN_FIRST: Duration = Duration::from_millis(200);
const EXPLAIN_AGAIN: Duration = Duration::from_secs(10);
const EXPLAIN_LAST: Duration = Duration::from_secs(600);

/// Comes at a moment, or never without one.
pub(crate) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The time until a wait is explained, and between one explanation and the next.
#[derive(Debug, Default)]
pub(crate) struct Pauses(Option<Duration>);

impl Pauses {
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0.unwrap_or(EXPLAIN_FIRST);
        let next = self.0.map_or(EXPLAIN_AGAIN, |last| last.saturating_mul(2).min(EXPLAIN_LAST));
        self.0 = Some(next);
        pause
    }
}
