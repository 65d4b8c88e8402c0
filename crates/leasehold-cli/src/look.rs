//! `ls` and `show`: what can be seen.

use leasehold::core::{Kind, Mode, escape};
use leasehold::{Error, HolderInfo, Key, Listing, LockInfo, Metadata};
use serde_json::{Value, json};

use crate::cli::{Ls, Show};
use crate::context::Context;
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::output::{self, JSON_VERSION};
use crate::secret;
use crate::take;

pub(crate) async fn ls(args: &Ls, context: &Context) -> Outcome {
    let prefix = match args.prefix.as_deref().map(|prefix| prefix.to_str()) {
        None => "",
        Some(Some(prefix)) => prefix,
        Some(None) => return Err(Failure::usage("the prefix is not UTF-8, so no name has it")),
    };
    let Listing { locks, unreadable, .. } = match context.connect_to_look().await? {
        Some(client) => client.list(prefix).await?,
        None => Listing::default(),
    };
    if args.json {
        let locks = locks.iter().map(lock_json).collect::<Outcome<Vec<Value>>>()?;
        let unreadable: Vec<Value> = unreadable.iter().map(unreadable_json).collect();
        let document = json!({ "version": JSON_VERSION, "locks": locks, "unreadable": unreadable });
        output::json(&document)?;
    } else if !(locks.is_empty() && unreadable.is_empty()) {
        let rows = list(&locks, &unreadable);
        output::data(&output::table(&rows))?;
    }
    Ok(tell_unreadable(&unreadable))
}

/// Says of each lock that can't be read why, and how to exit once the others are told.
pub(crate) fn tell_unreadable(unreadable: &[Error]) -> Exit {
    for error in unreadable {
        output::message(&chain(error));
    }
    if unreadable.is_empty() { Exit::Success } else { Exit::Store }
}

fn unreadable_json(error: &Error) -> Value {
    json!({ "key": error.key().map(Key::as_str), "message": secret::redact(&chain(error)) })
}

pub(crate) async fn show(args: &Show, context: &Context) -> Outcome {
    let key = take::key(&args.key)?;
    let info = match context.connect_to_look().await? {
        Some(client) => client.inspect(&key).await?,
        None => None,
    };
    if args.json {
        let lock = info.as_ref().map_or(Ok(Value::Null), lock_json)?;
        output::json(&json!({ "version": JSON_VERSION, "key": key.as_str(), "lock": lock }))?;
        return Ok(Exit::Success);
    }
    let text = match &info {
        Some(info) => description(info),
        None => output::table(&[row("key", &key), row("state", "free")]),
    };
    output::data(&text)?;
    Ok(Exit::Success)
}

fn row(name: &str, value: impl ToString) -> Vec<String> {
    vec![name.to_owned(), value.to_string()]
}

/// A heading, and one row per holder, or one for a lock that nobody holds or that can't be read. The
/// columns are always the same, so that a script can count them.
fn list(locks: &[LockInfo], unreadable: &[Error]) -> Vec<Vec<String>> {
    let heading =
        ["KEY", "MODE", "FENCE", "OWNER", "HELD", "LEFT", "CLOSED", "ASKED", "WAITING", "META"];
    let mut rows = vec![heading.map(str::to_owned).into()];
    let none = || "-".to_owned();
    for info in locks {
        let waiting = if info.waiters.is_empty() { none() } else { info.waiters.len().to_string() };
        let closed = info.closed_for.map_or_else(none, duration::show);
        let key = info.key.to_string();
        if info.holders.is_empty() {
            let state = if info.closed_for.is_some() { "(closed)" } else { "(free)" };
            let mode = if info.kind == Kind::Lock { none() } else { short_kind(info.kind) };
            let state = state.to_owned();
            rows.push(vec![
                key,
                mode,
                none(),
                state,
                none(),
                none(),
                closed,
                none(),
                waiting,
                String::new(),
            ]);
            continue;
        }
        for holder in &info.holders {
            rows.push(vec![
                key.clone(),
                short_mode(holder),
                holder.fence.to_string(),
                holder.owner.to_string(),
                duration::show(holder.held_for),
                duration::show(holder.remaining),
                closed.clone(),
                holder.asked_by.as_ref().map_or_else(none, ToString::to_string),
                waiting.clone(),
                notes(&holder.metadata),
            ]);
        }
    }
    for error in unreadable {
        let key = error.key().map_or_else(|| "(?)".to_owned(), ToString::to_string);
        let row = [&key, "-", "-", "(unreadable)", "-", "-", "-", "-", "-", ""];
        rows.push(row.map(str::to_owned).into());
    }
    rows
}

