//! The [`PostgresStore`]: every operation as a step of the lock table on a row.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::doctor::Finding;
use leasehold_core::table::{self, Entries, LockEntry, Notice, Now, Operation, StoreTime};
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, ClientId, Convert,
    ConvertRequest, Effect, Error, ErrorKind, ForceRelease, ForceReleaseRequest, Key, Leave,
    LeaveRequest, ListRequest, Listener, Listing, LockInfo, LockLog, Release, ReleaseRequest,
    Renew, RenewRequest, Result, SetLimit, SetLimitRequest, Store,
};
use tokio::sync::Mutex as Gate;
use tokio_postgres::types::Type;

use crate::builder::PostgresStoreBuilder;
use crate::classify::{Deadline, Fault, Next};
use crate::listen::{Subscription, channel, spoken};
use crate::pool::Pool;
use crate::row::{Columns, Found, get, to_sql_time};
use crate::statements::Statements;
use crate::step::{Step, Tries, Written, longer};

/// For what happens in the background.
const BACKGROUND: Duration = Duration::from_secs(5);
/// Steps of one process on the same name take turns, so that they don't undo each other.
const GATES: usize = 256;
/// Writes between two looks for names to forget.
const FORGET_EVERY: u32 = 64;

/// Locks in a table of a PostgreSQL database.
///
/// Clones are cheap and share connections. The connections live on the process's own thread
/// ([`Driver`](leasehold_clock::Driver)), so they go on without a runtime of the callers. A fork's child needs a store
/// of its own.
///
/// # Guarantees
///
/// A step reads the lock's row and writes it, each in a statement and a transaction of its own. The write takes effect
/// only if the row is as it was read. Leases run on the server's clock (`clock_timestamp()`). A lease is as durable as
/// the database's commits.
///
/// A row of an unlogged table shows that the server lost nothing. PostgreSQL empties such a table after a crash and
/// when a standby is promoted. The next step then begins a new fail-over epoch. If the server's timeline has changed,
/// the store grants no lease for as long as the longest lease ever asked for, since an asynchronous standby may lack
/// leases.
///
/// # Time
///
/// Each operation ends within the time that its caller gives, connecting included.
///
/// # Cancel safety
///
/// After a future is dropped, the server may still carry the operation out, within two seconds. It carries out a later
/// `leave` after it, unless the connection was replaced in between.
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) pool: Arc<Pool>,
    subscription: Option<Arc<Subscription>>,
    pub(crate) statements: Statements,
    pub(crate) log: u32,
    retention: Duration,
    pub(crate) location: Arc<str>,
    hasher: RandomState,
    gates: Vec<Arc<Gate<()>>>,
    writes: AtomicU32,
    /// The name behind which names are forgotten next.
    forget_from: Mutex<String>,
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

/// A row to write.
struct Change<'a> {
    key: &'a Key,
    version: Option<i64>,
    grants: bool,
    columns: Columns,
}

