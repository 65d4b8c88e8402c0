//! Every kind of lock, from plain threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{ErrorKind, Owner, Release};

use super::{EVER, client_of, eventually, world};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn permits_are_limited_and_their_limit_can_be_changed() {
    let (store, client) = world();
    let two = client.semaphore("a", 2);
    let (one, other) = (two.acquire().unwrap(), two.acquire_within(EVER).unwrap());
    assert!(client_of(&store).semaphore("a", 2).try_acquire().unwrap().is_none());
    assert_eq!(two.acquire_within(SHORT).unwrap_err().kind(), ErrorKind::Timeout);
    let four = two.set_limit(4).unwrap();
    let many = four.acquire_many(2).unwrap();
    assert_eq!((one.permits(), many.lease().permits()), (Some(1), Some(2)));
    assert_eq!(four.available_permits().unwrap(), 0);
    assert!(four.try_acquire_many(4).unwrap().is_none());
    assert_eq!(four.acquire_many_within(5, SHORT).unwrap_err().kind(), ErrorKind::Config);
    drop((one, other));
    let many = many.release_permits(1).unwrap();
    assert_eq!(many.permits(), Some(1));
    eventually("all but one are free", || four.available_permits().unwrap() == 3);
    assert_eq!(many.release_outcome().unwrap(), Release::Released);
    eventually("all permits are back", || four.available_permits().unwrap() == 4);
}

#[test]
fn an_owner_takes_its_lock_again_from_any_thread() {
    let (_store, client) = world();
    let owner = Owner::new();
    let reentrant = client.reentrant("a", &owner);
    let outer = reentrant.lock().unwrap();
    let inner = {
        let reentrant = reentrant.clone();
        thread::spawn(move || reentrant.try_lock().unwrap().unwrap()).join().unwrap()
    };
    assert_eq!((inner.fence().unwrap(), inner.holds()), (outer.fence().unwrap(), 2));
    assert!(client.reentrant("a", &Owner::new()).try_lock().unwrap().is_none());
    assert_eq!(outer.release_outcome().unwrap(), Release::StillHeld { holds: 1 });
    assert!(inner.is_held() && inner.lease().is_held());
    assert_eq!(inner.release_outcome().unwrap(), Release::Released);
    drop(reentrant.lock_within(EVER).unwrap());
    eventually("it is free", || client.inspect("a").unwrap().is_none());
}

#[test]
fn readers_share_and_change_into_writers_and_back() {
    let (_store, client) = world();
    let lock = client.rwlock("a").preference(leasehold::RwPreference::Fifo);
    let (one, two) = (lock.read().unwrap(), lock.try_read().unwrap().unwrap());
    assert!(lock.try_write().unwrap().is_none());
    assert_eq!(lock.write_within(SHORT).unwrap_err().kind(), ErrorKind::Timeout);
    let (one, error) = one.upgrade().unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(two.release_outcome().unwrap(), Release::Released);
    let writer = one.upgrade().unwrap();
    assert!(writer.is_held() && lock.try_read().unwrap().is_none());
    let reader = writer.downgrade().unwrap();
    let other = lock.read_within(EVER).unwrap();
    assert_eq!(reader.release_outcome().unwrap(), Release::Released);
    assert_eq!(other.into_guard().release_outcome().unwrap(), Release::Released);
    assert_eq!(lock.write().unwrap().release_outcome().unwrap(), Release::Released);
    let writer = lock.write().unwrap().into_guard();
    assert!(writer.run(leasehold::blocking::HeldLease::is_held).unwrap());
    assert!(client.inspect("a").unwrap().is_none());
}

#[test]
fn several_locks_are_one() {
    let (_store, client) = world();
    let multi = client.multi(["b", "a"]);
    assert_eq!(multi.keys().unwrap()[0].as_str(), "a");
    let guard = multi.lock().unwrap();
    guard.check().unwrap();
    assert!(guard.is_held() && guard.remaining() > Duration::ZERO);
    assert!(multi.try_lock().unwrap().is_none());
    assert_eq!(multi.lock_within(SHORT).unwrap_err().kind(), ErrorKind::Timeout);
    let fence = guard.fences().unwrap()[1].1;
    client.ask("a").unwrap();
    guard.asked().unwrap();
    client.force_release("b", fence).unwrap();
    assert_eq!(guard.leases().len(), 2);
    let outcomes: Vec<_> = guard.release_outcomes().unwrap().into_iter().collect();
    assert_eq!(*outcomes[0].1.as_ref().unwrap(), Release::Released);
    let fixed = multi.renew(false).ttl(Duration::from_millis(600));
    fixed.lock().unwrap().lost().unwrap();
    assert_eq!(multi_guards(&client), 2);
}

