//! Runs the fault test, from the arguments to the printed table.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::clock::NAP;
use crate::judge::{self, Event, Evidence};
use crate::nemesis::{self, Nemesis};
use crate::plan::{EXCLUSIVE, POST, Plan, REPORT, SHARED};
use crate::report::{self, Row};
use crate::section::{self, Log};
use crate::site::{self, Site};
use crate::worker::{self, Ground};
use crate::{clock, epilogue};

const USAGE: &str = "\
Usage: torture --program LEASEHOLD [--patience SECONDS] [--commands N] STORE SECONDS [SEED]

Goes on beyond SECONDS until N commands have ended.

STORE is embedded, redis, forgetful (a server that forgets), sentinel, cluster, quorum (of three
nodes), quorum5, postgres, or all, one after the other. An even SEED has a synchronous standby.
";

/// Few, so that two processors have time for them.
const WORKERS: u64 = 8;
/// The limit for anything that has to end; only a hang reaches it.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Order {
    program: PathBuf,
    patience: Duration,
    stores: Vec<String>,
    time: Duration,
    commands: usize,
    seed: u64,
}

pub(crate) fn main(args: &[String]) -> ExitCode {
    let Some(order) = order(args) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let rows: Vec<Row> = order.stores.iter().map(|store| torture(store, &order)).collect();
    print!("{}", report::table(&rows));
    let violations: usize = rows.iter().map(|row| row.violations).sum();
    if violations == 0 {
        return ExitCode::SUCCESS;
    }
    for row in rows.iter().filter(|row| row.violations > 0) {
        let (store, seconds, seed) = (&row.store, order.time.as_secs(), row.seed);
        println!("the same again: cargo xtask torture {store} {seconds} {seed}");
    }
    ExitCode::FAILURE
}

fn order(args: &[String]) -> Option<Order> {
    let mut args = args.iter().map(String::as_str);
    let (mut program, mut patience, mut commands) = (None, PATIENCE, 0);
    let mut plain = Vec::new();
    while let Some(arg) = args.next() {
        match arg {
            "--program" => program = Some(fs::canonicalize(args.next()?).ok()?),
            "--patience" => patience = Duration::from_secs(args.next()?.parse().ok()?),
            "--commands" => commands = args.next()?.parse().ok()?,
            _ => plain.push(arg),
        }
    }
    let (store, seconds, seed) = match plain.as_slice() {
        [store, seconds] => (*store, *seconds, fastrand::u64(..1_000_000)),
        [store, seconds, seed] => (*store, *seconds, seed.parse().ok()?),
        _ => return None,
    };
    let stores: Vec<String> = match store {
        "all" => site::NAMES.map(str::to_owned).to_vec(),
        name if site::NAMES.contains(&name) => vec![name.to_owned()],
        _ => return None,
    };
    let time = Duration::from_secs(seconds.parse().ok()?);
    Some(Order { program: program?, patience, stores, time, commands, seed })
}

/// Tests one store, and judges the records.
fn torture(store: &str, order: &Order) -> Row {
    println!("torture of {store}, seed {}, {} s", order.seed, order.time.as_secs());
    let site = Site::start(store, order.seed).expect("the name was looked up");
    let place = tempfile::tempdir().expect("a directory can be made");
    // Canonical, as /proc shows it.
    let dir = fs::canonicalize(place.path()).expect("it was made");
    section::prepare(&dir);
    drop(Log::open(&dir, 0));
    let ground = Ground {
        program: order.program.clone(),
        store: site.url(&dir),
        dir,
        patience: order.patience,
        stops_refuse: matches!(site, Site::Embedded),
        done: Mutex::default(),
        faults: Mutex::default(),
    };
    let (stalls, begin) = (Mutex::new(Vec::new()), clock::now());
    let (until, over) = (begin + order.time, AtomicBool::new(false));
    let left = thread::scope(|scope| {
        scope.spawn(|| watch_the_machine(&stalls, &over));
        let rage = scope.spawn(|| {
            nemesis::rage(&ground, &site, Nemesis::new(order.seed, &site), until);
        });
        let workers: Vec<_> = (1..=WORKERS)
            .map(|worker| {
                let plan = Plan::new(order.seed, worker, site.abilities());
                let ground = &ground;
                scope.spawn(move || worker::work(ground, plan, until, order.commands))
            })
            .collect();
        // Set even if one of them panics.
        let _over = Over(&over);
        for one in workers.into_iter().chain([rage]) {
            if let Err(panic) = one.join() {
                std::panic::resume_unwind(panic);
            }
        }
        epilogue::examine(&ground, &site)
    });
    let events = fs::read_to_string(Log::path(&ground.dir)).expect("the log is there");
    let events = Event::all(&events);
    let keys = [&EXCLUSIVE[..], &[SHARED, REPORT, POST]].concat();
    let number = |key: &str| {
        let text = fs::read_to_string(section::number(&ground.dir, key)).unwrap_or_default();
        (key.to_owned(), text.trim().parse().unwrap_or_default())
    };
    let numbers: BTreeMap<String, u64> = keys.into_iter().map(number).collect();
    let done = ground.done.into_inner().expect("no worker panicked");
    let faults = ground.faults.into_inner().expect("no worker panicked");
    let stalls = stalls.into_inner().expect("the watch does not panic");
    let evidence = Evidence {
        events: &events,
        done: &done,
        faults: &faults,
        stalls: &stalls,
        numbers: &numbers,
        forgets: site.forgets(),
    };
    let mut verdict = judge::judge(&evidence);
    verdict.violations.extend(left);
    report::traces(&verdict, &evidence);
    let end = done.iter().flat_map(|done| &done.steps).map(|step| step.end).max();
    Row::new(store, order.seed, &evidence, (begin, end.unwrap_or(until)), &verdict)
}

/// Signals the end when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Records when a sleeping thread was woken too late, at the priority that a watchdog gives itself.
fn watch_the_machine(stalls: &Mutex<Vec<(Duration, Duration)>>, over: &AtomicBool) {
    rustix::process::setpriority_process(None, -20).ok();
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads `first` and changes how this thread is scheduled.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const first) };
    while !over.load(Ordering::Relaxed) {
        let begin = clock::now();
        thread::sleep(NAP);
        let late = (clock::now() - begin).saturating_sub(NAP);
        if late > NAP {
            stalls.lock().expect("nobody else adds").push((begin, late));
        }
    }
}
