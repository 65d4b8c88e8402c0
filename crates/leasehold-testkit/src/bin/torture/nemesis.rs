//! Breaks servers and connections, within the limits of the store's promise.
//!
//! Exclusion is checked throughout, so no fault here makes a server forget. The forgetful store is
//! the exception: there the checks rely on fences instead.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use leasehold_testkit::proxy::{AfterLoss, Fault as Wire, Proxy};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use leasehold_testkit::server::sentinel::SentinelSet;
use leasehold_testkit::sql::PostgreSql;
use rustix::process::Signal;

use crate::clock;
use crate::plan::{EXCLUSIVE, LONGEST, PERMITS, POST, REPORT, SHARED, ms};
use crate::process::{self, Process};
use crate::site::{NODE_TIMEOUT, Site};
use crate::worker::{Fault, Ground};

/// A fault of the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Blow {
    /// Killed, and started again after a while with what it has on disk.
    Kill,
    /// A session's process is killed, and the server recovers as after a crash.
    KillSession,
    /// Stopped for a while.
    Pause,
    /// `CLIENT PAUSE`, of writes or of everything.
    ClientPause { writes_only: bool },
    /// `FLUSHALL`: every lease is forgotten.
    Forget,
    /// `SCRIPT FLUSH` everywhere.
    FlushScripts,
    /// `CLIENT KILL` of the subscribers, or of the others.
    KickClients { subscribers: bool },
    /// A fault of the connection.
    Wire(Wire),
    /// Every connection is reset.
    Reset,
    /// All data is delayed.
    Slow,
    /// All data comes in pieces of a few bytes.
    Slices,
    /// The primary changes, though it is healthy.
    FailOver,
    /// A slot with locks moves to another primary.
    MoveSlot,
    /// One of the sentinels is killed, and comes back.
    KillSentinel,
}

const SERVER: [Blow; 6] = [
    Blow::Kill,
    Blow::Pause,
    Blow::ClientPause { writes_only: true },
    Blow::ClientPause { writes_only: false },
    Blow::KickClients { subscribers: true },
    Blow::KickClients { subscribers: false },
];
const POSTGRES: [Blow; 6] = [
    Blow::FailOver,
    Blow::Kill,
    Blow::KillSession,
    Blow::KillSession,
    Blow::Pause,
    Blow::KickClients { subscribers: false },
];
const WIRE: [Blow; 10] = [
    Blow::Wire(Wire::BlackHole),
    Blow::Wire(Wire::DropReplies(AfterLoss::Close)),
    Blow::Wire(Wire::DropReplies(AfterLoss::Silence)),
    Blow::Wire(Wire::DropRequests),
    Blow::Wire(Wire::Refuse),
    Blow::Wire(Wire::ResetAfterRequest),
    Blow::Wire(Wire::Stall),
    Blow::Reset,
    Blow::Slow,
    Blow::Slices,
];

/// Draws the faults of a store, and their times.
#[derive(Debug)]
pub(crate) struct Nemesis {
    rng: Rng,
    blows: Vec<Blow>,
    rest: Duration,
    elected: Elected,
}

/// When each node of a cluster (by its port) was last made a primary by order.
type Elected = BTreeMap<u16, Duration>;

/// A fault, with its random choices.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Stroke {
    /// The pause before it.
    pub(crate) rest: Duration,
    pub(crate) blow: Blow,
    pub(crate) length: Duration,
    /// Which server, lock or connection, modulo their number.
    pub(crate) choice: usize,
}

impl Nemesis {
    pub(crate) fn new(seed: u64, site: &Site) -> Self {
        let (blows, rest) = match site {
            Site::Embedded => (Vec::new(), ms(0)),
            Site::Redis { forgets: true, .. } => {
                let all = [&SERVER[..], &[Blow::FlushScripts], &WIRE, &[Blow::Forget; 50]];
                (all.concat(), ms(300))
            }
            Site::Redis { .. } | Site::Quorum { .. } => {
                ([&SERVER[..], &[Blow::FlushScripts], &WIRE].concat(), ms(900))
            }
            Site::Postgres { .. } => ([&POSTGRES[..], &WIRE].concat(), ms(900)),
            Site::Sentinel(_) => {
                let more = [Blow::FailOver, Blow::FailOver, Blow::FlushScripts, Blow::KillSentinel];
                ([&SERVER[..], &more].concat(), ms(2_500))
            }
            Site::Cluster(_) => {
                let more = [Blow::FailOver, Blow::MoveSlot, Blow::MoveSlot, Blow::FlushScripts];
                ([&SERVER[..], &more].concat(), ms(1_500))
            }
        };
        let rng = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(999));
        Self { rng, blows, rest, elected: Elected::new() }
    }

    pub(crate) fn draw(&mut self) -> Option<Stroke> {
        if self.blows.is_empty() {
            return None;
        }
        let blow = self.blows[self.rng.usize(..self.blows.len())];
        let most = u64::try_from(self.rest.as_millis()).unwrap_or(u64::MAX);
        Some(Stroke {
            rest: ms(self.rng.u64(most / 4..=most)),
            blow,
            length: ms(self.rng.u64(20..1_500)),
            choice: self.rng.usize(..1_000),
        })
    }
}

