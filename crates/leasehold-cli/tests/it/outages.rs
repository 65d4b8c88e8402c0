//! A store that is away when a command starts, and a node that is away for good.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;

use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server::RedisServer;
use leasehold_testkit::server::sentinel::SentinelSet;
use rustix::process::Signal;

use crate::harness::{Running, Site, killed_by, lock, until};

/// Starts commands while a store is away, and brings it back once they have said so.
fn waits_for(url: String, come_back: impl FnOnce()) {
    let site = Site::at(url);
    let lines = ["run k --retry-store 5m -- echo done", "ls --retry-store 5m"];
    let mut running = lines.map(|line| site.start(line.split(' ')));
    for one in &mut running {
        let line = one.message();
        assert!(line.contains("; trying again"), "{line}");
    }
    come_back();
    let [run, ls] = running.map(Running::finish);
    assert_eq!(run.expect(0).stdout, "done\n");
    ls.expect(0);
}

#[test]
fn a_server_that_is_away_at_the_start_is_tried_again_if_asked() {
    let server = RedisServer::start();
    server.kill();
    let site = Site::at(server.url());
    site.line("run k -w 5m -- echo never").complains(69, "connection refused");
    let done = site.line("run k --retry-store 300ms -- echo never");
    done.complains(69, "not reached within 300ms");
    waits_for(server.url(), || server.restart());
}

#[test]
fn sentinels_whose_primary_is_away_at_the_start_are_asked_again_if_asked() {
    let set = SentinelSet::builder().replicas(0).start();
    set.servers().iter().for_each(RedisServer::kill);
    waits_for(set.url(), || set.servers().iter().for_each(RedisServer::restart));
}

#[test]
fn a_server_that_grants_nothing_yet_is_waited_for_and_says_for_how_long() {
    let server = RedisServer::start();
    let site = Site::at(format!("{}?replicas=1&max_ttl=1d", server.url()));
    for kind in ["", " --limit 2", " -s", " also"] {
        let tried = site.line(&format!("run k{kind} -n -- echo never"));
        tried.complains(69, "warming up after its start");
        let waited = site.line(&format!("run k{kind} -w 2 -- echo never"));
        let waited = waited.complains(69, "; ready in 1d 1");
        assert!(waited.stderr.contains("timed out after "), "{waited:?}");
    }
    let _replica = RedisServer::builder().replica_of(&server).start();
    let site = Site::at(format!("{}?replicas=1&max_ttl=3s", server.url()));
    let done = site.line("run k --ttl 3s -- echo in").expect(0);
    assert_eq!(done.stdout, "in\n", "{done:?}");
}

#[test]
fn a_release_that_arrives_after_the_end_of_its_lease_accuses_no_other_holder() {
    let server = RedisServer::start();
    let wire = Proxy::start(server.addr());
    let ours = Site::at(format!("redis://{}", wire.addr()));
    let direct = Site::at(server.url());
    for n in 0..20 {
        let script = format!("echo ready; while [ ! -e end{n} ]; do sleep 0.02; done");
        let running = ours.start_script(&format!("k{n} --ttl 1s"), &script);
        wire.set(Fault::Stall);
        fs::write(ours.path(&format!("end{n}")), "").unwrap();
        let _next = direct.start_script(&format!("k{n}"), "echo ready; sleep 600");
        wire.set(Fault::Pass);
        let done = running.finish();
        assert!(!done.stderr.contains("force-released"), "{done:?}");
        // It proves nothing if no release was sent in time, or none was let through.
        if done.stderr.contains("was answered after the lease had expired") {
            done.expect(76);
            return;
        }
    }
    panic!("no release was late");
}

#[test]
fn a_release_that_is_carried_out_when_it_is_asked_for_again_is_no_warning() {
    let server = RedisServer::start();
    let wire = Proxy::start(server.addr());
    let site = Site::at(format!("redis://{}", wire.addr()));
    let script = "echo ready; while [ ! -e end ]; do sleep 0.02; done";
    let mut running = site.start_script("k --ttl 5m -v", script);
    wire.set(Fault::Stall);
    fs::write(site.path("end"), "").unwrap();
    let mut told = Vec::new();
    while !told.last().is_some_and(|line: &String| line.contains("not released")) {
        told.push(running.message());
        assert_ne!(told.last().unwrap(), "", "{told:?}");
    }
    wire.set(Fault::Pass);
    told.push(running.finish().expect(0).stderr);
    assert!(!told.concat().contains("warning"), "{told:?}");
    Site::at(server.url()).line("run k -n -- true").expect(0);
}

#[test]
fn a_cooldown_that_could_not_be_set_is_reported() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    for (options, told) in [("", false), ("--cooldown 10m ", true)] {
        let done = site.line(&format!("run k --ttl 2s {options}-- kill -9 {}", server.pid()));
        let done = done.expect(0);
        assert!(done.stderr.contains("the lock may stay held until its lease expires"), "{done:?}");
        let cooldown = "may have no cooldown";
        assert_eq!(done.stderr.contains(cooldown), told, "{done:?}");
        server.restart();
    }
}

#[test]
fn a_url_that_fits_its_server_no_more_is_bad_configuration_and_no_bad_usage() {
    let server = RedisServer::start();
    let site = Site::at(format!("{}/5", server.url()));
    let none = format!("{}/5000", server.url());
    Site::at(none).line("run k -- echo never").complains(78, "no database of that number");
    site.line("acquire k --ttl 1h").expect(0);
    let waiter = site.start(["run", "k", "--", "echo", "never"]);
    until("a waiter", || lock(&site, "k")["waiters"].as_array().is_some_and(|all| !all.is_empty()));
    let mut settings = File::options().append(true).open(server.dir().join("server.conf")).unwrap();
    writeln!(settings, "databases 1").unwrap();
    server.restart();
    waiter.finish().complains(78, "no database of that number");
}

#[test]
fn an_error_that_no_time_can_mend_is_reported_at_once() {
    let server = RedisServer::builder().password("open-sesame").start();
    let site = Site::at(format!("redis://:wrong@{}", server.addr()));
    site.line("run k --retry-store 5m -- echo never").complains(69, "password");
}

#[test]
fn signals_and_limits_end_the_tries_at_once() {
    let server = RedisServer::start();
    server.kill();
    let site = Site::at(server.url());
    site.line("run k --retry-store 5m -w 0.2 -- echo never")
        .complains(69, "timed out while the store was away");
    for line in ["run k --retry-store 5m -- echo never", "show k --retry-store 5m"] {
        let mut running = site.start(line.split(' '));
        running.message();
        running.process().signal(Signal::TERM);
        let done = running.finish();
        let by_signal = killed_by(&done) == Some(15);
        assert!(by_signal || done.status.code() == Some(143), "{line}: {done:?}");
    }
}

#[test]
fn a_node_that_can_not_be_reached_is_logged_once_by_a_verbose_command() {
    let servers = [RedisServer::start(), RedisServer::start()];
    // A port whose listener is gone refuses connections.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let [one, two] = servers.each_ref().map(RedisServer::addr);
    let site = Site::at(format!("quorum+redis://{one},{two},{gone}?keep_leases=yes"));
    let done = site.line("-v run k -- true").expect(0);
    assert_eq!(done.stderr.matches("a node of the quorum does not count").count(), 1, "{done:?}");
    let told = done.stderr.lines().find(|line| line.contains("does not count")).unwrap();
    assert!(told.contains(&gone.to_string()), "{told}");
    assert!(told.contains("connection refused"), "{told}");
}
