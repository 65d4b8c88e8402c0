//! Releases a lease at all nodes, whatever some of them answer.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{BoxFuture, Error, Leave, LeaveRequest, Release, ReleaseRequest, Result};

use crate::debts::Undoing;
use crate::nodes::Nodes;
use crate::round::Round;

/// The nodes' answers to a release.
#[derive(Default)]
struct Said {
    released: usize,
    late: usize,
    not_held: usize,
    still_held: usize,
    holds: u32,
    errors: Vec<Error>,
}

impl Nodes {
    pub(crate) async fn release(
        self: &Arc<Self>,
        request: &ReleaseRequest,
        within: Duration,
    ) -> Result<Release> {
        let patience = self.patience(within, 1);
        let request = Arc::new(request.clone());
        let undoing = Undoing::Release(Arc::clone(&request));
        let ends = request.remaining == 0;
        let ask = |node| {
            let request = Arc::clone(&request);
            Box::pin(self.ask(node, patience, move |store, within| {
                Box::pin(async move { store.release(&request, within).await })
            })) as BoxFuture<'static, _>
        };
        let mut round = if ends {
            self.undo_everywhere(&undoing, ask).await
        } else {
            let mut round = Round::new();
            (0..self.count()).for_each(|node| round.ask(node, ask(node)));
            round
        };
        let mut said = Said::default();
        let answer = loop {
            if let Some(answer) = self.decide(&said, round.is_over()) {
                break Ok(answer);
            }
            match round.next().await {
                Some((_, Ok(Release::Released))) => said.released = said.released.saturating_add(1),
                Some((_, Ok(Release::Late))) => said.late = said.late.saturating_add(1),
                Some((_, Ok(Release::StillHeld { holds }))) => {
                    said.still_held = said.still_held.saturating_add(1);
                    said.holds = said.holds.max(holds);
                }
                Some((_, Ok(_not_held))) => said.not_held = said.not_held.saturating_add(1),
                Some((_, Err(error))) => said.errors.push(error),
                None => {
                    let did = said.released.saturating_add(said.still_held);
                    break Err(self.too_few(did, "released the lease", said.errors));
                }
            }
        };
        go_on(round);
        answer
    }

    fn decide(&self, said: &Said, all: bool) -> Option<Release> {
        let Said { released, late, not_held, still_held, holds, errors: _ } = said;
        let (majority, spare) = (self.majority(), self.spare());
        if *released >= majority {
            return Some(Release::Released);
        }
        if *still_held >= majority {
            return Some(Release::StillHeld { holds: *holds });
        }
        if *not_held > spare {
            return Some(Release::NotHeld);
        }
        // A majority has not granted the lock since, though the lease had expired at some nodes.
        let nobody_since = released.saturating_add(*late).saturating_add(*still_held);
        (all && nobody_since >= majority).then_some(Release::Late)
    }

    pub(crate) async fn leave(
        self: &Arc<Self>,
        request: &LeaveRequest,
        within: Duration,
    ) -> Result<Leave> {
        let patience = self.patience(within, 1);
        let request = Arc::new(request.clone());
        let undoing = Undoing::Leave(Arc::clone(&request));
        let mut round = self
            .undo_everywhere(&undoing, |node| {
                let request = Arc::clone(&request);
                Box::pin(self.ask(node, patience, move |store, within| {
                    Box::pin(async move { store.leave(&request, within).await })
                }))
            })
            .await;
        let (mut released, mut not_held, mut errors) = (0_usize, 0_usize, Vec::new());
        let answer = loop {
            if released >= self.majority() {
                break Ok(Leave::Released);
            }
            match round.next().await {
                Some((_, Ok(Leave::NotHeld))) => not_held = not_held.saturating_add(1),
                Some((_, Ok(_))) => released = released.saturating_add(1),
                Some((_, Err(error))) => errors.push(error),
                None if released.saturating_add(not_held) < self.majority() => {
                    break Err(self.too_few(released, "released it", errors));
                }
                // The rest of a lease at a minority is not a lease.
                None if released.saturating_add(errors.len()) >= self.majority() => {
                    break Ok(Leave::Released);
                }
                None => break Ok(Leave::NotHeld),
            }
        };
        go_on(round);
        answer
    }
}

/// Lets the remaining requests finish in the background.
fn go_on<T: Send + 'static>(round: Round<T>) {
    if !round.is_over() {
        tokio::spawn(round.finish());
    }
}
