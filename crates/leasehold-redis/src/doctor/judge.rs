//! Judges what a server's settings and state mean for locks.

use std::time::Duration;

use leasehold_core::doctor::{CLOCK, Finding, IDENTITY, PERSISTENCE, Severity};

use super::facts::{Facts, Product, word};
use super::room;
use crate::store::builder::LinkSecurity;
use crate::topology::replication::Replication;

/// The oldest versions that pass the conformance suite.
const REDIS_MIN: [u32; 2] = [6, 2];
const VALKEY_MIN: [u32; 2] = [7, 2];

/// The first Redis that applies `min-replicas-to-write` to scripts.
const SCRIPTS_HEED: &str = "6.2.7";

/// Clocks with a time service agree better than the first. A clock that differs by more than the
/// second will be corrected at some time.
pub(super) const CLOCK_OFF: Duration = Duration::from_millis(200);
const CLOCK_WRONG: Duration = Duration::from_secs(2);

/// A server with a later start may have forgotten leases that still run.
const YOUNG: Duration = Duration::from_secs(60 * 60);

/// How full the memory may be, in percent, before it is worth a warning.
const MEMORY_FULL: u64 = 90;

/// Judges everything in `INFO` and `CONFIG GET`. `confirming` are the confirmations that the
/// store's URL requires.
pub(super) fn settings(
    facts: &Facts,
    as_cluster: bool,
    confirming: Option<Replication>,
) -> Vec<Finding> {
    let mut findings = vec![unasked(facts), identity(facts)];
    findings.push(version(facts, confirming));
    findings.push(topology(facts, as_cluster));
    findings.push(role(facts));
    findings.push(eviction(facts));
    findings.push(memory(facts));
    findings.push(room::clients(facts));
    findings.push(room::buffers(facts));
    findings.push(persistence(facts, confirming));
    findings.push(saving(facts));
    findings.push(uptime(facts, confirming));
    findings.into_iter().flatten().collect()
}

/// The server's identity, independent of the names that lead to it.
fn identity(facts: &Facts) -> Option<Finding> {
    let id = facts.info("run_id").filter(|id| !id.is_empty())?;
    let found = format!("it calls itself {}", word(id));
    Some(Finding::new(Severity::Fine, IDENTITY, found, "no other server does"))
}

/// What this user could not read.
fn unasked(facts: &Facts) -> Option<Finding> {
    let missing = match (facts.has_info(), facts.has_settings()) {
        (true, true) => return None,
        (true, false) => "CONFIG GET",
        (false, true) => "INFO",
        (false, false) => "INFO and CONFIG GET",
    };
    Some(
        Finding::new(
            Severity::Note,
            "settings",
            format!("this user may not run {missing}, or the server lacks it"),
            "locks don't need it, but some settings were not examined",
        )
        .advise("use a user with that right: leasehold doctor --acl --feature doctor"),
    )
}

pub(super) fn version(facts: &Facts, confirming: Option<Replication>) -> Option<Finding> {
    let (product, [major, minor, patch]) = facts.version()?;
    let (name, [least_major, least_minor]) = match product {
        Product::Redis => ("Redis", REDIS_MIN),
        Product::Valkey => ("Valkey", VALKEY_MIN),
    };
    let found = format!("{name} {major}.{minor}.{patch}");
    if facts.scripts_need_no_replicas() && [major, minor] >= [least_major, least_minor] {
        let relied_on = facts.replicas_needed().unwrap_or(0) > 0;
        let confirmed = confirming.is_some_and(|it| it.replicas > 0);
        return Some(
            Finding::new(
                if relied_on && !confirmed { Severity::Warning } else { Severity::Note },
                "version",
                found,
                "its scripts ignore min-replicas-to-write, so a primary that is cut off still \
                 grants locks",
            )
            .advise(format!(
                "update it to Redis {SCRIPTS_HEED} or later, or write replicas= into the URL"
            )),
        );
    }
    if [major, minor] >= [least_major, least_minor] {
        return Some(Finding::new(Severity::Fine, "version", found, "it has all that locks need"));
    }
    Some(
        Finding::new(
            Severity::Problem,
            "version",
            found,
            "leasehold was not tested on it, and commands may be missing",
        )
        .advise(format!("update it to {name} {least_major}.{least_minor} or later")),
    )
}

