//! `leasehold elect`: run a command on the leader.

use std::time::Duration;

use leasehold::Client;
use tokio::time::Instant;

use crate::arguments;
use crate::cli::Elect;
use crate::context::Context;
use crate::failure::Outcome;
use crate::job::Runner;
use crate::kind::Kind;
use crate::outage::{Outage, may_pass};
use crate::output;
use crate::request::Request;
use crate::signals::unless_interrupted;

/// How long after the start of a command, or after a campaign that failed, the next begins.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(crate) async fn elect(args: &Elect, context: &Context) -> Outcome {
    let keys = std::slice::from_ref(&args.key);
    let mut request = Request::new(keys, Kind::Exclusive, &args.taking, context)?;
    request.ttl = arguments::within(args.max_hold, request.ttl, args.job.grace)?;
    let runner = Runner::new(&args.job, &request)?.max_hold(args.max_hold).patient();
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