/// What somebody says of a lock, on a line; each note was given on one of its own.
pub(crate) fn notes(metadata: &Metadata) -> String {
    let lines = metadata.as_str().lines().map(|line| escape::terminal(line).to_string());
    lines.collect::<Vec<_>>().join(", ")
}

/// A kind, as one word.
fn short_kind(kind: Kind) -> String {
    match kind {
        Kind::Semaphore { limit } => format!("0/{limit}"),
        other => escape::terminal(&other.to_string()).to_string(),
    }
}

/// How somebody holds, as one word: `exclusive`, `shared`, `2/5`; `exclusive*3` when thrice.
fn short_mode(holder: &HolderInfo) -> String {
    let mode = match holder.mode {
        Mode::Permits { count, limit } => format!("{count}/{limit}"),
        other => mode(other),
    };
    if holder.holds > 1 { format!("{mode}*{}", holder.holds) } else { mode }
}

fn description(info: &LockInfo) -> String {
    let state = match (info.holders.len(), info.closed_for) {
        (0, Some(left)) => format!("closed for another {}", duration::show(left)),
        (0, None) => "free".to_owned(),
        _ => "held".to_owned(),
    };
    let mut rows = vec![row("key", &info.key), row("state", state)];
    if info.kind != Kind::Lock {
        rows.push(row("kind", info.kind));
        let (held, free) = (info.permits_held(), info.permits_free());
        rows.push(row("permits", format!("{held} held, {free} free")));
    }
    if let (false, Some(left)) = (info.holders.is_empty(), info.closed_for) {
        rows.push(row("closed", format!("for another {}", duration::show(left))));
    }
    for holder in &info.holders {
        rows.push(row("holder", &holder.owner));
        rows.push(row("  fence", holder.fence));
        rows.push(row("  mode", mode(holder.mode)));
        if holder.holds > 1 {
            rows.push(row("  holds", holder.holds));
        }
        rows.push(row("  held for", duration::show(holder.held_for)));
        rows.push(row("  lease ends", format!("in {}", duration::show(holder.remaining))));
        if let Some(by) = &holder.asked_by {
            rows.push(row("  asked by", by));
        }
        if !holder.metadata.as_str().is_empty() {
            rows.push(row("  meta", notes(&holder.metadata)));
        }
    }
    for (place, waiter) in info.waiters.iter().enumerate() {
        rows.push(row(&format!("waiter {}", place.saturating_add(1)), &waiter.owner));
        rows.push(row("  mode", mode(waiter.mode)));
        rows.push(row("  waits for", duration::show(waiter.waited)));
        if !waiter.metadata.as_str().is_empty() {
            rows.push(row("  meta", notes(&waiter.metadata)));
        }
    }
    rows.push(row("fences up to", info.last_fence));
    output::table(&rows)
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permits { count, limit } => format!("{count} of {limit} permits"),
        other => escape::terminal(&format!("{other:?}")).to_string(),
    }
}

fn lock_json(info: &LockInfo) -> Outcome<Value> {
    let document = serde_json::to_value(info);
    document.map_err(|error| Failure::new(Exit::Internal, format!("can't write the lock: {error}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::{Fence, OwnerName, WaiterInfo};

    use super::*;

    fn hostile() -> LockInfo {
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
    fn what_strangers_wrote_can_not_steer_a_terminal() {
        let info = hostile();
        let table = output::table(&list(std::slice::from_ref(&info), &[]));
        for text in [description(&info), table, take::state(&info)] {
            let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.contains(steers), "{text:?}");
            assert!(text.contains("web\\u{1b}[2J"), "{text}");
        }
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

    #[test]
    fn the_permits_of_a_semaphore_are_counted_also_above_a_lowered_limit() {
        let permits = |n| std::num::NonZeroU32::new(n).unwrap();
        let kind = Kind::Semaphore { limit: permits(3) };
        let fence = Fence::from_value(9).unwrap();
        let mut info = LockInfo::new(Key::new("sale").unwrap(), kind, fence);
        let left = Duration::from_secs(9);
        let mode = |count| Mode::Permits { count: permits(count), limit: permits(3) };
        info.holders.push(HolderInfo::new(mode(2), fence, left, left));
        let document = lock_json(&info).unwrap();
        assert_eq!((&document["kind"]["held"], &document["kind"]["free"]), (&2.into(), &1.into()));
        assert!(description(&info).contains("2 held, 1 free"), "{}", description(&info));
        info.holders.push(HolderInfo::new(mode(2), fence, left, left));
        assert!(description(&info).contains("4 held, 0 free"), "{}", description(&info));
    }
}
