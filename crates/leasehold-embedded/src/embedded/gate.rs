//! The gate of a store: it lets in one process at a time, for the microseconds of a transaction.
//!
//! On Linux, a [word](super::word) in shared memory names the process inside, and a kernel lock on
//! a byte of the file shows that this process lives. Elsewhere, and if a page of the file can't be
//! preallocated, being inside is a `flock` on the file. Either way the kernel reports a death at
//! any instruction. Process ids decide nothing, so the gate works across PID namespaces.
//!
//! Entering is only ever *tried*: a process that was stopped inside must not hang the others. A
//! fork is excluded ([`Unshared`]). Otherwise a holder that is killed inside would leave the file's
//! locks to its children.
//!
//! In either case, a process that opens the store takes the `flock` first. It keeps opening apart
//! from operations inside a gate by `flock`.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError as TryMutexError};

use leasehold_clock::Process;

use super::unshared::Unshared;
use super::word::{Inside, Word, damaged};

#[derive(Debug)]
pub(super) struct Gate {
    // Dropped before the file, whose lock shows that its slot is alive.
    word: OnceLock<Word>,
    file: Unshared,
    /// Excludes this process's other threads, which share the file's locks and the slot.
    inside: Mutex<()>,
    process: Process,
}

/// Proof of being inside. Dropping it lets the next process in.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    word: Option<&'a Word>,
    _inside: MutexGuard<'a, ()>,
}

/// Proof of being the only one that opens the store, until this is dropped.
#[derive(Debug)]
pub(super) struct Opening<'a>(&'a File);

impl Gate {
    /// A gate that is entered by the lock on the file.
    pub(super) fn new(file: File) -> io::Result<Self> {
        Ok(Self {
            word: OnceLock::new(),
            file: Unshared::new(file)?,
            inside: Mutex::default(),
            process: Process::current(),
        })
    }

    /// Uses the word in the file from now on; `again` is the same file, opened once more.
    pub(super) fn by_word(&self, again: &File) -> io::Result<()> {
        let word = Word::map(&self.file, again)?;
        self.word.set(word).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The process inside, if the gate has a word.
    pub(super) fn inside(&self) -> Option<Inside> {
        self.word.get()?.inside()
    }

    /// Begins to open the store unless another process is opening it. Never blocks.
    pub(super) fn try_open(&self) -> io::Result<Option<Opening<'_>>> {
        Ok(try_lock(&self.file)?.then(|| Opening(&self.file)))
    }

    /// Enters unless another process or thread is inside. Never blocks.
    pub(super) fn try_enter(&self) -> io::Result<Option<Pass<'_>>> {
        self.try_by(|word| word.try_enter())
    }

    /// As [`try_enter`](Self::try_enter), and also replaces a process that died inside. It makes a
    /// few system calls, so it is for callers that found the gate taken.
    pub(super) fn try_follow(&self) -> io::Result<Option<Pass<'_>>> {
        self.try_by(|word| Ok(word.try_enter()? || word.try_follow(&self.file)?))
    }

    fn try_by(&self, by: impl FnOnce(&Word) -> io::Result<bool>) -> io::Result<Option<Pass<'_>>> {
        if !self.process.is_current() {
            return Err(io::Error::other("opened before a fork, and this is the child"));
        }
        let inside = match self.inside.try_lock() {
            Ok(inside) => inside,
            Err(TryMutexError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryMutexError::WouldBlock) => return Ok(None),
        };
        let word = self.word.get();
        let entered = word.map_or_else(|| try_lock(&self.file), by)?;
        Ok(entered.then(|| Pass { gate: self, word, _inside: inside }))
    }

    /// Enters if the gate becomes free within a few microseconds.
    pub(super) fn enter_soon(&self) -> io::Result<Option<Pass<'_>>> {
        /// Twenty tries with a yield between them: about as long as five transactions, or as a hop
        /// to another thread.
        const TRIES: usize = 20;
        for _ in 0..TRIES {
            if let Some(pass) = self.try_enter()? {
                return Ok(Some(pass));
            }
            std::thread::yield_now();
        }
        self.try_follow()
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

