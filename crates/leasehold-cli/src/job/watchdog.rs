//! The process that ends a command whose supervisor can't.
//!
//! A supervisor can be killed (`kill -9`, the out-of-memory killer) or stopped (`kill -STOP`), and
//! then nobody renews the lease, yet the command runs on. The parent-death signal covers only the
//! command's first process, not what it has started, and only death. So the supervisor forks this
//! watchdog, which does nothing but wait: when its pipe closes, or when the deadline it was last
//! told passes, it kills the command's process group.
//!
//! The watchdog is a fork without exec on purpose: it thereby shares the supervisor's open files,
//! among them the session file by which an embedded store knows that a holder is alive. The store
//! so counts the holder as alive until the group is dead, which leaves no moment in which both the
//! group and the next holder run. A process that can't die yet, because it waits for a device,
//! is waited for until the lease is over whatever the session says.
//!
//! What it is told stands in memory that both share. Nothing queues up there: a watchdog that was
//! stopped for long finds the latest word when it goes on, and nobody ever waits for it.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::inherited;
use crate::job::clock::{self, Alarm};
use crate::job::group;
use crate::leases::Leases;
use crate::output;

/// Pauses between two looks at a killed group: there is nothing to wait on for a process group of
/// strangers.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LAST: Duration = Duration::from_millis(50);

/// How long the next watchdog waits to be replaced at the least: something may end each of them at
/// once, and must not cost more than a fork in this time.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// How long after the moment at which a lease that was not renewed counts as lost.
const AFTER_THE_LAST: Duration = Duration::from_millis(1);

/// What supervisor, watchdog and the command's first process know together. It stays mapped, at
/// the same place, in all of them.
#[derive(Debug)]
pub(crate) struct Page(NonNull<Told>);

/// Moments are in nanoseconds of the boot clock.
#[derive(Debug)]
struct Told {
    /// The command's process group, once it has introduced itself.
    group: AtomicI32,
    /// Until when the group may live.
    kill_at: AtomicU64,
    /// When the store may grant the first lease to somebody else.
    deadline: AtomicU64,
}

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
        let told = Told {
            group: AtomicI32::new(0),
            kill_at: AtomicU64::new(u64::MAX),
            deadline: AtomicU64::new(u64::MAX),
        };
        // SAFETY: the mapping is large enough, writable, aligned to a page, and nobody else's yet.
        unsafe { page.write(told) };
        Ok(Self(page))
    }

    fn told(&self) -> &Told {
        // SAFETY: it was initialized by `new` and stays mapped as long as `self` lives.
        unsafe { self.0.as_ref() }
    }

    /// Says which group is to be killed: the one led by the calling process. Async-signal-safe.
    ///
    /// # Errors
    ///
    /// When the group's time is over already: then the watchdog may have looked for it in vain.
    pub(crate) fn introduce(&self) -> io::Result<()> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        self.told().group.store(pid, Ordering::SeqCst);
        let is_over = nanos(clock::now()) >= self.told().kill_at.load(Ordering::SeqCst);
        if is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Told>()) };
    }
}

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Watchdog {
    page: Arc<Page>,
    process: Mutex<Process>,
    /// Whether a moment passed before the next was told.
    overdue: AtomicBool,
}

#[derive(Debug)]
struct Process {
    pipe: OwnedFd,
    pid: Pid,
    /// Whether it was there at the last look.
    is_there: bool,
    /// Whether it is needed no more.
    is_dismissed: bool,
}

impl Watchdog {
    /// Forks the watchdog. It knows no group yet and will end quietly if the pipe closes.
    pub(crate) fn start() -> io::Result<Self> {
        let page = Arc::new(Page::new()?);
        let process = Mutex::new(fork(&page)?);
        Ok(Self { page, process, overdue: AtomicBool::new(false) })
    }

    /// For the command's process to [introduce](Page::introduce) itself.
    pub(crate) fn page(&self) -> Arc<Page> {
        Arc::clone(&self.page)
    }

    /// Says until when the group may live: an eighth of the grace before the deadline of the first
    /// lease to end.
    pub(crate) fn tell(&self, leases: &Leases, grace: Duration) {
        // The clock is read first: a pause between the two lines makes the moments earlier.
        let now = clock::now();
        let left = leases.until_deadline();
        let kill_at = nanos(now.saturating_add(left.saturating_sub(grace / 8)));
        let told = self.page.told();
        told.deadline.store(nanos(now.saturating_add(left)), Ordering::SeqCst);
        let previous = told.kill_at.swap(kill_at, Ordering::SeqCst);
        let is_overdue = nanos(now) >= previous;
        if is_overdue {
            self.overdue.store(true, Ordering::Release);
        }
        // It looks again by itself at the moment that it knew.
        if is_overdue || kill_at < previous {
            self.wake();
        }
    }

    fn wake(&self) {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // A pipe that is full wakes it as well, and nobody is woken in one that is gone.
        rustix::io::write(&process.pipe, &[0]).ok();
    }

