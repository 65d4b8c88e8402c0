//! Waits where there is a runtime: refused where they would delay its tasks, good elsewhere.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use leasehold::clock::SystemClock;
use leasehold::store::{Clock, Moment};
use leasehold::{Client, ErrorKind, Wait as _};
use leasehold_embedded::MemoryStore;
use tokio::runtime::{Builder, Runtime};

use super::{EVER, client_of, eventually, world};

fn runtimes() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()]
        .map(|mut builder| builder.enable_all().build().unwrap())
}

/// Makes every call that waits, and expects each to be refused.
fn expect_misuse(store: &MemoryStore) {
    let client = thread::scope(|scope| scope.spawn(|| client_of(store)).join().unwrap());
    let mutex = client.mutex("key");
    let refused = |kind: Result<(), leasehold::Error>| {
        let error = kind.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.to_string().contains("spawn_blocking"), "{error}");
    };
    refused(Client::connect("memory:").wait().map(drop));
    refused(mutex.try_lock().wait().map(drop));
    refused(mutex.lock().wait().map(drop));
    refused(mutex.lock_within(EVER).wait().map(drop));
    refused(mutex.run(async |_| ()).wait().map_err(leasehold::Error::from));
    refused(mutex.try_run(async |_| ()).wait().map(drop).map_err(leasehold::Error::from));
    refused(client.inspect("key").wait().map(drop));
    refused(client.list("").wait().map(drop));
    refused(client.examine().wait().map(drop));
    refused(client.release_all().wait());

    let guard = thread::scope(|scope| scope.spawn(|| mutex.lock().wait().unwrap()).join().unwrap());
    assert!(guard.is_held());
    refused(guard.ttl().wait().map(drop));
    refused(guard.is_held_by_store().wait().map(drop));
    refused(guard.renew_to(EVER).wait());
    refused(guard.lost().wait());
    refused(guard.lost().wait_within(EVER).map(drop));
    // Still consumed: released in the background.
    refused(guard.release().wait());
    thread::scope(|scope| {
        scope.spawn(|| drop(mutex.lock_within(EVER).wait().unwrap()));
    });
    let dropped =
        thread::scope(|scope| scope.spawn(|| mutex.lock().wait().unwrap()).join().unwrap());
    drop(dropped);
    refused(client.close().wait());
}

#[test]
fn a_wait_that_would_delay_a_runtime_is_refused() {
    for runtime in runtimes() {
        let store = MemoryStore::new();
        runtime.block_on(async { expect_misuse(&store) });
        let task = runtime.spawn(async move { expect_misuse(&store) });
        runtime.block_on(task).unwrap();
    }
}

#[test]
fn a_thread_may_wait_in_spawn_blocking() {
    for runtime in runtimes() {
        let (_, client) = world();
        let call = runtime.spawn_blocking(move || {
            let guard = client.mutex("key").lock().wait().unwrap();
            client.mutex("key").try_lock().wait().unwrap().is_none()
                && guard.release().wait().is_ok()
        });
        assert!(runtime.block_on(call).unwrap());
    }
}

#[test]
fn a_thread_may_wait_in_block_in_place() {
    let [_, runtime] = runtimes();
    let (_, client) = world();
    let call = runtime.spawn(async move {
        tokio::task::block_in_place(|| client.mutex("key").lock().wait().map(drop).unwrap());
    });
    runtime.block_on(call).unwrap();
}

#[test]
fn a_thread_may_wait_where_a_runtime_was_only_entered() {
    let [runtime, _] = runtimes();
    let entered = runtime.enter();
    let (_, client) = world();
    drop(client.mutex("key").lock().wait().unwrap());
    drop(entered);
}

#[test]
fn a_wait_from_a_task_without_a_budget_still_ends() {
    // It looks like code in `spawn_blocking`; at least nothing panics or hangs.
    for runtime in runtimes() {
        let (_, client) = world();
        runtime.block_on(tokio::task::unconstrained(async {
            let mutex = client.mutex("key").ttl(Duration::from_millis(600)).renew(false);
            mutex.lock().wait().unwrap().lost().wait().unwrap();
        }));
    }
}

/// A clock that uses the client whose clock it is, from the client's own thread.
#[derive(Debug, Default)]
struct Meddler {
    client: OnceLock<Client>,
    seen: OnceLock<String>,
}

impl Clock for Meddler {
    fn now(&self) -> Moment {
        if thread::current().name() == Some("leasehold")
            && let Some(client) = self.client.get()
        {
            self.seen.get_or_init(|| match client.inspect("key").wait() {
                Err(error) if error.kind() == ErrorKind::Misuse => error.to_string(),
                other => format!("not refused: {other:?}"),
            });
        }
        SystemClock::new().now()
    }
}

#[test]
fn leaseholds_own_thread_does_not_wait_for_itself() {
    let clock = Arc::new(Meddler::default());
    let store = Arc::new(MemoryStore::new());
    let client = Client::builder().clock(Arc::<Meddler>::clone(&clock)).store(store).unwrap();
    clock.client.set(client.clone()).unwrap();
    let guard = client.mutex("key").lock().wait().unwrap();
    eventually("the client's thread reads the clock", || clock.seen.get().is_some());
    let seen = clock.seen.get().unwrap();
    assert!(seen.contains("can't wait for itself"), "{seen}");
    drop(guard);
}
