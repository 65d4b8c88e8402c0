//! Compares `leasehold run KEY -- true` with `flock FILE true`.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::cli::Args;
use crate::stats::{Spread, median};

/// From the start of a program to its end, over all runs.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) times: u32,
    pub(crate) nothing_ms: Option<Spread>,
    pub(crate) flock_ms: Option<Spread>,
    /// The default build.
    pub(crate) shared: Program,
    /// The static build, if there is one.
    pub(crate) fixed: Option<Program>,
}

/// A build of the command.
#[derive(Debug, Serialize)]
pub(crate) struct Program {
    /// `leasehold --version`: the start of the program alone.
    pub(crate) version_ms: Option<Spread>,
    pub(crate) run_ms: Option<Spread>,
    /// The median, relative to the median of `flock FILE true`.
    pub(crate) ratio: f64,
    /// What starting both programs takes, relative to the same median.
    pub(crate) floor: f64,
}

/// `None` if a program is missing.
pub(crate) fn run(args: &Args) -> anyhow::Result<Option<Run>> {
    let ours = std::env::current_exe()?.with_file_name("leasehold");
    let target = ours.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default();
    let fixed = target.join(format!("{ARCH}-unknown-linux-musl/shipped/leasehold"));
    if !ours.exists() {
        return Ok(None);
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    let file = file.to_str().context("a path that is no text")?;
    let builds: Vec<PathBuf> = [ours, fixed].into_iter().filter(|path| path.exists()).collect();
    let mut programs: Vec<(&Path, Vec<&str>)> =
        vec![(Path::new("true"), vec![]), (Path::new("flock"), vec![file, "true"])];
    // One store for each, since they may be of different versions.
    let store =
        |number| format!("embedded:{}", folder.path().join(format!("store-{number}")).display());
    let urls: Vec<String> = (0..builds.len()).map(store).collect();
    for (program, url) in builds.iter().zip(&urls) {
        programs.push((program, vec!["--version"]));
        programs.push((program, vec!["--store", url, "run", "key", "--", "true"]));
    }
    let timed = |(program, arguments): &(&Path, Vec<&str>)| -> anyhow::Result<Option<f64>> {
        let begun = Instant::now();
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let Ok(status) = command.status() else { return Ok(None) };
        ensure!(status.success(), "{} failed: {status}", program.display());
        Ok(Some(begun.elapsed().as_secs_f64() * 1e3))
    };
    let times = if args.quick { 10 } else { 60 * args.rounds() };
    let mut took = vec![Vec::new(); programs.len()];
    for round in 0..=times {
        for (program, took) in programs.iter().zip(&mut took) {
            let Some(ms) = timed(program)? else { return Ok(None) };
            // The first run creates the store.
            took.extend((round > 0).then_some(ms));
        }
    }
    let mut took = took.into_iter().map(Spread::of);
    let (nothing_ms, flock_ms) = (took.next().flatten(), took.next().flatten());
    let mut program = || {
        let (version_ms, run_ms) = (took.next()?, took.next()?);
        let of_flock = |ms: f64| ms / median(flock_ms);
        Some(Program {
            version_ms,
            run_ms,
            ratio: of_flock(median(run_ms)),
            floor: of_flock(median(nothing_ms) + median(version_ms)),
        })
    };
    let shared = program().context("a program that was not run")?;
    Ok(Some(Run { times, nothing_ms, flock_ms, shared, fixed: program() }))
}
