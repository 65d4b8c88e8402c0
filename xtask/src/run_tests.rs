//! `cargo xtask run-tests PROGRAM ARGUMENTS…`: runs a test program, and names a test that hangs.
//!
//! [`check`](crate::check) names this command as cargo's runner.
//!
//! Two things differ from a program that cargo runs itself. A test that hangs is named and ended, for else
//! the machine's owner ends the whole run and nobody learns which it was. What failed is kept for the end of
//! the run, for many a place shows its last lines alone.

use std::env;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// No test takes a quarter as long on a quiet machine.
const SILENCE: Duration = Duration::from_secs(600);

const TICK: Duration = Duration::from_secs(1);

/// Names the file to which each program adds what it said of its failures.
pub(crate) const FAILURES: &str = "XTASK_FAILURES";

/// A failure says in fewer lines why it is one; what stands below is how it came to be.
const LINES_OF_A_FAILURE: usize = 40;

/// What a program said of the tests that failed: at most [`LINES_OF_A_FAILURE`] of each.
#[derive(Debug, Default)]
struct Failures {
    lines: Vec<String>,
    of_this: usize,
    begun: bool,
}

impl Failures {
    fn hear(&mut self, line: &str) {
        self.begun |= line == "failures:";
        if !self.begun || line.is_empty() {
            return;
        }
        // Their names stand once more below all that they said.
        if line == "failures:" || line.starts_with("---- ") || line.starts_with("test result: ") {
            self.of_this = 0;
        }
        self.of_this += 1;
        if self.of_this <= LINES_OF_A_FAILURE {
            self.lines.push(line.to_owned());
        }
    }

    fn keep(&self, program: &str, result: &Result<(), String>) -> Result<(), String> {
        let (Some(path), Err(end)) = (env::var_os(FAILURES).map(PathBuf::from), result) else {
            return Ok(());
        };
        let said = self.lines.join("\n");
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(format!("{program}\n{said}\n{end}\n").as_bytes()))
            .map_err(|error| format!("can't add to {}: {error}", path.display()))
    }
}

/// The tests that the harness has called slow and that have not ended.
#[derive(Debug, Default)]
struct Slow(Vec<String>);

impl Slow {
    fn hear(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some((name, _)) = rest.split_once(" has been running for over ") {
            self.0.push(name.to_owned());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            // What is expected of a test stands behind its name.
            let name = name.split(" - ").next().unwrap_or(name);
            self.0.retain(|slow| slow != name);
        }
    }
}

/// Runs the program until it ends, or no test of it has ended for long.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let mut failures = Failures::default();
    let result = run_within(program, args, SILENCE, &mut failures);
    failures.keep(program, &result)?;
    result
}

fn run_within(
    program: &str,
    args: &[&str],
    silence: Duration,
    failures: &mut Failures,
) -> Result<(), String> {
    let cannot = |error| format!("cannot run {program}: {error}");
    let mut command = Command::new(program);
    let mut child = command.args(args).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let lines = child.stdout.take().map(lines_of).ok_or("a pipe that is not there")?;
    let (mut slow, mut silent) = (Slow::default(), Duration::ZERO);
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => {
                println!("{line}");
                slow.hear(&line);
                failures.hear(&line);
                silent = Duration::ZERO;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // What a test left behind may keep the pipe open.
            Err(RecvTimeoutError::Timeout) if child.try_wait().map_err(cannot)?.is_some() => break,
            Err(RecvTimeoutError::Timeout) => silent += TICK,
        }
        if silent >= silence {
            return Err(end(&mut child, &slow, silence));
        }
    }
    let status = child.wait().map_err(cannot)?;
    if status.success() { Ok(()) } else { Err(format!("{program}: {status}")) }
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

/// Tells what a program does that has not said anything for long, and kills it.
fn end(child: &mut Child, slow: &Slow, silence: Duration) -> String {
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
    format!("no test has ended for {} s; these ran: {}", silence.as_secs(), slow.0.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_ended_is_heard() {
        let mut slow = Slow::default();
        let said = [
            "running 3 tests",
            "test a::passes ... ok",
            "test a::is_slow has been running for over 60 seconds",
            "test a::hangs has been running for over 60 seconds",
            "test a::is_slow - should panic ... ok",
        ];
        said.iter().for_each(|line| slow.hear(line));
        assert_eq!(slow.0, ["a::hangs"]);
    }

    fn shell(script: &str) -> Result<(), String> {
        let mut failures = Failures::default();
        run_within("sh", &["-c", script], Duration::from_secs(5), &mut failures)
    }

    #[test]
    fn what_a_failure_said_is_heard_and_no_more() {
        let mut failures = Failures::default();
        let long = "line\n".repeat(LINES_OF_A_FAILURE + 7);
        let said = format!(
            "running 2 tests\ntest a ... FAILED\ntest b ... ok\n\nfailures:\n\n\
             ---- a stdout ----\n{long}\nfailures:\n    a\n\ntest result: FAILED. 1 passed\n"
        );
        said.lines().for_each(|line| failures.hear(line));
        let mut expected = vec!["failures:", "---- a stdout ----"];
        expected.extend(["line"; LINES_OF_A_FAILURE - 1]);
        expected.extend(["failures:", "    a", "test result: FAILED. 1 passed"]);
        assert_eq!(failures.lines, expected);
    }

    #[test]
    fn a_program_ends_as_it_does() {
        shell("echo test a ... ok").unwrap();
        shell("echo 'test a ... FAILED'; exit 101").unwrap_err();
        shell("kill -SEGV $$").unwrap_err();
    }

    #[test]
    fn a_program_that_says_nothing_more_is_ended_with_the_names_of_what_ran() {
        let slow = "echo 'test a has been running for over 60 seconds'; exec sleep 600";
        let why = shell(slow).unwrap_err();
        assert!(why.ends_with("these ran: a"), "{why}");
    }
}
