//! Counts the instructions of the server and the client with callgrind.
//!
//! They are counted for a cycle of a lone lock, of one lock among many in a batch, for a hand-off,
//! and for a renewal. Other tasks are a try that finds the lock busy, a cycle of a permit or a
//! reader with others, a heartbeat, the first use of a name, and a cycle in the embedded store. The
//! client's atomic instructions are also counted separately: each takes as long as some twenty
//! others, so their share of time does not show in the total.
//!
//! Each count is a multiple of the bare pair's (`SET NX PX`, and a script that compares and
//! deletes), on the same server and in the same build. A count is the difference of a short and a
//! long run, which excludes start and end.
//!
//! Counts differ by a few per cent between processors, servers, compilers and libraries. So the
//! test prints every count with its reference, and fails only on growth by more than a half.
#![cfg(target_os = "linux")]
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod work;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::Client;
use leasehold::store::{Acquire, AcquireRequest, QueueRequest, Renew, RenewRequest};
use leasehold_core::{ClientId, Key, Token, Ttl};
use leasehold_testkit::process::TestProcess;
use leasehold_testkit::server::{RedisServer, binary};

use crate::work::{cycles, handoffs};

/// Set in a child process: its task, the number of runs, and the server.
const TASK: &str = "LEASEHOLD_TEST_TASK";
const URL: &str = "LEASEHOLD_TEST_URL";

/// So long that no renewal falls into the count, even on a slow machine. But shorter than an idle
/// name is kept, or each release would shorten the key's expiry.
const TTL: Duration = Duration::from_secs(300);
/// Ends a call that hangs.
const WITHIN: Duration = Duration::from_secs(60);

const COMPARE_AND_DELETE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// The side whose instructions are counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Side {
    Server,
    Client,
}

/// A task, and how often it runs.
#[derive(Clone, Copy, Debug)]
struct Task {
    name: &'static str,
    short: usize,
    long: usize,
}

const PAIR: Task = Task { name: "pair", short: 100, long: 900 };
const ALONE: Task = Task { name: "alone", short: 100, long: 900 };
const TOGETHER: Task = Task { name: "together", short: 512, long: 4_096 };
const HAND_OFF: Task = Task { name: "hand-off", short: 160, long: 960 };
const RENEWAL: Task = Task { name: "renewal", short: 960, long: 9_600 };
const BUSY: Task = Task { name: "busy", short: 50, long: 250 };
const PERMIT: Task = Task { name: "permit", short: 50, long: 250 };
const SHARED: Task = Task { name: "shared", short: 50, long: 250 };
const HEARTBEAT: Task = Task { name: "heartbeat", short: 75, long: 300 };
const FIRST_USE: Task = Task { name: "first-use", short: 50, long: 250 };
const EMBEDDED: Task = Task { name: "embedded", short: 200, long: 2_000 };

async fn connect() -> Client {
    let url = std::env::var(URL).unwrap();
    Client::builder().ttl(TTL).connect(url).await.unwrap()
}

async fn carry_out(task: &str, times: usize) {
    match task {
        "pair" => pairs(times).await,
        "alone" => cycles(&connect().await, 1, times).await,
        "together" => cycles(&connect().await, 64, times / 64).await,
        "hand-off" => handoffs(&connect_all(16).await, times / 16).await,
        "renewal" => renewals(&connect().await, 960, times / 960).await,
        "busy" => busy(&connect().await, times).await,
        "permit" => permits(&connect().await, times).await,
        "shared" => readers(&connect().await, times).await,
        "heartbeat" => heartbeats(&connect().await, times).await,
        "first-use" => first_uses(&connect().await, times).await,
        "embedded" => {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("embedded:{}", folder.path().join("locks").display());
            cycles(&Client::builder().ttl(TTL).connect(url).await.unwrap(), 1, times).await;
        }
        other => panic!("no task is called {other}"),
    }
}

async fn pairs(times: usize) {
    let client = redis::Client::open(std::env::var(URL).unwrap()).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
    let mut connection = connection.unwrap();
    let script = redis::Script::new(COMPARE_AND_DELETE);
    for _ in 0..times {
        let token = Token::generate().unwrap().to_hex();
        let mut set = redis::cmd("SET");
        set.arg("bare").arg(&token).arg("NX").arg("PX").arg(30_000);
        let set: String = set.query_async(&mut connection).await.unwrap();
        assert_eq!(set, "OK");
        let deleted = script.key("bare").arg(&token).invoke_async::<u64>(&mut connection).await;
        assert_eq!(deleted.unwrap(), 1);
    }
}

async fn connect_all(clients: usize) -> Vec<Client> {
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(connect().await);
    }
    all
}

