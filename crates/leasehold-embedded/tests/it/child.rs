//! Other processes: this test binary, started again with a task.
//!
//! A child prints what it has done in lines that start with `@`, and ends when its input ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireRequest, ClientId, LeaveRequest, QueueRequest, ReleaseRequest, Store, Wake,
};
use leasehold_embedded::EmbeddedStore;
use leasehold_testkit::process::TestProcess;

use crate::ask::{WITHIN, granted, request, ttl};

const TASK: &str = "LEASEHOLD_TEST_TASK";
const STORE: &str = "LEASEHOLD_TEST_STORE";

/// A process with a task.
pub(crate) struct Child {
    pub(crate) process: TestProcess,
    lines: BufReader<std::process::ChildStdout>,
}

impl Child {
    /// Starts a process with a task: its name, and an argument.
    pub(crate) fn start(store: &Path, task: &str) -> Self {
        Self::start_by(&[], store, task)
    }

    /// Starts a process through another program, which gets this one as its last arguments.
    pub(crate) fn start_by(by: &[&str], store: &Path, task: &str) -> Self {
        let this = std::env::current_exe().unwrap();
        let mut words = by.iter().map(AsRef::as_ref).chain([this.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args([
            "--exact",
            "child::a_task_is_carried_out",
            "--nocapture",
            "--test-threads=1",
        ]);
        command.env(TASK, task).env(STORE, store);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = TestProcess::spawn(command).unwrap();
        let lines = BufReader::new(process.child().stdout.take().unwrap());
        Self { process, lines }
    }

    /// Starts a process and waits until it prints this.
    pub(crate) fn that_says(store: &Path, task: &str, what: &str) -> Self {
        let mut child = Self::start(store, task);
        child.wait_for(what);
        child
    }

    /// Waits until the process prints this.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, what: &str) {
        let said = self.next();
        assert_eq!(said.as_deref(), Some(what));
    }

    /// The next line that the process prints.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The harness may have printed the start of the line.
            if let Some((_, said)) = line.split_once('@') {
                return Some(said.trim_end().to_owned());
            }
        }
    }

    /// Lets the process end normally.
    pub(crate) fn end(mut self) {
        drop(self.process.child().stdin.take());
        assert!(self.process.wait().success());
    }

    /// Kills the process, which must still be running.
    pub(crate) fn kill(mut self) {
        let status = self.process.kill();
        assert_eq!(status.signal(), Some(9), "{status}");
    }
}

pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{what}").unwrap();
    out.flush().unwrap();
}

