//! The command's process: how it is started, watched and ended.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::task::Poll;
use std::{env, fs, future};

use leasehold::store::escape;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::inherited::{self, Inherited};
use crate::job::group;
use crate::job::start::{self, Plan};
use crate::job::terminal::{self, Terminal};
use crate::job::watchdog::{Page, Watchdog};
use crate::signals;

/// What happened to the command's process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// It was stopped by this signal.
    Stopped(i32),
    /// It ended.
    Ended(Ending),
}

/// How it ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ending {
    Exited(u8),
    Killed(i32),
}

impl Ending {
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Exited(0) => Exit::Success,
            Self::Exited(code) => Exit::Code(code),
            Self::Killed(signal) => Exit::Signal(signals::number(signal)),
        }
    }

    /// In words that mean the same in every version: `exit 3`, `signal 15`.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Exited(code) => format!("exit {code}"),
            Self::Killed(signal) => format!("signal {signal}"),
        }
    }
}

/// The command's process, the leader of a process group of its own.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    /// Whether its end was told.
    ended: bool,
    collected: bool,
}

impl Child {
    /// Starts it.
    ///
    /// Must be called on a thread that lives as long as this process: the parent-death signal is
    /// sent when the *thread* that forked ends.
    ///
    /// # Errors
    ///
    /// With the exit code for a program that can't be executed, or for a system that has no
    /// process or thread left.
    pub(crate) fn start(
        plan: &Plan,
        inherited: Inherited,
        caught: &[libc::c_int],
        watchdog: &Watchdog,
        terminal: Option<&Terminal>,
        files: &[RawFd],
    ) -> Outcome<Self> {
        let mut files = files.to_vec();
        files.sort_unstable();
        let (caught, parent) = (caught.to_vec(), rustix::process::getpid());
        let (page, tty) = (watchdog.page(), terminal.map(Terminal::raw));
        let prepare = move || {
            unless_orphaned(parent, || prepare(parent, &inherited, &caught, &page, tty, &files))
        };
        // SAFETY: it makes system calls only, allocates nothing and takes no lock; what it uses is
        // made already.
        let started = unsafe { start::start(plan, inherited, prepare) };
        let pid = started.map_err(|error| not_started(&plan.program, &error))?;
        Ok(Self { pid, ended: false, collected: false })
    }

    /// The number of the process and of its group.
    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    /// What happened next. It is looked for whenever the calling task is woken, and CHLD wakes it, so
    /// that task has to wait for [signals](crate::signals::Signals) as well. After [`Event::Ended`]
    /// nothing more happens. Cancel safe.
    pub(crate) async fn event(&mut self) -> Event {
        future::poll_fn(|_| self.look().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// What has happened since the last look. The process is not collected.
    fn look(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let state = WaitIdOptions::EXITED | WaitIdOptions::STOPPED;
        let look = state | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let event = match waitid(WaitId::Pid(self.pid), look) {
            Ok(Some(status)) => {
                if let Some(signal) = status.stopping_signal() {
                    // A stop is reported once; `look` has left the report in place.
                    let collect = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
                    waitid(WaitId::Pid(self.pid), collect).ok();
                    Event::Stopped(signal)
                } else if let Some(signal) = status.terminating_signal() {
                    Event::Ended(Ending::Killed(signal))
                } else {
                    let code = status.exit_status().unwrap_or_default();
                    Event::Ended(Ending::Exited(u8::try_from(code & 0xff).unwrap_or_default()))
                }
            }
            Ok(None) => return None,
            Err(error) => {
                // Not reached: nobody else collects it. Were it so, nothing would be known of it.
                tracing::error!(%error, "the command can't be waited for");
                Event::Ended(Ending::Exited(u8::MAX))
            }
        };
        self.ended = matches!(event, Event::Ended(_));
        Some(event)
    }

    /// Whether nothing of the group is at work any more.
    pub(crate) fn group_is_gone(&self) -> bool {
        group::is_gone(self.pid)
    }

    /// Sends a signal to the whole group.
    pub(crate) fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        signals::send_to_group(self.pid, signal)
    }

    /// Collects the process after [`Event::Ended`]; from here on its number may be reused.
    pub(crate) fn collect(&mut self) {
        if !self.collected {
            self.collected = true;
            // It has ended, so this neither blocks nor fails.
            waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED).ok();
        }
    }
}

/// Ends the new process without a word where it can't go on since its parent is gone: with nobody
/// left to be told, the standard library would abort it aloud, on an output that may be somebody's.
fn unless_orphaned(parent: Pid, prepare: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let prepared = prepare();
    if prepared.is_err() && rustix::process::getppid() != Some(parent) {
        // SAFETY: `_exit` runs no destructors and no handlers, which belong to the parent.
        unsafe { libc::_exit(Exit::CannotExecute.code().into()) };
    }
    prepared
}

