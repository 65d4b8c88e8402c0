//! The findings on servers with bad settings.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_core::doctor::{Finding, Severity, worst};
use leasehold_core::{ErrorKind, Store as _};
use leasehold_redis::acl::{self, Feature};
use leasehold_redis::{RedisStore, redis};
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use leasehold_testkit::server::{self, RedisServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::common::{SHORT, WITHIN, all_words, connection, key};

pub(crate) async fn examined(url: &str) -> Vec<Finding> {
    RedisStore::connect(url).await.unwrap().examine(WITHIN).await.unwrap()
}

#[track_caller]
pub(crate) fn about<'a>(findings: &'a [Finding], topic: &str) -> &'a Finding {
    let mut of_topic = findings.iter().filter(|finding| finding.topic == topic);
    let first = of_topic.next().unwrap_or_else(|| panic!("nothing about {topic}: {findings:#?}"));
    assert!(of_topic.next().is_none(), "{findings:#?}");
    first
}

/// Waits for an event that must happen.
pub(crate) async fn until(what: &str, happened: impl Fn() -> bool + Send + Sync) {
    let looks = async {
        while !happened() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(WITHIN, looks).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// Everything that has been written to the server so far.
fn writes(server: &RedisServer) -> String {
    server.info("persistence").remove("rdb_changes_since_last_save").unwrap()
}

#[tokio::test]
async fn an_examination_lets_no_script_fail_that_the_server_knows() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    store.inspect(&key(), WITHIN).await.unwrap();
    store.examine(WITHIN).await.unwrap();
    assert_eq!(server.cli(&["CONFIG", "RESETSTAT"]), "OK");
    store.examine(WITHIN).await.unwrap();
    let calls = server.info("commandstats").remove("cmdstat_evalsha").unwrap();
    assert!(calls.ends_with("failed_calls=0"), "{calls}");
}

#[tokio::test]
async fn a_server_set_well_is_fine_in_all_respects() {
    let server = RedisServer::builder().appendonly().config("maxmemory 100mb").start();
    for protocol in ["resp2", "resp3"] {
        let findings = examined(&format!("{}?protocol={protocol}", server.url())).await;
        assert_eq!(worst(&findings), Severity::Fine, "{findings:#?}");
        for topic in [
            "buffers",
            "clients",
            "clock",
            "eviction",
            "memory",
            "persistence",
            "protocol",
            "replication",
            "rights",
            "role",
            "scripts",
            "transport",
            "uptime",
            "version",
            "wake",
        ] {
            about(&findings, topic);
        }
        assert!(about(&findings, "protocol").found.to_lowercase().starts_with(protocol));
    }
}

#[tokio::test]
async fn an_examination_writes_nothing_and_shows_no_password() {
    let server = RedisServer::builder().password("sentinel").start();
    let before = writes(&server);
    let findings = examined(&server.url()).await;
    assert_eq!(writes(&server), before);
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    assert!(!format!("{findings:?}").contains("sentinel"), "{findings:?}");
}

#[tokio::test]
async fn eviction_is_a_problem_once_the_memory_is_limited() {
    let server = RedisServer::builder().config("maxmemory-policy allkeys-lru").start();
    let finding = |findings: Vec<Finding>| about(&findings, "eviction").clone();
    let unlimited = finding(examined(&server.url()).await);
    assert_eq!(unlimited.severity, Severity::Note, "{unlimited:?}");
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]), "OK");
    let limited = finding(examined(&server.url()).await);
    assert_eq!(limited.severity, Severity::Problem, "{limited:?}");
    assert!(limited.found.contains("allkeys-lru"), "{limited:?}");
    assert!(limited.advice.unwrap().contains("maxmemory-policy noeviction"));
}