fn topology(facts: &Facts, as_cluster: bool) -> Option<Finding> {
    let mode = facts.info("redis_mode").or_else(|| facts.info("server_mode"));
    if mode == Some("sentinel") {
        return Some(
            Finding::new(
                Severity::Problem,
                "topology",
                "this is a sentinel, not a server with data",
                "no lock can be taken here",
            )
            .advise("give the address of the server that it watches"),
        );
    }
    if mode != Some("cluster") && facts.info("cluster_enabled") != Some("1") {
        return None;
    }
    if as_cluster {
        return Some(Finding::new(
            Severity::Fine,
            "topology",
            "the server is a node of a cluster, and the URL says so",
            "locks are found after moves of slots, and fences grow over a failover",
        ));
    }
    Some(
        Finding::new(
            Severity::Problem,
            "topology",
            "the server is a node of a cluster, and the URL names a single server",
            "locks in slots of other nodes can't be taken, and a failover is not followed",
        )
        .advise("write redis+cluster://"),
    )
}

fn role(facts: &Facts) -> Option<Finding> {
    if facts.is_replica() {
        return Some(
            Finding::new(
                Severity::Problem,
                "role",
                "the server is a replica",
                "it takes no writes, so no lock can be taken, and its data may be old",
            )
            .advise("connect to the primary"),
        );
    }
    facts.info("role").map(|_| {
        Finding::new(Severity::Fine, "role", "the server is a primary", "locks can be taken here")
    })
}

pub(super) fn eviction(facts: &Facts) -> Option<Finding> {
    let policy = facts.eviction_policy()?;
    let found = format!("maxmemory-policy is {}", word(policy));
    if policy == "noeviction" {
        let means = "a held lock is not deleted to make room";
        return Some(Finding::new(Severity::Fine, "eviction", found, means));
    }
    let advice = "CONFIG SET maxmemory-policy noeviction, and the same in the configuration file";
    let finding = match (facts.memory_limit(), policy.starts_with("volatile-")) {
        (Some(0), _) => Finding::new(
            Severity::Note,
            "eviction",
            format!("{found}, without a memory limit"),
            "nothing is deleted now; with a limit, held locks could be",
        ),
        (_, true) => Finding::new(
            Severity::Problem,
            "eviction",
            found,
            "at the memory limit the server deletes held locks first, since they have an expiry; \
             another holder can take them then",
        ),
        (_, false) => Finding::new(
            Severity::Problem,
            "eviction",
            found,
            "at the memory limit the server deletes held locks, and another holder can take them",
        ),
    };
    Some(finding.advise(advice))
}

pub(super) fn memory(facts: &Facts) -> Option<Finding> {
    let limit = facts.memory_limit()?;
    if limit == 0 {
        let machine = facts.number("total_system_memory").filter(|bytes| *bytes > 0);
        if let (Some(used), Some(machine)) = (facts.number("used_memory"), machine)
            && used / machine.div_ceil(100) >= MEMORY_FULL
        {
            let found = format!(
                "there is no memory limit, and {} of the machine's {} MiB are in use",
                used >> 20,
                machine >> 20
            );
            let means = "the machine may kill the server, and its persistence decides which locks \
                         are left";
            let finding = Finding::new(Severity::Warning, "memory", found, means);
            return Some(finding.advise("free memory, and set maxmemory"));
        }
        return Some(
            Finding::new(
                Severity::Note,
                "memory",
                "there is no memory limit",
                "a server that outgrows its machine is killed, and its persistence decides which \
                 locks are left",
            )
            .advise("set maxmemory below what the machine has"),
        );
    }
    let used = facts.number("used_memory")?;
    let percent = used.saturating_mul(100).checked_div(limit).unwrap_or(0);
    let found = format!("{} of {} MiB are in use ({percent} %)", used >> 20, limit >> 20);
    let means = "at the limit no lock can be taken; held locks can be renewed and released";
    if percent >= MEMORY_FULL {
        let finding = Finding::new(Severity::Warning, "memory", found, means);
        return Some(finding.advise("raise maxmemory, or free memory"));
    }
    Some(Finding::new(Severity::Fine, "memory", found, means))
}

