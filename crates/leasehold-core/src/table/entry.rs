//! What a store keeps of one lock: its holders, its queue, and what follows from them.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use super::time::LockTime;
use super::{Now, StoreTime};
use crate::cooldown::Cooldown;
use crate::fence::{Fence, FenceBlock};
use crate::key::Key;
use crate::label::{Metadata, OwnerName};
use crate::store::{Busy, HolderInfo, Kind, LockInfo, Mode, Place, QueueRequest, WaiterInfo, Wake};
use crate::token::{ClientId, Token};
use crate::ttl::Ttl;

/// All that a store keeps about one name.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct LockEntry {
    /// Ordered by fence, which is the order of the grants.
    pub(super) holders: Vec<Holder>,
    /// Ordered by position, which is the order of arrival.
    pub(super) waiters: VecDeque<Waiter>,
    /// The kind in use; without meaning once the entry is idle.
    pub(super) kind: Option<Kind>,
    pub(super) closed_until: Option<StoreTime>,
    pub(super) last_fence: Option<Fence>,
    /// The next positions to give, to preferred waiters and to the others. `None` until one was
    /// given or brought since the queue was last empty. Positions are given without gaps.
    pub(super) next_places: [Option<Place>; 2],
    /// The token of the lease with the last fences, if it was released: a repeated release, whose
    /// answer was lost, must not count as too late.
    pub(super) released: Option<Token>,
    /// The tokens of the last other leases that were released, the latest first.
    pub(super) ended: VecDeque<Token>,
    pub(super) time: LockTime,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(super) struct Holder {
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) fences: FenceBlock,
    pub(super) holds: u32,
    pub(super) granted_at: StoreTime,
    pub(super) expires_at: StoreTime,
    pub(super) owner: OwnerName,
    pub(super) metadata: Metadata,
    pub(super) asked_by: Option<OwnerName>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(super) struct Waiter {
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) place: Place,
    pub(super) client: ClientId,
    pub(super) ticket: u64,
    pub(super) heartbeat: u32,
    pub(super) window: Ttl,
    pub(super) behind: u32,
    pub(super) fence_block: NonZeroU32,
    pub(super) arrived_at: StoreTime,
    pub(super) seen_at: StoreTime,
    pub(super) owner: OwnerName,
    pub(super) metadata: Metadata,
}

impl Waiter {
    /// What would be left of a lease handed to this waiter now. Its last heartbeat may be later
    /// than the present, if the store's clock was set back since.
    pub(super) fn window_left(&self, at: StoreTime) -> Duration {
        self.seen_at.min(at).saturating_add(self.window.duration()).saturating_since(at)
    }

    /// Whether the waiter's last heartbeat is recent enough to hand it a lease: half of its
    /// heartbeat timeout must be left. A live waiter, with a heartbeat every third of it, has more.
    pub(super) fn can_be_served(&self, at: StoreTime) -> bool {
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Fault::DeadIsServed) {
            return true;
        }
        self.window_left(at) >= self.window.part(2)
    }

    /// When the next heartbeat comes at the latest, by the waiter's own clock.
    pub(super) fn next_heartbeat(&self, at: StoreTime) -> StoreTime {
        self.seen_at.min(at).saturating_add(QueueRequest::heartbeat_every(self.window))
    }
}

/// A notification that a store has to deliver to a client's notification channel after a step.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Notice {
    /// The client, by its channel.
    pub client: ClientId,
    /// The notification.
    pub wake: Wake,
}

impl LockEntry {
    /// How many releases of shared holders are remembered.
    pub const ENDED_KEPT: usize = 8;

    /// Ends a lease by its holder's will, and remembers it.
    pub(super) fn end(&mut self, at: usize) {
        let holder = self.holders.remove(at);
        if self.last_fence == Some(holder.fences.last()) {
            self.released = Some(holder.token);
        } else {
            self.ended.push_front(holder.token);
            self.ended.truncate(Self::ENDED_KEPT);
        }
    }

