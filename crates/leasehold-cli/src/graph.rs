//! Finds circles of holders that wait for each other's locks.
//!
//! A waiter belongs to a holder if it waits for the process of that holder, or below it. Its notes
//! name the processes around it, and so do the processes of this machine. It also belongs to a
//! holder of the same owner. Tasks of one process share a name, and processes may share one too, so
//! a circle by names may be none.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::{Fence, HolderInfo, Key, LockInfo, OwnerName, WaiterInfo};

use crate::outer::{Name, Note, process_of};

/// A longer chain is cut.
const STEPS_MAX: usize = 10;

/// A waiter, the lock that it waits for, and a holder of that.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Step {
    pub(crate) waiter: OwnerName,
    /// The holder whose process is around the waiter, where that is another owner.
    pub(crate) within: Option<OwnerName>,
    pub(crate) waits_for: Key,
    pub(crate) held_by: OwnerName,
}

/// Waiters of whom each waits for the next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Chain {
    /// The last holder does not wait.
    Open(Vec<Step>),
    /// The last waits for the longest.
    Circle(Vec<Step>),
}

impl Chain {
    /// One sentence for each step.
    pub(crate) fn steps(&self) -> impl Iterator<Item = String> {
        let (Self::Open(steps) | Self::Circle(steps)) = self;
        steps.iter().map(|Step { waiter, within, waits_for, held_by }| {
            let under = within
                .as_ref()
                .map_or_else(String::new, |by| format!(", run under a lock of {by},"));
            format!("{waiter}{under} waits for \"{waits_for}\", which {held_by} holds")
        })
    }
}

/// One that holds a lock.
#[derive(Clone, Copy)]
struct Holder<'a> {
    key: &'a Key,
    info: &'a HolderInfo,
}

impl Holder<'_> {
    /// Whether they are one.
    fn is(&self, other: &Self) -> bool {
        let is_lease = self.key == other.key && self.info.fence == other.info.fence;
        let is_process = self.process().is_some_and(|process| other.process() == Some(process));
        is_lease || is_process || self.info.owner == other.info.owner
    }

    fn process(&self) -> Option<Name> {
        process_of(self.info)
    }
}

/// By what a waiter belongs to a holder.
#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum By<'a> {
    Owner(&'a str),
    Fence(Fence),
    Process(Name),
}

/// Where one step leads.
type Edges<'a> = BTreeMap<By<'a>, Vec<(&'a WaiterInfo, Holder<'a>)>>;

/// What the holders of a lock wait for themselves: a circle for those in one, else how far it goes.
/// Holders that wait for nothing are left out. Each edge is walked once. `around` looks at what a
/// process descends from.
pub(crate) fn chains(
    of: &LockInfo,
    locks: &[LockInfo],
    around: &dyn Fn(Name) -> Vec<Name>,
) -> Vec<Chain> {
    let mut edges = Edges::new();
    for lock in locks {
        let holders = || lock.holders.iter().map(|info| Holder { key: &lock.key, info });
        for waiter in &lock.waiters {
            let mut ways = vec![(By::Owner(waiter.owner.as_str()), true)];
            for note in Note::all(&waiter.metadata) {
                match note {
                    Note::For(process) => {
                        ways.push((By::Process(process), true));
                        let around = around(process).into_iter();
                        ways.extend(around.map(|one| (By::Process(one), false)));
                    }
                    Note::Within(process) => ways.push((By::Process(process), false)),
                    Note::Under(fence) => ways.push((By::Fence(fence), false)),
                }
            }
            for (by, is_itself) in ways {
                // Tasks of one process that alternate wait only for each other.
                let takes_turns = |info: &HolderInfo| is_itself && info.owner == waiter.owner;
                let to = holders().filter(|holder| !takes_turns(holder.info));
                edges.entry(by).or_default().extend(to.map(|holder| (waiter, holder)));
            }
        }
    }
    let mut seen = BTreeSet::new();
    let mut chains = Vec::new();
    for info in &of.holders {
        if let Some(chain) = walk(Holder { key: &of.key, info }, &edges, &mut seen) {
            chains.push(chain);
        }
    }
    chains
}

