//! What a command leaves behind when it ends early, judged from outside: by `show`, by the next
//! contender, by its exit code.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use leasehold_testkit::server::RedisServer;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Running, Site, finish, shell, until};
use crate::watchdog::send;

fn shown(site: &Site, key: &str) -> Value {
    let text = site.run(["show", key, "--json"]).expect(0).stdout;
    serde_json::from_str::<Value>(&text).unwrap()["lock"].clone()
}

fn waiters(site: &Site, key: &str) -> usize {
    shown(site, key)["waiters"].as_array().map_or(0, Vec::len)
}

/// Takes a lock, as the kind that the others will ask for.
fn holder(site: &Site, line: &str) -> Running {
    let mut holder = site.start(["hold", "--ignore-stdin"].into_iter().chain(line.split(' ')));
    holder.line();
    holder
}

/// Contenders for the locks `k` and, as a semaphore of one permit, `s`.
const CONTENDERS: [(&str, &str, &str); 8] = [
    ("k", "run k", " -- echo never"),
    ("k", "run k -s", " -- echo never"),
    ("k", "run free k", " -- echo never"),
    ("s", "run s --limit 1", " -- echo never"),
    ("k", "elect k", " -- echo never"),
    ("k", "hold k --ignore-stdin", ""),
    ("k", "acquire k", ""),
    ("k", "wait k", ""),
];

fn nothing_is_left_of_waits_that_timed_out(site: &Site) {
    let _holders = [holder(site, "k"), holder(site, "s --limit 1")];
    for _ in 0..3 {
        for (key, contender, tail) in CONTENDERS {
            let done = site.line(&format!("{contender} -w 300ms{tail}"));
            // 69 on a machine that is so busy that the wait times out before the store's answer.
            assert!(matches!(done.status.code(), Some(75 | 69)), "{contender}: {done:?}");
            assert_eq!(done.stdout, "", "{contender}");
            assert_eq!(waiters(site, key), 0, "after {contender}");
        }
    }
    site.line("run free -n -- true").expect(0);
}

#[test]
fn a_wait_that_timed_out_leaves_no_position_on_redis() {
    let server = RedisServer::start();
    nothing_is_left_of_waits_that_timed_out(&Site::at(server.url()));
}

#[test]
fn a_wait_that_timed_out_leaves_no_position_on_one_machine() {
    nothing_is_left_of_waits_that_timed_out(&Site::embedded());
}

#[test]
fn a_wait_that_a_signal_ends_leaves_no_position_on_redis() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let _holders = [holder(&site, "k"), holder(&site, "s --limit 1")];
    let asking = [Signal::TERM, Signal::INT, Signal::HUP].map(Signal::as_raw);
    let others =
        [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::XCPU, Signal::PROF, Signal::IO];
    let mut others = others.map(Signal::as_raw).to_vec();
    others.extend([libc::SIGABRT, libc::SIGTRAP, libc::SIGRTMIN(), libc::SIGRTMAX()]);
    for (key, contender, tail) in CONTENDERS.into_iter().filter(|(_, line, _)| *line != "wait k") {
        // The others are rare, and end a process too.
        let others = others.iter().filter(|_| matches!(contender, "run k" | "acquire k"));
        for signal in asking.iter().chain(others).copied() {
            let waiter = site.start(format!("{contender}{tail}").split(' '));
            until("it waits", || waiters(&site, key) == 1);
            send(waiter.pid(), signal);
            let done = waiter.finish().expect(128 + signal);
            assert_eq!(done.stdout, "", "{contender}");
            assert_eq!(waiters(&site, key), 0, "after {contender}");
        }
    }
}

/// A silent listener at the store's address, which accepts connections.
fn deaf_store() -> (TcpListener, Site) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let site = Site::at(format!("redis://{}", listener.local_addr().unwrap()));
    (listener, site)
}

#[test]
fn a_signal_ends_a_command_that_is_still_connecting() {
    let (listener, site) = deaf_store();
    for line in [
        "run k -- echo never",
        "run a b -- echo never",
        "elect k -- echo never",
        "hold k --ignore-stdin",
        "acquire k",
        "wait k",
        "observe k",
        "ls",
        "doctor",
    ] {
        for signal in [Signal::TERM, Signal::INT] {
            let mut running = site.start(line.split(' '));
            let connection = listener.accept().unwrap();
            running.process().signal(signal);
            let done = running.finish();
            let ended = done.status.code();
            // A command that leaves nothing behind lets the signal end it.
            let killed = crate::harness::killed_by(&done);
            let number = signal.as_raw();
            assert!(ended == Some(128 + number) || killed == Some(number), "{line}: {done:?}");
            assert_eq!(done.stdout, "", "{line}");
            drop(connection);
        }
    }
}

