//! Changes the mode in which a lease is held.

use std::num::NonZeroU32;
use std::sync::Arc;

use leasehold_core::{
    Admission, Convert, ConvertRequest, Effect, Error, ErrorKind, FenceBlock, Mode, Result,
};

use crate::lease::guard::Guard;
use crate::lease::held_lease::{Changing, HeldLease, LOST};
use crate::lease::not_changed::NotChanged;
use crate::refusal::refused;

/// Makes a shared lease exclusive, at once or not at all.
pub(crate) async fn upgrade(guard: Guard) -> std::result::Result<Guard, NotChanged<Guard>> {
    let lease = guard.lease().clone();
    if lease.handle().state().is_mode_in_doubt() {
        let why = "an earlier downgrade was not answered; release the lock and take it for writing";
        let error = Error::new(ErrorKind::Unavailable, why).with_effect(Effect::NotApplied);
        return Err(NotChanged::new(guard, lease.explain(error, "convert")));
    }
    match change(&lease, Mode::Exclusive).await {
        Ok(changed) => {
            // The old guard has no lease now, so its drop releases none.
            drop(guard);
            Ok(changed)
        }
        Err(error) => Err(NotChanged::new(guard, lease.explain(error, "convert"))),
    }
}

/// Makes an exclusive lease shared.
pub(crate) async fn downgrade(guard: Guard) -> std::result::Result<Guard, NotChanged<Guard>> {
    weaken(guard, Mode::Shared).await
}

/// Releases some of the permits that a lease holds.
pub(crate) async fn release_permits(
    guard: Guard,
    n: u32,
) -> std::result::Result<Guard, NotChanged<Guard>> {
    let refuse = |guard: Guard, kind, why: String| {
        let error = guard.lease().explain(Error::new(kind, why), "convert");
        Err(NotChanged::new(guard, error))
    };
    let Mode::Permits { count, limit } = guard.handle().settings.mode else {
        let why = "the guard is not known to hold permits of a semaphore";
        return refuse(guard, ErrorKind::Misuse, why.to_owned());
    };
    if n == 0 {
        return match guard.check() {
            Ok(()) => Ok(guard),
            Err(lost) => Err(NotChanged::new(guard, lost)),
        };
    }
    match count.get().checked_sub(n).and_then(NonZeroU32::new) {
        Some(count) => weaken(guard, Mode::Permits { count, limit }).await,
        None => {
            let why = format!(
                "{n} permits were to be released out of {count}; to release all, release the guard"
            );
            refuse(guard, ErrorKind::Config, why)
        }
    }
}

/// Holds a lease in a weaker mode. From here on it counts as that, even if the store refuses.
async fn weaken(guard: Guard, mode: Mode) -> std::result::Result<Guard, NotChanged<Guard>> {
    let lease = guard.lease().clone();
    let fences = lease.handle().fences;
    if let Err(error) = lease.client().check_process() {
        return Err(NotChanged::new(guard, lease.explain(error, "convert")));
    }
    let Some(weaker) = in_mode(&lease, mode, fences) else {
        let error = lease.explain(lost(&lease), "convert");
        return Err(NotChanged::new(guard, error));
    };
    drop(guard);
    let lease = weaker.lease().clone();
    match send(&lease, mode).await {
        Ok(_) if lease.is_held() => Ok(weaker),
        Ok(_) => Err(NotChanged::new(weaker, lease.explain(lost(&lease), "convert"))),
        Err(error) => {
            if error.effect() != Effect::NotApplied {
                lease.handle().on(|lease| lease.mode_in_doubt());
            }
            Err(NotChanged::new(weaker, lease.explain(error, "convert")))
        }
    }
}

async fn change(lease: &HeldLease, mode: Mode) -> Result<Guard> {
    let fences = send(lease, mode).await?;
    in_mode(lease, mode, fences).ok_or_else(|| lost(lease))
}

/// The guard of the same lease in another mode; views of the lease that were handed out before hold
/// no lease from here on.
fn in_mode(lease: &HeldLease, mode: Mode, fences: FenceBlock) -> Option<Guard> {
    let (client, handle) = (lease.client(), lease.handle());
    let settings = handle.settings.in_mode(mode);
    let next = Arc::new(handle.in_mode(settings, fences, client.clock.now())?);
    client.schedule.remove(handle);
    client.schedule.resume(&next);
    Some(Guard::new(client, next))
}

async fn send(lease: &HeldLease, mode: Mode) -> Result<FenceBlock> {
    let (client, handle) = (lease.client(), lease.handle());
    client.check_process()?;
    loop {
        handle.settled().await;
        let now = client.clock.now();
        match handle.on(|lease| lease.change_mode(now)) {
            Admission::Start(()) => break,
            Admission::Wait => {}
            Admission::Over => return Err(lost(lease)),
        }
    }
    let _changing = Changing { lease, sent_at: None };
    let request = ConvertRequest::new(handle.key.clone(), handle.token, handle.fences, mode);
    // Meanwhile the lease is not renewed.
    let within = client.config.call_timeout.min(handle.length() / 6);
    let refute = || handle.on(|lease| lease.refuted(client.clock.now()));
    match client.store.convert(&request, within).await? {
        Convert::Converted(converted) => Ok(converted.fences),
        Convert::Busy { others } => Err(Error::new(
            ErrorKind::Conflict,
            format!(
                "{others} others share the lock; to hold it alone, release it and take it again"
            ),
        )
        .with_effect(Effect::NotApplied)),
        Convert::Refused(refusal) => {
            Err(refused(refusal, mode.kind()).with_effect(Effect::NotApplied))
        }
        Convert::Late => {
            refute();
            Err(Error::new(
                ErrorKind::Late,
                "the lease expired before, though no other holder has come since",
            ))
        }
        _ => {
            refute();
            Err(lost(lease))
        }
    }
}

fn lost(lease: &HeldLease) -> Error {
    lease.lost_by(ErrorKind::Lost, LOST)
}
