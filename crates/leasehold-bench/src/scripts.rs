//! Measures what each operation costs the server, by the server's own count of script time.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use leasehold::Key;
use leasehold::redis::RedisStore;
use leasehold::store::{
    Acquire, AcquireAll, AcquireRequest, ClientId, FenceBlock, Leave, LeaveRequest, Mode,
    OwnerName, QueueRequest, Release, ReleaseRequest, Renew, RenewRequest, Store as _, Token, Ttl,
};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::bare::Bare;
use crate::cli::Args;
use crate::server::{Calls, Server};
use crate::stats::Spread;

#[derive(Debug, Serialize)]
pub(crate) struct Costs {
    pub(crate) server: String,
    /// How often each operation is carried out in a round, for each row.
    pub(crate) times: usize,
    pub(crate) rows: Vec<Row>,
}

/// One operation.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) operation: &'static str,
    /// The other waiters or sharers of the lock.
    pub(crate) others: usize,
    /// Locks per script call.
    pub(crate) batch: usize,
    /// Per lock, in µs.
    pub(crate) server_us: Option<Spread>,
}

const WITHIN: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(60);
const OWNER: &str = "web-7_4711";

/// The results of one round: operation, others, batch, µs per lock.
pub(crate) type Measured = Vec<(&'static str, usize, usize, f64)>;

pub(crate) async fn run(args: &Args) -> anyhow::Result<Costs> {
    let server = Server::start(args)?;
    let times = if args.quick { 64 } else { 2048 };
    let mut rounds = Vec::new();
    // The first round only lets the server allocate its memory.
    for round in 0..=args.rounds() {
        let mut bench = Bench::connect(&server, round, times).await?;
        bench.all().await?;
        rounds.push(bench.measured);
    }
    rounds.remove(0);
    let first = rounds.first().map_or(&[][..], |round| round);
    let rows = first.iter().enumerate().map(|(row, &(operation, others, batch, _))| {
        let costs = rounds.iter().filter_map(|round| round.get(row));
        let server_us = Spread::of(costs.map(|(.., cost)| *cost));
        Row { operation, others, batch, server_us }
    });
    Ok(Costs { server: server.describe(), times, rows: rows.collect() })
}

pub(crate) struct Bench<'a> {
    pub(crate) server: &'a Server,
    bare: Bare,
    store: RedisStore,
    client: ClientId,
    round: u32,
    /// How often each operation is carried out.
    pub(crate) times: usize,
    pub(crate) measured: Measured,
}

/// A lease, or a queue position.
pub(crate) struct Party {
    pub(crate) request: AcquireRequest,
    pub(crate) fences: Option<FenceBlock>,
}

impl Party {
    pub(crate) fn fences(&self) -> anyhow::Result<FenceBlock> {
        self.fences.ok_or_else(|| anyhow::anyhow!("no lease of {}", self.request.key))
    }

    fn renewal(&self) -> anyhow::Result<RenewRequest> {
        let Self { request, .. } = self;
        Ok(RenewRequest::new(request.key.clone(), request.token, self.fences()?, request.ttl))
    }
}

