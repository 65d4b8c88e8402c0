//! The process between leasehold and its command, which ends the command if leasehold can't.
//!
//! A supervisor can be killed (`kill -9`, the out-of-memory killer) or stopped (`kill -STOP`), and
//! then the lease is not renewed, while the command runs on. So the supervisor forks this watchdog,
//! which starts the command as its child and inherits the orphans below it. All processes of the
//! command descend from the watchdog, in any group and session, and as any user. When the
//! supervisor is gone, or the latest deadline passes, the watchdog kills all of it, again and
//! again, until it has ended. Should the watchdog be killed, the command's first process dies with
//! it, and the rest is left to the supervisor, which takes in what the watchdog had.
//!
//! The watchdog is a fork without exec, so it shares the supervisor's open files. The session file,
//! by which an embedded store sees a live holder, is one of them. The store so counts the holder as
//! alive until the descent is dead, which leaves no moment in which both the command and the next
//! holder run. A process that can't die yet, because it waits for a device, is waited for until the
//! lease is over whatever the session says. A lease in a server is released by a program that the
//! watchdog becomes then.
//!
//! Both write what the other needs to know into memory that they share, each over its last word. So
//! a watchdog that was stopped finds the latest moment, and the supervisor never waits for it.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::descent;
use crate::inherited::{self, Inherited};
use crate::job::clock::{self, Alarm};
use crate::job::conditions::{self, Conditions};
use crate::job::ending::{self, Ending};
use crate::job::page::{Page, Told, nanos};
use crate::job::start::Ready;
use crate::leases::Leases;
use crate::signals;

/// Pauses between two looks at killed processes: the system reports only children.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LAST: Duration = Duration::from_millis(50);
/// How often what is to end is looked for at least, however late it is.
const LOOKS: u32 = 3;

/// How long after the moment at which a lease that was not renewed counts as lost.
const AFTER_THE_LAST: Duration = Duration::from_millis(1);

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Watchdog {
    page: Arc<Page>,
    line: OwnedFd,
    pid: Pid,
}

/// The end of the watchdog.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    Alive,
    /// It was killed. Its number stays its own.
    Ended,
}

impl Watchdog {
    /// Forks the watchdog, has it start the command, and says how that went. What it becomes at its
    /// end, if `last` is given, gives the lease back where this process can't.
    ///
    /// Must be called on a thread that lives as long as this process: until the command has
    /// started, the watchdog dies with the *thread* that has forked it.
    pub(crate) fn start(
        conditions: &Conditions,
        ready: &mut Ready,
        last: Option<&Ready>,
    ) -> io::Result<(Self, io::Result<Pid>)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (line, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (heard, hears) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let alarm = Alarm::new()?;
        let parent = rustix::process::getpid();
        // Blocked before the fork, so that no handler of this process ever runs in the watchdog.
        let forked = inherited::blocking(None, || {
            // SAFETY: the child of the fork only makes system calls on values it owns, allocates
            // nothing, takes no lock, and never returns from `live`.
            match unsafe { libc::fork() } {
                0 => Life {
                    told: conditions.page.told(),
                    parent,
                    line: theirs.as_fd(),
                    supervisors_end: line.as_raw_fd(),
                    heard: heard.as_fd(),
                    hears: hears.as_raw_fd(),
                    alarm: &alarm,
                    inherited: &conditions.inherited,
                    last,
                }
                .live(conditions, ready),
                pid if pid < 0 => Err(io::Error::last_os_error()),
                pid => Ok(Pid::from_raw(pid)),
            }
        })?;
        let watchdog = Self {
            page: Arc::clone(&conditions.page),
            line,
            pid: forked.ok_or(io::ErrorKind::InvalidData)?,
        };
        drop(theirs);
        // It says so, or is gone; a signal that is handled meanwhile only interrupts the wait.
        while poll(&mut [PollFd::new(&watchdog.line, PollFlags::IN)], None).is_err() {}
        let started = match watchdog.page.told().started.load(Ordering::SeqCst) {
            // It was killed. A command that has introduced itself may have begun before that.
            0 => match Pid::from_raw(watchdog.page.told().group.load(Ordering::SeqCst)) {
                Some(pid) => Ok(pid),
                None => {
                    drop(watchdog.dismiss());
                    return Err(io::Error::other("the watchdog, which starts it, was killed"));
                }
            },
            error if error < 0 => Err(io::Error::from_raw_os_error(error.saturating_neg())),
            pid => Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        };
        Ok((watchdog, started))
    }

