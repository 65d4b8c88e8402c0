//! Decides what follows from the nodes' votes on one try, without clock, network or await.
//!
//! The store carries out its decisions. So does the simulation's model, in every possible order.

mod fences;

use std::cmp::Reverse;
use std::time::Duration;

use leasehold_core::{
    Acquire, Already, Busy, Effect, Error, ErrorKind, Fence, FenceBlock, Granted, Metadata,
    OwnerName, Reason, Refusal, Result, Ttl, margin,
};

/// The state of a try at one node.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "for this workspace")]
pub enum Vote {
    /// It has not answered.
    Asked,
    /// It has granted the lease, now or before.
    Holds(Holds),
    /// Another lease blocks the lock there.
    Busy(Busy),
    /// It does not grant such a lease.
    Refused(Refusal),
    /// The request failed, or the node's vote does not count.
    Failed(Error),
}

/// What a node has granted.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "for this workspace")]
pub struct Holds {
    /// The node's own fences of the lease.
    pub fences: FenceBlock,
    /// Whether it held the lease before this try.
    pub before: bool,
    /// How many times the lease is held.
    pub holds: u32,
    /// Whether it surely remembers every lease.
    pub old_enough: bool,
    /// Whether it has taken over the lease's fences.
    pub raised: bool,
}

/// The next step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "for this workspace")]
pub enum Next {
    /// Record that the node shows this try with these fences.
    Tried(usize, FenceBlock),
    /// Ask how far back the node remembers. Only after its grant: the answer would be worthless if
    /// the node were restarted between the two.
    AskAge(usize),
    /// Let the node take over these fences.
    Raise(usize, FenceBlock),
}

/// The state of a try at all nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "for this workspace")]
pub enum Stands {
    /// A majority holds the lease, surely remembers every other lease, and has its fences.
    Held,
    /// A majority is no longer possible, and the reason is clear.
    InVain,
    /// More answers may change the result.
    Open,
}

/// Why a try got no majority.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_enums, reason = "for this workspace")]
pub enum InVain {
    /// Another lease, or a cooldown.
    Busy(Busy),
    /// Several contenders have some nodes each, and none has a majority.
    Split,
    /// A majority refuses such a lease.
    Refused(Refusal),
    /// This many nodes granted it, and too many others failed.
    TooFew(usize, Vec<Error>),
}

/// What an unsuccessful try has to abandon.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "for this workspace")]
pub struct Vain {
    /// Whether the token may have had the lease before. That lease is left alone everywhere.
    pub held_before: bool,
    /// The nodes that granted it.
    pub granted: Vec<usize>,
    /// The nodes that may have granted it.
    pub unknown: Vec<usize>,
}

/// The votes of one try.
#[derive(Clone, Debug)]
pub struct Ballot {
    majority: usize,
    /// Whether nodes remember their leases even over a restart.
    keep_leases: bool,
    /// How many times the lease will be held.
    holds: u32,
    votes: Vec<Vote>,
    /// The fences of the lease, once a majority has granted it.
    fences: Option<FenceBlock>,
    /// Whether a caller got these fences before, so that they must stay.
    told_before: bool,
}

impl Ballot {
    /// A ballot without answers yet.
    #[must_use]
    pub fn new(nodes: usize, majority: usize, keep_leases: bool, holds: u32) -> Self {
        let votes = (0..nodes).map(|_| Vote::Asked).collect();
        Self { majority, keep_leases, holds, votes, fences: None, told_before: false }
    }

    /// The state at each node.
    #[must_use]
    pub fn votes(&self) -> &[Vote] {
        &self.votes
    }

    /// The fences of the lease, once decided.
    #[must_use]
    pub const fn fences(&self) -> Option<FenceBlock> {
        self.fences
    }