fn persistence(facts: &Facts, confirming: Option<Replication>) -> Option<Finding> {
    let topic = PERSISTENCE;
    if confirming.is_some_and(|it| it.fsync) {
        return Some(on_disk(facts.appends()?, facts.setting("appendfsync")));
    }
    if facts.appends()? {
        return Some(match facts.setting("appendfsync") {
            Some("always") => Finding::new(
                Severity::Fine,
                topic,
                "appendonly is on, appendfsync is always",
                "locks outlive a crash of the server and a power loss",
            ),
            Some("no") => Finding::new(
                Severity::Warning,
                topic,
                "appendonly is on, appendfsync is no",
                "locks outlive a crash of the server; a power loss loses the locks of about 30 s, \
                 while their holders still work",
            )
            .advise("CONFIG SET appendfsync everysec, or always, and the same in the file"),
            Some("everysec") => Finding::new(
                Severity::Note,
                topic,
                "appendonly is on, appendfsync is everysec",
                "locks outlive a crash of the server; a power loss loses the locks of 1 to 2 s, \
                 while their holders still work",
            )
            .advise(
                "set appendfsync always if that matters; it costs a disk write for each change",
            ),
            _ => Finding::new(
                Severity::Note,
                topic,
                "appendonly is on; appendfsync is unknown",
                "locks outlive a crash of the server; the rest depends on appendfsync",
            ),
        });
    }
    let advice = "CONFIG SET appendonly yes, and the same in the configuration file";
    let saves = facts.setting("save").map(|points| !points.is_empty());
    let finding = match saves {
        Some(false) => Finding::new(
            Severity::Warning,
            topic,
            "nothing is persisted: appendonly is off, and save is empty",
            "a restart frees all locks while their holders still work; they learn of it at their \
             next renewal",
        ),
        Some(true) => Finding::new(
            Severity::Warning,
            topic,
            "appendonly is off; there are snapshots only",
            "a restart frees the locks taken since the last snapshot, while their holders still \
             work, and brings released locks back until their ttl ends",
        ),
        None => Finding::new(
            Severity::Warning,
            topic,
            "appendonly is off",
            "a restart frees locks while their holders still work",
        ),
    };
    Some(finding.advise(advice))
}

/// What a store gets that waits for the server's disk.
fn on_disk(appends: bool, how: Option<&str>) -> Finding {
    let topic = PERSISTENCE;
    let none = "no lock can be taken, since none reaches the disk";
    if !appends {
        let found = "fsync=yes is set, and appendonly is off";
        return Finding::new(Severity::Problem, topic, found, none)
            .advise("CONFIG SET appendonly yes, and the same in the configuration file");
    }
    match how {
        Some("no") => {
            let found = "fsync=yes is set, and appendfsync is no";
            Finding::new(Severity::Problem, topic, found, none)
                .advise("CONFIG SET appendfsync always, and the same in the configuration file")
        }
        Some("everysec") => Finding::new(
            Severity::Warning,
            topic,
            "fsync=yes is set, and appendfsync is everysec",
            "no lock is lost, but each grant and renewal waits up to 2 s, and fails after \
             replicate_timeout",
        )
        .advise("CONFIG SET appendfsync always, and the same in the configuration file"),
        Some("always") => Finding::new(
            Severity::Fine,
            topic,
            "fsync=yes is set, appendonly is on, and appendfsync is always",
            "a lock that was granted outlives a crash of the server and a power loss",
        ),
        _ => Finding::new(
            Severity::Note,
            topic,
            "fsync=yes is set, and appendonly is on; appendfsync is unknown",
            "a lock that was granted outlives a power loss; how long that takes depends on \
             appendfsync",
        ),
    }
}

