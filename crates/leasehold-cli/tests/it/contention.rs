//! Many processes that want the same lock.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;

use leasehold_testkit::server::RedisServer;

use crate::harness::{Running, Site, until};

fn exactly_one_of_twenty(site: &Site) {
    let script = "echo ran >> log; while [ ! -e end ]; do sleep 0.02; done";
    let mut runs: Vec<Running> =
        (0..20).map(|_| site.start(["run", "-n", "report", "-c", script])).collect();
    // The winner ends only when told to, so the others can't have come after it.
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
/// then is it acknowledged in the log. All of it is done by children of the shell, which outlive
/// it when only it is killed.
const UPDATE: &str = "{ cat file; echo $ID; } > new.$ID; mv new.$ID file; \
                      echo $ID >> log";

fn update(site: &Site, id: &str, ttl: &str) -> Command {
    let mut command = site.command(["run", "file", "--ttl", ttl, "-c", UPDATE]);
    command.env("ID", id);
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
                    let mut command = update(site, &format!("{writer}.{round}"), "30s");
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

/// The same, but supervisors are killed at moments that nobody chooses.
fn no_update_is_lost_to_kills(site: &Site, rounds: usize, ttl: &str) {
    fs::write(site.path("file"), "").unwrap();
    fs::write(site.path("log"), "").unwrap();
    let killed = std::sync::atomic::AtomicUsize::new(0);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let killed = &killed;
            scope.spawn(move || {
                for round in 0..rounds {
                    let mut running =
                        Running::start(update(site, &format!("{writer}.{round}"), ttl));
                    // A different moment each time: before, within and after the update.
                    let spare = (writer * 7 + round * 13) % 5;
                    let lines = site.read("log").lines().count();
                    if spare == 0 {
                        // A machine that is busy with all this may lose a short lease.
                        let code = running.finish().status.code();
                        assert!(matches!(code, Some(0 | 76)), "{code:?}");
                        continue;
                    }
                    until("somebody has made progress, or it is over", || {
                        spare < 3
                            || running.exited().is_some()
                            || site.read("log").lines().count() > lines
                    });
                    thread::sleep(std::time::Duration::from_millis(
                        (writer * 3 + round) as u64 % 17,
                    ));
                    if running.exited().is_none() {
                        killed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    running.process().kill();
                }
            });
        }
    });
    assert!(killed.into_inner() > 0, "nobody was killed");
    assert!(every_acknowledged_update_is_there(site) > 0);
    // The lock is as usable as before.
    let mut command = update(site, "last", ttl);
    crate::harness::finish(&mut command).expect(0);
    assert!(site.read("log").ends_with("last\n"));
    every_acknowledged_update_is_there(site);
}

#[test]
fn eight_writers_lose_no_update_to_kills_on_one_machine() {
    no_update_is_lost_to_kills(&Site::embedded(), 12, "30s");
}

#[test]
fn eight_writers_lose_no_update_to_kills_on_redis() {
    let server = RedisServer::start();
    no_update_is_lost_to_kills(&Site::at(server.url()), 4, "700ms");
}
