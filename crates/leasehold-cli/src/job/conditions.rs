//! Sets up what the command finds itself in: signals, files, process group.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use rustix::process::Pid;

use crate::exit::Exit;
use crate::inherited::{self, Inherited};
use crate::job::page::Page;
use crate::job::terminal;
use crate::signals;

/// What the command is to find itself in.
#[derive(Debug)]
pub(crate) struct Conditions {
    pub(crate) page: Arc<Page>,
    pub(crate) inherited: Inherited,
    /// The signals that this process catches.
    pub(crate) caught: Vec<libc::c_int>,
    /// The terminal that it gets.
    pub(crate) tty: Option<RawFd>,
    /// The files that it inherits, apart from the standard ones, in ascending order.
    pub(crate) files: Vec<RawFd>,
}

/// Ends the new process silently if its parent is gone. The standard library would abort it with a
/// message, on an output that another program may read.
pub(crate) fn unless_orphaned(
    parent: Pid,
    prepare: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let prepared = prepare();
    if prepared.is_err() && rustix::process::getppid() != Some(parent) {
        // SAFETY: `_exit` runs no destructors and no handlers, which belong to the parent.
        unsafe { libc::_exit(Exit::CannotExecute.code().into()) };
    }
    prepared
}

/// Makes the new process what the command should find itself in.
pub(crate) fn prepare(parent: Pid, conditions: &Conditions) -> io::Result<()> {
    let Conditions { page, inherited, caught, tty, files } = conditions;
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
    if let Some(tty) = *tty {
        // Without it the command runs in the background and asks for it when it needs it.
        drop(terminal::take(tty));
    }
    // The program closes them as well, but may be long in coming: it may lie on a disk that hangs.
    // Whatever this process has locked and shares until then would stay so without it.
    #[cfg(target_os = "linux")]
    inherited::close_except(files);
    #[cfg(not(target_os = "linux"))]
    let _: &Vec<RawFd> = files;
    Ok(())
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
    fn a_command_that_can_not_start_informs_its_parent_only() {
        assert!(started_with(rustix::process::getpid()).is_err());
        let orphan = started_with(Pid::INIT).unwrap();
        assert_eq!(orphan.status.code(), Some(126));
        assert_eq!((orphan.stdout.len(), orphan.stderr.len()), (0, 0), "{orphan:?}");
    }
}
