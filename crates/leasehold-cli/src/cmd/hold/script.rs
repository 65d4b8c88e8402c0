//! The process for which a lock is held, which is not ours: whether it has ended, and its end with all
//! that it has started.
//!
//! [`Descent`] is async-signal-safe once it is made: a [guard](super::guard) uses it after a fork.

use std::time::Duration;

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

use libc::c_int;
use rustix::process::Pid;

use crate::failure::{Failure, Outcome};

/// How often to look whether it has ended, where the system tells nobody.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A child is mostly found after its parent, so one look finds nearly all.
#[cfg(target_os = "linux")]
const LOOKS_MAX: u32 = 4;
/// As many processes as are remembered; those beyond get a signal too when they are found.
#[cfg(target_os = "linux")]
const REMEMBERED_MAX: usize = 512;

/// A process.
#[derive(Debug)]
pub(super) struct Script {
    pid: Pid,
    /// Knows it for sure, where the system has such a thing; a number may be given again.
    #[cfg(target_os = "linux")]
    handle: Option<OwnedFd>,
}

impl Script {
    pub(super) fn open(typed: u32) -> Outcome<Self> {
        let refuse = |why: String| Failure::usage(format!("--while-pid {typed}: {why}"));
        let pid = i32::try_from(typed).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| refuse("that is no number of a process".to_owned()))?;
        #[cfg(target_os = "linux")]
        let script = {
            use rustix::io::Errno;
            let handle = match handle_of(pid) {
                Ok(handle) => Some(handle),
                // Before Linux 5.3, and where a container forbids it.
                Err(Errno::NOSYS | Errno::PERM) => None,
                Err(Errno::SRCH) => return Err(refuse("there is no such process".to_owned())),
                Err(error) => return Err(refuse(error.to_string())),
            };
            Self { pid, handle }
        };
        #[cfg(not(target_os = "linux"))]
        let script = Self { pid };
        if script.has_ended() {
            return Err(refuse("there is no such process".to_owned()));
        }
        Ok(script)
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
        rustix::process::test_kill_process(self.pid) == Err(rustix::io::Errno::SRCH)
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

    /// Sends it a signal. Async-signal-safe.
    #[cfg(target_os = "linux")]
    fn signal(&self, signal: c_int) {
        send(self.pid, self.handle.as_ref(), signal);
    }

    /// Sends it a signal. Async-signal-safe.
    #[cfg(not(target_os = "linux"))]
    fn signal(&self, signal: c_int) {
        if !self.has_ended() {
            // SAFETY: the call touches no memory of this process.
            unsafe { libc::kill(self.pid.as_raw_nonzero().get(), signal) };
        }
    }
}

/// A script and what it has started, as far as that was found: on Linux what descends from it.
#[derive(Debug, Default)]
pub(super) struct Descent {
    #[cfg(target_os = "linux")]
    found: Vec<(Pid, Option<OwnedFd>)>,
}

#[cfg(target_os = "linux")]
impl Descent {
    pub(super) fn new() -> Self {
        Self { found: Vec::with_capacity(REMEMBERED_MAX) }
    }

    /// Sends all of them a signal, the script first.
    pub(super) fn signal(&mut self, script: &Script, signal: c_int) {
        // What is found now stays known when its parent has ended.
        self.look(script, None);
        script.signal(signal);
        for (pid, handle) in &self.found {
            send(*pid, handle.as_ref(), signal);
        }
        // What was started meanwhile may be what tidies up.
        self.look(script, Some(signal).filter(|signal| *signal == libc::SIGKILL));
    }

    /// Whether all of them have ended, with those that were started since the last look.
    pub(super) fn is_gone(&mut self, script: &Script) -> bool {
        self.look(script, None);
        script.has_ended()
            && self.found.iter().all(|(_, handle)| handle.as_ref().is_none_or(is_over))
    }