/// Injects faults until the time is over. All are healed when this returns.
pub(crate) fn rage(ground: &Ground, site: &Site, mut nemesis: Nemesis, until: Duration) {
    while clock::now() < until {
        let Some(stroke) = nemesis.draw() else { return };
        thread::sleep(stroke.rest);
        let begin = clock::now();
        if begin >= until {
            return;
        }
        let on = strike(site, stroke, &mut nemesis.elected);
        let warm_up = warm_up(site, stroke.blow);
        let what = format!("{:?} {on}", stroke.blow);
        let end = clock::now() + warm_up;
        ground.add(Fault { what, begin, end, is_lossy: !warm_up.is_zero() });
    }
}

/// Injects a fault; returns its target.
fn strike(site: &Site, stroke: Stroke, elected: &mut Elected) -> String {
    match site {
        Site::Embedded => String::new(),
        Site::Redis { server, wire, .. } => {
            on_server(server, Some(wire), stroke);
            String::new()
        }
        Site::Quorum { nodes } => {
            // As many as may be away, and different ones each time.
            let (count, first) = (nodes.len().div_ceil(2) - 1, stroke.choice % nodes.len());
            let step = 1 + stroke.choice / nodes.len() % (nodes.len() - 1);
            let struck: Vec<usize> = (0..count).map(|n| (first + n * step) % nodes.len()).collect();
            thread::scope(|scope| {
                for at in &struck {
                    let (server, wire) = &nodes[*at];
                    scope.spawn(move || on_server(server, Some(wire), stroke));
                }
            });
            format!("nodes {struck:?}")
        }
        Site::Sentinel(set) => on_sentinels(set, stroke),
        Site::Cluster(cluster) => on_cluster(cluster, stroke, elected),
        Site::Postgres { pair, is_synchronous } => {
            let mut pair = pair.lock().expect("no thread panics while it has it");
            if stroke.blow == Blow::FailOver {
                return promote(&mut pair, *is_synchronous);
            }
            // The standby now and then.
            let at = usize::from(stroke.choice.is_multiple_of(5));
            let (server, wire) = &mut pair[at];
            on_postgres(server, stroke);
            on_wire(wire, stroke);
            await_standby(&pair, *is_synchronous);
            ["the primary", "the standby"][at].to_owned()
        }
    }
}

/// For how long after a fault the store grants no free lock, since a standby may lack leases.
const fn warm_up(site: &Site, blow: Blow) -> Duration {
    match (site, blow) {
        (Site::Postgres { is_synchronous: false, .. }, Blow::FailOver) => LONGEST,
        _ => Duration::ZERO,
    }
}

/// Makes the standby the primary, and the other one its standby.
fn promote(pair: &mut [(PostgreSql, Proxy); 2], is_synchronous: bool) -> String {
    let [(primary, _), (standby, _)] = &mut *pair;
    // Otherwise most of the time would be warm-up. It fails before the first command.
    let longest = LONGEST.as_micros();
    let shorter = format!("UPDATE leasehold.meta SET longest_ttl = {longest}");
    if primary.try_sql(&shorter).is_none() {
        return "in vain".to_owned();
    }
    // It must accept no more writes before the other one does.
    primary.stop();
    standby.promote();
    primary.follow(standby);
    pair.swap(0, 1);
    await_standby(pair, is_synchronous);
    "to the standby".to_owned()
}

/// Waits until commits are confirmed again.
fn await_standby([(primary, _), _]: &[(PostgreSql, Proxy); 2], is_synchronous: bool) {
    let attached = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    while is_synchronous && primary.try_sql(attached).as_deref() != Some("1") {
        thread::sleep(ms(20));
    }
}

fn on_postgres(server: &mut PostgreSql, stroke: Stroke) {
    let pid = server.process().pid().cast_signed();
    let all = Process::all().into_iter().filter(|one| one.parent == pid).map(|one| one.pid);
    let its: Vec<i32> = all.collect();
    let is_session = |pid: &i32| {
        let title = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        title.contains("leasehold postgres")
    };
    let sessions: Vec<i32> = its.iter().copied().filter(is_session).collect();
    match stroke.blow {
        Blow::Kill => server.crash(),
        Blow::KillSession if !sessions.is_empty() => {
            process::signal(sessions[stroke.choice % sessions.len()], Signal::KILL);
            thread::sleep(stroke.length);
        }
        Blow::Pause => {
            for signal in [Signal::STOP, Signal::CONT] {
                for one in its.iter().chain([&pid]) {
                    process::signal(*one, signal);
                }
                thread::sleep(stroke.length);
            }
        }
        Blow::KickClients { .. } => {
            for session in sessions {
                process::signal(session, Signal::TERM);
            }
        }
        _ => {}
    }
}

