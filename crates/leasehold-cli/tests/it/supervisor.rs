//! Looking after the command: signals, losses, and a supervisor that is itself in trouble.

use std::fs;

use leasehold_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::harness::{Running, Site, appears, finish, gone, lock, shell, state, until};
use crate::watchdog::{send, watchdog};

fn fence(site: &Site, key: &str) -> String {
    lock(site, key)["holders"][0]["fence"].as_str().unwrap().to_owned()
}

/// A shell and a grandchild that both ignore TERM, and write their process ids into `pids`.
const STUBBORN: &str = "trap '' TERM; sh -c 'echo $$ >> pids; while :; do sleep 0.05; done' & \
                        echo $$ >> pids; echo ready; while :; do sleep 0.05; done";

fn stubborn(site: &Site, options: &str) -> (Running, Vec<u32>) {
    let running = site.start_script(options, STUBBORN);
    let pids =
        || -> Vec<u32> { site.read("pids").lines().map(|line| line.parse().unwrap()).collect() };
    until("both have started", || pids().len() == 2);
    (running, pids())
}

#[test]
fn every_signal_reaches_the_command_but_those_about_the_supervisor_itself() {
    let site = Site::embedded();
    let signals = [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGTERM,
        libc::SIGWINCH,
        libc::SIGABRT,
        libc::SIGTRAP,
        libc::SIGPROF,
        libc::SIGVTALRM,
        libc::SIGSTKFLT,
        libc::SIGPWR,
        libc::SIGIO,
        libc::SIGURG,
        libc::SIGRTMIN() + 3,
        libc::SIGRTMAX(),
    ];
    let own = [libc::SIGXCPU, libc::SIGXFSZ, libc::SIGPIPE];
    let traps: String =
        signals.iter().chain(&own).map(|n| format!("trap 'echo {n}' {n}; ")).collect();
    let script = format!("{traps} echo ready; while [ ! -e end ]; do sleep 0.02; done; exit 5");
    let mut running = site.start_script("k", &script);
    own.into_iter().for_each(|signal| send(running.pid(), signal));
    for signal in signals {
        send(running.pid(), signal);
        assert_eq!(running.line(), signal.to_string());
    }
    fs::write(site.path("end"), "").unwrap();
    running.finish().expect(5);
}

#[test]
fn after_a_signal_to_end_the_lock_is_kept_until_the_whole_group_has_ended() {
    let site = Site::embedded();
    // The first process dies at once; its child takes its time, still at work on what the lock
    // protects.
    let script = "trap 'exit 3' TERM; \
                  sh -c 'trap \"while [ ! -e go ]; do sleep 0.02; done; echo > tidied; exit\" TERM; \
                  echo ready; while :; do sleep 0.02; done' & wait";
    let running = site.start_script("k --ttl 1h --grace 10m", script);
    send(running.pid(), libc::SIGTERM);
    site.line("wait -w 1 k").complains(75, "held by");
    fs::write(site.path("go"), "").unwrap();
    running.finish().expect(3);
    assert!(site.path("tidied").exists());
    site.line("run -n k -- true").expect(0);
}

/// A shell that ends on TERM, and a child that does not; both write their process ids into `pids`.
const LEAVES_A_REST: &str = "sh -c 'trap \"\" TERM INT HUP; echo $$ >> pids; \
                             while :; do sleep 0.05; done' >/dev/null 2>&1 & \
                             while [ ! -s pids ]; do sleep 0.02; done; echo $$ >> pids; echo ready; \
                             while :; do sleep 0.05; done";

fn leaves_a_rest(site: &Site, options: &str) -> (Running, u32, u32) {
    let running = site.start_script(options, LEAVES_A_REST);
    let pids: Vec<u32> = site.read("pids").lines().map(|line| line.parse().unwrap()).collect();
    (running, pids[0], pids[1])
}

