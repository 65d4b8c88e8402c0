//! Permits: as many as there are, for as long as they are held.

use std::sync::Arc;

use leasehold::retry::Linear;
use leasehold::{ErrorKind, Release, Semaphore, SemaphoreGuard};
use leasehold_core::{Clock, Mode};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use leasehold_testkit::history::{Event, Recorder, fence_faults, overlaps};

use crate::cancel::cut;
use crate::support::{World, ms, secs};

#[tokio::test(start_paused = true)]
async fn there_are_as_many_permits_as_the_limit_says_for_all_clients_together() {
    let world = World::new();
    let (here, there) = (world.client(), world.client());
    let one = here.semaphore("a", 3).acquire().await.unwrap();
    let two = there.semaphore("a", 3).acquire_many(2).await.unwrap();
    assert_eq!((one.permits(), two.permits()), (Some(1), Some(2)));
    assert_eq!(two.lease().permits(), Some(2));
    assert!(two.fence().unwrap() > one.fence().unwrap());
    assert!(here.semaphore("a", 3).try_acquire().await.unwrap().is_none());
    assert_eq!(here.semaphore("a", 3).available_permits().await.unwrap(), 0);

    assert_eq!(two.release_outcome().await.unwrap(), Release::Released);
    assert_eq!(here.semaphore("a", 3).available_permits().await.unwrap(), 2);
    assert!(here.semaphore("a", 3).try_acquire_many(3).await.unwrap().is_none());
    let two = here.semaphore("a", 3).try_acquire_many(2).await.unwrap().unwrap();
    drop((one, two));
    world.idle("a").await;
    assert_eq!(here.semaphore("a", 3).available_permits().await.unwrap(), 3);
    assert_eq!(here.mutex("b").lock().await.unwrap().permits(), None);
}

