//! The stores that can be tested, each with its servers.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use leasehold_testkit::sql::PostgreSql;

use crate::plan::Abilities;

/// How long sentinels wait for a silent server.
const DOWN_AFTER: Duration = Duration::from_secs(1);
/// How long a cluster's nodes wait for a silent one. It is longer than any fault here, since a
/// fail-over after a death loses what the replicas lack.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_secs(15);
/// How many replicas have to confirm, with sentinels: all.
const REPLICAS: usize = 2;

/// The names of the stores.
pub(crate) const NAMES: [&str; 8] =
    ["embedded", "redis", "forgetful", "sentinel", "cluster", "quorum", "quorum5", "postgres"];

/// A store, with its servers and proxies.
#[derive(Debug)]
pub(crate) enum Site {
    Embedded,
    Redis {
        server: Box<RedisServer>,
        wire: Proxy,
        forgets: bool,
    },
    Sentinel(Box<SentinelSet>),
    Cluster(Box<Cluster>),
    Quorum {
        nodes: Vec<(RedisServer, Proxy)>,
    },
    /// A primary, and its standby behind it.
    Postgres {
        pair: Box<Mutex<[(PostgreSql, Proxy); 2]>>,
        is_synchronous: bool,
    },
}

/// A server that keeps over a kill what it has acknowledged.
fn durable() -> RedisServer {
    RedisServer::builder().appendonly().start()
}

impl Site {
    /// Starts the servers of the store with this name. The seed decides what one run can't have
    /// both of.
    pub(crate) fn start(name: &str, seed: u64) -> Option<Self> {
        let wired = |server: RedisServer| {
            let wire = Proxy::start(server.addr());
            (server, wire)
        };
        Some(match name {
            "embedded" => Self::Embedded,
            "redis" | "forgetful" => {
                let forgets = name == "forgetful";
                let (server, wire) = wired(if forgets { RedisServer::start() } else { durable() });
                Self::Redis { server: Box::new(server), wire, forgets }
            }
            "sentinel" => {
                let options = SentinelSet::builder().down_after(DOWN_AFTER).replicas(REPLICAS);
                let options = options.config("appendonly yes").config("appendfsync always");
                Self::Sentinel(Box::new(options.start()))
            }
            "cluster" => {
                let options = Cluster::builder().node_timeout(NODE_TIMEOUT);
                let options = options.config("appendonly yes").config("appendfsync always");
                Self::Cluster(Box::new(options.start()))
            }
            "quorum" => Self::Quorum { nodes: (0..3).map(|_| wired(durable())).collect() },
            "quorum5" => Self::Quorum { nodes: (0..5).map(|_| wired(durable())).collect() },
            "postgres" => {
                let primary = PostgreSql::start_with(&["wal_retrieve_retry_interval=200ms"]);
                let is_synchronous = seed.is_multiple_of(2);
                if is_synchronous {
                    primary.set("synchronous_standby_names", "*");
                }
                let standby = primary.standby();
                let pair = [primary, standby].map(|server| {
                    let wire = Proxy::start((Ipv4Addr::LOCALHOST, server.port()).into());
                    (server, wire)
                });
                Self::Postgres { pair: Box::new(Mutex::new(pair)), is_synchronous }
            }
            _ => return None,
        })
    }

    /// The value of `--store`.
    pub(crate) fn url(&self, dir: &Path) -> String {
        match self {
            Self::Embedded => format!("embedded:{}", dir.join("locks").display()),
            Self::Redis { wire, .. } => wire.url(),
            // True here and below: acknowledged data is on the server's disk.
            Self::Sentinel(set) => format!("{}?replicas={REPLICAS}&keep_leases=yes", set.url()),
            Self::Cluster(cluster) => cluster.url(),
            Self::Quorum { nodes } => {
                let hosts: Vec<String> =
                    nodes.iter().map(|(_, wire)| wire.addr().to_string()).collect();
                format!("quorum+redis://{}?keep_leases=yes", hosts.join(","))
            }
            Self::Postgres { pair, is_synchronous } => {
                let pair = pair.lock().expect("no thread panics while it has it");
                let [primary, standby] = pair.each_ref().map(|(_, wire)| wire.addr());
                let url = format!("postgres://leasehold@{primary},{standby}/postgres?create=yes");
                // Then the standby has every lease.
                let safe = "&synchronous=require&after_failover=grant";
                if *is_synchronous { url + safe } else { url }
            }
        }
    }

    pub(crate) const fn abilities(&self) -> Abilities {
        Abilities { kinds: !matches!(self, Self::Quorum { .. }) }
    }

    /// Whether it forgets held leases, so that a lock may have two holders. The resource then
    /// relies on fences.
    pub(crate) const fn forgets(&self) -> bool {
        matches!(self, Self::Redis { forgets: true, .. })
    }

    /// All Redis servers that keep locks.
    pub(crate) fn servers(&self) -> Vec<&RedisServer> {
        match self {
            Self::Embedded | Self::Postgres { .. } => Vec::new(),
            Self::Redis { server, .. } => vec![server],
            Self::Sentinel(set) => set.servers().iter().collect(),
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
            Self::Quorum { nodes } => nodes.iter().map(|(server, _)| server).collect(),
        }
    }
}
