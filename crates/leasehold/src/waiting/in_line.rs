//! Waits in the process's own queue, and at its head in the store's.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Poll;

use leasehold_core::{ErrorKind, Result};

use crate::lease::guard::Guard;
use crate::rt;
use crate::waiting::acquisition::{Acquisition, tell_failure};
use crate::waiting::gate::{BEAT, Gates, Handover, LocalPlace};
use crate::waiting::oneself::Oneself;
use crate::waiting::status::Limits;
use crate::waiting::wire::Wire;

/// Waits until the lock is granted by the store, or handed off inside this process. Returns an
/// error once the position in the queue was abandoned, or taken over by the next contender.
pub(super) async fn wait(
    mut acquisition: Box<Acquisition>,
    gates: &Arc<Gates>,
    wakes: bool,
) -> Result<Guard> {
    let client = Arc::clone(&acquisition.client);
    let limits = acquisition.limits.clone();
    let place = LocalPlace::join(gates, &acquisition.request.key, &limits.settings);
    let mut place = place.map_err(|error| acquisition.explain(error))?;
    place.seen().with(|status| acquisition.tell_what_it_met(status));
    acquisition.give_up_early(&place.seen().get())?;
    let error = match stand(&mut place, acquisition, &limits, wakes).await {
        Ok(guard) => return Ok(guard),
        Err(error) => error,
    };
    // The position in the store's queue is used up, unless only this contender's own limit was
    // reached: then the next one takes it over.
    let ran_out = limits.until.is_some_and(|until| client.clock.now() >= until)
        || error.kind() == ErrorKind::Timeout;
    let mut wires = Vec::from_iter(place.wire.take_if(|_| !ran_out));
    for left in place.leave() {
        match left {
            // It came at the very last moment.
            Handover::Lease(offer) => {
                if let Some(guard) = offer.claim().filter(|_| !client.is_closed()) {
                    return Ok(guard);
                }
            }
            Handover::Wire(wire) => wires.push(wire),
            Handover::Start => {}
        }
    }
    for mut wire in wires {
        wire.give_up().await;
    }
    let outcome = Err(error);
    tell_failure(&outcome);
    outcome
}

async fn stand(
    place: &mut LocalPlace,
    acquisition: Box<Acquisition>,
    limits: &Limits,
    wakes: bool,
) -> Result<Guard> {
    let client = Arc::clone(&acquisition.client);
    let mut oneself = Oneself::new(&acquisition);
    let mut unsent = Some(acquisition);
    let pulse = place.pulse();
    loop {
        if place.is_first() && place.wire.is_none() {
            // An outage that the contender before could not ride out is not a new one.
            let seen = place.seen().clone();
            let now = client.clock.now();
            let patience = limits.patience(&client);
            if let Some(error) = seen.with(|status| status.contact.given_up(now, patience).cloned())
            {
                return Err(error);
            }
            place.wire = unsent.take().map(|mine| Box::new(Wire::new(mine, wakes, seen)));
        }
        let handover = {
            // A contender that talks to the store keeps its own limit.
            let until = limits.until.filter(|_| place.wire.is_none());
            let polled = std::future::poll_fn(|_| {
                pulse(client.clock.now());
                Poll::<Infallible>::Pending
            });
            let next_beat = client.clock.now().saturating_add(BEAT);
            let LocalPlace { wire, messages, .. } = &mut *place;
            let drive = async {
                match wire {
                    Some(wire) => wire.drive().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                never = polled => match never {},
                handover = messages.recv() => handover,
                outcome = drive => {
                    // Its token belongs to the lease now.
                    return outcome.inspect(|_| place.wire = None);
                }
                () = rt::sleep_until_some(&*client.clock, until) => {
                    let (key, status) = (place.key(), place.seen().get());
                    return Err(limits.ran_out(key, &client, &status, "timed out"));
                }
                () = client.closed.cancelled() => return Err(client.closed()),
                () = rt::sleep_until(&*client.clock, next_beat) => {
                    place.overtake(client.clock.now());
                    oneself.look(&client, place.key());
                    continue;
                }
            }
        };
        match handover {
            Handover::Lease(offer) => match offer.claim() {
                Some(guard) => return Ok(guard),
                None => place.rejoin(),
            },
            Handover::Wire(mut wire) => {
                if place.wire.is_none() {
                    wire.take_over(limits);
                    place.wire = Some(wire);
                }
                place.now_first();
            }
            Handover::Start => place.now_first(),
        }
    }
}
