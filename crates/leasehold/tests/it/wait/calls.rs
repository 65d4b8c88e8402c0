//! What each call does, waited for in plain threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use leasehold::retry::Linear;
use leasehold::store::Store as _;
use leasehold::{Client, Cooldown, ErrorKind, Fairness, ForceRelease, Key, Release, Wait as _};
use leasehold_embedded::MemoryStore;

use super::{EVER, client_of, eventually, world};

const SHORT: Duration = Duration::from_millis(600);

#[test]
fn one_holder_at_a_time_and_contention_is_no_error() {
    let (store, client) = world();
    let mutex = client.mutex("reports/daily");
    let guard = mutex.try_lock().wait().unwrap().unwrap();
    assert!(mutex.try_lock().wait().unwrap().is_none());
    assert!(client_of(&store).mutex("reports/daily").try_lock().wait().unwrap().is_none());

    assert_eq!(guard.key().as_str(), "reports/daily");
    assert!(guard.is_held() && guard.is_held_by_store().wait().unwrap());
    assert_eq!(guard.fence().unwrap(), guard.fence_even_if_lost());
    assert_eq!(guard.lease().fence().unwrap(), guard.fence().unwrap());
    assert!(guard.remaining() > Duration::ZERO);
    assert!(guard.lease().until_deadline() >= guard.remaining());
    assert!(!guard.lease().is_at_risk());
    assert!(guard.ttl().wait().unwrap() > Duration::ZERO);
    guard.check().unwrap();

    let fence = guard.fence().unwrap();
    assert_eq!(guard.release_outcome().wait().unwrap(), Release::Released);
    let guard = mutex.lock().wait().unwrap();
    assert!(guard.fence().unwrap() > fence);
    assert_eq!(guard.release_outcome().wait().unwrap(), Release::Released);
    assert!(client.inspect("reports/daily").wait().unwrap().is_none());
}

#[test]
fn threads_wait_for_each_other_and_lose_no_update() {
    const THREADS: u32 = 8;
    const ROUNDS: u32 = 10;
    let (store, shared) = world();
    let count = AtomicU32::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            // Half of them share a client, half have one of their own.
            let client = if thread % 2 == 0 { shared.clone() } else { client_of(&store) };
            let count = &count;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = client.mutex("count").lock().wait().unwrap();
                    let seen = count.load(Ordering::Relaxed);
                    thread::yield_now();
                    count.store(seen + 1, Ordering::Relaxed);
                    assert_eq!(guard.release_outcome().wait().unwrap(), Release::Released);
                }
            });
        }
    });
    assert_eq!(count.into_inner(), THREADS * ROUNDS);
}

#[test]
fn a_lease_is_renewed_while_its_holder_blocks() {
    let (store, client) = world();
    let guard = client.mutex("key").ttl(Duration::from_secs(2)).lock().wait().unwrap();
    let (go_on, wait) = mpsc::channel();
    thread::scope(|scope| {
        let holder = scope.spawn(move || {
            // Nothing of leasehold runs on this thread now.
            wait.recv_timeout(EVER).unwrap();
            assert!(guard.is_held());
            guard.release_outcome().wait().unwrap()
        });
        let onlooker = client_of(&store);
        let left = || onlooker.inspect("key").wait().unwrap().unwrap().holders[0].remaining;
        let (mut before, mut renewals) = (left(), 0);
        eventually("three renewals", || {
            let now = left();
            renewals += u32::from(now > before);
            before = now;
            renewals == 3
        });
        go_on.send(()).unwrap();
        assert_eq!(holder.join().unwrap(), Release::Released);
    });
}

#[test]
fn a_wait_that_times_out_says_who_holds_the_lock() {
    let (store, client) = world();
    let guard = client_of(&store).mutex("key").owner("web-7").lock().wait().unwrap();
    let error = client.mutex("key").lock_within(SHORT).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.holder().unwrap().owner.as_str(), "web-7");
    let error = client.mutex("key").give_up_early(true).lock_within(SHORT).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let error =
        client.mutex("key").fairness(Fairness::Barging).lock_within(SHORT).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let twice = Linear::new(Duration::from_millis(1)).limit(2);
    assert_eq!(
        client.mutex("key").retry(twice).lock().wait().unwrap_err().kind(),
        ErrorKind::Timeout
    );
    assert_eq!(guard.release_outcome().wait().unwrap(), Release::Released);
}

#[test]
fn a_lease_that_is_not_renewed_is_lost_and_its_loss_can_be_awaited() {
    let (_, client) = world();
    let guard = client.mutex("key").renew(false).ttl(SHORT).lock().wait().unwrap();
    let view = guard.lease().clone();
    let token = view.cancellation_token();
    let other = thread::spawn(move || view.lost().wait());
    guard.lost().wait().unwrap();
    other.join().unwrap().unwrap();
    assert!(guard.lost().wait_within(EVER).unwrap().is_some());
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.fence().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    eventually("the token is cancelled", || token.is_cancelled());
    eventually("the lease runs out at the store", || !guard.is_held_by_store().wait().unwrap());
    let outcome = guard.release_outcome().wait().unwrap();
    assert!(matches!(outcome, Release::Late { by: Some(_) }), "{outcome}");
}

