//! Checks a history: exclusion and fences.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use leasehold_core::{Fence, Key, Mode, Moment};

use super::{Event, Record};

/// A hold as its holder believed in it.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Belief {
    attempt: u64,
    mode: Mode,
    from: Moment,
    until: Moment,
}

/// Holds that exclude each other and were believed in at the same time.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Overlap {
    /// The lock.
    pub key: Key,
    /// The acquisitions, the latest last.
    pub attempts: Vec<u64>,
    /// When the overlap began.
    pub from: Moment,
    /// The exact length of the overlap.
    pub length: Duration,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, attempts, from, length } = self;
        let from = from.since_origin();
        write!(f, "\"{key}\": attempts {attempts:?} held together for {length:?} from {from:?}")
    }
}

/// Finds all believed holds that exclude each other at the same instant (H1). A hold that ends in
/// the instant in which another begins does not overlap it.
///
/// For holds of a lock, each pair that overlaps is one finding. For permits, each acquisition that
/// exceeds the limit is one, with all holders at that instant. Its length is the time for which the
/// limit stays exceeded.
#[must_use]
pub fn overlaps(history: &[Record]) -> Vec<Overlap> {
    let mut found = Vec::new();
    for (key, mut holds) in beliefs(history) {
        holds.sort_by_key(|hold| (hold.from, hold.until));
        let mut live: Vec<&Belief> = Vec::new();
        for hold in &holds {
            live.retain(|other| other.until > hold.from);
            if hold.until > hold.from {
                if let Mode::Permits { limit, .. } = hold.mode {
                    found.extend(excess(&key, &live, hold, limit.get()));
                } else {
                    let excluded = live.iter().filter(|other| excludes(other.mode, hold.mode));
                    found.extend(excluded.map(|other| Overlap {
                        key: key.clone(),
                        attempts: vec![other.attempt, hold.attempt],
                        from: hold.from,
                        length: other.until.min(hold.until).saturating_since(hold.from),
                    }));
                }
            }
            live.push(hold);
        }
    }
    found
}

fn excludes(a: Mode, b: Mode) -> bool {
    !(a == Mode::Shared && b == Mode::Shared)
}

fn excess(key: &Key, live: &[&Belief], hold: &Belief, limit: u32) -> Option<Overlap> {
    let mut holders: Vec<&Belief> = live.iter().copied().chain([hold]).collect();
    let attempts = holders.iter().map(|holder| holder.attempt).collect();
    let mut taken: u64 = holders.iter().map(|holder| permits(holder.mode)).sum();
    if taken <= u64::from(limit) {
        return None;
    }
    holders.sort_by_key(|holder| holder.until);
    let mut until = hold.from;
    for holder in holders {
        if taken <= u64::from(limit) {
            break;
        }
        taken -= permits(holder.mode);
        until = holder.until;
    }
    let length = until.saturating_since(hold.from);
    Some(Overlap { key: key.clone(), attempts, from: hold.from, length })
}

fn permits(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { count, .. } => u64::from(count.get()),
        // Held in another mode at the same time: more than any limit.
        _ => u64::from(u32::MAX) + 1,
    }
}

/// All holds that a holder believed in, by lock.
fn beliefs(history: &[Record]) -> BTreeMap<Key, Vec<Belief>> {
    let mut by_attempt: BTreeMap<u64, (Key, Belief)> = BTreeMap::new();
    let end = Moment::from_origin(Duration::MAX);
    for record in sorted(history) {
        match record.event {
            Event::Granted { .. } => {
                let (attempt, mode) = (record.attempt, record.mode);
                let belief = Belief { attempt, mode, from: record.at, until: end };
                by_attempt.insert(attempt, (record.key.clone(), belief));
            }
            Event::Lost | Event::ReleaseAsked | Event::Died => {
                if let Some((_, belief)) = by_attempt.get_mut(&record.attempt) {
                    belief.until = belief.until.min(record.at);
                }
            }
            Event::Asked | Event::NotGranted | Event::Unknown | Event::Released => {}
        }
    }
    let mut by_key: BTreeMap<Key, Vec<Belief>> = BTreeMap::new();
    for (key, belief) in by_attempt.into_values() {
        by_key.entry(key).or_default().push(belief);
    }
    by_key
}

