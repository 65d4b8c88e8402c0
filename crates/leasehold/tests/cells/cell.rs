//! One fault: who is there while it lasts, and what is checked afterwards.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Guard, HeldLease, Key, Release};
use leasehold_clock::SystemClock;
use leasehold_core::{Clock as _, Mode, Moment};
use leasehold_testkit::history::{Attempt, Event, Held, Record, Recorder, fence_faults, overlaps};
use leasehold_testkit::server::RedisServer;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) use crate::connected::connected;
use crate::naive::{Grief, Naive, Servers};
use crate::resource::Fenced;

pub(crate) const KEY: &str = "cells";
/// Distinguishes the holder's lease from the workers' leases.
const HOLDER: &str = "holder";
const WORKERS: usize = 3;
/// How long one attempt of a worker waits; then it tries again.
const WAIT: Duration = Duration::from_secs(1);
/// Longer than anything here takes, even on a machine that does ten other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long after the fault the naive client may take to fail.
const GRIEF: Duration = Duration::from_secs(30);
/// Of a lease that the fault may not cost: a busy machine has the time to renew it, too.
/// A cluster that fails over by hand may stand still for ten seconds by itself.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// The naive client's lease. Short, since some faults harm that client only after its lease has
/// expired.
const NAIVE_LEASE: Duration = Duration::from_secs(4);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Awaits what has to come.
pub(crate) async fn wait_for<T>(what: &str, event: impl Future<Output = T>) -> T {
    let waiting = tokio::time::timeout(PATIENCE, event).await;
    waiting.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// Waits until a replica has all that its primary has.
pub(crate) async fn in_step(primary: &RedisServer, replica: &RedisServer) {
    let offset = |server: &RedisServer| server.info("replication")["master_repl_offset"].clone();
    wait_for("a replica to catch up", async {
        while offset(primary) != offset(replica) {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
}

/// What theory says about a fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// X: holds never overlap, and fences grow strictly.
    Exclusive,
    /// F: holds can overlap, but behind a fence that counts from the first touch no update is
    /// lost.
    Fenced,
    /// L: as X, and no client is granted a lease while the fault lasts.
    Liveness,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "X",
            Self::Fenced => "F",
            Self::Liveness => "L",
        })
    }
}

/// A cell of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) id: &'static str,
    pub(crate) fault: &'static str,
    pub(crate) topology: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) ttl: Duration,
}

/// What all who take part share.
struct Stage {
    ttl: Duration,
    recorder: Recorder,
    resource: Fenced,
    /// How often a worker was granted the lock.
    granted: watch::Sender<u64>,
    /// Whether workers want the lock at all.
    busy: watch::Sender<bool>,
    /// Workers that have the lock or request it.
    at_work: watch::Sender<usize>,
    stop: CancellationToken,
}

impl Stage {
    fn mutex(&self, client: &Client) -> leasehold::Mutex {
        client.mutex(KEY).ttl(self.ttl).stop_grace(self.ttl / 8)
    }

    fn ask(&self) -> Attempt {
        self.recorder.acquire(&Key::new(KEY).unwrap(), Mode::Exclusive)
    }

    async fn work(self: Arc<Self>, client: Client) {
        let mut busy = self.busy.subscribe();
        while !self.stop.is_cancelled() {
            tokio::select! {
                _ = busy.wait_for(|busy| *busy) => {}
                () = self.stop.cancelled() => return,
            }
            self.at_work.send_modify(|workers| *workers += 1);
            self.work_once(&client).await;
            self.at_work.send_modify(|workers| *workers -= 1);
        }
    }

    async fn work_once(&self, client: &Client) {
        let attempt = self.ask();
        let mutex = self.mutex(client);
        let locked = tokio::select! {
            locked = mutex.lock_within(WAIT) => locked,
            () = self.stop.cancelled() => return attempt.unknown(),
        };
        let Ok(guard) = locked else {
            attempt.unknown();
            return tokio::time::sleep(ms(20)).await;
        };
        let fence = guard.fence_even_if_lost();
        let held = attempt.granted(fence);
        self.granted.send_modify(|times| *times += 1);
        let section = async {
            if let Some(seen) = self.resource.read(fence) {
                tokio::time::sleep(ms(5)).await;
                self.resource.write(fence, seen);
            }
        };
        believe(guard.lease(), &held, section).await;
        give_back(guard, held).await;
    }

