//! Threads that wait for the library's futures: the same promises, without a runtime.

mod calls;
#[cfg(feature = "interop")]
mod interop;
mod kinds;
mod outcomes;
mod runtime;
#[cfg(feature = "redis")]
mod stores;
#[cfg(unix)]
mod thread;

use std::sync::Arc;
use std::time::Duration;

use leasehold::Client;
use leasehold_embedded::MemoryStore;

/// Far longer than anything here takes; a test that gets there has hung.
const EVER: Duration = Duration::from_secs(60);

/// A store, and a client of it as a process of its own would have one.
fn world() -> (MemoryStore, Client) {
    let store = MemoryStore::new();
    let client = client_of(&store);
    (store, client)
}

fn client_of(store: &MemoryStore) -> Client {
    Client::new(Arc::new(store.clone())).unwrap()
}

/// Returns once `done` says so.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..EVER.as_millis() / 5 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it never came to pass: {what}");
}
