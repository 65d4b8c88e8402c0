//! Judges every hold on its holder's own clock, and names what must not happen.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use leasehold::HeldLease;
use leasehold_core::OwnerName;

use crate::net::Net;
use crate::profile::Us;

/// How long a lock may stay free, or with a holder that is gone, while others wait without faults.
const IDLE_MAX: Us = 3_000_000;
/// How much earlier than another waiter one may arrive and still be served after it.
const ORDER_SLACK: Us = 1_500_000;
/// Sharers are let in together, but learn of it with up to this delay.
const TOGETHER: Us = 200_000;
/// In how many looks at a running process its lost lease may go unnoticed. One look comes with each
/// step of a few milliseconds.
const TOLD_WITHIN: u32 = 300;

/// How long a start that failed may keep a job's period closed.
const CLOSED_MAX: Us = 1_000_000;

/// How a lock is held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    Alone,
    Shared,
    Permits { count: u32, limit: u32 },
}

/// The actor: a process, and its number among those that replaced each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Who {
    pub(crate) host: usize,
    pub(crate) life: u64,
    pub(crate) task: usize,
}

/// A hold as its holder believes in it.
pub(crate) struct Belief {
    number: u64,
    who: Who,
    key: &'static str,
    mode: Mode,
    /// Holds of one group belong to one holder.
    group: u64,
    fence: u64,
    lease: HeldLease,
    /// In how many looks it was lost.
    lost_looks: u32,
    /// Whether its holder listens for the loss.
    listens: bool,
    /// Whether its holder was notified.
    told: bool,
    /// The holder has ended it.
    over: bool,
    /// It is no longer held.
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
    /// The last fence of an exclusive hold.
    alone: u64,
    /// The highest fence of any hold.
    highest: u64,
}

/// The record of a run.
#[derive(Default)]
pub(crate) struct Books {
    beliefs: Vec<Belief>,
    waits: BTreeMap<u64, Wait>,
    /// Waits that another wait has overtaken, and by when they have to end.
    passed: Vec<(u64, Us, &'static str, String)>,
    fences: BTreeMap<&'static str, Fences>,
    forced: BTreeMap<String, Us>,
    /// The earliest start of each job's period, and its length.
    periods: BTreeMap<&'static str, (Us, Us)>,
    next: u64,
    /// Since when each lock has had no holder.
    idle_since: BTreeMap<&'static str, Us>,
    pub(crate) fault: Option<String>,
    pub(crate) grants: u64,
    pub(crate) calm_grants: u64,
    /// How many had asked by then, and since.
    calm_asks: u64,
    pub(crate) lost: u64,
    /// How many floods of dropped futures were judged.
    pub(crate) floods: u64,
    pub(crate) known: BTreeMap<&'static str, u64>,
    pub(crate) closed: usize,
    /// Whether all faults are over. Grants from then on are counted separately.
    pub(crate) calm: bool,
    /// The end of the last fault, and the last death.
    pub(crate) last_fault: Us,
    pub(crate) last_death: Us,
    pub(crate) keeps_history: bool,
    pub(crate) history: Vec<String>,
    pub(crate) hash: u64,
}

impl Books {
    /// Records an event.
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

    /// Records a violation; the first one counts.
    pub(crate) fn accuse(&mut self, at: Us, what: &str, key: &str, why: &str) {
        if self.fault.is_none() {
            self.note(at, &format!("{what}: {key}: {why}"));
            self.fault = Some(format!("{what}: {key}: {why}, at {:.3} s", to_seconds(at)));
        }
    }

    fn is_forced(&self, key: &str, at: Us) -> bool {
        self.forced.get(key).is_some_and(|until| at < *until)
    }

    /// A lock was force-released. Its holder may continue until its deadline, within `longest`.
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
        self.calm_asks += u64::from(self.calm);
        self.next
    }

    /// The caller stops waiting. `in_order`: whether it was promised its turn, and got it.
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

    /// A lock was granted.
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
        // A hold that replaces another may have ended by the time its caller gets it.
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

    /// A holder was notified of its loss.
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

    /// A holder ends its hold, or replaces it by another.
    pub(crate) fn ends(&mut self, number: u64, how: &str, at: Us) {
        let Some(index) = self.beliefs.iter().position(|b| b.number == number) else { return };
        let (key, fence, host) =
            (self.beliefs[index].key, self.beliefs[index].fence, self.beliefs[index].who.host);
        self.beliefs[index].over = true;
        self.note(at, &format!("host {host} ends {key}, fence {fence}: {how}"));
    }

