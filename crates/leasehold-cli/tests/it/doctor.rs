//! `doctor`, and the rule that it prints.

use leasehold_testkit::server::RedisServer;
use serde_json::Value;

use crate::harness::{Site, until};

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
    assert!(worst["means"].as_str().unwrap().contains("deletes them first"));
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
    site.line("run k -w 0.2 -- true").expect(75);

    let less = admin.line("doctor --acl --feature lock").expect(0).stdout;
    assert!(less.starts_with("ACL SETUSER leasehold reset on >PASSWORD "), "{less}");
    assert!(!less.contains("+publish") && !less.contains("wake"), "{less}");
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
