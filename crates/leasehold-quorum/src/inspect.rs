//! Combines, for people, what the nodes show of a lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    BoxFuture, Error, Fence, HolderInfo, Key, Kind, ListRequest, Listing, LockInfo, RawRequest,
    Result,
};

use tokio::time::{Instant, timeout_at};

use crate::nodes::Nodes;
use crate::round::Round;

/// How long an inspection waits at least for nodes slower than a majority.
pub(crate) const GRACE: Duration = Duration::from_millis(20);

/// Which nodes an answer waits for.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// All of them, each for up to its whole time.
    All,
    /// A majority, then the others for as long again.
    Most,
}

/// One lock as the nodes show it.
#[derive(Default)]
pub(crate) struct Views {
    infos: Vec<(usize, LockInfo)>,
    /// Nodes that did not answer, and may hold any lease.
    pub(crate) silent: usize,
    /// Errors of nodes whose entry could not be read. They may hold any lease, too.
    unreadable: Vec<Error>,
}

/// A lease as several nodes show it.
pub(crate) struct Lease {
    pub(crate) holder: HolderInfo,
    /// The nodes that hold it, with the fence that each has for it.
    pub(crate) at: Vec<(usize, Fence)>,
}

impl Lease {
    /// Whether this is its fence, or a node's own fence for it.
    pub(crate) fn has(&self, fence: Fence) -> bool {
        self.holder.fence == fence || self.at.iter().any(|(_, at)| *at == fence)
    }
}

impl Views {
    /// How many nodes may hold any lease.
    fn unknown(&self) -> usize {
        self.silent.saturating_add(self.unreadable.len())
    }

    /// Whether silent nodes decide if it is held or cooling down.
    fn is_undecided(&self, nodes: &Nodes) -> bool {
        let shown = self.lease(nodes).map_or(0, |lease| lease.at.len());
        (1..nodes.majority()).contains(&shown)
            || (1..=nodes.spare()).contains(&self.closings().len())
    }

    /// How long the cooldown lasts at each node that has one, the longest first.
    fn closings(&self) -> Vec<Duration> {
        let mut closed: Vec<_> =
            self.infos.iter().filter_map(|(_, info)| info.closed_for).collect();
        closed.sort_unstable_by(|a, b| b.cmp(a));
        closed
    }

    /// An error if too few nodes can read their entry.
    fn too_few(&self, nodes: &Nodes, key: &Key) -> Option<Error> {
        let readable = nodes.count().saturating_sub(self.unknown());
        let kind = self.unreadable.first().filter(|_| readable < nodes.majority())?.kind();
        let (bad, all) = (self.unreadable.len(), nodes.count());
        let why = format!("{bad} of {all} nodes can't read their record of it");
        Some(Error::new(kind, why).during("list").on_key(key).at_nodes(self.unreadable.clone()))
    }

    /// The lease that a majority may hold.
    ///
    /// Healed nodes can have different fences for one lease, so leases are matched by owner,
    /// metadata and mode. The lease's own fence is the most frequent one, or else the lowest:
    /// healing comes later and brings higher ones.
    pub(crate) fn lease(&self, nodes: &Nodes) -> Option<Lease> {
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
        // The lease may last longest at nodes that did not answer.
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
        // A node may be ahead, by fences of unsuccessful tries.
        let mut last: Vec<Fence> = self.infos.iter().map(|(_, info)| info.last_fence).collect();
        last.sort_unstable_by(|a, b| b.cmp(a));
        let at = nodes.majority().saturating_sub(1).min(last.len().saturating_sub(1));
        let last_fence = last.get(at).copied()?;
        let kind = self.infos.first().map_or(Kind::Lock, |(_, info)| info.kind);
        let mut whole = LockInfo::new(key.clone(), kind, last_fence);
        whole.holders.extend(self.lease(nodes).map(|lease| lease.holder));
        // Cooling down until a majority is known to be open. The cooldown may last longest at a
        // node that did not answer.
        let at = nodes.spare().saturating_sub(self.unknown());
        whole.closed_for = self.closings().get(at).copied();
        (!whole.holders.is_empty() || whole.closed_for.is_some()).then_some(whole)
    }
}

