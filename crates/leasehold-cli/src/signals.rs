//! Catches signals, and lets one end a wait.
//!
//! A command catches some fifty of them, each time it is started. So there is one handler for all,
//! which only writes their numbers into a pipe.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd as _, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;
use rustix::pipe::PipeFlags;
use tokio::net::unix::pipe::Receiver;

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::inherited::{self, Inherited};

/// Signals that people and shells send to end a process.
const FATAL: [c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Further signals that end a process which does not expect them, besides the real-time ones. A
/// command gets those that are sent to this process while it runs.
///
/// Faults of this process (ILL, FPE, SEGV, BUS, SYS) are left out: a program ends after one. What
/// is written to a reader that is gone (PIPE) or beyond a limit (XFSZ) is an error like others.
const UNEXPECTED: &[c_int] = &[
    libc::SIGABRT,
    libc::SIGALRM,
    libc::SIGIO,
    libc::SIGPROF,
    libc::SIGTRAP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGVTALRM,
    #[cfg(target_os = "linux")]
    libc::SIGPWR,
    #[cfg(target_os = "linux")]
    libc::SIGSTKFLT,
];

/// The same, but from the system about this process alone: it has used up its processor time.
const OWN: [c_int; 1] = [libc::SIGXCPU];

/// Where the handler writes what arrives: the end of a pipe that is never closed. Negative until a
/// signal is caught.
static PIPE: AtomicI32 = AtomicI32::new(-1);
/// The process that catches signals. A fork of it has the handler too, until it starts its program.
static CATCHER: AtomicI32 = AtomicI32::new(0);

/// The last signal that asked this process to end; zero before there was one.
static ENDING: AtomicI32 = AtomicI32::new(0);

/// The requested signals that arrive.
#[derive(Debug)]
pub(crate) struct Signals {
    inherited: Inherited,
    caught: Vec<c_int>,
    pipe: Receiver,
    /// What has been read, in the order in which it arrived.
    arrived: VecDeque<c_int>,
}

impl Signals {
    /// Catches the signals that would end this process where it stands, so that it can give up what
    /// it has first; except those that were ignored from the start. To be called once in a process,
    /// on a runtime.
    pub(crate) fn catch_fatal(inherited: Inherited) -> io::Result<Self> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let pipe = Receiver::from_owned_fd(read)?;
        CATCHER.store(own_number(), Ordering::SeqCst);
        PIPE.store(write.into_raw_fd(), Ordering::SeqCst);
        let mut signals = Self { inherited, caught: Vec::new(), pipe, arrived: VecDeque::new() };
        let wanted = FATAL.iter().chain(UNEXPECTED).chain(&OWN).copied();
        #[cfg(target_os = "linux")]
        let wanted = wanted.chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
        signals.catch(wanted)?;
        Ok(signals)
    }

    /// Catches all other signals that can be caught, except signals for this process alone, as of
    /// its own terminal and pipes. Also catches CHLD, even if it was ignored or blocked.
    pub(crate) fn catch_all(&mut self) -> io::Result<()> {
        self.catch([libc::SIGCONT, libc::SIGTSTP, libc::SIGURG, libc::SIGWINCH])?;
        if !self.caught.contains(&libc::SIGCHLD) {
            handle(libc::SIGCHLD)?;
            self.caught.push(libc::SIGCHLD);
        }
        inherited::let_through(libc::SIGCHLD);
        Ok(())
    }

    fn catch(&mut self, wanted: impl IntoIterator<Item = c_int>) -> io::Result<()> {
        for number in wanted {
            if !self.inherited.ignores(number) && !self.caught.contains(&number) {
                handle(number)?;
                self.caught.push(number);
            }
        }
        Ok(())
    }

    /// What has been caught so far; a new process gets these back with their default actions.
    pub(crate) fn caught(&self) -> &[c_int] {
        &self.caught
    }

    /// The next signal that ends this process while no command runs. A stop signal is obeyed on the
    /// way; harmless signals are ignored. Cancel safe.
    pub(crate) async fn next_fatal(&mut self) -> c_int {
        loop {
            match self.next().await {
                libc::SIGTSTP => suspend(),
                libc::SIGCHLD | libc::SIGCONT | libc::SIGURG | libc::SIGWINCH => {}
                signal => return signal,
            }
        }
    }

    /// The next signal. One that came for each of several reasons at a time may come once. Cancel
    /// safe.
    pub(crate) async fn next(&mut self) -> c_int {
        loop {
            if let Some(signal) = self.arrived.pop_front() {
                return signal;
            }
            if self.pipe.readable().await.is_err() {
                // Not reached: the runtime is there as long as what runs on it.
                std::future::pending::<()>().await;
            }
            let mut numbers = [0; 64];
            if let Ok(count) = self.pipe.try_read(&mut numbers) {
                self.arrived.extend(numbers.iter().take(count).map(|number| c_int::from(*number)));
            }
        }
    }
}

