//! A primary that sentinels replace, or can't.

use std::net::SocketAddr;
use std::sync::Arc;

use leasehold::{Client, ErrorKind, Release};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::sentinel::{NAME, SentinelSet, SentinelSetBuilder};

use crate::cell::{Cell, PATIENCE, Rest, Verdict, connected, in_step, ms, wait_for};
use crate::naive::Servers;

const SET: Cell =
    Cell { id: "", fault: "", topology: "sentinels", verdict: Verdict::Fenced, ttl: ms(1_000) };
const PASSWORD: &str = "pw";
/// To a URL: grants and renewals count once a replica has them.
const REPLICATED: &str = "?replicas=1&keep_leases=yes";

async fn start(options: SentinelSetBuilder) -> Arc<SentinelSet> {
    let options = options.password(PASSWORD);
    Arc::new(tokio::task::spawn_blocking(move || options.start()).await.unwrap())
}

async fn rest(cell: Cell, set: &Arc<SentinelSet>, query: &str) -> Rest {
    let find = {
        let set = Arc::clone(set);
        move || primary(&set)
    };
    let servers = Servers::one(find).password(PASSWORD);
    Rest::begin(cell, servers, async || client(&(set.url() + query)).await).await
}

async fn client(url: &str) -> Client {
    connected(Client::builder().call_timeout(ms(500)), url).await
}

/// Has the sentinels promote a replica, by command: left to themselves they do the same, but for
/// how long they try depends on how their votes fall.
async fn replace(set: &Arc<SentinelSet>) {
    block(set, |set| set.fail_over().port()).await;
}

/// Where the first sentinel that answers says that the primary is.
fn primary(set: &SentinelSet) -> Option<SocketAddr> {
    let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
    let answer = set.sentinels().iter().find_map(|sentinel| sentinel.try_cli(&ask).ok())?;
    let answer = answer.to_string();
    let (ip, port) = answer.split_once('\n')?;
    Some((ip.parse::<std::net::IpAddr>().ok()?, port.parse().ok()?).into())
}

/// Runs something that blocks.
async fn block<T: Send + 'static>(
    set: &Arc<SentinelSet>,
    what: impl FnOnce(&SentinelSet) -> T + Send + 'static,
) -> T {
    let set = Arc::clone(set);
    wait_for("the servers", tokio::task::spawn_blocking(move || what(&set))).await.unwrap()
}

/// The old primary learns last of all that it is demoted, and grants to the clients that it has
/// left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_a_planned_fail_over_grants_twice_and_the_fence_saves_the_resource() {
    r1(Cell { id: "R1", fault: "`SENTINEL FAILOVER`", ..SET }, "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_a_planned_fail_over_with_grants_that_wait_for_a_replica_loses_no_update() {
    r1(Cell { id: "R1", fault: "`SENTINEL FAILOVER`, `replicas=1`", ..SET }, REPLICATED).await;
}

/// A client that comes after the promotion finds the new primary at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_clients_that_were_there_before_a_planned_fail_over_follow_it_with_those_that_come_after()
 {
    let fault = "`SENTINEL FAILOVER`, clients new since";
    let cell = Cell { id: "R1", fault, ttl: ms(2_000), ..SET };
    let set = start(SentinelSet::builder().replicas(1)).await;
    let mut play = rest(cell, &set, "").await.hold().await;
    replace(&set).await;
    for _ in 0..2 {
        play.join(client(&set.url()).await);
    }
    play.over();
    // The old primary learns eight seconds later that it is demoted.
    for _ in 0..2 {
        play.outlast().await;
    }
    play.end().await;
}

async fn r1(cell: Cell, query: &str) {
    let set = start(SentinelSet::builder().replicas(1)).await;
    let mut play = rest(cell, &set, query).await.hold().await;
    replace(&set).await;
    play.over();
    // Meanwhile the sentinels get round to the old primary.
    play.outlast().await;
    play.end().await;
}

/// The primary is gone before its replicas had the holder's grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r2_a_primary_killed_with_a_grant_that_no_replica_has_grants_twice_and_the_fence_saves_the_resource()
 {
    let set = start(SentinelSet::builder()).await;
    let fault = "primary killed before a replica had the grant";
    let cell = Cell { id: "R2", fault, ttl: ms(6_000), ..SET };
    let rest = rest(cell, &set, "").await.calm().await;
    let replicas = &set.servers()[1..];
    for replica in replicas {
        in_step(&set.servers()[0], replica).await;
    }
    replicas.iter().for_each(RedisServer::pause);
    drop(set.servers()[0].cli(&["CLIENT", "KILL", "TYPE", "replica"]));
    let mut play = rest.hold().await;
    set.servers()[0].kill();
    replicas.iter().for_each(RedisServer::resume);
    play.over();
    replace(&set).await;
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r2_a_primary_killed_with_grants_that_wait_for_a_replica_loses_no_update() {
    let set = start(SentinelSet::builder()).await;
    let cell = Cell { id: "R2", fault: "primary killed, `replicas=1`", ttl: ms(4_000), ..SET };
    let mut play = rest(cell, &set, REPLICATED).await.hold().await;
    set.servers()[0].kill();
    play.over();
    replace(&set).await;
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_clients_follow_the_sentinels_away_from_a_primary_that_was_cut_off() {
    let set = start(SentinelSet::builder().replicas(1)).await;
    let fault = "primary cut off from sentinels and replica, not from its clients";
    let mut play = rest(Cell { id: "R3", fault, ..SET }, &set, "").await.hold().await;
    split(&set).await;
    play.over();
    play.join(client(&set.url()).await);
    play.outlast().await;
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_a_primary_that_must_have_a_replica_grants_nothing_once_another_is_promoted() {
    let options = SentinelSet::builder();
    let set = start(options.config("min-replicas-to-write 1")).await;
    let fault = "the same, with `min-replicas-to-write 1`";
    let mut play = rest(Cell { id: "R3", fault, ..SET }, &set, "").await.hold().await;
    split(&set).await;
    let left_behind = client(&set.servers()[0].url()).await;
    let error = left_behind.mutex("other").lock_within(ms(500)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    play.over();
    play.join(client(&set.url()).await);
    play.end().await;
}

/// Cuts the primary off from the others, and waits until they have another one.
async fn split(set: &Arc<SentinelSet>) {
    cut_off(&set.servers()[0]).await;
    replace(set).await;
}

/// Closes the account with which sentinels and replicas come: to them the server is gone, to its
/// clients it is not.
async fn cut_off(server: &RedisServer) {
    let client = redis::Client::open(server.url()).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
    let mut connection = connection.unwrap();
    for command in ["ACL SETUSER leasehold-testkit off", "CLIENT KILL USER leasehold-testkit"] {
        let mut words = command.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.exec_async(&mut connection).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r12_without_sentinels_the_last_known_primary_serves_on() {
    let set = start(SentinelSet::builder().replicas(1)).await;
    let cell =
        Cell { id: "R12", fault: "all sentinels killed", verdict: Verdict::Exclusive, ..SET };
    let mut play = rest(cell, &set, "").await.hold().await;
    // A busy machine may keep an answer for longer than the other clients wait.
    let patient = connected(Client::builder().call_timeout(ms(10_000)), &set.url()).await;
    set.sentinels().iter().for_each(RedisServer::kill);
    play.outlast().await;
    let other = patient.mutex("other").lock_within(PATIENCE).await.unwrap();
    assert_eq!(other.release_outcome().await.unwrap(), Release::Released);
    block(&set, |set| set.sentinels().iter().for_each(RedisServer::restart)).await;
    play.over();
    play.end().await;
}