impl PostgresStore {
    /// Connects to the database that a URL names, and makes sure that leasehold's tables are there.
    ///
    /// ```text
    /// postgres://user[:password]@host[:port][,host[:port]…]/database[?setting=value&…]
    /// postgres://user@%2Fpath[:port]/database     through the socket in a folder
    /// ```
    ///
    /// With several hosts, the store connects to the one that accepts writes. Special characters in names and passwords
    /// are percent-encoded. An unknown setting is refused. These are known:
    ///
    /// - `sslmode` is `verify-full` or `disable`. The default is `disable` on loopback and sockets, else `verify-full`.
    ///   `verify-ca` and `require` count as `verify-full`.
    /// - `sslrootcert`, `sslcert` and `sslkey` name files for TLS. By default the system's authorities are trusted.
    /// - `password_file` names a file with the password, which is read at each login.
    /// - `schema` (`leasehold`) keeps sets of locks apart.
    /// - `connections` (`4`) is how many connections to open at most, besides the one for notifications.
    /// - `listen` is a percent-encoded URL of the same database for notifications, past a pooler. With `listen=none`
    ///   waiters poll.
    /// - `create` (`no`): `yes` makes the schema and its tables if they are missing.
    /// - `log` (`0`) is how many events to log of each lock.
    /// - `fence_retention` (`10m`) is for how long the last fence of an idle lock is kept.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`] – the URL can't be used, or the tables are missing. The message does not repeat the URL.
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
    ) -> Self {
        let statements = Statements::of(&pool.dial.address.schema);
        let shared = Shared {
            pool,
            subscription,
            statements,
            log,
            retention,
            location,
            hasher: RandomState::new(),
            gates: (0..GATES).map(|_| Arc::default()).collect(),
            writes: AtomicU32::new(0),
            forget_from: Mutex::default(),
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

    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.shared.hasher.hash_one(key)
    }

    fn gate(&self, key: &Key) -> usize {
        let gates = u64::try_from(GATES).unwrap_or(1);
        usize::try_from((self.hash(key) >> 32) % gates).unwrap_or_default()
    }

    /// Waits for the turn of these names. In the order of the gates, so that no two callers wait for each other.
    async fn turns(
        &self,
        keys: &[&Key],
        deadline: Deadline,
    ) -> Result<Vec<tokio::sync::OwnedMutexGuard<()>>, Fault> {
        let mut at: Vec<usize> = keys.iter().map(|key| self.gate(key)).collect();
        at.sort_unstable();
        at.dedup();
        let mut turns = Vec::with_capacity(at.len());
        for gate in at.into_iter().filter_map(|at| self.shared.gates.get(at)) {
            let turn = tokio::time::timeout_at(deadline.at, Arc::clone(gate).lock_owned()).await;
            turns.push(turn.map_err(|_| deadline.missed(Effect::NotApplied))?);
        }
        Ok(turns)
    }

    async fn read(&self, key: &Key, deadline: Deadline) -> Result<Found, Fault> {
        let Shared { pool, statements, .. } = &*self.shared;
        let name = key.as_str();
        let rows =
            pool.ask(self.hash(key), &statements.read, &[(&name, Type::TEXT)], deadline).await;
        // A statement that only reads has no effect, answered or not.
        let rows = rows.map_err(|fault| Fault {
            error: fault.error.with_effect(Effect::NotApplied),
            ..fault
        })?;
        let row = rows
            .first()
            .ok_or_else(|| Error::new(ErrorKind::Protocol, "the server's answer has no row"))?;
        Ok(Found::read(key, row)?)
    }

    /// Begins a new epoch, unless another client has.
    async fn adopt(&self, hash: u64, deadline: Deadline) -> Result<(), Fault> {
        let Shared { pool, statements, .. } = &*self.shared;
        let asked = pool.ask(hash, &statements.adopt, &[(&false, Type::BOOL)], deadline).await;
        asked
            .map(drop)
            .map_err(|fault| Fault { error: fault.error.with_effect(Effect::NotApplied), ..fault })
    }

    async fn write(
        &self,
        changes: &[Change<'_>],
        epoch: i32,
        not_after: Option<StoreTime>,
        longest: Option<i64>,
        deadline: Deadline,
    ) -> Result<Written, Fault> {
        let Some(first) = changes.first() else { return Ok(Written::Yes) };
        macro_rules! column {
            ($change:ident => $value:expr) => {
                changes.iter().map(|$change| $value).collect::<Vec<_>>()
            };
        }
        let not_after = not_after.map(to_sql_time);
        let names = column!(c => c.key.as_str());
        let olds = column!(c => c.version);
        let versions = column!(_c => fastrand::i64(..));
        let grants = column!(c => c.grants);
        let used = column!(c => c.columns.used_until);
        let fence = column!(c => c.columns.last_fence);
        let holders = column!(c => c.columns.holders);
        let waiters = column!(c => c.columns.waiters);
        let owner = column!(c => c.columns.owner.as_deref());
        let metadata = column!(c => c.columns.metadata.as_deref());
        let granted = column!(c => c.columns.granted_at);
        let renewed = column!(c => c.columns.renewed_at);
        let fences = column!(c => c.columns.fences);
        let holds = column!(c => c.columns.holds);
        let token = column!(c => c.columns.token);
        let released = column!(c => c.columns.released);
        let ended = column!(c => c.columns.ended.as_deref());
        let entry = column!(c => c.columns.entry.as_deref());
        let Shared { pool, statements, .. } = &*self.shared;
        let rows = pool
            .ask(
                self.hash(first.key),
                &statements.write,
                &[
                    (&epoch, Type::INT4),
                    (&not_after, Type::TIMESTAMPTZ),
                    (&longest, Type::INT8),
                    (&names, Type::TEXT_ARRAY),
                    (&olds, Type::INT8_ARRAY),
                    (&versions, Type::INT8_ARRAY),
                    (&grants, Type::BOOL_ARRAY),
                    (&used, Type::TIMESTAMPTZ_ARRAY),
                    (&fence, Type::INT8_ARRAY),
                    (&holders, Type::INT4_ARRAY),
                    (&waiters, Type::INT4_ARRAY),
                    (&owner, Type::TEXT_ARRAY),
                    (&metadata, Type::TEXT_ARRAY),
                    (&granted, Type::TIMESTAMPTZ_ARRAY),
                    (&renewed, Type::TIMESTAMPTZ_ARRAY),
                    (&fences, Type::INT4_ARRAY),
                    (&holds, Type::INT4_ARRAY),
                    (&token, Type::UUID_ARRAY),
                    (&released, Type::UUID_ARRAY),
                    (&ended, Type::BYTEA_ARRAY),
                    (&entry, Type::BYTEA_ARRAY),
                ],
                deadline,
            )
            .await;
        let rows = match rows {
            Ok(rows) => rows,
            Err(fault) if fault.next == Next::Again => return Ok(Written::Changed),
            Err(fault) => return Err(fault),
        };
        match rows.first().and_then(|row| row.try_get::<_, i32>(0).ok()) {
            Some(0) => Ok(Written::Changed),
            Some(1) => Ok(Written::Yes),
            Some(2) => Ok(Written::Late),
            Some(3) => Ok(Written::Locked),
            _ => {
                let error =
                    Error::new(ErrorKind::Protocol, "the server's answer to a write does not fit");
                Err(error.with_effect(Effect::Unknown).into())
            }
        }
    }

    /// Carries an operation out on one lock.
    async fn perform<O>(
        &self,
        key: &Key,
        operation: &O,
        step: Step,
        within: Duration,
    ) -> Result<O::Answer>
    where
        O: Operation<Answer: Send> + Sync,
    {
        let outcome = self.carry_out(key, operation, step, Deadline::after(within)).await;
        outcome.map_err(|fault| self.named(fault.error, step.name, Some(key)))
    }

    async fn carry_out<O>(
        &self,
        key: &Key,
        operation: &O,
        step: Step,
        deadline: Deadline,
    ) -> Result<O::Answer, Fault>
    where
        O: Operation<Answer: Send> + Sync,
    {
        let _turn = self.turns(&[key], deadline).await?;
        let mut tries = Tries::new(deadline);
        loop {
            let Found { entry: before, version, now, epoch, longest_ttl } =
                match self.read(key, deadline).await {
                    Err(fault) if fault.next == Next::Again => {
                        tries.again(&fault).await?;
                        continue;
                    }
                    found => found?,
                };
            let Some(epoch) = epoch else {
                match self.adopt(self.hash(key), deadline).await {
                    Err(fault) if fault.next == Next::Again => tries.again(&fault).await?,
                    adopted => adopted?,
                }
                continue;
            };
            let (mut entry, mut notices) = (before.clone(), Vec::new());
            let answer = entry.perform(operation, tries.now(now), &mut notices);
            if entry == before {
                return Ok(answer);
            }
            let grants = entry.has_grants_since(&before);
            let columns = Columns::of(key, &entry, now.at)?;
            let change = Change { key, version, grants, columns };
            let (not_after, longest) = (tries.not_after(step, now), longer(step, longest_ttl));
            match self.write(&[change], epoch, not_after, longest, deadline).await? {
                Written::Yes => {
                    self.tell(self.hash(key), notices);
                    self.wrote();
                    return Ok(answer);
                }
                Written::Changed => tries.changed().await?,
                Written::Locked => tries.locked().await?,
                Written::Late => tries.late().await?,
            }
        }
    }

    /// Takes all of several locks or none. Its own task, since a `leave` for any of them must come after the write.
    async fn take_all(&self, requests: &[AcquireRequest], within: Duration) -> Result<AcquireAll> {
        AcquireAll::check(requests).map_err(|error| self.named(error, "acquire", None))?;
        if requests.is_empty() {
            return Ok(AcquireAll::Granted(Vec::new()));
        }
        let (store, requests) = (self.clone(), requests.to_vec());
        let deadline = Deadline::after(within);
        let task = self
            .shared
            .pool
            .driver
            .runtime()
            .spawn(async move { store.take_each(&requests, deadline).await });
        let outcome = task.await.unwrap_or_else(|error| {
            let why = "the step was ended before its answer";
            let error = Error::new(ErrorKind::Unavailable, why).caused_by(error);
            Err(error.with_effect(Effect::Unknown).into())
        });
        outcome.map_err(|fault| self.named(fault.error, "acquire", None))
    }

    async fn take_each(
        &self,
        requests: &[AcquireRequest],
        deadline: Deadline,
    ) -> Result<AcquireAll, Fault> {
        let keys: Vec<&Key> = requests.iter().map(|request| &request.key).collect();
        let Some(first) = keys.first() else { return Ok(AcquireAll::Granted(Vec::new())) };
        let hash = self.hash(first);
        let _turns = self.turns(&keys, deadline).await?;
        let mut tries = Tries::new(deadline);
        let step = requests
            .iter()
            .map(|request| Step::new("acquire").lease(request))
            .max_by_key(|step| step.longest);
        let step = step.unwrap_or_else(|| Step::new("acquire"));
        loop {
            let found = match self.read_all(&keys, hash, deadline).await {
                Err(fault) if fault.next == Next::Again => {
                    tries.again(&fault).await?;
                    continue;
                }
                found => found?,
            };
            let Some(Found { now, epoch, longest_ttl, .. }) = found.first() else { continue };
            let (now, longest_ttl) = (*now, *longest_ttl);
            let Some(epoch) = *epoch else {
                self.adopt(hash, deadline).await?;
                continue;
            };
            let locks = keys
                .iter()
                .copied()
                .zip(&found)
                .map(|(key, found)| (key, found.now, found.entry.clone()));
            let mut all = All { locks: locks.collect(), now: tries.now(now), notices: Vec::new() };
            let answer = table::acquire_all(requests, &mut all).map_err(|NoSuchLock| {
                Error::new(ErrorKind::Protocol, "a lock is not among those that were read")
            })?;
            let after = || all.locks.iter().map(|(_, _, entry)| entry);
            if after().zip(&found).all(|(entry, found)| *entry == found.entry) {
                return Ok(answer);
            }
            // Also those that have not changed: the answer depends on them.
            let changes: Result<Vec<Change<'_>>> = keys
                .iter()
                .copied()
                .zip(&found)
                .zip(after())
                .map(|((key, found), entry)| {
                    let grants = entry.has_grants_since(&found.entry);
                    Ok(Change {
                        key,
                        version: found.version,
                        grants,
                        columns: Columns::of(key, entry, now.at)?,
                    })
                })
                .collect();
            let mut changes = changes?;
            changes.sort_by_key(|change| change.key);
            let (not_after, longest) = (tries.not_after(step, now), longer(step, longest_ttl));
            match self.write(&changes, epoch, not_after, longest, deadline).await? {
                Written::Yes => {
                    self.tell(hash, all.notices);
                    self.wrote();
                    return Ok(answer);
                }
                Written::Changed => tries.changed().await?,
                Written::Locked => tries.locked().await?,
                Written::Late => tries.late().await?,
            }
        }
    }

    /// Reads several locks at the same moment.
    async fn read_all(
        &self,
        keys: &[&Key],
        hash: u64,
        deadline: Deadline,
    ) -> Result<Vec<Found>, Fault> {
        let Shared { pool, statements, .. } = &*self.shared;
        let names: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
        let rows =
            pool.ask(hash, &statements.read_all, &[(&names, Type::TEXT_ARRAY)], deadline).await;
        let rows = rows.map_err(|fault| Fault {
            error: fault.error.with_effect(Effect::NotApplied),
            ..fault
        })?;
        if rows.len() != keys.len() {
            return Err(Error::new(ErrorKind::Protocol, "the server's answer lacks rows").into());
        }
        let found = keys
            .iter()
            .zip(&rows)
            .map(|(key, row)| Found::read(key, row).map_err(|error| error.on_key(key)));
        Ok(found.collect::<Result<_>>()?)
    }

    /// Sends notifications in a statement of their own, behind the write: a transaction that notifies and writes makes
    /// all such commits of the database wait for each other.
    fn tell(&self, hash: u64, notices: Vec<Notice>) {
        let (channels, texts): (Vec<String>, Vec<String>) = notices
            .into_iter()
            .filter_map(|notice| Some((channel(notice.client), spoken(&notice.wake)?)))
            .unzip();
        if channels.is_empty() {
            return;
        }
        let pool = Arc::clone(&self.shared.pool);
        // Nothing depends on it: a waiter that is not told asks at its next heartbeat.
        self.shared.pool.driver.runtime().spawn(async move {
            const TELL: &str = "SELECT pg_notify(c, t)::text FROM unnest($1, $2) AS n(c, t)";
            let params = [(&channels as &(dyn tokio_postgres::types::ToSql + Sync), Type::TEXT_ARRAY), (&texts, Type::TEXT_ARRAY)];
            if let Err(fault) = pool.ask(hash, TELL, &params, Deadline::after(BACKGROUND)).await {
                tracing::debug!(target: "leasehold", error = %fault.error, "notifications were not sent");
            }
        });
    }

    /// Forgets idle names now and then, in the background.
    fn wrote(&self) {
        if !self.shared.writes.fetch_add(1, Ordering::Relaxed).is_multiple_of(FORGET_EVERY) {
            return;
        }
        let store = self.clone();
        self.shared.pool.driver.runtime().spawn(async move {
            if let Err(fault) = store.forget(Deadline::after(BACKGROUND)).await {
                tracing::debug!(target: "leasehold", error = %fault.error, "idle locks were not forgotten");
            }
        });
    }

    async fn forget(&self, deadline: Deadline) -> Result<(), Fault> {
        let Shared { pool, statements, forget_from, retention, .. } = &*self.shared;
        let from = forget_from.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let seconds = retention.as_secs_f64();
        let params: [crate::pool::Param<'_>; 2] = [(&from, Type::TEXT), (&seconds, Type::FLOAT8)];
        let rows = pool.ask(0, &statements.forget, &params, deadline).await?;
        if let Some(row) = rows.first() {
            *forget_from.lock().unwrap_or_else(PoisonError::into_inner) = get(row, "forget_1")?;
        }
        Ok(())
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

/// Several locks as they were at one moment.
struct All<'a> {
    locks: Vec<(&'a Key, Now, LockEntry)>,
    now: Now,
    notices: Vec<Notice>,
}

struct NoSuchLock;

impl Entries for All<'_> {
    type Error = NoSuchLock;

    fn perform<O: Operation>(&mut self, key: &Key, operation: &O) -> Result<O::Answer, NoSuchLock> {
        let Self { locks, now, notices } = self;
        let (_, own, entry) = locks.iter_mut().find(|(name, ..)| *name == key).ok_or(NoSuchLock)?;
        // One moment for all, and each lock's own least fence.
        let now = Now { fence_floor: own.fence_floor, ..*now };
        Ok(entry.perform(operation, now, notices))
    }
}

impl Store for PostgresStore {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        Box::pin(self.perform(&request.key, request, Step::new("acquire").lease(request), within))
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(join_all(requests.iter().map(move |request| {
            let step = Step::new("renew").of(request.ttl.duration());
            self.perform(&request.key, request, step, within)
        })))
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        Box::pin(self.perform(&request.key, request, Step::returning("release"), within))
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        Box::pin(self.perform(&request.key, request, Step::returning("leave"), within))
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        Box::pin(self.take_all(requests, within))
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
            let found = self.read(key, Deadline::after(within)).await;
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
                let why = "the store's URL has listen=none, so it has no wake channel";
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
        Ok(if facts.is_durable() { None } else { facts.alive_for })
    }

    pub(crate) fn ear_trouble(&self) -> Option<Result<(), Error>> {
        self.shared
            .subscription
            .as_ref()
            .map(|subscription| subscription.trouble().map_or(Ok(()), Err))
    }
}
