//! Simulates the whole client in one thread and from a seed.
//!
//! It has many processes with their own clocks and stores that restart. The network loses, delays,
//! doubles and reorders messages.
//!
//! It also has the model: every run of a few clients on one lock, within a bound.
//!
//! ```text
//! leasehold-sim run [--seconds N] [--seeds N] [--from SEED] [--new] [--stores memory|quorum]
//! leasehold-sim model
//! leasehold-sim history SEED [--stores memory|quorum]
//! leasehold-sim planted [NUMBER...] [--seconds N]
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for the terminal")]

mod judge;
mod model;
mod net;
#[cfg(leasehold_planted)]
mod planted;
mod profile;
#[cfg(test)]
mod repeated;
mod shrink;
mod watch;
mod wire;
mod work;
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::judge::to_seconds;
use crate::net::Tally;
use crate::profile::{Profile, Stores};
use crate::watch::Watch;

/// How long a failing seed is shrunk.
const SHRINK_SECONDS: u64 = 60;
/// How many lines of a history are shown, from its end.
const SHOWN: usize = 60;

/// The arguments.
#[derive(Debug)]
struct Asked {
    seconds: u64,
    seeds: u64,
    from: u64,
    stores: Stores,
    others: Vec<u64>,
}

impl Asked {
    fn read(args: &[String]) -> Result<Self, String> {
        let mut asked = Self {
            seconds: u64::MAX,
            seeds: u64::MAX,
            from: 1,
            stores: Stores::Any,
            others: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            let number = |text: &String| text.parse().map_err(|_| format!("{text} is no number"));
            match arg.as_str() {
                "--seconds" => asked.seconds = number(value()?)?,
                "--seeds" => asked.seeds = number(value()?)?,
                "--from" => asked.from = number(value()?)?,
                "--new" => asked.from = fastrand::u64(..1 << 40),
                "--stores" => {
                    asked.stores = match value()?.as_str() {
                        "memory" => Stores::Memory,
                        "quorum" => Stores::Quorum,
                        other => return Err(format!("{other} is no sort of stores")),
                    };
                }
                _ => asked.others.push(number(arg)?),
            }
        }
        // If both are unlimited, the run still has to end.
        if asked.seconds == u64::MAX && asked.seeds == u64::MAX {
            asked.seconds = 60;
        }
        Ok(asked)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) =
        args.split_first().map_or(("run", &[][..]), |(c, rest)| (c.as_str(), rest));
    let asked = match Asked::read(rest) {
        Ok(asked) => asked,
        Err(wrong) => {
            eprintln!("leasehold-sim: {wrong}");
            return ExitCode::from(2);
        }
    };
    match command {
        "run" => run(&asked),
        "history" => history(&asked),
        "model" => model::run(),
        #[cfg(leasehold_planted)]
        "planted" => planted::run(&asked.others, asked.seconds.min(60), asked.from),
        other => {
            eprintln!("leasehold-sim: no such command: {other}");
            ExitCode::from(2)
        }
    }
}

/// The sum of many seeds.
#[derive(Debug, Default)]
struct Sum {
    seeds: u64,
    grants: u64,
    calm_grants: u64,
    lost: u64,
    floods: u64,
    simulated: Duration,
    tally: Tally,
    hash: u64,
    known: BTreeMap<&'static str, u64>,
    /// The first seed of each known failure.
    known_first: BTreeMap<&'static str, u64>,
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: &world::Outcome) {
        let world::Outcome { books, simulated, tally, .. } = outcome;
        self.seeds += 1;
        self.grants += books.grants;
        self.calm_grants += books.calm_grants;
        self.lost += books.lost;
        self.floods += books.floods;
        self.simulated += Duration::from_micros(*simulated);
        self.tally.messages += tally.messages;
        self.tally.lost += tally.lost;
        self.tally.doubled += tally.doubled;
        self.tally.late += tally.late;
        self.hash = self.hash.rotate_left(5) ^ books.hash;
        for (what, count) in &books.known {
            *self.known.entry(what).or_default() += count;
            self.known_first.entry(what).or_insert(seed);
        }
    }

    fn print(&self, watch: &Watch) {
        let Tally { messages, lost, doubled, late } = self.tally;
        println!(
            "{} seeds in {:.1} s: {} grants under faults and {} in calm, {} holds lost, {} floods of dropped futures, \
             {:.2} simulated hours, \
             {messages} messages ({lost} lost, {doubled} doubled, {late} requests late), history {:016x}",
            self.seeds,
            watch.elapsed().as_secs_f64(),
            self.grants,
            self.calm_grants,
            self.lost,
            self.floods,
            self.simulated.as_secs_f64() / 3_600.0,
            self.hash,
        );
        for (what, count) in &self.known {
            println!(
                "known fault: {what}: {count} times, first in seed {}",
                self.known_first[what]
            );
        }
    }
}

fn run(asked: &Asked) -> ExitCode {
    let watch = Watch::start();
    let mut sum = Sum::default();
    println!("seeds from {}", asked.from);
    for seed in (asked.from..).take(usize::try_from(asked.seeds).unwrap_or(usize::MAX)) {
        if watch.seconds() >= asked.seconds {
            if asked.seeds == u64::MAX {
                break;
            }
            println!("seed {seed} was not reached within {} s", asked.seconds);
            sum.print(&watch);
            return ExitCode::FAILURE;
        }
        watch.begins(seed);
        let profile = Profile::draw(seed, asked.stores);
        let outcome = world::run(&profile, false);
        sum.add(seed, &outcome);
        if let (Some(fault), Some(kind)) = (&outcome.fault, outcome.kind()) {
            println!("seed {seed}: {fault}, after {:.1} s", watch.elapsed().as_secs_f64());
            let (small, outcome) = shrink::shrink(&profile, kind, &watch, SHRINK_SECONDS);
            show(&small, &outcome);
            sum.print(&watch);
            println!("to see seed {seed} again: cargo xtask sim history {seed}{}", asked.stores);
            return ExitCode::FAILURE;
        }
    }
    sum.print(&watch);
    ExitCode::SUCCESS
}

/// Prints a failing run.
fn show(profile: &Profile, outcome: &world::Outcome) {
    println!("made small: {profile:#?}");
    let history = &outcome.books.history;
    if history.len() > SHOWN {
        println!("the last {SHOWN} of {} lines:", history.len());
    }
    for line in history.iter().skip(history.len().saturating_sub(SHOWN)) {
        println!("{line}");
    }
    println!("{}", outcome.fault.as_deref().unwrap_or("no fault"));
}

fn history(asked: &Asked) -> ExitCode {
    let _watch = Watch::start();
    for seed in &asked.others {
        let profile = Profile::draw(*seed, asked.stores);
        println!("{profile:#?}");
        let outcome = world::run(&profile, true);
        for line in &outcome.books.history {
            println!("{line}");
        }
        println!(
            "seed {seed}: {} after {:.3} simulated seconds, history {:016x}",
            outcome.fault.as_deref().unwrap_or("no fault"),
            to_seconds(outcome.simulated),
            outcome.books.hash
        );
    }
    ExitCode::SUCCESS
}