/// Follows the edges from a holder, depth first, to a circle or to their end.
fn walk<'a>(from: Holder<'a>, edges: &Edges<'a>, seen: &mut BTreeSet<By<'a>>) -> Option<Chain> {
    let mut longest: Vec<Step> = Vec::new();
    let mut path: Vec<Step> = Vec::new();
    // The edges of each holder on the path that were not walked yet.
    let mut left = vec![open(from, edges, seen)];
    let mut holders = vec![from];
    while let Some(edges_left) = left.last_mut() {
        let Some((waiter, next)) = edges_left.pop() else {
            left.pop();
            holders.pop();
            path.pop();
            continue;
        };
        let by = holders.last().copied().unwrap_or(from);
        path.push(Step {
            waiter: waiter.owner.clone(),
            within: Some(&by.info.owner).filter(|owner| **owner != waiter.owner).cloned(),
            waits_for: next.key.clone(),
            held_by: next.info.owner.clone(),
        });
        if let Some(start) = holders.iter().position(|holder| holder.is(&next)) {
            return Some(Chain::Circle(path.split_off(start)));
        }
        if path.len() > longest.len() && path.len() <= STEPS_MAX {
            longest.clone_from(&path);
        }
        left.push(open(next, edges, seen));
        holders.push(next);
    }
    (!longest.is_empty()).then_some(Chain::Open(longest))
}

