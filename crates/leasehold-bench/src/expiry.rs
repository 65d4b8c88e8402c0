//! Measures how soon a waiter gets a dead holder's lock, and what that costs the server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use leasehold::{Client, Guard, Release};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::bare::Bare;
use crate::cli::Args;
use crate::server::Server;
use crate::stats::{Latencies, Spread};

#[derive(Debug, Serialize)]
pub(crate) struct Expiry {
    pub(crate) server: String,
    pub(crate) takeovers: Vec<Takeovers>,
    pub(crate) herd: Herd,
}

/// One waiter for each dead holder.
#[derive(Debug, Serialize)]
pub(crate) struct Takeovers {
    /// How many other keys were expiring in the server at the same time.
    pub(crate) other_keys: usize,
    pub(crate) ttl_ms: u64,
    pub(crate) takeovers: u64,
    /// Take-overs before the lease could have expired. Must be 0.
    pub(crate) early: u64,
    pub(crate) not_released: u64,
    /// Counted from the moment of the lease's *request* plus its ttl, which is before the server's
    /// own count ends.
    pub(crate) late_p50_us: Option<Spread>,
    pub(crate) late_p99_us: Option<Spread>,
    pub(crate) late_max_us: Option<Spread>,
    /// Without the holder's request, the waiter's enqueuing and the release.
    pub(crate) commands_per_takeover: Option<Spread>,
}

/// Many waiting clients for one dead holder.
#[derive(Debug, Serialize)]
pub(crate) struct Herd {
    pub(crate) waiters: usize,
    pub(crate) late_us: Option<Spread>,
    /// All requests of the clients from before the expiry until well after the take-over.
    pub(crate) commands: Option<Spread>,
}

const TTL: Duration = Duration::from_millis(300);

pub(crate) async fn run(args: &Args) -> anyhow::Result<Expiry> {
    let server = Server::start(args)?;
    let holders = Client::connect(server.url()).await?;
    let waiters = Client::connect(server.url()).await?;
    let at_once = if args.quick { 4 } else { 25 };
    let batches = if args.quick { 1 } else { 4 };
    // Opens the waiters' notification channel; a client's first wait does that once.
    batch(&holders, &waiters, 1, &mut Latencies::new()).await?;

    let (others, in_herd) = if args.quick { (1000, 20) } else { (100_000, 1000) };
    let mut bare = Bare::connect(&server.url()).await?;
    let mut turns: [Vec<Turn>; 2] = [Vec::new(), Vec::new()];
    let mut herds = Vec::new();
    for _ in 0..args.rounds() {
        for (other_keys, turns) in [0, others].into_iter().zip(&mut turns) {
            // Distributed over the time of the batches, with some before and after.
            let lasting = 1000 + 900 * batches;
            bare.fill("other/", other_keys, 200..lasting).await?;
            let before = server.calls();
            let mut turn = Turn::default();
            for _ in 0..batches {
                let (early, not_released) =
                    batch(&holders, &waiters, at_once, &mut turn.late).await?;
                turn.early += early;
                turn.not_released += not_released;
            }
            let commands = server.calls().since(&before, &["evalsha", "eval"]) as f64;
            turn.commands = commands / turn.late.count() as f64 - 3.0;
            turns.push(turn);
            // The remaining keys must not disturb the next measurement, which has none.
            drop(server.command(&["FLUSHALL", "SYNC"]));
        }
        herds.push(herd(&server, in_herd).await?);
    }
    holders.close().await?;
    waiters.close().await?;
    let [none, many] = turns;
    Ok(Expiry {
        server: server.describe(),
        takeovers: vec![Takeovers::of(0, &none), Takeovers::of(others, &many)],
        herd: Herd {
            waiters: in_herd,
            late_us: Spread::of(herds.iter().map(|(late, _)| late.as_secs_f64() * 1e6)),
            commands: Spread::of(herds.iter().map(|(_, commands)| *commands as f64)),
        },
    })
}

struct Turn {
    late: Latencies,
    early: u64,
    not_released: u64,
    commands: f64,
}

impl Default for Turn {
    fn default() -> Self {
        Self { late: Latencies::new(), early: 0, not_released: 0, commands: f64::NAN }
    }
}

