//! Brings a lease that a majority granted to the nodes that lack it.
//!
//! With a bare majority, a lease does not survive the loss of one node's memory. Usually a node
//! lacks it because an unsuccessful contender had it for a moment. So the node soon gets another
//! request, and further ones at growing intervals. After a third of the ttl, renewals heal what is
//! left.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Moment;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Attempt, Said, ask_for};
use crate::ballot::Vote;

/// When a node that lacks the lease gets another request; each pause is twice the one before.
const AGAIN_AFTER: Duration = Duration::from_millis(2);

impl Attempt {
    /// Records the lease, and continues in the background until all nodes have it.
    pub(crate) fn enter(mut self, until: Moment) {
        let Some(fences) = self.ballot.fences() else { return };
        self.entered = true;
        let (nodes, token) = (Arc::clone(&self.nodes), self.request.token);
        let whole = self.round.is_over() && !self.is_lacked();
        let completion = (!whole).then(|| tokio::spawn(self.complete()));
        nodes.tokens.enter(token, nodes.now(), (fences, until), completion);
    }

    fn is_lacked(&self) -> bool {
        self.ballot.lacking().next().is_some()
    }

    async fn complete(mut self) {
        let mut pause = AGAIN_AFTER;
        let mut again = Instant::now() + pause;
        let last = self.started + self.request.ttl.part(3);
        loop {
            let lacking = again < last && self.is_lacked();
            let said = match (self.round.is_over(), lacking) {
                (true, false) => return,
                (true, true) => {
                    sleep_until(again).await;
                    None
                }
                (false, true) => timeout_at(again, self.round.next()).await.unwrap_or_default(),
                (false, false) => self.round.next().await,
            };
            if let Some((node, Said::Acquire(answer))) = said {
                let (answer, known) = (self.without_own(node, answer), self.known());
                let nodes = &self.nodes;
                let next = self.ballot.completed(node, answer, known, |node| nodes.name(node));
                self.carry_out(next);
                if matches!(self.ballot.votes().get(node), Some(Vote::Holds(_))) {
                    tracing::debug!(
                        target: "leasehold", key = %self.request.key, node, "another node has the lease"
                    );
                }
            }
            if lacking && Instant::now() >= again {
                self.ask_lacking();
                pause = pause.saturating_mul(2);
                again = Instant::now() + pause;
            }
        }
    }

    fn ask_lacking(&mut self) {
        let lacking: Vec<usize> = self.ballot.lacking().collect();
        for node in lacking {
            self.ballot.asked_again(node);
            self.round.ask(node, ask_for(&self.nodes, &self.request, self.patience, node));
        }
    }
}
