//! `ls`, `show` and `force-release`: what operators need.

use leasehold::core::{Kind, Mode, escape};
use leasehold::{Fence, ForceRelease as Forced, HolderInfo, LockInfo, WaiterInfo};
use serde_json::{Value, json};

use crate::cli::{ForceRelease, Ls, Show};
use crate::context::Context;
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{self, JSON_VERSION};
use crate::take;

pub(crate) async fn ls(args: &Ls, context: &Context) -> Outcome {
    let prefix = match args.prefix.as_deref().map(|prefix| prefix.to_str()) {
        None => "",
        Some(Some(prefix)) => prefix,
        Some(None) => return Err(Failure::usage("the prefix is not UTF-8, so no name has it")),
    };
    let client = context.settings.connect(None, false).await?;
    let locks = client.list(prefix).await?;
    if args.json {
        let locks: Vec<Value> = locks.iter().map(lock_json).collect();
        output::json(&json!({ "version": JSON_VERSION, "locks": locks }))?;
    } else if !locks.is_empty() {
        let heading = ["KEY", "FENCE", "OWNER", "HELD", "LEFT", "WAITING", "META"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(locks.iter().flat_map(lock_rows));
        output::data(&output::table(&rows))?;
    }
    Ok(Exit::Success)
}

pub(crate) async fn show(args: &Show, context: &Context) -> Outcome {
    let key = take::key(&args.key)?;
    let client = context.settings.connect(None, false).await?;
    let info = client.inspect(&key).await?;
    if args.json {
        let lock = info.as_ref().map_or(Value::Null, lock_json);
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

pub(crate) async fn force_release(args: &ForceRelease, context: &Context) -> Outcome {
    let key = take::key(&args.key)?;
    let fence = Fence::from_value(args.fence).map_err(|error| Failure::of_argument(&error))?;
    let client = context.settings.connect(None, false).await?;
    let (by, at) = (client.owner().clone(), client.location().to_owned());
    let done = match client.force_release(&key, fence).await? {
        Forced::Released => {
            output::message(&format!("{by} took \"{key}\" (fence {fence}) away at {at}"));
            return Ok(Exit::Success);
        }
        Forced::OtherFence { fences } => {
            let fences: Vec<String> = fences.iter().map(Fence::to_string).collect();
            format!("it is held under another fence ({}); look again", fences.join(", "))
        }
        _ => "nobody holds it".to_owned(),
    };
    Err(Failure::new(Exit::Lost, format!("force-release \"{key}\" at {at}: {done}")))
}

fn row(name: &str, value: impl ToString) -> Vec<String> {
    vec![name.to_owned(), value.to_string()]
}

/// One row per holder, or one for a lock that nobody holds.
fn lock_rows(info: &LockInfo) -> Vec<Vec<String>> {
    let waiting = match info.waiters.len() {
        0 => "-".to_owned(),
        n => n.to_string(),
    };
    let lock_row = |fence: String, owner: String, held: String, left: String, meta: String| {
        vec![info.key.to_string(), fence, owner, held, left, waiting.clone(), meta]
    };
    if info.holders.is_empty() {
        let left = info.closed_for.map_or_else(|| "-".to_owned(), duration::show);
        let state = if info.closed_for.is_some() { "(closed)" } else { "(free)" };
        return vec![lock_row("-".into(), state.into(), "-".into(), left, String::new())];
    }
    let holder_row = |holder: &HolderInfo| {
        lock_row(
            holder.fence.to_string(),
            holder.owner.to_string(),
            duration::show(holder.held_for),
            duration::show(holder.remaining),
            holder.metadata.to_string(),
        )
    };
    info.holders.iter().map(holder_row).collect()
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
        if !holder.metadata.as_str().is_empty() {
            rows.push(row("  meta", &holder.metadata));
        }
    }
    for (place, waiter) in info.waiters.iter().enumerate() {
        rows.push(row(&format!("waiter {}", place.saturating_add(1)), &waiter.owner));
        rows.push(row("  mode", mode(waiter.mode)));
        rows.push(row("  waits for", duration::show(waiter.waited)));
        if !waiter.metadata.as_str().is_empty() {
            rows.push(row("  meta", &waiter.metadata));
        }
    }
    rows.push(row("last fence", info.last_fence));
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

fn mode_json(mode: Mode) -> Value {
    match mode {
        Mode::Permits { count, limit } => {
            json!({ "name": "permits", "count": count, "limit": limit })
        }
        other => json!({ "name": self::mode(other) }),
    }
}

/// A string, since many readers of JSON round numbers above 2^53.
fn fence_json(fence: Fence) -> Value {
    fence.to_string().into()
}

fn ms(length: std::time::Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

fn lock_json(info: &LockInfo) -> Value {
    let kind = match info.kind {
        Kind::Lock => json!({ "name": "lock" }),
        Kind::Semaphore { limit } => json!({ "name": "semaphore", "limit": limit }),
        other => json!({ "name": other.to_string() }),
    };
    let holder = |holder: &HolderInfo| {
        json!({
            "owner": holder.owner.as_str(),
            "metadata": holder.metadata.as_str(),
            "mode": mode_json(holder.mode),
            "fence": fence_json(holder.fence),
            "holds": holder.holds,
            "held_for_ms": ms(holder.held_for),
            "remaining_ms": ms(holder.remaining),
        })
    };
    let waiter = |waiter: &WaiterInfo| {
        json!({
            "owner": waiter.owner.as_str(),
            "metadata": waiter.metadata.as_str(),
            "mode": mode_json(waiter.mode),
            "waited_ms": ms(waiter.waited),
        })
    };
    json!({
        "key": info.key.as_str(),
        "kind": kind,
        "holders": info.holders.iter().map(holder).collect::<Vec<_>>(),
        "waiters": info.waiters.iter().map(waiter).collect::<Vec<_>>(),
        "closed_for_ms": info.closed_for.map(ms),
        "last_fence": fence_json(info.last_fence),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::{Key, Metadata, OwnerName};

    use super::*;

    fn hostile() -> LockInfo {
        let key = Key::new("a\u{202e}b").unwrap();
        let mut info = LockInfo::new(key, Kind::Lock, Fence::from_value(9).unwrap());
        let left = Duration::from_millis(27_500);
        let mut holder = HolderInfo::new(Mode::Exclusive, info.last_fence, left, left);
        holder.owner = OwnerName::new("web\x1b[2J").unwrap();
        holder.metadata = Metadata::new("job=\u{9b}31m\nx").unwrap();
        info.holders.push(holder);
        let mut waiter = WaiterInfo::new(Mode::Exclusive, left);
        waiter.owner = OwnerName::new("\u{7f}w").unwrap();
        info.waiters.push(waiter);
        info
    }

    #[test]
    fn what_strangers_wrote_can_not_steer_a_terminal() {
        let info = hostile();
        let table = output::table(&lock_rows(&info));
        for text in [description(&info), table, take::state(&info)] {
            let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.contains(steers), "{text:?}");
            assert!(text.contains("web\\u{1b}[2J"), "{text}");
        }
    }

    #[test]
    fn the_document_has_the_names_as_they_are_and_times_in_milliseconds() {
        let document = lock_json(&hostile());
        assert_eq!(document["key"], "a\u{202e}b");
        assert_eq!(document["holders"][0]["owner"], "web\x1b[2J");
        assert_eq!(document["holders"][0]["remaining_ms"], 27_500);
        assert_eq!(document["holders"][0]["fence"], "9");
        assert_eq!(document["closed_for_ms"], Value::Null);
    }
}
