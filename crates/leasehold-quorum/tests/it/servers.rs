//! Real servers that are stopped, killed and restarted.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::{Finding, IDENTITY, Severity, worst};
use leasehold_core::{
    Acquire, ErrorKind, Key, Release, ReleaseRequest, Renew, RenewRequest, Result, Store,
};
use leasehold_quorum::{QuorumStore, QuorumStoreBuilder};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;
use tokio::time::Instant;

use crate::support::{CALL, ask_until_settled, connected, granted, key, ms, secs, wish};

/// For tests that measure how long a silent node delays them.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than a node takes to answer, even on a busy machine.
const PATIENT: Duration = Duration::from_secs(5);
/// The time that a slow machine may add.
const SLOW: Duration = Duration::from_secs(5);

fn servers(count: usize) -> Vec<RedisServer> {
    (0..count).map(|_| RedisServer::start()).collect()
}

fn quorum(servers: &[RedisServer]) -> QuorumStoreBuilder {
    QuorumStore::builder(connected(servers)).node_timeout(PATIENT)
}

/// Waits until every server has the lease. A grant counts once a majority has it. The other nodes
/// get it afterwards, even one that was restarted meanwhile.
async fn at_all(servers: &[RedisServer], key: &Key) {
    for (server, node) in servers.iter().zip(connected(servers)) {
        let began = Instant::now();
        while node.inspect(key, CALL).await.unwrap().is_none() {
            assert!(began.elapsed() < secs(60), "{} never has the lease", server.addr());
            tokio::time::sleep(ms(1)).await;
        }
    }
}

/// Acquires, renews and releases a lock; returns how long the acquisition took.
async fn use_a_lock(store: &dyn Store) -> Duration {
    let began = Instant::now();
    loop {
        match try_to_use_a_lock(store).await {
            // On a busy machine, nodes may need more than their time.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                assert!(began.elapsed() < secs(60), "no lock can be used: {error}");
            }
            took => return took.unwrap(),
        }
    }
}

/// The same with one lock, until the first error.
async fn try_to_use_a_lock(store: &dyn Store) -> Result<Duration> {
    let (key, started) = (key(), Instant::now());
    let asked = wish(&key, secs(30));
    let fences = match store.acquire(&asked, CALL).await? {
        Acquire::Granted(granted) => granted.fences,
        other => panic!("not granted: {other:?}"),
    };
    let took = started.elapsed();
    let renewal = RenewRequest::new(key.clone(), asked.token, fences, asked.ttl);
    assert_eq!(store.renew(&[renewal], CALL).await.remove(0)?, Renew::Renewed);
    assert!(store.inspect(&key, CALL).await?.is_some());
    let request = ReleaseRequest::new(key, asked.token, fences);
    assert_eq!(store.release(&request, CALL).await?, Release::Released);
    Ok(took)
}

/// A quorum that soon counts silent nodes as gone.
fn hasty_quorum(servers: &[RedisServer]) -> QuorumStore {
    quorum(servers).node_timeout(NODE_TIMEOUT).nodes_keep_leases(true).build().unwrap()
}

#[tokio::test]
async fn one_of_three_and_two_of_five_may_be_stopped_or_killed() {
    for (count, gone) in [(3, 1), (5, 2)] {
        let servers = servers(count);
        let quorum = hasty_quorum(&servers);
        use_a_lock(&quorum).await;
        servers.iter().take(gone).for_each(RedisServer::pause);
        let took = use_a_lock(&quorum).await;
        assert!(took < NODE_TIMEOUT + SLOW, "with stopped nodes an acquisition took {took:?}");
        servers.iter().take(gone).for_each(RedisServer::kill);
        let took = use_a_lock(&quorum).await;
        assert!(took < NODE_TIMEOUT + SLOW, "with killed nodes an acquisition took {took:?}");
        servers.iter().take(gone).for_each(RedisServer::restart);
        use_a_lock(&quorum).await;
    }
}

