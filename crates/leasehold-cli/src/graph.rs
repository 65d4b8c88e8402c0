//! Who waits for whom: the graph whose edges lead from a waiter to the holders of what it waits for.
//!
//! Owners are told apart by their names. Tasks of one process share a name, and so do processes to
//! which somebody gave the same one, so a circle here is one that may be.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::{Key, LockInfo, OwnerName};

/// A longer chain is cut.
const STEPS_MAX: usize = 10;

/// A waiter, what it waits for, and somebody who holds that.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Step {
    pub(crate) waiter: OwnerName,
    pub(crate) waits_for: Key,
    pub(crate) held_by: OwnerName,
}

/// Waiters of whom each waits for the next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Chain {
    /// The last waits for somebody who waits for nothing.
    Open(Vec<Step>),
    /// The last waits for the longest.
    Circle(Vec<Step>),
}

impl Chain {
    /// One sentence for each step.
    pub(crate) fn steps(&self) -> impl Iterator<Item = String> {
        let (Self::Open(steps) | Self::Circle(steps)) = self;
        steps.iter().map(|Step { waiter, waits_for, held_by }| {
            format!("{waiter} waits for \"{waits_for}\", which {held_by} holds")
        })
    }
}

/// Where one step leads.
type Edges<'a> = BTreeMap<&'a str, Vec<(&'a Key, &'a OwnerName)>>;

/// What the holders of a lock wait for themselves: a circle for those in one, else how far it goes.
/// Holders that wait for nothing are left out. Each edge is walked once.
pub(crate) fn chains(of: &LockInfo, locks: &[LockInfo]) -> Vec<Chain> {
    let mut edges = Edges::new();
    for info in locks {
        for waiter in &info.waiters {
            // Tasks of one process that take turns wait for nobody else.
            let others = info.holders.iter().filter(|holder| holder.owner != waiter.owner);
            let others = others.map(|holder| (&info.key, &holder.owner));
            edges.entry(waiter.owner.as_str()).or_default().extend(others);
        }
    }
    let mut seen = BTreeSet::new();
    let mut chains = Vec::new();
    for holder in &of.holders {
        if let Some(chain) = walk(&holder.owner, &edges, &mut seen) {
            chains.push(chain);
        }
    }
    chains
}

/// Follows the edges from an owner, depth first, to a circle or, without one, as far as they lead.
fn walk<'a>(from: &'a OwnerName, edges: &Edges<'a>, seen: &mut BTreeSet<&'a str>) -> Option<Chain> {
    let mut longest: Vec<Step> = Vec::new();
    let mut path: Vec<Step> = Vec::new();
    // The edges of each owner on the path that were not walked yet.
    let mut left = vec![open(from, edges, seen)?];
    let mut owners = vec![from];
    while let Some(edges_left) = left.last_mut() {
        let Some((key, holder)) = edges_left.next() else {
            left.pop();
            owners.pop();
            path.pop();
            continue;
        };
        let waiter = owners.last().copied().unwrap_or(from);
        path.push(Step { waiter: waiter.clone(), waits_for: key.clone(), held_by: holder.clone() });
        if let Some(start) = owners.iter().position(|owner| *owner == holder) {
            return Some(Chain::Circle(path.split_off(start)));
        }
        if path.len() > longest.len() && path.len() <= STEPS_MAX {
            longest.clone_from(&path);
        }
        if let Some(next) = open(holder, edges, seen) {
            left.push(next);
            owners.push(holder);
        } else {
            path.pop();
        }
    }
    (!longest.is_empty()).then_some(Chain::Open(longest))
}

/// The edges of an owner, if they were not walked before.
fn open<'a, 'e>(
    owner: &'a OwnerName,
    edges: &'e Edges<'a>,
    seen: &mut BTreeSet<&'a str>,
) -> Option<impl Iterator<Item = (&'a Key, &'a OwnerName)> + use<'a, 'e>> {
    let edges = edges.get(owner.as_str())?;
    seen.insert(owner.as_str()).then(|| edges.iter().copied())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::store::{Kind, Mode};
    use leasehold::{Fence, HolderInfo, WaiterInfo};

    use super::*;

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
        Step { waiter: owner(waiter), waits_for, held_by: owner(held_by) }
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
        assert_eq!(chains(&locks[0], &locks), std::slice::from_ref(&circle));
        assert_eq!(chains(&locks[1], &locks), [circle]);
    }

    #[test]
    fn without_a_circle_the_longest_way_is_told() {
        let locks = [
            lock("a", &["1"], &["9"]),
            lock("b", &["2"], &["1"]),
            lock("c", &["3"], &["2"]),
            lock("d", &["4"], &["1"]),
        ];
        let open = Chain::Open(vec![step("1", "b", "2"), step("2", "c", "3")]);
        assert_eq!(chains(&locks[0], &locks), [open]);
        assert_eq!(chains(&locks[2], &locks), []);
    }

    #[test]
    fn tasks_of_one_process_that_take_turns_are_no_circle() {
        let locks = [lock("a", &["1"], &["1"])];
        assert_eq!(chains(&locks[0], &locks), []);
    }

    #[test]
    fn many_locks_are_walked_once_each() {
        // Each holds one and waits for all that come after: as many ways as there are subsets.
        let names: Vec<String> = (0..300).map(|n| format!("{n:03}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let locks: Vec<LockInfo> =
            (0..300).map(|n| lock(names[n], &names[n..=n], &names[..n])).collect();
        match &chains(&locks[0], &locks)[..] {
            [Chain::Open(steps)] => assert_eq!(steps.len(), STEPS_MAX),
            other => panic!("{other:?}"),
        }
    }
}
