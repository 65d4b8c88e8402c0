//! Callers on several runtimes, some of which are stopped or have ended.

use leasehold_core::{ClientId, ErrorKind, Key, LeaveRequest, Release, Store as _, Token, Wake};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::common::{Caller, WITHIN, key};

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn cycle(store: &RedisStore, key: &Key) {
    let caller = Caller::new(store, key);
    let fences = caller.take().await;
    let released = store.release(&caller.ending(fences), WITHIN).await.unwrap();
    assert_eq!(released, Release::Released);
}

/// Makes the queue grant a lease, and checks that the waiter's client is notified.
async fn hand_over(store: &RedisStore, client: ClientId) {
    let mut listener = store.listen(client, WITHIN).await.unwrap();
    let key = key();
    let holder = Caller::new(store, &key);
    let fences = holder.take().await;
    Caller::patient(store, &key, client).wait().await;
    store.release(&holder.ending(fences), WITHIN).await.unwrap();
    let wake = timeout(WITHIN, listener.next()).await.unwrap();
    assert!(matches!(wake, Wake::Granted { .. }), "{wake:?}");
}

/// Callers succeed after any use of the store on a runtime that is stopped, even with a request
/// under way there.
fn others_need_no_idle_runtime(url: &str) {
    let (left, other, threads) =
        (one_thread(), one_thread(), Builder::new_multi_thread().enable_all().build().unwrap());
    let (store, half_way) = left.block_on(async {
        let store = RedisStore::connect(url).await.unwrap();
        hand_over(&store, ClientId::generate().unwrap()).await;
        let lazy = RedisStore::connect_lazy(url).unwrap();
        // A connection is being made when it is left.
        let (key, its) = (key(), lazy.clone());
        drop(tokio::spawn(async move { cycle(&its, &key).await }));
        tokio::task::yield_now().await;
        (store, lazy)
    });
    for runtime in [&other, &threads, &other] {
        runtime.block_on(async {
            for store in [&store, &half_way] {
                cycle(store, &key()).await;
                hand_over(store, ClientId::generate().unwrap()).await;
            }
        });
    }
    left.block_on(async {
        cycle(&store, &key()).await;
        cycle(&half_way, &key()).await;
    });
}

#[test]
fn others_need_no_idle_runtime_for_a_server() {
    others_need_no_idle_runtime(&RedisServer::start().url());
}

#[test]
fn others_need_no_idle_runtime_for_what_sentinels_watch() {
    others_need_no_idle_runtime(&SentinelSet::start().url());
}

#[test]
fn others_need_no_idle_runtime_for_a_cluster() {
    others_need_no_idle_runtime(&Cluster::start().url());
}

#[test]
fn others_need_no_runtime_whose_threads_are_all_blocked() {
    let server = RedisServer::start();
    let store = RedisStore::connect_lazy(&server.url()).unwrap();
    let blocked = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (its, made) = (store.clone(), key());
    blocked.block_on(blocked.spawn(async move { cycle(&its, &made).await })).unwrap();
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = std::sync::mpsc::channel();
    blocked.spawn(async move {
        begins.send(()).unwrap();
        end.recv().unwrap_err()
    });
    begun.recv().unwrap();
    one_thread().block_on(async {
        cycle(&store, &key()).await;
        hand_over(&store, ClientId::generate().unwrap()).await;
    });
    drop(ends);
}

#[test]
fn a_runtime_that_ends_costs_callers_on_others_nothing() {
    let server = RedisServer::start();
    let store = RedisStore::connect_lazy(&server.url()).unwrap();
    let lasting = one_thread();
    for _ in 0..20 {
        let ending = one_thread();
        ending.block_on(cycle(&store, &key()));
        lasting.block_on(async {
            let (store, its, key) = (store.clone(), store.clone(), key());
            let cycles = tokio::spawn(async move {
                for _ in 0..20 {
                    cycle(&its, &key).await;
                }
            });
            tokio::task::yield_now().await;
            ending.shutdown_background();
            cycles.await.unwrap();
            hand_over(&store, ClientId::generate().unwrap()).await;
        });
    }
}

#[test]
fn a_runtime_that_ends_while_its_caller_connects_costs_others_nothing() {
    let server = RedisServer::start();
    for _ in 0..50 {
        let store = RedisStore::connect_lazy(&server.url()).unwrap();
        let ending = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (its, made) = (store.clone(), key());
        ending.spawn(async move { cycle(&its, &made).await });
        one_thread().block_on(async {
            let key = key();
            let cycles = cycle(&store, &key);
            let ends = async {
                tokio::task::yield_now().await;
                ending.shutdown_background();
            };
            tokio::join!(cycles, ends);
        });
    }
}

#[test]
fn callers_on_all_runtimes_share_one_connection() {
    let server = RedisServer::start();
    let store = RedisStore::connect_lazy(&server.url()).unwrap();
    let connected = || {
        let clients = server.cli(&["CLIENT", "LIST", "TYPE", "normal"]);
        // One of them is the connection of this command.
        clients.lines().filter(|line| !line.is_empty()).count() - 1
    };
    let lasting = one_thread();
    for _ in 0..20 {
        let ending = one_thread();
        for runtime in [&ending, &lasting, &ending, &lasting] {
            runtime.block_on(cycle(&store, &key()));
        }
        assert_eq!(connected(), 1);
    }
}

/// The child has its parent's sockets and not the thread that reads them: what it sent there would
/// be answered to the parent, in place of the parent's own requests.
#[cfg(unix)]
#[test]
fn a_forks_child_can_not_use_its_parents_connection() {
    let server = RedisServer::start();
    let store = RedisStore::connect_lazy(&server.url()).unwrap();
    let runtime = one_thread();
    runtime.block_on(cycle(&store, &key()));
    let made_before = one_thread();
    // SAFETY: the child polls one future, which ends without a wait, and leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let request = LeaveRequest::new(key(), Token::generate().unwrap());
        let refused = made_before.block_on(store.leave(&request, WITHIN));
        let is_misuse = refused.is_err_and(|error| error.kind() == ErrorKind::Misuse);
        // SAFETY: ends the child without what belongs to the parent.
        unsafe { libc::_exit(if is_misuse { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    runtime.block_on(cycle(&store, &key()));
}
