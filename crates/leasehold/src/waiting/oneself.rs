//! Warns a task that waits for a lock that it holds itself.

use leasehold_core::{Key, Mode, Moment};

use crate::LOCK;
use crate::rt;
use crate::shared::Inner;
use crate::waiting::acquisition::Acquisition;

/// A warning of a wait that may have no end.
///
/// Tasks of one client that take a lock alternately wait for each other. A task that waits for its
/// own lease waits for itself. It may have passed its guard to another task, which is not known
/// here. So this only warns, when the wait has lasted for a ttl.
#[derive(Debug)]
pub(crate) struct Oneself {
    /// When to look; `None` after the look.
    from: Option<Moment>,
}

impl Oneself {
    pub(crate) fn new(acquisition: &Acquisition) -> Self {
        // A task that distributes permits takes each of them, passes it on, and waits for the next.
        let takes_turns = matches!(acquisition.request.mode, Mode::Permits { .. });
        let Acquisition { limits, terms, .. } = acquisition;
        let from = limits.started.saturating_add(terms.ttl.duration());
        Self { from: (!takes_turns).then_some(from) }
    }

    /// The waiting task calls this now and then.
    pub(crate) fn look(&mut self, client: &Inner, key: &Key) {
        if self.from.is_none_or(|from| client.clock.now() < from) {
            return;
        }
        // Once is enough: while it waits it takes no lock.
        self.from = None;
        let caller = rt::caller();
        let mut own = client.holds_of(key).filter(|lease| lease.state().holder() == caller);
        if let Some(lease) = own.next() {
            tracing::warn!(
                target: LOCK, %key, fence = %lease.fence(),
                "a task waits for a lock that it took itself; the wait ends when another one releases it"
            );
        }
    }
}
