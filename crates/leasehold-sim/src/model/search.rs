//! A depth-first search that keeps eight bytes of each state.

#![expect(clippy::panic, reason = "it ends where it can't go on")]

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash as _, Hasher};

use super::world::{Action, Bound, World};

/// More states than any bound here has: a bound that grows beyond it fails, and does not go on for hours.
const STATES_MAX: usize = 40_000_000;

/// What a search saw.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) states: usize,
    /// States after a hand-over that its taker believed.
    pub(crate) handed_over: usize,
    /// States in which both clients have held the lock.
    pub(crate) held_in_turn: usize,
    /// What was violated, and the actions that led there.
    pub(crate) violation: Option<(&'static str, Vec<Action>)>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, handed_over, held_in_turn, violation } = self;
        write!(
            f,
            "{states} states, {handed_over} after a hand-over, {held_in_turn} after both held"
        )?;
        match violation {
            None => f.write_str(", all visited"),
            Some((rule, actions)) => write!(f, "; {rule} violated by {actions:?}"),
        }
    }
}

/// A hash is its own hash.
#[derive(Default)]
struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        panic!("only fingerprints are kept");
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Visits each state within the bound, or stops at the first that violates a rule.
pub(crate) fn search(bound: Bound) -> Found {
    let mut seen: HashSet<u64, BuildHasherDefault<Itself>> = HashSet::default();
    let mut found = Found::default();
    let start = World::new();
    seen.insert(fingerprint(&start));
    let actions = start.actions(&bound);
    let mut stack = vec![(start, actions)];
    let mut path = Vec::new();
    while let Some((world, actions)) = stack.last_mut() {
        let Some(action) = actions.pop() else {
            stack.pop();
            path.pop();
            continue;
        };
        let next = world.after(&bound, action);
        if !seen.insert(fingerprint(&next)) {
            continue;
        }
        assert!(seen.len() < STATES_MAX, "{bound:?} has more than {STATES_MAX} states");
        path.push(action);
        found.handed_over += usize::from(next.was_handed_over());
        found.held_in_turn += usize::from(next.both_have_held());
        if let Some(rule) = next.violated() {
            found.violation = Some((rule, path));
            break;
        }
        let actions = next.actions(&bound);
        stack.push((next, actions));
    }
    found.states = seen.len();
    found
}
