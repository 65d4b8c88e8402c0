//! The types of a store's requests.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Mode, Place};
use crate::cooldown::Cooldown;
use crate::fence::{Fence, FenceBlock};
use crate::key::Key;
use crate::label::{Metadata, OwnerName};
use crate::token::{ClientId, Token};
use crate::ttl::Ttl;

/// Asks for a lease, or renews a place in line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The lock.
    pub key: Key,
    /// The acquisition's secret, the same in all its retries.
    pub token: Token,
    /// How to hold it.
    pub mode: Mode,
    /// For how long.
    pub ttl: Ttl,
    /// The owner, for people.
    pub owner: OwnerName,
    /// What the owner notes about it.
    pub metadata: Metadata,
    /// How many fences to reserve.
    pub fence_block: NonZeroU32,
    /// How many times the holder holds it, as an absolute number; 1 unless re-entrant.
    pub holds: NonZeroU32,
    /// Whether it goes before all that don't: into the line, and past it where the holders leave
    /// room. How a read-write lock prefers writers, or readers.
    pub preferred: bool,
    /// Closes the lock to everyone else for so long, in the same step as an immediate grant. A
    /// waiter that is granted the lease later closes nothing.
    pub cooldown: Cooldown,
    /// Whether to wait in line, and how.
    pub queue: Option<QueueRequest>,
    /// Takes the lock only where these are the last fences that were issued: nobody has held it since
    /// the lease that had them. Such a request waits in no line, and is told that the lock is busy
    /// where somebody has.
    pub after: Option<FenceBlock>,
}

impl AcquireRequest {
    /// An exclusive hold without waiting; change the fields for anything else.
    #[must_use]
    pub fn new(key: Key, token: Token, ttl: Ttl) -> Self {
        Self {
            key,
            token,
            mode: Mode::Exclusive,
            ttl,
            owner: OwnerName::default(),
            metadata: Metadata::default(),
            fence_block: NonZeroU32::MIN,
            holds: NonZeroU32::MIN,
            preferred: false,
            cooldown: Cooldown::NONE,
            queue: None,
            after: None,
        }
    }

    /// How it waits in line, if it does.
    #[must_use]
    pub const fn in_line(&self) -> Option<&QueueRequest> {
        match &self.after {
            Some(_) => None,
            None => self.queue.as_ref(),
        }
    }
}

/// How an acquisition waits in line.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct QueueRequest {
    /// The waiter's client, whose wake channel is told of a grant.
    pub client: ClientId,
    /// The client's own number for this waiter; a message carries it instead of the token.
    pub ticket: u64,
    /// The number of this request, counted up from 0 with each one sent for this waiter.
    pub heartbeat: u32,
    /// How long the place is kept after this request, and how long a lease handed to the waiter
    /// runs, counted from the same moment. At most the ttl.
    pub window: Ttl,
    /// The place told in an earlier answer: a waiter that the store has forgotten gets it back.
    pub place: Option<Place>,
    /// How many more contenders of the waiter's process wait behind it for the same lease, for
    /// people. They have no place of their own.
    pub behind: u32,
    /// Refuse a newcomer, which brings no place, when so many are waiting already.
    pub max_waiters: Option<u32>,
}

impl QueueRequest {
    /// The first request of a waiter.
    #[must_use]
    pub const fn new(client: ClientId, ticket: u64, window: Ttl) -> Self {
        Self { client, ticket, heartbeat: 0, window, place: None, behind: 0, max_waiters: None }
    }

    /// How often a waiter should send a heartbeat to keep a place with this window.
    #[must_use]
    pub fn heartbeat_every(window: Ttl) -> Duration {
        window.part(3)
    }
}

