//! `leasehold log`: print what happened to a lock, if its store keeps a log.

use std::collections::HashSet;
use std::time::{Duration, UNIX_EPOCH};

use leasehold::Client;
use leasehold::store::{LogEntry, LogId, escape};
use serde_json::{Value, json};

use crate::arguments;
use crate::cli::Log;
use crate::context::Context;
use crate::duration;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::outage::{Outage, may_pass};
use crate::output::{self, JSON_VERSION};
use crate::secret;
use crate::signals::unless_interrupted;

/// How often to look for more.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// As many are looked at each time.
const LOOK_AT: usize = 500;

pub(crate) async fn log(args: &Log, context: &Context) -> Outcome {
    let key = arguments::key(&args.key)?;
    if args.follow {
        let mut signals = context.catch_signals()?;
        let followed = unless_interrupted(&mut signals, async {
            tokio::select! {
                ended = follow(args, &key, context) => ended,
                () = output::reader_gone() => Ok(Exit::Success),
            }
        });
        return followed.await?;
    }
    let entries = match context.connect_to_look().await? {
        Some(client) => client.log(&key, args.last.max(1)).await?,
        None => Vec::new(),
    };
    if entries.is_empty() && !args.json {
        output::message(&format!(
            "the store at {} has no events of \"{key}\"; it keeps those of clients whose store URL \
             has log=, as in redis://HOST?log=1000",
            context.settings.place_looked_at()
        ));
    }
    output::data(&text(last_of(&entries, args.last), args.json))?;
    Ok(Exit::Success)
}

/// Prints what is there, and what comes, until it is interrupted.
async fn follow(args: &Log, key: &leasehold::Key, context: &Context) -> Outcome {
    output::refuse_closed()?;
    let (mut outage, mut connected) = (Outage::default(), None::<Client>);
    let mut told: Option<HashSet<LogId>> = None;
    loop {
        let client = match connected.take() {
            Some(client) => Some(client),
            None => context.connect_to_look().await?,
        };
        // Those before the ones asked for are not new either.
        let look_at = if told.is_some() { LOOK_AT } else { args.last.max(LOOK_AT) };
        let entries = match &client {
            Some(client) => client.log(key, look_at).await,
            None => Ok(Vec::new()),
        };
        connected = client;
        match entries {
            Ok(entries) => {
                outage = Outage::default();
                let known = told.take();
                let new = match &known {
                    Some(known) => {
                        let new = entries.iter().filter(|entry| !known.contains(&entry.id));
                        new.cloned().collect()
                    }
                    None => last_of(&entries, args.last).to_vec(),
                };
                let known = known.unwrap_or_default();
                output::data_patiently(&text(&new, args.json)).await?;
                // What was looked at the last time, in case it was more.
                let seen = entries.iter().map(|entry| entry.id);
                told = Some(if entries.len() < LOOK_AT {
                    seen.chain(known).collect()
                } else {
                    seen.collect()
                });
            }
            Err(error) if may_pass(&error) => outage.tell(&error),
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn last_of(entries: &[LogEntry], last: usize) -> &[LogEntry] {
    entries.get(entries.len().saturating_sub(last)..).unwrap_or_default()
}

/// A line for each.
pub(crate) fn text(entries: &[LogEntry], json: bool) -> String {
    if json {
        return entries.iter().map(|entry| output::json_line(&document(entry))).collect();
    }
    secret::redact(&entries.iter().map(line).collect::<String>())
}

/// When it happened, for people, in UTC.
pub(crate) fn time(entry: &LogEntry) -> String {
    let at = UNIX_EPOCH.checked_add(entry.at).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_millis(at).to_string()
}

fn line(entry: &LogEntry) -> String {
    let word = entry.event.replace('_', " ");
    let mut text = format!("{}  {word:<9}  fence {}", time(entry), entry.fence);
    if let Some(from) = entry.from {
        text.push_str(&format!(" after {from}"));
    }
    text.push_str(&format!("  {}", entry.owner));
    if entry.process != entry.owner {
        text.push_str(&format!(" ({})", entry.process));
    }
    if let Some(how) = &entry.how {
        text.push_str(&format!("; {}", how.replace('_', " ")));
    }
    if let Some(result) = &entry.result {
        text.push_str(&format!("; {}", escape::terminal(result)));
    }
    if let Some(length) = entry.closed_for {
        text.push_str(&format!("; closed for {}", duration::show(length)));
    }
    text.push('\n');
    text
}

pub(crate) fn document(entry: &LogEntry) -> Value {
    let LogId { client, number } = entry.id;
    json!({
        "version": JSON_VERSION,
        "key": entry.key.as_str(),
        "id": format!("{client:016x}-{number}"),
        "at": time(entry),
        "at_ms": u64::try_from(entry.at.as_millis()).unwrap_or(u64::MAX),
        "event": entry.event,
        "how": entry.how,
        "result": entry.result,
        "fence": entry.fence.to_string(),
        "from": entry.from.map(|fence| fence.to_string()),
        "closed_for_ms": entry.closed_for.map(|length| u64::try_from(length.as_millis()).unwrap_or(u64::MAX)),
        "owner": entry.owner.as_str(),
        "process": entry.process.as_str(),
    })
}

#[cfg(test)]
mod tests {
    use leasehold::{Fence, Key, OwnerName};

    use super::*;
    use crate::describe::tests::steers;

    #[test]
    fn a_line_says_all_and_steers_no_terminal() {
        let key = Key::new("a").unwrap();
        let id = LogId { client: 0xab, number: 7 };
        let mut entry = LogEntry::new(key, id, "handed_on", Fence::from_value(9).unwrap());
        entry.at = Duration::from_millis(1_700_000_000_123);
        entry.from = Fence::from_value(8).ok();
        entry.owner = OwnerName::new("web\x1b[2J").unwrap();
        entry.process = OwnerName::new("host_12").unwrap();
        entry.how = Some("late".into());
        entry.result = Some("exit 3\x1b[2J".into());
        entry.closed_for = Some(Duration::from_secs(60));
        let shown = text(&[entry.clone()], false);
        assert_eq!(
            shown,
            "2023-11-14T22:13:20.123Z  handed on  fence 9 after 8  web\\u{1b}[2J (host_12); late; \
             exit 3\\u{1b}[2J; closed for 1m\n"
        );
        assert!(!steers(&text(&[entry], true)));
    }
}
