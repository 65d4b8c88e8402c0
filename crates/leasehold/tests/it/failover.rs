//! What a fail-over does to those who hold and to those who wait, with real sentinels and nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::{Client, ErrorKind, Fence, Guard, Owner, Release};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use tokio::task::spawn_blocking;

use crate::support::{ms, patiently, renewed, secs};

/// Servers that can replace each other.
#[derive(Clone)]
enum Servers {
    Sentinel(Arc<SentinelSet>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    async fn sentinel() -> Self {
        let start = || SentinelSet::builder().down_after(ms(800)).start();
        Self::Sentinel(Arc::new(spawn_blocking(start).await.unwrap()))
    }

    async fn cluster(replicas: usize) -> Self {
        let start = move || Cluster::builder().node_timeout(ms(1_500)).replicas(replicas).start();
        Self::Cluster(Arc::new(spawn_blocking(start).await.unwrap()))
    }

    /// A client whose grants count only when a replica has them. There is another one, so there
    /// still is one after a fail-over.
    async fn careful(&self) -> Client {
        self.client("?replicas=1&keep_leases=yes&replicate_timeout=5s").await
    }

    async fn client(&self, settings: &str) -> Client {
        let url = match self {
            Self::Sentinel(set) => set.url(),
            Self::Cluster(cluster) => cluster.url(),
        };
        Client::connect(format!("{url}{settings}")).await.unwrap()
    }

    fn primary(&self, key: &str) -> &RedisServer {
        match self {
            Self::Sentinel(set) => set.master(),
            Self::Cluster(cluster) => cluster.master_of(cluster.slot_of(&record(key))),
        }
    }

    /// Waits until another server than the one at this port is the primary.
    async fn until_replaced(&self, key: &str, old_port: u16) {
        let (servers, key) = (self.clone(), key.to_owned());
        spawn_blocking(move || match &servers {
            Self::Sentinel(set) => {
                let old = set.servers().iter().find(|one| one.port() == old_port).unwrap();
                set.master_after(old).port()
            }
            Self::Cluster(cluster) => {
                let old = cluster.nodes().iter().find(|one| one.port() == old_port).unwrap();
                cluster.master_after(old, cluster.slot_of(&record(&key))).port()
            }
        })
        .await
        .unwrap();
    }

    fn replicas_of(&self, key: &str) -> Vec<&RedisServer> {
        let primary = self.primary(key).port();
        let all: Vec<&RedisServer> = match self {
            Self::Sentinel(set) => set.servers().iter().collect(),
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
        };
        let follows = |one: &&RedisServer| {
            let role = one.cli(&["ROLE"]);
            role.starts_with("slave") && role.lines().nth(2) == Some(&primary.to_string())
        };
        all.into_iter().filter(follows).collect()
    }
}

fn record(key: &str) -> String {
    format!("leasehold:{{{key}}}")
}

/// Waits until there is a waiter in the queue.
async fn until_a_waiter_is_queued(client: &Client, key: &str) {
    patiently("a waiter", async {
        while client.inspect(key).await.unwrap().is_none_or(|info| info.waiters.is_empty()) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

/// Requests a lease's state until the store answers.
async fn until_known(guard: &Guard) {
    patiently("the store to come back", async {
        while guard.ttl().await.is_err() {
            tokio::time::sleep(ms(50)).await;
        }
    })
    .await;
}

async fn a_killed_primary_costs_time_only(servers: Servers) {
    let (holder, waiter) = (servers.careful().await, servers.careful().await);
    let guard = holder.mutex("a").ttl(secs(60)).lock().await.unwrap();
    let fence = guard.fence().unwrap();
    let waiting = tokio::spawn(async move {
        let guard = waiter.mutex("a").ttl(secs(60)).lock().await.unwrap();
        (guard.fence().unwrap(), guard.release_outcome().await.unwrap())
    });
    until_a_waiter_is_queued(&holder, "a").await;
    let old = servers.primary("a").port();
    servers.primary("a").kill();
    servers.until_replaced("a", old).await;
    until_known(&guard).await;
    assert!(guard.is_held(), "the promoted replica had the lease");
    assert_eq!(guard.fence().unwrap(), fence);
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let (next, released) = patiently("the waiter", waiting).await.unwrap();
    assert!(next.epoch() > fence.epoch(), "{next:?} {fence:?}");
    assert_eq!(released, Release::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_killed_under_sentinels_costs_holder_and_waiter_time_only() {
    a_killed_primary_costs_time_only(Servers::sentinel().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_killed_in_a_cluster_costs_holder_and_waiter_time_only() {
    a_killed_primary_costs_time_only(Servers::cluster(2).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_are_gone_before_the_first_renewal_cost_no_lease() {
    let servers = Servers::sentinel().await;
    let client = servers.client("").await;
    let Servers::Sentinel(set) = &servers else { unreachable!() };
    set.sentinels().iter().for_each(RedisServer::kill);
    let guard = client.mutex("a").ttl(secs(3)).lock().await.unwrap();
    renewed(&client, "a", secs(3), || guard.check().unwrap()).await;
    guard.release().await.unwrap();
}

async fn a_lease_that_no_replica_had_is_reported_lost(servers: Servers) {
    let client = servers.client("").await;
    let before = client.mutex("a").lock().await.unwrap();
    let fence_before = before.fence().unwrap();
    assert_eq!(before.release_outcome().await.unwrap(), Release::Released);
    let replicas = servers.replicas_of("a");
    assert!(!replicas.is_empty());
    replicas.iter().for_each(|replica| replica.pause());
    // What is in a socket's buffer would be read later.
    let killed = servers.primary("a").cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    assert_eq!(killed, replicas.len().to_string());
    let guard = client.mutex("a").ttl(secs(60)).lock().await.unwrap();
    let fence = guard.fence().unwrap();
    let old = servers.primary("a").port();
    servers.primary("a").kill();
    replicas.iter().for_each(|replica| replica.resume());
    servers.until_replaced("a", old).await;
    patiently("the loss to be told", guard.lost()).await;
    assert!(guard.fence().is_err());
    let other = servers.client("").await;
    let next = patiently("the lock", other.mutex("a").lock()).await.unwrap().fence().unwrap();
    assert!(fence_before < fence && fence < next, "{fence_before:?} {fence:?} {next:?}");
    assert!(next.epoch() > fence.epoch());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_the_promoted_replica_lacks_is_reported_lost_under_sentinels() {
    a_lease_that_no_replica_had_is_reported_lost(Servers::sentinel().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_the_promoted_replica_lacks_is_reported_lost_in_a_cluster() {
    a_lease_that_no_replica_had_is_reported_lost(Servers::cluster(1).await).await;
}

/// Takes the lock again and again, and checks that it is the only one that believes to have it.
async fn contend(client: Client, believers: Arc<AtomicU32>, newest: Arc<std::sync::Mutex<Fence>>) {
    loop {
        let Ok(guard) = client.mutex("a").ttl(secs(4)).lock_within(secs(8)).await else {
            continue;
        };
        if let Ok(fence) = guard.fence() {
            assert_eq!(believers.fetch_add(1, Ordering::SeqCst), 0, "two believe at once");
            {
                let mut newest = newest.lock().unwrap();
                assert!(fence > *newest, "{fence:?} after {newest:?}");
                *newest = fence;
            }
            tokio::time::sleep(ms(3)).await;
            believers.fetch_sub(1, Ordering::SeqCst);
        }
        drop(guard.release().await);
    }
}

async fn a_primary_that_comes_back_makes_no_second_holder(servers: Servers) {
    let believers = Arc::new(AtomicU32::new(0));
    let newest = Arc::new(std::sync::Mutex::new(Fence::ZERO));
    let mut contenders = tokio::task::JoinSet::new();
    for _ in 0..3 {
        contenders.spawn(contend(
            servers.careful().await,
            Arc::clone(&believers),
            Arc::clone(&newest),
        ));
    }
    let fence = || *newest.lock().unwrap();
    let taken_after = async |fence_then: Fence| {
        patiently("more grants", async {
            while fence() <= fence_then {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
    };
    taken_after(Fence::ZERO).await;
    let old = servers.primary("a");
    old.pause();
    let paused_at = fence();
    servers.until_replaced("a", old.port()).await;
    // A grant of the old primary may have been on its way when it was paused.
    patiently("grants in a new epoch", async {
        while fence().epoch() <= paused_at.epoch() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    old.resume();
    for _ in 0..20 {
        taken_after(fence()).await;
    }
    contenders.abort_all();
    while let Some(ended) = contenders.join_next().await {
        let panicked = ended.is_err_and(|error| error.is_panic());
        assert!(!panicked, "a contender saw two holders, or a fence that went back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_primary_that_comes_back_makes_no_second_holder_under_sentinels() {
    a_primary_that_comes_back_makes_no_second_holder(Servers::sentinel().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_primary_that_comes_back_makes_no_second_holder_in_a_cluster() {
    a_primary_that_comes_back_makes_no_second_holder(Servers::cluster(2).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_while_its_lock_is_held_and_waited_for() {
    let start = || Cluster::builder().replicas(0).start();
    let cluster = Arc::new(spawn_blocking(start).await.unwrap());
    let servers = Servers::Cluster(Arc::clone(&cluster));
    let (holder, waiter) = (servers.client("").await, servers.client("").await);
    let guard = holder.mutex("a").ttl(secs(60)).lock().await.unwrap();
    let fence = guard.fence().unwrap();
    let waiting = tokio::spawn(async move {
        let guard = waiter.mutex("a").ttl(secs(60)).lock().await.unwrap();
        guard.fence().unwrap()
    });
    until_a_waiter_is_queued(&holder, "a").await;
    let from = servers.primary("a").port();
    let moving = Arc::clone(&cluster);
    spawn_blocking(move || {
        let to = moving.nodes().iter().find(|node| node.port() != from).unwrap();
        moving.migrate(moving.slot_of(&record("a")), to, || {});
    })
    .await
    .unwrap();
    assert_ne!(servers.primary("a").port(), from);
    until_known(&guard).await;
    assert!(guard.is_held());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let next = patiently("the waiter", waiting).await.unwrap();
    assert!(next.epoch() > fence.epoch(), "{next:?} {fence:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_locks_of_a_cluster_are_taken_all_or_none_and_waited_for_in_their_order() {
    let servers = Servers::cluster(0).await;
    let (one, other) = (servers.client("").await, servers.client("").await);
    let ports = ["a", "b", "c"].map(|name| servers.primary(name).port());
    assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[2] != ports[0], "{ports:?}");
    let multi = one.multi(["c", "b", "a"]);
    let guard = multi.lock().await.unwrap();
    for (key, _) in guard.fences().unwrap() {
        assert!(other.mutex(key.as_str()).try_lock().await.unwrap().is_none(), "{key}");
    }
    for (key, released) in guard.release_outcomes().await {
        assert_eq!(released.unwrap(), Release::Released, "{key}");
    }
    let held = other.mutex("b").lock().await.unwrap();
    assert!(multi.try_lock().await.unwrap().is_none());
    for free in ["a", "c"] {
        let guard = other.mutex(free).try_lock().await.unwrap().unwrap();
        assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    }
    let waiting = tokio::spawn(async move { multi.lock().await });
    until_a_waiter_is_queued(&other, "b").await;
    assert!(other.mutex("a").try_lock().await.unwrap().is_none(), "the first is kept");
    let last = other.mutex("c").try_lock().await.unwrap().unwrap();
    assert_eq!(last.release_outcome().await.unwrap(), Release::Released);
    assert_eq!(held.release_outcome().await.unwrap(), Release::Released);
    let guard = patiently("all of them", waiting).await.unwrap().unwrap();
    assert_eq!(guard.fences().unwrap().len(), 3);
}

/// Each has the lock in the store for a moment, and takes the others' moments for those of holders.
#[tokio::test]
async fn contenders_for_a_lock_that_no_replica_has_learn_that_and_name_no_holder() {
    let server = spawn_blocking(RedisServer::start).await.unwrap();
    let url = format!("{}?replicas=1&keep_leases=yes&replicate_timeout=100ms", server.url());
    let mut waits = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let mutex = Client::connect(&*url).await.unwrap().mutex("a");
        waits.spawn(async move { mutex.lock_within(secs(6)).await.map(drop).unwrap_err() });
    }
    while let Some(error) = patiently("the ends of the waits", waits.join_next()).await {
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
        assert!(error.to_string().contains("the grant was not confirmed"), "{error}");
    }
}

/// What its own try met counts, though it sees no more than another's from then on.
#[tokio::test]
async fn a_contender_of_any_kind_learns_that_its_first_try_was_on_no_replica() {
    let server = spawn_blocking(RedisServer::start).await.unwrap();
    let url = format!("{}?replicas=1&keep_leases=yes&replicate_timeout=1s", server.url());
    let (one, other) =
        (Client::connect(&*url).await.unwrap(), Client::connect(&*url).await.unwrap());
    let owners = [Owner::new(), Owner::new()];
    for kind in ["mutex", "semaphore", "reentrant", "multi"] {
        let take = |client: &Client, owner: &Owner, limit: Duration| {
            let (client, owner) = (client.clone(), owner.clone());
            tokio::spawn(async move {
                match kind {
                    "mutex" => client.mutex(kind).lock_within(limit).await.map(drop),
                    "semaphore" => client.semaphore(kind, 1).acquire_within(limit).await.map(drop),
                    "reentrant" => {
                        client.reentrant(kind, &owner).lock_within(limit).await.map(drop)
                    }
                    _ => client.multi([kind, "more"]).lock_within(limit).await.map(drop),
                }
            })
        };
        let began = take(&one, &owners[0], ms(1_500));
        patiently("the try", async {
            while one.inspect(kind).await.unwrap().is_none() {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        let behind = take(&other, &owners[1], secs(4));
        let error = patiently("its end", began).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotReplicated, "{kind}: {error}");
        assert!(error.to_string().contains("the grant was not confirmed"), "{kind}: {error}");
        patiently("the other's end", behind).await.unwrap().unwrap_err();
    }
}
