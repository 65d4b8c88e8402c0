//! Reads a stored lock, field by field; docs/wire.md has the formats.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{
    Bond, Fence, FenceBlock, HolderInfo, Key, LockInfo, Metadata, Mode, OwnerName, Place, Result,
    Token, WaiterInfo, Waiting,
};

use crate::classify;
use crate::wire::forms::{Pack as _, Packed, Shape, VERSION};
use crate::wire::spelling::{About, block, kind, read_about, read_label};

/// A damaged number must not make the output huge.
const LOST_SHOWN: usize = 256;

/// The content of the field `state`. Times are in µs since the Unix epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) kept: u64,
    /// The token of the lease, or of the last one if it was released.
    pub(crate) token: Option<Token>,
    /// 0 without an exclusive holder.
    pub(crate) ends: u64,
    /// When a lease was last granted; meaningless while the lock is idle.
    pub(crate) given: u64,
    pub(crate) following: u64,
    pub(crate) epoch: u64,
    pub(crate) waiters: u32,
    /// Ranges of queue positions, each with its first and last.
    pub(crate) ranges: Vec<(u64, u64)>,
    pub(crate) longest: u64,
    pub(crate) soonest: u64,
    /// How far the lock's time is ahead of the server's clock.
    pub(crate) offset: u64,
    pub(crate) asked: bool,
    pub(crate) closed: u64,
    /// 0 for a lock; meaningless while it is idle.
    pub(crate) limit: u32,
    /// Where a sweep of the queue got to, and the earliest end that it met.
    pub(crate) walked: u64,
    pub(crate) least_window: u64,
    pub(crate) next_places: [u64; 2],
    /// The number of sharers; fewer may have fields.
    pub(crate) holders: u32,
    /// The sharers' permits, or their bond.
    pub(crate) taken: u64,
    pub(crate) first_end: u64,
    pub(crate) nearest: u32,
    /// Where a sweep of the sharers got to, and the earliest end that it met.
    pub(crate) cursor: u32,
    pub(crate) least_end: u64,
}

/// Why a state can't be read.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Unread {
    Damaged,
    Version(u8),
}

impl State {
    /// Reads a state by its shape.
    pub(crate) fn read(bytes: &[u8]) -> std::result::Result<Self, Unread> {
        let shape = bytes.first().copied().ok_or(Unread::Damaged)?;
        if u64::from(shape >> 4) != VERSION {
            return Err(Unread::Version(shape >> 4));
        }
        Self::read_shape(shape, bytes).ok_or(Unread::Damaged)
    }

    fn read_shape(shape: u8, bytes: &[u8]) -> Option<Self> {
        let is = |other: Shape| u64::from(shape) == other.byte();
        let mut packed = Packed(bytes.get(1..)?);
        let kept = packed.double()?;
        let token = Some(packed.array()?).filter(|token| *token != [0; 16]).map(Token::from_bytes);
        let (ends, given) = (packed.double()?, packed.double()?);
        let (following, epoch) = (packed.double()?, packed.short()?);
        let mut state = Self { kept, token, ends, given, following, epoch, ..Self::default() };
        if is(Shape::Line) || is(Shape::All) {
            state.waiters = packed.int()?;
            let (head, tail) = (packed.double()?, packed.double()?);
            (state.longest, state.soonest) = (packed.double()?, packed.double()?);
            state.next_places = [0, tail.saturating_add(1)];
            if state.waiters > 0 {
                state.ranges.push((head, tail));
            }
        }
        if is(Shape::All) {
            state.offset = packed.double()?;
            state.asked = packed.byte()? != 0;
            (state.closed, state.limit) = (packed.double()?, packed.int()?);
            state.walked = packed.double()?;
            state.least_window = packed.double()?;
            state.next_places = [packed.double()?, packed.double()?];
            (state.holders, state.taken) = (packed.int()?, packed.double()?);
            (state.first_end, state.nearest) = (packed.double()?, packed.int()?);
            state.cursor = packed.int()?;
            state.least_end = packed.double()?;
            while !packed.0.is_empty() {
                state.ranges.push((packed.double()?, packed.double()?));
            }
        }
        let known = is(Shape::Plain) || is(Shape::Line) || is(Shape::All);
        (known && packed.0.is_empty()).then_some(state)
    }

