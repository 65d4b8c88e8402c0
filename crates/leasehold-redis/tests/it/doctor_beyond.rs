//! Findings beyond one server's own settings.
//!
//! They are about replicas that may take over, capacity for clients, moving slots, and whether
//! scripts may notify waiters.

use std::net::TcpStream;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use leasehold_core::Store as _;
use leasehold_core::doctor::{Finding, Severity};
use leasehold_redis::{RedisStore, redis};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::common::WITHIN;
use crate::doctor::{about, examined, until};

fn set(server: &RedisServer, name: &str, value: &str) {
    assert_eq!(server.cli(&["CONFIG", "SET", name, value]), "OK");
}

async fn followed(primary: &RedisServer) {
    until("the replica follows", || {
        let replicas = primary.info("replication");
        replicas.get("slave0").is_some_and(|it| it.contains("state=online"))
    })
    .await;
}

#[tokio::test]
async fn a_replica_is_looked_at_as_the_one_that_may_take_over() {
    let primary = RedisServer::builder().appendonly().start();
    let replica = RedisServer::builder().appendonly().replica_of(&primary).start();
    followed(&primary).await;
    until("the link is up", || {
        replica.info("replication").get("master_link_status").is_some_and(|it| it == "up")
    })
    .await;
    let findings = examined(&primary.url()).await;
    let fine = about(&findings, "replica");
    assert_eq!(fine.severity, Severity::Fine, "{fine:?}");
    assert!(fine.found.contains("their clocks agree within"), "{fine:?}");
    set(&replica, "maxmemory-policy", "allkeys-lru");
    set(&replica, "maxmemory", "100mb");
    let findings = examined(&primary.url()).await;
    let finding = about(&findings, "replica");
    assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
    assert!(finding.found.contains("allkeys-lru"), "{finding:?}");
    assert_eq!(finding.store.as_deref(), Some(&*replica.url()));
    assert_eq!(about(&findings, "eviction").severity, Severity::Fine, "the primary's own");
}

#[tokio::test]
async fn a_replica_that_cannot_be_reached_is_reported() {
    let primary = RedisServer::start();
    let _replica =
        RedisServer::builder().replica_of(&primary).config("replica-announce-port 1").start();
    followed(&primary).await;
    let findings = examined(&primary.url()).await;
    let finding = about(&findings, "replica");
    assert_eq!(finding.severity, Severity::Note, "{finding:?}");
    assert!(finding.found.contains("was not examined"), "{finding:?}");
    assert_eq!(finding.store.as_deref(), Some("redis://127.0.0.1:1"));
    assert_eq!(about(&findings, "wake").severity, Severity::Fine, "and all else was looked at");
}

#[tokio::test]
async fn fewer_replicas_than_the_url_waits_for_are_a_problem() {
    let primary = RedisServer::start();
    let _replica = RedisServer::builder().replica_of(&primary).start();
    followed(&primary).await;
    for (wanted, severity) in [(1, Severity::Note), (2, Severity::Problem)] {
        let findings = examined(&format!("{}?replicas={wanted}", primary.url())).await;
        let finding = about(&findings, "replication");
        assert_eq!(finding.severity, severity, "{finding:?}");
        assert!(finding.found.starts_with("1 replicas follow"), "{finding:?}");
    }
}

#[tokio::test]
async fn a_url_that_waits_for_disks_is_compared_with_what_the_server_writes() {
    let server = RedisServer::start();
    let url = format!("{}?fsync=yes", server.url());
    for (append, how, severity) in [
        ("no", "always", Severity::Problem),
        ("yes", "no", Severity::Problem),
        ("yes", "everysec", Severity::Warning),
        ("yes", "always", Severity::Fine),
    ] {
        set(&server, "appendonly", append);
        set(&server, "appendfsync", how);
        let findings = examined(&url).await;
        let finding = about(&findings, "persistence");
        assert_eq!(finding.severity, severity, "{finding:?}");
        assert!(finding.found.starts_with("fsync=yes is set"), "{finding:?}");
    }
}

#[tokio::test]
async fn a_server_that_will_soon_turn_clients_away_is_seen() {
    let server = RedisServer::start();
    set(&server, "maxclients", "100");
    let findings = examined(&server.url()).await;
    assert_eq!(about(&findings, "clients").severity, Severity::Fine, "{findings:#?}");
    let crowd: Vec<_> = (0..90).map(|_| TcpStream::connect(server.addr()).unwrap()).collect();
    until("the crowd is in", || {
        let there = server.info("clients")["connected_clients"].parse::<usize>().unwrap();
        there > crowd.len()
    })
    .await;
    let findings = examined(&server.url()).await;
    let finding = about(&findings, "clients");
    assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
    assert!(finding.found.contains("of 100 clients"), "{finding:?}");
}

#[tokio::test]
async fn buffers_that_cut_clients_off_are_seen() {
    let server = RedisServer::start();
    for (limit, severity) in
        [("pubsub 8192 8192 60", Severity::Note), ("normal 65536 0 0", Severity::Warning)]
    {
        set(&server, "client-output-buffer-limit", limit);
        let findings = examined(&server.url()).await;
        let finding = about(&findings, "buffers");
        assert_eq!(finding.severity, severity, "{finding:?}");
    }
}

#[tokio::test]
async fn the_message_of_an_examination_is_published_by_a_script() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).unwrap();
    let monitor = client.get_async_monitor().await.unwrap();
    let mut seen = pin!(monitor.into_on_message::<String>());
    let findings = examined(&server.url()).await;
    assert_eq!(about(&findings, "wake").severity, Severity::Fine, "{findings:#?}");
    let by_script = async {
        while let Some(line) = seen.next().await {
            if line.contains(" lua] \"PUBLISH\"") {
                return;
            }
        }
        panic!("the server has gone");
    };
    timeout(WITHIN, by_script).await.expect("no script published anything");
}

