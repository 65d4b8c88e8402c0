//! A slot that moves back and forth, and in vain, while locks of every kind in it are in use.

use std::sync::Arc;

use leasehold::Client;
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use tokio::task::JoinHandle;

use crate::cell::{LONG, connected, ms, wait_for};
use crate::cluster;
use crate::load::{Load, Progress, Use};

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

/// Locks of every kind in one slot, in use.
struct Scene {
    cluster: Arc<Cluster>,
    load: Load,
    /// Waits for what is kept.
    waiting: JoinHandle<leasehold::Result<()>>,
}

impl Scene {
    async fn begin() -> Self {
        let cluster = cluster::start(Cluster::builder().replicas(0)).await;
        let slot = cluster.slot_of(MUTEX);
        assert!(NAMES.iter().all(|name| cluster.slot_of(name) == slot));

        let client = async || connected(Client::builder(), &cluster.url()).await;
        let ttl = LONG;
        let mut load = Load::new();
        let holder = client().await;
        load.keep(holder.mutex(KEPT).ttl(ttl).lock().await.unwrap());
        load.keep(holder.semaphore(PERMITS, 3).ttl(ttl).acquire().await.unwrap().into_guard());
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
        Self { cluster, load, waiting }
    }

    /// Lets something happen to the slot, and judges.
    async fn play<T: Send + 'static>(
        self,
        act: impl FnOnce(&Cluster, u16, &Progress) -> T + Send + 'static,
    ) -> T {
        let Self { cluster, load, waiting } = self;
        let progress = load.progress();
        let result = cluster::block(&cluster, move |cluster| {
            progress.grants(2, true);
            let result = act(cluster, cluster.slot_of(MUTEX), &progress);
            progress.grants(2, true);
            result
        })
        .await;
        assert!(!waiting.is_finished(), "the lock was kept from it");
        let outcome = load.end().await;
        outcome.judge();
        assert_eq!((outcome.kept, &*outcome.errors), (3, &[] as &[String]), "{outcome:?}");
        wait_for("the waiter", waiting).await.unwrap().unwrap();
        result
    }
}

/// The primary of the slot, and another one.
fn ends(cluster: &Cluster, slot: u16) -> [&RedisServer; 2] {
    let home = cluster.master_of(slot);
    let away = cluster.nodes().iter().find(|node| node.port() != home.port()).unwrap();
    [home, away]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_back_and_forth_and_in_vain_costs_no_lease_of_any_kind() {
    let keys = Scene::begin().await.play(|cluster, slot, progress| {
        let [home, away] = ends(cluster, slot);
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
        keys
    });
    let keys = keys.await;
    println!("{keys} keys moved, {ROUNDS} moves given up");
    assert_eq!(keys, ROUNDS * 2 * NAMES.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_back_and_forth_in_one_step_costs_no_lease_of_any_kind() {
    if !cluster::can_move_at_once() {
        println!("not run: atomic slot migration needs Valkey 9");
        return;
    }
    let moves = Scene::begin().await.play(|cluster, slot, progress| {
        let [home, away] = ends(cluster, slot);
        for _ in 0..ROUNDS {
            for to in [away, home] {
                cluster::move_at_once(cluster, slot, to);
                progress.grants(2, true);
            }
        }
    });
    moves.await;
}
