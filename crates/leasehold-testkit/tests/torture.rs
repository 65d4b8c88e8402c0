//! The fault test finds bugs: each test gives it a broken command instead of leasehold.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::Command;

/// Reads the arguments of `run` and `elect` as leasehold does. Other commands do nothing, except
/// `ls` and `show`, which report free locks.
const COMMAND: &str = r#"#!/bin/sh
verb=$1; shift
case $verb in
    ls) echo "$LOCKS"; exit 0 ;;
    run | elect) ;;
    *) exit 0 ;;
esac
keys= permits=
while [ "$1" != -- ]; do
    case $1 in
        -s | -n) ;;
        --permits) permits=$2; shift ;;
        -*) shift ;;
        *) keys="$keys$1
" ;;
    esac
    shift
done
shift
export LEASEHOLD_KEY="$keys" LEASEHOLD_PERMITS="$permits"
"#;

/// A fence for each name, from the time.
const FENCES: &str = "now=$(date +%s%N)
export LEASEHOLD_FENCE=\"$now
$now
$now\"
";

/// One lock for all names.
const LOCK: &str = "exec 9>everything; flock 9\n";

/// Tests a command with this last line, for five seconds and until this many commands have ended;
/// returns the output.
fn tortured(end: &str, locks: &str, commands: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("broken");
    let text = COMMAND.replace("$LOCKS", locks);
    // By another process: while a fork of this one has a file open for writing, it can't be
    // executed.
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let mut shell = Command::new("sh");
    let written = shell.args(["-c", write]).arg(&program).arg(format!("{text}{end}")).status();
    assert!(written.unwrap().success());
    let output = Command::new(env!("CARGO_BIN_EXE_torture"))
        .arg("--program")
        .arg(&program)
        .args(["--patience", "3", "--commands", commands, "embedded", "5", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}{complaint}");
    said
}

#[track_caller]
fn finds(said: &str, lock: &str, what: &str) {
    let found =
        |line: &str| line.starts_with("VIOLATION: ") && line.contains(lock) && line.contains(what);
    assert!(said.lines().any(found), "no violation {what:?} of {lock}:\n{said}");
}

const FREE: &str = "{\\\"locks\\\":[]}";

#[test]
fn a_command_that_locks_nothing_is_found() {
    // Enough for each kind of command to meet the others, even on a slow machine.
    let said = tortured(&format!("{FENCES}\"$@\"\n"), FREE, "400");
    for lock in ["ex/", "rw/0", "sem/0"] {
        finds(&said, lock, "while another acted inside");
    }
    finds(&said, "ex/", "lost an update");
    finds(&said, "ex/", "updates were acknowledged");
    finds(&said, "ex/", "had closed it");
    finds(&said, "report/0", "in its period");
    finds(&said, "order/0", "served were");
    finds(&said, "ex/", "ended though it was held");
}

#[test]
fn writers_that_no_fence_distinguishes_are_found() {
    let said = tortured("export LEASEHOLD_FENCE=\"1\n1\n1\"\n\"$@\"\n", FREE, "0");
    finds(&said, "ex/", "the fence let section");
}

#[test]
fn fences_that_do_not_grow_are_found() {
    let said = tortured(&format!("{LOCK}export LEASEHOLD_FENCE=\"1\n1\n1\"\n\"$@\"\n"), FREE, "0");
    finds(&said, "ex/", "fence 1 of section");
    assert!(!said.contains("while another acted inside"), "one lock for all excludes:\n{said}");
}

#[test]
fn an_exit_code_that_is_not_true_is_found() {
    let said = tortured(&format!("{LOCK}{FENCES}\"$@\"\nexit 0\n"), FREE, "0");
    finds(&said, "run", "exited with 0 (section begun: true, to its end: true");
}

#[test]
fn what_is_left_behind_is_found() {
    let leave = "sleep 1000 9>&- >/dev/null 2>&1 &\n";
    let said = tortured(
        &format!("{LOCK}{FENCES}{leave}\"$@\"\n"),
        "{\\\"locks\\\":[{\\\"key\\\":\\\"ex/0\\\"}]}",
        "0",
    );
    finds(&said, "(sleep)", "is left");
    finds(&said, "ex/0", "locks are left");
}

#[test]
fn a_command_that_hangs_is_found() {
    let said = tortured("exec sleep 1000\n", FREE, "0");
    finds(&said, "run", "did not end");
    finds(&said, "ex/0", "can't be had in the end");
}
