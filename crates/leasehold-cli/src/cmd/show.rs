//! `leasehold show`: describe one lock.

use leasehold::store::Kind;
use leasehold::{ErrorKind, Fence, HolderInfo, Key, LockInfo, Metadata};
use serde_json::{Value, json};

use crate::arguments;
use crate::cli::Show;
use crate::cmd::last_run::LastRun;
use crate::context::Context;
use crate::describe::{cooling, end, lock_json, mode, notes, owner};
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{self, JSON_VERSION};
use crate::secret;

pub(crate) async fn show(args: &Show, context: &Context) -> Outcome {
    let key = arguments::key(&args.key)?;
    if args.raw {
        return raw(&key, context).await;
    }
    let client = context.connect_to_look().await?;
    let info = match &client {
        Some(client) => client.inspect(&key).await?,
        None => None,
    };
    let last_run = match (&client, &info) {
        (Some(client), Some(info)) => LastRun::of(client, info).await,
        _ => None,
    };
    if args.json {
        let lock = info.as_ref().map_or(Ok(Value::Null), lock_json)?;
        let last_run = last_run.as_ref().map(LastRun::document);
        output::json(&json!({
            "version": JSON_VERSION,
            "store": context.settings.place(),
            "key": key.as_str(),
            "lock": lock,
            "last_run": last_run,
        }))?;
        return Ok(Exit::Success);
    }
    let mut text = match &info {
        Some(info) => description(info),
        None => {
            let store = context.settings.place_looked_at();
            output::table(&[row("key", &key), row("state", "free"), row("store", store)])
        }
    };
    for line in last_run.iter().flat_map(LastRun::lines) {
        text.push_str(&format!("{}\n", line.trim_start()));
    }
    output::data(&secret::redact(&text))?;
    Ok(Exit::Success)
}

/// What is stored for a lock, where that is a record of fields.
async fn raw(key: &Key, context: &Context) -> Outcome {
    let layout = context.settings.layout();
    arguments::refuse_for(layout, &[(true, "--raw", "record of leasehold's")])?;
    let at = context.settings.place_looked_at();
    let no_record = || {
        let why = "--raw needs a lock in a Redis server, not one at";
        Failure::usage(format!("{why} {at}; leave it out"))
    };
    let client = context.connect_to_look().await?.ok_or_else(no_record)?;
    let lines = client.raw(key).await.map_err(|error| match error.kind() {
        // A server that refuses scripts reports its own error.
        ErrorKind::Unsupported if !client.location().contains("://") => no_record(),
        _ => error.into(),
    })?;
    if lines.is_empty() && !context.quiet {
        output::message(&format!("nothing is stored for \"{key}\" at {at}"));
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    output::data(&secret::redact(&text))?;
    Ok(Exit::Success)
}

fn row(name: &str, value: impl ToString) -> Vec<String> {
    vec![name.to_owned(), value.to_string()]
}

pub(super) fn description(info: &LockInfo) -> String {
    let state = match (info.holders.len(), info.closed_for) {
        (0, Some(left)) => cooling(left),
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
    if !info.clock_set_back.is_zero() {
        rows.push(row("clock", format!("set back by {}", duration::show(info.clock_set_back))));
    }
    for holder in &info.holders {
        rows.push(row("holder", owner(holder)));
        if !holder.is_foreign() {
            rows.push(row("  fence", holder.fence));
        } else if info.last_fence != Fence::ZERO {
            // Its number, as the other library counts.
            rows.push(row("  fence", info.last_fence.sequence()));
        }
        rows.push(row("  mode", mode(holder.mode)));
        if holder.holds > 1 {
            rows.push(row("  holds", holder.holds));
        }
        if !holder.is_foreign() {
            rows.push(row("  held for", duration::show(holder.held_for)));
        }
        rows.push(row("  lease ends", end(holder)));
        if let Some(by) = &holder.asked_by {
            rows.push(row("  asked by", by));
        }
        rows.extend(meta(&holder.metadata));
    }
    for (place, waiter) in info.waiters.iter().enumerate() {
        rows.push(row(&format!("waiter {}", place.saturating_add(1)), &waiter.owner));
        rows.push(row("  mode", mode(waiter.mode)));
        rows.push(row("  waits for", duration::show(waiter.waited)));
        if waiter.behind > 0 {
            rows.push(row("  behind it", format!("{} more in its process", waiter.behind)));
        }
        rows.extend(meta(&waiter.metadata));
    }
    if info.last_fence != Fence::ZERO && !info.holders.iter().any(HolderInfo::is_foreign) {
        rows.push(row("fences up to", info.last_fence));
    }
    output::table(&rows)
}

fn meta(metadata: &Metadata) -> Option<Vec<String>> {
    Some(notes(metadata)).filter(|notes| !notes.is_empty()).map(|notes| row("  meta", notes))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::store::Mode;
    use leasehold::{Fence, HolderInfo, Key};

    use super::*;
    use crate::describe::tests::{hostile, steers};

    #[test]
    fn what_strangers_wrote_can_not_steer_the_terminal_of_who_looks() {
        let text = description(&hostile());
        assert!(!steers(&text), "{text:?}");
        assert!(text.contains("web\\u{1b}[2J"), "{text}");
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