#[tokio::test]
async fn without_a_majority_of_servers_a_clear_error_comes_within_the_callers_time() {
    let servers = servers(3);
    let quorum = hasty_quorum(&servers);
    use_a_lock(&quorum).await;
    servers[0].pause();
    servers[1].kill();
    let started = Instant::now();
    let error = quorum.acquire(&wish(&key(), secs(30)), secs(3)).await.unwrap_err();
    assert!(started.elapsed() < secs(3) + SLOW, "{:?}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let told = error.to_string();
    for server in &servers[..2] {
        assert!(told.contains(&server.addr().to_string()), "{told}");
    }
    servers[0].resume();
    servers[1].restart();
    let began = Instant::now();
    while quorum.acquire(&wish(&key(), secs(1)), secs(3)).await.is_err() {
        assert!(began.elapsed() < secs(60), "the nodes are back, and locks are not");
        tokio::time::sleep(ms(20)).await;
    }
}

#[tokio::test]
async fn a_server_that_was_restarted_empty_lets_no_second_holder_in() {
    let servers = servers(3);
    let max_ttl = secs(4);
    let quorum = quorum(&servers).max_ttl(max_ttl).build().unwrap();
    let key = key();
    // New nodes look the same as restarted ones.
    let began = Instant::now();
    let mut said_when = false;
    let asked = loop {
        let asked = wish(&key, max_ttl);
        match quorum.acquire(&asked, CALL).await {
            Ok(Acquire::Granted(_)) => break asked,
            Ok(other) => panic!("nobody else is here: {other:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                if error.to_string().contains("ready in") {
                    let after = error.retry_after().expect("they say when");
                    assert!(after <= max_ttl + ms(100), "{error}");
                    said_when = true;
                }
                assert!(began.elapsed() < secs(60), "the nodes never come of age: {error}");
            }
        }
        tokio::time::sleep(ms(50)).await;
    };
    assert!(said_when, "no refusal said when the nodes are ready");
    let held_since = Instant::now();
    at_all(&servers, &key).await;
    // Two of the three nodes with the lease forget it, one after the other.
    for server in &servers[..2] {
        server.kill();
        server.restart();
    }
    let other = wish(&key, max_ttl);
    let began = Instant::now();
    loop {
        let answer = quorum.acquire(&other, secs(2)).await;
        if let Ok(Acquire::Granted(_)) = answer {
            break;
        }
        // The first holder's lease, counted from before its request.
        assert!(began.elapsed() < secs(60), "the lock never comes free: {answer:?}");
        tokio::time::sleep(ms(50)).await;
    }
    let lease = asked.ttl.duration() - leasehold_core::margin(asked.ttl.duration());
    assert!(held_since.elapsed() + ms(200) >= lease, "two holders at once");
}

#[tokio::test]
async fn without_the_delay_a_restart_lets_a_second_holder_in() {
    let servers = servers(3);
    let quorum = quorum(&servers).nodes_keep_leases(true).build().unwrap();
    let key = key();
    granted(&quorum, &wish(&key, secs(60))).await;
    at_all(&servers, &key).await;
    for server in &servers[..2] {
        server.kill();
        server.restart();
    }
    let began = Instant::now();
    while !matches!(quorum.acquire(&wish(&key, secs(60)), secs(2)).await, Ok(Acquire::Granted(_))) {
        assert!(began.elapsed() < secs(50), "this shows nothing any more");
    }
}

