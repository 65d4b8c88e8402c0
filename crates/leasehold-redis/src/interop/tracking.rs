//! Makes servers track the keys that they store.
//!
//! Other libraries' programs send no notifications to leasehold's waiters, or to a holder whose
//! lock they took. The server itself notifies a connection that tracks keys of every change to keys
//! that it has read. It reports an expiry with a delay, so waiters have their own timers for that.
//!
//! In a cluster, each node with a watched key gets a connection. If the key's slot moves, the
//! tracking follows it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{BoxFuture, Listener, Wake};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::tracker::{Place, Report, TrackedKeys, Tracker};
use super::watch::Watches;
use crate::classify::Verdict;
use crate::connect::access::Access;
use crate::connect::listen::QUEUE_MAX;
use crate::script::request::{Deadline, here};
use crate::topology::cluster::{Cluster, Map};

/// When a key without a known node is looked up again.
const AGAIN: Duration = Duration::from_millis(100);
/// How many reports may wait to be read.
const REPORTS_MAX: usize = 64;

/// The servers that track keys.
#[derive(Debug)]
pub(super) enum Servers {
    One(Arc<Access>),
    Cluster(Cluster),
}

impl Servers {
    fn at(&self, place: &Place) -> Arc<Access> {
        match (self, place) {
            (Self::Cluster(cluster), Some(endpoint)) => cluster.access_to(endpoint),
            (Self::Cluster(cluster), None) => Arc::clone(cluster.access()),
            (Self::One(access), _) => Arc::clone(access),
        }
    }

    /// The place of each key; `None` if its slot has no known node.
    async fn places(&self, keys: &[String]) -> Result<Vec<Option<Place>>, Verdict> {
        Ok(match self {
            Self::One(_) => keys.iter().map(|_| Some(None)).collect(),
            Self::Cluster(cluster) => {
                cluster.owners(keys).await?.into_iter().map(|owner| owner.map(Some)).collect()
            }
        })
    }

    /// Any of them.
    async fn any(&self) -> Result<Place, Verdict> {
        match self {
            Self::One(_) => Ok(None),
            Self::Cluster(cluster) => cluster.any_node().await.map(Some),
        }
    }

    fn is_of_them(&self, place: &Place) -> bool {
        match (self, place) {
            (Self::Cluster(cluster), Some(endpoint)) => cluster.may_have_slots(endpoint),
            _ => true,
        }
    }
}

/// Opens a connection, and returns once its server tracks keys for it.
pub(super) async fn listen(
    servers: Servers,
    watches: Arc<Watches>,
    deadline: Deadline,
) -> Result<Box<dyn Listener>, Verdict> {
    here()?;
    let there = match &servers {
        Servers::One(access) => access.runtime()?,
        Servers::Cluster(cluster) => cluster.access().runtime()?,
    };
    ByTask::start(&there, deadline, |messages, doubts, ready| async move {
        let (reports, reported) = mpsc::channel(REPORTS_MAX);
        let changes = match &servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => Some(cluster.changes()),
        };
        let all = Trackers {
            servers,
            watches,
            messages,
            reports,
            nodes: HashMap::new(),
            placed: HashMap::new(),
            homeless: HashSet::new(),
            again_at: None,
        };
        // It ends when the listener is gone.
        drop(all.run(reported, changes, doubts, ready).await);
    })
    .await
}

/// The messages of a listening task, which ends when this is dropped, as do the tasks that it
/// starts.
#[derive(Debug)]
struct ByTask {
    queue: mpsc::Receiver<Wake>,
    doubts: Arc<Notify>,
    task: AbortHandle,
}

