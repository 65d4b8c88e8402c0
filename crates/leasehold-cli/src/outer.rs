//! Knows the locks of the commands around this one, for which it must not wait.
//!
//! Each lease has a note of the process that it is held for: the command that runs others under it,
//! or a script. A command finds that process among those that it descends from. What the system
//! does not show of these, the commands around it tell in a variable.

use std::collections::hash_map::RandomState;
use std::env;
use std::fmt;
use std::hash::BuildHasher as _;
use std::str::FromStr;

use leasehold::store::{self, Mode};
use leasehold::{DetachedLease, Fence, HolderInfo, Key, LockInfo, Metadata};
use leasehold_clock::Process;
use rustix::process::Pid;

use crate::descent;
use crate::kind::Kind;
use crate::lease_file::LEASE_VARIABLE;

/// Names, on a line each, the processes of the commands around a command, the outermost first, and
/// the leases that its script has taken.
pub(crate) const OUTER_VARIABLE: &str = "LEASEHOLD_OUTER";
/// Begins the note of the process that a lock is held, or waited for, for. No note that was typed
/// is like it: such have a `=`.
const PROCESS: &str = "process ";
/// Begins the note of a waiter that names the commands and the leases around it.
const WITHIN: &str = "within ";
/// The most that the note of a process takes, with the end of the note before it.
pub(crate) const NOTE_MAX: usize = 40;

/// A process, by a name that no other one has, on whichever machine.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Name {
    pid: u32,
    digest: u64,
}

impl Name {
    /// The process of this number; `None` where the system does not tell one from another.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let pid = u32::try_from(pid.as_raw_nonzero().get()).ok()?;
        Some(Self { pid, digest: Process::digest(pid)? })
    }

    /// This process. Where the system does not tell it from others, the name is a new one each
    /// time.
    pub(crate) fn own() -> Self {
        let new = || Self { pid: std::process::id(), digest: RandomState::new().hash_one(0) };
        Self::of(rustix::process::getpid()).unwrap_or_else(new)
    }

    /// The ancestors of this process that the system shows, the nearest first.
    fn around_this_one() -> Vec<Self> {
        around(rustix::process::getpid())
    }

    /// What it descends from, where it is a process here.
    pub(crate) fn around(self) -> Vec<Self> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.filter(|pid| Self::of(*pid) == Some(self));
        pid.map_or_else(Vec::new, around)
    }

    /// The note of it.
    pub(crate) fn note(self) -> String {
        format!("{PROCESS}{self}")
    }
}

fn around(pid: Pid) -> Vec<Name> {
    let line = descent::line_of(pid);
    line.iter().skip(1).filter_map(|one| Name::of(Pid::from_raw(one.pid)?)).collect()
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.pid, self.digest)
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (pid, digest) = text.split_once('-').ok_or(())?;
        let digest = u64::from_str_radix(digest, 16).map_err(|_| ())?;
        let name = Self { pid: pid.parse().map_err(|_| ())?, digest };
        if name.to_string() == text { Ok(name) } else { Err(()) }
    }
}

/// What a note tells of who wrote it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Note {
    /// The process that the lock is held, or waited for, for.
    For(Name),
    /// A process around it.
    Within(Name),
    /// A lease under which it works.
    Under(Fence),
}

impl Note {
    fn read(line: &str) -> Option<Self> {
        if let Some(name) = line.strip_prefix(PROCESS) {
            return name.parse().ok().map(Self::For);
        }
        let within = line.strip_prefix(WITHIN)?;
        within.parse().map(Self::Within).ok().or_else(|| fence(within).map(Self::Under))
    }

    /// All that there are among these.
    pub(crate) fn all(metadata: &Metadata) -> impl Iterator<Item = Self> {
        metadata.as_str().lines().filter_map(Self::read)
    }
}

/// The notes of a lock, without the notes of this file.
pub(crate) fn said(metadata: &Metadata) -> impl Iterator<Item = &str> {
    metadata.as_str().lines().filter(|line| Note::read(line).is_none())
}

/// The locks that are held around this command, by its environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outer(Vec<Holding>);

#[derive(Clone, Debug, Eq, PartialEq)]
enum Holding {
    /// Whatever this process holds.
    Of(Name),
    /// A lease that a script has taken.
    Lease(Fence, Key),
}

