//! Servers that are restarted in turn, as for an update, and one to which all clients come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::{Client, Guard};
use leasehold_clock::SystemClock;
use leasehold_core::{Clock as _, Moment};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cell::{Cell, LONG, PATIENCE, Rest, connected, ms, wait_for};
use crate::cluster::{self, CLUSTER};
use crate::load::{Load, Progress, Use};
use crate::naive::Servers;
use crate::quorum::{self, THREE};

/// In a cluster of three, some of each primary.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const WORKERS: usize = 20;

async fn workers(client: impl AsyncFn() -> Client) -> Load {
    let mut load = Load::new();
    for worker in 0..WORKERS {
        load.join(client().await, NAMES[worker % NAMES.len()], Use::Mutex, LONG);
    }
    load
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r14_a_cluster_whose_nodes_are_restarted_in_turn_costs_no_lease() {
    let cluster = cluster::start(Cluster::builder()).await;
    let fault = "each primary restarted after a `CLUSTER FAILOVER`";
    let cell = Cell { id: "R14", fault, ttl: LONG, ..CLUSTER };
    let mut play = cluster::rest(cell, &cluster).await.hold().await;
    let load = workers(async || connected(Client::builder(), &cluster.url()).await).await;
    let progress = load.progress();
    cluster::block(&cluster, move |cluster| in_turn(cluster, &progress)).await;
    play.over();
    load.end().await.judge();
    let outcome = play.end().await;
    assert!(outcome.kept, "{outcome:?}");
}

fn in_turn(cluster: &Cluster, progress: &Progress) {
    let slots = NAMES.map(|name| cluster.slot_of(name));
    let (primaries, replicas) = cluster.nodes().split_at(3);
    progress.grants(2, true);
    for (primary, replica) in primaries.iter().zip(replicas) {
        let of = |slot: &&u16| cluster.master_of(**slot).port() == primary.port();
        let slot = *slots.iter().find(of).expect("a lock on every primary");
        assert_eq!(replica.cli(&["CLUSTER", "FAILOVER"]), "OK");
        assert_eq!(cluster.master_after(primary, slot).port(), replica.port());
        progress.grants(2, true);
        primary.terminate();
        progress.grants(2, true);
        primary.restart();
        cluster.await_health();
        progress.grants(2, true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r15_a_quorum_whose_nodes_are_restarted_in_turn_costs_no_lease() {
    let nodes = quorum::start(3, &RedisServer::builder().appendonly());
    let all = quorum::addresses(&nodes);
    let fault = "each node restarted with its append-only file";
    let cell = Cell { id: "R15", fault, ttl: LONG, ..THREE };
    let client = async || quorum::client(&all, true).await;
    let rest = Rest::begin(cell, Servers::majority(all.clone()), client).await;
    let mut play = rest.hold().await;
    play.is_at_all(&all).await;
    let load = workers(client).await;
    let progress = load.progress();
    let restarts = tokio::task::spawn_blocking(move || {
        progress.grants(2, true);
        for node in &nodes {
            node.terminate();
            progress.grants(2, true);
            node.restart();
            progress.grants(2, true);
        }
        nodes
    });
    let _nodes = wait_for("the restarts", restarts).await.unwrap();
    play.over();
    load.end().await.judge();
    let outcome = play.end().await;
    assert!(outcome.kept, "{outcome:?}");
}

/// With `LEASEHOLD_CLIENTS` as many clients as that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_clients_of_a_server_that_was_down_keep_their_leases_when_it_is_back() {
    let count = std::env::var("LEASEHOLD_CLIENTS").map_or(200, |count| count.parse().unwrap());
    more_files();
    let ttl = ms(30_000);
    let server = Arc::new(RedisServer::builder().appendonly().start());
    let (url, clock) = (server.url(), SystemClock::new());
    let mut guards: Vec<Guard> = Vec::new();
    let mut connecting = JoinSet::new();
    for number in 0..count {
        let url = url.clone();
        connecting.spawn(async move {
            let builder = Client::builder().call_timeout(PATIENCE);
            let client = connected(builder, &url).await;
            client.mutex(format!("lock-{number}")).ttl(ttl).lock().await.unwrap()
        });
        if connecting.len() == 50 {
            guards.push(connecting.join_next().await.unwrap().unwrap());
        }
    }
    guards.extend(connecting.join_all().await);

    server.kill();
    // All of them find it gone.
    wait_for("all to be at risk", async {
        while !guards.iter().all(|guard| guard.lease().is_at_risk()) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    let end = |guard: &Guard| clock.now().saturating_add(guard.remaining());
    let before: Vec<_> = guards.iter().map(end).collect();
    let restarting = Arc::clone(&server);
    tokio::task::spawn_blocking(move || restarting.restart()).await.unwrap();
    let back = clock.now();
    let busiest = Arc::new(AtomicUsize::new(0));
    let stop = CancellationToken::new();
    let counting = count_connections(Arc::clone(&server), Arc::clone(&busiest), stop.clone());
    let counting = tokio::spawn(counting);
    wait_for("all to be renewed", async {
        let is_renewed =
            |(guard, before): (&Guard, Moment)| end(guard) > before.saturating_add(ms(100));
        while !guards.iter().zip(before.iter().copied()).all(is_renewed) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    let took = clock.now().saturating_since(back);
    stop.cancel();
    counting.await.unwrap();
    let kept = guards.iter().filter(|guard| guard.is_held()).count();
    let connections = connections(&server);
    println!(
        "{kept} of {count} leases kept, all renewed {} ms after the restart; {connections} \
         connections, {} in the busiest 100 ms",
        took.as_millis(),
        busiest.load(Ordering::Relaxed)
    );
    assert_eq!(kept, count);
    assert!(connections < 6 * count, "a storm of {connections} connections");
}

/// Of all, since the server's start; this question's own included.
fn connections(server: &RedisServer) -> usize {
    server.info("stats")["total_connections_received"].parse().unwrap()
}

/// Notes how many came in the busiest tenth of a second, until it is stopped.
async fn count_connections(
    server: Arc<RedisServer>,
    busiest: Arc<AtomicUsize>,
    stop: CancellationToken,
) {
    let mut before = 0;
    while !stop.is_cancelled() {
        let asked = Arc::clone(&server);
        let now = tokio::task::spawn_blocking(move || connections(&asked)).await.unwrap();
        busiest.fetch_max(now - before, Ordering::Relaxed);
        before = now;
        tokio::time::sleep(ms(100)).await;
    }
}

/// Raises the number of files that this process may have open to what it is allowed.
fn more_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}
