//! Runs the commands of a plan one after the other, with their faults.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use leasehold_testkit::process::TestProcess;
use rustix::process::Signal;

use crate::plan::{Act, End, Op, Plan, Verb, When, length, ms};
use crate::{clock, process, section};

const LOOK_EVERY: Duration = ms(3);

/// The state that all workers share.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) dir: PathBuf,
    /// The `leasehold` program to test.
    pub(crate) program: PathBuf,
    pub(crate) store: String,
    /// How long a command may take at most.
    pub(crate) patience: Duration,
    /// Whether a stopped process can make other commands fail.
    pub(crate) stops_refuse: bool,
    pub(crate) done: Mutex<Vec<Done>>,
    pub(crate) faults: Mutex<Vec<Fault>>,
}

/// A time in which commands may be refused or lose their locks.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
    /// Whether the store may have lost writes. It then grants no lock until the longest lease has
    /// ended.
    pub(crate) is_lossy: bool,
}

/// A command that was run to its end.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) op: Op,
    pub(crate) steps: Vec<Step>,
}

/// One process of a command.
#[derive(Debug)]
pub(crate) struct Step {
    /// The first argument.
    pub(crate) what: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
    /// How it ended; `None` if it had to be killed.
    pub(crate) status: Option<ExitStatus>,
    /// Its faults, with their times.
    pub(crate) acts: Vec<(Duration, Act)>,
    pub(crate) stderr: String,
    pub(crate) said: Said,
}

/// What a command logged, by the fields of its events.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// Why it failed.
    pub(crate) reason: Option<String>,
    /// Whether the store left a release unconfirmed.
    pub(crate) release_failed: bool,
}

impl Said {
    fn read(stderr: &str) -> Self {
        let field = |line: &str, name: &str| {
            let value = line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.map(|value| value.trim_matches('"').to_owned())
        };
        let mut said = Self::default();
        for line in stderr.lines() {
            if field(line, "exit").is_some() {
                said.reason = field(line, "reason");
            }
            said.release_failed |= field(line, "release").is_some_and(|how| how != "released");
        }
        said
    }
}

impl Ground {
    /// The command, in an environment with only this machine's programs.
    pub(crate) fn leasehold(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        self.place(&mut command);
        command
    }

    fn place(&self, command: &mut Command) {
        command.env_clear().stdin(Stdio::null()).current_dir(&self.dir);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", &self.dir).env("LEASEHOLD_STORE", &self.store);
        command.env(section::DIRECTORY, &self.dir);
        // Judged by the fields of events: words for people may change.
        command.env("LEASEHOLD_LOG", "leasehold=info");
    }

    fn output(&self, op: u64, end: &str) -> PathBuf {
        self.dir.join("ops").join(format!("{op}.{end}"))
    }

    pub(crate) fn fault(&self, what: String, begin: Duration) {
        self.add(Fault { what, begin, end: clock::now(), is_lossy: false });
    }

    pub(crate) fn add(&self, fault: Fault) {
        self.faults.lock().expect("no worker panics while it adds").push(fault);
    }
}

/// A running process.
#[derive(Debug)]
struct Running<'a> {
    ground: &'a Ground,
    process: TestProcess,
    step: Step,
    /// If it has not ended by then, that is a violation.
    due: Duration,
    stderr: PathBuf,
}

