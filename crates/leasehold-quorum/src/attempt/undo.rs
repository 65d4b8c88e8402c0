//! Giving up what an attempt got in vain.

use std::sync::Arc;

use leasehold_core::{BoxFuture, Effect, LeaveRequest};

use super::{Attempt, Holds, Vote};
use crate::debts::Undoing;
use crate::round::Round;

impl Attempt {
    /// Gives up what the attempt may have got: by a node that said so, and by one that did not
    /// answer. What the token had before the attempt is left alone.
    ///
    /// Whether it is sure that no node has anything of the token, nor gets it later.
    pub(crate) async fn undo(self) -> bool {
        #[cfg(leasehold_planted)]
        if leasehold_core::planted::is(leasehold_core::planted::Fault::VainNotUndone) {
            return true;
        }
        let Self { nodes, request, patience, round, votes, .. } = self;
        // What is not sent yet must not be sent after the undoing.
        drop(round);
        let token = request.token;
        let held_before = nodes.tokens.granted(token, nodes.now()).is_some()
            || votes.iter().any(|vote| matches!(vote, Vote::Holds(Holds { before: true, .. })));
        let mut granted = Vec::new();
        let mut unknown = Vec::new();
        for (node, vote) in votes.iter().enumerate() {
            match vote {
                Vote::Holds(holds) if !holds.before => granted.push(node),
                Vote::Failed(error) if error.effect() == Effect::Applied && !held_before => {
                    granted.push(node);
                }
                Vote::Failed(error) if error.effect() == Effect::Unknown && !held_before => {
                    unknown.push(node);
                }
                Vote::Asked if !held_before => unknown.push(node),
                _ => {}
            }
        }
        let mut leave = LeaveRequest::new(request.key.clone(), token);
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
        let mut nothing_left = !held_before && unknown.is_empty();
        // Nobody waits for nodes that did not even answer the question.
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
