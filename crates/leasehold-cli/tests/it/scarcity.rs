//! Where the system has nothing left: no thread, no process, no file descriptor, no room in files.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use leasehold_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::harness::{Done, Site, finish, lock, until};

fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, limit: u64) {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the hook makes one system call, on memory of its own.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// It worked, or says that it could not, and why; and then nothing was run.
fn worked_or_said_why(done: &Done, what: &str) -> bool {
    let code = done.status.code();
    assert!(!done.stderr.contains("panicked"), "{what}: {done:?}");
    if code == Some(0) {
        assert_eq!(done.stdout, "ran\n", "{what}");
        return true;
    }
    assert!([Some(71), Some(69)].contains(&code), "{what}: {done:?}");
    assert!(done.stderr.starts_with("leasehold: "), "{what}: {done:?}");
    assert!(
        code == Some(69) || done.stderr.contains("ulimit -"),
        "what to raise: {what}: {done:?}"
    );
    assert_eq!(done.stdout, "", "{what}: {done:?}");
    false
}

const RUN: [&str; 6] = ["run", "k", "-n", "--", "echo", "ran"];

fn too_few_descriptors(site: &Site) {
    let mut worked = 0;
    // With three not even the loader of programs finds its libraries.
    for limit in 4..=40 {
        let mut command = site.command(RUN);
        limited(&mut command, libc::RLIMIT_NOFILE, limit);
        let done = finish(&mut command);
        worked += u32::from(worked_or_said_why(&done, &format!("{limit} descriptors")));
        site.line("run k -w 30 -- true").expect(0);
    }
    assert!((1..30).contains(&worked), "some are too few, and some are enough: {worked}");
}

#[test]
fn too_little_memory_for_the_map_of_a_store_is_the_systems_shortage() {
    let site = Site::embedded();
    site.line("run k -- true").expect(0);
    let mut command = site.command(RUN);
    // Enough for the command, and less than the 256 MiB to which a store may grow.
    limited(&mut command, libc::RLIMIT_AS, 250 << 20);
    finish(&mut command).complains(71, "ulimit -v");
    site.line("run k -n -- true").expect(0);
}

#[test]
fn too_few_descriptors_are_reported_in_words_on_one_machine() {
    let site = Site::embedded();
    too_few_descriptors(&site);
    // Nor does a wait wait for more of them.
    for limit in 4..=40 {
        let mut command = site.command(["run", "k", "--", "echo", "ran"]);
        limited(&mut command, libc::RLIMIT_NOFILE, limit);
        worked_or_said_why(&finish(&mut command), &format!("{limit} descriptors, and a wait"));
    }
}

#[test]
fn too_few_descriptors_are_reported_in_words_on_redis() {
    let server = RedisServer::start();
    too_few_descriptors(&Site::at(server.url()));
}

/// A user that nobody else is, so that its processes can be counted.
const NOBODY_ELSE: u32 = 61_234;

fn too_few_processes(site: &Site, user: u32) {
    chown(site.path(""), Some(user), Some(user)).unwrap();
    let as_user = |words: &[&str], limit: Option<u64>| {
        let mut command = site.command(words);
        if let Some(limit) = limit {
            limited(&mut command, libc::RLIMIT_NPROC, limit);
        }
        finish(command.uid(user).gid(user))
    };
    if !is_reachable_by(user) {
        println!("NOT TRIED: another user can't get at the command, so processes can't be scarce");
        return;
    }
    let mut worked = 0;
    for limit in 1..=16 {
        let done = as_user(&RUN, Some(limit));
        worked += u32::from(worked_or_said_why(&done, &format!("{limit} processes")));
        as_user(&["run", "k", "-w", "30", "--", "true"], None).expect(0);
    }
    assert!((1..15).contains(&worked), "some are too few, and some are enough: {worked}");
}

fn is_reachable_by(user: u32) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    is_root
        && Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .arg("--version")
            .uid(user)
            .output()
            .is_ok_and(|done| done.status.success())
}

