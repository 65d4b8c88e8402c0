//! Locks of other libraries, for threads.

use std::time::Duration;

use leasehold::interop::{Layout, Plain, Redisson};
use leasehold::{ErrorKind, Owner, Release, Wait as _};
use leasehold_testkit::server::RedisServer;

use super::{EVER, eventually};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_thread_is_woken_by_another_program_and_learns_when_it_ends_the_lease() {
    let server = RedisServer::start();
    drop(server.cli(&["SET", "orders", "another's", "PX", "600000"]));
    let locks = Plain::connect(server.url(), Layout::Redislock).wait().unwrap();
    let mutex = locks.mutex("orders").ttl(HOUR).metadata("billing");
    assert!(mutex.try_lock().wait().unwrap().is_none());
    let waiting = std::thread::spawn(move || mutex.lock_within(EVER).wait().unwrap());
    eventually("the key is watched", || server.info("stats")["tracking_total_keys"] != "0");
    drop(server.cli(&["DEL", "orders"]));
    let guard = waiting.join().unwrap();
    assert_eq!(locks.metadata("orders").wait().unwrap().unwrap().as_str(), "billing");
    guard.renew_to(HOUR).wait().unwrap();
    assert!(guard.is_held_by_store().wait().unwrap() && guard.ttl().wait().unwrap() > HOUR / 2);
    assert!(guard.lost().wait_within(Duration::ZERO).unwrap().is_none());
    drop(server.cli(&["SET", "orders", "another's"]));
    assert!(guard.lost().wait_within(EVER).unwrap().is_some());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release_outcome().wait().unwrap(), Release::NotHeld);
    locks.close().wait().unwrap();
}

#[test]
fn a_lock_that_is_locked_again_is_refreshed_or_acquired_again() {
    let server = RedisServer::start();
    let locks = Plain::connect(server.url(), Layout::Redislock).wait().unwrap();
    let mutex = locks.mutex("a").ttl(HOUR).renew(false);
    let guard = mutex.lock().wait().unwrap();
    let token = guard.token();
    let guard = mutex.relock(guard).wait().unwrap().unwrap();
    assert_eq!(guard.token(), token);
    drop(server.cli(&["DEL", "a"]));
    let guard = mutex.relock(guard).wait().unwrap().unwrap();
    assert_ne!(guard.token(), token);
    drop(server.cli(&["SET", "a", "another's"]));
    assert!(mutex.relock(guard).wait().unwrap().is_none());
    locks.close().wait().unwrap();
}

#[test]
fn a_body_runs_under_another_librarys_lock() {
    let server = RedisServer::start();
    let locks = Plain::connect(server.url(), Layout::Symfony).wait().unwrap();
    let guard = locks.mutex("orders").lock().wait().unwrap();
    let ran =
        guard.run(async |lease| lease.check().map(|()| server.cli(&["ZCARD", "orders"]))).wait();
    assert_eq!(ran.unwrap().unwrap().trim(), "2");
    assert_eq!(server.cli(&["EXISTS", "orders"]).trim(), "0");
    let lost = locks
        .mutex("orders")
        .lock()
        .wait()
        .unwrap()
        .run(async |lease| {
            drop(server.cli(&["DEL", "orders"]));
            lease.lost().wait_within(EVER).unwrap().is_some()
        })
        .wait();
    assert_eq!(lost.unwrap_err().into_output(), Some(true));
}

#[test]
fn threads_share_redissons_lock_by_its_owner() {
    let server = RedisServer::start();
    let locks = Redisson::connect_fenced(server.url()).wait().unwrap();
    let (owner, stranger) = (Owner::new(), Owner::new());
    let outer = locks.lock("a", &owner).lock().wait().unwrap();
    let inner = locks.lock("a", &owner).ttl(HOUR).try_lock().wait().unwrap().unwrap();
    assert!(locks.lock("a", &stranger).try_lock().wait().unwrap().is_none());
    assert_eq!((inner.holds(), inner.token().unwrap()), (2, Some(1)));
    assert_eq!(inner.release().wait().unwrap(), 1);
    drop(server.cli(&["DEL", "a"]));
    outer.lost().wait().unwrap();
    assert_eq!(outer.release().wait().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(
        locks.lock("a", &stranger).lock_within(EVER).wait().unwrap().token().unwrap(),
        Some(2)
    );
}

#[test]
fn a_layout_of_the_other_type_and_a_value_of_another_type_are_refused() {
    let server = RedisServer::start();
    let error = Plain::connect(server.url(), Layout::Redisson).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    drop(server.cli(&["RPUSH", "a", "x"]));
    let locks = Redisson::connect(server.url()).wait().unwrap();
    let error = locks.lock("a", &Owner::new()).try_lock().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign);
}

#[tokio::test]
async fn inside_a_runtime_it_is_refused() {
    let error = Redisson::connect("redis://127.0.0.1:1").wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
}