#[tokio::test]
async fn a_server_near_its_memory_limit_is_seen() {
    let server = RedisServer::start();
    let used: u64 = server.info("memory")["used_memory"].parse().unwrap();
    let limit = (used + used / 100).to_string();
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", &limit]), "OK");
    let findings = examined(&server.url()).await;
    assert_eq!(about(&findings, "memory").severity, Severity::Warning, "{findings:#?}");
}

#[tokio::test]
async fn persistence_is_seen_as_it_is_set() {
    let server = RedisServer::start();
    let set =
        |name: &str, value: &str| assert_eq!(server.cli(&["CONFIG", "SET", name, value]), "OK");
    for (appendonly, appendfsync, save, severity, words) in [
        ("no", "always", "", Severity::Warning, "nothing is persisted"),
        ("no", "always", "60 1", Severity::Warning, "snapshots only"),
        ("yes", "always", "", Severity::Fine, "appendfsync is always"),
        ("yes", "everysec", "", Severity::Note, "appendfsync is everysec"),
        ("yes", "no", "", Severity::Warning, "appendfsync is no"),
    ] {
        set("appendonly", appendonly);
        set("appendfsync", appendfsync);
        set("save", save);
        let findings = examined(&server.url()).await;
        let finding = about(&findings, "persistence");
        assert_eq!(finding.severity, severity, "{finding:?}");
        assert!(finding.found.contains(words), "{finding:?}");
    }
}

#[tokio::test]
async fn a_server_that_was_just_started_without_persistence_is_noted() {
    let server = RedisServer::start();
    let findings = examined(&server.url()).await;
    assert_eq!(about(&findings, "uptime").severity, Severity::Note, "{findings:#?}");
}

#[tokio::test]
async fn a_primary_with_an_unneeded_replica_is_a_warning() {
    let primary = RedisServer::start();
    let replica = RedisServer::builder().replica_of(&primary).start();
    until("the replica follows", || {
        let replicas = primary.info("replication");
        replicas.get("slave0").is_some_and(|it| it.contains("state=online"))
            && replica.info("replication").get("master_link_status").is_some_and(|it| it == "up")
    })
    .await;
    let findings = examined(&primary.url()).await;
    assert_eq!(about(&findings, "replication").severity, Severity::Warning, "{findings:#?}");
    assert_eq!(primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]), "OK");
    until("the replica counts", || {
        primary.info("replication").get("min_slaves_good_slaves").is_some_and(|it| it == "1")
    })
    .await;
    let findings = examined(&primary.url()).await;
    assert_eq!(about(&findings, "replication").severity, Severity::Note, "{findings:#?}");
    assert_eq!(primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "2"]), "OK");
    let findings = examined(&primary.url()).await;
    assert_eq!(about(&findings, "replication").severity, Severity::Problem, "{findings:#?}");
}

/// Missing rights for notifications alone are reported with those.
fn is_about_rights(finding: &Finding) -> bool {
    matches!(&*finding.topic, "rights" | "wake") && finding.found.contains("locks may ")
        || finding.topic == "rights"
}

/// A server whose user `locks` has the rights for these features, and further ones.
fn restricted(features: &[Feature], more: &str) -> RedisServer {
    let rule = acl::rule("redis://h", "locks", features).unwrap();
    let rule = rule.strip_prefix("ACL SETUSER locks reset on >PASSWORD ").unwrap();
    RedisServer::builder().acl_user(format!("locks on >secret {rule} {more}")).start()
}

#[tokio::test]
async fn a_user_who_may_only_lock_learns_what_it_may_not_do() {
    let server = restricted(&[Feature::Lock, Feature::Doctor], "");
    let findings = examined(&server.url_for("locks", "secret")).await;
    let rights: BTreeMap<Severity, &Finding> = findings
        .iter()
        .filter(|finding| is_about_rights(finding))
        .map(|finding| (finding.severity, finding))
        .collect();
    assert_eq!(rights.len(), 2, "{findings:#?}");
    let waking = rights[&Severity::Warning];
    assert_eq!(waking.found, "user locks may not run PUBLISH, SUBSCRIBE");
    assert!(waking.means.contains("get no notification"), "{waking:?}");
    let listing = rights[&Severity::Note];
    assert_eq!(listing.advice.as_deref(), Some("ACL SETUSER locks +scan"));
    assert_eq!(about(&findings, "scripts").severity, Severity::Fine);
    assert!(findings.iter().all(|finding| finding.topic != "settings"), "{findings:#?}");
}

