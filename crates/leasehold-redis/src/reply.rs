//! What the scripts answer, read into outcomes. The shapes are in the headers of the scripts.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireAll, Already, Busy, Convert, Converted, Effect, Error, ErrorKind, Fence,
    FenceBlock, ForceRelease, Granted, HolderInfo, Key, Kind, Leave, LockInfo, Mode, Place,
    Refusal, Release, Renew, Result, SetLimit, Waiting,
};
use redis::Value;

use crate::spelling::{fence, kind, read_profile};
use crate::{classify, stored};

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

    fn micros(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_micros)
    }

    fn fence(&mut self) -> Option<Fence> {
        let epoch = self.number()?;
        fence(epoch, self.number()?)
    }

    /// `epoch fence count`
    fn block(&mut self) -> Option<FenceBlock> {
        let first = self.fence()?;
        Some(FenceBlock::new(first, self.number()?))
    }

    fn mode(&mut self) -> Option<impl FnOnce(u32) -> Option<Mode> + use<>> {
        let (letter, permits): (String, u64) = (self.text()?, self.number()?);
        Some(move |limit| match &*letter {
            "x" | "j" => Some(Mode::Exclusive),
            "s" => Some(Mode::Shared),
            "p" => Some(Mode::Permits {
                count: NonZeroU32::new(u32::try_from(permits).ok()?)?,
                limit: NonZeroU32::new(limit)?,
            }),
            _ => None,
        })
    }

    /// `epoch fence held left profile`
    fn holder(&mut self, mode: Mode) -> Option<HolderInfo> {
        let (fence, held_for, remaining) = (self.fence()?, self.micros()?, self.micros()?);
        let profile = self.text()?;
        let mut info = HolderInfo::new(mode, fence, held_for, remaining);
        (info.holds, info.owner, info.metadata, info.asked_by) = read_profile(&profile)?;
        Some(info)
    }

    /// `free_in [mode permits limit epoch fence held left profile]`
    fn contention(&mut self) -> Option<(Duration, Option<HolderInfo>)> {
        let free_in = self.micros()?;
        if self.0.len() == 0 {
            return Some((free_in, None));
        }
        let mode = self.mode()?;
        let mode = mode(self.number()?)?;
        Some((free_in, Some(self.holder(mode)?)))
    }
}

/// Reads an answer, or says that it could not be read: the operation was carried out, but how it
/// went is not known.
fn read<T>(value: Value, read: impl FnOnce(Value) -> Option<T>) -> Result<T> {
    read(value).ok_or_else(|| {
        Error::new(
            ErrorKind::Protocol,
            "the server's answer is not one that this version understands; is its clock set, and does it run Redis \
             6.2, Valkey 8.0 or later",
        )
        .with_effect(Effect::Unknown)
    })
}

/// Whether an answer tells who has the lock, as it is stored: what can't be read in it is damaged there.
fn tells_what_is_stored(value: &Value) -> bool {
    match value {
        Value::BulkString(text) => text.get(16) == Some(&b'#'),
        Value::Array(parts) => {
            matches!(parts.first(), Some(Value::BulkString(word)) if matches!(&**word, b"busy" | b"waiting"))
        }
        _ => false,
    }
}

/// What was asked for, as far as the answer does not repeat it.
pub(crate) struct Asked {
    pub(crate) epoch: u64,
    pub(crate) block: NonZeroU32,
    pub(crate) mode: Mode,
}

/// Whether an answer gives a lease, or more of one; of several answers, whether one does.
pub(crate) fn is_grant(value: &Value) -> bool {
    let Value::Array(parts) = value else { return matches!(value, Value::Int(_)) };
    let word = match parts.first() {
        Some(Value::BulkString(word)) => &**word,
        Some(Value::SimpleString(word)) => word.as_bytes(),
        _ => return parts.iter().any(is_grant),
    };
    matches!(word, b"granted" | b"already" | b"converted")
}

