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

/// Requests a lease, or renews a position in the queue.
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
    /// The owner's notes about it.
    pub metadata: Metadata,
    /// How many fences to reserve.
    pub fence_block: NonZeroU32,
    /// How many times the holder holds it, as an absolute number; 1 unless re-entrant.
    pub holds: NonZeroU32,
    /// Whether it goes before all that don't: in the queue, and past it if the holders leave room.
    /// A read-write lock prefers writers, or readers, by this.
    pub preferred: bool,
    /// Starts this cooldown in the same step as an immediate grant. A later grant from the queue
    /// starts none.
    pub cooldown: Cooldown,
    /// Whether to queue, and how.
    pub queue: Option<QueueRequest>,
    /// Takes the lock only if these are the last fences that were issued: the lock had no holder
    /// since the lease with them. Such a request does not queue. If another holder came, the answer
    /// is that the lock is busy.
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

    /// How it queues, if it does.
    #[must_use]
    pub const fn in_line(&self) -> Option<&QueueRequest> {
        match &self.after {
            Some(_) => None,
            None => self.queue.as_ref(),
        }
    }
}

/// How an acquisition queues.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[non_exhaustive]
pub struct QueueRequest {
    /// The waiter's client, whose notification channel gets the notification of a grant.
    pub client: ClientId,
    /// The client's own number for this waiter; a notification carries it instead of the token.
    pub ticket: u64,
    /// The number of this request, counted up from 0 with each one sent for this waiter.
    pub heartbeat: u32,
    /// The heartbeat timeout: how long the position is kept after this request. A lease handed to
    /// the waiter runs as long, counted from the same moment. At most the ttl.
    pub window: Ttl,
    /// The position of an earlier answer: a waiter that the store has forgotten gets it back.
    pub place: Option<Place>,
    /// How many more contenders of the waiter's process wait behind it for the same lease, for
    /// people. They have no position of their own.
    pub behind: u32,
    /// Refuses a newcomer, which brings no position, when this many are waiting already.
    pub max_waiters: Option<u32>,
}

impl QueueRequest {
    /// The first request of a waiter.
    #[must_use]
    pub const fn new(client: ClientId, ticket: u64, window: Ttl) -> Self {
        Self { client, ticket, heartbeat: 0, window, place: None, behind: 0, max_waiters: None }
    }

    /// How often a waiter should send a heartbeat to keep a position with this heartbeat timeout.
    #[must_use]
    pub fn heartbeat_every(window: Ttl) -> Duration {
        window.part(3)
    }
}

/// Requests that a lease runs on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The lock.
    pub key: Key,
    /// The lease's secret.
    pub token: Token,
    /// The fences of the lease, to distinguish an expired lease from a lost one.
    ///
    /// If these are above all fences that the store has issued, an exclusive lease gets them, and
    /// the store goes on counting from them. By this a quorum makes its nodes agree on the highest
    /// fence of any of them.
    pub fences: FenceBlock,
    /// How long it runs from now.
    pub ttl: Ttl,
    /// Whether it may end earlier than it would have.
    pub shorten: bool,
    /// The secret of the lease from now on, if it is transferred: `token` is spent then, and a
    /// request with it finds no lease. Sent again with the same successor, the request renews
    /// again. With another one it is answered like any other token's.
    pub successor: Option<Token>,
}

impl RenewRequest {
    /// A plain renewal, without shortening or transfer.
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
    /// The fences of the lease, to distinguish an expired lease from a lost one.
    pub fences: FenceBlock,
    /// Starts this cooldown with the release.
    pub cooldown: Cooldown,
    /// How many holds remain, as an absolute number; 0 ends the lease.
    pub remaining: u32,
    /// Ends a cooldown that the grant or an earlier release started; the request's own cooldown
    /// starts after that.
    pub reopen: bool,
    /// Whether the lease is held by the holder's own clock when the request is sent. This release
    /// then ends an exclusive lease, and passes it on, even if it expires on the request's way: no
    /// other holder had the lock before. A store need not look at its clock for that.
    pub in_time: bool,
}

impl ReleaseRequest {
    /// A full release without a cooldown, of a lease that may have expired.
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

/// Ends what a token has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaveRequest {
    /// The lock.
    pub key: Key,
    /// The acquisition's secret.
    pub token: Token,
    /// Ends a cooldown that the grant started; for undoing an acquisition with a
    /// [`cooldown`](AcquireRequest::cooldown).
    pub reopen: bool,
}

impl LeaveRequest {
    /// Ends what `token` has of `key`.
    #[must_use]
    pub const fn new(key: Key, token: Token) -> Self {
        Self { key, token, reopen: false }
    }
}

/// Requests another mode of the same kind for a lease.
///
/// An exclusive hold becomes shared (a downgrade) in any case. The exception is a request with the
/// fences of before an upgrade, as one that arrives twice has. A shared hold becomes exclusive (an
/// upgrade) if it is the only one. A hold of permits gets another number of them if that many are
/// there. The end of the lease stays what it is.
/// of the lease stays what it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConvertRequest {
    /// The lock.
    pub key: Key,
    /// The lease's secret.
    pub token: Token,
    /// The fences of the lease, to distinguish an expired lease from a lost one.
    pub fences: FenceBlock,
    /// The mode from now on.
    pub mode: Mode,
    /// How many fences to reserve, if the change issues new ones.
    pub fence_block: NonZeroU32,
}

impl ConvertRequest {
    /// Requests this mode for the lease, with one fence if the change issues any.
    #[must_use]
    pub const fn new(key: Key, token: Token, fences: FenceBlock, mode: Mode) -> Self {
        Self { key, token, fences, mode, fence_block: NonZeroU32::MIN }
    }
}

/// Sets another limit of a semaphore in use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SetLimitRequest {
    /// The semaphore.
    pub key: Key,
    /// The number of all permits from now on.
    pub limit: NonZeroU32,
}

impl SetLimitRequest {
    /// Sets the limit of `key`.
    #[must_use]
    pub const fn new(key: Key, limit: NonZeroU32) -> Self {
        Self { key, limit }
    }
}

/// Requests release from holders.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AskRequest {
    /// The lock.
    pub key: Key,
    /// The fence of the one lease that is meant; all leases without it.
    pub fence: Option<Fence>,
    /// The owner that requests it, for people.
    pub by: OwnerName,
}

impl AskRequest {
    /// Requests release from all holders of `key`, in the name of `by`.
    #[must_use]
    pub const fn new(key: Key, by: OwnerName) -> Self {
        Self { key, fence: None, by }
    }
}

/// Force-releases a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForceReleaseRequest {
    /// The lock.
    pub key: Key,
    /// The fence of the lease, as it was seen; another holder's lease is left alone.
    pub fence: Fence,
}

impl ForceReleaseRequest {
    /// Force-releases the lease with this fence.
    #[must_use]
    pub const fn new(key: Key, fence: Fence) -> Self {
        Self { key, fence }
    }
}

/// Requests what is stored for a lock, in words.
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

/// Requests a list of locks in use.
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
