//! What a wait returns, by the output of its future; its limit, and what it does beside other
//! waits.

use std::cell::Cell;
use std::future::{pending, poll_fn, ready};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Release, Result, RunError, Wait as _};

use super::{EVER, client_of, eventually, world};

const SHORT: Duration = Duration::from_millis(50);

/// A program's own error.
#[derive(Debug)]
enum Wrong {
    Lock(ErrorKind),
    Work,
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self::Lock(error.kind())
    }
}

/// Runs code where tokio polls it.
fn polled<T>(code: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { code() })
}

#[test]
fn a_result_is_returned_as_it_is_and_has_the_refusal_as_its_error() {
    assert_eq!(ready(Ok::<_, Error>(7)).wait().unwrap(), 7);
    let wrong = ready(Err::<(), _>(Wrong::Work)).wait();
    assert!(matches!(wrong, Err(Wrong::Work)));
    let refused = polled(|| ready(Err::<(), _>(Wrong::Work)).wait());
    assert!(matches!(refused, Err(Wrong::Lock(ErrorKind::Misuse))));
    let refused = polled(|| ready(Ok::<(), RunError<()>>(())).wait()).unwrap_err();
    assert_eq!((refused.kind(), refused.output()), (ErrorKind::Misuse, None));
    let foreign = Err::<(), Box<dyn std::error::Error>>(Box::from(io::Error::other("no paper")));
    let foreign = ready(foreign).wait();
    assert_eq!(foreign.unwrap_err().to_string(), "no paper");
}

#[test]
fn an_output_without_errors_becomes_a_result() {
    ready(()).wait().unwrap();
    assert_eq!(polled(|| ready(()).wait()).unwrap_err().kind(), ErrorKind::Misuse);
    assert_eq!(ready(Some(7)).wait().unwrap(), Some(7));
    assert_eq!(polled(|| ready(Some(7)).wait()).unwrap_err().kind(), ErrorKind::Misuse);
    let (_, client) = world();
    let _guard = client.mutex("key").lock().wait().unwrap();
    let refused = polled(|| client.release_all_outcomes().wait());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Misuse);
    let released = client.release_all_outcomes().wait().unwrap();
    assert!(released.iter().all(|(_, outcome)| *outcome.as_ref().unwrap() == Release::Released));
}

#[test]
fn a_change_that_fails_returns_the_guard_and_a_refused_one_releases_it() {
    let (_, client) = world();
    let lock = client.rwlock("key");
    let (one, two) = (lock.read().wait().unwrap(), lock.read().wait().unwrap());
    let (one, error) = one.upgrade().wait().unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let (none, error) = polled(|| one.unwrap().upgrade().wait()).unwrap_err().into_parts();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(none.is_none());
    let only_the_other = || client.inspect("key").wait().unwrap().unwrap().holders.len() == 1;
    eventually("the refused reader is released", only_the_other);
    assert!(two.upgrade().wait().unwrap().is_held());
}

#[test]
fn a_refused_wait_sends_nothing() {
    let (_, client) = world();
    assert_eq!(polled(|| client.mutex("key").lock().wait()).unwrap_err().kind(), ErrorKind::Misuse);
    assert!(client.inspect("key").wait().unwrap().is_none());
    let polls = Cell::new(0);
    let counted = || {
        poll_fn(|_| {
            polls.set(polls.get() + 1);
            Poll::Ready(Ok::<_, Error>(()))
        })
    };
    polled(|| counted().wait()).unwrap_err();
    assert_eq!(polls.get(), 0);
    counted().wait().unwrap();
    assert_eq!(polls.get(), 1);
}

#[test]
fn a_wait_ends_at_its_limit_or_with_its_future() {
    let (store, client) = world();
    let guard = client.mutex("key").lock().wait().unwrap();
    assert_eq!(guard.lost().wait_within(Duration::ZERO).unwrap(), None);
    assert_eq!(guard.lost().wait_within(SHORT).unwrap(), None);
    assert!(guard.is_held());
    assert_eq!(guard.ttl().wait_within(EVER).unwrap().map(|ttl| ttl.is_zero()), Some(false));
    // What the dropped future has left at the store goes in the background.
    let other = client_of(&store);
    assert!(other.mutex("key").lock().wait_within(SHORT).unwrap().is_none());
    let waiters = || client.inspect("key").wait().unwrap().unwrap().waiters.len();
    eventually("its position is gone", || waiters() == 0);
    let refused = polled(|| pending::<()>().wait_within(EVER));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Misuse);
    client.release_all().wait().unwrap();
    assert_eq!(guard.lost().wait_within(EVER).unwrap(), Some(()));
}