    /// The present in the lock's time, given the server's clock.
    pub(crate) fn ahead(&self, clock: u64) -> u64 {
        let in_use = self.ends > 0 || self.holders > 0 || self.waiters > 0 || self.closed > 0;
        let given = if in_use { self.given } else { 0 };
        given.saturating_sub(clock).max(self.offset)
    }

    /// The exclusive holder, from what is stored about it.
    fn alone(&self, about: &[u8]) -> Option<Holder> {
        let about = read_about(about)?;
        let fences =
            block(self.epoch, self.following.checked_sub(about.count.into())?, about.count)?;
        Some(Holder::of(self.token?, Mode::Exclusive, fences, self.ends, about))
    }

    /// The greatest number of waiters before a position; exact for the first, and if no waiter has
    /// left.
    fn position(&self, place: u64) -> u32 {
        let mut before: u64 = 0;
        for (head, tail) in &self.ranges {
            if place <= *tail {
                before = before.saturating_add(place.saturating_sub(*head));
                break;
            }
            before = before.saturating_add(tail.saturating_sub(*head).saturating_add(1));
        }
        u32::try_from(before).unwrap_or(u32::MAX).min(self.waiters.saturating_sub(1))
    }
}

/// A script's answer about a lock's holder: the state, and what is stored about the blocking
/// holder, or about the requesting one.
#[derive(Debug)]
pub(crate) struct Seen {
    state: State,
    now: u64,
    pub(crate) holder: Option<Holder>,
}

impl Seen {
    pub(crate) fn read(now: u64, state: &[u8], what: &[u8]) -> Option<Self> {
        if state.is_empty() {
            return Some(Self { state: State::default(), now, holder: None });
        }
        let state = State::read(state).ok()?;
        let holder = if state.ends > 0 {
            Some(state.alone(what)?)
        } else if state.holders > 0 {
            Some(read_sharer(Token::from_bytes([0; 16]), what, state.limit)?.1)
        } else {
            None
        };
        Some(Self { state, now, holder })
    }

    /// How long until the lock may be free.
    pub(crate) fn free_in(&self) -> Duration {
        let ends = self.holder.as_ref().map_or(0, |holder| holder.expires);
        Duration::from_micros(ends.max(self.state.closed).saturating_sub(self.now))
    }

    pub(crate) fn into_info(self) -> Option<HolderInfo> {
        let now = self.now;
        self.holder.map(|holder| holder.into_info(now))
    }

    pub(crate) fn waiting(self, place: u64) -> Waiting {
        let (position, free_in) = (self.state.position(place), self.free_in());
        Waiting::new(position, Place::from_number(place), free_in, self.into_info())
    }
}

/// All that is stored for one lock. Times are in µs since the Unix epoch.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) state: State,
    /// In the order of their grants.
    pub(crate) holders: Vec<Holder>,
    /// In the order of their positions.
    pub(crate) waiters: Vec<Waiter>,
}

#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) fences: FenceBlock,
    pub(crate) granted: u64,
    pub(crate) expires: u64,
    pub(crate) holds: u32,
    pub(crate) owner: OwnerName,
    pub(crate) metadata: Metadata,
    pub(crate) asked_by: Option<OwnerName>,
}

impl Holder {
    fn of(token: Token, mode: Mode, fences: FenceBlock, expires: u64, about: About) -> Self {
        let About { granted, count: _, holds, owner, metadata, asked_by } = about;
        Self { token, mode, fences, granted, expires, holds, owner, metadata, asked_by }
    }

    fn into_info(self, now: u64) -> HolderInfo {
        let held_for = Duration::from_micros(now.saturating_sub(self.granted));
        let left = Duration::from_micros(self.expires.saturating_sub(now));
        let mut info = HolderInfo::new(self.mode.shown(), self.fences.first(), held_for, left);
        (info.owner, info.metadata) = (self.owner, self.metadata);
        (info.holds, info.asked_by) = (self.holds, self.asked_by);
        info
    }
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) place: u64,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) block: u32,
    pub(crate) channel: String,
    pub(crate) ticket: u64,
    pub(crate) heartbeat: u32,
    pub(crate) window: u64,
    pub(crate) behind: u32,
    pub(crate) seen: u64,
    pub(crate) arrived: u64,
    pub(crate) owner: OwnerName,
    pub(crate) metadata: Metadata,
}

