//! A depth-first search that keeps eight bytes of each state.

#![expect(clippy::panic, reason = "it ends where it can't go on")]

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A world that can be searched.
pub(crate) trait Explored: Clone + Hash {
    type Bound: Copy + fmt::Debug;
    type Action: Copy + fmt::Debug;
    /// Names of states that must occur, or the bound expresses too little.
    const MARKS: [&'static str; 2];

    fn start(bound: &Self::Bound) -> Self;
    /// All possible next actions.
    fn actions(&self, bound: &Self::Bound) -> Vec<Self::Action>;
    fn after(&self, bound: &Self::Bound, action: Self::Action) -> Self;
    /// The rule that is violated.
    fn violated(&self) -> Option<&'static str>;
    fn marks(&self) -> [bool; 2];
}

/// More states than any of the bounds here has. A bound that grows beyond it fails instead of
/// running for hours.
const STATES_MAX: usize = 40_000_000;

/// The result of a search.
#[derive(Debug, Default)]
pub(crate) struct Found {
    states: usize,
    /// How many states have each mark.
    marks: [(&'static str, usize); 2],
    /// The rule that was violated, and the actions that led there.
    pub(crate) violation: Option<(&'static str, String)>,
}

impl Found {
    /// Whether each mark occurred.
    pub(crate) fn expresses_all(&self) -> bool {
        self.marks.iter().all(|(_, count)| *count > 0)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, marks: [(one, ones), (other, others)], violation } = self;
        write!(f, "{states} states, {ones} {one}, {others} {other}")?;
        match violation {
            None => f.write_str(", all visited"),
            Some((rule, actions)) => write!(f, "; {rule} violated by {actions}"),
        }
    }
}

/// A hasher for values that are hashes already.
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

fn fingerprint<W: Explored>(world: &W) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Visits each state within the bound, or stops at the first violation.
pub(crate) fn search<W: Explored>(bound: &W::Bound) -> Found {
    let mut seen: HashSet<u64, BuildHasherDefault<Itself>> = HashSet::default();
    let mut found = Found { marks: W::MARKS.map(|mark| (mark, 0)), ..Found::default() };
    let start = W::start(bound);
    seen.insert(fingerprint(&start));
    let actions = start.actions(bound);
    let mut stack = vec![(start, actions)];
    let mut path = Vec::new();
    while let Some((world, actions)) = stack.last_mut() {
        let Some(action) = actions.pop() else {
            stack.pop();
            path.pop();
            continue;
        };
        let next = world.after(bound, action);
        if !seen.insert(fingerprint(&next)) {
            continue;
        }
        assert!(seen.len() < STATES_MAX, "{bound:?} has more than {STATES_MAX} states");
        path.push(action);
        for ((_, count), is) in found.marks.iter_mut().zip(next.marks()) {
            *count += usize::from(is);
        }
        if let Some(rule) = next.violated() {
            found.violation = Some((rule, format!("{path:?}")));
            break;
        }
        let actions = next.actions(bound);
        stack.push((next, actions));
    }
    found.states = seen.len();
    found
}
