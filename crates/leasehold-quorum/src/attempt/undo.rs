//! Releases at the nodes what a failed try got there.

use std::sync::Arc;

use leasehold_core::{BoxFuture, LeaveRequest};

use super::Attempt;
use crate::ballot::Vain;
use crate::debts::Undoing;
use crate::round::Round;

impl Attempt {
    /// Abandons what the attempt may have got: from nodes that granted it, and from nodes that did
    /// not answer. A lease that the token had before the attempt is left alone.
    ///
    /// Returns whether every node is certain to have nothing of the token now and later.
    pub(crate) async fn undo(self) -> bool {
        #[cfg(leasehold_planted)]
        if leasehold_core::planted::is(leasehold_core::planted::Fault::VainNotUndone) {
            return true;
        }
        let Vain { held_before, granted, unknown } = self.ballot.vain(self.known());
        let Self { nodes, request, patience, round, .. } = self;
        if held_before {
            nodes.tokens.is_lease(request.token);
            return false;
        }
        // Unsent requests must not follow the undoing.
        drop(round);
        let mut leave = LeaveRequest::new(request.key.clone(), request.token);
        leave.reopen = !request.cooldown.is_none();
        let leave = Arc::new(leave);
        let until = nodes.now().saturating_add(request.ttl.duration());
        let send = |to: Vec<usize>| {
            let mut round = Round::new();
            for node in to {
                let leave = Arc::clone(&leave);
                let undoing = (Undoing::Leave(Arc::clone(&leave)), until);
                let question = nodes.ask(node, patience, move |store, within| {
                    Box::pin(async move { store.leave(&leave, within).await }) as BoxFuture<'_, _>
                });
                round.ask(node, nodes.undo_at(node, undoing, question));
            }
            round
        };
        let mut nothing_left = unknown.is_empty();
        // These nodes did not even answer the request, so the caller does not wait for them.
        if !unknown.is_empty() {
            tokio::spawn(send(unknown).finish());
        }
        let mut round = send(granted);
        while let Some((_, answer)) = round.next().await {
            nothing_left &= answer.is_ok();
        }
        nothing_left
    }
}
