//! A slot that moves back and forth, and in vain, while locks of every kind in it are in use.

use std::sync::Arc;

use leasehold::Client;
use leasehold_testkit::server::cluster::Cluster;

use crate::cell::{ms, wait_for};
use crate::load::{Load, Use};

/// Names that share a slot.
const MUTEX: &str = "mutex";
const ASKED: &str = "asked-185";
const EXPIRED: &str = "expired-43590";
const RWLOCK: &str = "rwlock-1509";
const PERMITS: &str = "permits-2740";
const REENTRANT: &str = "reentrant-420";
const READING: &str = "reading-8089";
const KEPT: &str = "kept-41120";
const NAMES: [&str; 8] = [MUTEX, ASKED, EXPIRED, RWLOCK, PERMITS, REENTRANT, READING, KEPT];

const ROUNDS: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_back_and_forth_and_in_vain_costs_nobody_a_lease_of_any_kind() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::builder().replicas(0).start());
    let cluster = Arc::new(cluster.await.unwrap());
    let slot = cluster.slot_of(MUTEX);
    assert!(NAMES.iter().all(|name| cluster.slot_of(name) == slot));

    let client = async || Client::connect(cluster.url()).await.unwrap();
    let ttl = ms(4_000);
    let mut load = Load::new();
    let holder = client().await;
    load.keep(holder.mutex(KEPT).ttl(ttl).lock().await.unwrap());
    load.keep(holder.semaphore(PERMITS, 3).ttl(ttl).acquire().await.unwrap());
    load.keep(holder.rwlock(READING).ttl(ttl).read().await.unwrap().into_guard());
    let waiting = tokio::spawn({
        let other = client().await;
        async move { other.mutex(KEPT).ttl(ttl).lock().await.unwrap().release().await }
    });
    for (name, how, workers) in [
        (MUTEX, Use::Mutex, 3),
        (ASKED, Use::Asked, 2),
        (RWLOCK, Use::Read, 2),
        (RWLOCK, Use::Write, 1),
        (PERMITS, Use::Permit, 3),
        (REENTRANT, Use::Reentrant, 2),
        (READING, Use::Read, 1),
    ] {
        for _ in 0..workers {
            load.join(client().await, name, how, ttl);
        }
    }
    for _ in 0..2 {
        load.join(client().await, EXPIRED, Use::Expired, ms(500));
    }

    let progress = load.progress();
    let moves = tokio::task::spawn_blocking({
        let cluster = Arc::clone(&cluster);
        move || {
            progress.grants(2, true);
            let home = cluster.master_of(slot);
            let away = cluster.nodes().iter().find(|node| node.port() != home.port()).unwrap();
            let mut keys = 0;
            for _ in 0..ROUNDS {
                let begun = cluster.begin_move(slot, away);
                progress.grants(2, true);
                begun.give_up();
                progress.grants(2, false);
                for to in [away, home] {
                    let moving = cluster.begin_move(slot, to);
                    progress.grants(2, false);
                    for key in moving.keys() {
                        moving.step(&key);
                        keys += 1;
                        progress.grants(2, false);
                    }
                    progress.grants(1, true);
                    moving.finish();
                    progress.grants(2, false);
                }
            }
            progress.grants(2, true);
            keys
        }
    });
    let keys = moves.await.unwrap();
    assert_eq!(keys, ROUNDS * 2 * NAMES.len());
    assert!(!waiting.is_finished(), "the lock was kept from it");
    println!("{keys} keys moved, {ROUNDS} moves given up");
    let outcome = load.end().await;
    outcome.judge();
    assert_eq!((outcome.kept, &*outcome.errors), (3, &[] as &[String]), "{outcome:?}");
    wait_for("the waiter", waiting).await.unwrap().unwrap();
}
