//! Runs one turn: all contenders want one lock, hold it, and rejoin after another holder.
//!
//! So every hand-off goes to another contender.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::handoff::contender::{Contender, Variant, connect};
use crate::meter::Meter;
use crate::server::Server;
use crate::stats::{Latencies, jain, weighted};

/// The results of one turn; all but the rate are per hand-off.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) handoffs: u64,
    latencies: Latencies,
    wall: Duration,
    pub(crate) overlaps: u64,
    pub(crate) not_released: u64,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) rtt_us: f64,
    pub(crate) commands: f64,
    pub(crate) publishes: f64,
    pub(crate) server_us: f64,
    pub(crate) client_us: f64,
    pub(crate) jain: f64,
    pub(crate) longest_wait: f64,
}

impl Turn {
    /// Joins the pieces of one turn.
    pub(crate) fn joined(pieces: &[Self]) -> Self {
        let mean = |value: fn(&Self) -> f64| {
            weighted(pieces.iter().map(|piece| (value(piece), piece.handoffs as f64)))
        };
        let latencies = Latencies::joined(pieces.iter().map(|piece| &piece.latencies));
        let handoffs = pieces.iter().map(|piece| piece.handoffs).sum();
        let wall: Duration = pieces.iter().map(|piece| piece.wall).sum();
        Self {
            handoffs,
            wall,
            overlaps: pieces.iter().map(|piece| piece.overlaps).sum(),
            not_released: pieces.iter().map(|piece| piece.not_released).sum(),
            per_second: handoffs as f64 / wall.as_secs_f64(),
            p50_us: latencies.quantile_us(0.5),
            p99_us: latencies.quantile_us(0.99),
            latencies,
            rtt_us: mean(|piece| piece.rtt_us),
            commands: mean(|piece| piece.commands),
            publishes: mean(|piece| piece.publishes),
            server_us: mean(|piece| piece.server_us),
            client_us: mean(|piece| piece.client_us),
            jain: mean(|piece| piece.jain),
            longest_wait: pieces.iter().map(|piece| piece.longest_wait).fold(f64::NAN, f64::max),
        }
    }
}

#[derive(Debug)]
struct Arena(Mutex<State>);

#[derive(Debug)]
struct State {
    handoffs: Latencies,
    holds: Latencies,
    /// When the last release began, until another holder has the lock.
    released_at: Option<Instant>,
    /// Wakes the last holder, once another one has the lock.
    rejoin: Option<oneshot::Sender<()>>,
    inside: u32,
    overlaps: u64,
    not_released: u64,
    /// Since when each contender waits.
    asked: Vec<Option<Instant>>,
    turns: Vec<u64>,
    longest_wait: Duration,
}

