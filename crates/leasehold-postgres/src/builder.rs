//! Builds a store: its settings, and how it connects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ErrorKind, Result, checked_log};

use crate::address::{Address, Listen, retention};
use crate::classify::{Deadline, Next};
use crate::listen::Subscription;
use crate::pool::{Dial, Pool};
use crate::setup::{self, Rights};
use crate::store::PostgresStore;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings that a URL can't have, or that should stay out of it.
#[derive(Clone)]
#[must_use]
pub struct PostgresStoreBuilder {
    password: Option<String>,
    timeout: Duration,
    log: u32,
    retention: Option<Duration>,
    create: bool,
    table_alone: bool,
}

impl fmt::Debug for PostgresStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { password, timeout, log, retention, create, table_alone } = self;
        f.debug_struct("PostgresStoreBuilder")
            .field("password", &password.as_ref().map(|_| "***"))
            .field("timeout", timeout)
            .field("log", log)
            .field("fence_retention", retention)
            .field("create", create)
            .field("table_alone", table_alone)
            .finish()
    }
}

impl PostgresStoreBuilder {
    pub(crate) const fn new() -> Self {
        Self {
            password: None,
            timeout: DEFAULT_TIMEOUT,
            log: 0,
            retention: None,
            create: false,
            table_alone: false,
        }
    }

    /// The password, unless the URL has one or a `password_file`.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// How long it may take to connect to a server, 5 s by default.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many events to log of each lock, up to 100 000, if the URL has no `log`; 0 by default.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for more.
    pub fn log(mut self, events: u32) -> Result<Self> {
        self.log = checked_log(&events.to_string())?;
        Ok(self)
    }

    /// For how long the last fence of an idle lock is kept, if the URL does not say: 1 s to 30
    /// days, by default 10 minutes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for any other length.
    pub fn fence_retention(mut self, length: Duration) -> Result<Self> {
        self.retention = Some(retention(length)?);
        Ok(self)
    }

    /// Whether [`connect`](Self::connect) makes the schema and its tables if they are missing,
    /// unless the URL has `create=yes` or `create=no`.
    pub const fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether each operation is a step of the lock table, also where a function in the database
    /// would take less. For tests and measurements: both ways mean the same.
    pub const fn table_alone(mut self, table_alone: bool) -> Self {
        self.table_alone = table_alone;
        self
    }

    /// Connects to the database that a URL names, and makes sure that the tables are there.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::connect`].
    pub async fn connect(self, url: &str) -> Result<PostgresStore> {
        let (timeout, create) = (self.timeout, self.create);
        let store = self.connect_lazy(url)?;
        let pool = &*store.shared.pool;
        let create = pool.dial.address.create.unwrap_or(create);
        let deadline = Deadline::after(timeout.saturating_mul(2));
        let outcome = match setup::check(pool, deadline).await {
            Err(missing) if missing.next == Next::SetUp && create => {
                match setup::apply(pool, None, deadline).await {
                    // Another user has to make them.
                    Err(fault) if fault.error.kind() == ErrorKind::Denied => Err(missing),
                    outcome => outcome,
                }
            }
            outcome => outcome,
        };
        outcome.map_err(|fault| store.named(fault.error, "connect", None))?;
        Ok(store)
    }

    /// Applies the SQL of [`setup_sql`](crate::setup_sql), for which the user in the URL must own
    /// the schema, or may create it. One transaction: it makes all of it or nothing.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::connect`]. [`ErrorKind::Config`] also for tables of a later version,
    /// which stay as they are.
    pub async fn set_up(self, url: &str, role: Option<&str>, rights: Rights) -> Result<()> {
        let deadline = Deadline::after(self.timeout.saturating_mul(2));
        let store = self.connect_lazy(url)?;
        let pool = &*store.shared.pool;
        let role = role.unwrap_or(&pool.dial.address.user);
        let applied = setup::apply(pool, Some((role, rights)), deadline).await;
        applied.map_err(|fault| store.named(fault.error, "setup", None))
    }

    /// A store for the database that a URL names, which connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`], as [`PostgresStore::connect`].
    pub fn connect_lazy(self, url: &str) -> Result<PostgresStore> {
        let mut address = Address::parse(url)?;
        if address.password.is_none() && address.password_file.is_none() {
            address.password = self.password;
        }
        address.fence_retention = address.fence_retention.or(self.retention);
        let (location, retention) = (address.location().into(), address.retention());
        let log = address.log.unwrap_or(self.log);
        let listen = match &address.listen {
            Listen::Never => None,
            Listen::Here => Some(address.clone()),
            Listen::At(other) => Some((**other).clone()),
        };
        let (timeout, table_alone) = (self.timeout, self.table_alone);
        let pool = Arc::new(Pool::new(Dial { address, timeout })?);
        let subscription = listen.map(|address| Subscription::of(Dial { address, timeout }, &pool));
        Ok(PostgresStore::of(pool, subscription, log, retention, location, table_alone))
    }
}
