//! The one lock that every process takes for the microseconds of a transaction.
//!
//! It is a `flock` on a file, not a mutex in shared memory: the kernel frees it when its holder
//! dies in whatever instruction, it has no layout that two builds could disagree on, and it knows
//! no process ids, so it holds across pid namespaces. It is only ever *tried*: a process that was
//! stopped inside must not hang the others. A fork has no part in it ([`Unshared`]), or a holder
//! that is killed inside would leave the lock to its children.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError as TryMutexError};

use super::unshared::Unshared;

#[derive(Debug)]
pub(super) struct Gate {
    file: Unshared,
    /// Between the threads of this process, which share the file's lock.
    inside: Mutex<()>,
}

/// Being inside. Dropping it lets the next one in.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    file: &'a File,
    _inside: MutexGuard<'a, ()>,
}

impl Gate {
    pub(super) fn new(file: File) -> io::Result<Self> {
        Ok(Self { file: Unshared::new(file)?, inside: Mutex::new(()) })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Enters unless somebody is inside. Never blocks.
    pub(super) fn try_enter(&self) -> io::Result<Option<Pass<'_>>> {
        let inside = match self.inside.try_lock() {
            Ok(inside) => inside,
            Err(TryMutexError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryMutexError::WouldBlock) => return Ok(None),
        };
        match self.file.try_lock() {
            Ok(()) => Ok(Some(Pass { file: &self.file, _inside: inside })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Enters if the way becomes free within a moment too short for anybody to notice.
    pub(super) fn enter_soon(&self) -> io::Result<Option<Pass<'_>>> {
        /// Twenty tries with a yield between them: about as long as five transactions take, and
        /// what a hop to another thread would cost.
        const TRIES: usize = 20;
        for _ in 0..TRIES {
            if let Some(pass) = self.try_enter()? {
                return Ok(Some(pass));
            }
            std::thread::yield_now();
        }
        self.try_enter()
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        // Unlocking a file that is open and locked has no way to fail.
        drop(self.file.unlock());
    }
}

/// The lock on what threads of one process share; nothing inside can be left half done by a
/// panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
