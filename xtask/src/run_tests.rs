//! `cargo xtask run-tests PROGRAM ARGUMENTS…`: how `cargo test` runs each of its programs for
//! [`check`](crate::check), which names this command as cargo's runner.
//!
//! Two things differ from a program that cargo runs itself. A test that hangs is named and ended, for else
//! the machine's owner ends the whole run and nobody learns which it was. And under CI, a few tests that
//! failed beside all others are run a second time, alone: real servers, real faults and a machine shared
//! with strangers. Such a failure is printed last of all and is to be explained: it is a bug of the lock or
//! of the test.

use std::env;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The variable with the name of the file that gets the tests that failed once.
pub(crate) const FAILED_ONCE: &str = "LEASEHOLD_TESTS_FAILED_ONCE";

/// No test takes a quarter as long on a quiet machine.
const SILENCE: Duration = Duration::from_secs(600);

const TICK: Duration = Duration::from_secs(1);

/// More than this is no accident.
const SECOND_TRIES: usize = 3;

/// What the test harness has said so far.
#[derive(Debug, Default, Eq, PartialEq)]
struct Heard {
    /// How many tests there are, and how many of them have ended.
    tests: Option<usize>,
    ended: usize,
    failed: Vec<String>,
    /// Those that it called slow and that have not ended.
    slow: Vec<String>,
}

impl Heard {
    fn hear(&mut self, line: &str) {
        if let Some(tests) = line.strip_prefix("running ").and_then(|it| it.split(' ').next()) {
            // A test's own child may be such a program too.
            self.tests = self.tests.or_else(|| tests.parse().ok());
        }
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some((name, _)) = rest.split_once(" has been running for over ") {
            self.slow.push(name.to_owned());
        } else if let Some((name, result)) = rest.split_once(" ... ") {
            // What is expected of a test stands behind its name.
            let name = name.split(" - ").next().unwrap_or(name);
            self.slow.retain(|slow| slow != name);
            self.ended += 1;
            if result == "FAILED" {
                self.failed.push(name.to_owned());
            }
        }
    }

    /// Those that failed, and those that never end. None if the program did not get to all of its tests:
    /// a second try of a few is none of the rest.
    fn verdict(self) -> Verdict {
        let all = Some(self.ended + self.slow.len()) == self.tests;
        Verdict::Failed(if all { [self.failed, self.slow].concat() } else { Vec::new() })
    }
}

#[derive(Debug, Eq, PartialEq)]
enum Verdict {
    Passed,
    /// These, or the program itself if there are none.
    Failed(Vec<String>),
}

pub(crate) fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let verdict = once(program, args, SILENCE)?;
    let Verdict::Failed(tests) = verdict else { return Ok(()) };
    let name =
        Path::new(program).file_name().map_or_else(|| program.into(), |it| it.to_string_lossy());
    if tests.is_empty() {
        return Err(format!("{name} did not get to the end of its tests"));
    }
    if env::var_os("CI").is_none() || tests.len() > SECOND_TRIES {
        return Err(format!("{} failed", tests.join(", ")));
    }
    for test in &tests {
        println!("==> again, alone: {test}");
        if once(program, &[&["--exact", test, "--nocapture"], args].concat(), SILENCE)?
            != Verdict::Passed
        {
            return Err(format!("{test} failed twice, beside others and alone"));
        }
        println!("==> {test}: failed beside others and passed alone");
        remember(&format!("{name}: {test}\n"))?;
    }
    Ok(())
}

fn remember(line: &str) -> Result<(), String> {
    let Some(path) = env::var_os(FAILED_ONCE) else { return Ok(()) };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(|error| format!("{}: {error}", Path::new(&path).display()))
}

fn once(program: &str, args: &[&str], silence: Duration) -> Result<Verdict, String> {
    let cannot = |error| format!("cannot run {program}: {error}");
    let mut command = Command::new(program);
    let mut child = command.args(args).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let lines = child.stdout.take().map(lines_of).ok_or("a pipe that is not there")?;
    let (mut heard, mut silent) = (Heard::default(), Duration::ZERO);
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => {
                println!("{line}");
                heard.hear(&line);
                silent = Duration::ZERO;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // What a test left behind may keep the pipe open.
            Err(RecvTimeoutError::Timeout) if child.try_wait().map_err(cannot)?.is_some() => break,
            Err(RecvTimeoutError::Timeout) => silent += TICK,
        }
        if silent >= silence {
            return Ok(end(&mut child, heard, silence));
        }
    }
    let status = child.wait().map_err(cannot)?;
    Ok(if status.success() { Verdict::Passed } else { heard.verdict() })
}

fn lines_of(stdout: ChildStdout) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        while stdout.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

/// Says what a program does that has not said anything for long, and kills it.
fn end(child: &mut Child, heard: Heard, silence: Duration) -> Verdict {
    println!(
        "==> no test has ended for {} s; these run: {}",
        silence.as_secs(),
        heard.slow.join(", ")
    );
    let mut processes = Command::new("ps");
    processes.args(["-eLo", "pid,ppid,tid,stat,etime,wchan:24,args"]).stdin(Stdio::null());
    match processes.output() {
        Ok(list) => String::from_utf8_lossy(&list.stdout)
            .lines()
            .for_each(|line| println!("    {}", line.get(..160).unwrap_or(line))),
        Err(error) => println!("    no list of processes: {error}"),
    }
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        println!("    it can't be killed: {error}");
    }
    heard.verdict()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(lines: &[&str]) -> Heard {
        let mut heard = Heard::default();
        lines.iter().for_each(|line| heard.hear(line));
        heard
    }

    #[test]
    fn what_failed_and_what_has_not_ended_is_heard() {
        let said = heard(&[
            "running 5 tests",
            "test a::passes ... ok",
            "running 1 test",
            "test a::is_slow has been running for over 60 seconds",
            "test a::hangs has been running for over 60 seconds",
            "test a::fails ... FAILED",
            "test a::panics - should panic ... FAILED",
            "test a::is_slow ... ok",
            "test result: FAILED. 2 passed; 2 failed",
        ]);
        assert_eq!(said.failed, ["a::fails", "a::panics"]);
        assert_eq!(said.slow, ["a::hangs"]);
        let names = ["a::fails", "a::panics", "a::hangs"].map(str::to_owned).to_vec();
        assert_eq!(said.verdict(), Verdict::Failed(names));
    }

    #[test]
    fn a_program_that_ends_early_has_no_test_to_try_again() {
        let said = heard(&["running 3 tests", "test a ... FAILED", "test b ... ok"]);
        assert_eq!(said.verdict(), Verdict::Failed(vec![]));
    }

    fn shell(script: &str) -> Verdict {
        once("sh", &["-c", script], Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn a_program_that_fails_names_its_tests() {
        assert_eq!(shell("echo test a ... ok"), Verdict::Passed);
        let one = "echo running 1 test; echo 'test a ... FAILED'; exit 101";
        assert_eq!(shell(one), Verdict::Failed(vec!["a".to_owned()]));
        assert_eq!(shell("kill -SEGV $$"), Verdict::Failed(vec![]));
    }

    #[test]
    fn a_program_that_says_nothing_more_is_ended_with_the_names_of_what_ran() {
        let slow = "echo running 1 test; echo 'test a has been running for over 60 seconds'; exec sleep 600";
        assert_eq!(shell(slow), Verdict::Failed(vec!["a".to_owned()]));
    }
}