    /// Whether these are the last fences issued, of a lease that expired before a release.
    pub(super) fn is_late(&self, fences: FenceBlock) -> bool {
        // A transferred lease is alive under another token, with the same fences.
        self.holders.is_empty() && self.released.is_none() && self.last_fence == Some(fences.last())
    }

    /// The tokens of all holders and waiters. Secret.
    pub fn tokens(&self) -> impl Iterator<Item = &Token> {
        let holders = self.holders.iter().map(|holder| &holder.token);
        holders.chain(self.waiters.iter().map(|waiter| &waiter.token))
    }

    /// Describes the lock as it is when the store's clock shows `at`; `None` when it is not in use.
    /// Changes nothing.
    #[must_use]
    pub fn inspect(&self, key: &Key, at: StoreTime) -> Option<LockInfo> {
        let mut time = self.time;
        let at = time.go_on(at);
        let mut info = LockInfo::new(key.clone(), self.kind?, self.last_fence.unwrap_or(FIRST));
        info.holders = self
            .holders
            .iter()
            .filter(|holder| holder.expires_at > at)
            .map(|holder| {
                let mut info = holder.info(at);
                info.mark = holder.token.mark();
                info
            })
            .collect();
        info.waiters = self
            .waiters
            .iter()
            .filter(|waiter| !waiter.window_left(at).is_zero())
            .map(|waiter| waiter.info(at))
            .collect();
        info.closed_for = self.closed_for(at);
        info.clock_set_back = time.ahead();
        let idle = info.holders.is_empty() && info.waiters.is_empty() && info.closed_for.is_none();
        (!idle).then_some(info)
    }

    /// Until when, by the store's clock, the entry says more than its last fence: the latest end of
    /// any lease, position or cooldown. `None` when the lock is not in use.
    #[must_use]
    pub fn in_use_until(&self) -> Option<StoreTime> {
        let holders = self.holders.iter().map(|holder| holder.expires_at);
        let waiters = self.waiters.iter().map(|w| w.seen_at.saturating_add(w.window.duration()));
        let until = holders.chain(waiters).chain(self.closed_until).max();
        until.map(|until| self.time.on_clock(until))
    }

    /// Whether a store may forget the entry: the lock is not in use, and the time has passed its
    /// last fence. Until then a new entry would issue lower fences than this one did, since blocks
    /// can be reserved faster than time goes.
    #[must_use]
    pub fn may_be_forgotten(&self, now: Now) -> bool {
        self.in_use_until().is_none_or(|until| until <= now.at)
            && self.last_fence.is_none_or(|last| last < now.fence_floor)
    }

    /// The last fence issued.
    #[must_use]
    pub const fn last_fence(&self) -> Option<Fence> {
        self.last_fence
    }

    /// Whether the lock has holders or waiters, or is cooling down.
    pub(super) fn is_in_use(&self) -> bool {
        !self.holders.is_empty() || !self.waiters.is_empty() || self.closed_until.is_some()
    }

    /// The kind of the lock in use.
    pub(super) fn kind_in_use(&self) -> Option<Kind> {
        self.kind.filter(|_| self.is_in_use())
    }

