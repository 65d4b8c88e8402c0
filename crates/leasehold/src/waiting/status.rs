//! What a waiter knows of the lock and of the store, and for how long it goes on waiting.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Busy, Error, ErrorKind, HolderInfo, Key, Moment, Reason, length};

use crate::settings::Settings;
use crate::shared::Inner;

/// How long a waiter without a limit rides out the absence of a store that its client has reached.
const OUTAGE_MAX: Duration = Duration::from_secs(30);

/// What bounds a wait.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) settings: Arc<Settings>,
    pub(crate) started: Moment,
    pub(crate) until: Option<Moment>,
}

/// What blocked the lock when last seen, for the error message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocker {
    pub(crate) holder: Option<Box<HolderInfo>>,
    pub(crate) seen_at: Moment,
    /// When it could come free at the earliest, as last seen.
    pub(crate) free_at: Option<Moment>,
    pub(crate) position: Option<u32>,
    /// Whether several contend for it, and none has got it.
    pub(crate) contended: bool,
}

impl Blocker {
    /// The store's answer about a lock that can't be acquired at `now`.
    pub(crate) fn of(busy: Busy, now: Moment) -> Self {
        let contended = busy.is_contended();
        let free_at = (!contended).then(|| now.saturating_add(busy.retry_after));
        Self { holder: busy.holder, seen_at: now, free_at, position: None, contended }
    }
}

/// Whether the store is away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contact {
    outage: Option<Outage>,
}

#[derive(Clone, Debug)]
struct Outage {
    /// From when on it counts: from the first failed request, or from the time at which the store
    /// said that it would be ready.
    since: Moment,
    /// When, and how, the last request failed.
    last: Moment,
    error: Error,
    /// When it passes, if the store has said so.
    passes_at: Moment,
}

impl Outage {
    /// Whether the store is there, and its replicas are not.
    fn is_of_replicas(&self) -> bool {
        self.error.kind() == ErrorKind::NotReplicated
    }
}

impl Contact {
    /// Records an answer from a store where another holder has the lock.
    ///
    /// A store that could not confirm a lease on its replicas may grant leases to others, fail to
    /// confirm these too, and take them back. Only a holder of longer than such a `try_lasts` shows
    /// that the replicas are back, or that this contender's own requests no longer fail.
    pub(crate) fn is_good(
        &mut self,
        holder: Option<&HolderInfo>,
        try_lasts: Duration,
        now: Moment,
    ) {
        let is_safe = holder.is_some_and(|holder| holder.held_for > try_lasts);
        let goes_on = |outage: &Outage| {
            let failed_ago = now.saturating_since(outage.last);
            outage.is_of_replicas() && !is_safe && failed_ago < OUTAGE_MAX
        };
        self.outage = self.outage.take().filter(goes_on);
    }

    /// Records a failed request.
    pub(crate) fn is_bad(&mut self, error: Error, now: Moment) {
        let (since, passes_at) = match error.retry_after() {
            // Until then the store has announced it, and only what goes on after that is an outage.
            Some(after) => {
                let passes_at = now.saturating_add(after);
                (passes_at, passes_at)
            }
            None => (self.outage.as_ref().map_or(now, |outage| outage.since.min(now)), now),
        };
        self.outage = Some(Outage { since, last: now, error, passes_at });
    }

    /// The error of an outage that has lasted for `patience`; without a `patience` it may last for
    /// ever.
    pub(crate) fn given_up(&self, now: Moment, patience: Option<Duration>) -> Option<&Error> {
        let outage = self.outage.as_ref()?;
        let over_at = outage.since.saturating_add(patience?);
        (now >= over_at).then_some(&outage.error)
    }

    /// When the store will serve the request, if it has said so.
    pub(crate) fn passes_at(&self) -> Option<Moment> {
        let outage = self.outage.as_ref()?;
        (outage.passes_at > outage.last).then_some(outage.passes_at)
    }
}

/// What all contenders of a local queue know while they wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitStatus {
    pub(crate) blocker: Blocker,
    pub(crate) contact: Contact,
}

impl WaitStatus {
    /// Records an answer, and what blocks the lock by it.
    pub(crate) fn set(&mut self, blocker: Blocker, try_lasts: Duration) {
        self.contact.is_good(blocker.holder.as_deref(), try_lasts, blocker.seen_at);
        self.blocker = blocker;
    }
}

/// What the contender that talks to the store last saw, for all in the local queue, and their
/// number.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedStatus(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    status: Mutex<WaitStatus>,
    contenders: AtomicU32,
}

