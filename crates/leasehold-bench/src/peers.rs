//! Runs other libraries on the same server: in this process, or as the programs in `peers/`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use leasehold::Client;
use rslock::LockManager;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::bare::TTL_MS;
use crate::cli::Args;
use crate::handoff::{self, Variant};
use crate::meter::Meter;
use crate::server::Server;
use crate::stats::Spread;
use crate::uncontended::{self, Subject};

/// All libraries, by job.
#[derive(Debug, Serialize)]
pub(crate) struct Peers {
    pub(crate) server: String,
    pub(crate) jobs: Vec<Job>,
    pub(crate) rows: Vec<Row>,
    /// What could not be installed, and why.
    pub(crate) missing: Vec<String>,
}

/// One library with one setting.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) library: String,
    /// For each job: the rate per second, and its share of leasehold's within each round.
    pub(crate) rates: Vec<Option<(Spread, Spread)>>,
    /// Processor time of the client process per counted operation.
    pub(crate) client_us: Vec<Option<Spread>>,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) enum Job {
    Cycle { callers: usize },
    Handoff { waiters: usize },
}

impl Job {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Cycle { callers: 1 } => "cycles/s, 1 caller".to_owned(),
            Self::Cycle { callers } => format!("cycles/s, {callers} callers"),
            Self::Handoff { waiters } => format!("hand-offs/s, {waiters} waiters"),
        }
    }
}

/// How long a waiter sleeps between two polls, if the library lets that be set.
const TIGHT_MS: u32 = 1;

enum Contestant {
    Leasehold(Client),
    Rslock(u32),
    Program { library: &'static str, pause_ms: u32, program: PathBuf, arguments: Vec<PathBuf> },
}

/// What a program prints.
#[derive(Deserialize)]
struct Said {
    count: f64,
    seconds: f64,
    cpu_us: f64,
}

/// The rate per second, and the client's processor time for each.
#[derive(Clone, Copy)]
struct Rate {
    per_second: f64,
    client_us: f64,
}

impl From<uncontended::Turn> for Rate {
    fn from(turn: uncontended::Turn) -> Self {
        Self { per_second: turn.per_second, client_us: turn.client_us }
    }
}

impl Contestant {
    fn name(&self) -> String {
        let paused = |library: &str, pause_ms: u32| match pause_ms {
            0 => library.to_owned(),
            pause_ms => format!("{library}, asks every {pause_ms} ms"),
        };
        match self {
            Self::Leasehold(_) => "leasehold".to_owned(),
            Self::Rslock(pause_ms) => paused("rslock", *pause_ms),
            Self::Program { library, pause_ms, .. } => paused(library, *pause_ms),
        }
    }