#[tokio::test]
async fn the_advice_about_rights_is_enough() {
    let server = restricted(&[Feature::Lock, Feature::Doctor], "");
    let url = server.url_for("locks", "secret");
    // A server checks commands before keys and channels, so it may take several rounds.
    for _ in 0..4 {
        for finding in examined(&url).await {
            if is_about_rights(&finding)
                && let Some(advice) = finding.advice
            {
                let words: Vec<&str> = advice.split(' ').collect();
                assert_eq!(server.cli(&words), "OK", "{advice}");
            }
        }
    }
    let findings = examined(&url).await;
    assert_eq!(about(&findings, "rights").severity, Severity::Fine, "{findings:#?}");
    assert_eq!(about(&findings, "wake").severity, Severity::Fine, "{findings:#?}");
}

#[tokio::test]
async fn without_the_right_to_settings_everything_else_is_examined() {
    let server = restricted(&Feature::SERVICE, "");
    let findings = examined(&server.url_for("locks", "secret")).await;
    let settings = about(&findings, "settings");
    assert_eq!(settings.severity, Severity::Note);
    assert!(settings.found.contains("INFO and CONFIG GET"), "{settings:?}");
    let rights = about(&findings, "rights");
    assert!(rights.found.starts_with("this user may do all"), "{rights:?}");
    assert_eq!(about(&findings, "wake").severity, Severity::Fine);
    assert_eq!(about(&findings, "clock").severity, Severity::Fine);
    assert_eq!(worst(&findings), Severity::Note, "{findings:#?}");
}

#[tokio::test]
async fn each_right_of_an_examination_shows_something() {
    for command in ["info", "config|get", "acl|whoami"] {
        let rule = acl::rule("redis://h", "locks", &Feature::ALL).unwrap();
        let without = rule.replace(&format!(" +{command}"), "").replace(">PASSWORD", ">secret");
        assert_ne!(without, rule);
        let server = RedisServer::start();
        assert_eq!(server.cli(&without.split(' ').collect::<Vec<_>>()), "OK");
        let findings = examined(&server.url_for("locks", "secret")).await;
        let told = format!("{findings:?}");
        match command {
            "info" => assert!(told.contains("may not run INFO") && !told.contains("uptime")),
            "config|get" => assert!(told.contains("may not run CONFIG GET")),
            _ => assert!(told.contains("this user may do all") && !told.contains("may not run")),
        }
    }
}

#[tokio::test]
async fn keys_and_channels_of_another_prefix_are_seen_to_be_out_of_reach() {
    let server = restricted(&Feature::ALL, "");
    let findings = examined(&format!("{}?prefix=other", server.url_for("locks", "secret"))).await;
    let rights: Vec<&Finding> = findings.iter().filter(|it| is_about_rights(it)).collect();
    assert_eq!(rights[0].severity, Severity::Problem);
    assert!(rights[0].found.contains("may not use the keys of this prefix"), "{rights:?}");
    assert!(rights[0].advice.as_deref().unwrap().contains(" ~other:{*"), "{rights:?}");
    let of_channels = |finding: &&&Finding| {
        finding.advice.as_deref().is_some_and(|advice| advice.contains(" &other:wake:*"))
    };
    assert!(rights.iter().any(|finding| of_channels(&finding)), "{rights:?}");
}

