//! Measures what other clients of a server notice while very many leases are renewed.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::ensure;
use leasehold::DEFAULT_TTL;
use serde::Serialize;

use crate::cli::Args;
use crate::renew::Held;
use crate::server::Server;
use crate::stats::{Latencies, Spread};

/// PING of another connection, sent every millisecond.
#[derive(Debug, Serialize)]
pub(crate) struct Others {
    pub(crate) server: String,
    pub(crate) leases: usize,
    pub(crate) ttl_ms: u64,
    pub(crate) renewals_per_second: Option<Spread>,
    pub(crate) failed: u64,
    /// Leases that ended before their release. Must be 0.
    pub(crate) lost: u64,
    pub(crate) idle_p50_us: Option<Spread>,
    pub(crate) idle_p99_us: Option<Spread>,
    pub(crate) renewing_p50_us: Option<Spread>,
    pub(crate) renewing_p99_us: Option<Spread>,
    /// The ratio of the 99th percentiles within each round.
    pub(crate) ratio: Option<Spread>,
}

const EVERY: Duration = Duration::from_millis(1);

/// More rounds take long and show the same.
const ROUNDS: u32 = 3;

pub(crate) async fn run(args: &Args) -> anyhow::Result<Others> {
    let server = Server::start(args)?;
    let (leases, ttl) =
        if args.quick { (2000, Duration::from_secs(3)) } else { (100_000, DEFAULT_TTL) };
    // Each lease is renewed once in this time.
    let length = ttl / 3;
    let rounds = args.rounds().min(ROUNDS);
    let (mut idle, mut renewing, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let (mut failed, mut lost) = (0, 0);
    for _ in 0..rounds {
        // Leases acquired in one moment are also renewed in one moment. By the end of this time,
        // that is long over.
        idle.push(pings(&server, length / 2).await?);
        let held = Held::take(&server, leases, ttl).await?;
        let (renewed, begun) = (held.renewed(), Instant::now());
        renewing.push(pings(&server, length).await?);
        rates.push((held.renewed() - renewed) as f64 / begun.elapsed().as_secs_f64());
        let (its_failed, its_lost) = held.release().await?;
        failed += its_failed;
        lost += its_lost;
    }
    let quantiles = |all: &[Latencies], quantile| -> Vec<f64> {
        all.iter().map(|latencies| latencies.quantile_us(quantile)).collect()
    };
    let (idle_p99, renewing_p99) = (quantiles(&idle, 0.99), quantiles(&renewing, 0.99));
    Ok(Others {
        server: server.describe(),
        leases,
        ttl_ms: ttl.as_millis().try_into().unwrap_or(u64::MAX),
        renewals_per_second: Spread::of(rates),
        failed,
        lost,
        idle_p50_us: Spread::of(quantiles(&idle, 0.5)),
        renewing_p50_us: Spread::of(quantiles(&renewing, 0.5)),
        ratio: Spread::of_ratios(&renewing_p99, &idle_p99),
        idle_p99_us: Spread::of(idle_p99),
        renewing_p99_us: Spread::of(renewing_p99),
    })
}

/// Sends from another thread, as another process would.
async fn pings(server: &Server, length: Duration) -> anyhow::Result<Latencies> {
    let addr = server.addr();
    tokio::task::spawn_blocking(move || ask(addr, length)).await?
}

fn ask(addr: SocketAddr, length: Duration) -> anyhow::Result<Latencies> {
    let mut connection = TcpStream::connect(addr)?;
    connection.set_nodelay(true)?;
    let mut latencies = Latencies::new();
    let begun = Instant::now();
    let mut due = begun;
    let mut answer = [0; 7];
    while begun.elapsed() < length {
        due += EVERY;
        // If the PING before delayed this one, its time counts from when it was due.
        let left = due.saturating_duration_since(Instant::now());
        let sent = if left.is_zero() {
            due
        } else {
            std::thread::sleep(left);
            Instant::now()
        };
        connection.write_all(b"PING\r\n")?;
        connection.read_exact(&mut answer)?;
        ensure!(&answer == b"+PONG\r\n", "another answer to PING than PONG");
        latencies.record(sent.elapsed());
        // After a long stall of the machine, the missed PINGs are skipped.
        due = due.max(Instant::now().checked_sub(10 * EVERY).unwrap_or(due));
    }
    Ok(latencies)
}
