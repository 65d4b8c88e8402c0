//! Reads the records, and names violations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use crate::clock::NAP;
use crate::plan::{Act, COOLDOWN, EXCLUSIVE, LIMIT, Mode, Op, PERIOD, REPORT, Verb, Wait, ms};
use crate::worker::{Done, Fault, Step};

/// How long after a fault commands may still be refused, because they began during it.
const AFTERMATH: Duration = Duration::from_secs(5);
/// For this long after a stall, a section may see others that their watchdogs have not killed yet.
const JUST_NOW: Duration = ms(10);
/// Allows for rounding, where two times of one machine are compared.
const ROUNDING: Duration = ms(3);

/// One record of the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Event {
    pub(crate) time: Duration,
    pub(crate) what: String,
    pub(crate) id: u64,
    pub(crate) pid: i32,
    pub(crate) key: String,
    pub(crate) fence: u64,
    pub(crate) mode: Mode,
    pub(crate) detail: String,
}

impl Event {
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [time, what, id, pid, key, fence, mode, detail] = fields.as_slice() else {
            return None;
        };
        Some(Self {
            time: Duration::from_nanos(time.parse().ok()?),
            what: (*what).to_owned(),
            id: id.parse().ok()?,
            pid: pid.parse().ok()?,
            key: (*key).to_owned(),
            fence: fence.parse().ok()?,
            mode: Mode::parse(mode)?,
            detail: detail.trim_end().to_owned(),
        })
    }

    /// All records, in the order in which they were written.
    pub(crate) fn all(log: &str) -> Vec<Self> {
        let parse = |line| Self::parse(line).expect("records are written whole");
        log.lines().map(parse).collect()
    }
}

/// What is judged.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) events: &'a [Event],
    pub(crate) done: &'a [Done],
    pub(crate) faults: &'a [Fault],
    /// When the machine delayed a thread's sleep, and by how much.
    pub(crate) stalls: &'a [(Duration, Duration)],
    /// The numbers at the end.
    pub(crate) numbers: &'a BTreeMap<String, u64>,
    /// Whether the store forgets held leases.
    pub(crate) forgets: bool,
}

/// A broken promise.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Violation {
    pub(crate) what: String,
    /// The commands that were part of it.
    pub(crate) ids: Vec<u64>,
}

impl Violation {
    pub(crate) fn new(what: impl Into<String>, ids: impl Into<Vec<u64>>) -> Self {
        Self { what: what.into(), ids: ids.into() }
    }
}

/// The result of all checks.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<Violation>,
    /// Overlaps that began while the machine stalled for longer than a lease allows.
    pub(crate) unjudged: Vec<Violation>,
    /// Overlaps of a store that forgets.
    pub(crate) expected: usize,
    /// Leases lost without any fault: the machine was too slow for them.
    pub(crate) lost_unprovoked: usize,
}

/// Runs all checks.
pub(crate) fn judge(evidence: &Evidence<'_>) -> Verdict {
    let mut verdict = Verdict::default();
    if evidence.forgets {
        // Two holders may corrupt each other's updates, but not the resource that checks fences.
        verdict.expected = named(evidence.events, "overlap").count();
    } else {
        overlaps(evidence, &mut verdict);
        fences(evidence.events, &mut verdict.violations);
        updates(evidence, &mut verdict.violations);
        closings(evidence, &mut verdict.violations);
    }
    let found = &mut verdict.violations;
    fenced(evidence.events, found);
    if !evidence.forgets {
        waits(evidence, found);
    }
    let mut of_command: HashMap<u64, Vec<&Event>> = HashMap::new();
    for event in evidence.events {
        of_command.entry(event.id).or_default().push(event);
    }
    let mut unprovoked = 0;
    for done in evidence.done {
        let mine = of_command.remove(&done.op.id).unwrap_or_default();
        sections(done, &mine, found);
        for step in &done.steps {
            if let Some(what) = exit(done, step, &mine, evidence, &mut unprovoked) {
                found.push(Violation::new(what, [done.op.id]));
            }
        }
    }
    verdict.lost_unprovoked = unprovoked;
    verdict
}

pub(crate) fn named<'a>(events: &'a [Event], what: &str) -> impl Iterator<Item = &'a Event> {
    events.iter().filter(move |event| event.what == what)
}

fn begins(events: &[Event]) -> impl Iterator<Item = &Event> {
    named(events, "begin")
}

