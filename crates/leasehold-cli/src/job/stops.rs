//! Holds back stop signals for a process that has not become the command yet.
//!
//! A stop there would also stop the thread that waits for it. The shell would miss the stop, and
//! keys and signals would have no effect. So they are put down here by a handler, and sent again
//! when the program is there. STOP can't be put down; what it stops goes on by CONT alone.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;

thread_local! {
    /// The signal that was put down last, or zero. A new process that uses this one's memory uses
    /// the thread-local memory of its maker too.
    static NOTED: AtomicI32 = const { AtomicI32::new(0) };
}

/// What the last process that this thread has made has put down. It is forgotten here.
pub(super) fn take() -> Option<c_int> {
    let signal = NOTED.with(|noted| noted.swap(0, Ordering::SeqCst));
    (signal != 0).then_some(signal)
}

/// Has the calling process ignore stop signals until it has become its program, unless they were
/// changed before. To be called while signals are blocked. Async-signal-safe.
pub(super) fn note() -> io::Result<()> {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT] {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        let handler: extern "C" fn(c_int) = put_down;
        // SAFETY: all-zero bytes are a valid `sigaction`, the set is made before it is used, and
        // the handler does nothing but write to a place of the calling thread. This process has the
        // handler alone: it does not share what its signals do with the one that has made it.
        let done = unsafe {
            let mut done = libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
            let action = &mut *action.as_mut_ptr();
            if done == 0 && action.sa_sigaction == libc::SIG_DFL {
                action.sa_sigaction = handler as libc::sighandler_t;
                action.sa_flags = libc::SA_RESTART;
                // One at a time, so that the last to come is the last to be put down.
                libc::sigfillset(&raw mut action.sa_mask);
                done = libc::sigaction(signal, action, std::ptr::null_mut());
            }
            done
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The handler.
extern "C" fn put_down(signal: c_int) {
    let stop = if signal == libc::SIGCONT { 0 } else { signal };
    NOTED.with(|noted| noted.store(stop, Ordering::SeqCst));
}
