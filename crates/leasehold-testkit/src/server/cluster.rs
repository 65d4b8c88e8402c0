//! A cluster: primaries that share the slots, and a replica for each.
//!
//! ```
//! use leasehold_testkit::server::cluster::Cluster;
//!
//! let cluster = Cluster::builder().replicas(0).start();
//! assert_eq!(cluster.master_of(0).cli(&["CLUSTER", "COUNTKEYSINSLOT", "0"]), "0");
//! ```

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::{
    ADMIN, ClientCertificate, RedisServer, RedisServerBuilder, Reply, Role, TlsSettings, percent,
    random_password,
};
use crate::tls::Pki;

/// The number of slots.
pub const SLOTS: u16 = 16_384;

const PRIMARIES: u16 = 3;
/// A cluster of six is whole after three seconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Options of a [`Cluster`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClusterBuilder {
    config: Vec<String>,
    node_timeout: Duration,
    password: Option<String>,
    tls: Option<TlsSettings>,
    replicas: usize,
}

impl ClusterBuilder {
    /// Adds a line to the configuration of every node.
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.config.push(line.into());
        self
    }

    /// How long a node must be silent before others call it failed. The default is a minute, so
    /// that a busy machine causes no fail-over.
    pub fn node_timeout(mut self, time: Duration) -> Self {
        self.node_timeout = time;
        self
    }

    /// Demands this password from the default user.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// How many replicas each primary has; one without this.
    pub fn replicas(mut self, each: usize) -> Self {
        self.replicas = each;
        self
    }

    /// Makes all nodes use TLS, also among themselves, while `pki` lives.
    pub fn tls(mut self, pki: &Pki) -> Self {
        // On their bus, nodes demand certificates of each other.
        let client = pki.client();
        self.config.extend([
            format!("tls-client-cert-file {}", client.certificate_path().display()),
            format!("tls-client-key-file {}", client.key_path().display()),
        ]);
        self.tls = Some(TlsSettings::new(pki, pki.server(), ClientCertificate::Ignored));
        self
    }

    /// Starts all nodes, and returns once each of them reports a whole cluster.
    ///
    /// # Panics
    ///
    /// As [`RedisServerBuilder::start`], or when the nodes do not form a cluster in time.
    #[must_use]
    pub fn start(self) -> Cluster {
        let admin = random_password();
        let count = usize::from(PRIMARIES) * (1 + self.replicas);
        let nodes: Vec<RedisServer> = thread::scope(|scope| {
            let starting: Vec<_> =
                (0..count).map(|_| scope.spawn(|| self.node(&admin).start())).collect();
            starting.into_iter().map(|node| node.join().expect("a node starts")).collect()
        });
        let cluster = Cluster { options: self, nodes };
        cluster.form();
        cluster
    }

    fn node(&self, admin: &str) -> RedisServerBuilder {
        let mut node = RedisServer::builder();
        node.admin_password = Some(admin.to_owned());
        node.role = Role::ClusterNode;
        node.password.clone_from(&self.password);
        if self.tls.is_some() {
            node.tls.clone_from(&self.tls);
            node = node.config("tls-replication yes").config("tls-cluster yes");
        }
        node.config.extend([
            format!("cluster-node-timeout {}", self.node_timeout.as_millis()),
            format!("masteruser {ADMIN}"),
            format!("masterauth {admin}"),
            "repl-ping-replica-period 1".to_owned(),
            "cluster-replica-validity-factor 0".to_owned(),
        ]);
        node.config.extend(self.config.iter().cloned());
        node
    }
}

/// Three primaries and, by default, a replica of each. Dropping it kills them all.
#[derive(Debug)]
pub struct Cluster {
    options: ClusterBuilder,
    nodes: Vec<RedisServer>,
}