impl Nodes {
    /// Sends `question` to all nodes; returns the answers and the number of silent nodes.
    pub(crate) async fn look<T: Send + 'static>(
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
            // Finishing in the background records which nodes are gone.
            tokio::spawn(round.finish());
        }
        let silent = self.count().saturating_sub(answers.len());
        Ok((answers, silent))
    }

    pub(crate) async fn views(self: &Arc<Self>, key: &Key, how: (Duration, Wait)) -> Result<Views> {
        let key = key.clone();
        let (answers, silent) = self
            .look(how, move |store, within| {
                let key = key.clone();
                Box::pin(async move { store.inspect(&key, within).await })
            })
            .await?;
        let infos = answers.into_iter().filter_map(|(node, info)| Some((node, info?)));
        let infos = infos.map(|(node, info)| (node, self.without_tries(node, info))).collect();
        Ok(Views { infos, silent, unreadable: Vec::new() })
    }

    pub(crate) async fn inspect(
        self: &Arc<Self>,
        key: &Key,
        within: Duration,
    ) -> Result<Option<LockInfo>> {
        let patience = self.patience(within, 2);
        let mut views = self.views(key, (patience, Wait::Most)).await?;
        if views.is_undecided(self) {
            views = self.views(key, (patience, Wait::All)).await?;
        }
        Ok(views.put_together(self, key))
    }

    /// A node's entry without grants to tries of this process: those are the caller's own.
    fn without_tries(&self, node: usize, mut info: LockInfo) -> LockInfo {
        info.holders.retain(|holder| !self.tokens.is_try(node, holder.fence));
        info
    }

    /// The stored entry of each node, below the node's name.
    pub(crate) async fn raw(
        self: &Arc<Self>,
        request: &RawRequest,
        within: Duration,
    ) -> Result<Vec<String>> {
        let mut round = Round::<Result<Vec<String>>>::new();
        for node in 0..self.count() {
            let request = request.clone();
            let question = self.ask(node, within, move |store, within| {
                Box::pin(async move { store.raw(&request, within).await }) as BoxFuture<'_, _>
            });
            round.ask(node, question);
        }
        let (mut shown, mut errors) = (BTreeMap::new(), Vec::new());
        while let Some((node, answer)) = round.next().await {
            let lines = match answer {
                Ok(lines) if lines.is_empty() => vec!["nothing is stored".to_owned()],
                Ok(lines) => lines,
                Err(error) => {
                    let line = error.to_string();
                    errors.push(error);
                    vec![line]
                }
            };
            shown.insert(node, lines);
        }
        if errors.len() == self.count() {
            return Err(self.too_few(0, "answered", errors));
        }
        let each = shown.into_iter().flat_map(|(node, lines)| {
            let name = self.stores.get(node).map(|store| store.location()).unwrap_or_default();
            std::iter::once(name).chain(lines.into_iter().map(|line| format!("  {line}")))
        });
        Ok(each.collect())
    }

    pub(crate) async fn list(
        self: &Arc<Self>,
        request: &ListRequest,
        within: Duration,
    ) -> Result<Listing> {
        // Waits for a missing node only if its answer decides.
        let (listing, decided) = self.list_of(request, (within, Wait::Most)).await?;
        if decided {
            return Ok(listing);
        }
        Ok(self.list_of(request, (within, Wait::All)).await?.0)
    }

    /// The list as these nodes show it, and whether the others can't change it.
    async fn list_of(
        self: &Arc<Self>,
        request: &ListRequest,
        how: (Duration, Wait),
    ) -> Result<(Listing, bool)> {
        let request = request.clone();
        // A list may be long, so it gets all of the caller's time.
        let (answers, silent) = self
            .look(how, move |store, within| {
                let request = request.clone();
                Box::pin(async move { store.list(&request, within).await })
            })
            .await?;
        let mut keys: BTreeMap<Key, Views> = BTreeMap::new();
        let mut listing = Listing::default();
        let mut decided = true;
        for (node, listed) in answers {
            for info in listed.locks {
                let info = self.without_tries(node, info);
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
            let doubtful = views.is_undecided(self) || !views.unreadable.is_empty();
            decided &= silent == 0 || !doubtful;
            match views.too_few(self, &key) {
                Some(error) => listing.unreadable.push(error),
                None => listing.locks.extend(views.put_together(self, &key)),
            }
        }
        Ok((listing, decided))
    }
}
