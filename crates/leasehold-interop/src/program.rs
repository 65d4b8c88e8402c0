//! Starts the programs of other libraries, and reads what they print.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longer than any command of a program takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A line of a program's output.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) event: String,
    #[serde(default)]
    pub(crate) us: u64,
    #[serde(default)]
    pub(crate) why: String,
    #[serde(default)]
    pub(crate) value: String,
}

/// The folders of the programs, and the server for them.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The folder with their sources.
    pub(crate) sources: PathBuf,
    /// The folder in which they were built.
    pub(crate) built: PathBuf,
    /// The port of the server, or the ports of a cluster's nodes, separated by commas.
    pub(crate) ports: String,
    /// Java machines that wait for a command.
    idle: Arc<Mutex<Vec<Process>>>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<Result<Line>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Process {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("BUG: its output is piped")?;
        let (said, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let read = serde_json::from_str(&line).with_context(|| line.clone());
                if said.send(read).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, stdin, lines })
    }
}

impl Programs {
    pub(crate) fn new(sources: &Path, built: &Path, ports: String) -> Self {
        let idle = Arc::default();
        Self { sources: sources.to_owned(), built: built.to_owned(), ports, idle }
    }

    fn command(&self, language: &str) -> Command {
        let Self { sources, built, .. } = self;
        match language {
            "python" => {
                let mut command = Command::new(built.join("python/bin/python"));
                command.arg(sources.join("python/peer.py"));
                command
            }
            "node" => {
                let mut command = Command::new("node");
                command.arg(built.join("node/peer.js"));
                command
            }
            "php" => {
                let mut command = Command::new("php");
                command.args(["-d", "include_path=/usr/share/php"]);
                command.arg(sources.join("php/peer.php"));
                command
            }
            "go" => Command::new(built.join("go/peer")),
            _ => {
                let mut command = Command::new("java");
                let (lib, classes) = (built.join("java/lib/*"), built.join("java/classes"));
                command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
                command.arg(format!("{}:{}", lib.display(), classes.display())).arg("Peer");
                command
            }
        }
    }

    /// Starts a program with some arguments.
    pub(crate) fn start(&self, language: &str, peer: &str, words: &[&str]) -> Result<Program> {
        let lives_on = language == "java" && words.first() != Some(&"take");
        if !lives_on {
            let mut command = self.command(language);
            command.arg(peer).arg(&self.ports).args(words);
            let process = Some(Process::start(command)?);
            return Ok(Program {
                process,
                what: format!("{peer} {}", words.join(" ")),
                home: None,
            });
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut process = match idle {
            Some(process) => process,
            None => {
                let mut command = self.command(language);
                command.args(["lines", &self.ports]);
                Process::start(command)?
            }
        };
        let line = format!("{peer} {}\n", words.join(" "));
        let stdin = process.stdin.as_mut().context("BUG: its input is piped")?;
        stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush())?;
        let home = Some(Arc::clone(&self.idle));
        Ok(Program { process: Some(process), what: line.trim().to_owned(), home })
    }
}

/// One command under way in a program, which is killed if this is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    process: Option<Process>,
    what: String,
    home: Option<Arc<Mutex<Vec<Process>>>>,
}

impl Program {
    /// The next line of output.
    pub(crate) async fn next(&mut self) -> Result<Line> {
        let process = self.process.as_mut().context("BUG: it is there until it is done")?;
        match timeout(PATIENCE, process.lines.recv()).await {
            Ok(Some(line)) => line.with_context(|| self.what.clone()),
            Ok(None) => bail!("{}: ended without an answer", self.what),
            Err(_) => bail!("{}: no answer within {PATIENCE:?}", self.what),
        }
    }

    /// The next line, which must be of this event.
    pub(crate) async fn expect(&mut self, event: &str) -> Result<Line> {
        let line = self.next().await?;
        if line.event != event {
            bail!("{}: said {line:?} instead of {event}", self.what);
        }
        Ok(line)
    }

    /// A line that has arrived already, if any.
    pub(crate) fn said(&mut self) -> Option<Line> {
        self.process.as_mut()?.lines.try_recv().ok()?.ok()
    }

    /// Lets the program end, or wait for its next command.
    pub(crate) async fn done(mut self) -> Result<()> {
        if self.home.is_none() {
            let process = self.process.as_mut().context("BUG: it is there until it is done")?;
            let status = process.child.wait()?;
            if !status.success() {
                bail!("{}: {status}", self.what);
            }
            return Ok(());
        }
        self.expect("done").await?;
        if let (Some(home), Some(process)) = (&self.home, self.process.take()) {
            home.lock().unwrap_or_else(PoisonError::into_inner).push(process);
        }
        Ok(())
    }
}
