//! One lock: its holders, its line, and the operations on them.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{Now, StoreTime};
use crate::change::limit_of;
use crate::fence::{Fence, FenceBlock};
use crate::key::Key;
use crate::label::{Metadata, OwnerName};
use crate::store::{
    Acquire, AcquireRequest, Already, Busy, ForceRelease, ForceReleaseRequest, Granted, HolderInfo,
    Kind, Leave, LeaveRequest, LockInfo, Mode, Place, QueueRequest, Refusal, Release,
    ReleaseRequest, Renew, RenewRequest, WaiterInfo, Waiting, Wake,
};
use crate::token::{ClientId, Token};
use crate::ttl::Ttl;

/// All that a store keeps about one name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct LockEntry {
    /// Ordered by fence, which is the order of the grants.
    pub(super) holders: Vec<Holder>,
    /// Ordered by place, which is the order of arrival.
    pub(super) waiters: VecDeque<Waiter>,
    /// The kind in use; means nothing once the entry is idle.
    pub(super) kind: Option<Kind>,
    pub(super) closed_until: Option<StoreTime>,
    pub(super) last_fence: Option<Fence>,
    /// The next places to give, to those who are preferred and to the others, once one was given or
    /// brought since the line was last empty. Places are given without gaps.
    next_places: [Option<Place>; 2],
    /// The token of the lease with the last fences, if it was released: a release that is sent
    /// again because its answer was lost must not look late.
    pub(super) released: Option<Token>,
    /// The tokens of the last other leases that were released, the latest first.
    ended: VecDeque<Token>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(super) struct Holder {
    pub(super) token: Token,
    pub(super) mode: Mode,
    pub(super) fences: FenceBlock,
    holds: u32,
    granted_at: StoreTime,
    expires_at: StoreTime,
    owner: OwnerName,
    metadata: Metadata,
    pub(super) asked_by: Option<OwnerName>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(super) struct Waiter {
    token: Token,
    pub(super) mode: Mode,
    place: Place,
    client: ClientId,
    ticket: u64,
    heartbeat: u32,
    window: Ttl,
    fence_block: NonZeroU32,
    arrived_at: StoreTime,
    seen_at: StoreTime,
    owner: OwnerName,
    metadata: Metadata,
}

impl Waiter {
    /// What would be left of a lease handed to this waiter now.
    fn window_left(&self, at: StoreTime) -> Duration {
        self.seen_at.saturating_add(self.window.duration()).saturating_since(at)
    }

    /// Whether the waiter has given signs of life so recently that a lease can be handed to it:
    /// half of its window must be left. A live waiter, heard every third of it, has more.
    fn can_be_served(&self, at: StoreTime) -> bool {
        self.window_left(at) >= self.window.part(2)
    }

    fn next_heartbeat(&self) -> StoreTime {
        self.seen_at.saturating_add(QueueRequest::heartbeat_every(self.window))
    }
}

/// A message that a store has to deliver to a client's wake channel after a step.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Notice {
    /// Whose channel.
    pub client: ClientId,
    /// What to say.
    pub wake: Wake,
}

impl LockEntry {
    /// How many releases of those who shared the lock are remembered.
    pub const ENDED_KEPT: usize = 8;

