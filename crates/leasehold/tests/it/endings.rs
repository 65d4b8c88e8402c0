//! Every way to end a lease of every kind, at the limits of its argument, in every sort of store:
//! no end is refused, and after it the lock is free or closed.

use std::sync::Arc;

use leasehold::store::{SpreadStore, Store};
use leasehold::{Client, Cooldown, Guard, Key, LockOptions, Owner};
use leasehold_embedded::MemoryStore;
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use tokio::time::timeout;

use crate::support::{cool, ms, patiently, secs};

/// The kinds of guards, of which a store without shared holds has the first two.
const KINDS: [&str; 5] = ["lock", "post", "reader", "writer", "permits"];

/// What ends the lease of a guard, apart from a cooldown of its own.
const ENDS: [&str; 8] =
    ["release", "drop", "name", "all", "detached", "force", "close", "dropped wait"];

fn cooldowns() -> [Cooldown; 3] {
    [Cooldown::NONE, cool(ms(1)), Cooldown::MAX]
}

fn kinds(client: &Client) -> &'static [&'static str] {
    if client.store().capability().shared { &KINDS } else { &KINDS[..2] }
}

/// Takes what no time ends while this runs.
async fn take(client: &Client, kind: &str, key: &str) -> Guard {
    let long = LockOptions::new().ttl(secs(600));
    match kind {
        "lock" => client.mutex(key).options(&long).lock().await.unwrap(),
        "post" => client.election(key).options(&long).campaign().await.unwrap().into_guard(),
        "reader" => client.rwlock(key).options(&long).read().await.unwrap().into_guard(),
        "writer" => client.rwlock(key).options(&long).write().await.unwrap().into_guard(),
        _ => {
            let semaphore = client.semaphore(key, u32::MAX).options(&long);
            semaphore.acquire_many(u32::MAX).await.unwrap().into_guard()
        }
    }
}

async fn end(how: &str, client: &Client, guard: Guard, other: &Client) {
    let key = guard.key().clone();
    match how {
        "release" => guard.release().await.unwrap(),
        "drop" => drop(guard),
        "name" => {
            guard.keep();
            client.release_held(&key).await.unwrap();
        }
        "all" => {
            guard.keep();
            client.release_all().await.unwrap();
        }
        "detached" => {
            let lease = guard.detach().await.unwrap();
            other.release(&lease, None).await.unwrap();
        }
        "force" => {
            other.force_release(&key, guard.fence().unwrap()).await.unwrap();
            drop(guard);
        }
        "close" => client.close().await.unwrap(),
        _ => {
            drop(timeout(ms(20), other.mutex(&key).lock()).await);
            guard.release().await.unwrap();
        }
    }
}

/// Returns once the lock is free, or cooling down for about as long as was set.
async fn free_or_closed(client: &Client, key: &Key, cooldown: Cooldown) {
    let at_rest = async {
        loop {
            let info = client.inspect(key).await.unwrap();
            match info.map(|info| (info.holders.len(), info.waiters.len(), info.closed_for)) {
                None if cooldown != Cooldown::MAX => return,
                Some((0, 0, Some(left))) if left + secs(600) > cooldown.duration() => return,
                _ => tokio::time::sleep(ms(2)).await,
            }
        }
    };
    patiently(&format!("an end of {key} with a cooldown of {cooldown}"), at_rest).await;
}

/// Ends what has more than one lease, or counts, or is open again at will.
async fn end_the_others(client: &Client, cooldown: Cooldown) {
    let name = |kind: &str| Key::new(format!("{kind} {cooldown}")).unwrap();
    let guard = client.multi([name("one"), name("other")]).lock().await.unwrap();
    guard.release_with_cooldown(cooldown).await.unwrap();
    let guard = client.reentrant(name("again"), &Owner::new()).lock().await.unwrap();
    assert_eq!(guard.release_with_cooldown(cooldown).await.unwrap(), 0);
    let post = client.election(name("left post")).campaign().await.unwrap();
    post.resign_with_cooldown(cooldown).await.unwrap();
    let lease = client.mutex(name("text")).lock().await.unwrap().detach().await.unwrap();
    client.release(&lease, Some(cooldown)).await.unwrap();
    for key in ["one", "other", "again", "left post", "text"] {
        free_or_closed(client, &name(key), cooldown).await;
    }
}

async fn every_end_frees_or_closes(open: impl AsyncFn() -> Client) {
    let other = open().await;
    for kind in kinds(&other) {
        for how in ENDS {
            let client = open().await;
            let guard = take(&client, kind, &format!("{kind} {how}")).await;
            let key = guard.key().clone();
            end(how, &client, guard, &other).await;
            free_or_closed(&other, &key, Cooldown::NONE).await;
            client.close().await.unwrap();
        }
        for cooldown in cooldowns() {
            let guard = take(&other, kind, &format!("{kind} {cooldown}")).await;
            let key = guard.key().clone();
            guard.release_with_cooldown(cooldown).await.unwrap();
            free_or_closed(&other, &key, cooldown).await;
        }
    }
    for cooldown in cooldowns() {
        end_the_others(&other, cooldown).await;
    }
    let job = other.once_per("job", Cooldown::MAX.duration());
    job.try_start().await.unwrap().unwrap().release_and_reopen().await.unwrap();
    job.try_start().await.unwrap().unwrap().release().await.unwrap();
    assert!(job.try_start().await.unwrap().is_none());
    other.close().await.unwrap();
}

async fn every_end_at(url: &str) {
    every_end_frees_or_closes(async || Client::connect(url).await.unwrap()).await;
}

async fn every_end_of(store: impl Store) {
    let store: Arc<dyn Store> = Arc::new(store);
    every_end_frees_or_closes(async || Client::builder().store(Arc::clone(&store)).unwrap()).await;
}

#[tokio::test]
async fn every_end_in_memory_frees_or_closes() {
    every_end_of(MemoryStore::new()).await;
}

#[tokio::test]
async fn every_end_over_several_stores_frees_or_closes() {
    let stores = ["a", "b", "c"].map(|name| {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        (name.to_owned(), store)
    });
    every_end_of(SpreadStore::new(stores).unwrap()).await;
}

#[tokio::test]
async fn every_end_on_one_machine_frees_or_closes() {
    let directory = tempfile::tempdir().unwrap();
    every_end_at(&format!("embedded:{}", directory.path().join("locks").display())).await;
}

#[tokio::test]
async fn every_end_on_redis_frees_or_closes() {
    let server = RedisServer::start();
    every_end_at(&server.url()).await;
}

#[tokio::test]
async fn every_end_behind_sentinels_frees_or_closes() {
    let set = SentinelSet::builder().replicas(0).start();
    every_end_at(&set.url()).await;
}

#[tokio::test]
async fn every_end_in_a_cluster_frees_or_closes() {
    let cluster = Cluster::builder().replicas(0).start();
    every_end_at(&cluster.url()).await;
}

#[tokio::test]
async fn every_end_on_a_quorum_frees_or_closes() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
    every_end_at(&format!("quorum+redis://{}?keep_leases=yes", hosts.join(","))).await;
}
