//! A primary, its replicas, and the sentinels that watch over them.
//!
//! ```
//! use leasehold_testkit::server::sentinel::SentinelSet;
//!
//! let set = SentinelSet::start();
//! assert!(set.master().cli(&["ROLE"]).starts_with("master"));
//! assert_eq!(set.sentinels().len(), 3);
//! ```

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::{
    ADMIN, ClientCertificate, RedisServer, RedisServerBuilder, Reply, Role, TlsSettings, percent,
    random_password,
};
use crate::tls::Pki;

/// The set's name for the sentinels.
pub const NAME: &str = "mymaster";

/// A fail-over takes one to three seconds on an idle machine.
const FAIL_OVER_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// So long that a busy machine never makes sentinels call a server down.
const CALM: Duration = Duration::from_secs(60);

/// Options of a [`SentinelSet`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SentinelSetBuilder {
    config: Vec<String>,
    down_after: Duration,
    password: Option<String>,
    tls: Option<TlsSettings>,
    replicas: usize,
    sentinel_password: Option<String>,
}

impl SentinelSetBuilder {
    /// Adds a line to the configuration of the primary and its replicas.
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.config.push(line.into());
        self
    }

    /// How long a server must be silent before a sentinel calls it down. The default is a minute,
    /// so that a busy machine causes no fail-over.
    pub fn down_after(mut self, time: Duration) -> Self {
        self.down_after = time;
        self
    }

    /// Demands this password from the default user of the primary and the replicas.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// How many replicas there are; two without this.
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// Demands this password from the default user of the sentinels.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_password = Some(password.into());
        self
    }

    /// Makes all of them use TLS, also among themselves.
    pub fn tls(mut self, pki: &Pki) -> Self {
        self.tls = Some(TlsSettings::new(pki, pki.server(), ClientCertificate::Ignored));
        self
    }

    /// Starts everything, and returns once every sentinel knows every server.
    ///
    /// # Panics
    ///
    /// As [`RedisServerBuilder::start`], or when the sentinels do not agree in time.
    #[must_use]
    pub fn start(self) -> SentinelSet {
        let admin = random_password();
        let mut servers: Vec<RedisServer> = Vec::new();
        for _ in 0..=self.replicas {
            let mut server = self.member(&admin, Role::Alone);
            server.password.clone_from(&self.password);
            server.config = [
                format!("masteruser {ADMIN}"),
                format!("masterauth {admin}"),
                "repl-ping-replica-period 1".to_owned(),
            ]
            .into_iter()
            .chain(server.config)
            .chain(self.config.iter().cloned())
            .collect();
            server.replica_of = servers.first().map(|first| self.address(first));
            servers.push(server.start());
        }
        let ids: Vec<String> = (0..3).map(|_| random_id()).collect();
        let mut sentinels: Vec<RedisServer> = Vec::new();
        for id in &ids {
            let mut sentinel = self.member(&admin, Role::Sentinel);
            sentinel.password.clone_from(&self.sentinel_password);
            sentinel.config.extend(self.sentinel_configuration(&admin, id, &servers));
            let known = sentinels.iter().zip(&ids).map(|(other, id)| {
                let at = self.address(other);
                format!("sentinel known-sentinel {NAME} {} {} {id}", at.ip(), at.port())
            });
            sentinel.config.extend(known);
            let sentinel = sentinel.start();
            // Redis 7 allows to poll more often than every ten seconds.
            let quick = "INFO-PERIOD 200 PUBLISH-PERIOD 200 ASK-PERIOD 200";
            let quick: Vec<&str> =
                ["SENTINEL", "DEBUG"].into_iter().chain(quick.split(' ')).collect();
            drop(sentinel.try_cli(&quick));
            sentinels.push(sentinel);
        }
        let set = SentinelSet { options: self, servers, sentinels };
        set.await_agreement();
        // A sentinel sends its first ping when this time is over, if it is below a second. It calls
        // a server down whose answer is missing by then. So the time is shortened only here.
        set.call_down_after(set.options.down_after);
        set
    }

    fn member(&self, admin: &str, role: Role) -> RedisServerBuilder {
        let mut server = RedisServer::builder();
        server.admin_password = Some(admin.to_owned());
        server.role = role;
        if self.tls.is_some() {
            server.tls.clone_from(&self.tls);
            server = server.config("tls-replication yes");
        }
        server
    }

    fn sentinel_configuration(
        &self,
        admin: &str,
        id: &str,
        servers: &[RedisServer],
    ) -> Vec<String> {
        let mut lines = vec![format!("sentinel myid {id}")];
        for (index, server) in servers.iter().enumerate() {
            let at = self.address(server);
            let (ip, port) = (at.ip(), at.port());
            lines.push(match index {
                0 => format!("sentinel monitor {NAME} {ip} {port} 2"),
                _ => format!("sentinel known-replica {NAME} {ip} {port}"),
            });
        }
        lines.extend([
            format!("sentinel down-after-milliseconds {NAME} {}", CALM.as_millis()),
            format!("sentinel failover-timeout {NAME} 3000"),
            format!("sentinel auth-user {NAME} {ADMIN}"),
            format!("sentinel auth-pass {NAME} {admin}"),
        ]);
        if self.sentinel_password.is_some() {
            lines.extend([
                format!("sentinel sentinel-user {ADMIN}"),
                format!("sentinel sentinel-pass {admin}"),
            ]);
        }
        lines
    }

    /// Where others reach a member.
    fn address(&self, server: &RedisServer) -> SocketAddr {
        let mut address = server.addr();
        if self.tls.is_some() {
            address.set_port(server.tls_port());
        }
        address
    }
}

