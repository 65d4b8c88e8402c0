//! The one-machine store where it can't be: it needs a clock that all processes share, file locks
//! that end with their process, and Unix sockets. Opening it says so.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, ClientId, Convert,
    ConvertRequest, Error, ErrorKind, ForceRelease, ForceReleaseRequest, Key, Leave, LeaveRequest,
    ListRequest, Listener, Listing, LockInfo, Release, ReleaseRequest, Renew, RenewRequest, Result,
    SetLimit, SetLimitRequest, Store,
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
    /// Refuses.
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

    /// Refuses.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<EmbeddedStore> {
        let store = format!("embedded:{}", path.as_ref().display());
        Err(Error::new(
            ErrorKind::Unsupported,
            "the embedded store exists on Unix systems only; use a Redis server",
        )
        .at_store(store))
    }

    /// Refuses.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`].
    pub fn open_default(&self) -> Result<EmbeddedStore> {
        self.open(EmbeddedStore::default_path())
    }
}

impl Store for EmbeddedStore {
    fn acquire<'a>(&'a self, _: &'a AcquireRequest, _: Duration) -> BoxFuture<'a, Result<Acquire>> {
        match self.never {}
    }

    fn renew<'a>(
        &'a self,
        _: &'a [RenewRequest],
        _: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        match self.never {}
    }

    fn release<'a>(&'a self, _: &'a ReleaseRequest, _: Duration) -> BoxFuture<'a, Result<Release>> {
        match self.never {}
    }

    fn leave<'a>(&'a self, _: &'a LeaveRequest, _: Duration) -> BoxFuture<'a, Result<Leave>> {
        match self.never {}
    }

    fn acquire_all<'a>(
        &'a self,
        _: &'a [AcquireRequest],
        _: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        match self.never {}
    }

    fn convert<'a>(&'a self, _: &'a ConvertRequest, _: Duration) -> BoxFuture<'a, Result<Convert>> {
        match self.never {}
    }

    fn set_limit<'a>(
        &'a self,
        _: &'a SetLimitRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        match self.never {}
    }

    fn ask<'a>(&'a self, _: &'a AskRequest, _: Duration) -> BoxFuture<'a, Result<Ask>> {
        match self.never {}
    }

    fn inspect<'a>(&'a self, _: &'a Key, _: Duration) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        match self.never {}
    }

    fn list<'a>(&'a self, _: &'a ListRequest, _: Duration) -> BoxFuture<'a, Result<Listing>> {
        match self.never {}
    }

    fn force_release<'a>(
        &'a self,
        _: &'a ForceReleaseRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        match self.never {}
    }

    fn listen<'a>(&'a self, _: ClientId, _: Duration) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        match self.never {}
    }

    fn remembers_for(&self, _: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        match self.never {}
    }

    fn examine<'a>(&'a self, _: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        match self.never {}
    }

    /// It needs no runtime.
    fn separate(&self) -> Option<Arc<dyn Store>> {
        None
    }

    fn capability(&self) -> Capability {
        match self.never {}
    }

    fn location(&self) -> String {
        match self.never {}
    }
}
