//! Tests of the judgement about a server's settings and state.

use leasehold_core::Ttl;

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

#[track_caller]
fn severity(found: Option<Finding>) -> Severity {
    let finding = found.expect("there is something to say");
    assert!(finding.severity < Severity::Warning || finding.advice.is_some(), "{finding:?}");
    finding.severity
}

#[test]
fn a_policy_that_evicts_is_a_problem_once_there_is_a_limit() {
    let judged = |policy, limit| {
        severity(eviction(&facts(&[("maxmemory_policy", policy), ("maxmemory", limit)], &[])))
    };
    assert_eq!(judged("noeviction", "1000"), Severity::Fine);
    for policy in ["allkeys-lru", "volatile-ttl", "allkeys-random", "a-new-one"] {
        assert_eq!(judged(policy, "1000"), Severity::Problem, "{policy}");
        assert_eq!(judged(policy, "0"), Severity::Note, "{policy}");
    }
    let by_setting = facts(&[], &[("maxmemory-policy", "allkeys-lru"), ("maxmemory", "5")]);
    assert_eq!(severity(eviction(&by_setting)), Severity::Problem, "told without INFO, too");
    let only_policy = facts(&[], &[("maxmemory-policy", "allkeys-lru")]);
    assert_eq!(severity(eviction(&only_policy)), Severity::Problem, "there may be a limit");
    assert!(eviction(&Facts::default()).is_none());
}

#[test]
fn locks_that_would_be_deleted_first_are_said_to_be() {
    let judged =
        |policy| eviction(&facts(&[("maxmemory_policy", policy), ("maxmemory", "9")], &[]));
    assert!(judged("volatile-lru").unwrap().means.contains("deletes held locks first"));
    assert!(!judged("allkeys-lru").unwrap().means.contains("deletes held locks first"));
}

#[test]
fn memory_that_is_nearly_full_is_a_warning() {
    let judged = |used, limit| memory(&facts(&[("used_memory", used), ("maxmemory", limit)], &[]));
    assert_eq!(severity(judged("89", "100")), Severity::Fine);
    assert_eq!(severity(judged("90", "100")), Severity::Warning);
    assert_eq!(severity(judged("900", "100")), Severity::Warning);
    assert_eq!(severity(judged("900", "0")), Severity::Note, "without a limit");
    let of_machine = |machine| {
        let info = [("used_memory", "900"), ("maxmemory", "0"), ("total_system_memory", machine)];
        severity(memory(&facts(&info, &[])))
    };
    assert_eq!(of_machine("1000"), Severity::Warning);
    assert_eq!(of_machine("1100"), Severity::Note);
}

#[test]
fn persistence_is_judged_by_what_a_crash_leaves() {
    let judged = |append, settings: &[_]| {
        severity(persistence(&facts(&[("aof_enabled", append)], settings), None))
    };
    assert_eq!(judged("1", &[("appendfsync", "always")]), Severity::Fine);
    assert_eq!(judged("1", &[("appendfsync", "everysec")]), Severity::Note);
    assert_eq!(judged("1", &[]), Severity::Note);
    assert_eq!(judged("1", &[("appendfsync", "no")]), Severity::Warning);
    assert_eq!(judged("0", &[("save", "")]), Severity::Warning);
    assert_eq!(judged("0", &[("save", "3600 1")]), Severity::Warning);
    assert_eq!(judged("0", &[]), Severity::Warning);
    assert!(persistence(&Facts::default(), None).is_none());
    let snapshots =
        persistence(&facts(&[("aof_enabled", "0")], &[("save", "60 1")]), None).unwrap();
    assert!(snapshots.means.contains("brings released locks back"), "{snapshots:?}");
}

#[test]
fn a_disk_that_fails_and_data_that_is_still_loading_are_seen() {
    let judged = |field, value| {
        let found = saving(&facts(&[(field, value)], &[]));
        found.is_some().then(|| severity(found))
    };
    for field in ["aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"] {
        assert_eq!(judged(field, "err"), Some(Severity::Problem), "{field}");
        assert_eq!(judged(field, "ok"), None, "{field}");
    }
    assert_eq!(judged("loading", "1"), Some(Severity::Warning));
}

