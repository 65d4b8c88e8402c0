//! Reads and writes a record: one lock's entry, and the sessions of its leases.
//!
//! Layout, all numbers little-endian:
//!
//! - version (1 byte);
//! - checksum over name, version and all that follows (4 bytes);
//! - checksum of the name alone (4 bytes);
//! - end of use and end of keeping, in µs of the store's clock (8 bytes each);
//! - the body in postcard.
//!
//! The first three are the same in every version. By the two times, most entries can be skipped
//! without decoding them. The name's own checksum shows that a damaged value belongs to this lock.
//! If the name could be wrong, any other lock might be the held one.

use leasehold_core::Token;
use leasehold_core::table::{LockEntry, StoreTime};
use serde::{Deserialize, Serialize};

use super::checksum::checksum;
use super::header;
use crate::RETENTION;

/// The store's format, which every record names.
const VERSION: u8 = 6;
const _: () = assert!(VERSION as u32 == header::FORMAT, "a store has one format");
/// The offsets of the name's checksum, the two times, and the body.
const NAME_SUM: usize = 1 + 4;
const USED: usize = NAME_SUM + 4;
const KEPT: usize = USED + 8;
const HEAD: usize = KEPT + 8;
/// The version for a name's own checksum: no real version has this number.
const NAME_ALONE: u8 = 0;

/// The number of a client's session; see [`super::session`].
pub(super) type SessionId = u64;

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Record {
    pub(super) entry: LockEntry,
    /// The sessions of those holders and waiters that die with their process.
    owners: Vec<Owner>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Owner {
    token: Token,
    #[serde(with = "postcard::fixint::le")]
    session: SessionId,
}

impl Record {
    /// A record without sessions.
    pub(super) const fn of_nobody(entry: LockEntry) -> Self {
        Self { entry, owners: Vec::new() }
    }

    /// Sets the session that owns a token, or none.
    pub(super) fn own(&mut self, token: Token, session: Option<SessionId>) {
        self.owners.retain(|owner| owner.token != token);
        if let Some(session) = session
            && self.entry.tokens().any(|other| *other == token)
        {
            self.owners.push(Owner { token, session });
        }
    }

    /// Lets a lease's new token keep its session, if the lease has another token now.
    pub(super) fn pass_on(&mut self, token: Token, successor: Token) {
        if self.entry.tokens().all(|known| *known != token)
            && let Some(session) = self.session_of(&token)
        {
            self.own(successor, Some(session));
        }
    }

    /// Forgets the owners of tokens that no longer have a lease or a queue position.
    pub(super) fn tidy(&mut self) {
        let Self { entry, owners } = self;
        owners.retain(|owner| entry.tokens().any(|token| *token == owner.token));
    }

    /// The sessions of all tokens except `besides`.
    pub(super) fn sessions(&self, besides: Option<Token>) -> impl Iterator<Item = SessionId> {
        let others = self.owners.iter().filter(move |owner| Some(owner.token) != besides);
        others.map(|owner| owner.session)
    }

    pub(super) fn session_of(&self, token: &Token) -> Option<SessionId> {
        self.owners.iter().find(|owner| owner.token == *token).map(|owner| owner.session)
    }

    /// Whether the record holds no information.
    pub(super) fn is_blank(&self) -> bool {
        self.entry.in_use_until().is_none() && self.entry.last_fence().is_none()
    }

    /// The record's value under this name. `before`, the name's previous value, has the name's
    /// checksum already.
    pub(super) fn encode(
        &self,
        name: &[u8],
        at: StoreTime,
        before: Option<&[u8]>,
    ) -> Result<Vec<u8>, postcard::Error> {
        /// Enough for the value of a lock with one holder.
        const ROOM: usize = 256;

        let used_until = self.entry.in_use_until().unwrap_or_default();
        let kept_until = used_until.max(at).saturating_add(RETENTION);
        let known = before.and_then(|before| before.get(NAME_SUM..)?.first_chunk().copied());
        let name_sum = known.unwrap_or_else(|| checksum(name, NAME_ALONE, &[]).to_le_bytes());
        let mut value = Vec::with_capacity(ROOM);
        value.push(VERSION);
        value.extend([0; 4]);
        value.extend(name_sum);
        value.extend(used_until.as_micros().to_le_bytes());
        value.extend(kept_until.as_micros().to_le_bytes());
        let mut room = ROOM;
        // Doubled until it is enough, so at most as often as a length has bits.
        let bytes = loop {
            value.resize(room, 0);
            match postcard::to_slice(self, value.get_mut(HEAD..).unwrap_or_default()) {
                Ok(body) => break HEAD.saturating_add(body.len()),
                Err(postcard::Error::SerializeBufferFull) => room = room.saturating_mul(2),
                Err(error) => return Err(error),
            }
        };
        value.truncate(bytes);
        let sum = checksum(name, VERSION, value.get(NAME_SUM..).unwrap_or_default());
        if let Some(place) = value.get_mut(1..NAME_SUM) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        Ok(value)
    }

    pub(super) fn decode(name: &[u8], value: &[u8]) -> Result<Self, Unreadable> {
        let body = Stored::open(name, value)?.body;
        let (record, rest) = postcard::take_from_bytes(body).map_err(|_| Unreadable::Damaged)?;
        if rest.is_empty() { Ok(record) } else { Err(Unreadable::Damaged) }
    }
}

/// Why a value can't be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Unreadable {
    /// The value is damaged, and certainly belongs to this name.
    Damaged,
    /// It may belong to another name.
    Corrupt,
    /// It was written by a later version.
    Newer(u8),
}

