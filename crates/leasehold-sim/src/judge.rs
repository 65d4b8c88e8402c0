//! Judges every hold on its holder's own clock, and names what must not happen.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use leasehold::HeldLease;
use leasehold_core::OwnerName;

use crate::net::Net;
use crate::profile::Us;

/// How long a lock may stay free, or held by nobody, while others wait and nothing is wrong.
const IDLE_MAX: Us = 3_000_000;
/// By how much one waiter may have come before another and still be served after it.
const ORDER_SLACK: Us = 1_500_000;
/// Those who share a lock are let in at once, and are told of it so long after each other.
const TOGETHER: Us = 200_000;
/// For how many looks at a process that runs a loss may go untold; there is one in each step of a few milliseconds.
const TOLD_WITHIN: u32 = 300;

/// How long a job's period may be closed by a start that came to nothing.
const CLOSED_MAX: Us = 1_000_000;

/// How a lock is held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    Alone,
    Shared,
    Permits { count: u32, limit: u32 },
}

/// Who does something: a process and its number in the order of those in its place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Who {
    pub(crate) host: usize,
    pub(crate) life: u64,
    pub(crate) task: usize,
}

/// A hold that somebody believes in.
pub(crate) struct Belief {
    number: u64,
    who: Who,
    key: &'static str,
    mode: Mode,
    /// Those of one group are one holder.
    group: u64,
    fence: u64,
    lease: HeldLease,
    /// How often it was seen lost.
    lost_looks: u32,
    /// Whether its holder waits to be told of the loss.
    listens: bool,
    /// Whether its holder was told.
    told: bool,
    /// Its holder is done with it.
    over: bool,
    /// And it is held no more.
    gone: bool,
}

/// A caller that waits for a lock.
struct Wait {
    who: Who,
    key: &'static str,
    since: Us,
    limited: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Fences {
    /// The last that was had alone.
    alone: u64,
    /// The highest of all.
    highest: u64,
}

/// What happened in a run.
#[derive(Default)]
pub(crate) struct Books {
    beliefs: Vec<Belief>,
    waits: BTreeMap<u64, Wait>,
    /// Waits that another one passed, and until when they may still end.
    passed: Vec<(u64, Us, &'static str, String)>,
    fences: BTreeMap<&'static str, Fences>,
    forced: BTreeMap<String, Us>,
    /// When the period of each job began at the earliest, and how long it is.
    periods: BTreeMap<&'static str, (Us, Us)>,
    next: u64,
    /// Since when each lock had no holder.
    idle_since: BTreeMap<&'static str, Us>,
    pub(crate) fault: Option<String>,
    pub(crate) grants: u64,
    pub(crate) calm_grants: u64,
    pub(crate) lost: u64,
    /// How often a thousand futures were dropped and what came after them was judged.
    pub(crate) floods: u64,
    pub(crate) known: BTreeMap<&'static str, u64>,
    pub(crate) closed: usize,
    /// Whether all is well now, so that grants are counted apart.
    pub(crate) calm: bool,
    /// The end of the last fault, and the last death.
    pub(crate) last_fault: Us,
    pub(crate) last_death: Us,
    pub(crate) keeps_history: bool,
    pub(crate) history: Vec<String>,
    pub(crate) hash: u64,
}

impl Books {
    /// Writes down what happened.
    pub(crate) fn note(&mut self, at: Us, line: &str) {
        let mut whole = String::new();
        _ = write!(whole, "{:>11.6} s  {line}", to_seconds(at));
        for byte in whole.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.keeps_history {
            self.history.push(whole);
        }
    }

    /// Something must not be.
    pub(crate) fn accuse(&mut self, at: Us, what: &str, key: &str, why: &str) {
        if self.fault.is_none() {
            self.note(at, &format!("{what}: {key}: {why}"));
            self.fault = Some(format!("{what}: {key}: {why}, at {:.3} s", to_seconds(at)));
        }
    }

    fn is_forced(&self, key: &str, at: Us) -> bool {
        self.forced.get(key).is_some_and(|until| at < *until)
    }

