//! Measures the renewal of many held locks.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use leasehold::store::{BoxFuture, Call, Capability, LockLog, Renew, Store, StoreLayer};
use leasehold::{Client, Guard, Release, Result};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::bare::{Bare, token};
use crate::cli::Args;
use crate::machine;
use crate::meter::Meter;
use crate::server::Server;
use crate::stats::Spread;

#[derive(Debug, Serialize)]
pub(crate) struct Renewals {
    pub(crate) server: String,
    pub(crate) locks: usize,
    pub(crate) ttl_ms: u64,
    pub(crate) seconds: f64,
    pub(crate) renewals: u64,
    pub(crate) failed: u64,
    /// Leases that ended before their release. Must be 0.
    pub(crate) lost: u64,
    pub(crate) renewals_per_second: Option<Spread>,
    /// Requests per renewal, by the server's own count.
    pub(crate) commands_per_renewal: Option<Spread>,
    pub(crate) client_us_per_renewal: Option<Spread>,
    pub(crate) server_us_per_renewal: Option<Spread>,
    pub(crate) bytes_per_lock: Option<Spread>,
    pub(crate) bare: Vec<BarePipelines>,
}

/// Compare-and-extend scripts in pipelines, each sent after the answer to the one before.
#[derive(Debug, Serialize)]
pub(crate) struct BarePipelines {
    /// How many scripts each pipeline has.
    pub(crate) scripts: usize,
    pub(crate) client_us_per_renewal: Option<Spread>,
    pub(crate) server_us_per_renewal: Option<Spread>,
    /// Leasehold's renewals per second of processor time of both sides, relative to these.
    pub(crate) ratio: Option<Spread>,
}

/// The first delays other clients no longer than leasehold's renewals do; the second is larger.
const PIPELINES: [usize; 2] = [20, 100];

pub(crate) const TTL: Duration = Duration::from_secs(3);

/// How often each lease is renewed: leasehold does it after a third of the ttl.
const RENEWED_EACH: Duration = Duration::from_secs(1);

pub(crate) struct Turn {
    renewals: u64,
    failed: u64,
    lost: u64,
    per_second: f64,
    commands: f64,
    pub(crate) client_us: f64,
    pub(crate) server_us: f64,
    pub(crate) bytes: f64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Renewals> {
    let server = Server::start(args)?;
    // At least two renewals of each lock.
    let length = args.turn().max(TTL);
    let locks = args.locks();
    let (mut turns, mut bare_turns) = (Vec::new(), [const { Vec::new() }; PIPELINES.len()]);
    for _ in 0..args.rounds() {
        turns.push(turn(&server, locks, length).await?);
        for (scripts, turns) in PIPELINES.into_iter().zip(&mut bare_turns) {
            turns.push(bare(&server, locks, scripts, length).await?);
        }
    }
    let spread = |value: fn(&Turn) -> f64| Spread::of(turns.iter().map(value));
    let per_cpu_second: Vec<f64> =
        turns.iter().map(|turn| 1e6 / (turn.client_us + turn.server_us)).collect();
    let bare = PIPELINES.into_iter().zip(&bare_turns).map(|(scripts, turns)| {
        let bare_per_cpu_second: Vec<f64> =
            turns.iter().map(|(client_us, server_us)| 1e6 / (client_us + server_us)).collect();
        BarePipelines {
            scripts,
            client_us_per_renewal: Spread::of(turns.iter().map(|turn| turn.0)),
            server_us_per_renewal: Spread::of(turns.iter().map(|turn| turn.1)),
            ratio: Spread::of_ratios(&per_cpu_second, &bare_per_cpu_second),
        }
    });
    Ok(Renewals {
        server: server.describe(),
        locks,
        ttl_ms: TTL.as_millis().try_into().unwrap_or(u64::MAX),
        seconds: length.as_secs_f64(),
        renewals: turns.iter().map(|turn| turn.renewals).sum(),
        failed: turns.iter().map(|turn| turn.failed).sum(),
        lost: turns.iter().map(|turn| turn.lost).sum(),
        renewals_per_second: spread(|turn| turn.per_second),
        commands_per_renewal: spread(|turn| turn.commands),
        client_us_per_renewal: spread(|turn| turn.client_us),
        server_us_per_renewal: spread(|turn| turn.server_us),
        // Later rounds reuse the memory that the first has freed.
        bytes_per_lock: Spread::of(turns.first().map(|turn| turn.bytes)),
        bare: bare.collect(),
    })
}

/// Some leases of one client, held and renewed.
pub(crate) struct Held {
    connected: Client,
    client: Client,
    counting: Arc<Counting>,
    guards: Vec<Guard>,
    /// The allocator's bytes for each.
    bytes: f64,
}

impl Held {
    pub(crate) async fn take(server: &Server, locks: usize, ttl: Duration) -> anyhow::Result<Self> {
        // The store that the URL selects, with a counter in front.
        let connected = Client::connect(server.url()).await?;
        let counting =
            Arc::new(Counting { inner: Arc::clone(connected.store()), counts: Arc::default() });
        let store: Arc<dyn Store> = Arc::<Counting>::clone(&counting);
        let client = Client::builder().ttl(ttl).store(store)?;
        // Allocates what the first lock needs before memory is counted.
        client.mutex("renew/first").lock().await?.release().await?;
        let before = machine::allocated_bytes();
        let guards = acquire(&client, locks).await?;
        let grown = before.zip(machine::allocated_bytes());
        let bytes = grown
            .map_or(f64::NAN, |(before, after)| after.saturating_sub(before) as f64 / locks as f64);
        Ok(Self { connected, client, counting, guards, bytes })
    }

