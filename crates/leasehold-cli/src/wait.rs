//! `leasehold wait`: wait until a lock could be taken, without taking it.

use std::time::Duration;

use leasehold::LockInfo;
use tokio::time::Instant;

use crate::cli::Wait;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::take::{self, unless_interrupted};

/// Pauses between two looks: short at first, for locks that are held briefly.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

pub(crate) async fn wait(args: &Wait, context: &Context) -> Outcome {
    let key = take::key(&args.key)?;
    let mut signals = context.catch_signals()?;
    let client = context.settings.connect(None, false).await?;
    let limit = args.waiting.limit();
    // A limit too far off to be represented is none.
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    let watched = unless_interrupted(&client, &mut signals, async {
        let mut pause = PAUSE_MIN;
        loop {
            let Some(info) = client.inspect(&key).await? else { return Ok(Exit::Success) };
            let Some(earliest) = taken_for(&info) else { return Ok(Exit::Success) };
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                let busy = take::busy(&args.waiting);
                if context.quiet {
                    return Err(Failure::silent(busy));
                }
                let (at, state) = (client.location(), take::state(&info));
                return Err(Failure::new(busy, format!("\"{key}\" at {at} is {state}")));
            }
            // The look after the lease's end comes in time for a holder that has died.
            let again = now + pause.min(earliest).max(PAUSE_MIN);
            tokio::time::sleep_until(until.map_or(again, |until| until.min(again))).await;
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
        }
    });
    watched.await?
}

/// How long a lock stays taken unless it is renewed; `None` when it could be taken now.
fn taken_for(info: &LockInfo) -> Option<Duration> {
    let held = info.holders.iter().map(|holder| holder.remaining).max();
    let closed = info.closed_for.filter(|left| !left.is_zero());
    held.max(closed)
}