    /// A lock was released by force: its holder may go on until its deadline, within `longest`.
    pub(crate) fn forced(&mut self, key: &str, at: Us, longest: Us) {
        self.note(at, &format!("{key} is released by force"));
        self.forced.insert(key.to_owned(), at + longest);
    }

    /// A caller begins to wait.
    pub(crate) fn waits(&mut self, who: Who, key: &'static str, limited: bool, at: Us) -> u64 {
        self.next += 1;
        let Who { host, life, task } = who;
        self.note(at, &format!("host {host}.{life} task {task} asks for {key}"));
        self.waits.insert(self.next, Wait { who, key, since: at, limited });
        self.next
    }

    /// It waits no more. `in_order`: whether it was promised its turn, and got it.
    pub(crate) fn waited(&mut self, number: u64, in_order: bool, at: Us) {
        let Some(wait) = self.waits.remove(&number) else { return };
        let Who { host, life, task } = wait.who;
        self.note(at, &format!("host {host}.{life} task {task} has its answer for {}", wait.key));
        if !in_order || self.last_fault + 2 * ORDER_SLACK > wait.since {
            return;
        }
        let since = self.last_fault + ORDER_SLACK;
        let before = self.waits.iter().find(|(_, other)| {
            other.key == wait.key && other.since > since && other.since + ORDER_SLACK < wait.since
        });
        if let Some((before_number, before)) = before {
            let why = format!(
                "host {} was served before host {}, which had waited for {:.3} s longer",
                wait.who.host,
                before.who.host,
                to_seconds(wait.since - before.since)
            );
            self.passed.push((*before_number, at + TOGETHER, wait.key, why));
        }
    }

    /// A lock was had.
    #[expect(clippy::too_many_arguments, reason = "all that is known of a grant")]
    pub(crate) fn granted(
        &mut self,
        who: Who,
        key: &'static str,
        mode: Mode,
        group: u64,
        lease: &HeldLease,
        continues: bool,
        at: Us,
    ) -> u64 {
        self.next += 1;
        let number = self.next;
        let fence = lease.fence_even_if_lost().value();
        let Who { host, life, task } = who;
        self.note(
            at,
            &format!("host {host}.{life} task {task} holds {key} ({mode:?}), fence {fence}"),
        );
        if self.calm {
            self.calm_grants += 1;
        } else {
            self.grants += 1;
        }
        if !lease.is_held() {
            self.accuse(at, "BORN LOST", key, &format!("host {host}, fence {fence}"));
        }
        let fences = self.fences.entry(key).or_default();
        let last = match mode {
            Mode::Alone => fences.highest,
            Mode::Shared => fences.alone,
            Mode::Permits { .. } => 0,
        };
        let before = *fences;
        fences.highest = fences.highest.max(fence);
        if mode == Mode::Alone {
            fences.alone = fence;
        }
        let shared_group =
            self.beliefs.iter().any(|b| b.key == key && b.group == group && b.fence == fence);
        let fine =
            fence > last || fence == last && (continues || shared_group || mode == Mode::Shared);
        // A hold in another's place may be over by the time at which its caller has it.
        if !fine && lease.is_held() && !self.is_forced(key, at) {
            let why = format!("host {host} got {fence} after {last} ({before:?})");
            self.accuse(at, "FENCES", key, &why);
        }
        let lease = lease.clone();
        self.beliefs.push(Belief {
            number,
            who,
            key,
            mode,
            group,
            fence,
            lease,
            lost_looks: 0,
            listens: false,
            told: false,
            over: false,
            gone: false,
        });
        number
    }

    pub(crate) fn listens(&mut self, number: u64, listens: bool) {
        if let Some(belief) = self.beliefs.iter_mut().find(|b| b.number == number) {
            belief.listens = listens;
        }
    }

    /// A holder was told that its hold is lost.
    pub(crate) fn told(&mut self, number: u64, at: Us) {
        self.lost += 1;
        let Some(belief) = self.beliefs.iter_mut().find(|b| b.number == number) else { return };
        belief.told = true;
        let (key, fence, host) = (belief.key, belief.fence, belief.who.host);
        let held = belief.lease.is_held();
        self.note(at, &format!("host {host} is told that it lost {key}, fence {fence}"));
        if held {
            self.accuse(at, "RESURRECTED", key, &format!("fence {fence} is held though lost"));
        }
    }

