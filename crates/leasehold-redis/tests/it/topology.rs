//! Sentinels and clusters: what is found, what is refused, and what callers learn.

use std::sync::Arc;

use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, ClientId, Effect, ErrorKind, ListRequest, Release, Renew,
    Store as _, Token, Wake,
};
use leasehold_redis::{RedisStore, acl, redis};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::common::{Caller, WITHIN, all_words, connection, key, ttl};

async fn refused(url: &str) -> leasehold_core::Error {
    let error = RedisStore::connect(url).await.map(drop).unwrap_err();
    assert_eq!(error.effect(), Effect::NotApplied, "{error}");
    error
}

#[tokio::test]
async fn passwords_of_servers_and_sentinels_are_distinguished_and_never_shown() {
    let start = || {
        let set = SentinelSet::builder().replicas(1);
        set.password("s3rver-pw").sentinel_password("s3ntinel-pw").start()
    };
    let set = spawn_blocking(start).await.unwrap();
    let store = RedisStore::connect(&set.url()).await.unwrap();
    Caller::new(&store, &key()).take().await;
    let sentinel = format!("sentinel {}", set.sentinels()[0].addr());
    let primary = format!("{}, which the sentinels name", set.servers()[0].addr());
    let (url, none) = (set.url(), "?sentinel_password=s3ntinel-pw");
    for (url, who, what) in [
        (url.replace("s3rver-pw", "wr0ng"), &primary, "wrong user name or password"),
        (url.replace(":s3rver-pw@", ""), &primary, "requires a password, and none was given"),
        (
            url.replace("s3ntinel-pw", "wr0ng"),
            &sentinel,
            "refused sentinel_user or sentinel_password",
        ),
        (url.replace(none, ""), &sentinel, "give sentinel_password"),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let said = error.to_string();
        // Any of the sentinels may be the first to answer.
        let (who, _) = who.split_once(':').unwrap();
        assert!(said.contains(who) && said.contains(what), "{error}");
        let words = format!("{} {store:?} {}", all_words(&error), store.location());
        for secret in ["s3rver-pw", "s3ntinel-pw", "wr0ng"] {
            assert!(!words.contains(secret), "{words}");
        }
    }
}

#[tokio::test]
async fn servers_of_another_sort_are_named_as_what_they_are() {
    let server = RedisServer::start();
    let error = refused(&format!("redis+sentinel://{}/mymaster", server.addr())).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("is not a sentinel"), "{error}");
    let error = refused(&format!("redis+cluster://{}", server.addr())).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("write redis://"), "{error}");
    let set = spawn_blocking(|| SentinelSet::builder().replicas(0).start()).await.unwrap();
    let error = refused(&format!("redis+cluster://{}", set.sentinels()[0].addr())).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("is not a node of a cluster"), "{error}");
    let error = refused(&format!("redis://{}", set.sentinels()[0].addr())).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("write redis+sentinel://"), "{error}");
}

#[tokio::test]
async fn a_borrowed_connection_to_a_cluster_is_refused() {
    let cluster = spawn_blocking(|| Cluster::builder().replicas(0).start()).await.unwrap();
    let client = redis::Client::open(cluster.nodes()[0].url()).unwrap();
    let connection = connection(&client).await.unwrap();
    let store = RedisStore::from_connection(connection);
    for error in [
        Caller::new(&store, &key()).try_take().await.unwrap_err(),
        store.list(&ListRequest::new(""), WITHIN).await.unwrap_err(),
    ] {
        let seen = (error.kind(), error.effect());
        assert_eq!(seen, (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains("redis+cluster://"), "{error}");
    }
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused_where_the_url_names_a_single_server() {
    let cluster = spawn_blocking(|| Cluster::builder().replicas(0).start()).await.unwrap();
    for node in cluster.nodes() {
        let error = refused(&node.url()).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let instead = format!("redis+cluster://{}", node.addr());
        assert!(error.to_string().contains(&instead), "{error}");
        let store = RedisStore::builder().connect_lazy(&node.url()).unwrap();
        let error = Caller::new(&store, &key()).try_take().await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Config, Effect::NotApplied));
        assert_eq!(node.cli(&["DBSIZE"]), "0");
    }
    let url = format!("redis+cluster://{}", cluster.nodes()[0].addr());
    let store = RedisStore::connect(&url).await.unwrap();
    Caller::new(&store, &key()).take().await;
}

