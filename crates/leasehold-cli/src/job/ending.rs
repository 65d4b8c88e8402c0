//! Tells how processes end, and which have ended.

use std::io;

use rustix::process::{Pid, WaitIdStatus};

use crate::exit::Exit;
use crate::signals;

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

    pub(crate) fn of(status: &WaitIdStatus) -> Option<Self> {
        if let Some(signal) = status.terminating_signal() {
            return Some(Self::Killed(signal));
        }
        let code = status.exit_status()?;
        Some(Self::Exited(u8::try_from(code & 0xff).unwrap_or_default()))
    }

    /// In words that mean the same in every version: `exit 3`, `signal 15`.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Exited(code) => format!("exit {code}"),
            Self::Killed(signal) => format!("signal {signal}"),
        }
    }
}

/// A child that has ended, which is left as it is. Async-signal-safe.
///
/// # Errors
///
/// When there is no child.
pub(crate) fn ended_child() -> io::Result<Option<Pid>> {
    let options = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is valid for the call. All-zero bytes are a valid `siginfo_t`, and its number
    // stays zero when no child has ended.
    let number = unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) != 0 {
            return Err(io::Error::last_os_error());
        }
        info.assume_init().si_pid()
    };
    Ok(Pid::from_raw(number))
}
