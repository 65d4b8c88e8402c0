//! The process's own thread, on which connections and timers do not wait for the application.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use leasehold_core::{Error, ErrorKind, Reason, Result};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::Process;

/// As `ps -L` shows it; Linux keeps 15 characters.
const THREAD_NAME: &str = "leasehold";

/// Each generation of processes has an entry of its own. So a child never waits for a mutex that
/// was locked in its parent at the moment of the fork.
static STARTED: [Mutex<Option<Driver>>; 64] = [const { Mutex::new(None) }; 64];

/// The process's own thread, with a tokio runtime of its own.
///
/// Leases are renewed and orphans are released on it, and connections live there. All this is
/// independent of the application's schedule.
///
/// One thread serves all clients of a process. It starts at its first use, and sleeps while it has
/// no work. It does not keep the process alive. A fork's child does not have it, and starts one of
/// its own.
#[derive(Clone, Debug)]
pub struct Driver {
    process: Process,
    runtime: Handle,
    thread: ThreadId,
}

impl Driver {
    /// This process's thread, started if it is not there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the system has too few threads or descriptors.
    pub fn current() -> Result<Self> {
        let process = Process::current();
        let [first, ..] = &STARTED;
        let place = STARTED.get(process.place(STARTED.len())).unwrap_or(first);
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(started) = &*place
            && started.process == process
        {
            return Ok(started.clone());
        }
        let started = Self::start(process)?;
        // The entry of an ancestor must not be dropped: its runtime does not exist in this process.
        std::mem::forget(place.replace(started.clone()));
        Ok(started)
    }

    fn start(process: Process) -> Result<Self> {
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

    /// The thread's runtime. A task that blocks there delays all renewals of the process.
    #[must_use]
    pub const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Whether this process has the thread; a fork's child does not.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    /// Whether the caller runs on it.
    #[must_use]
    pub fn is_here(&self) -> bool {
        thread::current().id() == self.thread
    }
}
