//! The process's own thread, on which leases are renewed and orphans are released.
//!
//! A loss is noticed there too. All this is independent of the application's schedule.
//!
//! One thread serves all clients, blocking ones included. It starts with the first client, has a
//! runtime of its own, and sleeps while it has no work. It does not keep the process alive. A
//! fork's child does not have it, and starts one of its own with its first client.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use leasehold_clock::Process;
use leasehold_core::{Error, ErrorKind, Reason, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// As `ps -L` shows it; Linux keeps 15 characters.
const THREAD_NAME: &str = "leasehold";

/// Each generation of processes has an entry of its own. So a child never waits for a mutex that
/// was locked in its parent at the moment of the fork.
static STARTED: [Mutex<Option<Background>>; 64] = [const { Mutex::new(None) }; 64];

/// The thread, while its process lives.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    process: Process,
    runtime: Handle,
    #[cfg_attr(not(feature = "blocking"), expect(dead_code, reason = "for blocking calls"))]
    thread: ThreadId,
}

impl Background {
    /// This process's thread, started if it is not there.
    pub(crate) fn start() -> Result<Self> {
        let process = Process::current();
        let [first, ..] = &STARTED;
        let place = STARTED.get(process.place(STARTED.len())).unwrap_or(first);
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(started) = &*place
            && started.process == process
        {
            return Ok(started.clone());
        }
        let started = Self::start_anew(process)?;
        // The entry of an ancestor must not be dropped: its runtime does not exist in this process.
        std::mem::forget(place.replace(started.clone()));
        Ok(started)
    }

    fn start_anew(process: Process) -> Result<Self> {
        let refuse = |what: &str, error| {
            let why = format!("{what}, on which leases would be renewed");
            Error::new(ErrorKind::Unavailable, why).caused_by(error)
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| refuse("no runtime could be made", error))?;
        let handle = runtime.handle().clone();
        let waiting = Arc::new(Mutex::new(Some(runtime)));
        let take = |from: &Mutex<Option<Runtime>>| {
            from.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let theirs = Arc::clone(&waiting);
        let thread = thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .spawn(move || {
                if let Some(runtime) = take(&theirs) {
                    runtime.block_on(std::future::pending::<()>());
                }
            })
            .map_err(|error| {
                // The caller may be on a runtime, where dropping another one panics.
                if let Some(runtime) = take(&waiting) {
                    runtime.shutdown_background();
                }
                refuse("no thread could be started", error).with_reason(Reason::Threads)
            })?;
        Ok(Self { process, runtime: handle, thread: thread.thread().id() })
    }

    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Whether this process has the thread; a fork's child does not.
    #[cfg(feature = "blocking")]
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    /// Whether the caller runs on it.
    #[cfg(feature = "blocking")]
    pub(crate) fn is_here(&self) -> bool {
        thread::current().id() == self.thread
    }
}

/// Sleeps on the thread's timers, for callers without timers of their own, or whose time stands
/// still. Cancel safe.
pub(crate) async fn sleep(pause: Duration) {
    if let Ok(background) = Background::start() {
        // Made on the thread, so that it uses that runtime's timers and not the caller's.
        let sleeping = background.runtime.spawn(async move { tokio::time::sleep(pause).await });
        drop(sleeping.await);
    }
}
