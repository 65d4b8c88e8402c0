//! What this process was started with, so that its command can be started the same way.
//!
//! That is the signal mask, the ignored signals (`nohup`), and the open file descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};

use libc::c_int;
use rustix::io::FdFlags;

use crate::failure::{Failure, Outcome};

/// One past the highest signal number there is anywhere.
const SIGNALS_END: c_int = 65;

/// The signal state at the start of the process.
#[derive(Clone, Copy)]
pub(crate) struct Inherited {
    mask: libc::sigset_t,
    ignored: u128,
}

impl std::fmt::Debug for Inherited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inherited").field("ignored", &self.ignored).finish_non_exhaustive()
    }
}

impl Inherited {
    /// Looks at the signal state. To be called first of all, before anything changes it.
    ///
    /// SIGPIPE is no part of it: Rust's start-up code ignores it before `main`, and commands get
    /// it back with its default action.
    pub(crate) fn look() -> Self {
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: with a null set the mask stays and is written to `mask`, which is initialized in
        // any case.
        let mask = unsafe {
            libc::sigemptyset(mask.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
            mask.assume_init()
        };
        let mut ignored = 0;
        for signal in 1..SIGNALS_END {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: with a null action the handler stays; all-zero bytes are a valid `sigaction`,
            // so reading it is sound even when the call fails.
            let action = unsafe {
                libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
                action.assume_init()
            };
            if action.sa_sigaction == libc::SIG_IGN && signal != libc::SIGPIPE {
                ignored |= 1 << signal;
            }
        }
        Self { mask, ignored }
    }

    /// Whether this process was started with the signal ignored. It then stays so, here and in
    /// the command.
    pub(crate) const fn ignores(&self, signal: c_int) -> bool {
        self.ignored & (1 << signal) != 0
    }

    /// Sets the mask of the calling thread to the original one. Async-signal-safe.
    pub(crate) fn restore_mask(&self) -> io::Result<()> {
        // SAFETY: `mask` is a valid set, and the previous mask is not requested.
        let code = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut())
        };
        if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
    }
}

/// Gives the calling thread a mask and returns the one it had. Async-signal-safe.
fn change_mask(how: c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut previous = *set;
    // SAFETY: both pointers are valid for the call.
    unsafe { libc::pthread_sigmask(how, set, &raw mut previous) };
    previous
}

/// Lets a signal reach the calling thread.
pub(crate) fn let_through(signal: c_int) {
    change_mask(libc::SIG_UNBLOCK, &only(signal));
}

/// The set of this signal alone.
fn only(signal: c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call makes the set, and adding a signal to one is sound.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

/// The set of all signals.
fn all() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call makes the set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Runs `body` with signals blocked in this thread: all of them, or one.
pub(crate) fn blocking<T>(signal: Option<c_int>, body: impl FnOnce() -> T) -> T {
    let set = signal.map_or_else(all, only);
    let previous = change_mask(libc::SIG_BLOCK, &set);
    let value = body();
    change_mask(libc::SIG_SETMASK, &previous);
    value
}

/// The open descriptors above 2, in ascending order. This makes the listing of them too, which is
/// closed by then.
pub(crate) fn open_files() -> Outcome<Vec<RawFd>> {
    list_open().map_err(|error| Failure::system("list the open files", &error))
}

fn list_open() -> io::Result<Vec<RawFd>> {
    let directory = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
    let listed: Vec<RawFd> = std::fs::read_dir(directory)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    let is_open = |number: &RawFd| {
        // SAFETY: the call touches no memory; for a closed number it returns an error.
        unsafe { libc::fcntl(*number, libc::F_GETFD) >= 0 }
    };
    let mut numbers: Vec<_> = listed.into_iter().filter(is_open).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Marks every descriptor above 2 close-on-exec, except these. So a command inherits only intended
/// descriptors, also if a library opened one without that mark.
pub(crate) fn close_on_exec_except(kept: &[RawFd]) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if kept.is_empty() {
        // SAFETY: this sets a flag of descriptors and touches no memory.
        let marked = unsafe {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
        };
        // Before Linux 5.11 there is no such call; then one by one, which needs /proc.
        if marked == 0 {
            return Ok(());
        }
    }
    for number in list_open()?.into_iter().filter(|number| !kept.contains(number)) {
        // SAFETY: the number is used for two calls, which touch no memory. If it is closed
        // meanwhile, as the listing's own number is, they only fail.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if let Ok(flags) = rustix::io::fcntl_getfd(fd) {
            rustix::io::fcntl_setfd(fd, flags | FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

/// Closes every descriptor above 2 except these, in ascending order, as its program would next. The
/// new process uses borrowed memory, so the fork handlers of libraries do not run.
/// Async-signal-safe.
#[cfg(target_os = "linux")]
pub(crate) fn close_except(kept: &[RawFd]) {
    let close = |from: RawFd, to: libc::c_uint| {
        // SAFETY: this closes descriptors and touches no memory. Before Linux 5.9 there is no such
        // call, and they are closed with the start of the program.
        unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
    };
    let mut from = 3;
    for number in kept.iter().copied().filter(|number| *number > 2) {
        if let Ok(before) = libc::c_uint::try_from(number.saturating_sub(1))
            && number > from
        {
            close(from, before);
        }
        from = number.saturating_add(1);
    }
    close(from, libc::c_uint::MAX);
}
