//! A lock's hash as it is stored, read by field; docs/wire.md has the formats.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{
    Bond, Fence, FenceBlock, HolderInfo, Key, LockInfo, Metadata, Mode, OwnerName, Place, Result,
    Token, WaiterInfo, Waiting,
};

use crate::classify;
use crate::names::{read_metadata, read_owner};
use crate::spelling::{Words, digits_at, fence, kind, read_profile, until};

/// A number that somebody wrote is no reason to show as many.
const LOST_SHOWN: usize = 256;

/// All that is stored for one lock. Times are in µs since the Unix epoch.
#[derive(Debug)]
pub(crate) struct Stored {
    /// 0 for a lock; means nothing while nobody uses it.
    pub(crate) limit: u32,
    pub(crate) closed_until: u64,
    pub(crate) fences: FenceBlock,
    /// When the key expires, ms since the Unix epoch.
    pub(crate) kept_ms: u64,
    /// Those who share it, by the state: their fields may be fewer.
    pub(crate) sharers: Sharers,
    /// In the order of their grants.
    pub(crate) holders: Vec<Holder>,
    /// In the order of their places.
    pub(crate) waiters: Vec<Waiter>,
}

/// What the state says of those who share a lock.
#[derive(Debug, Default)]
pub(crate) struct Sharers {
    number: u64,
    /// The permits that they have, or their bond.
    taken: u64,
    /// No lease of theirs ends before.
    ends: u64,
}

#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) token: String,
    pub(crate) mode: Mode,
    pub(crate) fences: FenceBlock,
    pub(crate) granted: u64,
    pub(crate) expires: u64,
    pub(crate) holds: u32,
    pub(crate) owner: OwnerName,
    pub(crate) metadata: Metadata,
    pub(crate) asked_by: Option<OwnerName>,
}

#[derive(Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "people are shown less than tests compare"))]
pub(crate) struct Waiter {
    pub(crate) place: u64,
    pub(crate) token: String,
    pub(crate) mode: Mode,
    pub(crate) block: u32,
    pub(crate) channel: String,
    pub(crate) ticket: u64,
    pub(crate) heartbeat: u32,
    pub(crate) window_ms: u64,
    pub(crate) behind: u32,
    pub(crate) seen: u64,
    pub(crate) arrived: u64,
    pub(crate) owner: OwnerName,
    pub(crate) metadata: Metadata,
}

fn read_mode(words: &mut Words<'_>, limit: u32) -> Option<Mode> {
    let (letter, permits) = (words.word()?, words.number::<u64>()?);
    match letter {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        "p" => Some(Mode::Permits {
            count: NonZeroU32::new(u32::try_from(permits).ok()?)?,
            limit: NonZeroU32::new(limit)?,
        }),
        "j" => Some(Mode::Joint(Bond::new(permits))),
        _ => None,
    }
}

/// Reads all fields of a lock; `None` when there are none. Scripts tell one from another by the same rules.
///
/// # Errors
///
/// [`Foreign`](leasehold_core::ErrorKind::Foreign) for a hash that has none of a lock's fields,
/// [`Unsupported`](leasehold_core::ErrorKind::Unsupported) for a lock in another version of the format, and
/// [`Corrupt`](leasehold_core::ErrorKind::Corrupt) for one that is damaged.
pub(crate) fn read(fields: &HashMap<Vec<u8>, Vec<u8>>) -> Result<Option<Stored>> {
    if fields.is_empty() {
        return Ok(None);
    }
    if !["lock", "state", "line"].iter().any(|name| fields.contains_key(name.as_bytes())) {
        return Err(classify::foreign());
    }
    let text = |name: &str| fields.get(name.as_bytes()).map(|value| String::from_utf8_lossy(value));
    let (record, state) = (text("lock").unwrap_or_default(), text("state").unwrap_or_default());
    match record.strip_prefix("leasehold/").and_then(|record| record.split_once(' ')) {
        Some(("1", about)) => {
            let mut stored = read_record(about, &state).ok_or_else(classify::damaged)?;
            stored.read_others(fields).ok_or_else(classify::damaged)?;
            Ok(Some(stored))
        }
        Some((version, _)) if version.parse::<u64>().is_ok() => {
            Err(classify::other_version(version))
        }
        _ => Err(classify::damaged()),
    }
}

/// A number of so many digits: one with fewer was cut off.
fn in_full(words: &mut Words<'_>, digits: usize) -> Option<u64> {
    Words(words.word().filter(|word| word.len() == digits)?).number()
}

/// As many numbers as there are to be.
fn numbers(words: &mut Words<'_>, count: usize) -> Option<()> {
    (0..count).try_for_each(|_| words.number::<u64>().map(drop))
}