impl Cluster {
    /// Options for a cluster.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder {
            config: Vec::new(),
            node_timeout: Duration::from_secs(60),
            password: None,
            tls: None,
            replicas: 1,
        }
    }

    /// Starts a cluster without options.
    ///
    /// # Panics
    ///
    /// As [`ClusterBuilder::start`].
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// `redis+cluster://host:port,host:port,host:port` of the first three nodes, with the password
    /// if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.options.tls.is_some() { "rediss" } else { "redis" };
        let user = self.options.password.as_ref();
        let user = user.map_or_else(String::new, |word| format!(":{}@", percent(word)));
        let first = self.nodes.iter().take(PRIMARIES.into());
        let hosts: Vec<String> =
            first.map(|node| format!("127.0.0.1:{}", self.port_of(node))).collect();
        format!("{scheme}+cluster://{user}{}", hosts.join(","))
    }

    /// All nodes: those that began as primaries, then their replicas in the same order.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The slot of a key, as a node computes it.
    ///
    /// # Panics
    ///
    /// When no node answers.
    #[must_use]
    pub fn slot_of(&self, key: &str) -> u16 {
        let ask = |node: &RedisServer| {
            node.try_cli(&["CLUSTER", "KEYSLOT", key]).ok()?.to_string().parse().ok()
        };
        self.nodes.iter().find_map(ask).expect("a node answers")
    }

    /// The primary of a slot, by the newest answer of any node.
    ///
    /// # Panics
    ///
    /// When no living node knows one.
    #[must_use]
    pub fn master_of(&self, slot: u16) -> &RedisServer {
        self.known_master_of(slot).expect("a node knows the primary")
    }

    fn known_master_of(&self, slot: u16) -> Option<&RedisServer> {
        let mut newest: Option<(u64, u16)> = None;
        for node in &self.nodes {
            let Ok(Reply::Bulk(table)) = node.try_cli(&["CLUSTER", "NODES"]) else { continue };
            for line in String::from_utf8_lossy(&table).lines() {
                let fields: Vec<&str> = line.split(' ').collect();
                let [_, address, _, _, _, _, epoch, _, ranges @ ..] = &*fields else { continue };
                let has_it = ranges.iter().any(|range| {
                    let (low, high) = range.split_once('-').unwrap_or((range, range));
                    let bound = |text: &str| text.parse::<u16>().ok();
                    bound(low).is_some_and(|low| low <= slot)
                        && bound(high).is_some_and(|high| slot <= high)
                });
                let port = address.split('@').next().and_then(|at| at.rsplit(':').next());
                let port = port.and_then(|port| port.parse().ok());
                if has_it && let (Ok(epoch), Some(port)) = (epoch.parse(), port) {
                    newest = newest.max(Some((epoch, port)));
                }
            }
        }
        let (_, port) = newest?;
        self.nodes.iter().find(|node| node.port() == port || self.port_of(node) == port)
    }

    /// Waits until another node than `old` is the primary of a slot and serves it.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    #[must_use]
    pub fn master_after(&self, old: &RedisServer, slot: u16) -> &RedisServer {
        self.master_within(TIMEOUT, old, slot).unwrap_or_else(|| {
            let logs: String = self.nodes.iter().map(RedisServer::log).collect();
            panic!("no fail-over; the nodes' logs:\n{logs}")
        })
    }

    /// As [`master_after`](Self::master_after), for fail-overs that may fail.
    pub fn master_within(
        &self,
        limit: Duration,
        old: &RedisServer,
        slot: u16,
    ) -> Option<&RedisServer> {
        let deadline = Instant::now() + limit;
        loop {
            let new = self.known_master_of(slot).filter(|new| new.port() != old.port());
            if let Some(new) = new
                && state(new).is_some_and(|state| state["cluster_state"] == "ok")
            {
                return Some(new);
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(POLL);
        }
    }

    /// Moves a slot with its keys from its primary to another one, key by key, as operators do.
    ///
    /// `half_way` runs when half of the keys have moved (rounded down).
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub fn migrate(&self, slot: u16, to: &RedisServer, half_way: impl FnOnce()) {
        let moving = self.begin_move(slot, to);
        let all = moving.keys();
        for key in &all[..all.len() / 2] {
            moving.step(key);
        }
        half_way();
        moving.finish();
    }

    /// Moves all keys of a slot as [`migrate`](Self::migrate) does, but does not finish the move.
    /// For the cluster the slot still belongs to its old primary.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub fn half_migrate(&self, slot: u16, to: &RedisServer) {
        let moving = self.begin_move(slot, to);
        moving.keys().iter().for_each(|key| moving.step(key));
    }

    /// Begins to move a slot: no key has moved yet, and new ones are made at `to` already.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub fn begin_move<'a>(&'a self, slot: u16, to: &'a RedisServer) -> SlotMove<'a> {
        let from = self.master_of(slot);
        let slot = slot.to_string();
        drop(to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]));
        drop(from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]));
        SlotMove { slot, from, to }
    }

    fn port_of(&self, node: &RedisServer) -> u16 {
        if self.options.tls.is_some() { node.tls_port() } else { node.port() }
    }

    fn form(&self) {
        let primaries = &self.nodes[..usize::from(PRIMARIES)];
        for (index, node) in (0_u16..).zip(primaries) {
            drop(node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]));
            let share = |index: u16| SLOTS / PRIMARIES * index;
            let end = if index + 1 == PRIMARIES { SLOTS } else { share(index + 1) };
            let slots: Vec<String> = (share(index)..end).map(|slot| slot.to_string()).collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            drop(node.cli(&command));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            // Every pair meets directly, instead of waiting for gossip to spread.
            for other in &self.nodes[index + 1..] {
                let port = self.port_of(other);
                let (port, bus) = (port.to_string(), (port + super::BUS_OFFSET).to_string());
                drop(node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]));
            }
        }
        let all = self.nodes.len().to_string();
        self.until("all nodes know each other", |node| {
            let table = node.try_cli(&["CLUSTER", "NODES"]).ok()?.to_string();
            let settled = table.lines().count() == self.nodes.len()
                && !table.contains("handshake")
                && table.matches(" connected").count() == self.nodes.len();
            Some(settled && state(node)?.get("cluster_known_nodes") == Some(&all))
        });
        for (replica, primary) in
            self.nodes[usize::from(PRIMARIES)..].iter().zip(primaries.iter().cycle())
        {
            drop(replica.cli(&["CLUSTER", "REPLICATE", &id(primary)]));
        }
        self.await_health();
    }

    /// Waits until every living node reports a whole cluster, and every replica follows.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    pub fn await_health(&self) {
        self.until("the cluster is whole", |node| {
            let whole = state(node)?.get("cluster_state").is_some_and(|state| state == "ok");
            let role = node.try_cli(&["ROLE"]).ok()?.to_string();
            let follows = role.starts_with("master") || role.contains("\nconnected\n");
            let table = node.try_cli(&["CLUSTER", "NODES"]).ok()?.to_string();
            let replicas = table.lines().filter(|line| line.contains("slave")).count();
            let expected = usize::from(PRIMARIES) * self.options.replicas;
            Some(whole && follows && replicas == expected && has_shards(node, &table)?)
        });
    }

    fn until(&self, what: &str, holds: impl Fn(&RedisServer) -> Option<bool>) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.nodes.iter().all(|node| holds(node) == Some(true)) {
            if Instant::now() >= deadline {
                let tables = self.nodes.iter().map(|node| node.cli(&["CLUSTER", "NODES"]));
                let logs = self.nodes.iter().map(RedisServer::log);
                let all: Vec<String> = tables.chain(logs).collect();
                panic!("waited in vain until {what}:\n{}", all.join("\n"));
            }
            thread::sleep(POLL);
        }
    }
}

