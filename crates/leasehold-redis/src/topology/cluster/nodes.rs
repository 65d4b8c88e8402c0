//! Finds the node of a key, for code that has its own connections to nodes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use super::{Cluster, Map};
use crate::classify::Verdict;
use crate::connect::access::Access;
use crate::script::request::Deadline;
use crate::topology::address::Endpoint;
use crate::topology::slot::slot_of;

impl Cluster {
    /// The node of each key's slot; `None` if it is unknown.
    pub(crate) async fn owners(&self, keys: &[String]) -> Result<Vec<Option<Endpoint>>, Verdict> {
        let map = self.map(Deadline::after(self.inner.access.connect_timeout)).await?;
        let owner = |key: &String| map.table.owner(slot_of(key)).map(|node| node.endpoint.clone());
        Ok(keys.iter().map(owner).collect())
    }

    /// Some node that has slots.
    pub(crate) async fn any_node(&self) -> Result<Endpoint, Verdict> {
        let map = self.map(Deadline::after(self.inner.access.connect_timeout)).await?;
        let any = self.any(&map.table)?.into_iter().next();
        any.ok_or_else(|| {
            Verdict::nobody_yet(
                "no node of the cluster has slots; see `redis-cli \
                                               --cluster check`",
            )
        })
    }

    /// How a node is reached.
    pub(crate) fn access_to(&self, endpoint: &Endpoint) -> Arc<Access> {
        Arc::clone(self.node(endpoint).access())
    }

    /// Marks the table as doubtful, so that its next use fetches a new one.
    pub(crate) fn doubt(&self) {
        self.latest().iter().for_each(|map| map.doubted.store(true, Ordering::Relaxed));
    }

    /// Whether a node has slots or may soon get some, according to the table.
    pub(crate) fn may_have_slots(&self, endpoint: &Endpoint) -> bool {
        self.latest().is_none_or(|map| {
            map.table.has_primary(endpoint) || map.table.vacant.contains(endpoint)
        })
    }

    /// Receives each new table.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<Arc<Map>>> {
        self.inner.map.subscribe()
    }
}