    /// A job that may start once a period was started; `asked` is when it requested that.
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
            // If another node missed the start, too few nodes may remember the period.
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

    /// The store has kept a job's period closed since `since`, long after all faults.
    pub(crate) fn closed_since(&mut self, key: &'static str, since: Us, at: Us) {
        let asks = self.waits.values().any(|wait| wait.key == key);
        let started = self.periods.get(key).is_some_and(|(asked, _)| asked + CLOSED_MAX > since);
        if asks || started || at < since + CLOSED_MAX {
            return;
        }
        let why = format!("closed for {:.3} s, and nobody started it", to_seconds(at - since));
        self.accuse(at, "LEFT BEHIND", key, &why);
    }

    /// The job's period was reopened.
    pub(crate) fn reopened(&mut self, key: &'static str) {
        self.periods.remove(key);
    }

    /// A process was killed.
    pub(crate) fn died(&mut self, host: usize, at: Us) {
        self.last_death = at;
        self.beliefs.retain(|belief| belief.who.host != host);
        self.waits.retain(|_, wait| wait.who.host != host);
    }

    /// The earliest wait for a lock.
    fn waits_since(&self, key: &str) -> Option<Us> {
        self.waits.values().filter(|wait| wait.key == key).map(|wait| wait.since).min()
    }

    /// Whether a task of the process with this name waits for a lock.
    pub(crate) fn is_waiting(&self, key: &str, owner: &OwnerName) -> bool {
        let name = |wait: &Wait| format!("host {}", wait.who.host);
        self.waits.values().any(|wait| wait.key == key && name(wait) == owner.as_str())
    }

    /// Whether the record has a hold with this fence.
    fn has_fence(&self, fence: u64) -> bool {
        self.beliefs.iter().any(|belief| belief.fence == fence)
    }

    pub(crate) fn any_fence_of(&self, key: &str) -> Option<u64> {
        self.beliefs.iter().find(|belief| belief.key == key).map(|belief| belief.fence)
    }

    /// Checks all holds now. `runs` calls its argument on a process's clock, if that process runs.
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

    /// Whether few were granted a lock since all faults are over, though more had asked. Some
    /// contenders seldom ask: those that stop in the midst of a request.
    pub(crate) fn standstill(&self) -> Option<String> {
        let (granted, asked) = (self.calm_grants, self.calm_asks);
        let stands = granted < 20 && 4 * granted < asked;
        stands.then(|| format!("{granted} grants for {asked} requests without a fault"))
    }

    /// All faults are over.
    pub(crate) fn begin_calm(&mut self) {
        self.calm = true;
        self.calm_asks = self.waits.len() as u64;
    }

    /// Looks for a waiter that is never served, though all faults have been over since `since`.
    pub(crate) fn look_for_progress(&mut self, at: Us, since: Us, longest: Us) {
        let late =
            self.waits.values().find(|wait| !wait.limited && wait.since.max(since) + longest < at);
        if let Some(wait) = late {
            let (host, key) = (wait.who.host, wait.key);
            let why = format!("host {host} has waited for {:.3} s", to_seconds(at - wait.since));
            self.accuse(at, "PROGRESS", key, &why);
        }
    }

    /// Looks for a lock that stays free in spite of a waiter. Deaths may have happened: a dead
    /// waiter is skipped after half of its heartbeat timeout.
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

    /// The store has a lease or waiter without an owner, long after all faults.
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

/// Why these holds exclude each other, if they do.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_found_and_contenders_that_seldom_ask_are_none() {
        let who = Who { host: 0, life: 0, task: 0 };
        let after = |waited: u64, asked: u64, calm_grants| {
            let mut books = Books::default();
            (0..waited).for_each(|at| _ = books.waits(who, "lock", false, at));
            books.begin_calm();
            (0..asked).for_each(|at| _ = books.waits(who, "lock", true, at));
            books.calm_grants = calm_grants;
            books.standstill().is_some()
        };
        assert!(after(2, 0, 0) && after(0, 1, 0) && after(0, 1_000, 19));
        assert!(!after(0, 0, 0) && !after(1, 16, 16) && !after(0, 1_000, 20));
    }
}
