//! The process that ends a script whose holder was killed or stopped.
//!
//! A fork of the holder, which shares the holder's session of an embedded store: to that store the
//! holder lives until the script has ended. Forked from a process with threads, it makes system
//! calls only.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libc::c_int;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::script::Script;
use crate::descent::Followed;
use crate::inherited;
use crate::job::clock::{self, Alarm};
use crate::job::page::nanos;
use crate::leases::Leases;
use crate::mapped::Mapped;
use crate::signals;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What holder and guard know together. Moments are in nanoseconds of the boot clock.
#[derive(Debug)]
struct Told {
    /// When the store may grant the first lease to another holder.
    deadline: AtomicU64,
    /// How long before that the holder learns of the loss: a short lease has a short grace in any
    /// case.
    grace: AtomicU64,
    /// Whether the holder has told the script of the loss.
    script_knows: AtomicBool,
}

/// What stays mapped in both.
#[derive(Debug)]
struct Page(Mapped<Told>);

impl Page {
    fn new() -> io::Result<Self> {
        Mapped::new(Told {
            deadline: AtomicU64::new(u64::MAX),
            grace: AtomicU64::new(0),
            script_knows: AtomicBool::new(false),
        })
        .map(Self)
    }

    fn tell(&self, leases: &Leases) {
        // The clock is read first: a pause between the two lines makes the moment earlier.
        let now = clock::now();
        let (left, held) = (leases.until_deadline(), leases.remaining());
        if !held.is_zero() {
            self.0.grace.store(nanos(left.saturating_sub(held)), Ordering::SeqCst);
        }
        self.0.deadline.store(nanos(now.saturating_add(left)), Ordering::SeqCst);
    }
}

/// How a script is ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manners {
    pub(super) signal: c_int,
    /// The time between the news of a loss and the deadline.
    pub(super) grace: Duration,
}

impl Manners {
    /// Whether KILL follows: to another signal the script may do as it likes.
    pub(super) fn insist(self) -> bool {
        signals::is_fatal(self.signal) || self.signal == libc::SIGKILL
    }

    /// How long the script has, of what is left, until KILL follows.
    pub(super) fn patience(self, left: Duration) -> Duration {
        let patience = left.min(self.grace);
        patience.saturating_sub(patience / 4)
    }
}

/// The holder's end.
#[derive(Debug)]
pub(super) struct Guard {
    page: Arc<Page>,
    process: Script,
    /// Closed when the holder is gone.
    _pipe: OwnedFd,
}

impl Guard {
    pub(super) fn start(script: &Script, manners: Manners, leases: &Leases) -> io::Result<Self> {
        let page = Arc::new(Page::new()?);
        page.tell(leases);
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (alarm, mut descent) = (Alarm::new()?, script.follow());
        // Blocked before the fork, so that no handler of this process ever runs in the guard.
        let forked = inherited::blocking(None, || {
            // SAFETY: the child of the fork only makes system calls on values it owns, allocates
            // nothing, takes no lock, and never returns from `watch`.
            match unsafe { libc::fork() } {
                0 => {
                    for fd in [write.as_raw_fd(), 0, 1, 2] {
                        // SAFETY: this process has no other use for these: with the write end open
                        // it would never see the pipe close, and others wait for the end of the
                        // rest.
                        unsafe { libc::close(fd) };
                    }
                    watch(&page.0, read.as_fd(), &alarm, script, &mut descent, manners)
                }
                pid if pid < 0 => Err(io::Error::last_os_error()),
                pid => Ok(Pid::from_raw(pid)),
            }
        })?;
        let process = Script::of(forked.ok_or(io::ErrorKind::InvalidData)?)?;
        Ok(Self { page, process, _pipe: write })
    }

    /// What tells it, again and again, until when the leases are held. Ends only by being dropped.
    pub(super) fn teller(
        &self,
        leases: Leases,
        every: Duration,
    ) -> impl Future<Output = ()> + use<> {
        let page = Arc::clone(&self.page);
        async move {
            loop {
                page.tell(&leases);
                tokio::time::sleep(every).await;
            }
        }
    }

    /// Returns when it has ended, which it does not do by itself while the holder lives.
    pub(super) async fn ended(&self) {
        self.process.ended().await;
    }

    /// The script gets the message about the loss from here.
    pub(super) fn script_knows(&self) {
        self.page.0.script_knows.store(true, Ordering::SeqCst);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Not asked to leave: one that is stopped could not. Until it is collected its number is
        // its own.
        kill_process(self.process.pid(), Signal::KILL).ok();
        waitid(WaitId::Pid(self.process.pid()), WaitIdOptions::EXITED).ok();
    }
}

/// The guard's life. Only system calls from here on.
fn watch(
    told: &Told,
    pipe: BorrowedFd<'_>,
    alarm: &Alarm,
    script: &Script,
    descent: &mut Followed,
    manners: Manners,
) -> ! {
    // A session of its own: no terminal reaches it, and it is in nobody's process group.
    rustix::process::setsid().ok();
    // Not "leasehold": `killall -9 leasehold` must leave it to do its work.
    #[cfg(target_os = "linux")]
    rustix::thread::set_name(c"lh-guard").ok();
    loop {
        let deadline = told.deadline.load(Ordering::SeqCst);
        let ends_at = Duration::from_nanos(deadline);
        // A moment after the holder, which signals the script itself if it can.
        let grace = Duration::from_nanos(told.grace.load(Ordering::SeqCst));
        let before = grace.saturating_sub(grace / 8);
        let tell_at = ends_at.saturating_sub(before);
        let [holder_is_gone, _] = alarm.wait([pipe; 2], Some(tell_at));
        let is_late = clock::now() >= tell_at && told.deadline.load(Ordering::SeqCst) == deadline;
        if !holder_is_gone && !is_late {
            continue;
        }
        if !told.script_knows.load(Ordering::SeqCst) {
            script.send(descent, manners.signal);
            if manners.insist() {
                // A stopped process can't heed it.
                script.send(descent, libc::SIGCONT);
            }
        }
        let left = ends_at.saturating_sub(clock::now());
        let kill_at = clock::now().saturating_add(manners.patience(left));
        loop {
            let now = clock::now();
            // Again and again: each look finds what was started since the last.
            if manners.insist() && now >= kill_at {
                script.send(descent, libc::SIGKILL);
            }
            if script.is_gone(descent) || now >= ends_at {
                break;
            }
            clock::pause(LOOK_EVERY);
        }
        // SAFETY: `_exit` runs no destructors and no handlers, which belong to the holder.
        unsafe { libc::_exit(0) }
    }
}
