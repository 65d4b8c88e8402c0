//! The command's process: how it is started, watched and ended.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::sync::mpsc;

use crate::exit::Exit;
use crate::inherited::Inherited;
use crate::run::terminal::{self, Terminal};
use crate::run::watchdog::{self, Watchdog};
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
    /// What the system says when the program can't be executed.
    pub(crate) fn start(
        plan: &Plan,
        inherited: Inherited,
        caught: &[libc::c_int],
        watchdog: &Watchdog,
        terminal: Option<&Terminal>,
    ) -> io::Result<Self> {
        let mut command = Command::new(&plan.program);
        command.args(&plan.arguments);
        for name in &plan.hidden {
            command.env_remove(name);
        }
        command.envs(plan.variables.iter().map(|(name, value)| (name, value)));
        let (caught, parent) = (caught.to_vec(), rustix::process::getpid());
        let (pipe, tty) = (watchdog.pipe(), terminal.map(Terminal::raw));
        // SAFETY: the hook runs between fork and exec. It makes system calls only, allocates
        // nothing and takes no lock; what it uses was made before the fork.
        unsafe {
            command.pre_exec(move || prepare(parent, inherited, &caught, pipe, tty));
        }
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let (sender, events) = mpsc::unbounded_channel();
        thread::Builder::new().name("wait".to_owned()).spawn(move || watch(pid, &sender))?;
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

    /// Whether no process of the group is left. To be asked after [`Event::Ended`].
    pub(crate) fn group_is_gone(&mut self) -> bool {
        // Until it is collected, the first process counts as one of the group. Its number stays
        // taken as long as the group has members.
        self.collect();
        rustix::process::test_kill_process_group(self.pid) == Err(rustix::io::Errno::SRCH)
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

/// Makes the forked process what the command should find itself in.
fn prepare(
    parent: Pid,
    inherited: Inherited,
    caught: &[libc::c_int],
    pipe: i32,
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
    watchdog::introduce(pipe)?;
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

/// The exit code of a shell for a program that could not be started, and why.
pub(crate) fn not_started(program: &OsStr, error: &io::Error) -> (Exit, String) {
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::CannotExecute,
    };
    (exit, format!("can't run {}: {error}", program.to_string_lossy()))
}
