//! Everything that a command has started ends before the next holder begins, whatever tools it was
//! started by, and however the holding ends.
//!
//! A cell is a tool and an end. Under the lock the tool runs a program that adds lines to a file.
//! The next holder looks at the file's length at the beginning and the end of its section.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use leasehold_testkit::server::RedisServer;

use crate::harness::{Running, Site, gone, lock, state, until};
use crate::watchdog::send;

/// Adds a line, in one call each, until it is ended. It starts no process.
const WRITER: &str = "echo $$ >> pids; exec 9<>pipe; \
                      while :; do echo AAAAAAA >> log; read -t 0.02 -u 9 nothing; done";
/// What a command does whose work was left to a process of its own.
const WAIT: &str = "exec 9<>pipe; while :; do read -t 60 -u 9 nothing; done";

/// How long the next holder looks on.
const SECTION: &str = "stat -c %s log > before; sleep 0.2; stat -c %s log > after";

/// Cells that run at a time.
const AT_A_TIME: usize = 12;

struct Tool {
    name: &'static str,
    /// What has to be there.
    needs: &'static str,
    /// Whether only root may use it.
    as_root: bool,
    script: &'static str,
}

const fn tool(name: &'static str, needs: &'static str, script: &'static str) -> Tool {
    Tool { name, needs, as_root: false, script }
}

const fn roots_tool(name: &'static str, needs: &'static str, script: &'static str) -> Tool {
    Tool { name, needs, as_root: true, script }
}

const TOOLS: [Tool; 11] = [
    tool("a shell", "bash", "bash ./writer; :"),
    tool("timeout", "timeout", "timeout 600 bash ./writer; :"),
    tool("set -m", "bash", "set -m; bash ./writer & wait"),
    tool("setsid", "setsid", "setsid -w env -i PATH=\"$PATH\" bash ./writer; :"),
    roots_tool("su", "su", "su nobody -s /bin/bash -c ./writer; :"),
    roots_tool("su -l", "su", "exec su -l nobody -s /bin/bash -c \"cd '$PWD' && ./writer\""),
    roots_tool("runuser", "runuser", "runuser -u nobody -- ./writer; :"),
    roots_tool("sudo", "sudo", "sudo -u nobody ./writer; :"),
    tool(
        "a new session of Python's",
        "python3",
        "python3 -c 'import subprocess; subprocess.run([\"bash\", \"./writer\"], start_new_session=True)'; :",
    ),
    tool("parallel", "parallel", "parallel --will-cite -j2 bash ::: ./writer; :"),
    tool("a double fork", "setsid", "(env -i PATH=\"$PATH\" setsid bash ./writer &); WAIT"),
];

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Term,
    TakenAway,
    MaxHold,
    KillOfLeasehold,
    KillOfTheMainProcess,
    Outage,
}

const ENDS: [End; 6] = [
    End::Term,
    End::TakenAway,
    End::MaxHold,
    End::KillOfLeasehold,
    End::KillOfTheMainProcess,
    End::Outage,
];

fn is_installed(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output();
    there.is_ok_and(|tried| tried.status.success())
}

/// The tools that this machine has. Those that it lacks are named.
fn tools() -> Vec<&'static Tool> {
    let is_root = rustix::process::geteuid().is_root();
    let (here, missing): (Vec<_>, Vec<_>) =
        TOOLS.iter().partition(|tool| is_installed(tool.needs) && (is_root || !tool.as_root));
    for tool in missing {
        println!("NOT TRIED: {}, which is not installed here or is for root", tool.name);
    }
    here
}

fn has_number(site: &Site, file: &str) -> bool {
    site.path(file).exists() && site.read(file).ends_with('\n')
}

fn number(site: &Site, file: &str) -> u32 {
    until("a number is written", || has_number(site, file));
    site.read(file).lines().next().unwrap().parse().unwrap()
}

