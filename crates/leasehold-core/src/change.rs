//! What a store is asked beyond taking and giving back: to change how a lease is held, to take
//! several locks in one step, to resize a semaphore, and to ask a holder to let go.

use std::num::NonZeroU32;

use crate::error::{Error, ErrorKind, Result};
use crate::fence::{Fence, FenceBlock};
use crate::key::Key;
use crate::label::OwnerName;
use crate::store::{Acquire, AcquireRequest, Kind, Mode, Refusal};
use crate::token::Token;

/// Asks to hold a lease in another mode of the same kind.
///
/// An exclusive hold becomes shared (a downgrade) in any case, unless the request names the fences
/// of before an upgrade, as one does that arrives twice; a shared one exclusive (an upgrade)
/// if nobody shares it, and a hold of permits another number of them if there are as many. The end
/// of the lease stays what it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertRequest {
    /// The lock.
    pub key: Key,
    /// The lease's secret.
    pub token: Token,
    /// The fences of the lease, to tell a late request from a lost lease.
    pub fences: FenceBlock,
    /// How to hold it from now on.
    pub mode: Mode,
    /// How many fences to reserve, where the change issues new ones.
    pub fence_block: NonZeroU32,
}

impl ConvertRequest {
    /// Asks to hold the lease in this mode, with one fence if the change issues any.
    #[must_use]
    pub const fn new(key: Key, token: Token, fences: FenceBlock, mode: Mode) -> Self {
        Self { key, token, fences, mode, fence_block: NonZeroU32::MIN }
    }
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

/// Gives a semaphore in use another limit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SetLimitRequest {
    /// The semaphore.
    pub key: Key,
    /// All permits that there are to be.
    pub limit: NonZeroU32,
}

impl SetLimitRequest {
    /// Sets the limit of `key`.
    #[must_use]
    pub const fn new(key: Key, limit: NonZeroU32) -> Self {
        Self { key, limit }
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

/// Asks holders to let go.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AskRequest {
    /// The lock.
    pub key: Key,
    /// The fence of the one lease that is meant; all of them without it.
    pub fence: Option<Fence>,
    /// Who asks, for people.
    pub by: OwnerName,
}

impl AskRequest {
    /// Asks all holders of `key`, in the name of `by`.
    #[must_use]
    pub const fn new(key: Key, by: OwnerName) -> Self {
        Self { key, fence: None, by }
    }
}

/// The answer to [`Store::ask`](crate::Store::ask).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Ask {
    /// Noted for so many holders, who learn of it with the answer to their next renewal.
    Asked {
        /// How many.
        holders: u32,
    },
    /// Nobody holds the lock, or nobody under that fence.
    NotHeld,
}

/// What a semaphore's limit is, if the kind is one.
pub(crate) const fn limit_of(kind: Kind) -> Option<NonZeroU32> {
    match kind {
        Kind::Semaphore { limit } => Some(limit),
        Kind::Lock => None,
    }
}
