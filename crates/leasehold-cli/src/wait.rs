//! `leasehold wait`: wait until a lock could be taken, without taking it.

use std::time::Duration;

use leasehold::core::{Kind, Mode};
use leasehold::{Client, Key, LockInfo};
use tokio::time::Instant;

use crate::cli::Wait;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::look::permits_free;
use crate::take::{self, unless_interrupted};

/// Pauses between two looks: short at first, for locks that are held briefly.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

pub(crate) async fn wait(args: &Wait, context: &Context) -> Outcome {
    let keys = take::keys(&args.keys)?;
    let mut signals = context.catch_signals()?;
    let client = context.settings.connect(None, false).await?;
    let limit = args.waiting.limit();
    // A limit too far off to be represented is none.
    let until = limit.and_then(|limit| Instant::now().checked_add(limit));
    let watched = unless_interrupted(&client, &mut signals, async {
        let mut pause = PAUSE_MIN;
        loop {
            let Some((info, earliest)) = obstacle(args, &keys, &client).await? else {
                return Ok(Exit::Success);
            };
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                let busy = take::busy(&args.waiting);
                if context.quiet {
                    return Err(Failure::silent(busy));
                }
                let (key, at, state) = (&info.key, client.location(), take::state(&info));
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

/// The first of the locks that could not be taken now, and how long that stays so at least, unless
/// its leases are renewed.
async fn obstacle(
    args: &Wait,
    keys: &[Key],
    client: &Client,
) -> Outcome<Option<(LockInfo, Duration)>> {
    for key in keys {
        let Some(info) = client.inspect(key).await? else { continue };
        let semaphore = matches!(info.kind, Kind::Semaphore { .. });
        if args.permits.is_some() != semaphore && (semaphore || !info.holders.is_empty()) {
            let (at, kind) = (client.location(), info.kind);
            let what = if semaphore { "give --permits" } else { "leave --permits out" };
            return Err(Failure::new(
                Exit::Store,
                format!("wait for \"{key}\" at {at}: it is in use as a {kind}; {what}"),
            ));
        }
        if let Some(earliest) = taken_for(&info, args) {
            return Ok(Some((info, earliest)));
        }
    }
    Ok(None)
}

/// How long a lock stays taken unless its leases are renewed; `None` when it could be taken now.
fn taken_for(info: &LockInfo, args: &Wait) -> Option<Duration> {
    let alone = |mode| mode == Mode::Exclusive;
    let line = || info.waiters.iter().map(|_| Duration::ZERO);
    let held: Option<Duration> = if let Some(wanted) = args.permits {
        let ends = info.holders.iter().map(|holder| holder.remaining);
        let free = permits_free(info) >= wanted.get();
        if free { line().next() } else { ends.min().or(Some(Duration::ZERO)) }
    } else if args.shared {
        let alone_held = info.holders.iter().filter(|holder| alone(holder.mode));
        let writers = info.waiters.iter().filter(|waiter| alone(waiter.mode));
        let ends = alone_held.map(|holder| holder.remaining);
        ends.chain(writers.map(|_| Duration::ZERO)).max()
    } else {
        info.holders.iter().map(|holder| holder.remaining).max()
    };
    let closed = info.closed_for.filter(|left| !left.is_zero());
    held.max(closed)
}
