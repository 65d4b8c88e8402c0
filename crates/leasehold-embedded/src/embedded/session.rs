//! A client's sign of life: a file that it keeps locked for as long as it lives.
//!
//! The kernel unlocks the file when the process ends, however that happens. So if a lease's session
//! file is unlocked or gone, its holder is dead *now*. A process that is merely stopped keeps the
//! lock, and its leases end with their ttl. A fork shares the lock, so a session lives until the
//! last process that shares it has ended.
//!
//! Files are created, probed and removed inside the gate only, so a file is never seen between its
//! creation and its locking.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use leasehold_clock::Process;
use leasehold_core::table::StoreTime;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::directory::Access;
use super::gate::{Pass, lock};
use super::record::SessionId;

/// How long a session that was seen alive is trusted without another probe. A probe costs about 5
/// µs inside the gate, and contenders come in crowds.
const TRUST: Duration = Duration::from_millis(5);

/// How many living sessions one operation probes: a semaphore may have thousands of holders. Dead
/// ones don't count, since each is met once.
const PROBES_MAX: usize = 64;

/// The number of remembered sessions from which on old ones are forgotten.
const SEEN_MAX: usize = 16_384;

/// How many files of dead sessions a new session clears away.
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
            let session = Self { id, _file: file, path, process: Process::current() };
            access.settle(&session._file, directory)?;
            session._file.try_lock().map_err(io::Error::from)?;
            return Ok(session);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A fork's copy does not end the session.
        if self.process.is_current() {
            // If this fails, the file stays behind unlocked, which also shows the end.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// What this process knows about all sessions.
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

    /// Which of these sessions have ended.
    ///
    /// Stops after a fixed number of living ones; the rest count as alive until the next time.
    /// New sessions come first, from a random one on, then the rest by the time of the last look.
    pub(super) fn dead(
        &self,
        of: impl Iterator<Item = SessionId>,
        now: StoreTime,
        _pass: &Pass<'_>,
    ) -> Vec<SessionId> {
        let mut of = of.peekable();
        if of.peek().is_none() {
            return Vec::new();
        }
        let mut seen_alive = lock(&self.seen_alive);
        let trusted = |seen: &StoreTime| now < seen.saturating_add(TRUST);
        let mut asked: Vec<SessionId> =
            of.filter(|id| !seen_alive.get(id).is_some_and(trusted)).collect();
        if asked.is_empty() {
            return asked;
        }
        asked.sort_unstable();
        asked.dedup();
        if asked.len() > PROBES_MAX {
            let from = fastrand::usize(..asked.len());
            asked.rotate_left(from);
            asked.sort_by_key(|id| seen_alive.get(id).copied());
        }
        let (mut dead, mut alive) = (Vec::new(), 0);
        for id in asked {
            if alive == PROBES_MAX {
                break;
            }
            let path = file_of(&self.directory, id);
            if is_over(&path) {
                drop(fs::remove_file(&path));
                seen_alive.remove(&id);
                dead.push(id);
            } else {
                if seen_alive.len() >= SEEN_MAX {
                    seen_alive.retain(|_, seen| now < seen.saturating_add(TRUST));
                }
                seen_alive.insert(id, now);
                alive += 1;
            }
        }
        dead
    }
}

/// Whether the session with this file has ended. If that can't be determined, it counts as alive,
/// and its leases end with their ttl. Anything but a regular file is foreign.
fn is_over(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()).map(File::from) {
        Ok(file) => {
            file.metadata().is_ok_and(|meta| meta.is_file())
                && match file.try_lock_shared() {
                    Ok(()) => true,
                    Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
                }
        }
        Err(error) => error == Errno::NOENT,
    }
}

/// Removes files of ended sessions. Looks at `looks_max` session files at most, from a random one
/// on.
pub(super) fn sweep(directory: &Path, looks_max: usize) {
    let Ok(files) = fs::read_dir(directory) else { return };
    let ours = |name: &OsStr| name.to_str().is_some_and(is_name);
    let files: Vec<PathBuf> =
        files.flatten().filter(|file| ours(&file.file_name())).map(|file| file.path()).collect();
    let from = fastrand::usize(..files.len().max(1));
    for path in files.iter().cycle().skip(from).take(looks_max.min(files.len())) {
        if is_over(path) {
            drop(fs::remove_file(path));
        }
    }
}

/// Whether [`file_of`] makes such names.
fn is_name(name: &str) -> bool {
    SessionId::from_str_radix(name, 16).is_ok_and(|id| name == format!("{id:016x}"))
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
        Gate::new(tempfile::tempfile().unwrap()).unwrap()
    }

    #[test]
    fn a_session_is_over_when_its_process_releases_it() {
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
    fn every_dead_session_is_found_behind_any_number_of_live_ones() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate();
        let pass = gate.try_enter().unwrap().unwrap();
        let alive: Vec<Session> = (0..5 * PROBES_MAX)
            .map(|_| Session::begin(directory.path(), Access::Private, &pass).unwrap())
            .collect();
        let ids = alive.iter().map(|session| session.id).chain([u64::MAX]);
        let sessions = Sessions::new(directory.path().to_owned());
        let mut now = NOW;
        let looks = (1..).find(|_| {
            now = now.saturating_add(TRUST);
            let dead = sessions.dead(ids.clone(), now, &pass);
            assert!(dead.is_empty() || dead == [u64::MAX]);
            !dead.is_empty()
        });
        assert!(looks <= Some(6), "found at look {looks:?}");
        // A process that looks only once, such as a new one, starts at a random session each time.
        let found = (0..1_000).any(|_| {
            let newcomer = Sessions::new(directory.path().to_owned());
            !newcomer.dead(ids.clone(), now, &pass).is_empty()
        });
        assert!(found);
    }

    #[test]
    fn any_number_that_died_together_is_found_at_one_look() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate();
        let pass = gate.try_enter().unwrap().unwrap();
        let begin = || Session::begin(directory.path(), Access::Private, &pass).unwrap();
        let alive: Vec<Session> = (0..PROBES_MAX / 2).map(|_| begin()).collect();
        let died: Vec<SessionId> = (0..5 * PROBES_MAX).map(|_| begin().id).collect();
        let ids = alive.iter().map(|session| session.id).chain(died.iter().copied());
        let sessions = Sessions::new(directory.path().to_owned());
        let mut found = sessions.dead(ids, NOW, &pass);
        found.sort_unstable();
        let mut died = died;
        died.sort_unstable();
        assert_eq!(found, died);
    }

    #[test]
    fn what_is_not_a_sessions_file_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("0000000000000001"), "").unwrap();
        fs::create_dir(path("0000000000000002")).unwrap();
        fs::write(path("sess_1"), "theirs").unwrap();
        fs::write(path("3"), "theirs").unwrap();
        fs::write(path("000000000000000A"), "theirs").unwrap();
        std::os::unix::fs::symlink(path("sess_1"), path("0000000000000004")).unwrap();
        sweep(directory.path(), usize::MAX);
        let mut left: Vec<_> = fs::read_dir(directory.path()).unwrap().flatten().collect();
        left.sort_by_key(fs::DirEntry::file_name);
        let names: Vec<_> = left.iter().map(fs::DirEntry::file_name).collect();
        assert_eq!(
            names,
            ["0000000000000002", "0000000000000004", "000000000000000A", "3", "sess_1"]
        );
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
