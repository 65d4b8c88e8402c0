//! `leasehold elect` and `observe`: one leader at a time, and who that is.

use std::time::Duration;

use leasehold::{Client, Error, ErrorKind, Leader};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cli::{Elect, Observe};
use crate::context::Context;
use crate::failure::{Failure, Outcome, chain};
use crate::kind::Kind;
use crate::look::notes;
use crate::outage::Outage;
use crate::output::{self, JSON_VERSION};
use crate::run::Runner;
use crate::take::{self, Request, unless_interrupted};

/// How long after the start of a command, or after a campaign that failed, the next begins.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(crate) async fn elect(args: &Elect, context: &Context) -> Outcome {
    let keys = std::slice::from_ref(&args.key);
    let request = Request::new(keys, Kind::Exclusive, &args.taking, context)?;
    let runner = Runner::new(&args.job, &request)?;
    let mut signals = context.catch_signals()?;
    let mut client: Option<Client> = None;
    let mut outage = Outage::default();
    // When this campaign began; it goes on through outages of the store.
    let mut campaign = Instant::now();
    loop {
        let begun = Instant::now();
        let connected = match client.clone() {
            Some(client) => Ok(client),
            None => {
                let connecting = request.connect(context, false, campaign);
                unless_interrupted(&mut signals, connecting).await?
            }
        };
        let taken = match connected {
            Ok(connected) => {
                let connected = client.insert(connected);
                request.attempt(context, connected, &mut signals, runner.manner(), campaign).await?
            }
            Err(error) => Err(error),
        };
        match (taken, &client) {
            (Err(error), _) if may_pass(&error) && !request.is_over(campaign) => {
                outage.tell(&error);
            }
            (Err(error), None) => return Err(error.into()),
            // Nothing can have been taken without one.
            (Ok(_), None) => {}
            (taken, Some(client)) => {
                outage = Outage::default();
                let held = request.judge(taken, client).await?;
                let done = runner.run(held, context, client, &mut signals).await?;
                let verdict = done.verdict;
                let was_lost = verdict.ending.is_some() && !verdict.covered;
                campaign = Instant::now();
                if was_lost && !done.interrupted {
                    output::message(&format!("campaigning for {} again", request.names()));
                    continue;
                }
                let ended = verdict.ending.is_some() && verdict.keyboard.is_none();
                if !(args.restart && ended && !done.interrupted) {
                    return Ok(done.exit());
                }
            }
        }
        let pause = tokio::time::sleep_until(begun + AGAIN_AFTER);
        unless_interrupted(&mut signals, pause).await?;
    }
}

/// Whether it is of use to try again.
fn may_pass(error: &Error) -> bool {
    error.is_retryable() && error.kind() != ErrorKind::Timeout
}

pub(crate) async fn observe(args: &Observe, context: &Context) -> Outcome {
    let key = take::key(&args.key)?;
    let mut signals = context.catch_signals()?;
    let client = unless_interrupted(&mut signals, context.connect(false)).await??;
    let mut observer = client.election(&key).observe();
    let mut told: Option<String> = None;
    loop {
        match unless_interrupted(&mut signals, observer.next()).await? {
            Ok(leader) => {
                let text = if args.json {
                    let leader = leader.as_ref().map_or(Value::Null, leader_json);
                    output::json_line(&json!({
                        "version": JSON_VERSION, "key": key.as_str(), "leader": leader,
                    }))
                } else {
                    line(leader.as_ref())
                };
                unless_interrupted(&mut signals, output::data_patiently(&text)).await??;
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
    let metadata = if metadata.as_str().is_empty() { "-".to_owned() } else { notes(metadata) };
    format!("{fence} {owner} {metadata}\n")
}

fn leader_json(leader: &Leader) -> Value {
    json!({
        "owner": leader.owner.as_str(),
        "metadata": leader.metadata.as_str(),
        "fence": leader.fence.to_string(),
    })
}
