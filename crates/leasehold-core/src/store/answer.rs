//! The types of a store's answers.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{AcquireRequest, HolderInfo, Kind, LockInfo, Place};
use crate::error::{Error, ErrorKind, Result};
use crate::fence::{Fence, FenceBlock};
use crate::key::Key;

/// The answer to [`Store::acquire`](crate::Store::acquire).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Acquire {
    /// The lease is granted.
    Granted(Granted),
    /// This token holds the lease already: by an earlier request whose answer was lost, or
    /// because it was handed the lease while waiting. The lease runs for the ttl from now.
    Already(Already),
    /// In line.
    Waiting(Waiting),
    /// Not free, and not asked to wait.
    Busy(Busy),
    /// The lock can't be used like this.
    Refused(Refusal),
}

impl Acquire {
    /// The fences of the lease, if one is held now.
    #[must_use]
    pub const fn fences(&self) -> Option<FenceBlock> {
        match self {
            Self::Granted(granted) => Some(granted.fences),
            Self::Already(already) => Some(already.fences),
            Self::Waiting(_) | Self::Busy(_) | Self::Refused(_) => None,
        }
    }
}

/// A new lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Granted {
    /// Its fences.
    pub fences: FenceBlock,
}

impl Granted {
    /// A grant of these fences.
    #[must_use]
    pub const fn new(fences: FenceBlock) -> Self {
        Self { fences }
    }
}

/// A lease that the token has already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Already {
    /// Its fences, the same as when it was granted.
    pub fences: FenceBlock,
    /// How many times it is held now.
    pub holds: u32,
}

impl Already {
    /// A hold of these fences.
    #[must_use]
    pub const fn new(fences: FenceBlock, holds: u32) -> Self {
        Self { fences, holds }
    }
}

/// A place in line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Waiting {
    /// How many are before, at most: a store may count places that were given up. 0 is the head,
    /// for sure, which should try again after `retry_after`.
    pub position: u32,
    /// To be sent with every heartbeat.
    pub place: Place,
    /// When the lock could come free at the earliest unless it is renewed.
    pub retry_after: Duration,
    /// The holder, or one of them.
    pub holder: Option<Box<HolderInfo>>,
}

impl Waiting {
    /// A place in line.
    #[must_use]
    pub fn new(
        position: u32,
        place: Place,
        retry_after: Duration,
        holder: Option<HolderInfo>,
    ) -> Self {
        Self { position, place, retry_after, holder: holder.map(Box::new) }
    }
}

/// What stands in the way.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Busy {
    /// When the lock could come free at the earliest unless it is renewed; zero if it may be free
    /// at any moment.
    pub retry_after: Duration,
    /// The holder, or one of them; `None` while it is closed after a release, or contended.
    pub holder: Option<Box<HolderInfo>>,
}

impl Busy {
    /// Not free before `retry_after`.
    #[must_use]
    pub fn new(retry_after: Duration, holder: Option<HolderInfo>) -> Self {
        Self { retry_after, holder: holder.map(Box::new) }
    }

    /// Several contend for it, and none of them has got it yet.
    ///
    /// A store that [undoes](crate::Capability::undoes) says this after a split: each contender got a part,
    /// and what this one got is being given up. Its token is at its end. Whoever asks again does so with a new
    /// one, after a pause of random length.
    #[must_use]
    pub const fn contended() -> Self {
        Self { retry_after: Duration::ZERO, holder: None }
    }

    /// Whether nobody holds it, and nothing keeps it closed: several contend for it.
    #[must_use]
    pub const fn is_contended(&self) -> bool {
        self.holder.is_none() && self.retry_after.is_zero()
    }
}

/// Why a lock can't be used as asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// The name is in use as something else, or with another limit.
    WrongKind {
        /// What it is in use as.
        stored: Kind,
    },
    /// More permits were asked for than there are.
    TooManyPermits {
        /// All there are.
        limit: NonZeroU32,
    },
    /// The line is full.
    QueueFull {
        /// How many are waiting.
        waiters: u32,
    },
}

/// The answer to [`Store::acquire_all`](crate::Store::acquire_all).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AcquireAll {
    /// All leases are held; their fences, in the order of the requests.
    Granted(Vec<FenceBlock>),
    /// One of them is not to be had, and none was taken.
    Blocked {
        /// Which, by its place among the requests.
        index: usize,
        /// What stands in its way: [`Acquire::Busy`] or [`Acquire::Refused`].
        answer: Acquire,
    },
}

