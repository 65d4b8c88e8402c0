//! Judges what a server's replicas mean for locks, now and after a fail-over.

use leasehold_core::doctor::{Finding, Severity};

use super::facts::{Facts, word};
use super::judge::{self, CLOCK_OFF, ClockReading, rough};
use crate::topology::replication::Replication;

/// How many replicas of one server are examined.
pub(super) const LOOKED_AT_MAX: usize = 16;

const TOPIC: &str = "replica";

/// Judges what a primary reports about its replicas.
pub(super) fn replication(facts: &Facts, confirming: Option<Replication>) -> Option<Finding> {
    let topic = "replication";
    if facts.is_replica() {
        return None;
    }
    let replicas = facts.replicas()?;
    let set = facts.replicas_needed().unwrap_or(0);
    let needed = if facts.scripts_need_no_replicas() { 0 } else { set };
    if let Some(in_step) = facts.replicas_in_step()
        && in_step < needed
    {
        return Some(
            Finding::new(
                Severity::Problem,
                topic,
                format!(
                    "{in_step} replicas are in step, and min-replicas-to-write demands {needed}"
                ),
                "the server takes no writes, so that locks can't be taken or renewed",
            )
            .advise("start the replicas, or lower min-replicas-to-write"),
        );
    }
    let count = match replicas {
        0 => "there are no replicas".to_owned(),
        1 => "there is 1 replica".to_owned(),
        n => format!("there are {n} replicas"),
    };
    if let Some(wanted) = confirming.map(|it| u64::from(it.replicas)).filter(|it| *it > 0) {
        let online = facts.followers().iter().filter(|one| one.online).count();
        return Some(confirmed(u64::try_from(online).unwrap_or(u64::MAX), wanted));
    }
    if replicas == 0 && needed == 0 {
        return Some(Finding::new(
            Severity::Fine,
            topic,
            count,
            "no failover can lose locks; while the server is down, no lock can be taken",
        ));
    }
    if needed == 0 {
        let why = if set > 0 {
            "scripts of this version ignore min-replicas-to-write"
        } else {
            "min-replicas-to-write is not set, or unknown"
        };
        return Some(
            Finding::new(
                Severity::Warning,
                topic,
                format!("{count}; {why}"),
                "replication is asynchronous: after a failover two can hold a lock, and a primary \
                 that is cut off still grants locks",
            )
            .advise(
                "write replicas= into the URL, or set min-replicas-to-write and a short \
                 min-replicas-max-lag; check fences at the resource",
            ),
        );
    }
    let lag = facts.setting("min-replicas-max-lag").map(word);
    let lag = lag.map_or_else(String::new, |lag| format!(" within {lag} s"));
    Some(
        Finding::new(
            Severity::Note,
            topic,
            format!("{count}; {needed} must be in step{lag}"),
            "a primary that is cut off soon stops granting; after a failover two can still hold a \
             lock",
        )
        .advise("check fences at the resource, or write replicas= into the URL"),
    )
}

/// Judges the replicas if every grant waits for `wanted` of them.
fn confirmed(online: u64, wanted: u64) -> Finding {
    let topic = "replication";
    let found = format!("{online} replicas follow, and replicas={wanted} waits for {wanted}");
    if online < wanted {
        let means = "no lock can be taken or renewed, since no grant is confirmed";
        let finding = Finding::new(Severity::Problem, topic, found, means);
        return finding.advise("start the replicas, or lower replicas= in the URL");
    }
    if online == wanted {
        let means = "each replica that can take over has all locks; while one is down, no lock can \
                     be taken";
        return Finding::new(Severity::Note, topic, found, means);
    }
    let means = "a replica without the newest locks may take over, so two can hold a lock";
    let finding = Finding::new(Severity::Note, topic, found, means);
    finding.advise("raise replicas= in the URL, or check fences at the resource")
}

/// A replica that could not be examined.
pub(super) fn unexamined(found: String, fails_over: bool) -> Finding {
    let severity = if fails_over { Severity::Warning } else { Severity::Note };
    let means = "its settings and clock are unknown until it takes over; clients that can't reach \
                 it lose their locks then";
    let advice = "let clients reach it at the address that it announces, as the same user";
    Finding::new(severity, TOPIC, found, means).advise(advice)
}

/// More replicas than are examined.
pub(super) fn too_many(more: usize) -> Finding {
    let found = format!("{more} more replicas were not examined");
    Finding::new(Severity::Note, TOPIC, found, "their settings are unknown until one takes over")
}

/// All replicas are set never to replace their primary.
pub(super) fn none_takes_over(in_cluster: bool, fails_over: bool) -> Finding {
    let (found, advice) = if in_cluster {
        (
            "cluster-replica-no-failover is yes on every replica",
            "CONFIG SET cluster-replica-no-failover no on those that may take over, and the same in \
             their files",
        )
    } else {
        (
            "replica-priority is 0 on every replica",
            "CONFIG SET replica-priority 100 on those that may take over, and the same in their files",
        )
    };
    let means = "none of them takes over: while the primary is away, no lock can be taken, renewed \
                 or released";
    let severity = if fails_over { Severity::Warning } else { Severity::Note };
    Finding::new(severity, "fail-over", found, means).advise(advice)
}