#[tokio::test]
async fn a_primary_that_no_sentinel_knows_is_a_wrong_setting() {
    let set = spawn_blocking(|| SentinelSet::builder().replicas(0).start()).await.unwrap();
    let error = refused(&set.url().replace("mymaster", "yourmaster")).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("no primary of this name"), "{error}");
    // One sentinel that answers is enough.
    set.sentinels().iter().take(2).for_each(RedisServer::kill);
    let store = RedisStore::connect(&set.url()).await.unwrap();
    Caller::new(&store, &key()).take().await;
}

/// A URL with one deployment, and before it a sentinel of another one with a higher epoch.
#[tokio::test]
async fn a_sentinel_of_another_deployment_is_outvoted_and_reported() {
    let start = || {
        let ours = SentinelSet::builder().replicas(0).start();
        let theirs = SentinelSet::builder().replicas(1).start();
        theirs.fail_over();
        theirs.await_agreement();
        (ours, theirs)
    };
    let (ours, theirs) = spawn_blocking(start).await.unwrap();
    let stranger = theirs.sentinels()[0].addr();
    let url = ours.url().replace("sentinel://", &format!("sentinel://{stranger},"));
    for _ in 0..10 {
        let store = RedisStore::connect(&url).await.unwrap();
        let name = key();
        Caller::new(&store, &name).take().await;
        assert_eq!(ours.servers()[0].cli(&["EXISTS", &format!("leasehold:{{{name}}}")]), "1");
    }
    let store = RedisStore::connect(&url).await.unwrap();
    let findings = store.examine(WITHIN).await.unwrap();
    let about = findings.iter().find(|finding| finding.topic == "sentinels").unwrap();
    assert!(
        about.found.contains(&format!("another deployment's are: {stranger} names")),
        "{about:?}"
    );

    // Under more names than the others it still counts once.
    let port = stranger.port();
    let names = format!("sentinel://localhost:{port},127.1:{port},{stranger},");
    let crowded = ours.url().replace("sentinel://", &names);
    ours.sentinels()[0].kill();
    for _ in 0..10 {
        let store = RedisStore::connect(&crowded).await.unwrap();
        let name = key();
        Caller::new(&store, &name).take().await;
        assert_eq!(ours.servers()[0].cli(&["EXISTS", &format!("leasehold:{{{name}}}")]), "1");
    }
    let twice = theirs.url().replace("sentinel://", &format!("sentinel://localhost:{port},"));
    let store = RedisStore::connect(&twice).await.unwrap();
    let findings = store.examine(WITHIN).await.unwrap();
    let about = findings.iter().find(|finding| finding.topic == "sentinels").unwrap();
    assert!(about.found.starts_with("3 of 3 sentinels answer"), "{about:?}");
    assert!(about.found.ends_with("are one sentinel"), "{about:?}");

    // One against one is undecided; one alone is enough.
    ours.sentinels().iter().take(2).for_each(RedisServer::kill);
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("they do not know each other"), "{error}");
    let store = RedisStore::connect(&ours.url()).await.unwrap();
    Caller::new(&store, &key()).take().await;
}

