//! The command's process: how it is started, watched and ended.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::sync::mpsc;

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::inherited::Inherited;
use crate::job::group;
use crate::job::terminal::{self, Terminal};
use crate::job::watchdog::{Page, Watchdog};
use crate::signals;

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    /// Variables to add.
    pub(crate) variables: Vec<(String, String)>,
    /// Variables to take away.
    pub(crate) hidden: Vec<OsString>,
}

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
}

/// The command's process, the leader of a process group of its own.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    events: mpsc::UnboundedReceiver<Event>,
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
    ) -> Outcome<Self> {
        let mut command = Command::new(&plan.program);
        command.args(&plan.arguments);
        for name in &plan.hidden {
            command.env_remove(name);
        }
        command.envs(plan.variables.iter().map(|(name, value)| (name, value)));
        let (caught, parent) = (caught.to_vec(), rustix::process::getpid());
        let (page, tty) = (watchdog.page(), terminal.map(Terminal::raw));
        // SAFETY: the hook runs between fork and exec. It makes system calls only, allocates
        // nothing and takes no lock; what it uses was made before the fork.
        unsafe {
            command.pre_exec(move || {
                unless_orphaned(parent, || prepare(parent, inherited, &caught, &page, tty))
            });
        }
        let (sender, events) = mpsc::unbounded_channel();
        let (introduce, introduced) = std::sync::mpsc::sync_channel(1);
        // Before the command: once that runs, nothing may be missing for looking after it.
        thread::Builder::new()
            .name("wait".to_owned())
            .spawn(move || {
                // Nothing comes where the command could not be started.
                if let Ok(pid) = introduced.recv() {
                    watch(pid, &sender);
                }
            })
            .map_err(|error| Failure::system("start a thread to wait for the command", &error))?;
        let child = command.spawn().map_err(|error| not_started(&plan.program, &error))?;
        let pid = Pid::from_child(&child);
        // The thread receives, and there is room.
        introduce.send(pid).ok();
        Ok(Self { pid, events, collected: false })
    }

    /// The number of the process and of its group.
    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    /// What happened next. After [`Event::Ended`] nothing more does. Cancel safe.
    pub(crate) async fn event(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
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

/// Ends the forked process without a word where it can't go on since its parent is gone: with nobody
/// left to be told, the standard library would abort it aloud, on an output that may be somebody's.
fn unless_orphaned(parent: Pid, prepare: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let prepared = prepare();
    if prepared.is_err() && rustix::process::getppid() != Some(parent) {
        // SAFETY: `_exit` runs no destructors and no handlers, which belong to the parent.
        unsafe { libc::_exit(Exit::CannotExecute.code().into()) };
    }
    prepared
}

/// Makes the forked process what the command should find itself in.
fn prepare(
    parent: Pid,
    inherited: Inherited,
    caught: &[libc::c_int],
    page: &Page,
    tty: Option<i32>,
) -> io::Result<()> {
    rustix::process::setpgid(None, None)?;
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
    inherited.restore_mask()
}

/// Tells what happens to the process until it has ended, without collecting it.
fn watch(pid: Pid, events: &mpsc::UnboundedSender<Event>) {
    let look = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        let status = match waitid(WaitId::Pid(pid), look) {
            Ok(Some(status)) => status,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                // Not reached: nobody else collects it. Were it so, nothing would be known of it.
                tracing::error!(%error, "the command can't be waited for");
                events.send(Event::Ended(Ending::Exited(u8::MAX))).ok();
                return;
            }
        };
        let event = if let Some(signal) = status.stopping_signal() {
            // A stop is reported once; `look` has left the report in place.
            let collect = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            waitid(WaitId::Pid(pid), collect).ok();
            Event::Stopped(signal)
        } else if let Some(signal) = status.terminating_signal() {
            Event::Ended(Ending::Killed(signal))
        } else {
            let code = status.exit_status().unwrap_or_default();
            Event::Ended(Ending::Exited(u8::try_from(code & 0xff).unwrap_or_default()))
        };
        if events.send(event).is_err() || matches!(event, Event::Ended(_)) {
            return;
        }
    }
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
fn not_started(program: &OsStr, error: &io::Error) -> Failure {
    let program = program.to_string_lossy();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
            Failure::system(&format!("start {program}"), error)
        }
        _ => {
            let exit = match error.kind() {
                io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::CannotExecute,
            };
            Failure::new(exit, format!("can't run {program}: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
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
