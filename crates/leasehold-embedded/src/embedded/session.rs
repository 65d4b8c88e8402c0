//! A client's sign of life: a file that it keeps locked for as long as it lives.
//!
//! The kernel unlocks it when the process ends, in whatever way, so whoever meets a lease whose
//! session's file is unlocked, or gone, knows that its holder is dead *now*. A process that only
//! stands still keeps the lock, and its leases end with their ttl. A fork shares the lock: a
//! session lives until the last process that shares it has ended.
//!
//! Files are made, probed and removed inside the gate only, so nobody ever meets one between its
//! making and its locking.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use leasehold_clock::Process;
use leasehold_core::table::StoreTime;

use super::directory::Access;
use super::gate::{Pass, lock};
use super::record::SessionId;

/// How long a session that was seen alive is not looked at again: a probe costs about 5 µs
/// inside the gate, and contenders come in crowds.
const TRUST: Duration = Duration::from_millis(5);

/// How many foreign sessions one operation looks at: a semaphore may have thousands of holders.
const PROBES_MAX: usize = 64;

/// How many files of the dead a new session clears away.
const SWEEP_MAX: usize = 8;

/// This process's own sign of life.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    _file: File,
    path: PathBuf,
    process: Process,
}

impl Session {
    /// Begins a session.
    pub(super) fn begin(directory: &Path, access: Access, _pass: &Pass<'_>) -> io::Result<Self> {
        sweep(directory, SWEEP_MAX);
        loop {
            let id = fastrand::u64(1..);
            let path = file_of(directory, id);
            let made = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(access.file_mode())
                .open(&path);
            let file = match made {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            access.settle(&file, directory)?;
            file.try_lock().map_err(io::Error::from)?;
            return Ok(Self { id, _file: file, path, process: Process::current() });
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A fork's copy is not the session's end.
        if self.process.is_current() {
            // The unlocked file that stays behind where this fails says the same.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// What this process knows about the sessions of all.
#[derive(Debug)]
pub(super) struct Sessions {
    directory: PathBuf,
    seen_alive: Mutex<HashMap<SessionId, StoreTime>>,
}

impl Sessions {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, seen_alive: Mutex::default() }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Which of these sessions are over. Looks at a bounded number; the rest count as alive until
    /// the next time.
    pub(super) fn dead(
        &self,
        of: impl Iterator<Item = SessionId>,
        now: StoreTime,
        _pass: &Pass<'_>,
    ) -> Vec<SessionId> {
        let mut seen_alive = lock(&self.seen_alive);
        let mut dead = Vec::new();
        let mut probes: usize = 0;
        for id in of {
            let trusted = |seen: &StoreTime| now < seen.saturating_add(TRUST);
            if probes >= PROBES_MAX
                || dead.contains(&id)
                || seen_alive.get(&id).is_some_and(trusted)
            {
                continue;
            }
            probes = probes.saturating_add(1);
            let path = file_of(&self.directory, id);
            if is_over(&path) {
                drop(fs::remove_file(&path));
                seen_alive.remove(&id);
                dead.push(id);
            } else {
                if seen_alive.len() >= 1024 {
                    seen_alive.retain(|_, seen| now < seen.saturating_add(TRUST));
                }
                seen_alive.insert(id, now);
            }
        }
        dead
    }
}

/// Whether the session with this file has ended. What can't be known counts as alive: its leases
/// then end with their ttl.
fn is_over(path: &Path) -> bool {
    match File::open(path) {
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
        },
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes files of ended sessions. Looks at so many at most, from a random one on.
pub(super) fn sweep(directory: &Path, looks_max: usize) {
    let Ok(files) = fs::read_dir(directory) else { return };
    let files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    let from = fastrand::usize(..files.len().max(1));
    for path in files.iter().cycle().skip(from).take(looks_max.min(files.len())) {
        if is_over(path) {
            drop(fs::remove_file(path));
        }
    }
}

fn file_of(directory: &Path, id: SessionId) -> PathBuf {
    directory.join(format!("{id:016x}"))
}

#[cfg(test)]
mod tests {
    use super::super::gate::Gate;
    use super::*;

    const NOW: StoreTime = StoreTime::from_micros(1_000_000);

    fn gate() -> Gate {
        Gate::new(tempfile::tempfile().unwrap())
    }

    #[test]
    fn a_session_is_over_when_its_process_lets_go_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate();
        let pass = gate.try_enter().unwrap().unwrap();
        let sessions = Sessions::new(directory.path().to_owned());
        let session = Session::begin(directory.path(), Access::Private, &pass).unwrap();
        let id = session.id;
        assert_eq!(sessions.dead([id].into_iter(), NOW, &pass), []);
        drop(session);
        let later = NOW.saturating_add(TRUST);
        assert_eq!(sessions.dead([id, id].into_iter(), later, &pass), [id]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_unlocked_file_is_a_dead_session_and_is_cleared_away() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate();
        let pass = gate.try_enter().unwrap().unwrap();
        let sessions = Sessions::new(directory.path().to_owned());
        fs::write(file_of(directory.path(), 5), "").unwrap();
        assert_eq!(sessions.dead([5].into_iter(), NOW, &pass), [5]);
        fs::write(file_of(directory.path(), 6), "").unwrap();
        let session = Session::begin(directory.path(), Access::Private, &pass).unwrap();
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].path(), file_of(directory.path(), session.id));
    }

    #[test]
    fn what_cannot_be_looked_at_counts_as_alive() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate();
        let pass = gate.try_enter().unwrap().unwrap();
        let path = file_of(directory.path(), 7);
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let sessions = Sessions::new(directory.path().to_owned());
        assert_eq!(sessions.dead([7].into_iter(), NOW, &pass), []);
    }
}