/// Renews `leases` leases `times` times.
async fn renewals(client: &Client, leases: usize, times: usize) {
    let (store, ttl) = (client.store(), Ttl::new(TTL).unwrap());
    let mut requests = Vec::new();
    for number in 0..leases {
        let request = asking(&format!("renewed/{number}"));
        let Acquire::Granted(granted) = store.acquire(&request, WITHIN).await.unwrap() else {
            panic!()
        };
        requests.push(RenewRequest::new(request.key, request.token, granted.fences, ttl));
    }
    for _ in 0..times {
        let answers = store.renew(&requests, WITHIN).await;
        assert!(answers.iter().all(|answer| *answer.as_ref().unwrap() == Renew::Renewed));
    }
}

async fn busy(client: &Client, times: usize) {
    let mutex = client.mutex("counted/held");
    let guard = mutex.lock().await.unwrap();
    for _ in 0..times {
        assert!(mutex.try_lock().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}

/// Cycles of one permit while another one is held.
async fn permits(client: &Client, times: usize) {
    let semaphore = client.semaphore("counted/permits", 4);
    let other = semaphore.acquire().await.unwrap();
    for _ in 0..times {
        semaphore.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    }
    other.release().await.unwrap();
}

/// Cycles of one reader while another one reads.
async fn readers(client: &Client, times: usize) {
    let lock = client.rwlock("counted/shared");
    let other = lock.read().await.unwrap();
    for _ in 0..times {
        lock.try_read().await.unwrap().unwrap().release().await.unwrap();
    }
    other.release().await.unwrap();
}

fn asking(name: &str) -> AcquireRequest {
    AcquireRequest::new(Key::new(name).unwrap(), Token::generate().unwrap(), Ttl::new(TTL).unwrap())
}

/// Heartbeats of fifteen waiters behind a holder.
async fn heartbeats(client: &Client, times: usize) {
    let store = client.store();
    let held = store.acquire(&asking("counted/waited-for"), WITHIN).await.unwrap();
    assert!(matches!(held, Acquire::Granted(_)));
    let (waiting, mut waiters) = (ClientId::generate().unwrap(), Vec::new());
    for ticket in 0..15 {
        let mut request = asking("counted/waited-for");
        request.queue = Some(QueueRequest::new(waiting, ticket, request.ttl));
        waiters.push(request);
    }
    for beat in 0..times / waiters.len() {
        for request in &mut waiters {
            let Acquire::Waiting(waiting) = store.acquire(request, WITHIN).await.unwrap() else {
                panic!()
            };
            let queue = request.queue.as_mut().unwrap();
            (queue.place, queue.heartbeat) =
                (Some(waiting.place), u32::try_from(beat).unwrap() + 1);
        }
    }
}

async fn first_uses(client: &Client, times: usize) {
    let store = client.store();
    for number in 0..times {
        let granted = store.acquire(&asking(&format!("first/{number}")), WITHIN).await.unwrap();
        assert!(matches!(granted, Acquire::Granted(_)));
    }
}

/// The work of a counted process; without a task it does nothing.
#[test]
fn a_task_is_carried_out() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (task, times) = task.split_once(' ').unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(carry_out(task, times.parse().unwrap()));
}

/// The command that counts the instructions of the command after it, and the file of its counts.
fn counting(folder: &Path) -> ([String; 5], PathBuf) {
    let counts = folder.join("counts");
    let words = [
        "valgrind".to_owned(),
        "--quiet".to_owned(),
        "--tool=callgrind".to_owned(),
        "--collect-bus=yes".to_owned(),
        format!("--callgrind-out-file={}", counts.display()),
    ];
    (words, counts)
}

/// The counts of one run.
#[derive(Clone, Copy, Debug)]
struct Counts {
    instructions: f64,
    /// The atomic ones, for which a processor needs exclusive access to memory.
    atomic: f64,
}

fn counted(counts: &Path) -> Counts {
    let text = fs::read_to_string(counts).unwrap();
    let line = |begin| text.lines().find_map(|line| line.strip_prefix(begin)).unwrap();
    let events = line("events: ").split_whitespace();
    let totals = line("totals: ").split_whitespace().map(|total| total.parse().unwrap());
    let totals: Vec<(&str, f64)> = events.zip(totals).collect();
    let of = |event| totals.iter().find(|(name, _)| *name == event).unwrap().1;
    Counts { instructions: of("Ir"), atomic: of("Ge") }
}

/// A program that runs the server and counts its instructions. Debian's program is a server only
/// under this name.
fn counted_server(folder: &Path, counting: &[String]) -> PathBuf {
    let server = folder.join("redis-server");
    symlink(fs::canonicalize(binary::find().path()).unwrap(), &server).unwrap();
    let path = folder.join("counted-server");
    let mut file =
        fs::File::options().write(true).create_new(true).mode(0o700).open(&path).unwrap();
    writeln!(file, "#!/bin/sh\nexec {} {} \"$@\"", counting.join(" "), server.display()).unwrap();
    path
}

/// What one side executes to run a task `times` times, with its start and end.
fn carried_out(side: Side, task: Task, times: usize) -> Counts {
    let folder = tempfile::tempdir().unwrap();
    let (counting, counts) = counting(folder.path());
    let mut builder = RedisServer::builder();
    if side == Side::Server {
        builder = builder.binary(counted_server(folder.path(), &counting));
    }
    let server = builder.start();
    let mut words = if side == Side::Client { counting.to_vec() } else { Vec::new() };
    words.push(std::env::current_exe().unwrap().display().to_string());
    words.extend(["--exact", "a_task_is_carried_out", "--test-threads=1"].map(str::to_owned));
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdout(Stdio::null());
    command.env(TASK, format!("{} {times}", task.name)).env(URL, server.url());
    assert!(TestProcess::spawn(command).unwrap().wait().success(), "{side:?}, {task:?}");
    server.terminate();
    counted(&counts)
}

/// What one side executes per run of a task.
fn each(side: Side, task: Task) -> Counts {
    let [short, long] = [task.short, task.long].map(|times| carried_out(side, task, times));
    let once = |short: f64, long: f64| (long - short) / (task.long - task.short) as f64;
    Counts {
        instructions: once(short.instructions, long.instructions),
        atomic: once(short.atomic, long.atomic),
    }
}

/// References: each side's instructions as a multiple of the bare pair's, and its atomic ones.
/// Counted on Redis 7.0, with all features of the workspace, in a test build for x86-64.
const COUNTED: [(Side, Task, f64, Option<f64>); 14] = [
    (Side::Server, ALONE, 3.04, None),
    (Side::Server, TOGETHER, 1.31, None),
    (Side::Server, HAND_OFF, 5.92, None),
    (Side::Server, RENEWAL, 0.71, None),
    (Side::Server, BUSY, 2.42, None),
    (Side::Server, PERMIT, 8.68, None),
    (Side::Server, SHARED, 8.69, None),
    (Side::Server, HEARTBEAT, 2.9, None),
    (Side::Server, FIRST_USE, 2.78, None),
    (Side::Client, ALONE, 1.36, Some(233.0)),
    (Side::Client, TOGETHER, 0.6, Some(113.0)),
    (Side::Client, HAND_OFF, 3.02, Some(565.0)),
    (Side::Client, RENEWAL, 0.071, Some(6.2)),
    (Side::Client, EMBEDDED, 1.16, Some(54.0)),
];

/// More growth than differences between hosts explain.
const GROWTH: f64 = 1.5;

/// One line of text for each task, and whether its growth is within the bound.
fn found(side: Side) -> Vec<(String, bool)> {
    let pair = each(side, PAIR).instructions;
    let mut found = vec![(format!("{side:?}, pair: {pair:.0}"), true)];
    for (_, task, counted, atomic) in COUNTED.into_iter().filter(|(of, ..)| *of == side) {
        let (now, name) = (each(side, task), task.name);
        let ratio = now.instructions / pair;
        let line = format!(
            "{side:?}, {name}: {:.0}, {ratio:.3} pairs (reference {counted})",
            now.instructions
        );
        found.push((line, ratio <= counted * GROWTH));
        if let Some(counted) = atomic {
            let line = format!("{side:?}, {name}: {:.1} atomic (reference {counted})", now.atomic);
            found.push((line, now.atomic <= counted * GROWTH));
        }
    }
    found
}

#[test]
fn no_operation_has_grown_by_a_half_in_instructions() {
    let valgrind = Command::new("valgrind").arg("--version").output();
    assert!(
        valgrind.is_ok_and(|found| found.status.success()),
        "no valgrind, which counts instructions here; install it (Debian, Ubuntu: apt-get install \
         valgrind; Fedora: dnf install valgrind)"
    );
    let found = std::thread::scope(|scope| {
        let client = scope.spawn(|| found(Side::Client));
        let mut both = found(Side::Server);
        both.extend(client.join().unwrap());
        both
    });
    let lines: Vec<_> = found.iter().map(|(line, _)| line.as_str()).collect();
    println!("{}", lines.join("\n"));
    assert!(found.iter().all(|(_, fits)| *fits), "{}", lines.join("\n"));
}
