//! `leasehold observe`: print the leader of an election, and each change.

use std::time::Duration;

use leasehold::{ErrorKind, Leader};
use serde_json::{Value, json};

use crate::arguments;
use crate::cli::Observe;
use crate::context::Context;
use crate::describe::{notes, said_json};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::outage::may_pass;
use crate::output::{self, JSON_VERSION};
use crate::signals::unless_interrupted;

/// How often to look whether a store has been made.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn observe(args: &Observe, context: &Context) -> Outcome {
    let mut signals = context.catch_signals()?;
    let observed = unless_interrupted(&mut signals, async {
        tokio::select! {
            ended = tell(args, context) => ended,
            () = output::reader_gone() => Ok(Exit::Success),
        }
    });
    observed.await?
}

/// Prints each leader. Ends with what can't be mended.
async fn tell(args: &Observe, context: &Context) -> Outcome {
    let key = arguments::key(&args.key)?;
    let text = |leader: Option<&Leader>| {
        if args.json {
            let leader = leader.map_or(Value::Null, leader_json);
            let (version, key) = (JSON_VERSION, key.as_str());
            output::json_line(&json!({ "version": version, "key": key, "leader": leader }))
        } else {
            line(leader)
        }
    };
    // In which of the stores there is no leader.
    let tell_of_nobody = || {
        if !args.json && !context.quiet {
            let at = context.settings.place_looked_at();
            output::message(&format!("\"{key}\" at {at} has no leader"));
        }
    };
    let mut printed: Option<String> = None;
    let client = loop {
        if let Some(client) = context.connect_to_look().await? {
            break client;
        }
        if printed.is_none() {
            let nobody = text(None);
            output::data_patiently(&nobody).await?;
            tell_of_nobody();
            printed = Some(nobody);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let mut observer = client.election(&key).observe();
    let mut told: Option<String> = None;
    loop {
        match observer.changed().await {
            Ok(leader) => {
                let now = text(leader.as_ref());
                // Without a store before, the lack of a leader is no news.
                if printed.as_ref() != Some(&now) {
                    output::data_patiently(&now).await?;
                    if leader.is_none() {
                        tell_of_nobody();
                    }
                }
                printed = Some(now);
            }
            Err(error) if may_pass(&error) || error.kind() == ErrorKind::Timeout => {
                // Once, however long the store is away.
                let message = chain(&error);
                if told.as_ref() != Some(&message) {
                    output::message(&format!("{message}; trying again"));
                    told = Some(message);
                }
                continue;
            }
            Err(error) => return Err(Failure::from(error)),
        }
        told = None;
    }
}

fn line(leader: Option<&Leader>) -> String {
    let Some(Leader { owner, metadata, fence, .. }) = leader else { return "- - -\n".to_owned() };
    let metadata = Some(notes(metadata)).filter(|notes| !notes.is_empty());
    let metadata = metadata.unwrap_or_else(|| "-".to_owned());
    format!("{fence} {owner} {metadata}\n")
}

fn leader_json(leader: &Leader) -> Value {
    json!({
        "owner": leader.owner.as_str(),
        "metadata": said_json(&leader.metadata),
        "fence": leader.fence.to_string(),
    })
}
