//! Every kind of lock, from plain threads.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Client, ErrorKind, HeldLease, Owner, Release, Wait as _};

use super::{EVER, client_of, eventually, world};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn permits_are_limited_and_their_limit_can_be_changed() {
    let (store, client) = world();
    let two = client.semaphore("a", 2);
    let (one, other) = (two.acquire().wait().unwrap(), two.acquire_within(EVER).wait().unwrap());
    assert!(client_of(&store).semaphore("a", 2).try_acquire().wait().unwrap().is_none());
    assert_eq!(two.acquire_within(SHORT).wait().unwrap_err().kind(), ErrorKind::Timeout);
    let four = two.set_limit(4).wait().unwrap();
    let many = four.acquire_many(2).wait().unwrap();
    assert_eq!((one.permits(), many.lease().permits()), (Some(1), Some(2)));
    assert_eq!(four.available_permits().wait().unwrap(), 0);
    assert!(four.try_acquire_many(4).wait().unwrap().is_none());
    assert_eq!(four.acquire_many_within(5, SHORT).wait().unwrap_err().kind(), ErrorKind::Config);
    drop((one, other));
    let many = many.release_permits(1).wait().unwrap();
    assert_eq!(many.permits(), Some(1));
    eventually("all but one are free", || four.available_permits().wait().unwrap() == 3);
    assert_eq!(many.release_outcome().wait().unwrap(), Release::Released);
    eventually("all permits are back", || four.available_permits().wait().unwrap() == 4);
}

#[test]
fn an_owner_takes_its_lock_again_from_any_thread() {
    let (_store, client) = world();
    let owner = Owner::new();
    let reentrant = client.reentrant("a", &owner);
    let outer = reentrant.lock().wait().unwrap();
    let inner = {
        let reentrant = reentrant.clone();
        thread::spawn(move || reentrant.try_lock().wait().unwrap().unwrap()).join().unwrap()
    };
    assert_eq!((inner.fence().unwrap(), inner.holds()), (outer.fence().unwrap(), 2));
    assert!(client.reentrant("a", &Owner::new()).try_lock().wait().unwrap().is_none());
    assert_eq!(outer.release_outcome().wait().unwrap(), Release::StillHeld { holds: 1 });
    assert!(inner.is_held() && inner.lease().is_held());
    assert_eq!(inner.release_outcome().wait().unwrap(), Release::Released);
    drop(reentrant.lock_within(EVER).wait().unwrap());
    eventually("it is free", || client.inspect("a").wait().unwrap().is_none());
}

#[test]
fn readers_share_and_change_into_writers_and_back() {
    let (_store, client) = world();
    let lock = client.rwlock("a").preference(leasehold::RwPreference::Fifo);
    let (one, two) = (lock.read().wait().unwrap(), lock.try_read().wait().unwrap().unwrap());
    assert!(lock.try_write().wait().unwrap().is_none());
    assert_eq!(lock.write_within(SHORT).wait().unwrap_err().kind(), ErrorKind::Timeout);
    let (one, error) = one.upgrade().wait().unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(two.release_outcome().wait().unwrap(), Release::Released);
    let writer = one.unwrap().upgrade().wait().unwrap();
    assert!(writer.is_held() && lock.try_read().wait().unwrap().is_none());
    let reader = writer.downgrade().wait().unwrap();
    let other = lock.read_within(EVER).wait().unwrap();
    assert_eq!(reader.release_outcome().wait().unwrap(), Release::Released);
    assert_eq!(other.into_guard().release_outcome().wait().unwrap(), Release::Released);
    assert_eq!(lock.write().wait().unwrap().release_outcome().wait().unwrap(), Release::Released);
    let writer = lock.write().wait().unwrap().into_guard();
    assert!(writer.run(async |lease| lease.is_held()).wait().unwrap());
    assert!(client.inspect("a").wait().unwrap().is_none());
}