/// The edges of a holder that were not walked before, the last one first.
fn open<'a>(
    of: Holder<'a>,
    edges: &Edges<'a>,
    seen: &mut BTreeSet<By<'a>>,
) -> Vec<(&'a WaiterInfo, Holder<'a>)> {
    let mut all = Vec::new();
    let process = of.process().map(By::Process);
    for by in
        [By::Owner(of.info.owner.as_str()), By::Fence(of.info.fence)].into_iter().chain(process)
    {
        if let Some(edges) = edges.get(&by)
            && seen.insert(by)
        {
            all.extend(edges.iter().copied());
        }
    }
    all.reverse();
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::Metadata;
    use leasehold::store::{Kind, Mode};

    use super::*;

    /// Processes of another machine are unknown.
    fn nobody(_: Name) -> Vec<Name> {
        Vec::new()
    }

    fn owner(name: &str) -> OwnerName {
        OwnerName::new(name).unwrap()
    }

    /// A lock with holders and waiters, by their names.
    fn lock(key: &str, holders: &[&str], waiters: &[&str]) -> LockInfo {
        let fence = Fence::from_value(9).unwrap();
        let mut info = LockInfo::new(Key::new(key).unwrap(), Kind::Lock, fence);
        for name in holders {
            let mut holder =
                HolderInfo::new(Mode::Exclusive, fence, Duration::ZERO, Duration::from_secs(1));
            holder.owner = owner(name);
            info.holders.push(holder);
        }
        for name in waiters {
            let mut waiter = WaiterInfo::new(Mode::Exclusive, Duration::ZERO);
            waiter.owner = owner(name);
            info.waiters.push(waiter);
        }
        info
    }

    fn step(waiter: &str, waits_for: &str, held_by: &str) -> Step {
        let waits_for = Key::new(waits_for).unwrap();
        Step { waiter: owner(waiter), within: None, waits_for, held_by: owner(held_by) }
    }

    fn process(n: u64) -> Name {
        format!("7-{n:016x}").parse().unwrap()
    }

    /// The same, where the holder and the waiter have these notes.
    fn noted(key: &str, holder: (&str, &str), waiter: (&str, &str)) -> LockInfo {
        let mut info = lock(key, &[holder.0], &[waiter.0]);
        info.holders[0].metadata = Metadata::new(format!("job=x\n{}", holder.1)).unwrap();
        info.waiters[0].metadata = Metadata::new(format!("job=x\n{}", waiter.1)).unwrap();
        info
    }

    #[test]
    fn what_a_command_runs_that_waits_for_it_is_a_circle_of_one() {
        let holders = process(1).note();
        let inner = format!("{}\nwithin {}", process(2).note(), process(1));
        for name in ["outer", "inner"] {
            let mut locks = [noted("a", ("outer", &holders), (name, &inner))];
            let within = (name != "outer").then(|| owner("outer"));
            let circle = Chain::Circle(vec![Step { within, ..step(name, "a", "outer") }]);
            assert_eq!(chains(&locks[0], &locks, &nobody), std::slice::from_ref(&circle), "{name}");
            // A lease that its script has taken has no process.
            locks[0].holders[0].metadata = Metadata::default();
            assert_eq!(chains(&locks[0], &locks, &nobody), [], "{name}");
            locks[0].waiters[0].metadata = Metadata::new("within 9").unwrap();
            assert_eq!(chains(&locks[0], &locks, &nobody), [circle], "{name}");
        }
        // Another one's, of the same name, and a candidate that waits for what it held before.
        for waiter in [process(2), process(1)] {
            let locks = [noted("a", ("app", &holders), ("app", &waiter.note()))];
            assert_eq!(chains(&locks[0], &locks, &nobody), []);
        }
    }

    #[test]
    fn commands_under_locks_that_wait_for_each_other_are_a_circle_by_their_processes() {
        let first = Step { within: Some(owner("1")), ..step("1x", "b", "2") };
        let second = Step { within: Some(owner("2")), ..step("2x", "a", "1") };
        let circle = Chain::Circle(vec![first, second]);
        let within = |n| format!("within {}", process(n));
        let (first, second) = (process(1).note(), process(2).note());
        let is_circle = |waiters: [&str; 2], around: &dyn Fn(Name) -> Vec<Name>| {
            let locks = [
                noted("a", ("1", &first), ("2x", waiters[1])),
                noted("b", ("2", &second), ("1x", waiters[0])),
            ];
            chains(&locks[0], &locks, around) == std::slice::from_ref(&circle)
        };
        // By their own words.
        assert!(is_circle([&within(1), &within(2)], &nobody));
        // Two scripts, each with two locks.
        assert!(is_circle([&first, &second], &nobody));
        // By what can be seen here.
        let (below, beside) = (process(3).note(), process(4).note());
        let seen = |name: Name| match name {
            name if name == process(3) => vec![process(9), process(1)],
            name if name == process(4) => vec![process(2), process(9)],
            _ => Vec::new(),
        };
        assert!(is_circle([&below, &beside], &seen));
        assert!(!is_circle([&below, &beside], &nobody));
    }

    #[test]
    fn a_circle_is_found_whatever_leads_to_it() {
        // a is held by 1, which waits for b, held by 2, which waits for c, held by 3 and 4; 4 waits
        // for b.
        let locks = [
            lock("a", &["1"], &["5"]),
            lock("b", &["2"], &["1", "4"]),
            lock("c", &["3", "4"], &["2"]),
        ];
        let circle = Chain::Circle(vec![step("2", "c", "4"), step("4", "b", "2")]);
        assert_eq!(chains(&locks[0], &locks, &nobody), std::slice::from_ref(&circle));
        assert_eq!(chains(&locks[1], &locks, &nobody), [circle]);
    }

    #[test]
    fn without_a_circle_the_longest_chain_is_shown() {
        let locks = [
            lock("a", &["1"], &["9"]),
            lock("b", &["2"], &["1"]),
            lock("c", &["3"], &["2"]),
            lock("d", &["4"], &["1"]),
        ];
        let open = Chain::Open(vec![step("1", "b", "2"), step("2", "c", "3")]);
        assert_eq!(chains(&locks[0], &locks, &nobody), [open]);
        assert_eq!(chains(&locks[2], &locks, &nobody), []);
    }

    #[test]
    fn tasks_of_one_process_that_take_turns_are_no_circle() {
        let locks = [lock("a", &["1"], &["1"])];
        assert_eq!(chains(&locks[0], &locks, &nobody), []);
    }

    #[test]
    fn many_locks_are_walked_once_each() {
        // Each holds one and waits for all that come after: as many ways as there are subsets.
        let names: Vec<String> = (0..300).map(|n| format!("{n:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let locks: Vec<LockInfo> =
            (0..300).map(|n| lock(names[n], &names[n..=n], &names[..n])).collect();
        match &chains(&locks[0], &locks, &nobody)[..] {
            [Chain::Open(steps)] => assert_eq!(steps.len(), STEPS_MAX),
            other => panic!("{other:?}"),
        }
    }
}