/// Has a fork of the process that catches signals hear of the ends of its own children, by bytes in
/// this pipe. Async-signal-safe.
pub(crate) fn hear_of_children(pipe: RawFd) {
    CATCHER.store(own_number(), Ordering::SeqCst);
    PIPE.store(pipe, Ordering::SeqCst);
    inherited::let_through(libc::SIGCHLD);
}

fn own_number() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Has a signal's number written into the pipe when it arrives.
fn handle(signal: c_int) -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: extern "C" fn(c_int) = note;
    // SAFETY: all-zero bytes are a valid `sigaction` with an empty mask; the handler makes system
    // calls only and reads atomics.
    let done = unsafe {
        (*action.as_mut_ptr()).sa_sigaction = handler as libc::sighandler_t;
        (*action.as_mut_ptr()).sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, action.as_ptr(), std::ptr::null_mut())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The handler. What it finds of the thread that it interrupts it leaves as it was.
extern "C" fn note(signal: c_int) {
    let pipe: RawFd = PIPE.load(Ordering::SeqCst);
    // A signal to a fork is none to this process, whose pipe the fork has as well.
    if pipe < 0 || own_number() != CATCHER.load(Ordering::SeqCst) {
        return;
    }
    if is_fatal(signal) {
        ENDING.store(signal, Ordering::SeqCst);
    }
    let error = errno();
    // SAFETY: this is the thread's own place for the number of an error.
    let before = unsafe { *error };
    // SAFETY: the descriptor is open for as long as the process lives.
    let pipe = unsafe { BorrowedFd::borrow_raw(pipe) };
    // A pipe that is full has 65 536 signals in it.
    rustix::io::write(pipe, &[number(signal)]).ok();
    // SAFETY: as above.
    unsafe { *error = before };
}

/// Where the calling thread keeps the number of its last error.
fn errno() -> *mut c_int {
    // SAFETY: the call takes nothing and answers with a place of the calling thread.
    #[cfg(target_os = "linux")]
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    #[cfg(any(target_os = "android", target_os = "netbsd", target_os = "openbsd"))]
    let place = unsafe { libc::__errno() };
    // SAFETY: as above.
    #[cfg(any(target_vendor = "apple", target_os = "freebsd", target_os = "dragonfly"))]
    let place = unsafe { libc::__error() };
    place
}

/// The number as the exit code of a process killed by it wants it.
pub(crate) fn number(signal: c_int) -> u8 {
    u8::try_from(signal).unwrap_or(u8::MAX)
}

/// The signals that people name in options.
const NAMES: [(&str, c_int); 12] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("WINCH", libc::SIGWINCH),
];

/// Reads a signal: `TERM`, `SIGTERM`, `15`.
pub(crate) fn parse(text: &str) -> Result<c_int, String> {
    let upper = text.trim().to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let numbered = || name.parse().ok().filter(|number| (1..=64).contains(number));
    named.or_else(numbered).ok_or_else(|| {
        let names = NAMES.map(|(name, _)| name).join(", ");
        format!("give one of {names}, or a number from 1 to 64")
    })
}

/// The faults for which the system ends a process, and a limit.
const FAULTS: [(&str, c_int); 8] = [
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("ILL", libc::SIGILL),
    ("PIPE", libc::SIGPIPE),
    ("SEGV", libc::SIGSEGV),
    ("SYS", libc::SIGSYS),
    ("XCPU", libc::SIGXCPU),
];

