//! Locks that their owner may take again.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use leasehold::{Client, Effect, ErrorKind, Fence, Owner, ReentrantGuard, Release};
use leasehold_core::{Key, Store as _};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use crate::cancel::cut;
use crate::support::{World, ms, secs};

impl World {
    /// How many times the store says that the lock is held.
    async fn holds(&self, key: &str) -> u32 {
        let info = self.store.inspect(&Key::new(key).unwrap(), secs(1)).await.unwrap();
        info.map_or(0, |info| info.holders.iter().map(|holder| holder.holds).sum())
    }

    async fn holds_are(&self, key: &str, n: u32) {
        let so = async {
            while self.holds(key).await != n {
                tokio::time::sleep(ms(1)).await;
            }
        };
        tokio::time::timeout(secs(60), so).await.expect("the count never came right");
    }
}

async fn lock(client: &Client, owner: &Owner) -> ReentrantGuard {
    client.reentrant("a", owner).ttl(secs(20)).lock().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_is_held_on_without_renewal_runs_for_its_ttl_from_the_last_release() {
    let world = World::new();
    let client = world.client();
    let lock = client.reentrant("a", &Owner::new()).ttl(secs(3)).renew(false);
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    tokio::time::advance(secs(2)).await;
    assert_eq!(inner.release().await.unwrap(), 1);
    assert!(outer.remaining() > secs(2), "{:?}", outer.remaining());
    tokio::time::advance(secs(2)).await;
    assert!(outer.is_held());
    assert_eq!(outer.release().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_its_length_is_no_loss_to_those_who_take_it_and_release_it_meanwhile() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let lock = client.reentrant("a", &Owner::new()).ttl(secs(20));
    let (outer, inner) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    faults.next(Op::Renew, Fault::Delay { before: ms(200), after: ms(200) });
    let lengthen = async { outer.renew_to(secs(30)).await.unwrap() };
    let meanwhile = async {
        tokio::time::sleep(ms(100)).await;
        let third = lock.try_lock().await.unwrap().unwrap();
        assert_eq!(third.fence().unwrap(), outer.fence().unwrap());
        third.release().await.unwrap()
    };
    let release = async {
        tokio::time::sleep(ms(100)).await;
        inner.release().await.unwrap()
    };
    let ((), third, inner) = tokio::join!(lengthen, meanwhile, release);
    assert_eq!(third.min(inner), 1);
    assert_eq!(world.holds("a").await, 1);
    assert_eq!(outer.release().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn its_owner_takes_it_again_under_the_same_fence_and_the_store_counts() {
    let world = World::new();
    let client = world.client();
    let owner = Owner::named("batch 7");
    let outer = lock(&client, &owner).await;
    let (there, clone) = (client.clone(), owner.clone());
    let inner = tokio::spawn(async move {
        let middle = there.reentrant("a", &clone).try_lock().await.unwrap().unwrap();
        (middle, there.reentrant("a", &clone).lock_within(secs(1)).await.unwrap())
    });
    let (middle, inner) = inner.await.unwrap();
    assert_eq!((world.holds("a").await, outer.holds()), (3, 3));
    assert_eq!(inner.fence().unwrap(), outer.fence().unwrap());
    let info = client.inspect("a").await.unwrap().unwrap();
    assert_eq!(info.holders.len(), 1);
    assert_eq!(info.holders[0].owner.as_str(), "batch 7");

    assert_eq!(inner.release_outcome().await.unwrap(), Release::StillHeld { holds: 2 });
    assert_eq!(world.holds("a").await, 2);
    // In any order: no guard is the outermost one.
    assert_eq!(outer.release_outcome().await.unwrap(), Release::StillHeld { holds: 1 });
    assert!(middle.is_held());
    assert_eq!(middle.release_outcome().await.unwrap(), Release::Released);
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn all_other_callers_are_kept_out_until_the_last_hold_is_gone() {
    let world = World::new();
    let client = world.client();
    let owner = Owner::named("same name");
    let outer = lock(&client, &owner).await;
    let inner = lock(&client, &owner).await;
    let stranger = async |owner: &Owner| {
        client.reentrant("a", owner).try_lock().await.unwrap().is_none()
            && client.mutex("a").try_lock().await.unwrap().is_none()
            && world.client().reentrant("a", owner).try_lock().await.unwrap().is_none()
    };
    let other = Owner::named("same name");
    assert!(other != owner && stranger(&other).await);
    assert_eq!(outer.release_outcome().await.unwrap(), Release::StillHeld { holds: 1 });
    assert!(stranger(&other).await);
    drop(inner);
    world.idle("a").await;
    assert!(client.reentrant("a", &other).try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_process_is_one_owner_wherever_it_is_asked_for() {
    let world = World::new();
    let client = world.client();
    assert_eq!(Owner::process(), Owner::process());
    let outer = lock(&client, &Owner::process()).await;
    let inner = tokio::spawn(async move { lock(&client, &Owner::process()).await });
    assert_eq!(inner.await.unwrap().fence().unwrap(), outer.fence().unwrap());
    let info = world.client().inspect("a").await.unwrap().unwrap();
    assert!(info.holders[0].owner.as_str().contains(&format!("_{}_", std::process::id())));
}

#[tokio::test(start_paused = true)]
async fn a_bad_owner_name_is_reported_when_locking() {
    let owner = Owner::named("x".repeat(5_000));
    let error = World::new().client().reentrant("a", &owner).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test(start_paused = true)]
async fn dropping_an_inner_guard_counts_down_in_the_background() {
    let world = World::new();
    let (client, owner) = (world.client(), Owner::new());
    let outer = lock(&client, &owner).await;
    for _ in 0..3 {
        drop(lock(&client, &owner).await);
    }
    world.holds_are("a", 1).await;
    assert_eq!(outer.holds(), 1);
    assert!(outer.is_held() && outer.lease().is_held());
    drop(outer);
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn taking_it_again_prolongs_the_lease_and_never_shortens_it() {
    let world = World::new();
    let (client, owner) = (world.client(), Owner::new());
    let fixed = client.reentrant("a", &owner).ttl(secs(20)).renew(false);
    let outer = fixed.lock().await.unwrap();
    tokio::time::sleep(secs(15)).await;
    let before = outer.remaining();
    // A shorter ttl than the lease's own belongs to another lease.
    let inner = client.reentrant("a", &owner).ttl(secs(1)).lock().await.unwrap();
    assert!(before < secs(6) && outer.remaining() > secs(18), "{:?}", outer.remaining());
    assert_eq!(inner.remaining(), outer.remaining());
    tokio::time::sleep(secs(15)).await;
    assert!(outer.is_held());
    assert!(world.client().mutex("a").try_lock().await.unwrap().is_none());
}

/// Polls a future once: it is not ready.
async fn begin(future: Pin<&mut impl Future>) {
    let mut future = future;
    let pending = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending()));
    assert!(pending.await);
}

#[tokio::test(start_paused = true)]
async fn a_lease_lost_before_its_caller_went_on_is_acquired_again() {
    let world = World::new();
    let client = world.client();
    let lock = client.reentrant("a", &Owner::new()).ttl(secs(3)).renew(false);
    let first = lock.lock().await.unwrap();
    let mut again = pin!(lock.lock());
    begin(again.as_mut()).await;
    // Meanwhile the request is answered, and the lease that it prolonged ends.
    tokio::time::sleep(secs(9)).await;
    let second = again.await.unwrap();
    assert!(second.is_held() && !first.is_held());
    let mut again = pin!(lock.try_lock());
    begin(again.as_mut()).await;
    tokio::time::sleep(secs(9)).await;
    let third = again.await.unwrap().unwrap();
    assert!(third.is_held() && !second.is_held());
    assert_eq!((world.holds("a").await, third.holds()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn two_tasks_of_one_owner_that_come_first_at_once_both_get_it() {
    for (fault, ask) in
        [(Fault::None, "lock"), (Fault::Delay { before: ms(50), after: ms(50) }, "try")]
    {
        let world = World::new();
        let faults = FaultStore::new(Arc::new(world.store.clone()));
        faults.always(fault);
        let client = world.client_of(Arc::new(faults.clone()));
        let owner = Owner::new();
        let reentrant = client.reentrant("a", &owner);
        let one = async {
            if ask == "lock" {
                reentrant.lock().await.unwrap()
            } else {
                reentrant.try_lock().await.unwrap().unwrap()
            }
        };
        let (one, two, three) = tokio::join!(one, reentrant.lock(), reentrant.try_lock());
        let (two, three) = (two.unwrap(), three.unwrap().unwrap());
        assert_eq!(one.fence().unwrap(), two.fence().unwrap());
        assert_eq!(one.fence().unwrap(), three.fence().unwrap());
        assert_eq!(world.holds("a").await, 3);
        assert_eq!(two.release_outcome().await.unwrap(), Release::StillHeld { holds: 2 });
        assert_eq!(one.release_outcome().await.unwrap(), Release::StillHeld { holds: 1 });
        assert_eq!(three.release_outcome().await.unwrap(), Release::Released);
        assert!(world.is_idle("a").await);
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_owner_wait_together_for_a_stranger() {
    let world = World::new();
    let (client, owner) = (world.client(), Owner::new());
    let stranger = world.client().mutex("a").lock().await.unwrap();
    let waits = || {
        let (client, owner) = (client.clone(), owner.clone());
        tokio::spawn(async move { lock(&client, &owner).await })
    };
    let (one, two) = (waits(), waits());
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let reentrant = client.reentrant("a", &owner);
    assert!(reentrant.try_lock().await.unwrap().is_none());
    let error = reentrant.lock_within(ms(20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    // The waiter in the queue stops, and the other takes its part.
    one.abort();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(world.waiters("a").await, 1);
    assert_eq!(stranger.release_outcome().await.unwrap(), Release::Released);
    assert!(two.await.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_counts_nothing_twice() {
    for fault in [Fault::DropReply, Fault::DropRequest, Fault::Refuse, Fault::Duplicate] {
        let world = World::new();
        let faults = FaultStore::new(Arc::new(world.store.clone()));
        let client = world.client_of(Arc::new(faults.clone()));
        let owner = Owner::new();
        let outer = lock(&client, &owner).await;
        faults.next(Op::Acquire, fault.clone());
        let inner = client.reentrant("a", &owner).try_lock().await;
        if let Fault::Duplicate = fault {
            let inner = inner.unwrap().unwrap();
            assert_eq!(world.holds("a").await, 2);
            drop(inner);
        } else {
            assert_eq!(inner.unwrap_err().kind(), ErrorKind::Unavailable, "{fault:?}");
        }
        assert_eq!(outer.holds(), 1);
        world.holds_are("a", 1).await;
        assert!(outer.is_held());
        assert_eq!(outer.release_outcome().await.unwrap(), Release::Released, "{fault:?}");
        world.idle("a").await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_it_again_rides_out_an_outage() {
    for fault in [Fault::DropReply, Fault::DropRequest, Fault::Refuse] {
        let world = World::new();
        let faults = FaultStore::new(Arc::new(world.store.clone()));
        let client = world.client_of(Arc::new(faults.clone()));
        let owner = Owner::new();
        let outer = lock(&client, &owner).await;
        for _ in 0..3 {
            faults.next(Op::Acquire, fault.clone());
        }
        let inner = lock(&client, &owner).await;
        assert_eq!((world.holds("a").await, outer.holds()), (2, 2), "{fault:?}");
        faults.next(Op::Acquire, fault.clone());
        let within = client.reentrant("a", &owner).lock_within(ms(0)).await;
        assert!(within.is_err(), "{fault:?}");
        drop(inner);
        world.holds_are("a", 1).await;
        assert_eq!(outer.release_outcome().await.unwrap(), Release::Released, "{fault:?}");
        world.idle("a").await;
    }
}

/// Whose release comes while another task of its owner is about to take it again, and fails.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_held_to_its_end_is_never_reported_lost() {
    for after in [0, 1, 1_000, 1_999, 2_000, 2_001, 2_100, 3_000] {
        let world = World::new();
        let faults = FaultStore::new(Arc::new(world.store.clone()));
        let client = world.client_of(Arc::new(faults.clone()));
        let owner = Owner::new();
        let outer = lock(&client, &owner).await;
        let waiting = world.client().mutex("a");
        let waiting = tokio::spawn(async move { waiting.lock().await.unwrap() });
        faults.next(Op::Acquire, Fault::Delay { before: ms(1), after: secs(5) });
        let again = client.reentrant("a", &owner);
        let again = tokio::spawn(async move { again.try_lock().await });
        tokio::time::sleep(ms(after)).await;
        // The `leave` for the doubtful request would overtake it.
        for _ in 0..4 {
            faults.next(Op::Release, Fault::Delay { before: ms(100), after: ms(1) });
        }
        assert!(outer.is_held());
        let released = outer.release_outcome().await.unwrap();
        let expected = [Release::Released, Release::StillHeld { holds: 1 }];
        assert!(expected.contains(&released), "after {after} ms: {released:?}");
        again.await.unwrap().unwrap_err();
        waiting.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_a_partial_release_is_put_right_by_the_next_request() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let owner = Owner::new();
    let (outer, middle, inner) =
        (lock(&client, &owner).await, lock(&client, &owner).await, lock(&client, &owner).await);
    faults.next(Op::Release, Fault::DropRequest);
    assert_eq!(inner.release_outcome().await.unwrap(), Release::Unknown);
    assert_eq!((world.holds("a").await, outer.holds()), (3, 2));
    faults.next(Op::Release, Fault::Refuse);
    assert_eq!(middle.release().await.unwrap_err().effect(), Effect::NotApplied);
    let inner = lock(&client, &owner).await;
    assert_eq!((world.holds("a").await, outer.holds()), (2, 2));
    drop(inner);
    assert_eq!(outer.release_outcome().await.unwrap(), Release::Released);
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_carried_out_after_the_release_leaves_nothing() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let owner = Owner::new();
    let outer = lock(&client, &owner).await;
    // Its caller has an answer at once, and it is carried out later.
    faults.next(Op::Acquire, Fault::Break { before: ms(1_500) });
    let error = client.reentrant("a", &owner).try_lock().await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
    assert_eq!(outer.release_outcome().await.unwrap(), Release::Released);
    stays_idle(&world).await;
}

/// Nothing is left, and nothing comes.
async fn stays_idle(world: &World) {
    for _ in 0..50 {
        assert!(world.is_idle("a").await);
        tokio::time::sleep(ms(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_seen_by_all_guards_and_the_owner_can_lock_again() {
    let world = World::new();
    let (client, owner) = (world.client(), Owner::new());
    let guards = [lock(&client, &owner).await, lock(&client, &owner).await];
    let fence = guards[0].fence().unwrap();
    client.force_release("a", fence).await.unwrap();
    for guard in &guards {
        guard.lost().await;
        assert_eq!(guard.fence().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.fence_even_if_lost(), fence);
    }
    let anew = lock(&client, &owner).await;
    assert!(anew.fence().unwrap() > fence);
    for guard in guards {
        assert_eq!(guard.release_outcome().await.unwrap(), Release::NotHeld);
    }
    assert_eq!((anew.holds(), world.holds("a").await), (1, 1));
    assert_eq!(anew.release_outcome().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn locking_again_after_a_force_release_is_a_new_lease_and_a_loss() {
    let world = World::new();
    let (client, owner) = (world.client(), Owner::new());
    let outer = lock(&client, &owner).await;
    let fence = outer.fence().unwrap();
    client.force_release("a", fence).await.unwrap();
    // The guard does not know yet.
    assert!(outer.is_held());
    let anew = lock(&client, &owner).await;
    assert!(!outer.is_held());
    assert!(anew.is_held() && anew.fence().unwrap() > fence);
    assert_eq!(outer.release_outcome().await.unwrap(), Release::NotHeld);
    assert_eq!((anew.holds(), world.holds("a").await), (1, 1));
    assert_eq!(lock(&client, &owner).await.fence().unwrap(), anew.fence().unwrap());

    let stranger = async {
        client.force_release("a", anew.fence().unwrap()).await.unwrap();
        world.client().mutex("a").lock().await.unwrap()
    };
    let _stranger = stranger.await;
    assert!(client.reentrant("a", &owner).try_lock().await.unwrap().is_none());
    assert!(!anew.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_holds_nothing_of_its_owners() {
    let world = World::new();
    let (client, owner) = (world.client(), Owner::new());
    let guards = [lock(&client, &owner).await, lock(&client, &owner).await];
    client.close().await.unwrap();
    assert!(world.is_idle("a").await);
    for guard in guards {
        assert!(!guard.is_held());
        assert_eq!(guard.release_outcome().await.unwrap(), Release::NotHeld);
    }
    let error = client.reentrant("a", &owner).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn taking_it_for_the_first_time_can_be_dropped_at_every_await() {
    cut(Op::Acquire, |trial| {
        let (client, owner) = (trial.client.clone(), Owner::new());
        async move { drop(client.reentrant("a", &owner).ttl(secs(20)).lock().await) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn taking_it_again_can_be_dropped_at_every_await() {
    cut(Op::Acquire, |trial| {
        let (client, owner) = (trial.client.clone(), Owner::new());
        async move {
            let reentrant = client.reentrant("a", &owner).ttl(secs(20));
            let Ok(outer) = reentrant.lock().await else { return };
            let (inner, other) = tokio::join!(reentrant.lock(), reentrant.try_lock());
            drop((inner, outer));
            drop(other);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_as_one_of_two_tasks_can_be_dropped_at_every_await() {
    cut(Op::Acquire, |trial| {
        let (world, client, owner) = (trial.world.clone(), trial.client.clone(), Owner::new());
        async move {
            let _held = world.stranger_takes("a", ms(200)).await;
            let reentrant = client.reentrant("a", &owner).ttl(secs(20));
            drop(tokio::join!(reentrant.lock(), reentrant.lock()));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn releasing_can_be_dropped_at_every_await() {
    cut(Op::Release, |trial| {
        let (client, owner) = (trial.client.clone(), Owner::new());
        async move {
            let (outer, inner) = (lock(&client, &owner).await, lock(&client, &owner).await);
            drop(inner.release().await);
            drop(outer.release().await);
        }
    })
    .await;
}

/// Three owners of two tasks each, in two clients, under random faults: all that believe to hold it
/// at the same time have the same fence.
#[tokio::test(start_paused = true)]
async fn random_faults_never_make_two_owners_hold_it() {
    type Belief = (tokio::time::Instant, tokio::time::Instant, Fence);

    let mut shared = 0;
    for seed in 0..20 {
        let world = World::new();
        let mut tasks = Vec::new();
        let clients: Vec<_> = (0..2)
            .map(|n| {
                let faults = FaultStore::new(Arc::new(world.store.clone()));
                faults.random(seed * 10 + n, 0.2, ms(900));
                world.client_of(Arc::new(faults))
            })
            .collect();
        for client in [&clients[0], &clients[0], &clients[1]] {
            let owner = Owner::new();
            for task in 0..2 {
                let (client, owner) = (client.clone(), owner.clone());
                tasks.push(tokio::spawn(async move {
                    let reentrant = client.reentrant("a", &owner).ttl(secs(2));
                    let mut beliefs: Vec<Belief> = Vec::new();
                    for round in 0..15 {
                        let Ok(guard) = reentrant.lock_within(secs(20)).await else { continue };
                        let from = tokio::time::Instant::now();
                        let Ok(fence) = guard.fence() else { continue };
                        tokio::select! {
                            () = tokio::time::sleep(ms(23 * (task + 1))) => {}
                            () = guard.lost() => {}
                        }
                        beliefs.push((from, tokio::time::Instant::now(), fence));
                        if round % 3 == 0 {
                            drop(guard);
                        } else {
                            drop(guard.release().await);
                        }
                    }
                    beliefs
                }));
            }
        }
        let mut beliefs = Vec::new();
        for task in tasks {
            beliefs.extend(task.await.unwrap());
        }
        for (at, (from, until, fence)) in beliefs.iter().enumerate() {
            for (other_from, other_until, other) in &beliefs[..at] {
                if from < other_until && other_from < until {
                    assert_eq!(fence, other, "seed {seed}: two holders at once");
                    shared += 1;
                }
            }
        }
        tokio::time::sleep(secs(10)).await;
        assert!(world.is_idle("a").await, "seed {seed}: something is left");
    }
    assert!(shared > 100, "it was held together {shared} times");
}

const SECRET: &str = "0123456789abcdef";

#[tokio::test(start_paused = true)]
async fn the_same_secret_is_the_same_owner_in_another_process_and_after_a_restart() {
    let world = World::new();
    let (here, there, stranger) = (world.client(), world.client(), world.client());
    let owner = || Owner::from_secret(SECRET).unwrap();
    assert_eq!(owner(), owner());
    let outer = here.reentrant("a", &owner()).ttl(secs(10)).lock().await.unwrap();
    let again = here.reentrant("a", &owner()).try_lock().await.unwrap().unwrap();
    assert_eq!(again.fence().unwrap(), outer.fence().unwrap(), "one lease in one process");
    // Another owner waits in the queue; this one passes it.
    let other = Owner::from_secret("fedcba9876543210").unwrap();
    let waits = stranger.reentrant("a", &other);
    let waiter = tokio::spawn(async move { waits.lock().await });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let inner = there.reentrant("a", &owner()).try_lock().await.unwrap().unwrap();
    assert!(inner.fence().unwrap() > outer.fence().unwrap());
    assert_eq!(again.release().await.unwrap(), 1);
    assert_eq!(outer.release().await.unwrap(), 0);
    tokio::time::sleep(secs(60)).await;
    assert!(inner.is_held() && !waiter.is_finished(), "the other process holds it yet");

    assert_eq!(inner.release().await.unwrap(), 0);
    waiter.await.unwrap().unwrap().release().await.unwrap();

    // A process dies without a release, and is started again before its lease has expired.
    let dying = there.reentrant("b", &owner()).ttl(secs(10)).renew(false).lock().await.unwrap();
    let fence = dying.fence().unwrap();
    std::mem::forget(dying);
    let restarted = world.client();
    let guard = restarted.reentrant("b", &owner()).try_lock().await.unwrap().unwrap();
    assert!(guard.fence().unwrap() > fence, "what the dead one has on its way is refused");
    guard.release().await.unwrap();
    // The store can't know that the holder is dead, so others wait until its lease expires.
    assert!(stranger.mutex("b").try_lock().await.unwrap().is_none());
    let started = tokio::time::Instant::now();
    stranger.mutex("b").lock().await.unwrap().release().await.unwrap();
    assert!(started.elapsed() <= secs(10), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_owner_from_a_secret_is_bound_to_no_other_secret_lock_or_kind() {
    let world = World::new();
    let (here, there) = (world.client(), world.client());
    let error = Owner::from_secret("too short").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let owner = Owner::from_secret(SECRET).unwrap();
    assert!(!format!("{owner:?}").contains(SECRET));
    let guard = here.reentrant("a", &owner).lock().await.unwrap();
    for other in [Owner::from_secret("0123456789abcdeF").unwrap(), Owner::new()] {
        assert!(there.reentrant("a", &other).try_lock().await.unwrap().is_none());
    }
    assert!(there.mutex("a").try_lock().await.unwrap().is_none());
    assert!(there.rwlock("a").try_read().await.unwrap().is_none());
    let info = there.inspect("a").await.unwrap().unwrap();
    assert!(!format!("{info:?}").contains("Joint"), "{info:?}");
    assert!(there.reentrant("b", &owner).try_lock().await.unwrap().is_some());
    guard.release().await.unwrap();
    assert!(there.mutex("a").try_lock().await.unwrap().is_some());
}