    /// Takes the lock, takes or renews a place in line, or says what stands in the way.
    pub fn acquire(
        &mut self,
        request: &AcquireRequest,
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> Acquire {
        let first = self.first_in_line();
        self.hear(request, now.at);
        self.settle(now, notices);
        let closed_until = self.closed_until;
        let answer = match self.refusal(request) {
            Some(refusal) => Acquire::Refused(refusal),
            None => self.acquire_settled(request, now),
        };
        // A head that reckons with the end of a lease has to reckon with the closing now.
        let first = first.filter(|_| self.closed_until <= closed_until);
        self.tell_new_first(first, Some(request.token), now.at, notices);
        answer
    }

    /// Takes in that a waiter is alive: before the line is served, or it would be passed over in
    /// the very moment in which it asks.
    fn hear(&mut self, request: &AcquireRequest, at: StoreTime) {
        let Some(queue) = &request.queue else { return };
        if let Some(waiter) = self.waiters.iter_mut().find(|w| w.token == request.token) {
            waiter.seen_at = at;
            waiter.heartbeat = queue.heartbeat;
            waiter.window = queue.window;
        }
    }

    fn acquire_settled(&mut self, request: &AcquireRequest, now: Now) -> Acquire {
        if let Some(holder) = self.holder_mut(request.token) {
            let expires_at = now.at.saturating_add(request.ttl.duration());
            holder.expires_at = holder.expires_at.max(expires_at);
            holder.holds = request.holds.get();
            return Acquire::Already(Already::new(holder.fences, holder.holds));
        }
        if let Some(waiter) = self.waiters.iter().find(|w| w.token == request.token) {
            return Acquire::Waiting(self.waiting(waiter.place, now.at));
        }
        if self.is_to_be_had(request, now.at) {
            self.kind = Some(request.mode.kind());
            self.close(request.close_for, now.at);
            let fences = self.issue(request.fence_block, now);
            self.holders.push(Holder {
                token: request.token,
                mode: request.mode,
                fences,
                holds: request.holds.get(),
                granted_at: now.at,
                expires_at: now.at.saturating_add(request.ttl.duration()),
                owner: request.owner.clone(),
                metadata: request.metadata.clone(),
                asked_by: None,
            });
            return Acquire::Granted(Granted::new(fences));
        }
        let Some(queue) = &request.queue else {
            return Acquire::Busy(self.busy(now.at));
        };
        let waiters = u32::try_from(self.waiters.len()).unwrap_or(u32::MAX);
        if queue.place.is_none() && queue.waiters_max.is_some_and(|max| waiters >= max) {
            return Acquire::Refused(Refusal::QueueFull { waiters });
        }
        self.kind = Some(request.mode.kind());
        let place = self.queue(request, queue, now.at);
        Acquire::Waiting(self.waiting(place, now.at))
    }

    /// What stands in the way of somebody new who asks for no place in line: what
    /// [`acquire`](Self::acquire) would answer, or `None` where the lease is to be had or is held
    /// already. Grants nothing.
    pub fn obstacle(
        &mut self,
        request: &AcquireRequest,
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> Option<Acquire> {
        let first = self.first_in_line();
        self.settle(now, notices);
        self.tell_new_first(first, None, now.at, notices);
        if let Some(refusal) = self.refusal(request) {
            return Some(Acquire::Refused(refusal));
        }
        let waits = self.waiters.iter().any(|waiter| waiter.token == request.token);
        let free = self.holder_mut(request.token).is_some()
            || !waits && self.is_to_be_had(request, now.at);
        (!free).then(|| Acquire::Busy(self.busy(now.at)))
    }

    fn is_to_be_had(&self, request: &AcquireRequest, at: StoreTime) -> bool {
        self.is_next(request, at) && self.closed_for(at).is_none() && self.admits(request.mode)
    }

    /// Lets a lease run on. Never creates one, never takes one away. An exclusive one takes over
    /// higher fences; see [`RenewRequest::fences`].
    pub fn renew(&mut self, request: &RenewRequest, now: Now, notices: &mut Vec<Notice>) -> Renew {
        let first = self.first_in_line();
        self.settle(now, notices);
        self.tell_new_first(first, None, now.at, notices);
        let higher = Some(request.fences.last()).filter(|last| Some(*last) > self.last_fence);
        if let Some(successor) = request.successor {
            self.hand_to(successor, request.token);
        }
        let Some(holder) = self.holder_mut(request.renewed_token()) else {
            let late = self.is_late(request.fences);
            return if late { Renew::Late } else { Renew::NotHeld };
        };
        let expires_at = now.at.saturating_add(request.ttl.duration());
        holder.expires_at =
            if request.shorten { expires_at } else { holder.expires_at.max(expires_at) };
        let answer = if holder.asked_by.is_some() { Renew::Asked } else { Renew::Renewed };
        if holder.mode == Mode::Exclusive
            && let Some(last) = higher
        {
            holder.fences = FenceBlock::up_to(last, holder.fences.count());
            self.last_fence = Some(last);
        }
        answer
    }

    /// Ends a lease, or sets how many of its holds remain.
    pub fn release(
        &mut self,
        request: &ReleaseRequest,
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> Release {
        let first = self.first_in_line();
        self.settle(now, notices);
        let closed_until = self.closed_until;
        let answer = self.release_settled(request, now);
        self.settle(now, notices);
        // A head that reckons with the end of a lease has to reckon with the cool-down now.
        let first = first.filter(|_| self.closed_until <= closed_until);
        self.tell_new_first(first, None, now.at, notices);
        answer
    }

    fn release_settled(&mut self, request: &ReleaseRequest, now: Now) -> Release {
        let Some(at) = self.holders.iter().position(|h| h.token == request.token) else {
            if self.released == Some(request.token) || self.ended.contains(&request.token) {
                return Release::Released;
            }
            if self.is_late(request.fences) {
                self.reopen(request.reopen);
                self.close(request.cooldown, now.at);
                return Release::Late;
            }
            return Release::NotHeld;
        };
        if let Some(holder) = self.holders.get_mut(at)
            && request.remaining > 0
        {
            holder.holds = request.remaining;
            return Release::StillHeld { holds: request.remaining };
        }
        self.end(at);
        self.reopen(request.reopen);
        self.close(request.cooldown, now.at);
        Release::Released
    }

    /// Ends a lease by its holder's will, and remembers it.
    fn end(&mut self, at: usize) {
        let holder = self.holders.remove(at);
        if self.last_fence == Some(holder.fences.last()) {
            self.released = Some(holder.token);
        } else {
            self.ended.push_front(holder.token);
            self.ended.truncate(Self::ENDED_KEPT);
        }
    }

    /// Whether these are the last fences issued, of a lease that ran out and was not released.
    pub(super) fn is_late(&self, fences: FenceBlock) -> bool {
        // A lease that was handed over is alive under another token, with the same fences.
        self.holders.is_empty() && self.released.is_none() && self.last_fence == Some(fences.last())
    }

    /// Gives a lease another token, unless the table knows that one already.
    fn hand_to(&mut self, successor: Token, token: Token) {
        if self.tokens().all(|known| *known != successor)
            && let Some(holder) = self.holder_mut(token)
        {
            holder.token = successor;
        }
    }

    /// Gives up whatever the token has.
    pub fn leave(&mut self, request: &LeaveRequest, now: Now, notices: &mut Vec<Notice>) -> Leave {
        let first = self.first_in_line();
        self.settle(now, notices);
        let answer = if let Some(at) = self.waiters.iter().position(|w| w.token == request.token) {
            self.waiters.remove(at);
            Leave::Left
        } else if let Some(at) = self.holders.iter().position(|h| h.token == request.token) {
            self.end(at);
            self.reopen(request.reopen);
            Leave::Released
        } else {
            Leave::NotHeld
        };
        self.settle(now, notices);
        self.tell_new_first(first, None, now.at, notices);
        answer
    }

    /// Takes the lease with this fence away. The next fence is above any that its holder could
    /// still hand on.
    pub fn force_release(
        &mut self,
        request: &ForceReleaseRequest,
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> ForceRelease {
        let first = self.first_in_line();
        self.settle(now, notices);
        let answer =
            if let Some(at) = self.holders.iter().position(|h| h.fences.contains(request.fence)) {
                self.holders.remove(at);
                self.last_fence = self.last_fence.map(|fence| fence.saturating_add(1));
                ForceRelease::Released
            } else if self.holders.is_empty() {
                ForceRelease::NotHeld
            } else {
                let fences = self.holders.iter().map(|h| h.fences.first()).collect();
                ForceRelease::OtherFence { fences }
            };
        self.settle(now, notices);
        self.tell_new_first(first, None, now.at, notices);
        answer
    }

    /// Ends, before their time, the leases and places for which `is_dead` says so, as a store may
    /// that knows their client to be gone.
    pub fn bury(
        &mut self,
        mut is_dead: impl FnMut(&Token) -> bool,
        now: Now,
        notices: &mut Vec<Notice>,
    ) {
        let first = self.first_in_line();
        self.holders.retain(|holder| !is_dead(&holder.token));
        self.waiters.retain(|waiter| !is_dead(&waiter.token));
        self.settle(now, notices);
        self.tell_new_first(first, None, now.at, notices);
    }

    /// The tokens of all holders and waiters. Secret.
    pub fn tokens(&self) -> impl Iterator<Item = &Token> {
        let holders = self.holders.iter().map(|holder| &holder.token);
        holders.chain(self.waiters.iter().map(|waiter| &waiter.token))
    }

    /// Describes the lock as it is at `at`; `None` when nobody uses it. Changes nothing.
    #[must_use]
    pub fn inspect(&self, key: &Key, at: StoreTime) -> Option<LockInfo> {
        let mut info = LockInfo::new(key.clone(), self.kind?, self.last_fence.unwrap_or(FIRST));
        info.holders = self
            .holders
            .iter()
            .filter(|holder| holder.expires_at > at)
            .map(|holder| holder.info(at))
            .collect();
        info.waiters = self
            .waiters
            .iter()
            .filter(|waiter| !waiter.window_left(at).is_zero())
            .map(|waiter| waiter.info(at))
            .collect();
        info.closed_for = self.closed_for(at);
        let idle = info.holders.is_empty() && info.waiters.is_empty() && info.closed_for.is_none();
        (!idle).then_some(info)
    }

    /// Until when the entry says more than its last fence: the latest end of any lease, place or
    /// cool-down. `None` when nobody uses the lock.
    #[must_use]
    pub fn in_use_until(&self) -> Option<StoreTime> {
        let holders = self.holders.iter().map(|holder| holder.expires_at);
        let waiters = self.waiters.iter().map(|w| w.seen_at.saturating_add(w.window.duration()));
        holders.chain(waiters).chain(self.closed_until).max()
    }

    /// Whether a store may forget the entry: nobody uses the lock, and the time has passed its
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

    /// Drops what is over, and hands what came free to the line.
    pub(super) fn settle(&mut self, now: Now, notices: &mut Vec<Notice>) {
        self.holders.retain(|holder| holder.expires_at > now.at);
        self.waiters.retain(|waiter| !waiter.window_left(now.at).is_zero());
        if self.closed_for(now.at).is_some() {
            return;
        }
        self.closed_until = None;
        loop {
            let Some(head) = self.waiters.front() else { return };
            if !self.admits(head.mode) {
                return;
            }
            let Some(head) = self.waiters.pop_front() else { return };
            if head.can_be_served(now.at) {
                self.hand_over(head, now, notices);
            }
        }
    }

    fn hand_over(&mut self, head: Waiter, now: Now, notices: &mut Vec<Notice>) {
        let fences = self.issue(head.fence_block, now);
        let wake = Wake::Granted { ticket: head.ticket, heartbeat: head.heartbeat, fences };
        notices.push(Notice { client: head.client, wake });
        self.holders.push(Holder {
            token: head.token,
            mode: head.mode,
            fences,
            holds: 1,
            granted_at: now.at,
            expires_at: head.seen_at.saturating_add(head.window.duration()),
            owner: head.owner,
            metadata: head.metadata,
            asked_by: None,
        });
    }

    /// A new head that would sleep past the moment when the lock can come free is told of it, and
    /// so is any head when a release closes the lock.
    /// With equal ttls this never happens: a head's heartbeat comes first.
    pub(super) fn tell_new_first(
        &self,
        before: Option<Place>,
        asking: Option<Token>,
        at: StoreTime,
        notices: &mut Vec<Notice>,
    ) {
        let Some(head) = self.waiters.front() else { return };
        if before == Some(head.place) || asking == Some(head.token) {
            return;
        }
        let retry_after = self.next_free_in(at);
        if at.saturating_add(retry_after) < head.next_heartbeat() {
            let wake = Wake::First { ticket: head.ticket, retry_after };
            notices.push(Notice { client: head.client, wake });
        }
    }

    pub(super) fn first_in_line(&self) -> Option<Place> {
        self.waiters.front().map(|head| head.place)
    }

    /// The kind that the lock is in use as.
    pub(super) fn kind_in_use(&self) -> Option<Kind> {
        let in_use =
            !self.holders.is_empty() || !self.waiters.is_empty() || self.closed_until.is_some();
        self.kind.filter(|_| in_use)
    }

    /// Why the lock can't be used as asked at all. Whoever has something of it already came under
    /// the limit of that time.
    fn refusal(&self, request: &AcquireRequest) -> Option<Refusal> {
        let mode = request.mode;
        if let Some(stored) = self.kind_in_use()
            && stored != mode.kind()
        {
            let resized = limit_of(stored).is_some() && limit_of(mode.kind()).is_some();
            if !resized || !self.tokens().any(|token| *token == request.token) {
                return Some(Refusal::WrongKind { stored });
            }
        }
        match mode {
            Mode::Permits { count, limit } if count > limit => {
                Some(Refusal::TooManyPermits { limit })
            }
            Mode::Exclusive | Mode::Shared | Mode::Permits { .. } => None,
        }
    }

    /// Whether nobody in line comes before a newcomer, or before a waiter that was forgotten and
    /// brings its old place.
    fn is_next(&self, request: &AcquireRequest, at: StoreTime) -> bool {
        let place = request.queue.as_ref().and_then(|queue| queue.place);
        let place = place.filter(|place| self.may_have_given(*place, at));
        self.waiters.front().is_none_or(|head| match place {
            Some(place) => place < head.place,
            None => request.preferred && !head.place.is_preferred(),
        })
    }

    /// Whether there is room for one more holder of this mode.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.holders.is_empty(),
            Mode::Shared => self.holders.iter().all(|holder| holder.mode == Mode::Shared),
            Mode::Permits { count, limit } => {
                let limit = self.kind_in_use().and_then(limit_of).unwrap_or(limit);
                count.get() <= limit.get().saturating_sub(self.permits_taken())
            }
        }
    }

    /// How many permits are held.
    pub(super) fn permits_taken(&self) -> u32 {
        self.holders.iter().fold(0, |sum, holder| match holder.mode {
            Mode::Permits { count, .. } => sum.saturating_add(count.get()),
            Mode::Exclusive | Mode::Shared => sum,
        })
    }

    /// Puts a new waiter, or one that was forgotten and brings its old place, into the line.
    fn queue(&mut self, request: &AcquireRequest, queue: &QueueRequest, at: StoreTime) -> Place {
        if self.waiters.is_empty() {
            self.next_places = [None; 2];
        }
        let known = queue.place.filter(|place| self.may_have_given(*place, at));
        let preferred = known.map_or(request.preferred, Place::is_preferred);
        let next = self.next_place(preferred, at);
        let place = known.unwrap_or(next);
        self.next_places[usize::from(!preferred)] = Some(next.max(place.following()));
        let before = self.waiters.partition_point(|waiter| waiter.place < place);
        self.waiters.insert(
            before,
            Waiter {
                token: request.token,
                mode: request.mode,
                place,
                client: queue.client,
                ticket: queue.ticket,
                heartbeat: queue.heartbeat,
                window: queue.window,
                fence_block: request.fence_block,
                arrived_at: at,
                seen_at: at,
                owner: request.owner.clone(),
                metadata: request.metadata.clone(),
            },
        );
        place
    }

    /// The next place to give.
    fn next_place(&self, preferred: bool, at: StoreTime) -> Place {
        self.next_places[usize::from(!preferred)]
            .unwrap_or_else(|| Place::on_arrival(at.as_micros(), preferred))
    }

    /// Whether a place that a waiter brings can have been given, and is nobody else's.
    fn may_have_given(&self, place: Place, at: StoreTime) -> bool {
        let preferred = place.is_preferred();
        let present = Place::on_arrival(at.as_micros(), preferred);
        (place <= present || place < self.next_place(preferred, at))
            && self.waiters.iter().all(|waiter| waiter.place != place)
    }

    pub(super) fn busy(&self, at: StoreTime) -> Busy {
        Busy::new(self.next_free_in(at), self.holder_info(at))
    }

    fn waiting(&self, place: Place, at: StoreTime) -> Waiting {
        let position = self.waiters.partition_point(|waiter| waiter.place < place);
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        Waiting::new(position, place, self.next_free_in(at), self.holder_info(at))
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

    fn close(&mut self, cooldown: Option<Duration>, at: StoreTime) {
        let until = cooldown.filter(|c| c.as_micros() > 0).map(|c| at.saturating_add(c));
        self.closed_until = self.closed_until.max(until);
    }

    const fn reopen(&mut self, asked: bool) {
        if asked {
            self.closed_until = None;
        }
    }

    fn closed_for(&self, at: StoreTime) -> Option<Duration> {
        let left = self.closed_until?.saturating_since(at);
        (!left.is_zero()).then_some(left)
    }

    /// When the lock could serve somebody at the earliest: the next end of a lease, but not
    /// before a cool-down is over.
    fn next_free_in(&self, at: StoreTime) -> Duration {
        let next_end = self.holders.iter().map(|h| h.expires_at.saturating_since(at)).min();
        next_end.unwrap_or_default().max(self.closed_for(at).unwrap_or_default())
    }

    /// The holder whose lease ends first.
    fn holder_info(&self, at: StoreTime) -> Option<HolderInfo> {
        let next = self.holders.iter().min_by_key(|holder| holder.expires_at)?;
        Some(next.info(at))
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
        let mut info = HolderInfo::new(self.mode, self.fences.first(), held_for, remaining);
        info.owner = self.owner.clone();
        info.metadata = self.metadata.clone();
        info.holds = self.holds;
        info.asked_by = self.asked_by.clone();
        info
    }
}

impl Waiter {
    fn info(&self, at: StoreTime) -> WaiterInfo {
        let mut info = WaiterInfo::new(self.mode, at.saturating_since(self.arrived_at));
        info.owner = self.owner.clone();
        info.metadata = self.metadata.clone();
        info
    }
}
