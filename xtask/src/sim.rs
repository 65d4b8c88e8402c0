//! `cargo xtask sim`: builds the simulation and runs it.

use std::process::{Command, Stdio};
use std::thread;

use crate::surface::Task;
use crate::{check, histories, root, torture};

/// The seeds of every run. They take about a minute of one processor.
const FIXED_SEEDS: u64 = 130;
/// They have to end within this time, on the slowest host.
const FIXED_SECONDS: &str = "900";
/// How long new seeds are run, in seconds of one processor.
const NEW_SECONDS: u64 = 30;
/// With more processes, the output is too long for the gain.
const PROCESSES_MAX: u64 = 4;
const BUILD: [&str; 7] = [
    "build",
    "--quiet",
    "--profile",
    "sim",
    "--package",
    "leasehold-sim",
    "--message-format=json-render-diagnostics",
];

pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    match args {
        [] => seeds().and_then(|()| model()),
        ["histories"] => histories::run(&build(false)?, processes(), Task::Compare),
        ["histories", "--write"] => histories::run(&build(false)?, processes(), Task::Write),
        _ => simulate(&build(args.first() == Some(&"planted"))?, args),
    }
}

/// Runs the same seeds each time, and some new ones; each run prints its first seed.
pub(crate) fn seeds() -> Result<(), String> {
    let (program, processes) = (build(false)?, processes());
    histories::run(&program, processes, Task::Compare)?;
    fixed(&program, processes)?;
    new(&program, processes)
}

/// Every run within the bounds of the model.
pub(crate) fn model() -> Result<(), String> {
    simulate(&build(false)?, &["model"])
}

/// One process for each processor.
fn processes() -> u64 {
    thread::available_parallelism().map_or(1, |n| n.get() as u64).min(PROCESSES_MAX)
}

fn fixed(program: &str, processes: u64) -> Result<(), String> {
    let per_process = FIXED_SEEDS.div_ceil(processes);
    at_once(processes, |process| {
        let (from, seeds) = (1 + process * per_process, per_process.to_string());
        let args = ["run", "--from", &from.to_string(), "--seeds", &seeds];
        simulate(program, &[&args[..], &["--seconds", FIXED_SECONDS]].concat())
    })
    .map(drop)
}

fn new(program: &str, processes: u64) -> Result<(), String> {
    let seconds = NEW_SECONDS.div_ceil(processes).to_string();
    at_once(processes, |_| simulate(program, &["run", "--new", "--seconds", &seconds])).map(drop)
}

/// Calls `run` with each number below `processes`, in parallel.
pub(crate) fn at_once<T: Send>(
    processes: u64,
    run: impl Fn(u64) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    thread::scope(|scope| {
        let run = &run;
        let all: Vec<_> = (0..processes).map(|n| scope.spawn(move || run(n))).collect();
        let ended =
            all.into_iter().map(|one| one.join().unwrap_or_else(|_| Err("a panic".to_owned())));
        // Waits for all of them, so that each failing seed is printed whole.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The faults are planted in a separate build.
fn build(planted: bool) -> Result<String, String> {
    let mut command = check::command(&BUILD);
    if planted {
        command.env("RUSTFLAGS", "--cfg leasehold_planted");
        command.env("CARGO_TARGET_DIR", root().join("target/planted"));
    }
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {}", BUILD.join(" ")));
    }
    torture::executable(&String::from_utf8_lossy(&output.stdout), "leasehold-sim")
}

fn simulate(program: &str, args: &[&str]) -> Result<(), String> {
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("leasehold-sim {}: {status}", args.join(" ")))
    }
}
