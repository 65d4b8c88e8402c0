//! Writes the `--status` file: the result of the lock and of the command.
//!
//! A process is one command, so there is one file. Each change replaces it in one step.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use leasehold::{Key, Loss, Release};
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{self, JSON_VERSION};
use crate::{replaced, secret, signals};

/// The document to write.
#[derive(Debug)]
struct Status {
    path: PathBuf,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    command: &'static str,
    granted: bool,
    leases: Vec<Lease>,
    result: Option<Exit>,
    exit: Option<Value>,
    /// Whether the warning about the file was printed.
    is_unwritten: bool,
}

#[derive(Debug)]
struct Lease {
    key: String,
    fence: Option<String>,
    lost: Option<Value>,
    release: Option<&'static str>,
    late_by_ms: Option<u64>,
}

static STATUS: OnceLock<Status> = OnceLock::new();

/// Writes the file for the first time, so that the file of an earlier command is replaced.
pub(crate) fn begin(path: &Path, command: &'static str, keys: &[OsString]) -> Outcome<()> {
    let shown = path.display();
    if fs::metadata(path).is_ok_and(|file| !file.is_file()) {
        return Err(Failure::usage(format!(
            "--status {shown} is not a regular file; name another file"
        )));
    }
    let lease = |key: &OsString| Lease {
        key: key.to_string_lossy().into_owned(),
        fence: None,
        lost: None,
        release: None,
        late_by_ms: None,
    };
    let told = Told { command, leases: keys.iter().map(lease).collect(), ..Told::default() };
    write(path, &told.document()).map_err(|error| {
        Failure::new(Exit::Output, format!("can't write --status {shown}: {error}"))
    })?;
    // One process is one command.
    STATUS.set(Status { path: path.to_owned(), told: Mutex::new(told) }).ok();
    Ok(())
}

/// The locks are held, each with its fence as it is shown.
pub(crate) fn granted<'a>(locks: impl Iterator<Item = (&'a Key, Option<String>)>) {
    let lease = |(key, fence): (&Key, _)| Lease {
        key: key.as_str().to_owned(),
        fence,
        lost: None,
        release: None,
        late_by_ms: None,
    };
    change(|told| {
        told.granted = true;
        told.result = None;
        told.leases = locks.map(lease).collect();
    });
}

/// One of them is lost.
pub(crate) fn lost(key: &Key, loss: &Loss) {
    let at = humantime::format_rfc3339_millis(now()).to_string();
    change(|told| {
        if let Some(lease) = told.lease(key) {
            let (reason, why) = (loss.reason().name(), secret::redact(&loss.to_string()));
            lease.lost = Some(json!({ "at": at, "reason": reason, "message": why }));
        }
    });
}

/// The command has ended.
pub(crate) fn ended(how: Exit) {
    change(|told| told.result = Some(how));
}

/// One of them was released, or should have been.
pub(crate) fn released(key: &Key, how: &leasehold::Result<Release>) {
    change(|told| {
        let Some(lease) = told.lease(key) else { return };
        lease.release = Some(match how {
            Ok(Release::Released) => "released",
            Ok(Release::Late { .. }) => "late",
            Ok(Release::NotHeld) => "not_held",
            _ => "unknown",
        });
        lease.late_by_ms = match how {
            Ok(Release::Late { by }) => by.and_then(|by| u64::try_from(by.as_millis()).ok()),
            _ => None,
        };
    });
}

/// How this process ends.
pub(crate) fn finish(outcome: &Outcome) {
    let (exit, message) = match outcome {
        Ok(exit) => (*exit, ""),
        Err(Failure { exit, message, .. }) => (*exit, message.as_str()),
    };
    let of_signal = match exit {
        Exit::Signal(signal) if message.is_empty() => {
            format!("ended by SIG{}", signals::name(signal.into()))
        }
        _ => String::new(),
    };
    let message = if message.is_empty() { &of_signal } else { message };
    change(|told| {
        if told.granted {
            for lease in &mut told.leases {
                // It was cut short, or not even sent.
                lease.release = lease.release.or(Some("unknown"));
            }
        }
        told.exit = Some(json!({
            "code": exit.code(), "kind": exit.name(), "message": secret::redact(message),
        }));
    });
}

fn change(how: impl FnOnce(&mut Told)) {
    let Some(status) = STATUS.get() else { return };
    let mut told = status.told.lock().unwrap_or_else(PoisonError::into_inner);
    how(&mut told);
    if let Err(error) = write(&status.path, &told.document())
        && !std::mem::replace(&mut told.is_unwritten, true)
    {
        let shown = status.path.display();
        output::message(&format!("warning: can't write --status {shown}: {error}"));
    }
}

impl Told {
    fn lease(&mut self, key: &Key) -> Option<&mut Lease> {
        self.leases.iter_mut().find(|lease| lease.key == key.as_str())
    }

    fn document(&self) -> String {
        let lease = |lease: &Lease| {
            json!({
                "key": lease.key, "fence": lease.fence, "lost": lease.lost, "release": lease.release,
                "late_by_ms": lease.late_by_ms,
            })
        };
        let result = self.result.map(|how| match how {
            Exit::Signal(signal) => json!({ "exit_code": null, "signal": signal }),
            how => json!({ "exit_code": how.code(), "signal": null }),
        });
        output::json_line(&json!({
            "version": JSON_VERSION,
            "command": self.command,
            "pid": std::process::id(),
            "granted": self.granted,
            "leases": self.leases.iter().map(lease).collect::<Vec<_>>(),
            "result": result,
            "exit": self.exit,
        }))
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    // As any file of its user's.
    replaced::write(path, text, 0o666)
}

/// For people; no decision depends on it.
#[expect(clippy::disallowed_methods, reason = "a time of day for people")]
fn now() -> SystemTime {
    SystemTime::now()
}