#[tokio::test]
async fn a_client_follows_the_sentinels_though_the_old_primary_serves_on() {
    let start = || SentinelSet::builder().replicas(1).password("pw").start();
    let set = Arc::new(spawn_blocking(start).await.unwrap());
    let store = RedisStore::connect(&set.url()).await.unwrap();
    let mut listener = store.listen(ClientId::generate().unwrap(), WITHIN).await.unwrap();
    let caller = Caller::new(&store, &key());
    caller.take().await;
    // Sentinels and replica lose contact with the old primary, so that it never learns that it was
    // replaced.
    let old = redis::Client::open(set.servers()[0].url()).unwrap();
    let mut old = connection(&old).await.unwrap();
    for command in [
        ["ACL", "SETUSER", "leasehold-testkit", "off"],
        ["CLIENT", "KILL", "USER", "leasehold-testkit"],
    ] {
        redis::cmd(command[0]).arg(&command[1..]).exec_async(&mut old).await.unwrap();
    }
    let promoted = Arc::clone(&set);
    let new = spawn_blocking(move || promoted.fail_over().port()).await.unwrap();
    let new = set.servers().iter().find(|server| server.port() == new).unwrap();
    let deadline = tokio::time::Instant::now() + WITHIN;
    loop {
        let caller = Caller::new(&store, &key());
        // A request that was under way at the change got no answer.
        if let Ok(Acquire::Granted(granted)) = caller.try_take().await
            && new.cli(&["EXISTS", &format!("leasehold:{{{}}}", caller.request.key)]) == "1"
        {
            assert!(granted.fences.first().epoch() > 0, "the epoch of the fail-over");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the store stays with the old primary");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let role: redis::Value = redis::cmd("ROLE").query_async(&mut old).await.unwrap();
    assert!(format!("{role:?}").contains("master"), "the old one never heard of it: {role:?}");
    assert_eq!(
        timeout(WITHIN, listener.next()).await.unwrap(),
        Wake::Resync,
        "messages come from the new one"
    );
}

#[tokio::test]
async fn one_node_is_enough_to_find_a_cluster_and_all_its_locks() {
    let cluster = spawn_blocking(|| Cluster::builder().replicas(0).start()).await.unwrap();
    let one = format!("redis+cluster://{}", cluster.nodes()[2].addr());
    let store = RedisStore::connect(&one).await.unwrap();
    let mut taken = Vec::new();
    for _ in 0..30 {
        let caller = Caller::new(&store, &key());
        let fences = caller.take().await;
        assert!(fences.first().epoch() > 0, "the epoch of its node");
        taken.push((caller, fences));
    }
    let listed = store.list(&ListRequest::new("it/"), WITHIN).await.unwrap().locks;
    assert_eq!(listed.len(), taken.len());
    let scattered = cluster.nodes().iter().filter(|node| node.cli(&["DBSIZE"]) != "0").count();
    assert_eq!(scattered, 3, "the locks are spread");
    let renewals: Vec<_> = taken.iter().map(|(caller, fences)| caller.renewal(*fences)).collect();
    for renewed in store.renew(&renewals, WITHIN).await {
        renewed.unwrap();
    }
    let keys: Vec<_> = taken.iter().map(|(caller, _)| caller.request.key.clone()).collect();
    let both: Vec<_> = ["x", "y"]
        .iter()
        .map(|name| {
            let key = leasehold_core::Key::new(format!("{}/{name}", keys[0])).unwrap();
            AcquireRequest::new(key, Token::generate().unwrap(), ttl(60))
        })
        .collect();
    let error = store.acquire_all(&both, WITHIN).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::NotApplied));
}