/// Returns when the parent lets this process end.
fn until_told() {
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_task_is_carried_out() {
    let (Ok(task), Ok(path)) = (std::env::var(TASK), std::env::var(STORE)) else { return };
    let (task, name) = task.split_once(' ').unwrap_or((&task, "k"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(carry_out(task, name, Path::new(&path)));
}

async fn carry_out(task: &str, name: &str, path: &Path) {
    if task == "try-open" {
        match EmbeddedStore::open(path) {
            Ok(_) => say("open"),
            Err(error) => say(&format!("{:?}: {error}", error.kind())),
        }
        return until_told();
    }
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    if task == "life" {
        crate::calls::in_child(path, name).await;
        return until_told();
    }
    let detached = task == "hold-detached";
    let store = EmbeddedStore::options().detached(detached).open(path).unwrap();
    match task {
        "open" => say("open"),
        #[cfg(target_os = "linux")]
        "witness" => crate::gate::in_child(&store, name, path).await,
        "hold" | "hold-detached" => {
            granted(store.acquire(&request(name), WITHIN).await.unwrap());
            say("held");
        }
        "fill-and-hold" => {
            for n in 0..300 {
                granted(store.acquire(&request(&format!("name-{n}")), WITHIN).await.unwrap());
            }
            granted(store.acquire(&request(name), WITHIN).await.unwrap());
            say("held");
        }
        #[cfg(target_os = "linux")]
        "chroot" => crate::damage::in_chroot(&store, name, path).await,
        "exit" => {
            granted(store.acquire(&request(name), WITHIN).await.unwrap());
            say("held");
            #[expect(clippy::exit, reason = "to end without dropping anything is the task")]
            std::process::exit(0);
        }
        "wait" => return wait(&store, name).await,
        "churn" => churn(&store).await,
        "spin" => spin(&store, name).await,
        "add" => add(&store, name, path).await,
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        "cut" => {
            let (name, rest) = name.split_once(' ').unwrap();
            let (at, counted) = rest.split_once(' ').unwrap();
            crate::steps::in_child(&store, name, at, counted).await;
        }
        "fork" => crate::fork::in_child(&store, name).await,
        "fork-and-spin" => {
            say(&format!("forked {}", crate::fork::one_that_reads_on()));
            spin(&store, name).await;
        }
        other => panic!("no task is called {other}"),
    }
    until_told();
}

/// Queues, and prints when it is notified and what it then holds.
async fn wait(store: &EmbeddedStore, name: &str) {
    let client = ClientId::generate().unwrap();
    let mut channel = store.listen(client, WITHIN).await.unwrap();
    let mut asked = request(name);
    asked.queue = Some(QueueRequest::new(client, 7, ttl(20_000)));
    let answer = store.acquire(&asked, WITHIN).await.unwrap();
    assert!(matches!(answer, Acquire::Waiting(_)), "{answer:?}");
    say("waiting");
    match channel.next().await {
        Wake::Granted { ticket: 7, heartbeat: 0, .. } => say("woken"),
        other => panic!("woken by {other:?}"),
    }
    assert!(matches!(store.acquire(&asked, WITHIN).await.unwrap(), Acquire::Already(_)));
    say("held");
    until_told();
}

/// Acquires, waits for, renews and releases a few locks in random order, until it is killed.
#[expect(clippy::infinite_loop, reason = "it goes on until it is killed")]
async fn churn(store: &EmbeddedStore) {
    let client = ClientId::generate().unwrap();
    let mut had: Vec<AcquireRequest> = Vec::new();
    say("ready");
    loop {
        let mut asked = request(&format!("churn-{}", fastrand::u8(..4)));
        if fastrand::bool() {
            asked.queue = Some(QueueRequest::new(client, fastrand::u64(..), ttl(20_000)));
        }
        if let Acquire::Granted(grant) = store.acquire(&asked, WITHIN).await.unwrap()
            && fastrand::bool()
        {
            let ending = ReleaseRequest::new(asked.key, asked.token, grant.fences);
            store.release(&ending, WITHIN).await.unwrap();
            continue;
        }
        had.push(asked);
        if had.len() > 6 {
            let gone = had.swap_remove(fastrand::usize(..had.len()));
            store.leave(&LeaveRequest::new(gone.key, gone.token), WITHIN).await.unwrap();
        }
    }
}

/// Acquires and releases a lock, again and again.
#[expect(clippy::infinite_loop, reason = "it goes on until it is killed")]
async fn spin(store: &EmbeddedStore, name: &str) {
    say("ready");
    loop {
        let asked = request(name);
        let fences = granted(store.acquire(&asked, WITHIN).await.unwrap());
        let ending = ReleaseRequest::new(asked.key, asked.token, fences);
        store.release(&ending, WITHIN).await.unwrap();
    }
}

/// Increments the number in a file many times under the lock, with separate reads and writes.
async fn add(store: &EmbeddedStore, name: &str, path: &Path) {
    let file = path.with_extension("number");
    for _ in 0..100 {
        let asked = request(name);
        let fences = loop {
            match store.acquire(&asked, WITHIN).await.unwrap() {
                Acquire::Granted(grant) => break grant.fences,
                _ => tokio::time::sleep(Duration::from_micros(100)).await,
            }
        };
        let number: u64 = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        tokio::task::yield_now().await;
        std::fs::write(&file, (number + 1).to_string()).unwrap();
        let ending = ReleaseRequest::new(asked.key, asked.token, fences);
        store.release(&ending, WITHIN).await.unwrap();
    }
    say("added");
}
