//! `leasehold ls`: list all locks in use.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use leasehold::store::{Kind, escape};
use leasehold::{Client, Error, ErrorKind, Key, Listing, LockInfo};
use serde_json::{Value, json};

use crate::arguments;
use crate::cli::Ls;
use crate::context::Context;
use crate::describe::{lock_json, notes, short_mode, tell_unreadable};
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Outcome, chain};
use crate::outage::{Outage, may_pass};
use crate::output::{self, JSON_VERSION};
use crate::secret;
use crate::signals::unless_interrupted;

const WATCH_EVERY_MIN: Duration = Duration::from_millis(100);
/// Makes a terminal empty, and writes from its top on.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) async fn ls(args: &Ls, context: &Context) -> Outcome {
    let prefix = arguments::prefix(args.prefix.as_deref())?;
    let Some(every) = args.watch else {
        let listing = match context.connect_to_look().await? {
            Some(client) => client.list(prefix).await?,
            None => Listing::default(),
        };
        output::data(&text(&listing, args.json, context)?)?;
        if !args.json {
            tell_if_empty(&listing, prefix, context);
        }
        return Ok(tell_unreadable(&listing.unreadable));
    };
    let mut signals = context.catch_signals()?;
    let watched = unless_interrupted(&mut signals, async {
        tokio::select! {
            ended = watch(context, prefix, args.json, every.max(WATCH_EVERY_MIN)) => ended,
            () = output::reader_gone() => Ok(Exit::Success),
        }
    });
    watched.await?
}

/// Names the store that a list without a line is of.
pub(crate) fn tell_if_empty(listing: &Listing, prefix: &str, context: &Context) {
    if listing.locks.is_empty() && listing.unreadable.is_empty() && !context.quiet {
        let of = match prefix {
            "" => String::new(),
            prefix => format!(" whose name begins with \"{}\"", escape::terminal(prefix)),
        };
        let at = context.settings.place_looked_at();
        output::message(&format!("no lock{of} is in use at {at}"));
    }
}

/// Lists them again and again, also in a store that is made meanwhile.
async fn watch(context: &Context, prefix: &str, json: bool, every: Duration) -> Outcome {
    // Also while there is nothing to print.
    output::refuse_closed()?;
    let clear = if io::stdout().is_terminal() { CLEAR } else { "" };
    let mut outage = Outage::default();
    let mut connected: Option<Client> = None;
    let mut was_empty = false;
    loop {
        let client = match connected.take() {
            Some(client) => Some(client),
            None => context.connect_to_look().await?,
        };
        let listing = match &client {
            Some(client) => client.list(prefix).await,
            None => Ok(Listing::default()),
        };
        connected = client;
        match listing {
            Ok(listing) => {
                outage = Outage::default();
                let text = text(&listing, json, context)?;
                output::data_patiently(&format!("{clear}{text}")).await?;
                // Where one list stands below the other, once.
                if text.is_empty() && !(was_empty && clear.is_empty()) {
                    tell_if_empty(&listing, prefix, context);
                }
                was_empty = text.is_empty();
                tell_unreadable(&listing.unreadable);
            }
            Err(error) if may_pass(&error) || error.kind() == ErrorKind::Timeout => {
                outage.tell(&error);
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(every).await;
    }
}

/// A document, or a table that is empty where there is nothing.
fn text(listing: &Listing, json: bool, context: &Context) -> Outcome<String> {
    let Listing { locks, unreadable, .. } = listing;
    if json {
        return Ok(output::json_line(&document(listing, usize::MAX, context)?));
    }
    if locks.is_empty() && unreadable.is_empty() {
        return Ok(String::new());
    }
    Ok(output::table(&list(locks, unreadable)))
}

/// A document of a listing, with at most this number of locks.
pub(crate) fn document(listing: &Listing, locks_max: usize, context: &Context) -> Outcome<Value> {
    let Listing { locks, unreadable, .. } = listing;
    let locks = locks.iter().take(locks_max).map(lock_json).collect::<Outcome<Vec<Value>>>()?;
    let unreadable: Vec<Value> = unreadable.iter().map(unreadable_json).collect();
    let store = context.settings.place();
    Ok(json!({
        "version": JSON_VERSION, "store": store, "locks": locks, "unreadable": unreadable,
    }))
}

fn unreadable_json(error: &Error) -> Value {
    json!({ "key": error.key().map(Key::as_str), "message": secret::redact(&chain(error)) })
}

/// A heading, and one row per holder, or one for a free or unreadable lock. The columns are always
/// the same, so that a script can count them.
fn list(locks: &[LockInfo], unreadable: &[Error]) -> Vec<Vec<String>> {
    let heading =
        ["KEY", "MODE", "FENCE", "OWNER", "HELD", "LEFT", "CLOSED", "ASKED", "WAITING", "META"];
    let mut rows = vec![heading.map(str::to_owned).into()];
    let none = || "-".to_owned();
    for info in locks {
        let waiting = if info.waiters.is_empty() { none() } else { info.waiting().to_string() };
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

/// A kind, as one word.
fn short_kind(kind: Kind) -> String {
    match kind {
        Kind::Semaphore { limit } => format!("0/{limit}"),
        other => escape::terminal(&other.to_string()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::tests::{hostile, steers};

    #[test]
    fn what_strangers_wrote_can_not_steer_the_terminal_of_a_listing() {
        let table = output::table(&list(&[hostile()], &[]));
        assert!(!steers(&table), "{table:?}");
        assert!(table.contains("web\\u{1b}[2J"), "{table}");
    }
}