/// One primary, replicas and three sentinels. Dropping it kills them all.
#[derive(Debug)]
pub struct SentinelSet {
    options: SentinelSetBuilder,
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl SentinelSet {
    /// Options for a set.
    pub fn builder() -> SentinelSetBuilder {
        SentinelSetBuilder {
            config: Vec::new(),
            down_after: CALM,
            password: None,
            tls: None,
            replicas: 2,
            sentinel_password: None,
        }
    }

    /// Starts a set without options.
    ///
    /// # Panics
    ///
    /// As [`SentinelSetBuilder::start`].
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// `redis+sentinel://host:port,host:port,host:port/mymaster`, with the passwords there are.
    #[must_use]
    pub fn url(&self) -> String {
        let SentinelSetBuilder { password, sentinel_password, tls, .. } = &self.options;
        let scheme = if tls.is_some() { "rediss+sentinel" } else { "redis+sentinel" };
        let user =
            password.as_ref().map_or_else(String::new, |word| format!(":{}@", percent(word)));
        let hosts: Vec<String> =
            self.sentinels.iter().map(|one| self.options.address(one).to_string()).collect();
        let query = sentinel_password
            .as_ref()
            .map_or_else(String::new, |word| format!("?sentinel_password={}", percent(word)));
        format!("{scheme}://{user}{}/{NAME}{query}", hosts.join(","))
    }

    /// The primary as it was at the start, and the replicas.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The primary, as the first sentinel that answers sees it.
    ///
    /// # Panics
    ///
    /// When no sentinel answers.
    #[must_use]
    pub fn master(&self) -> &RedisServer {
        self.known_master().expect("a sentinel answers")
    }

    fn known_master(&self) -> Option<&RedisServer> {
        self.known_masters().next()
    }

    /// The primary as each sentinel that answers sees it.
    fn known_masters(&self) -> impl Iterator<Item = &RedisServer> {
        self.sentinels.iter().filter_map(|sentinel| {
            let answer = sentinel.try_cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).ok()?;
            let port: u16 = answer.to_string().lines().nth(1)?.parse().ok()?;
            self.servers.iter().find(|server| self.options.address(server).port() == port)
        })
    }

    /// Waits until all sentinels have made another server than `old` the primary, and it is one.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    #[must_use]
    pub fn master_after(&self, old: &RedisServer) -> &RedisServer {
        let deadline = Instant::now() + FAIL_OVER_TIMEOUT;
        loop {
            if let Some(master) = self.promoted(old) {
                return master;
            }
            self.wait_for_fail_over(deadline, "no sentinel has promoted a replica");
        }
    }

