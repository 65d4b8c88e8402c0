//! A cluster: the owner of each slot, and a supervised connection to each such node.
//!
//! Requests go to the primary of their slot, according to a table. The table is read when it is
//! first needed, and now and then. It is also read when a node redirects a request or does not
//! answer. A node that redirects a request has not carried it out, so it goes to the other node.
//! All other requests are sent once.

#[cfg(feature = "interop")]
mod nodes;
mod table;

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{BoxFuture, ErrorKind};
use redis::Value;
use redis::aio::PubSub;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::table::Table;
use crate::classify::{Next, Redirect, Verdict};
use crate::connect::access::Access;
use crate::connect::connection::{Routing, Supervised};
use crate::connect::transport::{Part, Parts, Transport};
use crate::script::call::Request;
use crate::script::request::{Answer, Deadline, all_failed, here};
use crate::topology::address::Endpoint;
use crate::topology::sentinel::Found;

/// How long one node may take to give its table.
const ASK_MAX: Duration = Duration::from_secs(1);
/// How long to wait for the others once one has given it.
const GRACE: Duration = Duration::from_millis(100);
/// How often to read the table while a node does not answer.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A table as old as this is renewed in passing.
const AGE_MAX: Duration = Duration::from_secs(15);
/// How many redirects a request follows before it pauses.
const REDIRECTS_MAX: u32 = 5;

/// The nodes of a cluster. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    /// How nodes are reached, except for their addresses.
    access: Arc<Access>,
    seeds: Vec<Endpoint>,
    /// A table older than this must be renewed before use. By then, the record of a lock, which
    /// keeps its epoch from going back, may be gone.
    too_old: Duration,
    map: watch::Sender<Option<Arc<Map>>>,
    asking: tokio::sync::Mutex<()>,
    nodes: Mutex<HashMap<Endpoint, Supervised>>,
}

