//! Taking a lock: once, for a while, or not at all.

use std::sync::Arc;
use std::time::Duration;

use leasehold::retry::{Linear, NoRetry};
use leasehold::{ErrorKind, LockOptions, Owner, Prolonged, Release, WaitLimit};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use crate::support::{World, cool, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_free_lock_is_taken_and_a_held_one_is_none() {
    let client = World::new().client();
    let mutex = client.mutex("a");
    let guard = mutex.try_lock().await.unwrap().unwrap();
    assert!(guard.is_held());
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    assert!(mutex.try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn bad_names_and_settings_are_reported_when_locking() {
    let world = World::new();
    let client = world.client();
    let long = "x".repeat(513);
    for bad in ["", "a\nb", "a\u{7f}", long.as_str()] {
        let error = client.mutex(bad).try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{bad:?}");
    }
    for bad in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX, ms(2)] {
        let error = client.mutex("a").ttl(bad).try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{bad:?}");
        assert!(error.to_string().contains("\"a\""), "{error}");
    }
    let error = client.mutex("a").ttl(secs(10)).stop_grace(secs(6)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let error = client.mutex("a").metadata("m".repeat(1025)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let careful = leasehold::Client::builder().min_ttl(secs(5));
    let careful = careful.store(Arc::new(world.store.clone())).unwrap();
    let error = careful.mutex("a").ttl(secs(4)).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let guard = careful.mutex("a").ttl(secs(9)).try_lock().await.unwrap().unwrap();
    assert_eq!(guard.renew_to(secs(4)).await.unwrap_err().kind(), ErrorKind::Config);
    let not = careful.mutex("a").ttl(secs(4)).relock(guard).await.unwrap_err();
    assert_eq!(not.kind(), ErrorKind::Config);
    let lease = not.into_guard().detach().await.unwrap();
    assert_eq!(careful.renew(&lease, secs(4)).await.unwrap_err().kind(), ErrorKind::Config);
    let error = client.renew(&lease, ms(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    careful.release(&lease, None).await.unwrap();
    assert!(world.is_idle("a").await);

    // What is held has a minimum of its own.
    let builder = leasehold::Client::builder().min_ttl(secs(2)).min_renewal(secs(5));
    let careful = builder.store(Arc::new(world.store.clone())).unwrap();
    let guard = careful.mutex("a").ttl(secs(3)).lock().await.unwrap();
    assert_eq!(guard.renew_to(secs(4)).await.unwrap_err().kind(), ErrorKind::Config);
    guard.renew_to(secs(5)).await.unwrap();
    let lease = guard.detach().await.unwrap();
    let error = careful.renew(&lease, secs(4)).await.unwrap_err();
    assert!(error.to_string().contains("minimum of 5"), "{error}");
    careful.adopt(&lease).await.unwrap().release().await.unwrap();

    // It may be shorter than a new lock's ttl as well.
    let builder = leasehold::Client::builder().min_ttl(secs(5)).min_renewal(secs(1));
    let careful = builder.store(Arc::new(world.store.clone())).unwrap();
    let guard = careful.mutex("a").ttl(secs(15)).lock().await.unwrap();
    guard.renew_to(secs(2)).await.unwrap();
    assert_eq!(guard.renew_to(ms(999)).await.unwrap_err().kind(), ErrorKind::Config);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn locking_again_waits_for_as_long_as_the_lock_value_says() {
    let world = World::new();
    let mutex = world.client().mutex("a").ttl(secs(1)).renew(false);
    let lost = async || {
        let guard = mutex.lock().await.unwrap();
        tokio::time::advance(secs(2)).await;
        (guard, world.client().mutex("a").ttl(secs(4)).renew(false).lock().await.unwrap())
    };
    let (guard, other) = lost().await;
    assert!(mutex.relock(guard).await.unwrap().is_none());
    other.release().await.unwrap();
    let (guard, _other) = lost().await;
    assert!(mutex.clone().wait_limit(secs(1)).relock(guard).await.unwrap().is_none());
    tokio::time::advance(secs(4)).await;
    let (guard, _other) = lost().await;
    let anew = mutex.clone().wait_limit(secs(9)).relock(guard).await.unwrap();
    assert!(anew.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_busy_lock_is_distinguished_from_an_error() {
    let world = World::new();
    let held = world.client().mutex("a").lock().await.unwrap();
    let mutex = world.client().mutex("a");
    assert!(mutex.lock_within(Duration::ZERO).await.unwrap_err().is_not_obtained());
    assert!(mutex.clone().max_waiters(0).lock().await.unwrap_err().is_not_obtained());
    let errors = [
        world.client().semaphore("a", 2).acquire().await.map(drop).unwrap_err(),
        mutex.clone().ttl(Duration::ZERO).lock().await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(!error.is_not_obtained(), "{error}");
    }
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_kept_leaves_its_lease_to_those_who_work_by_name() {
    let world = World::new();
    let client = world.client();
    client.mutex("a").ttl(secs(2)).lock().await.unwrap().keep();
    tokio::time::sleep(secs(9)).await;
    assert!(client.is_held("a").unwrap() && !client.is_held("b").unwrap());
    assert!(world.client().mutex("a").try_lock().await.unwrap().is_none());
    client.release_held("a").await.unwrap();
    assert!(!client.is_held("a").unwrap());
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn lengths_in_which_nothing_can_be_done_are_refused_before_anything_is_taken() {
    let world = World::new();
    let client = world.client();
    let short = Duration::from_nanos(9_999_999);
    for length in [Duration::ZERO, short] {
        for mutex in [
            client.mutex("a").ttl(length),
            client.mutex("a").max_hold(length),
            client.mutex("a").progress_within(length),
        ] {
            let refused = mutex.try_lock().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
            assert!(refused.to_string().contains("10"), "{refused}");
        }
        let builder = leasehold::Client::builder().call_timeout(length);
        let refused = builder.clone().connect("redis://127.0.0.1:1").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        assert_eq!(builder.connect("memory:").await.unwrap_err().kind(), ErrorKind::Config);
    }
    for period in [Duration::ZERO, Duration::from_micros(999), secs(366 * 86_400), Duration::MAX] {
        let refused = client.once_per("a", period).try_start().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Config, "{refused}");
        assert!(refused.to_string().contains("give 1 ms to 365 days"), "{refused}");
    }
    assert!(world.is_idle("a").await);
    let least = client.mutex("a").max_hold(ms(10)).progress_within(ms(10));
    assert!(least.ttl(ms(10)).try_lock().await.unwrap().unwrap().is_held());
    let most = client.mutex("b").max_hold(Duration::MAX).progress_within(Duration::MAX);
    assert!(most.ttl(secs(30 * 86_400)).try_lock().await.unwrap().unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_says_who_holds_the_lock_and_for_how_long() {
    let world = World::new();
    let holder = world.client();
    let _guard = holder.mutex("a").owner("web-7").metadata("daily").lock().await.unwrap();
    let begun = tokio::time::Instant::now();
    for strategy in [false, true] {
        let mutex = world.client().mutex("a");
        let mutex = if strategy { mutex.retry(Linear::new(ms(100))) } else { mutex };
        let started = tokio::time::Instant::now();
        let error = mutex.lock_within(secs(5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let holder = error.holder().unwrap();
        assert_eq!(holder.owner.as_str(), "web-7");
        // At the end of the wait, not at the last look.
        assert_eq!(holder.held_for, begun.elapsed());
        assert!(error.retry_after().unwrap() > Duration::ZERO);
        let text = error.to_string();
        assert!(text.contains("web-7") && text.contains("daily"), "{text}");
        assert!(started.elapsed() >= secs(5) && started.elapsed() < secs(6));
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_is_one_try() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").lock_within(Duration::ZERO).await.unwrap();
    let error = world.client().mutex("a").lock_within(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.holder().is_some());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_retry_strategy_decides_how_often_to_try() {
    let world = World::new();
    let _held = world.stranger_takes("a", secs(60)).await;
    let client = world.client();
    let started = tokio::time::Instant::now();
    let error = client.mutex("a").retry(NoRetry).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(started.elapsed(), Duration::ZERO);
    let three = Linear::new(ms(100)).limit(3);
    let error = client.mutex("a").retry(three).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(started.elapsed() >= ms(200) && started.elapsed() < ms(300));
}

#[tokio::test(start_paused = true)]
async fn a_polling_waiter_does_not_sleep_past_the_end_of_the_holders_lease() {
    let world = World::new();
    let _dead = world.stranger_takes("a", secs(2)).await;
    let started = tokio::time::Instant::now();
    let client = world.client();
    let guard = client.mutex("a").retry(Linear::new(secs(600))).lock().await.unwrap();
    assert!(started.elapsed() < secs(3), "{:?}", started.elapsed());
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_vain_ends_at_once() {
    for strategy in [false, true] {
        let world = World::new();
        let _held = world.stranger_takes("a", secs(60)).await;
        let mutex = world.client().mutex("a").give_up_early(true);
        let mutex = if strategy { mutex.retry(Linear::new(ms(10))) } else { mutex };
        let started = tokio::time::Instant::now();
        let error = mutex.lock_within(secs(30)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert!(mutex.lock_within(secs(61)).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn locking_again_refreshes_what_is_held_and_takes_what_was_lost() {
    let world = World::new();
    let client = world.client();
    let mutex = client.mutex("a").ttl(secs(10)).renew(false);
    let guard = mutex.lock().await.unwrap();
    let fence = guard.fence().unwrap();
    tokio::time::advance(secs(8)).await;
    let guard = mutex.clone().ttl(secs(20)).relock(guard).await.unwrap().unwrap();
    assert_eq!(guard.fence().unwrap(), fence);
    assert!(guard.remaining() > secs(15));
    tokio::time::advance(secs(30)).await;
    assert!(!guard.is_held());
    let guard = mutex.relock(guard).await.unwrap().unwrap();
    assert!(guard.fence().unwrap() > fence);
    tokio::time::advance(secs(30)).await;
    let _other = world.client().mutex("a").lock().await.unwrap();
    assert!(mutex.relock(guard).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn prolonging_late_succeeds_if_the_lock_had_no_holder_since_and_says_so() {
    let world = World::new();
    let (client, other) = (world.client(), world.client());
    let mutex = client.mutex("a").ttl(secs(10)).renew(false);
    let guard = mutex.lock().await.unwrap();
    let fence = guard.fence().unwrap();
    tokio::time::advance(secs(8)).await;
    let Prolonged::InTime(guard) = mutex.prolong(guard).await.unwrap() else { panic!("in time") };
    assert_eq!(guard.fence().unwrap(), fence);
    assert!(guard.remaining() > secs(8));
    // Past this side's deadline, and past the store's as well.
    for late in [ms(9_950), secs(30)] {
        let held = client.mutex(format!("late {late:?}")).ttl(secs(10)).renew(false);
        let guard = held.lock().await.unwrap();
        let before = guard.fence().unwrap();
        tokio::time::advance(late).await;
        assert!(!guard.is_held());
        let prolonged = held.prolong(guard).await.unwrap();
        assert!(prolonged.is_late());
        let guard = prolonged.into_guard();
        assert!(guard.is_held() && guard.fence().unwrap() > before);
        assert!(guard.is_held_by_store().await.unwrap());
    }
    // Another holder had it since, and has released it again.
    tokio::time::advance(secs(30)).await;
    assert!(!guard.is_held());
    other.mutex("a").lock().await.unwrap().release().await.unwrap();
    let not = mutex.prolong(guard).await.unwrap_err();
    assert_eq!(not.kind(), ErrorKind::Lost);
    assert!(world.is_idle("a").await, "nothing was taken");
    // Not another lock's.
    let guard = mutex.lock().await.unwrap();
    let not = client.mutex("b").prolong(guard).await.unwrap_err();
    assert_eq!(not.kind(), ErrorKind::Misuse);
    assert!(not.into_guard().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_detached_lease_is_prolonged_late_if_the_lock_had_no_holder_since() {
    let world = World::new();
    let (client, other) = (world.client(), world.client());
    let mutex = client.mutex("a").ttl(secs(10)).metadata("job");
    let lease = mutex.lock().await.unwrap().detach().await.unwrap();
    let prolonged = other.prolong(&lease, secs(20)).await.unwrap();
    assert!(!prolonged.is_late());
    let lease = prolonged.into_guard();
    tokio::time::advance(secs(30)).await;
    let prolonged = other.prolong(&lease, secs(40)).await.unwrap();
    assert!(prolonged.is_late());
    let anew = prolonged.into_guard();
    assert!(anew.fence() > lease.fence());
    assert_eq!(anew.ttl().duration(), secs(40));
    let info = client.inspect("a").await.unwrap().unwrap();
    assert_eq!(info.holders[0].metadata.as_str(), "job");
    assert!(info.holders[0].remaining > secs(39));
    assert_eq!(client.renew(&lease, secs(9)).await.unwrap_err().kind(), ErrorKind::Lost);
    // Another holder had it since, and has released it again.
    tokio::time::advance(secs(60)).await;
    mutex.lock().await.unwrap().release().await.unwrap();
    assert_eq!(other.prolong(&anew, secs(9)).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(world.is_idle("a").await, "nothing was taken");
}

#[tokio::test(start_paused = true)]
async fn locking_again_in_vain_ends_no_lease() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let mutex = client.mutex("a").renew(false);
    let guard = mutex.lock().await.unwrap();
    let fence = guard.fence().unwrap();
    let is_held = async |guard: &leasehold::Guard| {
        assert_eq!(guard.fence().unwrap(), fence);
        assert!(guard.is_held_by_store().await.unwrap());
    };

    let not = client.mutex("b").relock(guard).await.unwrap_err();
    assert_eq!(not.kind(), ErrorKind::Misuse);
    let guard = not.into_guard();
    is_held(&guard).await;

    let not = mutex.clone().ttl(std::time::Duration::ZERO).relock(guard).await.unwrap_err();
    assert_eq!(not.kind(), ErrorKind::Config);
    let guard = not.into_guard();
    is_held(&guard).await;

    for fault in [Fault::DropReply, Fault::DropRequest, Fault::Refuse] {
        faults.next(Op::Renew, fault);
    }
    let mut guard = guard;
    for _ in 0..3 {
        let not = mutex.relock(guard).await.unwrap_err();
        assert_eq!(not.kind(), ErrorKind::Unavailable, "{not}");
        guard = not.into_guard();
        is_held(&guard).await;
    }
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_closed_lock_says_that_it_is_closed_and_for_how_long() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").lock().await.unwrap();
    guard.release_with_cooldown(cool(secs(60))).await.unwrap();
    let error = client.mutex("a").lock_within(secs(10)).await.unwrap_err();
    assert!(error.to_string().ends_with("; cooling down for another 50.0s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_keeps_the_lock_closed_to_all_callers() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("report").lock().await.unwrap();
    assert_eq!(
        guard.release_with_cooldown_outcome(cool(secs(60))).await.unwrap(),
        Release::Released
    );
    assert!(client.mutex("report").try_lock().await.unwrap().is_none());
    let info = client.inspect("report").await.unwrap().unwrap();
    assert!(info.holders.is_empty() && info.closed_for.unwrap() <= secs(60));
    let started = tokio::time::Instant::now();
    let guard = client.mutex("report").lock().await.unwrap();
    assert!(started.elapsed() >= secs(60) && started.elapsed() < secs(61));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_release_keeps_its_cooldown() {
    let world = World::new();
    let client = world.client();
    drop(client.mutex("a").lock().await.unwrap().release_with_cooldown(cool(secs(60))));
    drop(client.mutex("b").lock().await.unwrap().release_with_cooldown_outcome(cool(secs(60))));
    tokio::time::sleep(secs(3)).await;
    for key in ["a", "b"] {
        let info = client.inspect(key).await.unwrap().unwrap();
        assert!(info.holders.is_empty() && info.closed_for.is_some(), "{info:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_client_locks_nothing_and_holds_nothing() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").lock().await.unwrap();
    let other = world.client().mutex("b").lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("b");
        async move { mutex.lock().await }
    });
    while world.waiters("b").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    client.close().await.unwrap();
    assert!(!guard.is_held());
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(client.mutex("a").try_lock().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(world.is_idle("a").await);
    assert_eq!(other.release_outcome().await.unwrap(), Release::Released);
    world.idle("b").await;
}

#[tokio::test(start_paused = true)]
async fn releasing_all_says_how_each_release_went() {
    let world = World::new();
    let client = world.client();
    let guards = [client.mutex("a").lock().await.unwrap(), client.mutex("b").lock().await.unwrap()];
    let outcomes = client.release_all_outcomes().await;
    let names: Vec<_> = outcomes.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, Ok(Release::Released))));
    assert!(guards.iter().all(|guard| !guard.is_held()));
    assert!(world.is_idle("a").await && world.is_idle("b").await);
    for guard in guards {
        assert_eq!(guard.release_outcome().await.unwrap(), Release::NotHeld);
    }
}

#[tokio::test(start_paused = true)]
async fn locks_are_listed_and_described_without_their_secrets() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("jobs/a").owner("me").metadata("m").lock().await.unwrap();
    let _other = client.mutex("other").lock().await.unwrap();
    assert_eq!(guard.metadata(), "m");
    let list = client.list("jobs/*").await.unwrap().locks;
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].holders[0].owner.as_str(), "me");
    assert_eq!(list[0].holders[0].fence, guard.fence().unwrap());
    assert_eq!(client.list("").await.unwrap().locks.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_examination_says_what_the_store_says_or_why_it_says_nothing() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let findings = client.examine().await.unwrap();
    assert!(findings[0].means.contains("this process alone"), "{findings:?}");
    faults.next(Op::Examine, Fault::DropReply);
    let error = client.examine().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("examine"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acquired_once_a_client_is_closed() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    faults.next(Op::Acquire, Fault::Delay { before: ms(10), after: ms(10) });
    let mutex = client.mutex("a");
    let late = tokio::spawn(async move { mutex.try_lock().await });
    while faults.count(Op::Acquire) == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    client.close().await.unwrap();
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_a_limit_ends_after_the_ttl_where_that_is_set() {
    let world = World::new();
    let _held = world.stranger_takes("a", secs(3600)).await;
    let client = world.client();
    let started = tokio::time::Instant::now();
    let mutex = client.mutex("a").ttl(secs(7)).wait_limit(WaitLimit::Ttl);
    let error = mutex.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(started.elapsed(), secs(7));
    // What a call says counts instead, and a time of one's own is a limit as well.
    assert_eq!(mutex.lock_within(secs(9)).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(started.elapsed(), secs(7 + 9));
    let error = client.multi(["a", "b"]).wait_limit(secs(5)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(started.elapsed(), secs(7 + 9 + 5));
    let owner = Owner::new();
    let error = client.reentrant("a", &owner).wait_limit(secs(5)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(started.elapsed(), secs(7 + 9 + 5 + 5));
    assert!(world.is_idle("b").await);
}

#[tokio::test(start_paused = true)]
async fn a_clients_settings_go_for_its_locks_unless_they_have_their_own() {
    let world = World::new();
    let usual = LockOptions::new()
        .ttl(secs(5))
        .owner("web-3")
        .retry(Linear::new(ms(100)))
        .metadata("usual")
        .wait_limit(WaitLimit::Ttl);
    let builder = leasehold::Client::builder().tokio_time().clock(Arc::clone(&world.clock));
    let client = builder.clone().options(&usual).store(Arc::new(world.store.clone())).unwrap();
    assert_eq!(client.owner().as_str(), "web-3");

    let guard = client.mutex("a").lock().await.unwrap();
    let info = client.inspect("a").await.unwrap().unwrap();
    assert_eq!(info.holders[0].owner.as_str(), "web-3");
    assert_eq!(info.holders[0].metadata.as_str(), "usual");
    assert!(info.holders[0].remaining <= secs(5));
    let started = tokio::time::Instant::now();
    let error = client.semaphore("b", 1).acquire_many(1).await.map(|_| ()).err();
    assert!(error.is_none());
    let error = client.mutex("a").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(started.elapsed() >= secs(5) && started.elapsed() < secs(6));
    assert_eq!(world.waiters("a").await, 0, "it competes");
    let own = client.mutex("c").ttl(secs(9)).metadata("own").lock().await.unwrap();
    assert_eq!(own.metadata(), "own");
    assert!(own.ttl().await.unwrap() > secs(5));
    assert!(guard.is_held());

    let wrong = LockOptions::new().metadata("m".repeat(1025));
    let error = builder.options(&wrong).store(Arc::new(world.store.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test(start_paused = true)]
async fn what_a_client_holds_is_found_renewed_and_released_by_name() {
    let world = World::new();
    let (client, other) = (world.client(), world.client());
    let guard = client.mutex("a").ttl(secs(10)).renew(false).lock().await.unwrap();
    let _others = other.mutex("b").lock().await.unwrap();

    let held = client.held("a").unwrap();
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].fence().unwrap(), guard.fence().unwrap());
    client.clone().renew_held("a", secs(60)).await.unwrap();
    assert!(guard.remaining() > secs(50));
    // Leases of other clients and free locks don't count.
    for key in ["b", "c"] {
        assert!(client.held(key).unwrap().is_empty());
        assert_eq!(client.renew_held(key, secs(5)).await.unwrap_err().kind(), ErrorKind::Lost);
        let error = client.release_held(key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains(key), "{error}");
    }
    assert_eq!(client.held("").unwrap_err().kind(), ErrorKind::Config);

    client.release_held("a").await.unwrap();
    assert!(!guard.is_held() && client.held("a").unwrap().is_empty());
    assert!(world.is_idle("a").await && !world.is_idle("b").await);

    // All of what is held under a name.
    let semaphore = client.semaphore("d", 3);
    let permits = [semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap()];
    assert_eq!(client.held("d").unwrap().len(), 2);
    let outcomes = client.release_held_outcomes("d").await.unwrap();
    assert!(outcomes.iter().all(|(_, outcome)| matches!(outcome, Ok(Release::Released))));
    assert!(permits.iter().all(|permit| !permit.is_held()));

    // An expired lease is not held.
    let late = client.mutex("e").ttl(secs(10)).renew(false).lock().await.unwrap();
    tokio::time::advance(secs(11)).await;
    assert!(!late.is_held() && client.held("e").unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_found_also_while_it_is_being_renewed() {
    let client = leasehold::Client::connect("memory:").await.unwrap();
    let guard = client.mutex("a").ttl(ms(100)).stop_grace(ms(1)).lock().await.unwrap();
    for _ in 0..500_000 {
        let found = client.held("a").unwrap().len();
        assert!(found == 1 || !guard.is_held());
    }
}