#[tokio::test]
async fn a_server_that_was_restarted_gets_its_leases_back_by_the_next_renewal() {
    let servers = servers(3);
    let nodes = connected(&servers);
    let quorum = quorum(&servers).nodes_keep_leases(true).build().unwrap();
    let key = key();
    let asked = wish(&key, secs(30));
    let fences = granted(&quorum, &asked).await;
    servers[0].kill();
    servers[0].restart();
    let renewal = [RenewRequest::new(key.clone(), asked.token, fences, asked.ttl)];
    let began = Instant::now();
    while !matches!(nodes[0].inspect(&key, CALL).await, Ok(Some(_))) {
        assert!(began.elapsed() < secs(60), "the node is never healed");
        assert_eq!(*quorum.renew(&renewal, CALL).await[0].as_ref().unwrap(), Renew::Renewed);
    }
    servers[1].kill();
    assert_eq!(*quorum.renew(&renewal, CALL).await[0].as_ref().unwrap(), Renew::Renewed);
    let answer = quorum.acquire(&wish(&key, secs(30)), secs(3)).await.unwrap();
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
}

#[tokio::test]
async fn many_who_ask_at_once_settle_among_themselves() {
    let servers = servers(3);
    let clients: Vec<Arc<QuorumStore>> = (0..4)
        .map(|_| Arc::new(quorum(&servers).nodes_keep_leases(true).build().unwrap()))
        .collect();
    for _ in 0..10 {
        let key = key();
        let asks: Vec<_> = clients
            .iter()
            .map(|client| {
                let (client, mut asked) = (Arc::clone(client), wish(&key, secs(30)));
                tokio::spawn(async move { ask_until_settled(&*client, &mut asked).await })
            })
            .collect();
        let mut holders = 0;
        for ask in asks {
            if let Acquire::Granted(_) = ask.await.unwrap() {
                holders += 1;
            }
        }
        assert_eq!(holders, 1, "nobody, or more than one, of those who asked at once");
    }
}

#[tokio::test]
async fn a_server_under_two_names_has_one_vote() {
    let servers = servers(2);
    let names = |servers: &[&RedisServer]| {
        let stores = servers.iter().flat_map(|server| connected(std::slice::from_ref(*server)));
        let builder = QuorumStore::builder(stores.collect()).node_timeout(PATIENT);
        builder.nodes_keep_leases(true).build().unwrap()
    };
    let [one, other] = [&servers[0], &servers[1]];
    let alone = names(&[one, one, one]);
    let error = alone.acquire(&wish(&key(), secs(30)), secs(5)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("same server as"), "{error}");

    let both = names(&[one, one, other]);
    let key = key();
    let asked = wish(&key, secs(30));
    let fences = granted(&both, &asked).await;
    let busy = both.acquire(&wish(&key, secs(30)), CALL).await.unwrap();
    assert!(matches!(busy, Acquire::Busy(_)), "{busy:?}");
    let renewal = [RenewRequest::new(key.clone(), asked.token, fences, asked.ttl)];
    assert_eq!(*both.renew(&renewal, CALL).await[0].as_ref().unwrap(), Renew::Renewed);
}

#[tokio::test]
async fn one_server_under_two_names_is_found_and_well_set_nodes_give_no_warning() {
    let rule = "u on >pw ~* resetchannels +@all -publish -subscribe";
    let servers: Vec<_> = (0..3).map(|_| RedisServer::builder().acl_user(rule).start()).collect();
    let connected = |urls: Vec<String>| async {
        let mut stores: Vec<Arc<dyn Store>> = Vec::new();
        for url in urls {
            stores.push(Arc::new(RedisStore::connect(&url).await.unwrap()));
        }
        let builder = QuorumStore::builder(stores).node_timeout(PATIENT);
        builder.max_ttl(secs(1)).build().unwrap()
    };
    let urls: Vec<_> = servers.iter().map(|server| server.url_for("u", "pw")).collect();
    let began = Instant::now();
    loop {
        // A new store has only the servers' word for their age.
        let findings = connected(urls.clone()).await.examine(CALL).await.unwrap();
        if worst(&findings) <= Severity::Note {
            break;
        }
        assert!(began.elapsed() < secs(60), "{findings:#?}");
        tokio::time::sleep(ms(100)).await;
    }
    let twice = vec![urls[0].clone(), urls[1].clone(), urls[1].replace("127.0.0.1", "localhost")];
    let findings = connected(twice).await.examine(CALL).await.unwrap();
    let twins: Vec<_> = findings.iter().filter(|it| it.severity == Severity::Problem).collect();
    assert!(matches!(&*twins, [one] if one.topic == IDENTITY), "{findings:#?}");
    assert!(twins[0].found.contains("localhost"), "{twins:?}");
    assert!(twins[0].means.contains("one vote"), "{twins:?}");
    let whole = findings.iter().find(|one| one.topic == "quorum").unwrap();
    assert!(whole.found.starts_with("2 of 3 nodes have a vote"), "{whole:?}");
}

