//! Time as the holder of a lease sees it: a clock that only goes forward, and points on it.

use std::fmt::Debug;
use std::time::Duration;

/// A point on a [`Clock`], as the time since that clock's own origin.
///
/// Moments of different clocks can't be compared; nothing in leasehold sends one to a server.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Moment(Duration);

impl Moment {
    /// The moment `since_origin` after the clock's origin.
    #[must_use]
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// The time from the clock's origin to this moment.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// This moment moved forward; the end of representable time when that is passed.
    #[must_use]
    pub const fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }

    /// This moment moved back; the clock's origin when that is passed.
    #[must_use]
    pub const fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }

    /// How long after `earlier` this moment is; zero when it is not after it.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A clock that goes forward while the machine runs *and while it sleeps*.
///
/// A holder's deadline is counted on such a clock (on Linux `CLOCK_BOOTTIME`): a guard must not
/// look valid after a laptop was closed for an hour. `std::time::Instant` is no such clock.
/// Implementations must be cheap, never block and never fail.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The present moment.
    fn now(&self) -> Moment;
}