/// A table, and how far it can be trusted.
pub(crate) struct Map {
    table: Table,
    since: Instant,
    /// Set when a node of it could not be reached, or redirected a request.
    doubted: AtomicBool,
    renewing: AtomicBool,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("seeds", &self.inner.seeds).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(crate) fn new(access: Arc<Access>, seeds: Vec<Endpoint>, too_old: Duration) -> Self {
        let inner = Inner {
            access,
            seeds,
            too_old,
            map: watch::Sender::new(None),
            asking: tokio::sync::Mutex::new(()),
            nodes: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.inner.access
    }

    fn node(&self, endpoint: &Endpoint) -> Supervised {
        let mut nodes = self.inner.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes
            .entry(endpoint.clone())
            .or_insert_with(|| {
                Supervised::hasty(Arc::new(self.inner.access.sibling(endpoint.clone())))
            })
            .clone()
    }

    fn latest(&self) -> Option<Arc<Map>> {
        self.inner.map.borrow().clone()
    }

    /// The current table, renewed first if it is doubted or too old.
    async fn map(&self, deadline: Deadline) -> Result<Arc<Map>, Verdict> {
        here()?;
        let Some(map) = self.latest() else { return self.renewed(None, None, deadline).await };
        let age = map.since.elapsed();
        if age > self.inner.too_old {
            return self.renewed(Some(&map), None, deadline).await;
        }
        if map.doubted.load(Ordering::Relaxed) {
            return Ok(self.renewed(Some(&map), None, deadline).await.unwrap_or(map));
        }
        if age > AGE_MAX.min(self.inner.too_old / 2)
            && !map.renewing.swap(true, Ordering::Relaxed)
            && let Ok(runtime) = self.inner.access.runtime()
        {
            let (cluster, map) = (self.clone(), Arc::clone(&map));
            runtime.spawn(async move {
                drop(cluster.renewed(Some(&map), None, Deadline::after(ASK_MAX)).await);
                map.renewing.store(false, Ordering::Relaxed);
            });
        }
        Ok(map)
    }

    /// A table newer than `seen`. Callers that want one at the same time share the answer. A task
    /// of its own reads it, since a caller that is not polled would delay the others.
    async fn renewed(
        &self,
        seen: Option<&Arc<Map>>,
        hint: Option<&Endpoint>,
        deadline: Deadline,
    ) -> Result<Arc<Map>, Verdict> {
        let (cluster, seen, hint) = (self.clone(), seen.cloned(), hint.cloned());
        let runtime = self.inner.access.runtime()?;
        let asking = runtime.spawn(async move { cluster.renew(seen, hint).await });
        match timeout_at(deadline.at, asking).await {
            Ok(Ok(renewed)) => renewed,
            Ok(Err(_)) => Err(Access::lost_runtime()),
            Err(_) => Err(deadline.missed_unsent(None)),
        }
    }

    async fn renew(
        &self,
        seen: Option<Arc<Map>>,
        hint: Option<Endpoint>,
    ) -> Result<Arc<Map>, Verdict> {
        let _turn = self.inner.asking.lock().await;
        if let Some(latest) = self.latest()
            && seen.as_ref().is_none_or(|seen| !Arc::ptr_eq(seen, &latest))
        {
            return Ok(latest);
        }
        let since = Instant::now();
        let (mut first, mut then) = (self.inner.seeds.clone(), Vec::new());
        if let Some(map) = seen {
            first.splice(0..0, map.table.primaries.iter().map(|one| one.endpoint.clone()));
            then.extend(map.table.vacant.iter().chain(&map.table.others).cloned());
        }
        if let Some(hint) = hint {
            first.insert(0, hint);
        }
        let table = match self.ask(first).await {
            Err(_) if !then.is_empty() => self.ask(then).await,
            asked => asked,
        }?;
        let (doubted, renewing) = (AtomicBool::new(false), AtomicBool::new(false));
        let map = Arc::new(Map { table, since, doubted, renewing });
        self.forget_strangers(&map.table);
        self.inner.map.send_replace(Some(Arc::clone(&map)));
        Ok(map)
    }

    /// Asks nodes for their tables, and [puts them together](Table::merged). The node that is most
    /// likely to know comes first.
    async fn ask(&self, nodes: Vec<Endpoint>) -> Result<Table, Verdict> {
        let runtime = self.inner.access.runtime()?;
        let deadline = Deadline::after(ASK_MAX);
        let mut asking = JoinSet::new();
        let mut asked = Vec::new();
        for endpoint in nodes {
            if asked.contains(&endpoint) {
                continue;
            }
            asked.push(endpoint.clone());
            let (node, place) = (self.node(&endpoint), asked.len());
            let one = async move { (place, table_of(&node, &endpoint, deadline).await) };
            asking.spawn_on(one, &runtime);
        }
        let mut until = deadline.at;
        let mut tables: Vec<(usize, Table)> = Vec::new();
        let mut failure: Option<Verdict> = None;
        while let Ok(Some(answer)) = timeout_at(until, asking.join_next()).await {
            match answer {
                Ok((place, Ok(table))) => {
                    until = until.min(Instant::now() + GRACE);
                    tables.push((place, table));
                }
                Ok((_, Err(verdict))) => {
                    let tells_more = |old: &Verdict| old.kind == ErrorKind::Unavailable;
                    if failure.as_ref().is_none_or(tells_more) {
                        failure = Some(verdict);
                    }
                }
                Err(_) => {}
            }
        }
        if tables.is_empty() {
            return Err(failure.unwrap_or_else(|| {
                Verdict::unconnected("no node of the cluster answers; check the addresses")
            }));
        }
        tables.sort_unstable_by_key(|(place, _)| *place);
        let tables: Vec<Table> = tables.into_iter().map(|(_, table)| table).collect();
        Ok(Table::merged(&tables))
    }

    /// Closes the connections to nodes that the cluster does not have any more.
    fn forget_strangers(&self, table: &Table) {
        let mut nodes = self.inner.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|endpoint, _| {
            table.has_primary(endpoint)
                || table.others.contains(endpoint)
                || table.vacant.contains(endpoint)
                || self.inner.seeds.contains(endpoint)
        });
    }

    /// The primaries with slots, in random order.
    fn any(&self, table: &Table) -> Result<Vec<Endpoint>, Verdict> {
        let mut endpoints: Vec<_> =
            table.primaries.iter().map(|one| one.endpoint.clone()).collect();
        if endpoints.is_empty() {
            return Err(Verdict::nobody_yet(
                "no node of the cluster has slots; see `redis-cli \
                                            --cluster check`",
            ));
        }
        fastrand::shuffle(&mut endpoints);
        Ok(endpoints)
    }

    /// Sends what any node can answer to one after the other, until one does.
    async fn anywhere(&self, request: &Request<'_>, deadline: Deadline) -> Result<Answer, Verdict> {
        let map = self.map(deadline).await?;
        let mut failure = deadline.missed_unsent(None);
        for endpoint in self.any(&map.table)? {
            let one = std::slice::from_ref(request);
            let answer = self.send(&map, &endpoint, one, Routing::default(), deadline).await;
            let answer = answer.into_iter().next().unwrap_or_else(|| Err(deadline.missed()));
            match answer.map_err(|verdict| self.noted(&map, verdict)) {
                Err(verdict) if verdict.next == Next::Retry && !verdict.answered => {
                    failure = verdict;
                }
                answer => return answer,
            }
        }
        Err(failure)
    }

