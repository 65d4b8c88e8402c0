//! The process that ends a script whose holder can't: one that was killed, or stopped.
//!
//! A fork of the holder, which shares the holder's session of an embedded store: to that store the holder
//! lives until the script has ended. Forked from a process with threads, it makes system calls only.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libc::c_int;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::script::{Descent, Script};
use crate::inherited;
use crate::job::clock::{self, Alarm};
use crate::leases::Leases;
use crate::signals;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What holder and guard know together. Moments are in nanoseconds of the boot clock.
#[derive(Debug)]
struct Told {
    /// When the store may grant the first lease to another holder.
    deadline: AtomicU64,
    /// Whether the holder has told the script of the loss.
    script_knows: AtomicBool,
}

/// A page that stays mapped in both.
#[derive(Debug)]
struct Page(NonNull<Told>);

// SAFETY: the page is only ever reached as `&Told`, which is made of atomics.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn new() -> io::Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let length = size_of::<Told>();
        // SAFETY: a new mapping at a place that the system chooses touches no memory in use.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast::<Told>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let told =
            Told { deadline: AtomicU64::new(u64::MAX), script_knows: AtomicBool::new(false) };
        // SAFETY: the mapping is large enough, writable, aligned to a page, and nobody else's yet.
        unsafe { page.write(told) };
        Ok(Self(page))
    }

    fn tell(&self, leases: &Leases) {
        // The clock is read first: a pause between the two lines makes the moment earlier.
        let now = clock::now();
        let deadline = now.saturating_add(leases.until_deadline()).as_nanos();
        let deadline = u64::try_from(deadline).unwrap_or(u64::MAX);
        self.told().deadline.store(deadline, Ordering::SeqCst);
    }

    fn told(&self) -> &Told {
        // SAFETY: it was initialized by `new` and stays mapped as long as `self` lives.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Told>()) };
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
    pid: Pid,
    /// Closed when the holder is gone.
    _pipe: OwnedFd,
}

impl Guard {
    pub(super) fn start(script: &Script, manners: Manners, leases: &Leases) -> io::Result<Self> {
        let page = Arc::new(Page::new()?);
        page.tell(leases);
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (alarm, mut descent) = (Alarm::new()?, Descent::new());
        // Blocked before the fork, so that no handler of this process ever runs in the guard.
        let forked = inherited::blocking(None, || {
            // SAFETY: the child of the fork only makes system calls on values it owns, allocates
            // nothing, takes no lock, and never returns from `watch`.
            match unsafe { libc::fork() } {
                0 => {
                    for fd in [write.as_raw_fd(), 0, 1, 2] {
                        // SAFETY: this process has no other use for these: with the write end open it
                        // would never see the pipe close, and others wait for the end of the rest.
                        unsafe { libc::close(fd) };
                    }
                    watch(page.told(), read.as_fd(), &alarm, script, &mut descent, manners)
                }
                pid if pid < 0 => Err(io::Error::last_os_error()),
                pid => Ok(Pid::from_raw(pid)),
            }
        })?;
        let pid = forked.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { page, pid, _pipe: write })
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

    /// The script is told of the loss from here.
    pub(super) fn script_knows(&self) {
        self.page.told().script_knows.store(true, Ordering::SeqCst);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Not asked to leave: one that is stopped could not. Until it is collected its number is its own.
        kill_process(self.pid, Signal::KILL).ok();
        waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED).ok();
    }
}

/// The guard's life. Only system calls from here on.
fn watch(
    told: &Told,
    pipe: BorrowedFd<'_>,
    alarm: &Alarm,
    script: &Script,
    descent: &mut Descent,
    manners: Manners,
) -> ! {
    // A session of its own: no terminal reaches it, and it is in nobody's process group.
    rustix::process::setsid().ok();
    // Not "leasehold": `killall -9 leasehold` must leave it to do its work.
    #[cfg(target_os = "linux")]
    rustix::thread::set_name(c"lh-guard").ok();
    // A moment after the holder, which tells the script itself if it can.
    let before = manners.grace.saturating_sub(manners.grace / 8);
    loop {
        let deadline = told.deadline.load(Ordering::SeqCst);
        let ends_at = Duration::from_nanos(deadline);
        let tell_at = ends_at.saturating_sub(before);
        let [holder_is_gone, _] = alarm.wait([pipe; 2], Some(tell_at));
        let is_late = clock::now() >= tell_at && told.deadline.load(Ordering::SeqCst) == deadline;
        if !holder_is_gone && !is_late {
            continue;
        }
        if !told.script_knows.load(Ordering::SeqCst) {
            descent.signal(script, manners.signal);
            if manners.insist() {
                // A stopped process can't heed it.
                descent.signal(script, libc::SIGCONT);
            }
        }
        let left = ends_at.saturating_sub(clock::now());
        let kill_at = clock::now().saturating_add(manners.patience(left));
        let mut killed = false;
        loop {
            let now = clock::now();
            if manners.insist() && !killed && now >= kill_at {
                killed = true;
                descent.signal(script, libc::SIGKILL);
            }
            if descent.is_gone(script) || now >= ends_at {
                break;
            }
            clock::pause(LOOK_EVERY);
        }
        // SAFETY: `_exit` runs no destructors and no handlers, which belong to the holder.
        unsafe { libc::_exit(0) }
    }
}
