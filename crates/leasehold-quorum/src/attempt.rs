//! One try to take a lock: what each node says to it, and what they say together.

mod complete;
mod fences;
mod undo;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireRequest, Already, BoxFuture, Busy, Effect, Error, ErrorKind, FenceBlock,
    Granted, Metadata, OwnerName, Reason, Refusal, Result,
};
use tokio::time::{Instant, timeout, timeout_at};

use crate::nodes::Nodes;
use crate::round::Round;

/// What a node says during an attempt.
enum Said {
    Acquire(Result<Acquire>),
    /// Whether it surely remembers every lease.
    Age(Result<()>),
    /// Whether it took over these fences.
    Raised(FenceBlock, Result<()>),
}

/// Where an attempt stands with one node.
enum Vote {
    Asked,
    /// It has granted the lease, now or earlier.
    Holds(Holds),
    Busy(Busy),
    Refused(Refusal),
    Failed(Error),
}

struct Holds {
    fences: FenceBlock,
    /// Whether it held the lease before this attempt.
    before: bool,
    holds: u32,
    old_enough: bool,
    raised: bool,
}

/// One try to get a majority.
pub(crate) struct Attempt {
    nodes: Arc<Nodes>,
    request: Arc<AcquireRequest>,
    patience: Duration,
    started: Instant,
    round: Round<Said>,
    votes: Vec<Vote>,
    /// The fences of the lease, once a majority has granted it.
    fences: Option<FenceBlock>,
    /// Whether these fences were told before, so that no others may take their place.
    told_before: bool,
    /// Whether it is a lease by now.
    entered: bool,
}

/// How a try ended.
pub(crate) enum Outcome {
    Held,
    /// Somebody else holds it, or the lock is closed.
    Busy(Busy),
    /// Several took some nodes each, and none a majority.
    Split,
    Refused(Refusal),
    Failed(Error),
}

impl Attempt {
    /// Asks all nodes that have a vote.
    pub(crate) fn begin(
        nodes: &Arc<Nodes>,
        request: &Arc<AcquireRequest>,
        patience: Duration,
    ) -> Self {
        let mut round = Round::new();
        let mut votes = Vec::with_capacity(nodes.count());
        for node in 0..nodes.count() {
            round.ask(node, ask_for(nodes, request, patience, node));
            votes.push(Vote::Asked);
        }
        Self {
            nodes: Arc::clone(nodes),
            request: Arc::clone(request),
            patience,
            started: Instant::now(),
            round,
            votes,
            fences: None,
            told_before: false,
            entered: false,
        }
    }

    pub(crate) async fn run(&mut self) -> Outcome {
        loop {
            if self.count(Vote::is_confirmed) >= self.nodes.majority() {
                return Outcome::Held;
            }
            let in_vain = self.count(Vote::is_possible) < self.nodes.majority();
            if in_vain && self.is_clear_why() && !self.round.has_answers() {
                return self.failed();
            }
            let said = match self.no_later_than() {
                Some(at) => match timeout_at(at, self.round.next()).await {
                    Ok(said) => said,
                    Err(_) => return self.failed(),
                },
                None => self.round.next().await,
            };
            match said {
                Some((node, Said::Acquire(answer))) => self.answered(node, answer),
                Some((node, Said::Age(answer))) => {
                    self.step(node, answer, |holds| holds.old_enough = true);
                }
                Some((node, Said::Raised(fences, answer))) => {
                    // Of fences that were given up only a failure still says something.
                    if answer.is_err() || self.fences == Some(fences) {
                        self.step(node, answer, |holds| holds.raised = true);
                    }
                }
                None => return self.failed(),
            }
            // Nodes that answered at the same time have a say too, and the same fence in the end.
            if self.round.has_answers() {
                continue;
            }
            if self.fences.is_none() {
                self.settle_fences();
            } else {
                self.lift_fences();
            }
        }
    }

    /// Until when to wait for the nodes that have not answered, where others are in the way and only
    /// these could still make a majority: for as long as they usually take. What this attempt has
    /// got is in the way of the others in turn. If each of them waited so for a node that is gone,
    /// all of the time in which it could be settled who gets the lock would be spent waiting.
    fn no_later_than(&self) -> Option<Instant> {
        let in_the_way = |vote: &Vote| matches!(vote, Vote::Busy(_) | Vote::Refused(_));
        let granted = self.count(|vote| matches!(vote, Vote::Holds(_)));
        if self.count(in_the_way) == 0 || granted >= self.nodes.majority() || !self.is_clear_why() {
            return None;
        }
        let asked = self.votes.iter().zip(&self.nodes.paces);
        let asked = asked.filter(|(vote, _)| matches!(vote, Vote::Asked));
        let longest = asked.map(|(_, pace)| pace.allowance(self.patience)).max()?;
        self.started.checked_add(longest)
    }

