//! Retry strategies: when to try again.
//!
//! A strategy answers one question, "how long to pause before the next try, or stop?", from the
//! number of tries made so far. It keeps no state, so one value serves any number of calls at once.
//! Write your own by implementing [`RetryStrategy`].

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The shortest pause between two tries. Shorter answers are raised to it, so that no strategy
/// becomes a busy loop against a server.
pub const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Says when to try again.
pub trait RetryStrategy: Debug + Send + Sync + 'static {
    /// The pause after `tries` tries (at least 1), or `None` to stop.
    fn pause(&self, tries: u32) -> Option<Duration>;

    /// At most `tries` tries in all; a limit of 0 counts as 1, since the first try is made anyway.
    fn limit(self, tries: u32) -> Limit<Self>
    where
        Self: Sized,
    {
        Limit { strategy: self, tries }
    }

    /// Makes each pause longer or shorter by a random share, so that many waiters don't try at the
    /// same moments. The share is at most `share` of the pause (0.0 to 1.0; other values are
    /// clamped).
    fn jitter(self, share: f64) -> Jitter<Self>
    where
        Self: Sized,
    {
        Jitter { strategy: self, share: if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) } }
    }
}

impl<S: RetryStrategy + ?Sized> RetryStrategy for Box<S> {
    fn pause(&self, tries: u32) -> Option<Duration> {
        (**self).pause(tries)
    }
}

impl<S: RetryStrategy + ?Sized> RetryStrategy for Arc<S> {
    fn pause(&self, tries: u32) -> Option<Duration> {
        (**self).pause(tries)
    }
}

/// Tries once.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "a strategy without parameters")]
pub struct NoRetry;

impl RetryStrategy for NoRetry {
    fn pause(&self, _tries: u32) -> Option<Duration> {
        None
    }
}

/// The same pause between all tries.
#[derive(Clone, Copy, Debug)]
pub struct Linear(Duration);

impl Linear {
    /// Pauses for `pause`, at least [`PAUSE_MIN`].
    #[must_use]
    pub fn new(pause: Duration) -> Self {
        Self(pause.max(PAUSE_MIN))
    }
}

impl RetryStrategy for Linear {
    fn pause(&self, _tries: u32) -> Option<Duration> {
        Some(self.0)
    }
}

/// Pauses of 2, 4, 8, … milliseconds, kept between a minimum and a maximum.
#[derive(Clone, Copy, Debug)]
pub struct Exponential {
    min: Duration,
    max: Duration,
}

impl Exponential {
    /// 2ⁿ ms after the n-th try, at least `min` and at most `max`; a `max` below `min` counts as
    /// `min`.
    #[must_use]
    pub fn new(min: Duration, max: Duration) -> Self {
        let min = min.max(PAUSE_MIN);
        Self { min, max: max.max(min) }
    }
}

impl RetryStrategy for Exponential {
    fn pause(&self, tries: u32) -> Option<Duration> {
        let ms = 1_u64.checked_shl(tries).unwrap_or(u64::MAX);
        Some(Duration::from_millis(ms).clamp(self.min, self.max))
    }
}

/// See [`RetryStrategy::limit`].
#[derive(Clone, Copy, Debug)]
pub struct Limit<S> {
    strategy: S,
    tries: u32,
}

impl<S: RetryStrategy> RetryStrategy for Limit<S> {
    fn pause(&self, tries: u32) -> Option<Duration> {
        if tries < self.tries { self.strategy.pause(tries) } else { None }
    }
}

/// See [`RetryStrategy::jitter`].
#[derive(Clone, Copy, Debug)]
pub struct Jitter<S> {
    strategy: S,
    share: f64,
}

impl<S: RetryStrategy> RetryStrategy for Jitter<S> {
    fn pause(&self, tries: u32) -> Option<Duration> {
        let pause = self.strategy.pause(tries)?;
        let factor = 1.0 + self.share * (fastrand::f64() * 2.0 - 1.0);
        let jittered = Duration::try_from_secs_f64(pause.as_secs_f64() * factor).unwrap_or(pause);
        Some(jittered.max(PAUSE_MIN))
    }
}

/// The methods of a strategy, for callers that have not imported the trait.
macro_rules! inherent {
    ($($strategy:ident $(<$of:ident>)?)*) => { $(
        impl$(<$of: RetryStrategy>)? $strategy$(<$of>)? {
            /// At most `tries` tries in all. See [`RetryStrategy::limit`].
            #[must_use]
            pub fn limit(self, tries: u32) -> Limit<Self> {
                RetryStrategy::limit(self, tries)
            }

            /// Pauses made longer or shorter by chance. See [`RetryStrategy::jitter`].
            #[must_use]
            pub fn jitter(self, share: f64) -> Jitter<Self> {
                RetryStrategy::jitter(self, share)
            }
        }
    )* };
}

inherent!(NoRetry Linear Exponential Limit<S> Jitter<S>);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn each_strategy_does_what_its_name_says() {
        assert_eq!(NoRetry.pause(1), None);
        assert_eq!(Linear::new(ms(100)).pause(7), Some(ms(100)));
        assert_eq!(Linear::new(Duration::ZERO).pause(1), Some(PAUSE_MIN));
        let exponential = Exponential::new(ms(4), ms(500));
        let pauses: Vec<_> = (1..=10).map(|tries| exponential.pause(tries).unwrap()).collect();
        assert_eq!(pauses[..4], [ms(4), ms(4), ms(8), ms(16)]);
        assert_eq!(pauses[9], ms(500));
        assert_eq!(exponential.pause(u32::MAX), Some(ms(500)));
        let limited = Linear::new(ms(1)).limit(3);
        assert_eq!(limited.pause(2), Some(ms(1)));
        assert_eq!(limited.pause(3), None);
    }

    #[test]
    fn a_program_can_write_its_own_strategy() {
        #[derive(Debug)]
        struct Fibonacci;
        impl RetryStrategy for Fibonacci {
            fn pause(&self, tries: u32) -> Option<Duration> {
                let (mut a, mut b) = (1, 1);
                for _ in 1..tries {
                    (a, b) = (b, a + b);
                }
                (a < 100).then(|| ms(a))
            }
        }
        assert_eq!(Fibonacci.pause(5), Some(ms(5)));
        assert_eq!(Fibonacci.limit(5).pause(5), None);
    }

    #[test]
    fn a_strategy_may_be_chosen_at_run_time() {
        let chosen: Box<dyn RetryStrategy> = Box::new(Linear::new(ms(7)));
        assert_eq!(chosen.limit(2).pause(1), Some(ms(7)));
        let shared: Arc<dyn RetryStrategy> = Arc::new(NoRetry);
        assert_eq!(shared.jitter(0.5).pause(1), None);
    }

    proptest! {
        #[test]
        fn no_pause_is_zero_or_runs_away(
            min in 0_u64..10_000, max in 0_u64..10_000, tries in 1_u32.., share in -1.0..2.0_f64,
        ) {
            let pause = Exponential::new(ms(min), ms(max)).jitter(share).pause(tries).unwrap();
            prop_assert!(pause >= PAUSE_MIN);
            prop_assert!(pause <= ms(2 * max.max(min).max(1)));
        }
    }
}