    /// A holder is done with its hold, or goes on with another in its place.
    pub(crate) fn ends(&mut self, number: u64, how: &str, at: Us) {
        let Some(index) = self.beliefs.iter().position(|b| b.number == number) else { return };
        let (key, fence, host) =
            (self.beliefs[index].key, self.beliefs[index].fence, self.beliefs[index].who.host);
        self.beliefs[index].over = true;
        self.note(at, &format!("host {host} ends {key}, fence {fence}: {how}"));
    }

    /// A job was started that may be started once a period; it was asked for at `asked`.
    pub(crate) fn started(
        &mut self,
        key: &'static str,
        asked: Us,
        period: Us,
        (at, net): (Us, &Net),
    ) {
        if let Some((since, period)) = self.periods.get(key).copied()
            && at < since + period - period / 50
        {
            // With another one that missed it, too few nodes may remember the period.
            if net.has_forgotten_since(since) {
                *self.known.entry("period that a node forgot").or_default() += 1;
                self.periods.insert(key, (asked, period));
                return;
            }
            let why = format!(
                "twice within {:.3} s of {:.3} s",
                to_seconds(at - since),
                to_seconds(period)
            );
            self.accuse(at, "PERIOD", key, &why);
        }
        self.periods.insert(key, (asked, period));
    }

    /// The store has had a job's period closed `since` then, long after all is well.
    pub(crate) fn closed_since(&mut self, key: &'static str, since: Us, at: Us) {
        let asks = self.waits.values().any(|wait| wait.key == key);
        let started = self.periods.get(key).is_some_and(|(asked, _)| asked + CLOSED_MAX > since);
        if asks || started || at < since + CLOSED_MAX {
            return;
        }
        let why = format!("closed for {:.3} s, and nobody started it", to_seconds(at - since));
        self.accuse(at, "LEFT BEHIND", key, &why);
    }

    /// The job's period was opened again.
    pub(crate) fn reopened(&mut self, key: &'static str) {
        self.periods.remove(key);
    }

    /// A process has ended without a word.
    pub(crate) fn died(&mut self, host: usize, at: Us) {
        self.last_death = at;
        self.beliefs.retain(|belief| belief.who.host != host);
        self.waits.retain(|_, wait| wait.who.host != host);
    }

    /// Whether anybody waits for a lock who can go on.
    fn waits_since(&self, key: &str) -> Option<Us> {
        self.waits.values().filter(|wait| wait.key == key).map(|wait| wait.since).min()
    }

    /// Whether a task of the process that calls itself so waits for a lock.
    pub(crate) fn is_waiting(&self, key: &str, owner: &OwnerName) -> bool {
        let name = |wait: &Wait| format!("host {}", wait.who.host);
        self.waits.values().any(|wait| wait.key == key && name(wait) == owner.as_str())
    }

    /// Whether a hold with this fence is in the books.
    fn has_fence(&self, fence: u64) -> bool {
        self.beliefs.iter().any(|belief| belief.fence == fence)
    }

    pub(crate) fn any_fence_of(&self, key: &str) -> Option<u64> {
        self.beliefs.iter().find(|belief| belief.key == key).map(|belief| belief.fence)
    }