#[tokio::test]
async fn a_command_that_was_renamed_is_missed() {
    let server = RedisServer::builder()
        .config("rename-command EVALSHA \"\"")
        .config("rename-command CONFIG \"\"")
        .start();
    let findings = examined(&server.url()).await;
    let rights = about(&findings, "rights");
    assert_eq!(rights.severity, Severity::Problem);
    assert!(rights.found.contains("finds no command EVALSHA"), "{rights:?}");
    assert_eq!(about(&findings, "scripts").severity, Severity::Problem);
    assert!(about(&findings, "settings").found.contains("CONFIG GET"));
}

/// Forwards all data with `struct` misspelt, so that scripts lack it.
async fn relay(from: tokio::net::TcpStream, to: std::net::SocketAddr) -> std::io::Result<()> {
    let mut server = tokio::net::TcpStream::connect(to).await?;
    let (mut from_client, mut to_client) = from.into_split();
    let (mut from_server, mut to_server) = server.split();
    let ask = async {
        let (mut read, mut held) = ([0; 4_096], Vec::new());
        loop {
            let size = from_client.read(&mut read).await?;
            if size == 0 {
                return to_server.shutdown().await;
            }
            held.extend_from_slice(&read[..size]);
            while let Some(at) = held.windows(6).position(|word| word == b"struct") {
                held[at] = b'x';
            }
            // A possible start of the word waits for the rest of it; requests never end so.
            let begun = (1..6).rev().find(|length| held.ends_with(&b"struct"[..*length]));
            let rest = held.split_off(held.len() - begun.unwrap_or(0));
            to_server.write_all(&held).await?;
            held = rest;
        }
    };
    let answer = tokio::io::copy(&mut from_server, &mut to_client);
    tokio::try_join!(ask, answer).map(drop)
}

#[tokio::test]
async fn a_server_whose_scripts_lack_struct_is_reported_in_words() {
    let server = RedisServer::start();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, to) = (format!("redis://{}", listener.local_addr().unwrap()), server.addr());
    let serving = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay(client, to));
        }
    });
    let findings = examined(&url).await;
    let scripts = about(&findings, "scripts");
    assert_eq!(scripts.severity, Severity::Problem);
    assert!(scripts.found.contains("no `struct` library"), "{scripts:?}");
    assert!(scripts.means.contains("can't be taken"), "{scripts:?}");
    assert_eq!(about(&findings, "rights").severity, Severity::Fine, "{findings:#?}");
    serving.abort();
    // The same server has it without the relay.
    let findings = examined(&server.url()).await;
    assert_eq!(about(&findings, "scripts").severity, Severity::Fine);
}

#[tokio::test]
async fn a_node_of_a_cluster_is_known_for_what_it_is() {
    let node = RedisServer::builder().config("cluster-enabled yes").start();
    let single = RedisStore::connect_lazy(&node.url()).unwrap();
    let refused = single.examine(WITHIN).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
    assert!(refused.to_string().contains("write redis+cluster://"), "{refused}");
}

#[tokio::test]
async fn every_primary_of_a_cluster_is_examined() {
    let start = || Cluster::builder().replicas(1).start();
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    let odd = &cluster.nodes()[1];
    assert_eq!(odd.cli(&["CONFIG", "SET", "maxmemory", "100mb"]), "OK");
    assert_eq!(odd.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]), "OK");
    let before: Vec<_> = cluster.nodes().iter().map(writes).collect();
    let findings = examined(&cluster.url()).await;
    let of = |topic: &str| findings.iter().filter(|one| one.topic == topic).collect::<Vec<_>>();
    for topic in ["role", "scripts", "rights", "persistence", "clock"] {
        let mut stores: Vec<_> = of(topic).iter().map(|one| one.store.clone().unwrap()).collect();
        stores.sort();
        stores.dedup();
        assert_eq!(stores.len(), 3, "{topic}: {findings:#?}");
    }
    for topic in ["role", "scripts", "rights", "wake", "topology"] {
        assert!(of(topic).iter().all(|one| one.severity == Severity::Fine), "{findings:#?}");
    }
    let replicas: Vec<_> = of("replica").iter().map(|one| one.store.clone().unwrap()).collect();
    for node in &cluster.nodes()[3..] {
        assert!(replicas.contains(&node.url().into()), "{replicas:?}");
    }
    for topic in ["wake", "transport", "protocol"] {
        assert_eq!(of(topic).len(), 1, "{topic}: {findings:#?}");
    }
    let bad: Vec<_> =
        of("eviction").into_iter().filter(|one| one.severity == Severity::Problem).collect();
    let place = format!("redis://{}", odd.addr());
    assert_eq!(bad.len(), 1, "{findings:#?}");
    assert_eq!(bad[0].store.as_deref(), Some(&*place));
    assert_eq!(cluster.nodes().iter().map(writes).collect::<Vec<_>>(), before);
}