#[test]
fn a_server_that_takes_no_locks_is_a_problem() {
    let judged = |field, value| facts(&[(field, value)], &[]);
    assert_eq!(severity(role(&judged("role", "slave"))), Severity::Problem);
    assert_eq!(severity(role(&judged("role", "master"))), Severity::Fine);
    assert_eq!(severity(topology(&judged("redis_mode", "sentinel"), false)), Severity::Problem);
    let node = judged("redis_mode", "cluster");
    assert_eq!(severity(topology(&node, false)), Severity::Problem, "names a single server");
    assert_eq!(severity(topology(&node, true)), Severity::Fine);
    assert!(topology(&judged("redis_mode", "standalone"), false).is_none());
}

#[test]
fn versions_that_were_never_tried_are_a_problem() {
    let judged = |field, number| severity(version(&facts(&[(field, number)], &[]), None));
    assert_eq!(judged("redis_version", "6.0.16"), Severity::Problem);
    assert_eq!(judged("redis_version", "6.2.7"), Severity::Fine);
    assert_eq!(judged("redis_version", "10.0.0"), Severity::Fine);
    assert_eq!(judged("valkey_version", "7.1.9"), Severity::Problem);
    assert_eq!(judged("valkey_version", "8.0.0-rc1"), Severity::Fine);
}

#[test]
fn versions_whose_scripts_need_no_replicas_are_reported() {
    let judged = |number, needed, replicas| {
        let facts = facts(&[("redis_version", number)], &[("min-replicas-to-write", needed)]);
        let timeout = Duration::from_secs(1);
        let confirming = Replication { replicas, timeout, fsync: false, longest: None };
        severity(version(&facts, Some(confirming)))
    };
    assert_eq!(judged("6.2.6", "0", 0), Severity::Note);
    assert_eq!(judged("6.2.6", "1", 0), Severity::Warning, "the server relies on replicas");
    assert_eq!(judged("6.2.6", "1", 1), Severity::Note, "grants are confirmed");
    assert_eq!(judged("6.2.7", "1", 0), Severity::Fine);
    assert_eq!(judged("6.0.20", "1", 0), Severity::Problem);
}

#[test]
fn a_store_that_waits_for_disks_needs_servers_that_write_to_them() {
    let judged = |append, how: &[_]| {
        let timeout = Duration::from_secs(1);
        let confirming = Replication { replicas: 0, timeout, fsync: true, longest: None };
        severity(persistence(&facts(&[("aof_enabled", append)], how), Some(confirming)))
    };
    assert_eq!(judged("0", &[]), Severity::Problem);
    assert_eq!(judged("1", &[("appendfsync", "no")]), Severity::Problem);
    assert_eq!(judged("1", &[("appendfsync", "everysec")]), Severity::Warning);
    assert_eq!(judged("1", &[("appendfsync", "always")]), Severity::Fine);
    assert_eq!(judged("1", &[]), Severity::Note);
}

#[test]
fn a_server_that_was_just_started_without_persistence_is_noted() {
    let judged = |seconds, append| {
        let facts = facts(&[("uptime_in_seconds", seconds), ("aof_enabled", append)], &[]);
        severity(uptime(&facts, None))
    };
    assert_eq!(judged("3599", "0"), Severity::Note);
    assert_eq!(judged("3600", "0"), Severity::Fine);
    assert_eq!(judged("1", "1"), Severity::Fine);
}

#[test]
fn a_server_that_grants_nothing_since_it_was_just_started_is_warned_of_until_it_does() {
    let longest = Some(Ttl::new(Duration::from_secs(60)).unwrap());
    let timeout = Duration::from_secs(1);
    let confirming = Some(Replication { replicas: 1, timeout, fsync: false, longest });
    let judged = |seconds| {
        uptime(&facts(&[("uptime_in_seconds", seconds), ("aof_enabled", "1")], &[]), confirming)
            .unwrap()
    };
    let young = judged("20");
    assert_eq!(young.severity, Severity::Warning);
    assert!(young.means.contains("for another 40.6 s"), "{}", young.means);
    assert_eq!(judged("61").severity, Severity::Fine);
}

