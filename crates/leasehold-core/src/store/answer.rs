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
    /// This token holds the lease already: by an earlier request whose answer was lost, or because
    /// the store handed it the lease while it waited. The lease runs for the ttl from now.
    Already(Already),
    /// In the queue.
    Waiting(Waiting),
    /// Busy, for a request that does not queue.
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

/// A position in the queue.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Waiting {
    /// How many are before it, at most: a store may count abandoned positions. 0 is certainly the
    /// head, which should try again after `retry_after`.
    pub position: u32,
    /// To be sent with every heartbeat.
    pub place: Place,
    /// When the lock could come free at the earliest unless it is renewed.
    pub retry_after: Duration,
    /// The holder, or one of them.
    pub holder: Option<Box<HolderInfo>>,
}

impl Waiting {
    /// A position in the queue.
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

/// Why the lock can't be acquired now.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Busy {
    /// When the lock could come free at the earliest unless it is renewed; zero if it may be free
    /// at any moment.
    pub retry_after: Duration,
    /// The holder, or one of them; `None` while the lock is cooling down, or contended.
    pub holder: Option<Box<HolderInfo>>,
}

impl Busy {
    /// Not free before `retry_after`.
    #[must_use]
    pub fn new(retry_after: Duration, holder: Option<HolderInfo>) -> Self {
        Self { retry_after, holder: holder.map(Box::new) }
    }

    /// Several contend for it, and it has no holder yet.
    ///
    /// A store that [undoes](crate::Capability::undoes) says this after a split: each contender got
    /// a part, and this one's part is being released. Its token has ended. The next try has a new
    /// one, after a pause of random length.
    #[must_use]
    pub const fn contended() -> Self {
        Self { retry_after: Duration::ZERO, holder: None }
    }

    /// Whether several contend for a lock that has no holder.
    #[must_use]
    pub const fn is_contended(&self) -> bool {
        self.holder.is_none() && self.retry_after.is_zero()
    }
}

/// Why a lock can't be used like this.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// The name is in use as another kind, or with another limit.
    WrongKind {
        /// The kind in use.
        stored: Kind,
    },
    /// The request wants more permits than there are.
    TooManyPermits {
        /// All there are.
        limit: NonZeroU32,
    },
    /// The queue is full.
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
    /// One of them is busy, and none was taken.
    Blocked {
        /// Which one, by its index among the requests.
        index: usize,
        /// Why: [`Acquire::Busy`] or [`Acquire::Refused`].
        answer: Acquire,
    },
}

impl AcquireAll {
    /// Succeeds if the requests can be carried out in one step: they name different locks and don't
    /// queue.
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
            Some(request) => refuse("several locks at once can't wait in the queue", &request.key),
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
    /// It runs on, and there is a release request for its holder.
    Asked,
    /// It had expired, and no other holder has had the lock since. It stays ended.
    Late,
    /// This token has it no more.
    NotHeld,
}

/// The answer to [`Store::release`](crate::Store::release).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Release {
    /// The lease ended by this release, or by an earlier one of the same token.
    Released,
    /// Some of its holds remain.
    StillHeld {
        /// How many.
        holds: u32,
    },
    /// It had expired before, and no other holder has had the lock since. An exclusive lease that
    /// its holder releases [in time](super::ReleaseRequest::in_time) is released instead, unless
    /// the store has seen it expire before.
    Late,
    /// This token had it no more.
    NotHeld,
}

/// The answer to [`Store::leave`](crate::Store::leave).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Leave {
    /// It was waiting, and has left the queue.
    Left,
    /// It held the lease, which is passed on or free now.
    Released,
    /// It had no lease or position.
    NotHeld,
}

/// The answer to [`Store::convert`](crate::Store::convert).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Convert {
    /// The lease is held in the requested mode, now or since an earlier request whose answer was
    /// lost.
    Converted(Converted),
    /// Others hold the lock too; the lease is held as before. An upgrade never waits: two readers
    /// would wait for each other for ever.
    Busy {
        /// How many others share the lock, or the permits that others hold.
        others: u32,
    },
    /// The lock can't be held like this; the lease is held as before.
    Refused(Refusal),
    /// The lease had expired, and no other holder has had the lock since.
    Late,
    /// This token has it no more.
    NotHeld,
}

/// A lease in its new mode.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Converted {
    /// Its fences: new ones after an upgrade, above all earlier readers' fences; else unchanged.
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
    /// want more than a lower limit have lost their position.
    Set {
        /// The limit before.
        before: NonZeroU32,
    },
    /// The name is not in use, so its next user sets the limit.
    NotInUse,
    /// The name is in use as another kind.
    Refused(Refusal),
}

/// The answer to [`Store::ask`](crate::Store::ask).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Ask {
    /// The release request is recorded for this many holders, which learn of it with the answer to
    /// their next renewal.
    Asked {
        /// How many.
        holders: u32,
    },
    /// The lock has no such holder.
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
    /// The lock is not held.
    NotHeld,
}

impl fmt::Display for ForceRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("released"),
            Self::NotHeld => f.write_str("not held"),
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
    /// Why each of the others could not be read, ordered by name: any of them may be in use. An
    /// error names its lock in [`Error::key`] if its name can be read.
    pub unreadable: Vec<Error>,
}

impl Listing {
    /// The locks that could be read, and the errors of the others, each in any order.
    #[must_use]
    pub fn new(mut locks: Vec<LockInfo>, mut unreadable: Vec<Error>) -> Self {
        locks.sort_by(|a, b| a.key.cmp(&b.key));
        unreadable.sort_by(|a, b| a.key().cmp(&b.key()));
        Self { locks, unreadable }
    }
}
