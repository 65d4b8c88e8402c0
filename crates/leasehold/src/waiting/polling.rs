//! Waits without a queue: polls the store by the retry strategy.

use leasehold_core::Result;

use crate::lease::guard::Guard;
use crate::waiting::acquisition::{Acquisition, Attempt, tell_failure};
use crate::waiting::oneself::Oneself;
use crate::waiting::status::{Blocker, WaitStatus};

/// Waits until the lock is held, the limit is reached or the strategy stops. Returns an error once
/// whatever was taken has been abandoned.
pub(super) async fn wait(mut acquisition: Box<Acquisition>) -> Result<Guard> {
    let outcome = poll(&mut acquisition).await;
    tell_failure(&outcome);
    if outcome.is_err() {
        acquisition.give_up().await;
    }
    outcome
}

async fn poll(acquisition: &mut Acquisition) -> Result<Guard> {
    let mut status = WaitStatus::default();
    let mut oneself = Oneself::new(acquisition);
    acquisition.tell_what_it_met(&mut status);
    for tries in 1.. {
        if tries > 1 {
            acquisition.start_anew()?;
        }
        let earliest = match acquisition.attempt().await {
            Ok(Attempt::Held(guard)) => return Ok(guard),
            Ok(Attempt::Busy(busy)) => {
                let now = acquisition.client.clock.now();
                if tries == 1 {
                    acquisition.tell_of_waiting(busy.holder.as_deref());
                }
                // The pauses of the strategy keep contenders apart.
                let after = (!busy.is_contended()).then_some(busy.retry_after);
                status.set(Blocker::of(busy, now), acquisition.client.config.call_timeout);
                acquisition.give_up_early(&status)?;
                after
            }
            Ok(Attempt::Waiting(_) | Attempt::TooLate) => None,
            Err(error) => {
                let passes_in = error.retry_after();
                acquisition.ride_out(error, &mut status)?;
                passes_in
            }
        };
        let Some(pause) = acquisition.limits.settings.retry.pause(tries) else {
            return Err(acquisition.ran_out(&status, "the retry strategy ended"));
        };
        let pause = earliest.map_or(pause, |earliest| pause.min(earliest));
        let now = acquisition.client.clock.now();
        if acquisition.limits.until.is_some_and(|until| now >= until) {
            return Err(acquisition.ran_out(&status, "timed out"));
        }
        acquisition.pause(pause).await?;
        oneself.look(&acquisition.client, &acquisition.request.key);
    }
    Err(acquisition.ran_out(&status, "the retry strategy ended"))
}
