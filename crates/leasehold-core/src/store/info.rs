//! Describes a lock in use for people: holders, waiters, cooldown.

use std::time::Duration;

use super::{Kind, Mode};
use crate::fence::Fence;
use crate::key::Key;
use crate::label::{Metadata, OwnerName};

/// A lock in use, for people.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name.
    pub key: Key,
    /// Its kind.
    pub kind: Kind,
    /// Its holders, in the order of their grants.
    pub holders: Vec<HolderInfo>,
    /// Its waiters, in the order of the queue.
    pub waiters: Vec<WaiterInfo>,
    /// How long its cooldown still lasts.
    pub closed_for: Option<Duration>,
    /// The last fence that was issued or reserved for the name: the end of the block of its last
    /// grant, which need not have had a holder.
    pub last_fence: Fence,
    /// By how much the store's clock was set back since the lock came into use, if its operations
    /// noticed. The lock goes on by its own time: no lease has more left than its length. Zero for
    /// a clock that is never set.
    pub clock_set_back: Duration,
}

impl LockInfo {
    /// A lock without holders and waiters.
    #[must_use]
    pub const fn new(key: Key, kind: Kind, last_fence: Fence) -> Self {
        Self {
            key,
            kind,
            holders: Vec::new(),
            waiters: Vec::new(),
            closed_for: None,
            last_fence,
            clock_set_back: Duration::ZERO,
        }
    }

    /// How many contenders wait, those behind a waiter in its process included.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiters.iter().map(|waiter| u64::from(waiter.behind).saturating_add(1)).sum()
    }

    /// How many permits are held.
    #[must_use]
    pub fn permits_held(&self) -> u32 {
        self.holders.iter().fold(0, |sum, holder| match holder.mode {
            Mode::Permits { count, .. } => sum.saturating_add(count.get()),
            _ => sum,
        })
    }

    /// How many permits are free: none if more are held than a lowered limit allows.
    #[must_use]
    pub fn permits_free(&self) -> u32 {
        match self.kind {
            Kind::Semaphore { limit } => limit.get().saturating_sub(self.permits_held()),
            Kind::Lock => 0,
        }
    }
}

/// A holder, for people.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// Its owner.
    pub owner: OwnerName,
    /// Its owner's notes.
    pub metadata: Metadata,
    /// The mode of the hold.
    pub mode: Mode,
    /// The lease's fencing token (fence).
    pub fence: Fence,
    /// How many times it holds the lock.
    pub holds: u32,
    /// Since when.
    pub held_for: Duration,
    /// How long the lease runs on unless it is renewed. Never used for decisions.
    pub remaining: Duration,
    /// The owner of the last release request.
    pub asked_by: Option<OwnerName>,
    /// The [mark](crate::Token::mark) of its token, which distinguishes it from others of the same
    /// name; 0 if it is not known.
    pub mark: u32,
}

impl HolderInfo {
    /// Whether the lease belongs to another library, so that its fence and its start are unknown.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.fence == Fence::ZERO
    }

    /// A holder without further facts; set the other fields after.
    #[must_use]
    pub fn new(mode: Mode, fence: Fence, held_for: Duration, remaining: Duration) -> Self {
        Self {
            owner: OwnerName::default(),
            metadata: Metadata::default(),
            mode,
            fence,
            holds: 1,
            held_for,
            remaining,
            asked_by: None,
            mark: 0,
        }
    }
}

/// A waiter, for people.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WaiterInfo {
    /// Its owner.
    pub owner: OwnerName,
    /// Its owner's notes.
    pub metadata: Metadata,
    /// The mode that it waits for.
    pub mode: Mode,
    /// Since when.
    pub waited: Duration,
    /// How many more contenders of its process wait behind it, as of its last heartbeat.
    pub behind: u32,
    /// The [mark](crate::Token::mark) of its token, which distinguishes it from others of the same
    /// name; 0 if it is not known.
    pub mark: u32,
}

impl WaiterInfo {
    /// A waiter without further facts; set the other fields after.
    #[must_use]
    pub fn new(mode: Mode, waited: Duration) -> Self {
        let (owner, metadata) = (OwnerName::default(), Metadata::default());
        Self { owner, metadata, mode, waited, behind: 0, mark: 0 }
    }
}