    /// As [`Page::tell`].
    pub(crate) fn tell(&self, leases: &Leases, grace: Duration) {
        if self.page.tell(leases, grace) {
            // A full pipe wakes it as well, and the end of a pipe that is gone wakes no process.
            rustix::io::write(&self.line, &[0]).ok();
        }
    }

    /// Tells it again and again. Ends only by being dropped.
    #[expect(clippy::infinite_loop, reason = "its caller drops it")]
    pub(crate) async fn keep_telling(&self, leases: &Leases, grace: Duration, every: Duration) {
        loop {
            self.tell(leases, grace);
            tokio::time::sleep(until_next(every, leases.remaining())).await;
        }
    }

    /// Whether it may have killed the command.
    pub(crate) fn may_have_killed(&self) -> bool {
        self.page.may_have_killed()
    }

    /// The number of its process.
    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    /// How the command has ended, if it has and the watchdog has come to know it.
    pub(crate) fn ending(&self) -> Option<Ending> {
        read(self.page.told().ended.load(Ordering::SeqCst))
    }

    /// How often the command was stopped, with the signal that did it last.
    pub(crate) fn stops(&self) -> (u32, libc::c_int) {
        let stopped = self.page.told().stopped.load(Ordering::SeqCst);
        (stopped >> 8, libc::c_int::from(stopped.to_le_bytes()[0]))
    }

    /// Whether all processes of the command have ended, as the watchdog knows it.
    pub(crate) fn none_left(&self) -> bool {
        self.page.told().none_left.load(Ordering::SeqCst)
    }

    /// Looks after it. A stopped watchdog is continued, since only it knows the state of the
    /// command.
    pub(crate) fn state(&self) -> State {
        let whatever = WaitIdOptions::EXITED | WaitIdOptions::STOPPED;
        let look = whatever | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        match waitid(WaitId::Pid(self.pid), look) {
            Ok(None) => State::Alive,
            Ok(Some(status)) if status.stopping_signal().is_some() => {
                let collect = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
                waitid(WaitId::Pid(self.pid), collect).ok();
                kill_process(self.pid, Signal::CONT).ok();
                State::Alive
            }
            _ => State::Ended,
        }
    }

    /// Ends the watchdog: the command has ended.
    pub(crate) fn dismiss(&self) -> Dismissed {
        // Not asked to leave: a watchdog that is stopped could not. It has nothing to tidy up, and
        // until it is collected no other process has its number.
        kill_process(self.pid, Signal::KILL).ok();
        Dismissed(self.pid)
    }
}

/// A watchdog that is about to end. Dropping this waits for that, which takes as long as the system
/// needs to take a process down, so there had better be something else to do first.
#[derive(Debug)]
#[must_use]
pub(crate) struct Dismissed(Pid);

impl Drop for Dismissed {
    fn drop(&mut self) {
        waitid(WaitId::Pid(self.0), WaitIdOptions::EXITED).ok();
    }
}

/// An end as a number that is not zero.
const fn written(ending: Ending) -> u32 {
    match ending {
        Ending::Exited(code) => 1 << 16 | code as u32,
        Ending::Killed(signal) => 2 << 16 | signal.unsigned_abs(),
    }
}

fn read(number: u32) -> Option<Ending> {
    let value = i32::try_from(number & 0xffff).unwrap_or_default();
    match number >> 16 {
        0 => None,
        1 => Some(Ending::Exited(u8::try_from(value).unwrap_or(u8::MAX))),
        _ => Some(Ending::Killed(value)),
    }
}

