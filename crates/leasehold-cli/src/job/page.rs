//! The memory through which supervisor, watchdog and command tell each other what they do.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::job::clock;
use crate::leases::Leases;
use crate::mapped::Mapped;

/// What supervisor, watchdog and the command's first process know together.
#[derive(Debug)]
pub(crate) struct Page(Mapped<Told>);

/// Moments are in nanoseconds of the boot clock.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Until when the command may live.
    pub(super) kill_at: AtomicU64,
    /// When the store may grant the first lease to another holder.
    pub(super) deadline: AtomicU64,
    /// Whether a moment passed before the next was written.
    pub(super) overdue: AtomicBool,
    /// The command's process group, once it has introduced itself.
    pub(super) group: AtomicI32,
    /// The command's process, or the number of the error that there was in its place, negative.
    pub(super) started: AtomicI32,
    /// By what it was stopped, in the lowest byte, and how often in those above.
    pub(super) stopped: AtomicU32,
    /// How it ended, as a number that is not zero.
    pub(super) ended: AtomicU32,
    /// Whether nothing descends from the watchdog any more.
    pub(super) none_left: AtomicBool,
}

impl Page {
    pub(crate) fn new() -> io::Result<Self> {
        let (kill_at, deadline) = (AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX));
        Ok(Self(Mapped::new(Told { kill_at, deadline, ..Told::default() })?))
    }

    pub(super) fn told(&self) -> &Told {
        &self.0
    }

    /// Says which group is the command's: the one led by the calling process. Async-signal-safe.
    ///
    /// # Errors
    ///
    /// When the command's time is over already: then the watchdog may have looked for it in vain.
    pub(crate) fn introduce(&self) -> io::Result<()> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        self.told().group.store(pid, Ordering::SeqCst);
        let is_over = nanos(clock::now()) >= self.told().kill_at.load(Ordering::SeqCst);
        if is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// Says until when the command may live: an eighth of the grace before the deadline of the
    /// first lease to end. Whether the watchdog has to look at that at once.
    pub(crate) fn tell(&self, leases: &Leases, grace: Duration) -> bool {
        // The clock is read first: a pause between the two lines makes the moments earlier.
        let now = clock::now();
        let left = leases.until_deadline();
        let kill_at = nanos(now.saturating_add(left.saturating_sub(grace / 8)));
        let told = self.told();
        told.deadline.store(nanos(now.saturating_add(left)), Ordering::SeqCst);
        let previous = told.kill_at.swap(kill_at, Ordering::SeqCst);
        let is_overdue = nanos(now) >= previous;
        if is_overdue {
            told.overdue.store(true, Ordering::SeqCst);
        }
        // It looks again by itself at the moment that it knew.
        is_overdue || kill_at < previous
    }

    /// Whether the watchdog may have killed the command, since a written moment has passed.
    pub(crate) fn may_have_killed(&self) -> bool {
        let passed = nanos(clock::now()) >= self.told().kill_at.load(Ordering::SeqCst);
        passed || self.told().overdue.load(Ordering::SeqCst)
    }
}

/// A moment as it stands there.
pub(crate) fn nanos(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}
