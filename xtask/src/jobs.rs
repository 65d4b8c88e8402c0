//! Runs the programs that `check` has built, some side by side.
//!
//! A program's output is printed as a whole when it has ended. A program that hangs is ended, and
//! the tests that have not ended are named. Otherwise the machine's owner ends the whole run, and
//! the output names no test. All failures are printed once more at the end of the run, since many
//! places show its last lines alone.

use std::collections::VecDeque;
use std::io::{self, BufRead as _, BufReader, PipeReader};
use std::iter;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::check;

/// On a quiet machine every test takes less than a quarter of this.
const SILENCE: Duration = Duration::from_secs(600);

const TICK: Duration = Duration::from_secs(1);

/// Fewer lines explain a failure; the lines below only show how it came about.
const LINES_OF_A_FAILURE: usize = 40;

/// The output about failed tests: at most [`LINES_OF_A_FAILURE`] for each.
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
        // Below their output, the failed tests are listed once more.
        if line == "failures:" || line.starts_with("---- ") || line.starts_with("test result: ") {
            self.of_this = 0;
        }
        self.of_this += 1;
        if self.of_this <= LINES_OF_A_FAILURE {
            self.lines.push(line.to_owned());
        }
    }
}

/// The tests that the harness reported as slow and that are still running.
#[derive(Debug, Default)]
struct Slow(Vec<String>);

impl Slow {
    fn hear(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else { return };
        if let Some((name, _)) = rest.split_once(" has been running for over ") {
            self.0.push(name.to_owned());
        } else if let Some((name, _)) = rest.split_once(" ... ") {
            // What is expected of a test follows its name.
            let name = name.split(" - ").next().unwrap_or(name);
            self.0.retain(|slow| slow != name);
        }
    }
}

/// A program and its name in the output.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// Runs all jobs: each queue in order, and the queues in parallel. Who is done with a queue takes
/// the last job of the longest other one. After a failure the others still run.
pub(crate) fn run(queues: Vec<Vec<Job>>) -> Result<(), String> {
    let workers = queues.len();
    let queues = Mutex::new(queues.into_iter().map(VecDeque::from).collect::<Vec<_>>());
    let next = |own: usize| {
        let mut queues = queues.lock().unwrap_or_else(PoisonError::into_inner);
        let first = queues.get_mut(own).and_then(VecDeque::pop_front);
        first.or_else(|| queues.iter_mut().max_by_key(|queue| queue.len())?.pop_back())
    };
    let all = |own| iter::from_fn(move || next(own)).map(whole).filter_map(Result::err);
    let failed = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..workers).map(|own| scope.spawn(move || all(own).collect::<Vec<_>>())).collect();
        let ended = threads.into_iter().map(|one| one.join());
        ended.flat_map(|it| it.unwrap_or_else(|_| vec!["a panic".to_owned()])).collect::<Vec<_>>()
    });
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("what failed, once more:\n{}", failed.join("\n")))
}

/// Runs a job and prints its output; an error has the output about its failures.
fn whole(Job { name, command }: Job) -> Result<(), String> {
    let begin = check::now();
    let mut output = Output::default();
    let result = run_within(command, SILENCE, &mut output);
    let took = check::seconds(begin.elapsed());
    let end = match &result {
        Ok(()) => format!("==> {name}: ok in {took}"),
        Err(error) => format!("==> {name} failed after {took}: {error}"),
    };
    output.lines.push(end.clone());
    let all: String = output.lines.iter().map(|line| format!("{line}\n")).collect();
    print!("{all}");
    result.map_err(|_| {
        let Output { lines, failures, .. } = &output;
        let last = &lines[lines.len().saturating_sub(LINES_OF_A_FAILURE)..];
        if failures.begun { [&failures.lines[..], &[end]].concat() } else { last.to_vec() }
            .join("\n")
    })
}

/// The output of a program so far.
#[derive(Debug, Default)]
struct Output {
    lines: Vec<String>,
    slow: Slow,
    failures: Failures,
}