#[test]
fn a_future_may_have_several_steps_and_timers() {
    let (_, client) = world();
    let fence = async {
        let guard = client.mutex("key").lock().await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let renewed = tokio::spawn(async { 7 }).await.expect("no panic");
        assert_eq!(renewed, 7);
        let fence = guard.fence()?;
        guard.release().await?;
        Ok::<_, Error>(fence)
    };
    assert!(fence.wait().unwrap().value() > 0);
}

/// The inner waits take none of the wake-ups of the outer one.
#[test]
fn a_wait_inside_a_wait_delays_no_other() {
    let (store, client) = world();
    let other = client_of(&store);
    let (outer, inner) = (client.mutex("outer"), client.mutex("inner"));
    for _ in 0..50 {
        let held = other.mutex("inner").lock().wait().unwrap();
        let both = async {
            tokio::join!(outer.run(async |_| ()), async {
                tokio::task::yield_now().await;
                let waiting = thread::scope(|scope| {
                    scope.spawn(|| held.release().wait().unwrap());
                    inner.lock().wait()
                });
                waiting?.release().await
            })
        };
        let (beside, nested) = async { Ok::<_, Error>(both.await) }.wait().unwrap();
        beside.unwrap();
        nested.unwrap();
    }
}

#[test]
fn a_body_may_block_and_wait_under_its_lock() {
    let (_, client) = world();
    let mutex = client.mutex("key");
    let nested = mutex.run(async |lease| {
        assert!(mutex.try_lock().wait()?.is_none());
        lease.renew_to(EVER).wait()?;
        let inner = client.mutex("another").run(async |inner| inner.is_held()).wait()?;
        Ok::<_, Error>(inner && lease.is_held())
    });
    assert!(nested.wait().unwrap().unwrap());
}

const SURFACE: &str = include_str!("../../../../../docs/api/leasehold.txt");

/// By the listing of the public surface: each output is of a type that this file waits for.
#[test]
fn no_future_of_the_library_is_missing_here() {
    let mut futures = 0;
    for line in SURFACE.lines().filter(|line| line.starts_with("fn ")) {
        let output = if let Some(signature) = line.strip_suffix(" [async]") {
            signature.rsplit_once(") -> ").map_or("()", |(_, output)| output)
        } else if let Some((_, output)) = line.split_once(") -> impl Future<Output = ") {
            output
        } else {
            continue;
        };
        futures += 1;
        let known = output == "()"
            || output == "Releases"
            || output.starts_with("Option<")
            || output.starts_with("Result<");
        assert!(known, "{line}");
        // Errors are plain, or one of the two that have more in them.
        let error = output.rsplit_once(", ").map_or("", |(_, error)| error);
        let known =
            ["RunError<", "NotChanged<", "E>>>"].iter().any(|known| error.starts_with(known));
        assert!(known || error.is_empty(), "{line}");
    }
    assert!(futures > 100, "this test has lost its eyes: {futures}");
}

/// A value that waits while the values of its thread end.
struct Last(leasehold::Client, std::sync::mpsc::Sender<Result<()>>);

impl Drop for Last {
    fn drop(&mut self) {
        drop(self.1.send(self.0.mutex("key").try_lock().wait().map(drop)));
    }
}

#[test]
fn a_thread_that_ends_is_refused_or_served() {
    thread_local! {
        static LAST: Cell<Option<Last>> = const { Cell::new(None) };
    }
    let (_, client) = world();
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        LAST.set(Some(Last(client.clone(), tell)));
        // From here on tokio has a value of this thread too, which ends before the other one.
        client.mutex("key").try_lock().wait().map(drop).unwrap();
    })
    .join()
    .unwrap();
    if let Err(error) = told.recv_timeout(EVER).unwrap() {
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.to_string().contains("ending"), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_signals_handler_runs_while_its_thread_waits_and_the_wait_goes_on() {
    use std::os::unix::thread::JoinHandleExt as _;

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handle(_: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }

    let handler: extern "C" fn(libc::c_int) = handle;
    // Without SA_RESTART: system calls of the thread that gets the signal are interrupted.
    // SAFETY: the handler does only what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
    }
    let (store, client) = world();
    let held = client.mutex("key").lock().wait().unwrap();
    let other = client_of(&store);
    let waiting = thread::spawn(move || other.mutex("key").lock().wait());
    let waiters = || client.inspect("key").wait().unwrap().unwrap().waiters.len();
    eventually("the thread is in the queue", || waiters() == 1);
    for signals in 1..=20 {
        // SAFETY: the thread has not been joined.
        assert_eq!(unsafe { libc::pthread_kill(waiting.as_pthread_t(), libc::SIGUSR2) }, 0);
        eventually("the handler runs", || HANDLED.load(Ordering::SeqCst) == signals);
    }
    assert!(!waiting.is_finished());
    held.release().wait().unwrap();
    assert!(waiting.join().unwrap().unwrap().is_held());
}
