//! The events of a lock's log: a record for people, never the reason of a decision.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use super::BoxFuture;
use crate::error::{Error, ErrorKind, Result};
use crate::fence::Fence;
use crate::key::Key;
use crate::label::OwnerName;

/// The most events that a log can keep.
pub const LOG_MAX: u32 = 100_000;

/// How many characters a note about the end of work may have.
pub const RESULT_MAX: usize = 64;

/// Where a store keeps the events of its locks: the last ones, written by clients after the fact.
///
/// No decision depends on it. An event is missing if its client was killed before it had written
/// it, or if the store was away. A written event may be gone before its time.
pub trait LockLog: Debug + Send + Sync + 'static {
    /// How many events the users of this store want it to keep; 0 if they write none.
    fn keeps(&self) -> u32;

    /// Appends events, in their order for each lock.
    fn append<'a>(&'a self, entries: &'a [LogEntry], within: Duration)
    -> BoxFuture<'a, Result<()>>;

    /// The last events of a lock, the oldest of them first: at most `last`.
    fn read<'a>(
        &'a self,
        key: &'a Key,
        last: usize,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<LogEntry>>>;
}

/// Checks the number of events that a URL wants a log to keep.
///
/// # Errors
///
/// [`ErrorKind::Config`] for anything but a number from 0 to [`LOG_MAX`].
pub fn checked_log(text: &str) -> Result<u32> {
    text.parse().ok().filter(|count| *count <= LOG_MAX).ok_or_else(|| {
        let why = format!("log must be a number of events up to {LOG_MAX}, as in log=1000");
        Error::new(ErrorKind::Config, why)
    })
}

/// The identity of an event in every log: its client's number and its own.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(clippy::exhaustive_structs, reason = "two numbers")]
pub struct LogId {
    /// Its client's, at random.
    pub client: u64,
    /// Counted by the client.
    pub number: u64,
}

/// Something that happened to a lock.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct LogEntry {
    /// The lock.
    pub key: Key,
    /// The event's identity.
    pub id: LogId,
    /// Since the Unix epoch, by the store's clock, in whole milliseconds. Made by the store.
    pub at: Duration,
    /// How long it took from the event until it was written. Made by the client.
    pub age: Duration,
    /// One word: `granted`, `adopted`, `handed_on`, `changed`, `detached`, `released`, `lost` or
    /// `forced`.
    pub event: Cow<'static, str>,
    /// A second word: how a release went, why a lease was lost.
    pub how: Option<Cow<'static, str>>,
    /// What the holder noted about the end of its work, as in `exit 3`: at most 64 characters.
    pub result: Option<Cow<'static, str>>,
    /// The fencing token (fence) of the hold.
    pub fence: Fence,
    /// The fence of the hold that ended with it.
    pub from: Option<Fence>,
    /// The length of the cooldown that it started.
    pub closed_for: Option<Duration>,
    /// The lease's owner, as shown; for `forced` the owner that did it.
    pub owner: OwnerName,
    /// The process that wrote it, as `host_pid_tag`.
    pub process: OwnerName,
}

impl LogEntry {
    /// An event; set the other fields after.
    #[must_use]
    pub fn new(key: Key, id: LogId, event: impl Into<Cow<'static, str>>, fence: Fence) -> Self {
        Self {
            key,
            id,
            at: Duration::ZERO,
            age: Duration::ZERO,
            event: event.into(),
            how: None,
            result: None,
            fence,
            from: None,
            closed_for: None,
            owner: OwnerName::default(),
            process: OwnerName::default(),
        }
    }

    /// All but key and time, as names and values, for stores to write. No value is empty.
    #[must_use]
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let LogId { client, number } = self.id;
        let mut fields = vec![
            ("event", self.event.to_string()),
            ("fence", self.fence.to_string()),
            ("id", format!("{client:016x}-{number}")),
        ];
        let ms = |length: Duration| length.as_millis().to_string();
        let mut add = |name, value: Option<String>| {
            fields.extend(value.filter(|value| !value.is_empty()).map(|value| (name, value)));
        };
        add("how", self.how.as_ref().map(ToString::to_string));
        add("result", self.result.as_ref().map(ToString::to_string));
        add("from", self.from.map(|fence| fence.to_string()));
        add("closed_ms", self.closed_for.map(ms));
        add("age_ms", Some(self.age).filter(|age| age.as_millis() > 0).map(ms));
        // As it is; the code that shows it to people makes it safe.
        add("owner", Some(self.owner.as_str().to_owned()));
        add("process", Some(self.process.as_str().to_owned()));
        fields
    }

    /// Reads what [`fields`](Self::fields) made, with what a later version adds to it, written at
    /// `at`. `None` for anything but an event.
    #[must_use]
    pub fn read(
        key: Key,
        at: Duration,
        fields: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
    ) -> Option<Self> {
        let (mut event, mut fence, mut id) = (None, None, None);
        let mut entry = Self::new(key, LogId::default(), "", Fence::ZERO);
        for (name, value) in fields {
            let value = value.as_ref();
            let ms = || value.parse().ok().map(Duration::from_millis);
            match name.as_ref() {
                "event" => event = word(value),
                "fence" => fence = read_fence(value),
                "id" => id = read_id(value),
                "how" => entry.how = word(value),
                "result" => entry.result = note(value),
                "from" => entry.from = read_fence(value),
                "closed_ms" => entry.closed_for = ms(),
                "age_ms" => entry.age = ms().unwrap_or_default(),
                "owner" => entry.owner = OwnerName::new(value).unwrap_or_default(),
                "process" => entry.process = OwnerName::new(value).unwrap_or_default(),
                _ => {}
            }
        }
        let at = at.saturating_sub(entry.age);
        Some(Self { event: event?, fence: fence?, id: id?, at, ..entry })
    }
}

