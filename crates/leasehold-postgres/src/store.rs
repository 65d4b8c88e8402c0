//! The [`PostgresStore`]: every operation as a step of the lock table on a row.

use std::fmt;
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::table::Operation;
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, ClientId, Convert,
    ConvertRequest, Effect, Error, ErrorKind, ForceRelease, ForceReleaseRequest, Key, Leave,
    LeaveRequest, ListRequest, Listener, Listing, LockInfo, LockLog, Release, ReleaseRequest,
    Renew, RenewRequest, Result, SetLimit, SetLimitRequest, Store,
};
use tokio::sync::Mutex;
use tokio_postgres::types::Type;

use crate::builder::PostgresStoreBuilder;
use crate::classify::{Deadline, Fault};
use crate::combine::Queues;
use crate::listen::Subscription;
use crate::pool::Pool;
use crate::row::{Found, get};
use crate::statements::Statements;
use crate::step::{ServerClock, Step};

/// Steps of one process on the same name take turns, so that they don't undo each other.
pub(crate) const GATES: usize = 256;

/// Locks in a table of a PostgreSQL database.
///
/// Clones are cheap and share connections. The connections live on the process's own thread
/// ([`Driver`](leasehold_clock::Driver)), so they go on without a runtime of the callers. A fork's
/// child needs a store of its own.
///
/// # Guarantees
///
/// A step reads the lock's row and writes it, each in a statement and a transaction of its own. The
/// write takes effect only if the row is as it was read. One statement does both for a lock without
/// a queue. Leases run on the server's clock (`clock_timestamp()`). A lease is as durable as the
/// database's commits.
///
/// A row of an unlogged table shows that the server lost nothing. PostgreSQL empties such a table
/// after a crash and when a standby is promoted. The next step then begins a new fail-over epoch.
/// If the server's timeline has changed, the store grants no lease for as long as the longest lease
/// ever asked for, since an asynchronous standby may lack leases.
///
/// # Time
///
/// Each operation ends within the time that its caller gives, connecting included.
///
/// # Cancel safety
///
/// After a future is dropped, the server may still carry the operation out, within two seconds. It
/// carries out a later `leave` after it, unless the connection was replaced in between.
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    subscription: Option<Arc<Subscription>>,
    pub(crate) statements: Statements,
    pub(crate) log: u32,
    pub(crate) retention: Duration,
    pub(crate) location: Arc<str>,
    pub(crate) hasher: RandomState,
    /// The turns, and how many steps on such names lock the row.
    pub(crate) gates: Vec<Arc<Mutex<u32>>>,
    pub(crate) clock: ServerClock,
    /// One for each connection.
    pub(crate) queues: Vec<Queues>,
    /// Whether all goes through steps of the table.
    pub(crate) table_alone: bool,
    /// Since the last look for idle locks.
    pub(crate) writes: AtomicU32,
    /// Whether the database knows that a crash may lose writes.
    pub(crate) loss_noted: AtomicBool,
    /// Held by one that looks for idle locks.
    pub(crate) forgets: Arc<Mutex<()>>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { location, log, retention, .. } = &*self.shared;
        f.debug_struct("PostgresStore")
            .field("location", location)
            .field("log", log)
            .field("fence_retention", retention)
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects to the database that a URL names, and makes sure that leasehold's tables are there.
    ///
    /// ```text
    /// postgres://user[:password]@host[:port][,host[:port]…]/database[?setting=value&…]
    /// postgres://user@%2Fpath[:port]/database     through the socket in a folder
    /// ```
    ///
    /// With several hosts, the store connects to the one that accepts writes. Special characters in
    /// names and passwords are percent-encoded. An unknown setting is refused. These are known:
    ///
    /// - `sslmode` is `verify-full` or `disable`. The default is `disable` on loopback and sockets,
    ///   else `verify-full`. `verify-ca` and `require` count as `verify-full`.
    /// - `sslrootcert`, `sslcert` and `sslkey` name files for TLS. By default the system's
    ///   authorities are trusted.
    /// - `password_file` names a file with the password on its first line, which is read at each
    ///   login. Without a password, it comes from the file in the variable `PGPASSFILE`, else from
    ///   `~/.pgpass`.
    /// - `schema` (`leasehold`) keeps sets of locks apart.
    /// - `connections` (`4`) is how many connections to open at most, besides one for notifications
    ///   and one for rows that many processes change.
    /// - `listen` is a percent-encoded URL of the same database for notifications, past a pooler.
    ///   With `listen=none` waiters poll.
    /// - `durability` (`full`): with `async`, commits wait for no disk. A crash then loses the last
    ///   leases, and no lease is granted until the longest one has ended.
    /// - `synchronous` (`any`): with `require`, the store refuses a server whose commits wait for
    ///   no standby. An operation whose wait for the standby was cancelled fails with
    ///   [`ErrorKind::NotReplicated`].
    /// - `after_failover` (`wait`): with `grant`, leases are granted at once after writes may have
    ///   been lost.
    /// - `channel_binding` (`prefer`): `require` refuses a login by SCRAM that is not bound to the
    ///   server's certificate.
    /// - `create` (`no`): `yes` makes the schema and its tables if they are missing.
    /// - `log` (`0`) is how many events to log of each lock.
    /// - `fence_retention` (`10m`) is for how long the last fence of an idle lock is kept.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`] – the URL can't be used, the tables are missing, or commits wait for
    ///   less than `synchronous` requires. The message leaves the URL out.
    /// * [`ErrorKind::Denied`] – wrong password, or no right to the tables.
    /// * [`ErrorKind::Unavailable`] – the server does not answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Settings that a URL can't have, or that should stay out of it.
    pub const fn builder() -> PostgresStoreBuilder {
        PostgresStoreBuilder::new()
    }

    pub(crate) fn of(
        pool: Arc<Pool>,
        subscription: Option<Arc<Subscription>>,
        log: u32,
        retention: Duration,
        location: Arc<str>,
        table_alone: bool,
    ) -> Self {
        let statements = Statements::of(&pool.dial.address.schema);
        let queues = (0..pool.connections()).map(|_| Queues::default()).collect();
        let shared = Shared {
            pool,
            subscription,
            statements,
            log,
            retention,
            location,
            hasher: RandomState::new(),
            gates: (0..GATES).map(|_| Arc::default()).collect(),
            clock: ServerClock::default(),
            queues,
            table_alone,
            writes: AtomicU32::new(0),
            loss_noted: AtomicBool::new(false),
            forgets: Arc::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn named(&self, error: Error, operation: &'static str, key: Option<&Key>) -> Error {
        let error = error.during(operation).at_store(Arc::clone(&self.shared.location));
        match key {
            Some(key) => error.on_key(key),
            None => error,
        }
    }

    /// A step of the table.
    async fn perform<O>(
        &self,
        key: &Key,
        operation: &O,
        step: Step,
        within: Duration,
    ) -> Result<O::Answer>
    where
        O: Operation<Answer: Send + 'static> + Clone + Send + Sync + 'static,
    {
        let outcome = self.carry_out(key, operation, step, None, Deadline::after(within)).await;
        outcome.map_err(|fault| self.named(fault.error, step.name, Some(key)))
    }

    async fn list_all(&self, prefix: &str, deadline: Deadline) -> Result<Listing, Fault> {
        // No name has this byte.
        if prefix.contains('\0') {
            return Ok(Listing::default());
        }
        let Shared { pool, statements, .. } = &*self.shared;
        let rows = pool.ask(0, &statements.list, &[(&prefix, Type::TEXT)], deadline).await?;
        let (mut locks, mut unreadable) = (Vec::new(), Vec::new());
        for row in &rows {
            let key = Key::new(get::<&str>(row, "name")?)?;
            match Found::read(&key, row) {
                Ok(found) => locks.extend(found.entry.inspect(&key, found.now.at)),
                Err(error) => unreadable.push(self.named(error, "list", Some(&key))),
            }
        }
        Ok(Listing::new(locks, unreadable))
    }
}

impl Store for PostgresStore {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        Box::pin(async move {
            let acquired = self.take(request, Deadline::after(within)).await;
            acquired.map_err(|fault| self.named(fault.error, "acquire", Some(&request.key)))
        })
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(async move {
            let renewed = self.renew_each(requests, Deadline::after(within)).await;
            let named = renewed.into_iter().zip(requests).map(|(renewed, request)| {
                renewed.map_err(|fault| self.named(fault.error, "renew", Some(&request.key)))
            });
            named.collect()
        })
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let released = self.end(request, Deadline::after(within)).await;
            released.map_err(|fault| self.named(fault.error, "release", Some(&request.key)))
        })
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        Box::pin(async move {
            self.answered(&request.key, within).await?;
            self.perform(&request.key, request, Step::returning("leave"), within).await
        })
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        Box::pin(async move {
            let taken = self.take_all(requests, Deadline::after(within)).await;
            taken.map_err(|fault| self.named(fault.error, "acquire", None))
        })
    }

    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Convert>> {
        Box::pin(self.perform(&request.key, request, Step::new("convert"), within))
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        Box::pin(self.perform(&request.key, request, Step::new("set-limit"), within))
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>> {
        Box::pin(self.perform(&request.key, request, Step::new("ask"), within))
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move {
            let found = self.read_one(key, Deadline::after(within)).await;
            let found = found.map_err(|fault| self.named(fault.error, "inspect", Some(key)))?;
            Ok(found.entry.inspect(key, found.now.at))
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Listing>> {
        Box::pin(async move {
            let listing = self.list_all(&request.prefix, Deadline::after(within)).await;
            listing.map_err(|fault| {
                self.named(fault.error.with_effect(Effect::NotApplied), "list", None)
            })
        })
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        Box::pin(self.perform(&request.key, request, Step::returning("force-release"), within))
    }

    fn listen<'a>(
        &'a self,
        client: ClientId,
        within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let Some(subscription) = &self.shared.subscription else {
                let why = "the store's URL has listen=none, so it gets no notifications";
                return Err(self.named(Error::new(ErrorKind::Unsupported, why), "listen", None));
            };
            let listener = subscription.listen(client, Deadline::after(within)).await;
            listener.map_err(|fault| self.named(fault.error, "listen", None))
        })
    }

    /// `None` while every commit is durable: then `alive` and its epoch show what a fail-over lost.
    fn remembers_for(&self, within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        Box::pin(async move {
            let age = self.age(Deadline::after(within)).await;
            age.map_err(|fault| {
                self.named(fault.error.with_effect(Effect::NotApplied), "ask for its age", None)
            })
        })
    }

    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async move {
            let findings = self.look(Deadline::after(within)).await;
            findings.map_err(|fault| {
                self.named(fault.error.with_effect(Effect::NotApplied), "examine", None)
            })
        })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        Some(Arc::new(self.clone()))
    }

    fn capability(&self) -> Capability {
        let mut capability = Capability::ALL;
        capability.wake = self.shared.subscription.is_some();
        capability
    }

    fn location(&self) -> String {
        self.shared.location.to_string()
    }
}

impl PostgresStore {
    async fn age(&self, deadline: Deadline) -> Result<Option<Duration>, Fault> {
        let facts = self.facts(deadline).await?;
        let is_durable = facts.is_durable() && !self.shared.pool.dial.address.is_async;
        Ok(if is_durable { None } else { facts.alive_for })
    }

    pub(crate) fn ear_trouble(&self) -> Option<Result<(), Error>> {
        self.shared
            .subscription
            .as_ref()
            .map(|subscription| subscription.trouble().map_or(Ok(()), Err))
    }
}
