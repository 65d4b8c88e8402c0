//! Reads other processes from /proc.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

/// The name of a supervisor's watchdog process.
const WATCHDOG: &str = "lh-watchdog";
/// The flag of an ending process in its `stat` (`PF_EXITING`).
const EXITING: u64 = 0x4;
/// The bit of SIGKILL in a set of signals.
const KILL_PENDING: u64 = 1 << 8;

/// A process at the moment of a look.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    flags: u64,
}

impl Process {
    /// The process with this number, if there is one.
    pub(crate) fn find(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &stat)
    }

    fn parse(pid: i32, stat: &str) -> Option<Self> {
        let (before, after) = stat.rsplit_once(") ")?;
        let (_, name) = before.split_once('(')?;
        let fields: Vec<&str> = after.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
        Some(Self {
            pid,
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: number(1)?,
            group: number(2)?,
            flags: fields.get(6)?.parse().ok()?,
        })
    }

    /// All processes.
    pub(crate) fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").expect("Linux has /proc");
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter_map(Self::find).collect()
    }

    /// Whether it has ended and only waits to be collected.
    pub(crate) const fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether its program will run no further instruction: it was sent SIGKILL, or is ending.
    fn is_dying(&self) -> bool {
        self.is_dead() || self.flags & EXITING != 0 || kill_is_pending(self.pid)
    }
}

fn kill_is_pending(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    pending.into_iter().any(|set| set & KILL_PENDING != 0)
}

/// Whether the program of a process can still act.
pub(crate) fn acts(pid: i32) -> bool {
    Process::find(pid).is_some_and(|process| !process.is_dying())
}

/// The watchdog of a supervisor.
pub(crate) fn watchdog(supervisor: i32) -> Option<i32> {
    let mut all = Process::all().into_iter();
    let found = all.find(|one| one.parent == supervisor && one.name == WATCHDOG)?;
    Some(found.pid)
}

/// The command's first process under a supervisor, which leads its process group.
pub(crate) fn command(supervisor: i32) -> Option<i32> {
    let watchdog = watchdog(supervisor);
    let mut all = Process::all().into_iter();
    // If the watchdog was killed, the supervisor has inherited it.
    let found = all.find(|one| {
        (one.parent == supervisor || Some(one.parent) == watchdog)
            && one.group == one.pid
            && one.name != WATCHDOG
            && !one.is_dead()
    })?;
    Some(found.pid)
}

/// Processes whose working directory this is.
pub(crate) fn in_directory(dir: &Path) -> Vec<Process> {
    let works_there = |process: &Process| {
        fs::read_link(PathBuf::from(format!("/proc/{}/cwd", process.pid)))
            .is_ok_and(|cwd| cwd == dir)
    };
    Process::all().into_iter().filter(works_there).collect()
}

/// Sends a signal to a process; returns whether it exists.
pub(crate) fn signal(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| rustix::process::kill_process(pid, signal).is_ok())
}

/// Sends a signal to a process group; returns whether it exists.
pub(crate) fn signal_group(group: i32, signal: Signal) -> bool {
    Pid::from_raw(group).is_some_and(|pid| rustix::process::kill_process_group(pid, signal).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_is_read() {
        let stat = "7 (a) b (c) S 5 7 7 0 -1 4194308 1 2";
        let process = Process::parse(7, stat).unwrap();
        assert_eq!(process.name, "a) b (c");
        assert_eq!((process.parent, process.group, process.state), (5, 7, 'S'));
        assert!(process.is_dying(), "4194308 has the bit of an ending process");
    }

    #[test]
    fn this_process_acts() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(acts(me));
        assert!(Process::all().iter().any(|process| process.pid == me));
    }
}