#[test]
fn a_rest_that_does_not_end_keeps_the_lock_until_a_second_signal_kills_it() {
    for (site, _server) in [(Site::embedded(), None), on_redis()] {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            let (mut running, rest, command) = leaves_a_rest(&site, "k --ttl 1h --grace 0s");
            send(running.pid(), signal);
            gone(command);
            site.line("run -n k -- true").expect(75);
            assert!(state(rest).is_some(), "it is waited for");
            let line = running.message();
            assert!(line.contains("a part of it runs on and keeps the lock"), "{line}");
            send(running.pid(), signal);
            running.finish().expect(128 + signal);
            gone(rest);
            site.line("run -n k -- true").expect(0);
            fs::remove_file(site.path("pids")).unwrap();
        }
    }
}

fn on_redis() -> (Site, Option<RedisServer>) {
    let server = RedisServer::start();
    (Site::at(server.url()), Some(server))
}

#[test]
fn a_candidate_that_a_signal_ends_waits_for_the_rest() {
    let site = Site::embedded();
    let words = ["elect", "k", "--ttl", "1h", "--grace", "300ms", "--restart"];
    let mut running = site.start(words.into_iter().chain(["--", "sh", "-c", LEAVES_A_REST]));
    running.line();
    let pids = site.read("pids");
    let [rest, command] = pids.lines().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()[..]
    else {
        panic!("{pids}");
    };
    send(running.pid(), libc::SIGTERM);
    gone(command);
    site.line("run -n k -- true").expect(75);
    send(rest, libc::SIGKILL);
    running.finish().expect(143);
    site.line("run -n k -- true").expect(0);
}

#[test]
fn what_the_command_leaves_running_lives_on_without_the_lock() {
    let site = Site::embedded();
    let script = "sleep 1000 </dev/null >/dev/null 2>&1 & echo $!";
    let done = site.run(["run", "k", "-c", script]).expect(0);
    let pid = done.stdout.trim().parse().unwrap();
    site.line("run -n k -- true").expect(0);
    assert!(state(pid).is_some());
    send(pid, libc::SIGKILL);
}

#[test]
fn a_lost_lock_ends_the_whole_group_even_if_it_ignores_term() {
    let site = Site::embedded();
    let (running, pids) = stubborn(&site, "k --ttl 2s");
    let fence = fence(&site, "k");
    let done = site.run(["force-release", "k", "--fence", &fence]).expect(0);
    assert!(done.stderr.contains(&format!("force-released \"k\" (fence {fence})")), "{done:?}");
    let done = running.finish().expect(76);
    let place = format!("lost \"k\" at {} (fence {fence}): ", site.store());
    assert!(done.stderr.contains(&place), "{done:?}");
    pids.into_iter().for_each(gone);
}

#[test]
fn a_lost_lock_gives_the_command_time_to_tidy_up() {
    let site = Site::embedded();
    let script = "trap 'echo tidied; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let running = site.start_script("k --ttl 5s --grace 2s", script);
    let fence = fence(&site, "k");
    site.run(["force-release", "k", "--fence", &fence]).expect(0);
    let done = running.finish().expect(76);
    assert_eq!(done.stdout, "tidied\n");
}

#[test]
fn a_lost_lock_says_what_the_server_said_to_its_last_renewal() {
    let server = RedisServer::builder().password("first-word").start();
    let site = Site::at(server.url());
    let (running, pids) = stubborn(&site, "k --ttl 2s");
    let mut hold = site.start(["hold", "h", "--ttl", "2s", "--ignore-stdin"]);
    hold.line();
    drop(server.cli(&["CONFIG", "SET", "requirepass", "second-word"]));
    drop(server.cli(&["CLIENT", "KILL", "TYPE", "normal"]));
    let (run, hold) = (running.finish().expect(76), hold.finish().expect(76));
    pids.into_iter().for_each(gone);
    for (done, key) in [(run, "k"), (hold, "h")] {
        for part in [&*format!("lost \"{key}\""), "wrong user name", "LEASEHOLD_PASSWORD"] {
            assert!(done.stderr.contains(part), "{part}: {done:?}");
        }
    }
}

