//! What the command finds itself in: files, signals, environment, standard input.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::harness::{Site, finish};

/// Runs `leasehold run k …` from a shell that has done something before.
fn after(site: &Site, preparation: &str, arguments: &str) -> crate::harness::Done {
    let program = env!("CARGO_BIN_EXE_leasehold");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{preparation}; exec {program} run k {arguments}")]);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("LEASEHOLD_STORE", site.store()).env("HOME", site.path(""));
    finish(command.current_dir(site.path("")).stdin(Stdio::null()))
}

#[test]
fn the_command_inherits_what_leasehold_was_given_and_nothing_of_leaseholds_own() {
    let server = leasehold_testkit::server::RedisServer::start();
    for site in [Site::embedded(), Site::at(server.url())] {
        for opened in ["exec 9<&-", "exec 7</dev/null 9</dev/null"] {
            let inherited = after(&site, opened, "-c 'ls /proc/$$/fd; :'").expect(0).stdout;
            // The environment of this test may have left others open.
            let script = format!("{opened}; exec sh -c 'ls /proc/$$/fd; :'");
            let all = finish(Command::new("sh").args(["-c", &script]).stdin(Stdio::null()));
            assert_eq!(inherited, all.expect(0).stdout);
        }
    }
}

#[test]
fn a_make_under_a_make_shares_its_jobs() {
    let site = Site::embedded();
    let program = env!("CARGO_BIN_EXE_leasehold");
    // Each of the two goes on only when the other is there.
    let inner = "all: a b\na: ; touch a; until [ -e b ]; do sleep 0.02; done\n\
                 b: ; touch b; until [ -e a ]; do sleep 0.02; done\n";
    fs::write(site.path("inner.mk"), inner).unwrap();
    let outer = format!("all: ; +{program} run k -- $(MAKE) -f inner.mk\n");
    fs::write(site.path("outer.mk"), outer).unwrap();
    let mut command = Command::new("make");
    command
        .args(["-j2", "-f", "outer.mk"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap());
    command.env("LEASEHOLD_STORE", site.store()).env("HOME", site.path(""));
    let done = finish(command.current_dir(site.path("")).stdin(Stdio::null())).expect(0);
    assert!(!done.stderr.contains("jobserver"), "{done:?}");
}

/// Without the two signals below the real-time ones: the C library keeps them for itself, and its
/// `posix_spawn`, which starts most of what tests start, leaves them ignored.
fn signal_sets(status: &str) -> (u64, u64) {
    let kept_back = 0b11 << (32 - 1);
    let set = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        let set = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        set & !kept_back
    };
    (set("SigBlk:"), set("SigIgn:"))
}

/// Signals that are ignored here already, and so in everything that is started from here; Rust
/// ignores SIGPIPE for itself, not for the programs it starts.
fn ignored_anyway() -> u64 {
    let (_, ignored) = signal_sets(&fs::read_to_string("/proc/self/status").unwrap());
    ignored & !(1 << (libc::SIGPIPE - 1))
}

#[test]
fn the_command_starts_with_default_signals() {
    let site = Site::embedded();
    let done = site.line("run k -- cat /proc/self/status").expect(0);
    assert_eq!(signal_sets(&done.stdout), (0, ignored_anyway()), "{done:?}");
}

#[test]
fn signals_that_leasehold_inherits_as_ignored_stay_ignored() {
    let site = Site::embedded();
    let done = after(&site, "trap '' HUP USR1", "-- cat /proc/self/status").expect(0);
    let ignored = 1 << (libc::SIGHUP - 1) | 1 << (libc::SIGUSR1 - 1);
    assert_eq!(signal_sets(&done.stdout), (0, ignored | ignored_anyway()), "{done:?}");
}

#[test]
fn a_parent_that_does_not_care_for_its_children_is_no_problem() {
    let site = Site::embedded();
    // With this signal ignored the system collects children by itself.
    let run = |command: &[&str]| {
        let mut command = site.command(["run", "k", "--"].iter().chain(command));
        // SAFETY: the hook makes one system call.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                Ok(())
            });
        }
        finish(&mut command)
    };
    run(&["sh", "-c", "exit 7"]).expect(7);
    let done = run(&["cat", "/proc/self/status"]).expect(0);
    let ignored = 1 << (libc::SIGCHLD - 1);
    assert_eq!(signal_sets(&done.stdout), (0, ignored | ignored_anyway()), "{done:?}");
}

