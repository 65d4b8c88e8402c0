//! A quorum behind the client, by its URL.

use std::time::Duration;

use leasehold::{Client, ErrorKind, Release};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;

fn hosts(servers: &[RedisServer]) -> String {
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    hosts.join(",")
}

#[tokio::test]
async fn a_quorum_of_servers_is_one_url_and_waiters_get_their_turn() {
    let servers: Vec<_> =
        (0..3).map(|_| RedisServer::builder().password("s3cret").start()).collect();
    let url = format!("quorum+redis://:s3cret@{}?keep_leases=yes", hosts(&servers));
    let client = Client::connect(&url).await.unwrap();
    let other = Client::connect(&url).await.unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    assert!(other.mutex("k").try_lock().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { other.mutex("k").lock().await });
    servers[0].kill();
    let fence = guard.fence().unwrap();
    // The killed one may have been one of the two that granted; what is left is no majority then
    // that could say how it went.
    assert!(matches!(guard.release_outcome().await.unwrap(), Release::Released | Release::Unknown));
    let next =
        tokio::time::timeout(Duration::from_secs(60), waiter).await.unwrap().unwrap().unwrap();
    assert!(next.fence().unwrap() > fence);
    assert_eq!(next.release_outcome().await.unwrap(), Release::Released);
    let error = Client::connect(&url.replace("s3cret", "wr0ng")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("wr0ng"), "{error}");
    assert!(!format!("{error:?} {client:?}").contains("s3cret"));
}

#[tokio::test]
async fn a_quorum_whose_majority_is_not_there_is_no_store() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let url = format!("quorum+redis://{}", hosts(&servers));
    servers[0].kill();
    Client::connect(&url).await.unwrap();
    servers[1].kill();
    let error = Client::connect(&url).await.unwrap_err();
    assert_eq!((error.kind(), error.nodes().len()), (ErrorKind::Unavailable, 2), "{error}");
}

#[tokio::test]
async fn a_quorum_may_consist_of_stores_of_any_sort() {
    let (folder, server) = (tempfile::tempdir().unwrap(), RedisServer::start());
    let path = folder.path().display();
    let url = format!("quorum:keep_leases=yes,memory:,embedded:{path},{}", server.url());
    let client = Client::connect(&url).await.unwrap();
    let guard = client.mutex("k").lock().await.unwrap();
    assert_eq!(
        client.inspect("k").await.unwrap().unwrap().holders[0].fence,
        guard.fence().unwrap()
    );
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    for bad in ["quorum:", "quorum+redis://a,a", "quorum:redis://a,what", "quorum:memory:,memory:x"]
    {
        assert_eq!(Client::connect(bad).await.unwrap_err().kind(), ErrorKind::Config, "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_fail_over_have_a_vote_only_if_they_are_said_to_keep_their_leases() {
    let start = || {
        let cluster = Cluster::builder().replicas(0).start();
        (SentinelSet::builder().replicas(0).start(), cluster, RedisServer::start())
    };
    let (set, cluster, server) = tokio::task::spawn_blocking(start).await.unwrap();
    for node in [set.url(), cluster.url()] {
        let error = Client::connect(format!("quorum:{node},{}", server.url())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("keep_leases=yes"), "{error}");
    }
    let url = format!("quorum:keep_leases=yes,{},{},{}", set.url(), cluster.url(), server.url());
    let (client, other) =
        (Client::connect(&url).await.unwrap(), Client::connect(&url).await.unwrap());
    server.kill();
    for name in ["a", "b", "c"] {
        let guard = client.mutex(name).lock().await.unwrap();
        assert!(other.mutex(name).try_lock().await.unwrap().is_none());
        assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn a_server_that_is_written_in_two_ways_has_no_two_votes() {
    let url = RedisServer::start().url();
    let error = Client::connect(format!("quorum:{url},{url}/0,memory:,memory:")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("twice"), "{error}");
}

fn three() -> (Vec<RedisServer>, String) {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let url = format!("quorum+redis://{}?keep_leases=yes", hosts(&servers));
    (servers, url)
}

#[tokio::test]
async fn a_wait_at_nodes_of_which_most_are_full_ends_at_once() {
    let (servers, url) = three();
    let client = Client::connect(&url).await.unwrap();
    for server in &servers[1..] {
        assert_eq!(server.cli(&["config", "set", "maxmemory", "1"]), "OK");
    }
    let mutex = client.mutex("k");
    let waiting = tokio::time::timeout(Duration::from_secs(20), mutex.lock());
    let error = waiting.await.expect("it is waited for as if it were away").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(servers[1].cli(&["config", "set", "maxmemory", "0"]), "OK");
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_wait_among_contenders_without_a_majority_names_none_of_them() {
    let (servers, url) = three();
    let mut guards = Vec::new();
    for (server, owner) in servers.iter().zip(["one", "two", "three"]) {
        let client = Client::connect(server.url()).await.unwrap();
        guards.push(client.mutex("k").owner(owner).lock().await.unwrap());
    }
    let client = Client::connect(&url).await.unwrap();
    let error = client.mutex("k").lock_within(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!((error.kind(), error.holder()), (ErrorKind::Timeout, None), "{error}");
    assert!(error.to_string().contains("no contender had enough nodes"), "{error}");
}

#[tokio::test]
async fn a_lock_that_is_damaged_on_a_majority_of_nodes_ends_a_wait_at_once() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let url = format!("quorum+redis://{}?keep_leases=yes", hosts(&servers));
    let [holder, other] = [(); 2].map(|()| Client::connect(&url));
    let (holder, other) = (holder.await.unwrap(), other.await.unwrap());
    let guard = holder.mutex("k").lock().await.unwrap();
    for server in &servers[1..] {
        drop(server.cli(&["HSET", "leasehold:{k}", "state", "\u{11}garbage"]));
    }
    let hour = Duration::from_secs(3_600);
    for error in [
        tokio::time::timeout(Duration::from_secs(60), other.mutex("k").lock_within(hour))
            .await
            .unwrap()
            .unwrap_err(),
        other.mutex("k").try_lock().await.unwrap_err(),
        other.inspect("k").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    drop(guard.release().await);
}