/// The promise: holds that exclude each other are never inside together.
fn overlaps(evidence: &Evidence<'_>, verdict: &mut Verdict) {
    for event in evidence.events.iter().filter(|event| event.what == "overlap") {
        let pids = event.detail.split(' ').filter_map(|pid| pid.parse::<i32>().ok());
        let others: Vec<&Event> = pids
            .filter_map(|pid| {
                let of_pid = |other: &&Event| other.pid == pid && other.key == event.key;
                let before = begins(evidence.events).filter(|other| other.time <= event.time);
                before.filter(of_pid).last()
            })
            .collect();
        let parted = evidence.events.iter().find(|parted| {
            parted.what == "parted" && parted.id == event.id && parted.key == event.key
        });
        let parted = parted.map_or("not seen to end", |parted| &parted.detail);
        let with: Vec<String> = others
            .iter()
            .map(|other| {
                let ago = event.time.saturating_sub(other.time);
                format!("{} (fence {}, began {ago:?} before)", other.id, other.fence)
            })
            .collect();
        let what = format!(
            "{}: section {} ({}, fence {}) began while another acted inside: {}; overlap: {parted}",
            event.key,
            event.id,
            event.mode.word(),
            event.fence,
            if with.is_empty() { event.detail.clone() } else { with.join(", ") },
        );
        let ids: Vec<u64> = others.iter().map(|other| other.id).chain([event.id]).collect();
        match others.iter().find_map(|other| stood_still(evidence, other.id, event.time)) {
            Some(stall) => {
                let what = format!("{what}; the machine had stood still for {stall:?}");
                verdict.unjudged.push(Violation::new(what, ids));
            }
            None => verdict.violations.push(Violation::new(what, ids)),
        }
    }
}

/// How long the machine stalled, if that is why a holder still acts after its lease has ended. A
/// thread with the watchdog's priority had to wait, until now. It waited longer than the time
/// between the watchdog's deadline and the store's.
fn stood_still(evidence: &Evidence<'_>, holder: u64, at: Duration) -> Option<Duration> {
    let done = evidence.done.iter().find(|done| done.op.id == holder)?;
    let killed = |step: &Step| step.acts.iter().any(|(_, act)| *act == Act::KillSupervisor);
    // Then the other holder did not get in by the end of a lease.
    if done.steps.iter().any(killed) {
        return None;
    }
    let ttl = done.op.ttl;
    let usual = (ttl / 20).clamp(ms(20), Duration::from_secs(5)).min(ttl / 4);
    let spare = done.op.grace.unwrap_or(usual) / 8 + ttl / 100;
    let covers = |(time, late): &&(Duration, Duration)| {
        *late >= spare && *time <= at && *time + NAP + *late + JUST_NOW >= at
    };
    evidence.stalls.iter().find(covers).map(|(_, late)| *late)
}

/// The promise: the fences of a name grow from lease to lease.
fn fences(events: &[Event], found: &mut Vec<Violation>) {
    let mut alone: BTreeMap<&str, &Event> = BTreeMap::new();
    let mut any: BTreeMap<&str, &Event> = BTreeMap::new();
    let mut seen: BTreeSet<(&str, u64)> = BTreeSet::new();
    for event in begins(events) {
        let key = event.key.as_str();
        // Sharers may begin in any order.
        let before = if event.mode == Mode::Exclusive { any.get(key) } else { alone.get(key) };
        if let Some(before) = before.filter(|before| before.fence >= event.fence) {
            let (fence, last) = (event.fence, before.fence);
            let what = format!("{key}: fence {fence} of section {} after {last}", event.id);
            found.push(Violation::new(what, [before.id, event.id]));
        } else if seen.contains(&(key, event.fence)) {
            let what = format!("{key}: fence {} again, in section {}", event.fence, event.id);
            found.push(Violation::new(what, [event.id]));
        }
        seen.insert((key, event.fence));
        if event.mode == Mode::Exclusive {
            alone.insert(key, event);
        }
        if any.get(key).is_none_or(|highest| highest.fence < event.fence) {
            any.insert(key, event);
        }
    }
}

/// The promise: a resource that checks fences rejects the writes of a stale holder.
fn fenced(events: &[Event], found: &mut Vec<Violation>) {
    for event in named(events, "torn") {
        let what =
            format!("{}: the fence let section {} in: {}", event.key, event.id, event.detail);
        found.push(Violation::new(what, [event.id]));
    }
}