#[tokio::test]
async fn only_locks_that_share_a_slot_are_taken_in_one_step() {
    let cluster = spawn_blocking(|| Cluster::builder().replicas(0).start()).await.unwrap();
    let store = RedisStore::connect(&cluster.url()).await.unwrap();
    assert!(!store.capability().sets, "not any locks");
    let wish = |name: &str| {
        let key = leasehold_core::Key::new(name).unwrap();
        AcquireRequest::new(key, Token::generate().unwrap(), ttl(60))
    };
    let slot = |name: &str| cluster.slot_of(&format!("leasehold:{{{name}}}"));
    let other = (0..).map(|n| format!("b{n}")).find(|name| slot(name) != slot("a")).unwrap();
    let error = store.acquire_all(&[wish("a"), wish(&other)], WITHIN).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::NotApplied));
    assert!(cluster.nodes().iter().all(|node| node.cli(&["DBSIZE"]) == "0"), "nothing was sent");
    let same = (0..).map(|n| format!("b{n}")).find(|name| slot(name) == slot("a")).unwrap();
    let answer = store.acquire_all(&[wish("a"), wish(&same)], WITHIN).await.unwrap();
    assert!(matches!(answer, AcquireAll::Granted(fences) if fences.len() == 2));
}

#[tokio::test]
async fn an_unpolled_request_delays_no_other() {
    let start = || (SentinelSet::builder().replicas(0).start(), Cluster::start());
    let (set, cluster) = spawn_blocking(start).await.unwrap();
    for url in [set.url(), cluster.url()] {
        let store = RedisStore::connect_lazy(&url).unwrap();
        let (one, other) = (key(), key());
        let mut left_alone = std::pin::pin!(store.inspect(&one, WITHIN));
        let begun = tokio::time::timeout(std::time::Duration::ZERO, left_alone.as_mut()).await;
        assert!(begun.is_err(), "it has no connection yet");
        store.inspect(&other, WITHIN).await.unwrap();
        left_alone.await.unwrap();
    }
}