/// The watchdog's own end. Only system calls here.
struct Life<'a> {
    told: &'a Told,
    parent: Pid,
    /// It closes when the supervisor is gone; anything in it only wakes the watchdog.
    line: BorrowedFd<'a>,
    supervisors_end: RawFd,
    /// The two ends of the pipe in which the handler of signals says that a child has ended.
    heard: BorrowedFd<'a>,
    hears: RawFd,
    alarm: &'a Alarm,
    inherited: &'a Inherited,
    last: Option<&'a Ready>,
}

impl Life<'_> {
    fn live(&self, conditions: &Conditions, ready: &mut Ready) -> ! {
        let command = self.start(conditions, ready);
        hurry();
        close(&[0, 1, 2]);
        // The moment for which there was a kill.
        let mut done = None;
        loop {
            let kill_at = self.told.kill_at.load(Ordering::SeqCst);
            let until = (done != Some(kill_at) && kill_at != u64::MAX).then_some(kill_at);
            let [called, heard] =
                self.alarm.wait([self.line, self.heard], until.map(Duration::from_nanos));
            let mut bytes = [0; 64];
            if heard {
                rustix::io::read(self.heard, &mut bytes).ok();
                self.collect(command);
            }
            if called {
                if rustix::io::read(self.line, &mut bytes) == Ok(0) {
                    self.end_the_descent(command);
                    self.end();
                }
            } else if until.is_some_and(|at| nanos(clock::now()) >= at)
                && self.told.kill_at.load(Ordering::SeqCst) == kill_at
            {
                // A command that introduces itself after this finds for itself that it is too late.
                self.end_the_descent(command);
                done = Some(kill_at);
            }
        }
    }

    /// Starts the command and says how that went.
    fn start(&self, conditions: &Conditions, ready: &mut Ready) -> Pid {
        // A group of its own: no key reaches it. Not a session of its own: a command whose parent
        // is in another one can't be stopped by a key.
        rustix::process::setpgid(None, None).ok();
        close(&[self.supervisors_end]);
        descent::take_orphans_in().ok();
        if rustix::process::getppid() != Some(self.parent) {
            exit();
        }
        let me = rustix::process::getpid();
        let prepare = || conditions::unless_orphaned(me, || conditions::prepare(me, conditions));
        // SAFETY: it makes system calls only, allocates nothing and takes no lock; what it uses is
        // made already.
        let started = unsafe { ready.start(&conditions.inherited, &prepare) };
        // Not "leasehold": `killall leasehold` must leave it to do its work.
        #[cfg(target_os = "linux")]
        rustix::thread::set_name(c"lh-watchdog").ok();
        signals::hear_of_children(self.hears);
        let said = match &started {
            Ok(pid) => pid.as_raw_nonzero().get(),
            Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL).saturating_neg(),
        };
        self.told.started.store(said, Ordering::SeqCst);
        rustix::io::write(self.line, &[0]).ok();
        let Ok(command) = started else { exit() };
        // It may have ended before that was listened for.
        self.collect(command);
        command
    }

    /// Notes the outcome of the command, and collects the ended processes of its descent. Whether
    /// all of it has ended.
    fn collect(&self, command: Pid) -> bool {
        let mut is_news = false;
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::Pid(command), stopped)
            && let Some(signal) = status.stopping_signal()
        {
            let times = self.told.stopped.load(Ordering::SeqCst) >> 8;
            let number = times.wrapping_add(1) << 8 | u32::from(signals::number(signal));
            self.told.stopped.store(number, Ordering::SeqCst);
            is_news = true;
        }
        let mut ending = None;
        let none_left = loop {
            match ending::ended_child() {
                Ok(Some(pid)) => {
                    let collected = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
                    if pid == command
                        && let Ok(Some(status)) = waitid(WaitId::Pid(pid), collected)
                    {
                        ending = Ending::of(&status);
                    } else {
                        waitid(WaitId::Pid(pid), collected).ok();
                    }
                }
                Ok(None) => break false,
                Err(_) => break is_gone_by_its_group(self.group()),
            }
        };
        if none_left && !self.told.none_left.swap(true, Ordering::SeqCst) {
            is_news = true;
        }
        // Last, so that its reader knows whether that was all.
        if let Some(ending) = ending {
            self.told.ended.store(written(ending), Ordering::SeqCst);
            is_news = true;
        }
        if is_news && rustix::process::getppid() == Some(self.parent) {
            kill_process(self.parent, Signal::CHILD).ok();
        }
        none_left
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(self.told.group.load(Ordering::SeqCst))
    }

    /// Kills everything that the command has started until all of it has ended, or the store may
    /// grant the lock anyway.
    fn end_the_descent(&self, command: Pid) {
        let me = rustix::process::getpid();
        let (mut pause, mut looks, mut clean) = (LOOK_FIRST, 0_u32, 0_u32);
        loop {
            // Until it is collected no other process has its number.
            if self.told.ended.load(Ordering::SeqCst) == 0
                && let Some(group) = self.group()
            {
                rustix::process::kill_process_group(group, Signal::KILL).ok();
            }
            let found = descent::send(me, &[], libc::SIGKILL);
            looks = looks.saturating_add(1);
            // Twice: what was started meanwhile may have been missed. This knows one more thing
            // than whether there are children, that those which are left do nothing any more.
            clean = if found.is_some_and(|found| found.alive == 0) {
                clean.saturating_add(1)
            } else {
                0
            };
            let is_over = nanos(clock::now()) >= self.told.deadline.load(Ordering::SeqCst);
            if self.collect(command) || clean >= 2 || (is_over && looks >= LOOKS) {
                return;
            }
            clock::pause(pause);
            pause = pause.saturating_mul(2).min(LOOK_LAST);
        }
    }

    /// Releases the lease in a server, and ends.
    fn end(&self) -> ! {
        let in_time = nanos(clock::now()) < self.told.deadline.load(Ordering::SeqCst);
        if let Some(last) = self.last.filter(|_| in_time) {
            let flags = rustix::fs::OFlags::RDWR;
            // The lowest free numbers belong to its standard files.
            for _ in 0..3 {
                if let Ok(file) = rustix::fs::open(c"/dev/null", flags, rustix::fs::Mode::empty()) {
                    std::mem::forget(file);
                }
            }
            self.inherited.restore_mask().ok();
            last.become_it();
        }
        exit()
    }
}