/// Whether the server writes its data to its disk.
fn saving(facts: &Facts) -> Option<Finding> {
    if facts.info("loading") == Some("1") {
        let finding = Finding::new(
            Severity::Warning,
            "loading",
            "the server is still loading its data",
            "until then no lock can be taken, renewed or released",
        );
        return Some(finding.advise("examine it again when it is up"));
    }
    let failed = |field| facts.info(field) == Some("err");
    let what = if failed("aof_last_write_status") {
        "the last write to the append-only file failed"
    } else if failed("aof_last_bgrewrite_status") {
        "the last rewrite of the append-only file failed"
    } else if failed("rdb_last_bgsave_status") {
        "the last snapshot failed"
    } else {
        return None;
    };
    Some(
        Finding::new(
            Severity::Problem,
            "disk",
            what,
            "the server may take no writes, so locks can't be taken or renewed, and a restart may \
             lose held locks",
        )
        .advise("see the server's log, and make room on its disk"),
    )
}

fn uptime(facts: &Facts, confirming: Option<Replication>) -> Option<Finding> {
    let number = |name| facts.info(name)?.parse::<i64>().ok();
    let told = number("uptime_in_seconds")?;
    if told < 0 {
        return Some(set_back(told, "the time at which it started", confirming));
    }
    // Before its first save, a server reports the time of its start as the last one.
    let since_save = number("server_time_usec").zip(number("rdb_last_save_time"));
    let since_save = since_save.map_or(0, |(now, saved)| (now / 1_000_000).saturating_sub(saved));
    if since_save < -1 {
        return Some(set_back(since_save, "the time of its last save", None));
    }
    let up = Duration::from_secs(told.unsigned_abs());
    // The server reports it in whole seconds.
    let ago = if up.is_zero() { "just now".to_owned() } else { format!("{} ago", rough(up)) };
    let found = format!("the server was started {ago}");
    if let Some(left) = confirming.and_then(|confirming| confirming.doubts(up)) {
        let means =
            format!("the server is warming up and grants no locks for another {}", rough(left));
        return Some(Finding::new(Severity::Warning, "uptime", found, means).advise(
            "wait, or set keep_leases=yes in the URL if the server keeps its data through restarts",
        ));
    }
    let durable = facts.appends() == Some(true);
    if up >= YOUNG || durable {
        return Some(Finding::new(
            Severity::Fine,
            "uptime",
            found,
            if durable {
                "locks from before are still held"
            } else {
                "leases from before have expired, except those with a very long ttl"
            },
        ));
    }
    Some(
        Finding::new(
            Severity::Note,
            "uptime",
            format!("{found}, without an append-only file"),
            "locks from before may be lost while their holders still work; in a quorum this node \
             must not count for the longest ttl",
        )
        .advise("after a restart without persistence wait for the longest ttl"),
    )
}

/// What it means that the server's clock is behind that time by this number of seconds.
fn set_back(seconds: i64, behind: &str, confirming: Option<Replication>) -> Finding {
    let by = rough(Duration::from_secs(seconds.unsigned_abs()));
    let found = format!("the server's clock was set back, and is {by} behind {behind}");
    let doubted = confirming.is_some_and(|confirming| confirming.longest.is_some());
    let (severity, means) = if doubted {
        (
            Severity::Problem,
            "its age is unknown, so each new program waits for the longest lease before its first \
             lock, as after a restart",
        )
    } else {
        (
            Severity::Warning,
            "a lease or cooldown from before counts from its next request, and a quorum may take \
             the server for a new node",
        )
    };
    let finding = Finding::new(severity, "uptime", found, means);
    finding.advise("set the server's clock right, and keep it by a time service that slews")
}

