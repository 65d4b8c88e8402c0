//! `leasehold wait`: wait until a lock could be taken, without taking it.

use std::time::Duration;

use leasehold::store::{self, Mode};
use leasehold::{Client, Error, Key, LockInfo};
use tokio::time::Instant;

use crate::arguments;
use crate::cli::Wait;
use crate::context::Context;
use crate::describe;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome, chain};
use crate::kind::Kind;
use crate::leases::quoted;
use crate::outer::Outer;
use crate::output;
use crate::pauses::{self, Pauses};
use crate::signals::unless_interrupted;

/// Pauses between two looks: short at first, for locks that are held briefly.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a wait without a limit rides out an outage of the store, as in the library. A longer
/// `--retry-store` counts instead.
const OUTAGE_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn wait(args: &Wait, context: &Context) -> Outcome {
    let keys = arguments::keys(&args.keys)?;
    let mut signals = context.catch_signals()?;
    let limit = args.waiting.limit();
    let begun = Instant::now();
    // A limit too far off to be represented is none.
    let until = limit.and_then(|limit| begun.checked_add(limit));
    let free = || {
        if !context.quiet {
            let (names, at) = (quoted(keys.iter()), context.settings.place_looked_at());
            output::message(&format!("free at {at}: {names}"));
        }
        Ok(Exit::Success)
    };
    if context.settings.store_is_absent() {
        return free();
    }
    let answer_by = context.answer_by(limit, begun);
    let patience = patience(context.settings.retry_store());
    let watching = async {
        // Not to wait for the lock is not to have no time to ask for it.
        let connecting = context.connect_as(None, false, limit.filter(|limit| !limit.is_zero()));
        let client = connecting.await?;
        let kind = match args.permits {
            _ if args.shared => Kind::Shared,
            // Of how many, the store knows; fewer than all of them may come free.
            Some(_) => Kind::OncePer(Duration::ZERO),
            None => Kind::Exclusive,
        };
        let outer = Outer::of_environment();
        let is_own = |info: &LockInfo| match args.waiting.wait_for_outer {
            true => Ok(()),
            false => outer.judge(info, kind),
        };
        let busy = Exit::Busy(args.waiting.conflict_exit_code);
        let mut pause = PAUSE_MIN;
        let mut pauses = Pauses::default();
        let mut tell_at = begun + pauses.next();
        // `why` does not know locks of other libraries.
        let is_known_to_why = context.settings.layout().is_none();
        // When the store was last known to be there.
        let mut answered = Instant::now();
        loop {
            let seen = obstacle(args, &keys, &client, is_own).await;
            let now = Instant::now();
            let is_over = until.is_some_and(|until| now >= until);
            let is_told = !context.quiet && now >= tell_at;
            let is_long = pauses.is_again() && is_known_to_why;
            if is_told {
                tell_at = now + pauses.next();
            }
            let earliest = match seen {
                Ok(None) => return free(),
                Ok(Some((info, earliest))) => {
                    answered = now;
                    if is_over {
                        if context.quiet {
                            return Err(Failure::silent(busy));
                        }
                        let (key, at, state) =
                            (&info.key, client.location(), describe::state(&info));
                        let next = match is_known_to_why {
                            true => describe::see_why(key),
                            false => String::new(),
                        };
                        let why = format!("\"{key}\" at {at} is {state}{next}");
                        return Err(Failure::new(busy, why));
                    }
                    if is_told {
                        describe::tell_of_wait(&info, "", is_long);
                    }
                    earliest
                }
                Err(Refusal::Error(error)) if error.is_retryable() && !is_over => {
                    if until.is_none() && now.duration_since(answered) >= patience {
                        return Err(error.into());
                    }
                    if is_told {
                        output::message(&format!("{}; trying again", chain(&error)));
                    }
                    PAUSE_MAX
                }
                Err(Refusal::Error(error)) => return Err(error.into()),
                Err(Refusal::Unfit(failure)) => return Err(failure),
                Err(Refusal::Own(why)) => return Err(Failure::new(busy, why)),
            };
            // The look after the lease's end comes in time for a holder that has died.
            let again = now + pause.min(earliest).max(PAUSE_MIN);
            tokio::time::sleep_until(until.map_or(again, |until| until.min(again))).await;
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
        }
    };
    let watched = unless_interrupted(&mut signals, async {
        tokio::select! {
            watched = watching => watched,
            () = pauses::until(answer_by) => Err(context.silent().into()),
        }
    });
    watched.await?
}

fn patience(retry_store: Option<Duration>) -> Duration {
    retry_store.unwrap_or_default().max(OUTAGE_MAX)
}

/// Why a look did not tell.
#[derive(Debug)]
enum Refusal {
    Error(Error),
    /// It is of another kind, or smaller, than what is waited for.
    Unfit(Failure),
    /// A command around this one has it.
    Own(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The first of the locks that are taken, and the least time until it is free if its leases expire.
async fn obstacle(
    args: &Wait,
    keys: &[Key],
    client: &Client,
    is_own: impl Fn(&LockInfo) -> Result<(), String>,
) -> Result<Option<(LockInfo, Duration)>, Refusal> {
    let mut first = None;
    for key in keys {
        let Some(info) = client.inspect(key).await? else { continue };
        let semaphore = matches!(info.kind, store::Kind::Semaphore { .. });
        if args.permits.is_some() != semaphore && (semaphore || !info.holders.is_empty()) {
            let (at, kind) = (client.location(), info.kind);
            let what = if semaphore { "give --permits" } else { "leave --permits out" };
            return Err(Refusal::Unfit(Failure::new(
                Exit::Store,
                format!("wait \"{key}\" at {at}: it is in use as a {kind}; {what}"),
            )));
        }
        if let (store::Kind::Semaphore { limit }, Some(wanted)) = (info.kind, args.permits)
            && wanted > limit
        {
            let at = client.location();
            return Err(Refusal::Unfit(Failure::new(
                Exit::Store,
                format!(
                    "wait \"{key}\" at {at}: its limit is {limit}, so {wanted} permits are never \
                     free; give fewer"
                ),
            )));
        }
        if let Some(earliest) = taken_for(&info, args) {
            is_own(&info).map_err(Refusal::Own)?;
            first.get_or_insert((info, earliest));
        }
    }
    Ok(first)
}

/// How long a lock stays taken unless its leases are renewed; `None` when it could be taken now.
fn taken_for(info: &LockInfo, args: &Wait) -> Option<Duration> {
    let alone = |mode| mode == Mode::Exclusive;
    let line = || info.waiters.iter().map(|_| Duration::ZERO);
    let held: Option<Duration> = if let Some(wanted) = args.permits {
        let ends = info.holders.iter().map(|holder| holder.remaining);
        let free = info.permits_free() >= wanted.get();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_ridden_out_for_as_long_as_in_a_wait_of_the_library() {
        assert_eq!(patience(None), OUTAGE_MAX);
        assert_eq!(patience(Some(Duration::from_secs(1))), OUTAGE_MAX);
        assert_eq!(patience(Some(Duration::from_secs(300))), Duration::from_secs(300));
    }
}
