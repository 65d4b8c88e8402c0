//! Watches the process for which a lock is held, and ends it with all that it has started.
//!
//! A [guard](super::guard) uses it after a fork.

use std::time::Duration;

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

use libc::c_int;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::descent::Followed;
use crate::failure::{Failure, Outcome};

/// How often to look whether it has ended, on systems that do not report it.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A process.
#[derive(Debug)]
pub(super) struct Script {
    pid: Pid,
    /// Knows it for sure, where the system has such a thing; a number may be given again.
    #[cfg(target_os = "linux")]
    handle: Option<OwnedFd>,
}

impl Script {
    /// Opens the process that was named, unless it is `own`.
    pub(super) fn open(typed: u32, own: Option<Pid>) -> Outcome<Self> {
        let refuse = |why: String| Failure::usage(format!("--while-pid {typed}: {why}"));
        let pid = i32::try_from(typed).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| refuse("that is not a process id".to_owned()))?;
        if Some(pid) == own {
            return Err(refuse(
                "that is this process; in a subshell set p=$BASHPID before, and give $p".to_owned(),
            ));
        }
        let there_is_none = || refuse("no such process".to_owned());
        let script = Self::of(pid).map_err(|error| match error {
            Errno::SRCH => there_is_none(),
            error => refuse(error.to_string()),
        })?;
        if script.has_ended() { Err(there_is_none()) } else { Ok(script) }
    }

    pub(super) fn of(pid: Pid) -> rustix::io::Result<Self> {
        #[cfg(target_os = "linux")]
        let handle = match handle_of(pid) {
            // Before Linux 5.3, and where a container forbids it.
            Err(Errno::NOSYS | Errno::PERM) => None,
            handle => Some(handle?),
        };
        Ok(Self {
            pid,
            #[cfg(target_os = "linux")]
            handle,
        })
    }

    pub(super) const fn pid(&self) -> Pid {
        self.pid
    }

    /// Async-signal-safe.
    pub(super) fn has_ended(&self) -> bool {
        #[cfg(target_os = "linux")]
        if let Some(handle) = &self.handle {
            return is_over(handle);
        }
        rustix::process::test_kill_process(self.pid) == Err(Errno::SRCH)
    }

    /// Returns when it has ended.
    #[cfg_attr(
        target_os = "linux",
        expect(
            deprecated,
            reason = "for descriptors that may be closed; this one is kept meanwhile"
        )
    )]
    pub(super) async fn ended(&self) {
        #[cfg(target_os = "linux")]
        if let Some(handle) = &self.handle {
            use std::os::fd::AsFd as _;
            use tokio::io::Interest;
            use tokio::io::unix::AsyncFd;
            if let Ok(handle) = AsyncFd::with_interest(handle.as_fd(), Interest::READABLE)
                && handle.readable().await.is_ok()
            {
                return;
            }
        }
        while !self.has_ended() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// What it has started, from now on.
    pub(super) fn follow(&self) -> Followed {
        Followed::new(self.pid)
    }

    /// Sends it and what it has started a signal. Async-signal-safe.
    pub(super) fn send(&self, descent: &mut Followed, signal: c_int) {
        if descent.send(signal).is_none() {
            self.send_alone(signal);
        }
    }

    /// Whether it and what it has started have ended. Async-signal-safe.
    pub(super) fn is_gone(&self, descent: &mut Followed) -> bool {
        self.has_ended() && descent.send(0).is_none_or(|sent| sent.alive == 0)
    }

    /// A process that has ended meanwhile gets none, also if another process has its number then.
    #[cfg(target_os = "linux")]
    fn send_alone(&self, signal: c_int) {
        use std::os::fd::AsRawFd as _;
        match &self.handle {
            Some(handle) => {
                let nothing = std::ptr::null::<libc::siginfo_t>();
                let handle = handle.as_raw_fd();
                // SAFETY: the call touches no memory of this process.
                unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle, signal, nothing, 0) };
            }
            None => kill(self.pid, signal),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn send_alone(&self, signal: c_int) {
        if !self.has_ended() {
            kill(self.pid, signal);
        }
    }
}

fn kill(pid: Pid, signal: c_int) {
    // SAFETY: the call touches no memory of this process.
    unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) };
}

#[cfg(target_os = "linux")]
fn handle_of(pid: Pid) -> rustix::io::Result<OwnedFd> {
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
}

#[cfg(target_os = "linux")]
fn is_over(handle: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}