/// The promise: a lock that is free is granted to a waiter. It is not free while other sections
/// exclude the waiter's.
fn waits(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    let ends: HashMap<(u64, &str), Duration> =
        named(evidence.events, "end").map(|end| ((end.id, &*end.key), end.time)).collect();
    for done in evidence.done {
        let (Verb::Wait { mode }, [step]) = (done.op.verb, &*done.steps) else { continue };
        if code(step) != Some(0) {
            continue;
        }
        for key in &done.op.keys {
            let inside: Vec<&Event> = begins(evidence.events)
                .filter(|begin| begin.key == *key && begin.time <= step.begin)
                .filter(|begin| ends.get(&(begin.id, key)).is_some_and(|end| *end >= step.end))
                .collect();
            let permits = |mode| if let Mode::Permits(count) = mode { count } else { 0 };
            let held: u64 = inside.iter().map(|begin| permits(begin.mode)).sum();
            let full = match mode {
                Mode::Exclusive => !inside.is_empty(),
                Mode::Shared => inside.iter().any(|begin| begin.mode == Mode::Exclusive),
                Mode::Permits(count) => held + count > LIMIT,
            };
            if full {
                let ids = inside.iter().map(|begin| begin.id).chain([done.op.id]);
                let what =
                    format!("{key}: `wait` of {} ended though it was held", describe(&done.op));
                found.push(Violation::new(what, ids.collect::<Vec<_>>()));
            }
        }
    }
}

/// The promise: every update under a lock is kept.
fn updates(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    for event in evidence.events.iter().filter(|event| event.what == "lost") {
        let what = format!("{}: section {} lost an update: {}", event.key, event.id, event.detail);
        found.push(Violation::new(what, [event.id]));
    }
    let mut acknowledged: BTreeMap<&str, u64> = BTreeMap::new();
    for event in evidence.events.iter().filter(|event| event.what == "update") {
        *acknowledged.entry(&event.key).or_default() += 1;
    }
    for (key, count) in acknowledged {
        let number = evidence.numbers.get(key).copied().unwrap_or_default();
        if number < count {
            let what = format!("{key}: {count} updates were acknowledged, {number} are there");
            found.push(Violation::new(what, []));
        }
    }
}

/// The promises: once in a period, and closed for the cooldown after a release that set one.
fn closings(evidence: &Evidence<'_>, found: &mut Vec<Violation>) {
    let done: BTreeMap<u64, &Done> = evidence.done.iter().map(|done| (done.op.id, done)).collect();
    // A lossy store may forget periods.
    let forgotten = |from: Duration, to: Duration| {
        let between = |fault: &Fault| fault.is_lossy && fault.begin <= to && from <= fault.end;
        evidence.faults.iter().any(between)
    };
    let mut started: Option<&Event> = None;
    for event in begins(evidence.events).filter(|event| event.key == REPORT) {
        let last = started.and_then(|last| Some((last, done.get(&last.id)?.steps.first()?)));
        // The period began after the command did.
        if let Some((last, step)) = last
            && event.time + ROUNDING < step.begin + PERIOD
            && !forgotten(step.begin, event.time)
        {
            let what = format!(
                "{REPORT}: section {} began {:?} after section {}, in its period",
                event.id,
                event.time.saturating_sub(last.time),
                last.id
            );
            found.push(Violation::new(what, [last.id, event.id]));
        }
        started = Some(event);
    }
    for key in EXCLUSIVE {
        let mut closed: Option<&Event> = None;
        for event in evidence.events.iter().filter(|event| event.key == key) {
            match event.what.as_str() {
                "begin" => {
                    if let Some(last) = closed.take()
                        && event.time + ROUNDING < last.time + COOLDOWN
                        && !forgotten(last.time, event.time)
                    {
                        let after = event.time.saturating_sub(last.time);
                        let what = format!(
                            "{key}: section {} began {after:?} after section {} had closed it",
                            event.id, last.id
                        );
                        found.push(Violation::new(what, [last.id, event.id]));
                    }
                }
                "end" => {
                    let closes = done.get(&event.id).is_some_and(|done| has_closed(done));
                    closed = closes.then_some(event);
                }
                _ => {}
            }
        }
    }
}

/// Whether the store has confirmed a command's cooldown.
fn has_closed(done: &Done) -> bool {
    let untroubled =
        |step: &Step| code(step) == Some(i32::from(done.op.code)) && !step.said.release_failed;
    done.op.cooldown() && done.steps.first().is_some_and(untroubled)
}

