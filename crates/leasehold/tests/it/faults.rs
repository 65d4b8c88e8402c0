//! Bad days: lost messages, lost replies, slow and silent stores.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use leasehold::retry::Linear;
use leasehold::{Effect, ErrorKind, Release};
use leasehold_core::Clock;
use leasehold_testkit::fault_store::{Fault, FaultStore, Messages, Op};
use leasehold_testkit::history::{Recorder, fence_faults, overlaps};

use crate::support::{World, ms, secs};

fn faulty(world: &World) -> FaultStore {
    FaultStore::new(Arc::new(world.store.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_in_an_outage_does_not_say_that_it_had_no_effect() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    client.mutex("a").lock().await.unwrap().release().await.unwrap();
    faults.always(Fault::DropReply);
    let error = client.mutex("a").lock_within(secs(3)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_queue_moves_on_though_every_message_is_lost() {
    let world = World::new();
    let faults = faulty(&world);
    faults.messages(Messages::Vanish);
    let guard = world.client().mutex("a").lock().await.unwrap();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let mutex = world.client_of(Arc::new(faults.clone())).mutex("a").ttl(secs(3));
            tokio::spawn(async move {
                let guard = mutex.lock().await.unwrap();
                assert!(guard.is_held());
                guard.release_outcome().await.unwrap()
            })
        })
        .collect();
    while world.waiters("a").await < 10 {
        tokio::time::sleep(ms(1)).await;
    }
    let started = tokio::time::Instant::now();
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    for task in tasks {
        assert_eq!(task.await.unwrap(), Release::Released);
    }
    assert!(started.elapsed() < secs(30), "{:?}", started.elapsed());
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn messages_that_arrive_twice_make_no_second_holder() {
    let world = World::new();
    let faults = faulty(&world);
    faults.messages(Messages::ArriveTwice);
    let guard = world.client().mutex("a").lock().await.unwrap();
    let mutex = world.client_of(Arc::new(faults.clone())).mutex("a");
    let waiter = tokio::spawn(async move { mutex.lock().await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let guard = waiter.await.unwrap();
    assert!(guard.is_held());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_costs_the_lease_no_earlier_and_no_later_than_its_deadline() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(10)).lock().await.unwrap();
    tokio::time::sleep(secs(4)).await;
    faults.forget_calls();
    faults.black_out(true);
    let left = guard.remaining();
    let started = tokio::time::Instant::now();
    guard.lost().await;
    assert!(started.elapsed() + ms(2) >= left && started.elapsed() <= left + ms(2));
    assert!(faults.count(Op::Renew) >= 3, "{} tries", faults.count(Op::Renew));
    assert!(world.client().mutex("a").try_lock().await.unwrap().is_none(), "lost too late");
    faults.heal();
    tokio::time::sleep(secs(60)).await;
    assert!(!guard.is_held(), "a lost lease came back");
}

#[tokio::test(start_paused = true)]
async fn one_lost_reply_in_a_hundred_loses_no_lease() {
    let world = World::new();
    let faults = faulty(&world);
    faults.random(7, 0.01, ms(5));
    let client = world.client_of(Arc::new(faults.clone()));
    let mut guards = Vec::new();
    for n in 0..200 {
        let mutex = client.mutex(format!("lock {n}")).ttl(secs(9));
        guards.push(loop {
            if let Ok(Some(guard)) = mutex.try_lock().await {
                break guard;
            }
        });
    }
    for _ in 0..100 {
        tokio::time::sleep(secs(9)).await;
        assert!(guards.iter().all(|guard| guard.is_held()));
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_answer_was_lost_is_abandoned() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    faults.next(Op::Acquire, Fault::DropReply);
    let error = client.mutex("a").try_lock().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    world.idle("a").await;
    assert!(client.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_answers_are_lost_is_not_locked_out_by_itself() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let holder = world.client();
    let guard = holder.mutex("a").lock().await.unwrap();
    let mutex = client.mutex("a").ttl(secs(6));
    let waiter = tokio::spawn(async move { mutex.lock().await });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    faults.messages(Messages::Vanish);
    for _ in 0..3 {
        faults.next(Op::Acquire, Fault::DropReply);
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let guard = waiter.await.unwrap().unwrap();
    assert!(guard.is_held());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_was_not_answered_is_unknown_and_made_sure_of() {
    let world = World::new();
    for fault in [Fault::DropReply, Fault::DropRequest] {
        let faults = faulty(&world);
        let client = world.client_of(Arc::new(faults.clone()));
        let guard = client.mutex("a").lock().await.unwrap();
        faults.next(Op::Release, fault);
        assert_eq!(guard.release_outcome().await.unwrap(), Release::Unknown);
        world.idle("a").await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_renewal_is_sent_after_the_release() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(3)).lock().await.unwrap();
    faults.next(Op::Renew, Fault::Delay { before: ms(200), after: ms(200) });
    while faults.count(Op::Renew) == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let calls = faults.calls();
    let renewed = calls.iter().rposition(|call| call.op == Op::Renew).unwrap();
    let released = calls.iter().position(|call| call.op == Op::Release).unwrap();
    assert!(renewed < released);
    assert!(calls[released].at >= calls[renewed].at + ms(400), "the release overtook a renewal");
    tokio::time::sleep(secs(30)).await;
    assert_eq!(faults.calls().last().unwrap().op, Op::Release);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_slower_than_the_lease_is_no_lease() {
    let world = World::new();
    let faults = faulty(&world);
    let builder = leasehold::Client::builder().tokio_time().clock(Arc::clone(&world.clock));
    let client = builder.call_timeout(secs(60)).store(Arc::new(faults.clone())).unwrap();
    faults.next(Op::Acquire, Fault::Delay { before: ms(0), after: ms(490) });
    let error = client.mutex("a").ttl(ms(500)).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    world.idle("a").await;
}

/// Five clients and one lock under random faults: judged by what they believed, not by what the
/// store answered.
#[tokio::test(start_paused = true)]
async fn random_faults_never_make_two_holders() {
    for seed in 0..30 {
        let world = World::new();
        let clock: Arc<dyn Clock> = Arc::clone(&world.clock);
        let tasks: Vec<_> = (0..5_u32)
            .map(|process| {
                let faults = faulty(&world);
                faults.random(seed * 10 + u64::from(process), 0.2, ms(900));
                let client = world.client_of(Arc::new(faults));
                let recorder = Recorder::new(process, Arc::clone(&clock));
                tokio::spawn(async move {
                    let mutex = client.mutex("a").ttl(secs(2));
                    for _ in 0..20 {
                        let key = mutex.key().unwrap().clone();
                        let attempt = recorder.acquire(&key, leasehold_core::Mode::Exclusive);
                        let Ok(guard) = mutex.lock_within(secs(20)).await else {
                            attempt.unknown();
                            continue;
                        };
                        let Ok(fence) = guard.fence() else {
                            attempt.unknown();
                            continue;
                        };
                        let held = attempt.granted(fence);
                        tokio::select! {
                            () = tokio::time::sleep(ms(37 * u64::from(process + 1))) => {}
                            () = guard.lost() => held.lost(),
                        }
                        let releasing = held.release();
                        match guard.release_outcome().await {
                            Ok(Release::Unknown) | Err(_) => releasing.unknown(),
                            Ok(_) => releasing.done(),
                        }
                    }
                    recorder.records()
                })
            })
            .collect();
        let mut history = Vec::new();
        for task in tasks {
            history.extend(task.await.unwrap());
        }
        assert_eq!(overlaps(&history), [], "seed {seed}");
        assert_eq!(fence_faults(&history), [], "seed {seed}");
        world.idle("a").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_an_unanswered_try_is_abandoned_though_a_later_try_was_refused() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let _held = world.stranger_takes("a", ms(50)).await;
    let mutex = client.mutex("a").retry(Linear::new(ms(100)));
    faults.script([Fault::None, Fault::DropReply]);
    let call = tokio::spawn(async move { mutex.lock_within(secs(5)).await });
    while faults.count(Op::Acquire) < 2 {
        tokio::time::sleep(ms(1)).await;
    }
    faults.decide(|call| if call.op == Op::Acquire { Fault::Refuse } else { Fault::None });
    assert!(call.await.unwrap().is_err());
    let started = tokio::time::Instant::now();
    world.idle("a").await;
    assert!(started.elapsed() < secs(5), "left to its ttl: {:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn many_cancelled_tries_do_not_hold_up_the_release_of_a_dropped_guard() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("held").lock().await.unwrap();
    faults.decide(|call| if call.op == Op::Acquire { Fault::DropRequest } else { Fault::None });
    let tries: Vec<_> = (0..1_000)
        .map(|n| {
            let mutex = client.mutex(format!("try {n}"));
            tokio::spawn(async move { mutex.try_lock().await })
        })
        .collect();
    while faults.count(Op::Acquire) <= 1_000 {
        tokio::time::sleep(ms(1)).await;
    }
    tries.iter().for_each(tokio::task::JoinHandle::abort);
    tokio::time::sleep(ms(10)).await;
    drop(guard);
    let started = tokio::time::Instant::now();
    world.idle("held").await;
    assert!(started.elapsed() < secs(1), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_reached_while_the_store_is_slow_is_a_timeout_that_names_the_holder() {
    for strategy in [false, true] {
        let world = World::new();
        let holder = world.client();
        let _guard = holder.mutex("a").owner("web-7").lock().await.unwrap();
        let faults = faulty(&world);
        faults.always(Fault::Delay { before: ms(300), after: ms(300) });
        let mutex = world.client_of(Arc::new(faults.clone())).mutex("a").ttl(secs(9));
        let mutex = if strategy { mutex.retry(Linear::new(ms(10))) } else { mutex };
        let started = tokio::time::Instant::now();
        let error = mutex.lock_within(secs(2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert_eq!(error.holder().unwrap().owner.as_str(), "web-7");
        assert!(started.elapsed() < secs(3), "{:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_rare_try_gives_the_store_thirty_seconds_to_come_back_too() {
    let world = World::new();
    let _held = world.stranger_takes("a", secs(200)).await;
    let faults = faulty(&world);
    let mutex = world.client_of(Arc::new(faults.clone())).mutex("a").retry(Linear::new(secs(60)));
    faults.script([Fault::None, Fault::Refuse]);
    assert!(mutex.lock().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_contender_that_waited_behind_another_rides_out_an_outage_too() {
    let world = World::new();
    let faults = faulty(&world);
    let client = leasehold::Client::builder()
        .tokio_time()
        .clock(Arc::clone(&world.clock))
        .local_handoffs(0)
        .store(Arc::new(faults.clone()))
        .unwrap();
    let held = world.stranger_takes("a", secs(2)).await;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (mutex, faults) = (client.mutex("a").ttl(secs(9)), faults.clone());
            tokio::spawn(async move {
                let guard = mutex.lock().await?;
                faults.next(Op::Acquire, Fault::Refuse);
                guard.release_outcome().await
            })
        })
        .collect();
    drop(held);
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap(), Release::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_while_it_opens_the_channel_stops_no_other() {
    let world = World::new();
    let faults = faulty(&world);
    let client = world.client_of(Arc::new(faults.clone()));
    let _held = world.stranger_takes("a", secs(600)).await;
    let _held_too = world.stranger_takes("b", secs(2)).await;
    faults.next(Op::Listen, Fault::Delay { before: ms(20), after: ms(20) });
    let mutex = client.mutex("a");
    let mut asleep = pin!(mutex.lock());
    let mut context = Context::from_waker(Waker::noop());
    while faults.count(Op::Listen) == 0 {
        tokio::task::yield_now().await;
        assert!(asleep.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(faults.count(Op::Listen), 1);
    let other = client.mutex("b");
    let waited = tokio::time::timeout(secs(60), other.lock_within(secs(10)));
    assert!(waited.await.expect("it hung").is_ok());
}
