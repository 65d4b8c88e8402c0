//! Moves process groups to the foreground of the controlling terminal.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};

use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use crate::inherited;
use crate::signals;

/// The terminal that this process belongs to, if it was the foreground job when it started or
/// becomes so later.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    own_group: Pid,
}

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, own_group: rustix::process::getpgrp() })
    }

    /// Whether a command should have the terminal from the start: it talks to it, and we are the
    /// foreground job. In a pipeline the command stays behind, where the pager at its end can
    /// have the terminal, until it asks for it by trying to use it.
    pub(crate) fn is_for_the_command(&self) -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal() && self.is_ours()
    }

    /// Whether our process group is in front.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(self.own_group)
    }

    /// The descriptor, for [`take`].
    pub(crate) fn raw(&self) -> RawFd {
        self.tty.as_raw_fd()
    }

    /// Puts another group in front.
    pub(crate) fn give(&self, group: Pid) -> io::Result<()> {
        inherited::blocking(Some(libc::SIGTTOU), || tcsetpgrp(&self.tty, group))?;
        Ok(())
    }

    /// How it is set: echo, lines, keys that send signals.
    pub(crate) fn modes(&self) -> Option<Termios> {
        tcgetattr(&self.tty).ok()
    }

    /// Sets it so again, if we are in front, after a command that was killed before it could:
    /// shells do that for what they start themselves.
    pub(crate) fn reset(&self, modes: &Termios) {
        if self.is_ours() {
            // If the terminal was hung up meanwhile, there is nothing left to set.
            inherited::blocking(Some(libc::SIGTTOU), || {
                tcsetattr(&self.tty, OptionalActions::Now, modes).ok()
            });
        }
    }

    /// Puts our group in front again, if the command's group `from` is there, or one that it left
    /// there and that no longer exists. A shell that took the terminal itself keeps it.
    pub(crate) fn take_back(&self, from: Option<Pid>) {
        let Ok(front) = tcgetpgrp(&self.tty) else { return };
        let abandoned = || rustix::process::test_kill_process_group(front).is_err();
        if Some(front) == from || (front != self.own_group && abandoned()) {
            // If the terminal was hung up meanwhile, there is nothing left to take.
            drop(self.give(self.own_group));
        }
    }
}

/// Puts the group of the calling process in front. Async-signal-safe.
pub(crate) fn take(tty: RawFd) -> io::Result<()> {
    // SAFETY: the caller got the number from a `Terminal` that its parent keeps open.
    let tty = unsafe { BorrowedFd::borrow_raw(tty) };
    let own = rustix::process::getpid();
    inherited::blocking(Some(libc::SIGTTOU), || tcsetpgrp(tty, own))?;
    Ok(())
}

/// Whether a process stops by this signal because it does not have the terminal.
pub(crate) const fn is_a_request(signal: i32) -> bool {
    matches!(signal, libc::SIGTTIN | libc::SIGTTOU)
}

/// Lets a stopped group go on.
pub(crate) fn wake(group: Pid) {
    // A group that can't be signalled any more can't be stopped any more either.
    drop(signals::send_to_group(group, libc::SIGCONT));
}