fn sorted(history: &[Record]) -> Vec<&Record> {
    let mut records: Vec<&Record> = history.iter().collect();
    records.sort_by_key(|record| record.at);
    records
}

/// A fault in the fences of two acquisitions of one lock.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum FenceFault {
    /// Both have the same fence.
    Repeated {
        /// The lock.
        key: Key,
        /// The fence.
        fence: Fence,
        /// The acquisitions.
        attempts: [u64; 2],
    },
    /// The first was granted before the second was requested, and yet has the larger fence.
    Fell {
        /// The lock.
        key: Key,
        /// The acquisitions, in the order of time.
        attempts: [u64; 2],
        /// Their fences.
        fences: [Fence; 2],
    },
}

impl fmt::Display for FenceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Repeated { key, fence, attempts: [a, b] } => {
                write!(f, "\"{key}\": attempts {a} and {b} both have fence {fence}")
            }
            Self::Fell { key, attempts: [a, b], fences: [high, low] } => {
                write!(f, "\"{key}\": attempt {b} has fence {low}, after {a} had {high}")
            }
        }
    }
}

struct Fenced {
    attempt: u64,
    asked: Moment,
    granted: Moment,
    fence: Fence,
}

/// Finds fences that repeat, or that contradict real time (H2): if one acquisition was granted
/// before another was requested, it must have the smaller fence. An acquisition that falls behind
/// gives one finding, against the largest fence before it.
#[must_use]
pub fn fence_faults(history: &[Record]) -> Vec<FenceFault> {
    let mut found = Vec::new();
    for (key, mut grants) in grants(history) {
        grants.sort_by_key(|grant| grant.fence);
        for two in grants.windows(2) {
            if two[0].fence == two[1].fence {
                let attempts = [two[0].attempt, two[1].attempt];
                let fence = two[0].fence;
                found.push(FenceFault::Repeated { key: key.clone(), fence, attempts });
            }
        }
        let mut by_asked: Vec<&Fenced> = grants.iter().collect();
        by_asked.sort_by_key(|grant| grant.asked);
        let mut by_granted: Vec<&Fenced> = grants.iter().collect();
        by_granted.sort_by_key(|grant| grant.granted);
        let mut before = by_granted.into_iter().peekable();
        let mut highest: Option<&Fenced> = None;
        for grant in by_asked {
            while let Some(earlier) = before.next_if(|earlier| earlier.granted < grant.asked) {
                if highest.is_none_or(|highest| earlier.fence > highest.fence) {
                    highest = Some(earlier);
                }
            }
            if let Some(highest) = highest.filter(|highest| highest.fence > grant.fence) {
                let attempts = [highest.attempt, grant.attempt];
                let fences = [highest.fence, grant.fence];
                found.push(FenceFault::Fell { key: key.clone(), attempts, fences });
            }
        }
    }
    found
}

fn grants(history: &[Record]) -> BTreeMap<Key, Vec<Fenced>> {
    let mut asked: BTreeMap<u64, Moment> = BTreeMap::new();
    let mut by_key: BTreeMap<Key, Vec<Fenced>> = BTreeMap::new();
    for record in sorted(history) {
        let Record { at, attempt, .. } = *record;
        match record.event {
            Event::Asked => {
                asked.entry(attempt).or_insert(at);
            }
            Event::Granted { fence } => {
                let asked = *asked.get(&attempt).expect("a granted attempt was requested");
                let grant = Fenced { attempt, asked, granted: at, fence };
                by_key.entry(record.key.clone()).or_default().push(grant);
            }
            _ => {}
        }
    }
    by_key
}
