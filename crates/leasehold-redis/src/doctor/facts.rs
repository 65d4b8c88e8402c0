//! Parses what a server reports about itself, without a judgement.

use std::collections::BTreeMap;

use leasehold_core::escape;

/// The settings to read with `CONFIG GET`, one at a time for Redis 6.2.
pub(super) const SETTINGS: [&str; 11] = [
    "appendfsync",
    "appendonly",
    "client-output-buffer-limit",
    "cluster-replica-no-failover",
    "maxclients",
    "maxmemory",
    "maxmemory-clients",
    "maxmemory-policy",
    "min-replicas-max-lag",
    "min-replicas-to-write",
    "save",
];

/// Fields of `INFO` and settings. A missing one was not reported: the user may lack a right, or it
/// is another server product.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    info: BTreeMap<String, String>,
    settings: BTreeMap<String, String>,
}

impl Facts {
    /// Adds the text of `INFO`.
    pub(super) fn add_info(&mut self, text: &str) {
        let fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        self.info.extend(fields.map(|(field, value)| (field.to_owned(), value.to_owned())));
    }

    /// Adds one setting.
    pub(super) fn add_setting(&mut self, name: &str, value: &str) {
        self.settings.insert(name.to_owned(), value.to_owned());
    }

    pub(super) fn has_info(&self) -> bool {
        !self.info.is_empty()
    }

    pub(super) fn has_settings(&self) -> bool {
        !self.settings.is_empty()
    }

    pub(super) fn info(&self, field: &str) -> Option<&str> {
        self.info.get(field).map(String::as_str)
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.info(field)?.parse().ok()
    }

    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// The server's product, and its version as numbers.
    pub(super) fn version(&self) -> Option<(Product, [u32; 3])> {
        // Valkey also reports the version of Redis that it is compatible with.
        let (product, text) = match (self.info("valkey_version"), self.info("redis_version")) {
            (Some(valkey), _) => (Product::Valkey, valkey),
            (None, Some(redis)) => (Product::Redis, redis),
            (None, None) => return None,
        };
        let mut numbers = text.split('.').map(|part| part.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Some((product, [next(), next(), next()]))
    }

    /// Whether an append-only file is kept.
    pub(super) fn appends(&self) -> Option<bool> {
        let by_info = self.info("aof_enabled").map(|value| value == "1");
        by_info.or_else(|| self.setting("appendonly").map(|value| value == "yes"))
    }

    pub(super) fn eviction_policy(&self) -> Option<&str> {
        self.info("maxmemory_policy").or_else(|| self.setting("maxmemory-policy"))
    }

    /// The greatest number of clients.
    pub(super) fn client_limit(&self) -> Option<u64> {
        self.number("maxclients").or_else(|| self.setting("maxclients")?.parse().ok())
    }

    /// The memory limit in bytes; 0 for none.
    pub(super) fn memory_limit(&self) -> Option<u64> {
        self.number("maxmemory").or_else(|| self.setting("maxmemory")?.parse().ok())
    }

    /// Whether the server follows another.
    pub(super) fn is_replica(&self) -> bool {
        matches!(self.info("role"), Some("slave" | "replica"))
    }

    pub(super) fn replicas(&self) -> Option<u64> {
        self.number("connected_slaves").or_else(|| self.number("connected_replicas"))
    }

    /// The replicas that the server reports.
    pub(super) fn followers(&self) -> Vec<Follower> {
        let number = |field: &str| field.strip_prefix("slave")?.parse::<u32>().ok();
        let lines = self.info.iter().filter(|(field, _)| number(field).is_some());
        lines.filter_map(|(_, line)| Follower::read(line)).collect()
    }

    /// Whether it is set never to replace its primary.
    pub(super) fn stays_replica(&self, in_cluster: bool) -> bool {
        if in_cluster {
            return self.setting("cluster-replica-no-failover") == Some("yes");
        }
        let priority = self.number("slave_priority").or_else(|| self.number("replica_priority"));
        priority == Some(0)
    }

    /// How many replicas must be in step for a write; 0 for none.
    pub(super) fn replicas_needed(&self) -> Option<u64> {
        self.setting("min-replicas-to-write")?.parse().ok()
    }

    /// Whether scripts write even if too few replicas are in step, as up to Redis 6.2.6.
    pub(super) fn scripts_need_no_replicas(&self) -> bool {
        matches!(self.version(), Some((Product::Redis, version)) if version < [6, 2, 7])
    }

    /// How many replicas are in step, if some must be.
    pub(super) fn replicas_in_step(&self) -> Option<u64> {
        self.number("min_slaves_good_slaves").or_else(|| self.number("min_replicas_good_replicas"))
    }
}

/// A replica as its primary sees it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Follower {
    pub(super) host: String,
    pub(super) port: u16,
    /// Whether it receives the primary's writes as they happen.
    pub(super) online: bool,
}

impl Follower {
    /// Reads `ip=10.0.0.2,port=6379,state=online,offset=42,lag=0`.
    fn read(line: &str) -> Option<Self> {
        let field = |wanted: &str| {
            let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(name, value)| (name == wanted).then_some(value))
        };
        let host = field("ip").filter(|host| !host.is_empty())?.to_owned();
        let online = field("state") == Some("online");
        Some(Self { host, port: field("port")?.parse().ok()?, online })
    }
}

/// A server product.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Product {
    Redis,
    Valkey,
}

/// A server's word, shortened and escaped.
pub(super) fn word(text: &str) -> String {
    let short: String = text.chars().take(64).collect();
    escape::terminal(&short).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valkey_is_not_taken_for_the_redis_that_it_is_compatible_with() {
        let mut facts = Facts::default();
        facts.add_info("# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\n");
        assert_eq!(facts.version(), Some((Product::Redis, [7, 2, 4])));
        facts.add_info("valkey_version:9.1.2\r\n");
        assert_eq!(facts.version(), Some((Product::Valkey, [9, 1, 2])));
    }

    #[test]
    fn replicas_are_known_by_what_their_primary_says() {
        let mut facts = Facts::default();
        facts.add_info(
            "role:master\r\nconnected_slaves:3\r\n\
             slave0:ip=10.0.0.2,port=6379,state=online,offset=42,lag=0\r\n\
             slave1:ip=::1,port=7000,state=wait_bgsave,offset=0,lag=0,type=replica\r\n\
             slave2:ip=,port=7000,state=online\r\nslave_x:ip=h,port=1,state=online\r\n",
        );
        let follower = |host: &str, port, online| Follower { host: host.into(), port, online };
        assert_eq!(
            facts.followers(),
            [follower("10.0.0.2", 6379, true), follower("::1", 7000, false)]
        );
    }

    #[test]
    fn a_fact_that_was_not_reported_is_not_made_up() {
        let facts = Facts::default();
        assert!(facts.version().is_none() && facts.appends().is_none());
        assert!(facts.memory_limit().is_none() && facts.replicas_needed().is_none());
        assert!(!facts.is_replica());
    }
}
