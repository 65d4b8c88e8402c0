//! Measures the PostgreSQL store against bare statements on the same server, in turns.
//!
//! The floor of a cycle is a prepared `UPDATE … RETURNING` pair, over as many connections as the
//! store has. Fences, expiry and owners would come on top. The store's own functions alone, called
//! as it calls them, show what these cost. So do the statements of its steps on a hot row, and a
//! hand-off by a notification and two of the floor's `UPDATE`s.

use std::future::poll_fn;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use leasehold::store::{
    Acquire, AcquireRequest, Key, Mode, ReleaseRequest, Renew, RenewRequest, Store, Token, Ttl,
};
use leasehold::{Client, Release};
use leasehold_testkit::sql::PostgreSql;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client as Session, NoTls, Statement};

use crate::cli::Args;
use crate::delay::Delay;
use crate::stats::{Latencies, Spread};

/// As many as the store opens by default.
const CONNECTIONS: usize = 4;
/// Processes that change one row, each with connections of its own.
const PROCESSES: usize = 16;
const WITHIN: Duration = Duration::from_secs(30);
/// How long a waiter gets before the release.
const SETTLES: Duration = Duration::from_millis(20);
/// Renewals in one statement.
const TOGETHER: usize = 1_000;

/// What was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Postgres {
    pub(crate) rows: Vec<Row>,
}

/// One kind of work, in its unit.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) work: String,
    pub(crate) unit: &'static str,
    pub(crate) ours: Option<Spread>,
    pub(crate) floor: Option<Spread>,
    pub(crate) ratio: Option<Spread>,
    pub(crate) aim: &'static str,
}

/// Figures of each round.
#[derive(Default)]
struct Rounds {
    ours: Vec<f64>,
    floor: Vec<f64>,
}

impl Rounds {
    fn row(&self, work: impl Into<String>, unit: &'static str, aim: &'static str) -> Row {
        Row {
            work: work.into(),
            unit,
            ours: Spread::of(self.ours.iter().copied()),
            floor: Spread::of(self.floor.iter().copied()),
            ratio: Spread::of_ratios(&self.ours, &self.floor),
            aim,
        }
    }
}

/// A connection with the statements of the floor.
#[derive(Clone)]
struct Bare {
    session: Arc<Session>,
    take: Statement,
    release: Statement,
}

async fn session(address: &str) -> anyhow::Result<Session> {
    let (session, connection) = tokio_postgres::connect(address, NoTls).await?;
    tokio::spawn(connection);
    Ok(session)
}

fn address(server: &PostgreSql) -> String {
    let (folder, port) = (server.socket_dir().display(), server.port());
    format!("host={folder} port={port} user=leasehold dbname=postgres")
}

impl Bare {
    async fn connect(server: &PostgreSql) -> anyhow::Result<Self> {
        let session = session(&address(server)).await?;
        let take = session.prepare(
            "UPDATE bare SET token = $2, until = clock_timestamp() + interval '30 s' WHERE name = $1 \
             AND token IS NULL RETURNING fence",
        );
        let take = take.await?;
        let release = session
            .prepare("UPDATE bare SET token = NULL WHERE name = $1 AND token = $2 RETURNING fence")
            .await?;
        Ok(Self { session: Arc::new(session), take, release })
    }

    async fn cycle(&self, name: &str) -> anyhow::Result<()> {
        let token = fastrand::i64(..);
        for statement in [&self.take, &self.release] {
            ensure!(self.session.query(statement, &[&name, &token]).await?.len() == 1, "no row");
        }
        Ok(())
    }

    /// A step that locks the row, in two round trips.
    async fn step(&self, name: &str) -> anyhow::Result<()> {
        let read = "SELECT fence FROM bare WHERE name = $1 FOR UPDATE";
        let write = "UPDATE bare SET fence = fence + 1 WHERE name = $1";
        self.locked("BEGIN", [read, "SELECT"], write, name).await
    }

    /// The statements of the store's step, but for its last. A bare `UPDATE` of the row takes that
    /// one's place.
    async fn statements(&self, name: &str) -> anyhow::Result<()> {
        let begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; \
                     SET LOCAL idle_in_transaction_session_timeout = '5s'";
        let lock = "SELECT FROM leasehold.lock l WHERE l.name = $1 FOR NO KEY UPDATE";
        let read = "SELECT * FROM leasehold.read_1($1)";
        let write = "UPDATE leasehold.lock SET version = version + 1 WHERE name = $1";
        self.locked(begin, [lock, read], write, name).await
    }

