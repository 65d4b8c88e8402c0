//! Checks the counts that are the same on every machine: requests, allocations, and held memory.
//!
//! They are counted for a cycle of a lock without other contenders, for a hand-off, and for a
//! renewal.
//!
//! The bounds are a little above today's counts. A change that needs more raises one.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod work;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Client;
use leasehold::store::{Acquire, AcquireRequest, Renew, RenewRequest};
use leasehold_core::{Key, Token, Ttl};
use leasehold_testkit::server::RedisServer;

use crate::work::{cycles, handoffs};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

fn counted(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// SAFETY: every call is forwarded unchanged to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(counted(layout.size()), Ordering::Relaxed);
        // SAFETY: the caller's promise about the layout is forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(counted(layout.size()), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often the server has carried these out so far, with calls inside scripts.
fn calls(server: &RedisServer, commands: &[&str]) -> f64 {
    let stats = server.info("commandstats");
    let calls = |command: &&str| -> Option<f64> {
        let fields = stats.get(&format!("cmdstat_{command}"))?;
        fields.strip_prefix("calls=")?.split(',').next()?.parse().ok()
    };
    commands.iter().filter_map(calls).sum()
}

/// How often the thread has slept so far. Zero on systems other than Linux, which don't count
/// it.
fn sleeps_of_the_thread() -> f64 {
    let switches = |thread: &Path| -> Option<f64> {
        let status = fs::read_to_string(thread.join("status")).ok()?;
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        (field("Name:")? == "leasehold").then(|| field("voluntary_ctxt_switches:")?.parse().ok())?
    };
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let turns = threads.filter_map(|thread| switches(&thread.path())).sum();
    assert!(turns > 0.0 || !cfg!(target_os = "linux"), "there is no such thread");
    turns
}

/// How much a count grows per cycle, after a warm-up.
fn per_cycle(cycles: usize, before: f64, after: f64) -> f64 {
    (after - before) / cycles as f64
}

/// Allocations of a cycle: of a lone caller, of one among many, and without a server, in memory and
/// in a directory. With the feature `metrics`, as when the whole workspace is built, there are two
/// or three more than in the crate's own build, and eight bytes more for a lease.
const ALONE: f64 = 22.0;
const TOGETHER: f64 = 12.0;
const IN_MEMORY: f64 = 5.5;
/// Of a hand-off through the server: its release, its notification, and the next heartbeat, of both
/// clients together.
const HANDED_OVER: f64 = 56.0;
/// Each of its two steps reads a record, and keeps its bytes to see whether it changed.
const EMBEDDED: f64 = 16.0;
/// How often the thread that drives connections and renews sleeps in a cycle, which has two
/// answers. A busy machine adds some, where it meets a caller at the connection. The renewer adds
/// none, since the lease has ended when it looks.
const SLEEPS_ALONE: f64 = 4.0;
/// The same among 64 callers, of whom many share an answer.
const SLEEPS_TOGETHER: f64 = 0.5;
/// The bytes of a held lease, with its guard and its two entries in the schedule. The connection's
/// buffers also grow, sometimes by three pieces of 8 KiB, which is two bytes for each lease.
const HELD_BYTES: f64 = 528.0;
/// So long that no renewal falls into the count, even on a slow machine.
const HELD_TTL: Duration = Duration::from_secs(24 * 3600);
/// Ends a call that hangs.
const WITHIN: Duration = Duration::from_secs(60);

/// Allocations for a renewal: by the schedule and the store in memory, and by the store on a
/// server. A renewal moves a lease twice in the schedule, whose nodes have room for eleven.
const RENEWED: f64 = 0.5;
const RENEWED_ON_SERVER: f64 = 0.8;

/// Allocations for a renewal by the schedule. The leases were acquired one after the other, and are
/// renewed for this many periods. Time stands still between the events.
fn of_the_schedule(leases: u32, periods: u32) -> f64 {
    const TTL: Duration = Duration::from_secs(30);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let builder = Client::builder().ttl(TTL).tokio_time();
        let client = builder.connect("memory:").await.unwrap();
        let mut guards = Vec::new();
        for number in 0..leases {
            guards.push(client.mutex(number.to_string()).try_lock().await.unwrap().unwrap());
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        tokio::time::sleep(TTL).await;
        let before = ALLOCATIONS.load(Ordering::Relaxed) as f64;
        tokio::time::sleep(TTL / 3 * periods).await;
        let after = ALLOCATIONS.load(Ordering::Relaxed) as f64;
        assert!(guards.iter().all(|guard| guard.is_held()));
        (after - before) / f64::from(leases * periods)
    })
}

/// Allocations for a renewal by the store on a server.
async fn of_the_store(client: &Client, leases: u32) -> f64 {
    let store = client.store();
    let mut requests = Vec::new();
    for number in 0..leases {
        let (key, token) =
            (Key::new(format!("renewed/{number}")).unwrap(), Token::generate().unwrap());
        let ttl = Ttl::new(HELD_TTL).unwrap();
        let request = AcquireRequest::new(key.clone(), token, ttl);
        let Acquire::Granted(granted) = store.acquire(&request, WITHIN).await.unwrap() else {
            panic!()
        };
        requests.push(RenewRequest::new(key, token, granted.fences, ttl));
    }
    // The first round allocates what later calls reuse.
    let mut allocated = 0.0;
    for _ in 0..2 {
        let before = ALLOCATIONS.load(Ordering::Relaxed) as f64;
        let answers = store.renew(&requests, WITHIN).await;
        allocated = ALLOCATIONS.load(Ordering::Relaxed) as f64 - before;
        assert!(answers.iter().all(|answer| *answer.as_ref().unwrap() == Renew::Renewed));
    }
    allocated / f64::from(leases)
}

