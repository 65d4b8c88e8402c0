//! Renews leases: a majority must renew, and the other nodes are healed.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, BoxFuture, Effect, Error, ErrorKind, LockInfo, Mode, Renew, RenewRequest,
    Result,
};
use tokio::time::{Instant, sleep_until};

use crate::nodes::Nodes;
use crate::round::Round;

/// How much longer than the majority a node may take at least to be healed by this renewal.
const LINGER_MIN: Duration = Duration::from_millis(20);
/// How many leases are healed at the same time.
const HEALINGS: usize = 64;

/// The nodes' answers to one renewal.
#[derive(Default)]
struct Said {
    renewed: Vec<usize>,
    late: Vec<usize>,
    not_held: Vec<usize>,
    errors: Vec<Error>,
    asked: bool,
}

impl Said {
    fn enter(&mut self, node: usize, answer: Option<Result<Renew>>) {
        match answer {
            Some(Ok(Renew::Renewed)) => self.renewed.push(node),
            Some(Ok(Renew::Asked)) => {
                self.renewed.push(node);
                self.asked = true;
            }
            Some(Ok(Renew::Late)) => self.late.push(node),
            Some(Ok(Renew::NotHeld)) => self.not_held.push(node),
            Some(Ok(_)) => self.errors.push(
                Error::new(ErrorKind::Protocol, "an answer that this version does not know")
                    .with_effect(Effect::Unknown),
            ),
            Some(Err(error)) => self.errors.push(error),
            None => self.errors.push(
                Error::new(ErrorKind::Protocol, "a renewal without an answer")
                    .with_effect(Effect::Unknown),
            ),
        }
    }

    fn decide(&self, nodes: &Nodes, all: bool) -> Option<Renew> {
        let Self { renewed, late, not_held, .. } = self;
        if renewed.len() >= nodes.majority() {
            return Some(if self.asked { Renew::Asked } else { Renew::Renewed });
        }
        if late.len().saturating_add(not_held.len()) <= nodes.spare() {
            return None;
        }
        if not_held.len() > nodes.spare() {
            return Some(Renew::NotHeld);
        }
        // Late requires a majority that has not granted the lock since.
        if renewed.len().saturating_add(late.len()) >= nodes.majority() {
            return Some(Renew::Late);
        }
        all.then_some(Renew::NotHeld)
    }

    /// The nodes where the lease is missing.
    fn holes(&self) -> impl Iterator<Item = usize> {
        self.late.iter().chain(&self.not_held).copied()
    }
}

impl Nodes {
    pub(crate) async fn renew(
        self: &Arc<Self>,
        requests: &[RenewRequest],
        within: Duration,
    ) -> Vec<Result<Renew>> {
        // A renewed lease must not outlast the warm-up of a restarted node, either.
        let fitting: Vec<RenewRequest> =
            requests.iter().filter(|one| self.check_ttl(one.ttl).is_ok()).cloned().collect();
        let mut answers = self.renew_fitting(fitting, within).await.into_iter();
        let unanswered = || Err(Error::new(ErrorKind::Protocol, "a renewal without an answer"));
        let answers = requests.iter().map(|one| match self.check_ttl(one.ttl) {
            Ok(()) => answers.next().unwrap_or_else(unanswered),
            Err(too_long) => Err(too_long),
        });
        answers.collect()
    }

