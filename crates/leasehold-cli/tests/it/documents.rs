//! What scripts read.

use leasehold_testkit::server::RedisServer;
use serde_json::Value;

use crate::harness::{Done, Running, Site};

fn document(done: &Done) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

fn holder(site: &Site, args: &[&str]) -> Running {
    let mut running = site.start(["hold", "--ignore-stdin"].iter().chain(args));
    running.line();
    running
}

#[test]
fn notes_fences_kinds_and_times_are_distinguished() {
    let site = Site::embedded();
    let notes = ["--meta", "job=report", "--meta", "by=a b"];
    let _holder = holder(&site, &[&["s", "--limit", "3", "--permits", "2"][..], &notes].concat());
    let shown = document(&site.line("show s --json").expect(0));
    let listed = document(&site.line("ls --json").expect(0));
    for lock in [&shown["lock"], &listed["locks"][0]] {
        let holder = &lock["holders"][0];
        assert_eq!(lock["kind"]["name"], "semaphore");
        assert_eq!((&lock["kind"]["held"], &lock["kind"]["free"]), (&2.into(), &1.into()));
        let notes: Vec<&str> = holder["metadata"].as_str().unwrap().lines().collect();
        assert_eq!(notes, ["job=report", "by=a b"]);
        assert_eq!(
            (&holder["mode"]["name"], &holder["mode"]["count"]),
            (&"permits".into(), &2.into())
        );
        assert!(holder["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{lock}");
        assert!(holder["held_for_ms"].is_u64() && holder["remaining_ms"].is_u64(), "{lock}");
    }
    let text = site.line("show s").expect(0).stdout;
    assert!(text.contains("job=report, by=a b"), "{text}");
}

#[test]
fn a_busy_lock_and_a_store_that_is_away_have_documents_too() {
    let site = Site::embedded();
    let _holder = holder(&site, &["k", "--owner", "web-7"]);
    for line in ["acquire k -n --json", "hold k -n --json", "acquire k -n -E 9 --json"] {
        let done = site.line(line);
        let error = &document(&done)["error"];
        assert_eq!(error["kind"], "busy", "{done:?}");
        assert_eq!(error["exit_code"], done.status.code().unwrap());
        assert!(error["message"].as_str().unwrap().contains("held by web-7"), "{done:?}");
    }
    let server = RedisServer::start();
    let site = Site::at(server.url());
    server.kill();
    for line in ["ls --json", "show k --json", "acquire k --json", "doctor --json"] {
        let done = site.line(line).expect(69);
        assert_eq!(document(&done)["error"]["kind"], "store", "{done:?}");
    }
}
