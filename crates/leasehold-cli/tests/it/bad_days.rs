//! Stores on their bad days, as a user of the command meets them.

use std::fs;
use std::process::Command;

use leasehold_testkit::server::RedisServer;

use crate::harness::{Running, Site, finish};

#[test]
fn an_embedded_store_that_can_not_be_there_is_named() {
    let site = Site::embedded();
    fs::write(site.path("file"), "").unwrap();
    let path = site.path("file/locks");
    let store = format!("embedded:{}", path.display());
    site.run(["--store", &store, "run", "k", "--", "echo", "never"]).complains(78, "file/locks");
}

/// In a mount namespace, where root's directory for running programs is empty: what a login shell
/// took is taken for a cron job.
#[test]
fn the_default_store_is_one_for_a_shell_and_for_cron_and_private_to_the_user() {
    let mut apart = vec!["--mount"];
    if !rustix::process::geteuid().is_root() {
        apart.extend(["--user", "--map-root-user"]);
    }
    let possible = Command::new("unshare").args(&apart).arg("true").status();
    if !possible.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "this needs the right to mount");
        eprintln!("skipped: this needs the right to mount, or user namespaces (unshare -Um)");
        return;
    }
    let site = Site::embedded();
    let script = r#"
        set -e
        mount -t tmpfs -o mode=755 tmpfs /run
        mkdir -m 700 -p /run/user/0
        XDG_RUNTIME_DIR=/run/user/0 TMPDIR="$PWD" "$0" acquire k --ttl 1h > /dev/null
        cd / && env -i "$0" run -n k -- true || echo "cron: $?"
        find /run/leasehold -perm /077 | sed 's/^/open to others: /'
    "#;
    let mut started = Command::new("unshare");
    started.args(&apart).args(["sh", "-c", script, env!("CARGO_BIN_EXE_leasehold")]);
    started.env_remove("LEASEHOLD_STORE").current_dir(site.path("."));
    let done = crate::harness::finish(&mut started).expect(0);
    assert_eq!(done.stdout, "cron: 75\n", "{done:?}");
}

/// As a job of cron may find itself.
#[test]
fn an_environment_that_is_empty_is_enough() {
    let site = Site::embedded();
    let store = site.store().to_owned();
    let empty = |words: &[&str]| {
        let mut command = site.command(["--store", &store].iter().chain(words));
        command.env_clear();
        command
    };
    let done = finish(&mut empty(&["run", "k", "-c", "echo $LEASEHOLD_KEY; exit 3"])).expect(3);
    assert_eq!(done.stdout, "k\n");
    finish(&mut empty(&["run", "k", "--", "/bin/sh", "-c", "exit 4"])).expect(4);
    let lease = finish(&mut empty(&["acquire", "k", "--ttl", "1h"])).expect(0).stdout;
    finish(&mut empty(&["run", "k", "-n", "--", "/bin/true"])).complains(75, "held by");
    finish(empty(&["release"]).env("LEASEHOLD_LEASE", lease.trim())).expect(0);
    finish(&mut empty(&["ls"])).expect(0);
    finish(&mut empty(&["doctor"])).expect(0);
}

/// Process numbers mean other processes there, or none.
#[test]
fn a_lock_is_one_in_two_process_namespaces_and_free_when_its_holder_dies() {
    let apart = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let possible = Command::new("unshare").args(apart).arg("true").output();
    if !possible.is_ok_and(|tried| tried.status.success()) {
        println!("NOT TRIED: this machine makes no namespaces");
        return;
    }
    let site = Site::embedded();
    site.line("run k -- true").expect(0);
    let inside = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(apart).arg(env!("CARGO_BIN_EXE_leasehold")).args(words).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("LEASEHOLD_STORE", site.store());
        command.stdin(std::process::Stdio::null()).current_dir(site.path(""));
        command
    };
    let mut holder = Running::start(inside(&["hold", "k", "--ttl", "1h", "--ignore-stdin"]));
    holder.line();
    site.line("run k -n -- true").complains(75, "held by");
    finish(&mut inside(&["run", "k", "-n", "--", "true"])).complains(75, "held by");
    holder.process().kill();
    site.line("run k -w 60 -- true").expect(0);
    let mut holder = site.start(["hold", "k", "--ttl", "1h", "--ignore-stdin"]);
    holder.line();
    finish(&mut inside(&["run", "k", "-n", "--", "true"])).complains(75, "held by");
    holder.process().kill();
    finish(&mut inside(&["run", "k", "-w", "60", "--", "true"])).expect(0);
}

#[test]
fn a_foreign_value_at_the_locks_name_is_left_alone_and_reported() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    holder.line();
    let keys = server.cli(&["KEYS", "*"]);
    let key = keys.lines().next().unwrap().to_owned();
    drop(holder);
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    assert_eq!(server.cli(&["LPUSH", &key, "not a lock"]), "1");
    site.line("run -n k -- echo never").complains(69, "\"k\"");
    assert_eq!(server.cli(&["LRANGE", &key, "0", "-1"]), "not a lock");
}

#[test]
fn a_server_that_hangs_is_reported_in_time() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    site.line("run -n k -- true").expect(0);
    server.pause();
    site.line("run -n k -- echo never").complains(69, &server.addr().to_string());
    server.resume();
}