impl Output {
    fn hear(&mut self, line: String) {
        self.slow.hear(&line);
        self.failures.hear(&line);
        self.lines.push(line);
    }
}

fn run_within(mut command: Command, silence: Duration, output: &mut Output) -> Result<(), String> {
    let cannot = |error: io::Error| format!("it can't be run: {error}");
    let (reader, writer) = io::pipe().map_err(cannot)?;
    let second = writer.try_clone().map_err(cannot)?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second);
    let spawned = command.spawn();
    // This process's own ends would keep the pipe open.
    drop(command);
    let mut child = spawned.map_err(cannot)?;
    let lines = lines_of(reader);
    let mut silent = Duration::ZERO;
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => {
                output.hear(line);
                silent = Duration::ZERO;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // A process that a test left behind may keep the pipe open.
            Err(RecvTimeoutError::Timeout) if child.try_wait().map_err(cannot)?.is_some() => break,
            Err(RecvTimeoutError::Timeout) => silent += TICK,
        }
        if silent >= silence {
            return Err(end(&mut child, output, silence));
        }
    }
    let status = child.wait().map_err(cannot)?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

fn lines_of(output: PipeReader) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

/// Describes what a silent program does, and kills it.
fn end(child: &mut Child, output: &mut Output, silence: Duration) -> String {
    let mut processes = Command::new("ps");
    processes.args(["-eLo", "pid,ppid,tid,stat,etime,wchan:24,args"]).stdin(Stdio::null());
    match processes.output() {
        Ok(list) => {
            let list = String::from_utf8_lossy(&list.stdout);
            output
                .lines
                .extend(list.lines().map(|it| format!("    {}", it.get(..160).unwrap_or(it))));
        }
        Err(error) => output.lines.push(format!("    no list of processes: {error}")),
    }
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        output.lines.push(format!("    it can't be killed: {error}"));
    }
    let (seconds, slow) = (silence.as_secs(), output.slow.0.join(", "));
    format!("no test has ended for {seconds} s; these ran: {slow}")
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

    fn shell(script: &str) -> (Output, Result<(), String>) {
        let mut output = Output::default();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let result = run_within(command, Duration::from_secs(5), &mut output);
        (output, result)
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
    fn a_program_ends_as_it_does_and_both_its_outputs_are_heard() {
        let (output, result) = shell("echo test a ... ok; echo said >&2");
        result.unwrap();
        assert_eq!(output.lines, ["test a ... ok", "said"]);
        shell("echo 'test a ... FAILED'; exit 101").1.unwrap_err();
        shell("kill -SEGV $$").1.unwrap_err();
    }

    #[test]
    fn a_program_that_says_nothing_more_is_ended_with_the_names_of_what_ran() {
        let slow = "echo 'test a has been running for over 60 seconds'; exec sleep 600";
        let why = shell(slow).1.unwrap_err();
        assert!(why.ends_with("these ran: a"), "{why}");
    }

    #[test]
    fn all_are_run_and_each_that_failed_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let job = |name: &str, status: u8| {
            let mut command = Command::new("sh");
            command.args(["-c", "touch \"$0\"; exit \"$1\""]).arg(folder.path().join(name));
            Job {
                name: name.to_owned(),
                command: {
                    command.arg(status.to_string());
                    command
                },
            }
        };
        let why = run(vec![vec![job("a", 1), job("b", 0)], vec![job("c", 2)]]).unwrap_err();
        let names = ["a", "b", "c"];
        assert!(names.iter().all(|name| folder.path().join(name).exists()));
        let told = names.map(|name| why.contains(&format!("{name} failed")));
        assert_eq!(told, [true, false, true], "{why}");
    }

    #[test]
    fn who_has_no_more_jobs_takes_those_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let job = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(&folder);
            Job { name: name.to_owned(), command }
        };
        let waits = "for _ in $(seq 600); do test -e came && exit 0; sleep 0.1; done; exit 1";
        run(vec![vec![job("waits", waits), job("comes", "touch came")], vec![]]).unwrap();
    }
}
