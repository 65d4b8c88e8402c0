//! `acquire`, `renew` and `release`: leases that live without a process.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use leasehold_testkit::server::RedisServer;

use crate::harness::{Done, Running, Site, finish, until};

fn with_lease(site: &Site, line: &str, lease: &str) -> Done {
    finish(site.command(line.split(' ')).env("LEASEHOLD_LEASE", lease))
}

/// A lease that runs out soon, though not before a busy machine has handed it out.
fn short_lease(site: &Site, options: &str) -> String {
    let ttls = ["50ms", "500ms", "5s", "50s"];
    let acquire = |ttl| site.line(&format!("acquire k --ttl {ttl}{options}"));
    ttls.into_iter().map(acquire).find(|done| done.status.success()).expect("a lease").stdout
}

fn with_input(site: &Site, line: &str, lease: &str) -> Done {
    let mut command = site.command(line.split(' '));
    let mut running = Running::start({
        command.stdin(Stdio::piped());
        command
    });
    running.child().stdin.take().unwrap().write_all(lease.as_bytes()).unwrap();
    running.finish()
}

#[test]
fn a_lease_outlives_the_process_that_took_it_until_it_is_released() {
    let site = Site::embedded();
    let lease = site.line("acquire k --ttl 1h").expect(0).stdout;
    site.line("run -n k -- echo never").complains(75, "held by");
    with_lease(&site, "release", &lease).expect(0);
    site.line("run -n k -- true").expect(0);
    with_lease(&site, "release", &lease).complains(76, "release \"k\"");
}

fn long_ago() -> SystemTime {
    let age = Duration::from_secs(90 * 60 + 30);
    SystemTime::UNIX_EPOCH + SystemTime::UNIX_EPOCH.elapsed().unwrap() - age
}

#[test]
fn a_lease_ends_with_its_ttl() {
    let site = Site::embedded();
    let lease = short_lease(&site, "");
    site.line("wait k").expect(0);
    with_lease(&site, "release", &lease).complains(76, "the lease expired before the release");
    with_lease(&site, "renew", &lease).complains(76, "the lease expired before the renewal");
    short_lease(&site, " --lease-file lease");
    fs::File::open(site.path("lease")).unwrap().set_modified(long_ago()).unwrap();
    site.line("wait k").expect(0);
    site.line("renew --lease-file lease").complains(76, "expired 1h 30m ");
    site.line("release --lease-file lease").complains(76, "expired 1h 30m ");
    let lease = short_lease(&site, "");
    site.line("run k -- true").expect(0);
    with_lease(&site, "release", &lease).complains(76, "lost");
    with_lease(&site, "renew", &lease).complains(76, "lost");
}

#[test]
fn an_expired_lease_is_acquired_again_only_if_the_lock_had_no_holder_since() {
    let server = RedisServer::start();
    for site in [Site::embedded(), Site::at(server.url())] {
        short_lease(&site, " --lease-file lease");
        let before = site.read("lease");
        site.line("wait k").expect(0);
        let done = site.line("renew --if-untaken --ttl 1h --lease-file lease").expect(0);
        assert!(done.stderr.contains("; it was taken again with fence"), "{done:?}");
        assert_ne!(site.read("lease"), before);
        site.line("run -n k -- true").expect(75);
        let done = site.line("renew --if-untaken --lease-file lease").expect(0);
        assert_eq!(
            (done.stdout.as_str(), done.stderr.as_str()),
            ("", ""),
            "in time it is as before"
        );
        site.line("release --lease-file lease").expect(0);

        // Without a file the new lease is printed, and the old one is none any more.
        let old = short_lease(&site, "");
        site.line("wait k").expect(0);
        let new = with_lease(&site, "renew --if-untaken --ttl 1h", &old).expect(0).stdout;
        with_lease(&site, "release", &old).complains(76, "lost");
        with_lease(&site, "release", &new).expect(0);

        let old = short_lease(&site, "");
        site.line("run k -- true").expect(0);
        with_lease(&site, "renew --if-untaken", &old).complains(76, "lost");
        site.line("run -n k -- true").expect(0);
    }
    let line = "renew --if-untaken --interop redsync";
    Site::at(server.url()).line(line).complains(64, "no record of their last holder");
}

