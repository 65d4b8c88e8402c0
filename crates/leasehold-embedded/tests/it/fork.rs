//! A process that forks while it holds a lease.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_core::{Acquire, AcquireRequest, Effect, ErrorKind, LeaveRequest, Store};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, key, request};
use crate::child::{Child, say};
use crate::place;
use crate::processes::soon;

/// The output of a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// The task of the forking process.
pub(crate) async fn in_child(store: &EmbeddedStore, name: &str) {
    let asked = request(name);
    granted(store.acquire(&asked, WITHIN).await.unwrap());
    let copy = store.clone();
    // SAFETY: the child runs on the copy of this one thread and ends without returning.
    match unsafe { libc::fork() } {
        0 => {
            let leaving = LeaveRequest::new(asked.key.clone(), asked.token);
            let refused = at_once(copy.leave(&leaving, WITHIN)).and_then(Result::err);
            let right = refused.is_some_and(|error| {
                error.kind() == ErrorKind::Misuse && error.effect() == Effect::NotApplied
            });
            let anew = use_anew(copy.path(), &asked);
            drop(copy);
            // SAFETY: only ends the process.
            unsafe { libc::_exit(i32::from(!right) | i32::from(!anew) << 1) };
        }
        child => {
            let mut status = -1;
            // SAFETY: waits for the child above; `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "1: the child was not refused, 2: it could not open anew");
            drop(copy);
            say("forked");
        }
    }
}

/// Opens the store that the parent has open, sees the parent's lease there, and acquires another
/// one, in a new session.
fn use_anew(path: &Path, of_parent: &AcquireRequest) -> bool {
    let Ok(store) = EmbeddedStore::open(path) else { return false };
    let held = at_once(store.acquire(&request(of_parent.key.as_str()), WITHIN));
    let mine = request("mine");
    let taken = at_once(store.acquire(&mine, WITHIN));
    let once_more = EmbeddedStore::open(path).is_ok();
    let left = at_once(store.leave(&LeaveRequest::new(mine.key, mine.token), WITHIN));
    matches!(held, Some(Ok(Acquire::Busy(_))))
        && matches!(taken, Some(Ok(Acquire::Granted(_))))
        && matches!(left, Some(Ok(_)))
        && once_more
}

/// Forks a process that only waits until its input ends; returns its number.
pub(crate) fn one_that_reads_on() -> i32 {
    // SAFETY: the child makes system calls only and ends without returning.
    match unsafe { libc::fork() } {
        0 => {
            let mut byte: u8 = 0;
            // SAFETY: reads one byte into a variable that outlives the calls.
            unsafe {
                while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
                libc::_exit(0)
            }
        }
        child => child,
    }
}

#[tokio::test]
async fn a_kill_inside_the_gate_locks_no_process_out_while_a_fork_lives() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    for _ in 0..3 {
        let mut child = Child::start(&path, "fork-and-spin k");
        let forked = child.next().unwrap();
        let forked: i32 = forked.strip_prefix("forked ").unwrap().parse().unwrap();
        child.wait_for("ready");
        // The fork reads from it, and so lives until the end of the round.
        let input = child.process.child().stdin.take();
        loop {
            child.process.pause();
            let asked = request("mine");
            match store.acquire(&asked, Duration::from_millis(50)).await {
                Ok(_) => {
                    let leaving = LeaveRequest::new(asked.key, asked.token);
                    store.leave(&leaving, WITHIN).await.unwrap();
                }
                Err(_) => break,
            }
            child.process.resume();
        }
        child.kill();
        let asked = request("mine");
        granted(store.acquire(&asked, WITHIN).await.unwrap());
        let leaving = LeaveRequest::new(asked.key, asked.token);
        store.leave(&leaving, WITHIN).await.unwrap();
        Child::that_says(&path, "open", "open").end();
        // SAFETY: only checks whether the process exists.
        assert_eq!(unsafe { libc::kill(forked, 0) }, 0, "the fork has ended before");
        drop(input);
    }
}

#[tokio::test]
async fn a_fork_takes_nothing_from_its_parent_and_can_open_the_store_itself() {
    let (path, _keep) = place();
    let child = Child::that_says(&path, "fork k", "forked");
    let store = EmbeddedStore::open(&path).unwrap();
    let info = store.inspect(&key("k"), WITHIN).await.unwrap();
    assert_eq!(info.unwrap().holders.len(), 1);
    child.kill();
    soon(&store, "k").await;
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_that_is_started_inherits_no_file_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks");
    let store = leasehold_embedded::EmbeddedStore::open(&path).unwrap();
    let listed = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("/proc"), "{listed}");
    assert!(!listed.contains(path.to_str().unwrap()), "{listed}");
    drop(store);
}
