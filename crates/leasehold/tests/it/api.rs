//! The shape of the API: what can cross threads, what the compiler warns about.

use std::fs;
use std::path::{Path, PathBuf};

use leasehold::fencing::{FencedCell, StaleFence};
use leasehold::{
    Client, ClientBuilder, Cooldown, DetachedLease, Election, Error, Fence, Guard, HeldLease, Key,
    Leader, Leadership, LockInfo, Multi, MultiGuard, Mutex, NotChanged, Observer, OnceGuard,
    OncePer, Owner, ReadGuard, Reentrant, ReentrantGuard, Release, RwLock, Semaphore, WriteGuard,
};

fn thread_safe<T: Send + Sync + Unpin + 'static>() {}
fn cloneable<T: Clone>() {}
fn sendable<F: Future + Send>(_future: F) {}

#[test]
fn every_public_type_can_be_shared_between_threads() {
    thread_safe::<Client>();
    thread_safe::<ClientBuilder>();
    thread_safe::<DetachedLease>();
    thread_safe::<Error>();
    thread_safe::<Fence>();
    thread_safe::<FencedCell<String>>();
    thread_safe::<Guard>();
    thread_safe::<HeldLease>();
    thread_safe::<Key>();
    thread_safe::<LockInfo>();
    thread_safe::<Mutex>();
    thread_safe::<Release>();
    thread_safe::<Election>();
    thread_safe::<Leader>();
    thread_safe::<Leadership>();
    thread_safe::<Multi>();
    thread_safe::<MultiGuard>();
    thread_safe::<NotChanged<ReadGuard>>();
    thread_safe::<Observer>();
    thread_safe::<OnceGuard>();
    thread_safe::<OncePer>();
    thread_safe::<Owner>();
    thread_safe::<ReadGuard>();
    thread_safe::<RwLock>();
    thread_safe::<WriteGuard>();
    thread_safe::<Reentrant>();
    thread_safe::<ReentrantGuard>();
    thread_safe::<Semaphore>();
    thread_safe::<StaleFence>();
    cloneable::<Client>();
    cloneable::<ClientBuilder>();
    cloneable::<DetachedLease>();
    cloneable::<Error>();
    cloneable::<HeldLease>();
    cloneable::<Mutex>();
    cloneable::<Election>();
    cloneable::<Leader>();
    cloneable::<Multi>();
    cloneable::<OncePer>();
    cloneable::<Owner>();
    cloneable::<RwLock>();
    cloneable::<Reentrant>();
    cloneable::<Semaphore>();
}

#[tokio::test]
async fn every_future_can_move_between_threads() {
    use std::sync::Arc;
    use std::time::Duration;

    let store = Arc::new(leasehold_embedded::MemoryStore::new());
    let client = Client::new(store).unwrap();
    let fence = Fence::ZERO;
    sendable(Client::connect("memory:"));
    sendable(Client::builder().connect("memory:"));
    sendable(client.inspect("key"));
    sendable(client.list("key"));
    sendable(client.force_release("key", fence));
    sendable(client.release_all());
    sendable(client.close());

    let mutex = client.mutex("key");
    sendable(mutex.try_lock());
    sendable(mutex.lock());
    sendable(mutex.lock_within(Duration::ZERO));
    sendable(mutex.run(|lease| async move { lease.lost().await }));
    sendable(mutex.try_run(|lease| async move { lease.lost().await }));

    let reentrant = client.reentrant("owned", &Owner::new());
    sendable(reentrant.try_lock());
    sendable(reentrant.lock_within(Duration::ZERO));
    sendable(reentrant.lock().await.unwrap().release());

    let rwlock = client.rwlock("shared");
    sendable(rwlock.try_read());
    sendable(rwlock.write_within(Duration::ZERO));
    let writer = rwlock.write().await.unwrap().downgrade().await.unwrap().upgrade().await.unwrap();
    sendable(writer.asked());
    sendable(writer.downgrade());
    let reader = client.rwlock("more shared").read().await.unwrap();
    sendable(reader.upgrade());

    let multi = client.multi(["one", "two"]);
    sendable(multi.try_lock());
    sendable(multi.lock_within(Duration::ZERO));
    let guard = multi.lock().await.unwrap();
    sendable(guard.lost());
    sendable(guard.asked());
    sendable(guard.release());

    let job = client.once_per("job", Duration::from_secs(1));
    sendable(job.run(|lease| async move { lease.lost().await }));
    sendable(job.run_or_reopen(|_| async { Ok::<(), ()>(()) }));
    sendable(job.try_start().await.unwrap().unwrap().release_and_reopen());

    let post = client.election("post");
    sendable(post.run(async {}, |lease| async move { lease.lost().await }));
    sendable(post.run_callbacks(async {}, |_| {}, || {}));
    sendable(post.leader());
    sendable(post.observe().changed());
    sendable(post.campaign().await.unwrap().resign());
    sendable(client.ask("key"));
    sendable(client.ask_holder("key", fence));
    sendable(client.mutex("key").ask());

    let semaphore = client.semaphore("key", 3);
    sendable(semaphore.set_limit(4));
    sendable(semaphore.try_acquire());
    sendable(semaphore.acquire_many(2));
    sendable(semaphore.acquire_many_within(2, Duration::ZERO));
    sendable(semaphore.available_permits());

    let guard = mutex.lock().await.unwrap();
    sendable(guard.lost());
    sendable(guard.lease().lost());
    sendable(guard.ttl());
    sendable(guard.is_held_by_store());
    sendable(guard.renew_to(Duration::ZERO));
    sendable(mutex.relock(guard));
    let lock = async || mutex.lock().await.unwrap();
    sendable(lock().await.release());
    sendable(lock().await.release_with_cooldown(Cooldown::NONE));
    let guard = lock().await;
    sendable(guard.detach());
    let lease = lock().await.detach().await.unwrap();
    sendable(client.adopt(&lease));
    sendable(client.renew(&lease, Duration::ZERO));
    sendable(client.release(&lease, None));
}

#[test]
fn an_error_is_one_word_and_so_is_its_absence() {
    assert_eq!(size_of::<Error>(), size_of::<usize>());
    assert_eq!(size_of::<Result<(), Error>>(), size_of::<usize>());
}

/// All Rust files under a folder.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_guard_is_must_use_and_has_a_significant_drop() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut guards = 0;
    for file in files {
        let source = fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = source.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(rest) = line.strip_prefix("pub struct ") else { continue };
            let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            if !name.ends_with("Guard") && !source.contains(&format!("impl Drop for {name} ")) {
                continue;
            }
            guards += 1;
            let attributes: Vec<_> =
                lines[..at].iter().rev().take_while(|line| line.starts_with('#')).collect();
            for wanted in ["#[must_use = \"dropping the guard", "#[clippy::has_significant_drop]"] {
                assert!(
                    attributes.iter().any(|attribute| attribute.starts_with(wanted)),
                    "{name} in {} has no {wanted}",
                    file.display()
                );
            }
        }
    }
    assert!(guards >= 2, "this test has lost its eyes: it found {guards} guards");
}
