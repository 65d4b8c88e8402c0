//! Settings of a quorum.

use std::sync::Arc;
use std::time::Duration;

use leasehold_clock::SystemClock;
use leasehold_core::{Clock, Error, ErrorKind, Result, Store, Ttl};

use crate::nodes::Nodes;
use crate::store::QuorumStore;

const NODE_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_TTL: Duration = Duration::from_secs(60);
const MAX_TTL_MIN: Duration = Duration::from_secs(1);
/// More nodes than this add no safety and slow every operation down.
const NODES_MAX: usize = 15;

/// Settings of a [`QuorumStore`].
#[derive(Clone, Debug)]
#[must_use]
pub struct QuorumStoreBuilder {
    nodes: Vec<Arc<dyn Store>>,
    node_timeout: Duration,
    max_ttl: Result<Ttl>,
    keep_leases: bool,
    clock: Arc<dyn Clock>,
}

impl QuorumStoreBuilder {
    pub(crate) fn new(nodes: Vec<Arc<dyn Store>>) -> Self {
        Self {
            nodes,
            node_timeout: NODE_TIMEOUT,
            max_ttl: Ttl::new(MAX_TTL),
            keep_leases: false,
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// How long a node may take to answer before it counts as gone.
    ///
    /// The default is 500 ms. It is never more than a quarter of the lease or 100 ms, whichever is
    /// longer. Set it to a few times what the slowest node takes. If a missing node's answer is
    /// needed, it delays the result by this time. If a majority has answered and other leases are
    /// in the way, the wait is only as long as the nodes usually take.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// The longest lease on these nodes; one minute by default. Longer ones are refused, unless
    /// [the nodes keep their leases](Self::nodes_keep_leases). All users of the nodes must set the
    /// same value.
    ///
    /// A node that was restarted without its data could have forgotten leases. So its vote counts
    /// only after this time, when they have all expired. New nodes also grant nothing for this
    /// time.
    ///
    /// At the nodes, a lease lasts at least 100 ms.
    pub fn max_ttl(mut self, longest: Duration) -> Self {
        self.max_ttl = Ttl::new(longest);
        self
    }

    /// Declares that the nodes keep every acknowledged lease over a restart, so their votes count
    /// at once. This is true of a Redis server only with `appendonly yes` and `appendfsync always`,
    /// on a disk that honours a sync. If it is false, a restart can lead to two holders.
    pub fn nodes_keep_leases(mut self, keep: bool) -> Self {
        self.keep_leases = keep;
        self
    }

    /// Replaces the clock of this process, for tests; the default is the system's. Nodes have their
    /// own clocks.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the store, without a request to any node.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`]: no nodes or more than 15, the same node twice, a timeout of zero, or
    /// a longest lease out of range.
    pub fn build(self) -> Result<QuorumStore> {
        let Self { nodes: stores, node_timeout, max_ttl, keep_leases, clock } = self;
        let refuse = |why: String| Err(Error::new(ErrorKind::Config, why));
        if stores.is_empty() || stores.len() > NODES_MAX {
            return refuse(format!(
                "a quorum of {} nodes is impossible; give 3 or 5, at most {NODES_MAX}",
                stores.len()
            ));
        }
        if node_timeout.is_zero() {
            return refuse("a node timeout of zero leaves no time to answer; give more".to_owned());
        }
        let max_ttl = max_ttl?;
        if max_ttl.duration() < MAX_TTL_MIN {
            return refuse(format!(
                "max_ttl {max_ttl} is too short; give at least {MAX_TTL_MIN:?}"
            ));
        }
        let names: Vec<String> = stores.iter().map(|store| store.location()).collect();
        for (at, store) in stores.iter().enumerate() {
            let before = stores.iter().take(at);
            if before.into_iter().any(|other| Arc::ptr_eq(other, store)) {
                return refuse(format!(
                    "{} is named twice, which would give it two votes; name each node once",
                    store.location()
                ));
            }
        }
        if stores.len() == 1 {
            tracing::warn!(
                "a quorum of one node tolerates no failure; give 3 or 5 nodes, or that node \
                 without a quorum"
            );
        }
        let paces = stores.iter().map(|_| Arc::default()).collect();
        let debts = stores.iter().map(|_| Arc::default()).collect();
        let nodes = Nodes {
            paces,
            debts,
            location: format!("quorum:{}", names.join(",")).into(),
            stores,
            node_timeout,
            max_ttl,
            keep_leases,
            clock,
            tokens: Arc::default(),
        };
        Ok(QuorumStore { nodes: Arc::new(nodes) })
    }
}