impl AcquireAll {
    /// Passes when the requests can be carried out in one step: they name different locks, and
    /// none asks for a place in line.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] when they can't.
    pub fn check(requests: &[AcquireRequest]) -> Result<()> {
        let refuse = |why, key| Err(Error::new(ErrorKind::Config, why).on_key(key));
        let mut keys: Vec<&Key> = requests.iter().map(|request| &request.key).collect();
        keys.sort_unstable();
        if let Some([key, ..]) = keys.windows(2).find(|pair| pair.first() == pair.last()) {
            return refuse("the same lock is named twice; name each once", key);
        }
        match requests.iter().find(|request| request.queue.is_some()) {
            Some(request) => refuse("several locks at once can't wait in line", &request.key),
            None => Ok(()),
        }
    }
}

/// The answer to one renewal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Renew {
    /// It runs on.
    Renewed,
    /// It runs on, and somebody asks its holder to let go.
    Asked,
    /// It had run out, and nobody has held the lock since. It stays ended.
    Late,
    /// It is not this token's any more.
    NotHeld,
}

/// The answer to [`Store::release`](crate::Store::release).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Release {
    /// The lease ended by this token's release, or by an earlier one of it.
    Released,
    /// Some of its holds remain.
    StillHeld {
        /// How many.
        holds: u32,
    },
    /// It had run out before, and nobody has held the lock since. An exclusive lease that its holder releases
    /// [in time](super::ReleaseRequest::in_time) is released instead, unless the store has seen it run out
    /// before.
    Late,
    /// It was not this token's any more.
    NotHeld,
}

/// The answer to [`Store::leave`](crate::Store::leave).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Leave {
    /// It was waiting, and has left the line.
    Left,
    /// It held the lease, which is passed on or free now.
    Released,
    /// It had nothing.
    NotHeld,
}

/// The answer to [`Store::convert`](crate::Store::convert).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Convert {
    /// The lease is held in the mode asked for, now or since an earlier request whose answer was
    /// lost.
    Converted(Converted),
    /// Others stand in the way; the lease is held as before. An upgrade is never kept waiting:
    /// two readers that waited for each other to leave would wait for ever.
    Busy {
        /// How many others share the lock, or the permits that others hold.
        others: u32,
    },
    /// The lock can't be held like this; the lease is held as before.
    Refused(Refusal),
    /// The lease had run out, and nobody has held the lock since.
    Late,
    /// It is not this token's any more.
    NotHeld,
}

/// A lease in its new mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Converted {
    /// Its fences: new ones after an upgrade, above those of every reader before; else the same
    /// as they were.
    pub fences: FenceBlock,
}

impl Converted {
    /// A hold with these fences.
    #[must_use]
    pub const fn new(fences: FenceBlock) -> Self {
        Self { fences }
    }
}

/// The answer to [`Store::set_limit`](crate::Store::set_limit).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum SetLimit {
    /// The limit is set. Permits already held stay held, also above a lower limit; waiters that
    /// want more than a lower limit have lost their place.
    Set {
        /// What it was.
        before: NonZeroU32,
    },
    /// The name is not in use, so there is no limit to change: its next user sets it.
    NotInUse,
    /// The name is in use as something else.
    Refused(Refusal),
}

/// The answer to [`Store::ask`](crate::Store::ask).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Ask {
    /// Noted for so many holders, which learn of it with the answer to their next renewal.
    Asked {
        /// How many.
        holders: u32,
    },
    /// Nobody holds the lock, or nobody under that fence.
    NotHeld,
}

/// The answer to [`Store::force_release`](crate::Store::force_release).
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ForceRelease {
    /// The lease is gone; its holder learns of it at its next renewal.
    Released,
    /// The lock is held, but under other fences.
    OtherFence {
        /// The first fences of its holders.
        fences: Vec<Fence>,
    },
    /// Nobody holds it.
    NotHeld,
}

impl fmt::Display for ForceRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("released"),
            Self::NotHeld => f.write_str("not held by anybody"),
            Self::OtherFence { fences } => {
                f.write_str("held by another lease, with fence ")?;
                for (at, fence) in fences.iter().enumerate() {
                    write!(f, "{}{fence}", if at == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
        }
    }
}

/// The answer to [`Store::list`](crate::Store::list).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Listing {
    /// The locks in use that could be read, ordered by name.
    pub locks: Vec<LockInfo>,
    /// Why each of the others could not be, ordered by name: any of them may be in use. An error
    /// names its lock in [`Error::key`], unless the name can't be read either.
    pub unreadable: Vec<Error>,
}

impl Listing {
    /// The locks that could be read, and why others could not, each in any order.
    #[must_use]
    pub fn new(mut locks: Vec<LockInfo>, mut unreadable: Vec<Error>) -> Self {
        locks.sort_by(|a, b| a.key.cmp(&b.key));
        unreadable.sort_by(|a, b| a.key().cmp(&b.key()));
        Self { locks, unreadable }
    }
}