#[test]
fn a_lease_that_is_acquired_again_and_can_not_be_written_is_released() {
    let site = Site::embedded();
    let lease = short_lease(&site, "");
    // Beside it there is no room for a longer name, and it is replaced by a file beside it.
    let name = "l".repeat(255);
    fs::write(site.path(&name), &lease).unwrap();
    fs::set_permissions(site.path(&name), fs::Permissions::from_mode(0o600)).unwrap();
    site.line("wait k").expect(0);
    let line = format!("renew --if-untaken --ttl 1h --lease-file {name}");
    site.line(&line).complains(74, "\"k\" was taken again, and released");
    let held = site.line("acquire k --ttl 1h").expect(0).stdout;
    fs::write(site.path(&name), &held).unwrap();
    let line = format!("renew --ttl 2h --lease-file {name}");
    site.line(&line).complains(74, "can't write");
    site.line("run -n k -- true").expect(75);
    with_lease(&site, "release", &held).expect(0);
    site.line("run -n k -- true").expect(0);
}

#[test]
fn a_lease_file_stays_where_another_store_than_its_own_is_asked() {
    let (site, other) = (Site::embedded(), Site::embedded());
    other.line("run made -- true").expect(0);
    let elsewhere = format!("--store embedded:{}", other.path("locks").display());
    site.line("acquire a b --ttl 1h --lease-file lease").expect(0);
    let lease = site.read("lease");
    for operation in ["renew", "release"] {
        site.line(&format!("{operation} --lease-file lease {elsewhere}"))
            .complains(76, "name that store with --store")
            .complains(76, &site.path("locks").display().to_string());
        assert_eq!(site.read("lease"), lease);
    }
    // A renewed lease still names its store.
    site.line("renew --lease-file lease --ttl 2h").expect(0);
    site.line(&format!("release --lease-file lease {elsewhere}"))
        .complains(76, "name that store with --store");
    with_lease(&site, "renew", &site.read("lease")).expect(0);
    site.line("release --lease-file lease").expect(0);
    assert!(!site.path("lease").exists());
    site.line("run -n a b -- true").expect(0);
    // Where it was taken is no lease by itself.
    fs::write(site.path("lease"), lease.lines().last().unwrap()).unwrap();
    site.line("release --lease-file lease").complains(64, "lease has no lease");
    assert!(site.path("lease").exists());
}

#[test]
fn a_lease_file_without_a_lease_is_called_that_and_not_asked_for_again() {
    let site = Site::embedded();
    for (text, why) in
        [("", "file is empty"), (" \n", "file is empty"), ("# taken at a\n", "no lease")]
    {
        fs::write(site.path("file"), text).unwrap();
        for operation in ["renew", "release"] {
            let done = site.line(&format!("{operation} --lease-file file")).complains(64, why);
            assert!(!done.stderr.contains("no lease was given"), "{done:?}");
        }
        assert_eq!(site.read("file"), text);
    }
}

