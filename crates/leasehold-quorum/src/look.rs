//! Looking, and taking away: what the nodes show, put together for people.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::{Finding, Severity};
use leasehold_core::{
    Ask, AskRequest, BoxFuture, Error, Fence, ForceRelease, ForceReleaseRequest, HolderInfo, Key,
    Kind, ListRequest, Listing, LockInfo, Result,
};

use tokio::time::{Instant, timeout_at};

use crate::nodes::Nodes;
use crate::round::Round;

/// How long the nodes that are slower than a majority have at least, for somebody who only looks.
const GRACE: Duration = Duration::from_millis(20);

/// Which nodes an answer waits for.
#[derive(Clone, Copy)]
enum Wait {
    /// For all of them, each for as long as it may take.
    All,
    /// For a majority, and for the others as long again.
    Most,
}

/// What one lock looks like at the nodes.
#[derive(Default)]
struct Views {
    infos: Vec<(usize, LockInfo)>,
    /// Nodes that did not answer, and may hold anything.
    silent: usize,
    /// Why others could not read what they have, which may be anything too.
    unreadable: Vec<Error>,
}

/// A lease as several nodes show it.
struct Lease {
    holder: HolderInfo,
    /// The nodes that hold it, with the fence that each has for it.
    at: Vec<(usize, Fence)>,
}

impl Lease {
    /// Whether this is its fence, or what a node has instead.
    fn has(&self, fence: Fence) -> bool {
        self.holder.fence == fence || self.at.iter().any(|(_, at)| *at == fence)
    }
}

impl Views {
    /// How many nodes may have anything.
    fn unknown(&self) -> usize {
        self.silent.saturating_add(self.unreadable.len())
    }

    /// Why too few nodes can say what the lock looks like, if they are.
    fn too_few(&self, nodes: &Nodes, key: &Key) -> Option<Error> {
        let readable = nodes.count().saturating_sub(self.unknown());
        let kind = self.unreadable.first().filter(|_| readable < nodes.majority())?.kind();
        let (bad, all) = (self.unreadable.len(), nodes.count());
        let why = format!("{bad} of {all} nodes can't read what they have of it");
        Some(Error::new(kind, why).during("list").on_key(key).at_nodes(self.unreadable.clone()))
    }

    /// The lease that a majority may hold.
    ///
    /// Nodes can have different fences for one lease, if they were healed, so it is put together
    /// by whose it is. Its own fence is the one that most of them have, or else the lowest:
    /// healing comes later, and brings higher ones.
    fn lease(&self, nodes: &Nodes) -> Option<Lease> {
        let mut leases: Vec<Lease> = Vec::new();
        for (node, info) in &self.infos {
            let Some(holder) = info.holders.first() else { continue };
            let same = leases.iter_mut().find(|lease| {
                let other = &lease.holder;
                (&other.owner, &other.metadata, other.mode)
                    == (&holder.owner, &holder.metadata, holder.mode)
            });
            match same {
                Some(lease) => lease.at.push((*node, holder.fence)),
                None => {
                    leases.push(Lease { holder: holder.clone(), at: vec![(*node, holder.fence)] })
                }
            }
        }
        let mut lease = leases.into_iter().max_by_key(|lease| lease.at.len())?;
        if lease.at.len().saturating_add(self.unknown()) < nodes.majority() {
            return None;
        }
        let mut votes: BTreeMap<Fence, usize> = BTreeMap::new();
        for (_, fence) in &lease.at {
            let count = votes.entry(*fence).or_default();
            *count = count.saturating_add(1);
        }
        let most = votes.values().copied().max().unwrap_or_default();
        let own = votes.into_iter().find(|(_, count)| *count == most).map(|(fence, _)| fence);
        let shown: Vec<&HolderInfo> = self
            .infos
            .iter()
            .filter(|(node, _)| lease.at.iter().any(|(at, _)| at == node))
            .filter_map(|(_, info)| info.holders.first())
            .collect();
        let mut ends: Vec<Duration> = shown.iter().map(|holder| holder.remaining).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        // Of nodes that did not answer it may be among the longest.
        let at = nodes.spare().saturating_sub(self.unknown());
        lease.holder.remaining = ends.get(at).or_else(|| ends.last()).copied().unwrap_or_default();
        lease.holder.held_for = shown.iter().map(|one| one.held_for).max().unwrap_or_default();
        let alike = |holds: u32| shown.iter().filter(|one| one.holds == holds).count();
        let holds = shown.iter().map(|one| one.holds).max_by_key(|holds| alike(*holds));
        lease.holder.holds = holds.unwrap_or(lease.holder.holds);
        lease.holder.fence = own.unwrap_or(lease.holder.fence);
        Some(lease)
    }

