//! Many processes that want the same lock.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold_testkit::server::RedisServer;

use crate::harness::{Running, Site, until};

fn exactly_one_of_twenty(site: &Site) {
    let script = "echo ran >> log; while [ ! -e end ]; do sleep 0.02; done";
    let mut runs: Vec<Running> =
        (0..20).map(|_| site.start(["run", "-n", "report", "-c", script])).collect();
    // The winner ends at a signal only, so the others came before its end.
    let mut losers = BTreeSet::new();
    until("nineteen have given up", || {
        for (n, run) in runs.iter_mut().enumerate() {
            if let Some(status) = run.exited() {
                assert_eq!(status.code(), Some(75));
                losers.insert(n);
            }
        }
        losers.len() == 19
    });
    fs::write(site.path("end"), "").unwrap();
    let mut codes: Vec<i32> =
        runs.into_iter().map(|run| run.finish().status.code().unwrap()).collect();
    codes.sort_unstable();
    assert_eq!((codes[0], codes[1]), (0, 75));
    assert_eq!(site.read("log"), "ran\n");
}

#[test]
fn twenty_at_the_same_instant_run_a_report_exactly_once_on_one_machine() {
    exactly_one_of_twenty(&Site::embedded());
}

#[test]
fn twenty_at_the_same_instant_run_a_report_exactly_once_on_redis() {
    let server = RedisServer::start();
    exactly_one_of_twenty(&Site::at(server.url()));
}

const WRITERS: usize = 8;

/// Reads the file, adds a line, writes it back: an update that is lost whenever two overlap. Only
/// then is it acknowledged in the log. A child of the shell writes it back, after a pause: if only
/// the shell were killed with its supervisor, the child would overwrite what later holders have
/// written.
const UPDATE: &str = "{ cat file; echo $ID; } > new.$ID; \
                      sh -c 'echo > begun.$ID; sleep $PAUSE; mv new.$ID file; :'; echo $ID >> log";

fn update(site: &Site, id: &str, ttl: &str, pause: &str) -> Command {
    let mut command = site.command(["run", "file", "--ttl", ttl, "-c", UPDATE]);
    command.env("ID", id).env("PAUSE", pause);
    command
}

fn every_acknowledged_update_is_there(site: &Site) -> usize {
    let (file, log) = (site.read("file"), site.read("log"));
    let mut there: Vec<&str> = file.lines().collect();
    there.sort_unstable();
    let lines = there.len();
    there.dedup();
    assert_eq!(there.len(), lines, "an update is there twice");
    for id in log.lines() {
        assert!(there.binary_search(&id).is_ok(), "update {id} is lost");
    }
    log.lines().count()
}

fn no_update_is_lost(site: &Site, rounds: usize) {
    fs::write(site.path("file"), "").unwrap();
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                for round in 0..rounds {
                    let mut command = update(site, &format!("{writer}.{round}"), "30s", "0");
                    crate::harness::finish(&mut command).expect(0);
                }
            });
        }
    });
    assert_eq!(every_acknowledged_update_is_there(site), WRITERS * rounds);
    assert_eq!(site.read("file").lines().count(), WRITERS * rounds);
}

#[test]
fn eight_writers_lose_no_update_on_one_machine() {
    no_update_is_lost(&Site::embedded(), 12);
}

#[test]
fn eight_writers_lose_no_update_on_redis() {
    let server = RedisServer::start();
    no_update_is_lost(&Site::at(server.url()), 12);
}

/// The same, but supervisors are killed: some at any moment, some in the middle of an update,
/// which takes a `pause` that is longer than the store takes to find the next holder.
fn no_update_is_lost_to_kills(site: &Site, rounds: usize, ttl: &str, pause: &str) {
    fs::write(site.path("file"), "").unwrap();
    fs::write(site.path("log"), "").unwrap();
    let killed_in_the_middle = AtomicUsize::new(0);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let killed_in_the_middle = &killed_in_the_middle;
            scope.spawn(move || {
                for round in 0..rounds {
                    let id = format!("{writer}.{round}");
                    match (writer + round) % 4 {
                        0 => {
                            let mut running = Running::start(update(site, &id, ttl, pause));
                            let begun = site.path(&format!("begun.{id}"));
                            until("the update has begun", || {
                                begun.exists() || running.exited().is_some()
                            });
                            running.process().kill();
                            killed_in_the_middle.fetch_add(1, Ordering::Relaxed);
                        }
                        1 => {
                            let mut running = Running::start(update(site, &id, ttl, "0"));
                            let delay_ms = (writer * 7 + round * 3) % 41;
                            thread::sleep(Duration::from_millis(delay_ms as u64));
                            running.process().kill();
                        }
                        _ => {
                            let done = crate::harness::finish(&mut update(site, &id, ttl, "0"));
                            // A machine that is busy with all this may lose a short lease.
                            assert!(matches!(done.status.code(), Some(0 | 76)), "{done:?}");
                        }
                    }
                }
            });
        }
    });
    assert!(killed_in_the_middle.into_inner() > 0);
    assert!(every_acknowledged_update_is_there(site) > 0);
    // The lock is as usable as before.
    crate::harness::finish(&mut update(site, "last", "30s", "0")).expect(0);
    assert!(site.read("log").ends_with("last\n"));
    every_acknowledged_update_is_there(site);
}

#[test]
fn eight_writers_lose_no_update_to_kills_on_one_machine() {
    no_update_is_lost_to_kills(&Site::embedded(), 6, "5s", "0.1");
}

#[test]
fn eight_writers_lose_no_update_to_kills_on_redis() {
    let server = RedisServer::start();
    no_update_is_lost_to_kills(&Site::at(server.url()), 4, "700ms", "1");
}
