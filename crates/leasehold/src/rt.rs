//! The few things that this crate asks of a runtime, in one place.

use std::time::Duration;

use leasehold_core::{Clock, Error, ErrorKind, Moment, Result};

/// tokio's timers stand still while the machine sleeps and the lease's clock does not, so no
/// timer runs for longer than this before the clock is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The runtime that the caller runs on; a client's background tasks live there.
pub(crate) fn current() -> Result<tokio::runtime::Handle> {
    tokio::runtime::Handle::try_current().map_err(|_| {
        Error::new(
            ErrorKind::Misuse,
            "there is no tokio runtime here; call this inside one, or use leasehold::blocking",
        )
    })
}

/// Returns once `clock` has reached `until`. Cancel safe.
pub(crate) async fn sleep_until(clock: &dyn Clock, until: Moment) {
    loop {
        let left = until.saturating_since(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK_AGAIN)).await;
    }
}

/// As [`sleep_until`], and for ever without a moment.
pub(crate) async fn sleep_until_some(clock: &dyn Clock, until: Option<Moment>) {
    match until {
        Some(until) => sleep_until(clock, until).await,
        None => std::future::pending().await,
    }
}
