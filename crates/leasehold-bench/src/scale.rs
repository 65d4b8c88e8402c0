//! Measures what grows with the number of names, clients and held leases.

use std::time::Duration;

use anyhow::Context as _;
use leasehold::Client;
use leasehold::store::Mode;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::bare::Bare;
use crate::cli::Args;
use crate::crowd::{self, Crowd};
use crate::handoff::{self, Variant};
use crate::renew;
use crate::server::Server;
use crate::stats::Spread;
use crate::uncontended::{self, Subject};

/// One size of something.
#[derive(Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) size: usize,
    pub(crate) per_second: Option<Spread>,
    /// Relative to the bare pair within each round, or to the smallest size.
    pub(crate) ratio: Option<Spread>,
    pub(crate) client_us: Option<Spread>,
    pub(crate) server_us: Option<Spread>,
    pub(crate) bytes: Option<Spread>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Scale {
    /// Cycles of 64 callers while the server remembers this many locks; bytes are the server's.
    pub(crate) names: Vec<Point>,
    /// Cycles of this many clients with one connection and one caller each.
    pub(crate) clients: Vec<Point>,
    /// Renewals of this many held leases, per second of processor time of both sides.
    pub(crate) holders: Vec<Point>,
    /// Hand-offs of one lock among this many waiters of one client.
    pub(crate) waiters: Vec<Point>,
    /// One lock with this many waiters in its queue.
    pub(crate) line: Vec<Crowd>,
    /// One lock with this many sharers.
    pub(crate) shared: Vec<Crowd>,
    /// One lock with this many permits held.
    pub(crate) permits: Vec<Crowd>,
}

const CALLERS: usize = 64;

pub(crate) async fn run(args: &Args, step: impl Fn(&str) + Send + Sync) -> anyhow::Result<Scale> {
    let sizes: &[usize] = if args.quick { &[10, 100] } else { &[10, 100, 1000, 10_000] };
    let (count, limit) = (1.try_into()?, 100_000.try_into()?);
    let (mut line, mut shared, mut permits) = (Vec::new(), Vec::new(), Vec::new());
    for size in sizes {
        step(&format!("{size} in the line of a lock"));
        line.push(crowd::waiting(args, *size).await?);
        step(&format!("{size} sharing a lock"));
        shared.push(crowd::holding(args, Mode::Shared, *size).await?);
        permits.push(crowd::holding(args, Mode::Permits { count, limit }, *size).await?);
    }
    Ok(Scale {
        names: names(args, &step).await?,
        clients: clients(args, &step).await?,
        holders: holders(args, &step).await?,
        waiters: waiters(args, sizes, &step).await?,
        line,
        shared,
        permits,
    })
}