/// Passes on an answer about one lock, unless it says that something else stands at the key, or
/// that the server refused what the lock needs: nothing was changed then.
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
        "stopped" => Err(classify::stopped(&text(1)).to_error()),
        "failed" => {
            let said = text(1);
            // Before Redis 7 a script is told of what its user may not do by its own place first.
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

/// The answers about `count` locks, from a script that takes several. Where it was given one lock, it may
/// leave out the array around the answer: an array that begins with a word is such an answer.
fn answers(value: Value, count: usize) -> Option<Vec<Value>> {
    match value {
        _ if count == 1 => answer(value).map(|answer| vec![answer]),
        Value::Array(parts) => Some(parts).filter(|parts| parts.len() == count),
        _ => None,
    }
}

/// The answer about the one lock that a script was given.
fn answer(value: Value) -> Option<Value> {
    let is_word = |value: &Value| matches!(value, Value::BulkString(_) | Value::SimpleString(_));
    match value {
        Value::Array(parts) if parts.first().is_some_and(is_word) => Some(Value::Array(parts)),
        Value::Array(mut parts) => parts.pop().filter(|_| parts.is_empty()),
        Value::Int(_) | Value::BulkString(_) => Some(value),
        _ => None,
    }
}

/// Whether nothing was done about a lock, because the call took long already.
pub(crate) fn is_put_off(value: &Value) -> bool {
    let Value::Array(parts) = value else { return false };
    matches!(&**parts, [Value::BulkString(word)] if word == b"later")
}

/// The answers about `count` locks, as far as there are so many; else what no reader understands. A number is
/// the answer about each of them.
pub(crate) fn parts(value: Value, count: usize) -> Vec<Value> {
    if let Value::Int(_) = value {
        return vec![value; count];
    }
    answers(value, count).unwrap_or_else(|| vec![Value::Nil; count])
}

/// The same about one lock.
pub(crate) fn part(value: Value) -> Value {
    answer(value).unwrap_or(Value::Nil)
}

/// The answer about one lock of those that the script was given.
pub(crate) fn acquire(value: Value, asked: &Asked) -> Result<Acquire> {
    let value = checked(value)?;
    let stored = tells_what_is_stored(&value);
    match read(value, |value| read_acquire(value, asked)) {
        Err(_) if stored => Err(classify::damaged().with_effect(Effect::Unknown)),
        answer => answer,
    }
}

fn read_acquire(value: Value, asked: &Asked) -> Option<Acquire> {
    if let Value::Int(sequence) = value {
        let first = fence(asked.epoch, u64::try_from(sequence).ok()?)?;
        return Some(Acquire::Granted(Granted::new(FenceBlock::new(first, asked.block.get()))));
    }
    if let Value::BulkString(text) = &value {
        return stored::plain_waiting(text).map(Acquire::Waiting);
    }
    let mut parts = Parts::of(value)?;
    Some(match &*parts.text()? {
        "already" => {
            let fences = parts.block()?;
            Acquire::Already(Already::new(fences, parts.number()?))
        }
        "busy" => {
            let (retry_after, holder) = parts.contention()?;
            Acquire::Busy(Busy::new(retry_after, holder))
        }
        "waiting" => {
            let (position, place) = (parts.number()?, parts.number()?);
            let (retry_after, holder) = parts.contention()?;
            let place = Place::from_number(place);
            Acquire::Waiting(Waiting::new(position, place, retry_after, holder))
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

/// For how long the server has run for sure, from `INFO server`: both ends are counted in whole
/// seconds there, of which the second may have a fraction beside it.
pub(crate) fn age(value: Value) -> Result<Duration> {
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
        let seconds = field("uptime_in_seconds:")?.saturating_sub(1);
        let fraction = field("server_time_usec:").unwrap_or(0).rem_euclid(1_000_000);
        let micros = seconds.saturating_mul(1_000_000).saturating_add(fraction);
        // Below nothing when the server's clock was set back behind its start.
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
    })
}

/// The answer about all of several locks, or an error and which of them it is about, as far as that is known.
pub(crate) fn acquire_all(
    value: Value,
    asked: &[Asked],
) -> std::result::Result<AcquireAll, (Option<usize>, Error)> {
    let blocked = read(value, |value| {
        let mut parts = Parts::of(value)?;
        match &*parts.text()? {
            "granted" => {
                let mut fences = Parts::of(parts.0.next()?)?;
                let all: Option<Vec<_>> = asked.iter().map(|_| fences.block()).collect();
                Some(Ok(AcquireAll::Granted(all?)))
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

/// What a request for another mode was answered, under this limit.
pub(crate) fn convert(value: Value, asked: Mode) -> Result<Convert> {
    read(checked(value)?, |value| {
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
    read(checked(value)?, |value| {
        let mut parts = Parts::of(value)?;
        Some(match &*parts.text()? {
            "set" => SetLimit::Set { before: NonZeroU32::new(parts.number()?)? },
            "not-in-use" => SetLimit::NotInUse,
            "wrong-kind" => SetLimit::Refused(Refusal::WrongKind { stored: kind(parts.number()?) }),
            _ => return None,
        })
    })
}

/// How many holders were asked, and where to go on with the others, if there are any.
pub(crate) fn ask(value: Value) -> Result<(u32, u32)> {
    read(checked(value)?, |value| {
        let mut parts = Parts::of(value)?;
        (parts.text()? == "asked").then_some(())?;
        Some((parts.number()?, parts.number()?))
    })
}

/// The answer about one lock of those that the script was given.
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
    read(checked(value)?, |value| match &*Parts::of(value)?.text()? {
        "left" => Some(Leave::Left),
        "released" => Some(Leave::Released),
        "not-held" => Some(Leave::NotHeld),
        _ => None,
    })
}

/// What became of the lease that was meant, and where to go on looking for it, if there are more.
pub(crate) fn force_release(value: Value) -> Result<(ForceRelease, u32)> {
    read(checked(value)?, |value| {
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

/// One answer for each of `count` renewals, which the script gives once where all were renewed.
pub(crate) fn renew(value: Value, count: usize) -> Result<Vec<Result<Renew>>> {
    if value == Value::Int(1) {
        return Ok((0..count).map(|_| Ok(Renew::Renewed)).collect());
    }
    let answers = read(value, |value| answers(value, count))?;
    Ok(answers.into_iter().map(|answer| read(checked(answer)?, read_renewal)).collect())
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

/// Describes a lock, from the present, all that is stored for it, and the fence retention.
pub(crate) fn inspect(value: Value, key: &Key, retention: Duration) -> Result<Option<LockInfo>> {
    let parts = read(checked(value)?, |value| {
        let mut parts = Parts::of(value)?;
        let now: u64 = parts.number()?;
        let fields = Parts::of(parts.0.next()?)?.0;
        Some((now, redis::from_redis_value(Value::Array(fields.collect())).ok()?))
    });
    let (now, fields): (u64, HashMap<Vec<u8>, Vec<u8>>) = parts?;
    stored::read(&fields)?.map_or(Ok(None), |stored| Ok(stored.describe(key, now, retention)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn the_answer_about_one_lock_is_the_same_with_an_array_around_it_and_without() {
        let late = || Value::Array(vec![word("late")]);
        let waiting = || Value::Array(vec![word("waiting"), Value::Int(1)]);
        for answer in [|| Value::Int(7), late, waiting] {
            for given in [answer(), Value::Array(vec![answer()])] {
                assert_eq!(parts(given.clone(), 1), [answer()]);
                assert_eq!(part(given), answer());
            }
            assert_eq!(parts(Value::Array(vec![answer(), late()]), 2), [answer(), late()]);
        }
        let text = || word("1 7");
        assert_eq!(parts(text(), 1), [text()]);
        assert_eq!(parts(Value::Array(vec![text(), text()]), 2), [text(), text()]);
        assert_eq!(parts(Value::Int(7), 2), [Value::Int(7), Value::Int(7)]);
        // What no script answers.
        assert_eq!(parts(late(), 2), [Value::Nil, Value::Nil]);

        assert_eq!(parts(Value::Okay, 1), [Value::Nil]);
        assert_eq!(parts(Value::Array(vec![late(), late()]), 1), [Value::Nil]);
    }

    #[test]
    fn renewals_are_answered_once_where_all_were_renewed_and_else_each_for_itself() {
        let told = |value| -> Vec<Renew> {
            renew(value, 3).unwrap().into_iter().collect::<Result<_>>().unwrap()
        };
        assert_eq!(told(Value::Int(1)), [Renew::Renewed; 3]);
        let late = Value::Array(vec![word("late")]);
        let each = Value::Array(vec![Value::Int(1), late.clone(), Value::Int(2)]);
        assert_eq!(told(each), [Renew::Renewed, Renew::Late, Renew::Asked]);
        // Nothing else is about all.
        for other in [Value::Int(2), Value::Int(0), late, word("1"), Value::Okay] {
            assert!(renew(other, 3).is_err());
        }
    }
}