/// One test, since the counts are of the whole process.
#[test]
fn cycles_and_held_leases_cost_no_more_than_they_did() {
    let of_the_schedule = of_the_schedule(2000, 20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start();
        let client = Client::connect(server.url()).await.unwrap();
        let allocations = || ALLOCATIONS.load(Ordering::Relaxed) as f64;
        let mut found = Vec::new();
        let mut check = |what: &str, counted: f64, most: f64| {
            found.push((format!("{what}: {counted:.2}, at most {most}"), counted <= most));
        };

        check("a renewal by the schedule, allocations", of_the_schedule, RENEWED);

        for (callers, each, sleeps, most) in [
            (1, 400, SLEEPS_ALONE, [2.05, 2.05, 2.05, 2.05, ALONE]),
            (64, 50, SLEEPS_TOGETHER, [0.2, 2.1, 2.1, 0.2, TOGETHER]),
        ] {
            cycles(&client, callers, 2).await;
            let all = callers * each;
            let names: [&[&str]; 4] = [&["evalsha", "eval"], &["hget"], &["hset"], &["pttl"]];
            let before = names.map(|names| calls(&server, names));
            let (allocated, turns) = (allocations(), sleeps_of_the_thread());
            cycles(&client, callers, each).await;
            let allocated = per_cycle(all, allocated, allocations());
            let turns = per_cycle(all, turns, sleeps_of_the_thread());
            check(&format!("{callers} callers, sleeps of the thread"), turns, sleeps);
            for ((names, before), most) in names.iter().zip(before).zip(most) {
                let counted = per_cycle(all, before, calls(&server, names));
                check(&format!("{callers} callers, {}", names[0]), counted, most);
            }
            check(&format!("{callers} callers, allocations"), allocated, most[4]);
        }

        const CLIENTS: usize = 4;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Client::builder().ttl(HELD_TTL).connect(server.url()).await.unwrap());
        }
        handoffs(&clients, 20).await;
        let requests = || calls(&server, &["evalsha", "eval"]);
        let (asked, published) = (requests(), calls(&server, &["publish"]));
        let allocated = allocations();
        handoffs(&clients, 200).await;
        let all = CLIENTS * 200;
        let allocated = per_cycle(all, allocated, allocations());
        check("a hand-off, allocations", allocated, HANDED_OVER);
        check("a hand-off, evalsha", per_cycle(all, asked, requests()), 2.1);
        let published = per_cycle(all, published, calls(&server, &["publish"]));
        check("a hand-off, publish", published, 1.1);
        drop(clients);
        // A client that has waited before sends a queue request even for a free lock. Their leases
        // are short, or each release would shorten the key's expiry.
        const TURNS: usize = 100;
        let mut clients = Vec::new();
        for _ in 0..2 {
            clients.push(Client::connect(server.url()).await.unwrap());
        }
        handoffs(&clients, 5).await;
        let looks: [&[&str]; 2] = [&["hget"], &["pttl"]];
        let before = looks.map(|names| calls(&server, names));
        for client in clients.iter().cycle().take(TURNS) {
            let mutex = client.mutex("counted/by-turns");
            mutex.lock().await.unwrap().release().await.unwrap();
        }
        for ((names, before), most) in looks.iter().zip(before).zip([2.05, 0.05]) {
            let counted = per_cycle(TURNS, before, calls(&server, names));
            check(&format!("a cycle of clients that waited before, {}", names[0]), counted, most);
        }
        drop(clients);

        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let embedded = format!("embedded:{}", directory.path().join("locks").display());
        for (url, most) in [("memory:", IN_MEMORY), (&*embedded, EMBEDDED)] {
            let client = Client::connect(url).await.unwrap();
            cycles(&client, 1, 10).await;
            let before = allocations();
            cycles(&client, 1, 1000).await;
            let scheme = url.split(':').next().unwrap_or_default();
            check(&format!("{scheme}, allocations"), per_cycle(1000, before, allocations()), most);
        }

        check(
            "a renewal by the store, allocations",
            of_the_store(&client, 960).await,
            RENEWED_ON_SERVER,
        );

        const HELD: usize = 10_000;
        let client = Client::builder().ttl(HELD_TTL).connect(server.url()).await.unwrap();
        cycles(&client, 1, 2).await;
        let mut guards = Vec::with_capacity(HELD);
        let before = BYTES.load(Ordering::Relaxed);
        for number in 0..HELD {
            guards.push(client.mutex(format!("held/{number}")).try_lock().await.unwrap().unwrap());
        }
        let bytes = (BYTES.load(Ordering::Relaxed) - before) as f64 / HELD as f64;
        check("bytes of a held lease", bytes, HELD_BYTES);

        let lines: Vec<_> = found.iter().map(|(line, _)| line.as_str()).collect();
        println!("{}", lines.join("\n"));
        assert!(found.iter().all(|(_, fits)| *fits), "{}", lines.join("\n"));
    });
}
