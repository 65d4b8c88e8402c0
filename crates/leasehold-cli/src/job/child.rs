//! Starts the command's process, watches it, and ends it.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::{env, fs, future};

use leasehold::store::escape;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, test_kill_process_group, waitid,
};

use crate::descent::{self, Process};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::job::conditions::Conditions;
use crate::job::ending::{Ending, ended_child};
use crate::job::start::{Plan, Ready};
use crate::job::watchdog::{Dismissed, State, Watchdog};
use crate::output;
use crate::signals;

/// What happened to the command's process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// It was stopped by this signal.
    Stopped(i32),
    /// It ended.
    Ended(Ending),
}

/// The command's process, the leader of a process group of its own, and what descends from it.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    watchdog: Arc<Watchdog>,
    /// The children that this process had before. They are nothing of the command's.
    before: Vec<Pid>,
    /// What was seen of its stops.
    stops: u32,
    /// Whether its end was reported.
    ended: bool,
    /// Whether the watchdog was killed, so that the command is this process's child.
    is_alone: bool,
    /// How often in a row nothing was found of the rest.
    clean: u32,
    /// The processes that got a signal one by one.
    asked: Vec<Process>,
    /// Whether the group got a signal, on systems where the descent is unknown.
    is_group_asked: bool,
    /// Whether some of the rest may not be sent signals from here.
    pub(crate) is_refused: bool,
}

/// Whether a command has run in this process, which may have left it something.
static HAS_RUN: AtomicBool = AtomicBool::new(false);

impl Child {
    /// Starts it. `last` gives back the leases where this process is killed.
    ///
    /// # Errors
    ///
    /// With the exit code for a program that can't be executed, or for a system that has run out of
    /// processes or threads.
    pub(crate) fn start(
        plan: &Plan,
        conditions: &Conditions,
        last: Option<&Plan>,
    ) -> Outcome<Self> {
        let refuse = |error| not_started(&plan.program, &error);
        let mut ready = Ready::new(plan).map_err(refuse)?;
        let last = last.map(Ready::new).transpose().map_err(refuse)?;
        let before = if HAS_RUN.swap(true, Ordering::SeqCst) {
            let own = descent::children(rustix::process::getpid()).unwrap_or_default();
            own.into_iter().filter_map(|child| Pid::from_raw(child.pid)).collect()
        } else {
            Vec::new()
        };
        let started = descent::take_orphans_in()
            .and_then(|()| Watchdog::start(conditions, &mut ready, last.as_ref()));
        let (watchdog, started) =
            started.map_err(|error| Failure::system("start the command", &error))?;
        let pid = match started {
            Ok(pid) => pid,
            Err(error) => {
                drop(watchdog.dismiss());
                return Err(refuse(error));
            }
        };
        Ok(Self {
            pid,
            watchdog: Arc::new(watchdog),
            before,
            stops: 0,
            ended: false,
            is_alone: false,
            clean: 0,
            asked: Vec::new(),
            is_group_asked: false,
            is_refused: false,
        })
    }