    async fn hold(self: Arc<Self>, guard: Guard, held: Held, end: CancellationToken) -> Holder {
        let fence = guard.fence_even_if_lost();
        let seen = self.resource.read(fence).expect("nobody was there with a higher fence");
        let mut granted = self.granted.subscribe();
        let before = *granted.borrow();
        let kept = believe(guard.lease(), &held, end.cancelled()).await;
        if !kept {
            // This one does not care: it writes what it has, once another one is at work.
            tokio::select! {
                _ = granted.wait_for(|times| *times > before + 1) => {}
                () = end.cancelled() => {}
            }
        }
        self.resource.write(fence, seen);
        give_back(guard, held).await;
        Holder { kept, ended: SystemClock::new().now() }
    }
}

struct Holder {
    kept: bool,
    ended: Moment,
}

/// Does something under a lease for as long as that is held, and records when belief in it ends
/// before. Says whether it lasted.
pub(crate) async fn believe(
    lease: &HeldLease,
    held: &Held,
    body: impl Future<Output = ()>,
) -> bool {
    let clock = SystemClock::new();
    let mut until = clock.now().saturating_add(lease.remaining());
    let mut body = std::pin::pin!(body);
    loop {
        tokio::select! {
            () = lease.lost() => {
                held.lost_by(until);
                return false;
            }
            () = &mut body => {
                let kept = lease.is_held();
                if !kept {
                    held.lost_by(until);
                }
                return kept;
            }
            () = tokio::time::sleep(ms(10)) => {
                until = until.max(clock.now().saturating_add(lease.remaining()));
            }
        }
    }
}

async fn give_back(guard: Guard, held: Held) {
    let releasing = held.release();
    match guard.release_outcome().await {
        Ok(Release::Unknown) | Err(_) => releasing.unknown(),
        Ok(_) => releasing.done(),
    }
}

async fn has_holder(node: &Client) -> bool {
    let info = node.inspect(KEY).await.unwrap();
    let mut holders = info.iter().flat_map(|info| &info.holders);
    holders.any(|holder| holder.metadata.as_str() == HOLDER)
}

/// How many acquisitions came to a hold.
pub(crate) fn grants(history: &[Record]) -> usize {
    history.iter().filter(|record| matches!(record.event, Event::Granted { .. })).count()
}

/// A cell in which workers work, and nothing has happened yet.
pub(crate) struct Rest {
    cell: Cell,
    servers: Servers,
    stage: Arc<Stage>,
    clients: Vec<Client>,
    workers: Vec<JoinHandle<()>>,
}

impl Rest {
    /// Lets workers work. `client` makes one of the clients, `servers` are those of the naive one.
    pub(crate) async fn begin(
        cell: Cell,
        servers: Servers,
        client: impl AsyncFn() -> Client,
    ) -> Self {
        let stage = Arc::new(Stage {
            ttl: cell.ttl,
            recorder: Recorder::new(0, Arc::new(SystemClock::new())),
            resource: Fenced::default(),
            granted: watch::Sender::new(0),
            busy: watch::Sender::new(true),
            at_work: watch::Sender::new(0),
            stop: CancellationToken::new(),
        });
        let mut clients = Vec::new();
        for _ in 0..=WORKERS {
            clients.push(client().await);
        }
        let workers = clients.iter().skip(1);
        let workers =
            workers.map(|client| tokio::spawn(Arc::clone(&stage).work(client.clone()))).collect();
        let rest = Self { cell, servers, stage, clients, workers };
        rest.grants(2 * WORKERS as u64).await;
        rest
    }

    /// Waits for so many more grants to workers.
    async fn grants(&self, more: u64) {
        let mut granted = self.stage.granted.subscribe();
        let target = *granted.borrow_and_update() + more;
        wait_for("a worker to be granted the lock", async {
            granted.wait_for(|times| *times >= target).await.unwrap();
        })
        .await;
    }

