//! Many processes, many clients and many names at one store.

#[cfg(target_os = "linux")]
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_core::{
    Acquire, ClientId, ErrorKind, LeaveRequest, QueueRequest, Release, ReleaseRequest, Renew,
    RenewRequest, Result, Store,
};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, request, ttl};
use crate::child::Child;
use crate::place;

#[tokio::test]
async fn twenty_four_busy_processes_keep_no_other_out() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let mine = request("mine");
    let fences = granted(store.acquire(&mine, WITHIN).await.unwrap());
    let mut crowd: Vec<Child> =
        (0..24).map(|n| Child::start(&path, &format!("spin name-{n}"))).collect();
    for child in &mut crowd {
        child.wait_for("ready");
    }
    // Each of these has to get in among all the others, within its own time limit.
    for _ in 0..200 {
        let again = RenewRequest::new(mine.key.clone(), mine.token, fences, ttl(1_800_000));
        assert_eq!(store.renew(&[again], WITHIN).await.remove(0).unwrap(), Renew::Renewed);
        let asked = request("other");
        let other = granted(store.acquire(&asked, WITHIN).await.unwrap());
        let ending = ReleaseRequest::new(asked.key, asked.token, other);
        assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
    }
    // A refusal would have ended a process of the crowd, and so failed here.
    crowd.into_iter().for_each(Child::kill);
}

/// What a process uses of the store: open files, threads, and entries in the store's directories.
#[cfg(target_os = "linux")]
fn footprint(path: &Path) -> (usize, usize) {
    let count = |directory: &Path| std::fs::read_dir(directory).unwrap().count();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let waking = threads.filter(|thread| {
        std::fs::read_to_string(thread.path().join("comm"))
            .is_ok_and(|name| name.starts_with("leasehold-wake"))
    });
    (waking.count(), count(&path.join("sessions")) + count(&path.join("wake")))
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn hundreds_of_clients_that_waited_leave_nothing() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let mine = request("k");
    let fences = granted(store.acquire(&mine, WITHIN).await.unwrap());
    let before = footprint(&path).1;
    for _ in 0..6 {
        let mut waiting = Vec::new();
        for ticket in 0..100 {
            let client = EmbeddedStore::open(&path).unwrap();
            let id = ClientId::generate().unwrap();
            let channel = client.listen(id, WITHIN).await.unwrap();
            let mut asked = request("k");
            asked.queue = Some(QueueRequest::new(id, ticket, ttl(20_000)));
            let answer = client.acquire(&asked, WITHIN).await.unwrap();
            assert!(matches!(answer, Acquire::Waiting(_)), "{answer:?}");
            waiting.push((client, channel, asked));
        }
        for (client, channel, asked) in waiting {
            client.leave(&LeaveRequest::new(asked.key, asked.token), WITHIN).await.unwrap();
            drop(channel);
        }
        assert_eq!(footprint(&path).1, before);
    }
    // Their threads end when they notice, which takes a moment.
    while footprint(&path).0 > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let ending = ReleaseRequest::new(mine.key, mine.token, fences);
    assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_store_with_many_names_is_looked_at_and_opened() {
    let (path, _keep) = place();
    let names = 20_000;
    {
        let store = EmbeddedStore::options().detached(true).open(&path).unwrap();
        for n in 0..names {
            let asked = request(&format!("reports/by-customer/{n:08}"));
            let fences = granted(store.acquire(&asked, WITHIN).await.unwrap());
            if n % 100 != 0 {
                let ending = ReleaseRequest::new(asked.key, asked.token, fences);
                store.release(&ending, WITHIN).await.unwrap();
            }
        }
    }
    Child::that_says(&path, "open", "open").end();
    let at_once = EmbeddedStore::options().at_once(true).open(&path);
    assert_eq!(at_once.unwrap_err().kind(), ErrorKind::Unavailable);
    let store = EmbeddedStore::open(&path).unwrap();
    assert_eq!(store.entries(WITHIN).await.unwrap(), (names, names / 100));
    let answer = store.acquire(&request("reports/by-customer/00000100"), WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Busy(_)), "{answer:?}");
}

#[tokio::test]
async fn a_full_store_that_refuses_one_after_the_other_lets_others_in() {
    const REFUSALS: usize = 40;

    let (path, _keep) = place();
    let store = EmbeddedStore::options().bytes_max(4 << 20).open(&path).unwrap();
    let refused = |answer: Result<Acquire>| match answer {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            true
        }
    };
    let mut n = 0;
    while !refused(store.acquire(&request(&format!("{n}/{:0100}", 0)), WITHIN).await) {
        n += 1;
    }
    let (refusals, asking) = (Arc::new(AtomicUsize::new(0)), store.clone());
    let counted = Arc::clone(&refusals);
    let asks = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        while counted.load(Ordering::Relaxed) < REFUSALS {
            let asked = request(&format!("more/{}", fastrand::u64(..)));
            assert!(refused(runtime.block_on(asking.acquire(&asked, WITHIN))));
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (looked_at, mut looks) = (request("0").key, 0);
    while refusals.load(Ordering::Relaxed) < REFUSALS {
        store.inspect(&looked_at, WITHIN).await.unwrap();
        looks += 1;
    }
    asks.join().unwrap();
    assert!(looks >= 20 * REFUSALS, "let in {looks} times beside {REFUSALS} refusals");
}