#[tokio::test]
async fn slots_that_are_half_moved_are_reported_for_both_nodes() {
    let start = || Cluster::builder().replicas(0).start();
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    let (from, to) = (&cluster.nodes()[0], &cluster.nodes()[1]);
    let id = |node: &RedisServer| node.cli(&["CLUSTER", "MYID"]);
    let of_slots = |findings: &[Finding]| {
        let slots = findings.iter().filter(|one| one.topic == "slots");
        slots.map(|one| (one.store.clone().unwrap(), one.found.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(of_slots(&examined(&cluster.url()).await), []);
    assert_eq!(to.cli(&["CLUSTER", "SETSLOT", "7", "IMPORTING", &id(from)]), "OK");
    assert_eq!(from.cli(&["CLUSTER", "SETSLOT", "7", "MIGRATING", &id(to)]), "OK");
    let findings = examined(&cluster.url()).await;
    let mut told = of_slots(&findings);
    told.sort_by_key(|(_, found)| found.clone());
    let expected = [
        (from.url().into(), "1 slot has begun to move away from this node: 7".to_owned()),
        (to.url().into(), "1 slot has begun to move to this node: 7".to_owned()),
    ];
    assert_eq!(told, expected);
    for node in [from, to] {
        assert_eq!(node.cli(&["CLUSTER", "SETSLOT", "7", "STABLE"]), "OK");
    }
    assert_eq!(of_slots(&examined(&cluster.url()).await), []);
}

#[tokio::test]
async fn replicas_that_never_take_over_are_reported_for_sentinels_and_a_cluster() {
    let start = || SentinelSet::builder().replicas(1).start();
    let set = spawn_blocking(start).await.unwrap();
    let at_fail_over = |findings: &[Finding]| {
        findings.iter().filter(|one| one.topic == "fail-over").cloned().collect::<Vec<_>>()
    };
    assert_eq!(at_fail_over(&examined(&set.url()).await), []);
    let primary = set.master().port();
    for replica in set.servers().iter().filter(|server| server.port() != primary) {
        self::set(replica, "replica-priority", "0");
    }
    let findings = examined(&set.url()).await;
    let finding = about(&findings, "fail-over");
    assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
    assert!(finding.found.contains("replica-priority is 0 on every replica"), "{finding:?}");

    let cluster = spawn_blocking(|| Cluster::builder().replicas(1).start()).await.unwrap();
    assert_eq!(at_fail_over(&examined(&cluster.url()).await), []);
    for node in cluster.nodes() {
        self::set(node, "cluster-replica-no-failover", "yes");
    }
    let told = at_fail_over(&examined(&cluster.url()).await);
    assert_eq!(told.len(), 3, "one of each primary: {told:?}");
    for finding in told {
        assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
        assert!(finding.found.contains("cluster-replica-no-failover is yes"), "{finding:?}");
    }
}

#[tokio::test]
async fn sentinels_that_can_not_agree_on_a_fail_over_are_reported() {
    let quick = Duration::from_secs(2);
    let start = move || SentinelSet::builder().replicas(1).down_after(quick).start();
    let set = spawn_blocking(start).await.unwrap();
    let sentinels = set.sentinels();
    for sentinel in sentinels {
        let more = (sentinels.len() + 1).to_string();
        assert_eq!(sentinel.cli(&["SENTINEL", "SET", "mymaster", "quorum", &more]), "OK");
    }
    let findings = examined(&set.url()).await;
    let finding = about(&findings, "fail-over");
    assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
    assert!(finding.found.starts_with("3 of 3 sentinels could not fail over"), "{finding:?}");
    assert_eq!(about(&findings, "sentinels").severity, Severity::Fine, "{findings:#?}");
    // Without two of three there is no majority.
    for sentinel in sentinels {
        assert_eq!(sentinel.cli(&["SENTINEL", "SET", "mymaster", "quorum", "1"]), "OK");
    }
    sentinels.iter().take(2).for_each(RedisServer::kill);
    let store = RedisStore::connect(&set.url()).await.unwrap();
    let deadline = Instant::now() + WITHIN;
    loop {
        let findings = store.examine(WITHIN).await.unwrap();
        if let Some(finding) = findings.iter().find(|finding| finding.topic == "fail-over") {
            assert!(finding.found.starts_with("1 of 3 sentinels"), "{finding:?}");
            return;
        }
        assert!(Instant::now() < deadline, "{findings:#?}");
    }
}

#[tokio::test]
async fn nodes_of_two_clusters_in_one_url_are_a_problem() {
    let start = || [(); 2].map(|()| Cluster::builder().replicas(0).start());
    let [one, other] = spawn_blocking(start).await.unwrap();
    assert!(examined(&one.url()).await.iter().all(|finding| finding.topic != "cluster"));
    let url = format!("{},{}", one.url(), other.nodes()[0].addr());
    let findings = examined(&url).await;
    let finding = about(&findings, "cluster");
    assert_eq!(finding.severity, Severity::Problem, "{finding:?}");
    assert!(finding.found.contains(&other.nodes()[0].addr().to_string()), "{finding:?}");
}

#[tokio::test]
async fn a_server_without_a_cluster_in_its_list_is_reported() {
    let start = || (Cluster::builder().replicas(0).start(), RedisServer::start());
    let (cluster, plain) = spawn_blocking(start).await.unwrap();
    let findings = examined(&format!("{},{}", cluster.url(), plain.addr())).await;
    let finding = about(&findings, "cluster");
    assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
    assert!(finding.found.contains(&plain.addr().to_string()), "{finding:?}");
    assert!(finding.found.ends_with("is not a node of a cluster"), "{finding:?}");
}