    /// The state of the try. While answers are waiting, it is never [`Stands::InVain`]: they may
    /// change the reason.
    #[must_use]
    pub fn stands(&self, has_answers: bool) -> Stands {
        if self.count(Vote::is_confirmed) >= self.majority {
            return Stands::Held;
        }
        let in_vain = self.count(Vote::is_possible) < self.majority;
        if in_vain && self.is_clear_why() && !has_answers { Stands::InVain } else { Stands::Open }
    }

    /// The silent nodes, if other leases block this try and only these nodes could still make a
    /// majority.
    pub fn only_might_help(&self) -> impl Iterator<Item = usize> {
        let in_the_way = |vote: &Vote| matches!(vote, Vote::Busy(_) | Vote::Refused(_));
        let granted = self.count(|vote| matches!(vote, Vote::Holds(_)));
        let so = self.count(in_the_way) > 0 && granted < self.majority && self.is_clear_why();
        self.which(move |vote| so && matches!(vote, Vote::Asked))
    }

    /// Counts a node's answer to the acquisition. `known` are the fences granted to its token, if
    /// the lease surely still holds. `name` names a node.
    pub fn answered(
        &mut self,
        node: usize,
        answer: Result<Acquire>,
        known: Option<FenceBlock>,
        name: impl Fn(usize) -> String,
    ) -> Vec<Next> {
        let mut next = self.count_vote(node, answer, name);
        if matches!(self.votes.get(node), Some(Vote::Holds(_))) {
            next.extend(self.ask_age(node));
            next.extend(self.raise(node, known));
        }
        next
    }

    /// As [`answered`](Self::answered), for a node that should get an existing lease.
    pub fn completed(
        &mut self,
        node: usize,
        answer: Result<Acquire>,
        known: Option<FenceBlock>,
        name: impl Fn(usize) -> String,
    ) -> Vec<Next> {
        let mut next = self.count_vote(node, answer, name);
        // A node that granted lower fences takes over the lease's.
        next.extend(self.raise(node, known));
        next
    }

    /// Counts whether a node surely remembers every lease.
    pub fn is_old_enough(&mut self, node: usize, answer: Result<()>) {
        self.step(node, answer, |holds| holds.old_enough = true);
    }

    /// Counts whether a node took over these fences.
    pub fn raised(&mut self, node: usize, fences: FenceBlock, answer: Result<()>) {
        // The decision may have changed since. Then only a failure still matters.
        if answer.is_err() || self.fences == Some(fences) {
            self.step(node, answer, |holds| holds.raised = true);
        }
    }

    /// Decides on the lease's fences, if possible. Called once no more answers are waiting: so all
    /// nodes that answered at the same time take part, and get the same fence.
    pub fn decide(&mut self, known: Option<FenceBlock>) -> Vec<Next> {
        if self.fences.is_none() { self.settle_fences(known) } else { self.lift_fences(known) }
    }

    /// Why the try got no majority.
    #[must_use]
    pub fn why(&self) -> InVain {
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
        if let Some(refusal) = refusals.first().filter(|_| refusals.len() > self.spare()) {
            return InVain::Refused(*refusal);
        }
        let holding = self.count(|vote| matches!(vote, Vote::Holds(_)));
        let silent = self.count(|vote| matches!(vote, Vote::Asked)).saturating_add(errors.len());
        let alike = |one: &Busy| blocked.iter().filter(|other| same_obstacle(one, other)).count();
        // Among equals the lowest fence: a node with a different fence granted it above the lease's
        // own.
        let fence = |busy: &Busy| Reverse(busy.holder.as_ref().map(|holder| holder.fence));
        let most = blocked
            .iter()
            .map(|one| (alike(one), *one))
            .max_by_key(|(count, busy)| (*count, fence(busy)));
        let Some((count, most)) =
            most.filter(|_| holding.saturating_add(blocked.len()) >= self.majority)
        else {
            return InVain::TooFew(holding, errors);
        };
        let missing = self.majority.saturating_sub(holding).max(1);
        let mut ends: Vec<_> = blocked.iter().map(|busy| busy.retry_after).collect();
        ends.sort_unstable();
        let end = ends.get(missing.saturating_sub(1)).or_else(|| ends.last()).copied();
        if count.saturating_add(silent) < self.majority {
            return InVain::Split;
        }
        let of_same = |busy: &&&Busy| whose(busy) == whose(most) && !busy.is_contended();
        InVain::Busy(if blocked.iter().filter(of_same).count() >= self.majority {
            Busy::new(end.unwrap_or_default(), most.holder.clone().map(|holder| *holder))
        } else {
            Busy::contended()
        })
    }