#[test]
fn a_held_lease_is_not_lost_within_any_limit() {
    let (_, client) = world();
    let guard = client.mutex("key").lock().wait().unwrap();
    assert!(guard.lost().wait_within(Duration::ZERO).unwrap().is_none());
    assert!(guard.lost().wait_within(SHORT).unwrap().is_none());
    assert!(guard.is_held());
}

#[test]
fn a_force_release_is_reported_to_the_holder() {
    let (store, client) = world();
    let guard = client.mutex("key").ttl(Duration::from_secs(1)).lock().wait().unwrap();
    let operator = client_of(&store);
    let shown = operator.inspect("key").wait().unwrap().unwrap().holders[0].fence;
    assert_eq!(operator.force_release("key", shown).wait().unwrap(), ForceRelease::Released);
    assert!(guard.lost().wait_within(EVER).unwrap().is_some());
    assert_eq!(guard.release_outcome().wait().unwrap(), Release::NotHeld);
}

#[test]
fn a_lease_can_get_a_new_length_and_be_acquired_again() {
    let (_, client) = world();
    let guard = client.mutex("key").renew(false).lock().wait().unwrap();
    guard.renew_to(Duration::from_secs(600)).wait().unwrap();
    assert!(guard.remaining() > Duration::from_secs(500));
    // Shorter than the grace that a long lease comes with.
    let long =
        client.mutex("long").renew(false).ttl(Duration::from_secs(36_000)).lock().wait().unwrap();
    long.renew_to(Duration::from_secs(5)).wait().unwrap();
    assert!(long.is_held() && long.remaining() < Duration::from_secs(5));

    let fence = guard.fence().unwrap();
    let shorter = client.mutex("key").ttl(Duration::from_secs(60));
    let guard = shorter.relock(guard).wait().unwrap().unwrap();
    assert_eq!(guard.fence().unwrap(), fence, "a lease that still holds is kept");
    assert!(guard.remaining() < Duration::from_secs(60));
    assert_eq!(guard.release_outcome().wait().unwrap(), Release::Released);

    let mutex = client.mutex("key").renew(false).ttl(SHORT);
    let guard = mutex.lock().wait().unwrap();
    let fence = guard.fence_even_if_lost();
    guard.lost().wait().unwrap();
    let guard = mutex.relock(guard).wait().unwrap().unwrap();
    assert!(guard.fence_even_if_lost() > fence, "a lease that was lost is taken anew");

    let error = client.mutex("another").relock(guard).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
}