    /// The number of the process and of its group.
    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) const fn watchdog(&self) -> &Arc<Watchdog> {
        &self.watchdog
    }

    /// What happened next. It is looked for whenever the calling task is woken, and CHLD wakes it,
    /// so that task has to wait for [signals](crate::signals::Signals) as well. After
    /// [`Event::Ended`] nothing more happens. Cancel safe.
    pub(crate) async fn event(&mut self) -> Event {
        future::poll_fn(|_| self.look().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// What has happened since the last look.
    fn look(&mut self) -> Option<Event> {
        if !self.is_alone && self.watchdog.state() == State::Ended {
            self.is_alone = true;
            output::message("the watchdog was killed, and so was the command");
        }
        if self.ended {
            return None;
        }
        let event = match self.watchdog.ending() {
            Some(ending) => Event::Ended(ending),
            None if self.is_alone => self.look_at_own_child()?,
            None => {
                let (times, signal) = self.watchdog.stops();
                if times == self.stops {
                    return None;
                }
                self.stops = times;
                Event::Stopped(signal)
            }
        };
        self.ended = matches!(event, Event::Ended(_));
        Some(event)
    }

    /// The same where the command was left to this process.
    fn look_at_own_child(&self) -> Option<Event> {
        let what = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let Ok(status) = waitid(WaitId::Pid(self.pid), what) else {
            // It was collected by a watchdog that had no time to say so, or by the system.
            kill_process(self.pid, Signal::KILL).ok();
            return Some(Event::Ended(Ending::Killed(libc::SIGKILL)));
        };
        let status = status?;
        let stop = status.stopping_signal().map(Event::Stopped);
        stop.or_else(|| Ending::of(&status).map(Event::Ended))
    }

    /// Whether all processes of the command have ended, by this process and the watchdog.
    pub(crate) fn is_all_gone(&self) -> bool {
        self.ended && (self.clean >= 2 || (!self.is_alone && self.watchdog.none_left()))
    }

    /// The root of the descent, and children of that root that are not part of it.
    fn root(&self) -> (Pid, &[Pid]) {
        if self.is_alone {
            (rustix::process::getpid(), &self.before)
        } else {
            (self.watchdog.pid(), &[])
        }
    }

    /// Looks for what is left, and kills it if that is wanted.
    pub(crate) fn look_for_rest(&mut self, kill: bool) {
        let (root, except) = self.root();
        // The number that is no signal only asks whether one may be sent.
        let signal = if kill { libc::SIGKILL } else { 0 };
        let found = match descent::send(root, except, signal) {
            Some(sent) => {
                self.is_refused = sent.refused > 0;
                sent.alive
            }
            None => {
                if kill {
                    signals::send_to_group(self.pid, signal).ok();
                }
                usize::from(!self.group_is_gone())
            }
        };
        // Twice: what was started meanwhile may have been missed.
        self.clean = if found == 0 { self.clean.saturating_add(1) } else { 0 };
    }

    /// On systems without subreapers only the group is known.
    fn group_is_gone(&self) -> bool {
        (self.is_alone || !cfg!(target_os = "linux"))
            && test_kill_process_group(self.pid) == Err(Errno::SRCH)
    }

    /// Sends a signal to the group, unless the first process has ended.
    pub(crate) fn signal(&self, signal: libc::c_int) -> io::Result<()> {
        if self.ended { Ok(()) } else { signals::send_to_group(self.pid, signal) }
    }

    /// Sends a signal, once each, to processes whose parent in the descent has ended. Tools that
    /// start others in a group of their own pass their signals on. `group` says whether processes
    /// of the command's group get it too.
    pub(crate) fn ask_the_parentless(&mut self, signal: libc::c_int, group: bool) {
        let (root, except) = self.root();
        let is_excepted =
            |one: &Process| except.iter().any(|it| it.as_raw_nonzero().get() == one.pid);
        let Some(found) = descent::children(root) else {
            if group && !self.is_group_asked {
                self.is_group_asked = true;
                signals::send_to_group(self.pid, signal).ok();
            }
            return;
        };
        let new: Vec<_> = found
            .into_iter()
            .filter(|one| group || one.group != self.pid.as_raw_nonzero().get())
            .filter(|one| !is_excepted(one))
            .filter(|one| !self.asked.iter().any(|it| it.is(one)))
            .collect();
        for one in new {
            self.is_refused |= one.send(signal).is_err();
            // A stopped process can't heed it.
            one.send(libc::SIGCONT).ok();
            self.asked.push(one);
        }
    }

    /// Ends the watchdog. What the command has left is this process's from then on.
    pub(crate) fn dismiss(&self) -> Dismissed {
        self.watchdog.dismiss()
    }
}

/// Collects orphans that have ended: orphans of earlier commands, and in a container orphans of
/// other processes.
pub(crate) fn reap_orphans(command: &Child) {
    let collect = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    // The command and the watchdog are collected elsewhere; what has ended behind them in the
    // system's list waits until then.
    while let Ok(Some(pid)) = ended_child()
        && pid != command.pid
        && pid != command.watchdog.pid()
    {
        waitid(WaitId::Pid(pid), collect).ok();
    }
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
                    "; arguments and environment are too long, and each lock adds LEASEHOLD_KEY_n \
                     and LEASEHOLD_FENCE_n: take fewer locks in one call"
                        .to_owned()
                }
                (_, Exit::NotFound) => match missing_interpreter(name) {
                    Some(missing) => format!("; its interpreter {missing} is missing"),
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
