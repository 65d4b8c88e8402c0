//! A process that forks while it holds a lease.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use leasehold_core::{Effect, ErrorKind, LeaveRequest, Store};
use leasehold_embedded::EmbeddedStore;

use crate::ask::{WITHIN, granted, key, request};
use crate::child::{Child, say};
use crate::place;
use crate::processes::soon;

/// The answer of a future that waits for nothing.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// What the process does that forks.
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
            let again = EmbeddedStore::open(copy.path()).err();
            let again = again.is_some_and(|error| error.kind() == ErrorKind::Misuse);
            drop(copy);
            // SAFETY: ends the process; nothing else.
            unsafe { libc::_exit(i32::from(!right) | i32::from(!again) << 1) };
        }
        child => {
            let mut status = -1;
            // SAFETY: waits for the child above; `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child of the fork was not refused");
            drop(copy);
            say("forked");
        }
    }
}

#[tokio::test]
async fn a_fork_is_refused_and_takes_nothing_from_its_parent() {
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
