//! The process that ends a command whose supervisor can't.
//!
//! A supervisor can be killed (`kill -9`, the out-of-memory killer) or stopped (`kill -STOP`), and
//! then nobody renews the lease, yet the command runs on. The parent-death signal covers only the
//! command's first process, not what it has started, and only death. So the supervisor forks this
//! watchdog, which does nothing but read a pipe: when the pipe closes without a farewell, or when
//! the deadline it was last told passes, it kills the command's process group.
//!
//! The watchdog is a fork without exec on purpose: it thereby shares the supervisor's open files,
//! among them the session file by which an embedded store knows that a holder is alive. The store
//! so counts the holder as alive until the group is dead, which leaves no moment in which both the
//! group and the next holder run.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};

use crate::held::Leases;
use crate::inherited;
use crate::run::clock::{self, Alarm};

/// How long a killed group may take to be gone before the watchdog stops looking. Processes that
/// are waiting for a device can take for ever.
const GONE_WITHIN: Duration = Duration::from_secs(2);
/// How often it looks: there is nothing to wait on for a process group of strangers.
const LOOK_EVERY: Duration = Duration::from_millis(1);

const MESSAGE_BYTES: usize = 16;
const GROUP: u64 = 1;
const KILL_AT: u64 = 2;
const FAREWELL: u64 = 3;

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pipe: OwnedFd,
    pid: Pid,
    /// The moment told last, in nanoseconds.
    told: AtomicU64,
    /// Whether a moment passed before the next was told.
    overdue: AtomicBool,
}