fn site(store: Option<&RedisServer>) -> Site {
    let site = store.map_or_else(Site::embedded, |server| Site::at(server.url()));
    // For other users.
    fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    for file in ["pids", "log"] {
        fs::write(site.path(file), "").unwrap();
        fs::set_permissions(site.path(file), fs::Permissions::from_mode(0o666)).unwrap();
    }
    // By another process: while a fork of this one has a file open for writing, it can't be
    // executed.
    let make =
        "printf '#!/bin/bash\n%s\n' \"$0\" >writer && chmod 777 writer && mkfifo -m 666 pipe";
    let mut shell = Command::new("sh");
    let made = shell.args(["-c", make, WRITER]).current_dir(site.path("")).status();
    assert!(made.unwrap().success());
    site
}

/// Ends what is left, which nothing is where the promise holds.
struct Writers<'a>(&'a Site);

impl Drop for Writers<'_> {
    fn drop(&mut self) {
        for pid in self.0.read("pids").lines().filter_map(|line| line.parse().ok()) {
            let _: u32 = pid;
            if state(pid).is_some() {
                // SAFETY: `kill` touches no memory of this process; it may be gone already.
                unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
            }
        }
    }
}

/// What goes wrong in a cell, if anything does.
fn tried(tool: &Tool, end: End, key: &str, server: Option<&RedisServer>) -> Option<String> {
    let site = site(server);
    let _writers = Writers(&site);
    let script = format!("echo $$ > main; {}", tool.script.replace("WAIT", WAIT));
    // On a busy machine a tool may need longer than that to start the writer.
    let mut max_hold = Duration::from_secs(2);
    let mut first = loop {
        let limit = format!("{}s", max_hold.as_secs());
        let mut words = vec!["run", key, "--ttl", "2s"];
        if end == End::MaxHold {
            words.extend(["--max-hold", &limit, "--grace", "1s"]);
        }
        words.extend(["--", "bash", "-c", &script]);
        let mut first = site.start(words);
        until("it works or has ended", || has_number(&site, "pids") || first.exited().is_some());
        if has_number(&site, "pids") {
            break first;
        }
        let done = first.finish();
        assert!(max_hold < Duration::from_secs(100), "{}, {end:?}: {done:?}", tool.name);
        max_hold *= 2;
    };
    let main = number(&site, "main");
    let writer = number(&site, "pids");
    let next = || site.start(["run", key, "-w", "60", "--", "sh", "-c", SECTION]);
    let second: Running = match end {
        End::Term => {
            send(first.pid(), libc::SIGTERM);
            next()
        }
        End::TakenAway => {
            let fence = lock(&site, key)["holders"][0]["fence"].as_str().unwrap().to_owned();
            site.run(["force-release", key, "--fence", &fence]).expect(0);
            // It learns of it with its next renewal, as the guarantee says.
            until("it has ended", || first.exited().is_some());
            next()
        }
        End::MaxHold => next(),
        End::KillOfLeasehold => {
            first.process().kill();
            next()
        }
        End::KillOfTheMainProcess => {
            send(main, libc::SIGKILL);
            next()
        }
        End::Outage => {
            let server = server.expect("only a server has outages");
            server.pause();
            until("it has ended", || first.exited().is_some());
            server.resume();
            next()
        }
    };
    let done = second.finish();
    let lines = |file| fs::read_to_string(site.path(file)).unwrap_or_default();
    let (before, after) = (lines("before"), lines("after"));
    let stays = state(writer).is_some();
    (done.status.code() != Some(0) || before != after || before.is_empty() || stays).then(|| {
        format!(
            "{} × {end:?}: the next holder got {:?}, the file grew from {before:?} to {after:?} in its \
             section; the writer lives: {stays}; {}",
            tool.name,
            done.status.code(),
            done.stderr
        )
    })
}