    /// Renewals so far.
    pub(crate) fn renewed(&self) -> u64 {
        self.counting.counts.renewed.load(Ordering::Relaxed)
    }

    /// Releases all. Returns how many renewals failed, and how many leases ended before.
    pub(crate) async fn release(self) -> anyhow::Result<(u64, u64)> {
        let mut lost = self.guards.iter().filter(|guard| !guard.is_held()).count() as u64;
        let mut releases = JoinSet::new();
        for guard in self.guards {
            releases.spawn(guard.release_outcome());
        }
        while let Some(release) = releases.join_next().await {
            lost += u64::from(release?? != Release::Released);
        }
        let failed = self.counting.counts.failed.load(Ordering::Relaxed);
        self.client.close().await?;
        self.connected.close().await?;
        Ok((failed, lost))
    }
}

pub(crate) async fn turn(server: &Server, locks: usize, length: Duration) -> anyhow::Result<Turn> {
    let held = Held::take(server, locks, TTL).await?;
    let calls = server.calls();
    let meter = Meter::start(Some(server));
    let renewed = held.renewed();
    tokio::time::sleep(length).await;
    let renewals = held.renewed() - renewed;
    let reading = meter.read();
    let commands = server.calls().since(&calls, &["evalsha", "eval"]);
    let bytes = held.bytes;
    let (failed, lost) = held.release().await?;
    let each = renewals as f64;
    Ok(Turn {
        renewals,
        failed,
        lost,
        per_second: each / reading.wall.as_secs_f64(),
        commands: commands as f64 / each,
        client_us: reading.client_us / each,
        server_us: reading.server_us / each,
        bytes,
    })
}

async fn acquire(client: &Client, locks: usize) -> anyhow::Result<Vec<Guard>> {
    let mut guards = Vec::with_capacity(locks);
    // Few at a time, so that the counted memory belongs to held locks, not to requests.
    const AT_ONCE: usize = 50;
    while guards.len() < locks {
        let mut tasks = JoinSet::new();
        for number in guards.len()..locks.min(guards.len() + AT_ONCE) {
            let mutex = client.mutex(format!("renew/{number}"));
            tasks.spawn(async move { mutex.try_lock().await });
        }
        while let Some(task) = tasks.join_next().await {
            guards.push(task??.context("a lock was taken")?);
        }
    }
    Ok(guards)
}

/// Processor time per renewal, in µs, of this side and of the server.
async fn bare(
    server: &Server,
    locks: usize,
    scripts: usize,
    length: Duration,
) -> anyhow::Result<(f64, f64)> {
    let mut bare = Bare::connect(&server.url()).await?;
    let script = bare.compare_and_extend().await?;
    let token = token();
    let keys: Vec<String> =
        (0..locks).map(|number| format!("bare/{}/{number}", fastrand::u64(..))).collect();
    for key in &keys {
        bare.set(key, &token).await?;
    }
    let meter = Meter::start(Some(server));
    let begun = Instant::now();
    let mut renewals = 0_u64;
    // As often as leasehold's, with rests between: a processor that slept finds cold caches.
    for due in (0..).map(|time| RENEWED_EACH * time).take_while(|due| *due < length) {
        tokio::time::sleep_until((begun + due).into()).await;
        for keys in keys.chunks(scripts) {
            renewals += bare.extend_all(&script, keys, &token).await?;
        }
    }
    tokio::time::sleep_until((begun + length).into()).await;
    let reading = meter.read();
    Ok((reading.client_us / renewals as f64, reading.server_us / renewals as f64))
}

/// A store that counts the renewals that pass through it.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Store>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    renewed: AtomicU64,
    failed: AtomicU64,
}

impl StoreLayer for Counting {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: Duration,
    ) -> BoxFuture<'a, C::Answer> {
        Box::pin(async move {
            let answer = call.send(&*self.inner, within).await;
            if let Some(answers) = (&answer as &dyn Any).downcast_ref::<Vec<Result<Renew>>>() {
                let proves = |answer: &&Result<Renew>| {
                    answer.as_ref().is_ok_and(|answer| answer.proves().is_some())
                };
                let renewed = answers.iter().filter(proves).count();
                let Counts { renewed: all, failed } = &*self.counts;
                all.fetch_add(renewed as u64, Ordering::Relaxed);
                failed.fetch_add((answers.len() - renewed) as u64, Ordering::Relaxed);
            }
            answer
        })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        self.inner.log()
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}