impl ByTask {
    /// Starts the task on the runtime of its connection, and returns once the task reports that it
    /// listens. The task gets a sender for its messages, a signal of doubts, and a sender for its
    /// readiness.
    async fn start<F>(
        there: &Handle,
        deadline: Deadline,
        task: impl FnOnce(mpsc::Sender<Wake>, Arc<Notify>, oneshot::Sender<Result<(), Verdict>>) -> F,
    ) -> Result<Box<dyn Listener>, Verdict>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (messages, queue) = mpsc::channel(QUEUE_MAX);
        let (ready, confirmed) = oneshot::channel();
        let doubts = Arc::new(Notify::new());
        let task = there.spawn(task(messages, Arc::clone(&doubts), ready)).abort_handle();
        let by_task = Self { queue, doubts, task };
        match tokio::time::timeout_at(deadline.at, confirmed).await {
            Ok(Ok(Ok(()))) => Ok(Box::new(by_task)),
            Ok(Ok(Err(verdict))) => Err(verdict.give_up()),
            Ok(Err(_)) => Err(Access::lost_runtime()),
            Err(_) => Err(deadline.missed_unsent(None)),
        }
    }
}

impl Drop for ByTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener for ByTask {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        Box::pin(async move {
            match self.queue.recv().await {
                Some(wake) => wake,
                // The connection's runtime has ended; waiters have their own timers.
                None => std::future::pending().await,
            }
        })
    }

    fn doubt(&mut self) {
        self.doubts.notify_one();
    }
}

/// The listener is gone.
struct Unwanted;

/// A tracker at one server, which ends when this is dropped.
struct Node {
    keys: Arc<TrackedKeys>,
    /// Whether it fails to track keys for now.
    is_silent: bool,
    task: AbortHandle,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Trackers {
    servers: Servers,
    watches: Arc<Watches>,
    messages: mpsc::Sender<Wake>,
    reports: mpsc::Sender<(Place, Report)>,
    nodes: HashMap<Place, Node>,
    /// Where each key is tracked, or soon will be.
    placed: HashMap<String, Place>,
    /// Keys without a known node, to be looked up again at `again_at`.
    homeless: HashSet<String>,
    again_at: Option<Instant>,
}

impl Trackers {
    async fn run(
        mut self,
        mut reported: mpsc::Receiver<(Place, Report)>,
        mut changes: Option<watch::Receiver<Option<Arc<Map>>>>,
        doubts: Arc<Notify>,
        ready: oneshot::Sender<Result<(), Verdict>>,
    ) -> Result<(), Unwanted> {
        self.place(self.watches.all()).await;
        if self.nodes.is_empty() {
            // Connects now, so that a refusal is known before waiters rely on it.
            match self.servers.any().await {
                Ok(place) => drop(self.node(&place)),
                Err(verdict) => {
                    // The receiver may have timed out.
                    drop(ready.send(Err(verdict)));
                    return Ok(());
                }
            }
        }
        let mut ready = Some(ready);
        loop {
            tokio::select! {
                report = reported.recv() => {
                    let Some((place, report)) = report else { return Ok(()) };
                    match (report, ready.take()) {
                        (Report::Fails(verdict), Some(ready)) => {
                            drop(ready.send(Err(verdict)));
                            return Ok(());
                        }
                        (report @ Report::Elsewhere { .. }, unsaid) => {
                            ready = unsaid;
                            self.reported(place, report).await?;
                        }
                        (report, unsaid) => {
                            unsaid.into_iter().for_each(|ready| drop(ready.send(Ok(()))));
                            self.reported(place, report).await?;
                        }
                    }
                }
                () = self.watches.changed.notified() => {
                    self.place(self.watches.take_fresh()).await;
                }
                () = doubts.notified() => self.nodes.values().for_each(|node| node.keys.doubt()),
                () = changed(&mut changes) => self.rearrange().await?,
                () = reached(self.again_at) => {
                    self.again_at = None;
                    let homeless = std::mem::take(&mut self.homeless);
                    self.place(homeless).await;
                }
            }
        }
    }

    /// The tracker at that place, started if needed.
    fn node(&mut self, place: &Place) -> &Node {
        let Self { servers, watches, messages, reports, nodes, .. } = self;
        nodes.entry(place.clone()).or_insert_with(|| {
            let keys = Arc::<TrackedKeys>::default();
            let tracker = Tracker {
                place: place.clone(),
                access: servers.at(place),
                watches: Arc::clone(watches),
                keys: Arc::clone(&keys),
                messages: messages.clone(),
                reports: reports.clone(),
            };
            Node { keys, is_silent: false, task: tokio::spawn(tracker.run()).abort_handle() }
        })
    }

