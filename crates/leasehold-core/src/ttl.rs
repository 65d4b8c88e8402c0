//! The length of a lease, validated when it is made.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::length;

/// The length of a lease: 10 ms to 30 days, in whole milliseconds.
///
/// A shorter lease would expire before its holder could do anything or renew it: its margin alone
/// is 2 ms.
///
/// This is the only place where a `Duration` becomes a number of milliseconds.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Ttl(u32);

impl Ttl {
    /// The shortest lease.
    pub const MIN: Self = Self(10);
    /// The longest lease: 30 days.
    pub const MAX: Self = Self(30 * 24 * 60 * 60 * 1000);
    /// The range of lengths, in words.
    pub const RANGE: &'static str = "10 ms to 30 days";

    /// Validates a length; fractions of a millisecond are cut off, which can only end a lease early
    /// on the holder's side.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] when the length is below 10 ms or above 30 days.
    pub fn new(length: Duration) -> Result<Self> {
        match u32::try_from(length.as_millis()) {
            Ok(ms) if (Self::MIN.0..=Self::MAX.0).contains(&ms) => Ok(Self(ms)),
            _ => Err(Error::new(
                ErrorKind::Config,
                format!("a ttl of {} is out of range; give {}", length::typed(length), Self::RANGE),
            )),
        }
    }

    /// The length as a `Duration`.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }

    /// One of this many equal parts of the length; the whole for 0 parts.
    #[must_use]
    pub fn part(self, parts: u32) -> Duration {
        let whole = self.duration();
        whole.checked_div(parts).unwrap_or(whole)
    }

    /// The length in milliseconds, for the wire.
    #[must_use]
    pub const fn as_millis(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        length::typed(self.duration()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_dust_and_absurd_lengths_are_refused() {
        for bad in [Duration::ZERO, Duration::from_nanos(9_999_999), Duration::MAX] {
            let refused = Ttl::new(bad).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Config, "{bad:?}");
            assert!(refused.to_string().ends_with(Ttl::RANGE), "{refused}");
        }
        let month = Duration::from_secs(30 * 86_400);
        assert_eq!(Ttl::new(month).unwrap(), Ttl::MAX);
        assert!(Ttl::new(month + Duration::from_millis(1)).is_err());
        assert_eq!(Ttl::new(Duration::from_micros(10_900)).unwrap(), Ttl::MIN);
    }
}