impl Outer {
    pub(crate) fn of_environment() -> Self {
        let text = |name| env::var(name).unwrap_or_default();
        let mut all: Vec<_> = text(OUTER_VARIABLE).lines().filter_map(Holding::read).collect();
        let leases = text(LEASE_VARIABLE);
        let leases = leases.lines().filter_map(|line| line.parse::<DetachedLease>().ok());
        all.extend(leases.map(|lease| Holding::Lease(lease.fence(), lease.key().clone())));
        Self(all)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a command finds that this process runs.
    pub(crate) fn with(&self, own: Name) -> String {
        let all = self.0.iter().map(ToString::to_string).chain([own.to_string()]);
        all.collect::<Vec<_>>().join("\n")
    }

    /// The notes that tell of it.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|holding| match holding {
            Holding::Of(name) => format!("{WITHIN}{name}"),
            Holding::Lease(fence, _) => format!("{WITHIN}{fence}"),
        })
    }

    /// Refuses to wait for a lock that a command around this one has.
    pub(crate) fn judge(&self, info: &LockInfo, kind: Kind) -> Result<(), String> {
        match self.in_the_way(info, kind) {
            None => Ok(()),
            Some(fence) => Err(format!(
                "\"{}\" is held by a command around this one (fence {fence}), so it would wait for \
                 itself; leave the inner lock out, or give --wait-for-outer",
                info.key
            )),
        }
    }

    /// A fence of such a command that blocks a hold of this kind.
    fn in_the_way(&self, info: &LockInfo, kind: Kind) -> Option<Fence> {
        // Only holders that name their process are looked at.
        let around = match info.holders.iter().any(|holder| process_of(holder).is_some()) {
            true => Name::around_this_one(),
            false => Vec::new(),
        };
        let is_told = |of: &Holding| self.0.contains(of);
        let is_theirs = |holder: &&HolderInfo| {
            let process = process_of(holder);
            is_told(&Holding::Lease(holder.fence, info.key.clone()))
                || process.is_some_and(|it| around.contains(&it) || is_told(&Holding::Of(it)))
        };
        let theirs: Vec<_> = info.holders.iter().filter(is_theirs).collect();
        let keep_out = |wanted: Wanted| match wanted {
            Wanted::Alone => true,
            Wanted::Beside => theirs.iter().any(|holder| holder.mode == Mode::Exclusive),
            Wanted::Permits { count, limit } => {
                let permits = theirs.iter().map(|holder| match holder.mode {
                    Mode::Permits { count, .. } => count.get(),
                    _ => limit,
                });
                permits.fold(count, u32::saturating_add) > limit
            }
        };
        let wanted = match kind {
            Kind::Exclusive => Wanted::Alone,
            Kind::Shared => Wanted::Beside,
            Kind::Permits { count, limit, stored_limit } => {
                let limit = match info.kind {
                    store::Kind::Semaphore { limit: stored } if stored_limit => stored.get(),
                    _ => limit,
                };
                Wanted::Permits { count, limit }
            }
            // It does not wait.
            Kind::OncePer(_) => return None,
        };
        // A newcomer waits for those in the queue, too.
        let in_line = info.waiters.iter().map(|waiter| match waiter.mode {
            Mode::Exclusive => Wanted::Alone,
            Mode::Permits { count, limit } => {
                Wanted::Permits { count: count.get(), limit: limit.get() }
            }
            _ => Wanted::Beside,
        });
        let first = theirs.first()?.fence;
        in_line.chain([wanted]).any(keep_out).then_some(first)
    }
}

/// The reason of a wait.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Alone,
    /// Beside others of its kind.
    Beside,
    Permits {
        count: u32,
        limit: u32,
    },
}

/// The process that a holder holds a lock for.
pub(crate) fn process_of(holder: &HolderInfo) -> Option<Name> {
    Note::all(&holder.metadata).find_map(|note| match note {
        Note::For(name) => Some(name),
        _ => None,
    })
}

impl Holding {
    fn read(line: &str) -> Option<Self> {
        if let Ok(name) = line.parse() {
            return Some(Self::Of(name));
        }
        let (fence, key) = line.split_once(' ')?;
        Some(Self::Lease(self::fence(fence)?, Key::new(key).ok()?))
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(name) => name.fmt(f),
            Self::Lease(fence, key) => write!(f, "{fence} {}", key.as_str()),
        }
    }
}

fn fence(text: &str) -> Option<Fence> {
    Fence::from_value(text.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_a_process_comes_back_and_takes_no_more_than_its_room() {
        let own = Name::own();
        assert_eq!(own.to_string().parse(), Ok(own));
        assert_eq!(Note::read(&own.note()), Some(Note::For(own)));
        let longest = Name { pid: u32::MAX, digest: u64::MAX };
        assert!(longest.note().len() < NOTE_MAX);
        for typed in ["process=1", "process 1", "process 1-2", "within x", "job=process 1-0"] {
            assert_eq!(Note::read(typed), None, "{typed}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_is_around_what_it_starts_and_not_around_itself() {
        let own = Name::own();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        let name = Name::of(Pid::from_raw(number).unwrap()).unwrap();
        assert_eq!(name.around().first(), Some(&own));
        assert_eq!(Name { digest: 0, ..name }.around(), []);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(name.around(), []);
        assert!(!Name::around_this_one().contains(&own));
    }
}