#[test]
fn a_signal_ends_a_release_that_is_not_answered_and_the_command_keeps_its_code() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let script = "echo $$; while [ ! -e end ]; do sleep 0.02; done; exit 5";
    let mut running = site.start(["run", "k", "--ttl", "1h", "--", "sh", "-c", script]);
    let command: u32 = running.line().parse().unwrap();
    server.pause();
    std::fs::write(site.path("end"), "").unwrap();
    crate::harness::gone(command);
    send(running.pid(), libc::SIGTERM);
    running.finish().expect(5);
    server.resume();
    let mut hold = site.start(["hold", "other", "--ttl", "1h", "--ignore-stdin"]);
    hold.line();
    server.pause();
    // The second one finds it at its release.
    send(hold.pid(), libc::SIGTERM);
    send(hold.pid(), libc::SIGTERM);
    let done = hold.finish().expect(0);
    assert!(done.stderr.contains("no answer; the lock may stay held"), "{done:?}");
    server.resume();
}

#[test]
fn a_limit_bounds_connecting_too_and_a_silent_store_is_not_busy() {
    let (_listener, site) = deaf_store();
    for line in ["run k -w 200ms -- echo never", "hold k -w 200ms", "acquire k -w 200ms"] {
        site.line(line).complains(69, "timed out while the store was away");
        site.run(["-q"].into_iter().chain(line.split(' ')))
            .complains(69, "timed out while the store was away");
    }
    site.line("wait k -w 200ms").complains(69, "timed out while the store was away");
    site.line("elect k -w 200ms -- echo never").complains(69, "timed out while the store was away");
    site.line("run k -n -- echo never").complains(69, "redis://127.0.0.1");
}

