//! `hold`: how long it holds, and whether its caller learns of it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::harness::{Running, Site, finish, killed_by, shell, until};
use crate::watchdog::send;

#[test]
fn a_hold_in_the_background_of_a_script_holds_and_says_until_when() {
    let site = Site::embedded();
    // A shell without job control gives it /dev/null for standard input.
    let mut command = site.command(["hold", "k"]);
    command.stdin(Stdio::null());
    let mut holder = Running::start(command);
    holder.line();
    site.line("run k -n -- true").complains(75, "held by");
    holder.process().signal(Signal::TERM);
    let done = holder.finish().expect(0);
    assert!(done.stderr.contains("is held until a signal comes; --while-pid $$"), "{done:?}");
    site.line("run k -n -- true").expect(0);
}

#[test]
fn a_hold_ends_and_releases_on_every_signal_that_ends_a_process() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let named = [Signal::USR1, Signal::ALARM, Signal::XCPU, Signal::VTALARM, Signal::HUP];
    let named = named.map(Signal::as_raw);
    let others = [libc::SIGABRT, libc::SIGTRAP, libc::SIGRTMIN(), libc::SIGRTMAX()];
    for signal in named.into_iter().chain(others) {
        let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
        holder.line();
        send(holder.pid(), signal);
        holder.finish().expect(0);
        site.line("run k -n -- true").expect(0);
    }
}

#[test]
fn a_fault_that_is_only_sent_ends_a_hold_the_second_time() {
    let site = Site::embedded();
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
        holder.line();
        send(holder.pid(), signal);
        send(holder.pid(), libc::SIGTERM);
        holder.finish().expect(0);

        let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
        holder.line();
        until("it has ended", || {
            // One that comes while another is on its way is none.
            send(holder.pid(), signal);
            holder.exited().is_some()
        });
        assert_eq!(killed_by(&holder.finish()), Some(signal));
        site.line("run k -n -- true").expect(0);
    }
}

#[test]
fn a_hold_lasts_while_a_process_does() {
    let site = Site::embedded();
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut holder = site.start(["hold", "k", "--while-pid", &process.id().to_string()]);
    holder.line();
    site.line("run k -n -- true").complains(75, "held by");
    process.kill().unwrap();
    // Not yet collected, but at its end.
    holder.finish().expect(0);
    site.line("run k -n -- true").expect(0);
    process.wait().unwrap();
    let gone = process.id().to_string();
    site.run(["hold", "k", "--while-pid", &gone]).complains(64, "no such process");
    site.run(["hold", "k", "--while-pid", "0"]).complains(64, "--while-pid 0");
}

#[test]
fn a_hold_of_which_no_caller_can_learn_is_released_with_a_message() {
    let site = Site::embedded();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = site.command(["hold", "k", "--ignore-stdin"]);
    let mut process = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    until("it has ended", || process.try_wait().unwrap().is_some());
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("standard output is not read"), "{said}");
    site.line("run k -n -- true").expect(0);
    let mut command = site.command(["hold", "k"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = command.stdout(full).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(74));
    finish(&mut site.command(["run", "k", "-n", "--", "true"])).expect(0);
}

#[test]
fn a_hold_whose_output_is_closed_from_the_start_is_refused_before_it_begins() {
    let site = Site::embedded();
    finish(&mut shell(&site, "\"$0\" hold k --ignore-stdin >&-")).complains(74, "is closed");
    assert!(!site.path("locks").exists());
    // Who wants to learn nothing says so.
    let mut holder = Running::start(shell(&site, "exec \"$0\" hold k --ignore-stdin >/dev/null"));
    until("it is held", || !crate::harness::lock(&site, "k").is_null());
    holder.process().signal(Signal::TERM);
    holder.finish().expect(0);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long it takes is what is tried")]
fn a_hold_that_is_lost_since_the_store_is_silent_does_not_wait_for_the_store() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let mut holders: Vec<Running> = (0..4)
        .map(|n| {
            let key = n.to_string();
            let mut holder = site.start(["hold", &key, "--ignore-stdin", "--ttl", "1s"]);
            holder.line();
            holder
        })
        .collect();
    server.pause();
    let mut lasted: Vec<Duration> = Vec::new();
    let paused = Instant::now();
    until("all have ended", || {
        let before = holders.len();
        holders.retain_mut(|holder| holder.exited().is_none());
        lasted.extend(std::iter::repeat_n(paused.elapsed(), before - holders.len()));
        holders.is_empty()
    });
    // A second for the lease, and two more for a store that does not answer. Not all of them can
    // have been held up by something else.
    assert!(lasted[0] < Duration::from_millis(2800), "{lasted:?}");
    server.resume();
}
