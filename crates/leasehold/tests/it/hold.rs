//! Holding a lock: renewal, loss, release, and what is left behind.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{DetachedLease, Effect, ErrorKind, ForceRelease, Release, SemaphoreGuard};
use leasehold_clock::ManualClock;
use leasehold_core::Moment;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

#[cfg(unix)]
use crate::alone::alone;
use crate::support::{World, cool, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_held_lock_outlives_its_ttl_for_as_long_as_it_is_held() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").ttl(secs(2)).lock().await.unwrap();
    for _ in 0..50 {
        tokio::time::sleep(secs(1)).await;
        assert!(guard.is_held());
        assert!(world.client().mutex("a").try_lock().await.unwrap().is_none());
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_ends_and_says_so_before_another_holder_can_have_it() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").ttl(secs(10)).renew(false).lock().await.unwrap();
    guard.lost().await;
    assert!(!guard.is_held());
    assert_eq!(guard.fence().unwrap_err().kind(), ErrorKind::Lost);
    assert!(world.client().mutex("a").try_lock().await.unwrap().is_none());
    let other = world.client().mutex("a").lock().await.unwrap();
    assert!(other.fence().unwrap() > guard.fence_even_if_lost());
}

#[tokio::test(start_paused = true)]
async fn a_force_released_lease_is_lost_at_the_next_renewal() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").ttl(secs(30)).lock().await.unwrap();
    let fence = guard.fence().unwrap();
    let admin = world.client();
    assert_eq!(admin.force_release("a", fence).await.unwrap(), ForceRelease::Released);
    let started = tokio::time::Instant::now();
    guard.lost().await;
    assert!(started.elapsed() <= secs(11));
    assert_eq!(guard.release_outcome().await.unwrap(), Release::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_release_distinguishes_late_from_lost() {
    let world = World::new();
    let client = world.client();
    let mutex = client.mutex("a").ttl(secs(1)).renew(false);
    let guard = mutex.lock().await.unwrap();
    tokio::time::advance(secs(2)).await;
    // From the deadline on, which is 1 % and 2 ms before the end of the ttl.
    let late = Release::Late { by: Some(ms(1_012)) };
    assert_eq!(
        late.to_string(),
        "1.0s late: the lease had expired, but no other holder has come \
                                  since"
    );
    assert_eq!(guard.release_outcome().await.unwrap(), late);
    let guard = mutex.lock().await.unwrap();
    tokio::time::advance(secs(2)).await;
    let _other = world.client().mutex("a").lock().await.unwrap();
    assert_eq!(guard.release_outcome().await.unwrap(), Release::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn prolonging_too_late_distinguishes_late_from_lost() {
    let world = World::new();
    let client = world.client();
    let mutex = client.mutex("a").ttl(secs(1)).renew(false);
    let guard = mutex.lock().await.unwrap();
    guard.renew_to(secs(90)).await.unwrap();
    assert!(guard.remaining() > secs(80));
    guard.renew_to(secs(1)).await.unwrap();
    assert!(guard.remaining() < secs(1));
    tokio::time::advance(secs(2)).await;
    let lease = guard.ttl().await.unwrap();
    assert_eq!(lease, Duration::ZERO);
    // Lost here by the clock alone, which says nothing about others; the store does.
    assert_eq!(guard.renew_to(secs(1)).await.unwrap_err().kind(), ErrorKind::Late);
    assert!(!guard.is_held());
    world.client().mutex("a").lock().await.unwrap().release().await.unwrap();
    assert_eq!(guard.renew_to(secs(1)).await.unwrap_err().kind(), ErrorKind::Lost);
    let detached = {
        let guard = mutex.clone().ttl(secs(1)).lock().await.unwrap();
        guard.detach().await.unwrap()
    };
    tokio::time::advance(secs(2)).await;
    assert_eq!(client.renew(&detached, secs(9)).await.unwrap_err().kind(), ErrorKind::Late);
    let _other = world.client().mutex("a").lock().await.unwrap();
    assert_eq!(client.renew(&detached, secs(9)).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_is_kept_to_though_renewals_work() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").ttl(secs(3)).max_hold(secs(20)).lock().await.unwrap();
    let started = tokio::time::Instant::now();
    guard.lost().await;
    assert!(started.elapsed() >= secs(19) && started.elapsed() <= secs(20));
}

#[tokio::test(start_paused = true)]
async fn the_store_keeps_a_lock_no_longer_than_its_longest_hold() {
    for longest in [secs(1), secs(7)] {
        let world = World::new();
        let client = world.client();
        let _held = client.mutex("a").ttl(secs(3)).max_hold(longest).lock().await.unwrap();
        let started = tokio::time::Instant::now();
        drop(world.client().mutex("a").lock().await.unwrap());
        let waited = started.elapsed();
        assert!(waited <= longest + Duration::from_millis(5), "{longest:?}: {waited:?}");
        assert!(waited >= longest - Duration::from_millis(5), "{longest:?}: {waited:?}");
        let mutex = client.mutex("b").ttl(secs(3)).max_hold(longest);
        let error = mutex.run(async |_| std::future::pending::<()>().await).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("the longest hold"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_adopted_is_held_as_it_was() {
    let world = World::new();
    let client = world.client();
    let mutex = client.mutex("a").ttl(secs(10)).renew(false).metadata("page 7");
    let text = mutex.lock().await.unwrap().detach().await.unwrap().to_secret_text();
    let guard = client.adopt(&text.parse().unwrap()).await.unwrap();
    assert_eq!(guard.metadata(), "page 7");
    tokio::time::sleep(secs(11)).await;
    assert!(!guard.is_held(), "it was not to be renewed");

    let permits = client.semaphore("b", 5).acquire_many(3).await.unwrap();
    let lease = permits.detach().await.unwrap();
    let permits = SemaphoreGuard::try_from(world.client().adopt(&lease).await.unwrap()).unwrap();
    assert_eq!(permits.permits(), Some(3));
    let permits = permits.release_permits(2).await.unwrap();
    assert_eq!(client.semaphore("b", 5).available_permits().await.unwrap(), 4);
    permits.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_is_not_detached_and_its_guard_comes_back() {
    let world = World::new();
    let guard = world.client().mutex("a").ttl(secs(1)).renew(false).lock().await.unwrap();
    tokio::time::advance(secs(2)).await;
    let not = guard.detach().await.unwrap_err();
    assert_eq!(not.kind(), ErrorKind::Lost);
    let outcome = not.into_guard().release_outcome().await.unwrap();
    assert_eq!(outcome, Release::Late { by: Some(ms(1_012)) });
}

#[tokio::test(start_paused = true)]
async fn a_lease_found_lost_while_it_is_detached_is_not_detached() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let guard = client.mutex("a").ttl(secs(9)).lock().await.unwrap();
    let (lease, fence) = (guard.lease().clone(), guard.fence().unwrap());
    faults.next(Op::Renew, Fault::Delay { before: ms(200), after: ms(0) });
    let renewing = lease.renew_to(secs(9));
    let detaching = async {
        tokio::time::sleep(ms(50)).await;
        guard.detach().await
    };
    let forcing = async {
        tokio::time::sleep(ms(100)).await;
        world.client().force_release("a", fence).await.unwrap()
    };
    let (renewed, detached, _) = tokio::join!(renewing, detaching, forcing);
    assert_eq!(renewed.unwrap_err().kind(), ErrorKind::Lost);
    let not = detached.unwrap_err();
    assert_eq!(not.kind(), ErrorKind::Lost);
    assert!(!not.into_guard().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_releases_its_lock() {
    let world = World::new();
    let client = world.client();
    drop(client.mutex("a").lock().await.unwrap());
    world.idle("a").await;
    let guard = client.mutex("b").lock().await.unwrap();
    drop(client);
    drop(guard);
    world.idle("b").await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_holding_releases_the_lock() {
    let world = World::new();
    let client = world.client();
    let task = tokio::spawn(async move {
        let _guard = client.mutex("a").lock().await.unwrap();
        panic!("in the critical section");
    });
    assert!(task.await.unwrap_err().is_panic());
    world.idle("a").await;
}

#[test]
fn a_runtime_shut_down_while_holding_hangs_no_caller_and_leaves_it_to_the_ttl() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = ManualClock::new();
    let store = leasehold_embedded::MemoryStore::with_clock(Arc::new(clock.clone()));
    let first = runtime();
    let guard = first.block_on(async {
        let builder = leasehold::Client::builder().clock(Arc::new(clock.clone()));
        let client = builder.store(Arc::new(store.clone())).unwrap();
        client.mutex("a").lock().await.unwrap()
    });
    drop(first);
    assert!(guard.is_held());
    clock.advance(secs(31));
    assert!(!guard.is_held());
    drop(guard);
    runtime().block_on(async {
        let client = leasehold::Client::new(Arc::new(store.clone())).unwrap();
        assert!(client.mutex("a").try_lock().await.unwrap().is_some());
    });
}

#[tokio::test(start_paused = true)]
async fn a_body_is_cut_short_when_its_lease_is_lost() {
    let world = World::new();
    let client = world.client();
    let mutex = client.mutex("a").ttl(secs(5)).renew(false);
    let done = mutex.run(async |lease| lease.fence().unwrap()).await.unwrap();
    assert!(done.value() > 0);
    let reached = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = Arc::clone(&reached);
    let error = mutex
        .run(async move |_lease| {
            tokio::time::sleep(secs(60)).await;
            seen.store(true, std::sync::atomic::Ordering::SeqCst);
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!reached.load(std::sync::atomic::Ordering::SeqCst));
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_detached_lease_is_adopted_by_another_client() {
    let world = World::new();
    let guard = world.client().mutex("a").ttl(secs(10)).lock().await.unwrap();
    let fence = guard.fence().unwrap();
    let text = guard.detach().await.unwrap().to_secret_text();
    let lease: DetachedLease = text.parse().unwrap();
    let other = world.client();
    let guard = other.adopt(&lease).await.unwrap();
    assert_eq!(guard.fence().unwrap(), fence);
    tokio::time::sleep(secs(60)).await;
    assert!(guard.is_held());
    assert!(guard.is_held_by_store().await.unwrap());
    let lease = guard.detach().await.unwrap();
    assert_eq!(other.release_outcome(&lease, None).await.unwrap(), Release::Released);
    world.idle("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_gives_no_lease_back() {
    let world = World::new();
    let clock = ManualClock::new();
    clock.set(Moment::from_origin(secs(100)));
    let builder = leasehold::Client::builder().tokio_time().clock(Arc::new(clock.clone()));
    let client = builder.store(Arc::new(world.store.clone())).unwrap();
    let guard = client.mutex("a").ttl(secs(10)).renew(false).lock().await.unwrap();
    clock.set(Moment::from_origin(secs(105)));
    let left = guard.remaining();
    clock.set(Moment::from_origin(secs(50)));
    assert!(guard.remaining() <= left);
    clock.set(Moment::from_origin(secs(111)));
    assert!(!guard.is_held());
    clock.set(Moment::from_origin(secs(100)));
    assert!(!guard.is_held());
    assert_eq!(guard.fence().unwrap_err().effect(), Effect::NotApplied);
}

#[cfg(unix)]
#[test]
fn a_forks_child_holds_nothing_and_releases_nothing() {
    // Beside other tests, one of them might have a lock just then that nothing opens in the child.
    alone("hold::a_forks_child_holds_nothing_and_releases_nothing", || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(fork_while_it_holds());
    });
}

#[cfg(unix)]
async fn fork_while_it_holds() {
    use std::pin::pin;
    use std::task::{Context, Waker};

    let client = leasehold::Client::new(Arc::new(leasehold_embedded::MemoryStore::new())).unwrap();
    let guard = client.mutex("a").lock().await.unwrap();
    // SAFETY: the child touches only this guard, and leaves without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let held = guard.is_held();
        let mut cx = Context::from_waker(Waker::noop());
        let told = pin!(guard.lost()).poll(&mut cx).is_ready();
        let fence = guard.fence().map_err(|error| error.kind());
        let fresh = client.mutex("b").key().is_ok();
        drop(guard);
        let fine = !held && told && fence == Err(ErrorKind::Lost) && fresh;
        // SAFETY: ends the child at once, without the destructors of the parent's things.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child believed in its parent's lease");
    assert!(guard.is_held());
    assert!(guard.is_held_by_store().await.unwrap());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn work_that_hangs_loses_its_lease_and_work_that_gets_on_keeps_it() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").ttl(secs(6)).progress_within(secs(10)).lock().await.unwrap();
    for _ in 0..60 {
        tokio::time::sleep(secs(5)).await;
        guard.lease().progress();
        assert!(guard.is_held());
    }
    tokio::time::sleep(secs(10) + Duration::from_millis(500)).await;
    guard.lease().progress();
    tokio::time::sleep(secs(9)).await;
    assert!(guard.is_held(), "a hiccup was taken for a hang");
    let started = tokio::time::Instant::now();
    guard.lost().await;
    assert!(started.elapsed() <= secs(9));
    let stuck = guard;
    let other = world.client().mutex("a").lock().await.unwrap();
    stuck.lease().progress();
    assert!(!stuck.is_held() && other.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_lease_handed_off_and_detached_keeps_the_fence_that_its_holder_showed() {
    let world = World::new();
    let client = world.client();
    let mutex = client.mutex("a");
    let guard = mutex.lock().await.unwrap();
    let first = guard.fence().unwrap();
    let next = tokio::spawn(async move { mutex.lock().await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let guard = next.await.unwrap();
    let fence = guard.fence().unwrap();
    assert!(fence > first);
    let lease: DetachedLease = guard.detach().await.unwrap().to_secret_text().parse().unwrap();
    assert_eq!(client.adopt(&lease).await.unwrap().fence().unwrap(), fence);
}

#[test]
fn a_builder_shows_no_password() {
    let builder = leasehold::Client::builder().password("sesame");
    assert!(!format!("{builder:?}").contains("sesame"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_adopted_twice_has_one_holder_and_its_text_is_spent() {
    let world = World::new();
    let [first, second, third] = [world.client(), world.client(), world.client()];
    for renewed in [false, true] {
        let guard = first.mutex("a").ttl(secs(10)).renew(renewed).lock().await.unwrap();
        let lease = guard.detach().await.unwrap();
        let guard = second.adopt(&lease).await.unwrap();
        assert_eq!(third.adopt(&lease).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(third.renew(&lease, secs(60)).await.unwrap_err().kind(), ErrorKind::Lost);
        let closing = third.release_outcome(&lease, Some(cool(secs(60)))).await.unwrap();
        assert_eq!(closing, Release::NotHeld);
        assert!(guard.is_held() && guard.is_held_by_store().await.unwrap());
        let again = guard.detach().await.unwrap();
        assert!(again != lease, "the text of a spent lease was given out again");
        let guard = third.adopt(&again).await.unwrap();
        assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
        world.idle("a").await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_many_that_adopt_a_lease_at_once_one_gets_it() {
    let world = World::new();
    let client = world.client();
    let lease = client.semaphore("a", 3).acquire_many(2).await.unwrap().detach().await.unwrap();
    let tries = (0..8).map(|_| {
        let (client, lease) = (world.client(), lease.clone());
        tokio::spawn(async move { client.adopt(&lease).await })
    });
    let mut guards = Vec::new();
    for attempt in tries.collect::<Vec<_>>() {
        guards.extend(attempt.await.unwrap());
    }
    assert_eq!(guards.len(), 1);
    assert_eq!(client.semaphore("a", 3).available_permits().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_adoption_whose_answer_is_lost_is_requested_again() {
    let world = World::new();
    let store = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(store.clone()));
    let guard = client.mutex("a").ttl(secs(60)).renew(false).lock().await.unwrap();
    let lease = guard.detach().await.unwrap();
    store.next(Op::Renew, Fault::DropReply);
    let guard = client.adopt(&lease).await.unwrap();
    assert!(guard.is_held_by_store().await.unwrap());

    let lease = guard.detach().await.unwrap();
    store.next(Op::Renew, Fault::DropReply);
    store.next(Op::Renew, Fault::Refuse);
    let error = client.adopt(&lease).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    assert_eq!(client.adopt(&lease).await.unwrap_err().kind(), ErrorKind::Lost);
    world.idle("a").await;
}
