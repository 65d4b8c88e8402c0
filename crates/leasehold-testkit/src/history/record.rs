//! One event of a history, in memory and as a line of text.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use leasehold_core::{Fence, Key, Mode, Moment};

/// One event of one acquisition.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "harnesses make records of their own")]
pub struct Record {
    /// When.
    pub at: Moment,
    /// The acquisition; all its records share this number, which is unique.
    pub attempt: u64,
    /// The lock.
    pub key: Key,
    /// How it is or would be held.
    pub mode: Mode,
    /// What.
    pub event: Event,
}

/// What happened to an acquisition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The request was about to be sent.
    Asked,
    /// The answer was read, and the lease counts.
    Granted {
        /// The lease's fence.
        fence: Fence,
    },
    /// The answer was read, and there is no lease.
    NotGranted,
    /// The outcome of the last request will never be known.
    Unknown,
    /// The holder was notified that the lease is lost.
    Lost,
    /// A release was about to be sent.
    ReleaseAsked,
    /// The release was answered.
    Released,
    /// The holder's process is gone.
    Died,
}

impl fmt::Display for Record {
    /// One line: nanoseconds, attempt, mode, event, and the name last, which may have blanks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.at.since_origin().as_nanos(), self.attempt)?;
        match self.mode {
            Mode::Exclusive => f.write_str("x "),
            Mode::Shared => f.write_str("s "),
            Mode::Permits { count, limit } => write!(f, "{count}/{limit} "),
            other => panic!("no letter for {other:?}"),
        }?;
        match self.event {
            Event::Asked => f.write_str("asked"),
            Event::Granted { fence } => write!(f, "granted={fence}"),
            Event::NotGranted => f.write_str("not-granted"),
            Event::Unknown => f.write_str("unknown"),
            Event::Lost => f.write_str("lost"),
            Event::ReleaseAsked => f.write_str("release-asked"),
            Event::Released => f.write_str("released"),
            Event::Died => f.write_str("died"),
        }?;
        write!(f, " {}", self.key.as_str())
    }
}

impl FromStr for Record {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let read = || {
            let mut words = line.splitn(5, ' ');
            let at = Moment::from_origin(Duration::from_nanos(words.next()?.parse().ok()?));
            let attempt = words.next()?.parse().ok()?;
            let mode = read_mode(words.next()?)?;
            let event = read_event(words.next()?)?;
            let key = Key::new(words.next()?).ok()?;
            Some(Self { at, attempt, key, mode, event })
        };
        read().ok_or_else(|| format!("no record of a history: {line:?}"))
    }
}

fn read_mode(word: &str) -> Option<Mode> {
    match word {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        permits => {
            let (count, limit) = permits.split_once('/')?;
            let count: NonZeroU32 = count.parse().ok()?;
            Some(Mode::Permits { count, limit: limit.parse().ok()? })
        }
    }
}

fn read_event(word: &str) -> Option<Event> {
    Some(match word {
        "asked" => Event::Asked,
        "not-granted" => Event::NotGranted,
        "unknown" => Event::Unknown,
        "lost" => Event::Lost,
        "release-asked" => Event::ReleaseAsked,
        "released" => Event::Released,
        "died" => Event::Died,
        granted => {
            let fence = granted.strip_prefix("granted=")?.parse().ok()?;
            Event::Granted { fence: Fence::from_value(fence).ok()? }
        }
    })
}
