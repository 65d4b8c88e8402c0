//! The gate when processes inside are killed or stopped, and when other programs change its file.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold_core::{Acquire, ErrorKind, LeaveRequest, ReleaseRequest, Store};
use leasehold_embedded::EmbeddedStore;
use rustix::process::{Pid, Signal, kill_process};

use crate::ask::{WITHIN, granted, request};
use crate::child::{Child, say};
use crate::processes::soon;
use crate::{header, place};

/// Acquires and releases a lock, again and again. It writes to a file when it has the lock, and
/// before it releases it. After it was killed it writes nothing, however long its end takes.
#[expect(clippy::infinite_loop, reason = "it goes on until it is killed")]
pub(crate) async fn in_child(store: &EmbeddedStore, name: &str, path: &Path) {
    let mut written = File::options().append(true).open(path.with_extension("written")).unwrap();
    say("ready");
    loop {
        let asked = request(name);
        let Acquire::Granted(grant) = store.acquire(&asked, WITHIN).await.unwrap() else {
            tokio::time::sleep(Duration::from_micros(50)).await;
            continue;
        };
        let fence = u64::from(grant.fences.first());
        for what in [HAS, STILL_HAD] {
            written.write_all(format!("{what} {fence:<27}\n").as_bytes()).unwrap();
        }
        let ending = ReleaseRequest::new(asked.key, asked.token, grant.fences);
        store.release(&ending, WITHIN).await.unwrap();
    }
}

/// The length of a line, with the fence and spaces after it, so that a page of the file ends with a
/// whole line. A kill may cut a write at the end of a page.
const LINE_BYTES: usize = 32;
const HAS: &str = "has";
const STILL_HAD: &str = "had";

/// How often the lock was acquired. Checks that each holder wrote all before the next one had it,
/// and that fences only grew.
fn times_taken(written: &str) -> usize {
    let (mut holder, mut times) = (0_u64, 0);
    for line in written.lines() {
        assert_eq!(line.len() + 1, LINE_BYTES, "{line}");
        let (what, fence) = line.split_once(' ').unwrap();
        let fence = fence.trim_end().parse().unwrap();
        match what {
            HAS => {
                assert!(fence > holder, "{fence} after {holder}:\n{written}");
                (holder, times) = (fence, times + 1);
            }
            STILL_HAD => assert_eq!(fence, holder, "two had the lock at once:\n{written}"),
            _ => panic!("nobody writes {line}"),
        }
    }
    times
}

/// Processes that use a lock alternately and are killed at any moment, each started through a
/// program.
async fn killed_at_any_moment(by: &[&str], rounds: usize) {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let written = path.with_extension("written");
    File::create(&written).unwrap();
    let start = || {
        let mut child = Child::start_by(by, &path, "witness k");
        child.wait_for("ready");
        child
    };
    let mut children: Vec<Child> = (0..6).map(|_| start()).collect();
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_micros(fastrand::u64(..3_000)));
        children.swap_remove(fastrand::usize(..children.len())).kill();
        children.push(start());
    }
    children.into_iter().for_each(Child::kill);
    soon(&store, "k").await;
    store.entries(WITHIN).await.unwrap();
    let times = times_taken(&fs::read_to_string(written).unwrap());
    assert!(times > rounds, "{times} times");
    Child::that_says(&path, "open", "open").end();
}

#[tokio::test]
async fn processes_killed_at_any_moment_never_let_two_in() {
    killed_at_any_moment(&[], 100).await;
}

/// The command that starts a process in a new PID namespace; `None` if this process may not create
/// one. The test then prints that, and fails under `CI=1`.
fn apart(test: &str) -> Option<Vec<&'static str>> {
    let apart: &[&str] = if rustix::process::geteuid().is_root() {
        &["unshare", "--pid", "--fork", "--kill-child"]
    } else {
        &["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    };
    let [program, words @ ..] = apart else { return None };
    let works = Command::new(program).args(words).arg("true").status();
    if works.is_ok_and(|status| status.success()) {
        return Some(apart.to_vec());
    }
    assert!(std::env::var_os("CI").is_none(), "{test} needs the right to make a PID namespace");
    eprintln!("skipped: {test} needs the right to make a PID namespace (unshare --pid)");
    None
}

/// All of them have the process number 1.
#[tokio::test]
async fn processes_with_one_number_never_let_two_in() {
    let Some(by) = apart("gate::processes_with_one_number_never_let_two_in") else { return };
    killed_at_any_moment(&by, 40).await;
}

#[tokio::test]
async fn a_process_of_another_namespace_stopped_inside_is_named_as_such() {
    let test = "gate::a_process_of_another_namespace_stopped_inside_is_named_as_such";
    let Some(by) = apart(test) else { return };
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    let mut child = Child::start_by(&by, &path, "spin k");
    child.wait_for("ready");
    let outer = child.process.pid();
    let inner = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
    let inner = Pid::from_raw(inner.trim().parse().unwrap()).unwrap();
    let refused = loop {
        kill_process(inner, Signal::STOP).unwrap();
        let asked = request("mine");
        let answer = store.acquire(&asked, Duration::from_millis(100)).await;
        let leaving = LeaveRequest::new(asked.key, asked.token);
        match answer {
            Ok(_) => drop(store.leave(&leaving, WITHIN).await.unwrap()),
            Err(error) => break error,
        }
        kill_process(inner, Signal::CONT).unwrap();
    };
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    let text = refused.to_string();
    assert!(text.contains("process 1 of another container"), "{text}");
    kill_process(inner, Signal::CONT).unwrap();
    granted(store.acquire(&request("mine"), WITHIN).await.unwrap());
}

/// The answer of a store that was opened before, once it has looked.
async fn refusal(store: &EmbeddedStore) -> leasehold_core::Error {
    loop {
        match store.acquire(&request("other"), WITHIN).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => return error,
        }
    }
}

