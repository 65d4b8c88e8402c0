//! The few things that this crate needs from a runtime.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::thread;
use std::time::Duration;

use leasehold_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::runtime::Handle;
use tokio::task;

use crate::background;

/// tokio's timers stand still while the machine sleeps, and the lease's clock goes on. So no timer
/// runs for longer than this before another look at the clock.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// As [`LOOK_AGAIN`], if the clock does not follow the caller's timers at all.
const LOOK_AGAIN_STILL: Duration = Duration::from_millis(10);

/// The runtime that the caller runs on.
pub(crate) fn current() -> Result<Handle> {
    Handle::try_current().map_err(|_| {
        Error::new(
            ErrorKind::Misuse,
            "there is no tokio runtime here; await this inside one, or call `.wait()` of leasehold::Wait",
        )
    })
}

/// The task that is polled here, or the thread if there is none.
pub(crate) fn caller() -> u64 {
    let mut caller = DefaultHasher::new();
    // Numbers of tasks and of threads may be the same: the first says which it is.
    let task = task::try_id();
    task.hash(&mut caller);
    if task.is_none() {
        thread::current().id().hash(&mut caller);
    }
    caller.finish()
}

/// Returns once `clock` has reached `until`. Cancel safe.
pub(crate) async fn sleep_until(clock: &dyn Clock, until: Moment) {
    loop {
        let before = clock.now();
        let left = until.saturating_since(before);
        if left.is_zero() {
            return;
        }
        let mut pause = left.min(LOOK_AGAIN);
        if Handle::try_current().is_ok() {
            tokio::time::sleep(pause).await;
            if clock.now().saturating_since(before) >= pause / 2 {
                continue;
            }
            // A test has paused the runtime's time: its timers end at once while the clock goes on
            // as ever. Polling them would keep a processor busy.
            pause = pause.min(LOOK_AGAIN_STILL);
        }
        background::sleep(pause).await;
    }
}

/// As [`sleep_until`]; pending for ever without a moment.
pub(crate) async fn sleep_until_some(clock: &dyn Clock, until: Option<Moment>) {
    match until {
        Some(until) => sleep_until(clock, until).await,
        None => std::future::pending().await,
    }
}
