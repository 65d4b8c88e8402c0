//! The [`QuorumStore`]: a store in which a majority of its nodes decides.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, ClientId, Convert,
    ConvertRequest, Error, ErrorKind, ForceRelease, ForceReleaseRequest, Key, Leave, LeaveRequest,
    ListRequest, Listener, Listing, LockInfo, LockLog, RawRequest, Release, ReleaseRequest, Renew,
    RenewRequest, Result, SetLimit, SetLimitRequest, Store, Token,
};

use crate::builder::QuorumStoreBuilder;
use crate::log::QuorumLog;
use crate::nodes::Nodes;
use crate::round::check_runtime;

/// A store that consists of several independent stores, its nodes. What a majority of them answers
/// counts. Clones share their state.
///
/// # Guarantees
///
/// While a lease is held, a majority of the nodes holds it, so other contenders can't get a
/// majority. This holds while fewer than half of the nodes are gone, paused, cut off or restarted
/// empty within one [longest ttl](QuorumStoreBuilder::max_ttl). Nodes must not be replicas of one
/// another. Their clocks must run at the same rate, but need not show the same time.
///
/// Fencing tokens grow strictly: a lease gets the highest that any of its nodes granted, and a
/// majority takes it over before the caller gets it. If nodes forget their data, this also needs
/// clocks that are less than the longest ttl apart.
///
/// # Costs
///
/// An acquisition takes two rounds of requests, everything else one, to all nodes at once. A
/// majority of answers is enough, so a slow minority delays nothing.
///
/// # What it can't do
///
/// Each node has its own queue, but the nodes have no common one. Waiters retry after random
/// pauses. An acquisition is one try, and returns
/// [`Busy::contended`](leasehold_core::Busy::contended) if no contender got a majority.
///
/// Only exclusive leases are supported. Majorities can't keep semaphores: of three nodes with two
/// permits each, the pairs 1+2, 2+3 and 3+1 let in three holders. They could keep shared leases,
/// but two of those could get the same fences.
///
/// # Time
///
/// The caller's time bounds each operation, and the
/// [node timeout](QuorumStoreBuilder::node_timeout) each request to a node. It needs a tokio
/// runtime with timers.
///
/// # Cancel safety
///
/// As with any store, after a dropped future it is unknown which nodes carried the operation out.
/// A `leave` with the same token abandons all of it. Don't request an abandoned token again.
#[derive(Clone, Debug)]
pub struct QuorumStore {
    pub(crate) nodes: Arc<Nodes>,
}

impl QuorumStore {
    /// A quorum of these nodes with the usual settings.
    ///
    /// # Errors
    ///
    /// As [`QuorumStoreBuilder::build`].
    pub fn new(nodes: Vec<Arc<dyn Store>>) -> Result<Self> {
        Self::builder(nodes).build()
    }

    /// Settings of a quorum of these nodes.
    pub fn builder(nodes: Vec<Arc<dyn Store>>) -> QuorumStoreBuilder {
        QuorumStoreBuilder::new(nodes)
    }

    /// Checks that a majority of the nodes answers.
    ///
    /// # Cost
    ///
    /// One round trip to each node; it waits for a majority. No request takes longer than the [node
    /// timeout](QuorumStoreBuilder::node_timeout), and all together at most `within`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if too few nodes answer, or the nodes' own kind if they agree.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only reads.
    pub async fn reach(&self, within: Duration) -> Result<()> {
        let any = Key::new("leasehold")?;
        let answer = asked(self.nodes.inspect(&any, within)).await;
        answer.map(drop).map_err(|error| self.named(error, "connect"))
    }

    fn named(&self, error: Error, operation: &'static str) -> Error {
        error.during(operation).at_store(Arc::clone(&self.nodes.location))
    }

    fn unsupported(&self, why: &str, operation: &'static str) -> Error {
        self.named(Error::new(ErrorKind::Unsupported, why), operation)
    }
}

/// Awaits a request, inside a tokio runtime.
async fn asked<T>(question: impl Future<Output = Result<T>>) -> Result<T> {
    check_runtime()?;
    question.await
}