#[test]
fn a_store_that_goes_away_loses_the_lock_and_ends_the_command() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let (running, pids) = stubborn(&site, "k --ttl 1s");
    server.pause();
    let done = running.finish().expect(76);
    for part in ["no renewal was confirmed for", " within ", "; the command is stopped"] {
        assert!(done.stderr.contains(part), "{part}: {done:?}");
    }
    pids.into_iter().for_each(gone);
    server.resume();
}

#[test]
fn a_killed_supervisor_takes_the_command_and_its_children_along() {
    let site = Site::embedded();
    let (mut running, pids) = stubborn(&site, "k --ttl 1h");
    running.process().kill();
    pids.into_iter().for_each(gone);
    // An hour's ttl, but a holder that is known to be dead.
    site.line("run -w 30 k -- true").expect(0);
}

#[test]
fn the_command_dies_with_its_supervisor_even_without_the_watchdog() {
    let site = Site::embedded();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let mut running = site.start(["run", "k", "-c", script]);
    let pid = running.line().parse().unwrap();
    let watchdog = watchdog(running.pid());
    send(watchdog, libc::SIGKILL);
    gone(watchdog);
    running.process().kill();
    gone(pid);
}

#[test]
fn the_watchdog_leaves_with_its_supervisor() {
    let site = Site::embedded();
    let running = site.start_script("k", "echo ready; while [ ! -e end ]; do sleep 0.02; done");
    let watchdog = watchdog(running.pid());
    fs::write(site.path("end"), "").unwrap();
    running.finish().expect(0);
    gone(watchdog);
}

#[test]
fn a_stopped_supervisor_can_not_keep_the_command_beyond_its_lease() {
    let site = Site::embedded();
    let script = "trap '' TERM; echo ready; while :; do echo first >> log; done";
    let mut first = site.start_script("k --ttl 4s --grace 2s", script);
    first.process().pause();
    // The store grants the lock when the lease has run out; by then the first command is dead.
    site.run(["run", "k", "-c", "echo second >> log; sleep 0.2"]).expect(0);
    let log = site.read("log");
    assert!(log.starts_with("first\n") && log.ends_with("second\n"), "{}", &log[log.len() - 40..]);
    first.process().resume();
    let done = first.finish().expect(76);
    assert!(done.stderr.contains("lost \"k\""), "{done:?}");
}

#[test]
fn a_command_that_stops_itself_keeps_its_lock() {
    let site = Site::embedded();
    let script = "echo $$; kill -STOP $$; echo back";
    let mut running = site.start(["run", "k", "--ttl", "1500ms", "-c", script]);
    let pid = running.line().parse().unwrap();
    until("it has stopped", || state(pid) == Some('T'));
    let fence = fence(&site, "k");
    until("many ttls have passed", || {
        let lock = lock(&site, "k");
        assert_eq!(lock["holders"][0]["fence"], fence.as_str(), "{lock}");
        lock["holders"][0]["held_for_ms"].as_u64().unwrap() > 4000
    });
    assert_eq!(state(pid), Some('T'));
    send(running.pid(), libc::SIGCONT);
    assert_eq!(running.line(), "back");
    running.finish().expect(0);
}

#[test]
fn a_command_that_is_stopped_where_there_is_no_terminal_does_not_stop_leasehold() {
    let site = Site::embedded();
    // In a group that a shell could continue, which the system requires before it stops a process
    // for a terminal.
    let line = "exec setsid -w bash -c 'set -m
                \"$0\" run k -c \"echo \\$\\$; kill -TTIN \\$\\$; exit 7\" & wait $!' \"$0\"";
    let mut running = Running::start(shell(&site, line));
    let pid = running.line().parse().unwrap();
    until("it has stopped", || state(pid) == Some('T'));
    send(pid, libc::SIGCONT);
    running.finish().expect(7);
}

#[test]
fn a_stopped_command_can_be_ended() {
    let site = Site::embedded();
    let mut running = site.start(["run", "k", "-c", "echo $$; kill -STOP $$"]);
    let pid = running.line().parse().unwrap();
    until("it has stopped", || state(pid) == Some('T'));
    send(running.pid(), libc::SIGTERM);
    running.finish().expect(128 + libc::SIGTERM);
}

