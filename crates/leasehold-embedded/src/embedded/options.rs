//! The options with which a store is opened.

use std::path::Path;

use leasehold_core::{Error, ErrorKind, Result};

use super::directory::{Access, Directory};
use super::open::{self, Wanted};
use super::{EmbeddedStore, location};

/// Settings to open an [`EmbeddedStore`] with; see [`EmbeddedStore::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct EmbeddedStoreOptions {
    group: bool,
    detached: bool,
    bytes_max: u64,
    log: u32,
    at_once: bool,
}

impl Default for EmbeddedStoreOptions {
    fn default() -> Self {
        let bytes_max = Self::BYTES_MAX;
        Self { group: false, detached: false, bytes_max, log: 0, at_once: false }
    }
}

impl EmbeddedStoreOptions {
    /// 256 MiB, or 64 MiB on 32-bit systems: room for about 400 000 names at a time. Disk space is
    /// allocated as it is used.
    const BYTES_MAX: u64 = if size_of::<usize>() >= 8 { 256 << 20 } else { 64 << 20 };
    /// The least with which a store works.
    const BYTES_MAX_LEAST: u64 = 4 << 20;

    /// Whether the directory's group may use the store, too. Off by default: only the owner can use
    /// the files.
    ///
    /// The setting takes effect when the store is created. After that every member can open it
    /// without this setting. Anyone who can open a store can acquire and end every lease in it.
    pub const fn group(mut self, group: bool) -> Self {
        self.group = group;
        self
    }

    /// Whether leases acquired through this store outlive it. Off by default: a lease ends with its
    /// process.
    ///
    /// Such leases belong to no session and end with their ttl alone. Any process that knows the
    /// token can renew and release them.
    pub const fn detached(mut self, detached: bool) -> Self {
        self.detached = detached;
        self
    }

    /// The most bytes that the data file may grow to: 256 MiB by default, at least 4 MiB, rounded
    /// up to whole MiB. The setting takes effect when the store is created. A lock in use takes
    /// about 600 bytes.
    pub const fn bytes_max(mut self, bytes_max: u64) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// How many events the log of all locks keeps: which owner was granted each lease, and how that
    /// ended (see [`LogEntry`](leasehold_core::LogEntry)). 0, the default, keeps no log; the most
    /// is [`LOG_MAX`](leasehold_core::LOG_MAX).
    ///
    /// The log is the file `log` of the directory. Room is counted at 200 bytes an event. A full
    /// file replaces `log.1`.
    ///
    /// A client writes each event after the fact, without delaying its locks or waiting for the
    /// disk. What it can't write, it leaves out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] above that number.
    pub fn log(mut self, events: u32) -> Result<Self> {
        self.log = leasehold_core::checked_log(&events.to_string())?;
        Ok(self)
    }

    /// Whether opening is refused with [`ErrorKind::Unavailable`] if it would take longer than a
    /// few hundred µs. Off by default.
    ///
    /// That is the case while another process is inside, if the store does not exist yet, and if it
    /// has grown beyond 256 KiB. With this setting, async code can open most stores without leaving
    /// its thread. For the rest it opens the store without this setting, on a thread that may
    /// block.
    pub const fn at_once(mut self, at_once: bool) -> Self {
        self.at_once = at_once;
        self
    }

    /// Opens the store in a directory, and creates it if there is none. The path is absolute.
    /// Blocks for a moment, and for up to five seconds while another process is inside.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedStore::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<EmbeddedStore> {
        let path = path.as_ref();
        self.open_in(path, |access| {
            // The default path gets the strict checks, also if it is named.
            if path == EmbeddedStore::default_path() && !EmbeddedStore::default_is_shared() {
                return Directory::prepare_default(path);
            }
            Directory::prepare(path, access)
        })
    }

    /// Opens the store in [`EmbeddedStore::default_path`]. If another user could have put something
    /// else there, it is refused. So is the machine's shared store for a user without the right to
    /// use it.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedStore::open`].
    pub fn open_default(&self) -> Result<EmbeddedStore> {
        self.open(EmbeddedStore::default_path())
    }

    fn open_in(
        &self,
        path: &Path,
        prepare: impl FnOnce(Access) -> Result<Directory>,
    ) -> Result<EmbeddedStore> {
        let open = || {
            if self.bytes_max < Self::BYTES_MAX_LEAST {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!("bytes_max of {} is too small; give 4 MiB or more", self.bytes_max),
                ));
            }
            let mib = self.bytes_max.div_ceil(1 << 20);
            let bytes_max = mib.checked_mul(1 << 20).ok_or_else(|| {
                Error::new(ErrorKind::Config, "bytes_max is too large for any disk; give less")
            })?;
            let for_group = self.group || Directory::is_for_group(path);
            let access = if for_group { Access::Group } else { Access::Private };
            let directory = prepare(access)?;
            open::environment(directory, Wanted { access, bytes_max, at_once: self.at_once })
        };
        let environment = open().map_err(|error| error.during("open").at_store(location(path)))?;
        Ok(EmbeddedStore::new(environment, self.detached, self.log))
    }
}
