//! Tests that need a process of their own: they look at, or fork, all of it.

use std::env;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const INSIDE: &str = "LEASEHOLD_TEST_INSIDE";
/// Says that the test ran to its end; a process that found no test of the name ends with 0.
const DONE: i32 = 42;

const TRIES: u32 = 12_000;
const BETWEEN_TRIES: Duration = Duration::from_millis(5);

/// Runs a test in a process where no other test runs. `name` is its full path.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    if env::var_os(INSIDE).is_some_and(|inside| inside == name) {
        test();
        #[expect(clippy::exit, reason = "the process is there for this test only")]
        std::process::exit(DONE);
    }
    let mut process = Process(
        Command::new(env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, name)
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let ended = (0..TRIES).find_map(|_| {
        sleep(BETWEEN_TRIES);
        process.0.try_wait().unwrap()
    });
    let status = ended.unwrap_or_else(|| panic!("{name} does not end"));
    assert_eq!(status.code(), Some(DONE), "{name}: {status}");
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