/// Goes through all cells of these ends, several at a time.
fn all_of(ends: &[End], server: Option<&RedisServer>) {
    let cells: VecDeque<_> =
        tools().into_iter().flat_map(|tool| ends.iter().map(move |end| (tool, *end))).collect();
    let cells = Mutex::new(cells.into_iter().enumerate().collect::<VecDeque<_>>());
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                let next = || cells.lock().unwrap().pop_front();
                while let Some((n, (tool, end))) = next() {
                    let found = tried(tool, end, &format!("k{n}"), server);
                    wrong.lock().unwrap().extend(found);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn whatever_tool_has_started_the_work_it_ends_before_the_next_holder_on_one_machine() {
    let ends: Vec<_> = ENDS.into_iter().filter(|end| *end != End::Outage).collect();
    all_of(&ends, None);
}

#[test]
fn whatever_tool_has_started_the_work_it_ends_before_the_next_holder_on_redis() {
    let server = RedisServer::start();
    let ends: Vec<_> = ENDS.into_iter().filter(|end| *end != End::Outage).collect();
    all_of(&ends, Some(&server));
}

/// One outage for all tools, since a stopped server stops for all of them.
#[test]
fn whatever_tool_has_started_the_work_it_ends_before_the_next_holder_after_an_outage() {
    let wrong: Vec<_> = thread::scope(|scope| {
        let cells: Vec<_> = tools()
            .into_iter()
            .map(|tool| {
                scope.spawn(move || tried(tool, End::Outage, "k", Some(&RedisServer::start())))
            })
            .collect();
        cells.into_iter().filter_map(|cell| cell.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}

/// The pid of each worker goes into `pids`, with the term's fence.
const WORKER: &str = "timeout 600 bash -c 'trap \"\" TERM; echo $$ $LEASEHOLD_FENCE >> pids; \
                      exec 9<>pipe; while :; do read -t 60 -u 9 nothing; done'; :";

#[test]
fn an_election_never_has_two_workers_on_one_host() {
    let server = RedisServer::start();
    for server in [None, Some(&server)] {
        let site = site(server);
        let _writers = Writers(&site);
        let words = ["elect", "post", "--ttl", "2s", "--", "bash", "-c", WORKER];
        let leader = site.start(words);
        for term in 1..4 {
            until("a worker works", || site.read("pids").lines().count() == term);
            let pids = site.read("pids");
            let (pid, fence) = pids.lines().last().unwrap().split_once(' ').unwrap();
            for earlier in pids.lines().take(term - 1) {
                let earlier = earlier.split_once(' ').unwrap().0.parse().unwrap();
                assert_eq!(state(earlier), None, "beside {pid}");
            }
            site.run(["force-release", "post", "--fence", fence]).expect(0);
        }
        send(leader.pid(), libc::SIGTERM);
        send(leader.pid(), libc::SIGTERM);
        leader.finish();
        for line in site.read("pids").lines() {
            gone(line.split_once(' ').unwrap().0.parse().unwrap());
        }
    }
}

#[test]
fn a_daemon_that_a_command_left_on_purpose_lives_on_and_keeps_the_lock_only_if_that_is_asked_for() {
    let site = site(None);
    let _writers = Writers(&site);
    let daemon = "setsid -f bash ./writer </dev/null >/dev/null 2>&1; \
                  while [ ! -s pids ]; do sleep 0.02; done; exit 3";
    let count = || site.read("pids").lines().count();
    site.run(["run", "k", "-c", daemon]).expect(3);
    site.line("run k -n -- true").expect(0);
    let first: u32 = site.read("pids").trim().parse().unwrap();
    assert!(state(first).is_some());
    fs::write(site.path("pids"), "").unwrap();
    let waits = site.start(["run", "k", "--until-all-end", "--ttl", "2s", "-c", daemon]);
    until("it is there", || count() == 1);
    site.line("run k -w 1 -- true").complains(75, "held by");
    let second: u32 = site.read("pids").trim().parse().unwrap();
    send(second, libc::SIGKILL);
    waits.finish().expect(3);
    site.line("run k -n -- true").expect(0);
    // What an earlier command left is nothing to a later one.
    assert!(state(first).is_some());
    send(first, libc::SIGKILL);
}

#[test]
fn a_command_whose_main_process_a_signal_ends_says_so_and_its_rest_is_ended() {
    let site = site(None);
    let _writers = Writers(&site);
    let script = "echo $$ > main; bash ./writer & wait";
    let first = site.start(["run", "k", "--ttl", "1h", "--", "bash", "-c", script]);
    let writer = number(&site, "pids");
    send(number(&site, "main"), libc::SIGSEGV);
    let done = first.finish().expect(128 + libc::SIGSEGV);
    assert!(done.stderr.contains("SEGV"), "{done:?}");
    assert!(done.stderr.contains("the rest"), "{done:?}");
    assert_eq!(state(writer), None);
    site.line("run k -n -- true").expect(0);
}

#[test]
fn a_job_whose_leasehold_is_killed_alone_frees_a_redis_lock_as_soon_as_it_is_dead() {
    let server = RedisServer::builder().password("sentinel").start();
    let site = site(Some(&server));
    let _writers = Writers(&site);
    for options in [&[] as &[&str], &["--limit", "3", "--permits", "2"]] {
        fs::write(site.path("pids"), "").unwrap();
        let words = ["run", "k", "--ttl", "1h"].iter().chain(options);
        let mut first = site.start(words.chain(&["--", "bash", "./writer"]));
        let writer = number(&site, "pids");
        first.process().kill();
        let again = ["run", "k", "-w", "60"].iter().chain(options);
        site.run(again.chain(&["--", "true"])).expect(0);
        assert_eq!(state(writer), None);
        site.run(["release", "--all", "--owner", "nobody"]);
    }
}

#[test]
fn what_may_not_be_signalled_keeps_the_lock_until_it_has_ended() {
    let server = RedisServer::start();
    let site = site(Some(&server));
    let program = env!("CARGO_BIN_EXE_leasehold");
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new("runuser");
        command.args(["-u", "nobody", "--"]).args(words);
        command.current_dir(site.path("")).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("LEASEHOLD_STORE", site.store());
        command
    };
    let may_try = rustix::process::geteuid().is_root()
        && is_installed("runuser")
        && is_installed("perl")
        && as_nobody(&["test", "-x", program]).status().is_ok_and(|tried| tried.success());
    if !may_try {
        println!(
            "NOT TRIED: this takes root, runuser, perl, and a target directory open to others"
        );
        return;
    }
    // A copy that every user runs as root, with all its rights.
    let copied = "cp \"$(command -v perl)\" roots && chmod 4755 roots";
    assert!(
        Command::new("sh")
            .args(["-c", copied])
            .current_dir(site.path(""))
            .status()
            .unwrap()
            .success()
    );
    let script = "./roots -e '$SIG{TERM} = \"IGNORE\"; ($<, $>) = (0, 0); open(F, \">\", \"up\"); \
                  print F \"$$\\n\"; close(F); sleep 600' & wait";
    let words = [program, "run", "k", "--ttl", "1h", "--grace", "100ms", "--", "sh", "-c", script];
    let mut running = Running::start(as_nobody(&words));
    let roots = number(&site, "up");
    // `runuser` has started it.
    let stat = fs::read_to_string(format!("/proc/{roots}/stat")).unwrap();
    assert!(stat.contains("roots"), "{stat}");
    let leasehold = {
        let watchdog = parent(parent(roots));
        parent(watchdog)
    };
    send(leasehold, libc::SIGTERM);
    let line = running.message();
    assert!(line.contains("belongs to another user"), "{line}");
    site.line("run -n k -- true").complains(75, "held by");
    send(roots, libc::SIGKILL);
    running.finish().expect(143);
    site.line("run -n k -- true").expect(0);
}

fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    after_name.split(' ').nth(1).unwrap().parse().unwrap()
}