#[test]
fn the_signal_mask_is_the_one_that_leasehold_was_given() {
    let site = Site::embedded();
    let mut command = site.command(["run", "k", "--", "cat", "/proc/self/status"]);
    // SAFETY: the hook makes system calls on memory of its own.
    unsafe {
        command.pre_exec(|| {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGUSR2);
            // Whose coming leasehold needs itself.
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Ok(())
        });
    }
    let done = finish(&mut command).expect(0);
    let blocked = 1 << (libc::SIGUSR2 - 1) | 1 << (libc::SIGCHLD - 1);
    assert_eq!(signal_sets(&done.stdout), (blocked, ignored_anyway()), "{done:?}");
}

#[test]
fn the_command_learns_of_its_lock_and_nothing_secret() {
    let site = Site::embedded();
    let mut command = site.command(["run", "a key", "--owner", "me", "--ttl", "20s", "--", "env"]);
    let uptime_ms = || {
        let uptime = fs::read_to_string("/proc/uptime").unwrap();
        uptime.split(' ').next().unwrap().parse::<f64>().unwrap() * 1000.0
    };
    let before = uptime_ms();
    let done = finish(command.env("LEASEHOLD_PASSWORD", "sentinel")).expect(0);
    let mut variables: Vec<(&str, &str)> =
        done.stdout.lines().filter_map(|line| line.split_once('=')).collect();
    variables.retain(|(name, _)| name.starts_with("LEASEHOLD"));
    variables.sort_unstable();
    let names: Vec<&str> = variables.iter().map(|(name, _)| *name).collect();
    let expected = ["DEADLINE_MS", "FENCE", "KEY", "OUTER", "OWNER", "STORE"];
    assert_eq!(names, expected.map(|name| format!("LEASEHOLD_{name}")));
    let value = |n: usize| variables[n].1;
    assert!(value(1).parse::<u64>().unwrap() > 0);
    assert_eq!((value(2), value(4), value(5)), ("a key", "me", site.store()));
    let (pid, digest) = value(3).split_once('-').unwrap();
    assert!(pid.parse::<u32>().is_ok() && digest.len() == 16, "{}", value(3));
    let deadline: f64 = value(0).parse().unwrap();
    // `/proc/uptime` is cut to 10 ms.
    let earliest = before - 10.0;
    assert!((earliest..uptime_ms() + 20_010.0).contains(&deadline), "{before} {deadline}");
}

#[test]
fn the_command_reads_leaseholds_standard_input_and_writes_its_outputs() {
    let site = Site::embedded();
    let mut command = site.command(["run", "k", "--", "sh", "-c", "cat; echo err >&2"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let done: crate::harness::Done = child.wait_with_output().unwrap().into();
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("through\n", "err\n"));
    done.expect(0);
}

#[test]
fn fences_grow_from_run_to_run() {
    let site = Site::embedded();
    let fence = || {
        let done = site.run(["run", "k", "-c", "echo $LEASEHOLD_FENCE"]).expect(0);
        done.stdout.trim().parse::<u64>().unwrap()
    };
    let fences: Vec<u64> = (0..5).map(|_| fence()).collect();
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[test]
fn a_command_line_runs_in_the_users_shell() {
    let site = Site::embedded();
    let done = site.run(["run", "k", "-c", "echo $0; exit 3"]).expect(3);
    assert_eq!(done.stdout, "/bin/sh\n");
    let mut command = site.command(["run", "k", "-c", "the line"]);
    assert_eq!(finish(command.env("SHELL", "/bin/echo")).expect(0).stdout, "-c the line\n");
}

#[test]
fn a_cooldown_keeps_the_lock_closed_after_the_command() {
    let site = Site::embedded();
    site.line("run k --cooldown 1h -- true").expect(0);
    site.line("run -n k -- echo never").complains(75, "cooling down for another");
    let brief = site.line("run brief --cooldown 50ms -- true");
    brief.expect(0);
    site.line("run brief -- true").expect(0);
}

#[test]
fn a_signal_that_comes_with_the_end_of_the_command_leaves_the_cooldown() {
    let site = Site::embedded();
    // Its parent is the watchdog, whose is leasehold.
    let ends = "trap '' TERM; kill -TERM $(cut -d' ' -f4 /proc/$PPID/stat)";
    for key in (0..20).map(|n| format!("k{n}")) {
        site.run(["run", &key, "--cooldown", "1h", "--", "sh", "-c", ends]);
        site.line(&format!("run -n {key} -- echo never")).complains(75, "cooling down for another");
    }
}
