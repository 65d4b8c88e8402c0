//! The holder's time: a clock that only goes forward, and moments on it.

use std::fmt::Debug;
use std::time::Duration;

/// A point on a [`Clock`], as the time since that clock's own origin, in nanoseconds. It ends 584
/// years after that.
///
/// Moments of different clocks can't be compared, so they stay in this process.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Moment {
    since_origin_ns: u64,
}

impl Moment {
    /// The moment `since_origin` after the clock's origin.
    #[must_use]
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self { since_origin_ns: nanoseconds(since_origin) }
    }

    /// The moment this many nanoseconds after the clock's origin.
    #[must_use]
    pub const fn from_nanos(since_origin_ns: u64) -> Self {
        Self { since_origin_ns }
    }

    /// How many nanoseconds after the clock's origin this moment is.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.since_origin_ns
    }

    /// The time from the clock's origin to this moment.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        Duration::from_nanos(self.since_origin_ns)
    }

    /// This moment moved forward; the end of representable time when that is passed.
    #[must_use]
    pub const fn saturating_add(self, by: Duration) -> Self {
        Self { since_origin_ns: self.since_origin_ns.saturating_add(nanoseconds(by)) }
    }

    /// This moment moved back; the clock's origin when that is passed.
    #[must_use]
    pub const fn saturating_sub(self, by: Duration) -> Self {
        Self { since_origin_ns: self.since_origin_ns.saturating_sub(nanoseconds(by)) }
    }

    /// How long after `earlier` this moment is; zero when it is not after it.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.since_origin_ns.saturating_sub(earlier.since_origin_ns))
    }
}

/// The whole of a length in nanoseconds, at most 584 years.
pub(crate) const fn nanoseconds(length: Duration) -> u64 {
    let seconds_ns = length.as_secs().saturating_mul(1_000_000_000);
    seconds_ns.saturating_add(length.subsec_nanos() as u64)
}

/// A clock that goes forward while the machine runs *and while it sleeps*.
///
/// A holder's deadline is counted on such a clock (on Linux `CLOCK_BOOTTIME`): a guard must not
/// look valid after a laptop was closed for an hour. `std::time::Instant` stands still then.
/// Implementations must be cheap, and must not block or fail.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Moment;
}