fn multi_guards(client: &leasehold::blocking::Client) -> usize {
    client.multi(["c", "d"]).lock().unwrap().into_guards().len()
}

#[test]
fn a_job_starts_once_per_period() {
    let (_store, client) = world();
    let job = client.once_per("a", EVER);
    assert_eq!(job.run_or_reopen(|_| Err::<(), _>("no paper")).unwrap(), Some(Err("no paper")));
    let guard = job.try_start().unwrap().unwrap();
    assert_eq!(guard.release_and_reopen_outcome().unwrap(), Release::Released);
    assert_eq!(job.run(|lease| lease.is_held()).unwrap(), Some(true));
    assert_eq!(job.run(|lease| lease.is_held()).unwrap(), None);
    let other = client.once_per("b", EVER).try_start().unwrap().unwrap();
    assert!(other.is_held());
    assert_eq!(other.release_outcome().unwrap(), Release::Released);
    assert!(client.once_per("b", EVER).try_start().unwrap().is_none());
}

#[test]
fn a_leader_is_seen_and_follows_another() {
    let (_store, client) = world();
    let post = client.election("a").look_every(Duration::from_millis(10));
    let mut observer = post.observe();
    assert!(observer.changed().unwrap().is_none());
    let leadership = post.campaign().unwrap();
    assert!(post.try_campaign().unwrap().is_none());
    assert_eq!(post.campaign_within(SHORT).unwrap_err().kind(), ErrorKind::Timeout);
    let seen = observer.changed().unwrap().unwrap();
    assert_eq!(seen.fence, leadership.fence().unwrap());
    assert_eq!(post.leader().unwrap().unwrap(), seen);
    assert_eq!(leadership.resign_outcome().unwrap(), Release::Released);
    assert_eq!(post.run(|| false, leasehold::blocking::HeldLease::is_held).unwrap(), Some(true));

    let (stop, terms) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let candidate = {
        let (post, stop, terms) = (post.clone(), Arc::clone(&stop), Arc::clone(&terms));
        thread::spawn(move || {
            let elected = |lease: &leasehold::blocking::HeldLease| {
                assert!(lease.is_held());
                terms.fetch_add(1, Ordering::SeqCst);
            };
            let down = || {
                terms.fetch_add(10, Ordering::SeqCst);
            };
            post.run_callbacks(|| stop.load(Ordering::SeqCst), elected, down).unwrap();
        })
    };
    eventually("it leads", || terms.load(Ordering::SeqCst) == 1);
    stop.store(true, Ordering::SeqCst);
    candidate.join().unwrap();
    assert_eq!(terms.load(Ordering::SeqCst), 11);
    assert!(post.run(|| true, |_| ()).unwrap().is_none());
}

#[test]
fn a_holder_is_asked_to_let_go() {
    let (store, client) = world();
    let guard = client.mutex("a").lock().unwrap();
    assert!(!guard.asked_within(SHORT).unwrap());
    let holder = thread::spawn(move || {
        guard.asked().unwrap();
        assert!(guard.is_asked() && guard.lease().is_asked());
        guard.release_outcome().unwrap()
    });
    let other = client_of(&store);
    assert!(other.mutex("a").ask().unwrap());
    drop(other.mutex("a").lock().unwrap());
    assert_eq!(holder.join().unwrap(), Release::Released);
    let guard = other.mutex("b").lock().unwrap();
    assert_eq!(client.ask_holder("b", guard.fence().unwrap()).unwrap(), 1);
    assert!(guard.lease().asked_within(EVER).unwrap());
    assert_eq!(client.ask("c").unwrap(), 0);
}
