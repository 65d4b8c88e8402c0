//! Prints a row for each store, and the trace of each violation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::judge::{self, Event, Evidence, Verdict, Violation};
use crate::worker::{Done, Step};

/// How much of the time before a violation is shown with it.
const BEFORE: Duration = Duration::from_secs(10);
/// How many violations are shown with their traces.
const TRACES_MAX: usize = 20;

/// The results of one store.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) store: String,
    pub(crate) seed: u64,
    cells: Vec<String>,
    pub(crate) violations: usize,
}

const HEAD: [&str; 16] = [
    "store",
    "seed",
    "commands",
    "sections",
    "updates",
    "acts on processes",
    "faults of the store",
    "busy",
    "refused",
    "lost",
    "lost unprovoked",
    "longest stall",
    "overlaps forgotten",
    "late, refused",
    "unjudged",
    "violations",
];

impl Row {
    pub(crate) fn new(
        store: &str,
        seed: u64,
        evidence: &Evidence<'_>,
        time: (Duration, Duration),
        verdict: &Verdict,
    ) -> Self {
        let steps = || evidence.done.iter().flat_map(|done| &done.steps);
        let ended = |code: i32| steps().filter(|step| judge::code(step) == Some(code)).count();
        let events = |what: &str| evidence.events.iter().filter(|event| event.what == what).count();
        let violations = verdict.violations.len();
        let numbers = [
            steps().filter(|step| step.what != crate::section::COMMAND).count(),
            events("begin"),
            events("update"),
            steps().map(|step| step.acts.len()).sum(),
            evidence.faults.len(),
            ended(75),
            ended(69),
            ended(76),
            verdict.lost_unprovoked,
        ];
        let mut cells: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let stall = longest_stall(evidence.events, time);
        cells.push(format!("{:.1} s", stall.as_secs_f64()));
        cells.extend(
            [verdict.expected, events("late"), verdict.unjudged.len(), violations]
                .map(|count| count.to_string()),
        );
        Self { store: store.to_owned(), seed, cells, violations }
    }
}

/// The longest time in which no section began.
fn longest_stall(events: &[Event], (begin, end): (Duration, Duration)) -> Duration {
    let begins = events.iter().filter(|event| event.what == "begin").map(|event| event.time);
    let mut times: Vec<Duration> = begins.chain([begin, end]).collect();
    times.sort_unstable();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

/// The table, as in docs/reliability.md.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = format!("| {} |\n|{}\n", HEAD.join(" | "), " --- |".repeat(HEAD.len()));
    for row in rows {
        let cells = row.cells.join(" | ");
        text.push_str(&format!("| {} | {} | {cells} |\n", row.store, row.seed));
    }
    text
}

/// Prints each violation with its evidence.
pub(crate) fn traces(verdict: &Verdict, evidence: &Evidence<'_>) {
    let by_id: BTreeMap<u64, &Done> = evidence.done.iter().map(|done| (done.op.id, done)).collect();
    let of = |word: &'static str, violations: &[Violation]| {
        for (number, violation) in violations.iter().enumerate() {
            println!("{word}: {}", violation.what);
            for id in violation.ids.iter().filter(|_| number < TRACES_MAX) {
                if let Some(done) = by_id.get(id) {
                    trace(done, evidence);
                }
            }
        }
    };
    of("unjudged", &verdict.unjudged);
    of("VIOLATION", &verdict.violations);
}

/// Prints the evidence about one command, by time.
fn trace(done: &Done, evidence: &Evidence<'_>) {
    println!("    {} fault {:?}", judge::describe(&done.op), done.op.fault);
    let mut lines: Vec<(Duration, String)> = Vec::new();
    let span = |step: &Step| (step.begin, step.end);
    let begin = done.steps.iter().map(|step| span(step).0).min().unwrap_or_default();
    let end = done.steps.iter().map(|step| span(step).1).max().unwrap_or_default();
    for step in &done.steps {
        lines.push((step.begin, format!("{} starts", step.what)));
        lines.extend(step.acts.iter().map(|(time, act)| (*time, format!("{act:?}"))));
        let code =
            judge::code(step).map_or_else(|| "not at all".to_owned(), |code| code.to_string());
        lines.push((step.end, format!("{} ended: {code} {}", step.what, step.stderr.trim())));
    }
    for event in evidence.events.iter().filter(|event| event.id == done.op.id) {
        let Event { what, key, fence, pid, detail, .. } = event;
        lines.push((event.time, format!("{what} {key} fence {fence} pid {pid} {detail}")));
    }
    for fault in evidence.faults.iter().filter(|f| f.end + BEFORE > begin && f.begin < end) {
        lines.push((
            fault.begin,
            format!("fault: {} for {:?}", fault.what, fault.end - fault.begin),
        ));
    }
    for (time, late) in evidence.stalls.iter().filter(|(time, _)| *time >= begin && *time <= end) {
        lines.push((*time, format!("the machine stood still for {late:?}")));
    }
    lines.sort();
    for (time, line) in lines {
        println!("        {:.4} {line}", time.as_secs_f64());
    }
}
