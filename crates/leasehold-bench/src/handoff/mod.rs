//! Measures hand-offs: from the start of a release until the next contender has the lock.

mod arena;
mod contender;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;

use crate::bare::Bare;
use crate::cli::Args;
use crate::delay::Delay;
use crate::server::Server;
use crate::stats::{Latencies, Spread};

pub(crate) use self::arena::{Turn, turn};
pub(crate) use self::contender::Variant;

/// What to measure.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    waiters: Vec<usize>,
    holds: Vec<Duration>,
    delay: Duration,
    /// The least length of each turn.
    least: Duration,
    variants: Vec<Variant>,
}

impl Plan {
    pub(crate) fn of(args: &Args) -> Self {
        let waiters: &[usize] = match &*args.waiters {
            [] if args.quick => &[3],
            [] => &[2, 16, 64, 100, 1000],
            waiters => waiters,
        };
        let hold: &[u64] = if args.hold.is_empty() { &[0] } else { &args.hold };
        Self {
            waiters: waiters.to_vec(),
            holds: hold.iter().map(|ms| Duration::from_millis(*ms)).collect(),
            delay: Duration::from_millis(args.delay),
            least: Duration::ZERO,
            variants: Variant::ALL.into_iter().filter(|v| args.wants(v.name())).collect(),
        }
    }

    /// As far away as a server in another building: here only the round trips count.
    pub(crate) fn delayed(args: &Args) -> Self {
        let variants = [
            Variant::Leasehold,
            Variant::BareFifo,
            Variant::LineFloorApart,
            Variant::Message,
            Variant::BlockingPop,
            Variant::PublishToAll,
        ];
        Self {
            waiters: if args.quick { vec![3] } else { vec![2, 16, 64] },
            holds: vec![Duration::from_millis(3)],
            delay: Duration::from_millis(1),
            // There are only some 150 hand-offs a second, and a 99th percentile needs hundreds.
            least: if args.quick { Duration::ZERO } else { Duration::from_secs(2) },
            variants: variants.into_iter().filter(|v| args.wants(v.name())).collect(),
        }
    }

    /// How many pieces a turn has. A crowd takes longer to gather than a piece lasts. With a delay,
    /// a piece must be long enough for a hundred hand-offs.
    fn pieces(&self, args: &Args, turn: Duration, waiters: usize) -> u32 {
        match args.pieces(turn) {
            _ if waiters > 100 => 1,
            pieces if self.delay.is_zero() => pieces,
            pieces => pieces.div_ceil(10),
        }
    }
}

impl Handoff {
    pub(crate) fn row(&self, variant: &str, waiters: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.variant == variant && row.waiters == waiters)
    }

    /// The ratio of two variants' hand-offs per second, within each round.
    pub(crate) fn ratio(&self, above: &str, below: &str, waiters: usize) -> Option<Spread> {
        let (above, below) = (format!("{above} with {waiters}"), format!("{below} with {waiters}"));
        let found = self.ratios.iter().find(|it| it.above == above && it.below == below);
        found?.ratio
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Handoff {
    pub(crate) server: String,
    pub(crate) delay_each_way_ms: f64,
    /// The median of PING, through the same delay, before each turn of each variant.
    pub(crate) rtt_us: Option<Spread>,
    pub(crate) rows: Vec<Row>,
    pub(crate) ratios: Vec<Ratio>,
}

/// One variant with one number of waiters and one hold time.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) variant: &'static str,
    pub(crate) waiters: usize,
    pub(crate) hold_ms: f64,
    pub(crate) handoffs: u64,
    /// Moments with two holders inside. Must be 0.
    pub(crate) overlaps: u64,
    pub(crate) not_released: u64,
    pub(crate) handoffs_per_second: Option<Spread>,
    pub(crate) p50_us: Option<Spread>,
    pub(crate) p99_us: Option<Spread>,
    pub(crate) p50_rtt: Option<Spread>,
    pub(crate) p99_rtt: Option<Spread>,
    /// Requests of clients, by the server's own count.
    pub(crate) commands_per_handoff: Option<Spread>,
    /// PUBLISH, from inside scripts or not.
    pub(crate) publishes_per_handoff: Option<Spread>,
    pub(crate) server_us_per_handoff: Option<Spread>,
    pub(crate) client_us_per_handoff: Option<Spread>,
    pub(crate) jain: Option<Spread>,
    /// The longest wait, as a multiple of waiters × (hold + hand-off) at their means.
    pub(crate) longest_wait: Option<Spread>,
}

/// A variant's hand-offs per second, relative to others in the same round.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) above: String,
    pub(crate) below: String,
    pub(crate) hold_ms: f64,
    pub(crate) ratio: Option<Spread>,
}

type Key = (usize, usize, usize);