    /// Makes the sentinels promote a replica of a healthy primary, and waits for it.
    ///
    /// Repeats the order when they abandon the fail-over. They do if the replica takes longer than
    /// their `failover-timeout` to report that it is a primary.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    pub fn fail_over(&self) -> &RedisServer {
        let old = self.master();
        let deadline = Instant::now() + FAIL_OVER_TIMEOUT;
        let mut told = "nobody asked for one";
        loop {
            // In this order: the end of a fail-over and its result become visible at the same
            // moment. After a result, no second fail-over must be ordered.
            let at_rest = !self.fails_over();
            if let Some(master) = self.promoted(old) {
                return master;
            }
            if at_rest && self.known_master().is_some_and(|master| master.port() == old.port()) {
                told = match self.ask_first(&["SENTINEL", "FAILOVER", NAME]) {
                    Some(Reply::Error(_)) => "the sentinel refuses one",
                    Some(_) => "the sentinel began one",
                    None => "the sentinel does not answer",
                };
            }
            self.wait_for_fail_over(deadline, told);
        }
    }

    fn call_down_after(&self, time: Duration) {
        let time = time.as_millis().to_string();
        for sentinel in &self.sentinels {
            drop(sentinel.cli(&["SENTINEL", "SET", NAME, "down-after-milliseconds", &time]));
        }
    }

    fn promoted(&self, old: &RedisServer) -> Option<&RedisServer> {
        let mut known = self.known_masters();
        let master = known.next().filter(|master| master.port() != old.port())?;
        // A sentinel that still names another one would demote this one after eight seconds.
        if known.any(|other| other.port() != master.port()) {
            return None;
        }
        let Ok(Reply::Array(role)) = master.try_cli(&["ROLE"]) else { return None };
        if role.first()?.to_string() == "slave" {
            // It had become a primary by an abandoned fail-over, and a sentinel that knew only of
            // that one demoted it while the others promoted it. They correct that only once they
            // call it down.
            master.try_cli(&["REPLICAOF", "NO", "ONE"]).ok()?;
            return None;
        }
        (role.first()?.to_string() == "master").then_some(master)
    }

    fn fails_over(&self) -> bool {
        self.ask_first(&["SENTINEL", "MASTER", NAME])
            .is_some_and(|fields| fields.to_string().contains("failover_in_progress"))
    }

    fn ask_first(&self, command: &[&str]) -> Option<Reply> {
        self.sentinels.first()?.try_cli(command).ok()
    }

    fn wait_for_fail_over(&self, deadline: Instant, told: &str) {
        let log = self.sentinels.first().map(RedisServer::log).unwrap_or_default();
        assert!(Instant::now() < deadline, "no fail-over ({told}); a sentinel's log:\n{log}");
        thread::sleep(POLL);
    }

    /// Waits until every replica follows the primary and is known to every sentinel.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    pub fn await_agreement(&self) {
        let deadline = Instant::now() + FAIL_OVER_TIMEOUT;
        while !self.agree() {
            let log = self.sentinels.first().map(RedisServer::log).unwrap_or_default();
            assert!(Instant::now() < deadline, "the sentinels do not agree; one's log:\n{log}");
            thread::sleep(POLL);
        }
    }

    fn agree(&self) -> bool {
        let replicas = self.options.replicas;
        let all_know = self.sentinels.iter().all(|sentinel| {
            let Ok(Reply::Array(known)) = sentinel.try_cli(&["SENTINEL", "REPLICAS", NAME]) else {
                return false;
            };
            let followers = known.iter().filter(|replica| {
                let field = |name| field(replica, name);
                field("flags") == Some("slave".into())
                    && field("master-link-status") == Some("ok".into())
            });
            let others = sentinel.try_cli(&["SENTINEL", "SENTINELS", NAME]);
            let Ok(Reply::Array(others)) = others else { return false };
            let up = others.iter().filter(|one| field(one, "flags") == Some("sentinel".into()));
            followers.count() == replicas && up.count() + 1 == self.sentinels.len()
        });
        let Ok(connected) = self.master().try_cli(&["INFO", "replication"]) else { return false };
        all_know && connected.to_string().matches("state=online").count() == replicas
    }
}

/// A field of an answer in which names and values alternate.
fn field(reply: &Reply, name: &str) -> Option<String> {
    let Reply::Array(parts) = reply else { return None };
    let mut pairs = parts.chunks_exact(2);
    pairs.find(|pair| pair[0].to_string() == name).map(|pair| pair[1].to_string())
}

fn random_id() -> String {
    (0..40).map(|_| fastrand::digit(16)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_primary_is_replaced_and_follows_when_it_comes_back() {
        let set = SentinelSet::start();
        let old = set.master();
        assert_eq!(old.cli(&["SET", "key", "value"]), "OK");
        assert_eq!(old.cli(&["WAIT", "2", "5000"]), "2");
        old.kill();
        // Only here: a busy machine keeps a living server silent for as long.
        set.call_down_after(Duration::from_millis(500));
        let new = set.master_after(old);
        set.call_down_after(CALM);
        assert_eq!(new.cli(&["GET", "key"]), "value");
        old.restart();
        set.await_agreement();
        assert!(old.cli(&["ROLE"]).starts_with("slave"));
    }

    #[test]
    fn a_fail_over_that_the_sentinels_abandoned_is_requested_again() {
        let set = SentinelSet::builder().replicas(1).start();
        let old = set.master();
        let replica = set.servers().iter().find(|server| server.port() != old.port()).unwrap();
        replica.pause();
        let deadline = Instant::now() + FAIL_OVER_TIMEOUT;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !set.sentinels()[0].log().contains("-failover-abort") {
                    assert!(Instant::now() < deadline, "the sentinel has given nothing up");
                    thread::sleep(POLL);
                }
                replica.resume();
            });
            assert_eq!(set.fail_over().port(), replica.port());
        });
    }

    #[test]
    fn a_promotion_that_a_sentinel_took_back_is_made_good() {
        let set = SentinelSet::builder().replicas(1).start();
        let old = set.master();
        let new = set.fail_over();
        let port = old.port().to_string();
        drop(new.cli(&["REPLICAOF", "127.0.0.1", &port]));
        let deadline = Instant::now() + FAIL_OVER_TIMEOUT;
        while set.promoted(old).is_none() {
            set.wait_for_fail_over(deadline, "the sentinels have one in mind that is a replica");
        }
        assert_eq!(set.master().port(), new.port());
    }

    #[test]
    fn passwords_guard_servers_and_sentinels_and_do_not_stop_a_fail_over() {
        let set = SentinelSet::builder().password("pw").sentinel_password("spw").start();
        assert!(set.url().contains("://:pw@127.0.0.1:"));
        assert!(set.url().ends_with("/mymaster?sentinel_password=spw"), "{}", set.url());
        let old = set.master();
        let new = set.fail_over();
        assert_ne!(old.port(), new.port());
    }
}
