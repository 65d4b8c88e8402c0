//! A lock in words, and as a document.

use std::time::Duration;

use leasehold::store::{Kind, Mode, escape};
use leasehold::{Client, Error, Fence, HolderInfo, Key, LockInfo, Metadata, Ttl};
use serde_json::Value;

use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::outer;
use crate::output;
use crate::typed;

/// As many waiters are named in a sentence.
const WAITERS_TOLD: usize = 3;

/// Who holds a lock, in words: `held by web-7_123 for 3m 5s (job=report)`.
pub(crate) fn state(info: &LockInfo) -> String {
    let mut text = match (info.holders.first(), info.closed_for) {
        (Some(holder), _) => {
            let note = match notes(&holder.metadata) {
                none if none.is_empty() => none,
                notes => format!(" ({notes})"),
            };
            let others = match info.holders.len() {
                1 => String::new(),
                2 => " and 1 other".to_owned(),
                n => format!(" and {} others", n.saturating_sub(1)),
            };
            let since = match holder.is_foreign() {
                true => String::new(),
                false => format!(" for {}", duration::show(holder.held_for)),
            };
            let end = match is_endless(holder) {
                true => "has no end: its key has no expiry".to_owned(),
                false => format!("expires {} unless renewed", end(holder)),
            };
            format!("held by {}{note}{others}{since}, its lease {end}", owner(holder))
        }
        (None, Some(left)) => cooling(left),
        (None, None) => "free".to_owned(),
    };
    if let Kind::Semaphore { limit } = info.kind {
        let held = info.permits_held();
        text.push_str(&format!(", {held} of {limit} permits held"));
    }
    if !info.waiters.is_empty() {
        text.push_str(&format!("; {} waiting", info.waiting()));
    }
    text
}

/// That a lock is free after this time.
pub(crate) fn cooling(left: Duration) -> String {
    format!("cooling down for another {}", duration::show(left))
}

/// Whether it has no end, as locks of other libraries may.
fn is_endless(holder: &HolderInfo) -> bool {
    holder.remaining > Ttl::MAX.duration()
}

/// The owner, or another program if the owner is unknown.
pub(crate) fn owner(holder: &HolderInfo) -> String {
    match holder.owner.as_str() {
        "" if holder.is_foreign() => "another program".to_owned(),
        _ => holder.owner.to_string(),
    }
}

/// When its lease ends.
pub(crate) fn end(holder: &HolderInfo) -> String {
    match is_endless(holder) {
        true => "never: its key has no expiry".to_owned(),
        false => format!("in {}", duration::show(holder.remaining)),
    }
}

/// That something was over before a moment, which has a name or is now, and how long before that.
pub(crate) fn before(by: Option<Duration>, moment: &str) -> String {
    let by =
        by.map_or_else(String::new, |by| duration::show(by.max(Duration::from_millis(1))) + " ");
    format!("{by}before {moment}").trim_end().to_owned()
}

/// Who waits for a lock beside this command: how many, and the first of them.
pub(crate) fn others_in_line(info: &LockInfo, of: &Client) -> String {
    let waiters = info.waiters.iter().filter(|waiter| !of.is_own(waiter.mark));
    let waiters: Vec<_> = waiters.collect();
    let waiting: u64 =
        waiters.iter().map(|waiter| u64::from(waiter.behind).saturating_add(1)).sum();
    if waiting == 0 {
        return String::new();
    }
    let names: Vec<String> =
        waiters.iter().take(WAITERS_TOLD).map(|waiter| waiter.owner.to_string()).collect();
    let more = if waiters.len() > WAITERS_TOLD { ", and more" } else { "" };
    let (noun, verb) = if waiting == 1 { ("other", "waits") } else { ("others", "wait") };
    format!(". {waiting} {noun} {verb}: {}{more}", names.join(", "))
}

/// The command that says more about a lock.
pub(crate) fn why(key: &Key) -> String {
    let command = typed::command_on("why", key);
    format!("{}`{command}`", typed::shells_for(&command))
}

/// Where a waiter that did not get a lock learns more.
pub(crate) fn see_why(key: &Key) -> String {
    format!(". See {}", why(key))
}

/// Says what is waited for. A wait that is long may be for a lock that is stuck.
pub(crate) fn tell_of_wait(info: &LockInfo, more: &str, is_long: bool) {
    let next = if is_long { see_why(&info.key) } else { String::new() };
    output::message(&format!("waiting: \"{}\" is {}{more}{next}", info.key, state(info)));
}

/// Prints that the lock was granted, and is not confirmed yet: the answer came too late, replicas
/// have yet to confirm it, or the server is warming up.
pub(crate) fn tell_of_grant(info: &LockInfo) {
    let since = info
        .holders
        .first()
        .map_or_else(String::new, |holder| format!(" {} ago", duration::show(holder.held_for)));
    output::message(&format!(
        "waiting: \"{}\" was granted to this command{since}, and is not confirmed yet",
        info.key
    ));
}