#[test]
fn several_locks_are_one() {
    let (_store, client) = world();
    let multi = client.multi(["b", "a"]);
    assert_eq!(multi.keys().unwrap()[0].as_str(), "a");
    let guard = multi.lock().wait().unwrap();
    guard.check().unwrap();
    assert!(guard.is_held() && guard.remaining() > Duration::ZERO);
    assert!(multi.try_lock().wait().unwrap().is_none());
    assert_eq!(multi.lock_within(SHORT).wait().unwrap_err().kind(), ErrorKind::Timeout);
    let fence = guard.fences().unwrap()[1].1;
    client.ask("a").wait().unwrap();
    guard.asked().wait().unwrap();
    client.force_release("b", fence).wait().unwrap();
    assert_eq!(guard.leases().len(), 2);
    let outcomes: Vec<_> = guard.release_outcomes().wait().unwrap().into_iter().collect();
    assert_eq!(*outcomes[0].1.as_ref().unwrap(), Release::Released);
    let fixed = multi.renew(false).ttl(Duration::from_millis(600));
    fixed.lock().wait().unwrap().lost().wait().unwrap();
    assert_eq!(multi_guards(&client), 2);
}

fn multi_guards(client: &Client) -> usize {
    client.multi(["c", "d"]).lock().wait().unwrap().into_guards().len()
}

#[test]
fn a_job_starts_once_per_period() {
    let (_store, client) = world();
    let job = client.once_per("a", EVER);
    assert_eq!(
        job.run_or_reopen(async |_| Err::<(), _>("no paper")).wait().unwrap(),
        Some(Err("no paper"))
    );
    let guard = job.try_start().wait().unwrap().unwrap();
    assert_eq!(guard.release_and_reopen_outcome().wait().unwrap(), Release::Released);
    assert_eq!(job.run(async |lease| lease.is_held()).wait().unwrap(), Some(true));
    assert_eq!(job.run(async |lease| lease.is_held()).wait().unwrap(), None);
    let other = client.once_per("b", EVER).try_start().wait().unwrap().unwrap();
    assert!(other.is_held());
    assert_eq!(other.release_outcome().wait().unwrap(), Release::Released);
    assert!(client.once_per("b", EVER).try_start().wait().unwrap().is_none());
}

#[test]
fn a_leader_is_seen_and_follows_another() {
    let (_store, client) = world();
    let post = client.election("a").look_every(Duration::from_millis(10));
    let mut observer = post.observe();
    assert!(observer.changed().wait().unwrap().is_none());
    let leadership = post.campaign().wait().unwrap();
    assert!(post.try_campaign().wait().unwrap().is_none());
    assert_eq!(post.campaign_within(SHORT).wait().unwrap_err().kind(), ErrorKind::Timeout);
    let seen = observer.changed().wait().unwrap().unwrap();
    assert_eq!(seen.fence, leadership.fence().unwrap());
    assert_eq!(post.leader().wait().unwrap().unwrap(), seen);
    assert_eq!(leadership.resign_outcome().wait().unwrap(), Release::Released);
    assert_eq!(post.run(pending(), async |lease| lease.is_held()).wait().unwrap(), Some(true));

    let (stop, terms) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let candidate = {
        let (post, stop, terms) = (post.clone(), Arc::clone(&stop), Arc::clone(&terms));
        thread::spawn(move || {
            let stopped = async {
                while !stop.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let elected = |lease: &HeldLease| {
                assert!(lease.is_held());
                terms.fetch_add(1, Ordering::SeqCst);
            };
            let down = || {
                terms.fetch_add(10, Ordering::SeqCst);
            };
            post.run_callbacks(stopped, elected, down).wait().unwrap();
        })
    };
    eventually("it leads", || terms.load(Ordering::SeqCst) == 1);
    stop.store(true, Ordering::SeqCst);
    candidate.join().unwrap();
    assert_eq!(terms.load(Ordering::SeqCst), 11);
    assert!(post.run(ready(()), async |_| ()).wait().unwrap().is_none());
}

#[test]
fn a_holder_is_requested_to_release() {
    let (store, client) = world();
    let guard = client.mutex("a").lock().wait().unwrap();
    assert!(guard.asked().wait_within(SHORT).unwrap().is_none());
    let holder = thread::spawn(move || {
        guard.asked().wait().unwrap();
        assert!(guard.is_asked() && guard.lease().is_asked());
        guard.release_outcome().wait().unwrap()
    });
    let other = client_of(&store);
    assert!(other.mutex("a").ask().wait().unwrap());
    drop(other.mutex("a").lock().wait().unwrap());
    assert_eq!(holder.join().unwrap(), Release::Released);
    let guard = other.mutex("b").lock().wait().unwrap();
    assert_eq!(client.ask_holder("b", guard.fence().unwrap()).wait().unwrap(), 1);
    assert!(guard.lease().asked().wait_within(EVER).unwrap().is_some());
    assert_eq!(client.ask("c").wait().unwrap(), 0);
}