impl<'a> Bench<'a> {
    pub(crate) async fn connect(
        server: &'a Server,
        round: u32,
        times: usize,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            server,
            bare: Bare::connect(&server.url()).await?,
            store: RedisStore::connect(&server.url()).await?,
            client: ClientId::generate()?,
            round,
            times,
            measured: Vec::new(),
        })
    }

    async fn all(&mut self) -> anyhow::Result<()> {
        self.empty().await?;
        self.alone().await?;
        self.together().await?;
        for batch in [8, 32] {
            self.batches(batch).await?;
        }
        self.contended(2, self.times, 1).await?;
        self.contended(100, self.times / 32, 32).await?;
        self.shared("shared", Mode::Shared).await?;
        let (count, limit) = (1.try_into()?, 1000.try_into()?);
        self.shared("permit", Mode::Permits { count, limit }).await
    }

    /// Records the time of scripts since `before`.
    pub(crate) fn note(
        &mut self,
        operation: &'static str,
        others: usize,
        batch: usize,
        before: f64,
    ) {
        let spent = self.server.script_us() - before;
        self.measured.push((operation, others, batch, spent / self.times as f64));
    }

    pub(crate) fn party(&self, name: &str, number: usize) -> anyhow::Result<Party> {
        let key = Key::new(format!("scripts/{}/{name}/{number}", self.round))?;
        let mut request = AcquireRequest::new(key, Token::generate()?, Ttl::new(TTL)?);
        request.owner = OwnerName::new(OWNER)?;
        // The block of fences that a client with numbered touches requests.
        request.fence_block = 17.try_into()?;
        Ok(Party { request, fences: None })
    }

    fn parties(&self, name: &str) -> anyhow::Result<Vec<Party>> {
        (0..self.times).map(|number| self.party(name, number)).collect()
    }

    pub(crate) async fn grant(&self, party: &mut Party) -> anyhow::Result<()> {
        let answer = self.store.acquire(&party.request, WITHIN).await?;
        let (Acquire::Granted(_) | Acquire::Already(_)) = &answer else {
            bail!("not granted: {answer:?}");
        };
        party.fences = answer.fences();
        Ok(())
    }

    async fn wait(&self, party: &mut Party) -> anyhow::Result<()> {
        match self.store.acquire(&party.request, WITHIN).await? {
            Acquire::Waiting(waiting) => {
                if let Some(queue) = &mut party.request.queue {
                    queue.place = Some(waiting.place);
                    queue.heartbeat += 1;
                }
                Ok(())
            }
            answer => bail!("not in the queue: {answer:?}"),
        }
    }

    pub(crate) async fn release(&self, party: &Party, fences: FenceBlock) -> anyhow::Result<()> {
        let Party { request, .. } = party;
        let mut request = ReleaseRequest::new(request.key.clone(), request.token, fences);
        request.in_time = true;
        match self.store.release(&request, WITHIN).await? {
            Release::Released => Ok(()),
            answer => bail!("not released: {answer:?}"),
        }
    }

    pub(crate) async fn renew(&self, parties: &[Party]) -> anyhow::Result<()> {
        let requests: anyhow::Result<Vec<_>> = parties.iter().map(Party::renewal).collect();
        for answer in self.store.renew(&requests?, WITHIN).await {
            let answer = answer?;
            if answer != Renew::Renewed {
                bail!("not renewed: {answer:?}");
            }
        }
        Ok(())
    }

    /// The cost of any script call.
    async fn empty(&mut self) -> anyhow::Result<()> {
        let script = self.bare.nothing().await?;
        let before = self.server.script_us();
        for _ in 0..self.times {
            self.bare.run_nothing(&script).await?;
        }
        self.note("an empty script", 0, 1, before);
        Ok(())
    }

    /// A lock without contention.
    async fn alone(&mut self) -> anyhow::Result<()> {
        let mut parties = self.parties("alone")?;
        for operation in ["acquire, never used", "acquire again"] {
            let before = self.server.script_us();
            for party in &mut parties {
                self.grant(party).await?;
            }
            self.note(operation, 0, 1, before);
        }
        let before = self.server.script_us();
        for party in &parties {
            self.renew(std::slice::from_ref(party)).await?;
        }
        self.note("renew", 0, 1, before);
        for batch in [8, 32] {
            let before = self.server.script_us();
            for parties in parties.chunks(batch) {
                self.renew(parties).await?;
            }
            self.note("renew", 0, batch, before);
        }
        let before = self.server.script_us();
        for party in &parties {
            self.release(party, party.fences()?).await?;
        }
        self.note("release", 0, 1, before);
        let mut parties = self.parties("alone")?;
        let before = self.server.script_us();
        for party in &mut parties {
            self.grant(party).await?;
        }
        self.note("acquire, used before", 0, 1, before);
        Ok(())
    }

    /// Many concurrent callers, whose requests are batched. A row's batch is their average number
    /// in one call.
    async fn together(&mut self) -> anyhow::Result<()> {
        const CALLERS: usize = 1024;
        let parties = self.parties("together")?;
        let mut held = Vec::new();
        for operation in ["acquire, never used", "acquire, used before"] {
            let (before, calls) = (self.server.script_us(), self.server.calls());
            for parties in parties.chunks(CALLERS) {
                let mut callers = JoinSet::new();
                for Party { request, .. } in parties {
                    let (store, request) = (self.store.clone(), request.clone());
                    callers.spawn(async move {
                        let answer = store.acquire(&request, WITHIN).await?;
                        let fences = answer.fences().context("not granted")?;
                        let mut ending = ReleaseRequest::new(request.key, request.token, fences);
                        ending.in_time = true;
                        anyhow::Ok(ending)
                    });
                }
                while let Some(granted) = callers.join_next().await {
                    held.push(granted??);
                }
            }
            self.note(operation, 0, self.locks_in_one(&calls), before);
            let (before, calls) = (self.server.script_us(), self.server.calls());
            for _ in parties.chunks(CALLERS) {
                let mut callers = JoinSet::new();
                for request in held.drain(held.len().saturating_sub(CALLERS)..) {
                    let store = self.store.clone();
                    callers.spawn(async move { store.release(&request, WITHIN).await });
                }
                while let Some(released) = callers.join_next().await {
                    ensure!(released?? == Release::Released, "a lease was lost");
                }
            }
            if operation == "acquire, used before" {
                self.note("release", 0, self.locks_in_one(&calls), before);
            }
        }
        Ok(())
    }

    /// How many locks each script call since then had, on average.
    fn locks_in_one(&self, calls: &Calls) -> usize {
        let since = self.server.calls().since(calls, &["evalsha", "eval"]);
        self.times / usize::try_from(since).unwrap_or(1).max(1)
    }

    /// Several locks in one step.
    async fn batches(&mut self, batch: usize) -> anyhow::Result<()> {
        let requests: Vec<_> = self
            .parties(&format!("batch{batch}"))?
            .into_iter()
            .map(|party| party.request)
            .collect();
        let before = self.server.script_us();
        for requests in requests.chunks(batch) {
            let answer = self.store.acquire_all(requests, WITHIN).await?;
            let AcquireAll::Granted(_) = answer else { bail!("not granted: {answer:?}") };
        }
        self.note("acquire in one step", 0, batch, before);
        Ok(())
    }

    /// Operations on locks with this many waiters each. Returns the server's bytes for each waiter.
    pub(crate) async fn contended(
        &mut self,
        line: usize,
        locks: usize,
        often: usize,
    ) -> anyhow::Result<f64> {
        let name = format!("line{line}");
        let mut holders = Vec::new();
        let mut lines = Vec::new();
        for number in 0..locks {
            let mut holder = self.party(&name, number)?;
            self.grant(&mut holder).await?;
            holders.push(holder);
        }
        let before = self.server.memory();
        for number in 0..locks {
            let mut waiters = Vec::new();
            for _ in 0..line {
                let mut waiter = self.waiter(&name, number)?;
                self.wait(&mut waiter).await?;
                waiters.push(waiter);
            }
            lines.push(waiters);
        }
        let bytes = (self.server.memory() - before) / (line * locks) as f64;

        let newcomers: anyhow::Result<Vec<_>> =
            (0..locks * often).map(|number| self.waiter(&name, number % locks)).collect();
        let mut newcomers = newcomers?;
        let before = self.server.script_us();
        for newcomer in &mut newcomers {
            self.wait(newcomer).await?;
        }
        self.note("join the line", line, 1, before);

        let before = self.server.script_us();
        for waiters in &mut lines {
            for waiter in waiters.iter_mut().rev().take(often) {
                self.wait(waiter).await?;
            }
        }
        self.note("heartbeat", line, 1, before);

        let before = self.server.script_us();
        for newcomer in &newcomers {
            let request = &newcomer.request;
            let request = LeaveRequest::new(request.key.clone(), request.token);
            let answer = self.store.leave(&request, WITHIN).await?;
            if answer != Leave::Left {
                bail!("had no place: {answer:?}");
            }
        }
        self.note("leave the line", line, 1, before);

        let before = self.server.script_us();
        for (holder, waiters) in holders.iter().zip(&lines) {
            let fences = holder.fences()?;
            for holder in std::iter::once(holder).chain(waiters).take(often) {
                self.release(holder, fences).await?;
            }
        }
        self.note("release and hand over", line, 1, before);
        Ok(bytes)
    }

    fn waiter(&self, name: &str, number: usize) -> anyhow::Result<Party> {
        let mut party = self.party(name, number)?;
        party.request.queue = Some(QueueRequest::new(self.client, 7, party.request.ttl));
        Ok(party)
    }

    /// Locks with ten other sharers.
    async fn shared(&mut self, name: &'static str, mode: Mode) -> anyhow::Result<()> {
        const OTHERS: usize = 10;
        let (acquire, renew, release) = match mode {
            Mode::Shared => ("acquire, shared", "renew, shared", "release, shared"),
            _ => ("acquire, permit", "renew, permit", "release, permit"),
        };
        let mut parties = self.parties(name)?;
        for party in &mut parties {
            party.request.mode = mode;
            for _ in 0..OTHERS {
                let token = Token::generate()?;
                let mut request = party.request.clone();
                request.token = token;
                self.grant(&mut Party { request, fences: None }).await?;
            }
        }
        let before = self.server.script_us();
        for party in &mut parties {
            self.grant(party).await?;
        }
        self.note(acquire, OTHERS, 1, before);
        let before = self.server.script_us();
        for party in &parties {
            self.renew(std::slice::from_ref(party)).await?;
        }
        self.note(renew, OTHERS, 1, before);
        let before = self.server.script_us();
        for party in &parties {
            self.release(party, party.fences()?).await?;
        }
        self.note(release, OTHERS, 1, before);
        Ok(())
    }
}