impl SharedStatus {
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut WaitStatus) -> T) -> T {
        look(&mut self.0.status.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets how many are in the local queue.
    pub(crate) fn count(&self, contenders: u32) {
        self.0.contenders.store(contenders, Ordering::Relaxed);
    }

    /// How many of them are behind the one that talks to the store.
    pub(crate) fn behind(&self) -> u32 {
        self.0.contenders.load(Ordering::Relaxed).saturating_sub(1)
    }

    pub(crate) fn get(&self) -> WaitStatus {
        self.with(|status| status.clone())
    }

    /// Records that the lock was acquired.
    pub(crate) fn got(&self) {
        self.with(|status| *status = WaitStatus::default());
    }

    /// Records an answer, and what blocks the lock by it.
    pub(crate) fn set(&self, blocker: Blocker, try_lasts: Duration) {
        self.with(|status| status.set(blocker, try_lasts));
    }
}

impl Limits {
    /// How long to wait after this many tries in a row, if the wait goes on even when the strategy
    /// ends.
    pub(crate) fn pause_after(&self, tries: u32) -> Duration {
        self.settings.retry.pause(tries.max(1)).unwrap_or(Duration::from_millis(100))
    }

    /// How long the store may be away during a wait; `None` while the wait has time. A store that
    /// was never reached may be a wrong address, so the client waits for it only as long as its
    /// settings say.
    pub(crate) fn patience(&self, client: &Inner) -> Option<Duration> {
        let asked = client.config.retry_store;
        match (client.heard_at(), self.until) {
            (None, _) => Some(asked),
            (Some(_), Some(_)) => None,
            (Some(_), None) => Some(asked.max(OUTAGE_MAX)),
        }
    }

    /// The error of a wait that timed out. If the store could not be reached at its end, the error
    /// says that: it is then unknown whether the lock is held.
    pub(crate) fn ran_out(
        &self,
        key: &Key,
        client: &Inner,
        status: &WaitStatus,
        why: &str,
    ) -> Error {
        let now = client.clock.now();
        let waited = length::measured(now.saturating_since(self.started));
        let explain =
            |error: Error| error.during("acquire").on_key(key).at_store(client.location());
        let WaitStatus { blocker, contact } = status;
        if let Some(outage) = contact.outage.as_ref().filter(|outage| outage.is_of_replicas()) {
            let why = format!(
                "{why} after {waited}; the grant was not confirmed, so the lock is released"
            );
            return explain(Error::new(outage.error.kind(), why).caused_by(outage.error.clone()));
        }
        if let Some(Outage { error, passes_at, .. }) = &contact.outage {
            let left = passes_at.saturating_since(now);
            if !left.is_zero() {
                let error_then = Error::new(error.kind(), format!("{why} after {waited}"));
                let cause = error.clone().passes_in(left);
                return explain(error_then.passes_in(left).caused_by(cause));
            }
            let last = client.heard_at().map(|heard| now.saturating_since(heard));
            // A quorum may have answers of some nodes and still not be reachable.
            let contact = match last.filter(|last| *last >= Duration::from_millis(100)) {
                Some(last) => format!(" (last contact {} ago)", length::measured(last)),
                None => String::new(),
            };
            let why = format!(
                "{why} after {waited} while the store was away{contact}, so the state of the lock \
                 is unknown"
            );
            let reason = error.reason().unwrap_or(Reason::WaitOver);
            let error_then = Error::new(error.kind(), why).with_reason(reason);
            return explain(error_then.caused_by(error.clone()));
        }
        let Blocker { mut holder, seen_at, free_at, position, contended } = blocker.clone();
        if let Some(holder) = &mut holder {
            holder.held_for = holder.held_for.saturating_add(now.saturating_since(seen_at));
        }
        let retry_after = free_at.map(|at| at.saturating_since(now));
        // A waiter for another library's lock has no position in a queue.
        let in_line = !holder.as_deref().is_some_and(HolderInfo::is_foreign);
        let place = match position.filter(|_| in_line) {
            Some(position) => format!(" at position {} in the queue", position.saturating_add(1)),
            None if contended => ", while no contender had enough nodes".to_owned(),
            None => String::new(),
        };
        let oneself = match client.holds_of(key).next() {
            Some(_) => ", while this client held it itself",
            None => "",
        };
        let why = format!("{why} after {waited}{place}{oneself}");
        explain(
            Error::new(ErrorKind::Timeout, why).held_by(holder.map(|holder| *holder), retry_after),
        )
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Fence, Mode};

    use super::*;

    const TRY: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Moment {
        Moment::default().saturating_add(Duration::from_secs(seconds))
    }

    fn held_for(held_for: Duration) -> HolderInfo {
        HolderInfo::new(Mode::Exclusive, Fence::ZERO, held_for, TRY)
    }

    fn failed(kind: ErrorKind, now: Moment) -> Contact {
        let mut contact = Contact::default();
        contact.is_bad(Error::new(kind, "no"), now);
        contact
    }

    #[test]
    fn any_answer_ends_an_outage_but_for_one_of_replicas() {
        for (kind, goes_on) in [(ErrorKind::Unavailable, false), (ErrorKind::NotReplicated, true)] {
            let mut contact = failed(kind, at(100));
            contact.is_good(Some(&held_for(TRY / 4)), TRY, at(101));
            assert_eq!(contact.outage.is_some(), goes_on, "{kind:?}");
        }
    }

    #[test]
    fn replicas_are_back_when_a_lease_has_outlived_a_try_or_none_failed_for_long() {
        let mut contact = failed(ErrorKind::NotReplicated, at(100));
        contact.is_good(Some(&held_for(TRY * 2)), TRY, at(101));
        assert!(contact.outage.is_none());

        let mut contact = failed(ErrorKind::NotReplicated, at(100));
        contact.is_good(None, TRY, at(129));
        assert!(contact.outage.is_some());
        contact.is_good(None, TRY, at(130));
        assert!(contact.outage.is_none());
    }
}