/// The notes of a lock, on one line; each was given on its own. The command's own notes are none.
pub(crate) fn notes(metadata: &Metadata) -> String {
    let lines = outer::said(metadata).map(|line| escape::name(line).to_string());
    lines.collect::<Vec<_>>().join(", ")
}

pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permits { count, limit } => format!("{count} of {limit} permits"),
        other => escape::terminal(&format!("{other:?}")).to_string(),
    }
}

/// The mode of a holder, as one word: `exclusive`, `shared`, `2/5`; `exclusive*3` when thrice.
pub(crate) fn short_mode(holder: &HolderInfo) -> String {
    let mode = match holder.mode {
        Mode::Permits { count, limit } => format!("{count}/{limit}"),
        other => self::mode(other),
    };
    if holder.holds > 1 { format!("{mode}*{}", holder.holds) } else { mode }
}

pub(crate) fn lock_json(info: &LockInfo) -> Outcome<Value> {
    let document = serde_json::to_value(info);
    let mut document = document
        .map_err(|error| Failure::new(Exit::Internal, format!("can't write the lock: {error}")))?;
    let of_holders = info.holders.iter().map(|holder| &holder.metadata).enumerate();
    of_holders.for_each(|(at, said)| document["holders"][at]["metadata"] = said_json(said));
    let of_waiters = info.waiters.iter().map(|waiter| &waiter.metadata).enumerate();
    of_waiters.for_each(|(at, said)| document["waiters"][at]["metadata"] = said_json(said));
    for (place, holder) in info.holders.iter().enumerate().filter(|(_, it)| it.is_foreign()) {
        let unknown = ["fence", "held_for_ms"].into_iter();
        let unknown = unknown.chain(is_endless(holder).then_some("remaining_ms"));
        unknown.for_each(|name| document["holders"][place][name] = Value::Null);
        match info.last_fence {
            Fence::ZERO => document["last_fence"] = Value::Null,
            // Its number, as the other library counts.
            number => {
                let number = Value::from(number.sequence().to_string());
                document["holders"][place]["fence"] = number.clone();
                document["last_fence"] = number;
            }
        }
    }
    Ok(document)
}

/// The same for a document, each on a line.
pub(crate) fn said_json(metadata: &Metadata) -> Value {
    outer::said(metadata).collect::<Vec<_>>().join("\n").into()
}

/// Prints why locks can't be read. Returns how to exit after the others are printed.
pub(crate) fn tell_unreadable(unreadable: &[Error]) -> Exit {
    for error in unreadable {
        output::message(&chain(error));
    }
    if unreadable.is_empty() { Exit::Success } else { Exit::Store }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use leasehold::{OwnerName, WaiterInfo};

    use super::*;

    /// Whether a text does more to a terminal than to print lines.
    pub(crate) fn steers(text: &str) -> bool {
        text.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}')
    }

    /// A lock whose users have written what steers terminals.
    pub(crate) fn hostile() -> LockInfo {
        let key = Key::new("a\u{202e}b").unwrap();
        let mut info = LockInfo::new(key, Kind::Lock, Fence::from_value(9).unwrap());
        let left = Duration::from_millis(27_500);
        let mut holder = HolderInfo::new(Mode::Exclusive, info.last_fence, left, left);
        holder.owner = OwnerName::new("web\x1b[2J").unwrap();
        holder.metadata = Metadata::new("job=\u{9b}31m\nx").unwrap();
        holder.asked_by = Some(OwnerName::new("db\x1b]0;x").unwrap());
        info.holders.push(holder);
        let mut waiter = WaiterInfo::new(Mode::Exclusive, left);
        waiter.owner = OwnerName::new("\u{7f}w").unwrap();
        info.waiters.push(waiter);
        info
    }

    #[test]
    fn what_strangers_wrote_can_not_steer_the_terminal_of_a_waiter() {
        let text = state(&hostile());
        assert!(!steers(&text), "{text:?}");
        assert!(text.contains("web\\u{1b}[2J"), "{text}");
    }

    #[test]
    fn a_lease_without_an_end_is_shown_as_one() {
        let mut info = hostile();
        assert!(
            state(&info).contains(", its lease expires in 27s unless renewed"),
            "{}",
            state(&info)
        );
        info.holders[0].remaining = Duration::MAX;
        assert!(state(&info).contains(", its lease has no end: its key has no expiry"));
    }

    #[test]
    fn the_document_has_the_names_as_they_are_and_times_in_milliseconds() {
        let document = lock_json(&hostile()).unwrap();
        assert_eq!(document["key"], "a\u{202e}b");
        assert_eq!(document["holders"][0]["owner"], "web\x1b[2J");
        assert_eq!(document["holders"][0]["remaining_ms"], 27_500);
        assert_eq!(document["holders"][0]["fence"], "9");
        assert_eq!(document["holders"][0]["asked_by"], "db\x1b]0;x");
        assert_eq!(document["closed_for_ms"], Value::Null);
    }
}