impl Arena {
    fn new(waiters: usize) -> Self {
        Self(Mutex::new(State {
            handoffs: Latencies::new(),
            holds: Latencies::new(),
            released_at: None,
            rejoin: None,
            inside: 0,
            overlaps: 0,
            not_released: 0,
            asked: vec![None; waiters],
            turns: vec![0; waiters],
            longest_wait: Duration::ZERO,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asks(&self, who: usize) {
        if let Some(asked) = self.state().asked.get_mut(who) {
            *asked = Some(Instant::now());
        }
    }

    fn acquired(&self, who: usize) -> Instant {
        let now = Instant::now();
        let mut state = self.state();
        state.inside += 1;
        state.overlaps += u64::from(state.inside > 1);
        if let Some(released_at) = state.released_at.take() {
            state.handoffs.record(now - released_at);
        }
        if let Some(asked) = state.asked.get_mut(who).and_then(Option::take) {
            state.longest_wait = state.longest_wait.max(now - asked);
        }
        if let Some(turns) = state.turns.get_mut(who) {
            *turns += 1;
        }
        if let Some(rejoin) = state.rejoin.take() {
            // The receivers end with the turn.
            let _gone: Result<_, _> = rejoin.send(());
        }
        now
    }

    fn releases(&self, since: Instant) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let now = Instant::now();
        let mut state = self.state();
        state.inside -= 1;
        state.holds.record(now - since);
        state.released_at = Some(now);
        state.rejoin = Some(sender);
        receiver
    }

    fn released(&self, in_time: bool) {
        self.state().not_released += u64::from(!in_time);
    }

    fn reset(&self) {
        let mut state = self.state();
        state.handoffs.clear();
        state.holds.clear();
        state.turns.fill(0);
        state.longest_wait = Duration::ZERO;
    }
}

async fn contend(
    arena: Arc<Arena>,
    who: usize,
    mut contender: Contender,
    hold: Duration,
) -> anyhow::Result<()> {
    loop {
        arena.asks(who);
        let held = contender.lock().await?;
        let since = arena.acquired(who);
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        let rejoin = arena.releases(since);
        let in_time = contender.release(held).await?;
        arena.released(in_time);
        rejoin.await.context("the turn is over")?;
    }
}

pub(crate) async fn turn(
    server: &Server,
    url: &str,
    variant: Variant,
    waiters: usize,
    hold: Duration,
    length: Duration,
    rtt: Duration,
) -> anyhow::Result<Turn> {
    let key = format!("handoff/{}", fastrand::u64(..));
    let (contenders, clients) = connect(url, variant, waiters, &key).await?;
    let arena = Arc::new(Arena::new(waiters));
    let mut tasks = JoinSet::new();
    for (who, contender) in contenders.into_iter().enumerate() {
        tasks.spawn(contend(Arc::clone(&arena), who, contender, hold));
    }
    // By the time that all have requested, those who can queue have done so. If the queue is served
    // in turn, all have.
    let together = Duration::from_millis(5).saturating_mul(u32::try_from(waiters)?);
    let warm_up = Instant::now() + length.max(Duration::from_millis(250)) * 4 + together;
    let is_warm = |turns: &[u64]| {
        if variant.serves_in_turn() {
            turns.iter().all(|had| *had > 0)
        } else {
            turns.iter().sum::<u64>() >= waiters.min(200) as u64
        }
    };
    while !is_warm(&arena.state().turns) && Instant::now() < warm_up {
        pause(&mut tasks, Duration::from_millis(2)).await?;
    }
    let (before, meter) = (calls(server).await?, start(server).await?);
    arena.reset();
    let begun = Instant::now();
    // Long enough for several turns each, or the shares would look uneven.
    loop {
        pause(&mut tasks, length / 4).await?;
        let enough = arena.state().handoffs.count() >= 8 * waiters as u64;
        let elapsed = begun.elapsed();
        if elapsed >= length && (enough || elapsed >= length * 5) {
            break;
        }
    }
    let mut state = {
        let arena = arena.state();
        (arena.handoffs.clone(), arena.holds.clone(), arena.turns.clone(), arena.longest_wait)
    };
    let wall = begun.elapsed();
    let after = calls(server).await?;
    let reading = tokio::task::spawn_blocking(move || meter.read()).await?;
    let (overlaps, not_released) = {
        let arena = arena.state();
        let waiting = arena.asked.iter().flatten().map(Instant::elapsed).max();
        state.3 = state.3.max(waiting.unwrap_or_default());
        (arena.overlaps, arena.not_released)
    };
    tasks.shutdown().await;
    for client in clients {
        client.close().await?;
    }

    let (handoffs, holds, turns, longest_wait) = state;
    let count = handoffs.count();
    let each = count as f64;
    // A hold takes some time, however short; the clock measures it.
    let period_us = handoffs.mean_us() + holds.mean_us();
    Ok(Turn {
        handoffs: count,
        overlaps,
        not_released,
        per_second: each / wall.as_secs_f64(),
        p50_us: handoffs.quantile_us(0.5),
        p99_us: handoffs.quantile_us(0.99),
        latencies: handoffs,
        wall,
        rtt_us: rtt.as_secs_f64() * 1e6,
        commands: after.since(&before, variant.requests()) as f64 / each,
        publishes: after.since(&before, &["publish"]) as f64 / each,
        server_us: reading.server_us / each,
        client_us: reading.client_us / each,
        jain: jain(&turns),
        longest_wait: longest_wait.as_secs_f64() * 1e6 / (waiters as f64 * period_us),
    })
}

/// Waits, unless a task fails.
async fn pause(tasks: &mut JoinSet<anyhow::Result<()>>, length: Duration) -> anyhow::Result<()> {
    tokio::select! {
        () = tokio::time::sleep(length) => Ok(()),
        ended = tasks.join_next() => ended.context("nobody is left")??.and_then(|()| {
            anyhow::bail!("a contender stopped")
        }),
    }
}

/// Reads the server's counts on another thread, so that the contenders continue.
async fn calls(server: &Server) -> anyhow::Result<crate::server::Calls> {
    let server = server.clone();
    Ok(tokio::task::spawn_blocking(move || server.calls()).await?)
}

async fn start(server: &Server) -> anyhow::Result<Meter> {
    let server = server.clone();
    Ok(tokio::task::spawn_blocking(move || Meter::start(Some(&server))).await?)
}
