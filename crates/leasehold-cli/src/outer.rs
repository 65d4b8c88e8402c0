//! The locks of the commands around this one: what is waited for there never comes free.
//!
//! A command that runs another one tells it what it holds. A `hold` can't tell the script that it holds a lock
//! for, so its lease has a note of which process that is.

use std::{env, fs};

use leasehold::store::{self, Mode};
use leasehold::{Client, DetachedLease, Fence, HolderInfo, Key, LockInfo};
use rustix::process::Pid;

use crate::descent::{self, Process};
use crate::fnv;
use crate::kind::Kind;
use crate::lease_file::LEASE_VARIABLE;

/// Names a fence and its lock on each line, the outermost first.
pub(crate) const OUTER_VARIABLE: &str = "LEASEHOLD_OUTER";
/// Begins the note by which a waiter says under whose fences it waits.
const NOTE: &str = "within=";
/// Begins the note by which a holder says for which process it holds the lock.
const FOR: &str = "while-pid=";

/// The locks that commands around this one hold, as far as the environment tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outer(Vec<(Fence, Key)>);

impl Outer {
    pub(crate) fn of_environment() -> Self {
        let text = |name| env::var(name).unwrap_or_default();
        let mut all: Vec<_> = text(OUTER_VARIABLE).lines().filter_map(of_line).collect();
        // A script has taken these.
        let leases = text(LEASE_VARIABLE);
        let leases = leases.lines().filter_map(|line| line.parse::<DetachedLease>().ok());
        all.extend(leases.map(|lease| (lease.fence(), lease.key().clone())));
        Self(all)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a command finds that is run under these, too.
    pub(crate) fn with(&self, held: impl Iterator<Item = (Fence, Key)>) -> String {
        let all = self.0.iter().cloned().chain(held);
        all.map(|(fence, key)| format!("{fence} {}", key.as_str())).collect::<Vec<_>>().join("\n")
    }

    /// The notes that tell of it.
    pub(crate) fn notes(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(fence, _)| format!("{NOTE}{fence}"))
    }

    /// Refuses what would wait for a command around this one.
    pub(crate) async fn refuse(
        &self,
        keys: &[Key],
        kind: Kind,
        client: &Client,
    ) -> Result<(), String> {
        for key in keys.iter().filter(|key| self.0.iter().any(|(_, outer)| outer == *key)) {
            // What the store does not tell, the wait itself will.
            let Ok(Some(info)) = client.inspect(key).await else { continue };
            self.judge(&info, kind)?;
        }
        Ok(())
    }

    /// Refuses to wait for a lock that a command around this one has.
    pub(crate) fn judge(&self, info: &LockInfo, kind: Kind) -> Result<(), String> {
        match self.in_the_way(info, kind) {
            None => Ok(()),
            Some(fence) => Err(format!(
                "\"{}\" is held by a command around this one (fence {fence}), which would wait for \
                 itself; leave the inner lock out, or give --wait-for-outer",
                info.key
            )),
        }
    }

    /// A fence of theirs that has to go before one of this kind can come.
    fn in_the_way(&self, info: &LockInfo, kind: Kind) -> Option<Fence> {
        let is_named =
            |fence: Fence| self.0.iter().any(|(of, key)| *of == fence && *key == info.key);
        // Nothing is looked at where no holder is that of a script.
        let scripts = match info.holders.iter().flat_map(scripts_of).next() {
            Some(_) => {
                let line = descent::line_of(rustix::process::getpid());
                line.iter().filter_map(name_of).collect()
            }
            None => Vec::new(),
        };
        let is_of_script = |holder: &HolderInfo| {
            scripts_of(holder).any(|name| scripts.iter().any(|it| it == name))
        };
        let is_theirs = |holder: &&HolderInfo| is_named(holder.fence) || is_of_script(holder);
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
        // A newcomer waits for those in line, too.
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

/// What somebody waits for.
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

/// The fences under which the owner of these notes is run, by its own words.
pub(crate) fn fences(notes: &str) -> impl Iterator<Item = Fence> {
    notes.lines().filter_map(|note| fence(note.strip_prefix(NOTE)?))
}

/// The note of a holder that holds a lock for this process, where such a note can be read back.
pub(crate) fn note_of_script(script: Pid) -> Option<String> {
    descent::line_of(script).first().and_then(name_of).map(|name| format!("{FOR}{name}"))
}

/// What a holder's notes say of the process that it holds the lock for.
fn scripts_of(holder: &HolderInfo) -> impl Iterator<Item = &str> {
    holder.metadata.as_str().lines().filter_map(|note| note.strip_prefix(FOR))
}

/// The name of a process that no other one has, on whichever machine.
fn name_of(process: &Process) -> Option<String> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let numbers = fs::read_link("/proc/self/ns/pid").ok()?;
    let numbers = numbers.as_os_str().as_encoded_bytes();
    let hash = fnv::hash(&[&boot, numbers, &process.started.to_le_bytes()]);
    Some(format!("{}-{hash:016x}", process.pid))
}

fn of_line(line: &str) -> Option<(Fence, Key)> {
    let (fence, key) = line.split_once(' ')?;
    Some((self::fence(fence)?, Key::new(key).ok()?))
}

fn fence(text: &str) -> Option<Fence> {
    Fence::from_value(text.parse().ok()?).ok()
}
