//! The cooldown type: for how long a lock can't be acquired after a grant or a release.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::length;

/// For how long a lock can't be acquired after a grant or a release: up to 365 days, in whole
/// microseconds.
///
/// It is checked where it is made, so that every store accepts every one, and no release is refused
/// for its cooldown. [`NONE`](Self::NONE) is the same as none.
///
/// ```
/// use leasehold_core::Cooldown;
/// use std::time::Duration;
///
/// let minute = Cooldown::new(Duration::from_secs(60))?;
/// assert!(Cooldown::new(Duration::MAX).is_err() && minute < Cooldown::MAX);
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Cooldown(u64);

impl Cooldown {
    /// No cooldown: the lock is free at once.
    pub const NONE: Self = Self(0);
    /// The longest cooldown: 365 days.
    pub const MAX: Self = Self(365 * 24 * 60 * 60 * 1_000_000);
    /// The range of lengths, in words.
    pub const RANGE: &'static str = "0 to 365 days";

    /// Validates a length; fractions of a microsecond are cut off.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] when the length is above 365 days.
    pub fn new(length: Duration) -> Result<Self> {
        match u64::try_from(length.as_micros()) {
            Ok(us) if us <= Self::MAX.0 => Ok(Self(us)),
            _ => Err(Error::new(
                ErrorKind::Config,
                format!(
                    "a cooldown of {} is out of range; give {}",
                    length::typed(length),
                    Self::RANGE
                ),
            )),
        }
    }

    /// The length as a `Duration`.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// The length in microseconds, for the wire.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The length of the cooldown, if there is one.
    #[must_use]
    pub fn closes_for(self) -> Option<Duration> {
        (!self.is_none()).then(|| self.duration())
    }

    /// Whether there is no cooldown.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl TryFrom<Duration> for Cooldown {
    type Error = Error;

    fn try_from(length: Duration) -> Result<Self> {
        Self::new(length)
    }
}

impl fmt::Display for Cooldown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        length::typed(self.duration()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_up_to_365_days_are_taken_and_no_others() {
        let year = Duration::from_secs(365 * 86_400);
        assert_eq!(Cooldown::new(year).unwrap(), Cooldown::MAX);
        assert_eq!(Cooldown::MAX.duration(), year);
        for far in [year + Duration::from_micros(1), Duration::MAX] {
            let refused = Cooldown::new(far).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Config);
            assert!(refused.to_string().ends_with(Cooldown::RANGE), "{refused}");
        }
        for none in [Duration::ZERO, Duration::from_nanos(999)] {
            assert!(Cooldown::new(none).unwrap().is_none());
        }
    }
}
