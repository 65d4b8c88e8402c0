//! Defines the exit codes.

/// An exit code with its meaning.
///
/// The numbers below 126 follow sysexits(3) or come right after them, so that no ordinary program
/// run under a lock is likely to use them for something else.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Exit {
    Success,
    Usage,
    Store,
    Internal,
    System,
    Output,
    /// The lock is busy; the code is the one that `-E` asks for.
    Busy(u8),
    Lost,
    Config,
    Unwell,
    /// The command took longer than it may hold the lock.
    Overtime,
    CannotExecute,
    NotFound,
    /// The command's own code.
    Code(u8),
    /// The command, or the wait for the lock, was ended by this signal.
    Signal(u8),
    /// The command died of this signal, which a key such as Ctrl-C sent to it alone because it
    /// had the terminal to itself. Leasehold passes it on to its own process group and dies of it,
    /// so that a script around it stops too; a shell shows 128+n in either case.
    Keyboard(u8),
}

/// What the help and the man page say about exit codes.
pub(crate) const HELP: &str = "\
Exit codes:
  0      success; for `run`, that of the command
  64     usage: a bad option, name, ttl or lease
  69     the store can't be reached, or refuses
  70     a fault in leasehold itself
  71     the operating system refuses, such as to start another process
  74     output can't be written
  75     the lock is held or cooling down, or the wait timed out (-E changes this)
  76     the lock was lost: while the command ran, or before a renewal or release; or `ask`,
         `force-release` or `set-limit` found no such holder
  78     bad configuration: the config file, the store's URL or directory, a password file
  79     `doctor` found something worse than a note
  80     the command was stopped after the time of --max-hold
  126    the command can't be executed
  127    the command is not found
  128+n  the command, or the wait for the lock, was ended by signal n
  other  for `run`, the code of the command";

impl Exit {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Usage => 64,
            Self::Store => 69,
            Self::Internal => 70,
            Self::System => 71,
            Self::Output => 74,
            Self::Busy(code) => code,
            Self::Lost => 76,
            Self::Config => 78,
            Self::Unwell => 79,
            Self::Overtime => 80,
            Self::CannotExecute => 126,
            Self::NotFound => 127,
            Self::Code(code) => code,
            Self::Signal(signal) | Self::Keyboard(signal) => 128_u8.saturating_add(signal),
        }
    }

    /// The word for it in documents.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Usage => "usage",
            Self::Store => "store",
            Self::Internal => "internal",
            Self::System => "system",
            Self::Output => "output",
            Self::Busy(_) => "busy",
            Self::Lost => "lost",
            Self::Config => "config",
            Self::Unwell => "unwell",
            Self::Overtime => "overtime",
            Self::CannotExecute | Self::NotFound | Self::Code(_) => "command",
            Self::Signal(_) | Self::Keyboard(_) => "signal",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_explained_in_the_help() {
        let named = [
            Exit::Success,
            Exit::Usage,
            Exit::Store,
            Exit::Internal,
            Exit::System,
            Exit::Output,
            Exit::Busy(75),
            Exit::Lost,
            Exit::Config,
            Exit::Unwell,
            Exit::Overtime,
            Exit::CannotExecute,
            Exit::NotFound,
        ];
        for exit in named {
            let line = format!("\n  {} ", exit.code());
            assert!(HELP.contains(&line), "{exit:?}");
        }
    }

    #[test]
    fn a_signal_has_the_exit_code_that_a_shell_shows() {
        assert_eq!(Exit::Signal(15).code(), 143);
        assert_eq!(Exit::Keyboard(2).code(), 130);
        assert_eq!(Exit::Signal(64).code(), 192);
        assert_eq!(Exit::Signal(255).code(), 255);
    }
}
