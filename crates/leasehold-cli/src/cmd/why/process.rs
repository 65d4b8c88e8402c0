//! Finds the process that an owner's name names, if it is on this machine.

use std::borrow::Cow;
use std::fmt;
use std::fs;

use leasehold::store::escape;
use leasehold_clock::Process as Tagged;

/// Names of hosts are cut to this in owners' names.
const HOST_MAX: usize = 60;
/// As much of a command line as says what it is.
const COMMAND_MAX: usize = 200;

/// A process, as the name `HOST_PID_TAG` tells it.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Process {
    pub(super) host: String,
    pub(super) id: u32,
    /// What is known of it if it is on this host, and its name has a tag that tells whether a
    /// process here is the one that was meant.
    pub(super) state: Option<State>,
    /// The script that it holds the lock for: it heeds no TERM before that has ended.
    script: Option<u32>,
}

/// What a process does.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum State {
    /// No process here is it.
    Absent,
    /// It was ended, and its parent has not noticed.
    Dead,
    /// It was stopped.
    Stopped(String),
    Runs(String),
}

impl Process {
    /// The one with this name; `None` where the name is another kind of name.
    pub(super) fn named(owner: &str) -> Option<Self> {
        let number = |text: &str| text.parse().ok().filter(|id| *id > 0_u32);
        let (before, last) = owner.rsplit_once('_')?;
        let tagged = before.rsplit_once('_').and_then(|(host, id)| Some((host, number(id)?)));
        let (host, id, tag) = match tagged.filter(|_| number(last).is_none()) {
            Some((host, id)) => (host, id, Some(last)),
            // As older versions have it, without anything that distinguishes it from others of its
            // number.
            None => (before, number(last)?, None),
        };
        let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let here: String = here.chars().take(HOST_MAX).collect();
        let seen = tag.filter(|_| host == here).and_then(|tag| look(id, tag));
        let (state, script) = seen.map_or((None, None), |(state, script)| (Some(state), script));
        Some(Self { host: host.to_owned(), id, state, script })
    }

    /// Whether it was seen to live here.
    pub(super) const fn lives(&self) -> bool {
        matches!(self.state, Some(State::Stopped(_) | State::Runs(_)))
    }

    /// Whether it has ended, unless it is in a container.
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.state, Some(State::Absent | State::Dead))
    }

    /// The process that has to end for the lock to come free.
    pub(super) fn to_end(&self) -> u32 {
        self.script.unwrap_or(self.id)
    }

    pub(super) const fn may_be_in_a_container(&self) -> bool {
        matches!(self.state, Some(State::Absent))
    }
}

/// What it does, and the script that it holds a lock for. `None` where the system does not tell.
fn look(id: u32, tag: &str) -> Option<(State, Option<u32>)> {
    // Without a `/proc` of this namespace, each seems to be absent.
    let shown = fs::read_link("/proc/self").ok()?;
    if shown.to_str() != Some(&std::process::id().to_string()) {
        return None;
    }
    if Tagged::tag(id).is_none_or(|its| its != tag) {
        return Some((State::Absent, None));
    }
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let words = command.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let script = script_of(&words);
    let command: String = words.join(" ").chars().take(COMMAND_MAX).collect();
    let state = match rest.chars().next()? {
        'Z' | 'X' => State::Dead,
        'T' | 't' => State::Stopped(command),
        _ => State::Runs(command),
    };
    Some((state, script))
}

/// Of `leasehold hold … --while-pid PID`, that process.
fn script_of(words: &[Cow<'_, str>]) -> Option<u32> {
    let mut words = words.iter().skip_while(|word| *word != "hold");
    let word = words.find_map(|word| word.strip_prefix("--while-pid"))?;
    word.strip_prefix('=').or_else(|| words.next().map(|word| &**word))?.parse().ok()
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, host) = (self.id, escape::terminal(&self.host));
        write!(f, "process {id} of host {host}")?;
        match &self.state {
            None => Ok(()),
            Some(state) => write!(f, " (this host): {state}"),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("ended, or in a container"),
            Self::Dead => f.write_str("ended"),
            Self::Stopped(command) => write!(f, "stopped {}", escape::terminal(command)),
            Self::Runs(command) => write!(f, "running {}", escape::terminal(command)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_some_person_chose_is_no_process() {
        for name in ["web-7", "nightly_report", "host_", "_0", "a_b_c", ""] {
            assert_eq!(Process::named(name), None, "{name}");
        }
        for name in ["db_1.example_77", "db_1.example_77_x7kq"] {
            let far = Process::named(name).unwrap();
            assert_eq!((far.host.as_str(), far.id, far.state), ("db_1.example", 77, None));
        }
    }

    #[test]
    fn a_hold_for_a_script_ends_with_the_script() {
        let of = |line: &str| script_of(&line.split(' ').map(Cow::from).collect::<Vec<_>>());
        assert_eq!(of("leasehold hold k --while-pid 71 --background"), Some(71));
        assert_eq!(of("leasehold --store x hold --while-pid=71 k"), Some(71));
        assert_eq!(of("leasehold hold k"), None);
        assert_eq!(of("leasehold run k -- leasehold-wrapper --while-pid 71"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_is_named_only_if_it_is_the_holders() {
        let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let state = |name: &str| Process::named(&format!("{here}_{name}")).unwrap().state;
        let id = std::process::id();
        let own = format!("{id}_{}", Tagged::tag(id).unwrap());
        assert!(matches!(state(&own), Some(State::Runs(it)) if it.contains("leasehold")));
        // An earlier process of this number, the first one of a container, and one of nobody's.
        assert_eq!(state(&format!("{id}_zzzz")), Some(State::Absent));
        assert_eq!(state("1_zzzz"), Some(State::Absent));
        assert_eq!(state(&format!("{}_zzzz", u32::MAX)), Some(State::Absent));
        assert_eq!(state(&id.to_string()), None);
    }
}