    /// What an unsuccessful try has to abandon: at nodes that granted it, and at nodes that did not
    /// answer.
    ///
    /// Nothing if the token may have had the lease before. That lease is still being brought to
    /// more nodes, and a node must never grant a token again after abandoning it.
    #[must_use]
    pub fn vain(&self, known: Option<FenceBlock>) -> Vain {
        if known.is_some() || self.votes.iter().any(Vote::held_before) {
            return Vain { held_before: true, ..Vain::default() };
        }
        let mut vain = Vain::default();
        for (node, vote) in self.votes.iter().enumerate() {
            match vote {
                Vote::Holds(_) => vain.granted.push(node),
                Vote::Failed(error) => match error.effect() {
                    Effect::Applied => vain.granted.push(node),
                    Effect::Unknown => vain.unknown.push(node),
                    Effect::NotApplied => {}
                },
                Vote::Asked => vain.unknown.push(node),
                Vote::Busy(_) | Vote::Refused(_) => {}
            }
        }
        vain
    }

    /// The answer for the acquired lease.
    #[must_use]
    pub fn answer(&self) -> Acquire {
        let held = |vote: &Vote| match vote {
            Vote::Holds(holds) => Some((holds.before, holds.holds)),
            _ => None,
        };
        let votes: Vec<_> = self.votes.iter().filter_map(held).collect();
        let before = votes.iter().filter(|(before, _)| *before).count();
        let fences = self.fences.unwrap_or(FenceBlock::new(Fence::ZERO, 1));
        if before >= self.majority {
            let holds = votes.iter().map(|(_, holds)| *holds).max().unwrap_or(1);
            Acquire::Already(Already::new(fences, holds))
        } else {
            Acquire::Granted(Granted::new(fences))
        }
    }

    /// The nodes that lack the lease and may take it.
    pub fn lacking(&self) -> impl Iterator<Item = usize> {
        self.which(|vote| match vote {
            Vote::Busy(_) => true,
            Vote::Failed(error) => error.is_retryable() && error.effect() != Effect::Applied,
            Vote::Asked | Vote::Holds(_) | Vote::Refused(_) => false,
        })
    }

    /// Marks a node that gets another request.
    pub fn asked_again(&mut self, node: usize) {
        if let Some(vote) = self.votes.get_mut(node) {
            *vote = Vote::Asked;
        }
    }

    fn which(&self, is: impl Fn(&Vote) -> bool) -> impl Iterator<Item = usize> {
        (0..).zip(&self.votes).filter(move |(_, vote)| is(vote)).map(|(node, _)| node)
    }

    fn count(&self, which: impl Fn(&Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| which(vote)).count()
    }

    const fn spare(&self) -> usize {
        self.votes.len().saturating_sub(self.majority)
    }

