//! The same code on every store, with its files and sockets.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::blocking::Client;
use leasehold::{ErrorKind, Release};
use leasehold_testkit::server::{RedisServer, shared};

use super::EVER;

/// Threads with clients of their own count under one lock, then two contend, then a lease is lost.
fn try_out(url: &str) {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 5;
    let count = AtomicU32::new(0);
    let shared = Client::connect(url).unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            // Each client of `memory:` has a store of its own.
            let client =
                if url == "memory:" { shared.clone() } else { Client::connect(url).unwrap() };
            let count = &count;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let add = |_: &_| {
                        let seen = count.load(Ordering::Relaxed);
                        thread::yield_now();
                        count.store(seen + 1, Ordering::Relaxed);
                    };
                    client.mutex("blocking count").run(add).unwrap();
                }
            });
        }
    });
    assert_eq!(count.into_inner(), THREADS * ROUNDS, "{url}");

    let guard = shared.mutex("blocking key").lock().unwrap();
    let error = shared.mutex("blocking key").lock_within(Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{url}");
    assert_eq!(guard.release_outcome().unwrap(), Release::Released, "{url}");

    let fixed = shared.mutex("blocking key").renew(false).ttl(Duration::from_millis(600));
    let guard = fixed.lock().unwrap();
    assert!(guard.lost_within(EVER).unwrap(), "{url}");
    drop(guard);
    shared.close().unwrap();
}

#[test]
fn threads_share_a_lock_in_memory() {
    try_out("memory:");
}

#[test]
fn threads_share_a_lock_on_one_machine() {
    let dir = tempfile::tempdir().unwrap();
    try_out(&format!("embedded:{}", dir.path().join("locks").display()));
}

#[test]
fn threads_share_a_lock_on_a_server() {
    try_out(&shared().url());
}

#[test]
fn a_server_that_is_gone_is_an_error_and_no_hang() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).unwrap();
    server.kill();
    let error = client.mutex("key").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = Client::connect(server.url()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
