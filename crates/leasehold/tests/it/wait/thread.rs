//! The thread behind all clients: there once for a process, and not in a fork's child.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Error, ErrorKind, Guard, Mutex, Result, Wait as _, WriteGuard};
use leasehold_embedded::MemoryStore;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use super::{client_of, eventually, world};
use crate::alone::alone;

/// The names of this process's threads.
#[cfg(target_os = "linux")]
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // One that ends while we look has no name any more.
    tasks
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .collect()
}

/// How many threads are leasehold's. A new one has its name only after it has begun to run.
#[cfg(target_os = "linux")]
fn ours() -> usize {
    threads().iter().filter(|name| *name == "leasehold").count()
}

#[cfg(target_os = "linux")]
#[test]
fn all_clients_of_a_process_share_one_thread_which_cleans_up_what_they_leave() {
    alone(
        "wait::thread::all_clients_of_a_process_share_one_thread_which_cleans_up_what_they_leave",
        || {
            let others = threads().len();
            let (store, client) = world();
            eventually("the thread is there", || ours() == 1 && threads().len() == others + 1);
            let mutex = client.mutex("key");
            drop(client);
            let guard = mutex.lock().wait().unwrap();
            drop(mutex);
            let view = guard.lease().clone();
            drop((guard, view));
            // The guard's lease would run for 30 s.
            let next = client_of(&store);
            drop(next.mutex("key").lock_within(Duration::from_secs(20)).wait().unwrap());

            for _ in 0..50 {
                let (_, client) = world();
                drop(client.mutex("key").lock().wait().unwrap());
            }
            drop(Client::connect("gopher://example.org").wait().unwrap_err());
            let builder = Client::builder().call_timeout(Duration::ZERO);
            drop(builder.store(Arc::new(store.clone())).unwrap_err());
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let on_a_runtime = runtime.block_on(async {
                let client = Client::new(Arc::new(store)).unwrap();
                (client.mutex("another").lock().await.unwrap(), client)
            });
            assert_eq!((ours(), threads().len()), (1, others + 1));
            drop(on_a_runtime);
        },
    );
}

#[cfg(all(target_os = "linux", feature = "embedded", feature = "redis"))]
#[test]
fn no_store_leaves_a_thread_behind() {
    alone("wait::thread::no_store_leaves_a_thread_behind", || {
        let dir = tempfile::tempdir().unwrap();
        let server = leasehold_testkit::server::RedisServer::start();
        let (_, first) = world();
        eventually("the thread is there", || ours() == 1);
        let others = threads().len();
        for url in [format!("embedded:{}", dir.path().join("locks").display()), server.url()] {
            let client = Client::connect(&url).wait().unwrap();
            drop(client.mutex("key").lock().wait().unwrap());
            drop(client);
            eventually(&format!("all threads of {url} end"), || threads().len() == others);
            let client = Client::connect(&url).wait().unwrap();
            drop(client.mutex("key").lock_within(Duration::from_secs(20)).wait().unwrap());
            drop(client);
            eventually(&format!("all threads of {url} end"), || threads().len() == others);
        }
        drop(first);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_store_that_answers_no_release_delays_neither_a_drop_nor_other_clients() {
    alone(
        "wait::thread::a_store_that_answers_no_release_delays_neither_a_drop_nor_other_clients",
        || {
            let store = MemoryStore::new();
            let silent = Arc::new(FaultStore::new(Arc::new(store.clone())));
            silent.decide(|call| match call.op {
                Op::Release => Fault::Hang { applied: false },
                _ => Fault::None,
            });
            let client = Client::new(Arc::<FaultStore>::clone(&silent)).unwrap();
            let guard = client.mutex("key").lock().wait().unwrap();
            drop(guard);
            drop(client);
            eventually("the release is tried", || silent.count(Op::Release) > 0);
            let other = client_of(&store);
            assert!(other.mutex("key").try_lock().wait().unwrap().is_none());
            drop(other.mutex("another").lock().wait().unwrap());
            other.close().wait().unwrap();
        },
    );
}

#[cfg(unix)]
#[test]
fn a_forks_child_is_refused_and_never_hangs_and_harms_nothing() {
    alone("wait::thread::a_forks_child_is_refused_and_never_hangs_and_harms_nothing", || {
        let (store, client) = world();
        let mutex = client.mutex("key");
        let guard = mutex.lock().wait().unwrap();
        let another = client.mutex("another").lock().wait().unwrap();
        let writer = client.rwlock("third").write().wait().unwrap();

        // SAFETY: this process has no other thread that a lock could be waiting for, but the
        // client's, which is the point.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                in_the_child(&client, &mutex, guard, another, writer);
                drop((client, mutex));
            }));
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(if outcome.is_ok() { 0 } else { 1 }) };
        }
        assert!(child > 0);
        let mut status = 0;
        eventually("the child ends", || {
            // SAFETY: `status` has room for the answer.
            unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) == child }
        });
        assert_eq!(status, 0, "the child was not told what it should be");

        assert!(guard.is_held() && guard.is_held_by_store().wait().unwrap());
        assert!(another.is_held());
        assert!(writer.is_held_by_store().wait().unwrap());
        assert!(client_of(&store).mutex("key").try_lock().wait().unwrap().is_none());
        assert_eq!(guard.release_outcome().wait().unwrap(), leasehold::Release::Released);
        drop(mutex.lock().wait().unwrap());
    });
}

#[cfg(unix)]
fn in_the_child(client: &Client, mutex: &Mutex, guard: Guard, another: Guard, writer: WriteGuard) {
    let refused_as = |kind, outcome: Result<()>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("parent process"), "{error}");
    };
    let refused = |outcome| refused_as(ErrorKind::Misuse, outcome);
    refused(mutex.try_lock().wait().map(drop));
    refused(mutex.lock().wait().map(drop));
    refused(mutex.run(async |_| ()).wait().map_err(Error::from));
    refused(client.inspect("key").wait().map(drop));
    refused(client.list("").wait().map(drop));
    refused(client.examine().wait().map(drop));
    refused(client.ask("key").wait().map(drop));
    refused(client.release_all().wait());
    refused(client.close().wait());
    assert!(!guard.is_held());
    assert_eq!(guard.fence().unwrap_err().kind(), ErrorKind::Lost);
    assert!(guard.lease().cancellation_token().is_cancelled());
    guard.lost().wait().unwrap();
    refused(guard.renew_to(Duration::from_secs(1)).wait());
    refused(guard.ttl().wait().map(drop));
    refused_as(ErrorKind::Lost, guard.release().wait());
    refused(writer.downgrade().wait().map(drop).map_err(Error::from));
    drop(another);

    let (store, own) = world();
    // Renewed by a thread of the child's own.
    let kept = own.mutex("key").ttl(Duration::from_secs(6)).lock().wait().unwrap();
    let onlooker = client_of(&store);
    let left = || onlooker.inspect("key").wait().unwrap().unwrap().holders[0].remaining;
    let mut before = left();
    eventually("a renewal", || {
        let now = left();
        now > std::mem::replace(&mut before, now)
    });
    assert!(kept.is_held());
    assert!(onlooker.mutex("key").try_lock().wait().unwrap().is_none());
    kept.release().wait().unwrap();
    own.close().wait().unwrap();
}
