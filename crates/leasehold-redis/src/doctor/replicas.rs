//! Judges what a server's replicas mean for locks, now and after a fail-over.

use leasehold_core::doctor::{Finding, Severity};

use super::facts::{Facts, word};
use super::judge::{self, CLOCK_OFF, ClockReading, rough};
use crate::replication::Replication;

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
            "nobody fails over to one that lacks the newest locks; a server that is down takes \
             none until it is back",
        ));
    }
    if needed == 0 {
        let why = if set > 0 {
            "scripts of this version don't heed min-replicas-to-write"
        } else {
            "min-replicas-to-write is not set, or was not told"
        };
        return Some(
            Finding::new(
                Severity::Warning,
                topic,
                format!("{count}; {why}"),
                "replication is asynchronous: a replica that takes over may lack the newest locks, \
                 so that two hold one, and a primary that was cut off goes on granting",
            )
            .advise(
                "write replicas= into the URL, or set min-replicas-to-write to 1 or more with a \
                 short min-replicas-max-lag; and check fences at what the lock protects",
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
            "a primary that was cut off soon stops granting; a replica that takes over may still \
             lack the newest locks, so that two hold one",
        )
        .advise("check fences at what the lock protects, or write replicas= into the URL"),
    )
}

/// Judges the replicas if every grant waits for `wanted` of them.
fn confirmed(online: u64, wanted: u64) -> Finding {
    let topic = "replication";
    let found = format!("{online} replicas follow, and replicas={wanted} waits for {wanted}");
    if online < wanted {
        let means = "no lock can be taken and none renewed: what replicas don't have doesn't count";
        let finding = Finding::new(Severity::Problem, topic, found, means);
        return finding.advise("start the replicas, or lower replicas= in the URL");
    }
    if online == wanted {
        let means = "every one that can take over has all locks; while one of them is down, no \
                     lock can be taken";
        return Finding::new(Severity::Note, topic, found, means);
    }
    let means = "a replica that takes over may be one that lacks the newest locks, so that two \
                 hold one";
    let finding = Finding::new(Severity::Note, topic, found, means);
    finding.advise("ask for more of them in the URL, or check fences at what the lock protects")
}

/// A replica that could not be examined.
pub(super) fn unexamined(found: String, fails_over: bool) -> Finding {
    let severity = if fails_over { Severity::Warning } else { Severity::Note };
    let means = "how it is set, and what its clock says, shows when it takes over; clients that \
                 reach it no better than this one don't get at their locks then";
    let advice = "let clients reach it at the address that it announces, as the same user";
    Finding::new(severity, TOPIC, found, means).advise(advice)
}

/// More replicas than are examined.
pub(super) fn too_many(more: usize) -> Finding {
    let found = format!("{more} more replicas were not looked at");
    Finding::new(Severity::Note, TOPIC, found, "how they are set shows when one takes over")
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
    let means = "none of them ever takes over: while the primary is away, no lock can be taken, \
                 renewed and released";
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
    let means = "it falls behind: when it takes over, locks of that time are lost, so that two \
                 hold one";
    let finding = Finding::new(Severity::Warning, TOPIC, found, means);
    Some(finding.advise("look into its log: is its password right, is the network there"))
}

fn clock(apart: ClockReading) -> Option<Finding> {
    let certain = apart.certain();
    if certain < CLOCK_OFF {
        return None;
    }
    let (direction, means) = if apart.ahead_us < 0 {
        ("behind", "when it takes over, leases that nobody renews end later by that much")
    } else {
        ("ahead of", "when it takes over, leases end early by that much, so that two hold a lock")
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
    let means = "when it takes over, no lock can be taken";
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
        (Severity::Warning, "it never confirms a grant of a store that waits for disks")
    } else {
        (Severity::Note, "when it takes over, and is restarted later, all locks are free")
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
    let means = "when it takes over and is cut off later, it goes on granting locks";
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
        "{appending} replicas keep an append-only file, and the disks of {wanted} are waited for"
    );
    let means = "no lock can be taken and none renewed";
    let finding = Finding::new(Severity::Problem, "replication", found, means);
    Some(finding.advise("CONFIG SET appendonly yes on the replicas, and the same in their files"))
}

#[cfg(test)]
#[path = "replicas_tests.rs"]
mod tests;