#[test]
fn an_interrupted_wait_leaves_nothing_behind() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    holder.line();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        let waiter = site.start(["run", "k", "--", "echo", "never"]);
        let waiting = || lock(&site, "k")["waiters"].as_array().unwrap().len();
        until("it waits", || waiting() == 1);
        send(waiter.pid(), signal);
        let done = waiter.finish().expect(128 + signal);
        assert_eq!(done.stdout, "");
        assert_eq!(waiting(), 0);
    }
    send(holder.pid(), libc::SIGTERM);
    holder.finish().expect(0);
    site.line("run -n k -- true").expect(0);
}

#[test]
fn a_hold_ends_with_its_input() {
    let site = Site::embedded();
    let mut command = site.command(["hold", "a key"]);
    command.stdin(std::process::Stdio::piped());
    let mut holder = Running::start(command);
    let fence = fence_of_line(&holder.line(), "a key");
    assert_eq!(fence, self::fence(&site, "a key"));
    site.run(["run", "-n", "a key", "--", "true"]).expect(75);
    drop(holder.child().stdin.take());
    holder.finish().expect(0);
    site.run(["run", "-n", "a key", "--", "true"]).expect(0);
    // At once, with an input that ends at once.
    let mut command = site.command(["hold", "a key"]);
    finish(command.stdin(std::process::Stdio::piped())).expect(0);
}

fn fence_of_line(line: &str, key: &str) -> String {
    let (fence, name) = line.split_once(' ').unwrap();
    assert_eq!(name, key);
    fence.to_owned()
}

#[test]
fn a_lost_hold_is_reported() {
    let site = Site::embedded();
    let mut holder = site.start(["hold", "k", "--ignore-stdin", "--ttl", "5s"]);
    let fence = fence_of_line(&holder.line(), "k");
    site.run(["force-release", "k", "--fence", &fence]).expect(0);
    holder.finish().complains(76, "lost \"k\"");
}

#[test]
fn waiting_ends_when_the_lock_is_free_and_takes_nothing() {
    let site = Site::embedded();
    site.line("wait -n k").expect(0);
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    holder.line();
    let waiter = site.start(["wait", "k"]);
    holder.process().signal(Signal::TERM);
    holder.finish().expect(0);
    assert_eq!(waiter.finish().expect(0).stdout, "");
    assert_eq!(lock(&site, "k")["holders"].as_array().map_or(0, Vec::len), 0);
}

#[test]
fn a_release_that_the_store_does_not_answer_is_reported_and_keeps_the_commands_code() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let script = "echo ready; while [ ! -e end ]; do sleep 0.02; done; exit 4";
    let running = site.start_script("k --ttl 1h", script);
    server.kill();
    fs::write(site.path("end"), "").unwrap();
    let done = running.finish().expect(4);
    assert!(done.stderr.contains("warning: release \"k\""), "{done:?}");
}

#[test]
fn a_store_that_forgot_the_lock_while_the_command_ran_is_a_loss() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let script = "echo ready; while [ ! -e end ]; do sleep 0.02; done";
    let running = site.start_script("k --ttl 1h", script);
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    fs::write(site.path("end"), "").unwrap();
    let done = running.finish().expect(76);
    assert!(done.stderr.contains("lost \"k\""), "{done:?}");
}

#[test]
fn a_request_to_stop_without_a_terminal_leaves_the_script_that_started_it_alone() {
    let site = Site::embedded();
    let script = "\"$1\" run k -- sh -c 'touch ready; exec sleep 1000' & it=$!
                  until [ -e ready ]; do sleep 0.02; done
                  kill -TSTP $it
                  until grep -q '^State:.T' /proc/$it/status; do sleep 0.02; done
                  touch goes-on
                  kill -CONT $it; kill $it; wait $it; exit 0";
    fs::write(site.path("script"), script).unwrap();
    // Job control gives the script a group that could be stopped and continued.
    let line = "bash -c 'set -m; sh ./script \"$0\" & wait' \"$0\"";
    let running = Running::start(shell(&site, line));
    appears(&site.path("goes-on"));
    running.finish().expect(0);
    site.line("run -n k -- true").expect(0);
}