/// Makes the new process what the command should find itself in.
fn prepare(
    parent: Pid,
    inherited: &Inherited,
    caught: &[libc::c_int],
    page: &Page,
    tty: Option<i32>,
    files: &[RawFd],
) -> io::Result<()> {
    rustix::process::setpgid(None, None)?;
    // One that came before that is for this process's parent too, which passes it on: it would stop the
    // command twice. What is ignored for a moment is pending no more.
    if caught.contains(&libc::SIGTSTP) {
        signals::ignore(libc::SIGTSTP)?;
    }
    // Exec would do this too, but a signal may come before, and must not be swallowed by a
    // handler that belongs to the parent.
    for &signal in caught {
        signals::reset(signal)?;
    }
    if inherited.ignores(libc::SIGCHLD) {
        signals::ignore(libc::SIGCHLD)?;
    }
    if !inherited.ignores(libc::SIGXFSZ) {
        signals::reset(libc::SIGXFSZ)?;
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent died before that line, no signal will come.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::NotConnected.into());
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _: Pid = parent;
    page.introduce()?;
    if let Some(tty) = tty {
        // Without it the command runs in the background and asks for it when it needs it.
        drop(terminal::take(tty));
    }
    // The program closes them as well, but may be long in coming: it may lie on a disk that hangs.
    // Whatever this process has locked and shares until then would stay so without it.
    #[cfg(target_os = "linux")]
    inherited::close_except(files);
    #[cfg(not(target_os = "linux"))]
    let _: &[RawFd] = files;
    Ok(())
}

/// Collects what has ended of the processes that were left to this one because their own parents
/// have ended. It gets them where it is the first process, as in a container, or was made to take
/// them in.
pub(crate) fn reap_orphans(command: &Child, watchdog: &Watchdog) {
    let collect = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    // The command and the watchdog are collected elsewhere; what has ended behind them in the
    // system's list waits until then.
    while let Some(pid) = ended_child()
        && pid != command.pid
        && !watchdog.is(pid)
    {
        waitid(WaitId::Pid(pid), collect).ok();
    }
}

/// A child that has ended, which is left as it is.
fn ended_child() -> Option<Pid> {
    let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is valid for the call. All-zero bytes are a valid `siginfo_t`, and its number
    // stays zero when no child has ended.
    let number = unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) != 0 {
            return None;
        }
        info.assume_init().si_pid()
    };
    Pid::from_raw(number)
}

/// Whether processes whose parents have ended are left to this one.
pub(crate) fn takes_orphans_in() -> bool {
    if rustix::process::getpid() == Pid::INIT {
        return true;
    }
    #[cfg(target_os = "linux")]
    {
        rustix::process::child_subreaper().is_ok_and(|whose| whose.is_some())
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Why a program could not be started, with the exit code that a shell would have.
fn not_started(name: &OsStr, error: &io::Error) -> Failure {
    let program = name.to_string_lossy();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
            Failure::system(&format!("start {program}"), error)
        }
        _ => {
            let exit = match error.kind() {
                io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::CannotExecute,
            };
            let why = match (error.raw_os_error(), exit) {
                (Some(libc::E2BIG), _) => {
                    "; its arguments and the environment are too long together: of many locks each adds \
                     its LEASEHOLD_KEY_n and LEASEHOLD_FENCE_n, so take fewer locks in one call"
                        .to_owned()
                }
                (_, Exit::NotFound) => match missing_interpreter(name) {
                    Some(missing) => format!("; it is there, but its interpreter {missing} is missing"),
                    None => String::new(),
                },
                _ => String::new(),
            };
            Failure::new(exit, format!("can't run {program}: {error}{why}"))
        }
    }
}

/// More than any system reads of a script's first line.
const FIRST_LINE_MAX: u64 = 512;

/// The interpreter that the first line of a script names, if that is what was not found.
fn missing_interpreter(program: &OsStr) -> Option<String> {
    let script = if program.as_bytes().contains(&b'/') {
        Path::new(program).to_owned()
    } else {
        let path = env::var_os("PATH")?;
        env::split_paths(&path).map(|part| part.join(program)).find(|file| file.is_file())?
    };
    // A pipe would be waited for.
    if !script.is_file() {
        return None;
    }
    let mut line = Vec::new();
    fs::File::open(script).ok()?.take(FIRST_LINE_MAX).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let interpreter = OsStr::from_bytes(words.find(|word| !word.is_empty())?);
    (!Path::new(interpreter).exists())
        .then(|| escape::terminal(&interpreter.to_string_lossy()).to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    /// As it ends after this hook, with a parent that is this process or another.
    fn started_with(parent: Pid) -> io::Result<std::process::Output> {
        let mut command = Command::new("true");
        // SAFETY: the hook makes system calls only.
        unsafe {
            command.pre_exec(move || {
                unless_orphaned(parent, || Err(io::ErrorKind::NotConnected.into()))
            });
        }
        command.output()
    }

    #[test]
    fn a_command_that_can_not_start_tells_its_parent_and_nobody_else() {
        assert!(started_with(rustix::process::getpid()).is_err());
        let orphan = started_with(Pid::INIT).unwrap();
        assert_eq!(orphan.status.code(), Some(126));
        assert_eq!((orphan.stdout.len(), orphan.stderr.len()), (0, 0), "{orphan:?}");
    }
}
