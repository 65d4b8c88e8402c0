//! `ls`, `show`, `force-release`, and outputs that nobody reads.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;

use leasehold_testkit::process::TestProcess;
use leasehold_testkit::server::RedisServer;
use serde_json::Value;

use crate::harness::{Running, Site, lock, until};
use crate::watchdog::send;

fn holder(site: &Site, args: &[&str]) -> Running {
    let mut running = site.start(["hold", "--ignore-stdin"].iter().chain(args));
    running.line();
    running
}

#[test]
fn a_list_is_aligned_and_in_the_order_of_names() {
    let site = Site::embedded();
    assert_eq!(site.line("ls").expect(0).stdout, "");
    let _b = holder(&site, &["jobs/b", "--owner", "web-7", "--meta", "run=1", "--meta", "x=2"]);
    let _a = holder(&site, &["jobs/a", "--owner", "db"]);
    let _other = holder(&site, &["other"]);
    let list = site.line("ls jobs/").expect(0).stdout;
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    let heading = "KEY MODE FENCE OWNER HELD LEFT CLOSED ASKED WAITING META";
    assert_eq!(rows[0], heading.split(' ').collect::<Vec<_>>());
    assert_eq!((rows[1][0], rows[1][3]), ("jobs/a", "db"));
    assert_eq!((rows[2][0], rows[2][3]), ("jobs/b", "web-7"));
    assert_eq!(rows[2][rows[2].len() - 2..], ["run=1,", "x=2"]);
    assert_eq!(rows.len(), 3);
    let column = |line: &str, what: &str| line.find(what).unwrap();
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(column(lines[0], "OWNER"), column(lines[1], "db"));
    assert_eq!(column(lines[0], "OWNER"), column(lines[2], "web-7"));
    assert_eq!(site.line("ls").expect(0).stdout.lines().count(), 4);
    assert_eq!(site.line("ls nothing").expect(0).stdout, "");
}

#[test]
fn a_lock_that_can_not_be_read_is_listed_as_such_beside_the_others() {
    let site = Site::embedded();
    for name in ["a-lock", "bad-lock", "c-lock"] {
        site.line(&format!("acquire {name} --owner web-7")).expect(0);
    }
    damage(&site.path("locks/data.mdb"), b"bad-lock");
    let done = site.line("ls").expect(69);
    let rows: Vec<Vec<&str>> =
        done.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let seen: Vec<_> = rows.iter().map(|row| (row[0], row[3])).collect();
    let bad = ("bad-lock", "(unreadable)");
    assert_eq!(seen, [("KEY", "OWNER"), ("a-lock", "web-7"), ("c-lock", "web-7"), bad]);
    assert!(done.stderr.contains("list \"bad-lock\" at embedded:"), "{done:?}");
    assert!(done.stderr.contains("damaged; other locks are fine"), "{done:?}");
    assert_eq!(site.line("ls a").expect(0).stderr, "");
    let done = site.line("ls --json").expect(69);
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["locks"].as_array().unwrap().len(), 2, "{document}");
    assert_eq!(document["unreadable"].as_array().unwrap().len(), 1, "{document}");
    assert_eq!(document["unreadable"][0]["key"], "bad-lock");
    assert!(document["unreadable"][0]["message"].as_str().unwrap().contains("damaged"));
    // It may be the owner's, so what can be force-released is not all.
    let done = site.line("release --all --owner web-7 --yes").expect(69);
    assert_eq!(done.stdout.matches("released").count(), 2, "{done:?}");
    assert!(done.stderr.contains("\"bad-lock\""), "{done:?}");
    site.line("run a-lock -n -- true").expect(0);
}