/// Takes a word, if it is the next.
fn takes(words: &mut Words<'_>, word: &str) -> bool {
    let (next, rest) = until(b' ', words.0);
    let is_it = next == word;
    if is_it {
        words.0 = rest.unwrap_or_default();
    }
    is_it
}

/// Reads what is kept about the last grant, and the state.
fn read_record(about: &str, state: &str) -> Option<Stored> {
    let mut about = Words(about);
    let (count, granted): (u32, u64) = (about.number()?, about.number()?);
    let mut words = Words(state);
    let (kept_ms, token) = (words.number()?, words.word()?.to_owned());
    let (following, epoch): (u64, u64) = (words.number()?, in_full(&mut words, 4)?);
    let fences = block(epoch, following.checked_sub(count.into())?, count)?;
    let mut stored = Stored {
        limit: 0,
        closed_until: 0,
        fences,
        kept_ms,
        sharers: Sharers::default(),
        holders: Vec::new(),
        waiters: Vec::new(),
    };
    if takes(&mut words, "many") {
        stored.closed_until = words.number()?;
        stored.limit = words.number()?;
        let (number, taken, ends) = (words.number()?, words.number()?, words.number()?);
        stored.sharers = Sharers { number, taken, ends };
        numbers(&mut words, 3)?;
    } else if !words.0.is_empty() {
        let expires = in_full(&mut words, 16)?;
        if takes(&mut words, "more") {
            stored.closed_until = words.number()?;
        } else if !takes(&mut words, "line") && !words.0.is_empty() {
            // A plain line.
            numbers(&mut words, 5)?;
        }
        let (holds, owner, metadata, asked_by) = read_profile(about.0)?;
        stored.holders.push(Holder {
            token,
            mode: Mode::Exclusive,
            fences,
            granted,
            expires,
            holds,
            owner,
            metadata,
            asked_by,
        });
    }
    (words.0.is_empty() && !state.ends_with(' ')).then_some(stored)
}

/// Reads what a script answers about a waiter in a plain line: `now#place state`, and behind a line feed the
/// record. All widths are fixed but for the last number's.
pub(crate) fn plain_waiting(text: &[u8]) -> Option<Waiting> {
    const PLACE: usize = 17;
    const STATE: usize = 34;
    let behind = text.get(STATE + 151..)?;
    let line_feed = behind.iter().position(|byte| *byte == b'\n')?;
    let (gone, record) = behind.split_at_checked(line_feed)?;
    let now = digits_at::<16>(text, 0)?;
    let place = digits_at::<16>(text, PLACE)?;
    let (following, epoch) =
        (digits_at::<16>(text, STATE + 47)?, digits_at::<4>(text, STATE + 64)?);
    let ends = digits_at::<16>(text, STATE + 69)?;
    let first_place = digits_at::<16>(text, STATE + 103)?;
    let next_place = digits_at::<16>(text, STATE + 120)?;
    let gone: u64 = Words(std::str::from_utf8(gone).ok()?).number()?;
    let record = std::str::from_utf8(record).ok()?;
    let mut about = Words(record.strip_prefix("\nleasehold/1 ")?);
    let (count, granted): (u64, u64) = (about.number()?, about.number()?);

    let waiters = next_place.checked_sub(first_place)?.checked_sub(gone)?;
    let position = place.checked_sub(first_place)?.min(waiters.checked_sub(1)?);
    let left = Duration::from_micros(ends.saturating_sub(now));
    let held_for = Duration::from_micros(now.saturating_sub(granted));
    let holder_fence = fence(epoch, following.checked_sub(count)?)?;
    let mut holder = HolderInfo::new(Mode::Exclusive, holder_fence, held_for, left);
    (holder.holds, holder.owner, holder.metadata, holder.asked_by) = read_profile(about.0)?;
    let position = u32::try_from(position).ok()?;
    Some(Waiting::new(position, Place::from_number(place), left, Some(holder)))
}

fn block(epoch: u64, first: u64, count: u32) -> Option<FenceBlock> {
    // No fence was issued yet.
    if first == 0 {
        return Some(FenceBlock::new(Fence::ZERO, 1));
    }
    Some(FenceBlock::new(fence(epoch, first)?, count))
}

fn read_holder(value: &str, limit: u32) -> Option<Holder> {
    let mut words = Words(value);
    let mode = read_mode(&mut words, limit)?;
    let (expires, granted) = (words.number()?, words.number()?);
    let fences = block(words.number()?, words.number()?, words.number()?)?;
    let token = words.word()?.to_owned();
    let (holds, owner, metadata, asked_by) = read_profile(words.0)?;
    Some(Holder { token, mode, fences, granted, expires, holds, owner, metadata, asked_by })
}

