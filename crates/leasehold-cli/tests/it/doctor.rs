//! `doctor`, and the rule that it prints.

use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use serde_json::Value;

use crate::harness::{Site, until};
use crate::watchdog::send;

#[test]
fn a_directory_of_locks_is_examined() {
    let site = Site::embedded();
    site.line("run k -- true").expect(0);
    let report = site.line("doctor").expect(0).stdout;
    assert!(report.starts_with(site.store()), "{report}");
    for topic in ["file system", "room", "rights", "place", "boot", "wake", "death"] {
        assert!(report.contains(&format!(" {topic} ")), "{topic}: {report}");
    }
}

#[test]
fn a_badly_set_server_is_79_with_the_worst_first_and_what_to_set() {
    let server = RedisServer::builder()
        .config("maxmemory 100mb")
        .config("maxmemory-policy volatile-lru")
        .start();
    let site = Site::at(server.url());
    let report = site.line("doctor").expect(79).stdout;
    let lines: Vec<&str> = report.lines().collect();
    assert!(lines[0].starts_with("redis://127.0.0.1:"), "{report}");
    assert!(lines[1].starts_with("problem  eviction "), "{report}");
    assert!(report.contains("\n                      => CONFIG SET maxmemory-policy noeviction"));
    let severities: Vec<&str> = lines[1..]
        .iter()
        .filter(|line| !line.starts_with(' '))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    let mut sorted = severities.clone();
    sorted.sort_by_key(|it| ["problem", "warning", "note", "fine"].iter().position(|s| s == it));
    assert_eq!(severities, sorted, "{report}");
    let column = |word: &str| lines.iter().find_map(|line| line.find(word)).unwrap();
    assert_eq!(column("maxmemory-policy is"), column("the server is a primary"), "{report}");

    let json = site.line("doctor --json").expect(79).stdout;
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&document["version"], &document["worst"]), (&1.into(), &"problem".into()));
    let worst = &document["findings"][0];
    assert_eq!((&worst["severity"], &worst["topic"]), (&"problem".into(), &"eviction".into()));
    assert!(worst["means"].as_str().unwrap().contains("deletes held locks first"));
}

#[test]
fn a_server_without_persistence_is_79_and_a_well_set_one_0() {
    let bare = RedisServer::start();
    let report = Site::at(bare.url()).line("doctor").expect(79).stdout;
    assert!(report.contains("warning  persistence "), "{report}");
    let well = RedisServer::builder().appendonly().start();
    Site::at(well.url()).line("doctor").expect(0);
}

#[test]
fn a_server_that_can_not_be_reached_is_69() {
    let site = Site::at("redis://:sentinel@127.0.0.1:1");
    let done = site.line("doctor").complains(69, "127.0.0.1");
    assert!(!format!("{done:?}").contains("sentinel"), "{done:?}");
}