/// The name of a signal for people.
pub(crate) fn name(signal: c_int) -> String {
    let named = NAMES.iter().chain(&FAULTS).find(|(_, number)| *number == signal);
    named.map_or_else(|| format!("signal {signal}"), |(name, _)| (*name).to_owned())
}

/// Whether a signal is one that asks to end.
pub(crate) fn is_fatal(signal: c_int) -> bool {
    FATAL.contains(&signal)
}

/// The last signal that asked this process to end, of those that it catches.
pub(crate) fn asked_to_end() -> Option<c_int> {
    Some(ENDING.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// Whether a signal is for this process alone, and not for its command.
pub(crate) fn is_own(signal: c_int) -> bool {
    OWN.contains(&signal)
}

/// Gives a signal its default action. Async-signal-safe.
pub(crate) fn reset(signal: c_int) -> io::Result<()> {
    set_action(signal, libc::SIG_DFL)
}

/// Ignores a signal. Async-signal-safe.
pub(crate) fn ignore(signal: c_int) -> io::Result<()> {
    set_action(signal, libc::SIG_IGN)
}

fn set_action(signal: c_int, action: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: both callers pass an action that is valid for every signal that can be caught.
    let previous = unsafe { libc::signal(signal, action) };
    if previous == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a signal to every process of a group. A group that is gone is left alone.
pub(crate) fn send_to_group(group: rustix::process::Pid, signal: c_int) -> io::Result<()> {
    // SAFETY: `kill` touches no memory of this process.
    match unsafe { libc::kill(-group.as_raw_nonzero().get(), signal) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}

/// Stops the process group of this process as Ctrl-Z would have, and returns when it goes on.
/// Without a terminal it stops this process alone, since a stopped script around it would stay
/// stopped.
///
/// Without a shell with job control the system refuses to stop it, and this returns at once.
pub(crate) fn suspend() {
    let whole_group = std::fs::File::open("/dev/tty").is_ok();
    let stop = libc::SIGTSTP;
    let mut ignore = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    let mut previous = ignore;
    // SAFETY: all-zero bytes are a valid `sigaction` with an empty mask and no flags. The actions
    // set are SIG_IGN, SIG_DFL and the one that was there; `raise` returns once the thread has been
    // stopped and continued. The rest of the group gets the signal first, while this process is
    // deaf to the signal, so that it does not stop in the middle.
    unsafe {
        (*ignore.as_mut_ptr()).sa_sigaction = libc::SIG_IGN;
        libc::sigaction(stop, ignore.as_ptr(), previous.as_mut_ptr());
        if whole_group {
            libc::kill(0, stop);
        }
        libc::signal(stop, libc::SIG_DFL);
        libc::raise(stop);
        libc::sigaction(stop, previous.as_ptr(), std::ptr::null_mut());
    }
}

/// Sends a signal to the process group of this process, which dies of it, too, as if it had never
/// caught it. Returns only if that fails.
pub(crate) fn die_with_own_group(signal: c_int) {
    if reset(signal).is_ok() {
        // SAFETY: neither call touches memory of this process.
        unsafe {
            libc::kill(0, signal);
            libc::raise(signal);
        }
    }
}

/// Does some work unless a fatal signal comes first. The [context](crate::context::Context::close)
/// abandons the rest of that work when it is closed.
///
/// The work begins even if the signal is there already: a release that never began would lose what
/// it was to do besides, say the cooldown.
pub(crate) async fn unless_interrupted<T>(
    signals: &mut Signals,
    work: impl Future<Output = T>,
) -> Outcome<T> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        signal = signals.next_fatal() => Err(Failure::silent(Exit::Signal(number(signal)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_by_name_and_number_and_printed_by_name() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse(text), Ok(libc::SIGTERM), "{text}");
        }
        for text in ["", "SIG", "FLY", "0", "65", "-1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(name(libc::SIGUSR1), "USR1");
        assert_eq!(name(40), "signal 40");
    }
}
