//! Jobs that start at most once per period.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::{ErrorKind, Release};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use crate::cancel::cut;
use crate::support::{World, ms, secs};

#[tokio::test(start_paused = true)]
async fn of_all_hosts_one_starts_it_in_each_period() {
    let world = World::new();
    let runs = Arc::new(AtomicU32::new(0));
    for period in 1..=3 {
        let hosts: Vec<_> = (0..20)
            .map(|host| {
                let job = world.client().once_per("a", secs(55 * 60));
                let runs = Arc::clone(&runs);
                tokio::spawn(async move {
                    // Their clocks are not quite the same.
                    tokio::time::sleep(secs(host)).await;
                    let run = job.run(async |_| runs.fetch_add(1, Ordering::Relaxed)).await;
                    run.unwrap().is_some()
                })
            })
            .collect();
        let mut started = 0;
        for host in hosts {
            started += u32::from(host.await.unwrap());
        }
        assert_eq!((started, runs.load(Ordering::Relaxed)), (1, period));
        tokio::time::sleep(secs(60 * 60 - 19)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn it_stays_closed_for_the_rest_of_the_period_however_quick_the_job_was() {
    let world = World::new();
    let job = world.client().once_per("a", secs(100));
    let guard = job.try_start().await.unwrap().unwrap();
    assert!(job.try_start().await.unwrap().is_none());
    tokio::time::sleep(secs(10)).await;
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    tokio::time::sleep(secs(89)).await;
    assert!(world.client().once_per("a", secs(100)).try_start().await.unwrap().is_none());
    tokio::time::sleep(secs(2)).await;
    assert!(world.client().once_per("a", secs(100)).try_start().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn it_stays_closed_when_its_host_crashes() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.once_per("a", secs(100)).ttl(secs(5)).try_start().await.unwrap().unwrap();
    faults.black_out(true);
    drop(guard);
    tokio::time::sleep(secs(98)).await;
    assert!(world.client().once_per("a", secs(100)).try_start().await.unwrap().is_none());
    tokio::time::sleep(secs(3)).await;
    assert!(world.client().once_per("a", secs(100)).try_start().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_job_longer_than_its_period_keeps_the_others_out_to_its_end() {
    let world = World::new();
    let job = world.client().once_per("a", secs(10)).ttl(secs(2));
    let guard = job.try_start().await.unwrap().unwrap();
    tokio::time::sleep(secs(60)).await;
    assert!(guard.is_held());
    assert!(job.try_start().await.unwrap().is_none());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    assert!(job.try_start().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn at_most_is_the_longest_hold() {
    let world = World::new();
    let job = world.client().once_per("a", secs(10)).ttl(secs(2)).max_hold(secs(30));
    let error = job
        .run(async |lease| {
            lease.lost().await;
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    tokio::time::sleep(secs(3)).await;
    assert!(job.try_start().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_failure_opens_it_again_if_that_is_asked_for() {
    let world = World::new();
    let job = world.client().once_per("a", secs(100));
    let failed = job.run_or_reopen(async |_| Err::<(), _>("no paper")).await.unwrap();
    assert_eq!(failed, Some(Err("no paper")));
    let guard = job.try_start().await.unwrap().unwrap();
    assert_eq!(guard.release_and_reopen_outcome().await.unwrap(), Release::Released);
    let done = job.run_or_reopen(async |_| Ok::<_, ()>(12)).await.unwrap();
    assert_eq!(done, Some(Ok(12)));
    assert_eq!(job.run_or_reopen(async |_| Ok::<_, ()>(13)).await.unwrap(), None);
    tokio::time::sleep(secs(101)).await;
    // By default it stays closed.
    assert_eq!(job.run(async |_| Err::<(), _>("no ink")).await.unwrap(), Some(Err("no ink")));
    assert!(job.try_start().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_reopening_reopens() {
    let world = World::new();
    let job = world.client().once_per("a", secs(100));
    drop(job.try_start().await.unwrap().unwrap().release_and_reopen());
    tokio::time::sleep(secs(3)).await;
    drop(job.try_start().await.unwrap().unwrap().release_and_reopen_outcome());
    tokio::time::sleep(secs(3)).await;
    assert!(job.try_start().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_start_whose_answer_was_lost_costs_no_other_the_period() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    faults.next(Op::Acquire, Fault::DropReply);
    let error = client.once_per("a", secs(100)).try_start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    world.idle("a").await;
    assert!(client.once_per("a", secs(100)).try_start().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_while_it_starts_costs_no_other_the_period() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    faults.next(Op::Acquire, Fault::Delay { before: ms(10), after: ms(10) });
    let job = client.once_per("a", secs(100));
    let (started, closed) = tokio::join!(job.try_start(), client.close());
    closed.unwrap();
    assert_eq!(started.unwrap_err().kind(), ErrorKind::Closed);
    let started = tokio::time::Instant::now();
    world.idle("a").await;
    assert!(started.elapsed() < secs(20), "the period stayed closed");
}

#[tokio::test(start_paused = true)]
async fn a_period_that_closes_nothing_is_refused() {
    let client = World::new().client();
    let error = client.once_per("a", ms(0)).try_start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_for_the_same_name_gets_no_closed_lock() {
    let world = World::new();
    let client = world.client();
    let guard = client.once_per("a", secs(50)).try_start().await.unwrap().unwrap();
    let mutex = client.mutex("a");
    let started = tokio::time::Instant::now();
    let waiter = tokio::spawn(async move { mutex.lock().await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let guard = waiter.await.unwrap();
    assert!(guard.is_held());
    assert!(started.elapsed() >= secs(49) && started.elapsed() < secs(80));
}

#[tokio::test(start_paused = true)]
async fn starting_can_be_dropped_at_every_await_and_leaves_the_period_open() {
    cut(Op::Acquire, |trial| {
        let job = trial.client.once_per("a", secs(3_000)).ttl(secs(20));
        async move {
            if let Ok(Some(guard)) = job.try_start().await {
                drop(guard.release_and_reopen().await);
            }
        }
    })
    .await;
}

/// Five hosts under random faults: after each start, the next one is a period later, unless the
/// one before came to nothing.
#[tokio::test(start_paused = true)]
async fn random_faults_never_start_it_twice_in_a_period() {
    let mut starts_in_all = 0;
    for seed in 0..20 {
        let world = World::new();
        let hosts: Vec<_> = (0..5)
            .map(|host| {
                let faults = FaultStore::new(Arc::new(world.store.clone()));
                faults.random(seed * 10 + host, 0.2, ms(900));
                let job = world.client_of(Arc::new(faults)).once_per("a", secs(10)).ttl(secs(2));
                tokio::spawn(async move {
                    let mut starts = Vec::new();
                    for round in 0..60_u64 {
                        tokio::time::sleep(ms(700 + 31 * host + 7 * round)).await;
                        let asked = tokio::time::Instant::now();
                        if let Ok(Some(guard)) = job.try_start().await {
                            starts.push((asked, tokio::time::Instant::now()));
                            drop(guard.release().await);
                        }
                    }
                    starts
                })
            })
            .collect();
        let mut starts = Vec::new();
        for host in hosts {
            starts.extend(host.await.unwrap());
        }
        starts.sort_unstable();
        for two in starts.windows(2) {
            // The store closed it between the question and its answer.
            let apart = two[1].1 - two[0].0;
            assert!(apart >= secs(10), "seed {seed}: {apart:?} apart");
        }
        starts_in_all += starts.len();
    }
    assert!(starts_in_all > 40, "{starts_in_all} starts");
}
