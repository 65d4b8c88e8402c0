//! Warns a task that waits for a lock that it holds itself.

use leasehold_core::{Key, Mode, Moment};

use crate::LOCK;
use crate::rt;
use crate::shared::Inner;
use crate::waiting::acquisition::Acquisition;

/// What a wait says once that may have no end.
///
/// Tasks of one client that take turns wait for each other. One that waits for its own lease waits for
/// itself, unless it has given its guard away, which is not known here. So it is told when the wait has
/// lasted for a ttl, and changes nothing.
#[derive(Debug)]
pub(crate) struct Oneself {
    /// From when on it is looked for; `None` once it was.
    from: Option<Moment>,
}

impl Oneself {
    pub(crate) fn new(acquisition: &Acquisition) -> Self {
        // Who hands out permits takes each of them, gives it away, and waits for the next.
        let takes_turns = matches!(acquisition.request.mode, Mode::Permits { .. });
        let Acquisition { limits, terms, .. } = acquisition;
        let from = limits.started.saturating_add(terms.ttl.duration());
        Self { from: (!takes_turns).then_some(from) }
    }

    /// To be called now and then by the one that waits.
    pub(crate) fn look(&mut self, client: &Inner, key: &Key) {
        if self.from.is_none_or(|from| client.clock.now() < from) {
            return;
        }
        // Once is enough: while it waits it takes nothing.
        self.from = None;
        let caller = rt::caller();
        let mut own = client.holds_of(key).filter(|lease| lease.is_of(caller));
        if let Some(lease) = own.next() {
            tracing::warn!(
                target: LOCK, %key, fence = %lease.fence(),
                "a task waits for a lock that it took itself; the wait ends when another one releases it"
            );
        }
    }
}