    /// `None` if the setting makes no difference.
    async fn rate(
        &self,
        server: &Server,
        job: Job,
        length: Duration,
    ) -> anyhow::Result<Option<Rate>> {
        Ok(Some(match (self, job) {
            (Self::Leasehold(client), Job::Cycle { callers }) => {
                let subject = Subject::Library(client.clone());
                uncontended::turn(&subject, Some(server), callers, length).await?.into()
            }
            (Self::Leasehold(_), Job::Handoff { waiters }) => {
                let url = server.url();
                let variant = Variant::Leasehold;
                let (hold, rtt) = (Duration::ZERO, Duration::ZERO);
                let turn = handoff::turn(server, &url, variant, waiters, hold, length, rtt).await?;
                Rate { per_second: turn.per_second, client_us: turn.client_us }
            }
            (Self::Rslock(0), Job::Cycle { callers }) => {
                let subject = Subject::Rslock(LockManager::new(vec![server.url()]));
                uncontended::turn(&subject, Some(server), callers, length).await?.into()
            }
            (Self::Rslock(pause_ms), Job::Handoff { waiters }) => {
                rslock_handoffs(server, *pause_ms, waiters, length).await?
            }
            (Self::Program { pause_ms: 1.., .. } | Self::Rslock(_), Job::Cycle { .. }) => {
                return Ok(None);
            }
            // It waits like the variant without fences.
            (Self::Program { library: "redisson-fenced", .. }, Job::Handoff { .. }) => {
                return Ok(None);
            }
            (Self::Program { library, pause_ms, program, arguments }, job) => {
                let (what, contenders) = match job {
                    Job::Cycle { callers } => ("cycle", callers),
                    Job::Handoff { waiters } => ("handoff", waiters),
                };
                let mut command = Command::new(program);
                command.args(arguments).arg(server.addr().port().to_string()).arg(library);
                command.arg(pause_ms.to_string()).arg(what).arg(contenders.to_string());
                command.arg(length.as_secs_f64().to_string()).stdin(Stdio::null());
                let output = tokio::task::spawn_blocking(move || command.output()).await??;
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(output.status.success(), "{library} failed: {errors}");
                let Said { count, seconds, cpu_us } = serde_json::from_slice(&output.stdout)?;
                Rate { per_second: count / seconds, client_us: cpu_us / count }
            }
        }))
    }
}

/// Hand-offs a second among contenders with a connection each. Counted only if the holder differs
/// from the one before.
async fn rslock_handoffs(
    server: &Server,
    pause_ms: u32,
    waiters: usize,
    length: Duration,
) -> anyhow::Result<Rate> {
    let last = Arc::new(AtomicUsize::new(usize::MAX));
    let count = Arc::new(AtomicUsize::new(0));
    let (began, meter) = (Instant::now(), Meter::start(None));
    let mut tasks = JoinSet::new();
    for number in 0..waiters {
        let mut manager = LockManager::new(vec![server.url()]);
        if pause_ms > 0 {
            manager.set_retry(3, Duration::from_millis(pause_ms.into()));
        }
        let (last, count) = (Arc::clone(&last), Arc::clone(&count));
        tasks.spawn(async move {
            while began.elapsed() < length {
                let Ok(lock) = manager.lock("peer", Duration::from_millis(TTL_MS)).await else {
                    continue;
                };
                if last.swap(number, Ordering::Relaxed) != number {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                manager.unlock(&lock).await;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    let (count, reading) = (count.load(Ordering::Relaxed) as f64, meter.read());
    Ok(Rate {
        per_second: count / reading.wall.as_secs_f64(),
        client_us: reading.client_us / count,
    })
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{:?}", command.get_program()))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Installs the languages' own dependencies once, below `target/`.
fn python(source: &Path, built: &Path) -> anyhow::Result<PathBuf> {
    let program = built.join("python/bin/python");
    if !built.join("python/done").exists() {
        finish(Command::new("python3").args(["-m", "venv"]).arg(built.join("python")))?;
        let mut install = Command::new(&program);
        install.args(["-m", "pip", "install", "--quiet", "--requirement"]);
        finish(install.arg(source.join("requirements.txt")))?;
        std::fs::write(built.join("python/done"), "")?;
    }
    Ok(program)
}

fn node(source: &Path, built: &Path) -> anyhow::Result<PathBuf> {
    let folder = built.join("node");
    std::fs::create_dir_all(&folder)?;
    for file in ["package.json", "peer.js"] {
        std::fs::copy(source.join(file), folder.join(file))?;
    }
    if !folder.join("done").exists() {
        finish(Command::new("npm").args(["install", "--silent"]).current_dir(&folder))?;
        std::fs::write(folder.join("done"), "")?;
    }
    Ok(folder.join("peer.js"))
}

fn java(source: &Path, built: &Path) -> anyhow::Result<PathBuf> {
    let (folder, program) = (built.join("java"), source.join("Peer.java"));
    let path = folder.join("lib/*");
    let classes = folder.join("classes");
    if !folder.join("done").exists() {
        std::fs::create_dir_all(&folder)?;
        let mut fetch = Command::new("mvn");
        fetch.args(["--quiet", "--batch-mode", "dependency:copy-dependencies", "--file"]);
        fetch.arg(source.join("pom.xml"));
        finish(fetch.arg(format!("-DoutputDirectory={}", folder.join("lib").display())))?;
        std::fs::write(folder.join("done"), "")?;
    }
    finish(Command::new("javac").arg("-cp").arg(&path).arg("-d").arg(&classes).arg(program))?;
    Ok(PathBuf::from(format!("{}:{}", path.display(), classes.display())))
}

fn programs(missing: &mut Vec<String>) -> Vec<Contestant> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/bench-peers");
    let mut all = Vec::new();
    let mut add = |library, pause_ms, program: &Path, arguments: &[PathBuf]| {
        let (program, arguments) = (program.to_owned(), arguments.to_owned());
        all.push(Contestant::Program { library, pause_ms, program, arguments });
    };
    match python(&source, &built) {
        Ok(program) => {
            for (library, pause_ms) in
                [("redis-py", 0), ("redis-py", TIGHT_MS), ("python-redis-lock", 0)]
            {
                add(library, pause_ms, &program, &[source.join("peer.py")]);
            }
        }
        Err(error) => missing.push(format!("redis-py and python-redis-lock: {error:#}")),
    }
    match node(&source, &built) {
        Ok(script) => {
            for pause_ms in [0, TIGHT_MS] {
                add("node-redlock", pause_ms, Path::new("node"), std::slice::from_ref(&script));
            }
        }
        Err(error) => missing.push(format!("node-redlock: {error:#}")),
    }
    match java(&source, &built) {
        Ok(path) => {
            for library in ["redisson", "redisson-fenced"] {
                add(library, 0, Path::new("java"), &["-cp".into(), path.clone(), "Peer".into()]);
            }
        }
        Err(error) => missing.push(format!("redisson: {error:#}")),
    }
    all
}

pub(crate) async fn run(args: &Args, step: impl Fn(&str) + Send + Sync) -> anyhow::Result<Peers> {
    let server = Server::start(args)?;
    let mut missing = Vec::new();
    let mut all = vec![
        Contestant::Leasehold(Client::connect(server.url()).await?),
        Contestant::Rslock(0),
        Contestant::Rslock(TIGHT_MS),
    ];
    if !args.no_programs {
        all.extend(programs(&mut missing));
    }
    let (many, crowd) = if args.quick { (16, 3) } else { (64, 16) };
    let jobs = vec![
        Job::Cycle { callers: 1 },
        Job::Cycle { callers: many },
        Job::Handoff { waiters: 2 },
        Job::Handoff { waiters: crowd },
    ];
    let rates: Mutex<BTreeMap<(usize, Job), Vec<Rate>>> = Mutex::default();
    let kept = || rates.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..args.rounds() {
        for job in &jobs {
            for (number, contestant) in all.iter().enumerate() {
                step(&format!("{}, {}", contestant.name(), job.name()));
                server.command(&["DEL", "peer"]);
                let rate = contestant.rate(&server, *job, args.turn()).await?;
                if let Some(rate) = rate {
                    kept().entry((number, *job)).or_default().push(rate);
                }
            }
        }
    }
    let rates = kept();
    let rows = all.iter().enumerate().map(|(number, contestant)| {
        let all = |number, job: &Job, value: fn(&Rate) -> f64| -> Option<Vec<f64>> {
            Some(rates.get(&(number, *job))?.iter().map(value).collect())
        };
        let its = |job: &Job| {
            let (its, ours) =
                (all(number, job, |rate| rate.per_second)?, all(0, job, |rate| rate.per_second)?);
            Some((Spread::of(its.iter().copied())?, Spread::of_ratios(&its, &ours)?))
        };
        let client_us = |job: &Job| Spread::of(all(number, job, |rate| rate.client_us)?);
        Row {
            library: contestant.name(),
            rates: jobs.iter().map(its).collect(),
            client_us: jobs.iter().map(client_us).collect(),
        }
    });
    let rows = rows.collect();
    drop(rates);
    Ok(Peers { server: server.describe(), jobs, rows, missing })
}
