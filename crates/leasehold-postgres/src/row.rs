//! Reads and writes a lock's row.

use std::error::Error as StdError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use leasehold_core::table::{LockEntry, Now, Plain, PlainHolder, StoreTime};
use leasehold_core::{Error, ErrorKind, Fence, Key, Metadata, OwnerName, Reason, Result, Token};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// The format of an entry's bytes.
const VERSION: u8 = 1;
/// As in `take_1`: the time of such a fence is decades ahead.
const LAST_FENCE_MAX: i64 = 1 << 62;
/// Version and checksum.
const HEAD: usize = 1 + 8;

/// A token as SQL's `uuid`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

impl ToSql for Uuid {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Uuid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    accepts!(UUID);
}

/// A lock as it was read, and what its next step depends on.
pub(crate) struct Found {
    pub(crate) entry: LockEntry,
    /// The row's version, if there is a row.
    pub(crate) version: Option<i64>,
    pub(crate) now: Now,
    /// `None` if the server may have lost writes since the last step.
    pub(crate) epoch: Option<i32>,
    pub(crate) longest_ttl: i64,
}

/// What a row has besides its name.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    pub(crate) used_until: Option<SystemTime>,
    pub(crate) last_fence: i64,
    pub(crate) holders: i32,
    pub(crate) waiters: i32,
    pub(crate) owner: Option<String>,
    pub(crate) metadata: Option<String>,
    pub(crate) granted_at: Option<SystemTime>,
    pub(crate) renewed_at: Option<SystemTime>,
    pub(crate) fences: Option<i32>,
    pub(crate) holds: Option<i32>,
    pub(crate) token: Option<Uuid>,
    pub(crate) released: Option<Uuid>,
    pub(crate) ended: Option<Vec<u8>>,
    pub(crate) entry: Option<Vec<u8>>,
}

pub(crate) fn to_sql_time(at: StoreTime) -> SystemTime {
    let since = Duration::from_micros(at.as_micros());
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}

pub(crate) fn time(at: SystemTime) -> StoreTime {
    let us = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    StoreTime::from_micros(u64::try_from(us).unwrap_or(u64::MAX))
}

fn text(text: &str) -> Option<String> {
    (!text.contains('\0')).then(|| text.to_owned())
}

impl Columns {
    /// The row of a lock, written at this time of the server's clock.
    pub(crate) fn of(key: &Key, entry: &LockEntry, at: StoreTime) -> Result<Self> {
        let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
        let mut columns = Self {
            used_until: Some(to_sql_time(entry.in_use_until().unwrap_or_default().max(at))),
            last_fence: entry.last_fence().map_or(0, Fence::as_i64),
            ..Self::default()
        };
        if let Some(info) = entry.inspect(key, at) {
            columns.holders = i32::try_from(info.holders.len()).unwrap_or(i32::MAX);
            columns.waiters = i32::try_from(info.waiters.len()).unwrap_or(i32::MAX);
            if let Some(first) = info.holders.first() {
                columns.owner = text(first.owner.as_str());
                columns.metadata = text(first.metadata.as_str());
            }
        }
        // Also for the transactions of a holder that others wait for.
        columns.fences = entry.exclusive_fences().map(|fences| count(fences.count()));
        let fits = |plain: &Plain| {
            let holder = plain.holder.as_ref();
            holder.is_none_or(|holder| {
                !holder.owner.as_str().contains('\0') && !holder.metadata.as_str().contains('\0')
            })
        };
        let Some(plain) = entry.plain(at).filter(fits) else {
            columns.entry = Some(packed(key, entry)?);
            return Ok(columns);
        };
        columns.released = plain.released.map(|token| Uuid(*token.as_bytes()));
        let ended: Vec<u8> = plain.ended.iter().flat_map(|token| *token.as_bytes()).collect();
        columns.ended = Some(ended).filter(|ended| !ended.is_empty());
        if let Some(holder) = plain.holder {
            // Also of a lease that has expired since its holder was last dropped.
            columns.used_until = Some(to_sql_time(holder.expires_at));
            columns.holders = 1;
            columns.owner = text(holder.owner.as_str());
            columns.metadata = text(holder.metadata.as_str());
            columns.granted_at = Some(to_sql_time(holder.granted_at));
            columns.renewed_at = Some(to_sql_time(holder.given_at));
            columns.holds = Some(count(holder.holds));
            columns.token = Some(Uuid(*holder.token.as_bytes()));
        }
        Ok(columns)
    }
}

/// The bytes of a lock that does not fit the columns.
fn packed(key: &Key, entry: &LockEntry) -> Result<Vec<u8>> {
    let body = postcard::to_allocvec(entry).map_err(|error| {
        Error::new(ErrorKind::Protocol, format!("a lock can't be written: {error}"))
    })?;
    let mut bytes = Vec::with_capacity(body.len().saturating_add(HEAD));
    bytes.push(VERSION);
    bytes.extend(checksum(key, &body).to_le_bytes());
    bytes.extend(body);
    Ok(bytes)
}

fn damaged(what: &str) -> Error {
    let why = format!(
        "the lock's row is damaged: {what}; end what works under the lock, then delete the row"
    );
    Error::new(ErrorKind::Corrupt, why)
}