#[tokio::test]
async fn a_file_that_is_exchanged_in_use_lets_no_other_in_with_those_inside() {
    for (name, by_a_copy) in [("gate", false), ("gate", true), ("data.mdb", true)] {
        let (path, _keep) = place();
        let store = EmbeddedStore::open(&path).unwrap();
        granted(store.acquire(&request("k"), WITHIN).await.unwrap());
        let file = path.join(name);
        if by_a_copy {
            fs::copy(&file, path.join("copy")).unwrap();
            fs::rename(path.join("copy"), &file).unwrap();
        } else {
            fs::remove_file(&file).unwrap();
        }
        let mut newcomer = Child::start(&path, "try-open k");
        let said = newcomer.next().unwrap();
        assert!(said.contains("Unavailable") && said.contains("removed or replaced"), "{said}");
        newcomer.end();
        let refused = refusal(&store).await;
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        let refused = refused.to_string();
        let why = format!("the file {name} of this store was removed or replaced");
        assert!(refused.contains(&why), "{refused}");
        drop(store);
        Child::that_says(&path, "open", "open").end();
    }
}

/// A store restored while it is unused is the store from then on.
#[tokio::test]
async fn a_data_file_that_was_put_back_while_unused_is_adopted() {
    let (path, _keep) = place();
    let store = EmbeddedStore::options().detached(true).open(&path).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    drop(store);
    fs::copy(path.join("data.mdb"), path.join("copy")).unwrap();
    fs::rename(path.join("copy"), path.join("data.mdb")).unwrap();
    for _ in 0..2 {
        let store = EmbeddedStore::open(&path).unwrap();
        assert!(matches!(store.acquire(&request("k"), WITHIN).await, Ok(Acquire::Busy(_))));
        Child::that_says(&path, "open", "open").end();
    }
}

#[tokio::test]
async fn a_gate_that_is_written_over_in_use_lets_no_process_in() {
    let (path, _keep) = place();
    let store = EmbeddedStore::open(&path).unwrap();
    granted(store.acquire(&request("k"), WITHIN).await.unwrap());
    fs::write(path.join("gate"), [b'x'; 64]).unwrap();
    let error = store.acquire(&request("other"), WITHIN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("the file gate"), "{error}");
    let mut newcomer = Child::start(&path, "try-open k");
    let said = newcomer.next().unwrap();
    assert!(said.contains("Corrupt") && said.contains("the file gate"), "{said}");
    newcomer.end();
    drop(store);
    // The store is unused, so the gate is free.
    Child::that_says(&path, "open", "open").end();
}

#[tokio::test]
async fn a_gate_that_is_cut_off_in_use_ends_who_enters() {
    let (path, _keep) = place();
    let mut child = Child::that_says(&path, "spin k", "ready");
    fs::write(path.join("gate"), "").unwrap();
    let status = child.process.wait();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    let store = EmbeddedStore::open(&path).unwrap();
    soon(&store, "k").await;
}

#[tokio::test]
async fn a_store_with_a_lock_for_its_gate_loses_no_addition() {
    let (path, _keep) = place();
    drop(EmbeddedStore::open(&path).unwrap());
    let header = fs::read_to_string(path.join("store")).unwrap();
    let gate = header.lines().find_map(|line| line.strip_prefix("gate word ")).unwrap();
    header::change(&path, "gate ", &format!("lock {gate}"));
    fs::write(path.with_extension("number"), "0").unwrap();
    let mut children: Vec<Child> = (0..4).map(|_| Child::start(&path, "add k")).collect();
    for child in &mut children {
        child.wait_for("added");
    }
    children.into_iter().for_each(Child::end);
    assert_eq!(fs::read_to_string(path.with_extension("number")).unwrap(), "400");
    assert!(fs::read_to_string(path.join("store")).unwrap().contains("gate lock"));
}