fn read_mode(packed: &mut Packed<'_>, limit: u32) -> Option<Mode> {
    let (letter, permits) = (packed.byte()?, packed.double()?);
    match letter {
        b'x' => Some(Mode::Exclusive),
        b's' => Some(Mode::Shared),
        b'p' => Some(Mode::Permits {
            count: NonZeroU32::new(u32::try_from(permits).ok()?)?,
            limit: NonZeroU32::new(limit)?,
        }),
        b'j' => Some(Mode::Joint(Bond::new(permits))),
        _ => None,
    }
}

/// Reads the record of a sharer: its number, and its hold.
pub(crate) fn read_sharer(token: Token, record: &[u8], limit: u32) -> Option<(u64, Holder)> {
    let mut packed = Packed(record);
    let (letter, number) = (packed.byte()?, packed.double()?);
    let (expires, first, epoch, count) =
        (packed.double()?, packed.double()?, packed.short()?, packed.int()?);
    let mode = read_mode(&mut packed, limit)?;
    let about = read_about(packed.0)?;
    let holder = Holder::of(token, mode, block(epoch, first, count)?, expires, about);
    (letter == b's').then_some((number, holder))
}

pub(crate) fn read_waiter(token: Token, record: &[u8], limit: u32) -> Option<Waiter> {
    let mut packed = Packed(record);
    let (letter, place, seen) = (packed.byte()?, packed.double()?, packed.double()?);
    let (heartbeat, window, behind) = (packed.int()?, packed.double()?, packed.int()?);
    let (arrived, block) = (packed.double()?, packed.int()?);
    let mode = read_mode(&mut packed, limit)?;
    let ticket = packed.array().map(u64::from_le_bytes)?;
    let length = packed.byte()?;
    let channel = packed.text(length.into())?.to_owned();
    let (owner, metadata) = read_label(packed.0);
    (letter == b'w').then_some(Waiter {
        place,
        token,
        mode,
        block,
        channel,
        ticket,
        heartbeat,
        window,
        behind,
        seen,
        arrived,
        owner,
        metadata,
    })
}

/// Reads all fields of a lock; `None` if there are none. Scripts use the same rules.
///
/// # Errors
///
/// [`Foreign`](leasehold_core::ErrorKind::Foreign) for a hash without a lock's state.
/// [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for a lock in another version of the
/// format. [`Corrupt`](leasehold_core::ErrorKind::Corrupt) for a damaged lock.
pub(crate) fn read(fields: &HashMap<Vec<u8>, Vec<u8>>) -> Result<Option<Stored>> {
    if fields.is_empty() {
        return Ok(None);
    }
    let state = fields.get(&b"state"[..]).ok_or_else(classify::foreign)?;
    let state = State::read(state).map_err(|unread| match unread {
        Unread::Damaged => classify::damaged(),
        Unread::Version(version) => classify::other_version(&version.to_string()),
    })?;
    let mut holders = Vec::new();
    if state.ends > 0 {
        let about = fields.get(&b"about"[..]).map(Vec::as_slice).unwrap_or_default();
        holders.push(state.alone(about).ok_or_else(classify::damaged)?);
    }
    let mut waiters = Vec::new();
    for (name, record) in fields {
        let Ok(token) = name.as_slice().try_into().map(Token::from_bytes) else { continue };
        match record.first() {
            Some(b's') if state.holders > 0 && leads_back(fields, record, token) => {
                let sharer = read_sharer(token, record, state.limit);
                holders.extend(sharer.map(|(_, holder)| holder));
            }
            Some(b'w') if state.waiters > 0 && leads_back(fields, record, token) => {
                waiters.extend(read_waiter(token, record, state.limit));
            }
            _ => {}
        }
    }
    holders.sort_by_key(|holder| holder.fences.first());
    waiters.sort_by_key(|waiter| waiter.place);
    Ok(Some(Stored { state, holders, waiters }))
}

