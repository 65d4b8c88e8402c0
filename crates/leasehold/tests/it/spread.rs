//! Several independent stores as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::store::{SpreadStore, Store};
use leasehold::{Client, ErrorKind, Key};
use leasehold_embedded::MemoryStore;
use leasehold_testkit::conformance_tests;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use crate::support::secs;

/// Stores in memory under these names.
fn memories(names: &[&str]) -> BTreeMap<String, Arc<dyn Store>> {
    let memory = |name: &&str| {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        ((*name).to_owned(), store)
    };
    names.iter().map(memory).collect()
}

fn spread(stores: &BTreeMap<String, Arc<dyn Store>>) -> SpreadStore {
    let stores = stores.iter().rev().map(|(name, store)| (name.clone(), Arc::clone(store)));
    SpreadStore::new(stores).unwrap()
}

mod memory {
    use super::*;

    fn of_three() -> Arc<dyn Store> {
        Arc::new(spread(&memories(&["a", "b", "c"])))
    }

    conformance_tests!(three, async || of_three(), lacks: [sets]);
}

async fn holds(store: &Arc<dyn Store>, key: &Key) -> bool {
    store.inspect(key, secs(1)).await.unwrap().is_some()
}

#[tokio::test]
async fn each_lock_is_in_one_store_and_all_are_listed_as_one() {
    let stores = memories(&["a", "b", "c"]);
    let spread = spread(&stores);
    let client = Client::new(Arc::new(spread.clone())).unwrap();
    // In another order, by another client.
    let other = Client::new(Arc::new(self::spread(&stores))).unwrap();
    let mut guards = Vec::new();
    for number in 0..60 {
        let key = Key::new(format!("lock/{number}")).unwrap();
        guards.push(client.mutex(&key).lock().await.unwrap());
        assert!(other.mutex(&key).try_lock().await.unwrap().is_none());
        for (name, store) in &stores {
            assert_eq!(holds(store, &key).await, *name == spread.store_of(&key), "{key}, {name}");
        }
        assert_eq!(other.inspect(&key).await.unwrap().unwrap().holders.len(), 1);
    }
    let listed = other.list("lock/").await.unwrap();
    assert_eq!(listed.locks.len(), 60);
    assert!(listed.locks.is_sorted_by_key(|lock| lock.key.clone()));
    // Locks of several stores are taken together, one after the other.
    let free = ["x/1", "x/2", "x/3", "x/4", "x/5", "x/6"];
    let multi = client.multi(free).lock().await.unwrap();
    assert!(other.multi(["x/6", "y"]).try_lock().await.unwrap().is_none());
    multi.release().await.unwrap();
    client.release_all().await.unwrap();
    assert!(other.list("").await.unwrap().locks.is_empty());
}

#[tokio::test]
async fn one_more_store_moves_only_what_it_takes() {
    let mut stores = memories(&["a", "b", "c"]);
    let before = spread(&stores);
    stores.extend(memories(&["d"]));
    let after = spread(&stores);
    let mut moved = 0;
    for number in 0..1_000 {
        let key = Key::new(format!("lock/{number}")).unwrap();
        if before.store_of(&key) != after.store_of(&key) {
            assert_eq!(after.store_of(&key), "d");
            moved += 1;
        }
    }
    assert!((150..350).contains(&moved), "{moved}");
    // A client still has the old list: the finding names such a lock.
    let old = Client::new(Arc::new(before.clone())).unwrap();
    let new = Client::new(Arc::new(after.clone())).unwrap();
    let astray = (0..).map(|number| Key::new(format!("lock/{number}")).unwrap());
    let astray = { astray }.find(|key| after.store_of(key) == "d").unwrap();
    let guard = old.mutex(&astray).lock().await.unwrap();
    let told = |findings: &[leasehold::store::doctor::Finding]| {
        findings.iter().any(|one| one.topic == "spread" && one.found.contains(astray.as_str()))
    };
    assert!(told(&new.examine().await.unwrap()));
    assert!(!told(&old.examine().await.unwrap()));
    guard.release().await.unwrap();
    assert!(!told(&new.examine().await.unwrap()));
}

#[tokio::test]
async fn a_store_that_is_away_takes_its_own_locks_with_it_and_no_others() {
    let mut stores = memories(&["a", "b"]);
    let faults = FaultStore::new(Arc::clone(&stores["b"]));
    stores.insert("b".to_owned(), Arc::new(faults.clone()));
    let spread = spread(&stores);
    let client = Client::new(Arc::new(spread.clone())).unwrap();
    let key_in = |name: &str| {
        let mut keys = (0..).map(|number| Key::new(format!("lock/{number}")).unwrap());
        keys.find(|key| spread.store_of(key) == name).unwrap()
    };
    let there = client.mutex(key_in("a")).lock().await.unwrap();
    faults.next(Op::Acquire, Fault::DropRequest);
    let error = client.mutex(key_in("b")).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(there.is_held() && there.is_held_by_store().await.unwrap());
    faults.next(Op::List, Fault::DropReply);
    let listing = client.list("").await.unwrap();
    assert_eq!((listing.locks.len(), listing.unreadable.len()), (1, 1));
    faults.next(Op::Examine, Fault::DropReply);
    let findings = client.examine().await.unwrap();
    assert!(findings.iter().any(|one| one.topic == "store"), "{findings:?}");
    there.release().await.unwrap();
}

#[tokio::test]
async fn a_new_client_needs_all_stores() {
    // Port 1 of the loopback has no server.
    let url = "spread:a=memory:,b=redis://127.0.0.1:1";
    let error = Client::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_url_names_each_store_and_a_list_that_can_t_be_right_is_refused() {
    let client = Client::connect("spread:a=memory:,b=memory:").await.unwrap();
    assert_eq!(client.location(), "spread:a=memory:,b=memory:");
    client.mutex("x").lock().await.unwrap().release().await.unwrap();
    for bad in ["spread:", "spread:memory:", "spread:a=memory:,a=memory:", "spread:a=nothing:"] {
        let error = Client::connect(bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
    }
    let twice: Arc<dyn Store> = Arc::new(spread(&memories(&["a"])));
    let twice = ["x", "y"].map(|name| (name.to_owned(), Arc::clone(&twice)));
    let error = SpreadStore::new(twice).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}
