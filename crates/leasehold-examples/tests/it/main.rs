//! The services run as they stand, as processes.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a helper that can't do its part has failed the test, as the test itself would"
)]

mod axum;
mod scheduler;
mod shutdown;
mod sqlx;

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{ChildStdout, Command, Stdio};

use leasehold::Client;
use leasehold_testkit::process::{TestProcess, describe};
use tempfile::TempDir;

/// A service, and what it prints.
struct Service {
    process: TestProcess,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Service {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = TestProcess::spawn(command).unwrap();
        let out = process.child().stdout.take().unwrap();
        Self { process, lines: BufReader::new(out).lines() }
    }

    /// The rest of the line that begins so.
    fn line(&mut self, beginning: &str) -> String {
        let line =
            self.lines.find_map(|line| Some(line.unwrap().strip_prefix(beginning)?.to_owned()));
        line.unwrap_or_else(|| panic!("it has not said \"{beginning}\""))
    }

    /// What it prints until it has ended, well.
    fn end(mut self) -> Vec<String> {
        let lines = self.lines.by_ref().map(Result::unwrap).collect();
        let status = self.process.wait();
        assert!(status.success(), "{}: {lines:?}", describe(status));
        lines
    }
}

/// The URL of a store in a directory.
fn directory() -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", dir.path().join("locks").display());
    (dir, url)
}

/// Succeeds if the store has no holders and no waiters.
async fn assert_nothing_in_use(client: &Client) {
    let listing = client.list("").await.unwrap();
    let in_use =
        listing.locks.iter().filter(|lock| !lock.holders.is_empty() || !lock.waiters.is_empty());
    assert_eq!(in_use.collect::<Vec<_>>(), Vec::<&leasehold::LockInfo>::new());
}
