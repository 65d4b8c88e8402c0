//! Locks of other libraries in a cluster, where each is tracked by the node that has it.

use std::sync::Arc;

use leasehold::interop::{Layout, Plain, Redisson};
use leasehold::{Client, ErrorKind, Owner, Release};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;

use crate::interop::{layouts, until, watched};
use crate::support::{ms, patiently, secs};

async fn three_nodes() -> Arc<Cluster> {
    let start = || Cluster::builder().replicas(0).start();
    Arc::new(tokio::task::spawn_blocking(start).await.unwrap())
}

/// How many scripts all nodes have run.
fn scripts(cluster: &Cluster) -> u64 {
    let of = |node: &RedisServer| node.command_calls("evalsha") + node.command_calls("eval");
    cluster.nodes().iter().map(of).sum()
}

/// Another node than the one that has this slot.
fn another(cluster: &Cluster, slot: u16) -> &RedisServer {
    let from = cluster.master_of(slot).port();
    cluster.nodes().iter().find(|node| node.port() != from).unwrap()
}

#[tokio::test]
async fn every_layout_has_one_holder_in_a_cluster_and_wakes_those_who_wait() {
    let cluster = three_nodes().await;
    for layout in layouts().filter(|layout| *layout != Layout::PythonRedisLock) {
        let one = Client::builder().interop(layout.clone()).connect(cluster.url()).await.unwrap();
        let other = Client::builder().interop(layout.clone()).connect(cluster.url()).await.unwrap();
        // Of each node.
        for name in ["a", "b", "c", "d"] {
            let name = format!("{name}-{layout}");
            let guard = one.mutex(&name).ttl(secs(600)).lock().await.unwrap();
            assert!(other.mutex(&name).try_lock().await.unwrap().is_none(), "{layout}");
            let (other, waits) = (other.clone(), name.clone());
            let waiting = tokio::spawn(async move { other.mutex(&*waits).lock().await });
            guard.release().await.unwrap();
            let guard = patiently("the release", waiting).await.unwrap().unwrap();
            guard.renew_to(secs(60)).await.unwrap();
            assert_eq!(guard.release_outcome().await.unwrap(), Release::Released, "{layout}");
        }
    }
}

/// The node that has the lock's key would grant it, and could not end one whose keys have several
/// slots.
#[tokio::test]
async fn a_node_opened_as_one_server_takes_no_lock() {
    let cluster = three_nodes().await;
    let node = cluster.master_of(cluster.slot_of("lock:a"));
    let refused = Plain::connect(node.url(), Layout::PythonRedisLock).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("redis+cluster://"), "{refused}");
    assert_eq!(node.cli(&["EXISTS", "lock:a"]), "0");
}

#[tokio::test]
async fn the_node_that_has_a_lock_notifies_its_waiters_and_its_holder() {
    let cluster = three_nodes().await;
    let locks = Plain::connect(cluster.url(), Layout::RedisPy).await.unwrap();
    for name in ["a", "b", "c", "d"] {
        let node = cluster.master_of(cluster.slot_of(name));
        drop(node.cli(&["SET", name, "another's", "PX", "600000"]));
        let mutex = locks.mutex(name).ttl(secs(3_600));
        let waiting = tokio::spawn(async move { mutex.lock().await });
        watched(node).await;
        let before = scripts(&cluster);
        tokio::time::sleep(secs(1)).await;
        assert_eq!(scripts(&cluster), before, "nobody asks while the key stands");
        drop(node.cli(&["DEL", name]));
        let guard = patiently("the release", waiting).await.unwrap().unwrap();
        drop(node.cli(&["SET", name, "another's"]));
        patiently("the loss", guard.lost()).await;
        assert_eq!(guard.release_outcome().await.unwrap(), Release::NotHeld);
        drop(node.cli(&["DEL", name]));
    }
}

/// Redisson's lock and a string, each with a waiter and a holder, while their slot is moved.
#[tokio::test]
async fn a_lock_is_followed_to_the_node_that_its_slot_is_moved_to() {
    for name in ["moved-a", "moved-b"] {
        let cluster = three_nodes().await;
        let plain = Plain::connect(cluster.url(), Layout::Redislock).await.unwrap();
        let redisson = Redisson::connect(cluster.url()).await.unwrap();
        let tagged = |what: &str| format!("{{{name}}}-{what}");
        let slot = cluster.slot_of(name);
        let (from, to) = (cluster.master_of(slot), another(&cluster, slot));
        let (waited, held) = (tagged("waited"), tagged("held"));
        drop(from.cli(&["HSET", &waited, "a-java-program:1", "1"]));
        drop(from.cli(&["PEXPIRE", &waited, "600000"]));
        let guard = plain.mutex(&*held).ttl(secs(3_600)).lock().await.unwrap();
        let lock = redisson.lock(&*waited, &Owner::new()).ttl(secs(3_600));
        let waiting = tokio::spawn(async move { lock.lock().await });
        watched(from).await;

        let moving = cluster.begin_move(slot, to);
        moving.keys().iter().for_each(|key| moving.step(key));
        // Half way there: one node has the keys, another the slot.
        watched(to).await;
        if name == "moved-a" {
            moving.finish();
        } else {
            drop(moving);
        }
        tokio::time::sleep(ms(300)).await;
        assert!(guard.is_held(), "a move is no loss");
        let ends = |key: &str| {
            let mut connection = redis::Client::open(to.url()).unwrap().get_connection().unwrap();
            let mut both = redis::pipe();
            both.cmd("ASKING").cmd("DEL").arg(key);
            drop(both.query::<redis::Value>(&mut connection).unwrap());
        };
        ends(&waited);
        let taken = patiently("the release", waiting).await.unwrap().unwrap();
        assert!(taken.is_held());
        ends(&held);
        patiently("the loss", guard.lost()).await;
    }
}

#[tokio::test]
async fn a_lock_is_tracked_by_the_replica_that_takes_over_from_a_killed_node() {
    let start = || Cluster::builder().node_timeout(secs(1)).start();
    let cluster = tokio::task::spawn_blocking(start).await.unwrap();
    let locks = Plain::connect(cluster.url(), Layout::Redsync).await.unwrap();
    let slot = cluster.slot_of("a");
    let old = cluster.master_of(slot);
    drop(old.cli(&["SET", "a", "another's", "PX", "600000"]));
    drop(old.cli(&["WAIT", "1", "10000"]));
    let mutex = locks.mutex("a").ttl(secs(600));
    let waiting = tokio::spawn(async move { mutex.lock().await });
    watched(old).await;
    old.kill();
    let new = cluster.master_after(old, slot);
    watched(new).await;
    drop(new.cli(&["DEL", "a"]));
    let guard = patiently("the release", waiting).await.unwrap().unwrap();
    until("the holder to be watched", || {
        new.cli(&["CLIENT", "LIST"]).contains("flags=t") && guard.is_held()
    })
    .await;
    drop(new.cli(&["SET", "a", "another's"]));
    patiently("the loss", guard.lost()).await;
}

#[tokio::test]
async fn a_lock_whose_keys_have_two_slots_is_refused_in_a_cluster() {
    let cluster = three_nodes().await;
    let layout = Layout::PythonRedisLock;
    let client = Client::builder().interop(layout).connect(cluster.url()).await.unwrap();
    let refused = client.mutex("a").try_lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}