/// Whether a node knows each replica in its primary's shard. A Valkey node that is restarted
/// earlier may find its own file corrupted (valkey-io/valkey#774). Redis 6.2 has no shards.
fn has_shards(node: &RedisServer, table: &str) -> Option<bool> {
    let Reply::Array(shards) = node.try_cli(&["CLUSTER", "SHARDS"]).ok()? else {
        return Some(true);
    };
    let shards: Vec<String> = shards.iter().map(ToString::to_string).collect();
    let is_with_its_primary = |line: &str| {
        let mut fields = line.split(' ');
        let (Some(replica), Some(primary)) = (fields.next(), fields.nth(2)) else { return false };
        shards.iter().any(|shard| shard.contains(replica) && shard.contains(primary))
    };
    Some(table.lines().filter(|line| line.contains("slave")).all(is_with_its_primary))
}

/// A slot that moves from one primary to another, key by key. If it is dropped, it stays half
/// moved.
#[derive(Debug)]
#[must_use]
pub struct SlotMove<'a> {
    slot: String,
    from: &'a RedisServer,
    to: &'a RedisServer,
}

impl SlotMove<'_> {
    /// The keys that have not moved yet.
    ///
    /// # Panics
    ///
    /// When a node refuses, as all of these.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        keys(self.from, &self.slot)
    }

    /// Moves one key.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub fn step(&self, key: &str) {
        let port = self.to.port().to_string();
        let password = &self.from.admin_password;
        let to = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000", "AUTH2", ADMIN, password];
        drop(self.from.cli(&to));
    }

    /// Moves the keys that are left, and hands the slot over.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    pub fn finish(self) {
        loop {
            let rest = self.keys();
            if rest.is_empty() {
                break;
            }
            rest.iter().for_each(|key| self.step(key));
        }
        let to = id(self.to);
        for node in [self.to, self.from] {
            drop(node.cli(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &to]));
        }
    }

    /// Leaves the slot at its primary, before any key has moved.
    ///
    /// # Panics
    ///
    /// When a key is at the target, because it would be forgotten; or when a node refuses.
    pub fn give_up(self) {
        let gone = keys(self.to, &self.slot);
        assert!(gone.is_empty(), "{gone:?} would be forgotten");
        for node in [self.from, self.to] {
            drop(node.cli(&["CLUSTER", "SETSLOT", &self.slot, "STABLE"]));
        }
    }
}

