//! The one clock by which all processes of the machine record events.

use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long the thread that watches the machine sleeps between two looks.
pub(crate) const NAP: Duration = Duration::from_millis(5);

/// Time since the machine was started.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Waits until a condition holds, for at most this long; returns whether it came to hold.
pub(crate) fn wait_for(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    const LOOK_EVERY: Duration = Duration::from_millis(5);
    let end = now() + patience;
    loop {
        if holds() {
            return true;
        }
        if now() >= end {
            return false;
        }
        thread::sleep(LOOK_EVERY);
    }
}
