//! Waiting in line: first in this process's own, and at its head in the store's.

use std::sync::Arc;

use leasehold_core::{ErrorKind, Result};

use crate::acquire::Acquisition;
use crate::gate::{Baton, LocalPlace};
use crate::guard::Guard;
use crate::rt;
use crate::wire::Wire;

/// Waits until the lock is handed over, by the store or inside this process.
pub(crate) async fn wait(acquisition: Acquisition, wakes: bool) -> Result<Guard> {
    let client = Arc::clone(&acquisition.client);
    let limits = acquisition.limits.clone();
    let mut place =
        LocalPlace::join(&client, &limits.settings).map_err(|error| acquisition.explain(error))?;
    acquisition.refuse_in_vain(&place.seen().get())?;
    let mut unsent = Some(acquisition);
    loop {
        if place.is_first() && place.wire.is_none() {
            let (seen, waited) = (place.seen().clone(), place.has_waited());
            place.wire = unsent.take().map(|mine| Box::new(Wire::new(mine, wakes, seen, waited)));
        }
        let baton = {
            // A contender on the wire keeps its own limit.
            let until = limits.until.filter(|_| place.wire.is_none());
            let LocalPlace { wire, messages, .. } = &mut place;
            let drive = async {
                match wire {
                    Some(wire) => wire.drive().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                baton = messages.recv() => baton,
                outcome = drive => {
                    // The place in the store's line is used up, or of no use, unless only this
                    // contender's own limit was reached: the next one takes it over then.
                    let gave_up =
                        outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout);
                    if !gave_up {
                        place.wire = None;
                    }
                    return outcome;
                }
                () = rt::sleep_until_some(&*client.clock, until) => {
                    let in_the_way = place.seen().get();
                    return Err(limits.ran_out(&client, in_the_way, "the wait ran out"));
                }
                () = client.closing.cancelled() => return Err(client.closed()),
            }
        };
        match baton {
            Some(Baton::Lease(guard)) => return Ok(guard),
            Some(Baton::Wire(mut wire)) => {
                if place.wire.is_none() {
                    wire.take_over(&limits);
                    place.wire = Some(wire);
                }
                place.now_first();
            }
            Some(Baton::Start) | None => place.now_first(),
        }
    }
}
