//! What ends a command early: a message for people and an exit code for scripts.

use std::error::Error as _;
use std::fmt;

use leasehold::{Error, ErrorKind, Reason};

use crate::exit::Exit;
use crate::secret;
use crate::typed;

/// A message and the code to exit with. An empty message is not printed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// What the library says of why, where it is known.
    pub(crate) reason: Option<Reason>,
    pub(crate) message: String,
}

/// How a command ends.
pub(crate) type Outcome<T = Exit> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, reason: None, message: message.into() }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message.to_string())
    }

    pub(crate) fn config(message: impl fmt::Display) -> Self {
        Self::new(Exit::Config, message.to_string())
    }

    /// The operating system refuses a request that this program needs.
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
        Self { reason: error.reason(), ..Self::usage(chain(error)) }
    }

    /// With the reason of this error.
    pub(crate) fn because_of(self, error: &Error) -> Self {
        Self { reason: error.reason(), ..self }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match (error.reason(), error.kind()) {
            // No fault of the store.
            (Some(Reason::OpenFiles | Reason::ProcessMemory | Reason::Threads), _) => Exit::System,
            (_, ErrorKind::Config) => Exit::Config,
            (_, ErrorKind::Late | ErrorKind::Lost) => Exit::Lost,
            // The same command fails again until the URL, a directory or its rights are changed.
            (Some(Reason::StoreSettings | Reason::FilePermission), _) => Exit::Config,
            _ => Exit::Store,
        };
        let text = match advice(&error) {
            Some(advice) => format!("{}; {advice}", chain(&error)),
            None => chain(&error),
        };
        Self::new(exit, text).because_of(&error)
    }
}

/// Whether an operation was refused for what it was given, and not for how the store is named.
pub(crate) fn is_of_argument(error: &Error) -> bool {
    error.kind() == ErrorKind::Config && error.reason().is_none()
}

/// The remedy in the command's words.
pub(crate) fn advice(error: &Error) -> Option<String> {
    Some(match error.reason()? {
        Reason::MissingRight if error.store().is_some_and(|it| it.starts_with("postgres:")) => {
            format!("`{}` prints the rights", typed::command("setup"))
        }
        Reason::MissingRight => {
            let command = typed::command("doctor --acl --user NAME");
            format!("`{command}` prints the rights (for logs, with `--feature log`)")
        }
        Reason::OtherLimit => {
            let set = typed::command_on("set-limit", error.key()?);
            format!("change it for all by `{set} LIMIT`")
        }
        reason @ (Reason::NoPassword | Reason::WrongPassword) => {
            let end = secret::end().filter(|_| reason == Reason::WrongPassword);
            let end = end.map(|end| format!("the password ends with {end}, which counts; "));
            format!(
                "{}give it in LEASEHOLD_PASSWORD or by --password-file, where other users can't read it",
                end.unwrap_or_default()
            )
        }
        Reason::OpenFiles => "raise the limit (`ulimit -n`)".to_owned(),
        Reason::ProcessMemory => "raise the limit (`ulimit -v`)".to_owned(),
        Reason::Threads => "raise the limit (`ulimit -u`)".to_owned(),
        _ => return None,
    })
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // The lock and the store are named once.
        let more = match error.downcast_ref::<Error>() {
            Some(error) => format!("{error:#}"),
            None => error.to_string(),
        };
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
    fn causes_are_reported_once() {
        let cause = std::io::Error::other("connection refused");
        let error = Error::new(ErrorKind::Unavailable, "can't connect").caused_by(cause);
        assert_eq!(chain(&error), "can't connect: connection refused");
        let cause = std::io::Error::other("connection refused");
        let error = Error::new(ErrorKind::Unavailable, "connection refused").caused_by(cause);
        assert_eq!(chain(&error), "connection refused");
    }

    #[test]
    fn the_lock_and_the_store_are_named_once() {
        let key = leasehold::Key::new("k").unwrap();
        let at = |error: Error| error.during("acquire").on_key(&key).at_store("redis://h");
        let cause = at(Error::new(ErrorKind::Unavailable, "refused"));
        let error = at(Error::new(ErrorKind::Unavailable, "timed out")).caused_by(cause);
        assert_eq!(chain(&error), "acquire \"k\" at redis://h: timed out: refused");
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
    fn advice_and_exit_code_come_from_the_reason_and_not_from_words() {
        let words = "a password; the ACL may not; no thread (os error 11); (os error 24)";
        let denied = Error::new(ErrorKind::Denied, words);
        let told = Failure::from(denied.clone());
        assert_eq!((told.exit, &*told.message), (Exit::Store, words));
        let told = Failure::from(denied.with_reason(Reason::MissingRight));
        assert!(told.message.contains("doctor --acl"), "{}", told.message);
        let threads = Error::new(ErrorKind::Unavailable, "no").with_reason(Reason::Threads);
        let told = Failure::from(threads);
        assert_eq!((told.exit, told.reason), (Exit::System, Some(Reason::Threads)));
        let of_sentinel = Error::new(ErrorKind::Denied, "its password");
        let told = Failure::from(of_sentinel.with_reason(Reason::SentinelPassword));
        assert_eq!(told.message, "its password");
    }

    #[test]
    fn a_directory_that_is_no_good_for_locks_is_bad_configuration_unless_a_lock_was_lost() {
        let denied = Error::new(ErrorKind::Denied, "it belongs to another user");
        assert_eq!(Failure::from(denied.clone()).exit, Exit::Store);
        for reason in [Reason::StoreSettings, Reason::FilePermission] {
            let denied = denied.clone().with_reason(reason);
            assert_eq!(Failure::from(denied.clone()).exit, Exit::Config, "{reason:?}");
            let lost = Error::new(ErrorKind::Lost, "lost").caused_by(denied);
            assert_eq!(Failure::from(lost).exit, Exit::Lost, "{reason:?}");
        }
    }

    #[test]
    fn a_wrong_argument_and_a_wrong_store_url_are_distinguished() {
        let config = Error::new(ErrorKind::Config, "out of range");
        assert!(is_of_argument(&config));
        assert!(!is_of_argument(&config.with_reason(Reason::StoreSettings)));
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_a_busy_lock() {
        let timeout = Error::new(ErrorKind::Timeout, "no answer");
        assert_eq!(Failure::from(timeout).exit, Exit::Store);
    }
}