    async fn locked(
        &self,
        begin: &str,
        [first, second]: [&str; 2],
        write: &str,
        name: &str,
    ) -> anyhow::Result<()> {
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&name, Type::TEXT)];
        let given = |sql: &str| &params[..usize::from(sql.contains("$1"))];
        let (session, begin) = (&self.session, self.session.batch_execute(begin));
        let (first, second) =
            (session.query_typed(first, given(first)), session.query_typed(second, given(second)));
        let (begun, first, second) = tokio::join!(begin, first, second);
        begun?;
        first?;
        second?;
        let write = session.query_typed(write, &params);
        let (written, committed) = tokio::join!(write, session.batch_execute("COMMIT"));
        written?;
        Ok(committed?)
    }
}

/// A connection that calls the store's functions for some locks at once. It lives on the thread of
/// leasehold, where the store has its own.
struct Functions {
    session: Session,
    take: String,
    release: String,
    names: Vec<String>,
    tokens: Vec<String>,
}

impl Functions {
    async fn connect(server: &PostgreSql, names: Vec<String>, commit: i32) -> anyhow::Result<Self> {
        let (session, connection) = tokio_postgres::connect(&address(server), NoTls).await?;
        leasehold::driver()?.spawn(connection);
        let take = format!(
            "SELECT * FROM leasehold.take_1('infinity', $1, $2, $3::text[]::uuid[], $4, $5, $6, $7, $8, {commit})"
        );
        let release =
            format!("SELECT * FROM leasehold.release_1($1, $2, $3::text[]::uuid[], $4, {commit})");
        let token = |_| format!("{:032x}", fastrand::u128(..));
        let tokens = names.iter().map(token).collect();
        Ok(Self { session, take, release, names, tokens })
    }
}

impl AsyncTask for Functions {
    async fn repeat(&self) -> anyhow::Result<()> {
        let Self { session, names, tokens, .. } = self;
        let count = names.len();
        let versions: Vec<i64> = names.iter().map(|_| fastrand::i64(..)).collect();
        let (ttls, blocks, holds) = (vec![30_000_000_i64; count], vec![16; count], vec![1; count]);
        let (owners, notes) = (vec!["host:1:2"; count], vec![""; count]);
        let in_time = vec![true; count];
        let lock: [(&(dyn ToSql + Sync), Type); 3] =
            [(names, Type::TEXT_ARRAY), (&versions, Type::INT8_ARRAY), (tokens, Type::TEXT_ARRAY)];
        let lease: [(&(dyn ToSql + Sync), Type); 5] = [
            (&ttls, Type::INT8_ARRAY),
            (&blocks, Type::INT4_ARRAY),
            (&holds, Type::INT4_ARRAY),
            (&owners, Type::TEXT_ARRAY),
            (&notes, Type::TEXT_ARRAY),
        ];
        let end: [(&(dyn ToSql + Sync), Type); 1] = [(&in_time, Type::BOOL_ARRAY)];
        for (sql, more) in [(&self.take, &lease[..]), (&self.release, &end)] {
            let rows = session.query_typed(sql, &[&lock, more].concat()).await?;
            let done = |(row, version): (&tokio_postgres::Row, &i64)| {
                row.get::<_, Option<i64>>("version") == Some(*version)
            };
            ensure!(rows.len() == count && rows.iter().zip(&versions).all(done), "not all");
        }
        Ok(())
    }
}

