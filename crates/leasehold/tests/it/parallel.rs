//! Every kind of lock on a runtime with several threads: what happens at the same time is counted
//! inside the lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use leasehold::{Client, Owner, Release};
use leasehold_embedded::MemoryStore;
use tokio::task::JoinSet;

use crate::support::secs;

const TASKS: u64 = 8;
const ROUNDS: u64 = 150;
const NAMES: [&str; 4] = ["parallel/a", "parallel/b", "parallel/c", "parallel/d"];

/// Two clients each of a store in memory and of a server.
async fn clients_of_stores() -> Vec<[Client; 2]> {
    let store = MemoryStore::new();
    let client = || Client::new(Arc::new(store.clone())).unwrap();
    let in_memory = [client(), client()];
    #[cfg(not(feature = "redis"))]
    return vec![in_memory];
    #[cfg(feature = "redis")]
    {
        let url = leasehold_testkit::server::shared().url();
        let connect = async || Client::connect(&url).await.unwrap();
        vec![in_memory, [connect().await, connect().await]]
    }
}

/// Nobody holds it any more, sooner or later.
async fn comes_to_rest(client: &Client, key: &str) {
    let rest = async {
        while client.inspect(key).await.unwrap().is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(secs(60), rest).await.expect("the lock never came to rest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_owner_s_tasks_are_inside_with_no_others() {
    for clients in clients_of_stores().await {
        owners(&clients).await;
    }
}

async fn owners(clients: &[Client; 2]) {
    let inside: Arc<Mutex<(u64, u32)>> = Arc::default();
    let together = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    let owners: Vec<_> = (0..3).map(|_| Owner::new()).collect();
    for task in 0..TASKS + 1 {
        let who = task % 3;
        let owner = owners[usize::try_from(who).unwrap()].clone();
        // An owner counts within one client.
        let client = clients[usize::try_from(who % 2).unwrap()].clone();
        let (inside, together) = (Arc::clone(&inside), Arc::clone(&together));
        tasks.spawn(async move {
            let reentrant = client.reentrant("parallel/owners", &owner);
            for round in 0..ROUNDS {
                let guard = if round % 5 == 0 {
                    let Some(guard) = reentrant.try_lock().await.unwrap() else { continue };
                    guard
                } else {
                    reentrant.lock().await.unwrap()
                };
                {
                    let mut inside = inside.lock().unwrap();
                    assert!(inside.1 == 0 || inside.0 == who, "{who} met {inside:?}");
                    together.fetch_add(inside.1.min(1), Ordering::Relaxed);
                    *inside = (who, inside.1 + 1);
                }
                if round % 2 == 0 {
                    let inner = reentrant.lock().await.unwrap();
                    assert_eq!(inner.fence().unwrap(), guard.fence().unwrap());
                    drop(inner);
                }
                tokio::task::yield_now().await;
                assert!(guard.is_held());
                inside.lock().unwrap().1 -= 1;
                if round % 3 == 0 {
                    drop(guard);
                } else {
                    let release = guard.release_outcome().await.unwrap();
                    let fine = matches!(release, Release::Released | Release::StillHeld { .. });
                    assert!(fine, "{release:?}");
                }
            }
        });
    }
    tasks.join_all().await;
    assert!(together.load(Ordering::Relaxed) > 0, "no owner was ever inside twice");
    comes_to_rest(&clients[0], "parallel/owners").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_writer_is_inside_alone_however_it_came_to_write() {
    for clients in clients_of_stores().await {
        writers(&clients).await;
    }
}

async fn writers(clients: &[Client; 2]) {
    const WRITER: u32 = 1_000;
    let inside = Arc::new(AtomicU32::new(0));
    let upgrades = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let lock = clients[usize::try_from(task % 2).unwrap()].rwlock("parallel/writers");
        let (inside, upgrades) = (Arc::clone(&inside), Arc::clone(&upgrades));
        tasks.spawn(async move {
            let alone = |yes: bool| {
                let weight = if yes { WRITER } else { 1 };
                let before = inside.fetch_add(weight, Ordering::SeqCst);
                assert!(before == 0 || (!yes && before < WRITER), "{weight} met {before}");
                weight
            };
            for round in 0..ROUNDS {
                if (task + round) % 4 == 0 {
                    let writer = lock.write().await.unwrap();
                    let weight = alone(true);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(weight, Ordering::SeqCst);
                    if round % 2 == 0 {
                        let reader = writer.downgrade().await.unwrap();
                        let weight = alone(false);
                        tokio::task::yield_now().await;
                        assert!(reader.is_held());
                        inside.fetch_sub(weight, Ordering::SeqCst);
                        assert_eq!(reader.release_outcome().await.unwrap(), Release::Released);
                    }
                    continue;
                }
                let reader = lock.read().await.unwrap();
                let weight = alone(false);
                tokio::task::yield_now().await;
                inside.fetch_sub(weight, Ordering::SeqCst);
                if let Ok(writer) = reader.upgrade().await {
                    upgrades.fetch_add(1, Ordering::Relaxed);
                    let weight = alone(true);
                    tokio::task::yield_now().await;
                    assert!(writer.is_held());
                    inside.fetch_sub(weight, Ordering::SeqCst);
                    assert_eq!(writer.release_outcome().await.unwrap(), Release::Released);
                }
            }
        });
    }
    tasks.join_all().await;
    assert!(upgrades.load(Ordering::Relaxed) > 0, "nobody was ever upgraded");
    comes_to_rest(&clients[0], "parallel/writers").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_more_are_inside_than_there_are_permits() {
    for clients in clients_of_stores().await {
        permits(&clients).await;
    }
}

async fn permits(clients: &[Client; 2]) {
    const LIMIT: u32 = 5;
    let inside = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let semaphore =
            clients[usize::try_from(task % 2).unwrap()].semaphore("parallel/permits", LIMIT);
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        tasks.spawn(async move {
            for round in 0..ROUNDS {
                let n = u32::try_from(1 + (task + round) % 3).unwrap();
                let guard = semaphore.acquire_many(n).await.unwrap();
                let now = inside.fetch_add(n, Ordering::SeqCst) + n;
                assert!(now <= LIMIT, "{now} inside");
                most.fetch_max(now, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(n, Ordering::SeqCst);
                if round % 2 == 0 {
                    drop(guard);
                } else {
                    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
                }
            }
        });
    }
    tasks.join_all().await;
    assert!(most.load(Ordering::SeqCst) > 2, "permits were hardly shared");
    comes_to_rest(&clients[0], "parallel/permits").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sets_that_overlap_are_held_one_after_the_other() {
    for clients in clients_of_stores().await {
        sets(&clients).await;
    }
}

async fn sets(clients: &[Client; 2]) {
    let inside: Arc<[AtomicU32; 4]> = Arc::default();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let first = usize::try_from(task).unwrap() % 4;
        let set = [first, (first + 1) % 4, (first + 3) % 4];
        let client = &clients[first % 2];
        let multi = client.multi(set.map(|n| NAMES[n]));
        let inside = Arc::clone(&inside);
        tasks.spawn(async move {
            for _ in 0..ROUNDS / 3 {
                let guard = multi.lock().await.unwrap();
                for n in set {
                    assert_eq!(inside[n].fetch_add(1, Ordering::SeqCst), 0, "{n} is held twice");
                }
                tokio::task::yield_now().await;
                assert!(guard.is_held());
                for n in set {
                    inside[n].fetch_sub(1, Ordering::SeqCst);
                }
                for (_, release) in guard.release_outcomes().await {
                    assert_eq!(release.unwrap(), Release::Released);
                }
            }
        });
    }
    tasks.join_all().await;
    for key in NAMES {
        comes_to_rest(&clients[0], key).await;
    }
}
