//! Measures acquiring and releasing a lock without other contenders.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use leasehold::{Client, Release};
use rslock::LockManager;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::bare::{Bare, Batches, Loaded, TTL_MS, token};
use crate::cli::Args;
use crate::delay::Delay;
use crate::embedded_floor::{EmbeddedFloor, Word};
use crate::meter::Meter;
use crate::server::Server;
use crate::stats::{Latencies, Spread, weighted};

/// All variants with all numbers of callers.
#[derive(Debug, Serialize)]
pub(crate) struct Uncontended {
    pub(crate) server: String,
    pub(crate) rows: Vec<Row>,
}

impl Uncontended {
    /// How many callers there were, in turn.
    pub(crate) fn callers(&self) -> Vec<usize> {
        let mut callers: Vec<_> = self.rows.iter().map(|row| row.callers).collect();
        callers.dedup();
        callers
    }

    pub(crate) fn row(&self, variant: &str, callers: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.variant == variant && row.callers == callers)
    }
}

/// One variant with one number of callers.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) variant: &'static str,
    pub(crate) callers: usize,
    pub(crate) cycles: u64,
    /// Cycles whose release failed.
    pub(crate) not_released: u64,
    pub(crate) cycles_per_second: Option<Spread>,
    /// The cycles per second of each round.
    #[serde(skip)]
    pub(crate) rates: Vec<f64>,
    /// Relative to [`BARE`], within each round.
    pub(crate) ratio_to_bare: Option<Spread>,
    pub(crate) p50_us: Option<Spread>,
    pub(crate) p99_us: Option<Spread>,
    pub(crate) client_us_per_cycle: Option<Spread>,
    pub(crate) server_us_per_cycle: Option<Spread>,
    pub(crate) commands_per_cycle: Option<Spread>,
}

/// SET NX PX, then compare and delete by EVALSHA.
const BARE: &str = "bare";
/// As [`BARE`], over a connection that another thread drives, as leasehold's is.
const BARE_ACROSS: &str = "bare-across";
/// As [`BARE`], but the first half is a script that also increments a fence.
const BARE_FENCE: &str = "bare-fence";
/// Many locks in a script call, with a fence each: the bare minimum.
const FLOOR: &str = "floor";
/// How many at most, as in leasehold.
const AT_ONCE: usize = 32;

/// The simplest locks in memory: the holder, the deadline, and a counter of fences.
#[derive(Default)]
pub(crate) struct Map {
    held: HashMap<String, (u128, u64, Instant)>,
    fence: u64,
}

impl Map {
    fn take(&mut self, key: &str, token: u128) -> Option<u64> {
        let now = Instant::now();
        if self.held.get(key).is_some_and(|(.., until)| *until > now) {
            return None;
        }
        self.fence += 1;
        let until = now + Duration::from_millis(TTL_MS);
        self.held.insert(key.to_owned(), (token, self.fence, until));
        Some(self.fence)
    }

    fn free(&mut self, key: &str, token: u128) -> bool {
        let ours = self.held.get(key).is_some_and(|(holder, ..)| *holder == token);
        ours && self.held.remove(key).is_some()
    }
}

pub(crate) enum Subject {
    Bare {
        bare: Bare,
        release: Loaded,
    },
    BareFence {
        bare: Bare,
        acquire: Loaded,
        release: Loaded,
    },
    Floor(Batches),
    Rslock(LockManager),
    Flock(PathBuf),
    Map(Arc<Mutex<Map>>),
    EmbeddedFloor(EmbeddedFloor),
    Library(Client),
    /// One for each caller.
    Each(Vec<Self>),
}

/// What one task repeats.
enum Caller {
    Bare { bare: Bare, release: Loaded, key: String },
    BareFence { bare: Bare, acquire: Loaded, release: Loaded, key: String, fence: String },
    Floor { batches: Batches, keys: Vec<String> },
    Rslock { manager: LockManager, key: String },
    Flock(File),
    Map(Arc<Mutex<Map>>, String),
    EmbeddedFloor { floor: EmbeddedFloor, gate: Word },
    Library(leasehold::Mutex),
}