    /// Tracks keys where they are.
    async fn place(&mut self, keys: impl IntoIterator<Item = String>) {
        let keys = self.watches.known(keys);
        if keys.is_empty() {
            return;
        }
        self.placed.retain(|key, _| self.watches.has(key));
        let Ok(places) = self.servers.places(&keys).await else { return self.put_off(keys) };
        for (key, place) in keys.into_iter().zip(places) {
            match place {
                Some(place) => self.put(key, place, false),
                None => self.put_off([key]),
            }
        }
    }

    fn put(&mut self, key: String, place: Place, is_moving: bool) {
        self.node(&place).keys.put(key.clone(), is_moving);
        self.placed.insert(key, place);
    }

    fn put_off(&mut self, keys: impl IntoIterator<Item = String>) {
        self.homeless.extend(keys);
        if !self.homeless.is_empty() {
            self.again_at.get_or_insert_with(|| Instant::now() + AGAIN);
        }
    }

    async fn reported(&mut self, place: Place, report: Report) -> Result<(), Unwanted> {
        match report {
            Report::Fails(_) => {
                let was_silent = self.is_silent();
                if let Some(node) = self.nodes.get_mut(&place) {
                    node.is_silent = true;
                }
                if self.is_silent() && !was_silent {
                    self.say(Wake::Silent).await?;
                }
                if let Servers::Cluster(cluster) = &self.servers {
                    // Another node may have its slots by now.
                    cluster.doubt();
                    let there = self.placed.iter().filter(|(_, at)| **at == place);
                    let keys: Vec<_> = there.map(|(key, _)| key.clone()).collect();
                    self.put_off(keys);
                }
            }
            Report::Tracks { again } => {
                if let Some(node) = self.nodes.get_mut(&place) {
                    node.is_silent = false;
                }
                if again && !self.is_silent() {
                    self.say(Wake::Resync).await?;
                }
            }
            Report::Elsewhere { key, moving_to } => {
                if self.placed.get(&key).is_none_or(|at| *at != place) {
                    // This was known before.
                    return Ok(());
                }
                match moving_to {
                    Some(next) => self.put(key, Some(next), true),
                    None => {
                        if let Servers::Cluster(cluster) = &self.servers {
                            cluster.doubt();
                        }
                        self.put_off([key]);
                    }
                }
            }
        }
        Ok(())
    }

    fn is_silent(&self) -> bool {
        self.nodes.values().any(|node| node.is_silent)
    }

    async fn say(&self, wake: Wake) -> Result<(), Unwanted> {
        self.messages.send(wake).await.map_err(|_| Unwanted)
    }

    /// Moves the tracking of keys to their current places.
    async fn rearrange(&mut self) -> Result<(), Unwanted> {
        let was_silent = self.is_silent();
        self.nodes.retain(|place, _| self.servers.is_of_them(place));
        let keys = self.watches.known(self.placed.keys().cloned());
        match self.servers.places(&keys).await {
            Err(_) => self.put_off(keys),
            Ok(places) => {
                for (key, place) in keys.into_iter().zip(places) {
                    let at = self.placed.get(&key);
                    let node = at.and_then(|at| self.nodes.get(at));
                    let is_there = node.is_some() && (place.as_ref() == at)
                        || node.is_some_and(|node| node.keys.is_moving(&key));
                    match place {
                        _ if is_there => {}
                        Some(place) => self.put(key, place, false),
                        None => self.put_off([key]),
                    }
                }
            }
        }
        if was_silent && !self.is_silent() {
            self.say(Wake::Resync).await?;
        }
        Ok(())
    }
}

/// Returns when the nodes or their slots change.
async fn changed(changes: &mut Option<watch::Receiver<Option<Arc<Map>>>>) {
    if let Some(changes) = changes
        // The sender belongs to the cluster, which the caller holds.
        && changes.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