fn read_waiter(place: u64, value: &str, limit: u32) -> Option<Waiter> {
    let mut words = Words(value);
    let (seen, window_ms) = (words.number()?, words.number()?);
    let (heartbeat, behind, arrived) = (words.number()?, words.number()?, words.number()?);
    let (token, block) = (words.word()?.to_owned(), words.number()?);
    let (mode, ticket) = (read_mode(&mut words, limit)?, words.number()?);
    let channel = words.word()?.to_owned();
    let (_holds, label) = until(b' ', words.0);
    let (owner, metadata) = until(b' ', label.unwrap_or_default());
    let (owner, metadata) = (read_owner(owner), read_metadata(metadata.unwrap_or_default()));
    Some(Waiter {
        place,
        token,
        mode,
        block,
        channel,
        ticket,
        heartbeat,
        window_ms,
        behind,
        seen,
        arrived,
        owner,
        metadata,
    })
}

impl Stored {
    /// Takes in those who share the lock, and those who wait.
    fn read_others(&mut self, fields: &HashMap<Vec<u8>, Vec<u8>>) -> Option<()> {
        for (name, value) in fields {
            let value = String::from_utf8_lossy(value);
            let name = String::from_utf8_lossy(name);
            // A script that was stopped did not remove it any more.
            if value.is_empty() {
                continue;
            }
            if name.starts_with('@') {
                self.holders.push(read_holder(&value, self.limit)?);
            } else if let Some(place) = name.strip_prefix('#') {
                self.waiters.push(read_waiter(place.parse().ok()?, &value, self.limit)?);
            }
        }
        self.holders.sort_by_key(|holder| holder.fences.first());
        self.waiters.sort_by_key(|waiter| waiter.place);
        Some(())
    }

    /// The holds whose fields somebody else removed, as the next script that looks for them writes them anew:
    /// nobody knows of any that it is over until all is.
    fn lost(&self, now: u64, retention: Duration) -> Vec<HolderInfo> {
        let Sharers { number, taken, ends } = self.sharers;
        let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        let until = self.kept_ms.saturating_sub(retention_ms).saturating_mul(1_000).max(ends);
        let present = self.holders.len();
        let lost = usize::try_from(number).unwrap_or(usize::MAX).saturating_sub(present);
        if until <= now {
            return Vec::new();
        }
        let permits = |holder: &Holder| match holder.mode {
            Mode::Permits { count, .. } => u64::from(count.get()),
            _ => 0,
        };
        let mut left = taken.saturating_sub(self.holders.iter().map(permits).sum());
        let each = std::iter::from_fn(|| {
            let mode = match NonZeroU32::new(self.limit) {
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

    /// The lock as it is at a time, for people; `None` when nobody uses it.
    pub(crate) fn describe(&self, key: &Key, now: u64, retention: Duration) -> Option<LockInfo> {
        let mut info = LockInfo::new(key.clone(), kind(self.limit), self.fences.last());
        info.holders = self.lost(now, retention);
        let since = |moment: u64| Duration::from_micros(now.saturating_sub(moment));
        for holder in self.holders.iter().filter(|holder| holder.expires > now) {
            let left = Duration::from_micros(holder.expires.saturating_sub(now));
            let first = holder.fences.first();
            let mut of = HolderInfo::new(holder.mode.shown(), first, since(holder.granted), left);
            (of.owner, of.metadata) = (holder.owner.clone(), holder.metadata.clone());
            (of.holds, of.asked_by) = (holder.holds, holder.asked_by.clone());
            of.mark = mark(&holder.token);
            info.holders.push(of);
        }
        for waiter in self.waiters.iter().filter(|waiter| waiter.ends() > now) {
            let mut of = WaiterInfo::new(waiter.mode.shown(), since(waiter.arrived));
            (of.owner, of.metadata) = (waiter.owner.clone(), waiter.metadata.clone());
            of.behind = waiter.behind;
            of.mark = mark(&waiter.token);
            info.waiters.push(of);
        }
        if self.closed_until > now {
            info.closed_for = Some(Duration::from_micros(self.closed_until.saturating_sub(now)));
        }
        let idle = info.holders.is_empty() && info.waiters.is_empty() && info.closed_for.is_none();
        (!idle).then_some(info)
    }
}

fn mark(token: &str) -> u32 {
    Token::from_hex(token).map(|token| token.mark()).unwrap_or_default()
}

impl Waiter {
    /// When the place runs out.
    pub(crate) fn ends(&self) -> u64 {
        self.seen.saturating_add(self.window_ms.saturating_mul(1_000))
    }
}
