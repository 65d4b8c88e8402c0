//! Many processes at one store: some die, some are stopped, and others follow.

use std::time::Duration;

use leasehold_core::{
    Acquire, Effect, ErrorKind, FenceBlock, ForceReleaseRequest, QueueRequest, Release,
    ReleaseRequest, Renew, RenewRequest, Store,
};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, key, request, ttl};
use crate::child::Child;
use crate::place;

#[tokio::test]
async fn a_record_that_others_have_moved_is_found_where_it_went() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    for _ in 0..20 {
        let asked = request("k");
        let fences = granted(store.acquire(&asked, WITHIN).await.unwrap());
        let ending = ReleaseRequest::new(asked.key, asked.token, fences);
        store.release(&ending, WITHIN).await.unwrap();
    }
    let mut child = Child::start(&path, "fill-and-hold k");
    child.wait_for("held");
    for _ in 0..20 {
        let answer = store.acquire(&request("k"), WITHIN).await.unwrap();
        assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
    }
    child.kill();
    soon(&store, "k").await;
}

#[tokio::test]
async fn a_lease_ends_with_its_process_and_not_with_its_ttl() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let child = Child::that_says(&path, "hold k", "held");
    let answer = store.acquire(&request("k"), WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
    child.kill();
    soon(&store, "k").await;
}

#[tokio::test]
async fn a_process_that_exits_without_a_word_frees_its_locks() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let mut child = Child::that_says(&path, "exit k", "held");
    child.process.wait();
    soon(&store, "k").await;
    assert_eq!(std::fs::read_dir(path.join("sessions")).unwrap().count(), 1);
}

