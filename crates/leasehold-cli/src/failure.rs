//! What ends a command early: a message for people and an exit code for scripts.

use std::error::Error as _;
use std::fmt;

use leasehold::{Error, ErrorKind};

use crate::exit::Exit;
use crate::typed;

/// A message and the code to exit with. An empty message is not printed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

/// How a command ends.
pub(crate) type Outcome<T = Exit> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message.to_string())
    }

    pub(crate) fn config(message: impl fmt::Display) -> Self {
        Self::new(Exit::Config, message.to_string())
    }

    /// The operating system refuses what this program can't do without.
    pub(crate) fn system(attempt: &str, error: &std::io::Error) -> Self {
        let what_to_do = match error.raw_os_error() {
            Some(libc::EMFILE) => "; raise the limit of open files (ulimit -n)",
            Some(libc::EAGAIN) => "; raise the limit of processes and threads (ulimit -u)",
            Some(libc::ENOMEM) => "; raise the limit of memory (ulimit -v)",
            _ => "",
        };
        Self::new(Exit::System, format!("can't {attempt}: {error}{what_to_do}"))
    }

    /// Ends without a word.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    /// Keeps the message of an error about a value that was typed, where it would otherwise
    /// count as bad configuration.
    pub(crate) fn of_argument(error: &Error) -> Self {
        Self::usage(chain(error))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = chain(&error);
        // No fault of the store.
        if TOO_MANY_FILES.iter().any(|code| text.contains(code)) {
            return Self::new(Exit::System, format!("{text}; raise the limit (`ulimit -n`)"));
        }
        if text.contains(NO_MEMORY) {
            return Self::new(Exit::System, format!("{text}; raise the limit (`ulimit -v`)"));
        }
        if text.contains("thread") && text.contains(TOO_MANY_THREADS) {
            return Self::new(Exit::System, format!("{text}; raise the limit (`ulimit -u`)"));
        }
        let text = match advice(&error, &text) {
            Some(advice) => format!("{text}; {advice}"),
            None => text,
        };
        let exit = match error.kind() {
            ErrorKind::Config => Exit::Config,
            ErrorKind::Late | ErrorKind::Lost => Exit::Lost,
            _ => Exit::Store,
        };
        Self::new(exit, text)
    }
}

/// What to do here, where the library can't know how its user says things.
fn advice(error: &Error, text: &str) -> Option<String> {
    if error.kind() != ErrorKind::Denied {
        return None;
    }
    if text.contains("ACL") || text.contains("may not") {
        let command = typed::command("doctor --acl --user NAME");
        Some(format!("`{command}` prints what a user needs, with `--feature log` for logs too"))
    } else if text.contains("password") && !text.contains("sentinel_password") {
        let way =
            "give it in LEASEHOLD_PASSWORD or by --password-file, where other users can't read it";
        Some(way.to_owned())
    } else {
        None
    }
}

/// How an error of the system ends that has no file descriptor left, whatever library tells it.
const TOO_MANY_FILES: [&str; 2] = ["(os error 23)", "(os error 24)"];
const TOO_MANY_THREADS: &str = "(os error 11)";
/// Such as for the map of a store's file, which takes addresses for all that it may grow to.
const NO_MEMORY: &str = "(os error 12)";

/// An error and its causes on one line.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some libraries repeat their cause in their own message.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let cause = std::io::Error::other("connection refused");
        let error = Error::new(ErrorKind::Unavailable, "can't connect").caused_by(cause);
        assert_eq!(chain(&error), "can't connect: connection refused");
        let cause = std::io::Error::other("connection refused");
        let error = Error::new(ErrorKind::Unavailable, "connection refused").caused_by(cause);
        assert_eq!(chain(&error), "connection refused");
    }

    #[test]
    fn a_system_without_descriptors_is_no_fault_of_the_store() {
        let cause = std::io::Error::from_raw_os_error(libc::EMFILE);
        let error = Error::new(ErrorKind::Unavailable, "can't connect").caused_by(cause);
        assert_eq!(Failure::from(error).exit, Exit::System);
        let cause = std::io::Error::from_raw_os_error(libc::ENOMEM);
        let error = Error::new(ErrorKind::Unavailable, "can't use it").caused_by(cause);
        assert_eq!(Failure::from(error).exit, Exit::System);
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_a_busy_lock() {
        let timeout = Error::new(ErrorKind::Timeout, "no answer");
        assert_eq!(Failure::from(timeout).exit, Exit::Store);
    }
}