fn unpacked(key: &Key, bytes: &[u8]) -> Result<LockEntry> {
    let damaged = || damaged("entry does not fit its checksum");
    match bytes.first() {
        Some(&VERSION) => {}
        Some(version) if *version > VERSION => {
            let why = format!(
                "the lock's row has the format {version}, which this version can't read; use a newer one"
            );
            return Err(Error::new(ErrorKind::Corrupt, why).with_reason(Reason::OtherVersion));
        }
        Some(_) | None => return Err(damaged()),
    }
    let (sum, body) = bytes.get(1..).and_then(<[u8]>::split_first_chunk).ok_or_else(damaged)?;
    if u64::from_le_bytes(*sum) != checksum(key, body) {
        return Err(damaged());
    }
    let (entry, rest) = postcard::take_from_bytes(body).map_err(|_| damaged())?;
    if rest.is_empty() { Ok(entry) } else { Err(damaged()) }
}

/// FNV-1a (Fowler, Noll, Vo) of the name and the bytes: against accidents, not attacks.
fn checksum(key: &Key, body: &[u8]) -> u64 {
    let bytes = key.as_str().bytes().chain([0]).chain(body.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Found {
    /// Reads the answer of `read_1`.
    pub(crate) fn read(key: &Key, row: &Row) -> Result<Self> {
        let version: Option<i64> = get(row, "version")?;
        let now = time(get(row, "now")?);
        let epoch: Option<i32> = get(row, "epoch")?;
        let forgotten =
            if version.is_none() { fence(get(row, "forgotten")?)?.sequence() } else { 0 };
        let floor =
            now.as_micros().saturating_sub(Fence::ORIGIN_UNIX_US).clamp(1, Fence::SEQUENCE_MAX);
        let floor = floor.max(forgotten.saturating_add(1));
        let floor =
            Fence::new(u64::try_from(epoch.unwrap_or_default()).unwrap_or_default(), floor)?;
        let grants_from: Option<SystemTime> = get(row, "grants_from")?;
        let grants_from = grants_from.map(time).unwrap_or_default();
        let mut entry = if version.is_some() { entry(key, row)? } else { LockEntry::default() };
        if let Some(gone) = get::<Option<i64>>(row, "gone")? {
            entry.end_exclusive(fence(gone)?);
        }
        let now = Now { grants_from, ..Now::new(now, floor) };
        Ok(Self { entry, version, now, epoch, longest_ttl: get(row, "longest_ttl")? })
    }
}

fn entry(key: &Key, row: &Row) -> Result<LockEntry> {
    if let Some(bytes) = get::<Option<Vec<u8>>>(row, "entry")? {
        return unpacked(key, &bytes);
    }
    let token = |column| -> Result<Option<Token>> {
        Ok(get::<Option<Uuid>>(row, column)?.map(|token| Token::from_bytes(token.0)))
    };
    let last: i64 = get(row, "last_fence")?;
    // No greater one could follow all of them.
    if last >= LAST_FENCE_MAX {
        return Err(damaged("last_fence"));
    }
    let count = |column| -> Result<u32> {
        let count = get::<Option<i32>>(row, column)?.and_then(|count| u32::try_from(count).ok());
        count.filter(|count| *count > 0).ok_or_else(|| damaged(column))
    };
    let at = |column| -> Result<StoreTime> {
        get::<Option<SystemTime>>(row, column)?.map(time).ok_or_else(|| damaged(column))
    };
    let words = |column| Ok::<_, Error>(get::<Option<String>>(row, column)?.unwrap_or_default());
    let holder = match token("token")? {
        None if get::<Option<SystemTime>>(row, "granted_at")?.is_some() => {
            return Err(damaged("token"));
        }
        None => None,
        Some(token) => Some(PlainHolder {
            token,
            fences: count("fences")?,
            holds: count("holds")?,
            granted_at: at("granted_at")?,
            given_at: at("renewed_at")?,
            expires_at: at("used_until")?,
            owner: OwnerName::new(words("owner")?).map_err(|_| damaged("owner"))?,
            metadata: Metadata::new(words("metadata")?).map_err(|_| damaged("metadata"))?,
        }),
    };
    let ended = get::<Option<Vec<u8>>>(row, "ended")?.unwrap_or_default();
    let (ended, rest) = ended.as_chunks::<16>();
    if !rest.is_empty() {
        return Err(damaged("ended"));
    }
    let plain = Plain {
        last_fence: Some(fence(last)?).filter(|fence| *fence > Fence::ZERO),
        holder,
        released: token("released")?,
        ended: ended.iter().copied().map(Token::from_bytes).collect(),
    };
    Ok(plain.into())
}

pub(crate) fn fence(value: i64) -> Result<Fence> {
    let value = u64::try_from(value)
        .map_err(|_| Error::new(ErrorKind::Corrupt, "a fence in the table is negative"))?;
    Fence::from_value(value)
}

/// A column of an answer.
pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(|error| {
        Error::new(ErrorKind::Protocol, format!("the server's answer does not fit: {error}"))
    })
}
