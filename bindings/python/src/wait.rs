//! Waits for a future on the caller's thread, and looks for signals meanwhile.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// One step of a future, with the timers and connections of leasehold's own thread.
pub(crate) fn poll<F: Future + ?Sized>(
    driver: &Handle,
    future: Pin<&mut F>,
    waker: &Waker,
) -> Poll<F::Output> {
    let _entered = driver.enter();
    future.poll(&mut Context::from_waker(waker))
}

/// How long a signal that another thread got may wait for a look.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Polls a future until it is done. Calls `look` after each signal of the system, and once a second
/// however often it is woken, since another thread may have got the signal; its error ends the
/// wait. Its argument is whether the wait has taken a second.
pub(crate) fn until_ready<F: Future, E>(
    driver: &Handle,
    mut future: Pin<&mut F>,
    signal: &Signal,
    waker: &Waker,
    mut look: impl FnMut(bool) -> Result<(), E>,
) -> Result<F::Output, E> {
    let begun = now();
    let mut looked = begun;
    loop {
        let is_woken = signal.sleep();
        if !is_woken || looked.elapsed() >= LOOK_EVERY {
            look(begun.elapsed() >= LOOK_EVERY)?;
            looked = now();
        }
        if is_woken && let Poll::Ready(output) = poll(driver, future.as_mut(), waker) {
            return Ok(output);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "no decision about a lease")]
fn now() -> Instant {
    Instant::now()
}

thread_local! {
    /// The signal that no wait of this thread uses at the moment.
    static IDLE: Cell<Option<Arc<Signal>>> = const { Cell::new(None) };
}

/// Wakes a thread that waits.
#[derive(Debug, Default)]
pub(crate) struct Signal(imp::Signal);

impl Signal {
    /// One that no other wait uses: the handler of a signal may wait inside another wait.
    pub(crate) fn of_this_thread() -> Arc<Self> {
        IDLE.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    /// For the next wait. A late wake-up from this one costs that one a poll.
    pub(crate) fn put_back(self: Arc<Self>) {
        IDLE.try_with(|idle| idle.set(Some(self))).ok();
    }

    /// Sleeps until it is woken, a signal of the system comes, or a second has passed. Returns
    /// whether it was woken.
    fn sleep(&self) -> bool {
        self.0.sleep()
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::thread::futex::{self, Flags, Timespec};

    #[derive(Debug, Default)]
    pub(super) struct Signal(AtomicU32);

    impl Signal {
        pub(super) fn sleep(&self) -> bool {
            if self.0.swap(0, Ordering::Acquire) == 1 {
                return true;
            }
            let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
            // Whatever ended it, the word says whether it was woken.
            futex::wait(&self.0, Flags::PRIVATE, 0, Some(&limit)).ok();
            self.0.swap(0, Ordering::Acquire) == 1
        }

        pub(super) fn wake(&self) {
            if self.0.swap(1, Ordering::Release) == 0 {
                futex::wake(&self.0, Flags::PRIVATE, 1).ok();
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use std::sync::{Condvar, Mutex, PoisonError};
    use std::time::Duration;

    /// A signal of the system does not end a condition's wait.
    const LOOK_AGAIN: Duration = Duration::from_millis(50);

    #[derive(Debug, Default)]
    pub(super) struct Signal {
        woken: Mutex<bool>,
        changed: Condvar,
    }

    impl Signal {
        pub(super) fn sleep(&self) -> bool {
            let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
            let wait = self.changed.wait_timeout_while(woken, LOOK_AGAIN, |woken| !*woken);
            let (mut woken, _) = wait.unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *woken)
        }

        pub(super) fn wake(&self) {
            *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.changed.notify_one();
        }
    }
}
