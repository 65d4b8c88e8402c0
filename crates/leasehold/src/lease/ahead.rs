//! Makes a try wait until what this client dropped for the same lock is released.
//!
//! Otherwise a caller that drops one future after the other would send tries faster than the reaper
//! releases what they take. The lock would stay taken long after the last of them. A try that waits
//! here sends its request later, so dropping it is free.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Clock, Key};
use tokio::sync::Notify;

use crate::rt;

/// How many orphans of all locks may be ahead before they delay every try.
pub(crate) const AHEAD_MAX: usize = 256;
/// All orphans that the reaper has not tried yet.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Outside the mutex, since each try looks at it.
    count: AtomicUsize,
    lines: Mutex<Lines>,
    /// The reaper has tried one of them.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    next: u64,
    of: HashMap<Key, BTreeSet<u64>>,
}

/// One orphan that was not tried, until this is dropped.
#[derive(Debug)]
pub(crate) struct Untried {
    ahead: Arc<Ahead>,
    number: u64,
    /// The lock whose tries it delays.
    key: Option<Key>,
}

impl Ahead {
    /// Adds one, which delays the tries for a lock.
    pub(crate) fn add(ahead: &Arc<Self>, key: Option<Key>) -> Untried {
        let mut lines = ahead.lines();
        let number = lines.next;
        lines.next = number.saturating_add(1);
        if let Some(key) = &key {
            lines.of.entry(key.clone()).or_default().insert(number);
        }
        ahead.count.fetch_add(1, Ordering::Release);
        drop(lines);
        Untried { ahead: Arc::clone(ahead), number, key }
    }

    /// Whether no try has to wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits for the orphans of these locks that are there now, and until fewer than [`AHEAD_MAX`]
    /// are left in all. It does not wait for later ones, or a stream of them could keep a try
    /// waiting. After `limit` it stops waiting: the store may be away, and then the try has to
    /// report that. Returns how long that took. Cancel safe.
    pub(crate) async fn given_up(
        &self,
        keys: &[&Key],
        clock: &dyn Clock,
        limit: Duration,
    ) -> Duration {
        let before = self.lines().next;
        let since = clock.now();
        let until = since.saturating_add(limit);
        let none_left = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if !self.holds_up(keys, before) {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            biased;
            () = none_left => {}
            () = rt::sleep_until(clock, until) => {}
        }
        clock.now().saturating_since(since)
    }

    fn holds_up(&self, keys: &[&Key], before: u64) -> bool {
        let lines = self.lines();
        let is_before = |key: &&Key| {
            lines.of.get(*key).and_then(BTreeSet::first).is_some_and(|first| *first < before)
        };
        self.count.load(Ordering::Acquire) >= AHEAD_MAX || keys.iter().any(is_before)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Untried {
    fn drop(&mut self) {
        let mut lines = self.ahead.lines();
        if let Some(key) = &self.key
            && let Some(line) = lines.of.get_mut(key)
        {
            line.remove(&self.number);
            if line.is_empty() {
                lines.of.remove(key);
            }
        }
        self.ahead.count.fetch_sub(1, Ordering::Release);
        drop(lines);
        self.ahead.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use leasehold_clock::SystemClock;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn is_held_up(ahead: &Ahead, key: &str) -> bool {
        let (key, clock) = (Key::new(key).unwrap(), SystemClock::new());
        let keys = [&key];
        let waiting = pin!(ahead.given_up(&keys, &clock, LIMIT));
        waiting.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn a_try_waits_for_what_was_dropped_of_its_lock_before_and_for_nothing_else() {
        let (ahead, clock) = (Arc::new(Ahead::default()), SystemClock::new());
        let (key, other) = (Key::new("k").unwrap(), Key::new("other").unwrap());
        let first = Ahead::add(&ahead, Some(key.clone()));
        let _of_another = Ahead::add(&ahead, Some(other));
        let keys = [&key];
        let mut waiting = pin!(ahead.given_up(&keys, &clock, LIMIT));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        let _later = Ahead::add(&ahead, Some(key.clone()));
        drop(first);
        assert!(waiting.poll(&mut cx).is_ready());
        assert!(!is_held_up(&ahead, "free"));
    }

    #[tokio::test]
    async fn a_full_queue_delays_the_tries_for_all_locks() {
        let ahead = Arc::new(Ahead::default());
        let mut all: Vec<_> = (0..AHEAD_MAX).map(|_| Ahead::add(&ahead, None)).collect();
        assert!(is_held_up(&ahead, "k"));
        all.pop();
        assert!(!is_held_up(&ahead, "k"));
        drop(all);
        assert!(ahead.is_empty());
    }
}