impl Watchdog {
    /// Forks the watchdog. It knows no group yet and will end quietly if the pipe closes.
    pub(crate) fn start() -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let alarm = Alarm::new()?;
        // Blocked before the fork, so that no handler of this process ever runs in the watchdog.
        let forked = inherited::blocking(None, || {
            // SAFETY: the child of the fork only makes system calls on values it owns, allocates
            // nothing, takes no lock, and never returns from `watch`.
            match unsafe { libc::fork() } {
                0 => watch(read.as_fd(), write.as_raw_fd(), &alarm),
                pid if pid < 0 => Err(io::Error::last_os_error()),
                pid => Ok(Pid::from_raw(pid)),
            }
        })?;
        let pid = forked.ok_or(io::ErrorKind::InvalidData)?;
        let (told, overdue) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        Ok(Self { pipe: write, pid, told, overdue })
    }

    /// The pipe, for the command's process to [introduce] itself.
    pub(crate) fn pipe(&self) -> RawFd {
        self.pipe.as_raw_fd()
    }

    /// Says until when the group may live: an eighth of the grace before the deadline of the first lease to end.
    pub(crate) fn tell(&self, leases: &Leases, grace: Duration) -> io::Result<()> {
        // The clock is read first: a pause between the two lines makes the moment earlier.
        let now = clock::now();
        let moment = now.saturating_add(leases.until_deadline().saturating_sub(grace / 8));
        let previous = self.told.swap(nanos(moment), Ordering::AcqRel);
        if nanos(now) >= previous {
            self.overdue.store(true, Ordering::Release);
        }
        send(self.pipe.as_fd(), KILL_AT, nanos(moment))
    }

    /// Tells it again and again. Ends only by being dropped.
    pub(crate) async fn keep_telling(&self, leases: &Leases, grace: Duration, every: Duration) {
        loop {
            // A watchdog that was killed is missed only if this process is killed as well.
            if self.tell(leases, grace).is_err() {
                tracing::warn!(
                    "the watchdog is gone; should leasehold be killed, only the command's first \
                     process will be, too"
                );
                return std::future::pending().await;
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Whether it may have killed the group, because a moment that it was told has passed.
    pub(crate) fn may_have_killed(&self) -> bool {
        let passed = nanos(clock::now()) >= self.told.load(Ordering::Acquire);
        passed || self.overdue.load(Ordering::Acquire)
    }

    /// Sends the watchdog away: the command has ended.
    pub(crate) fn dismiss(&self) {
        // If this fails the watchdog is dead already, which is what is wanted.
        drop(send(self.pipe.as_fd(), FAREWELL, 0));
        rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty()).ok();
    }
}

fn nanos(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

/// Tells the watchdog which group to kill: the one led by the calling process. Async-signal-safe.
pub(crate) fn introduce(pipe: RawFd) -> io::Result<()> {
    // SAFETY: the caller got the number from a `Watchdog` that its parent keeps open.
    let pipe = unsafe { BorrowedFd::borrow_raw(pipe) };
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    send(pipe, GROUP, u64::from(pid.unsigned_abs()))
}

/// One message is one write of few bytes, which a pipe keeps in one piece.
fn send(pipe: BorrowedFd<'_>, tag: u64, value: u64) -> io::Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    let (head, tail) = message.split_at_mut(8);
    head.copy_from_slice(&tag.to_ne_bytes());
    tail.copy_from_slice(&value.to_ne_bytes());
    rustix::io::write(pipe, &message).map(drop).map_err(io::Error::from)
}

/// The watchdog's life. Only system calls from here on.
fn watch(pipe: BorrowedFd<'_>, write_end: RawFd, alarm: &Alarm) -> ! {
    // A session of its own: no terminal reaches it, and it is in nobody's process group.
    rustix::process::setsid().ok();
    // Not "leasehold": `killall leasehold` must leave it to do its work.
    #[cfg(target_os = "linux")]
    rustix::thread::set_name(c"lh-watchdog").ok();
    for fd in [write_end, 0, 1, 2] {
        // SAFETY: this process has no other use for these: with the write end open it would never
        // see the pipe close, and the others belong to whoever reads the supervisor's output.
        unsafe { libc::close(fd) };
    }
    let mut group = None;
    let mut kill_at: Option<Duration> = None;
    // A group that introduces itself after the deadline has no time left.
    let mut expired = false;
    loop {
        // Messages first: one of them may have moved the deadline on.
        if alarm.wait(pipe, kill_at) {
            match receive(pipe) {
                Some((GROUP, pid)) => {
                    group = i32::try_from(pid).ok().and_then(Pid::from_raw);
                    if expired {
                        kill(group);
                    }
                }
                Some((KILL_AT, nanos)) => {
                    kill_at = Some(Duration::from_nanos(nanos));
                    expired = false;
                }
                Some(_) => end(),
                None => {
                    kill(group);
                    wait_until_gone(group);
                    end();
                }
            }
        } else if kill_at.is_some_and(|at| clock::now() >= at) {
            kill(group);
            kill_at = None;
            expired = true;
        }
    }
}

/// The next message, or `None` when the supervisor is gone.
fn receive(pipe: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let mut message = [0; MESSAGE_BYTES];
    match rustix::io::read(pipe, &mut message) {
        Ok(MESSAGE_BYTES) => {
            let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
            let (tag, value) = message.split_at(8);
            Some((number(tag)?, number(value)?))
        }
        _ => None,
    }
}

fn kill(group: Option<Pid>) {
    if let Some(group) = group {
        // A group that is gone already is what is wanted. Its number can't have been given to
        // somebody else since: numbers are handed out in turn, and this is a moment later.
        rustix::process::kill_process_group(group, Signal::KILL).ok();
    }
}

fn wait_until_gone(group: Option<Pid>) {
    let Some(group) = group else { return };
    let until = clock::now().saturating_add(GONE_WITHIN);
    while rustix::process::test_kill_process_group(group).is_ok() && clock::now() < until {
        clock::pause(LOOK_EVERY);
    }
}

fn end() -> ! {
    // SAFETY: `_exit` runs no destructors and no handlers, which belong to the supervisor.
    unsafe { libc::_exit(0) }
}