async fn names(args: &Args, step: &(impl Fn(&str) + Send + Sync)) -> anyhow::Result<Vec<Point>> {
    let sizes: &[usize] =
        if args.quick { &[100, 1000] } else { &[1000, 10_000, 100_000, 1_000_000] };
    let server = Server::start(args)?;
    let client = Client::connect(server.url()).await?;
    let bare = Bare::connect(&server.url()).await?;
    let release = bare.compare_and_delete().await?;
    let (ours, bare) = (Subject::Library(client.clone()), Subject::Bare { bare, release });
    let (mut points, mut there) = (Vec::new(), 0);
    let empty = server.memory();
    for size in sizes {
        step(&format!("{size} names"));
        let mut tasks = JoinSet::new();
        for first in 0..CALLERS {
            let client = client.clone();
            let numbers = (there + first..*size).step_by(CALLERS);
            tasks.spawn(async move {
                for number in numbers {
                    let guard = client.mutex(format!("name/{number}")).try_lock().await?;
                    guard.context("a lock was taken")?.release().await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        there = *size;
        let bytes = (server.memory() - empty) / there as f64;
        let (mut its, mut bares) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds() {
            its.push(uncontended::turn(&ours, Some(&server), CALLERS, args.turn()).await?);
            bares.push(uncontended::turn(&bare, Some(&server), CALLERS, args.turn()).await?);
        }
        points.push(Point::of(*size, &its, &bares, Some(bytes)));
    }
    client.close().await?;
    Ok(points)
}

async fn clients(args: &Args, step: &(impl Fn(&str) + Send + Sync)) -> anyhow::Result<Vec<Point>> {
    let sizes: &[usize] = if args.quick { &[1, 10] } else { &[1, 10, 100, 1000] };
    let server = Server::start(args)?;
    let (mut points, mut ours, mut bares) = (Vec::new(), Vec::new(), Vec::new());
    let release = Bare::connect(&server.url()).await?.compare_and_delete().await?;
    for size in sizes {
        step(&format!("{size} clients"));
        while ours.len() < *size {
            let builder = Client::builder().call_timeout(Duration::from_secs(20));
            ours.push(builder.connect(server.url()).await?);
            let (bare, release) = (Bare::connect(&server.url()).await?, release.clone());
            bares.push(Subject::Bare { bare, release });
        }
        let its = Subject::Each(ours.iter().cloned().map(Subject::Library).collect());
        let bare = Subject::Each(std::mem::take(&mut bares));
        let (mut its_turns, mut bare_turns) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds() {
            its_turns.push(uncontended::turn(&its, Some(&server), *size, args.turn()).await?);
            bare_turns.push(uncontended::turn(&bare, Some(&server), *size, args.turn()).await?);
        }
        points.push(Point::of(*size, &its_turns, &bare_turns, None));
        if let Subject::Each(all) = bare {
            bares = all;
        }
    }
    for client in ours {
        client.close().await?;
    }
    Ok(points)
}

async fn holders(args: &Args, step: &(impl Fn(&str) + Send + Sync)) -> anyhow::Result<Vec<Point>> {
    let sizes: &[usize] = if args.quick { &[100] } else { &[100, 1000, 10_000] };
    let server = Server::start(args)?;
    let mut points = Vec::new();
    for size in sizes {
        step(&format!("{size} held leases"));
        let turn = renew::turn(&server, *size, args.turn().max(renew::TTL)).await?;
        points.push(Point {
            size: *size,
            per_second: Spread::of([1e6 / (turn.client_us + turn.server_us)]),
            ratio: None,
            client_us: Spread::of([turn.client_us]),
            server_us: Spread::of([turn.server_us]),
            bytes: Spread::of([turn.bytes]),
        });
    }
    Ok(points)
}

async fn waiters(
    args: &Args,
    sizes: &[usize],
    step: &(impl Fn(&str) + Send + Sync),
) -> anyhow::Result<Vec<Point>> {
    let server = Server::start(args)?;
    let (none, length) = (Duration::ZERO, args.turn());
    let mut points = Vec::new();
    for size in sizes {
        step(&format!("{size} waiters in one client"));
        let mut turns = Vec::new();
        for _ in 0..args.rounds() {
            let (url, variant) = (server.url(), Variant::OneClient);
            turns.push(handoff::turn(&server, &url, variant, *size, none, length, none).await?);
        }
        points.push(Point {
            size: *size,
            per_second: Spread::of(turns.iter().map(|turn| turn.per_second)),
            ratio: None,
            client_us: Spread::of(turns.iter().map(|turn| turn.client_us)),
            server_us: Spread::of(turns.iter().map(|turn| turn.server_us)),
            bytes: None,
        });
    }
    Ok(points)
}

impl Point {
    fn of(
        size: usize,
        its: &[uncontended::Turn],
        bare: &[uncontended::Turn],
        bytes: Option<f64>,
    ) -> Self {
        let rates = |turns: &[uncontended::Turn]| -> Vec<f64> {
            turns.iter().map(|turn| turn.per_second).collect()
        };
        Self {
            size,
            per_second: Spread::of(rates(its)),
            ratio: Spread::of_ratios(&rates(its), &rates(bare)),
            client_us: Spread::of(its.iter().map(|turn| turn.client_us)),
            server_us: Spread::of(its.iter().map(|turn| turn.server_us)),
            bytes: Spread::of(bytes),
        }
    }
}
