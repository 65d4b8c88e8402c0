//! `leasehold log`: what became of a lock, as real processes have written it.

use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::cluster::Cluster;
use serde_json::Value;

use crate::harness::{Site, lock, until};

fn events(site: &Site, key: &str) -> Vec<Value> {
    let printed = site.run(["log", key, "--json", "-n", "1000"]).expect(0).stdout;
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn words(site: &Site, key: &str) -> Vec<String> {
    let word = |event: &Value| {
        let how = event["how"].as_str().map(|how| format!(":{how}")).unwrap_or_default();
        format!("{}{how}", event["event"].as_str().unwrap())
    };
    events(site, key).iter().map(word).collect()
}

/// Everything that a log tells, by commands that have nothing in common but the store.
fn what_became_of_a_lock_is_reported(site: &Site) {
    assert!(words(site, "k").is_empty());
    site.run(["run", "k", "--owner", "web-1", "--", "true"]).expect(0);
    site.run(["run", "k", "--cooldown", "1ms", "--", "true"]).expect(0);
    assert_eq!(words(site, "k"), ["granted", "released", "granted", "released"]);
    let all = events(site, "k");
    assert_eq!((&all[0]["owner"], &all[1]["owner"]), (&"web-1".into(), &"web-1".into()));
    assert_eq!(all[0]["fence"], all[1]["fence"]);
    assert_ne!(all[0]["fence"], all[2]["fence"]);
    assert_eq!((&all[1]["closed_for_ms"], &all[3]["closed_for_ms"]), (&Value::Null, &1.into()));
    let process = all[0]["process"].as_str().unwrap();
    let (named, tag) = process.rsplit_once('_').unwrap();
    assert!(named.rsplit_once('_').is_some_and(|(_, pid)| pid.parse::<u32>().is_ok()));
    assert_eq!(tag.len(), 4, "{process}");
    let times: Vec<u64> = all.iter().map(|event| event["at_ms"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert!(times[0] > 1_700_000_000_000 && all[0]["at"].as_str().unwrap().ends_with('Z'));

    let lease = site.run(["acquire", "shell", "--ttl", "1h"]).expect(0).stdout;
    let mut release = site.command(["release"]);
    release.env("LEASEHOLD_LEASE", lease.trim_end());
    crate::harness::finish(&mut release).expect(0);
    assert_eq!(words(site, "shell"), ["granted", "detached", "released"]);
    let token = lease.split(' ').nth(1).unwrap().to_owned();
    assert!(token.len() >= 16);
    assert!(!site.run(["log", "shell", "--json"]).expect(0).stdout.contains(&token));

    site.run(["run", "job", "--once-per", "1h", "--", "true"]).expect(0);
    assert_eq!(events(site, "job")[0]["closed_for_ms"], 3_600_000);
    let why = site.run(["why", "job"]).expect(0).stdout;
    assert!(why.contains(" held it last, from "), "{why}");
    assert!(why.contains("  it was released at "), "{why}");
    let show = site.run(["show", "job"]).expect(0).stdout;
    assert!(
        show.contains(" held it last, from ") && show.contains("\nit was released at "),
        "{show}"
    );
    let why = site.run(["why", "job", "--json"]).expect(0).stdout;
    let why: Value = serde_json::from_str(&why).unwrap();
    assert_eq!(why["last_run"]["ended"]["event"], "released");

    // How its command ended, and not only that it did.
    assert_eq!(why["last_run"]["ended"]["result"], "exit 0");
    site.run(["run", "fails", "--once-per", "1h", "--", "sh", "-c", "exit 3"]).expect(3);
    site.run(["run", "dies", "--once-per", "1h", "--", "sh", "-c", "kill -15 $$"]).expect(143);
    for (key, result) in [("fails", "exit 3"), ("dies", "signal 15")] {
        let why = site.run(["why", key]).expect(0).stdout;
        assert!(why.contains(&format!("; its work ended with: {result}\n")), "{why}");
        let show = site.run(["show", key]).expect(0).stdout;
        assert!(show.contains(&format!("; its work ended with: {result}\n")), "{show}");
        let log = site.run(["log", key]).expect(0).stdout;
        assert!(log.contains(&format!("; {result}\n")), "{log}");
    }

    let mut holder = site.start(["hold", "taken", "--ignore-stdin", "--ttl", "5s"]);
    holder.line();
    let fence = lock(site, "taken")["holders"][0]["fence"].as_str().unwrap().to_owned();
    site.run(["force-release", "taken", "--fence", &fence]).expect(0);
    assert_eq!(holder.finish().status.code(), Some(76));
    let mut told = words(site, "taken");
    // Two processes have written it.
    told.sort_unstable();
    assert_eq!(told[..3], ["forced", "granted", "lost:refuted"], "{told:?}");

    // A dead process reports nothing more.
    let mut killed = site.start(["hold", "killed", "--ignore-stdin", "--ttl", "1s"]);
    killed.line();
    until("its grant is told", || words(site, "killed") == ["granted"]);
    killed.child().kill().unwrap();
    killed.child().wait().unwrap();
    site.run(["run", "killed", "--", "true"]).expect(0);
    assert_eq!(words(site, "killed"), ["granted", "granted", "released"]);

    let shown = site.run(["log", "k"]).expect(0).stdout;
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert!(shown.lines().next().unwrap().contains("  granted    fence "), "{shown}");
    assert!(shown.lines().nth(3).unwrap().ends_with("; closed for 1ms"), "{shown}");
    assert_eq!(site.run(["log", "k", "-n", "1"]).expect(0).stdout.lines().count(), 1);
    let none = site.run(["log", "k", "-n", "0"]).expect(0);
    assert_eq!((&*none.stdout, &*none.stderr), ("", ""));
}

#[test]
fn what_became_of_a_lock_is_reported_on_the_embedded_store() {
    let site = Site::embedded();
    what_became_of_a_lock_is_reported(&Site::at(format!("{}?log=1000", site.store())));
}

#[test]
fn what_became_of_a_lock_is_reported_on_redis() {
    let server = RedisServer::start();
    what_became_of_a_lock_is_reported(&Site::at(format!("{}?log=1000", server.url())));
}

#[test]
fn what_became_of_a_lock_is_reported_on_a_cluster() {
    let cluster = Cluster::start();
    what_became_of_a_lock_is_reported(&Site::at(format!("{}?log=1000", cluster.url())));
}

#[test]
fn what_became_of_a_lock_is_reported_by_a_quorum_once() {
    let servers = [RedisServer::start(), RedisServer::start(), RedisServer::start()];
    let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    let site = Site::at(format!("quorum+redis://{hosts}?keep_leases=yes&log=100"));
    site.run(["run", "k", "--", "true"]).expect(0);
    assert_eq!(words(&site, "k"), ["granted", "released"]);
    servers[0].kill();
    assert_eq!(words(&site, "k"), ["granted", "released"]);
}

#[test]
fn without_a_log_nothing_is_written_and_a_reader_says_why_there_is_nothing() {
    let site = Site::embedded();
    site.run(["run", "k", "--", "true"]).expect(0);
    let done = site.run(["log", "k"]).expect(0);
    assert_eq!(done.stdout, "");
    assert!(done.stderr.contains("log=1000"), "{done:?}");
    assert!(!site.path("locks/log").exists());
    let server = RedisServer::start();
    let site = Site::at(server.url());
    site.run(["run", "k", "--", "true"]).expect(0);
    assert!(words(&site, "k").is_empty());
    assert_eq!(server.cli(&["KEYS", "*"]).trim(), "leasehold:{k}");
}

#[test]
fn who_ran_a_job_of_a_period_is_known_without_a_log() {
    let server = RedisServer::start();
    let sites = [Site::embedded(), Site::at(server.url())];
    for site in &sites {
        let done = site.run(["run", "job", "--owner", "web-1", "--once-per", "1h", "--", "false"]);
        done.expect(1);
        for question in ["why", "show"] {
            let told = site.run([question, "job"]).expect(0).stdout;
            assert!(told.contains("web-1 (") && told.contains(" held it last, from "), "{told}");
            assert!(told.contains("it was released at "), "{told}");
        }
        // Not of other locks.
        site.run(["run", "k", "--", "true"]).expect(0);
        assert!(words(site, "k").is_empty());
    }
    for site in sites {
        let silent = Site::at(format!("{}?log=0", site.store()));
        silent.run(["run", "other", "--once-per", "1h", "--", "true"]).expect(0);
        assert!(words(&silent, "other").is_empty());
    }
}

#[test]
fn others_read_what_those_have_written_that_keep_a_log() {
    let site = Site::embedded();
    let keeps = Site::at(format!("{}?log=10", site.store()));
    keeps.run(["run", "k", "--", "true"]).expect(0);
    site.run(["run", "k", "--", "true"]).expect(0);
    assert_eq!(words(&site, "k"), ["granted", "released"]);
}

#[test]
fn events_are_followed_as_they_come() {
    let site = Site::embedded();
    let site = Site::at(format!("{}?log=100", site.store()));
    site.run(["run", "k", "--", "true"]).expect(0);
    let mut reader = site.start(["log", "k", "--follow", "--json"]);
    let mut next = || {
        let event: Value = serde_json::from_str(&reader.line()).unwrap();
        event["event"].as_str().unwrap().to_owned()
    };
    assert_eq!([next(), next()], ["granted", "released"]);
    site.run(["run", "k", "--", "true"]).expect(0);
    assert_eq!([next(), next()], ["granted", "released"]);
}

#[test]
fn a_follower_gets_as_many_old_events_as_it_asked_for() {
    let site = Site::embedded();
    let site = Site::at(format!("{}?log=100", site.store()));
    site.run(["run", "k", "--owner", "old", "--", "true"]).expect(0);
    let owner_and_event = |line: String| {
        let event: Value = serde_json::from_str(&line).unwrap();
        format!("{} {}", event["owner"].as_str().unwrap(), event["event"].as_str().unwrap())
    };
    let mut reader = site.start(["log", "k", "--follow", "--json", "-n", "1"]);
    assert_eq!(owner_and_event(reader.line()), "old released");
    site.run(["run", "k", "--owner", "new", "--", "true"]).expect(0);
    let next = [(); 2].map(|()| owner_and_event(reader.line()));
    assert_eq!(next, ["new granted", "new released"]);

    // The end of its first look is not visible, so events come until it prints one.
    let mut reader = site.start(["log", "k", "--follow", "--json", "-n", "0"]);
    std::thread::scope(|scope| {
        let first = scope.spawn(move || reader.line());
        while !first.is_finished() {
            site.run(["run", "k", "--owner", "newest", "--", "true"]).expect(0);
        }
        assert!(owner_and_event(first.join().unwrap()).starts_with("newest "));
    });
}

#[test]
fn a_log_that_cannot_be_written_costs_no_lock() {
    let server = RedisServer::builder()
        .acl_user("locks on >pw ~leasehold:{* resetchannels &leasehold:wake:* +@all -xadd")
        .start();
    let site = Site::at(format!("{}?log=1000", server.url_for("locks", "pw")));
    let done = site.run(["run", "k", "--", "true"]).expect(0);
    assert!(!done.stderr.contains("lock"), "{done:?}");
    assert!(words(&site, "k").is_empty());
}

#[test]
fn a_log_is_a_number_and_stores_without_one_say_so() {
    let server = RedisServer::start();
    for store in [server.url(), Site::embedded().store().to_owned()] {
        for bad in ["log=many", "log=100001", "log=-1", "log="] {
            let site = Site::at(format!("{store}?{bad}"));
            let done = site.run(["run", "k", "--", "true"]).expect(78);
            assert!(done.stderr.contains("as in log=1000"), "{done:?}");
        }
    }
    let site = Site::at(format!("{}?log=9", server.url()));
    let done = site.run(["run", "k", "--interop", "redsync", "--", "true"]).expect(78);
    assert!(done.stderr.contains("have no log"), "{done:?}");
}