#[test]
fn the_printed_rule_makes_a_user_who_can_do_it() {
    let server = RedisServer::builder().appendonly().start();
    let admin = Site::at(server.url());
    let rule = admin.line("doctor --acl --user app --feature lock,wait,share,list,doctor");
    let rule = rule.expect(0).stdout;
    assert_eq!(rule.lines().count(), 1);
    let words: Vec<String> =
        rule.split_whitespace().map(|word| word.replace(">PASSWORD", ">secret")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(server.cli(&words), "OK");

    let site = Site::at(server.url_for("app", "secret"));
    let report = site.line("doctor").expect(0).stdout;
    assert!(report.contains("user app may do all that locks need"), "{report}");
    site.line("run k -n -- true").expect(0);
    site.line("ls").expect(0);
    let _holder = {
        let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
        holder.line();
        holder
    };
    site.line("run k -w 1 -- true").expect(75);

    let less = admin.line("doctor --acl --feature lock").expect(0).stdout;
    assert!(less.starts_with("ACL SETUSER leasehold reset on >PASSWORD "), "{less}");
    assert!(!less.contains("+publish") && !less.contains("wake"), "{less}");
}

#[test]
fn a_user_without_the_rights_of_a_log_is_reported_if_the_url_has_one_kept() {
    let server = RedisServer::builder()
        .appendonly()
        .acl_user(
            "locks on >pw ~leasehold:{* resetchannels &leasehold:wake:* +@all -xadd -xrevrange",
        )
        .start();
    let url = server.url_for("locks", "pw");
    let report = Site::at(&*url).line("doctor").expect(0).stdout;
    assert!(report.contains("may do all that locks need"), "{report}");
    let report = Site::at(format!("{url}?log=9")).line("doctor").stdout;
    assert!(report.contains("user locks may not run XADD, XREVRANGE"), "{report}");
    assert!(report.contains("=> ACL SETUSER locks +xadd +xrevrange"), "{report}");
    assert!(report.contains("warning  rights"), "{report}");
    assert_eq!(server.cli(&["KEYS", "*"]).trim(), "");
}

#[test]
fn a_rule_is_for_the_prefix_of_the_url_needs_no_server_and_repeats_no_password() {
    let site = Site::at("redis://:sentinel@127.0.0.1:1/2?prefix=app:locks");
    let done = site.line("doctor --acl").expect(0);
    assert!(done.stdout.contains(" ~app:locks:{* resetchannels &app:locks:wake:* "), "{done:?}");
    assert!(done.stdout.ends_with(" +select\n"), "{done:?}");
    assert!(!format!("{done:?}").contains("sentinel"), "{done:?}");
}

#[test]
fn a_rule_for_what_has_no_users_is_refused() {
    Site::embedded().line("doctor --acl").complains(78, "--store redis://HOST");
    let quorum = Site::at("quorum+redis://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?keep_leases=yes");
    quorum.line("doctor --acl").complains(78, "--store redis://HOST, and add --feature quorum");
    let quorum = Site::at("quorum:redis://127.0.0.1:1 redis://127.0.0.1:2");
    quorum.line("doctor --acl").complains(78, "each server of a quorum has its own users");
    let spread = Site::at("spread:a=redis://127.0.0.1:1 b=redis://127.0.0.1:2");
    spread.line("doctor --acl").complains(78, "each server of a spread store has its own users");
    let site = Site::at("redis://127.0.0.1:1");
    site.run(["doctor", "--acl", "--user", "a b"]).complains(64, "user's name");
}

#[test]
fn a_probe_of_a_good_store_finds_that_locks_work_and_leaves_nothing() {
    let server = RedisServer::builder().appendonly().start();
    let (of_server, of_directory) = (Site::at(server.url()), Site::embedded());
    of_directory.line("run k -- true").expect(0);
    for (site, place) in [(of_server, "127.0.0.1"), (of_directory, "locks")] {
        let report = site.line("doctor --probe").expect(0).stdout;
        assert!(report.starts_with("leasehold "), "{report}");
        for topic in ["exclusion", "messages", "expiry", "clock shown", "memory"] {
            assert!(report.contains(&format!("fine     {topic} ")), "{topic}: {report}");
        }
        assert!(report.contains("never two at once, each fence above the last"), "{report}");
        let where_it_is = site.store().split_once(':').unwrap().1.trim_start_matches("//");
        assert!(!report.contains(where_it_is), "{place}: {report}");
        assert_eq!(site.line("ls doctor/probe").expect(0).stdout, "");
    }
}

/// Whether there is none; `DBSIZE` would count those too whose time is over.
fn has_no_key(server: &RedisServer) -> bool {
    server.cli(&["KEYS", "*"]).is_empty()
}

#[test]
fn a_probe_leaves_no_key_on_a_server_whatever_it_is_part_of() {
    let servers: Vec<_> = (0..4).map(|_| RedisServer::builder().appendonly().start()).collect();
    let (single, nodes) = servers.split_first().unwrap();
    // Names that locks of this store are remembered by, and the log of each, are kept for long.
    let site = Site::at(format!("{}?fence_retention=1h&log=9", single.url()));
    let nodes_urls: Vec<_> = nodes.iter().map(RedisServer::url).collect();
    let quorum = Site::at(format!("quorum:keep_leases=yes,{}", nodes_urls.join(",")));
    let cluster = Cluster::start();
    let of_cluster = Site::at(cluster.url());
    for site in [site, quorum, of_cluster] {
        let report = site.line("doctor --probe").stdout;
        assert!(report.contains("fine     memory "), "{report}");
    }
    assert!(has_no_key(single), "{}", single.cli(&["KEYS", "*"]));
    // A quorum's slowest node may learn of it a little later.
    for server in nodes.iter().chain(cluster.nodes()) {
        until("no key is left", || has_no_key(server));
    }
}

#[test]
fn a_probe_that_a_signal_ends_leaves_no_key_and_needs_no_more_rights_for_that() {
    let rule = Site::at("redis://h").line("doctor --acl --user probe").expect(0).stdout;
    let rule = rule.trim().trim_start_matches("ACL SETUSER ").replace("PASSWORD", "word");
    let server = RedisServer::builder().acl_user(rule).start();
    let site = Site::at(server.url_for("probe", "word"));
    let probe = site.start(["doctor", "--probe"]);
    until("it has locks", || !has_no_key(&server));
    send(probe.pid(), libc::SIGTERM);
    probe.finish().expect(143);
    until("the server has forgotten them", || has_no_key(&server));
}

#[test]
fn a_probe_removes_what_one_that_was_killed_left_beside_a_directory() {
    let site = Site::embedded();
    let beside = |only: fn(&str) -> bool| {
        let entries = std::fs::read_dir(site.path(".")).unwrap();
        entries.filter(|entry| only(&entry.as_ref().unwrap().file_name().to_string_lossy())).count()
    };
    let mut killed = site.start(["doctor", "--probe"]);
    until("it has begun", || beside(|name| name.starts_with(".leasehold-probe-")) == 1);
    // One that is at work keeps its own.
    let other = site.start(["doctor", "--probe"]);
    until("another has", || beside(|name| name.starts_with(".leasehold-probe-")) == 2);
    killed.child().kill().unwrap();
    killed.finish();
    other.finish().expect(0);
    assert_eq!(beside(|name| name.starts_with(".leasehold-probe-")), 1);
    site.line("doctor --probe").expect(0);
    assert_eq!(beside(|_| true), 0);
}

#[test]
fn a_probe_of_a_directory_without_a_store_tries_one_beside_it_and_makes_none() {
    let site = Site::embedded();
    for is_there in [false, true] {
        if is_there {
            std::fs::create_dir(site.path("locks")).unwrap();
        }
        let report = site.line("doctor --probe").expect(0).stdout;
        for topic in ["exclusion", "messages", "expiry", "clock shown", "memory"] {
            assert!(report.contains(&format!("fine     {topic} ")), "{topic}: {report}");
        }
        assert!(report.contains("in a temporary one beside it"), "{report}");
        let here: Vec<_> = std::fs::read_dir(site.path(".")).unwrap().collect();
        assert_eq!(here.len(), usize::from(is_there), "{here:?}");
    }
    assert_eq!(std::fs::read_dir(site.path("locks")).unwrap().count(), 0);
    // An experiment that could not be made is reported, and counts as a finding.
    let nowhere = Site::at("embedded:/proc/leasehold/locks");
    let report = nowhere.line("doctor --probe").expect(79).stdout;
    assert!(report.contains("no experiment was made"), "{report}");
}

#[test]
fn a_probe_finds_a_store_that_forgets_locks_whatever_its_settings_say() {
    let server = RedisServer::builder().appendonly().start();
    let site = Site::at(server.url());
    let mut probe = site.start(["doctor", "--probe", "--json"]);
    until("it has begun", || server.cli(&["DBSIZE"]).trim_start_matches("(integer) ") != "0");
    while probe.exited().is_none() {
        assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    }
    let done = probe.finish().expect(79);
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let memory = findings.iter().find(|finding| finding["topic"] == "memory").unwrap();
    assert_eq!(memory["severity"], "problem", "{document}");
    assert!(memory["found"].as_str().unwrap().contains("were gone after"), "{document}");
}

#[test]
fn a_probe_takes_no_longer_lease_than_the_store_has() {
    let site = Site::embedded();
    let node = |name: &str| format!("embedded:{}", site.path(name).display());
    let nodes = [node("a"), node("b"), node("c")];
    let site = Site::at(format!("quorum:{},max_ttl=2s", nodes.join(",")));
    site.line("run k --ttl 1s -- true").expect(0);
    let done = site.line("doctor --probe --json");
    let report: Value = serde_json::from_str(&done.stdout).unwrap();
    for finding in report["findings"].as_array().unwrap() {
        assert_ne!(finding["severity"], "problem", "{finding}");
    }
    let says = |topic| done.stdout.contains(&format!("\"topic\":\"{topic}\""));
    assert!(says("exclusion") && says("memory") && says("expiry"), "{done:?}");
}