#[tokio::test]
async fn a_dead_node_keeps_no_caller_from_the_locks_of_others() {
    let start =
        || Cluster::builder().replicas(0).config("cluster-require-full-coverage no").start();
    let cluster = spawn_blocking(start).await.unwrap();
    let url = format!("redis+cluster://{}", cluster.nodes()[0].addr());
    cluster.nodes()[2].kill();
    for _ in 0..10 {
        let store = RedisStore::connect(&url).await.unwrap();
        store.listen(ClientId::generate().unwrap(), WITHIN).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_follow_a_moving_slot_learns_what_is_lacking() {
    let cluster = spawn_blocking(|| Cluster::builder().replicas(0).start()).await.unwrap();
    let url = cluster.url().replace("://", "://bob:pw@");
    let rule = acl::rule(&url, "bob", &acl::Feature::SERVICE).unwrap();
    let rule = rule.replace(">PASSWORD", ">pw").replace(" +asking", "");
    for node in cluster.nodes() {
        assert_eq!(node.cli(&rule.split(' ').collect::<Vec<_>>()), "OK");
    }
    let (store, key) = (RedisStore::connect(&url).await.unwrap(), key());
    let runtime = tokio::runtime::Handle::current();
    let moving = move || {
        let slot = cluster.slot_of(&format!("leasehold:{{{key}}}"));
        let from = cluster.master_of(slot).port();
        let to = cluster.nodes().iter().find(|node| node.port() != from).unwrap();
        let mut error = None;
        cluster.migrate(slot, to, || {
            error = runtime.block_on(store.inspect(&key, WITHIN)).err();
        });
        error.unwrap()
    };
    let error = spawn_blocking(moving).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("ASKING"), "{error}");
}

#[tokio::test]
async fn a_list_that_lacks_a_part_of_the_cluster_is_an_error() {
    let start =
        || Cluster::builder().replicas(0).config("cluster-require-full-coverage no").start();
    let cluster = spawn_blocking(start).await.unwrap();
    let store = RedisStore::connect(&cluster.url()).await.unwrap();
    let caller = Caller::new(&store, &key());
    caller.take().await;
    let listed = store.list(&ListRequest::new(""), WITHIN).await.unwrap().locks;
    assert_eq!(listed.len(), 1);
    let slot = cluster.slot_of(&format!("leasehold:{{{}}}", caller.request.key));
    let gone = cluster.master_of(slot);
    let id = gone.cli(&["CLUSTER", "MYID"]);
    gone.kill();
    for node in cluster.nodes().iter().filter(|node| node.port() != gone.port()) {
        assert_eq!(node.cli(&["CLUSTER", "FORGET", &id]), "OK");
    }
    let error = store.list(&ListRequest::new(""), WITHIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn what_fails_over_cannot_say_how_far_back_it_remembers() {
    let start =
        || (SentinelSet::builder().replicas(0).start(), Cluster::builder().replicas(0).start());
    let (set, cluster) = spawn_blocking(start).await.unwrap();
    for url in [set.url(), cluster.url()] {
        let store = RedisStore::connect(&url).await.unwrap();
        let error = store.remembers_for(WITHIN).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[tokio::test]
async fn the_least_rights_that_a_url_asks_for_are_enough() {
    let start = || (SentinelSet::builder().replicas(1).start(), Cluster::start());
    let (set, cluster) = spawn_blocking(start).await.unwrap();
    let settings = "?replicas=1&keep_leases=yes&replicate_timeout=10s";
    for (url, servers) in [(set.url(), set.servers()), (cluster.url(), cluster.nodes())] {
        let url = format!("{}{settings}", url.replace("://", "://locks:pw@"));
        let rule = acl::rule(&url, "locks", &acl::Feature::SERVICE).unwrap();
        let rule = rule.replace(">PASSWORD", ">pw");
        for server in servers {
            assert_eq!(server.cli(&rule.split(' ').collect::<Vec<_>>()), "OK");
        }
        let store = RedisStore::connect(&url).await.unwrap();
        let mut listener = store.listen(ClientId::generate().unwrap(), WITHIN).await.unwrap();
        for _ in 0..10 {
            let caller = Caller::new(&store, &key());
            let fences = caller.take().await;
            let renewed = store.renew(&[caller.renewal(fences)], WITHIN).await.remove(0);
            assert_eq!(renewed.unwrap(), Renew::Renewed);
            let released = store.release(&caller.ending(fences), WITHIN).await.unwrap();
            assert_eq!(released, Release::Released);
        }
        store.list(&ListRequest::new(""), WITHIN).await.unwrap();
        let quiet = std::time::Duration::from_millis(1);
        assert!(tokio::time::timeout(quiet, listener.next()).await.is_err());
    }
}

#[tokio::test]
async fn a_user_of_sentinels_needs_two_rights() {
    let set = spawn_blocking(|| SentinelSet::builder().replicas(0).start()).await.unwrap();
    let url = format!("{}?sentinel_user=watch&sentinel_password=pw", set.url());
    let (master, address) = ("+sentinel|master", "+sentinel|get-master-addr-by-name");
    for (rights, enough) in
        [([master, master], false), ([address, address], false), ([master, address], true)]
    {
        for sentinel in set.sentinels() {
            let mut rule = vec!["ACL", "SETUSER", "watch", "reset", "on", ">pw", "-@all"];
            rule.extend(rights);
            assert_eq!(sentinel.cli(&rule), "OK");
        }
        match RedisStore::connect(&url).await {
            Ok(_) => assert!(enough, "{rights:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
                assert!(!enough, "{error}");
            }
        }
    }
}

#[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
#[tokio::test]
async fn redirects_and_answers_of_sentinels_keep_tls() {
    let pki = leasehold_testkit::tls::Pki::generate();
    let ca = format!("cafile={}", pki.ca().certificate_path().display());
    let sentinels = SentinelSet::builder().replicas(1).tls(&pki).start();
    let cluster = Cluster::builder().replicas(0).password("pw").tls(&pki).start();
    for url in [sentinels.url(), cluster.url()] {
        assert!(url.starts_with("rediss+"), "{url}");
        let store = RedisStore::connect(&format!("{url}?{ca}")).await.unwrap();
        for _ in 0..20 {
            Caller::new(&store, &key()).take().await;
        }
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Config, "without the authority: {error}");
    }
}