fn close(files: &[RawFd]) {
    for fd in files {
        // SAFETY: this process does not use these descriptors. With the supervisor's end open it
        // would never see the line close, and the others are the supervisor's output.
        unsafe { libc::close(*fd) };
    }
}

/// Whether a group is gone, on systems without subreapers.
#[cfg(not(target_os = "linux"))]
fn is_gone_by_its_group(group: Option<Pid>) -> bool {
    let gone =
        |group| rustix::process::test_kill_process_group(group) == Err(rustix::io::Errno::SRCH);
    group.is_none_or(gone)
}

/// There are no children, and all that it has started would be some.
#[cfg(target_os = "linux")]
const fn is_gone_by_its_group(_: Option<Pid>) -> bool {
    true
}

/// Raises the priority of this process, if permitted: its one moment must not wait for others. It
/// does little, so other processes keep their time.
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

/// The time until it gets a new moment, with `remaining` until the deadline. A moment just after
/// that deadline knows whether the leases were renewed, most of the grace before the kill.
fn until_next(every: Duration, remaining: Duration) -> Duration {
    if remaining.is_zero() { every } else { every.min(remaining.saturating_add(AFTER_THE_LAST)) }
}

fn exit() -> ! {
    // SAFETY: `_exit` runs no destructors and no handlers, which belong to the supervisor.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_read_as_it_was_written() {
        assert_eq!(read(0), None);
        for ending in
            [Ending::Exited(0), Ending::Exited(255), Ending::Killed(9), Ending::Killed(64)]
        {
            assert_eq!(read(written(ending)), Some(ending));
        }
    }

    #[test]
    fn it_sees_a_renewal_in_the_last_moment_before_it_kills() {
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
}
