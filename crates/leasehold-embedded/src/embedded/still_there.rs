//! Checks that an open store is still the store at its path.
//!
//! Other processes use the files at the path. A process that continued in removed or replaced files
//! would hold locks that the others can't see.
//!
//! The path is resolved from the root directory that the process had when it opened the store: a
//! later `chroot` moves the process, not the store.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::table::StoreTime;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, open, statat};

/// How often a store is checked at its path. If the directory is removed, a process must stop soon,
/// since others may already use a new one.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Identifies a file independently of its name.
type Identity = (u64, u64);

fn identity_of(meta: &fs::Metadata) -> Identity {
    (meta.dev(), meta.ino())
}

/// A handle of the root directory, to resolve paths from.
fn root() -> io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    let how = OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    let how = OFlags::RDONLY;
    Ok(open("/", how | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether the store is still at its path.
#[derive(Debug)]
pub(super) struct StillThere {
    /// The root directory at opening time, if it could be opened.
    root: Option<OwnedFd>,
    /// The directory's path from there.
    directory: PathBuf,
    /// The directory's identity, if it could be read.
    identity: Option<Identity>,
    /// The files that processes share, with their names.
    files: [(&'static str, Identity); 2],
    looked_at_us: AtomicU64,
    missing: OnceLock<&'static str>,
}

impl StillThere {
    /// For an existing store, with the files that it has open.
    pub(super) fn new(
        directory: &Path,
        [gate, data]: [(&'static str, &File); 2],
        now: StoreTime,
    ) -> io::Result<Self> {
        let named =
            |(name, file): (_, &File)| Ok::<_, io::Error>((name, identity_of(&file.metadata()?)));
        let root = root().ok();
        let from_root = directory.strip_prefix("/").ok().filter(|_| root.is_some());
        let mut this = Self {
            root,
            directory: from_root.unwrap_or(directory).to_owned(),
            identity: None,
            files: [named(gate)?, named(data)?],
            looked_at_us: AtomicU64::new(now.as_micros()),
            missing: OnceLock::new(),
        };
        this.identity = this.look_at("").ok();
        Ok(this)
    }

    /// The identity of what is now at the directory's path, or at the path of a file in it.
    fn look_at(&self, name: &str) -> io::Result<Identity> {
        let path = if name.is_empty() { self.directory.clone() } else { self.directory.join(name) };
        let from = self.root.as_ref().map_or(CWD, AsFd::as_fd);
        let stat = statat(from, &path, AtFlags::empty())?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Whether only its files are gone.
    pub(super) fn is_directory_there(&self) -> bool {
        self.identity.is_some() && self.identity == self.look_at("").ok()
    }

    /// The file that is gone, checked at most once in [`LOOK_EVERY`]. A file that was once gone
    /// stays gone.
    pub(super) fn missing(&self, now: StoreTime) -> Option<&'static str> {
        let looked = StoreTime::from_micros(self.looked_at_us.load(Ordering::Relaxed));
        if now >= looked.saturating_add(LOOK_EVERY) {
            self.looked_at_us.store(now.as_micros(), Ordering::Relaxed);
            let gone = |(name, identity): &(&str, Identity)| match self.look_at(name) {
                Ok(found) => found != *identity,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            if let Some((name, _)) = self.files.iter().find(|file| gone(file)) {
                self.missing.get_or_init(|| *name);
            }
        }
        self.missing.get().copied()
    }
}
