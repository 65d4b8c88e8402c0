//! Fencing tokens: the numbers by which a protected resource rejects a stale holder.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "serde")]
use crate::fixed;

/// A fencing token: larger for every later lease of the same name.
///
/// Packed into 63 bits so that it fits a positive SQL `bigint`, and compared as that one number.
/// The high 51 bits are a sequence number, the low 12 bits the fail-over epoch of the store (0 if
/// it has none). The sequence is at least the microseconds since 2020-01-01 UTC. So fences go on
/// growing after a store has lost its counters, and after its epochs begin again. 51 bits of
/// microseconds last until 2091. The epoch distinguishes two grants of the same microsecond, one
/// before and one after a fail-over.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Fence(u64);

impl Fence {
    /// 2020-01-01T00:00:00Z in microseconds since the Unix epoch: where sequence numbers count
    /// from.
    pub const ORIGIN_UNIX_US: u64 = 1_577_836_800_000_000;
    /// The largest epoch that fits; stores count larger ones as this.
    pub const EPOCH_MAX: u64 = (1 << Self::EPOCH_BITS) - 1;
    /// The largest sequence number that fits.
    pub const SEQUENCE_MAX: u64 = (1 << Self::SEQUENCE_BITS) - 1;
    /// Below every fence that is ever issued.
    pub const ZERO: Self = Self(0);
    const EPOCH_BITS: u32 = 12;
    const SEQUENCE_BITS: u32 = 63 - Self::EPOCH_BITS;

    /// Packs an epoch and a sequence number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Protocol`] when one of them does not fit.
    pub fn new(epoch: u64, sequence: u64) -> Result<Self> {
        if epoch > Self::EPOCH_MAX || sequence > Self::SEQUENCE_MAX {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("a fence with epoch {epoch} and sequence {sequence} does not fit 63 bits"),
            ));
        }
        Ok(Self(sequence << Self::EPOCH_BITS | epoch))
    }

    /// The fence with this packed value, as read back from a resource or a file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] when the value needs more than 63 bits.
    pub fn from_value(value: u64) -> Result<Self> {
        if i64::try_from(value).is_err() {
            return Err(Error::new(
                ErrorKind::Config,
                format!("{value} is not a fence; give a number below 2^63"),
            ));
        }
        Ok(Self(value))
    }

    /// The packed value, for the protected resource to store and compare.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }

    /// The packed value as SQL's `bigint`; never negative.
    #[must_use]
    pub const fn as_i64(self) -> i64 {
        self.0.cast_signed()
    }

    /// The fail-over epoch.
    #[must_use]
    pub const fn epoch(self) -> u64 {
        self.0 & Self::EPOCH_MAX
    }

    /// The number that grows with every lease, independent of the epoch.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.0 >> Self::EPOCH_BITS
    }

    /// The fence `by` later in the same epoch; stays at the last one that fits.
    #[must_use]
    pub const fn saturating_add(self, by: u32) -> Self {
        let sequence = self.sequence().saturating_add(by as u64);
        let sequence = if sequence > Self::SEQUENCE_MAX { Self::SEQUENCE_MAX } else { sequence };
        Self(sequence << Self::EPOCH_BITS | self.epoch())
    }
}

impl TryFrom<u64> for Fence {
    type Error = Error;

    /// The same as [`Fence::from_value`].
    fn try_from(value: u64) -> Result<Self> {
        Self::from_value(value)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.value()
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Fence {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        fixed::serialize(&self.0, to)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Fence {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        Self::from_value(fixed::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The fencing tokens (fences) of one grant: the first is the lease's own, the rest are for
/// hand-offs inside the holder's process, without a request to the store.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct FenceBlock {
    first: Fence,
    count: u32,
}

impl FenceBlock {
    /// `count` fences from `first` on; a count of zero counts as one.
    #[must_use]
    pub const fn new(first: Fence, count: u32) -> Self {
        Self { first, count: if count == 0 { 1 } else { count } }
    }

    /// The `count` fences that end with `last`; a count of zero counts as one.
    #[must_use]
    pub const fn up_to(last: Fence, count: u32) -> Self {
        let sequence = last.sequence().saturating_sub(count.saturating_sub(1) as u64);
        Self::new(Fence(sequence << Fence::EPOCH_BITS | last.epoch()), count)
    }

    /// The lease's own fence.
    #[must_use]
    pub const fn first(self) -> Fence {
        self.first
    }

    /// The last fence of the block.
    #[must_use]
    pub const fn last(self) -> Fence {
        self.first.saturating_add(self.count.saturating_sub(1))
    }

    /// How many fences there are; at least one.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Whether `fence` is one of the block, all of which have the same epoch.
    #[must_use]
    pub fn contains(self, fence: Fence) -> bool {
        fence.epoch() == self.first.epoch() && (self.first..=self.last()).contains(&fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_comes_first_and_the_epoch_decides_within_a_microsecond() {
        let old = Fence::new(Fence::EPOCH_MAX, 7).unwrap();
        let new = Fence::new(0, 8).unwrap();
        assert!(new > old, "a store whose epochs began again goes on above");
        assert!(Fence::new(1, 8).unwrap() > new);
        assert_eq!((old.epoch(), old.sequence()), (Fence::EPOCH_MAX, 7));
        let largest = Fence::new(Fence::EPOCH_MAX, Fence::SEQUENCE_MAX).unwrap();
        assert_eq!(largest.as_i64(), i64::MAX);
        assert_eq!(largest.saturating_add(1), largest);
        assert!(Fence::new(Fence::EPOCH_MAX + 1, 0).is_err());
        assert!(Fence::new(0, Fence::SEQUENCE_MAX + 1).is_err());
        assert!(Fence::from_value(u64::MAX).is_err());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn what_does_not_fit_63_bits_is_not_read_as_a_fence() {
        let read = |text: &str| serde_json::from_str::<Fence>(text);
        assert_eq!(read("9223372036854775807").unwrap().value(), i64::MAX.unsigned_abs());
        assert!(read("9223372036854775808").is_err());
        assert!(read("-1").is_err());
        assert_eq!(serde_json::to_string(&Fence::new(1, 1).unwrap()).unwrap(), "4097");
    }

    #[test]
    fn a_block_holds_what_it_says() {
        let block = FenceBlock::new(Fence::new(1, 10).unwrap(), 4);
        assert_eq!(block.last(), Fence::new(1, 13).unwrap());
        assert!(block.contains(Fence::new(1, 12).unwrap()));
        assert!(!block.contains(Fence::new(1, 14).unwrap()));
        assert!(!block.contains(Fence::new(2, 12).unwrap()), "issued in another epoch");
        assert_eq!(FenceBlock::up_to(block.last(), 4), block);
        assert_eq!(FenceBlock::new(block.first(), 0).last(), block.first());
    }
}
