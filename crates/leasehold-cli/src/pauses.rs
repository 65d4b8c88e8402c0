//! Waits until a moment, between explanations, and between listings.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold::DEFAULT_CALL_TIMEOUT;
use tokio::time::Instant;

/// A wait is explained after this time, and again after pauses that grow up to the last.
const EXPLAIN_FIRST: Duration = Duration::from_millis(200);
const EXPLAIN_AGAIN: Duration = Duration::from_secs(10);
const EXPLAIN_LAST: Duration = Duration::from_secs(600);

/// A server is left alone for this many times as long as a listing takes it.
const LISTINGS_APART: u32 = 10;
/// The quickest of the last few tells how long that is: others may have waited for a store that was
/// away.
const LISTINGS_KEPT: usize = 3;
/// One that takes this many times as long as others may be of a store that is away.
const LISTINGS_VARY: u32 = 2;

/// Returns at a moment; without one it stays pending.
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

    /// Whether the explanation after the last pause is not the first.
    pub(crate) fn is_again(&self) -> bool {
        self.0.is_some_and(|next| next > EXPLAIN_AGAIN)
    }
}

/// How long the last listings of a store took.
#[derive(Debug, Default)]
pub(crate) struct Listings(VecDeque<Duration>);

impl Listings {
    /// Notes one that succeeded.
    pub(crate) fn done(&mut self, took: Duration) {
        self.0.push_back(took);
        if self.0.len() > LISTINGS_KEPT {
            self.0.pop_front();
        }
    }

    /// The time until the next, beside which a listing is short.
    pub(crate) fn apart(&self) -> Duration {
        self.usual().saturating_mul(LISTINGS_APART)
    }

    /// The time after which a silent store may be away: the time of one request, or of its longest
    /// listing.
    pub(crate) fn late_after(&self) -> Duration {
        DEFAULT_CALL_TIMEOUT.max(self.usual().saturating_mul(LISTINGS_VARY))
    }

    /// How long one takes, or nothing as long as there were too few to tell.
    fn usual(&self) -> Duration {
        if self.0.len() < LISTINGS_KEPT {
            return Duration::ZERO;
        }
        self.0.iter().min().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_explanation_of_a_wait_and_all_later_ones_are_repetitions() {
        let mut pauses = Pauses::default();
        let explained = [(); 4].map(|()| (pauses.next(), pauses.is_again()));
        assert_eq!(explained.map(|(_, is_again)| is_again), [false, true, true, true]);
        assert_eq!(explained[..2].iter().map(|(pause, _)| *pause).sum::<Duration>().as_secs(), 10);
    }

    fn listings(took_ms: &[u64]) -> Listings {
        let mut listings = Listings::default();
        took_ms.iter().for_each(|ms| listings.done(Duration::from_millis(*ms)));
        listings
    }

    fn apart(took_ms: &[u64]) -> Duration {
        listings(took_ms).apart()
    }

    #[test]
    fn a_listing_that_waited_for_a_store_that_was_away_puts_off_no_other() {
        let usual = apart(&[5, 5, 5]);
        assert_eq!(apart(&[5, 5, 5, 3_000]), usual);
        assert_eq!(apart(&[5, 5, 5, 3_000, 1_500]), usual);
        // Nor does the first one.
        assert_eq!(apart(&[3_000]), Duration::ZERO);
        assert_eq!(apart(&[3_000, 1_500]), Duration::ZERO);
    }

    #[test]
    fn listings_that_take_long_are_far_apart() {
        assert_eq!(apart(&[400, 300, 500]), Duration::from_secs(3));
        assert_eq!(apart(&[5, 300, 400, 300]), Duration::from_secs(3));
        assert_eq!(apart(&[300, 400, 300, 5]), Duration::from_millis(50));
    }

    #[test]
    fn a_listing_is_late_when_a_request_is_unless_all_take_long() {
        assert_eq!(listings(&[]).late_after(), DEFAULT_CALL_TIMEOUT);
        assert_eq!(listings(&[5, 5, 9_000]).late_after(), DEFAULT_CALL_TIMEOUT);
        assert_eq!(listings(&[4_000, 3_000, 9_000]).late_after(), Duration::from_secs(6));
    }
}
