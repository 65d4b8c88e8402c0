//! The kinds that a lock can be in use as, and the modes of a hold.

use std::fmt;
use std::num::NonZeroU32;

/// The kind of a lock in use. It is stored with the name, and another kind is refused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub enum Kind {
    /// One exclusive holder or many shared ones: a mutex is a read-write lock without readers.
    Lock,
    /// Holders of permits, up to a limit.
    Semaphore {
        /// All permits there are.
        limit: NonZeroU32,
    },
}

impl Kind {
    /// The limit, if this is a semaphore.
    pub(crate) const fn limit(self) -> Option<NonZeroU32> {
        match self {
            Self::Semaphore { limit } => Some(limit),
            Self::Lock => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("lock"),
            Self::Semaphore { limit } => write!(f, "semaphore with limit {limit}"),
        }
    }
}

/// Which exclusive holders may hold a lock together: those with the same bond, a number of 51 bits
/// that only they know. Secret, and in no output.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Bond(u64);

impl Bond {
    /// The smallest bond: more than any number of holders or permits.
    pub const LEAST: u64 = 1 << 51;

    /// The bond of this number, of which the low 51 bits count.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number & (u64::MAX >> 13) | Self::LEAST)
    }

    /// Its number, for a store to keep: from [`LEAST`](Self::LEAST) to below twice that.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Bond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bond(***)")
    }
}

/// How a holder holds.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other shared holders.
    Shared,
    /// With some of a semaphore's permits.
    Permits {
        /// How many.
        count: NonZeroU32,
        /// Out of how many; all users of the name must agree on it.
        limit: NonZeroU32,
    },
    /// Alone, or with holders of the same bond: one owner in several processes. While one of them
    /// holds the lock, the others pass the queue, which may be waiting for them.
    Joint(Bond),
}

impl Mode {
    /// The kind of lock that this mode belongs to.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Exclusive | Self::Shared | Self::Joint(_) => Kind::Lock,
            Self::Permits { limit, .. } => Kind::Semaphore { limit },
        }
    }

    /// The mode to show: holders with a bond appear as exclusive.
    #[must_use]
    pub const fn shown(self) -> Self {
        match self {
            Self::Joint(_) => Self::Exclusive,
            mode => mode,
        }
    }
}
