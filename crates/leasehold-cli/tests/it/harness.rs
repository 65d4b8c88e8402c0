//! Starting the command and looking at what it did.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use leasehold_testkit::process::TestProcess;
use tempfile::TempDir;

/// How long anything may take that does not take any time to speak of. Only a hang gets there.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A directory, a home and a store that belong to one test.
#[derive(Debug)]
pub(crate) struct Site {
    dir: TempDir,
    store: String,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }

    /// Expects that stderr says this, and nothing on stdout.
    #[track_caller]
    pub(crate) fn complains(self, code: i32, about: &str) -> Self {
        assert!(self.stderr.starts_with("leasehold: "), "{self:?}");
        assert!(self.stderr.contains(about), "{about:?} is not in {self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        self.expect(code)
    }
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            status: output.status,
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Site {
    /// With an embedded store of its own.
    pub(crate) fn embedded() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = format!("embedded:{}", dir.path().join("locks").display());
        Self { dir, store }
    }

    /// With the store at this URL.
    pub(crate) fn at(store: impl Into<String>) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), store: store.into() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The command, in an environment that has nothing of this machine but its programs.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(args).env_clear().stdin(Stdio::null()).current_dir(self.dir.path());
        command.env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.dir.path()).env("LEASEHOLD_STORE", &self.store);
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Done {
        finish(&mut self.command(args))
    }

    /// Runs a command line without quotes to its end.
    pub(crate) fn line(&self, line: &str) -> Done {
        self.run(line.split(' '))
    }

    /// Starts the command; it dies with the test.
    pub(crate) fn start<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Running {
        Running::start(self.command(args))
    }

    /// Starts `run KEY` with these options on a shell script, and waits until the script has
    /// printed its first line.
    pub(crate) fn start_script(&self, options: &str, script: &str) -> Running {
        let words = ["run"].into_iter().chain(options.split(' '));
        let mut running = self.start(words.chain(["--", "sh", "-c", script]));
        running.line();
        running
    }
}

/// A lock that is in use, as `show --json` has it.
#[track_caller]
pub(crate) fn lock(site: &Site, key: &str) -> serde_json::Value {
    let shown = site.run(["show", key, "--json"]).expect(0).stdout;
    let document: serde_json::Value = serde_json::from_str(&shown).unwrap();
    document["lock"].clone()
}

/// Runs a command to its end, which must come.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> Done {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = thread::spawn(move || child.wait_with_output().unwrap());
    until(&format!("{command:?} (process {pid}) ends"), || output.is_finished());
    output.join().unwrap().into()
}

/// A command under way.
#[derive(Debug)]
pub(crate) struct Running {
    process: TestProcess,
    lines: Option<BufReader<ChildStdout>>,
    messages: Option<BufReader<ChildStderr>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = TestProcess::spawn(command).unwrap();
        let lines = process.child().stdout.take().map(BufReader::new);
        let messages = process.child().stderr.take().map(BufReader::new);
        Self { process, lines, messages }
    }

    /// The next line of stdout.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.as_mut().unwrap().read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "stdout ended: {line:?}, {}", self.stderr());
        line.trim_end().to_owned()
    }

    /// The next line of stderr.
    #[track_caller]
    pub(crate) fn message(&mut self) -> String {
        let mut line = String::new();
        self.messages.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn process(&mut self) -> &mut TestProcess {
        &mut self.process
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.process.child()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn stderr(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut messages) = self.messages.take() {
            messages.read_to_string(&mut text).unwrap();
        }
        text
    }

    /// Whether it has ended, and how.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.process.exited()
    }

    /// Waits for its end and returns everything printed since the last [`line`](Self::line).
    #[track_caller]
    pub(crate) fn finish(mut self) -> Done {
        let pid = self.pid();
        until(&format!("process {pid} ends"), || self.process.exited().is_some());
        let status = self.process.exited().unwrap();
        let mut stdout = String::new();
        self.lines.take().unwrap().read_to_string(&mut stdout).unwrap();
        Done { status, stdout, stderr: self.stderr() }
    }
}

/// Runs a line of a shell that has the command's path in `$0`.
pub(crate) fn shell(site: &Site, line: &str) -> Command {
    let mut command = site.command(["-c", line, env!("CARGO_BIN_EXE_leasehold")]);
    let template = command;
    command = Command::new("sh");
    command.args(template.get_args()).env_clear().stdin(Stdio::null());
    for (name, value) in template.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.current_dir(template.get_current_dir().unwrap());
    command
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let looks = PATIENCE.as_millis() / LOOK_EVERY.as_millis();
    for _ in 0..looks {
        if holds() {
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
    panic!("it never happened that {what}");
}

/// The state letter of a process, or `None` when there is none; zombies are none.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.chars().next().filter(|state| !matches!(state, 'Z' | 'X'))
}

/// Waits until a process is gone.
#[track_caller]
pub(crate) fn gone(pid: u32) {
    until(&format!("process {pid} is gone"), || state(pid).is_none());
}

/// Waits until a file exists.
#[track_caller]
pub(crate) fn appears(path: &Path) {
    until(&format!("{} appears", path.display()), || path.exists());
}

/// The signal that ended a process.
pub(crate) fn killed_by(done: &Done) -> Option<i32> {
    done.status.signal()
}