    /// Whether there is room for one more holder of this mode.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        match mode {
            #[cfg(leasehold_planted)]
            Mode::Exclusive if crate::planted::is(crate::planted::Fault::WriterBesideReaders) => {
                self.holders.iter().all(|holder| holder.mode == Mode::Shared)
            }
            Mode::Exclusive => self.holders.is_empty(),
            Mode::Shared | Mode::Joint(_) => self.holders.iter().all(|holder| holder.mode == mode),
            Mode::Permits { count, limit } => {
                let limit = self.kind_in_use().and_then(Kind::limit).unwrap_or(limit);
                #[cfg(leasehold_planted)]
                let more = u32::from(crate::planted::is(crate::planted::Fault::PermitTooMany));
                #[cfg(leasehold_planted)]
                let limit = limit.saturating_add(more);
                count.get() <= limit.get().saturating_sub(self.permits_taken())
            }
        }
    }

    /// How many permits are held.
    pub(super) fn permits_taken(&self) -> u32 {
        self.holders.iter().fold(0, |sum, holder| match holder.mode {
            Mode::Permits { count, .. } => sum.saturating_add(count.get()),
            Mode::Exclusive | Mode::Shared | Mode::Joint(_) => sum,
        })
    }

    pub(super) fn busy(&self, now: Now) -> Busy {
        Busy::new(self.next_free_in(now), self.holder_info(now.at))
    }

    pub(super) fn issue(&mut self, count: NonZeroU32, now: Now) -> FenceBlock {
        let first = match self.last_fence {
            None => now.fence_floor,
            Some(last) => {
                let sequence = last.saturating_add(1).sequence();
                let sequence = sequence.max(now.fence_floor.sequence());
                Fence::new(now.fence_floor.epoch(), sequence).unwrap_or(last)
            }
        };
        let block = FenceBlock::new(first, count.get());
        self.last_fence = Some(block.last());
        self.released = None;
        block
    }

    pub(super) fn close(&mut self, cooldown: Cooldown, at: StoreTime) {
        let until = (!cooldown.is_none()).then(|| at.saturating_add(cooldown.duration()));
        if until > self.closed_until {
            self.closed_until = until;
            self.time.give(at);
        }
    }

    pub(super) const fn reopen(&mut self, asked: bool) {
        if asked {
            self.closed_until = None;
        }
    }

    /// What is left without holders and waiters, as after a restart of the machine: the rest of the
    /// cooldown, the kind and the fences. The cooldown's rest is what the old clock shows at
    /// `then`; it counts from `now` on by the new clock. `None` without a cooldown.
    #[must_use]
    pub fn carried_over(&self, then: StoreTime, now: StoreTime) -> Option<Self> {
        let closed_until = now.saturating_add(self.closed_for(self.time.present(then))?);
        let Self { kind, last_fence, .. } = *self;
        let mut carried =
            Self { kind, closed_until: Some(closed_until), last_fence, ..Self::default() };
        carried.time.give(now);
        Some(carried)
    }

    pub(super) fn closed_for(&self, at: StoreTime) -> Option<Duration> {
        let left = self.closed_until?.saturating_since(at);
        (!left.is_zero()).then_some(left)
    }

    /// When the lock could be granted at the earliest: at the next end of a lease, but after a
    /// cooldown, and once the store grants leases.
    pub(super) fn next_free_in(&self, now: Now) -> Duration {
        let at = now.at;
        let next_end = self.holders.iter().map(|h| h.expires_at.saturating_since(at)).min();
        let closed_for = self.closed_for(at).unwrap_or_default();
        next_end.unwrap_or_default().max(closed_for).max(now.no_grants_for())
    }

    /// The holder whose lease ends first.
    pub(super) fn holder_info(&self, at: StoreTime) -> Option<HolderInfo> {
        let next = self.holders.iter().min_by_key(|holder| holder.expires_at)?;
        Some(next.info(at))
    }

    pub(super) fn holder(&self, token: Token) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.token == token)
    }

    pub(super) fn holder_mut(&mut self, token: Token) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.token == token)
    }
}

/// The fence shown for a name under which none was issued.
const FIRST: Fence = Fence::ZERO;

impl Holder {
    fn info(&self, at: StoreTime) -> HolderInfo {
        let held_for = at.saturating_since(self.granted_at);
        let remaining = self.expires_at.saturating_since(at);
        let mut info = HolderInfo::new(self.mode.shown(), self.fences.first(), held_for, remaining);
        info.owner = self.owner.clone();
        info.metadata = self.metadata.clone();
        info.holds = self.holds;
        info.asked_by = self.asked_by.clone();
        info
    }
}

impl Waiter {
    fn info(&self, at: StoreTime) -> WaiterInfo {
        let mut info = WaiterInfo::new(self.mode.shown(), at.saturating_since(self.arrived_at));
        info.behind = self.behind;
        info.mark = self.token.mark();
        info.owner = self.owner.clone();
        info.metadata = self.metadata.clone();
        info
    }
}