/// A server that answers everything with OK.
fn store_that_nods() -> Site {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let site = Site::at(format!("redis://{}", listener.local_addr().unwrap()));
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = [0; 65_536];
                while let Ok(length @ 1..) = connection.read(&mut bytes) {
                    let commands = bytes[..length].iter().filter(|byte| **byte == b'*').count();
                    if connection.write_all("+OK\r\n".repeat(commands).as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    site
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long it takes is what is tried")]
fn connecting_requesting_and_leaving_have_one_limit_together() {
    let site = store_that_nods();
    for line in ["run k -n -- echo never", "acquire k -w 100ms", "hold a b -n"] {
        // Each part may take 2 s by itself. The quickest of three, since the machine may be busy.
        let took = (0..3).map(|_| {
            let begun = Instant::now();
            site.line(line).expect(69);
            begun.elapsed()
        });
        let quickest = took.min().unwrap();
        assert!(quickest < Duration::from_secs(4), "{line}: {quickest:?}");
    }
}

#[test]
fn a_store_that_goes_away_under_a_wait_is_reported_and_is_not_busy() {
    for line in ["run k -w 3 -- echo never", "elect k -w 3 -- echo never", "wait k -w 3"] {
        let server = RedisServer::start();
        let site = Site::at(server.url());
        let _holder = holder(&site, "k");
        let waits = line.starts_with("wait");
        let waiter = site.start(["-q"].into_iter().chain(line.split(' ')));
        // A look takes no position; that it has begun is shown by its asking.
        let asked = || server.command_calls("eval") + server.command_calls("evalsha");
        let before = asked();
        until("it waits", || if waits { asked() > before } else { waiters(&site, "k") == 1 });
        server.kill();
        let done = waiter.finish().complains(69, &server.addr().to_string());
        assert!(!done.stderr.contains("held by"), "{done:?}");
    }
}

#[test]
fn a_wait_rides_out_a_store_that_comes_back_within_its_limit() {
    let server = RedisServer::builder().appendonly().start();
    let site = Site::at(server.url());
    let mut holder = holder(&site, "k --ttl 1h");
    let waiter = site.start(["wait", "k", "-w", "60"]);
    let looked = || server.command_calls("evalsha");
    let before = looked();
    until("it looks", || looked() > before);
    server.kill();
    server.restart();
    holder.process().signal(Signal::TERM);
    waiter.finish().expect(0);
}

#[test]
fn an_election_begins_and_goes_on_whatever_the_store_does() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    server.kill();
    let script = "trap 'echo ended; exit 3' TERM; echo $LEASEHOLD_FENCE; while :; do sleep 0.02; \
                  done";
    let words = ["elect", "post", "--ttl", "2s", "--", "sh", "-c", script];
    let mut leader = site.start(words);
    server.restart();
    let first: u64 = leader.line().parse().unwrap();
    // So long that the release of what was lost goes unanswered.
    server.pause();
    assert_eq!(leader.line(), "ended");
    std::thread::sleep(std::time::Duration::from_secs(5));
    server.resume();
    let second: u64 = leader.line().parse().unwrap();
    assert!(second > first, "{second} after {first}");
    leader.process().signal(Signal::TERM);
    let done = leader.finish().expect(3);
    assert!(done.stderr.contains("trying again"), "{done:?}");
    assert!(!done.stderr.contains("closed"), "{done:?}");
    site.line("run -n post -- true").expect(0);
}

#[test]
fn a_lease_that_can_not_be_printed_is_released() {
    let site = Site::embedded();
    for redirect in [">&-", "> /dev/full", "1< /dev/null"] {
        let line = format!("\"$0\" acquire k --ttl 1h {redirect}");
        finish(&mut shell(&site, &line)).complains(74, "standard output");
        site.line("run -n k -- true").expect(0);
    }
    let done = finish(&mut shell(&site, "\"$0\" acquire k --lease-file lease >&-")).expect(0);
    assert_eq!(done.stderr, "");
    site.line("release --lease-file lease").expect(0);
}

#[test]
fn a_released_lease_leaves_no_file() {
    let server = RedisServer::start();
    for site in [Site::embedded(), Site::at(server.url())] {
        let line = "\"$0\" acquire k --ttl 1h --json --lease-file lease";
        for redirect in ["> /dev/full", ">&-"] {
            finish(&mut shell(&site, &format!("{line} {redirect}")))
                .complains(74, "standard output");
            assert!(!site.path("lease").exists(), "{redirect}");
            site.line("run -n k -- true").expect(0);
        }
        site.line("acquire k --lease-file lease").expect(0);
        site.line("release --lease-file lease").expect(0);
    }
}

/// As Python's `DEVNULL` and Node's `"ignore"` open it.
#[test]
fn what_is_thrown_away_on_purpose_is_a_success() {
    let site = Site::embedded();
    for line in ["acquire k --lease-file lease", "show k", "ls --json", "top --once", "--version"] {
        finish(&mut shell(&site, &format!("\"$0\" {line} 1<>/dev/null"))).expect(0);
    }
}

#[test]
fn a_lease_without_a_reader_is_no_success() {
    let site = Site::embedded();
    let _holder = holder(&site, "k");
    for line in [
        "show k",
        "show k --json",
        "ls",
        "ls --json",
        "ls --watch 1s",
        "top",
        "top --once",
        "doctor",
        "observe k",
        "man",
        "--help",
        "completions bash",
    ] {
        for redirect in [">&-", "1< /dev/null", "1< /"] {
            finish(&mut shell(&site, &format!("\"$0\" {line} {redirect}")))
                .complains(74, "standard output is closed");
        }
    }
    // Also where there is nothing to tell yet.
    let empty = Site::embedded();
    finish(&mut shell(&empty, "\"$0\" ls --watch 1s >&-")).complains(74, "is closed");
}

#[test]
fn a_watching_command_ends_when_its_reader_is_gone() {
    let site = Site::embedded();
    let _holder = holder(&site, "post");
    for line in ["observe post", "observe nobody"] {
        let done = finish(&mut shell(&site, &format!("\"$0\" {line} | head -n 1"))).expect(0);
        assert_eq!(done.stdout.lines().count(), 1, "{done:?}");
    }
}

#[test]
fn a_lease_whose_reader_stalls_is_released_when_a_signal_comes() {
    let site = Site::embedded();
    let (_reader, writer) = full_pipe();
    let mut command = site.command(["acquire", "k", "--ttl", "1h"]);
    let mut process = command.stdout(writer).spawn().unwrap();
    until("it is taken", || !shown(&site, "k").is_null());
    // SAFETY: `kill` touches no memory of this process.
    assert_eq!(unsafe { libc::kill(process.id().cast_signed(), libc::SIGTERM) }, 0);
    until("it has ended", || process.try_wait().unwrap().is_some());
    assert_eq!(process.wait().unwrap().code(), Some(143));
    site.line("run -n k -- true").expect(0);
}

/// A full pipe.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    while writer.write(&[0]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_reader_of_stderr_that_stalls_does_not_keep_a_command_from_being_ended() {
    let site = Site::embedded();
    let (_reader, writer) = full_pipe();
    let script = "exec 2> /dev/null; trap 'echo tidied > tidied; exit 0' TERM; echo > ready; \
                  while :; do sleep 0.02; done";
    let mut command = site.command(["-vvv", "run", "k", "--ttl", "10s", "-c", script]);
    let mut process = command.stderr(writer).spawn().unwrap();
    crate::harness::appears(&site.path("ready"));
    let fence = shown(&site, "k")["holders"][0]["fence"].as_str().unwrap().to_owned();
    site.run(["force-release", "k", "--fence", &fence]).expect(0);
    until("it has ended", || process.try_wait().unwrap().is_some());
    assert_eq!(process.wait().unwrap().code(), Some(76));
    // KILL would not have let it.
    assert_eq!(site.read("tidied"), "tidied\n");
}

#[test]
fn contenders_that_are_killed_at_any_instant_leave_nothing_that_lasts_on_one_machine() {
    nothing_lasts_of_the_killed(&Site::embedded(), "1h");
}

#[test]
fn contenders_that_are_killed_at_any_instant_leave_nothing_that_lasts_on_redis() {
    let server = RedisServer::start();
    nothing_lasts_of_the_killed(&Site::at(server.url()), "2s");
}

fn nothing_lasts_of_the_killed(site: &Site, ttl: &str) {
    for round in 0..40_u64 {
        let mut running = site.start(["run", "k", "--ttl", ttl, "--", "sleep", "0.01"]);
        std::thread::sleep(std::time::Duration::from_micros(round * 700));
        running.process().kill();
    }
    site.line("run k -w 60 -- true").expect(0);
    until("nobody waits", || waiters(site, "k") == 0);
    let lock = shown(site, "k");
    assert_eq!(lock["holders"].as_array().map_or(0, Vec::len), 0, "{lock}");
}