    fn put_together(&self, nodes: &Nodes, key: &Key) -> Option<LockInfo> {
        // A node may be ahead by what it granted to nobody's use.
        let mut last: Vec<Fence> = self.infos.iter().map(|(_, info)| info.last_fence).collect();
        last.sort_unstable_by(|a, b| b.cmp(a));
        let at = nodes.majority().saturating_sub(1).min(last.len().saturating_sub(1));
        let last_fence = last.get(at).copied()?;
        let kind = self.infos.first().map_or(Kind::Lock, |(_, info)| info.kind);
        let mut whole = LockInfo::new(key.clone(), kind, last_fence);
        whole.holders.extend(self.lease(nodes).map(|lease| lease.holder));
        // Closed until a majority is open.
        let mut closed: Vec<_> =
            self.infos.iter().filter_map(|(_, info)| info.closed_for).collect();
        closed.sort_unstable_by(|a, b| b.cmp(a));
        whole.closed_for = closed.get(nodes.spare()).copied();
        (!whole.holders.is_empty() || whole.closed_for.is_some()).then_some(whole)
    }
}

impl Nodes {
    /// Asks all nodes. Those that did not answer are counted, as they may hold anything.
    async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        (patience, wait): (Duration, Wait),
        question: impl for<'a> Fn(&'a dyn leasehold_core::Store, Duration) -> BoxFuture<'a, Result<T>>
        + Clone
        + Send
        + 'static,
    ) -> Result<(Vec<(usize, T)>, usize)> {
        let mut round = Round::new();
        for node in 0..self.count() {
            round.ask(node, self.ask(node, patience, question.clone()));
        }
        let (mut answers, mut errors) = (Vec::new(), Vec::<Error>::new());
        let begin = Instant::now();
        let mut until = None;
        loop {
            let next = match until {
                Some(until) => timeout_at(until, round.next()).await.unwrap_or_default(),
                None => round.next().await,
            };
            match next {
                Some((node, Ok(answer))) => answers.push((node, answer)),
                Some((_, Err(error))) => errors.push(error),
                None => break,
            }
            if matches!(wait, Wait::Most) && until.is_none() && answers.len() >= self.majority() {
                until = Instant::now().checked_add(begin.elapsed().max(GRACE));
            }
        }
        if answers.len() < self.majority() {
            return Err(self.too_few(answers.len(), "answered", errors));
        }
        if !round.is_over() {
            // A node that is gone is noticed though nobody waits for it.
            tokio::spawn(round.finish());
        }
        let silent = self.count().saturating_sub(answers.len());
        Ok((answers, silent))
    }

    async fn views(self: &Arc<Self>, key: &Key, how: (Duration, Wait)) -> Result<Views> {
        let key = key.clone();
        let (answers, silent) = self
            .look(how, move |store, within| {
                let key = key.clone();
                Box::pin(async move { store.inspect(&key, within).await })
            })
            .await?;
        let infos = answers.into_iter().filter_map(|(node, info)| Some((node, info?))).collect();
        Ok(Views { infos, silent, unreadable: Vec::new() })
    }

    pub(crate) async fn inspect(
        self: &Arc<Self>,
        key: &Key,
        within: Duration,
    ) -> Result<Option<LockInfo>> {
        let views = self.views(key, (self.patience(within, 1), Wait::Most)).await?;
        Ok(views.put_together(self, key))
    }

    pub(crate) async fn list(
        self: &Arc<Self>,
        request: &ListRequest,
        within: Duration,
    ) -> Result<Listing> {
        let request = request.clone();
        // A list may be long, and its caller knows how long it may take.
        let (answers, silent) = self
            .look((within, Wait::All), move |store, within| {
                let request = request.clone();
                Box::pin(async move { store.list(&request, within).await })
            })
            .await?;
        let mut keys: BTreeMap<Key, Views> = BTreeMap::new();
        let mut listing = Listing::default();
        for (node, listed) in answers {
            for info in listed.locks {
                keys.entry(info.key.clone()).or_default().infos.push((node, info));
            }
            let location = self.stores.get(node).map(|store| store.location()).unwrap_or_default();
            for error in listed.unreadable {
                let error = error.at_store(location.clone());
                match error.key().cloned() {
                    Some(key) => keys.entry(key).or_default().unreadable.push(error),
                    None => listing.unreadable.push(error),
                }
            }
        }
        for (key, mut views) in keys {
            views.silent = silent;
            match views.too_few(self, &key) {
                Some(error) => listing.unreadable.push(error),
                None => listing.locks.extend(views.put_together(self, &key)),
            }
        }
        Ok(listing)
    }

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
        // One node is enough: whoever renews hears all of them.
        match (asked, errors.is_empty()) {
            (true, _) => Ok(Ask::Asked { holders: 1 }),
            (false, true) => Ok(Ask::NotHeld),
            (false, false) => Err(self.too_few(0, "could be told", errors)),
        }
    }

    pub(crate) async fn examine(self: &Arc<Self>, within: Duration) -> Result<Vec<Finding>> {
        let (answers, silent) =
            self.look((within, Wait::All), |store, within| store.examine(within)).await?;
        let voteless = self.voteless(answers.iter().map(|(node, _)| *node), within).await;
        let counts = |node: &usize| {
            let answered = answers.iter().any(|(answered, _)| answered == node);
            answered && voteless.iter().all(|(voteless, _)| voteless != node)
        };
        let location = |node: usize| self.stores.get(node).map(|store| store.location());
        let missing: Vec<String> =
            (0..self.count()).filter(|node| !counts(node)).filter_map(location).collect();
        let silent = silent.saturating_add(voteless.len());
        let mut findings = Vec::new();
        for (node, error) in voteless {
            let found = format!("this node has no vote: {error}");
            let finding =
                Finding::new(Severity::Warning, "quorum", found, "it counts as one that is gone");
            findings.push(finding.at_store(location(node).unwrap_or_default()));
        }
        for (node, found) in answers {
            let store = location(node).unwrap_or_default();
            findings.extend(found.into_iter().map(|finding| finding.at_store(store.clone())));
        }
        let (count, spare) = (self.count(), self.spare());
        let found = match silent {
            0 => format!("all {count} nodes answer"),
            _ => format!(
                "{} of {count} nodes answer, not {}",
                count.saturating_sub(silent),
                missing.join(", ")
            ),
        };
        let means = match spare.saturating_sub(silent) {
            0 => "no further node may fail, or no lock can be had".to_owned(),
            more => format!("locks can be had until {more} more fail"),
        };
        let means = if silent > spare { "no lock can be had".to_owned() } else { means };
        let severity = match (silent, spare) {
            (silent, spare) if silent > spare => Severity::Problem,
            (0, 1..) => Severity::Fine,
            _ => Severity::Warning,
        };
        let finding = Finding::new(severity, "quorum", found, means);
        findings.push(match (silent, spare) {
            (0, 0) => finding.advise("use 3 or 5 nodes"),
            (0, _) => finding,
            _ => finding.advise("bring the missing nodes back, one at a time"),
        });
        Ok(findings)
    }

    /// Those of these nodes that don't answer what every grant asks them, and why.
    async fn voteless(
        self: &Arc<Self>,
        nodes: impl Iterator<Item = usize>,
        within: Duration,
    ) -> Vec<(usize, Error)> {
        let mut round = Round::new();
        for node in nodes {
            if self.keep_leases {
                let look = self.ask(node, within, |store, within| {
                    Box::pin(async move {
                        let key = Key::new("leasehold")?;
                        store.inspect(&key, within).await
                    }) as BoxFuture<'_, _>
                });
                round.ask(node, async { look.await.map(drop) });
            } else {
                let age = self.ask(node, within, |store, within| store.remembers_for(within));
                round.ask(node, async { age.await.map(drop) });
            }
        }
        let mut voteless = Vec::new();
        while let Some((node, answer)) = round.next().await {
            if let Err(error) = answer {
                voteless.push((node, error));
            }
        }
        voteless
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
        // The fences of a block that a holder hands on are known to the nodes alone.
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
            return Err(self.too_few(gone, "took the lease away", errors));
        }
        Ok(ForceRelease::OtherFence { fences: vec![lease.holder.fence] })
    }
}