    /// Has the workers release what they have, and waits until one of them holds.
    pub(crate) async fn calm(self) -> Self {
        self.stage.busy.send_replace(false);
        let mut at_work = self.stage.at_work.subscribe();
        wait_for("the workers to rest", async {
            at_work.wait_for(|workers| *workers == 0).await.unwrap();
        })
        .await;
        self
    }

    /// Has both holders take their locks: what follows is the fault.
    pub(crate) async fn hold(self) -> Play {
        let this = self.calm().await;
        let attempt = this.stage.ask();
        let mutex = this.stage.mutex(&this.clients[0]).metadata(HOLDER);
        let guard = wait_for("the holder's grant", mutex.lock_within(PATIENCE)).await.unwrap();
        let held = attempt.granted(guard.fence_even_if_lost());
        let before = *this.stage.granted.borrow();
        this.stage.busy.send_replace(true);
        let end = CancellationToken::new();
        let holder = tokio::spawn(Arc::clone(&this.stage).hold(guard, held, end.clone()));
        let naive = Naive::begin(this.servers.clone(), this.cell.ttl.min(NAIVE_LEASE)).await;
        Play { rest: this, holder, end, naive, over: None, before }
    }
}

/// A cell in which both holders hold.
pub(crate) struct Play {
    rest: Rest,
    holder: JoinHandle<Holder>,
    end: CancellationToken,
    naive: Naive,
    over: Option<Moment>,
    /// Grants to workers before that.
    before: u64,
}

impl Play {
    /// Waits until each node of a quorum has the holder's lease: one that was in a worker's hands
    /// when it was granted has it later.
    pub(crate) async fn is_at_all(&self, nodes: &[SocketAddr]) {
        for node in nodes {
            let node = connected(Client::builder(), &format!("redis://{node}")).await;
            wait_for("a node to have the holder's lease", async {
                while !has_holder(&node).await {
                    tokio::time::sleep(ms(5)).await;
                }
            })
            .await;
        }
    }

    /// Lets time pass under the fault: enough for all leases to expire that can't be renewed.
    pub(crate) async fn outlast(&self) {
        tokio::time::sleep(self.rest.cell.ttl * 5 / 2).await;
    }

    /// How often workers were granted the lock since the holder was.
    pub(crate) fn granted(&self) -> u64 {
        *self.rest.stage.granted.borrow() - self.before
    }

    /// A client that no other task uses at the moment.
    pub(crate) fn client(&self) -> &Client {
        &self.rest.clients[0]
    }

    /// Brings one more worker.
    pub(crate) fn join(&mut self, client: Client) {
        let work = Arc::clone(&self.rest.stage).work(client);
        self.rest.workers.push(tokio::spawn(work));
    }

    /// The fault has ended, as far as it ever does: recovery is counted from here.
    pub(crate) fn over(&mut self) {
        self.over = Some(SystemClock::new().now());
    }

    /// Sees that all go on, ends them, and judges.
    pub(crate) async fn end(self) -> Outcome {
        let outcome = self.end_within(GRIEF).await;
        println!("{outcome}");
        outcome.judge().unwrap_or_else(|why| panic!("{}: {why}: {outcome:?}", outcome.cell.id));
        outcome
    }

