//! The process behind an owner's name, where the name says which it is and it is on this machine.

use std::fmt;
use std::fs;
use std::time::Duration;

use leasehold::store::escape;

/// Names of hosts are cut to this in owners' names.
const HOST_MAX: usize = 60;
/// As much of a command line as says what it is.
const COMMAND_MAX: usize = 200;
/// In how many parts of a second Linux tells programs when a process began.
const TICKS: f64 = 100.0;
/// What the clocks of a store and of this machine may differ by in an age.
const SLACK: f64 = 2.0;

/// A process, as the name `HOST_PID` tells it.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Process {
    pub(super) host: String,
    pub(super) id: u32,
    /// What is known of it if it is on this host.
    pub(super) state: Option<State>,
}

/// What a process does.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum State {
    /// There is none of this number, or it can't be this one.
    Absent,
    /// It was ended, and its parent has not noticed.
    Dead,
    /// It was stopped.
    Stopped(String),
    Runs(String),
}

impl Process {
    /// The one with this name, which has held something for so long; `None` where the name is another
    /// kind of name.
    pub(super) fn named(owner: &str, held_for: Duration) -> Option<Self> {
        let (host, id) = owner.rsplit_once('_')?;
        let id = id.parse().ok().filter(|id| *id > 0)?;
        let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let here: String = here.chars().take(HOST_MAX).collect();
        let state = (host == here).then(|| State::of(id, held_for)).flatten();
        Some(Self { host: host.to_owned(), id, state })
    }

    /// Whether it has ended, unless it is in a container.
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.state, Some(State::Absent | State::Dead))
    }

    pub(super) const fn may_be_in_a_container(&self) -> bool {
        matches!(self.state, Some(State::Absent))
    }
}

impl State {
    /// `None` where the system does not tell.
    fn of(id: u32, held_for: Duration) -> Option<Self> {
        fs::metadata("/proc/self/stat").ok()?;
        let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else {
            return Some(Self::Absent);
        };
        // The name of the program stands in brackets, and may have some itself.
        let (_, rest) = stat.rsplit_once(") ")?;
        let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let words = command.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
        let command: String = words.join(" ").chars().take(COMMAND_MAX).collect();
        // Its number is another's by now, or it is the system's own, which takes no locks.
        let later = age(rest).is_some_and(|age| age + SLACK < held_for.as_secs_f64());
        let letter = rest.chars().next()?;
        // One that was ended has no command line any more.
        if later || command.is_empty() && !matches!(letter, 'Z' | 'X') {
            return Some(Self::Absent);
        }
        Some(match letter {
            'Z' | 'X' => Self::Dead,
            'T' | 't' => Self::Stopped(command),
            _ => Self::Runs(command),
        })
    }
}

/// For how many seconds a process has lived, by what stands in its `stat` behind its name.
fn age(stat: &str) -> Option<f64> {
    let began: f64 = stat.split(' ').nth(19)?.parse().ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    Some(uptime - began / TICKS)
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, host) = (self.id, escape::terminal(&self.host));
        write!(f, "process {id} of host {host}")?;
        match &self.state {
            None => Ok(()),
            Some(state) => write!(f, ", which is this one: {state}"),
        }
    }
}

/// A container has numbers of its own, and may have its host's name.
const ELSEWHERE: &str = " (if it is not in a container)";

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("it has ended, or is in a container"),
            Self::Dead => f.write_str("it has ended"),
            Self::Stopped(command) => {
                write!(f, "stopped, {}{ELSEWHERE}", escape::terminal(command))
            }
            Self::Runs(command) => write!(f, "it runs, {}{ELSEWHERE}", escape::terminal(command)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_some_person_chose_is_no_process() {
        for name in ["web-7", "nightly_report", "host_", "_0", ""] {
            assert_eq!(Process::named(name, Duration::ZERO), None, "{name}");
        }
        let far = Process::named("db_1.example_77", Duration::ZERO).unwrap();
        assert_eq!((far.host.as_str(), far.id, far.state), ("db_1.example", 77, None));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_found_and_one_that_can_not_be_is_not() {
        let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let named = |id: u32, held_for| Process::named(&format!("{here}_{id}"), held_for).unwrap();
        let this = named(std::process::id(), Duration::ZERO);
        assert!(matches!(this.state, Some(State::Runs(command)) if command.contains("leasehold")));
        assert_eq!(named(u32::MAX, Duration::ZERO).state, Some(State::Absent));
        // This process has not lived for so long, so the lease is that of an earlier one.
        let year = Duration::from_secs(365 * 24 * 3600);
        assert_eq!(named(std::process::id(), year).state, Some(State::Absent));
    }
}
