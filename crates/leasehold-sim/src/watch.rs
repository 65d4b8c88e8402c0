//! Reads real clocks: how much processor time a simulation took, and whether it hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The processor time of this thread, independent of the machine's load.
#[cfg(unix)]
pub(crate) fn thread_seconds() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let worked = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(worked).unwrap_or_default().as_secs_f64()
}

/// Unknown on this system.
#[cfg(not(unix))]
pub(crate) const fn thread_seconds() -> f64 {
    f64::NAN
}

/// A seed that takes longer is stuck: its simulated time does not pass.
const HANGS_AFTER: u64 = 120;

/// Counts real seconds, and ends the program when a simulation hangs.
#[derive(Debug)]
pub(crate) struct Watch {
    began: Instant,
    ended: Arc<AtomicU64>,
    seed: Arc<AtomicU64>,
}

impl Watch {
    #[expect(clippy::disallowed_methods, reason = "a limit of real time, and a time to print")]
    pub(crate) fn start() -> Self {
        let began = Instant::now();
        let (ended, seed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (last, which) = (Arc::clone(&ended), Arc::clone(&seed));
        thread::spawn(move || {
            let (mut before, mut seconds) = (0, 0);
            loop {
                thread::sleep(Duration::from_secs(1));
                let now = last.load(Ordering::Relaxed);
                seconds = if now == before { seconds + 1 } else { 0 };
                before = now;
                if seconds > HANGS_AFTER {
                    let seed = which.load(Ordering::Relaxed);
                    println!("HANG: seed {seed}: no time passes; cargo xtask sim history {seed}");
                    std::process::exit(3);
                }
            }
        });
        Self { began, ended, seed }
    }

    pub(crate) fn begins(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
        self.alive();
    }

    pub(crate) fn alive(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.elapsed().as_secs()
    }
}
