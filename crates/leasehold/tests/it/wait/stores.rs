//! The same code on every store, with its files and sockets.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Client, ErrorKind, Release, Wait as _};
use leasehold_testkit::server::{RedisServer, shared};

use super::EVER;

/// Threads with clients of their own count under one lock, then two contend, then a lease is lost.
fn try_out(url: &str) {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 5;
    let count = AtomicU32::new(0);
    let shared = Client::connect(url).wait().unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            // Each client of `memory:` has a store of its own.
            let client = if url == "memory:" {
                shared.clone()
            } else {
                Client::connect(url).wait().unwrap()
            };
            let count = &count;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let add = async |_| {
                        let seen = count.load(Ordering::Relaxed);
                        thread::yield_now();
                        count.store(seen + 1, Ordering::Relaxed);
                    };
                    client.mutex("count").run(add).wait().unwrap();
                }
            });
        }
    });
    assert_eq!(count.into_inner(), THREADS * ROUNDS, "{url}");

    let guard = shared.mutex("key").lock().wait().unwrap();
    let error = shared.mutex("key").lock_within(Duration::from_millis(50)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{url}");
    assert_eq!(guard.release_outcome().wait().unwrap(), Release::Released, "{url}");

    let fixed = shared.mutex("key").renew(false).ttl(Duration::from_millis(600));
    let guard = fixed.lock().wait().unwrap();
    assert!(guard.lost().wait_within(EVER).unwrap().is_some(), "{url}");
    drop(guard);
    shared.close().wait().unwrap();
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
    let client = Client::connect(server.url()).wait().unwrap();
    server.kill();
    let error = client.mutex("key").try_lock().wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = Client::connect(server.url()).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