    fn count(&self, which: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| which(vote)).count()
    }

    fn answered(&mut self, node: usize, answer: Result<Acquire>) {
        self.count_vote(node, answer);
        if matches!(self.votes.get(node), Some(Vote::Holds(_))) {
            self.ask_age(node);
            if self.fences.is_some() {
                self.raise(node);
            }
        }
    }

    fn count_vote(&mut self, node: usize, answer: Result<Acquire>) {
        let tokens = &self.nodes.tokens;
        let vote = match answer {
            Ok(Acquire::Granted(granted)) => {
                self.note_try(node, granted.fences);
                Vote::holds(granted.fences, false, self.request.holds.get())
            }
            Ok(Acquire::Already(already)) => Vote::holds(already.fences, true, already.holds),
            Ok(Acquire::Busy(busy)) => {
                let own = |fence| tokens.is_try(node, fence);
                let own = busy.holder.as_ref().is_some_and(|holder| own(holder.fence));
                Vote::Busy(if own { Busy::contended() } else { busy })
            }
            Ok(Acquire::Refused(refusal)) => Vote::Refused(refusal),
            Ok(_) => Vote::Failed(
                Error::new(ErrorKind::Protocol, "an answer that this version does not know")
                    .with_effect(Effect::Unknown),
            ),
            Err(error) => Vote::Failed(error),
        };
        if let Some(slot) = self.votes.get_mut(node) {
            *slot = vote;
        }
        self.drop_second_names();
    }

    /// Enters with which fence a node shows this try, until it is a lease.
    fn note_try(&self, node: usize, fences: FenceBlock) {
        if !self.entered {
            self.nodes.tokens.tried(self.request.token, self.nodes.now(), node, fences);
        }
    }

    /// Takes the vote from a node that is another one under a second name: what the first name was
    /// granted just now, the second one is said to have had before. Two servers never agree so,
    /// since a node that had the lease before has older fences for it.
    fn drop_second_names(&mut self) {
        let granted: Vec<(usize, FenceBlock)> = (0..)
            .zip(&self.votes)
            .filter_map(|(node, vote)| match vote {
                Vote::Holds(holds) if !holds.before => Some((node, holds.fences)),
                _ => None,
            })
            .collect();
        for (first, fences) in granted {
            for second in 0..self.votes.len() {
                let same = matches!(
                    self.votes.get(second),
                    Some(Vote::Holds(holds)) if holds.before && holds.fences == fences
                );
                if !same {
                    continue;
                }
                let location =
                    |node: usize| self.nodes.stores.get(node).map(|store| store.location());
                let error = Error::new(
                    ErrorKind::Config,
                    format!(
                        "it is the same server as {} under another name, and has one vote; name \
                         each server once",
                        location(first).unwrap_or_default()
                    ),
                )
                .with_reason(Reason::StoreSettings)
                .at_store(location(second).unwrap_or_default());
                // What it shows there is the same try.
                self.note_try(second, fences);
                if let Some(vote) = self.votes.get_mut(second) {
                    *vote = Vote::Failed(error);
                }
            }
        }
    }

    /// Asks how far back the node remembers. Only now: had it been restarted between that answer
    /// and the grant, the answer would be worth nothing.
    fn ask_age(&mut self, node: usize) {
        let counts = self.nodes.keep_leases;
        #[cfg(leasehold_planted)]
        let counts =
            counts || leasehold_core::planted::is(leasehold_core::planted::Fault::YoungNodeCounts);
        if counts {
            return self.step(node, Ok(()), |holds| holds.old_enough = true);
        }
        let question = self.nodes.ask_age(node, self.patience);
        self.round.ask(node, async move { Said::Age(question.await) });
    }

    fn step(&mut self, node: usize, answer: Result<()>, done: impl FnOnce(&mut Holds)) {
        let Some(vote) = self.votes.get_mut(node) else { return };
        match (vote, answer) {
            (Vote::Holds(holds), Ok(())) => done(holds),
            // It holds the lease all the same, which is to be undone if it comes to that.
            (vote, Err(error)) => *vote = Vote::Failed(error.with_effect(Effect::Applied)),
            (_, Ok(())) => {}
        }
    }

    /// Whether more answers would not change whether it is the others or the nodes that stand in
    /// the way.
    fn is_clear_why(&self) -> bool {
        let answered =
            self.count(|vote| matches!(vote, Vote::Holds(_) | Vote::Busy(_) | Vote::Refused(_)));
        let failed = self.count(|vote| matches!(vote, Vote::Failed(_)));
        answered >= self.nodes.majority() || failed > self.nodes.spare()
    }

    fn failed(&mut self) -> Outcome {
        let mut errors = Vec::new();
        let mut blocked: Vec<&Busy> = Vec::new();
        let mut refusals = Vec::new();
        for vote in &self.votes {
            match vote {
                Vote::Busy(busy) => blocked.push(busy),
                Vote::Refused(refusal) => refusals.push(*refusal),
                Vote::Failed(error) => errors.push(error.clone()),
                Vote::Asked | Vote::Holds(_) => {}
            }
        }
        let (majority, spare) = (self.nodes.majority(), self.nodes.spare());
        if let Some(refusal) = refusals.first().filter(|_| refusals.len() > spare) {
            return Outcome::Refused(*refusal);
        }
        let holding = self.count(|vote| matches!(vote, Vote::Holds(_)));
        let silent = self.count(|vote| matches!(vote, Vote::Asked)).saturating_add(errors.len());
        if holding.saturating_add(blocked.len()) < majority || blocked.is_empty() {
            let granted = holding;
            return Outcome::Failed(self.nodes.too_few(granted, "granted the lease", errors));
        }
        let alike = |one: &Busy| blocked.iter().filter(|other| same_obstacle(one, other)).count();
        // A node that is alone with its fence granted it above the lease's own.
        let fence = |busy: &Busy| Reverse(busy.holder.as_ref().map(|holder| holder.fence));
        let most = blocked
            .iter()
            .map(|one| (alike(one), *one))
            .max_by_key(|(count, busy)| (*count, fence(busy)));
        let Some((count, most)) = most else {
            return Outcome::Failed(self.nodes.too_few(holding, "granted the lease", errors));
        };
        let missing = majority.saturating_sub(holding).max(1);
        let mut ends: Vec<Duration> = blocked.iter().map(|busy| busy.retry_after).collect();
        ends.sort_unstable();
        let end = ends.get(missing.saturating_sub(1)).or_else(|| ends.last()).copied();
        if count.saturating_add(silent) < majority {
            return Outcome::Split;
        }
        let of_same = |busy: &&&Busy| whose(busy) == whose(most) && !busy.is_contended();
        Outcome::Busy(if blocked.iter().filter(of_same).count() >= majority {
            Busy::new(end.unwrap_or_default(), most.holder.clone().map(|holder| *holder))
        } else {
            Busy::contended()
        })
    }

    /// The answer for the lease that was got.
    pub(crate) fn answer(&self) -> Acquire {
        let held = |vote: &Vote| match vote {
            Vote::Holds(holds) => Some((holds.before, holds.holds)),
            _ => None,
        };
        let votes: Vec<_> = self.votes.iter().filter_map(held).collect();
        let before = votes.iter().filter(|(before, _)| *before).count();
        let fences = self.fences.unwrap_or(FenceBlock::new(leasehold_core::Fence::ZERO, 1));
        if before >= self.nodes.majority() {
            let holds = votes.iter().map(|(_, holds)| *holds).max().unwrap_or(1);
            Acquire::Already(Already::new(fences, holds))
        } else {
            Acquire::Granted(Granted::new(fences))
        }
    }
}

