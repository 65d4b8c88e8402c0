//! Waiting in the queue: order, hand-over, leaving, and lost notifications.

use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use leasehold::ErrorKind;
use leasehold::Release;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use crate::support::{World, cool, ms, secs};

#[tokio::test(start_paused = true)]
async fn waiters_in_many_processes_are_served_in_the_order_in_which_they_came() {
    let world = World::new();
    let holder = world.client();
    let guard = holder.mutex("a").lock().await.unwrap();
    let clients: Vec<_> = (0..5).map(|_| world.client()).collect();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..50_usize {
        // Contenders of one client share its local queue, so each has settings of its own here:
        // this is about the store's order.
        let mutex = clients[n % 5].mutex("a").metadata(n.to_string());
        let order = Arc::clone(&order);
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            order.lock().unwrap().push(n);
            tokio::time::sleep(ms(3)).await;
            assert!(guard.is_held());
            assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
        }));
        while world.waiters("a").await <= n {
            tokio::time::sleep(ms(1)).await;
        }
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..50).collect::<Vec<_>>());
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn contenders_of_one_client_are_one_waiter_at_the_store_and_served_in_order() {
    let world = World::new();
    let guard = world.client().mutex("a").lock().await.unwrap();
    let client = world.client();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..100 {
        let (mutex, order) = (client.mutex("a"), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            order.lock().unwrap().push((n, guard.fence().unwrap()));
            tokio::task::yield_now().await;
            assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
        }));
        tokio::task::yield_now().await;
    }
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(world.waiters("a").await, 1);
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap().clone();
    assert!(order.windows(2).all(|pair| pair[0].0 < pair[1].0), "{order:?}");
    assert!(order.windows(2).all(|pair| pair[0].1 < pair[1].1), "{order:?}");
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn contenders_that_wait_behind_a_waiter_in_its_process_are_counted() {
    let world = World::new();
    let holder = world.client();
    let guard = holder.mutex("a").lock().await.unwrap();
    let client = world.client();
    let lock = || {
        let mutex = client.mutex("a");
        tokio::spawn(async move { mutex.lock_within(secs(600)).await })
    };
    let waiting = async |contenders| loop {
        let info = holder.inspect("a").await.unwrap().unwrap();
        if info.waiting() == contenders {
            return info.waiters;
        }
        tokio::time::sleep(ms(100)).await;
    };
    let mut tasks = vec![lock(), lock(), lock()];
    let waiters = waiting(3).await;
    assert_eq!((waiters.len(), waiters[0].behind), (1, 2));
    tasks.pop().unwrap().abort();
    waiting(2).await;
    // The contender in the store's queue passes its position on, and is the last one then.
    tasks.swap_remove(0).abort();
    waiting(1).await;
    guard.release().await.unwrap();
    tasks.pop().unwrap().await.unwrap().unwrap().release().await.unwrap();
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_leaves_nothing_and_delays_no_other() {
    let world = World::new();
    let guard = world.client().mutex("a").lock().await.unwrap();
    let client = world.client();
    let first = client.mutex("a").metadata("first");
    let impatient = tokio::spawn(async move { first.lock_within(secs(1)).await });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let second = client.mutex("a").metadata("second");
    let patient = tokio::spawn(async move { second.lock().await });
    let error = impatient.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    while world.waiters("a").await != 1 {
        tokio::time::sleep(ms(1)).await;
    }
    let started = tokio::time::Instant::now();
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let guard = patient.await.unwrap().unwrap();
    assert!(started.elapsed() < ms(100));
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn a_dead_holders_lock_is_taken_over_when_its_lease_expires() {
    let world = World::new();
    let _dead = world.stranger_takes("a", secs(7)).await;
    let started = tokio::time::Instant::now();
    let guard = world.client().mutex("a").lock().await.unwrap();
    assert!(started.elapsed() >= secs(7) && started.elapsed() <= secs(7) + ms(10));
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_dead_holders_lock_is_taken_over_in_time_though_answers_come_late() {
    let world = World::new();
    let _dead = world.stranger_takes("a", secs(7)).await;
    let slow = FaultStore::new(Arc::new(world.store.clone()));
    for _ in ["a first try", "a position"] {
        slow.next(Op::Acquire, Fault::Delay { before: ms(0), after: ms(300) });
    }
    let started = tokio::time::Instant::now();
    let client = world.client_of(Arc::new(slow.clone()));
    let guard = client.mutex("a").lock().await.unwrap();
    assert!(started.elapsed() >= secs(7) && started.elapsed() <= secs(7) + ms(10));
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_with_a_clear_error() {
    let world = World::new();
    let _guard = world.client().mutex("a").lock().await.unwrap();
    let client = world.client();
    let waiting = tokio::spawn({
        let mutex = client.mutex("a");
        async move { mutex.lock().await }
    });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    for other in [client.clone(), world.client()] {
        let error = other.mutex("a").max_waiters(1).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.is_not_obtained(), "{error}");
    }
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_waiters_come_and_go_and_nothing_is_left() {
    let world = World::new();
    let guard = world.client().mutex("a").lock().await.unwrap();
    let client = world.client();
    let tasks: Vec<_> = (0..10_000)
        .map(|n| {
            let mutex = client.mutex("a").metadata((n % 100).to_string());
            tokio::spawn(async move { mutex.lock_within(ms(100 + n % 50)).await.map(drop) })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    }
    while world.waiters("a").await > 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    world.idle("a").await;
    client.close().await.unwrap();
    drop(client);
    while world.store.channels() > 0 {
        tokio::time::sleep(ms(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_contender_that_goes_before_it_hears_of_its_turn_passes_it_on() {
    let world = World::new();
    let held = world.stranger_takes("a", secs(5)).await;
    let client = world.client();
    let mutex = client.mutex("a");
    let mut lines: Vec<_> = (0..3).map(|_| Box::pin(mutex.lock())).collect();
    let mut context = Context::from_waker(Waker::noop());
    for line in &mut lines {
        assert!(line.as_mut().poll(&mut context).is_pending());
    }
    let last = lines.pop().unwrap();
    for first in lines {
        drop(first);
    }
    drop(held);
    let guard = tokio::time::timeout(secs(60), last).await.expect("skipped").unwrap();
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_another_learns_who_holds_the_lock() {
    let world = World::new();
    let holder = world.client();
    let _guard = holder.mutex("a").owner("web-7").ttl(secs(600)).lock().await.unwrap();
    let client = world.client();
    let first = tokio::spawn({
        let mutex = client.mutex("a");
        async move { mutex.lock().await }
    });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let mutex = client.mutex("a");
    let error = mutex.lock_within(secs(3)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.holder().unwrap().owner.as_str(), "web-7");
    let started = tokio::time::Instant::now();
    let error = mutex.give_up_early(true).lock_within(secs(30)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(started.elapsed() < secs(1));
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_served_when_a_cooldown_ends_and_not_at_its_next_heartbeat() {
    let world = World::new();
    let guard = world.client().mutex("a").lock().await.unwrap();
    let mutex = world.client().mutex("a");
    let waiter = tokio::spawn(async move { mutex.lock().await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let started = tokio::time::Instant::now();
    assert_eq!(
        guard.release_with_cooldown_outcome(cool(secs(2))).await.unwrap(),
        Release::Released
    );
    drop(waiter.await.unwrap());
    assert!(started.elapsed() >= secs(2) && started.elapsed() < secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_notification_that_comes_while_an_answer_is_on_its_way_is_not_forgotten() {
    let world = World::new();
    let mutex = world.client().mutex("a").ttl(secs(600)).renew(false);
    let guard = mutex.lock().await.unwrap();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let asked = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&asked);
    faults.decide(move |call| {
        let asked = &mut *counted.lock().unwrap();
        *asked += usize::from(call.op == Op::Acquire);
        // The second takes the position, and its answer is delayed: when the store sent it, the
        // lease still had time.
        let late = Fault::Delay { before: ms(0), after: secs(1) };
        if call.op == Op::Acquire && *asked == 2 { late } else { Fault::None }
    });
    let waiter = world.client_of(Arc::new(faults)).mutex("a").ttl(secs(600));
    let waits = tokio::spawn(async move { waiter.lock().await });
    while *asked.lock().unwrap() < 2 {
        tokio::time::sleep(ms(1)).await;
    }
    tokio::time::sleep(ms(10)).await;
    guard.renew_to(secs(3)).await.unwrap();
    let begun = tokio::time::Instant::now();
    std::mem::forget(guard);
    drop(waits.await.unwrap().unwrap());
    // Its heartbeat would be due after ten seconds.
    assert!(begun.elapsed() < secs(4), "{:?}", begun.elapsed());
}