    async fn renew_fitting(
        self: &Arc<Self>,
        requests: Vec<RenewRequest>,
        within: Duration,
    ) -> Vec<Result<Renew>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let started = Instant::now();
        let sent_at = self.now();
        let patience = self.patience(within, 2);
        let requests: Arc<[RenewRequest]> = requests.into();
        let mut round = Round::new();
        for node in 0..self.count() {
            let batch = Arc::clone(&requests);
            let question = self.ask(node, patience, move |store, within| {
                Box::pin(async move { Ok(store.renew(&batch, within).await) })
                    as BoxFuture<'_, Result<Vec<Result<Renew>>>>
            });
            round.ask(node, question);
        }
        let mut said: Vec<Said> = requests.iter().map(|_| Said::default()).collect();
        let mut linger: Option<Instant> = None;
        loop {
            let limit = linger;
            let answer = tokio::select! {
                biased;
                answer = round.next() => answer,
                () = until(limit) => None,
            };
            let Some((node, answers)) = answer else { break };
            match answers {
                Ok(answers) => {
                    let mut answers = answers.into_iter();
                    said.iter_mut().for_each(|said| said.enter(node, answers.next()));
                }
                Err(error) => {
                    said.iter_mut().for_each(|said| said.errors.push(error.clone()));
                }
            }
            // Waits a little for slower nodes, so that they can be healed as well.
            if linger.is_none() && said.iter().all(|said| said.decide(self, false).is_some()) {
                let took = started.elapsed();
                linger = Instant::now().checked_add(took.saturating_mul(2).max(LINGER_MIN));
            }
        }
        if !round.is_over() {
            tokio::spawn(round.finish());
        }
        let left = within.saturating_sub(started.elapsed());
        let now = self.now();
        for (said, request) in said.iter_mut().zip(&*requests) {
            if said.renewed.len() >= self.majority() {
                let until = Self::holds_until(sent_at, request.ttl);
                if request.successor.is_some() {
                    // Otherwise a request still under way for the spent token would grant it again
                    // at some node.
                    self.end(request.token).await;
                }
                self.tokens.renewed(
                    request.renewed_token(),
                    now,
                    (request.fences, until),
                    request.shorten,
                );
            }
        }
        self.heal(&said, &requests, self.patience(left, 2)).await;
        let answers = said.into_iter().map(|said| match said.decide(self, true) {
            Some(answer) => Ok(answer),
            None => Err(self.too_few(said.renewed.len(), "renewed the lease", said.errors)),
        });
        answers.collect()
    }

    /// Acquires leases that a majority holds at the nodes that lack them. Those nodes were away at
    /// the grant, were restarted, or lost the lease to an unsuccessful contender.
    ///
    /// This is safe: the majority excludes all other contenders meanwhile, and the healed node
    /// counts only from the next renewal on. It has its own fences for the lease, above the
    /// lease's.
    async fn heal(self: &Arc<Self>, said: &[Said], requests: &[RenewRequest], patience: Duration) {
        let mut healings = Vec::new();
        for (said, request) in said.iter().zip(requests) {
            let Some(model) = said.renewed.first().copied() else { continue };
            let given_up = self.tokens.is_given_up(request.renewed_token());
            if given_up || said.renewed.len() < self.majority() {
                continue;
            }
            let holes: Vec<usize> = said.holes().collect();
            if !holes.is_empty() {
                healings.push((model, holes, request.clone()));
            }
        }
        let until = Instant::now() + patience.saturating_mul(2);
        for some in healings.chunks(HEALINGS) {
            if Instant::now() >= until {
                return;
            }
            let mut round = Round::new();
            for (model, holes, request) in some.iter().cloned() {
                let nodes = Arc::clone(self);
                round.ask(
                    model,
                    async move { nodes.heal_one(model, holes, request, patience).await },
                );
            }
            tokio::select! {
                biased;
                () = round.finish() => {}
                () = sleep_until(until) => return,
            }
        }
    }

    async fn heal_one(
        self: Arc<Self>,
        model: usize,
        holes: Vec<usize>,
        request: RenewRequest,
        patience: Duration,
    ) {
        let key = request.key.clone();
        let looked = self.ask(model, patience, move |store, within| {
            Box::pin(async move { store.inspect(&key, within).await })
                as BoxFuture<'_, Result<Option<LockInfo>>>
        });
        // The only holder there is this lease: the node renewed its exclusive lease a moment ago.
        let Ok(Some(info)) = looked.await else { return };
        let Some(holder) = info.holders.into_iter().next() else { return };
        if holder.mode != Mode::Exclusive {
            return;
        }
        let mut acquire =
            AcquireRequest::new(request.key.clone(), request.renewed_token(), request.ttl);
        acquire.owner = holder.owner;
        acquire.metadata = holder.metadata;
        if let Some(count) = std::num::NonZeroU32::new(request.fences.count()) {
            acquire.fence_block = count;
        }
        if let Some(holds) = std::num::NonZeroU32::new(holder.holds) {
            acquire.holds = holds;
        }
        let acquire = Arc::new(acquire);
        let mut round = Round::new();
        for node in holes {
            let acquire = Arc::clone(&acquire);
            round.ask(
                node,
                self.ask(node, patience, move |store, within| {
                    Box::pin(async move { store.acquire(&acquire, within).await })
                        as BoxFuture<'_, _>
                }),
            );
        }
        while let Some((node, answer)) = round.next().await {
            let node = self.stores.get(node).map(|store| store.location()).unwrap_or_default();
            match answer {
                Ok(_) => tracing::debug!(target: "leasehold", key = %request.key, node, "healed"),
                Err(error) => {
                    tracing::debug!(target: "leasehold", key = %request.key, node, %error, "not healed");
                }
            }
        }
    }
}

async fn until(limit: Option<Instant>) {
    match limit {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
