//! `--max-hold`: a job, a hold and a term that take too long.

use std::fs;

use crate::harness::{Site, gone, lock};

#[test]
fn a_command_that_takes_too_long_is_asked_to_end_before_the_lock_comes_free() {
    let site = Site::embedded();
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let options = "k --ttl 30s --max-hold 4s --grace 2s";
    let running = site.start_script(options, script);
    let remaining = lock(&site, "k")["holders"][0]["remaining_ms"].as_u64().unwrap();
    assert!(remaining <= 4_000, "the store is not to keep it longer either: {remaining}");
    // Whatever code it ends with.
    let done = running.finish().expect(80);
    assert_eq!(done.stdout, "told\n");
    assert!(done.stderr.contains("\"k\" was held for as long as --max-hold allows"), "{done:?}");
    assert!(!done.stderr.contains("lost"), "{done:?}");
    site.line("run -n k -- true").expect(0);
}

#[test]
fn a_command_that_takes_too_long_and_does_not_heed_it_is_killed() {
    let site = Site::embedded();
    let script = "trap '' TERM; sh -c 'echo $$ >> pids; while :; do sleep 0.05; done' & \
                  while [ ! -s pids ]; do sleep 0.02; done; echo ready; wait";
    let running = site.start_script("a b --max-hold 3s", script);
    let rest: u32 = site.read("pids").trim().parse().unwrap();
    running.finish().expect(80);
    gone(rest);
    site.line("run -n a b -- true").expect(0);
}

#[test]
fn a_limit_that_is_not_reached_changes_nothing() {
    let site = Site::embedded();
    site.line("run k --max-hold 1h -- true").expect(0);
    site.run(["run", "k", "--max-hold", "1h", "--", "sh", "-c", "exit 5"]).expect(5);
    // Force-released, it is lost before its end.
    let script = "echo ready; while :; do sleep 0.02; done";
    let running = site.start_script("k --ttl 2s --max-hold 1h", script);
    let fence = lock(&site, "k")["holders"][0]["fence"].as_str().unwrap().to_owned();
    site.line(&format!("force-release k --fence {fence}")).expect(0);
    let done = running.finish().expect(76);
    assert!(done.stderr.contains("force-released"), "{done:?}");
}

#[test]
fn a_limit_in_which_nothing_can_be_done_is_refused() {
    let site = Site::embedded();
    site.line("run k --max-hold 0 -- touch never").complains(64, "give at least");
    site.line("run k --ttl 50ms --max-hold 9ms -- touch never").complains(64, "at least 10ms");
    site.line("run k --max-hold 500ms --grace 10s -- touch never").complains(64, "--max-hold");
    site.line("run k --max-hold 10s --grace 6s -- touch never").complains(64, "grace");
    assert!(!fs::exists(site.path("never")).unwrap());
}

#[test]
fn a_hold_that_takes_too_long_ends_by_itself() {
    let site = Site::embedded();
    let options = ["hold", "a", "b", "--ignore-stdin", "--max-hold", "3s"];
    let mut held = site.start(options);
    held.line();
    let remaining = lock(&site, "a")["holders"][0]["remaining_ms"].as_u64().unwrap();
    assert!(remaining <= 3_000, "the store is not to keep it longer either: {remaining}");
    let mut next = site.start(["hold", "b", "--ignore-stdin"]);
    next.line();
    let done = held.finish().expect(80);
    assert!(done.stderr.contains("was held for as long as --max-hold allows"), "{done:?}");
    site.line("hold k --max-hold 0").complains(64, "give at least");
}

#[test]
fn a_hold_that_is_force_released_is_lost_whatever_its_limit() {
    let site = Site::embedded();
    let mut held = site.start(["hold", "k", "--ignore-stdin", "--ttl", "2s", "--max-hold", "1h"]);
    let fence = held.line().split_whitespace().next().unwrap().to_owned();
    site.line(&format!("force-release k --fence {fence}")).expect(0);
    assert!(held.finish().expect(76).stderr.contains("force-released"));
}

#[test]
fn a_leader_whose_term_is_over_makes_room_for_those_who_wait() {
    let site = Site::embedded();
    let script = "echo $LEASEHOLD_FENCE; while :; do sleep 0.02; done";
    let start = |owner| {
        let options = ["elect", "post", "--max-hold", "1s", "--owner", owner, "--", "sh", "-c"];
        site.start(options.iter().chain(&[script]))
    };
    let (mut one, mut two) = (start("one"), start("two"));
    // Each leads, and leads again.
    let terms = [one.line(), two.line(), one.line(), two.line()];
    let distinct: std::collections::BTreeSet<_> = terms.iter().collect();
    assert_eq!(distinct.len(), 4, "{terms:?}");
}