#[test]
fn too_few_processes_are_reported_in_words_on_one_machine() {
    too_few_processes(&Site::embedded(), NOBODY_ELSE);
}

#[test]
fn too_few_processes_are_reported_in_words_on_redis() {
    let server = RedisServer::start();
    too_few_processes(&Site::at(server.url()), NOBODY_ELSE + 1);
}

#[test]
fn a_command_that_waits_at_a_server_without_memory_ends_and_leaves_the_lock_to_others() {
    let server = RedisServer::start();
    let site = Site::at(server.url());
    let mut holder = site.start_script("k --ttl 2s", "echo held; exec sleep 600");
    let waiter = site.start(["run", "k", "--", "echo", "ran"]);
    until("it is in the queue", || lock(&site, "k")["waiters"].as_array().unwrap().len() == 1);
    assert_eq!(server.cli(&["config", "set", "maxmemory", "1"]), "OK");
    waiter.finish().complains(69, "memory limit");
    assert!(lock(&site, "k")["waiters"].as_array().unwrap().is_empty());
    holder.process().signal(Signal::TERM);
    holder.finish();
    assert_eq!(server.cli(&["config", "set", "maxmemory", "0"]), "OK");
    site.line("run k -n -- true").expect(0);
}

#[test]
fn too_many_locks_for_the_environment_of_the_command_are_reported_as_that() {
    let site = Site::embedded();
    let keys: Vec<_> = (0..1_200).map(|number| format!("{}{number:04}", "k".repeat(100))).collect();
    let mut command = site.command(["run", "-n"]);
    command.args(&keys).args(["--", "true"]);
    // A quarter of the stack is what arguments and environment may have, and 128 KiB at least.
    limited(&mut command, libc::RLIMIT_STACK, 1 << 20);
    finish(&mut command).complains(126, "fewer locks");
}

#[test]
fn a_limit_on_files_is_an_error_and_not_a_signal() {
    let site = Site::embedded();
    for limit in [0, 1, 4096, 65_536] {
        let mut command = site.command(RUN);
        limited(&mut command, libc::RLIMIT_FSIZE, limit);
        let done = finish(&mut command);
        assert!([Some(0), Some(69), Some(71)].contains(&done.status.code()), "{limit}: {done:?}");
    }
    site.line("run k -n -- true").expect(0);
}

#[test]
fn the_command_is_not_deaf_to_the_signal_of_full_files() {
    let site = Site::embedded();
    let done = site.line("run k -- grep SigIgn /proc/self/status").expect(0);
    let ignored = done.stdout.trim().rsplit('\t').next().unwrap();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    assert_eq!(ignored & 1 << (libc::SIGXFSZ - 1), 0, "{done:?}");
}

#[test]
fn a_program_that_can_not_be_run_is_distinguished_from_a_system_that_can_not_run_it() {
    let site = Site::embedded();
    std::fs::write(site.path("text"), "no program").unwrap();
    site.line("run k -n -- ./text").complains(126, "can't run ./text");
    site.line("run k -n -- ./nothing").complains(127, "can't run ./nothing");
    // By another process: while a fork of this one has a file open for writing, it can't be
    // executed.
    let script = |name: &str, text: &str| {
        let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
        let mut shell = Command::new("sh");
        let written = shell.args(["-c", write, name, text]).current_dir(site.path("")).status();
        assert!(written.unwrap().success());
    };
    script("orphan", "#!/no/such/interpreter -x\n");
    site.line("run k -n -- ./orphan")
        .complains(127, "its interpreter /no/such/interpreter is missing");
    script("dos", "#!/bin/sh\r\n");
    site.line("run k -n -- ./dos").complains(127, "its interpreter /bin/sh\\u{d} is missing");
    let mut found = site.command(["run", "k", "-n", "--", "orphan"]);
    let path = format!("{}:/usr/bin", site.path("").display());
    finish(found.env("PATH", path))
        .complains(127, "its interpreter /no/such/interpreter is missing");
    site.line("run k -n -- true").expect(0);
}
