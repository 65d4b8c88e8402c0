//! Spaces attempts to connect to a server that is away.

use std::time::Duration;

/// Pauses between attempts to connect: short enough for a server that restarts, long enough that
/// a thousand clients leave one that is down alone. Each is lengthened by up to half at random.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The pause after a number of consecutive failures.
pub(crate) fn pause_after(failures: u32) -> Duration {
    let pause = PAUSE_MIN.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(PAUSE_MAX);
    pause.saturating_add(pause.mul_f64(fastrand::f64() / 2.0))
}
