//! Checks after the last worker that all is cleaned up and every lock can be acquired.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::judge::Violation;
use crate::plan::{EXCLUSIVE, LIMIT, PERMITS, POST, REPORT, SHARED};
use crate::site::Site;
use crate::worker::Ground;
use crate::{clock, process};

/// How many wait in the queue while order is checked, and which of them is killed.
const WAITERS: usize = 4;
const KILLED: usize = 1;

/// Runs all checks.
pub(crate) fn examine(ground: &Ground, site: &Site) -> Vec<Violation> {
    let mut found = Vec::new();
    every_lock_can_be_had(ground, site, &mut found);
    if site.abilities().kinds {
        order(ground, &mut found);
    }
    nothing_is_listed(ground, &mut found);
    no_key_is_for_ever(site, &mut found);
    no_process_is_left(ground, &mut found);
    if matches!(site, Site::Embedded) {
        no_file_is_left(&ground.dir.join("locks"), &mut found);
    }
    found
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Runs a command; returns its exit code, if it ended, and its output.
fn said(ground: &Ground, line: &str) -> (Option<i32>, String) {
    let mut command = ground.leasehold(&words(line));
    let out = ground.dir.join("said");
    let file = fs::File::create(&out).expect("the torture's directory is ours");
    let both = file.try_clone().expect("a file can be had twice");
    let mut child = command.stdout(file).stderr(both).spawn().expect("a process can be started");
    let status = ends(&mut child, ground.patience);
    (status, fs::read_to_string(out).unwrap_or_default())
}

/// The exit code, once there is one; kills a process that takes too long.
fn ends(child: &mut Child, patience: Duration) -> Option<i32> {
    let mut status = None;
    clock::wait_for(patience, || {
        status = child.try_wait().expect("a child can be waited for");
        status.is_some()
    });
    if status.is_none() {
        child.kill().ok();
        child.wait().ok();
    }
    status?.code()
}

fn every_lock_can_be_had(ground: &Ground, site: &Site, found: &mut Vec<Violation>) {
    let kinds = site.abilities().kinds;
    let mut locks: Vec<String> =
        [&EXCLUSIVE[..], &[POST, REPORT]].concat().into_iter().map(str::to_owned).collect();
    if kinds {
        locks.extend([SHARED.to_owned(), format!("{PERMITS} --limit {LIMIT} --permits {LIMIT}")]);
    }
    let wait = ground.patience.as_secs();
    for lock in locks {
        let (code, said) = said(ground, &format!("run {lock} -w {wait} -- true"));
        if code != Some(0) {
            let what = format!("{lock} can't be had in the end: exit {code:?}: {}", said.trim());
            found.push(Violation::new(what, []));
        }
    }
}

/// The promise: waiters are served in the order of their arrival, except dead ones.
fn order(ground: &Ground, found: &mut Vec<Violation>) {
    let lock = "order/0";
    let quiet = |command: &mut Command| -> Child {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("a process can be started")
    };
    let mut holder = quiet(ground.leasehold(&words(&format!("hold {lock}"))).stdin(Stdio::piped()));
    let waiting = |count: usize| {
        clock::wait_for(ground.patience, || {
            let (_, shown) = said(ground, &format!("show --json {lock}"));
            shown.contains("\"remaining_ms\":") && shown.matches("\"waited_ms\":").count() == count
        })
    };
    let mut came = waiting(0);
    let mut waiters = Vec::new();
    for n in 0..WAITERS {
        // A slow machine must not cost a living waiter its position, and the dead one must soon be
        // skipped.
        let ttl = if n == KILLED { "1s" } else { "30s" };
        let mut command = words(&format!("run {lock} --ttl {ttl} --"));
        command.extend(["sh", "-c", &format!("echo {n} >> order")].map(str::to_owned));
        waiters.push(quiet(&mut ground.leasehold(&command)));
        came &= waiting(n + 1);
    }
    waiters[KILLED].kill().ok();
    drop(holder.stdin.take());
    for child in waiters.iter_mut().chain([&mut holder]) {
        ends(child, ground.patience);
    }
    let order = fs::read_to_string(ground.dir.join("order")).unwrap_or_default();
    let order: Vec<&str> = order.lines().collect();
    if !came || order != ["0", "2", "3"] {
        let what = format!(
            "{lock}: 0, 1, 2, 3 came in this order (each seen waiting: {came}), 1 was killed; \
             served were {order:?}"
        );
        found.push(Violation::new(what, []));
    }
}

fn nothing_is_listed(ground: &Ground, found: &mut Vec<Violation>) {
    let mut last = String::new();
    let empty = clock::wait_for(ground.patience, || {
        last = said(ground, "ls --json").1;
        last.contains("\"locks\":[]")
    });
    if !empty {
        found.push(Violation::new(format!("locks are left: {}", last.trim()), []));
    }
}

/// Servers drop their keys of an idle lock by themselves.
fn no_key_is_for_ever(site: &Site, found: &mut Vec<Violation>) {
    // Replicas have the same keys as their primaries.
    for server in site.servers().into_iter().filter(|one| one.cli(&["ROLE"]).starts_with("master"))
    {
        let keys = server.cli(&["KEYS", "*"]);
        for key in keys.lines().filter(|key| !key.is_empty()) {
            if server.cli(&["PTTL", key]) == "-1" {
                let what = format!("port {}: the key {key} is for ever", server.port());
                found.push(Violation::new(what, []));
            }
        }
    }
}

fn no_process_is_left(ground: &Ground, found: &mut Vec<Violation>) {
    let mut left = Vec::new();
    clock::wait_for(ground.patience, || {
        left = process::in_directory(&ground.dir);
        left.is_empty()
    });
    for process in left {
        let what = format!("process {} ({}) is left", process.pid, process.name);
        found.push(Violation::new(what, []));
        process::signal(process.pid, rustix::process::Signal::KILL);
    }
}

/// The files of sessions are removed with them. The next session removes the last one's.
fn no_file_is_left(store: &Path, found: &mut Vec<Violation>) {
    let sessions = fs::read_dir(store.join("sessions")).map_or(0, Iterator::count);
    if sessions > 1 {
        found.push(Violation::new(format!("{sessions} session files are left"), []));
    }
}