    /// Opens a connection for notifications to some node: each node passes all of them on.
    pub(crate) async fn open_pubsub(&self) -> Result<(PubSub, Found), Verdict> {
        let map = self.map(Deadline::after(self.inner.access.connect_timeout)).await?;
        let mut failure = Verdict::nobody_yet(
            "no node of the cluster has slots; see `redis-cli \
                                               --cluster check`",
        );
        for endpoint in self.any(&map.table)? {
            match self.node(&endpoint).access().open_pubsub().await {
                Ok(opened) => return Ok(opened),
                Err(verdict) => failure = verdict,
            }
            map.doubted.store(true, Ordering::Relaxed);
        }
        Err(failure)
    }

    /// Returns once this node has no slots any more.
    pub(crate) async fn left(&self, endpoint: &Endpoint) {
        let mut maps = self.inner.map.subscribe();
        let gone = |map: &Option<Arc<Map>>| {
            map.as_ref().is_some_and(|map| !map.table.has_primary(endpoint))
        };
        drop(maps.wait_for(gone).await);
    }

    /// Sends requests to one node, and stops waiting for it when it loses the slot meanwhile.
    async fn send(
        &self,
        map: &Arc<Map>,
        endpoint: &Endpoint,
        requests: &[Request<'_>],
        routing: Routing,
        deadline: Deadline,
    ) -> Vec<Result<Answer, Verdict>> {
        let node = self.node(endpoint);
        let slot = requests.first().and_then(Request::slot);
        let mut sending = pin!(node.send(requests, routing, deadline));
        let mut map = Arc::clone(map);
        loop {
            let look = (Instant::now() + LOOK_EVERY).min(deadline.at + GRACE);
            if let Ok(answers) = timeout_at(look, &mut sending).await {
                return answers;
            }
            let renewed = tokio::select! {
                biased;
                answers = &mut sending => return answers,
                renewed = self.renewed(Some(&map), None, deadline) => renewed,
            };
            map = renewed.unwrap_or(map);
            let owner = slot.and_then(|slot| map.table.owner(slot));
            if owner.is_some_and(|owner| owner.endpoint != *endpoint) && !routing.asking {
                return all_failed(requests.len(), &Verdict::replaced());
            }
        }
    }

    /// Marks the table as doubted if the error calls for it.
    fn noted(&self, map: &Map, verdict: Verdict) -> Verdict {
        let away = verdict.kind == ErrorKind::Unavailable && verdict.next != Next::Retry;
        if away || verdict.not_primary || verdict.redirect.is_some() {
            map.doubted.store(true, Ordering::Relaxed);
        }
        match verdict.next {
            Next::Reconnect => verdict.again(),
            _ if verdict.redirect.is_some() => {
                let mut later = Verdict::nobody_yet("a slot is being moved");
                later.answered = true;
                later
            }
            _ => verdict,
        }
    }

    async fn routed(&self, request: &Request<'_>, deadline: Deadline) -> Result<Answer, Verdict> {
        let Some(slot) = request.slot() else { return self.anywhere(request, deadline).await };
        let mut map = self.map(deadline).await?;
        let mut asking: Option<Endpoint> = None;
        for _ in 0..REDIRECTS_MAX {
            let Some(owner) = map.table.owner(slot) else {
                map.doubted.store(true, Ordering::Relaxed);
                return Err(Verdict::nobody_yet(
                    "no node of the cluster has the slot of this lock; \
                                                see `redis-cli --cluster check`",
                ));
            };
            let (owner, epoch) = (owner.endpoint.clone(), owner.epoch());
            // While a slot is being moved, records at its next owner get the epoch of the present
            // one. So no record that was created there before is above them.
            let routing = Routing { asking: asking.is_some(), epoch };
            let endpoint = asking.take().unwrap_or(owner);
            let answers =
                self.send(&map, &endpoint, std::slice::from_ref(request), routing, deadline).await;
            let answer = answers.into_iter().next();
            let answer = answer.unwrap_or_else(|| Err(deadline.missed()));
            let redirect = answer.as_ref().err().and_then(|verdict| verdict.redirect.as_deref());
            let Some(Redirect { ask, host, port }) = redirect else {
                return answer.map_err(|verdict| self.noted(&map, verdict));
            };
            let host = if host.is_empty() { endpoint.host() } else { host };
            let next = endpoint.sibling(host, *port);
            if *ask {
                asking = Some(next);
            } else {
                map = self.renewed(Some(&map), Some(&next), deadline).await?;
            }
        }
        Err(Verdict::nobody_yet(
            "the nodes of the cluster redirect to each other; see `redis-cli \
                                 --cluster check`",
        ))
    }

    async fn spread(
        &self,
        requests: &[Request<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Result<Answer, Verdict>>, Verdict> {
        let map = self.map(deadline).await?;
        let nobody = || {
            Verdict::nobody_yet(
                "no node of the cluster has the slot of this lock; see \
                                             `redis-cli --cluster check`",
            )
        };
        let mut answers = all_failed(requests.len(), &nobody());
        let mut groups: HashMap<&Endpoint, (u64, Vec<usize>)> = HashMap::new();
        let any = self.any(&map.table)?;
        let any = any.first().ok_or_else(nobody)?;
        for (place, request) in requests.iter().enumerate() {
            let (endpoint, epoch) = match request.slot().map(|slot| map.table.owner(slot)) {
                Some(Some(owner)) => (&owner.endpoint, owner.epoch()),
                Some(None) => continue,
                None => (any, 0),
            };
            groups.entry(endpoint).or_insert((epoch, Vec::new())).1.push(place);
        }
        let sending = groups.into_iter().map(|(endpoint, (epoch, places))| {
            let map = &map;
            let group: Vec<Request<'_>> =
                places.iter().filter_map(|place| requests.get(*place).copied()).collect();
            let routing = Routing { asking: false, epoch };
            let sending: BoxFuture<'_, _> = Box::pin(async move {
                (places, self.send(map, endpoint, &group, routing, deadline).await)
            });
            sending
        });
        for (places, group) in all(sending.collect()).await {
            for (place, answer) in places.into_iter().zip(group) {
                if let Some(slot) = answers.get_mut(place) {
                    *slot = answer.map_err(|verdict| self.noted(&map, verdict));
                }
            }
        }
        Ok(answers)
    }
}

fn senseless() -> Verdict {
    Verdict::unconnected("the answer to CLUSTER NODES is unreadable")
}

async fn nodes_of(node: &Supervised, deadline: Deadline) -> Result<String, Verdict> {
    let nodes = redis::cmd("CLUSTER").arg("NODES").to_owned();
    match node.one(&Request::plain(&nodes), deadline).await?.value {
        Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| senseless()),
        Value::VerbatimString { text, .. } => Ok(text),
        _ => Err(senseless()),
    }
}

