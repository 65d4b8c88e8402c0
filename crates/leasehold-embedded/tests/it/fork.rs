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
