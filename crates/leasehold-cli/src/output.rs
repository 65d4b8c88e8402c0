//! Prints data on stdout and messages on stderr.

use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use leasehold::store::escape;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::secret::redact;
use crate::stdout::{PIECE, Stdout, takes_more};
use crate::{printer, signals};

/// The version of every JSON document that this program prints. A field may be added without
/// changing it; it changes when one is removed or gets another meaning.
pub(crate) const JSON_VERSION: u32 = 1;

/// How long this process waits, before it ends or is suspended, for its messages to be read.
const SAY_WITHIN: Duration = Duration::from_secs(1);
/// How often to look whether a reader that stalls reads on.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often to look whether there is still a reader.
const READER_EVERY: Duration = Duration::from_millis(250);

/// Prints a message for people, free of secrets and terminal control.
///
/// Never waits: the reader of stderr may stall, and a command must still be ended in time. A
/// failure to write is ignored, since the reader has closed stderr.
pub(crate) fn message(text: &str) {
    let redacted = redact(text);
    let mut lines = String::new();
    for (n, line) in redacted.trim_end().lines().enumerate() {
        let prefix = if n == 0 { "leasehold: " } else { "" };
        lines.push_str(&format!("{prefix}{}\n", escape::terminal(line)));
    }
    printer::print(lines);
}

/// Gives stderr's reader a second to take the messages that are left.
pub(crate) fn flush() {
    printer::flush(SAY_WITHIN);
}

/// Prints data. A reader that went away is no error: it has what it wanted. If stdout was closed
/// from the start, there is no reader.
pub(crate) fn data(text: &str) -> Outcome<()> {
    data_bytes(text.as_bytes())
}

fn data_bytes(bytes: &[u8]) -> Outcome<()> {
    refuse_closed()?;
    Stdout.write_all(bytes).map_err(|error| not_written(&error))
}

/// What follows from an error of [`Stdout`].
pub(crate) fn not_written(error: &io::Error) -> Failure {
    match (error.kind(), signals::asked_to_end()) {
        (io::ErrorKind::BrokenPipe, _) => Failure::silent(Exit::Success),
        (io::ErrorKind::Other, Some(signal)) => {
            Failure::silent(Exit::Signal(signals::number(signal)))
        }
        _ => Failure::new(Exit::Output, format!("can't write to standard output: {error}")),
    }
}

/// Refuses to go on if the output has no reader.
pub(crate) fn refuse_closed() -> Outcome<()> {
    if is_closed() {
        return Err(Failure::new(
            Exit::Output,
            "standard output is closed, or open for reading only",
        ));
    }
    Ok(())
}

/// As [`data`], for those who have to listen meanwhile: does not block this thread while a reader
/// stalls. If dropped, a part may have been printed.
pub(crate) async fn data_patiently(text: &str) -> Outcome<()> {
    for piece in text.as_bytes().chunks(PIECE) {
        while !takes_more() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        data_bytes(piece)?;
    }
    Ok(())
}

/// Returns when the reader of stdout is gone. A file and an open terminal keep theirs.
pub(crate) async fn reader_gone() {
    let stdout = rustix::stdio::stdout();
    let is_gone = || {
        let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    };
    while !is_gone() {
        tokio::time::sleep(READER_EVERY).await;
    }
}

/// Whether a file is the one that is always empty.
pub(crate) fn is_null(file: BorrowedFd<'_>) -> bool {
    let Ok(null) = rustix::fs::stat("/dev/null") else { return false };
    rustix::fs::fstat(file).is_ok_and(|file| {
        file.st_mode == null.st_mode && file.st_rdev == null.st_rdev && null.st_rdev != 0
    })
}

/// Whether stdout was closed when this process was started, or nothing can be written to it: Rust's
/// library takes that for a success.
pub(crate) fn is_closed() -> bool {
    was_closed()
        || rustix::fs::fcntl_getfl(rustix::stdio::stdout())
            .is_ok_and(|flags| flags & rustix::fs::OFlags::RWMODE == rustix::fs::OFlags::RDONLY)
}

/// Whether stdout was closed when this process was started.
///
/// Rust's start-up code makes `/dev/null` of what was closed, for reading and writing, as other
/// programs open it for what they run and don't listen to. So this is checked before that.
#[cfg(target_os = "linux")]
fn was_closed() -> bool {
    before_main::STDOUT_CLOSED.load(std::sync::atomic::Ordering::Relaxed)
}

/// Whether stdout was closed when this process was started.
///
/// What was closed Rust's start-up code makes `/dev/null`, for reading and writing; who sends
/// output there opens it for writing, in a shell at least.
#[cfg(not(target_os = "linux"))]
fn was_closed() -> bool {
    use rustix::fs::OFlags;

    let stdout = rustix::stdio::stdout();
    let both = rustix::fs::fcntl_getfl(stdout).is_ok_and(|it| it.contains(OFlags::RDWR));
    both && is_null(stdout)
}

#[cfg(target_os = "linux")]
mod before_main {
    use std::sync::atomic::{AtomicBool, Ordering};

    pub(super) static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

    // SAFETY: the C library calls what stands in this section before `main`, without arguments that
    // matter; the function makes one system call and sets an atomic.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static LOOK: extern "C" fn() = look;

    extern "C" fn look() {
        // SAFETY: this reads a flag of a descriptor and touches no memory.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        STDOUT_CLOSED.store(flags < 0, Ordering::Relaxed);
    }
}

/// One JSON document on one line. Everything outside printable ASCII is written as an escape, so
/// that names and metadata of strangers can't steer a terminal.
pub(crate) fn json_line(document: &serde_json::Value) -> String {
    let mut text = String::new();
    for c in document.to_string().chars() {
        if c.is_ascii() && !c.is_ascii_control() {
            text.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                text.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    text.push('\n');
    text
}

/// Prints one JSON document on one line.
pub(crate) fn json(document: &serde_json::Value) -> Outcome<()> {
    data(&json_line(document))
}

/// Rows under a heading, in columns as wide as their widest cell. Cells must be escaped already.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_tail() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows: Vec<Vec<String>> = vec![row(&["KEY", "N"]), row(&["été", "12"]), row(&["k", ""])];
        assert_eq!(table(&rows), "KEY  N\nété  12\nk\n");
        assert_eq!(table(&[]), "");
    }
}
