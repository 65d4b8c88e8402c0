//! Holds a lock in the background: the process forks before it has threads.
//!
//! The child takes the lock and keeps it. The parent ends when the child reports that it has the
//! lock.
//!
//! The back has a session of its own, and closes the files that it was started with. So the end of
//! a terminal, keys and readers of pipes do not affect it. Both know of each other's end by the
//! socket between them: a front that is gone before it has passed the fence on leaves nothing held.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::{inherited, output};

/// What follows the fences: they are all there, and held.
const ALL: u8 = 0;
/// What the front answers once it has passed them on.
const PASSED_ON: u8 = 1;

/// The half of this process that the shell waits for.
#[derive(Debug)]
pub(crate) struct Front {
    back: Pid,
    socket: UnixStream,
}

/// Divides this process. Answers with the front in the front, and with nothing in the back.
///
/// To be called before there is a second thread, and before a file is opened.
pub(crate) fn divide() -> Outcome<Option<Front>> {
    let failed = |error: io::Error| Failure::system("go to the background", &error);
    let (front, back) = UnixStream::pair().map_err(failed)?;
    // SAFETY: there is one thread, so the child may do all that its parent may.
    match unsafe { libc::fork() } {
        0 => {
            drop(front);
            leave(back).map_err(failed)?;
            Ok(None)
        }
        pid => match Pid::from_raw(pid) {
            Some(back) if pid > 0 => Ok(Some(Front { back, socket: front })),
            _ => Err(failed(io::Error::last_os_error())),
        },
    }
}

/// Leaves the session and standard input and output, where the socket is now.
fn leave(socket: UnixStream) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::stdio::dup2_stdin(null()?)?;
    rustix::stdio::dup2_stdout(OwnedFd::from(socket))?;
    Ok(())
}

fn null() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/null", flags, Mode::empty())?)
}

/// Closes the files above the standard ones that the back was started with: a shell's own locks are
/// among them, and pipes whose readers wait for their end.
pub(crate) fn close_files() -> Outcome<()> {
    #[cfg(target_os = "linux")]
    inherited::close_except(&[]);
    #[cfg(not(target_os = "linux"))]
    for number in inherited::open_files()? {
        // SAFETY: nothing here has opened a file yet that it still uses.
        unsafe { libc::close(number) };
    }
    Ok(())
}

impl Front {
    /// Waits until the back holds the lock or has ended, and passes on what it says.
    pub(crate) fn wait(mut self, as_json: bool) -> Outcome {
        let mut said = Vec::new();
        let read = self.socket.read_to_end(&mut said);
        let all = read.is_ok() && said.pop_if(|last| *last == ALL).is_some();
        let text = String::from_utf8_lossy(&said);
        if !all {
            // The document of an error.
            if as_json {
                output::data(&text)?;
            }
            return Ok(self.end_of_back());
        }
        match output::data(&text) {
            // The back learns nothing of it, and takes that for a no.
            Err(failure) if failure.exit == Exit::Success => {
                self.give_back();
                Err(not_read())
            }
            Err(failure) => {
                self.give_back();
                Err(failure)
            }
            Ok(()) if self.socket.write_all(&[PASSED_ON]).is_err() => {
                Err(Failure::new(Exit::Lost, "the lock is free again: its holder has ended"))
            }
            Ok(()) => Ok(Exit::Success),
        }
    }

    /// Has the back give up what it holds.
    fn give_back(&mut self) {
        self.socket.shutdown(std::net::Shutdown::Both).ok();
        self.end_of_back();
    }

    fn end_of_back(&self) -> Exit {
        let status = waitid(WaitId::Pid(self.back), WaitIdOptions::EXITED).ok().flatten();
        let Some(status) = status else { return Exit::Internal };
        let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
        match (status.exit_status(), status.terminating_signal()) {
            // It can't have ended well without a word.
            (Some(0), _) | (None, None) => Exit::Internal,
            (Some(code), _) => Exit::Code(byte(code)),
            (None, Some(signal)) => {
                output::message("the holder was killed before it had the lock; start it again");
                Exit::Signal(byte(signal))
            }
        }
    }
}

pub(super) fn not_read() -> Failure {
    Failure::new(
        Exit::Output,
        "standard output is not read, so the lock is released; read it, or send it to a file",
    )
}

/// Ends the output, and returns once the front has passed it on.
///
/// Standard error is left before the front can go on: from then on a script may wait for its end
/// while this process is stopped.
///
/// # Errors
///
/// When the front has ended without.
pub(super) async fn passed_on() -> Outcome<()> {
    let ask = async {
        let socket = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?);
        leave_output();
        (&socket).write_all(&[ALL])?;
        socket.shutdown(std::net::Shutdown::Write)?;
        socket.set_nonblocking(true)?;
        let socket = tokio::net::UnixStream::from_std(socket)?;
        let mut answer = [0];
        loop {
            socket.readable().await?;
            match socket.try_read(&mut answer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Ok::<_, io::Error>(read? == 1 && answer == [PASSED_ON]),
            }
        }
    };
    match ask.await {
        Ok(true) => Ok(()),
        // The front reports it, if there still is one.
        Ok(false) => Err(Failure::silent(Exit::Output)),
        Err(error) => Err(Failure::system("answer from the background", &error)),
    }
}

/// Leaves standard output and error to those who wait for their end. An error file stays open,
/// since it has no waiting reader.
fn leave_output() {
    output::flush();
    if let Ok(null) = null() {
        rustix::stdio::dup2_stdout(null.as_fd()).ok();
        if !has_error_file() {
            rustix::stdio::dup2_stderr(null.as_fd()).ok();
        }
    }
}

fn has_error_file() -> bool {
    rustix::fs::fstat(rustix::stdio::stderr())
        .is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::RegularFile)
}

/// Prints a message on the standard error of a process. That is closed afterwards unless it is a
/// file.
pub(super) fn tell(process: Pid, text: &str) {
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let name = format!("/proc/{}/fd/2", process.as_raw_nonzero());
    // In a file of its own the script's lines and this one would overwrite each other.
    let theirs = (!has_error_file()).then(|| rustix::fs::open(name, flags, Mode::empty()));
    let Some(Ok(theirs)) = theirs else {
        output::message(text);
        return;
    };
    let Ok(before) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3) else { return };
    output::flush();
    if rustix::stdio::dup2_stderr(File::from(theirs).as_fd()).is_ok() {
        output::message(text);
        output::flush();
        rustix::stdio::dup2_stderr(before.as_fd()).ok();
    }
}