    /// Tells it again and again, and puts another in its place as soon as it is gone. Ends only by being
    /// dropped.
    pub(crate) async fn keep_telling(&self, leases: &Leases, grace: Duration, every: Duration) {
        let tell = || {
            self.tell(leases, grace);
            until_next(every, leases.remaining())
        };
        self.keep(tell).await;
    }

    /// The same with whatever is to be told, which says when that is to be done again.
    async fn keep(&self, tell: impl Fn() -> Duration) {
        let mut end = self.end();
        loop {
            let pause = tell();
            if self.replace() {
                tokio::time::sleep(pause.min(AGAIN_AFTER)).await;
                end = self.end();
                continue;
            }
            tokio::select! {
                // It tells so from then on. Where there can't be another, that is tried again when it
                // is time to tell.
                () = has_come(end.as_ref()) => end = None,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Forks another watchdog if this one was killed. Whether it did.
    fn replace(&self) -> bool {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // One more would watch a group that has ended, whose number may be another's by then.
        if process.is_dismissed || !process.has_ended() {
            return false;
        }
        match fork(&self.page) {
            Ok(another) => {
                *process = another;
                return true;
            }
            // Once; it is tried again and again.
            Err(error) if process.is_there => {
                process.is_there = false;
                output::message(&format!(
                    "warning: the watchdog was killed, and there can't be another: {error}; \
                     should leasehold be killed too, only the command's first process will be"
                ));
            }
            Err(_) => {}
        }
        false
    }

    /// What tells of the end of the present one's process, where the system has such a thing (Linux
    /// since 5.3).
    #[cfg(target_os = "linux")]
    #[expect(
        deprecated,
        reason = "for descriptors that may be closed; this one is owned, and its successor is too new"
    )]
    fn end(&self) -> Option<AsyncFd<OwnedFd>> {
        use rustix::process::{PidfdFlags, pidfd_open};

        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // The number of one that is dismissed may be another's by now.
        let end = (!process.is_dismissed).then(|| pidfd_open(process.pid, PidfdFlags::empty()));
        AsyncFd::with_interest(end?.ok()?, Interest::READABLE).ok()
    }

    #[cfg(not(target_os = "linux"))]
    fn end(&self) -> Option<AsyncFd<OwnedFd>> {
        None
    }

    /// Whether it may have killed the group, because a moment that it was told has passed.
    pub(crate) fn may_have_killed(&self) -> bool {
        let passed = nanos(clock::now()) >= self.page.told().kill_at.load(Ordering::SeqCst);
        passed || self.overdue.load(Ordering::Acquire)
    }

    /// Whether this is the watchdog's process.
    pub(crate) fn is(&self, pid: Pid) -> bool {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).pid == pid
    }

    /// Ends the watchdog: the command has ended.
    pub(crate) fn dismiss(&self) -> Dismissed {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.is_dismissed = true;
        // Not asked to leave: a watchdog that is stopped could not. It has nothing to tidy up, and
        // until it is collected its number is nobody else's.
        if !process.has_ended() {
            kill_process(process.pid, Signal::KILL).ok();
        }
        Dismissed(process.pid)
    }
}

/// A watchdog that is about to end. Dropping this waits for that, which takes as long as the system needs
/// to take a process down, so there had better be something else to do first.
#[derive(Debug)]
#[must_use]
pub(crate) struct Dismissed(Pid);

impl Drop for Dismissed {
    fn drop(&mut self) {
        waitid(WaitId::Pid(self.0), WaitIdOptions::EXITED).ok();
    }
}

impl Process {
    /// Whether it has ended. Not collected, so that its number stays its own.
    fn has_ended(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        !matches!(waitid(WaitId::Pid(self.pid), look), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Replaced: one that is dismissed is collected by who has done that.
        if self.is_dismissed {
            return;
        }
        let collect = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(self.pid), collect).ok();
    }
}

/// Returns when there is the end of the process.
async fn has_come(end: Option<&AsyncFd<OwnedFd>>) {
    if let Some(end) = end
        && end.readable().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

fn fork(page: &Page) -> io::Result<Process> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let alarm = Alarm::new()?;
    // Blocked before the fork, so that no handler of this process ever runs in the watchdog.
    let forked = inherited::blocking(None, || {
        // SAFETY: the child of the fork only makes system calls on values it owns, allocates
        // nothing, takes no lock, and never returns from `watch`.
        match unsafe { libc::fork() } {
            0 => watch(page.told(), read.as_fd(), write.as_raw_fd(), &alarm),
            pid if pid < 0 => Err(io::Error::last_os_error()),
            pid => Ok(Pid::from_raw(pid)),
        }
    })?;
    let pid = forked.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Process { pipe: write, pid, is_there: true, is_dismissed: false })
}

