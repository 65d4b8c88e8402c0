//! Independent servers, some of which are gone.

use std::net::SocketAddr;

use leasehold::{Client, ErrorKind};
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server::{RedisServer, RedisServerBuilder};

use crate::cell::{Cell, LONG, Rest, Verdict, connected, ms, wait_for};
use crate::naive::Servers;

/// With the longest ttl of which nodes that forget have to be sure.
pub(crate) const THREE: Cell = Cell {
    id: "",
    fault: "",
    topology: "quorum of 3",
    verdict: Verdict::Exclusive,
    ttl: ms(1_000),
};

pub(crate) fn start(count: usize, options: &RedisServerBuilder) -> Vec<RedisServer> {
    (0..count).map(|_| options.clone().start()).collect()
}

pub(crate) fn addresses(nodes: &[RedisServer]) -> Vec<SocketAddr> {
    nodes.iter().map(RedisServer::addr).collect()
}

/// A client of these nodes, which takes their word that they keep leases, or waits until they are
/// sure to remember every one.
pub(crate) async fn client(nodes: &[SocketAddr], keep_leases: bool) -> Client {
    let keep = if keep_leases { "yes" } else { "no" };
    client_with(nodes, &format!("max_ttl=1s&keep_leases={keep}")).await
}

async fn client_with(nodes: &[SocketAddr], settings: &str) -> Client {
    let hosts: Vec<String> = nodes.iter().map(SocketAddr::to_string).collect();
    let url = format!("quorum+redis://{}?{settings}", hosts.join(","));
    connected(Client::builder().call_timeout(ms(500)), &url).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_a_minority_of_the_nodes_that_is_gone_costs_no_lease() {
    let nodes = start(5, &RedisServer::builder().appendonly());
    let all = addresses(&nodes);
    let fault = "one node killed, one stopped (`SIGSTOP`)";
    let cell = Cell { id: "R9", fault, topology: "quorum of 5", ttl: LONG, ..THREE };
    let servers = Servers::first(all.clone());
    let rest = Rest::begin(cell, servers, async || client(&all, true).await).await;
    let mut play = rest.hold().await;
    nodes[0].kill();
    nodes[4].pause();
    play.over();
    let outcome = play.end().await;
    assert!(outcome.kept, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_without_a_majority_of_the_nodes_no_lock_is_granted() {
    let nodes = start(3, &RedisServer::builder().appendonly());
    let all = addresses(&nodes);
    let fault = "two nodes killed, later started again with their append-only files";
    let cell = Cell { id: "R10", fault, verdict: Verdict::Liveness, ttl: ms(4_000), ..THREE };
    let servers = Servers::first(all.clone());
    let rest = Rest::begin(cell, servers, async || client(&all, true).await).await;
    let mut play = rest.hold().await;
    nodes[0].kill();
    nodes[1].kill();
    play.outlast().await;
    let late = wait_for("an answer", play.client().mutex("other").lock_within(ms(500))).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(play.granted(), 0, "a minority granted the lock");
    nodes[0].restart();
    nodes[1].restart();
    play.over();
    play.end().await;
}

/// One node is out of reach while the holder takes the lock, another one forgets its data, and then
/// the first one is back: a majority that knows nothing of the holder.
async fn r11(cell: Cell, keep_leases: bool) {
    let nodes = start(3, &RedisServer::builder());
    let proxy = Proxy::start(nodes[2].addr());
    let mut all = addresses(&nodes);
    all[2] = proxy.addr();
    let servers = Servers::majority(all.clone());
    let rest = Rest::begin(cell, servers, async || client(&all, keep_leases).await).await;
    proxy.set(Fault::Refuse);
    proxy.kill_connections();
    let mut play = rest.hold().await;
    nodes[1].restart();
    proxy.set(Fault::Pass);
    play.over();
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_a_node_that_came_back_empty_has_no_vote_while_it_could_have_forgotten_a_lease() {
    let fault = "a node restarted empty at once, which counts again after the longest ttl";
    r11(Cell { id: "R11", fault, ..THREE }, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r11_a_node_that_is_trusted_and_came_back_empty_grants_twice_and_the_fence_saves_the_resource()
 {
    let fault = "a node restarted empty at once, which is said to keep its leases";
    r11(Cell { id: "R11", fault, verdict: Verdict::Fenced, ..THREE }, true).await;
}

/// The node that warms up and the quick one grant first, and the slow one must not be left out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_a_node_that_warms_up_beside_a_slow_one_costs_no_lease_and_keeps_no_caller_out() {
    let nodes = start(3, &RedisServer::builder());
    let proxy = Proxy::start(nodes[2].addr());
    let mut all = addresses(&nodes);
    all[2] = proxy.addr();
    let fault = "one node restarted empty, another one slow (20 ms each way)";
    let cell = Cell { id: "R16", fault, ttl: ms(10_000), ..THREE };
    let servers = Servers::first(all.clone());
    let client = async || client_with(&all, "max_ttl=10s").await;
    let mut play = Rest::begin(cell, servers, client).await.hold().await;
    play.is_at_all(&all).await;
    proxy.set_latency(ms(20), ms(20));
    nodes[0].restart();
    for _ in 0..10 {
        let other = play.client().mutex("other").ttl(cell.ttl);
        let guard = wait_for("a grant", other.lock()).await.unwrap();
        // What a slow node keeps of it goes later, and the next grant waits for that.
        drop(guard.release_outcome().await);
    }
    let young = nodes[0].info("server")["uptime_in_seconds"].parse::<u64>().unwrap() < 10;
    println!("ten grants while the node was young: {young}");
    play.over();
    let outcome = play.end().await;
    assert!(outcome.kept, "{outcome:?}");
}