    /// Sees that all go on, and ends them. The naive client may take so long to come to grief.
    async fn end_within(self, limit: Duration) -> Outcome {
        let Self { rest, holder, end, naive, over, before: _ } = self;
        let Rest { cell, stage, workers, .. } = &rest;
        let over = over.expect("a cell says when its fault is over");
        let grief = naive.end(limit).await;
        if cell.verdict == Verdict::Fenced {
            // For the holder to hear of a second one, if it comes to that.
            let _elapsed = tokio::time::timeout(cell.ttl, async {
                while !holder.is_finished() {
                    tokio::time::sleep(ms(5)).await;
                }
            })
            .await;
        }
        end.cancel();
        let Holder { kept, ended } = wait_for("the holder", holder).await.unwrap();
        rest.grants(2 * WORKERS as u64).await;
        stage.stop.cancel();
        for worker in workers {
            while !worker.is_finished() {
                tokio::time::sleep(ms(5)).await;
            }
        }
        let history = stage.recorder.records();
        let free = if kept { over.max(ended) } else { over };
        let granted =
            |record: &&Record| record.at >= free && matches!(record.event, Event::Granted { .. });
        let next = history.iter().find(granted).expect("workers were granted the lock after that");
        let overlaps = overlaps(&history);
        Outcome {
            cell: *cell,
            acquisitions: grants(&history),
            kept,
            overlaps: overlaps.len(),
            longest: overlaps.iter().map(|overlap| overlap.length).max().unwrap_or_default(),
            fence_faults: fence_faults(&history).len(),
            lost_updates: stage.resource.lost(),
            refused: stage.resource.refused(),
            recovery: next.at.saturating_since(free),
            naive: grief,
        }
    }
}

/// What came of a cell.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) cell: Cell,
    pub(crate) acquisitions: usize,
    /// Whether the lease that was held when the fault came was held to its end.
    pub(crate) kept: bool,
    pub(crate) overlaps: usize,
    pub(crate) longest: Duration,
    pub(crate) fence_faults: usize,
    pub(crate) lost_updates: u64,
    /// Late touches that the fence refused.
    pub(crate) refused: u64,
    /// From the end of the fault, or of the lease that outlived it, to the next grant.
    pub(crate) recovery: Duration,
    pub(crate) naive: Grief,
}

impl Outcome {
    fn judge(&self) -> Result<(), &'static str> {
        let strict = self.cell.verdict != Verdict::Fenced;
        let forbidden = [
            (self.lost_updates > 0, "updates were lost behind the fence"),
            (strict && self.overlaps > 0, "holds overlap"),
            (strict && self.fence_faults > 0, "fences do not grow strictly"),
            (
                self.naive.overlaps == 0 || self.naive.lost_updates == 0,
                "the naive client came to no grief, so the fault was none",
            ),
        ];
        forbidden.into_iter().find(|(found, _)| *found).map_or(Ok(()), |(_, why)| Err(why))
    }
}

impl fmt::Display for Outcome {
    /// A row of the table in `docs/faults.md`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cell: Cell { id, fault, topology, verdict, .. }, naive, .. } = self;
        let lease = if self.kept { "kept" } else { "lost" };
        let times = |overlaps: usize, longest: Duration| match overlaps {
            0 => "0".to_owned(),
            _ => format!("{overlaps} ({} ms)", longest.as_millis()),
        };
        write!(
            f,
            "| {id} | {fault} | {topology} | {verdict} | {} | {lease} | {} | {} | {} | {} | {} ms | {} of {} | {} |",
            self.acquisitions,
            times(self.overlaps, self.longest),
            self.fence_faults,
            self.lost_updates,
            self.refused,
            self.recovery.as_millis(),
            times(naive.overlaps, naive.longest),
            naive.acquisitions,
            naive.lost_updates,
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_in_which_nothing_happens_is_no_proof() {
    let (fault, topology) = ("nothing", "one server");
    let cell = Cell { id: "none", fault, topology, verdict: Verdict::Exclusive, ttl: LONG };
    let server = RedisServer::start();
    let at = server.addr();
    let client = async || connected(Client::builder(), &server.url()).await;
    let rest = Rest::begin(cell, Servers::one(move || Some(at)), client).await;
    let mut play = rest.hold().await;
    play.over();
    let mut outcome = play.end_within(ms(1_000)).await;
    let why = outcome.judge().unwrap_err();
    assert!(why.contains("naive"), "{why}: {outcome:?}");

    outcome.naive.overlaps = 1;
    outcome.naive.lost_updates = 1;
    outcome.judge().unwrap();
    outcome.overlaps = 1;
    outcome.judge().unwrap_err();
    outcome.cell.verdict = Verdict::Fenced;
    outcome.judge().unwrap();
    outcome.lost_updates = 1;
    outcome.judge().unwrap_err();
}