#[tokio::test]
async fn a_quorum_of_servers_that_warm_up_is_reported_with_its_end() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::builder().appendonly().start()).collect();
    let of_all = |findings: Vec<Finding>| {
        findings.into_iter().find(|one| one.topic == "quorum" && one.store.is_none()).unwrap()
    };
    let young = quorum(&servers).max_ttl(secs(3_600)).build().unwrap();
    let finding = of_all(young.examine(CALL).await.unwrap());
    assert_eq!(finding.severity, Severity::Problem, "{finding:?}");
    assert!(finding.found.starts_with("0 of 3 nodes have a vote"), "{finding:?}");
    assert!(finding.means.starts_with("no lock can be taken for another 1h "), "{finding:?}");
    let error = young.acquire(&wish(&key(), secs(30)), CALL).await.unwrap_err();
    assert!(error.to_string().contains("ready in 1h "), "{error}");
    let keeping = quorum(&servers).nodes_keep_leases(true).build().unwrap();
    let finding = of_all(keeping.examine(CALL).await.unwrap());
    assert_eq!(finding.severity, Severity::Fine, "{finding:?}");
}

#[tokio::test]
async fn a_node_that_is_a_replica_is_reported_as_one() {
    let servers = servers(2);
    let replica = RedisServer::builder().replica_of(&servers[0]).start();
    let mut stores = connected(&servers);
    stores.extend(connected(std::slice::from_ref(&replica)));
    let quorum = QuorumStore::builder(stores).node_timeout(PATIENT);
    let quorum = quorum.nodes_keep_leases(true).build().unwrap();
    let findings = quorum.examine(CALL).await.unwrap();
    let finding = findings.iter().find(|one| one.topic == "node").unwrap();
    assert!(finding.found.contains("is a replica of"), "{finding:?}");
    assert!(finding.store.as_deref().is_some_and(|at| at.contains(&replica.addr().to_string())));
}

/// Inspects while a server under two names has granted a try and the third node is silent.
#[tokio::test]
async fn a_try_at_a_server_under_two_names_names_no_holder() {
    let servers = servers(2);
    let mut stores = connected(&servers);
    stores.extend(connected(&servers[..1]));
    let [server] = &*connected(&servers[..1]) else { unreachable!() };
    let quorum = QuorumStore::builder(stores).nodes_keep_leases(true).node_timeout(PATIENT);
    let quorum = Arc::new(quorum.build().unwrap());
    use_a_lock(&*quorum).await;
    servers[1].pause();
    let key = key();
    let asking = {
        let (quorum, asked) = (Arc::clone(&quorum), wish(&key, secs(30)));
        tokio::spawn(async move { quorum.acquire(&asked, CALL).await })
    };
    let mut tried = false;
    loop {
        tried |= server.inspect(&key, CALL).await.unwrap().is_some();
        let shown = quorum.inspect(&key, secs(1)).await.unwrap();
        assert!(!asking.is_finished(), "the try was shown to the end: {shown:?}");
        if tried && shown.is_none() {
            break;
        }
        tokio::time::sleep(ms(20)).await;
    }
    servers[1].resume();
    asking.await.unwrap().unwrap();
}
