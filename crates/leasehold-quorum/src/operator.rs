//! Requests a release from a holder, or force-releases its lease, for an operator.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Ask, AskRequest, BoxFuture, Fence, ForceRelease, ForceReleaseRequest, Result,
};

use crate::inspect::Wait;
use crate::nodes::Nodes;
use crate::round::Round;

impl Nodes {
    pub(crate) async fn ask_to_let_go(
        self: &Arc<Self>,
        request: &AskRequest,
        within: Duration,
    ) -> Result<Ask> {
        let patience = self.patience(within, 2);
        let views = self.views(&request.key, (patience, Wait::All)).await?;
        let Some(lease) = views.lease(self) else { return Ok(Ask::NotHeld) };
        if request.fence.is_some_and(|fence| !lease.has(fence)) {
            return Ok(Ask::NotHeld);
        }
        let mut round = Round::new();
        for (node, fence) in &lease.at {
            let mut request = request.clone();
            request.fence = request.fence.map(|_| *fence);
            round.ask(
                *node,
                self.ask(*node, patience, move |store, within| {
                    Box::pin(async move { store.ask(&request, within).await }) as BoxFuture<'_, _>
                }),
            );
        }
        let (mut asked, mut errors) = (false, Vec::new());
        while let Some((_, answer)) = round.next().await {
            match answer {
                Ok(Ask::Asked { .. }) => asked = true,
                Ok(_not_held) => {}
                Err(error) => errors.push(error),
            }
        }
        // One node is enough: a renewal reads the answers of all of them.
        match (asked, errors.is_empty()) {
            (true, _) => Ok(Ask::Asked { holders: 1 }),
            (false, true) => Ok(Ask::NotHeld),
            (false, false) => Err(self.too_few(0, "got the request", errors)),
        }
    }

    pub(crate) async fn force_release(
        self: &Arc<Self>,
        request: &ForceReleaseRequest,
        within: Duration,
    ) -> Result<ForceRelease> {
        let patience = self.patience(within, 2);
        let views = self.views(&request.key, (patience, Wait::All)).await?;
        let Some(lease) = views.lease(self) else { return Ok(ForceRelease::NotHeld) };
        let named = lease.has(request.fence);
        // If a holder hands off within its block of fences, only the nodes know the new fence.
        let mut round = Round::new();
        for (node, fence) in &lease.at {
            let fence = if named { *fence } else { request.fence };
            let request = ForceReleaseRequest::new(request.key.clone(), fence);
            round.ask(
                *node,
                self.ask(*node, patience, move |store, within| {
                    Box::pin(async move { store.force_release(&request, within).await })
                        as BoxFuture<'_, _>
                }),
            );
        }
        let (mut gone, mut errors) = (0_usize, Vec::new());
        let mut others: BTreeMap<Fence, usize> = BTreeMap::new();
        while let Some((_, answer)) = round.next().await {
            match answer {
                Ok(ForceRelease::OtherFence { fences }) => {
                    for fence in fences {
                        let count = others.entry(fence).or_default();
                        *count = count.saturating_add(1);
                    }
                }
                Ok(_gone) => gone = gone.saturating_add(1),
                Err(error) => errors.push(error),
            }
        }
        let left = lease.at.len().saturating_sub(gone).saturating_add(views.silent);
        if left < self.majority() {
            return Ok(ForceRelease::Released);
        }
        if others.is_empty() {
            return Err(self.too_few(gone, "force-released the lease", errors));
        }
        Ok(ForceRelease::OtherFence { fences: vec![lease.holder.fence] })
    }
}
