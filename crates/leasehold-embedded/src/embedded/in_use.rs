//! Marks a store's directory as in use, by a shared lock on the directory itself.
//!
//! Programs that clear old temporary files leave a locked directory alone.

use std::fs::{File, TryLockError};
use std::io;
use std::time::Duration;

use leasehold_clock::Process;
use rustix::fs::{Mode, OFlags};

use super::unshared::Unshared;

/// How often, and with what pause, sharing is tried again. A process that another thread has just
/// forked keeps a copy of an earlier lock until it starts its program.
const TRIES: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct InUse {
    directory: File,
    process: Process,
}

impl InUse {
    /// Checks whether this is the only process that uses the store. Only while opening it, one
    /// process at a time.
    pub(super) fn look(directory: File) -> io::Result<(Self, bool)> {
        // This open file is not shared with forks. Killed here, this process would otherwise leave
        // its children a lock that excludes all processes.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let look = rustix::fs::openat(&directory, ".", flags, Mode::empty())?;
        let look = Unshared::new(look.into())?;
        let alone = match look.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        if alone {
            look.unlock()?;
        }
        Ok((Self { directory, process: Process::current() }, alone))
    }

    /// Shows other processes that the store is in use, until this is dropped.
    pub(super) fn share(&self) -> io::Result<()> {
        for _ in 0..TRIES {
            match self.directory.try_lock_shared() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // Unlocks explicitly, since a fork may keep a copy of the file open. A fork's end leaves
        // its parent's lock alone.
        if self.process.is_current() {
            drop(self.directory.unlock());
        }
    }
}