/// Corrects impossible times: a client's event can't be later than its next one. The entries are in
/// order, at least for each client.
///
/// An event is older than its record by the time of the writing, of which its client knows only the
/// part before it began to write.
pub fn settle_log(entries: &mut [LogEntry]) {
    let mut latest = BTreeMap::new();
    for entry in entries.iter_mut().rev() {
        let bound = latest.entry(entry.id.client).or_insert(entry.at);
        entry.at = entry.at.min(*bound);
        *bound = entry.at;
    }
}

/// Lower-case letters and `_`.
fn word(text: &str) -> Option<Cow<'static, str>> {
    let fits = (1..=32).contains(&text.len());
    let plain = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    (fits && plain).then(|| Cow::Owned(text.to_owned()))
}

/// A holder's note, if it is short enough.
fn note(text: &str) -> Option<Cow<'static, str>> {
    let fits = (1..=RESULT_MAX).contains(&text.chars().count());
    fits.then(|| Cow::Owned(text.to_owned()))
}

fn read_fence(text: &str) -> Option<Fence> {
    Fence::from_value(text.parse().ok()?).ok()
}

fn read_id(text: &str) -> Option<LogId> {
    let (client, number) = text.split_once('-')?;
    Some(LogId { client: u64::from_str_radix(client, 16).ok()?, number: number.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> LogEntry {
        let fence = |value| Fence::from_value(value).unwrap();
        let key = Key::new("a b").unwrap();
        let mut entry = LogEntry::new(key, LogId { client: 0xab, number: 7 }, "released", fence(9));
        entry.how = Some("late".into());
        entry.result = Some("exit 3".into());
        entry.from = Some(fence(8));
        entry.closed_for = Some(Duration::from_secs(60));
        entry.owner = OwnerName::new("web = 1 %\n").unwrap();
        entry.process = OwnerName::new("host_12").unwrap();
        entry
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let mut entry = entry();
        entry.age = Duration::from_millis(250);
        let at = Duration::from_millis(10_000);
        let read = LogEntry::read(entry.key.clone(), at, entry.fields()).unwrap();
        entry.at = Duration::from_millis(9_750);
        assert_eq!(read, entry);
    }

    #[test]
    fn what_a_later_version_adds_is_left_out_and_what_is_no_event_is_none() {
        let whole = entry();
        let mut fields = whole.fields();
        fields.push(("weather", "rain".to_owned()));
        assert!(LogEntry::read(whole.key.clone(), Duration::ZERO, fields.clone()).is_some());
        for missing in ["event", "fence", "id"] {
            let rest = fields.iter().filter(|(name, _)| *name != missing).cloned();
            assert_eq!(LogEntry::read(whole.key.clone(), Duration::ZERO, rest), None, "{missing}");
        }
        for (name, bad) in [("event", "\u{1b}[2J"), ("fence", "-1"), ("id", "7"), ("event", "")] {
            let changed = fields.iter().map(|(field, value)| {
                (*field, if *field == name { bad.to_owned() } else { value.clone() })
            });
            assert_eq!(LogEntry::read(whole.key.clone(), Duration::ZERO, changed), None, "{bad:?}");
        }
    }

    #[test]
    fn nothing_of_a_client_was_after_what_it_did_later() {
        let at = |client, number, ms| {
            let fence = Fence::from_value(1).unwrap();
            let mut entry =
                LogEntry::new(Key::new("a").unwrap(), LogId { client, number }, "lost", fence);
            entry.at = Duration::from_millis(ms);
            entry
        };
        let mut entries = [at(1, 0, 50), at(2, 0, 70), at(1, 1, 40), at(1, 2, 60)];
        settle_log(&mut entries);
        assert_eq!(entries.map(|entry| entry.at.as_millis()), [40, 70, 40, 60]);
    }

    #[test]
    fn a_url_says_how_many_events_are_kept() {
        assert_eq!(checked_log("1000").unwrap(), 1_000);
        assert_eq!(checked_log("0").unwrap(), 0);
        for bad in ["", "-1", "100001", "many", "1k"] {
            assert_eq!(checked_log(bad).unwrap_err().kind(), ErrorKind::Config, "{bad}");
        }
    }
}