/// Asks a node for the lease, as soon as nothing that undoes an earlier try can be on its way there.
fn ask_for(
    nodes: &Arc<Nodes>,
    request: &Arc<AcquireRequest>,
    patience: Duration,
    node: usize,
) -> BoxFuture<'static, Said> {
    let (token, request) = (request.token, Arc::clone(request));
    let question = nodes.ask(node, patience, move |store, within| {
        Box::pin(async move { store.acquire(&request, within).await })
            as BoxFuture<'_, Result<Acquire>>
    });
    let nodes = Arc::clone(nodes);
    Box::pin(async move {
        let clear = timeout(patience, nodes.tokens.is_clear(token, node)).await;
        if clear != Ok(true) {
            return Said::Acquire(Err(Error::new(
                ErrorKind::Unavailable,
                "an earlier attempt may still be undone there; ask with a new token",
            )));
        }
        Said::Acquire(question.await)
    })
}

impl Vote {
    fn holds(fences: FenceBlock, before: bool, holds: u32) -> Self {
        Self::Holds(Holds { fences, before, holds, old_enough: false, raised: false })
    }

    fn fences(&self) -> Option<FenceBlock> {
        match self {
            Self::Holds(holds) => Some(holds.fences),
            _ => None,
        }
    }

    fn held_before(&self) -> bool {
        matches!(self, Self::Holds(Holds { before: true, .. }))
    }

    fn is_confirmed(&self) -> bool {
        matches!(self, Self::Holds(Holds { old_enough: true, raised: true, .. }))
    }

    /// Whether it may still be confirmed.
    fn is_possible(&self) -> bool {
        matches!(self, Self::Asked | Self::Holds(_))
    }
}

/// Whose lease it is, which can have different fences at the nodes.
fn whose(busy: &Busy) -> Option<(&OwnerName, &Metadata)> {
    busy.holder.as_ref().map(|holder| (&holder.owner, &holder.metadata))
}

/// Whether two nodes are blocked by the same lease, or by a cool-down each.
fn same_obstacle(one: &Busy, other: &Busy) -> bool {
    let fence = |busy: &Busy| busy.holder.as_ref().map(|holder| holder.fence);
    fence(one) == fence(other) && one.is_contended() == other.is_contended()
}
