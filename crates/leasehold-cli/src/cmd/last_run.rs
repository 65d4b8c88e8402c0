//! Reads from the store's log who had a closed lock last, when, and how that ended.

use leasehold::store::{LogEntry, escape};
use leasehold::{Client, LockInfo};
use serde_json::{Value, json};

use crate::cmd::log;

/// As many events are looked at.
const LOOK_AT: usize = 200;

#[derive(Debug)]
pub(crate) struct LastRun {
    began: LogEntry,
    ended: Option<LogEntry>,
    /// Its lease outlived its process on purpose.
    handed_over: bool,
}

impl LastRun {
    /// The last run in the log, for a lock that is cooling down without a holder. A missing log is
    /// not an error here.
    pub(crate) async fn of(client: &Client, info: &LockInfo) -> Option<Self> {
        if info.closed_for.is_none() || !info.holders.is_empty() {
            return None;
        }
        let key = &info.key;
        Self::among(&client.log(key, LOOK_AT).await.ok()?)
    }

    fn among(entries: &[LogEntry]) -> Option<Self> {
        let begins =
            |entry: &LogEntry| matches!(&*entry.event, "granted" | "handed_on" | "changed");
        let (at, began) = entries.iter().enumerate().rfind(|(_, entry)| begins(entry))?;
        let ends = |entry: &&LogEntry| matches!(&*entry.event, "released" | "lost" | "forced");
        let mut later = entries.iter().skip(at).filter(|entry| entry.fence == began.fence);
        let handed_over = later.clone().any(|entry| entry.event == "detached");
        Some(Self { began: began.clone(), ended: later.rfind(ends).cloned(), handed_over })
    }

    /// What is known, for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        let Self { began, ended, handed_over } = self;
        let process = match began.process == began.owner {
            true => String::new(),
            false => format!(" ({})", began.process),
        };
        let fence = began.fence;
        let (owner, at) = (&began.owner, log::time(began));
        let first = format!("  {owner}{process} held it last, from {at} on, with fence {fence}");
        let second = match ended {
            Some(end) => {
                let how = end.how.as_ref().map(|how| format!(" ({})", how.replace('_', " ")));
                let (word, at) = (end.event.replace('_', " "), log::time(end));
                let result = match &end.result {
                    Some(result) => format!("; its work ended with: {}", escape::terminal(result)),
                    None => String::new(),
                };
                format!("  it was {word}{} at {at}{result}", how.unwrap_or_default())
            }
            None if *handed_over => {
                "  another process was to release it, which this log does not record".to_owned()
            }
            None => "  its end is not in the log: its process may have been killed".to_owned(),
        };
        vec![first, second]
    }

    pub(crate) fn document(&self) -> Value {
        json!({
            "began": log::document(&self.began),
            "ended": self.ended.as_ref().map(log::document),
        })
    }
}

#[cfg(test)]
mod tests {
    use leasehold::store::LogId;
    use leasehold::{Fence, Key};

    use super::*;

    fn entries(events: &[(&'static str, u64)]) -> Vec<LogEntry> {
        let entry = |(number, (event, fence)): (u64, &(&'static str, u64))| {
            let id = LogId { client: 1, number };
            let fence = Fence::from_value(*fence).unwrap();
            LogEntry::new(Key::new("k").unwrap(), id, *event, fence)
        };
        (0..).zip(events).map(entry).collect()
    }

    #[test]
    fn the_last_hold_and_its_own_end_are_found() {
        let last = |events: &[(&'static str, u64)]| {
            let last = LastRun::among(&entries(events))?;
            Some((last.began.fence.value(), last.ended.map(|end| end.event.to_string())))
        };
        assert_eq!(last(&[]), None);
        assert_eq!(last(&[("released", 1)]), None);
        assert_eq!(last(&[("granted", 1), ("granted", 2), ("released", 1)]), Some((2, None)));
        let whole = [("granted", 1), ("lost", 1), ("released", 1)];
        assert_eq!(last(&whole), Some((1, Some("released".to_owned()))));
        let ended = |events: &[(&'static str, u64)]| {
            LastRun::among(&entries(events)).unwrap().lines().pop().unwrap()
        };
        assert!(ended(&[("granted", 1)]).contains("may have been killed"));
        assert!(ended(&[("granted", 1), ("detached", 1)]).contains("another process"));
    }
}
