//! Measures what each operation costs the server at a lock with very many waiters or sharers.

use leasehold::store::{AcquireRequest, Mode, Token};
use serde::Serialize;

use crate::cli::Args;
use crate::scripts::{Bench, Measured, Party};
use crate::server::Server;
use crate::stats::Spread;

/// A crowd of one size.
#[derive(Debug, Serialize)]
pub(crate) struct Crowd {
    pub(crate) others: usize,
    /// In µs, by the server's own count.
    pub(crate) operations: Vec<(&'static str, Option<Spread>)>,
    /// The server's memory for each waiter or sharer.
    pub(crate) bytes: Option<Spread>,
}

/// How often each operation is carried out with a crowd.
const OFTEN: usize = 64;

/// A crowd in the queue of one lock.
pub(crate) async fn waiting(args: &Args, others: usize) -> anyhow::Result<Crowd> {
    let mut rounds = Vec::new();
    for round in 0..args.rounds() {
        let server = Server::start(args)?;
        let mut bench = bench(&server, round, others).await?;
        let bytes = bench.contended(others, 1, OFTEN.min(others)).await?;
        rounds.push((bench.measured, bytes));
    }
    Ok(Crowd::of(others, rounds))
}

/// A crowd that holds one lock.
pub(crate) async fn holding(args: &Args, mode: Mode, others: usize) -> anyhow::Result<Crowd> {
    let mut rounds = Vec::new();
    for round in 0..args.rounds() {
        let server = Server::start(args)?;
        let mut bench = bench(&server, round, others).await?;
        let bytes = share(&mut bench, mode, others).await?;
        rounds.push((bench.measured, bytes));
    }
    Ok(Crowd::of(others, rounds))
}

async fn bench(server: &Server, round: u32, others: usize) -> anyhow::Result<Bench<'_>> {
    let mut bench = Bench::connect(server, round, OFTEN.min(others)).await?;
    // From here on the server has the scripts.
    bench.contended(1, 1, 1).await?;
    bench.measured.clear();
    Ok(bench)
}

async fn share(bench: &mut Bench<'_>, mode: Mode, others: usize) -> anyhow::Result<f64> {
    let first = bench.party("crowd", 0)?;
    let another = || -> anyhow::Result<Party> {
        let mut request = AcquireRequest::clone(&first.request);
        (request.token, request.mode) = (Token::generate()?, mode);
        Ok(Party { request, fences: None })
    };
    let before = bench.server.memory();
    for _ in 0..others {
        bench.grant(&mut another()?).await?;
    }
    let bytes = (bench.server.memory() - before) / others as f64;
    let parties: anyhow::Result<Vec<Party>> = (0..bench.times).map(|_| another()).collect();
    let mut parties = parties?;
    let before = bench.server.script_us();
    for party in &mut parties {
        bench.grant(party).await?;
    }
    bench.note("acquire", others, 1, before);
    let before = bench.server.script_us();
    for party in &parties {
        bench.renew(std::slice::from_ref(party)).await?;
    }
    bench.note("renew", others, 1, before);
    let before = bench.server.script_us();
    for party in &parties {
        bench.release(party, party.fences()?).await?;
    }
    bench.note("release", others, 1, before);
    Ok(bytes)
}

impl Crowd {
    fn of(others: usize, rounds: Vec<(Measured, f64)>) -> Self {
        let first = rounds.first().map_or(&[][..], |(measured, _)| measured);
        let operations = first.iter().enumerate().map(|(row, &(operation, ..))| {
            let costs = rounds.iter().filter_map(|(measured, _)| measured.get(row));
            (operation, Spread::of(costs.map(|(.., cost)| *cost)))
        });
        Self {
            others,
            operations: operations.collect(),
            bytes: Spread::of(rounds.iter().map(|(_, bytes)| *bytes)),
        }
    }
}
