//! Remembers whether and how quickly a node answers.

use std::error::Error as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{Error, Store};

/// The least time to wait for a node whose usual time is known.
const MIN: Duration = Duration::from_millis(20);

/// One node's last answers.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Whether the last answer was an error, which was then logged.
    failing: AtomicBool,
    /// The slowest of the last answers in microseconds, slowly forgotten; 0 before the first.
    usual: AtomicU64,
}

impl Pace {
    /// Records an answer; returns whether the node is back after a failure. Logs when a node begins
    /// to fail and when it answers again, since a majority without it would hide that.
    pub(crate) fn answered(
        &self,
        store: &dyn Store,
        error: Option<&Error>,
        took: Duration,
    ) -> bool {
        let was_failing = self.failing.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !was_failing => {
                let why = error.source().map(ToString::to_string);
                tracing::warn!(target: "leasehold", %error, why, "a node of the quorum does not count");
            }
            None if was_failing => {
                let node = store.location();
                tracing::info!(target: "leasehold", %node, "a node of the quorum counts again");
            }
            _ => {}
        }
        if error.is_none() {
            let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
            let before = self.usual.load(Ordering::Relaxed);
            let slowest = took.max(before.saturating_sub(before / 8));
            self.usual.store(slowest, Ordering::Relaxed);
        }
        was_failing && error.is_none()
    }

    /// How long to wait for an answer that only might help. It is twice the node's usual time,
    /// little if the node is failing, and all of `patience` for a new node.
    pub(crate) fn allowance(&self, patience: Duration) -> Duration {
        if self.failing.load(Ordering::Relaxed) {
            return MIN.min(patience);
        }
        match self.usual.load(Ordering::Relaxed) {
            0 => patience,
            usual => Duration::from_micros(usual).saturating_mul(2).max(MIN).min(patience),
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::ErrorKind;
    use leasehold_embedded::MemoryStore;

    use super::*;

    #[test]
    fn a_node_is_given_twice_what_it_takes_and_little_once_it_fails() {
        let ms = Duration::from_millis;
        let (pace, store, patience) = (Pace::default(), MemoryStore::new(), ms(500));
        assert_eq!(pace.allowance(patience), patience);
        pace.answered(&store, None, ms(120));
        assert_eq!(pace.allowance(patience), ms(240));
        pace.answered(&store, None, ms(1));
        assert_eq!(pace.allowance(patience), ms(210), "one quick answer says little");
        pace.answered(&store, None, ms(400));
        assert_eq!(pace.allowance(patience), patience);
        let error = Error::new(ErrorKind::Unavailable, "gone");
        pace.answered(&store, Some(&error), ms(500));
        assert_eq!(pace.allowance(patience), ms(20));
        assert_eq!(pace.allowance(ms(5)), ms(5));
        for _ in 0..100 {
            pace.answered(&store, None, ms(1));
        }
        assert_eq!(pace.allowance(patience), ms(20));
    }
}
