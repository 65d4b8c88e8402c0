//! `leasehold why`: what an operator learns of a lock that somebody wants.

use leasehold_testkit::server::RedisServer;
use serde_json::Value;

use crate::harness::{Running, Site, finish, lock, shell, until};

fn document(site: &Site, key: &str) -> Value {
    serde_json::from_str(&site.run(["why", key, "--json"]).expect(0).stdout).unwrap()
}

fn text(site: &Site, key: &str) -> String {
    site.run(["why", key]).expect(0).stdout
}

fn waiters(site: &Site, key: &str) -> usize {
    lock(site, key)["waiters"].as_array().map_or(0, Vec::len)
}

/// Two that take the locks `a` and `b` in opposite orders.
fn two_that_wait_for_each_other_are_told(site: &Site) {
    let mut holders = Vec::new();
    for (owner, holds) in [("web-1", "a"), ("web-2", "b")] {
        let mut holder = site.start(["hold", holds, "--ignore-stdin", "--owner", owner]);
        holder.line();
        holders.push(holder);
    }
    let _first = site.start(["run", "b", "--owner", "web-1", "--", "true"]);
    until("the first waits", || waiters(site, "b") == 1);
    // Nothing is wrong yet.
    let open = document(site, "a")["chains"].clone();
    assert_eq!(open[0]["circle"], false);
    assert_eq!(open[0]["steps"][0]["waits_for"], "b");
    assert!(!text(site, "a").contains("circle"));
    let _second = site.start(["run", "a", "--owner", "web-2", "--", "true"]);
    until("the second waits", || waiters(site, "a") == 1);
    let circle = document(site, "a")["chains"].clone();
    assert_eq!(circle[0]["circle"], true, "{circle}");
    assert_eq!(circle[0]["steps"].as_array().unwrap().len(), 2, "{circle}");
    let text = text(site, "a");
    assert!(text.contains("web-1 waits for \"b\", which web-2 holds\n"), "{text}");
    assert!(text.contains("web-2 waits for \"a\", which web-1 holds\n"), "{text}");
    assert!(text.contains("wait for each other in a circle"), "{text}");
}

#[test]
fn two_that_wait_for_each_other_are_told_on_the_embedded_store() {
    two_that_wait_for_each_other_are_told(&Site::embedded());
}

#[test]
fn two_that_wait_for_each_other_are_told_on_redis() {
    let server = RedisServer::start();
    two_that_wait_for_each_other_are_told(&Site::at(server.url()));
}

#[test]
fn a_lock_is_explained_with_its_holder_and_its_line() {
    let site = Site::embedded();
    assert_eq!(text(&site, "k"), "\"k\" is free: nobody holds it, and nobody waits for it\n");
    assert_eq!(document(&site, "k")["lock"], Value::Null);
    let mut holder = site.start(["hold", "k", "--ignore-stdin", "--meta", "job=report"]);
    holder.line();
    let _waiters: Vec<Running> = ["first", "second"]
        .into_iter()
        .zip(1..)
        .map(|(owner, place)| {
            let waiter = site.start(["run", "k", "--owner", owner, "--", "true"]);
            until("it waits", || waiters(&site, "k") == place);
            waiter
        })
        .collect();
    let text = text(&site, "k");
    let fence = lock(&site, "k")["holders"][0]["fence"].as_str().unwrap().to_owned();
    for part in [
        "it says: job=report\n",
        "2 in line:\n  1. first, exclusive, for ",
        "\n  2. second, exclusive, for ",
        "leasehold ask k ",
        &format!("leasehold force-release --fence {fence} "),
        // This machine's: what it runs is no secret to who asks.
        &format!("process {} of host ", holder.pid()),
        "it runs, ",
        "hold k --ignore-stdin",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let document = document(&site, "k");
    assert_eq!(document["processes"][0]["id"], holder.pid());
    assert_eq!(document["lock"]["waiters"][1]["owner"], "second");
    assert_eq!(document["chains"], Value::Array(Vec::new()));
}

#[test]
fn a_wait_that_ran_out_says_where_more_is_told() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "two words", "--ignore-stdin"]);
    holder.line();
    let done = site.run(["run", "-w", "0.3", "two words", "--", "true"]);
    done.complains(75, "`leasehold why 'two words'` says more");
}

#[test]
fn a_closed_period_is_told_with_its_last_grant() {
    let site = Site::embedded();
    site.line("run --once-per 1h report -- true").expect(0);
    let text = text(&site, "report");
    assert!(text.contains("is closed for another 5"), "{text}");
    assert!(text.contains("it was taken last at about 20"), "{text}");
    assert!(document(&site, "report")["granted_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn what_is_advised_can_be_typed_for_any_name() {
    let site = Site::embedded();
    for name in ["-dash", "--two", "it's $(here)"] {
        let _holder = site.start(["hold", "--while-pid", "1", "--", name]);
        until("it is held", || text_of(&site, name).contains("force-release"));
        let advice = text_of(&site, name);
        let line = advice.lines().find(|line| line.contains("force-release")).unwrap();
        let line = line.trim_start().replacen("leasehold", "\"$0\"", 1);
        finish(&mut shell(&site, &line)).expect(0);
        assert!(text_of(&site, name).contains("nobody holds"), "{name}");
    }
}

fn text_of(site: &Site, name: &str) -> String {
    site.run(["why", "--", name]).expect(0).stdout
}