fn nanos(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

/// The watchdog's life. Only system calls from here on.
fn watch(told: &Told, pipe: BorrowedFd<'_>, write_end: i32, alarm: &Alarm) -> ! {
    // A session of its own: no terminal reaches it, and it is in nobody's process group.
    rustix::process::setsid().ok();
    // Not "leasehold": `killall leasehold` must leave it to do its work.
    #[cfg(target_os = "linux")]
    rustix::thread::set_name(c"lh-watchdog").ok();
    hurry();
    for fd in [write_end, 0, 1, 2] {
        // SAFETY: this process has no other use for these: with the write end open it would never
        // see the pipe close, and the others belong to whoever reads the supervisor's output.
        unsafe { libc::close(fd) };
    }
    // The moment for which there was a kill.
    let mut done = None;
    loop {
        let kill_at = told.kill_at.load(Ordering::SeqCst);
        let until = (done != Some(kill_at) && kill_at != u64::MAX).then_some(kill_at);
        // The pipe closes when the supervisor is gone, and the command's first process is no longer
        // on its way to its program; anything in it only asks for a look at what is told.
        if alarm.wait(pipe, until.map(Duration::from_nanos)) {
            let mut calls = [0; 64];
            if rustix::io::read(pipe, &mut calls) == Ok(0) {
                let group = group_of(told);
                kill(group);
                wait_until_gone(group, told);
                end();
            }
        } else if until.is_some_and(|at| nanos(clock::now()) >= at)
            && told.kill_at.load(Ordering::SeqCst) == kill_at
        {
            // A group that introduces itself after this finds for itself that it is too late.
            kill(group_of(told));
            done = Some(kill_at);
        }
    }
}

/// Puts this process before others, as far as it may: its one moment must not wait for them to have
/// had their turn. It does next to nothing, so nobody goes short.
fn hurry() {
    rustix::process::setpriority_process(None, -20).ok();
    #[cfg(target_os = "linux")]
    {
        // musl's has more fields, of which this call reads none.
        // SAFETY: zeros are numbers.
        let mut first: libc::sched_param = unsafe { std::mem::zeroed() };
        first.sched_priority = 1;
        // SAFETY: the call reads `first` and changes how this process is scheduled.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
    }
}

fn group_of(told: &Told) -> Option<Pid> {
    Pid::from_raw(told.group.load(Ordering::SeqCst))
}

fn kill(group: Option<Pid>) {
    if let Some(group) = group {
        // A group that is gone already is what is wanted. Its number can't have been given to
        // somebody else since: numbers are handed out in turn, and this is a moment later.
        rustix::process::kill_process_group(group, Signal::KILL).ok();
    }
}

/// Waits until the group is gone, or the store may grant the lock whatever this process does.
fn wait_until_gone(group: Option<Pid>, told: &Told) {
    let Some(group) = group else { return };
    let mut pause = LOOK_FIRST;
    while !group::is_gone(group) && nanos(clock::now()) < told.deadline.load(Ordering::SeqCst) {
        clock::pause(pause);
        pause = pause.saturating_mul(2).min(LOOK_LAST);
    }
}

/// When it is to be told again, where the leases are held for certain for `remaining`: also as soon as
/// that has decided whether they were renewed in time, which is most of the grace before it kills.
fn until_next(every: Duration, remaining: Duration) -> Duration {
    if remaining.is_zero() { every } else { every.min(remaining.saturating_add(AFTER_THE_LAST)) }
}

fn end() -> ! {
    // SAFETY: `_exit` runs no destructors and no handlers, which belong to the supervisor.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn pid(watchdog: &Watchdog) -> Pid {
        watchdog.process.lock().unwrap().pid
    }

    #[test]
    fn one_that_was_killed_is_replaced_and_one_that_was_dismissed_is_not() {
        let watchdog = Watchdog::start().unwrap();
        let first = pid(&watchdog);
        kill_process(first, Signal::KILL).unwrap();
        while pid(&watchdog) == first {
            watchdog.replace();
            std::thread::yield_now();
        }
        let second = pid(&watchdog);
        drop(watchdog.dismiss());
        watchdog.replace();
        assert_eq!(pid(&watchdog), second);
    }

    #[test]
    fn it_is_told_of_a_renewal_in_the_last_moment_before_it_kills() {
        let (every, grace) = (Duration::from_secs(1), Duration::from_millis(100));
        for remaining in [0, 1, 50, 400, 900, 999, 1_000, 5_000].map(Duration::from_millis) {
            let pause = until_next(every, remaining);
            assert!(pause <= every, "{remaining:?}");
            // What is lost stays lost.
            if !remaining.is_zero() && pause >= remaining {
                let kills_in = remaining + grace - grace / 8;
                assert!(kills_in - pause > grace / 2, "{remaining:?}");
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_end_of_one_that_was_killed_is_noticed_at_once_and_not_only_at_the_next_look() {
        /// Longer than the test waits, so that no look finds it by itself.
        const NEVER: Duration = Duration::from_hours(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let watchdog = Watchdog::start().unwrap();
        let told = Cell::new(0);
        let killer = async {
            // It is told once before the end of each is waited for, and once when that has come.
            for times in [1, 3, 5] {
                while told.get() < times {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                kill_process(pid(&watchdog), Signal::KILL).unwrap();
            }
            while told.get() < 7 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        runtime.block_on(async {
            tokio::select! {
                () = watchdog.keep(|| { told.update(|times| times + 1); NEVER }) => {}
                noticed = tokio::time::timeout(Duration::from_secs(60), killer) => noticed.unwrap(),
            }
        });
        drop(watchdog.dismiss());
    }
}