impl Subject {
    /// The tasks that do the work of this many callers.
    fn tasks(&self, callers: usize) -> anyhow::Result<Vec<Caller>> {
        let each = if matches!(self, Self::Floor(_)) { AT_ONCE } else { 1 };
        let numbers = (0..callers).step_by(each);
        numbers.map(|number| self.caller(number, each.min(callers - number))).collect()
    }

    fn caller(&self, number: usize, locks: usize) -> anyhow::Result<Caller> {
        let key = format!("uncontended/{number}");
        Ok(match self {
            Self::Bare { bare, release } => {
                Caller::Bare { bare: bare.clone(), release: release.clone(), key }
            }
            Self::BareFence { bare, acquire, release } => Caller::BareFence {
                bare: bare.clone(),
                acquire: acquire.clone(),
                release: release.clone(),
                fence: format!("{key}:fence"),
                key,
            },
            Self::Floor(batches) => {
                let names = number..number + locks;
                let keys = names.map(|name| format!("leasehold:{{floor/{name}}}")).collect();
                Caller::Floor { batches: batches.clone(), keys }
            }
            Self::Rslock(manager) => Caller::Rslock { manager: manager.clone(), key },
            Self::Flock(path) => Caller::Flock(File::create(path)?),
            Self::Map(map) => Caller::Map(Arc::clone(map), key),
            Self::EmbeddedFloor(floor) => {
                Caller::EmbeddedFloor { gate: floor.gate()?, floor: floor.clone() }
            }
            Self::Library(client) => Caller::Library(client.mutex(key)),
            Self::Each(all) => {
                let its = all.get(number % all.len().max(1)).context("there is none")?;
                return its.caller(number, locks);
            }
        })
    }
}

impl Caller {
    /// How many locks one cycle has.
    fn locks(&self) -> u64 {
        if let Self::Floor { keys, .. } = self { keys.len() as u64 } else { 1 }
    }

    /// One acquisition and release; returns whether both succeeded.
    async fn cycle(&mut self) -> anyhow::Result<bool> {
        match self {
            Self::Bare { bare, release, key } => {
                let token = token();
                ensure!(bare.set(key, &token).await?, "the bare lock was taken");
                bare.call(release, &[key], &token).await
            }
            Self::BareFence { bare, acquire, release, key, fence } => {
                let token = token();
                ensure!(bare.call(acquire, &[key, fence], &token).await?, "the lock was taken");
                bare.call(release, &[key], &token).await
            }
            Self::Floor { batches, keys } => batches.cycle(keys).await,
            Self::Rslock { manager, key } => {
                let ttl = Duration::from_millis(TTL_MS);
                let lock = manager.lock(key.as_bytes(), ttl).await?;
                manager.unlock(&lock).await;
                Ok(true)
            }
            Self::Flock(file) => {
                flock(&*file, FlockOperation::LockExclusive)?;
                flock(&*file, FlockOperation::Unlock)?;
                Ok(true)
            }
            Self::Map(map, key) => {
                let token = fastrand::u128(..);
                let map = || map.lock().unwrap_or_else(PoisonError::into_inner);
                std::hint::black_box(map().take(key, token).context("the lock was taken")?);
                Ok(map().free(key, token))
            }
            Self::EmbeddedFloor { floor, gate } => floor.cycle(gate).map(|()| true),
            Self::Library(mutex) => {
                let guard = mutex.try_lock().await?.context("the lock was taken")?;
                std::hint::black_box(guard.fence()?);
                Ok(guard.release_outcome().await? == Release::Released)
            }
        }
    }
}