#[test]
fn a_lock_that_another_program_damaged_on_a_server_is_called_that_by_every_command() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    for name in ["a-lock", "bad-lock"] {
        site.line(&format!("acquire {name} --owner web-7 --ttl 1h")).expect(0);
    }
    let fence = lock(&site, "bad-lock")["holders"][0]["fence"].as_str().unwrap().to_owned();
    drop(server.cli(&["HSET", "leasehold:{bad-lock}", "state", "\u{11}garbage"]));
    let advice = "is damaged; end all work under the lock, then delete its key";
    for command in [
        "show bad-lock",
        "why bad-lock",
        "run bad-lock -- true",
        "run bad-lock -n -- true",
        "run bad-lock -w 1h -- true",
        "run a-free-lock bad-lock -n -- true",
        "acquire bad-lock",
        "ask bad-lock",
        &format!("force-release bad-lock --fence {fence}"),
    ] {
        let done = site.line(command).complains(69, advice);
        assert!(done.stderr.contains("\"bad-lock\""), "{command}: {done:?}");
        assert!(!done.stderr.contains("user_script"), "{command}: {done:?}");
    }
    let done = site.line("ls").expect(69);
    let rows: Vec<Vec<&str>> =
        done.stdout.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let seen: Vec<_> = rows.iter().map(|row| (row[0], row[3])).collect();
    assert_eq!(seen, [("a-lock", "web-7"), ("bad-lock", "(unreadable)")]);
    assert!(done.stderr.contains("list \"bad-lock\" at redis:"), "{done:?}");
    assert!(done.stderr.contains(advice), "{done:?}");
    let done = site.line("ls --json").expect(69);
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["locks"].as_array().unwrap().len(), 1, "{document}");
    assert_eq!(document["unreadable"][0]["key"], "bad-lock", "{document}");
    assert!(document["unreadable"][0]["message"].as_str().unwrap().contains(advice), "{document}");
    // The advice, followed.
    drop(server.cli(&["DEL", "leasehold:{bad-lock}"]));
    site.line("run bad-lock -n -- true").expect(0);
    site.line("ls").expect(0);
}

#[test]
fn a_wait_behind_a_damaged_holder_reports_the_damage_and_no_outage() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    site.line("acquire k --owner web-7 --ttl 1h").expect(0);
    let _waiter = site.start(["run", "k", "--", "true"]);
    until("it waits", || lock(&site, "k")["waiters"].as_array().is_some_and(|all| all.len() == 1));
    drop(server.cli(&["HSET", "leasehold:{k}", "about", "not a holder"]));
    let done = site.line("run k -w 2s -- true").complains(69, "is damaged");
    assert!(!done.stderr.contains("away") && !done.stderr.contains("again"), "{done:?}");
}

#[test]
fn a_release_of_a_damaged_lock_does_not_promise_that_the_ttl_ends_it() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let script = "echo ready; while [ ! -e go ]; do sleep 0.02; done";
    let running = site.start_script("k", script);
    drop(server.cli(&["HSET", "leasehold:{k}", "state", "\u{11}garbage"]));
    fs::write(site.path("go"), "").unwrap();
    let done = running.finish();
    assert!(done.stderr.contains("is damaged; end all work under the lock"), "{done:?}");
    assert!(!done.stderr.contains("ttl"), "{done:?}");
}

/// Flips a bit behind each copy of a name in a store's file, where its record is.
fn damage(path: &std::path::Path, name: &[u8]) {
    const USED: u64 = 256 * 1024;
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = Vec::new();
    (&file).take(USED).read_to_end(&mut bytes).unwrap();
    let copies: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
    assert!(!copies.is_empty());
    for at in copies {
        let at = at + name.len() + 40;
        file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
    }
}