#[deny(clippy::missing_trait_methods)]
impl Store for QuorumStore {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        Box::pin(async move {
            let answer = asked(self.nodes.acquire(request, within)).await;
            answer.map_err(|error| self.named(error, "acquire").on_key(&request.key))
        })
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(async move {
            let answers = match check_runtime() {
                Ok(()) => self.nodes.renew(requests, within).await,
                Err(error) => vec![Err(error); requests.len()],
            };
            let answers = answers.into_iter().zip(requests);
            answers
                .map(|(answer, request)| {
                    answer.map_err(|error| self.named(error, "renew").on_key(&request.key))
                })
                .collect()
        })
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let answer = asked(self.nodes.release(request, within)).await;
            answer.map_err(|error| self.named(error, "release").on_key(&request.key))
        })
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        Box::pin(async move {
            let answer = asked(self.nodes.leave(request, within)).await;
            answer.map_err(|error| self.named(error, "leave").on_key(&request.key))
        })
    }

    fn acquire_all<'a>(
        &'a self,
        _requests: &'a [AcquireRequest],
        _within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        let why = "a quorum takes one lock at a time; take several in turn";
        Box::pin(std::future::ready(Err(self.unsupported(why, "acquire all"))))
    }

    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Convert>> {
        let error = self.unsupported("a quorum has exclusive locks only", "convert");
        Box::pin(std::future::ready(Err(error.on_key(&request.key))))
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        let error = self.unsupported("a quorum has no semaphores", "set limit");
        Box::pin(std::future::ready(Err(error.on_key(&request.key))))
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>> {
        Box::pin(async move {
            let answer = asked(self.nodes.ask_to_let_go(request, within)).await;
            answer.map_err(|error| self.named(error, "ask").on_key(&request.key))
        })
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move {
            let answer = asked(self.nodes.inspect(key, within)).await;
            answer.map_err(|error| self.named(error, "inspect").on_key(key))
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Listing>> {
        Box::pin(async move {
            let answer = asked(self.nodes.list(request, within)).await;
            let mut listing = answer.map_err(|error| self.named(error, "list"))?;
            let unreadable = listing.unreadable.into_iter();
            listing.unreadable = unreadable.map(|error| self.named(error, "list")).collect();
            Ok(listing)
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        Box::pin(async move {
            let answer = asked(self.nodes.force_release(request, within)).await;
            answer.map_err(|error| self.named(error, "force-release").on_key(&request.key))
        })
    }

    fn listen<'a>(
        &'a self,
        _client: ClientId,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        let why = "a quorum has no common queue; waiters poll";
        Box::pin(std::future::ready(Err(self.unsupported(why, "listen"))))
    }

    /// A quorum remembers what its nodes remember, and asks each of them as it counts the votes.
    fn remembers_for(&self, _within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async move {
            let answer = asked(self.nodes.examine(within)).await;
            answer.map_err(|error| self.named(error, "examine"))
        })
    }

    fn raw<'a>(
        &'a self,
        request: &'a RawRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>>> {
        Box::pin(async move {
            let answer = asked(self.nodes.raw(request, within)).await;
            answer.map_err(|error| self.named(error, "show").on_key(&request.key))
        })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        QuorumLog::of(self.nodes.stores.iter().filter_map(|node| node.log()).collect())
    }

    /// Fresh even if all nodes are on this machine: a copy of the machine may lack copies of them.
    fn token(&self) -> Result<Token> {
        Token::generate()
    }

    fn capability(&self) -> Capability {
        let mut capability = Capability::NONE;
        capability.list = self.nodes.stores.iter().all(|node| node.capability().list);
        capability.undoes = true;
        let nodes = &self.nodes;
        let own = (!nodes.keep_leases).then(|| nodes.max_ttl.duration());
        let theirs = nodes.stores.iter().filter_map(|node| node.capability().longest);
        capability.longest = theirs.chain(own).min();
        capability
    }

    fn location(&self) -> String {
        self.nodes.location.to_string()
    }
}
