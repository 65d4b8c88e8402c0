//! Whether a store that is open is still the one at its path: others meet by the files there, so who
//! goes on in files that were removed, or that a backup has replaced, would hold locks beside them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::table::StoreTime;

/// How often a store is looked for at its path: a process must not go on for long in a directory
/// that was removed, while others meet in a new one.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Which file something is, wherever it may be called what.
type Identity = (u64, u64);

fn identity_of(meta: io::Result<fs::Metadata>) -> io::Result<Identity> {
    meta.map(|meta| (meta.dev(), meta.ino()))
}

/// Whether the store is still at its path.
#[derive(Debug)]
pub(super) struct StillThere {
    directory: PathBuf,
    /// Of the directory, if it could be looked at.
    identity: Option<Identity>,
    /// By which others meet, with their names.
    files: [(&'static str, Identity); 2],
    looked_at_us: AtomicU64,
    missing: OnceLock<&'static str>,
}

impl StillThere {
    /// Of a store that is there, with the files that it has open.
    pub(super) fn new(
        directory: &Path,
        [gate, data]: [(&'static str, &File); 2],
        now: StoreTime,
    ) -> io::Result<Self> {
        let named =
            |(name, file): (_, &File)| Ok::<_, io::Error>((name, identity_of(file.metadata())?));
        Ok(Self {
            directory: directory.to_owned(),
            identity: identity_of(fs::metadata(directory)).ok(),
            files: [named(gate)?, named(data)?],
            looked_at_us: AtomicU64::new(now.as_micros()),
            missing: OnceLock::new(),
        })
    }

    /// Whether only files in it are gone.
    pub(super) fn is_directory_there(&self) -> bool {
        self.identity.is_some() && self.identity == identity_of(fs::metadata(&self.directory)).ok()
    }

    /// The file that is gone, looked for if the last look is long ago. Once gone is gone for good.
    pub(super) fn missing(&self, now: StoreTime) -> Option<&'static str> {
        let looked = StoreTime::from_micros(self.looked_at_us.load(Ordering::Relaxed));
        if now >= looked.saturating_add(LOOK_EVERY) {
            self.looked_at_us.store(now.as_micros(), Ordering::Relaxed);
            let gone = |(name, identity): &(&str, Identity)| match identity_of(fs::metadata(
                self.directory.join(name),
            )) {
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