/// Whether the field of a record's number or position leads back to its token; another program may
/// have removed it.
fn leads_back(fields: &HashMap<Vec<u8>, Vec<u8>>, record: &[u8], token: Token) -> bool {
    let mut packed = Packed(record);
    let (letter, Some(number)) = (packed.byte(), packed.double()) else { return false };
    let mut name = Vec::new();
    if letter == Some(b's') {
        name.byte(b'@').int(u32::try_from(number).unwrap_or(u32::MAX));
    } else {
        // As bytes in the order of positions.
        name.double(number).reverse();
    }
    fields.get(&name).is_some_and(|its| its == token.as_bytes())
}

impl Stored {
    /// The holds whose fields another program removed, as the next script that looks for them
    /// writes them again. Their ends are unknown, so all of them last until the latest possible
    /// end.
    fn lost(&self, now: u64, retention: Duration) -> Vec<HolderInfo> {
        let State { kept, holders, taken, first_end, limit, ends, offset, .. } = self.state;
        let retention = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
        let until = kept.saturating_sub(retention).saturating_add(offset).max(first_end);
        let present = self.holders.len();
        let lost = usize::try_from(holders).unwrap_or(usize::MAX).saturating_sub(present);
        if until <= now || ends > 0 {
            return Vec::new();
        }
        let permits = |holder: &Holder| match holder.mode {
            Mode::Permits { count, .. } => u64::from(count.get()),
            _ => 0,
        };
        let mut left = taken.saturating_sub(self.holders.iter().map(permits).sum());
        let each = std::iter::from_fn(|| {
            let mode = match NonZeroU32::new(limit) {
                _ if taken >= Bond::LEAST => Mode::Exclusive,
                None => Mode::Shared,
                Some(limit) => {
                    let count = u32::try_from(left).ok().and_then(NonZeroU32::new);
                    left = 0;
                    Mode::Permits { count: count.unwrap_or(NonZeroU32::MIN), limit }
                }
            };
            let remaining = Duration::from_micros(until.saturating_sub(now));
            Some(HolderInfo::new(mode, Fence::ZERO, Duration::ZERO, remaining))
        });
        each.take(lost.min(LOST_SHOWN)).collect()
    }

    /// The last issued fence, if any.
    pub(crate) fn last_fence(&self) -> Option<Fence> {
        let State { epoch, following, .. } = self.state;
        Some(block(epoch, following.checked_sub(1)?, 1)?.last())
    }

    /// The lock at this time of the server's clock, for people; `None` if it is idle.
    pub(crate) fn describe(self, key: &Key, clock: u64, retention: Duration) -> Option<LockInfo> {
        let ahead = self.state.ahead(clock);
        let now = clock.saturating_add(ahead);
        let last = self.last_fence().unwrap_or(Fence::ZERO);
        let mut info = LockInfo::new(key.clone(), kind(self.state.limit), last);
        info.holders = self.lost(now, retention);
        for holder in self.holders.into_iter().filter(|holder| holder.expires > now) {
            let mark = holder.token.mark();
            let mut of = holder.into_info(now);
            of.mark = mark;
            info.holders.push(of);
        }
        for waiter in self.waiters.into_iter().filter(|waiter| waiter.ends() > now) {
            let waited = Duration::from_micros(now.saturating_sub(waiter.arrived));
            let mut of = WaiterInfo::new(waiter.mode.shown(), waited);
            (of.owner, of.metadata) = (waiter.owner, waiter.metadata);
            of.behind = waiter.behind;
            of.mark = waiter.token.mark();
            info.waiters.push(of);
        }
        if self.state.closed > now {
            let closed = self.state.closed.saturating_sub(now);
            info.closed_for = Some(Duration::from_micros(closed));
        }
        info.clock_set_back = Duration::from_micros(ahead);
        let idle = info.holders.is_empty() && info.waiters.is_empty() && info.closed_for.is_none();
        (!idle).then_some(info)
    }
}

impl Waiter {
    /// When the position expires.
    pub(crate) const fn ends(&self) -> u64 {
        self.seen.saturating_add(self.window)
    }
}