/// A value as it is stored, undecoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored<'a> {
    pub(super) used_until: StoreTime,
    pub(super) kept_until: StoreTime,
    body: &'a [u8],
}

impl<'a> Stored<'a> {
    /// Reads the head, and verifies the checksum.
    pub(super) fn open(name: &[u8], value: &'a [u8]) -> Result<Self, Unreadable> {
        let (head, body) = value.split_at_checked(HEAD).ok_or(Unreadable::Corrupt)?;
        let (&version, rest) = value.split_first().ok_or(Unreadable::Corrupt)?;
        let (sum, summed) = rest.split_first_chunk::<4>().ok_or(Unreadable::Corrupt)?;
        if u32::from_le_bytes(*sum) != checksum(name, version, summed) {
            let own = is_of(name, value);
            return Err(if own { Unreadable::Damaged } else { Unreadable::Corrupt });
        }
        if version > VERSION {
            return Err(Unreadable::Newer(version));
        }
        if version != VERSION {
            return Err(Unreadable::Damaged);
        }
        let time = |at: usize| {
            let bytes = head.get(at..)?.first_chunk::<8>()?;
            Some(StoreTime::from_micros(u64::from_le_bytes(*bytes)))
        };
        let used_until = time(USED).ok_or(Unreadable::Corrupt)?;
        let kept_until = time(KEPT).ok_or(Unreadable::Corrupt)?;
        Ok(Self { used_until, kept_until, body })
    }
}

/// Whether a record surely belongs to this name, even if damaged.
fn is_of(name: &[u8], record: &[u8]) -> bool {
    let sum = record.get(NAME_SUM..).and_then(|rest| rest.first_chunk::<4>());
    sum.copied().map(u32::from_le_bytes) == Some(checksum(name, NAME_ALONE, &[]))
}

/// The part of a record after its head.
pub(super) fn body(value: &[u8]) -> &[u8] {
    value.get(HEAD..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::table::Now;
    use leasehold_core::{AcquireRequest, Fence, Key, Ttl};

    use super::*;

    fn record() -> Record {
        let mut record = Record::default();
        let token = Token::from_bytes([7; 16]);
        let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
        let request = AcquireRequest::new(Key::new("k").unwrap(), token, ttl);
        let now = Now::new(StoreTime::from_micros(5), Fence::from_value(9).unwrap());
        record.entry.perform(&request, now, &mut Vec::new());
        record.own(token, Some(77));
        record
    }

    fn encoded(at: StoreTime) -> Vec<u8> {
        record().encode(b"k", at, None).unwrap()
    }

    #[test]
    fn a_record_with_many_holders_and_one_that_was_there_before_are_written_in_full() {
        let mut many = Record::default();
        let now = Now::new(StoreTime::from_micros(5), Fence::from_value(9).unwrap());
        for n in 0..200 {
            let token = Token::from_bytes([n; 16]);
            let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
            let mut request = AcquireRequest::new(Key::new("k").unwrap(), token, ttl);
            request.mode = leasehold_core::Mode::Shared;
            many.entry.perform(&request, now, &mut Vec::new());
            many.own(token, Some(u64::from(n)));
        }
        let before = encoded(now.at);
        for before in [None, Some(&*before)] {
            let value = many.encode(b"k", now.at, before).unwrap();
            assert!(value.len() > 4096, "{} bytes", value.len());
            assert_eq!(Record::decode(b"k", &value).unwrap(), many);
        }
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let value = encoded(StoreTime::from_micros(5));
        assert_eq!(Record::decode(b"k", &value).unwrap(), record());
        let stored = Stored::open(b"k", &value).unwrap();
        assert_eq!(stored.used_until, StoreTime::from_micros(30_000_005));
        assert_eq!(stored.kept_until, StoreTime::from_micros(630_000_005));
    }

    #[test]
    fn any_changed_bit_any_cut_and_another_name_are_noticed() {
        let value = encoded(StoreTime::from_micros(5));
        for at in 0..value.len() {
            for bit in 0..8 {
                let mut changed = value.clone();
                changed[at] ^= 1 << bit;
                let name_is_sure = !(NAME_SUM..USED).contains(&at);
                let why = if name_is_sure { Unreadable::Damaged } else { Unreadable::Corrupt };
                assert_eq!(Record::decode(b"k", &changed), Err(why), "{at}.{bit}");
            }
        }
        for end in 0..value.len() {
            let why = if end < HEAD { Unreadable::Corrupt } else { Unreadable::Damaged };
            assert_eq!(Record::decode(b"k", &value[..end]), Err(why), "{end}");
        }
        assert_eq!(Record::decode(b"l", &value), Err(Unreadable::Corrupt));
        let mut longer = value;
        longer.push(0);
        assert_eq!(Record::decode(b"k", &longer), Err(Unreadable::Damaged));
    }

    #[test]
    fn a_later_version_is_known_as_such() {
        let mut value = encoded(StoreTime::default());
        value[0] = VERSION + 1;
        let sum = checksum(b"k", VERSION + 1, &value[NAME_SUM..]);
        value[1..NAME_SUM].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Record::decode(b"k", &value), Err(Unreadable::Newer(VERSION + 1)));
    }

    #[test]
    fn only_tokens_in_the_entry_have_owners() {
        let mut record = record();
        record.own(Token::from_bytes([8; 16]), Some(78));
        assert_eq!(record.sessions(None).collect::<Vec<_>>(), [77]);
        assert_eq!(record.sessions(Some(Token::from_bytes([7; 16]))).count(), 0);
        record.own(Token::from_bytes([7; 16]), None);
        assert_eq!(record.sessions(None).count(), 0);
    }
}