/// The difference between the server's clock and this machine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    /// The server's clock minus this machine's, in µs.
    pub(super) ahead_us: i64,
    /// The uncertainty of the difference: half of the round trip.
    pub(super) uncertainty: Duration,
}

impl ClockReading {
    /// The difference between the clocks of two servers.
    pub(super) fn less(self, other: Self) -> Self {
        Self {
            ahead_us: self.ahead_us.saturating_sub(other.ahead_us),
            uncertainty: self.uncertainty.saturating_add(other.uncertainty),
        }
    }

    /// The least difference that is certain.
    pub(super) fn certain(self) -> Duration {
        Duration::from_micros(self.ahead_us.unsigned_abs()).saturating_sub(self.uncertainty)
    }
}

pub(super) fn clock(reading: ClockReading) -> Finding {
    let off = Duration::from_micros(reading.ahead_us.unsigned_abs());
    let certain = reading.certain();
    let direction = if reading.ahead_us < 0 { "behind" } else { "ahead of" };
    let found = if certain.is_zero() {
        format!(
            "the server's clock agrees with this machine's within {}",
            rough(reading.uncertainty)
        )
    } else {
        format!(
            "the server's clock is {} {direction} this machine's, within {}",
            rough(off),
            rough(reading.uncertainty)
        )
    };
    if certain < CLOCK_OFF {
        let means = "leases run on the server's clock alone, so its time of day does not matter";
        return Finding::new(Severity::Fine, CLOCK, found, means);
    }
    let severity = if certain < CLOCK_WRONG { Severity::Note } else { Severity::Warning };
    Finding::new(
        severity,
        CLOCK,
        found,
        "leases run on the server's clock alone; a step forward of it, or a server ahead of it in \
         its place, ends leases early",
    )
    .advise(
        "keep both clocks by a time service that slews; release all locks before you set a \
             clock",
    )
}

/// Judges the security of the connection.
pub(super) fn security(security: &LinkSecurity) -> Finding {
    let topic = "transport";
    let fine = |found: &'static str, means| Finding::new(Severity::Fine, topic, found, means);
    match security {
        LinkSecurity::Tls => fine(
            "the connection is encrypted, and the server's certificate is verified",
            "tokens are secret on the way, and the server is the right one",
        ),
        LinkSecurity::Socket => {
            fine("the connection is a socket of this machine", "tokens don't leave the machine")
        }
        LinkSecurity::Loopback => {
            fine("the connection stays on this machine", "tokens don't leave the machine")
        }
        LinkSecurity::Lent => Finding::new(
            Severity::Note,
            topic,
            "the program lent the connection, and knows how it reaches the server",
            "a reader of the connection gets tokens, and can end leases with them",
        ),
        LinkSecurity::Plain { private } => Finding::new(
            if *private { Severity::Note } else { Severity::Warning },
            topic,
            if *private {
                "the connection is not encrypted, in what seems a private network"
            } else {
                "the connection is not encrypted, and the address is a public one"
            },
            "a reader of the connection gets the password and tokens, and can take or end any lock",
        )
        .advise("use rediss://, with tls-port and certificates on the server"),
    }
}

pub(super) fn protocol(resp3: Option<bool>) -> Option<Finding> {
    let found = match resp3? {
        true => "RESP3 is spoken",
        false => "RESP2 is spoken",
    };
    Some(Finding::new(Severity::Fine, "protocol", found, "locks are the same in RESP2 and RESP3"))
}

/// A length of time for people, with two digits.
pub(super) fn rough(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0 if length.as_micros() < 1_000 => format!("{} µs", length.as_micros()),
        0 => format!("{} ms", length.as_millis()),
        1..120 => format!("{:.1} s", length.as_secs_f64()),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
