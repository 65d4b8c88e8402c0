//! `elect` and `observe`.

use leasehold_testkit::server::RedisServer;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Running, Site, until};

const LEAD: &str = "echo $LEASEHOLD_FENCE; while :; do sleep 0.02; done";
const TIDY: &str =
    "trap 'echo ended; exit 3' TERM; echo $LEASEHOLD_FENCE; while :; do sleep 0.02; done";

fn waits(site: &Site) -> bool {
    let text = site.line("show post --json").expect(0).stdout;
    let lock = serde_json::from_str::<Value>(&text).unwrap();
    lock["lock"]["waiters"].as_array().is_some_and(|waiters| !waiters.is_empty())
}

fn candidate(site: &Site, name: &str, script: &str) -> Running {
    site.start(["elect", "post", "--ttl", "2s", "--owner", name, "--", "sh", "-c", script])
}

fn one_leads_after_the_other(site: &Site) {
    let mut one = candidate(site, "one", LEAD);
    let first: u64 = one.line().parse().unwrap();
    let mut observer = site.start(["observe", "post", "--json"]);
    let seen = |observer: &mut Running| {
        let document: Value = serde_json::from_str(&observer.line()).unwrap();
        assert_eq!((&document["version"], &document["key"]), (&1.into(), &"post".into()));
        document["leader"].clone()
    };
    let leader = seen(&mut observer);
    assert_eq!((&leader["owner"], &leader["fence"]), (&"one".into(), &first.to_string().into()));
    let mut two = candidate(site, "two", LEAD);
    until("the other is a candidate", || waits(site));
    one.process().kill();
    let second: u64 = two.line().parse().unwrap();
    assert!(second > first, "{second} after {first}");
    // Between the two there may have been a look at a post without a leader.
    let leader = std::iter::repeat_with(|| seen(&mut observer)).find(|leader| !leader.is_null());
    assert_eq!(leader.unwrap()["owner"], "two");
    two.process().signal(Signal::TERM);
    two.finish().expect(143);
    assert_eq!(seen(&mut observer), Value::Null);
}

#[test]
fn a_killed_leader_is_followed_by_the_next_with_a_higher_fence_on_one_machine() {
    one_leads_after_the_other(&Site::embedded());
}

#[test]
fn a_killed_leader_is_followed_by_the_next_with_a_higher_fence_on_redis() {
    let server = RedisServer::start();
    one_leads_after_the_other(&Site::at(server.url()));
}

#[test]
fn a_leader_that_loses_the_post_is_ended_and_campaigns_again() {
    let site = Site::embedded();
    let mut leader = candidate(&site, "one", TIDY);
    let first = leader.line();
    site.run(["force-release", "post", "--fence", &first]).expect(0);
    assert_eq!(leader.line(), "ended");
    let second = leader.line();
    assert!(second.parse::<u64>().unwrap() > first.parse::<u64>().unwrap());
    leader.process().signal(Signal::TERM);
    let done = leader.finish().expect(3);
    assert!(done.stderr.contains("campaigning for \"post\" again"), "{done:?}");
    site.line("run -n post -- true").expect(0);
}

#[test]
fn a_command_that_ends_by_itself_ends_the_candidacy_with_its_code() {
    let site = Site::embedded();
    site.line("elect post -- sh -c exit${IFS}5").expect(5);
    site.line("elect -n post -- true").expect(0);
    let mut leader = site.start_script("post", "echo up; sleep 600");
    site.line("elect -n post -- true").complains(75, "held by");
    leader.process().signal(Signal::TERM);
    leader.finish().expect(143);
}

#[test]
fn with_restart_a_command_that_ends_is_run_again_until_a_signal_comes() {
    let site = Site::embedded();
    let script = "echo $LEASEHOLD_FENCE; echo >> runs; [ $(wc -l < runs) -lt 3 ] && exit 1; \
                  echo stays; sleep 600";
    let words = ["elect", "post", "--restart", "--", "sh", "-c", script];
    let mut leader = site.start(words);
    let fences: Vec<u64> = (0..3).map(|_| leader.line().parse().unwrap()).collect();
    assert!(fences.is_sorted_by(|earlier, later| earlier < later), "{fences:?}");
    assert_eq!(leader.line(), "stays");
    leader.process().signal(Signal::TERM);
    leader.finish().expect(143);
    site.line("run -n post -- true").expect(0);
}

#[test]
fn observing_prints_each_leader_on_a_line() {
    let site = Site::embedded();
    let mut observer = site.start(["observe", "post"]);
    assert_eq!(observer.line(), "- - -");
    let mut leader = candidate(&site, "one", LEAD);
    let fence = leader.line();
    assert_eq!(observer.line(), format!("{fence} one -"));
    observer.process().signal(Signal::INT);
    let done = observer.finish().expect(130);
    let told = format!("\"post\" at {} has no leader", site.store());
    assert_eq!(done.stderr.matches(&told).count(), 1, "{done:?}");
}

#[test]
fn a_leader_whose_store_goes_away_is_ended_and_leads_again_when_it_is_back() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    // A command has a part of the ttl to end by itself, and a busy machine may need a second.
    let mut leader = site.start(["elect", "post", "--ttl", "15s", "--", "sh", "-c", TIDY]);
    let first: u64 = leader.line().parse().unwrap();
    server.pause();
    assert_eq!(leader.line(), "ended");
    server.resume();
    let second: u64 = leader.line().parse().unwrap();
    assert!(second > first, "{second} after {first}");
    leader.process().signal(Signal::TERM);
    let done = leader.finish().expect(3);
    let why = ["lost \"post\"", "no renewal was confirmed for", " within "];
    assert!(why.iter().all(|part| done.stderr.contains(part)), "{done:?}");
}
