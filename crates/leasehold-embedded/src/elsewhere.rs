//! Refuses to open the embedded store on a system that lacks what it needs.
//!
//! The store needs a clock shared by all processes, file locks that end with their process, and
//! Unix sockets.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    BoxFuture, Call, Capability, Error, ErrorKind, LockLog, Result, Store, StoreLayer,
};

/// A store for the processes of one machine. There is none on this system.
#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    never: Infallible,
}

/// Settings to open an [`EmbeddedStore`] with.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct EmbeddedStoreOptions {
    _private: (),
}

impl EmbeddedStore {
    /// Returns an error on this system.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::options().open(path)
    }

    /// Settings to open a store with.
    pub fn options() -> EmbeddedStoreOptions {
        EmbeddedStoreOptions::default()
    }

    /// Where a user's store would be.
    #[must_use]
    pub fn default_path() -> PathBuf {
        std::env::temp_dir().join("leasehold")
    }
}

impl EmbeddedStoreOptions {
    /// Whether the directory's group may use the store, too.
    pub const fn group(self, _group: bool) -> Self {
        self
    }

    /// Whether leases outlive the store that acquired them.
    pub const fn detached(self, _detached: bool) -> Self {
        self
    }

    /// The most bytes that the data file may grow to.
    pub const fn bytes_max(self, _bytes_max: u64) -> Self {
        self
    }

    /// How many events the log of all locks keeps.
    ///
    /// # Errors
    ///
    /// None.
    pub fn log(self, _events: u32) -> Result<Self> {
        Ok(self)
    }

    /// Whether opening is refused if it would take longer than a moment.
    pub const fn at_once(self, _at_once: bool) -> Self {
        self
    }

    /// Returns an error on this system.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<EmbeddedStore> {
        let store = format!("embedded:{}", path.as_ref().display());
        Err(Error::new(
            ErrorKind::Unsupported,
            "the embedded store needs a Unix system; use a Redis server",
        )
        .at_store(store))
    }

    /// Returns an error on this system.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`].
    pub fn open_default(&self) -> Result<EmbeddedStore> {
        self.open(EmbeddedStore::default_path())
    }
}

impl StoreLayer for EmbeddedStore {
    fn carry<'a, C: Call + ?Sized>(&'a self, _: &'a C, _: Duration) -> BoxFuture<'a, C::Answer> {
        match self.never {}
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        match self.never {}
    }

    fn capability(&self) -> Capability {
        match self.never {}
    }

    fn location(&self) -> String {
        match self.never {}
    }
}