/// Problems that a replica would cause after replacing its primary; one finding if there are none.
///
/// `apart` is its clock minus its primary's.
pub(super) fn examined(
    replica: &Facts,
    primary: &Facts,
    apart: Option<ClockReading>,
    confirming: Option<Replication>,
) -> Vec<Finding> {
    let mut findings = vec![
        link(replica),
        apart.and_then(clock),
        eviction(replica),
        room(replica, primary),
        persistence(replica, primary, confirming),
        caution(replica, primary),
    ];
    let same = [judge::version(replica, confirming), super::room::clients(replica)];
    let amiss = |finding: &Finding| finding.severity >= Severity::Warning;
    findings.extend(same.map(|finding| finding.filter(amiss)));
    let mut findings: Vec<_> = findings.into_iter().flatten().collect();
    if findings.is_empty() {
        let found = match apart {
            Some(apart) => format!(
                "a replica is set like its primary, and their clocks agree within {}",
                rough(apart.certain().max(apart.uncertainty))
            ),
            None => "a replica is set like its primary".to_owned(),
        };
        findings.push(Finding::new(Severity::Fine, TOPIC, found, "it can take over"));
    }
    findings
}

fn link(replica: &Facts) -> Option<Finding> {
    if replica.info("master_link_status").is_none_or(|status| status == "up") {
        return None;
    }
    let found = "a replica has no connection to its primary";
    let means = "it falls behind: if it takes over, locks of that time are lost, so two can hold a \
                 lock";
    let finding = Finding::new(Severity::Warning, TOPIC, found, means);
    Some(finding.advise("see its log, and check its password and network"))
}

fn clock(apart: ClockReading) -> Option<Finding> {
    let certain = apart.certain();
    if certain < CLOCK_OFF {
        return None;
    }
    let (direction, means) = if apart.ahead_us < 0 {
        ("behind", "if it takes over, leases without renewal end later by that much")
    } else {
        ("ahead of", "if it takes over, leases end early by that much, so two can hold a lock")
    };
    let found = format!("the clock of a replica is {} {direction} its primary's", rough(certain));
    let severity = if apart.ahead_us < 0 { Severity::Note } else { Severity::Warning };
    let finding = Finding::new(severity, TOPIC, found, means);
    Some(finding.advise("keep the clocks of all servers by a time service that slews"))
}

fn eviction(replica: &Facts) -> Option<Finding> {
    let finding = judge::eviction(replica).filter(|it| it.severity > Severity::Fine)?;
    // A replica does not evict keys itself.
    let severity = finding.severity.min(Severity::Warning);
    let found = format!("of a replica, {}", finding.found);
    let means = format!("when it takes over: {}", finding.means);
    let advice = finding.advice.unwrap_or_default();
    Some(Finding::new(severity, TOPIC, found, means).advise(advice))
}

fn room(replica: &Facts, primary: &Facts) -> Option<Finding> {
    let limit = replica.memory_limit().filter(|limit| *limit > 0)?;
    let used = primary.number("used_memory")?;
    if used < limit {
        return None;
    }
    let found = format!(
        "the memory limit of a replica is {} MiB, and its primary uses {} MiB",
        limit >> 20,
        used >> 20
    );
    let means = "if it takes over, no lock can be taken";
    let finding = Finding::new(Severity::Warning, TOPIC, found, means);
    Some(finding.advise("give it the primary's maxmemory"))
}

fn persistence(
    replica: &Facts,
    primary: &Facts,
    confirming: Option<Replication>,
) -> Option<Finding> {
    if replica.appends()? || primary.appends() != Some(true) {
        return None;
    }
    let found = "appendonly is on, but off on a replica";
    let on_disk = confirming.is_some_and(|it| it.fsync && it.replicas > 0);
    let (severity, means) = if on_disk {
        (Severity::Warning, "it never confirms a grant that waits for disks")
    } else {
        (Severity::Note, "if it takes over, and restarts later, all locks are free")
    };
    let finding = Finding::new(severity, TOPIC, found, means);
    Some(finding.advise("CONFIG SET appendonly yes there, and the same in its file"))
}

fn caution(replica: &Facts, primary: &Facts) -> Option<Finding> {
    let (here, there) = (primary.replicas_needed()?, replica.replicas_needed()?);
    if here == 0 || there > 0 {
        return None;
    }
    let found = format!("min-replicas-to-write is {here}, but 0 on a replica");
    let means = "if it takes over and is cut off later, it still grants locks";
    let finding = Finding::new(Severity::Note, TOPIC, found, means);
    Some(finding.advise(format!("CONFIG SET min-replicas-to-write {here} there")))
}

/// Whether enough replicas keep what disks have to confirm. `appending` of the examined ones keep
/// an append-only file.
pub(super) fn on_disk(
    appending: usize,
    looked_at: usize,
    all: usize,
    wanted: u32,
) -> Option<Finding> {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    if looked_at < all || appending >= wanted {
        return None;
    }
    let found = format!(
        "{appending} replicas keep an append-only file, and {wanted} must confirm each grant"
    );
    let means = "no lock can be taken or renewed";
    let finding = Finding::new(Severity::Problem, "replication", found, means);
    Some(finding.advise("CONFIG SET appendonly yes on the replicas, and the same in their files"))
}

#[cfg(test)]
#[path = "replicas_tests.rs"]
mod tests;