/// The promise: a command runs once, under all its locks.
fn sections(done: &Done, mine: &[&Event], found: &mut Vec<Violation>) {
    let mine: Vec<&&Event> = mine.iter().filter(|event| event.what == "begin").collect();
    if mine.is_empty() {
        return;
    }
    let mut keys: Vec<&str> = mine.iter().map(|event| event.key.as_str()).collect();
    keys.sort_unstable();
    let mut wanted = done.op.keys.clone();
    wanted.sort_unstable();
    // A leader that lost the post may have begun again.
    let again = matches!(done.op.verb, Verb::Elect) && keys.iter().all(|key| *key == wanted[0]);
    if keys != wanted && !again {
        let what = format!("section {} began with {keys:?} instead of {wanted:?}", done.op.id);
        found.push(Violation::new(what, [done.op.id]));
    }
    if let Mode::Permits(count) = done.op.mode()
        && mine.iter().any(|event| event.detail != count.to_string())
    {
        let what = format!("section {} was not told that it has {count} permits", done.op.id);
        found.push(Violation::new(what, [done.op.id]));
    }
}

/// The exit code, as a shell reports it.
pub(crate) fn code(step: &Step) -> Option<i32> {
    let status = step.status?;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

/// The promise: the exit code reports what happened.
fn exit(
    done: &Done,
    step: &Step,
    mine: &[&Event],
    evidence: &Evidence<'_>,
    unprovoked: &mut usize,
) -> Option<String> {
    let Some(code) = code(step) else {
        return Some(format!("`{}` did not end", step.arguments.join(" ")));
    };
    let op = &done.op;
    let has = |what: &str| mine.iter().any(|event| event.what == what);
    let fault = |fault: &Fault| fault.begin <= step.end && fault.end + AFTERMATH >= step.begin;
    let disturbed = evidence.faults.iter().any(fault);
    let acted = |of: &[fn(Act) -> bool]| {
        step.acts.iter().any(|(_, act)| of.iter().any(|matches| matches(*act)))
    };
    let watchdog_killed = acted(&[|act| act == Act::KillWatchdog]);
    let command_killed = acted(&[|act| matches!(act, Act::KillGroup | Act::KillCommand)]);
    let killed = watchdog_killed || command_killed || acted(&[|act| act == Act::KillSupervisor]);
    let ended = acted(&[|act| matches!(act, Act::TermSupervisor | Act::TermGroup)])
        || (op.on_ask() && asked_for(&op.keys, step.end, evidence.done));
    let may_be_busy = op.wait != Wait::Forever || op.once();
    let supervised = matches!(op.verb, Verb::Run { .. } | Verb::Elect);
    // On a busy machine, a short wait may end before even a healthy store has answered.
    let too_short = match step.said.reason.as_deref() {
        Some("no_answer" | "wait_over") => op.wait != Wait::Forever,
        // A quarter of a short ttl may also end before all replicas have confirmed a grant.
        Some("replicas_missing") => op.ttl < Duration::from_secs(2),
        _ => false,
    };
    let truthful = match (step.what.as_str(), code) {
        // The section's own exit code shows that it ran to its end.
        (_, code) if supervised && code == i32::from(op.code) && has("end") => true,
        ("section", code) if code == i32::from(op.code) => true,
        ("run" | "elect" | "hold" | "section", 137) => killed,
        ("run" | "elect", 143) => ended,
        // Without a watchdog the command never starts. Until it has its name, a kill of the command
        // or its group meets the watchdog.
        ("run" | "elect", 71) => (watchdog_killed || command_killed) && !has("begin"),
        ("run" | "hold" | "acquire" | "wait", 75) => may_be_busy && (!supervised || !has("begin")),
        ("run" | "hold" | "acquire" | "renew" | "release" | "wait" | "ls" | "show", 69) => {
            (disturbed || too_short) && (!supervised || !has("begin"))
        }
        ("run" | "elect" | "hold" | "renew" | "release", 76) => {
            if !disturbed && step.acts.is_empty() {
                *unprovoked += 1;
            }
            true
        }
        ("hold" | "acquire" | "renew" | "release" | "wait" | "ls" | "show", 0) => true,
        _ => false,
    };
    if truthful {
        return None;
    }
    let (begun, to_its_end) = (has("begin"), has("end"));
    Some(format!(
        "`{}` of {} exited with {code} (section begun: {begun}, to its end: {to_its_end}, store \
         disturbed: {disturbed})",
        step.what,
        describe(op)
    ))
}

/// Whether any release request for one of these locks was sent until then. A delayed request may
/// reach the next holder of the lock.
fn asked_for(keys: &[&str], until: Duration, done: &[Done]) -> bool {
    done.iter().filter(|done| done.op.keys.iter().any(|key| keys.contains(key))).any(|done| {
        let mut acts = done.steps.iter().flat_map(|step| &step.acts);
        acts.any(|(at, act)| *act == Act::Ask && *at <= until)
    })
}

/// Describes a command in one line of text.
pub(crate) fn describe(op: &Op) -> String {
    format!("{}: {}", op.id, op.arguments().join(" "))
}