/// The results of one turn.
pub(crate) struct Turn {
    cycles: u64,
    not_released: u64,
    wall: Duration,
    pub(crate) per_second: f64,
    latencies: Latencies,
    pub(crate) client_us: f64,
    pub(crate) server_us: f64,
    commands: f64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Uncontended> {
    let server = Server::start(args)?;
    let folder = tempfile::tempdir()?;
    let each_way = Duration::from_millis(args.delay);
    let relay = (args.delay > 0).then(|| Delay::start(server.addr(), each_way)).transpose()?;
    let url = relay.as_ref().map_or_else(|| server.url(), Delay::url);
    let bare = Bare::connect(&url).await?;
    let (acquire, release) = (bare.set_and_count().await?, bare.compare_and_delete().await?);
    let far = url.clone();
    let across = leasehold::driver()?.spawn(async move { Bare::connect(&far).await }).await??;
    let mut subjects = vec![
        (BARE, true, Subject::Bare { bare: bare.clone(), release: release.clone() }),
        (BARE_ACROSS, true, Subject::Bare { bare: across, release: release.clone() }),
        ("leasehold", true, Subject::Library(Client::connect(url.as_str()).await?)),
        (BARE_FENCE, true, Subject::BareFence { bare: bare.clone(), acquire, release }),
        (FLOOR, true, Subject::Floor(Batches::load(bare).await?)),
        ("rslock", true, Subject::Rslock(LockManager::new(vec![url.clone()]))),
        ("flock", false, Subject::Flock(folder.path().join("flock"))),
        ("map", false, Subject::Map(Arc::default())),
    ];
    if args.wants("embedded-floor") {
        let floor = EmbeddedFloor::open(&folder.path().join("floor"))?;
        subjects.push(("embedded-floor", false, Subject::EmbeddedFloor(floor)));
    }
    let path = folder.path().join("locks");
    for (variant, url) in
        [("memory", "memory:".to_owned()), ("embedded", format!("embedded:{}", path.display()))]
    {
        if args.wants(variant) {
            subjects.push((variant, false, Subject::Library(Client::connect(url).await?)));
        }
    }
    subjects.retain(|(variant, ..)| args.wants(variant));

    let mut turns: BTreeMap<(usize, usize), Vec<Turn>> = BTreeMap::new();
    for round in 0..=args.rounds() {
        // The first round only warms up.
        let length = if round == 0 { args.turn() / 10 } else { args.turn() };
        for (at, callers) in args.callers().into_iter().enumerate() {
            let mut pieces: BTreeMap<usize, Vec<Turn>> = BTreeMap::new();
            for _ in 0..args.pieces(length) {
                for (number, (variant, on_server, subject)) in subjects.iter().enumerate() {
                    // The other stores have no round trip that many callers could share.
                    if !on_server && callers > 1 {
                        continue;
                    }
                    let server = on_server.then_some(&server);
                    let piece = turn(subject, server, callers, length / args.pieces(length)).await;
                    let piece =
                        piece.with_context(|| format!("{variant} with {callers} callers"))?;
                    pieces.entry(number).or_default().push(piece);
                }
            }
            for (number, pieces) in pieces.into_iter().filter(|_| round > 0) {
                turns.entry((at, number)).or_default().push(Turn::joined(&pieces));
            }
        }
    }
    let rows = args.callers().into_iter().enumerate().flat_map(|(at, callers)| {
        let baseline = turns.get(&(at, 0)).filter(|_| args.wants(BARE));
        subjects.iter().enumerate().filter_map({
            let turns = &turns;
            move |(number, (variant, ..))| {
                let own = turns.get(&(at, number))?;
                Some(Row::of(variant, callers, own, baseline.map(Vec::as_slice)))
            }
        })
    });
    Ok(Uncontended { server: server.describe(), rows: rows.collect() })
}

pub(crate) async fn turn(
    subject: &Subject,
    server: Option<&Server>,
    callers: usize,
    length: Duration,
) -> anyhow::Result<Turn> {
    let latencies = Arc::new(Mutex::new(Latencies::new()));
    let mut tasks = JoinSet::new();
    let before = server.map(Server::calls);
    let meter = Meter::start(server);
    let until = Instant::now() + length;
    for mut caller in subject.tasks(callers)? {
        let latencies = Arc::clone(&latencies);
        tasks.spawn(async move {
            let (mut cycles, mut not_released, locks) = (0_u64, 0_u64, caller.locks());
            let mut begun = Instant::now();
            while begun < until {
                let released = caller.cycle().await?;
                let ended = Instant::now();
                latencies.lock().unwrap_or_else(PoisonError::into_inner).record(ended - begun);
                begun = ended;
                cycles += locks;
                not_released += u64::from(!released);
                // A store that answers at once never yields to other tasks and timers.
                if (cycles / locks).is_multiple_of(64) {
                    tokio::task::yield_now().await;
                }
            }
            anyhow::Ok((cycles, not_released))
        });
    }
    let (mut cycles, mut not_released) = (0, 0);
    while let Some(task) = tasks.join_next().await {
        let (its_cycles, its_not_released) = task??;
        cycles += its_cycles;
        not_released += its_not_released;
    }
    let reading = meter.read();
    let commands = server.zip(before).map_or(f64::NAN, |(server, before)| {
        // Scripts also call SET, so for leasehold only script calls count.
        let top: &[&str] = match subject {
            Subject::Bare { .. } | Subject::Rslock(_) => &["set", "evalsha", "eval"],
            _ => &["evalsha", "eval"],
        };
        server.calls().since(&before, top) as f64
    });
    let latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Turn {
        cycles,
        not_released,
        wall: reading.wall,
        per_second: cycles as f64 / reading.wall.as_secs_f64(),
        latencies,
        client_us: reading.client_us / cycles as f64,
        server_us: reading.server_us / cycles as f64,
        commands: commands / cycles as f64,
    })
}