    /// Remembers what descends from the script or from what is remembered, and sends what is new a signal.
    fn look(&mut self, script: &Script, signal: Option<c_int>) {
        let Some(proc) = proc::open() else { return };
        let own = rustix::process::getpid();
        // A script that starts one process after the other could keep it busy without end.
        for _ in 0..LOOKS_MAX {
            let before = self.found.len();
            proc::each(&proc, |pid, parent| {
                let is_ours = |of: Option<Pid>| {
                    of == Some(script.pid) || self.found.iter().any(|(pid, _)| of == Some(*pid))
                };
                if pid == own || is_ours(Some(pid)) || !is_ours(parent) {
                    return;
                }
                let handle = handle_of(pid).ok();
                // The number may have been given again before there was a handle.
                if !is_ours(proc::parent(&proc, pid)) {
                    return;
                }
                if let Some(signal) = signal {
                    send(pid, handle.as_ref(), signal);
                }
                if self.found.len() < REMEMBERED_MAX {
                    self.found.push((pid, handle));
                }
            });
            if self.found.len() == before {
                break;
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Descent {
    pub(super) fn new() -> Self {
        Self {}
    }

    pub(super) fn signal(&mut self, script: &Script, signal: c_int) {
        script.signal(signal);
    }

    pub(super) fn is_gone(&mut self, script: &Script) -> bool {
        script.has_ended()
    }
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

/// One that has ended meanwhile gets none, and neither does who has its number then.
#[cfg(target_os = "linux")]
fn send(pid: Pid, handle: Option<&OwnedFd>, signal: c_int) {
    use std::os::fd::AsRawFd as _;
    match handle {
        Some(handle) => {
            let nothing = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: the call touches no memory of this process.
            unsafe {
                libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), signal, nothing, 0)
            };
        }
        None => {
            // SAFETY: the call touches no memory of this process.
            unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) };
        }
    }
}

/// The processes that there are, and whose children they are. Nothing here allocates.
#[cfg(target_os = "linux")]
mod proc {
    use std::ffi::CStr;
    use std::io::Write as _;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;

    use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
    use rustix::process::Pid;

    /// Whatever shows the processes by the numbers that they have here.
    pub(super) fn open() -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = openat(CWD, c"/proc", flags, Mode::empty()).ok()?;
        let mut text = [0; 512];
        let own = stat(&proc, c"self", &mut text).split(|byte| *byte == b' ').next();
        (own.and_then(number) == Some(rustix::process::getpid())).then_some(proc)
    }

    pub(super) fn each(proc: &OwnedFd, mut tell: impl FnMut(Pid, Option<Pid>)) {
        if rustix::fs::seek(proc, rustix::fs::SeekFrom::Start(0)).is_err() {
            return;
        }
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut entries = RawDir::new(proc, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            let Some(pid) = number(entry.file_name().to_bytes()) else { continue };
            let mut text = [0; 512];
            tell(pid, parent_in(stat(proc, entry.file_name(), &mut text)));
        }
    }

    pub(super) fn parent(proc: &OwnedFd, pid: Pid) -> Option<Pid> {
        let (mut name, mut text) = ([0; 16], [0; 512]);
        let mut rest = name.as_mut_slice();
        write!(rest, "{}\0", pid.as_raw_nonzero()).ok()?;
        parent_in(stat(proc, CStr::from_bytes_until_nul(&name).ok()?, &mut text))
    }

    fn stat<'a>(proc: &OwnedFd, process: &CStr, text: &'a mut [u8]) -> &'a [u8] {
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = OFlags::RDONLY | OFlags::CLOEXEC;
        // One that has ended meanwhile has nothing to read any more.
        let stat = openat(proc, process, directory, Mode::empty())
            .and_then(|process| openat(process, c"stat", file, Mode::empty()));
        let length = stat.and_then(|stat| rustix::io::read(stat, &mut *text)).unwrap_or_default();
        text.get(..length).unwrap_or_default()
    }

    /// Reads `PID (NAME) STATE PPID ...`, where the name may contain anything.
    fn parent_in(stat: &[u8]) -> Option<Pid> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let mut fields = stat.get(end.checked_add(2)?..)?.split(|byte| *byte == b' ');
        let state = fields.next()?;
        fields.next().filter(|_| !matches!(state, b"Z" | b"X")).and_then(number)
    }

    fn number(text: &[u8]) -> Option<Pid> {
        Pid::from_raw(std::str::from_utf8(text).ok()?.parse().ok()?)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_name_makes_nobody_a_parent_and_the_dead_have_none() {
            let of = |text: &str| parent_in(text.as_bytes()).map(|pid| pid.as_raw_nonzero().get());
            assert_eq!(of("7 (a) S 1) S 70 7 7 0 -1"), Some(70));
            assert_eq!(of("7 (sh) Z 70 7 7 0 -1"), None);
            assert_eq!(of(""), None);
        }
    }
}
