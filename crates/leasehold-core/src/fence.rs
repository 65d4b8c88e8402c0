//! Fencing tokens: the numbers that let a protected resource refuse a late holder.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// A fencing token: larger for every later lease of the same name.
///
/// Packed into 63 bits so that it fits a positive SQL `bigint`: the high 12 bits are the
/// fail-over epoch of the store (0 where there is none), the low 51 bits a sequence number that
/// is at least the microseconds since 2020-01-01 UTC, so a counter that was lost recovers by
/// itself. 51 bits of microseconds last until 2091.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Fence(u64);

impl Fence {
    /// 2020-01-01T00:00:00Z in microseconds since the Unix epoch: where sequence numbers count
    /// from.
    pub const ORIGIN_UNIX_US: u64 = 1_577_836_800_000_000;
    /// The largest epoch that fits.
    pub const EPOCH_MAX: u64 = (1 << 12) - 1;
    /// The largest sequence number that fits.
    pub const SEQUENCE_MAX: u64 = (1 << Self::SEQUENCE_BITS) - 1;
    /// Below every fence that is ever issued.
    pub const ZERO: Self = Self(0);
    const SEQUENCE_BITS: u32 = 51;

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
        Ok(Self(epoch << Self::SEQUENCE_BITS | sequence))
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
                format!("{value} is no fence; it does not fit 63 bits"),
            ));
        }
        Ok(Self(value))
    }

    /// The packed value, to be stored and compared by the protected resource.
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
        self.0 >> Self::SEQUENCE_BITS
    }

    /// The number within the epoch.
    #[must_use]
    pub const fn sequence(self) -> u64 {
        self.0 & Self::SEQUENCE_MAX
    }

    /// The fence `by` later in the same epoch; stays at the last one that fits.
    #[must_use]
    pub const fn saturating_add(self, by: u32) -> Self {
        let sequence = self.sequence().saturating_add(by as u64);
        let sequence = if sequence > Self::SEQUENCE_MAX { Self::SEQUENCE_MAX } else { sequence };
        Self(self.epoch() << Self::SEQUENCE_BITS | sequence)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The fences that one grant brought: the first is the lease's own, the rest are there to be
/// handed on inside the holder's process without asking the store.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct FenceBlock {
    first: Fence,
    count: u32,
}

impl FenceBlock {
    /// `count` fences from `first` on; a count of zero is taken as one.
    #[must_use]
    pub const fn new(first: Fence, count: u32) -> Self {
        Self { first, count: if count == 0 { 1 } else { count } }
    }

    /// The `count` fences that end with `last`; a count of zero is taken as one.
    #[must_use]
    pub const fn up_to(last: Fence, count: u32) -> Self {
        let sequence = last.sequence().saturating_sub(count.saturating_sub(1) as u64);
        Self::new(Fence(last.epoch() << Fence::SEQUENCE_BITS | sequence), count)
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

    /// Whether `fence` is one of the block.
    #[must_use]
    pub fn contains(self, fence: Fence) -> bool {
        (self.first..=self.last()).contains(&fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_epoch_is_above_every_sequence_of_the_one_before() {
        let old = Fence::new(3, Fence::SEQUENCE_MAX).unwrap();
        let new = Fence::new(4, 0).unwrap();
        assert!(new > old);
        assert_eq!((new.epoch(), new.sequence()), (4, 0));
        assert!(Fence::new(Fence::EPOCH_MAX, Fence::SEQUENCE_MAX).unwrap().as_i64() > 0);
        assert!(Fence::new(Fence::EPOCH_MAX + 1, 0).is_err());
        assert!(Fence::new(0, Fence::SEQUENCE_MAX + 1).is_err());
        assert!(Fence::from_value(u64::MAX).is_err());
    }

    #[test]
    fn a_block_holds_what_it_says() {
        let block = FenceBlock::new(Fence::new(1, 10).unwrap(), 4);
        assert_eq!(block.last(), Fence::new(1, 13).unwrap());
        assert!(block.contains(Fence::new(1, 12).unwrap()));
        assert!(!block.contains(Fence::new(1, 14).unwrap()));
        assert_eq!(FenceBlock::new(block.first(), 0).last(), block.first());
    }
}
