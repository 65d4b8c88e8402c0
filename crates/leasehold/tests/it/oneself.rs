//! What a client says of a wait for a lock that it has itself.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use leasehold::{Error, ErrorKind, Fairness};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::{World, secs};

const WARNING: &str = "took itself";
const WORDS: &str = "while this client held it itself";

/// Keeps the warnings of this thread.
#[derive(Clone, Debug, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn all(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_its_own_lock_is_warned_once_and_again_at_the_end() {
    let warnings = Warnings::default();
    let _default = tracing::subscriber::set_default(warnings.clone());
    let client = World::new().client();
    let is_told = |error: Error, waits: usize| {
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains(WORDS), "{error}");
        let told = warnings.all();
        assert_eq!(told.len(), waits, "{told:?}");
        assert!(
            told.iter().all(|told| told.contains(WARNING) && told.contains("key=k")),
            "{told:?}"
        );
    };
    for fairness in [Fairness::Fifo, Fairness::Barging] {
        let mutex = client.mutex("k").fairness(fairness);
        let guard = mutex.lock().await.unwrap();
        is_told(mutex.lock_within(secs(300)).await.unwrap_err(), 1);
        // A wait that ends before the ttl is reported by its error alone.
        is_told(mutex.lock_within(secs(5)).await.unwrap_err(), 0);
        guard.release().await.unwrap();
    }
    for fairness in [Fairness::Fifo, Fairness::Barging] {
        let both = client.multi(["a", "k", "z"]).fairness(fairness);
        let guard = client.mutex("k").lock().await.unwrap();
        is_told(both.lock_within(secs(300)).await.unwrap_err(), 1);
        guard.release().await.unwrap();
        let guard = client.multi(["j", "k"]).lock().await.unwrap();
        is_told(both.lock_within(secs(300)).await.unwrap_err(), 1);
        is_told(client.mutex("k").lock_within(secs(300)).await.unwrap_err(), 1);
        guard.release().await.unwrap();
    }
    let lock = client.rwlock("k");
    let reading = lock.read().await.unwrap();
    is_told(lock.write_within(secs(300)).await.unwrap_err(), 1);
    reading.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_that_take_turns_are_not_warned() {
    let warnings = Warnings::default();
    let _default = tracing::subscriber::set_default(warnings.clone());
    let (world, client) = (World::new(), World::new().client());
    let mutex = client.mutex("k");
    let guard = mutex.lock().await.unwrap();
    let other = tokio::spawn({
        let mutex = mutex.clone();
        async move {
            let guard = mutex.lock().await.unwrap();
            tokio::time::sleep(secs(300)).await;
            guard.release().await.unwrap();
        }
    });
    tokio::time::sleep(secs(100)).await;
    // It goes to the other one inside the process, and is not this one's any more.
    guard.release().await.unwrap();
    let error = mutex.lock_within(secs(100)).await.unwrap_err();
    assert!(error.to_string().contains(WORDS), "{error}");
    mutex.lock().await.unwrap().release().await.unwrap();
    other.await.unwrap();

    // Another client's lease does not count.
    let there = world.client();
    let held = there.mutex("k").lock().await.unwrap();
    let error = world.client().mutex("k").lock_within(secs(100)).await.unwrap_err();
    assert!(!error.to_string().contains(WORDS), "{error}");
    held.release().await.unwrap();

    // Who hands permits out takes each of them.
    let semaphore = client.semaphore("s", 1);
    let permit = semaphore.acquire().await.unwrap();
    let work = tokio::spawn(async move {
        tokio::time::sleep(secs(300)).await;
        permit.release().await.unwrap();
    });
    semaphore.acquire().await.unwrap().release().await.unwrap();
    work.await.unwrap();
    assert_eq!(warnings.all(), [""; 0]);
}