impl<'a> Running<'a> {
    fn start(ground: &'a Ground, id: u64, mut command: Command, arguments: Vec<String>) -> Self {
        let stderr = ground.output(id, "err");
        let create = |path: &Path| File::create(path).expect("the torture's directory is ours");
        command.stdout(create(&ground.output(id, "out"))).stderr(create(&stderr));
        let begin = clock::now();
        let process = TestProcess::spawn(command).expect("a process can be started");
        let step = Step {
            what: arguments.first().cloned().unwrap_or_default(),
            arguments,
            begin,
            end: begin,
            status: None,
            acts: Vec::new(),
            stderr: String::new(),
            said: Said::default(),
        };
        Self { ground, process, step, due: begin + ground.patience, stderr }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.process.pid()).unwrap_or_default()
    }

    fn has_ended(&mut self) -> bool {
        self.step.status = self.step.status.or_else(|| self.process.exited());
        self.step.status.is_some()
    }

    fn is_overdue(&self) -> bool {
        clock::now() > self.due
    }

    fn wait(&mut self) {
        while !self.has_ended() && !self.is_overdue() {
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits for the end, which should come.
    fn finish(mut self) -> Step {
        self.wait();
        self.step.end = clock::now();
        self.step.stderr = fs::read_to_string(&self.stderr).unwrap_or_default();
        self.step.said = Said::read(&self.step.stderr);
        self.step
    }

    fn act(&mut self, act: Act, op: &Op) {
        let supervisor = self.pid();
        let begin = clock::now();
        let came = match act {
            Act::KillSupervisor => process::signal(supervisor, Signal::KILL),
            Act::TermSupervisor => process::signal(supervisor, Signal::TERM),
            Act::StopSupervisor(time) => self.stop(Some(supervisor), time, process::signal),
            Act::KillWatchdog => to(process::watchdog(supervisor), Signal::KILL, process::signal),
            Act::StopWatchdog(time) => {
                self.stop(process::watchdog(supervisor), time, process::signal)
            }
            Act::KillCommand => to(process::command(supervisor), Signal::KILL, process::signal),
            Act::KillGroup => to(process::command(supervisor), Signal::KILL, process::signal_group),
            Act::TermGroup => to(process::command(supervisor), Signal::TERM, process::signal_group),
            Act::StopGroup(time) => {
                self.stop(process::command(supervisor), time, process::signal_group)
            }
            Act::Ask => {
                let words = ["ask", op.keys[0]].map(str::to_owned);
                let mut command = self.ground.leasehold(&words);
                command.stdout(Stdio::null()).stderr(Stdio::null());
                TestProcess::spawn(command).is_ok_and(|mut ask| {
                    clock::wait_for(self.ground.patience, || ask.exited().is_some())
                })
            }
        };
        if came {
            self.step.acts.push((begin, act));
        }
    }

    /// Stops processes for this time, or until the command has ended.
    fn stop(&mut self, pid: Option<i32>, time: Duration, send: fn(i32, Signal) -> bool) -> bool {
        let Some(pid) = pid else { return false };
        let begin = clock::now();
        if !send(pid, Signal::STOP) {
            return false;
        }
        while clock::now() - begin < time && !self.has_ended() {
            thread::sleep(LOOK_EVERY);
        }
        send(pid, Signal::CONT);
        if self.ground.stops_refuse {
            self.ground.fault("a process stood still".to_owned(), begin);
        }
        true
    }
}

fn to(pid: Option<i32>, signal: Signal, send: fn(i32, Signal) -> bool) -> bool {
    pid.is_some_and(|pid| send(pid, signal))
}

/// Runs commands until the time is over and all workers together have run enough.
pub(crate) fn work(ground: &Ground, mut plan: Plan, until: Duration, commands: usize) {
    let are_few = || ground.done.lock().expect("no worker panics while it adds").len() < commands;
    while clock::now() < until || are_few() {
        let op = plan.op();
        let steps = match op.verb {
            Verb::Run { .. } | Verb::Elect => vec![supervised(ground, &op)],
            Verb::Hold { end } => hold(ground, &op, end),
            Verb::Acquire { forget } => acquire(ground, &op, forget),
            Verb::Look { .. } | Verb::Wait { .. } => {
                let words = op.arguments();
                let command = ground.leasehold(&words);
                vec![Running::start(ground, op.id, command, words).finish()]
            }
        };
        thread::sleep(op.pause);
        for end in ["out", "err", "begun"] {
            // Most commands lack some of these files.
            fs::remove_file(ground.output(op.id, end)).ok();
        }
        let mut done = ground.done.lock().expect("no worker panics while it adds");
        done.push(Done { op, steps });
    }
}

/// The command line of a command's section.
fn section_words(op: &Op) -> Vec<String> {
    let this = std::env::current_exe().expect("Linux knows the program of a process");
    vec![
        this.to_string_lossy().into_owned(),
        section::COMMAND.to_owned(),
        op.id.to_string(),
        op.mode().word(),
        op.work.as_millis().to_string(),
        op.code.to_string(),
        op.stubborn.to_string(),
    ]
}

/// `run` or `elect`, which start the section themselves.
fn supervised(ground: &Ground, op: &Op) -> Step {
    let mut words = op.arguments();
    words.push("--".to_owned());
    if op.shell {
        // The `exit` keeps the shell from replacing itself by the section.
        words.extend(["sh", "-c", "\"$0\" \"$@\"; exit $?"].map(str::to_owned));
    }
    words.extend(section_words(op));
    let command = ground.leasehold(&words);
    let mut running = Running::start(ground, op.id, command, words);
    if let Some((when, act)) = op.fault {
        inject(&mut running, when, act, op);
    }
    if matches!(op.verb, Verb::Elect) {
        running.wait();
        if !running.has_ended() {
            // It campaigns again after each lost term, and a store may lose each of them.
            running.act(Act::TermSupervisor, op);
            running.due = clock::now() + ground.patience;
        }
    }
    running.finish()
}

/// Waits for the moment, and injects the fault.
fn inject(running: &mut Running<'_>, when: When, act: Act, op: &Op) {
    let marker = section::begun(&running.ground.dir, op.id);
    let (mut from, after) = match when {
        When::Started(after) => (Some(running.step.begin), after),
        When::Begun(after) => (None, after),
    };
    while !running.has_ended() && !running.is_overdue() {
        if from.is_none() && marker.exists() {
            from = Some(clock::now());
        }
        if from.is_some_and(|from| clock::now() >= from + after) {
            running.act(act, op);
            break;
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Runs the section of an unsupervised lease, and kills it once `valid` is false.
fn section(
    ground: &Ground,
    op: &Op,
    leases: &[(String, String)],
    mut valid: impl FnMut() -> bool,
) -> Step {
    let words = section_words(op);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    ground.place(&mut command);
    let column = |of: fn(&(String, String)) -> &str| -> String {
        leases.iter().map(of).collect::<Vec<_>>().join("\n")
    };
    command.env("LEASEHOLD_KEY", column(|(key, _)| key));
    command.env("LEASEHOLD_FENCE", column(|(_, fence)| fence));
    let mut running = Running::start(ground, op.id, command, words[1..].to_vec());
    while !running.has_ended() {
        if !valid() {
            running.act(Act::KillSupervisor, op);
            break;
        }
        thread::sleep(LOOK_EVERY);
    }
    running.finish()
}

fn hold(ground: &Ground, op: &Op, end: End) -> Vec<Step> {
    let words = op.arguments();
    let mut command = ground.leasehold(&words);
    command.stdin(Stdio::piped());
    let mut running = Running::start(ground, op.id, command, words);
    let out = ground.output(op.id, "out");
    let read = || fs::read_to_string(&out).unwrap_or_default();
    while read().lines().count() < op.keys.len() {
        if running.has_ended() || running.is_overdue() {
            return vec![running.finish()];
        }
        thread::sleep(LOOK_EVERY);
    }
    let said = read();
    let leases: Vec<(String, String)> = said
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(fence, key)| (key.to_owned(), fence.to_owned()))
        .collect();
    let inside = section(ground, op, &leases, || !running.has_ended());
    match end {
        End::Close => drop(running.process.child().stdin.take()),
        End::Terminate => running.act(Act::TermSupervisor, op),
        End::Kill => running.act(Act::KillSupervisor, op),
    }
    vec![running.finish(), inside]
}

fn acquire(ground: &Ground, op: &Op, forget: bool) -> Vec<Step> {
    let run = |words: Vec<String>| {
        let command = ground.leasehold(&words);
        Running::start(ground, op.id, command, words).finish()
    };
    let mut steps = vec![run(op.arguments())];
    let succeeded = |step: &Step| step.status.is_some_and(|status| status.success());
    let file = format!("ops/{}.lease", op.id);
    if !succeeded(&steps[0]) {
        return steps;
    }
    // A new lease file has one line each for the head, token, fence, and more, the name last. Notes
    // begin with `#`.
    let lease = fs::read_to_string(ground.dir.join(&file)).unwrap_or_default();
    let leases: Vec<(String, String)> = lease
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            Some(((*fields.last()?).to_owned(), (*fields.get(2)?).to_owned()))
        })
        .collect();
    let words = |verb: &str| [verb, "--lease-file", &file].map(str::to_owned).to_vec();
    // After a wait, only a renewal shows how long the lease still runs.
    let sent = clock::now();
    let mut renew = words("renew");
    renew.extend(["--ttl".to_owned(), length(op.ttl)]);
    steps.push(run(renew));
    if succeeded(&steps[1]) {
        let until = sent + op.ttl.mul_f64(0.9);
        steps.push(section(ground, op, &leases, || clock::now() < until));
    }
    if !forget {
        steps.push(run(words("release")));
    }
    steps
}