fn keys(node: &RedisServer, slot: &str) -> Vec<String> {
    let keys = node.cli(&["CLUSTER", "GETKEYSINSLOT", slot, "100000"]);
    keys.lines().map(str::to_owned).collect()
}

fn id(node: &RedisServer) -> String {
    node.cli(&["CLUSTER", "MYID"])
}

fn state(node: &RedisServer) -> Option<BTreeMap<String, String>> {
    let info = node.try_cli(&["CLUSTER", "INFO"]).ok()?.to_string();
    let fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
    Some(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_primary_is_replaced_by_its_replica() {
        let cluster = Cluster::builder().node_timeout(Duration::from_millis(1_000)).start();
        let slot = cluster.slot_of("key");
        let old = cluster.master_of(slot);
        assert_eq!(old.cli(&["SET", "key", "value"]), "OK");
        assert_eq!(old.cli(&["WAIT", "1", "5000"]), "1");
        old.kill();
        let new = cluster.master_after(old, slot);
        assert_eq!(new.cli(&["GET", "key"]), "value");
    }

    #[test]
    fn a_slot_moves_with_its_keys_and_the_new_primary_has_a_higher_epoch() {
        let cluster = Cluster::builder().replicas(0).password("pw").start();
        assert!(cluster.url().starts_with("redis+cluster://:pw@127.0.0.1:"));
        let slot = cluster.slot_of("{a}");
        let from = cluster.master_of(slot);
        for key in ["{a}1", "{a}2", "{a}3"] {
            assert_eq!(from.cli(&["SET", key, "value"]), "OK");
        }
        let to = cluster.nodes().iter().find(|node| node.port() != from.port()).unwrap();
        cluster.migrate(slot, to, || {
            assert_eq!(to.cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]), "1");
        });
        assert_eq!(cluster.master_of(slot).port(), to.port());
        assert_eq!(to.cli(&["GET", "{a}3"]), "value");
        let epoch = |node| state(node).unwrap()["cluster_my_epoch"].parse::<u64>().unwrap();
        assert!(epoch(to) > epoch(from));
    }
}
