//! Writes to standard output; signals still end the process while its reader stalls.

use std::io::{self, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::signals;

/// As much as a pipe takes in one piece.
pub(crate) const PIECE: usize = 4096;
/// How long a signal that comes just before the wait for a reader is overlooked.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Writes all at once, without a buffer. Fails when the reader stalls and a signal asks this
/// process to end, for which the caller then ends.
#[derive(Debug)]
pub(crate) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = bytes.get(..PIECE).unwrap_or(bytes);
        loop {
            wait_for_room()?;
            match rustix::io::write(file(), piece) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where it is written. A terminal lets its writer wait, so it is opened once more, in non-blocking
/// mode. Files that others write to keep their mode.
fn file() -> BorrowedFd<'static> {
    static TERMINAL: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let stdout = rustix::stdio::stdout();
    let open = || {
        let name = rustix::termios::ttyname(stdout, Vec::new()).ok()?;
        let how = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::open(name, how, Mode::empty()).ok()
    };
    TERMINAL.get_or_init(open).as_ref().map_or(stdout, |terminal| terminal.as_fd())
}

fn wait_for_room() -> io::Result<()> {
    while !has_room(LOOK_EVERY) {
        if let Some(signal) = signals::asked_to_end() {
            return Err(io::Error::other(format!("ended by {} meanwhile", signals::name(signal))));
        }
    }
    Ok(())
}

/// Whether a write of a piece would not have to wait, or fail at once.
pub(crate) fn takes_more() -> bool {
    has_room(AT_ONCE)
}

fn has_room(within: Timespec) -> bool {
    let file = file();
    let mut fds = [PollFd::new(&file, PollFlags::OUT)];
    match poll(&mut fds, Some(&within)) {
        Ok(ready) => ready > 0,
        Err(Errno::INTR) => false,
        // An error is for the write to tell.
        Err(_) => true,
    }
}