fn on_server(server: &RedisServer, wire: Option<&Proxy>, stroke: Stroke) {
    let Stroke { blow, length, .. } = stroke;
    let millis = length.as_millis().to_string();
    match blow {
        Blow::Kill => {
            server.kill();
            thread::sleep(length);
            server.restart();
        }
        Blow::Pause => {
            server.pause();
            thread::sleep(length);
            server.resume();
        }
        Blow::ClientPause { writes_only } => {
            let what = if writes_only { "WRITE" } else { "ALL" };
            drop(server.try_cli(&["CLIENT", "PAUSE", &millis, what]));
            thread::sleep(length);
        }
        Blow::Forget => drop(server.try_cli(&["FLUSHALL"])),
        Blow::FlushScripts => drop(server.try_cli(&["SCRIPT", "FLUSH"])),
        Blow::KickClients { subscribers } => {
            let kind = if subscribers { "pubsub" } else { "normal" };
            drop(server.try_cli(&["CLIENT", "KILL", "TYPE", kind]));
        }
        _ => {}
    }
    if let Some(wire) = wire {
        on_wire(wire, stroke);
    }
}

fn on_wire(wire: &Proxy, Stroke { blow, length, choice, .. }: Stroke) {
    match blow {
        Blow::Wire(fault) => {
            wire.set(fault);
            thread::sleep(length);
            wire.set(Wire::Pass);
            // Data that was swallowed stays lost. The clients have to notice by themselves, unless
            // their connections are cut.
            if choice.is_multiple_of(2) {
                wire.kill_connections();
            }
        }
        Blow::Reset => wire.kill_connections(),
        Blow::Slow => {
            wire.set_latency(length / 20, length / 20);
            thread::sleep(length);
            wire.set_latency(Duration::ZERO, Duration::ZERO);
        }
        Blow::Slices => {
            wire.set_slice_max(NonZeroUsize::new(1 + choice % 7));
            thread::sleep(length);
            wire.set_slice_max(None);
        }
        _ => {}
    }
}

fn on_sentinels(set: &SentinelSet, stroke: Stroke) -> String {
    let servers = set.servers();
    let name = |server: &RedisServer| format!("port {}", server.port());
    match stroke.blow {
        Blow::FailOver => {
            let on = name(set.fail_over());
            set.await_agreement();
            format!("to {on}")
        }
        Blow::KillSentinel => {
            let sentinel = &set.sentinels()[stroke.choice % set.sentinels().len()];
            sentinel.kill();
            thread::sleep(stroke.length);
            sentinel.restart();
            name(sentinel)
        }
        Blow::FlushScripts => {
            servers.iter().for_each(|server| on_server(server, None, stroke));
            "all".to_owned()
        }
        _ => {
            // Every other time it is the primary.
            let server = if stroke.choice.is_multiple_of(2) {
                set.master()
            } else {
                &servers[stroke.choice % servers.len()]
            };
            on_server(server, None, stroke);
            set.await_agreement();
            name(server)
        }
    }
}

fn on_cluster(cluster: &Cluster, stroke: Stroke, elected: &mut Elected) -> String {
    let nodes = cluster.nodes();
    let locks = [&EXCLUSIVE[..], &[SHARED, PERMITS, POST, REPORT]].concat();
    let lock = locks[stroke.choice % locks.len()];
    let slot = cluster.slot_of(&format!("{{{lock}}}"));
    let primary = cluster.master_of(slot);
    match stroke.blow {
        Blow::FailOver => {
            let port = primary.port().to_string();
            let follows = |node: &&RedisServer| {
                let role = node.cli(&["ROLE"]);
                let mut lines = role.lines();
                lines.next() == Some("slave") && lines.nth(1) == Some(&port)
            };
            // If the next election is ordered before a node's last one is forgotten, Redis counts
            // the old votes again. Two primaries then own the slots for a moment, and the grants of
            // one are lost.
            let forgotten = |replica: &&RedisServer| {
                elected.get(&replica.port()).is_none_or(|at| *at + NODE_TIMEOUT * 4 < clock::now())
            };
            if let Some(replica) = nodes.iter().find(follows).filter(forgotten) {
                elected.insert(replica.port(), clock::now());
                drop(replica.try_cli(&["CLUSTER", "FAILOVER"]));
                let patience = Duration::from_secs(10);
                if cluster.master_within(patience, primary, slot).is_none() {
                    cluster.await_health();
                    return format!("{lock} at port {}, in vain", primary.port());
                }
            }
        }
        Blow::MoveSlot => {
            let primaries: Vec<&RedisServer> = nodes
                .iter()
                .filter(|node| node.port() != primary.port())
                .filter(|node| node.cli(&["ROLE"]).starts_with("master"))
                .collect();
            let to = primaries[stroke.choice % primaries.len()];
            cluster.migrate(slot, to, || thread::sleep(stroke.length / 4));
        }
        Blow::FlushScripts => {
            nodes.iter().for_each(|node| on_server(node, None, stroke));
        }
        _ => on_server(primary, None, stroke),
    }
    cluster.await_health();
    format!("{lock} at port {}", primary.port())
}
