//! Reads the answers of scripts into outcomes; the scripts' headers define the shapes.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireAll, Already, Busy, Convert, Converted, Effect, Error, ErrorKind, Fence,
    FenceBlock, ForceRelease, Granted, Key, Kind, Leave, LockInfo, Mode, Refusal, Release, Renew,
    Result, SetLimit,
};
use redis::Value;

use crate::classify;
use crate::wire::raw;
use crate::wire::spelling::{fence, kind};
use crate::wire::stored::{self, Seen};

/// The parts of an answer, taken one after the other.
struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    fn of(value: Value) -> Option<Self> {
        match value {
            Value::Array(parts) => Some(Self(parts.into_iter())),
            _ => None,
        }
    }

    fn number<T: TryFrom<i64>>(&mut self) -> Option<T> {
        match self.0.next()? {
            Value::Int(number) => T::try_from(number).ok(),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<String> {
        match self.0.next()? {
            Value::BulkString(bytes) => Some(
                String::from_utf8(bytes)
                    .unwrap_or_else(|odd| String::from_utf8_lossy(odd.as_bytes()).into_owned()),
            ),
            Value::SimpleString(text) => Some(text),
            _ => None,
        }
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        match self.0.next()? {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// `epoch fence`
    fn fence(&mut self) -> Option<Fence> {
        let epoch = self.number()?;
        fence(epoch, self.number()?)
    }

    /// `epoch fence count`
    fn block(&mut self) -> Option<FenceBlock> {
        let first = self.fence()?;
        Some(FenceBlock::new(first, self.number()?))
    }

    /// `now state what`
    fn seen(&mut self) -> Option<Seen> {
        let (now, state, what) = (self.number()?, self.bytes()?, self.bytes()?);
        Seen::read(now, &state, &what)
    }
}

/// Reads an answer. If that fails, the operation was carried out, and its result is unknown.
fn read<T>(value: Value, read: impl FnOnce(Value) -> Option<T>) -> Result<T> {
    read(value).ok_or_else(|| {
        Error::new(
            ErrorKind::Protocol,
            "the answer is unreadable; check that the server runs Redis 6.2, Valkey 8.0 or later, \
             and its clock",
        )
        .with_effect(Effect::Unknown)
    })
}

/// Whether an answer has stored data about a lock's holder: if it is unreadable, the stored data is
/// damaged.
fn tells_what_is_stored(value: &Value) -> bool {
    let Value::Array(parts) = value else { return false };
    matches!(
        parts.first(),
        Some(Value::BulkString(word)) if matches!(&**word, b"already" | b"busy" | b"waiting" | b"converted")
    )
}

/// Reads an answer that may have stored data.
fn read_stored<T>(value: Value, read_it: impl FnOnce(Value) -> Option<T>) -> Result<T> {
    let stored = tells_what_is_stored(&value);
    match read(value, read_it) {
        Err(_) if stored => Err(classify::damaged().with_effect(Effect::Unknown)),
        answer => answer,
    }
}

/// The parts of a request that the answer does not repeat.
pub(crate) struct Asked {
    pub(crate) epoch: u64,
    pub(crate) block: NonZeroU32,
    pub(crate) mode: Mode,
}

/// Whether an answer grants or renews a lease; for several answers, whether one of them does.
pub(crate) fn is_grant(value: &Value) -> bool {
    let Value::Array(parts) = value else { return matches!(value, Value::Int(_)) };
    let word = match parts.first() {
        Some(Value::BulkString(word)) => &**word,
        Some(Value::SimpleString(word)) => word.as_bytes(),
        _ => return parts.iter().any(is_grant),
    };
    matches!(word, b"granted" | b"already" | b"converted")
}

/// Returns an answer about one lock. It is an error if the key has foreign data, or if the server
/// refused the commands that the lock needs; the lock is then unchanged.
fn checked(value: Value) -> Result<Value> {
    let Value::Array(parts) = &value else { return Ok(value) };
    let text = |at: usize| match parts.get(at) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Some(Value::SimpleString(text)) => text.clone(),
        _ => String::new(),
    };
    match &*text(0) {
        "foreign" => Err(classify::foreign()),
        "damaged" => Err(classify::damaged()),
        "version" => Err(classify::other_version(&text(1))),
        "failed" => {
            let said = text(1);
            // Before Redis 7, an error about missing rights inside a script begins with its place
            // there.
            let (code, detail) = match said.split_once(' ') {
                Some((place, _)) if place.starts_with('@') => ("ERR", &*said),
                Some(parts) => parts,
                None => (&*said, ""),
            };
            Err(classify::server(code, detail).with_effect(Effect::NotApplied).to_error())
        }
        _ => Ok(value),
    }
}

/// Whether the script has postponed the lock, because the call already took long.
pub(crate) fn is_put_off(value: &Value) -> bool {
    let Value::Array(parts) = value else { return false };
    matches!(&**parts, [Value::BulkString(word)] if word == b"later")
}

/// The answers about `count` locks. One number is the answer about each of them; a wrong count
/// makes all answers unreadable.
pub(crate) fn parts(value: Value, count: usize) -> Vec<Value> {
    match value {
        Value::Int(_) => vec![value; count],
        Value::Array(parts) if parts.len() == count => parts,
        _ => vec![Value::Nil; count],
    }
}

/// The answer about one lock.
pub(crate) fn part(value: Value) -> Value {
    match value {
        Value::Int(_) => value,
        value => parts(value, 1).pop().unwrap_or(Value::Nil),
    }
}

/// Reads the answer about one lock of a script call.
pub(crate) fn acquire(value: Value, asked: &Asked) -> Result<Acquire> {
    read_stored(checked(value)?, |value| read_acquire(value, asked))
}

fn read_acquire(value: Value, asked: &Asked) -> Option<Acquire> {
    if let Value::Int(sequence) = value {
        let first = fence(asked.epoch, u64::try_from(sequence).ok()?)?;
        return Some(Acquire::Granted(Granted::new(FenceBlock::new(first, asked.block.get()))));
    }
    let mut parts = Parts::of(value)?;
    Some(match &*parts.text()? {
        "already" => {
            let holder = parts.seen()?.holder?;
            Acquire::Already(Already::new(holder.fences, holder.holds))
        }
        "busy" => {
            let seen = parts.seen()?;
            Acquire::Busy(Busy::new(seen.free_in(), seen.into_info()))
        }
        "waiting" => {
            let seen = parts.seen()?;
            Acquire::Waiting(seen.waiting(parts.number()?))
        }
        "wrong-kind" => Acquire::Refused(Refusal::WrongKind { stored: kind(parts.number()?) }),
        "too-many-permits" => match asked.mode.kind() {
            Kind::Semaphore { limit } => Acquire::Refused(Refusal::TooManyPermits { limit }),
            _ => return None,
        },
        "queue-full" => Acquire::Refused(Refusal::QueueFull { waiters: parts.number()? }),
        _ => return None,
    })
}

/// A server's run id, from its answer to `INFO server`.
pub(crate) fn run_id(info: &Value) -> Option<String> {
    let text = match info {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    let id = text.lines().find_map(|line| line.strip_prefix("run_id:"))?.trim();
    Some(id.to_owned()).filter(|id| !id.is_empty())
}

/// A server's report of its age.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Uptime {
    /// How long it has certainly run.
    pub(crate) at_least: Duration,
    /// By how much its clock is behind the time of its start.
    pub(crate) set_back: Option<Duration>,
}

/// The server's age from `INFO server`. Start and present are in whole seconds there; a further
/// field may have the present's fraction.
pub(crate) fn uptime(value: Value) -> Result<Uptime> {
    read(value, |value| {
        let text = match value {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok()?,
            Value::VerbatimString { text, .. } => text,
            _ => return None,
        };
        let field = |name: &str| {
            let number = text.lines().find_map(|line| line.strip_prefix(name))?;
            number.trim().parse::<i64>().ok()
        };
        let told = field("uptime_in_seconds:")?;
        let fraction = field("server_time_usec:").unwrap_or(0).rem_euclid(1_000_000);
        let micros = told.saturating_sub(1).saturating_mul(1_000_000).saturating_add(fraction);
        Some(Uptime {
            at_least: Duration::from_micros(u64::try_from(micros).unwrap_or(0)),
            set_back: (told < 0).then(|| Duration::from_secs(told.unsigned_abs())),
        })
    })
}

/// Reads the answer about several locks, or an error and the lock that it is about, if that is
/// known.
pub(crate) fn acquire_all(
    value: Value,
    asked: &[Asked],
) -> std::result::Result<AcquireAll, (Option<usize>, Error)> {
    let blocked = read(part(value), |value| {
        let mut parts = Parts::of(value)?;
        match &*parts.text()? {
            "granted" => {
                let answers = Parts::of(parts.0.next()?)?.0;
                let fences = |(answer, asked)| read_acquire(answer, asked)?.fences();
                let all: Option<Vec<_>> = answers.zip(asked).map(fences).collect();
                Some(Ok(AcquireAll::Granted(all.filter(|all| all.len() == asked.len())?)))
            }
            "blocked" => {
                let index: usize = parts.number()?;
                Some(Err((index, parts.0.next()?)))
            }
            _ => None,
        }
    });
    let (index, answer) = match blocked.map_err(|error| (None, error))? {
        Ok(granted) => return Ok(granted),
        Err(blocked) => blocked,
    };
    let about = |error| (Some(index), error);
    let asked = read(Value::Nil, |_| asked.get(index)).map_err(about)?;
    Ok(AcquireAll::Blocked { index, answer: acquire(answer, asked).map_err(about)? })
}

/// Reads the answer to a request for another mode, under this limit.
pub(crate) fn convert(value: Value, asked: Mode) -> Result<Convert> {
    read_stored(checked(part(value))?, |value| {
        let mut parts = Parts::of(value)?;
        Some(match &*parts.text()? {
            "converted" => Convert::Converted(Converted::new(parts.block()?)),
            "busy" => Convert::Busy { others: parts.number()? },
            "wrong-kind" => Convert::Refused(Refusal::WrongKind { stored: kind(parts.number()?) }),
            "too-many-permits" => match asked.kind() {
                Kind::Semaphore { limit } => Convert::Refused(Refusal::TooManyPermits { limit }),
                _ => return None,
            },
            "late" => Convert::Late,
            "not-held" => Convert::NotHeld,
            _ => return None,
        })
    })
}

pub(crate) fn set_limit(value: Value) -> Result<SetLimit> {
    read(checked(part(value))?, |value| {
        let mut parts = Parts::of(value)?;
        Some(match &*parts.text()? {
            "set" => SetLimit::Set { before: NonZeroU32::new(parts.number()?)? },
            "not-in-use" => SetLimit::NotInUse,
            "wrong-kind" => SetLimit::Refused(Refusal::WrongKind { stored: kind(parts.number()?) }),
            _ => return None,
        })
    })
}

/// How many holders got the release request, and where to continue if there are more.
pub(crate) fn ask(value: Value) -> Result<(u32, u32)> {
    read(checked(part(value))?, |value| {
        let mut parts = Parts::of(value)?;
        (parts.text()? == "asked").then_some(())?;
        Some((parts.number()?, parts.number()?))
    })
}

/// Reads the answer about one lock of a script call.
pub(crate) fn release(value: Value) -> Result<Release> {
    read(checked(value)?, |value| {
        if value == Value::Int(1) {
            return Some(Release::Released);
        }
        let mut parts = Parts::of(value)?;
        Some(match &*parts.text()? {
            "still-held" => Release::StillHeld { holds: parts.number()? },
            "late" => Release::Late,
            "not-held" => Release::NotHeld,
            _ => return None,
        })
    })
}

pub(crate) fn leave(value: Value) -> Result<Leave> {
    read(checked(part(value))?, |value| match &*Parts::of(value)?.text()? {
        "left" => Some(Leave::Left),
        "released" => Some(Leave::Released),
        "not-held" => Some(Leave::NotHeld),
        _ => None,
    })
}

/// The result for the lease in question, and where to continue the search if there are more.
pub(crate) fn force_release(value: Value) -> Result<(ForceRelease, u32)> {
    read(checked(part(value))?, |value| {
        let mut parts = Parts::of(value)?;
        Some(match &*parts.text()? {
            "released" => (ForceRelease::Released, 0),
            "not-held" => (ForceRelease::NotHeld, 0),
            "other-fence" => {
                let onward = parts.number()?;
                let mut fences = Vec::new();
                while parts.0.len() > 0 {
                    fences.push(parts.fence()?);
                }
                fences.sort_unstable();
                (ForceRelease::OtherFence { fences }, onward)
            }
            _ => return None,
        })
    })
}

/// One answer for each of `count` renewals.
pub(crate) fn renew(value: Value, count: usize) -> Vec<Result<Renew>> {
    let answers = parts(value, count).into_iter();
    answers.map(|answer| read(checked(answer)?, read_renewal)).collect()
}

fn read_renewal(value: Value) -> Option<Renew> {
    match value {
        Value::Int(1) => Some(Renew::Renewed),
        Value::Int(2) => Some(Renew::Asked),
        value => match &*Parts::of(value)?.text()? {
            "late" => Some(Renew::Late),
            "not-held" => Some(Renew::NotHeld),
            _ => None,
        },
    }
}

/// The fields of a lock with their values.
type Fields = HashMap<Vec<u8>, Vec<u8>>;

/// The present, all stored data of a lock, and its time to live in ms.
fn looked_at(value: Value) -> Result<(u64, Fields, i64)> {
    read(checked(part(value))?, |value| {
        let mut parts = Parts::of(value)?;
        let now = parts.number()?;
        let fields = Parts::of(parts.0.next()?)?.0;
        let fields = redis::from_redis_value(Value::Array(fields.collect())).ok()?;
        Some((now, fields, parts.number()?))
    })
}

/// Describes the stored data of the lock with this key, for people.
pub(crate) fn raw(value: Value, record: &str) -> Result<Vec<String>> {
    let (now, fields, left) = looked_at(value)?;
    Ok(raw::lines(record, now, left, &fields))
}

/// Describes a lock, from the present, its stored data, and the fence retention.
pub(crate) fn inspect(value: Value, key: &Key, retention: Duration) -> Result<Option<LockInfo>> {
    let (now, fields, _) = looked_at(value)?;
    stored::read(&fields)?.map_or(Ok(None), |stored| Ok(stored.describe(key, now, retention)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn each_lock_has_an_answer_of_its_own_and_nothing_else_is_understood() {
        let late = || Value::Array(vec![word("late")]);
        let each = || Value::Array(vec![Value::Int(1), late(), Value::Int(2)]);
        assert_eq!(parts(each(), 3), [Value::Int(1), late(), Value::Int(2)]);
        let told: Vec<_> = renew(each(), 3).into_iter().map(Result::unwrap).collect();
        assert_eq!(told, [Renew::Renewed, Renew::Late, Renew::Asked]);
        assert_eq!(part(Value::Array(vec![late()])), late());
        assert_eq!(parts(Value::Int(7), 2), [Value::Int(7), Value::Int(7)]);
        for odd in [Value::Okay, word("late"), each()] {
            assert_eq!(parts(odd.clone(), 2), [Value::Nil, Value::Nil]);
            assert!(renew(odd, 2).iter().all(Result::is_err));
        }
    }
}
