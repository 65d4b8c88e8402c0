//! Acquires a lock, and waits for it while it is busy.

pub(crate) mod acquisition;
mod armed;
mod flight;
pub(crate) mod gate;
mod in_line;
mod mailbox;
mod oneself;
mod polling;
pub(crate) mod status;
pub(crate) mod wake;
mod wire;

use std::pin::pin;
use std::sync::Arc;

use leasehold_core::{Mode, Result};
use tracing::Instrument as _;

use crate::events::Contender;
use crate::lease::guard::Guard;
use crate::options::Fairness;
use crate::waiting::acquisition::{Acquisition, Attempt};
use crate::waiting::gate::Gates;
use crate::waiting::status::WaitStatus;

/// Waits until the lock is held, the limit is reached or the strategy stops. After an error the
/// contender has left the queue, if the store can be reached.
pub(crate) async fn wait(acquisition: Box<Acquisition>, gates: &Arc<Gates>) -> Result<Guard> {
    let contender = Contender::new(&acquisition.request.key, acquisition.request.mode);
    // Pinned here: moving this large future costs more than filling it.
    let waiting = pin!(wait_unseen(acquisition, gates));
    let outcome = waiting.instrument(contender.span()).await;
    contender.ended(outcome.as_ref().map(|guard| Some(guard.handle().fence())));
    outcome
}

async fn wait_unseen(mut acquisition: Box<Acquisition>, gates: &Arc<Gates>) -> Result<Guard> {
    let capability = acquisition.client.store.capability();
    if acquisition.limits.settings.fairness != Fairness::Fifo || !capability.queue {
        return polling::wait(acquisition).await;
    }
    // Many can take free permits at the same time; only contenders for whom none is left wait
    // behind each other.
    if matches!(acquisition.request.mode, Mode::Permits { .. })
        && !gates.is_waited_for(
            &acquisition.request.key,
            &acquisition.limits.settings,
            &acquisition.terms,
        )
        && let Some(guard) = begin(&mut acquisition).await?
    {
        return Ok(guard);
    }
    in_line::wait(acquisition, gates, capability.wake).await
}

/// Tries once before waiting begins. `None` when there is something to wait for.
async fn begin(acquisition: &mut Acquisition) -> Result<Option<Guard>> {
    let outcome = match acquisition.attempt().await {
        Ok(Attempt::Held(guard)) => Ok(Some(guard)),
        Ok(_) => acquisition.start_anew().map(|()| None),
        Err(error) => {
            acquisition.met = Some(error.clone());
            let goes_on = acquisition.ride_out(error, &mut WaitStatus::default());
            goes_on.and_then(|()| acquisition.start_anew()).map(|()| None)
        }
    };
    if outcome.is_err() {
        acquisition.give_up().await;
    }
    outcome
}