#[test]
fn a_lock_is_described_with_its_holder_and_its_waiters() {
    let site = Site::embedded();
    let free = site.line("show k").expect(0).stdout;
    assert_eq!(free, format!("key    k\nstate  free\nstore  {}\n", site.store()));
    let _holder = holder(&site, &["k", "--owner", "web-7"]);
    let _waiter = site.start(["run", "k", "--owner", "web-8", "--", "true"]);
    until("it waits", || site.line("show k").expect(0).stdout.contains("waiter 1"));
    let text = site.line("show k").expect(0).stdout;
    for part in [
        "key           k\n",
        "state         held\n",
        "holder        web-7\n",
        "  mode        exclusive\n",
        "waiter 1      web-8\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let show: Value = serde_json::from_str(&site.line("show k --json").expect(0).stdout).unwrap();
    let list: Value = serde_json::from_str(&site.line("ls --json").expect(0).stdout).unwrap();
    assert_eq!((&show["version"], &list["version"]), (&1.into(), &1.into()));
    assert_eq!(show["lock"]["holders"][0]["owner"], "web-7");
    assert_eq!(list["locks"][0]["waiters"][0]["owner"], "web-8");
    let free: Value = serde_json::from_str(&site.line("show x --json").expect(0).stdout).unwrap();
    assert_eq!(free["lock"], Value::Null);
}

#[test]
fn hostile_names_and_notes_are_shown_harmless() {
    let site = Site::embedded();
    let _holder = holder(&site, &["a\u{202e}b", "--owner", "\x1b[31mred", "--meta", "k=\u{9b}2J"]);
    for args in [&["ls"][..], &["show", "a\u{202e}b"], &["run", "-n", "a\u{202e}b", "--", "true"]] {
        let done = site.run(args);
        let shown = format!("{}{}", done.stdout, done.stderr);
        assert!(shown.contains("\\u{1b}[31mred"), "{shown}");
        assert!(!shown.contains(['\x1b', '\u{9b}', '\u{202e}']), "{shown:?}");
    }
    let json = site.line("ls --json").expect(0).stdout;
    assert!(json.is_ascii() && json.contains("a\\u202eb") && json.contains("\\u001b"), "{json}");
}

#[test]
fn a_lock_is_force_released_only_from_the_holder_that_was_seen() {
    let site = Site::embedded();
    site.line("force-release k --fence 7").complains(76, "it has no holder");
    let mut holder = site.start(["hold", "k", "--ignore-stdin"]);
    let fence = holder.line().split_once(' ').unwrap().0.to_owned();
    site.line("force-release k --fence 7").complains(76, &format!("another fence ({fence})"));
    site.run(["run", "-n", "k", "--", "true"]).expect(75);
    let done = site.run(["force-release", "k", "--fence", &fence]).expect(0);
    assert!(done.stderr.contains(&format!("force-released \"k\" (fence {fence}) at")), "{done:?}");
    assert_eq!(done.stdout, "");
    site.line("run -n k -- true").expect(0);
    site.line("force-release k --fence 18446744073709551615").complains(64, "fence");
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let site = Site::embedded();
    let _holder = holder(&site, &["k"]);
    for args in [&["ls"][..], &["show", "k"], &["ls", "--json"], &["man"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = site.command(args);
        command.stdout(writer).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(output.stderr, b"", "{args:?}");
    }
}

#[test]
fn a_signal_ends_what_a_stalled_reader_keeps_waiting() {
    let site = Site::embedded();
    for line in
        ["ui --listen 127.0.0.1:0", "metrics --listen 127.0.0.1:0", "doctor", "doctor --json"]
    {
        let (_reader, writer) = std::io::pipe().unwrap();
        fill(&writer);
        let mut command = site.command(line.split(' '));
        command.stdout(writer).stderr(Stdio::piped());
        let mut process = TestProcess::spawn(command).unwrap();
        until("it catches signals", || catches(process.pid(), libc::SIGTERM));
        send(process.pid(), libc::SIGTERM);
        until(&format!("{line} ends"), || process.exited().is_some());
        assert_eq!(process.exited().unwrap().code(), Some(128 + libc::SIGTERM), "{line}");
    }
}

/// Leaves no room in a pipe.
fn fill(pipe: &std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    let flags = fcntl_getfl(pipe).unwrap();
    fcntl_setfl(pipe, flags | OFlags::NONBLOCK).unwrap();
    while rustix::io::write(pipe, &[b'.'; 4096]).is_ok() {}
    fcntl_setfl(pipe, flags).unwrap();
}

/// Whether a process catches a signal.
fn catches(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (signal - 1)) != 0
}

#[test]
fn an_output_that_can_not_be_written_is_74() {
    let site = Site::embedded();
    for args in [&["show", "k"][..], &["completions", "bash"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = site.command(args);
        command.stdout(full).stderr(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(74), "{args:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("standard output"));
    }
}

#[test]
fn closed_standard_files_hurt_nothing() {
    let site = Site::embedded();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let mut command = std::process::Command::new("sh");
    let script = format!("{program} run k -- true >&- 2>&- <&- && {program} show k >&- 2>&- <&-");
    command.args(["-c", &script]).env("LEASEHOLD_STORE", site.store());
    // The output had no reader.
    crate::harness::finish(&mut command).expect(74);
}
