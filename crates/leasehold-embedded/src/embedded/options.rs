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
    /// 256 MiB, or 64 MiB where addresses are scarce: room for about 400 000 names at a time. The
    /// disk is taken up as it is used.
    const BYTES_MAX: u64 = if size_of::<usize>() >= 8 { 256 << 20 } else { 64 << 20 };
    /// What a store needs to work at all.
    const BYTES_MAX_LEAST: u64 = 4 << 20;

    /// Whether the directory's group may use the store, too. Off by default: the files are their
    /// owner's alone. It decides when the store is made; then every member can open it without
    /// this setting. Whoever can open a store can take and end every lease in it.
    pub const fn group(mut self, group: bool) -> Self {
        self.group = group;
        self
    }

    /// Whether leases acquired through this store outlive it: they belong to no session, end with
    /// their ttl alone, and any process that knows the token can renew and release them. Off by
    /// default: a lease ends with its process.
    pub const fn detached(mut self, detached: bool) -> Self {
        self.detached = detached;
        self
    }

    /// The most bytes that the data file may grow to, 256 MiB by default, at least 4 MiB; rounded
    /// up to whole MiB. It decides when the store is made. A lock in use takes about 600 bytes.
    pub const fn bytes_max(mut self, bytes_max: u64) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// How many events to keep of what becomes of all locks together, in the file `log` of the
    /// directory: who got each, how that ended (see [`LogEntry`](leasehold_core::LogEntry)). 0, the
    /// default, keeps none, and at most it is [`LOG_MAX`](leasehold_core::LOG_MAX). Room is counted at
    /// 200 bytes an event; a file that is full becomes `log.1`, in place of the one before.
    ///
    /// A client writes each event after the fact, off the way of its locks, and does not wait until the
    /// disk has it. What it can't write, it leaves out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] above that number.
    pub fn log(mut self, events: u32) -> Result<Self> {
        self.log = leasehold_core::checked_log(&events.to_string())?;
        Ok(self)
    }

    /// Whether opening is refused with [`ErrorKind::Unavailable`] where it would take longer than a few
    /// hundred µs: while another process is inside, where the store is to be made first, or where it
    /// has grown beyond 256 KiB. Off by default. Async code can so open most stores where it is, and
    /// needs a thread that may block, without this setting, for the rest alone.
    pub const fn at_once(mut self, at_once: bool) -> Self {
        self.at_once = at_once;
        self
    }

    /// Opens the store in a directory, and makes it if there is none; blocks for a moment, and for
    /// up to five seconds while another process is inside. The path is absolute.
    ///
    /// # Errors
    ///
    /// As [`EmbeddedStore::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<EmbeddedStore> {
        let path = path.as_ref();
        self.open_in(path, |access| {
            // A path that one process tells another is as open to others as before.
            if path == EmbeddedStore::default_path() && !EmbeddedStore::default_is_shared() {
                return Directory::prepare_default(path);
            }
            Directory::prepare(path, access)
        })
    }

    /// Opens the store in [`EmbeddedStore::default_path`]. Where others could have put something
    /// in place of it, it is refused. So is the machine's own for a user who may not use it.
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
                    format!("bytes_max of {} is too little; give 4 MiB or more", self.bytes_max),
                ));
            }
            let mib = self.bytes_max.div_ceil(1 << 20);
            let bytes_max = mib.checked_mul(1 << 20).ok_or_else(|| {
                Error::new(ErrorKind::Config, "bytes_max is too large for any disk")
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