/// Retries until the lock is granted: a process that was just seen alive is trusted for a moment.
/// That is much shorter than any ttl here.
pub(crate) async fn soon(store: &EmbeddedStore, name: &str) -> FenceBlock {
    loop {
        match store.acquire(&request(name), WITHIN).await.unwrap() {
            Acquire::Granted(grant) => return grant.fences,
            _ => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Requests once, when all processes seen alive before are probed again.
async fn later(store: &EmbeddedStore, name: &str) -> Acquire {
    tokio::time::sleep(Duration::from_millis(6)).await;
    store.acquire(&request(name), WITHIN).await.unwrap()
}

#[tokio::test]
async fn a_process_that_stands_still_keeps_its_lease() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let child = Child::that_says(&path, "hold k", "held");
    child.process.pause();
    let answer = later(&store, "k").await;
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
}

#[tokio::test]
async fn a_detached_lease_outlives_its_process_and_belongs_to_each_that_knows_it() {
    let (path, _keep) = place();
    let child = Child::that_says(&path, "hold-detached k", "held");
    child.kill();
    let store = EmbeddedStore::open(&path).unwrap();
    let answer = later(&store, "k").await;
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");

    let asked = request("handed-on");
    let detached = EmbeddedStore::options().detached(true).open(&path).unwrap();
    let fences = granted(detached.acquire(&asked, WITHIN).await.unwrap());
    drop(detached);
    let again = RenewRequest::new(asked.key.clone(), asked.token, fences, ttl(30_000));
    assert_eq!(*store.renew(&[again], WITHIN).await[0].as_ref().unwrap(), Renew::Renewed);
    let ending = ReleaseRequest::new(asked.key, asked.token, fences);
    assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn dropping_the_last_clone_ends_the_session_and_its_leases() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let other = EmbeddedStore::open(&path).unwrap();
    let clone = other.clone();
    granted(other.acquire(&request("k"), WITHIN).await.unwrap());
    drop(other);
    assert!(matches!(later(&store, "k").await, Acquire::Busy(_)));
    drop(clone);
    soon(&store, "k").await;
}

#[tokio::test]
async fn a_dead_waiter_is_out_of_the_queue_and_the_dead_are_not_shown() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let mine = request("k");
    let fences = granted(store.acquire(&mine, WITHIN).await.unwrap());
    let dead = Child::that_says(&path, "wait k", "waiting");
    let mut alive = Child::that_says(&path, "wait k", "waiting");
    dead.kill();
    while store.inspect(&key("k"), WITHIN).await.unwrap().unwrap().waiters.len() > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    store.release(&ReleaseRequest::new(mine.key, mine.token, fences), WITHIN).await.unwrap();
    alive.wait_for("woken");
    alive.wait_for("held");
    alive.kill();
    while !store
        .list(&leasehold_core::ListRequest::new("k"), WITHIN)
        .await
        .unwrap()
        .locks
        .is_empty()
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn the_death_of_a_holder_serves_the_queue_at_the_next_heartbeat() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let holder = Child::that_says(&path, "hold k", "held");
    let mut asked = request("k");
    let client = leasehold_core::ClientId::generate().unwrap();
    asked.queue = Some(QueueRequest::new(client, 1, ttl(20_000)));
    assert!(matches!(store.acquire(&asked, WITHIN).await.unwrap(), Acquire::Waiting(_)));
    holder.kill();
    while !matches!(store.acquire(&asked, WITHIN).await.unwrap(), Acquire::Already(_)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        asked.queue.as_mut().unwrap().heartbeat += 1;
    }
}

#[tokio::test]
async fn eight_processes_lose_no_addition() {
    let (path, _keep) = place();
    std::fs::write(path.with_extension("number"), "0").unwrap();
    let mut children: Vec<Child> = (0..8).map(|_| Child::start(&path, "add k")).collect();
    for child in &mut children {
        child.wait_for("added");
    }
    children.into_iter().for_each(Child::end);
    assert_eq!(std::fs::read_to_string(path.with_extension("number")).unwrap(), "800");
}

#[tokio::test]
async fn a_kill_at_any_moment_leaves_the_store_sound_and_the_locks_free() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let mut last = [None; 4];
    for round in 0..200 {
        let child = Child::that_says(&path, "churn", "ready");
        std::thread::sleep(Duration::from_micros(fastrand::u64(..3_000)));
        child.kill();
        for (n, last) in last.iter_mut().enumerate() {
            let name = format!("churn-{n}");
            let fences = soon(&store, &name).await;
            assert!(Some(fences.first()) > *last, "round {round}");
            *last = Some(fences.last());
            let taken = ForceReleaseRequest::new(key(&name), fences.first());
            store.force_release(&taken, WITHIN).await.unwrap();
        }
        store.entries(WITHIN).await.unwrap();
    }
}

#[tokio::test]
async fn a_process_stopped_inside_hangs_no_other() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let mut child = Child::that_says(&path, "spin k", "ready");
    let pid = child.process.pid();
    let refused = loop {
        child.process.pause();
        let asked = request("mine");
        let short = Duration::from_millis(200);
        let mut ticks = 0;
        let ticking = async {
            while ticks < 10 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                ticks += 1;
            }
        };
        let (answer, ()) = tokio::join!(store.acquire(&asked, short), ticking);
        match answer {
            Ok(answer) => {
                store
                    .leave(&leasehold_core::LeaveRequest::new(asked.key, asked.token), WITHIN)
                    .await
                    .unwrap();
                drop(answer);
            }
            Err(error) => break error,
        }
        child.process.resume();
    };
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    assert!(refused.to_string().contains(&format!("kill -CONT {pid}")), "{refused}");

    // A withdrawn request is never carried out, but a waiting one is.
    let taken_back = request("taken-back");
    let waits = tokio::time::timeout(Duration::from_millis(20), store.acquire(&taken_back, WITHIN));
    assert!(waits.await.is_err());
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.acquire(&request("waited"), WITHIN).await }
    });
    tokio::task::yield_now().await;
    child.process.resume();
    granted(waiting.await.unwrap().unwrap());
    for name in ["mine", "taken-back"] {
        assert!(store.inspect(&key(name), WITHIN).await.unwrap().is_none(), "{name}");
    }
    child.process.kill();
}
