//! Makes a lease's fence from the fences of several nodes.

use leasehold_core::FenceBlock;

use super::{Ballot, Next, Vote};

impl Ballot {
    /// Decides on the fences once a majority has granted the lease, and lets nodes that granted
    /// lower ones take them over.
    ///
    /// The highest fence of a majority is above every fence that a caller got before. Each of those
    /// was taken over by a majority, which shares a node with this one, and that node granted above
    /// it. Later leases get higher ones, because a majority takes this fence over before the caller
    /// gets it.
    ///
    /// A node may take it over only while it holds the lease for this token. So the node's last
    /// fence belongs to this lease, and is raised but never repeated. Accepting an equal fence of
    /// another lease would issue a fence twice.
    pub(super) fn settle_fences(&mut self, known: Option<FenceBlock>) -> Vec<Next> {
        let granted: Vec<_> = self.votes.iter().filter_map(Vote::fences).collect();
        if granted.len() < self.majority {
            return Vec::new();
        }
        // A caller gets the same fences again if the majority has held the lease since. If only one
        // of the two conditions holds, silent nodes may decide: the first may be about to grant
        // what the others, its second names, have as well.
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

    /// Decides again, on higher fences, if the decided ones can no longer get a majority but the
    /// lease has one. This happens if early nodes don't count and later ones granted above the
    /// decision. No caller has got the first decision yet, and every node takes over the higher
    /// fences in the same way.
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

    /// Lets a node take over the lease's fences, if they are decided and the node has lower ones.
    pub(super) fn raise(&mut self, node: usize, known: Option<FenceBlock>) -> Option<Next> {
        let fences = self.fences?;
        let Some(Vote::Holds(holds)) = self.votes.get_mut(node) else { return None };
        let own = holds.fences;
        if own.last() < fences.last() {
            return Some(Next::Raise(node, fences));
        }
        // A node that granted above the decision does not count. If it did, two leases could get
        // the same fence. A lease whose caller got these fences before, held ever since, is the
        // exception.
        let ours = known == Some(fences) && holds.before;
        holds.raised |= own.last() == fences.last() || ours;
        None
    }
}