#[tokio::test]
async fn a_user_who_lacks_a_right_for_its_url_is_reported() {
    let start = || Cluster::builder().replicas(0).start();
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    let url = format!("{}?replicas=1", cluster.url().replace("://", "://bob:pw@"));
    let rule = acl::rule(&url, "bob", &Feature::SERVICE).unwrap().replace(">PASSWORD", ">pw");
    assert!(rule.contains(" +info "), "{rule}");
    let lesser = rule.replace(" +asking", "").replace(" +wait", "").replace(" +info", "");
    assert_ne!(rule, lesser);
    for node in cluster.nodes() {
        let rule = if node.port() == cluster.nodes()[0].port() { &lesser } else { &rule };
        assert_eq!(node.cli(&rule.split(' ').collect::<Vec<_>>()), "OK");
    }
    let findings = examined(&url).await;
    let lacking: Vec<_> = findings
        .iter()
        .filter(|one| one.topic == "rights" && one.severity == Severity::Problem)
        .collect();
    assert_eq!(lacking.len(), 1, "{findings:#?}");
    assert!(lacking[0].found.contains("ASKING, WAIT, INFO"), "{lacking:?}");
    assert_eq!(lacking[0].advice.as_deref(), Some("ACL SETUSER USER +asking +wait +info"));
}

#[tokio::test]
async fn a_primary_that_sentinels_watch_is_examined_with_them() {
    let start = || SentinelSet::builder().replicas(1).start();
    let set = tokio::task::spawn_blocking(start).await.unwrap();
    let findings = examined(&set.url()).await;
    assert_eq!(about(&findings, "role").severity, Severity::Fine);
    assert_eq!(about(&findings, "rights").severity, Severity::Fine);
    let finding = about(&findings, "sentinels");
    assert_eq!(finding.severity, Severity::Fine, "{finding:?}");
    assert!(finding.found.contains("3 of 3"), "{finding:?}");
    let primary = format!("the same primary, {} in epoch ", set.master().addr());
    assert!(finding.found.contains(&primary), "{finding:?}");
    about(&findings, "replica");
    set.sentinels()[0].kill();
    let findings = examined(&set.url()).await;
    let finding = about(&findings, "sentinels");
    assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
    assert!(finding.found.contains("2 of 3"), "{finding:?}");
    let gone = format!("sentinel {}", set.sentinels()[0].addr());
    assert!(finding.found.contains(&gone), "{finding:?}");
}

#[tokio::test]
async fn a_lent_connection_is_examined_as_far_as_it_goes() {
    let client = redis::Client::open(server::shared().url()).unwrap();
    let connection = connection(&client).await.unwrap();
    let findings = RedisStore::from_connection(connection).examine(WITHIN).await.unwrap();
    assert_eq!(about(&findings, "wake").severity, Severity::Note);
    assert_eq!(about(&findings, "transport").severity, Severity::Note);
    assert_eq!(about(&findings, "scripts").severity, Severity::Fine);
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error_and_not_a_finding() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    server.pause();
    let error = store.examine(SHORT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(all_words(&error).contains("examine"), "{error}");
    server.resume();
    store.examine(WITHIN).await.unwrap();
}