#[test]
fn a_lease_file_is_private_and_never_overwritten_and_goes_with_its_lease() {
    let site = Site::embedded();
    let done = site.line("acquire k --lease-file lease").expect(0);
    assert_eq!(done.stdout, "");
    let mode = fs::metadata(site.path("lease")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let lease = site.read("lease");
    for (line, code) in [("acquire other", 75), ("acquire other -n -E 9", 9)] {
        site.line(&format!("{line} --lease-file lease"))
            .complains(code, "lease has a lease of \"k\" that is still held");
        assert_eq!(site.read("lease"), lease);
    }
    site.line("run -n other -- true").expect(0);
    site.line("renew --lease-file lease --ttl 2h").expect(0);
    assert!(site.read("lease").contains(" 7200000 "), "{}", site.read("lease"));
    let mode = fs::metadata(site.path("lease")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    site.line("release --lease-file lease").expect(0);
    assert!(!site.path("lease").exists());
    site.line("release --lease-file lease").complains(64, "can't read lease");
}

#[test]
fn a_lease_file_for_a_busy_lock_is_not_left_behind() {
    let site = Site::embedded();
    site.line("acquire k").expect(0);
    site.line("acquire -n k --lease-file lease").complains(75, "held by");
    assert!(!site.path("lease").exists());
    site.line("acquire free --lease-file no/such/dir/lease").complains(74, "can't create");
    site.line("run -n free -- true").expect(0);
}

#[test]
fn a_lease_file_that_a_crash_has_left_blocks_no_command() {
    let server = RedisServer::start();
    for site in [Site::embedded(), Site::at(server.url())] {
        // Killed before there was a lease, and after.
        fs::write(site.path("lease"), "").unwrap();
        site.line("acquire k --ttl 1h --lease-file lease -n").expect(0);
        let lease = site.read("lease");
        site.line("acquire k --lease-file lease -n").complains(75, "held by");
        assert_eq!(site.read("lease"), lease, "it is still the way to give the lock back");
        let fence = lease.split(' ').nth(2).unwrap();
        site.run(["force-release", "k", "--fence", fence]).expect(0);
        site.line("acquire k --ttl 50ms --lease-file lease -n").expect(0);
        site.line("acquire k other --ttl 1h --lease-file lease").expect(0);
        site.line("release --lease-file lease").expect(0);
        assert!(!site.path("lease").exists());
        // Beside each other they may hold the lock, and not with one file.
        site.line("acquire s -s --ttl 1h --lease-file lease").expect(0);
        let lease = site.read("lease");
        site.line("acquire s -s --lease-file lease").complains(75, "\"s\" that is still held");
        assert_eq!(site.read("lease"), lease);
        site.line("release --lease-file lease").expect(0);
        site.line("run s -n -- true").expect(0);
    }
}

#[test]
fn of_two_that_want_one_lease_file_at_once_the_second_has_it_after_the_first() {
    let site = Site::embedded();
    for _ in 0..5 {
        let take = ["acquire", "k", "--ttl", "1h", "--lease-file", "lease"];
        let both = [site.start(take), site.start(take)];
        until("the first has it", || site.path("lease").exists());
        site.line("release --lease-file lease").expect(0);
        for one in both {
            one.finish().expect(0);
        }
        site.line("run k -n -q -- true").expect(75);
        site.line("release --lease-file lease").expect(0);
        assert!(!site.path("lease").exists());
    }
}

#[test]
fn what_is_no_lease_file_is_not_replaced() {
    let (site, other) = (Site::embedded(), Site::embedded());
    fs::write(site.path("lease"), "mine\n").unwrap();
    site.line("acquire k --lease-file lease").complains(64, "lease has no readable lease");
    assert_eq!(site.read("lease"), "mine\n");
    site.line("acquire k --lease-file .").complains(64, "not a regular file");
    fs::remove_file(site.path("lease")).unwrap();
    std::os::unix::fs::symlink("elsewhere", site.path("lease")).unwrap();
    site.line("acquire k --lease-file lease").complains(64, "not a regular file");
    fs::remove_file(site.path("lease")).unwrap();
    // What was taken elsewhere may be held there.
    other.line("acquire there --ttl 1h --lease-file lease").expect(0);
    fs::copy(other.path("lease"), site.path("lease")).unwrap();
    let there = other.path("locks").display().to_string();
    site.line("acquire k --lease-file lease").complains(75, &there);
    assert_eq!(site.read("lease"), other.read("lease"));
    site.line("run k -n -- true").expect(0);
}

#[test]
fn a_lease_comes_from_standard_input_too() {
    let site = Site::embedded();
    let lease = site.line("acquire k").expect(0).stdout;
    with_input(&site, "renew --ttl 1h", &lease).expect(0);
    with_input(&site, "release --cooldown 1h", &lease).expect(0);
    site.line("run -n k -- echo never").complains(75, "cooling down");
}

#[test]
fn what_is_no_lease_is_refused_and_not_repeated() {
    let site = Site::embedded();
    for rubbish in ["", "sentinel", "leasehold-lease-1 sentinel 1 1 1 k", "{\"sentinel\": 1}"] {
        let why = if rubbish.is_empty() { "no lease was given" } else { "is not a lease" };
        let done = with_input(&site, "release", rubbish).complains(64, why);
        assert!(!done.stderr.contains("sentinel"), "{done:?}");
    }
    with_lease(&site, "renew --ttl 1h", "leasehold-lease-1").complains(64, "is not a lease");
    let lease = site.line("acquire k").expect(0).stdout;
    with_lease(&site, "renew --ttl 0", &lease).complains(64, "out of range");
}

#[test]
fn a_lease_that_could_not_be_printed_is_released() {
    let site = Site::embedded();
    let mut command = site.command(["acquire", "k", "--ttl", "1h"]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = command.stdout(full).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(74));
    site.line("run -n k -- true").expect(0);

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = site.command(["acquire", "k", "--ttl", "1h"]);
    let status = command.stdout(writer).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(74));
    site.line("run -n k -- true").expect(0);
}

#[test]
fn the_document_contains_the_lease_unless_a_file_does() {
    let site = Site::embedded();
    let document = |line: &str| -> serde_json::Value {
        serde_json::from_str(&site.line(line).expect(0).stdout).unwrap()
    };
    let acquired = document("acquire k --json --ttl 1h");
    assert_eq!((&acquired["version"], &acquired["key"]), (&1.into(), &"k".into()));
    assert_eq!(acquired["ttl_ms"], 3_600_000);
    assert!(acquired["fence"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    with_lease(&site, "release", acquired["lease"].as_str().unwrap()).expect(0);
    let acquired = document("acquire k --json --lease-file lease");
    assert!(acquired.get("lease").is_none(), "{acquired}");
    site.line("release --lease-file lease").expect(0);
    until("the lock is free", || site.line("wait -n k").status.success());
}
