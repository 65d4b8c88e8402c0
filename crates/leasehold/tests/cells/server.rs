//! One server that dies, forgets, stands still or refuses.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use leasehold::Client;
use leasehold_testkit::server::{RedisServer, Reply};

use crate::cell::{Cell, LONG, Play, Rest, Verdict, connected, ms, wait_for};
use crate::naive::Servers;

const ONE: Cell =
    Cell { id: "", fault: "", topology: "one server", verdict: Verdict::Exclusive, ttl: ms(500) };

async fn held(cell: Cell, server: &RedisServer) -> Play {
    let (url, at) = (server.url(), server.addr());
    let client = async || connected(Client::builder().call_timeout(ms(500)), &url).await;
    Rest::begin(cell, Servers::one(move || Some(at)), client).await.hold().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_a_server_that_forgets_everything_grants_twice_and_the_fence_saves_the_resource() {
    let fault = "`kill -9` and restart, no persistence";
    let server = RedisServer::start();
    let mut play =
        held(Cell { id: "S3", fault, verdict: Verdict::Fenced, ttl: ms(1_000), ..ONE }, &server)
            .await;
    server.restart();
    play.over();
    let outcome = play.end().await;
    assert_eq!(outcome.fence_faults, 0, "fences go on by the time of day: {outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v1_flushed_scripts_cost_no_lease() {
    let server = RedisServer::start();
    let cell = Cell { id: "V1", fault: "`SCRIPT FLUSH`", ttl: LONG, ..ONE };
    let mut play = held(cell, &server).await;
    assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    play.over();
    let outcome = play.end().await;
    assert!(outcome.kept, "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v3_writes_that_are_delayed_longer_than_a_lease_make_no_second_holder() {
    let server = RedisServer::start();
    let mut play = held(Cell { id: "V3", fault: "`CLIENT PAUSE … WRITE`", ..ONE }, &server).await;
    assert_eq!(server.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]), "OK");
    play.outlast().await;
    assert_eq!(server.cli(&["CLIENT", "UNPAUSE"]), "OK");
    play.over();
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v4_a_server_busy_with_another_script_makes_no_second_holder() {
    let server = Arc::new(RedisServer::builder().config("lua-time-limit 50").start());
    let mut play = held(Cell { id: "V4", fault: "busy with a script", ..ONE }, &server).await;
    let busy = tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || drop(server.try_cli(&["EVAL", "while true do end", "0"]))
    });
    wait_for("the server to be busy", async {
        while !matches!(server.try_cli(&["GET", "any"]), Ok(Reply::Error(busy)) if busy.starts_with("BUSY")) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    play.outlast().await;
    assert_eq!(server.cli(&["SCRIPT", "KILL"]), "OK");
    play.over();
    busy.await.unwrap();
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v5_a_server_that_loads_its_data_for_longer_than_a_lease_makes_no_second_holder() {
    // Its pauses while it loads, by the key.
    const PAUSE_US: usize = 400;
    const KEYS: usize = 4_000;
    let mut server =
        RedisServer::builder().appendonly().config(format!("key-load-delay {PAUSE_US}"));
    if RedisServer::start().version() >= (7, 0) {
        server = server.config("loading-process-events-interval-bytes 1024");
    }
    let server = Arc::new(server.start());
    let fill =
        format!("for i = 1, {KEYS} do redis.call('SET', 'fill' .. i, string.rep('x', 99)) end");
    drop(server.cli(&["EVAL", &fill, "0"]));
    let fault = "`kill -9` and restart with an append-only file, slow to load";
    let mut play = held(Cell { id: "V5", fault, ..ONE }, &server).await;
    let restart = tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || server.restart()
    });
    wait_for("the server to be loading", async {
        while !matches!(server.try_cli(&["PING"]), Ok(Reply::Error(loading)) if loading.starts_with("LOADING")) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    wait_for("the server to have loaded", restart).await.unwrap();
    play.over();
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v11_a_server_that_misses_its_replicas_makes_no_second_holder() {
    let server = RedisServer::builder().config("min-replicas-to-write 1").start();
    let replica = RedisServer::builder().replica_of(&server).start();
    let replicated = async || {
        while server.info("replication").get("min_slaves_good_slaves").is_none_or(|n| n == "0") {
            tokio::time::sleep(ms(10)).await;
        }
    };
    wait_for("the replica to follow", replicated()).await;
    let fault = "`min-replicas-to-write 1`, replica killed";
    let mut play = held(Cell { id: "V11", fault, ..ONE }, &server).await;
    replica.kill();
    let refused = server.try_cli(&["SET", "any", "value"]).unwrap();
    assert!(
        matches!(&refused, Reply::Error(error) if error.starts_with("NOREPLICAS")),
        "{refused}"
    );
    play.outlast().await;
    replica.restart();
    wait_for("the replica to follow again", replicated()).await;
    play.over();
    play.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v12_a_server_that_turns_all_clients_away_makes_no_second_holder() {
    let server = RedisServer::start();
    // It has the only connection that there is, so no other client can release the others.
    let mut only = BufReader::new(TcpStream::connect(server.addr()).unwrap());
    let mut say = |command: &str| {
        writeln!(only.get_mut(), "{command}").unwrap();
        let mut answer = String::new();
        only.read_line(&mut answer).unwrap();
        assert!(answer.starts_with(['+', ':']), "{command}: {answer}");
    };
    let fault = "`maxclients 1`, all connections closed";
    let mut play = held(Cell { id: "V12", fault, ..ONE }, &server).await;
    say("CONFIG SET maxclients 1");
    say("CLIENT KILL TYPE normal");
    say("CLIENT KILL TYPE pubsub");
    play.outlast().await;
    say("CONFIG SET maxclients 1000");
    play.over();
    play.end().await;
}