    /// Looks at all holds now. `runs` says whether a process runs, and lets its clock be read.
    pub(crate) fn look(&mut self, at: Us, mut runs: impl FnMut(usize, &mut dyn FnMut()) -> bool) {
        let mut held: BTreeMap<&'static str, Vec<(u64, Mode, u64, usize)>> = BTreeMap::new();
        let mut faults: Vec<(&'static str, &'static str, String)> = Vec::new();
        let waits = &self.waits;
        self.passed.retain(|(number, ..)| waits.contains_key(number));
        let passed = self.passed.iter().find(|(_, until, ..)| *until < at);
        faults.extend(passed.map(|(_, _, key, why)| ("ORDER", *key, why.clone())));
        for belief in &mut self.beliefs {
            let mut is_held = false;
            let lease = &belief.lease;
            if !runs(belief.who.host, &mut || is_held = lease.is_held()) {
                continue;
            }
            if is_held {
                if belief.lost_looks > 0 {
                    let why =
                        format!("host {} holds fence {} again", belief.who.host, belief.fence);
                    faults.push(("RESURRECTED", belief.key, why));
                }
                held.entry(belief.key).or_default().push((
                    belief.group,
                    belief.mode,
                    belief.fence,
                    belief.who.host,
                ));
            } else if belief.over {
                belief.gone = true;
            } else {
                belief.lost_looks += 1;
                if belief.listens && !belief.told && belief.lost_looks > TOLD_WITHIN {
                    let why =
                        format!("host {} was not told, fence {}", belief.who.host, belief.fence);
                    faults.push(("NOT TOLD", belief.key, why));
                }
            }
        }
        self.beliefs.retain(|belief| !belief.gone);
        for (key, holds) in &held {
            if let Some(why) = together(holds)
                && !self.is_forced(key, at)
            {
                faults.push(("EXCLUSION", key, why));
            }
        }
        for (what, key, why) in faults {
            self.accuse(at, what, key, &why);
        }
    }

    /// Looks for a waiter whose turn does not come, though all has been well `since`.
    pub(crate) fn look_for_progress(&mut self, at: Us, since: Us, longest: Us) {
        let late =
            self.waits.values().find(|wait| !wait.limited && wait.since.max(since) + longest < at);
        if let Some(wait) = late {
            let (host, key) = (wait.who.host, wait.key);
            let why = format!("host {host} has waited for {:.3} s", to_seconds(at - wait.since));
            self.accuse(at, "PROGRESS", key, &why);
        }
    }

    /// Looks for a lock that stays free beside a waiter, also where deaths are all that went wrong: a dead
    /// waiter is passed over once half of its window is gone.
    pub(crate) fn look_past_the_dead(&mut self, at: Us, key: &'static str, window: Us) {
        if self.beliefs.iter().any(|belief| belief.key == key) {
            self.idle_since.remove(key);
            return;
        }
        let since = *self.idle_since.entry(key).or_insert(at);
        let died = self.last_death;
        let waited = self.waits_since(key).is_some_and(|then| then + IDLE_MAX < at);
        let quiet = since > self.last_fault + window && since > died + window / 2 + 1_000_000;
        if waited && quiet && at > since + IDLE_MAX {
            let why = format!(
                "free for {:.3} s though a waiter is there, long after the last death",
                to_seconds(at - since)
            );
            self.accuse(at, "LATENCY", key, &why);
        }
    }

    /// A lease that the store knows and nobody has, long after all is well.
    pub(crate) fn left_behind(&mut self, key: &'static str, fence: Option<u64>, at: Us) {
        if fence.is_some_and(|fence| self.has_fence(fence)) {
            return;
        }
        let why = fence.map_or_else(
            || "a waiter that is nobody".to_owned(),
            |fence| format!("a lease that nobody has, fence {fence}"),
        );
        self.accuse(at, "LEFT BEHIND", key, &why);
    }
}

/// Why these can't be held at once.
fn together(holds: &[(u64, Mode, u64, usize)]) -> Option<String> {
    let one_group = holds.iter().all(|(group, ..)| Some(*group) == holds.first().map(|h| h.0));
    if holds.len() < 2 || one_group && holds.iter().all(|(_, mode, ..)| *mode == Mode::Alone) {
        return None;
    }
    let alone = holds.iter().any(|(_, mode, ..)| *mode == Mode::Alone);
    let mut taken = 0;
    let mut most = u32::MAX;
    for (_, mode, ..) in holds {
        if let Mode::Permits { count, limit } = mode {
            taken += count;
            most = most.min(*limit);
        }
    }
    let wrong = alone || taken > most;
    wrong.then(|| format!("(group, mode, fence, host) {holds:?}"))
}

pub(crate) fn to_seconds(us: Us) -> f64 {
    std::time::Duration::from_micros(us).as_secs_f64()
}
