//! Marks a store's directory as in use, by a shared lock on the directory itself.
//!
//! Programs that clear old temporary files away leave a locked directory alone.

use std::fs::{File, TryLockError};
use std::io;
use std::time::Duration;

use leasehold_clock::Process;
use rustix::fs::{Mode, OFlags};

use super::unshared::Unshared;

/// How often, and with what pause, sharing is tried again: a process that another thread has just
/// forked keeps a copy of an earlier lock until it starts its program.
const TRIES: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct InUse {
    directory: File,
    process: Process,
}

impl InUse {
    /// Looks whether nobody else uses the store. Only while it is being opened, by one at a time.
    pub(super) fn look(directory: File) -> io::Result<(Self, bool)> {
        // An open file of its own, which no fork shares: killed just here, this process would
        // leave a lock to its children that keeps everybody out.
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

    /// Says to all that the store is in use, until this is dropped.
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
        // Said aloud, since a fork may keep a copy of the file open; a fork's own end says
        // nothing about its parent.
        if self.process.is_current() {
            drop(self.directory.unlock());
        }
    }
}
