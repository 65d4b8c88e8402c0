//! A cluster that loses a primary, changes one, or moves a slot.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Client;
use leasehold_clock::SystemClock;
use leasehold_core::Clock as _;
use leasehold_testkit::server::cluster::{Cluster, ClusterBuilder};
use leasehold_testkit::server::{RedisServer, Reply};

use crate::cell::{Cell, KEY, LONG, Rest, Verdict, connected, in_step, ms, wait_for};
use crate::naive::Servers;

pub(crate) const CLUSTER: Cell =
    Cell { id: "", fault: "", topology: "cluster", verdict: Verdict::Exclusive, ttl: ms(1_000) };
const NODE_TIMEOUT: Duration = ms(1_000);

pub(crate) async fn start(options: ClusterBuilder) -> Arc<Cluster> {
    Arc::new(tokio::task::spawn_blocking(move || options.start()).await.unwrap())
}

pub(crate) async fn rest(cell: Cell, cluster: &Arc<Cluster>) -> Rest {
    let slot = cluster.slot_of(KEY);
    let find = {
        let cluster = Arc::clone(cluster);
        move || Some(cluster.master_of(slot).addr())
    };
    rest_with(cell, cluster, Servers::one(find)).await
}

async fn rest_with(cell: Cell, cluster: &Cluster, servers: Servers) -> Rest {
    let client = async || connected(Client::builder().call_timeout(ms(500)), &cluster.url()).await;
    Rest::begin(cell, servers, client).await
}

/// The lock's slot, its first primary, and the replica of that, if there are any.
fn members(cluster: &Cluster) -> (u16, &RedisServer, &RedisServer) {
    let slot = cluster.slot_of(KEY);
    let primary = cluster.master_of(slot);
    let nodes = cluster.nodes();
    let index = nodes.iter().position(|node| node.port() == primary.port()).unwrap();
    (slot, primary, &nodes[(index + 3) % nodes.len()])
}

/// Runs something that blocks.
pub(crate) async fn block<T: Send + 'static>(
    cluster: &Arc<Cluster>,
    what: impl FnOnce(&Cluster) -> T + Send + 'static,
) -> T {
    let cluster = Arc::clone(cluster);
    wait_for("the cluster", tokio::task::spawn_blocking(move || what(&cluster))).await.unwrap()
}

/// Servers of naive clients that cannot find out from the nodes where the primary is, because some
/// of those stand still.
fn pointed_at(primary: &RedisServer) -> (Arc<Mutex<SocketAddr>>, Servers) {
    let at = Arc::new(Mutex::new(primary.addr()));
    let find = Arc::clone(&at);
    (at, Servers::one(move || Some(*find.lock().unwrap())))
}

