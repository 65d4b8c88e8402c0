//! A waiter's position in the queue.

/// A waiter's position in the queue: the lower number is served first.
///
/// The first position in an empty queue is its waiter's arrival by the store's time, in µs, and the
/// others follow without gaps. Waiters that are not [preferred](super::AcquireRequest::preferred)
/// have positions of their own, which are above by [`BEHIND`](Self::BEHIND).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Place(#[cfg_attr(feature = "serde", serde(with = "crate::fixed"))] u64);

impl Place {
    /// Added to the positions of waiters that are not preferred: 2^52. That is more microseconds
    /// than any clock shows for a century, and few enough for all positions to be exact as
    /// floating-point numbers.
    pub const BEHIND: u64 = 1 << 52;

    /// The position of a waiter that arrived then, by the store's time in µs.
    #[must_use]
    pub const fn on_arrival(us: u64, preferred: bool) -> Self {
        let us = us % Self::BEHIND;
        Self(if preferred { us } else { us.saturating_add(Self::BEHIND) })
    }

    /// The arrival that the position stands for, by the store's time in µs.
    #[must_use]
    pub const fn arrival(self) -> u64 {
        self.0 % Self::BEHIND
    }

    /// Whether it is before all positions of waiters that are not preferred.
    #[must_use]
    pub const fn is_preferred(self) -> bool {
        self.0 < Self::BEHIND
    }

    /// The position right behind.
    pub(crate) const fn following(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The position with this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}