#[test]
fn a_detached_lease_goes_from_hand_to_hand() {
    let (store, client) = world();
    let guard = client.mutex("key").lock().wait().unwrap();
    let fence = guard.fence().unwrap();
    let lease = guard.detach().wait().unwrap();
    drop(client);

    let other = client_of(&store);
    assert!(other.mutex("key").try_lock().wait().unwrap().is_none());
    let lease = other.renew(&lease, Duration::from_secs(60)).wait().unwrap();
    let guard = other.adopt(&lease).wait().unwrap();
    assert_eq!(guard.fence().unwrap(), fence);
    let lease = guard.detach().wait().unwrap();
    assert_eq!(other.release_outcome(&lease, None).wait().unwrap(), Release::Released);
    assert_eq!(other.adopt(&lease).wait().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn a_cooldown_keeps_the_lock_closed() {
    let (_, client) = world();
    let guard = client.mutex("key").lock().wait().unwrap();
    assert_eq!(
        guard.release_with_cooldown_outcome(Cooldown::new(EVER).unwrap()).wait().unwrap(),
        Release::Released
    );
    assert!(client.mutex("key").try_lock().wait().unwrap().is_none());
}

#[test]
fn a_body_runs_under_the_lock_and_its_value_comes_back() {
    let (_, client) = world();
    let mutex = client.mutex("key");
    let value = mutex
        .run(async |lease| {
            assert!(lease.is_held());
            assert!(mutex.try_run(async |_| ()).wait().unwrap().is_none());
            7
        })
        .wait();
    assert_eq!(value.unwrap(), 7);
    assert_eq!(
        mutex.try_run(async |lease| lease.key().clone()).wait().unwrap(),
        Some(Key::new("key").unwrap())
    );
    assert!(client.inspect("key").wait().unwrap().is_none());
}

#[test]
fn a_body_that_outlives_its_lease_learns_whether_another_holder_was_there() {
    let (store, client) = world();
    let mutex = client.mutex("key").renew(false).ttl(SHORT);
    let late = mutex
        .run(async |lease| {
            lease.lost().wait().unwrap();
            eventually("the lease runs out at the store", || {
                client.inspect("key").wait().unwrap().is_none()
            });
        })
        .wait();
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Late);
    let other = client_of(&store);
    let lost = mutex.run(async |_| drop(other.mutex("key").lock().wait().unwrap())).wait();
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn a_body_that_panics_releases_the_lock() {
    let (_, client) = world();
    let mutex = client.mutex("key");
    let run = catch_unwind(AssertUnwindSafe(|| {
        mutex.run(async |_| panic!("the body went wrong")).wait()
    }));
    assert!(run.is_err());
    drop(mutex.lock_within(EVER).wait().unwrap());
}

#[test]
fn a_dropped_guard_lets_the_next_one_in() {
    let (_, client) = world();
    let mutex = client.mutex("key");
    drop(mutex.lock().wait().unwrap());
    drop(mutex.lock_within(EVER).wait().unwrap());
}

#[test]
fn an_examination_says_the_same_to_each_client() {
    let (store, client) = world();
    let findings = client.examine().wait().unwrap();
    assert!(!findings.is_empty());
    assert_eq!(client_of(&store).examine().wait().unwrap(), findings);
}

#[test]
fn all_that_a_client_holds_is_released_at_once() {
    let (_, client) = world();
    let guards = ["b", "a"].map(|key| client.mutex(key).lock().wait().unwrap());
    let released = client.release_all_outcomes().wait().unwrap();
    let released: Vec<_> = released.iter().map(|(key, outcome)| (key.as_str(), outcome)).collect();
    assert!(matches!(released[..], [("a", Ok(Release::Released)), ("b", Ok(Release::Released))]));
    assert!(guards.iter().all(|guard| !guard.is_held()));
    assert!(client.list("*").wait().unwrap().locks.is_empty());
}

#[test]
fn a_closed_client_has_released_everything_and_takes_nothing_new() {
    let (store, client) = world();
    let guard = client.mutex("kept").lock().wait().unwrap();
    drop(client.mutex("dropped").lock().wait().unwrap());
    client.close().wait().unwrap();
    assert!(!guard.is_held());
    assert!(client_of(&store).list("").wait().unwrap().locks.is_empty());
    assert_eq!(client.mutex("new").try_lock().wait().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn closing_ends_the_wait_of_another_thread() {
    let (store, client) = world();
    let guard = client_of(&store).mutex("key").lock().wait().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("key").lock().wait());
        eventually("the thread is in the queue", || {
            client_of(&store)
                .inspect("key")
                .wait()
                .unwrap()
                .is_some_and(|info| !info.waiters.is_empty())
        });
        client.close().wait().unwrap();
        assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    });
    drop(guard);
}

#[test]
fn settings_arrive_where_they_belong() {
    let (store, _) = world();
    let store = Arc::new(store);
    let client = Client::builder()
        .ttl(Duration::from_secs(40))
        .min_ttl(Duration::from_secs(5))
        .owner("by default")
        .call_timeout(Duration::from_secs(1))
        .local_handoffs(0)
        .store(Arc::<MemoryStore>::clone(&store))
        .unwrap();
    assert_eq!(client.owner().as_str(), "by default");
    assert_eq!(client.location(), store.location());
    assert_eq!(client.store().location(), store.location());

    let key = Key::new("key").unwrap();
    let mutex = client.mutex(&key).owner("me").metadata("host=web-7");
    assert_eq!(mutex.key().unwrap(), &key);
    let guard = mutex.lock().wait().unwrap();
    assert!(guard.ttl().wait().unwrap() > Duration::from_secs(30));
    let holder = client.inspect("key").wait().unwrap().unwrap().holders.remove(0);
    assert_eq!((holder.owner.as_str(), holder.metadata.as_str()), ("me", "host=web-7"));

    let error = mutex.max_waiters(0).lock().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    drop(guard);

    let capped = client.mutex("capped").ttl(Duration::from_secs(5)).max_hold(SHORT);
    capped.lock().wait().unwrap().lost().wait().unwrap();
    let hasty = client.mutex("hasty").ttl(Duration::from_secs(5));
    let guard = hasty.stop_grace(Duration::from_secs(1)).lock().wait().unwrap();
    assert!(guard.lease().until_deadline() >= guard.remaining() + Duration::from_secs(1));

    for error in [
        client.mutex("short").ttl(Duration::from_secs(4)).try_lock().wait().unwrap_err(),
        client.mutex("").lock().wait().unwrap_err(),
        client.mutex("").key().unwrap_err(),
        Client::builder().call_timeout(Duration::ZERO).store(store).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
}

#[test]
fn a_url_that_names_no_store_is_an_error() {
    for url in ["", "no scheme", "gopher://example.org"] {
        let error = Client::connect(url).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
    }
}