#[tokio::test(start_paused = true)]
async fn free_permits_are_taken_by_many_tasks_at_the_same_time() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    faults.always(Fault::Delay { before: ms(25), after: ms(25) });
    let semaphore = world.client_of(Arc::new(faults.clone())).semaphore("a", 100);
    let started = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..150)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move { semaphore.acquire().await.unwrap() })
        })
        .collect();
    while semaphore.available_permits().await.unwrap() > 0 {}
    assert!(started.elapsed() < ms(500), "{:?}", started.elapsed());
    // The others wait behind each other, one of them at the store.
    tokio::time::sleep(secs(1)).await;
    assert_eq!(world.waiters("a").await, 1);
    let mut guards = Vec::new();
    for task in tasks {
        if guards.len() == 100 {
            guards.clear();
        }
        guards.push(task.await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
}

#[tokio::test(start_paused = true)]
async fn permits_renew_themselves() {
    let world = World::new();
    let semaphore = world.client().semaphore("a", 2).ttl(secs(2));
    let guards = [semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap()];
    tokio::time::sleep(secs(60)).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert!(world.client().semaphore("a", 2).try_acquire().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn who_wants_many_is_not_passed_over_by_those_who_want_few() {
    let world = World::new();
    let semaphore = |limit| world.client().semaphore("a", limit);
    let first = semaphore(3).acquire().await.unwrap();
    let second = semaphore(3).acquire().await.unwrap();
    let many = semaphore(3);
    let many = tokio::spawn(async move { many.acquire_many(3).await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    // One permit is free, and yet its turn has not come.
    assert!(semaphore(3).try_acquire().await.unwrap().is_none());
    let few = semaphore(3);
    let few = tokio::spawn(async move { few.acquire().await.unwrap() });
    while world.waiters("a").await < 2 {
        tokio::time::sleep(ms(1)).await;
    }
    drop(first);
    assert_eq!(second.release_outcome().await.unwrap(), Release::Released);
    let many = many.await.unwrap();
    assert!(!few.is_finished());
    assert_eq!(many.release_outcome().await.unwrap(), Release::Released);
    let few = few.await.unwrap();
    assert!(few.is_held());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_permit_times_out_and_says_who_has_one() {
    let world = World::new();
    let _held = world.client().semaphore("a", 1).owner("web-7").acquire().await.unwrap();
    let error = world.client().semaphore("a", 1).acquire_within(ms(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.holder().unwrap().owner.as_str(), "web-7");
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_is_refused_before_it_is_sent() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let refused = async |semaphore: Semaphore, n| {
        let error = semaphore.acquire_many(n).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(semaphore.try_acquire_many(n).await.unwrap_err().kind(), ErrorKind::Config);
        error.to_string()
    };
    let text = refused(client.semaphore("a", 5), 0).await;
    assert!(text.contains("zero permits") && text.contains("\"a\""), "{text}");
    let text = refused(client.semaphore("a", 5), 6).await;
    assert!(text.contains("6 permits") && text.contains("out of 5"), "{text}");
    let text = refused(client.semaphore("a", 0), 1).await;
    assert!(text.contains("limit of 0"), "{text}");
    assert!(faults.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn another_limit_or_kind_is_refused_with_both_in_the_message() {
    let world = World::new();
    let client = world.client();
    let guard = client.semaphore("a", 3).acquire().await.unwrap();
    let error = client.semaphore("a", 4).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let text = error.to_string();
    assert!(text.contains("limit 3") && text.contains("not 4"), "{text}");
    let error = client.semaphore("a", 4).available_permits().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let text = error.to_string();
    assert!(text.contains("limit 3") && text.contains("limit 4"), "{text}");

    let error = client.mutex("a").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let text = error.to_string();
    assert!(text.contains("semaphore with limit 3") && text.contains("as a lock"), "{text}");
    assert!(guard.is_held_by_store().await.unwrap());

    // It has no users any more: the name is free for any use.
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    drop(client.semaphore("a", 4).acquire().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn who_takes_the_stored_limit_is_not_refused_for_another() {
    let world = World::new();
    let (old, new) = (world.client().semaphore("a", 2), world.client().semaphore("a", 3));
    let (old, new) = (old.stored_limit(true), new.stored_limit(true));
    let one = old.acquire().await.unwrap();
    let two = new.try_acquire().await.unwrap().unwrap();
    assert_eq!(new.available_permits().await.unwrap(), 0);
    assert!(new.try_acquire().await.unwrap().is_none(), "the old limit holds");
    // The queue, polling, and the wait behind a contender: all of them under the stored limit.
    let polling = new.clone().retry(Linear::new(ms(5)));
    let mut waiters = tokio::task::JoinSet::new();
    for waiter in [new.clone(), new.clone(), polling] {
        waiters.spawn(async move { waiter.acquire().await.unwrap().release().await.unwrap() });
    }
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    two.release().await.unwrap();
    waiters.join_all().await;
    one.release().await.unwrap();
    // It had no user in between: the next user sets the limit, and the old program takes that.
    let all = new.acquire_many(3).await.unwrap();
    let all = all.release_permits(1).await.unwrap();
    let last = old.acquire().await.unwrap();
    assert_eq!(old.available_permits().await.unwrap(), 0);
    drop((all, last));
    world.idle("a").await;
    // More than there are can't be had under it.
    let one = old.acquire().await.unwrap();
    let error = new.try_acquire_many(3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    // Permits that are held under the stored limit can also be released in parts.
    one.release().await.unwrap();
    let four = world.client().semaphore("a", 4).acquire_many(2).await.unwrap();
    let two = old.acquire_many(2).await.unwrap().release_permits(1).await.unwrap();
    assert_eq!(two.permits(), Some(1));
    drop(four);
}

#[tokio::test(start_paused = true)]
async fn changing_the_limit_is_for_all_users_and_ends_no_lease() {
    let world = World::new();
    let three = world.client().semaphore("a", 3);
    // Without users there is no limit to change. The next user sets it.
    drop(three.set_limit(5).await.unwrap());
    let held = three.acquire_many(3).await.unwrap();
    let waiter = three.clone();
    let waiter = tokio::spawn(async move { waiter.acquire().await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let five = three.set_limit(5).await.unwrap();
    // Who waits is served under the new limit at once.
    let waited = waiter.await.unwrap();
    assert_eq!(five.available_permits().await.unwrap(), 1);
    let error = three.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("limit 5"), "{error}");

    let two = five.set_limit(2).await.unwrap();
    tokio::time::sleep(secs(100)).await;
    assert!(held.is_held() && waited.is_held());
    assert_eq!(two.available_permits().await.unwrap(), 0);
    assert_eq!(held.release_outcome().await.unwrap(), Release::Released);
    assert_eq!(two.available_permits().await.unwrap(), 1);

    assert_eq!(two.set_limit(0).await.unwrap_err().kind(), ErrorKind::Config);
    let _mutex = world.client().mutex("b").lock().await.unwrap();
    let error = world.client().semaphore("b", 3).set_limit(4).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

#[tokio::test(start_paused = true)]
async fn some_permits_can_be_released_and_the_others_kept() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let semaphore = world.client_of(Arc::new(faults.clone())).semaphore("a", 5);
    let guard = semaphore.acquire_many(5).await.unwrap();
    let fence = guard.fence().unwrap();
    let waiter = world.client().semaphore("a", 5);
    let waiter = tokio::spawn(async move { waiter.acquire_many(2).await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let guard = guard.release_permits(2).await.unwrap();
    assert_eq!((guard.permits(), guard.fence().unwrap()), (Some(3), fence));
    let waited = waiter.await.unwrap();
    assert_eq!(semaphore.available_permits().await.unwrap(), 0);

    let guard = guard.release_permits(0).await.unwrap();
    let (guard, error) = guard.release_permits(3).await.unwrap_err().into_parts();
    assert_eq!((error.kind(), guard.permits()), (ErrorKind::Config, Some(3)));
    faults.next(Op::Convert, Fault::DropRequest);
    let (guard, error) = guard.release_permits(1).await.unwrap_err().into_parts();
    assert_eq!((error.kind(), guard.permits()), (ErrorKind::Unavailable, Some(2)));
    assert!(guard.is_held());
    assert_eq!(semaphore.available_permits().await.unwrap(), 0);
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    assert_eq!(semaphore.available_permits().await.unwrap(), 3);
    drop(waited);
    let guard = semaphore.clone().renew(false).acquire().await.unwrap();
    tokio::time::advance(secs(60)).await;
    assert_eq!(guard.release_permits(0).await.unwrap_err().kind(), ErrorKind::Lost);
    let guard = world.client().mutex("b").lock().await.unwrap();
    let (guard, error) = SemaphoreGuard::try_from(guard).unwrap_err().into_parts();
    assert!(error.kind() == ErrorKind::Misuse && guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn releasing_some_permits_can_be_dropped_at_every_await() {
    cut(Op::Convert, |trial| {
        let semaphore = trial.client.semaphore("a", 3).ttl(secs(20));
        async move {
            let guard = semaphore.acquire_many(3).await.unwrap();
            drop(guard.release_permits(1).await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn whichever_holders_crash_the_capacity_is_back_in_full_after_the_lease() {
    const PERMITS: [u32; 4] = [1, 2, 1, 1];
    for crashing in 0..1_u32 << PERMITS.len() {
        let world = World::new();
        let mut alive = Vec::new();
        let mut crashed = 0;
        for (at, n) in PERMITS.into_iter().enumerate() {
            let faults = FaultStore::new(Arc::new(world.store.clone()));
            let client = world.client_of(Arc::new(faults.clone()));
            let semaphore = client.semaphore("a", 5).ttl(secs(3));
            let guard = semaphore.acquire_many(n).await.unwrap();
            if crashing & (1 << at) == 0 {
                alive.push(guard);
            } else {
                faults.black_out(true);
                crashed += n;
                drop(guard);
            }
        }
        let semaphore = world.client().semaphore("a", 5);
        assert_eq!(semaphore.available_permits().await.unwrap(), 0, "{crashing:04b}");
        tokio::time::sleep(secs(4)).await;
        assert_eq!(semaphore.available_permits().await.unwrap(), crashed, "{crashing:04b}");
        assert!(alive.iter().all(|guard| guard.is_held()), "{crashing:04b}");
        if let Some(crashed) = Some(crashed).filter(|n| *n > 0) {
            drop(semaphore.try_acquire_many(crashed).await.unwrap().unwrap());
        }
        drop(alive);
        let all = semaphore.acquire_many_within(5, secs(10)).await.unwrap();
        assert_eq!(all.release_outcome().await.unwrap(), Release::Released);
    }
}

/// Three processes of two tasks each, under random faults: judged by what they believed.
#[tokio::test(start_paused = true)]
async fn random_faults_never_hand_out_more_permits_than_there_are() {
    let mut most = 0;
    for seed in 0..20 {
        let world = World::new();
        let clock: Arc<dyn Clock> = Arc::clone(&world.clock);
        let mut tasks = Vec::new();
        for process in 0..3_u32 {
            let faults = FaultStore::new(Arc::new(world.store.clone()));
            faults.random(seed * 10 + u64::from(process), 0.2, ms(900));
            let client = world.client_of(Arc::new(faults));
            for task in 0..2_u32 {
                let client = client.clone();
                let recorder = Recorder::new(process * 2 + task, Arc::clone(&clock));
                tasks.push(tokio::spawn(async move {
                    let semaphore = client.semaphore("a", 3).ttl(secs(2));
                    for round in 0..15 {
                        let n = 1 + (round + process) % 2;
                        let mode = Mode::Permits {
                            count: n.try_into().unwrap(),
                            limit: 3.try_into().unwrap(),
                        };
                        let attempt = recorder.acquire(semaphore.key().unwrap(), mode);
                        let guard = semaphore.acquire_many_within(n, secs(20)).await.ok();
                        let Some((guard, fence)) =
                            guard.and_then(|guard| guard.fence().ok().map(|fence| (guard, fence)))
                        else {
                            attempt.unknown();
                            continue;
                        };
                        let held = attempt.granted(fence);
                        assert_eq!(guard.permits(), Some(n));
                        tokio::select! {
                            () = tokio::time::sleep(ms(37 * u64::from(task + 1))) => {}
                            () = guard.lost() => held.lost(),
                        }
                        let releasing = held.release();
                        match guard.release_outcome().await {
                            Ok(Release::Unknown) | Err(_) => releasing.unknown(),
                            Ok(_) => releasing.done(),
                        }
                    }
                    recorder.records()
                }));
            }
        }
        let mut history = Vec::new();
        for task in tasks {
            history.extend(task.await.unwrap());
        }
        assert_eq!(overlaps(&history), [], "seed {seed}");
        assert_eq!(fence_faults(&history), [], "seed {seed}");
        history.sort_by_key(|record| record.at);
        let mut holders = 0_i32;
        for record in &history {
            match record.event {
                Event::Granted { .. } => holders += 1,
                Event::ReleaseAsked => holders -= 1,
                _ => {}
            }
            most = most.max(holders);
        }
        tokio::time::sleep(secs(10)).await;
        assert!(world.is_idle("a").await, "seed {seed}: something is left");
    }
    assert!(most >= 2, "nobody ever shared");
}

#[tokio::test(start_paused = true)]
async fn trying_for_permits_can_be_dropped_at_every_await() {
    cut(Op::Acquire, |trial| {
        let semaphore = trial.client.semaphore("a", 3).ttl(secs(20));
        async move { drop(semaphore.try_acquire_many(2).await) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_for_permits_can_be_dropped_at_every_await() {
    cut(Op::Acquire, |trial| {
        let holder = trial.world.client().semaphore("a", 6);
        let semaphore = trial.client.semaphore("a", 6).ttl(secs(20));
        async move {
            let held = holder.acquire_many(5).await.unwrap();
            let release = async {
                tokio::time::sleep(ms(100)).await;
                drop(held.release().await);
            };
            drop(tokio::join!(semaphore.acquire_many(2), semaphore.acquire_many(2), release));
        }
    })
    .await;
}
