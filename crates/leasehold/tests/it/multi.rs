//! Several locks: all of them or none.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, ErrorKind, MultiGuard, Release};
use leasehold_core::{Clock, Key, Mode};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use leasehold_testkit::history::{
    Attempt, Event, Held, Recorder, Releasing, fence_faults, overlaps,
};

use crate::cancel::cut;
use crate::support::{World, ms, secs};

async fn free(client: &Client, key: &str) -> bool {
    client.mutex(key).try_lock().await.unwrap().is_some()
}

fn unsupported(faults: &FaultStore) {
    faults.decide(|call| {
        if call.op == Op::AcquireAll {
            let why = "not in one step";
            Fault::Fail(leasehold::Error::new(ErrorKind::Unsupported, why))
        } else {
            Fault::None
        }
    });
}

/// Not in one step; the first two requests, one by one, are answered after so long.
fn slow_one_by_one(faults: &FaultStore, answers: [Duration; 2]) {
    unsupported(faults);
    for after in answers {
        faults.next(Op::Acquire, Fault::Delay { before: ms(1), after });
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_that_is_lost_before_the_last_is_there_makes_no_guard_of_all() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let multi = client.multi(["a", "b"]).ttl(secs(3)).renew(false).stop_grace(Duration::ZERO);
    slow_one_by_one(&faults, [ms(1_400), ms(1_700)]);
    let lost = multi.try_lock().await.unwrap_err();
    assert_eq!((lost.kind(), lost.key().unwrap().as_str()), (ErrorKind::Lost, "a"));
    assert!(world.is_idle("a").await && world.is_idle("b").await);
    slow_one_by_one(&faults, [ms(1_400), ms(1_700)]);
    let guard = multi.lock().await.unwrap();
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn all_are_taken_in_one_request_or_none() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let multi = client.multi(["c", "a", "b"]);
    assert_eq!(multi.keys().unwrap().iter().map(Key::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
    let guard = multi.try_lock().await.unwrap().unwrap();
    assert_eq!((faults.count(Op::AcquireAll), faults.count(Op::Acquire)), (1, 0));
    let fences = guard.fences().unwrap();
    assert_eq!(fences.len(), 3);
    for (at, (key, fence)) in fences.iter().enumerate() {
        assert!(!free(&world.client(), key.as_str()).await);
        assert_eq!(guard.leases()[at].fence().unwrap(), *fence);
    }
    tokio::time::sleep(secs(100)).await;
    assert!(guard.is_held() && guard.remaining() > secs(10));
    guard.check().unwrap();
    let released = guard.release_outcomes().await;
    let keys: Vec<_> = released.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    assert!(released.into_iter().all(|(_, outcome)| outcome.unwrap() == Release::Released));
    for key in ["a", "b", "c"] {
        assert!(world.is_idle(key).await);
    }

    let held = world.client().mutex("b").lock().await.unwrap();
    assert!(multi.try_lock().await.unwrap().is_none());
    for key in ["a", "c"] {
        assert!(world.is_idle(key).await, "{key} was taken");
    }
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn where_one_step_is_not_possible_the_taken_locks_are_released() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    unsupported(&faults);
    let client = world.client_of(Arc::new(faults.clone()));
    let held = world.client().mutex("b").lock().await.unwrap();
    assert!(client.multi(["c", "a", "b"]).try_lock().await.unwrap().is_none());
    assert!(world.is_idle("a").await && world.is_idle("c").await);
    assert_eq!(held.release_outcome().await.unwrap(), Release::Released);
    let guard = client.multi(["c", "a", "b"]).try_lock().await.unwrap().unwrap();
    assert!(guard.is_held());
    drop(guard);
    for key in ["a", "b", "c"] {
        world.idle(key).await;
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_the_last_of_them_is_free() {
    let world = World::new();
    let b = world.client().mutex("b").lock().await.unwrap();
    let multi = world.client().multi(["c", "b", "a"]);
    let error = multi.lock_within(ms(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.key().unwrap().as_str(), "b");
    world.idle("a").await;
    let waiter = tokio::spawn(async move { multi.lock().await.unwrap() });
    while world.waiters("b").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(b.release_outcome().await.unwrap(), Release::Released);
    assert!(waiter.await.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn sets_that_overlap_never_wait_for_each_other_in_a_circle() {
    for one_step in [true, false] {
        let world = World::new();
        let sets = [["a", "b", "c"], ["c", "b", "a"], ["b", "d", "c"], ["d", "a", "b"]];
        let tasks: Vec<_> = sets
            .into_iter()
            .map(|set| {
                let faults = FaultStore::new(Arc::new(world.store.clone()));
                if !one_step {
                    unsupported(&faults);
                }
                let client = world.client_of(Arc::new(faults));
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let guard = client.multi(set).lock_within(secs(600)).await.unwrap();
                        tokio::time::sleep(ms(3)).await;
                        assert!(guard.is_held());
                        for (_, outcome) in guard.release_outcomes().await {
                            assert_eq!(outcome.unwrap(), Release::Released);
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        for key in ["a", "b", "c", "d"] {
            assert!(world.is_idle(key).await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn those_that_are_held_stay_held_while_another_is_waited_for() {
    let world = World::new();
    let _held = world.stranger_takes("b", secs(20)).await;
    let multi = world.client().multi(["a", "b"]).ttl(secs(3)).progress_within(ms(500));
    let guard = tokio::time::timeout(secs(60), multi.lock()).await.unwrap().unwrap();
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_contender_that_loses_one_before_all_are_held_requests_it_again() {
    let world = World::new();
    let held = world.client().mutex("b").ttl(secs(3_000)).lock().await.unwrap();
    let multi = world.client().multi(["a", "b"]).ttl(secs(3));
    let waiting = tokio::spawn(async move { multi.lock().await });
    while world.waiters("b").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let fence = world.client().inspect("a").await.unwrap().unwrap().holders[0].fence;
    let _taken = world.client().force_release("a", fence).await.unwrap();
    let again = async {
        loop {
            let lock = world.client().inspect("a").await.unwrap();
            match lock.and_then(|lock| lock.holders.first().map(|holder| holder.fence)) {
                Some(now) if now > fence => return now,
                _ => tokio::time::sleep(ms(1)).await,
            }
        }
    };
    let again = tokio::time::timeout(secs(60), again).await.expect("nobody asks for it again");
    held.release().await.unwrap();
    let guard = tokio::time::timeout(secs(60), waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(guard.fences().unwrap()[0].1, again);
}

/// A wait for both, in which the store is away for longer than the lease of the first lasts.
async fn waits_through_an_outage(limit: Duration) -> (World, leasehold::Result<MultiGuard>) {
    let world = World::new();
    let held = world.client().mutex("b").ttl(secs(3_000)).lock().await.unwrap();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let multi = world.client_of(Arc::new(faults.clone())).multi(["a", "b"]).ttl(secs(2));
    let waiting = tokio::spawn(async move { multi.lock_within(limit).await });
    while world.waiters("b").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    faults.black_out(true);
    tokio::time::sleep(secs(5)).await;
    faults.black_out(false);
    held.release().await.unwrap();
    (world, waiting.await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_costs_what_is_held_does_not_end_the_wait() {
    let (_world, outcome) = waits_through_an_outage(secs(60)).await;
    assert!(outcome.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_in_such_an_outage_timed_out() {
    let (world, outcome) = waits_through_an_outage(secs(3)).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    world.idle("a").await;
    world.idle("b").await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_says_how_long_it_was_in_all() {
    let world = World::new();
    let a = world.client().mutex("a").lock().await.unwrap();
    let _b = world.client().mutex("b").lock().await.unwrap();
    let multi = world.client().multi(["a", "b"]);
    let waiter = tokio::spawn(async move { multi.lock_within(secs(3)).await.unwrap_err() });
    tokio::time::sleep(secs(1)).await;
    a.release().await.unwrap();
    let error = waiter.await.unwrap();
    assert_eq!(error.key().unwrap().as_str(), "b");
    assert!(error.to_string().contains("timed out after 3.0s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_is_not_delayed_by_the_cleanups_of_its_client() {
    let world = World::new();
    let _held = world.client().mutex("b").ttl(secs(3_000)).lock().await.unwrap();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    faults.decide(|call| {
        let slow = call.op == Op::Release && call.targets.iter().any(|one| one.key.as_str() == "x");
        if slow { Fault::Delay { before: ms(0), after: secs(4) } } else { Fault::None }
    });
    let client = world.client_of(Arc::new(faults));
    drop(client.mutex("x").lock().await.unwrap());
    let begun = tokio::time::Instant::now();
    let outcome = client.multi(["a", "b"]).ttl(secs(3)).lock_within(ms(500)).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(begun.elapsed() < secs(1), "{:?}", begun.elapsed());
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn it_is_lost_when_any_of_them_is() {
    let world = World::new();
    let client = world.client();
    let guard = client.multi(["a", "b"]).lock().await.unwrap();
    let fence = guard.fences().unwrap()[1].1;
    client.force_release("b", fence).await.unwrap();
    guard.lost().await;
    assert!(!guard.is_held() && guard.remaining().is_zero());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.fences().unwrap_err().kind(), ErrorKind::Lost);
    assert!(guard.leases()[0].is_held());
    let outcomes = guard.release_outcomes().await;
    let verdict = outcomes.verdict().unwrap_err();
    assert_eq!((verdict.kind(), verdict.key().unwrap().as_str()), (ErrorKind::Lost, "b"));
    let released: Vec<_> = outcomes.into_iter().collect();
    assert_eq!(*released[0].1.as_ref().unwrap(), Release::Released);
    assert_ne!(*released[1].1.as_ref().unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn names_given_twice_none_and_bad_ones_are_reported() {
    let client = World::new().client();
    let error = client.multi(["b", "a", "b"]).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("twice") && error.to_string().contains("\"b\""), "{error}");
    for bad in [vec![], vec!["a", ""]] {
        let error = client.multi(bad).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    }
    let guard = client.semaphore("s", 3).acquire().await.unwrap();
    let error = client.multi(["a", "s"]).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(error.key().unwrap().as_str(), "s");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_releases_all_of_them() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    faults.next(Op::AcquireAll, Fault::DropReply);
    let error = client.multi(["a", "b"]).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    world.idle("a").await;
    world.idle("b").await;
}

#[tokio::test(start_paused = true)]
async fn taking_several_can_be_dropped_at_every_await() {
    cut(Op::AcquireAll, |trial| {
        let multi = trial.client.multi(["a", "b"]).ttl(secs(20));
        let world = trial.world.clone();
        async move {
            drop(multi.lock().await);
            world.idle("b").await;
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_for_several_can_be_dropped_at_every_await() {
    cut(Op::Acquire, |trial| {
        let multi = trial.client.multi(["0", "a"]).ttl(secs(20));
        let world = trial.world.clone();
        async move {
            let _held = world.stranger_takes("a", ms(200)).await;
            drop(multi.lock().await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn releasing_several_can_be_dropped_at_every_await() {
    cut(Op::Release, |trial| {
        let multi = trial.client.multi(["0", "a"]).ttl(secs(20));
        async move {
            let guard = multi.lock().await.unwrap();
            drop(guard.release().await);
        }
    })
    .await;
}

/// Four processes with sets that overlap, under random faults, half of them without a store that
/// can take several in one step: judged by what they believed of each lock.
#[tokio::test(start_paused = true)]
async fn random_faults_never_make_two_holders_of_any_of_them() {
    let mut granted = 0;
    for seed in 0..20 {
        let world = World::new();
        let clock: Arc<dyn Clock> = Arc::clone(&world.clock);
        let sets = [["a", "b", "c"], ["c", "b", "a"], ["b", "d", "c"], ["d", "a", "b"]];
        let mut tasks = Vec::new();
        for (process, set) in (0_u32..).zip(sets) {
            let inner = FaultStore::new(Arc::new(world.store.clone()));
            if process % 2 == 0 {
                unsupported(&inner);
            }
            let faults = FaultStore::new(Arc::new(inner));
            faults.random(seed * 10 + u64::from(process), 0.1, ms(900));
            let client = world.client_of(Arc::new(faults));
            let recorder = Recorder::new(process, Arc::clone(&clock));
            tasks.push(tokio::spawn(async move {
                let multi = client.multi(set).ttl(secs(2));
                for _ in 0..10 {
                    let attempts: Vec<_> = multi
                        .keys()
                        .unwrap()
                        .iter()
                        .map(|key| recorder.acquire(key, Mode::Exclusive))
                        .collect();
                    let guard = multi.lock_within(secs(30)).await.ok();
                    let fences = guard.as_ref().and_then(|guard| guard.fences().ok());
                    let (Some(guard), Some(fences)) = (guard, fences) else {
                        attempts.into_iter().for_each(Attempt::unknown);
                        continue;
                    };
                    let held: Vec<_> = attempts
                        .into_iter()
                        .zip(&fences)
                        .map(|(attempt, (_, fence))| attempt.granted(*fence))
                        .collect();
                    tokio::select! {
                        () = tokio::time::sleep(ms(23 * u64::from(process + 1))) => {}
                        () = guard.lost() => {}
                    }
                    // The whole is believed in only for as long as all of it is.
                    let releasing: Vec<_> = held.into_iter().map(Held::release).collect();
                    drop(guard.release().await);
                    releasing.into_iter().for_each(Releasing::unknown);
                }
                recorder.records()
            }));
        }
        let mut history = Vec::new();
        for task in tasks {
            history.extend(task.await.unwrap());
        }
        assert_eq!(overlaps(&history), [], "seed {seed}");
        assert_eq!(fence_faults(&history), [], "seed {seed}");
        granted +=
            history.iter().filter(|record| matches!(record.event, Event::Granted { .. })).count();
        tokio::time::sleep(secs(10)).await;
        for key in ["a", "b", "c", "d"] {
            assert!(world.is_idle(key).await, "seed {seed}: something is left of {key}");
        }
    }
    assert!(granted > 500, "{granted} were granted");
}
