//! Reads the machine's boot clock for the watchdog and for `LEASEHOLD_DEADLINE_MS`.
//!
//! Everything but [`Alarm::new`] is async-signal-safe.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::ClockId;

/// Counts while the machine sleeps where the system has such a clock.
#[cfg(target_os = "linux")]
const BOOT: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const BOOT: ClockId = ClockId::Monotonic;

/// The time since the machine was started.
pub(crate) fn now() -> Duration {
    let now = rustix::time::clock_gettime(BOOT);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

fn timespec(length: Duration) -> Timespec {
    let tv_sec = i64::try_from(length.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: length.subsec_nanos().into() }
}

/// Waits for two files and a moment at once.
///
/// The time-outs of system calls stand still while the machine sleeps. A timer on the boot clock
/// does not: it goes off as soon as the machine is awake.
#[derive(Debug)]
pub(crate) struct Alarm {
    #[cfg(target_os = "linux")]
    timer: std::os::fd::OwnedFd,
}

#[cfg(target_os = "linux")]
impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Boottime, flags)? })
    }

    /// Waits until one of the files can be read, or `until` has come; may return earlier than any.
    /// Whether each can be read.
    pub(crate) fn wait(&self, files: [BorrowedFd<'_>; 2], until: Option<Duration>) -> [bool; 2] {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};
        let it_interval = timespec(Duration::ZERO);
        // Zero would mean "never" and is long past; an alarm that is set again forgets that it went
        // off before.
        let it_value =
            until.map_or(it_interval, |until| timespec(until.max(Duration::from_nanos(1))));
        let setting = Itimerspec { it_interval, it_value };
        drop(timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting));
        let [one, other] = &files;
        let mut fds = [
            PollFd::new(one, PollFlags::IN),
            PollFd::new(other, PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
        ];
        let [one, other, _] = match poll(&mut fds, None) {
            Ok(_) => fds.map(|fd| !fd.revents().is_empty()),
            Err(_) => [false; 3],
        };
        [one, other]
    }
}

#[cfg(not(target_os = "linux"))]
impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Waits until one of the files can be read, or `until` has come; may return earlier than any.
    /// Whether each can be read.
    pub(crate) fn wait(&self, files: [BorrowedFd<'_>; 2], until: Option<Duration>) -> [bool; 2] {
        let timeout = until.map(|until| timespec(until.saturating_sub(now())));
        let [one, other] = &files;
        let mut fds = [PollFd::new(one, PollFlags::IN), PollFd::new(other, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => fds.map(|fd| !fd.revents().is_empty()),
            Err(_) => [false; 2],
        }
    }
}

/// Sleeps without a file to wait for.
pub(crate) fn pause(length: Duration) {
    poll(&mut [], Some(&timespec(length))).ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn an_alarm_goes_off_at_its_moment_and_not_before() {
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let alarm = Alarm::new().unwrap();
        let files = [read.as_fd(); 2];
        let until = now() + Duration::from_millis(20);
        while now() < until {
            assert_eq!(alarm.wait(files, Some(until)), [false; 2]);
        }
        assert_eq!(alarm.wait(files, Some(Duration::ZERO)), [false; 2]);
    }

    #[test]
    fn a_file_is_reported_before_the_alarm() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (other, _write) = rustix::pipe::pipe().unwrap();
        let alarm = Alarm::new().unwrap();
        rustix::io::write(&write, b"x").unwrap();
        let later = Some(now() + Duration::from_secs(3600));
        assert_eq!(alarm.wait([read.as_fd(), other.as_fd()], later), [true, false]);
        assert_eq!(alarm.wait([other.as_fd(), read.as_fd()], None), [false, true]);
        let mut byte = [0];
        rustix::io::read(&read, &mut byte).unwrap();
        drop(write);
        let closed = alarm.wait([read.as_fd(), other.as_fd()], None);
        assert_eq!(closed, [true, false], "a closed pipe can be read to its end");
    }
}