/// Asks for a lease to run on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The lock.
    pub key: Key,
    /// The lease's secret.
    pub token: Token,
    /// The fences of the lease, to tell a late renewal from a lost one.
    ///
    /// An exclusive lease takes these over when they are above all that the store has issued, and
    /// the store goes on counting from them: how a quorum makes its nodes agree on the highest
    /// that any of them granted.
    pub fences: FenceBlock,
    /// How long it is to run from now.
    pub ttl: Ttl,
    /// Whether it may end earlier than it would have.
    pub shorten: bool,
    /// The secret that the lease is to have from now on, if it is handed over: `token` is spent
    /// then, and whatever names it finds no lease. Sent again with the same successor, the request
    /// renews again; with another one it is answered as by a stranger.
    pub successor: Option<Token>,
}

impl RenewRequest {
    /// A renewal that does not shorten and hands nothing over.
    #[must_use]
    pub const fn new(key: Key, token: Token, fences: FenceBlock, ttl: Ttl) -> Self {
        Self { key, token, fences, ttl, shorten: false, successor: None }
    }

    /// The secret of the lease once it is renewed.
    #[must_use]
    pub fn renewed_token(&self) -> Token {
        self.successor.unwrap_or(self.token)
    }
}

/// Ends a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// The lock.
    pub key: Key,
    /// The lease's secret.
    pub token: Token,
    /// The fences of the lease, to tell a late release from a lost one.
    pub fences: FenceBlock,
    /// Keep the lock closed to everyone for so long after this release.
    pub cooldown: Cooldown,
    /// How many holds are to remain, as an absolute number; 0 ends the lease.
    pub remaining: u32,
    /// Opens the lock again that the grant or an earlier release closed for a while; with a
    /// cool-down of its own, the lock is closed for that.
    pub reopen: bool,
    /// The holder's own clock says that the lease has not run out when this is asked. An exclusive lease is
    /// then ended by this release, and handed on, also where it runs out on the request's way: nobody else has
    /// held the lock before. A store need not look at its clock for that.
    pub in_time: bool,
}

impl ReleaseRequest {
    /// A full release without cool-down, of a lease that may have run out.
    #[must_use]
    pub const fn new(key: Key, token: Token, fences: FenceBlock) -> Self {
        Self {
            key,
            token,
            fences,
            cooldown: Cooldown::NONE,
            remaining: 0,
            reopen: false,
            in_time: false,
        }
    }
}

/// Gives up what a token has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaveRequest {
    /// The lock.
    pub key: Key,
    /// The acquisition's secret.
    pub token: Token,
    /// Opens the lock again that the grant closed; for undoing an acquisition that asked for
    /// [`cooldown`](AcquireRequest::cooldown) and came to nothing.
    pub reopen: bool,
}

impl LeaveRequest {
    /// Gives up what `token` has of `key`.
    #[must_use]
    pub const fn new(key: Key, token: Token) -> Self {
        Self { key, token, reopen: false }
    }
}

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

/// Asks holders to let go.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AskRequest {
    /// The lock.
    pub key: Key,
    /// The fence of the one lease that is meant; all of them without it.
    pub fence: Option<Fence>,
    /// The owner that asks, for people.
    pub by: OwnerName,
}

impl AskRequest {
    /// Asks all holders of `key`, in the name of `by`.
    #[must_use]
    pub const fn new(key: Key, by: OwnerName) -> Self {
        Self { key, fence: None, by }
    }
}

/// Takes a lease away.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForceReleaseRequest {
    /// The lock.
    pub key: Key,
    /// The fence of the lease, as it was seen; another holder is left alone.
    pub fence: Fence,
}

impl ForceReleaseRequest {
    /// Takes the lease with this fence away.
    #[must_use]
    pub const fn new(key: Key, fence: Fence) -> Self {
        Self { key, fence }
    }
}

/// Asks for what is stored for a lock, in words.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RawRequest {
    /// The lock.
    pub key: Key,
}

impl RawRequest {
    /// What is stored for `key`.
    #[must_use]
    pub const fn new(key: Key) -> Self {
        Self { key }
    }
}

/// Asks for a list of locks in use.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ListRequest {
    /// How their names start; empty for all.
    pub prefix: String,
}

impl ListRequest {
    /// The locks whose names start with `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }
}
