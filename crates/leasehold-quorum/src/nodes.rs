//! Sends requests to the nodes, and defines their majority.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{BoxFuture, Clock, Effect, Error, ErrorKind, Moment, Reason, Store, Ttl};
use tokio::time::{Instant, timeout};

use crate::ballot::counts_from;
use crate::debts::Debts;
use crate::pace::Pace;
use crate::tokens::Tokens;

/// The least time for a node to answer, however short the lease.
pub(crate) const PATIENCE_MIN: Duration = Duration::from_millis(100);

/// All that the operations share.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    pub(crate) stores: Vec<Arc<dyn Store>>,
    pub(crate) location: Arc<str>,
    pub(crate) node_timeout: Duration,
    pub(crate) max_ttl: Ttl,
    pub(crate) keep_leases: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tokens: Arc<Tokens>,
    /// How each node answers.
    pub(crate) paces: Vec<Arc<Pace>>,
    /// Undoings that did not reach each node.
    pub(crate) debts: Vec<Arc<Debts>>,
}

impl Nodes {
    pub(crate) fn count(&self) -> usize {
        self.stores.len()
    }

    /// The majority of all configured nodes, reachable or not.
    pub(crate) fn majority(&self) -> usize {
        #[cfg(leasehold_planted)]
        if leasehold_core::planted::is(leasehold_core::planted::Fault::MinorityIsEnough) {
            return self.count() / 2;
        }
        majority(self.count())
    }

    /// How many nodes can be missing.
    pub(crate) fn spare(&self) -> usize {
        self.count().saturating_sub(self.majority())
    }

    pub(crate) fn name(&self, node: usize) -> String {
        self.stores.get(node).map(|store| store.location()).unwrap_or_default()
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// How long a node may take to answer, in one of `rounds` that have to fit into `within`.
    pub(crate) fn patience(&self, within: Duration, rounds: u32) -> Duration {
        self.node_timeout.min(within.checked_div(rounds).unwrap_or(within))
    }

    /// As [`patience`](Self::patience), for a new lease, which must not expire before its grant
    /// arrives.
    pub(crate) fn patience_for(&self, ttl: Ttl, within: Duration) -> Duration {
        self.patience(within, 3).min(ttl.part(4).max(PATIENCE_MIN))
    }

    /// Refuses a lease longer than the warm-up of a restarted node.
    pub(crate) fn check_ttl(&self, ttl: Ttl) -> Result<(), Error> {
        if ttl <= self.max_ttl || self.keep_leases {
            return Ok(());
        }
        let longest = self.max_ttl;
        Err(Error::new(
            ErrorKind::Config,
            format!(
                "a ttl of {ttl} is longer than max_ttl ({longest}); give a shorter ttl, or all \
                 users a longer max_ttl"
            ),
        ))
    }

    /// Sends a request to a node. The node's store should keep to `patience`; the wait ends a
    /// little later in any case.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        node: usize,
        patience: Duration,
        question: impl for<'a> FnOnce(&'a dyn Store, Duration) -> BoxFuture<'a, Result<T, Error>>
        + Send
        + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send + 'static {
        let asked = self.stores.get(node).cloned().zip(self.paces.get(node).cloned());
        let asked = asked.zip(self.debts.get(node).cloned());
        async move {
            let Some(((store, pace), debts)) = asked else {
                return Err(Error::new(ErrorKind::Misuse, "there is no such node"));
            };
            let limit = patience.saturating_add(patience / 4);
            let sent_at = Instant::now();
            let answer = timeout(limit, question(&*store, patience)).await;
            let answer = answer
                .unwrap_or_else(|_| {
                    let why = format!("no answer within {limit:?}");
                    let error = Error::new(ErrorKind::Unavailable, why);
                    Err(error.with_reason(Reason::NoAnswer).with_effect(Effect::Unknown))
                })
                .map_err(|error| error.at_store(store.location()));
            if pace.answered(&*store, answer.as_ref().err(), sent_at.elapsed()) {
                debts.back.notify_one();
            }
            answer
        }
    }

    /// Asks whether a node surely remembers every lease that may still run. If it is warming up,
    /// the error says when it counts.
    pub(crate) fn ask_age(
        &self,
        node: usize,
        patience: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let question = self.ask(node, patience, |store, within| store.remembers_for(within));
        let enough = counts_from(self.max_ttl);
        let location = self.stores.get(node).map(|store| store.location());
        async move {
            let Some(age) = question.await?.filter(|age| *age < enough) else { return Ok(()) };
            let left = enough.saturating_sub(age);
            let error = Error::new(ErrorKind::Unavailable, "warming up after its start")
                .with_reason(Reason::TooYoung);
            let error = error.passes_in(left);
            Err(error.at_store(location.unwrap_or_default()))
        }
    }

    /// The error when too few nodes carried out the request.
    pub(crate) fn too_few(&self, did: usize, what: &str, errors: Vec<Error>) -> Error {
        let final_kinds = errors.iter().filter(|error| !error.passes());
        // Retrying can help while the nodes with permanent errors can be spared.
        let kind = if final_kinds.clone().count() > self.spare() {
            final_kinds.map(Error::kind).next()
        } else {
            None
        };
        let not_applied = errors.iter().all(|error| error.effect() == Effect::NotApplied);
        let effect = if not_applied && did == 0 { Effect::NotApplied } else { Effect::Unknown };
        let why = format!(
            "{did} of {} nodes {what}, and the quorum needs {}",
            self.count(),
            self.majority()
        );
        let error = Error::new(kind.unwrap_or(ErrorKind::Unavailable), why).with_effect(effect);
        let mut ends: Vec<Duration> = errors.iter().filter_map(Error::retry_after).collect();
        ends.sort_unstable();
        let missing = self.majority().saturating_sub(did).max(1);
        match ends.get(missing.saturating_sub(1)) {
            Some(enough_count_in) => error.passes_in(*enough_count_in),
            None => error,
        }
        .at_nodes(errors)
    }

    /// The earliest end of a lease that was requested at `sent_at`.
    pub(crate) fn holds_until(sent_at: Moment, ttl: Ttl) -> Moment {
        sent_at
            .saturating_add(ttl.duration())
            .saturating_sub(leasehold_core::margin(ttl.duration()))
    }
}

/// More than half.
pub(crate) const fn majority(count: usize) -> usize {
    (count / 2).saturating_add(1)
}