async fn table_of(
    node: &Supervised,
    endpoint: &Endpoint,
    deadline: Deadline,
) -> Result<Table, Verdict> {
    let text = nodes_of(node, deadline).await?;
    Table::parse(&text, endpoint).ok_or_else(senseless)
}

/// Runs all of them, and returns when the last one is done.
async fn all<T>(mut running: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut done = Vec::with_capacity(running.len());
    std::future::poll_fn(|cx| {
        running.retain_mut(|one| match one.as_mut().poll(cx) {
            std::task::Poll::Ready(value) => {
                done.push(value);
                false
            }
            std::task::Poll::Pending => true,
        });
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done
}

impl Transport for Cluster {
    fn one<'a>(
        &'a self,
        request: &'a Request<'a>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Answer, Verdict>> {
        Box::pin(self.routed(request, deadline))
    }

    fn many<'a>(
        &'a self,
        requests: &'a [Request<'a>],
        deadline: Deadline,
    ) -> BoxFuture<'a, Vec<Result<Answer, Verdict>>> {
        Box::pin(async move {
            let spread = self.spread(requests, deadline).await;
            spread.unwrap_or_else(|verdict| all_failed(requests.len(), &verdict))
        })
    }

    fn is_spread(&self) -> bool {
        true
    }

    fn fails_over(&self) -> bool {
        true
    }

    fn parts(&self, deadline: Deadline) -> BoxFuture<'_, Result<Option<Parts>, Verdict>> {
        Box::pin(async move {
            let map = self.renewed(self.latest().as_ref(), None, deadline).await?;
            let table = &map.table;
            let part = |endpoint: &Endpoint, slots| Part {
                server: Arc::new(self.node(endpoint)),
                location: endpoint.location(),
                slots,
            };
            let mut servers: Vec<Part> = table
                .primaries
                .iter()
                .map(|one| part(&one.endpoint, table.slots_of(&one.endpoint)))
                .collect();
            servers.extend(table.vacant.iter().map(|endpoint| part(endpoint, Vec::new())));
            let mut views = JoinSet::new();
            for seed in &self.inner.seeds {
                let (node, seed) = (self.node(seed), seed.clone());
                views.spawn(async move {
                    (seed.location(), nodes_of(&node, deadline.at_most(ASK_MAX)).await)
                });
            }
            let (mut known, mut loners) = (Vec::new(), Vec::new());
            for (location, said) in views.join_all().await {
                match said {
                    Ok(text) => known.push((location, text)),
                    Err(said) if said.answered && said.kind == ErrorKind::Config => {
                        loners.push(location);
                    }
                    Err(_) => {}
                }
            }
            known.sort_unstable();
            loners.sort_unstable();
            Ok(Some(Parts { servers, whole: table.is_whole(), views: known, loners }))
        })
    }
}