/// Waits until a replica has become a primary, and serves.
async fn promoted(replica: &RedisServer) {
    wait_for("the replica to be promoted", async {
        while !replica.cli(&["ROLE"]).starts_with("master")
            || !replica.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
}

/// The primary is gone before its replica had the holder's grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r4_a_primary_killed_with_a_grant_that_no_replica_has_grants_twice_and_the_fence_saves_the_resource()
 {
    let cluster = start(Cluster::builder().node_timeout(NODE_TIMEOUT)).await;
    let fault = "primary killed before its replica had the grant";
    let cell = Cell { id: "R4", fault, verdict: Verdict::Fenced, ttl: ms(4_000), ..CLUSTER };
    let (_, primary, replica) = members(&cluster);
    let (at, servers) = pointed_at(primary);
    let rest = rest_with(cell, &cluster, servers).await.calm().await;
    in_step(primary, replica).await;
    replica.pause();
    drop(primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]));
    let mut play = rest.hold().await;
    primary.kill();
    replica.resume();
    play.over();
    promoted(replica).await;
    *at.lock().unwrap() = replica.addr();
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_manual_fail_over_makes_no_second_holder() {
    let cluster = start(Cluster::builder()).await;
    let cell = Cell { id: "R5", fault: "`CLUSTER FAILOVER`", ..CLUSTER };
    let mut play = rest(cell, &cluster).await.hold().await;
    block(&cluster, |cluster| {
        let (slot, primary, replica) = members(cluster);
        assert_eq!(replica.cli(&["CLUSTER", "FAILOVER"]), "OK");
        cluster.master_after(primary, slot).port()
    })
    .await;
    play.over();
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r6_a_slot_that_moves_while_the_lock_is_held_costs_no_lease() {
    let cluster = start(Cluster::builder().replicas(0)).await;
    let fault = "slot moved key by key, half of its keys at either end for 0.5 s";
    let cell = Cell { id: "R6", fault, ttl: LONG, ..CLUSTER };
    let mut play = rest(cell, &cluster).await.hold().await;
    block(&cluster, |cluster| {
        let (slot, from, _) = members(cluster);
        let to = cluster.nodes().iter().find(|node| node.port() != from.port()).unwrap();
        cluster.migrate(slot, to, || std::thread::sleep(ms(500)));
    })
    .await;
    play.over();
    let outcome = play.end().await;
    assert!(outcome.kept, "{outcome:?}");
}

/// Whether a slot can be moved in one step by the servers at hand.
pub(crate) fn can_move_at_once() -> bool {
    let server = RedisServer::start();
    server.info("server").contains_key("valkey_version") && server.version() >= (9, 0)
}

/// Moves a slot in one step, and returns once its new primary serves it.
pub(crate) fn move_at_once(cluster: &Cluster, slot: u16, to: &RedisServer) {
    let from = cluster.master_of(slot);
    let (number, id) = (slot.to_string(), to.cli(&["CLUSTER", "MYID"]));
    let order = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &number, &number, "NODE", &id];
    assert_eq!(from.cli(&order), "OK");
    assert_eq!(cluster.master_after(from, slot).port(), to.port());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_a_slot_that_moves_in_one_step_while_the_lock_is_held_costs_no_lease() {
    if !can_move_at_once() {
        println!("| R7 | not run: atomic slot migration needs Valkey 9 |");
        return;
    }
    let cluster = start(Cluster::builder().replicas(0)).await;
    let cell = Cell { id: "R7", fault: "`CLUSTER MIGRATESLOTS`", ttl: LONG, ..CLUSTER };
    let mut play = rest(cell, &cluster).await.hold().await;
    block(&cluster, |cluster| {
        let (slot, from, _) = members(cluster);
        let to = cluster.nodes().iter().find(|node| node.port() != from.port()).unwrap();
        move_at_once(cluster, slot, to);
    })
    .await;
    play.over();
    let outcome = play.end().await;
    assert!(outcome.kept, "{outcome:?}");
}

/// A partition, one side after the other: first only the primary and its clients run, then only
/// the rest. What the replica had not got before, it never gets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_a_primary_on_the_minority_side_stops_in_time_and_the_fence_saves_the_resource() {
    let cluster = start(Cluster::builder().node_timeout(NODE_TIMEOUT)).await;
    let (_, primary, replica) = members(&cluster);
    let others = || cluster.nodes().iter().filter(|node| node.port() != primary.port());
    let fault = "primary alone with its clients, then the others without it";
    let cell = Cell { id: "R8", fault, verdict: Verdict::Fenced, ttl: ms(4_000), ..CLUSTER };
    let (at, servers) = pointed_at(primary);
    let rest = rest_with(cell, &cluster, servers).await.calm().await;
    in_step(primary, replica).await;
    others().for_each(RedisServer::pause);
    drop(primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]));
    let mut play = rest.hold().await;
    let refuses = || match primary.try_cli(&["GET", "{cells}"]) {
        Ok(Reply::Error(error)) => error.starts_with("CLUSTERDOWN"),
        _ => false,
    };
    wait_for("the minority to refuse its clients", async {
        while !refuses() {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    primary.pause();
    others().for_each(RedisServer::resume);
    promoted(replica).await;
    *at.lock().unwrap() = replica.addr();
    play.over();
    let outcome = play.end().await;
    assert_eq!(outcome.fence_faults, 0, "{outcome:?}");
}

/// Whether these servers inform replicas of a slot that moves.
fn replicas_know_of_moves() -> bool {
    let server = RedisServer::start();
    server.info("server").contains_key("valkey_version") && server.version() >= (8, 0)
}

/// What the replica of a move's source does not know: that the lock's record is elsewhere by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r13_a_fail_over_in_the_middle_of_a_move_grants_twice_and_the_fence_saves_the_resource() {
    if replicas_know_of_moves() {
        println!("| R13 | not run: Valkey 8 tells replicas of a move, and the lease is kept |");
        return;
    }
    let cluster = start(Cluster::builder().node_timeout(NODE_TIMEOUT)).await;
    let fault = "slot half moved, its primary killed";
    let cell = Cell { id: "R13", fault, verdict: Verdict::Fenced, ttl: ms(4_000), ..CLUSTER };
    let (slot, primary, replica) = members(&cluster);
    let (at, servers) = pointed_at(primary);
    let mut play = rest_with(cell, &cluster, servers).await.hold().await;
    block(&cluster, move |cluster| {
        let (_, from, _) = members(cluster);
        let to = cluster.nodes().iter().find(|node| node.port() != from.port()).unwrap();
        cluster.half_migrate(slot, to);
    })
    .await;
    in_step(primary, replica).await;
    primary.kill();
    play.over();
    promoted(replica).await;
    *at.lock().unwrap() = replica.addr();
    let outcome = play.end().await;
    assert_eq!(outcome.fence_faults, 0, "{outcome:?}");
}

/// The source redirects all clients to the node that is gone, until an operator has it keep the
/// slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r13_a_target_that_fails_over_in_the_middle_of_a_move_lets_no_caller_in() {
    if replicas_know_of_moves() {
        println!("| R13 | not run: Valkey 8 tells replicas of a move |");
        return;
    }
    let cluster = start(Cluster::builder().node_timeout(NODE_TIMEOUT)).await;
    let fault = "slot half moved, the target killed; the move given up when all leases were over";
    let cell = Cell { id: "R13", fault, verdict: Verdict::Liveness, ttl: ms(4_000), ..CLUSTER };
    let (slot, source, _) = members(&cluster);
    let nodes = cluster.nodes();
    let target = nodes.iter().take(3).position(|node| node.port() != source.port()).unwrap();
    let mut play = rest_with(cell, &cluster, pointed_at(source).1).await.hold().await;
    block(&cluster, move |cluster| cluster.half_migrate(slot, &cluster.nodes()[target])).await;
    in_step(&nodes[target], &nodes[target + 3]).await;
    nodes[target].kill();
    promoted(&nodes[target + 3]).await;
    play.outlast().await;
    assert_eq!(play.granted(), 0, "a client was granted what was moved away");
    assert_eq!(source.cli(&["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]), "OK");
    play.over();
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_in_a_slot_that_stays_half_moved_is_kept() {
    let cluster = start(Cluster::builder().replicas(0)).await;
    let client = connected(Client::builder(), &cluster.url()).await;
    let (ttl, clock) = (ms(5_000), SystemClock::new());
    let lock = client.mutex(KEY).ttl(ttl);
    let guard = lock.lock().await.unwrap();
    block(&cluster, |cluster| {
        let (slot, from, _) = members(cluster);
        let to = cluster.nodes().iter().find(|node| node.port() != from.port()).unwrap();
        cluster.half_migrate(slot, to);
    })
    .await;
    let later = clock.now().saturating_add(2 * ttl);
    wait_for("renewals", async {
        while clock.now().saturating_add(guard.remaining()) < later {
            assert!(guard.is_held());
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    guard.release().await.unwrap();
    lock.lock().await.unwrap().release().await.unwrap();
}
