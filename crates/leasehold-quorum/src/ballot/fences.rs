//! Makes a lease's fence from the fences of several nodes.

use leasehold_core::FenceBlock;

use super::{Ballot, Next, Vote};

impl Ballot {
    /// Decides on the fences once a majority has granted the lease, and lets all nodes that
    /// granted lower ones take them over.
    ///
    /// The highest of a majority is above every fence that was told before: each was taken over by
    /// a majority, which shares a node with this one, and that node granted above it. And nobody
    /// else gets the same or a lower one later, because this one is taken over by a majority
    /// before it is told. A node may take it over only while it holds the lease for this token: so
    /// its last fence is of this lease, and is raised, never repeated. (Accepting an equal one that
    /// somebody else wrote would issue a fence twice.)
    pub(super) fn settle_fences(&mut self, known: Option<FenceBlock>) -> Vec<Next> {
        let granted: Vec<_> = self.votes.iter().filter_map(Vote::fences).collect();
        if granted.len() < self.majority {
            return Vec::new();
        }
        // One that was told before is told again, if the majority has held it since. Where one of
        // both is so, the nodes that are still asked make the difference: the first of them may be
        // about to grant what the others, its second names, have as well.
        let held_before = self.count(Vote::held_before) >= self.majority;
        let asked = self.votes.iter().any(|vote| matches!(vote, Vote::Asked));
        if known.is_some() != held_before && asked {
            return Vec::new();
        }
        let still_known = known.filter(|_| held_before);
        let agreed = granted
            .iter()
            .copied()
            .find(|one| granted.iter().filter(|other| *other == one).count() >= self.majority);
        let highest = granted.iter().copied().max_by_key(|fences| fences.last());
        #[cfg(leasehold_planted)]
        let highest = if leasehold_core::planted::is(leasehold_core::planted::Fault::LowestFence) {
            granted.iter().copied().min_by_key(|fences| fences.last())
        } else {
            highest
        };
        self.told_before = still_known.is_some();
        self.fences = still_known.or(agreed).or(highest);
        self.raise_all(known)
    }

    /// Decides once more, on higher fences, where those decided on can't get a majority any more
    /// though the lease has one: some of the nodes that granted first don't count, and those that
    /// came later granted above what was decided. What was decided has been told to nobody, and
    /// every node takes the higher fences over as it took the first ones.
    pub(super) fn lift_fences(&mut self, known: Option<FenceBlock>) -> Vec<Next> {
        let Some(fences) = self.fences.filter(|_| !self.told_before) else { return Vec::new() };
        let below = |vote: &Vote| vote.fences().is_some_and(|own| own.last() <= fences.last());
        if self.count(below) >= self.majority
            || self.count(|vote| matches!(vote, Vote::Holds(_))) < self.majority
        {
            return Vec::new();
        }
        let granted = self.votes.iter().filter_map(Vote::fences);
        self.fences = granted.max_by_key(|fences| fences.last());
        for vote in &mut self.votes {
            if let Vote::Holds(holds) = vote {
                holds.raised = false;
            }
        }
        self.raise_all(known)
    }

    fn raise_all(&mut self, known: Option<FenceBlock>) -> Vec<Next> {
        (0..self.votes.len()).filter_map(|node| self.raise(node, known)).collect()
    }

    /// Has a node take over the lease's fences, if they are decided on and it has lower ones.
    pub(super) fn raise(&mut self, node: usize, known: Option<FenceBlock>) -> Option<Next> {
        let fences = self.fences?;
        let Some(Vote::Holds(holds)) = self.votes.get_mut(node) else { return None };
        let own = holds.fences;
        if own.last() < fences.last() {
            return Some(Next::Raise(node, fences));
        }
        // One that granted above what was decided doesn't count: if such nodes did, two at a time could be
        // told the same fence. A lease that was told before, and is held all the time, is ours.
        let ours = known == Some(fences) && holds.before;
        holds.raised |= own.last() == fences.last() || ours;
        None
    }
}