#[test]
fn a_server_whose_clock_is_behind_its_start_is_named() {
    let longest = Some(Ttl::new(Duration::from_secs(60)).unwrap());
    let timeout = Duration::from_secs(1);
    let confirming = Replication { replicas: 1, timeout, fsync: false, longest };
    let judged = |confirming| uptime(&facts(&[("uptime_in_seconds", "-3174")], &[]), confirming);
    let finding = judged(None).expect("it is told");
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.found.contains("was set back"), "{finding:?}");
    assert_eq!(severity(judged(Some(confirming))), Severity::Problem);
    assert_eq!(
        severity(judged(Some(Replication { longest: None, ..confirming }))),
        Severity::Warning
    );
}

#[test]
fn a_server_whose_clock_is_behind_its_last_save_is_named() {
    let judged = |saved| {
        let info = [
            ("uptime_in_seconds", "7200"),
            ("server_time_usec", "1700000000999999"),
            ("rdb_last_save_time", saved),
        ];
        uptime(&facts(&info, &[]), None).unwrap()
    };
    let finding = judged("1700003600");
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.found.contains("behind the time of its last save"), "{finding:?}");
    assert_eq!(judged("1700000001").severity, Severity::Fine);
}

#[test]
fn a_clock_is_judged_by_what_is_certain_about_it() {
    let judged = |ahead_ms: i64, uncertain_ms| {
        let uncertainty = Duration::from_millis(uncertain_ms);
        clock(ClockReading { ahead_us: ahead_ms * 1_000, uncertainty })
    };
    assert_eq!(judged(0, 0).severity, Severity::Fine);
    assert_eq!(judged(199, 0).severity, Severity::Fine);
    for ahead in [300, -300] {
        assert_eq!(judged(ahead, 1).severity, Severity::Note, "{ahead}");
        assert_eq!(judged(ahead, 150).severity, Severity::Fine, "{ahead}, seen from far");
        assert_eq!(judged(ahead * 10, 1).severity, Severity::Warning, "{ahead}");
    }
    assert!(
        judged(-5_000, 1).found.contains("5.0 s behind this machine's"),
        "{:?}",
        judged(-5_000, 1)
    );
    assert!(judged(5_000, 1).found.contains("5.0 s ahead of this machine's"));
    assert!(judged(3, 5).found.contains("agrees with this machine's within 5 ms"));
    let extreme = ClockReading { ahead_us: i64::MIN, uncertainty: Duration::ZERO };
    assert_eq!(clock(extreme).severity, Severity::Warning);
}

#[test]
fn a_connection_in_the_clear_is_judged_by_where_it_goes() {
    for (way, expected) in [
        (LinkSecurity::Tls, Severity::Fine),
        (LinkSecurity::Socket, Severity::Fine),
        (LinkSecurity::Loopback, Severity::Fine),
        (LinkSecurity::Lent, Severity::Note),
        (LinkSecurity::Plain { private: true }, Severity::Note),
        (LinkSecurity::Plain { private: false }, Severity::Warning),
    ] {
        assert_eq!(security(&way).severity, expected, "{way:?}");
    }
}

#[test]
fn all_facts_that_were_not_reported_are_one_note() {
    let findings = settings(&Facts::default(), false, None);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].severity, Severity::Note);
    assert!(findings[0].found.contains("INFO and CONFIG GET"), "{findings:?}");
    let only_info = settings(&facts(&[("role", "master")], &[]), false, None);
    assert!(only_info[0].found.contains("run CONFIG GET"), "{only_info:?}");
}

#[test]
fn words_of_a_server_can_not_steer_a_terminal() {
    let finding = eviction(&facts(&[], &[("maxmemory-policy", "a\u{1b}[2Jb")])).unwrap();
    assert!(finding.found.contains("a\\u{1b}[2Jb"), "{finding:?}");
}

#[test]
fn lengths_are_short() {
    for (ms, shown) in
        [(0, "0 µs"), (5, "5 ms"), (1_500, "1.5 s"), (120_000, "2 min"), (172_800_000, "2 days")]
    {
        assert_eq!(rough(Duration::from_millis(ms)), shown);
    }
}