    fn count_vote(
        &mut self,
        node: usize,
        answer: Result<Acquire>,
        name: impl Fn(usize) -> String,
    ) -> Vec<Next> {
        let mut next = Vec::new();
        let vote = match answer {
            Ok(Acquire::Granted(granted)) => {
                next.push(Next::Tried(node, granted.fences));
                Vote::holds(granted.fences, false, self.holds)
            }
            Ok(Acquire::Already(already)) => Vote::holds(already.fences, true, already.holds),
            Ok(Acquire::Busy(busy)) => Vote::Busy(busy),
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
        self.drop_second_names(&mut next, name);
        next
    }

    /// Takes the vote from a node that is another one under a second name: it claims to have held
    /// before what the first name granted just now. Two servers never agree like this, since a node
    /// that had the lease before has older fences for it.
    fn drop_second_names(&mut self, next: &mut Vec<Next>, name: impl Fn(usize) -> String) {
        let granted: Vec<(usize, FenceBlock)> = (0..)
            .zip(&self.votes)
            .filter_map(|(node, vote)| match vote {
                Vote::Holds(holds) if !holds.before => Some((node, holds.fences)),
                _ => None,
            })
            .collect();
        for (first, fences) in granted {
            for (second, vote) in self.votes.iter_mut().enumerate() {
                let same =
                    matches!(vote, Vote::Holds(held) if held.before && held.fences == fences);
                if !same {
                    continue;
                }
                let error = Error::new(
                    ErrorKind::Config,
                    format!(
                        "the same server as {} under another name, which has one vote; name each \
                         server once",
                        name(first)
                    ),
                )
                .with_reason(Reason::StoreSettings)
                .at_store(name(second));
                // The node shows the same try under both names.
                next.push(Next::Tried(second, fences));
                *vote = Vote::Failed(error);
            }
        }
    }

    fn ask_age(&mut self, node: usize) -> Option<Next> {
        let counts = self.keep_leases;
        #[cfg(leasehold_planted)]
        let counts =
            counts || leasehold_core::planted::is(leasehold_core::planted::Fault::YoungNodeCounts);
        if counts {
            self.is_old_enough(node, Ok(()));
            return None;
        }
        Some(Next::AskAge(node))
    }

    fn step(&mut self, node: usize, answer: Result<()>, done: impl FnOnce(&mut Holds)) {
        let Some(vote) = self.votes.get_mut(node) else { return };
        match (vote, answer) {
            (Vote::Holds(holds), Ok(())) => done(holds),
            // It still holds the lease, which may have to be undone.
            (vote, Err(error)) => *vote = Vote::Failed(error.with_effect(Effect::Applied)),
            (_, Ok(())) => {}
        }
    }

    /// Whether more answers can't change which is the reason: other leases, or failed nodes.
    fn is_clear_why(&self) -> bool {
        let answered =
            self.count(|vote| matches!(vote, Vote::Holds(_) | Vote::Busy(_) | Vote::Refused(_)));
        let failed = self.count(|vote| matches!(vote, Vote::Failed(_)));
        answered >= self.majority || failed > self.spare()
    }
}

impl Vote {
    fn holds(fences: FenceBlock, before: bool, holds: u32) -> Self {
        Self::Holds(Holds { fences, before, holds, old_enough: false, raised: false })
    }

    /// The fences that the node granted.
    #[must_use]
    pub const fn fences(&self) -> Option<FenceBlock> {
        match self {
            Self::Holds(holds) => Some(holds.fences),
            _ => None,
        }
    }

    const fn held_before(&self) -> bool {
        matches!(self, Self::Holds(Holds { before: true, .. }))
    }

    const fn is_confirmed(&self) -> bool {
        matches!(self, Self::Holds(Holds { old_enough: true, raised: true, .. }))
    }

    /// Whether it may still be confirmed.
    const fn is_possible(&self) -> bool {
        matches!(self, Self::Asked | Self::Holds(_))
    }
}

/// The age from which on a node surely remembers every running lease, however long.
#[must_use]
pub fn counts_from(max_ttl: Ttl) -> Duration {
    max_ttl.duration().saturating_add(margin(max_ttl.duration()))
}

/// Identifies a lease, whose fences can differ between nodes.
fn whose(busy: &Busy) -> Option<(&OwnerName, &Metadata)> {
    busy.holder.as_ref().map(|holder| (&holder.owner, &holder.metadata))
}

/// Whether the same lease blocks both nodes, or a cooldown at each.
fn same_obstacle(one: &Busy, other: &Busy) -> bool {
    let fence = |busy: &Busy| busy.holder.as_ref().map(|holder| holder.fence);
    fence(one) == fence(other) && one.is_contended() == other.is_contended()
}
