//! Many readers or one writer.

use std::sync::Arc;

use leasehold::{Client, Effect, Error, ErrorKind, ReadGuard, Release, RwPreference, WriteGuard};
use leasehold_core::{Clock, Mode};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use leasehold_testkit::history::{Event, Record, Recorder, fence_faults, overlaps};

use crate::cancel::cut;
use crate::support::{World, ms, secs};

async fn waiters_are(world: &World, n: usize) {
    while world.waiters("a").await < n {
        tokio::time::sleep(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn neither_readers_nor_writers_keep_the_others_out_unless_preferred() {
    let world = World::new();
    let client = || world.client().rwlock("a").ttl(secs(60));
    let first = client().write().await.unwrap();
    let mut order = tokio::task::JoinSet::new();
    for n in 0..6 {
        let lock = client();
        order.spawn(async move {
            if n % 2 == 0 {
                let guard = lock.write().await.unwrap();
                (n, guard.fence().unwrap())
            } else {
                let guard = lock.read().await.unwrap();
                (n, guard.fence().unwrap())
            }
        });
        while world.waiters("a").await <= n {
            tokio::time::sleep(ms(1)).await;
        }
    }
    drop(first);
    let mut served = order.join_all().await;
    served.sort_by_key(|(_, fence)| *fence);
    let served: Vec<_> = served.into_iter().map(|(n, _)| n).collect();
    assert_eq!(served, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_a_writer_is_alone() {
    let world = World::new();
    let (here, there) = (world.client().rwlock("a"), world.client().rwlock("a"));
    let one = here.read().await.unwrap();
    let two = there.try_read().await.unwrap().unwrap();
    let three = here.read_within(secs(1)).await.unwrap();
    assert!(there.try_write().await.unwrap().is_none());
    assert!(world.client().mutex("a").try_lock().await.unwrap().is_none());
    let error = here.write_within(ms(20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let highest = three.fence().unwrap();
    for guard in [one, two, three] {
        assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    }
    let writer = there.write().await.unwrap();
    assert!(writer.fence().unwrap() > highest);
    assert!(here.try_read().await.unwrap().is_none());
    assert!(here.try_write().await.unwrap().is_none());
    assert_eq!(writer.release_outcome().await.unwrap(), Release::Released);
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_client_do_not_wait_for_each_other() {
    let world = World::new();
    let writer = world.client().rwlock("a").write().await.unwrap();
    let lock = world.client().rwlock("a");
    let readers: Vec<_> = (0..5)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.read().await.unwrap() })
        })
        .collect();
    waiters_are(&world, 5).await;
    let next = world.client().rwlock("a").preference(RwPreference::Writers);
    let next = tokio::spawn(async move { next.write().await.unwrap() });
    waiters_are(&world, 6).await;
    // With the preference for writers, the next writer goes before all of them …
    assert_eq!(writer.release_outcome().await.unwrap(), Release::Released);
    let next = next.await.unwrap();
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    // … and then they come in together.
    assert_eq!(next.release_outcome().await.unwrap(), Release::Released);
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.unwrap());
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
}

#[tokio::test(start_paused = true)]
async fn a_body_runs_under_any_kind_of_guard_and_is_cut_short_on_loss() {
    let world = World::new();
    let client = world.client();
    let reader = client.rwlock("a").read().await.unwrap().into_guard();
    let done = reader.run(async |lease| lease.fence().unwrap()).await;
    assert!(done.is_ok() && world.is_idle("a").await);
    let writer = client.rwlock("a").write().await.unwrap().into_guard();
    client.force_release("a", writer.fence().unwrap()).await.unwrap();
    let error = writer.run(async |_| std::future::pending::<()>().await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

/// Whether a reader that comes while a reader reads and a writer waits is let in, and who of a
/// waiting reader and a waiting writer is first.
async fn order(preference: RwPreference) -> (bool, &'static str) {
    let world = World::new();
    let lock = |client: Client| client.rwlock("a").preference(preference);
    let first = lock(world.client()).read().await.unwrap();
    let writer = lock(world.client());
    let writer = tokio::spawn(async move { writer.write().await.unwrap() });
    waiters_are(&world, 1).await;
    let newcomer = lock(world.client()).try_read().await.unwrap();
    let let_in = newcomer.is_some();
    drop(newcomer);

    // Behind the writer now a reader, and all behind another writer that holds it.
    drop(first);
    let holder = writer.await.unwrap();
    let (reader, writer) = (lock(world.client()), lock(world.client()));
    let reader = tokio::spawn(async move { reader.read().await.unwrap() });
    waiters_are(&world, 1).await;
    let writer = tokio::spawn(async move { writer.write().await.unwrap() });
    waiters_are(&world, 2).await;
    assert_eq!(holder.release_outcome().await.unwrap(), Release::Released);
    let (mut reader, mut writer) = (reader, writer);
    let next = tokio::select! {
        guard = &mut reader => {
            drop(guard.unwrap());
            drop(writer.await.unwrap());
            "reader"
        }
        guard = &mut writer => {
            drop(guard.unwrap());
            drop(reader.await.unwrap());
            "writer"
        }
    };
    world.idle("a").await;
    (let_in, next)
}

#[tokio::test(start_paused = true)]
async fn the_first_comes_first_unless_something_else_is_preferred() {
    assert_eq!(order(RwPreference::default()).await, (false, "reader"));
    assert_eq!(order(RwPreference::Fifo).await, (false, "reader"));
    assert_eq!(order(RwPreference::Writers).await, (false, "writer"));
    assert_eq!(order(RwPreference::Readers).await, (true, "reader"));
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_is_one_step_with_a_fence_above_all_readers() {
    let world = World::new();
    let lock = world.client().rwlock("a");
    let guard = lock.read().await.unwrap();
    let view = guard.lease().clone();
    // A writer that waits is no hindrance.
    let waiting = world.client().rwlock("a");
    let waiting = tokio::spawn(async move { waiting.write().await.unwrap() });
    waiters_are(&world, 1).await;
    let before = guard.fence().unwrap();
    let writer = guard.upgrade().await.unwrap();
    let fence = writer.fence().unwrap();
    assert!(fence > before);
    assert!(!view.is_held(), "the view was of the lease for reading");
    assert!(lock.try_read().await.unwrap().is_none());
    // It is renewed like any other.
    tokio::time::sleep(secs(200)).await;
    assert!(writer.is_held() && writer.is_held_by_store().await.unwrap());
    assert_eq!(writer.release_outcome().await.unwrap(), Release::Released);
    let next = waiting.await.unwrap();
    assert!(next.fence().unwrap() > fence);
}

#[tokio::test(start_paused = true)]
async fn two_readers_that_upgrade_do_not_wait_for_each_other() {
    let world = World::new();
    let one = world.client().rwlock("a").read().await.unwrap();
    let two = world.client().rwlock("a").read().await.unwrap();
    let (fence_one, fence_two) = (one.fence().unwrap(), two.fence().unwrap());
    let (one, two) = tokio::join!(one.upgrade(), two.upgrade());
    let (one, error) = one.unwrap_err().into_parts();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Conflict, Effect::NotApplied));
    assert!(error.to_string().contains("1 others share"), "{error}");
    let two = two.unwrap_err().into_guard();
    assert!(one.is_held() && two.is_held());
    assert_eq!((one.fence().unwrap(), two.fence().unwrap()), (fence_one, fence_two));
    assert_eq!(one.release_outcome().await.unwrap(), Release::Released);
    let writer = two.upgrade().await.unwrap();
    assert_eq!(writer.release_outcome().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_lets_readers_in_and_keeps_its_fence() {
    let world = World::new();
    let writer = world.client().rwlock("a").write().await.unwrap();
    let readers = world.client().rwlock("a");
    let reader = tokio::spawn(async move { readers.read().await.unwrap() });
    waiters_are(&world, 1).await;
    let fence = writer.fence().unwrap();
    let view = writer.lease().clone();
    let mine = writer.downgrade().await.unwrap();
    let reader = reader.await.unwrap();
    assert_eq!(mine.fence().unwrap(), fence);
    assert!(mine.is_held() && reader.is_held() && !view.is_held());
    assert!(mine.upgrade().await.is_err());
    drop(reader);
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_upgrade_leaves_what_can_be_proven() {
    for fault in [Fault::DropReply, Fault::DropRequest, Fault::Refuse] {
        let world = World::new();
        let faults = FaultStore::new(Arc::new(world.store.clone()));
        let client = world.client_of(Arc::new(faults.clone()));
        let guard = client.rwlock("a").read().await.unwrap();
        faults.next(Op::Convert, fault.clone());
        let (guard, error) = guard.upgrade().await.unwrap_err().into_parts();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{fault:?}");
        assert!(guard.is_held(), "{fault:?}");
        tokio::time::sleep(secs(100)).await;
        assert!(guard.is_held() && guard.remaining() > secs(10), "{fault:?}");
        // Asked again it is what the store has.
        let writer = guard.upgrade().await.unwrap();
        assert!(world.client().rwlock("a").try_read().await.unwrap().is_none());
        assert_eq!(writer.release_outcome().await.unwrap(), Release::Released);
        assert!(world.is_idle("a").await);
    }
}

#[tokio::test(start_paused = true)]
async fn after_an_unanswered_downgrade_no_holder_writes() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let writer = client.rwlock("a").write().await.unwrap();
    faults.next(Op::Convert, Fault::Break { before: ms(1_500) });
    let (reader, error) = writer.downgrade().await.unwrap_err().into_parts();
    assert_eq!(error.effect(), Effect::Unknown);
    assert!(reader.is_held());
    // If carried out after a delay, the downgrade would let readers share the lock with this
    // writer.
    let (reader, error) = reader.upgrade().await.unwrap_err().into_parts();
    assert_eq!(error.effect(), Effect::NotApplied);
    assert!(error.to_string().contains("downgrade"), "{error}");
    tokio::time::sleep(secs(10)).await;
    assert!(reader.is_held());
    assert!(world.client().rwlock("a").try_read().await.unwrap().is_some());
    assert_eq!(reader.release_outcome().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_answered_after_the_loss_is_no_downgrade() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let lock = client.rwlock("a").ttl(secs(10)).renew(false);
    let writer = lock.write().await.unwrap();
    tokio::time::sleep(writer.remaining() - ms(500)).await;
    assert!(writer.is_held());
    faults.next(Op::Convert, Fault::Delay { before: ms(1), after: secs(1) });
    let (reader, error) = writer.downgrade().await.unwrap_err().into_parts();
    assert!(matches!(error.kind(), ErrorKind::Late | ErrorKind::Lost), "{error}");
    assert!(!reader.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_arrives_again_does_not_undo_an_upgrade() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let writer = client.rwlock("a").write().await.unwrap();
    faults.next(Op::Convert, Fault::Echo { after: secs(1) });
    let writer = writer.downgrade().await.unwrap().upgrade().await.unwrap();
    tokio::time::sleep(secs(2)).await;
    assert!(world.client().rwlock("a").try_read().await.unwrap().is_none());
    tokio::time::sleep(secs(100)).await;
    assert!(writer.is_held());
    assert_eq!(writer.release_outcome().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_force_released_lease_is_neither_upgraded_nor_downgraded() {
    let world = World::new();
    let client = world.client();
    let guard = client.rwlock("a").read().await.unwrap();
    client.force_release("a", guard.fence().unwrap()).await.unwrap();
    let error = Error::from(guard.upgrade().await.unwrap_err());
    assert!(matches!(error.kind(), ErrorKind::Late | ErrorKind::Lost), "{error}");

    let guard = client.rwlock("a").write().await.unwrap();
    client.force_release("a", guard.fence().unwrap()).await.unwrap();
    let _other = client.rwlock("a").read().await.unwrap();
    let (guard, error) = guard.downgrade().await.unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!guard.is_held());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_crashed_reader_blocks_a_writer_for_its_own_lease_only() {
    let world = World::new();
    for crashing in 0..1_u32 << 3 {
        let mut alive = Vec::new();
        for at in 0..3_u64 {
            let faults = FaultStore::new(Arc::new(world.store.clone()));
            let client = world.client_of(Arc::new(faults.clone()));
            let guard = client.rwlock("a").ttl(secs(2 + at)).read().await.unwrap();
            if crashing & (1 << at) == 0 {
                alive.push(guard);
            } else {
                faults.black_out(true);
                drop(guard);
            }
        }
        tokio::time::sleep(secs(5)).await;
        let lock = world.client().rwlock("a");
        assert_eq!(lock.try_write().await.unwrap().is_some(), alive.is_empty(), "{crashing:03b}");
        assert!(alive.iter().all(|guard| guard.is_held()), "{crashing:03b}");
        drop(alive);
        let writer = lock.write_within(secs(10)).await.unwrap();
        assert_eq!(writer.release_outcome().await.unwrap(), Release::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn upgrading_can_be_dropped_at_every_await() {
    cut(Op::Convert, |trial| {
        let lock = trial.client.rwlock("a").ttl(secs(20));
        async move {
            let guard = lock.read().await.unwrap();
            drop(guard.upgrade().await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn downgrading_can_be_dropped_at_every_await() {
    cut(Op::Convert, |trial| {
        let lock = trial.client.rwlock("a").ttl(secs(20));
        async move {
            let guard = lock.write().await.unwrap();
            drop(guard.downgrade().await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_to_read_and_to_write_can_be_dropped_at_every_await() {
    cut(Op::Acquire, |trial| {
        let holder = trial.world.client().rwlock("a");
        let lock = trial.client.rwlock("a").ttl(secs(20));
        async move {
            let held = holder.write().await.unwrap();
            let release = async {
                tokio::time::sleep(ms(100)).await;
                drop(held.release().await);
            };
            let read = async || drop(lock.read().await);
            let write = async || drop(lock.write().await);
            tokio::join!(read(), write(), read(), release);
        }
    })
    .await;
}

/// Three processes of two tasks under random faults, that read, write and upgrade: judged by what
/// they believed.
#[tokio::test(start_paused = true)]
async fn random_faults_never_let_a_writer_and_another_holder_in() {
    let (mut upgraded, mut read) = (0, 0);
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
                    let lock = client.rwlock("a").ttl(secs(2));
                    let key = lock.key().unwrap().clone();
                    for round in 0..15 {
                        let writes = (round + process) % 4 == 0;
                        let mode = if writes { Mode::Exclusive } else { Mode::Shared };
                        let attempt = recorder.acquire(&key, mode);
                        let guard = if writes {
                            lock.write_within(secs(20)).await.map(WriteGuard::into_guard)
                        } else {
                            lock.read_within(secs(20)).await.map(ReadGuard::into_guard)
                        };
                        let Ok(guard) = guard else {
                            attempt.unknown();
                            continue;
                        };
                        let Ok(fence) = guard.fence() else {
                            attempt.unknown();
                            continue;
                        };
                        let held = attempt.granted(fence);
                        tokio::select! {
                            () = tokio::time::sleep(ms(17 * u64::from(task + 1))) => {}
                            () = guard.lost() => held.lost(),
                        }
                        let releasing = held.release();
                        match guard.release_outcome().await {
                            Ok(Release::Unknown) | Err(_) => releasing.unknown(),
                            Ok(_) => releasing.done(),
                        }
                        // And once by upgrading: the belief in reading ends where the one in
                        // writing begins.
                        let attempt = recorder.acquire(&key, Mode::Shared);
                        let reader = lock.read_within(secs(20)).await.ok();
                        let Some((reader, fence)) = reader
                            .and_then(|reader| reader.fence().ok().map(|fence| (reader, fence)))
                        else {
                            attempt.unknown();
                            continue;
                        };
                        let held = attempt.granted(fence);
                        let attempt = recorder.acquire(&key, Mode::Exclusive);
                        let lease = reader.lease().clone();
                        let upgrade = reader.upgrade().await;
                        if !lease.is_held() {
                            held.lost();
                        }
                        match upgrade {
                            // There and back once more: a downgrade that arrives again later must
                            // not undo the upgrade after it.
                            Ok(writer) => {
                                held.release().done();
                                let again = match writer.downgrade().await {
                                    Ok(reader) => reader.upgrade().await,
                                    Err(not) => Err(not),
                                };
                                let Ok(writer) = again else {
                                    attempt.unknown();
                                    continue;
                                };
                                match writer.fence() {
                                    Ok(fence) => {
                                        let held = attempt.granted(fence);
                                        tokio::select! {
                                            () = tokio::time::sleep(ms(11)) => {}
                                            () = writer.lost() => held.lost(),
                                        }
                                        let releasing = held.release();
                                        drop(writer.release().await);
                                        releasing.unknown();
                                    }
                                    Err(_) => attempt.unknown(),
                                }
                            }
                            Err(not) => {
                                attempt.unknown();
                                let reader = not.into_guard();
                                if !reader.is_held() {
                                    held.lost();
                                }
                                let releasing = held.release();
                                drop(reader.release().await);
                                releasing.unknown();
                            }
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
        let granted = |record: &&Record| matches!(record.event, Event::Granted { .. });
        upgraded += history.iter().filter(granted).filter(|r| r.mode == Mode::Exclusive).count();
        read += history.iter().filter(granted).filter(|r| r.mode == Mode::Shared).count();
        tokio::time::sleep(secs(10)).await;
        assert!(world.is_idle("a").await, "seed {seed}: something is left");
    }
    assert!(upgraded > 100 && read > 100, "{upgraded} written, {read} read");
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_is_counted_through_every_change_of_mode() {
    let world = World::new();
    let lock = world.client().rwlock("a").ttl(secs(6)).max_hold(secs(20));
    let started = tokio::time::Instant::now();
    let writer = lock.write().await.unwrap();
    tokio::time::sleep(secs(10)).await;
    let reader = writer.downgrade().await.unwrap();
    tokio::time::sleep(secs(5)).await;
    let writer = reader.upgrade().await.unwrap();
    tokio::time::timeout(secs(60), writer.lost()).await.expect("held for longer");
    assert!(started.elapsed() >= secs(19) && started.elapsed() <= secs(21));
}

#[tokio::test(start_paused = true)]
async fn a_shorter_length_in_doubt_stays_believed_in_another_mode() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let writer = client.rwlock("a").ttl(secs(60)).write().await.unwrap();
    faults.next(Op::Renew, Fault::Delay { before: secs(30), after: ms(1) });
    assert!(writer.renew_to(secs(6)).await.is_err());
    let reader = writer.downgrade().await.unwrap();
    for _ in 0..600 {
        tokio::time::sleep(ms(100)).await;
        assert!(reader.remaining() <= secs(6), "{:?}", reader.remaining());
    }
    assert!(reader.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_holder_with_a_release_request_knows_it_in_another_mode() {
    let world = World::new();
    let client = world.client();
    let writer = client.rwlock("a").write().await.unwrap();
    assert_eq!(world.client().ask("a").await.unwrap(), 1);
    writer.asked().await;
    let reader = writer.downgrade().await.unwrap();
    assert!(reader.is_asked());
}