/// How many a second, by this many tasks that repeat their work for a time.
async fn per_second<F>(tasks: impl Iterator<Item = F>, length: Duration) -> anyhow::Result<f64>
where
    F: AsyncTask,
{
    let mut running = JoinSet::new();
    let begin = Instant::now();
    for task in tasks {
        running.spawn(async move {
            let mut count = 0_u64;
            while begin.elapsed() < length {
                task.repeat().await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut sum = 0;
    while let Some(count) = running.join_next().await {
        sum += count??;
    }
    Ok(sum as f64 / begin.elapsed().as_secs_f64())
}

/// What a task repeats.
trait AsyncTask: Send + 'static {
    fn repeat(&self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

struct BareCycle(Bare, String);

impl AsyncTask for BareCycle {
    async fn repeat(&self) -> anyhow::Result<()> {
        self.0.cycle(&self.1).await
    }
}

struct BareStep(Bare);

impl AsyncTask for BareStep {
    async fn repeat(&self) -> anyhow::Result<()> {
        self.0.step("bare/0").await?;
        self.0.step("bare/0").await
    }
}

struct Statements(Bare);

impl AsyncTask for Statements {
    async fn repeat(&self) -> anyhow::Result<()> {
        self.0.statements("hot").await?;
        self.0.statements("hot").await
    }
}

struct Cycle(leasehold::Mutex);

impl AsyncTask for Cycle {
    async fn repeat(&self) -> anyhow::Result<()> {
        let guard = self.0.try_lock().await?.context("the lock was taken")?;
        ensure!(guard.release_outcome().await? == Release::Released, "not released");
        Ok(())
    }
}

/// A reader that comes and goes: two steps of the table.
struct Reader(Arc<dyn Store>);

impl AsyncTask for Reader {
    async fn repeat(&self) -> anyhow::Result<()> {
        let key = Key::new("hot")?;
        let mut request = AcquireRequest::new(key.clone(), Token::generate()?, Ttl::new(WITHIN)?);
        request.mode = Mode::Shared;
        let Acquire::Granted(granted) = self.0.acquire(&request, WITHIN).await? else {
            anyhow::bail!("a reader was kept out");
        };
        let release = ReleaseRequest::new(key, request.token, granted.fences);
        self.0.release(&release, WITHIN).await?;
        Ok(())
    }
}

/// A server, and the callers of both.
struct Place {
    server: PostgreSql,
    url: String,
    bare: Vec<Bare>,
    client: Client,
}

impl Place {
    /// The store's commits are as durable as its URL says, and the floor's as the server's setting
    /// does.
    async fn start(settings: &[&str], durability: &str) -> anyhow::Result<Self> {
        let usual = ["fsync=on", "shared_buffers=64MB", "max_connections=300"];
        let server = PostgreSql::start_with(&[&usual[..], settings].concat());
        let made = session(&address(&server)).await?;
        made.batch_execute(
            "CREATE TABLE bare (name text PRIMARY KEY, token bigint, until timestamptz, fence bigint NOT NULL DEFAULT 0) \
             WITH (fillfactor = 50); INSERT INTO bare (name) SELECT 'bare/' || n FROM generate_series(0, 9999) n",
        )
        .await?;
        let mut bare = Vec::new();
        for _ in 0..CONNECTIONS {
            bare.push(Bare::connect(&server).await?);
        }
        let url = format!("{}?create=yes&durability={durability}", server.url());
        let client = Client::connect(url.as_str()).await?;
        Ok(Self { server, url, bare, client })
    }

    async fn cycles(&self, callers: usize, length: Duration) -> anyhow::Result<(f64, f64)> {
        let bare = |n: usize| BareCycle(self.bare[n % CONNECTIONS].clone(), format!("bare/{n}"));
        let ours = |n: usize| Cycle(self.client.mutex(format!("cycle/{n}")));
        // So that each name has its row.
        per_second((0..callers).map(ours), Duration::from_millis(20)).await?;
        let floor = per_second((0..callers).map(bare), length).await?;
        Ok((per_second((0..callers).map(ours), length).await?, floor))
    }

    /// Cycles of the store's functions alone: of one lock, or of all callers' locks at once.
    async fn functions(
        &self,
        callers: usize,
        commit: i32,
        length: Duration,
    ) -> anyhow::Result<f64> {
        let connections = callers.min(CONNECTIONS);
        let together = callers / connections;
        let mut tasks = Vec::new();
        for at in 0..connections {
            let names = (0..together).map(|n| format!("functions/{at}/{n}")).collect();
            tasks.push(Functions::connect(&self.server, names, commit).await?);
        }
        Ok(per_second(tasks.into_iter(), length).await? * together as f64)
    }

    /// Steps on one row by the store, by the floor, and by the store's statements alone.
    async fn hot(&self, length: Duration) -> anyhow::Result<[f64; 3]> {
        let (mut floor, mut ours, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..PROCESSES {
            let bare = Bare::connect(&self.server).await?;
            floor.push(BareStep(bare.clone()));
            alone.push(Statements(bare));
            let client = Client::connect(self.url.as_str()).await?;
            ours.push(Reader(Arc::clone(client.store())));
        }
        let floor = per_second(floor.into_iter(), length).await?;
        let ours = per_second(ours.into_iter(), length).await?;
        Ok([ours, floor, per_second(alone.into_iter(), length).await?])
    }

    /// How long it takes to renew many leases at once, in ms.
    async fn renewals(&self, leases: &[RenewRequest]) -> anyhow::Result<(f64, f64)> {
        let begin = Instant::now();
        for answer in self.client.store().renew(leases, WITHIN).await {
            ensure!(answer? == Renew::Renewed, "a lease was not renewed");
        }
        let ours = begin.elapsed();
        let begin = Instant::now();
        let mut statements = JoinSet::new();
        for (at, first) in (0..leases.len()).step_by(TOGETHER).enumerate() {
            let session = Arc::clone(&self.bare[at % CONNECTIONS].session);
            let last = leases.len().min(first + TOGETHER);
            statements.spawn(async move {
                let names: Vec<String> = (first..last).map(|n| format!("bare/{n}")).collect();
                let sql = "UPDATE bare b SET until = clock_timestamp() + interval '30 s' \
                           FROM unnest($1) n WHERE b.name = n";
                session.query_typed(sql, &[(&names, Type::TEXT_ARRAY)]).await
            });
        }
        while let Some(renewed) = statements.join_next().await {
            renewed??;
        }
        Ok((ours.as_secs_f64() * 1e3, begin.elapsed().as_secs_f64() * 1e3))
    }

    async fn leases(&self, count: usize) -> anyhow::Result<Vec<RenewRequest>> {
        let store = self.client.store();
        let ttl = Ttl::new(Duration::from_secs(600))?;
        let mut leases = Vec::with_capacity(count);
        let mut taking = JoinSet::new();
        for n in 0..count {
            let (store, key) = (Arc::clone(store), Key::new(format!("renew/{n}"))?);
            let request = AcquireRequest::new(key, Token::generate()?, ttl);
            taking.spawn(async move {
                let taken = store.acquire(&request, WITHIN).await?;
                let fences = taken.fences().context("the lock was taken")?;
                anyhow::Ok(RenewRequest::new(request.key, request.token, fences, ttl))
            });
        }
        while let Some(taken) = taking.join_next().await {
            leases.push(taken??);
        }
        Ok(leases)
    }

    /// From the start of a release until the next holder has the lock. Returns the median in µs,
    /// the median round trip, and the median of bare statements.
    async fn handoff(&self, delay: Duration, count: u32) -> anyhow::Result<[f64; 3]> {
        let relay = Delay::start((Ipv4Addr::LOCALHOST, self.server.port()).into(), delay)?;
        let address = relay.addr();
        let url = format!("postgres://leasehold@{address}/postgres");
        let (ip, port) = (address.ip(), address.port());
        let address = format!("host={ip} port={port} user=leasehold dbname=postgres");
        let floor = bare_handoff(&address, count).await?;
        let bare = session(&address).await?;
        let mut round_trip = Latencies::new();
        for _ in 0..count {
            let begin = Instant::now();
            bare.query_typed("SELECT 1", &[]).await?;
            round_trip.record(begin.elapsed());
        }
        let clients = [Client::connect(url.as_str()).await?, Client::connect(url.as_str()).await?];
        let mut latencies = Latencies::new();
        let mut guard = clients[0].mutex("handoff").lock().await?;
        for n in 0..count as usize {
            let next = clients[(n + 1) % 2].mutex("handoff");
            let waiting = tokio::spawn(async move {
                let guard = next.lock().await?;
                anyhow::Ok((guard, Instant::now()))
            });
            // Until it stands in the queue.
            let key = Key::new("handoff")?;
            loop {
                let info = clients[0].store().inspect(&key, WITHIN).await?;
                if info.is_some_and(|info| !info.waiters.is_empty()) {
                    break;
                }
            }
            // Until the waiter only listens.
            tokio::time::sleep(SETTLES).await;
            let begin = Instant::now();
            guard.release().await?;
            let (next, at) = waiting.await??;
            latencies.record(at - begin);
            guard = next;
        }
        guard.release().await?;
        Ok([latencies.quantile_us(0.5), round_trip.quantile_us(0.5), floor])
    }
}

/// From a release by `UPDATE` and `NOTIFY` until the one who listens has taken the row by another
/// `UPDATE`.
async fn bare_handoff(address: &str, count: u32) -> anyhow::Result<f64> {
    let holder = session(address).await?;
    let (next, mut connection) = tokio_postgres::connect(address, NoTls).await?;
    let (tell, mut told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(said)) = poll_fn(|context| connection.poll_message(context)).await {
            if matches!(said, AsyncMessage::Notification(_)) {
                tell.send(()).ok();
            }
        }
    });
    next.batch_execute("LISTEN handoff").await?;
    let release = "UPDATE bare SET token = NULL WHERE name = 'bare/0'";
    let take = "UPDATE bare SET token = 1 WHERE name = 'bare/0' RETURNING fence";
    let mut latencies = Latencies::new();
    for _ in 0..count {
        tokio::time::sleep(SETTLES).await;
        let begin = Instant::now();
        let released = holder.query_typed(release, &[]);
        let notified = holder.query_typed("SELECT pg_notify('handoff', '')::text", &[]);
        let taken = async {
            told.recv().await.context("no notification")?;
            next.query_typed(take, &[]).await?;
            anyhow::Ok(begin.elapsed())
        };
        let (released, notified, taken) = tokio::join!(released, notified, taken);
        released?;
        notified?;
        latencies.record(taken?);
    }
    Ok(latencies.quantile_us(0.5))
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Postgres> {
    let mut rows = Vec::new();
    let commits =
        [("durable", &[][..], "full"), ("async", &["synchronous_commit=off"][..], "async")];
    for (commit, settings, durability) in commits {
        let place = Place::start(settings, durability).await?;
        let aims = if commit == "async" { ["0.6", "1.2", "1.5"] } else { ["0.9", "1.2", "3"] };
        for (callers, aim) in [1, 64, 256].into_iter().zip(aims) {
            let (mut rounds, mut functions) = (Rounds::default(), Rounds::default());
            for _ in 0..args.rounds() {
                let (ours, floor) = place.cycles(callers, args.turn()).await?;
                rounds.ours.push(ours);
                rounds.floor.push(floor);
                functions.ours.push(ours);
                let commit = i32::from(commit == "async");
                functions.floor.push(place.functions(callers, commit, args.turn()).await?);
            }
            let s = if callers == 1 { "" } else { "s" };
            let work = format!("take and release, {commit}, {callers} caller{s}");
            rows.push(rounds.row(&work, "cycles/s", aim));
            rows.push(functions.row(format!("{work}, of its functions alone"), "cycles/s", "–"));
        }
        if commit == "async" {
            let (mut rounds, mut alone) = (Rounds::default(), Rounds::default());
            for _ in 0..args.rounds() {
                let [ours, floor, statements] = place.hot(args.turn()).await?;
                rounds.ours.push(ours);
                rounds.floor.push(floor);
                alone.ours.push(ours);
                alone.floor.push(statements);
            }
            let work = "two steps on one row, 16 processes";
            rows.push(rounds.row(work, "pairs/s", "0.9"));
            rows.push(alone.row(format!("{work}, of its statements alone"), "pairs/s", "–"));
            continue;
        }
        let leases = place.leases(args.locks()).await?;
        let mut rounds = Rounds::default();
        for _ in 0..args.rounds() {
            let (ours, floor) = place.renewals(&leases).await?;
            rounds.ours.push(ours);
            rounds.floor.push(floor);
        }
        rows.push(rounds.row(format!("renewing {} leases", leases.len()), "ms", "150 ms"));
        for (delay, aim) in [(0, "–"), (1, "≤ 2.6")] {
            let (mut rounds, mut alone) = (Rounds::default(), Rounds::default());
            for _ in 0..args.rounds() {
                let count = if args.quick { 5 } else { 40 };
                let delay = Duration::from_millis(delay);
                let [ours, round_trip, floor] = place.handoff(delay, count).await?;
                rounds.ours.push(ours);
                rounds.floor.push(round_trip);
                alone.ours.push(ours);
                alone.floor.push(floor);
            }
            let work = format!("hand-off over {delay} ms each way, p50");
            rows.push(rounds.row(format!("{work}, of a round trip"), "µs", aim));
            rows.push(alone.row(
                format!("{work}, of two bare updates and a notification"),
                "µs",
                "–",
            ));
        }
    }
    Ok(Postgres { rows })
}
