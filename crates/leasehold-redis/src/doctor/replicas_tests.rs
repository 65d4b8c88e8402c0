//! Tests of the judgement about replicas.

use std::time::Duration;

use super::*;

fn facts(info: &[(&str, &str)], settings: &[(&str, &str)]) -> Facts {
    let mut facts = Facts::default();
    let text: String = info.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
    facts.add_info(&text);
    for (name, value) in settings {
        facts.add_setting(name, value);
    }
    facts
}

fn waiting_for(replicas: u32, fsync: bool) -> Option<Replication> {
    Some(Replication { replicas, timeout: Duration::from_secs(1), fsync, longest: None })
}

const ONE: (&str, &str) = ("connected_slaves", "1");

#[test]
fn replicas_are_judged_by_what_a_fail_over_leaves() {
    let judged =
        |info: &[_], needed: &[_]| replication(&facts(info, needed), None).map(|it| it.severity);
    let needs_one = [("min-replicas-to-write", "1"), ("min-replicas-max-lag", "1")];
    assert_eq!(judged(&[("connected_slaves", "0")], &[]), Some(Severity::Fine));
    assert_eq!(judged(&[ONE], &[]), Some(Severity::Warning));
    assert_eq!(judged(&[ONE], &[("min-replicas-to-write", "0")]), Some(Severity::Warning));
    assert_eq!(judged(&[ONE, ("min_slaves_good_slaves", "1")], &needs_one), Some(Severity::Note));
    let nobody = ("min_slaves_good_slaves", "0");
    assert_eq!(judged(&[ONE, nobody], &needs_one), Some(Severity::Problem));
    assert_eq!(judged(&[("role", "slave"), ONE], &needs_one), None);
    let old = ("redis_version", "6.2.6");
    assert_eq!(judged(&[ONE, nobody, old], &needs_one), Some(Severity::Warning), "not heeded");
    let mended = ("redis_version", "6.2.7");
    assert_eq!(judged(&[ONE, nobody, mended], &needs_one), Some(Severity::Problem));
}

#[test]
fn fewer_replicas_than_are_waited_for_are_a_problem() {
    let online = ("slave0", "ip=h,port=1,state=online,offset=1,lag=0");
    let behind = ("slave1", "ip=h,port=2,state=wait_bgsave,offset=1,lag=0");
    let two = ("connected_slaves", "2");
    let judged = |wanted| {
        let facts = facts(&[two, online, behind], &[]);
        replication(&facts, waiting_for(wanted, false)).unwrap().severity
    };
    assert_eq!(judged(2), Severity::Problem, "one of them is not there yet");
    assert_eq!(judged(1), Severity::Note);
    let none = facts(&[("connected_slaves", "0")], &[]);
    let severity = replication(&none, waiting_for(1, false)).unwrap().severity;
    assert_eq!(severity, Severity::Problem);
    assert!(on_disk(0, 1, 1, 1).is_some_and(|it| it.severity == Severity::Problem));
    assert!(on_disk(1, 1, 1, 1).is_none());
    assert!(on_disk(0, 0, 1, 1).is_none(), "one was not examined");
}

fn told(replica: &[(&str, &str)], primary: &[(&str, &str)]) -> (Severity, String) {
    let (replica, primary) = (facts(&[], replica), facts(&[], primary));
    let findings = examined(&replica, &primary, None, None);
    assert_eq!(findings.len(), 1, "{findings:?}");
    let finding = &findings[0];
    assert!(finding.severity < Severity::Warning || finding.advice.is_some(), "{finding:?}");
    (finding.severity, finding.found.to_string())
}

#[test]
fn a_replica_is_judged_by_what_it_would_do_as_a_primary() {
    assert_eq!(told(&[], &[]).0, Severity::Fine);
    let policy = ("maxmemory-policy", "allkeys-lru");
    let evicts = told(&[policy, ("maxmemory", "1000000")], &[]);
    assert_eq!(evicts.0, Severity::Warning);
    assert!(evicts.1.contains("allkeys-lru"), "{evicts:?}");
    assert_eq!(told(&[policy, ("maxmemory", "0")], &[]).0, Severity::Note);
    let appends = told(&[("appendonly", "no")], &[("appendonly", "yes")]);
    assert_eq!(appends.0, Severity::Note);
    assert_eq!(told(&[("appendonly", "no")], &[("appendonly", "no")]).0, Severity::Fine);
    let needs = |number| ("min-replicas-to-write", number);
    assert_eq!(told(&[needs("0")], &[needs("1")]).0, Severity::Note);
    assert_eq!(told(&[needs("1")], &[needs("1")]).0, Severity::Fine);
    let small = facts(&[("maxmemory", "1000"), ("maxmemory_policy", "noeviction")], &[]);
    let used = facts(&[("used_memory", "1000")], &[]);
    assert_eq!(examined(&small, &used, None, None)[0].severity, Severity::Warning);
    let away = facts(&[("master_link_status", "down")], &[]);
    assert_eq!(examined(&away, &used, None, None)[0].severity, Severity::Warning);
    let (kept, lost) = (facts(&[], &[("appendonly", "yes")]), facts(&[], &[("appendonly", "no")]));
    let synced = examined(&lost, &kept, None, waiting_for(1, true));
    assert_eq!(synced[0].severity, Severity::Warning, "{synced:?}");
}

#[test]
fn a_clock_that_would_end_leases_early_is_a_warning() {
    let judged = |ahead_ms: i64, uncertain_ms| {
        let uncertainty = Duration::from_millis(uncertain_ms);
        let apart = ClockReading { ahead_us: ahead_ms * 1_000, uncertainty };
        let found = examined(&Facts::default(), &Facts::default(), Some(apart), None);
        (found[0].severity, found[0].found.to_string())
    };
    assert_eq!(judged(60_000, 1).0, Severity::Warning);
    assert!(judged(60_000, 1).1.contains("60.0 s ahead of"), "{:?}", judged(60_000, 1));
    assert_eq!(judged(-60_000, 1).0, Severity::Note);
    assert_eq!(judged(250, 100).0, Severity::Fine, "seen from far");
    assert_eq!(judged(150, 1).0, Severity::Fine);
}
