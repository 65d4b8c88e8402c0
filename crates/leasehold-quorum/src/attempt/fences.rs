//! One fence made of several: the lease's.

use leasehold_core::{BoxFuture, Error, ErrorKind, Renew, RenewRequest, Result};

use super::{Attempt, Said, Vote};

impl Attempt {
    /// Decides on the fences once a majority has granted the lease, and lets all nodes that
    /// granted lower ones take them over.
    ///
    /// The highest of a majority is above every fence that was told before: each was taken over by
    /// a majority, which shares a node with this one, and that node granted above it. And nobody
    /// else gets the same or a lower one later, because this one is taken over by a majority
    /// before it is told. A node may take it over only while it holds the lease for this token: so
    /// its last fence is of this lease, and is raised, never repeated. (Accepting an equal one that
    /// somebody else wrote would issue a fence twice.)
    pub(super) fn settle_fences(&mut self) {
        let granted: Vec<_> = self.votes.iter().filter_map(Vote::fences).collect();
        if granted.len() < self.nodes.majority() {
            return;
        }
        let token = self.request.token;
        // One that was told before is told again, if the majority has held it since. Where one of
        // both is so, the nodes that are still asked make the difference: the first of them may be
        // about to grant what the others, its second names, have as well.
        let known = self.nodes.tokens.granted(token, self.nodes.now());
        let held_before = self.count(Vote::held_before) >= self.nodes.majority();
        let asked = self.votes.iter().any(|vote| matches!(vote, Vote::Asked));
        if known.is_some() != held_before && asked {
            return;
        }
        let known = known.filter(|_| held_before);
        let agreed = granted.iter().copied().find(|one| {
            granted.iter().filter(|other| *other == one).count() >= self.nodes.majority()
        });
        let highest = granted.iter().copied().max_by_key(|fences| fences.last());
        #[cfg(leasehold_planted)]
        let highest = if leasehold_core::planted::is(leasehold_core::planted::Fault::LowestFence) {
            granted.iter().copied().min_by_key(|fences| fences.last())
        } else {
            highest
        };
        self.told_before = known.is_some();
        self.fences = known.or(agreed).or(highest);
        for node in 0..self.votes.len() {
            self.raise(node);
        }
    }

    /// Decides once more, on higher fences, where those decided on can't get a majority any more
    /// though the lease has one: some of the nodes that granted first don't count, and those that
    /// came later granted above what was decided. What was decided has been told to nobody, and
    /// every node takes the higher fences over as it took the first ones.
    pub(super) fn lift_fences(&mut self) {
        let Some(fences) = self.fences.filter(|_| !self.told_before) else { return };
        let below = |vote: &Vote| vote.fences().is_some_and(|own| own.last() <= fences.last());
        if self.count(below) >= self.nodes.majority()
            || self.count(|vote| matches!(vote, Vote::Holds(_))) < self.nodes.majority()
        {
            return;
        }
        let granted = self.votes.iter().filter_map(Vote::fences);
        self.fences = granted.max_by_key(|fences| fences.last());
        for vote in &mut self.votes {
            if let Vote::Holds(holds) = vote {
                holds.raised = false;
            }
        }
        for node in 0..self.votes.len() {
            self.raise(node);
        }
    }

    pub(super) fn raise(&mut self, node: usize) {
        let (Some(fences), Some(own)) = (self.fences, self.votes.get(node).and_then(Vote::fences))
        else {
            return;
        };
        let token = self.request.token;
        if own.last() == fences.last() {
            return self.step(node, Ok(()), |holds| holds.raised = true);
        }
        if own.last() > fences.last() {
            // Granted above what was decided. If such nodes counted, two at a time could be told
            // the same fence. One that was told before, and is held all the time, is ours.
            let known = self.nodes.tokens.granted(token, self.nodes.now()) == Some(fences);
            if known && self.votes.get(node).is_some_and(Vote::held_before) {
                self.step(node, Ok(()), |holds| holds.raised = true);
            }
            return;
        }
        self.note_try(node, fences);
        let renewal = RenewRequest::new(self.request.key.clone(), token, fences, self.request.ttl);
        let question = self.nodes.ask(node, self.patience, move |store, within| {
            Box::pin(async move {
                let mut answers = store.renew(std::slice::from_ref(&renewal), within).await;
                answers.pop().unwrap_or_else(|| {
                    Err(Error::new(ErrorKind::Protocol, "a renewal without an answer"))
                })
            }) as BoxFuture<'_, Result<Renew>>
        });
        let location = self.nodes.stores.get(node).map(|store| store.location());
        self.round.ask(node, async move {
            let answer = question.await.and_then(|answer| match answer {
                Renew::Late | Renew::NotHeld => Err(Error::new(
                    ErrorKind::Unavailable,
                    "the lease was over before its fence was confirmed",
                )
                .at_store(location.unwrap_or_default())),
                _ => Ok(()),
            });
            Said::Raised(fences, answer)
        });
    }
}