impl Takeovers {
    fn of(other_keys: usize, turns: &[Turn]) -> Self {
        let spread = |value: &dyn Fn(&Turn) -> f64| Spread::of(turns.iter().map(value));
        Self {
            other_keys,
            ttl_ms: TTL.as_millis().try_into().unwrap_or(u64::MAX),
            takeovers: turns.iter().map(|turn| turn.late.count()).sum(),
            early: turns.iter().map(|turn| turn.early).sum(),
            not_released: turns.iter().map(|turn| turn.not_released).sum(),
            late_p50_us: spread(&|turn| turn.late.quantile_us(0.5)),
            late_p99_us: spread(&|turn| turn.late.quantile_us(0.99)),
            late_max_us: spread(&|turn| turn.late.max_us()),
            commands_per_takeover: spread(&|turn| turn.commands),
        }
    }
}

/// Some locks whose holders die at different moments, with one waiter each. Returns how many were
/// granted too early, and how many new leases ended before their release.
async fn batch(
    holders: &Client,
    waiters: &Client,
    count: usize,
    late: &mut Latencies,
) -> anyhow::Result<(u64, u64)> {
    let lateness = Arc::new(Mutex::new(late.clone()));
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let key = format!("expiry/{number}/{}", fastrand::u64(..));
        let holder = holders.mutex(&key).ttl(TTL).renew(false);
        let waiter = waiters.mutex(&key);
        let lateness = Arc::clone(&lateness);
        tasks.spawn(async move {
            tokio::time::sleep(TTL.mul_f64(fastrand::f64())).await;
            let asked = Instant::now();
            let guard = holder.try_lock().await?.context("the lock was taken")?;
            die(guard);
            let next = waiter.lock().await?;
            let lasted = asked.elapsed();
            let early = lasted < TTL;
            let late = lasted.saturating_sub(TTL);
            lateness.lock().unwrap_or_else(PoisonError::into_inner).record(late);
            let released = next.release_outcome().await? == Release::Released;
            anyhow::Ok((u64::from(early), u64::from(!released)))
        });
    }
    let (mut early, mut not_released) = (0, 0);
    while let Some(task) = tasks.join_next().await {
        let (its_early, its_not_released) = task??;
        early += its_early;
        not_released += its_not_released;
    }
    *late = lateness.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok((early, not_released))
}

/// Like the death of the holder's process: the store is not notified.
fn die(guard: Guard) {
    std::mem::forget(guard);
}

/// How late one of `waiting` clients has the lock, and how many requests all of them sent.
async fn herd(server: &Server, waiting: usize) -> anyhow::Result<(Duration, u64)> {
    let mut clients = Vec::new();
    for _ in 0..waiting {
        clients.push(Client::connect(server.url()).await?);
    }
    let holder = Client::connect(server.url()).await?;
    let mut outcome = None;
    // Longer leases are for busy machines, on which the waiters take longer to queue. No whole
    // seconds: every waiter looks at its clock once in each second, and all of these share one
    // core.
    for ttl in [1600, 3600, 7400, 15_600].map(Duration::from_millis) {
        outcome = stampede(server, &clients, &holder, ttl).await?;
        if outcome.is_some() {
            break;
        }
    }
    for client in clients {
        client.close().await?;
    }
    holder.close().await?;
    outcome.with_context(|| format!("{waiting} waiters did not get into line; is the machine busy"))
}

/// `None` if some waiter was not queued in time.
async fn stampede(
    server: &Server,
    clients: &[Client],
    holder: &Client,
    ttl: Duration,
) -> anyhow::Result<Option<(Duration, u64)>> {
    let key = format!("herd/{}", fastrand::u64(..));
    let asked = Instant::now();
    let guard = holder.mutex(&key).ttl(ttl).renew(false).try_lock().await?;
    die(guard.context("the lock was taken")?);
    let mut tasks = JoinSet::new();
    for client in clients {
        let mutex = client.mutex(&key);
        tasks.spawn(async move { mutex.lock().await });
    }
    loop {
        let info = holder.inspect(&key).await?;
        // Half of it must be left, so that the cost of queuing is over by the end.
        if asked.elapsed() > ttl / 2 {
            tasks.shutdown().await;
            return Ok(None);
        }
        if info.is_some_and(|info| info.waiters.len() == clients.len()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = server.calls();
    let first = tasks.join_next().await.context("there are waiters")??;
    let late = asked.elapsed().saturating_sub(ttl);
    // By then, any other client that the expiry wakes has sent its requests.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let commands = server.calls().since(&before, &["evalsha", "eval"]);
    drop(first?);
    tasks.shutdown().await;
    Ok(Some((late, commands)))
}