pub(crate) async fn run(args: &Args, plan: &Plan) -> anyhow::Result<Handoff> {
    let server = Server::start(args)?;
    let delay = match plan.delay {
        Duration::ZERO => None,
        delay => Some(Delay::start(server.addr(), delay)?),
    };
    let url = delay.as_ref().map_or_else(|| server.url(), Delay::url);
    let mut ping = Bare::connect(&url).await?;
    let mut turns: BTreeMap<Key, Vec<Turn>> = BTreeMap::new();
    let mut rtts = Vec::new();
    for _ in 0..args.rounds() {
        for (h, hold) in plan.holds.iter().enumerate() {
            for (n, waiters) in plan.waiters.iter().enumerate() {
                let length = args.turn().max(plan.least);
                let count = plan.pieces(args, length, *waiters);
                let mut pieces: BTreeMap<usize, Vec<Turn>> = BTreeMap::new();
                for _ in 0..count {
                    for (v, variant) in plan.variants.iter().enumerate() {
                        if *waiters > variant.max_waiters() {
                            continue;
                        }
                        let rtt = round_trip(&mut ping, args.quick).await?;
                        rtts.push(rtt.as_secs_f64() * 1e6);
                        let piece =
                            turn(&server, &url, *variant, *waiters, *hold, length / count, rtt);
                        let piece = piece.await.with_context(|| {
                            format!("{} with {waiters} waiters", variant.name())
                        })?;
                        pieces.entry(v).or_default().push(piece);
                    }
                }
                for (v, pieces) in pieces {
                    turns.entry((h, n, v)).or_default().push(Turn::joined(&pieces));
                }
            }
        }
    }
    let mut rows = Vec::new();
    for ((h, n, v), turns) in &turns {
        let (Some(hold), Some(waiters), Some(variant)) =
            (plan.holds.get(*h), plan.waiters.get(*n), plan.variants.get(*v))
        else {
            continue;
        };
        rows.push(Row::of(*variant, *waiters, *hold, turns));
    }
    Ok(Handoff {
        server: server.describe(),
        delay_each_way_ms: plan.delay.as_secs_f64() * 1e3,
        rtt_us: Spread::of(rtts),
        rows,
        ratios: ratios(plan, &turns),
    })
}

async fn round_trip(ping: &mut Bare, quick: bool) -> anyhow::Result<Duration> {
    let mut latencies = Latencies::new();
    for _ in 0..if quick { 10 } else { 100 } {
        let sent = Instant::now();
        ping.ping().await?;
        latencies.record(sent.elapsed());
    }
    Ok(Duration::from_secs_f64(latencies.quantile_us(0.5) / 1e6))
}

fn ratios(plan: &Plan, turns: &BTreeMap<Key, Vec<Turn>>) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for (h, hold) in plan.holds.iter().enumerate() {
        let at = |variant: Variant, waiters: usize| -> Option<(String, Vec<f64>)> {
            let n = plan.waiters.iter().position(|n| *n == waiters)?;
            let v = plan.variants.iter().position(|v| *v == variant)?;
            let rates = turns.get(&(h, n, v))?.iter().map(|turn| turn.per_second).collect();
            Some((format!("{} with {waiters}", variant.name()), rates))
        };
        let mut ratio = |above: Option<(String, Vec<f64>)>, below: Option<(String, Vec<f64>)>| {
            if let (Some((above, its)), Some((below, others))) = (above, below) {
                let ratio = Spread::of_ratios(&its, &others);
                ratios.push(Ratio { above, below, hold_ms: hold.as_secs_f64() * 1e3, ratio });
            }
        };
        for waiters in &plan.waiters {
            for other in plan.variants.iter().filter(|v| !v.is_ours()) {
                ratio(at(Variant::Leasehold, *waiters), at(*other, *waiters));
            }
            for floor in [Variant::LineFloor, Variant::LineFloorApart] {
                ratio(at(floor, *waiters), at(Variant::BareFifo, *waiters));
            }
            for local in [Variant::OneClient, Variant::TwoClients] {
                ratio(at(local, *waiters), at(Variant::Leasehold, *waiters));
            }
        }
        if let (Some(fewest), Some(most)) = (plan.waiters.iter().min(), plan.waiters.iter().max())
            && fewest < most
        {
            for variant in &plan.variants {
                ratio(at(*variant, *most), at(*variant, *fewest));
            }
        }
    }
    ratios
}

impl Row {
    fn of(variant: Variant, waiters: usize, hold: Duration, turns: &[Turn]) -> Self {
        let spread = |value: &dyn Fn(&Turn) -> f64| Spread::of(turns.iter().map(value));
        Self {
            variant: variant.name(),
            waiters,
            hold_ms: hold.as_secs_f64() * 1e3,
            handoffs: turns.iter().map(|turn| turn.handoffs).sum(),
            overlaps: turns.iter().map(|turn| turn.overlaps).sum(),
            not_released: turns.iter().map(|turn| turn.not_released).sum(),
            handoffs_per_second: spread(&|turn| turn.per_second),
            p50_us: spread(&|turn| turn.p50_us),
            p99_us: spread(&|turn| turn.p99_us),
            p50_rtt: spread(&|turn| turn.p50_us / turn.rtt_us),
            p99_rtt: spread(&|turn| turn.p99_us / turn.rtt_us),
            commands_per_handoff: spread(&|turn| turn.commands),
            publishes_per_handoff: spread(&|turn| turn.publishes),
            server_us_per_handoff: spread(&|turn| turn.server_us),
            client_us_per_handoff: spread(&|turn| turn.client_us),
            jain: spread(&|turn| turn.jain),
            longest_wait: spread(&|turn| turn.longest_wait),
        }
    }
}
