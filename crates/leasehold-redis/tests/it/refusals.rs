//! Servers that refuse a client, or that can't be reached, and the user's error.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use leasehold_core::{ClientId, Effect, Error, ErrorKind, Key, Store as _};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::common::{Caller, SHORT, WITHIN, key};

/// Uses up a server's limit of clients.
fn crowd(server: &RedisServer) -> Vec<TcpStream> {
    const ROOM: usize = 12;
    drop(server.cli(&["CONFIG", "SET", "maxclients", &ROOM.to_string()]));
    let (mut inside, deadline) = (Vec::new(), Instant::now() + WITHIN);
    // The refused connection may count for a moment longer.
    while inside.len() < ROOM {
        assert!(Instant::now() < deadline, "only {} of {ROOM} were let in", inside.len());
        let mut one = TcpStream::connect(server.addr()).unwrap();
        let mut answer = String::new();
        let answered =
            writeln!(one, "PING").and_then(|()| BufReader::new(&one).read_line(&mut answer));
        if answered.is_ok() && (answer.starts_with("+PONG") || answer.starts_with("-NOAUTH")) {
            inside.push(one);
        }
    }
    inside
}

#[tokio::test]
async fn a_server_without_room_for_another_client_says_so() {
    let open = RedisServer::start();
    let guarded = RedisServer::builder().password("pw").start();
    for server in [&open, &guarded] {
        let crowd = crowd(server);
        // How far a client gets before its refusal is up to chance.
        for _ in 0..10 {
            for setting in ["", "?protocol=resp3"] {
                let url = server.url() + setting;
                let error = RedisStore::connect(&url).await.unwrap_err();
                let seen = (error.kind(), error.effect());
                assert_eq!(seen, (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
                assert!(error.to_string().contains("maxclients"), "{error}");
            }
        }
        let store = RedisStore::connect_lazy(&server.url()).unwrap();
        let opening = store.listen(ClientId::generate().unwrap(), WITHIN).await;
        let error = opening.map(drop).unwrap_err();
        assert!(error.to_string().contains("maxclients"), "{error}");
        drop(crowd);
    }
}

/// The error of a short question, once it says this. On a busy machine the time of a question may
/// end before the server was tried.
async fn said_at_last(store: &RedisStore, key: &Key, words: &str) -> Error {
    let deadline = Instant::now() + WITHIN;
    loop {
        let error = store.inspect(key, SHORT).await.unwrap_err();
        if error.to_string().contains(words) {
            return error;
        }
        assert!(Instant::now() < deadline, "never {words}: {error}");
    }
}

#[tokio::test]
async fn a_server_that_others_name_and_that_is_not_there_is_named() {
    let start =
        || (SentinelSet::builder().replicas(0).start(), Cluster::builder().replicas(0).start());
    let (set, cluster) = spawn_blocking(start).await.unwrap();
    let primary = &set.servers()[0];
    primary.kill();
    let named = format!("{}, which the sentinels name as the primary", primary.addr());
    let store = RedisStore::connect_lazy(&set.url()).unwrap();
    let error = said_at_last(&store, &key(), &named).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);

    let store = RedisStore::connect(&cluster.url()).await.unwrap();
    let caller = Caller::new(&store, &key());
    caller.take().await;
    let slot = cluster.slot_of(&format!("leasehold:{{{}}}", caller.request.key));
    let gone = cluster.master_of(slot);
    gone.kill();
    // The first may have been under way on the old connection.
    drop(store.inspect(&caller.request.key, SHORT).await);
    let named = format!("node {}", gone.addr());
    let error = said_at_last(&store, &caller.request.key, &named).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
