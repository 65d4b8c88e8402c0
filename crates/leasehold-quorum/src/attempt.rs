//! Carries out one try to acquire a lock: sends the ballot's requests and feeds it the answers.

mod complete;
mod undo;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireRequest, BoxFuture, Busy, Error, ErrorKind, FenceBlock, Renew, RenewRequest,
    Result,
};
use tokio::time::{Instant, timeout_at};

use crate::ballot::{Ballot, InVain, Next, Stands};
use crate::nodes::Nodes;
use crate::round::Round;

/// A node's answer during an attempt.
enum Said {
    Acquire(Result<Acquire>),
    /// Whether it surely remembers every lease.
    Age(Result<()>),
    /// Whether it took over these fences.
    Raised(FenceBlock, Result<()>),
}

/// One try to get a majority.
pub(crate) struct Attempt {
    nodes: Arc<Nodes>,
    request: Arc<AcquireRequest>,
    patience: Duration,
    started: Instant,
    round: Round<Said>,
    ballot: Ballot,
    /// Whether the attempt has become a lease.
    entered: bool,
}

impl Attempt {
    /// Sends the acquisition to all nodes.
    pub(crate) fn begin(
        nodes: &Arc<Nodes>,
        request: &Arc<AcquireRequest>,
        patience: Duration,
    ) -> Self {
        let mut round = Round::new();
        for node in 0..nodes.count() {
            round.ask(node, ask_for(nodes, request, patience, node));
        }
        let (count, majority, holds) = (nodes.count(), nodes.majority(), request.holds.get());
        Self {
            nodes: Arc::clone(nodes),
            request: Arc::clone(request),
            patience,
            started: Instant::now(),
            round,
            ballot: Ballot::new(count, majority, nodes.keep_leases, holds),
            entered: false,
        }
    }

    /// Runs until it has a majority (`None`), or none is possible (`Some`).
    pub(crate) async fn run(&mut self) -> Option<InVain> {
        loop {
            match self.ballot.stands(self.round.has_answers()) {
                Stands::Held => return None,
                Stands::InVain => return Some(self.ballot.why()),
                Stands::Open => {}
            }
            let said = match self.no_later_than() {
                Some(at) => timeout_at(at, self.round.next()).await.unwrap_or_default(),
                None => self.round.next().await,
            };
            let Some((node, said)) = said else { return Some(self.ballot.why()) };
            let next = match said {
                Said::Acquire(answer) => {
                    let (answer, known) = (self.without_own(node, answer), self.known());
                    self.ballot.answered(node, answer, known, |node| self.nodes.name(node))
                }
                Said::Age(answer) => {
                    self.ballot.is_old_enough(node, answer);
                    Vec::new()
                }
                Said::Raised(fences, answer) => {
                    self.ballot.raised(node, fences, answer);
                    Vec::new()
                }
            };
            self.carry_out(next);
            if !self.round.has_answers() {
                let next = self.ballot.decide(self.known());
                self.carry_out(next);
            }
        }
    }

    /// When to stop waiting for silent nodes, if other leases block this attempt and only those
    /// nodes could still make a majority: after their usual time.
    ///
    /// The grants of this attempt block other contenders in turn. If each of them waited long for a
    /// node that is gone, they would only wait and never decide who gets the lock.
    fn no_later_than(&self) -> Option<Instant> {
        let asked = self.ballot.only_might_help().filter_map(|node| self.nodes.paces.get(node));
        let longest = asked.map(|pace| pace.allowance(self.patience)).max()?;
        self.started.checked_add(longest)
    }

    /// The answer for the acquired lease.
    pub(crate) fn answer(&self) -> Acquire {
        self.ballot.answer()
    }

    /// The fences granted to the token, if its lease surely still holds.
    fn known(&self) -> Option<FenceBlock> {
        self.nodes.tokens.granted(self.request.token, self.nodes.now())
    }

    /// Hides another try of this process: it is not a holder.
    fn without_own(&self, node: usize, answer: Result<Acquire>) -> Result<Acquire> {
        match answer {
            Ok(Acquire::Busy(busy)) => {
                let own = |fence| self.nodes.tokens.is_try(node, fence);
                let own = busy.holder.as_ref().is_some_and(|holder| own(holder.fence));
                Ok(Acquire::Busy(if own { Busy::contended() } else { busy }))
            }
            answer => answer,
        }
    }

    fn carry_out(&mut self, next: Vec<Next>) {
        for next in next {
            match next {
                Next::Tried(node, fences) => self.note_try(node, fences),
                Next::AskAge(node) => {
                    let question = self.nodes.ask_age(node, self.patience);
                    self.round.ask(node, async move { Said::Age(question.await) });
                }
                Next::Raise(node, fences) => self.raise(node, fences),
            }
        }
    }

    /// Records the fence with which a node shows this try, until it becomes a lease.
    fn note_try(&self, node: usize, fences: FenceBlock) {
        if !self.entered {
            self.nodes.tokens.tried(self.request.token, self.nodes.now(), node, fences);
        }
    }

    fn raise(&mut self, node: usize, fences: FenceBlock) {
        self.note_try(node, fences);
        let AcquireRequest { key, token, ttl, .. } = &*self.request;
        let renewal = RenewRequest::new(key.clone(), *token, fences, *ttl);
        let question = self.nodes.ask(node, self.patience, move |store, within| {
            Box::pin(async move {
                let mut answers = store.renew(std::slice::from_ref(&renewal), within).await;
                answers.pop().unwrap_or_else(|| {
                    Err(Error::new(ErrorKind::Protocol, "a renewal without an answer"))
                })
            }) as BoxFuture<'_, Result<Renew>>
        });
        let location = self.nodes.name(node);
        self.round.ask(node, async move {
            let answer = question.await.and_then(|answer| match answer {
                Renew::Late | Renew::NotHeld => Err(Error::new(
                    ErrorKind::Unavailable,
                    "the lease was over before its fence was confirmed",
                )
                .at_store(location)),
                _ => Ok(()),
            });
            Said::Raised(fences, answer)
        });
    }
}

/// Requests the lease from a node.
fn ask_for(
    nodes: &Arc<Nodes>,
    request: &Arc<AcquireRequest>,
    patience: Duration,
    node: usize,
) -> BoxFuture<'static, Said> {
    let request = Arc::clone(request);
    let question = nodes.ask(node, patience, move |store, within| {
        Box::pin(async move { store.acquire(&request, within).await })
            as BoxFuture<'_, Result<Acquire>>
    });
    Box::pin(async move { Said::Acquire(question.await) })
}
