//! What a lock is in use as, and how it is held.

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
}

impl Mode {
    /// The kind of lock that this mode belongs to.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Exclusive | Self::Shared => Kind::Lock,
            Self::Permits { limit, .. } => Kind::Semaphore { limit },
        }
    }
}