impl Turn {
    /// Joins the pieces of one turn.
    fn joined(pieces: &[Self]) -> Self {
        let mean = |value: fn(&Self) -> f64| {
            weighted(pieces.iter().map(|piece| (value(piece), piece.cycles as f64)))
        };
        let latencies = Latencies::joined(pieces.iter().map(|piece| &piece.latencies));
        let cycles = pieces.iter().map(|piece| piece.cycles).sum();
        let wall: Duration = pieces.iter().map(|piece| piece.wall).sum();
        Self {
            cycles,
            not_released: pieces.iter().map(|piece| piece.not_released).sum(),
            wall,
            per_second: cycles as f64 / wall.as_secs_f64(),
            latencies,
            client_us: mean(|piece| piece.client_us),
            server_us: mean(|piece| piece.server_us),
            commands: mean(|piece| piece.commands),
        }
    }
}

impl Row {
    fn of(variant: &'static str, callers: usize, turns: &[Turn], bare: Option<&[Turn]>) -> Self {
        let spread = |value: fn(&Turn) -> f64| Spread::of(turns.iter().map(value));
        let per_second =
            |turns: &[Turn]| -> Vec<f64> { turns.iter().map(|turn| turn.per_second).collect() };
        Self {
            variant,
            callers,
            cycles: turns.iter().map(|turn| turn.cycles).sum(),
            not_released: turns.iter().map(|turn| turn.not_released).sum(),
            cycles_per_second: spread(|turn| turn.per_second),
            rates: per_second(turns),
            ratio_to_bare: bare
                .and_then(|bare| Spread::of_ratios(&per_second(turns), &per_second(bare))),
            p50_us: spread(|turn| turn.latencies.quantile_us(0.5)),
            p99_us: spread(|turn| turn.latencies.quantile_us(0.99)),
            client_us_per_cycle: spread(|turn| turn.client_us),
            server_us_per_cycle: spread(|turn| turn.server_us),
            commands_per_cycle: spread(|turn| turn.commands),
        }
    }
}