impl Pass<'_> {
    /// Fails if another program has overwritten the word: another process may be inside as well.
    /// Called before a step takes effect, and before it is reported as done.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.word.is_none_or(Word::is_inside) { Ok(()) } else { Err(damaged()) }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        match self.word {
            // A fork's child has a copy of the pass and the same memory, but is not inside.
            Some(word) if self.gate.process.is_current() => word.leave(),
            Some(_) => {}
            // Unlocking an open, locked file can't fail.
            None => drop(self.gate.file.unlock()),
        }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        drop(self.0.unlock());
    }
}

/// Locks what threads of one process share. A panic leaves nothing half done there.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl Gate {
    /// The gate of an existing store, as another process has it.
    pub(super) fn beside(directory: &std::path::Path) -> Self {
        let open = || File::options().read(true).write(true).open(directory.join("gate")).unwrap();
        let gate = Self::new(open()).unwrap();
        let header = std::fs::read_to_string(directory.join("store")).unwrap();
        if header.contains("\ngate word ") {
            gate.by_word(&open()).unwrap();
        }
        gate
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::EmbeddedStore;
    use super::*;

    /// A directory with a store that is entered in this system's way.
    fn place() -> (PathBuf, tempfile::TempDir) {
        let directory = tempfile::tempdir_in("/dev/shm")
            .unwrap_or_else(|_| tempfile::tempdir().expect("a test has a directory"));
        let path = directory.path().join("locks");
        drop(EmbeddedStore::open(&path).unwrap());
        (path, directory)
    }

    /// Makes the lock on the file the way to enter.
    fn by_lock(path: &Path) {
        let header = std::fs::read_to_string(path.join("store")).unwrap();
        std::fs::write(path.join("store"), header.replace("gate word", "gate lock")).unwrap();
    }

    #[test]
    fn one_at_a_time_is_inside() {
        let (path, _keep) = place();
        for lock in [false, true] {
            if lock {
                by_lock(&path);
            }
            let gates: [Gate; 4] = std::array::from_fn(|_| Gate::beside(&path));
            let inside = gates[0].try_enter().unwrap().unwrap();
            assert!(gates[0].try_enter().unwrap().is_none());
            assert!(gates[1].try_enter().unwrap().is_none());
            assert!(gates[1].try_follow().unwrap().is_none());
            drop(inside);
            drop(gates[1].try_enter().unwrap().unwrap());
            // Not atomic: two threads inside at once would lose additions.
            let (count, each) = (AtomicU64::new(0), 2_000);
            std::thread::scope(|scope| {
                for number in 0..8 {
                    let (gate, count) = (&gates[number % gates.len()], &count);
                    scope.spawn(move || {
                        for _ in 0..each {
                            let pass = loop {
                                let pass = gate.enter_soon().unwrap();
                                match pass {
                                    Some(pass) => break pass,
                                    None => std::thread::yield_now(),
                                }
                            };
                            let before = count.load(Ordering::Relaxed);
                            count.store(before + 1, Ordering::Relaxed);
                            drop(pass);
                        }
                    });
                }
            });
            assert_eq!(count.into_inner(), 8 * each);
        }
    }

    #[cfg(target_os = "linux")]
    mod with_a_word {
        use std::os::unix::fs::FileExt as _;

        use super::*;

        /// Leaves a dead process inside.
        fn die_inside(path: &Path) {
            let gate = Gate::beside(path);
            std::mem::forget(gate.try_enter().unwrap().unwrap());
        }

        #[test]
        fn who_died_inside_is_followed_by_one() {
            let (path, _keep) = place();
            for _ in 0..50 {
                die_inside(&path);
                let inside = AtomicU64::new(0);
                let entered = AtomicU64::new(0);
                std::thread::scope(|scope| {
                    for _ in 0..4 {
                        scope.spawn(|| {
                            let gate = Gate::beside(&path);
                            let pass = loop {
                                if let Some(pass) = gate.try_follow().unwrap() {
                                    break pass;
                                }
                                std::thread::yield_now();
                            };
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            entered.fetch_add(1, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(pass);
                        });
                    }
                });
                assert_eq!(entered.into_inner(), 4);
            }
        }

        /// Classic locks belong to the process and would be gone.
        #[test]
        fn a_process_that_closes_the_file_stays_inside() {
            let (path, _keep) = place();
            let gates = [Gate::beside(&path), Gate::beside(&path)];
            let pass = gates[0].try_enter().unwrap();
            drop(File::options().read(true).write(true).open(path.join("gate")).unwrap());
            drop(Gate::beside(&path));
            assert!(gates[1].try_follow().unwrap().is_none());
            drop(pass);
        }

        #[test]
        fn a_fork_neither_enters_nor_lets_another_process_in() {
            let (path, _keep) = place();
            let gates = [Gate::beside(&path), Gate::beside(&path)];
            let pass = gates[0].try_enter().unwrap().unwrap();
            // SAFETY: the child makes system calls, drops the pass, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(pass);
                let refused = gates[0].try_enter().is_err() && gates[0].try_follow().is_err();
                // SAFETY: only ends this process.
                unsafe { libc::_exit(i32::from(!refused)) };
            }
            let mut status = -1;
            // SAFETY: waits for the child above; `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
            assert!(gates[1].try_follow().unwrap().is_none());
            drop(pass);
            assert!(gates[1].try_enter().unwrap().is_some());
        }

        #[test]
        fn a_file_that_was_changed_lets_no_process_in() {
            let (path, _keep) = place();
            for begins in [[0; 8], *b"leasehol", [b'0'; 8], [0xff; 8]] {
                let gates = [Gate::beside(&path), Gate::beside(&path)];
                let file = gates[1].file();
                let mut before = [0; 8];
                file.read_exact_at(&mut before, 0).unwrap();
                let pass = gates[0].try_enter().unwrap();
                file.set_len(0).unwrap();
                file.set_len(64).unwrap();
                file.write_all_at(&begins, 0).unwrap();
                let error = gates[1].try_follow().unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{begins:?}");
                drop(pass);
                // The process that was inside meanwhile no longer trusts it, even with its content
                // restored.
                file.write_all_at(&before, 0).unwrap();
                assert!(gates[0].try_enter().is_err());
                assert!(gates[1].try_enter().unwrap().is_some());
            }
        }

        /// Only the process with that number knows that it is not inside.
        #[test]
        fn who_finds_its_own_number_there_stays_outside() {
            let (path, _keep) = place();
            let gates = [Gate::beside(&path), Gate::beside(&path)];
            let pass = gates[0].try_enter().unwrap();
            let mut word = [0; 8];
            gates[0].file().read_exact_at(&mut word, 0).unwrap();
            drop(pass);
            gates[0].file().write_all_at(&word, 0).unwrap();
            let error = gates[0].enter_soon().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(gates[1].try_follow().unwrap().is_none());
            // Its end frees the number, and so the gate. A fork of another test may keep it for a
            // moment.
            let [first, second] = gates;
            drop(first);
            let is_free = (0..10_000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                second.try_follow().unwrap().is_some()
            });
            assert!(is_free);
        }

        #[test]
        fn the_process_inside_is_named_with_its_namespace() {
            let (path, _keep) = place();
            let gates = [Gate::beside(&path), Gate::beside(&path)];
            assert_eq!(gates[0].inside(), None);
            let pass = gates[0].try_enter().unwrap();
            assert_eq!(gates[1].inside(), Some(Inside::Process(std::process::id())));
            drop(pass);
            die_inside(&path);
            let mut word = [0; 8];
            gates[0].file().read_exact_at(&mut word, 0).unwrap();
            let elsewhere = u64::from_ne_bytes(word) ^ 1 << 22;
            gates[0].file().write_all_at(&elsewhere.to_ne_bytes(), 0).unwrap();
            let named = Inside::OfAnotherNamespace(std::process::id());
            assert_eq!(gates[1].inside(), Some(named));
            assert!(gates[1].try_follow().unwrap().is_some());
        }
    }
}
