//! Carries operations out by the lock table: reads rows, and writes them if they have not changed.

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join;
use leasehold_core::table::{self, Entries, LockEntry, Notice, Now, Operation};
use leasehold_core::{AcquireAll, AcquireRequest, Effect, Error, ErrorKind, Key, Reason, Result};
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinError;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::classify::{Deadline, Fault, Next};
use crate::pool::{Param, Transaction};
use crate::row::{Columns, Found, to_sql_time};
use crate::step::{Step, Terms, Tries, Way, Written};
use crate::store::{GATES, PostgresStore, Shared};

/// How many steps lock the row before they read it, after another process came first.
const LOCKED_STEPS: u32 = 64;

/// How durable a commit is: `commit_1` has the same numbers.
const DISK: i32 = 0;
const SOON: i32 = 1;
const STANDBY: i32 = 2;

/// A turn to change a name, and how many steps lock the row from now on.
type Turn = OwnedMutexGuard<u32>;

/// A row to write.
struct NewRow<'a> {
    key: &'a Key,
    /// The version that was read.
    version: Option<i64>,
    /// The version to write.
    next: i64,
    grants: bool,
    columns: Columns,
}

/// Several locks as they were at one moment.
struct Locks<'a> {
    locks: Vec<(&'a Key, Now, LockEntry)>,
    now: Now,
    notices: Vec<Notice>,
}

impl Entries for Locks<'_> {
    type Error = Error;

    fn perform<O: Operation>(&mut self, key: &Key, operation: &O) -> Result<O::Answer> {
        let Self { locks, now, notices } = self;
        let found = locks.iter_mut().find(|(name, ..)| *name == key);
        let (_, own, entry) = found.ok_or_else(|| {
            Error::new(ErrorKind::Protocol, "a lock is not among those that were read")
        })?;
        // One moment for all, and each lock's own least fence.
        let now = Now { fence_floor: own.fence_floor, ..*now };
        Ok(entry.perform(operation, now, notices))
    }
}

impl<'a> Locks<'a> {
    fn of(keys: &[&'a Key], found: &[Found], now: Now) -> Self {
        let locks =
            keys.iter().zip(found).map(|(key, found)| (*key, found.now, found.entry.clone()));
        Self { locks: locks.collect(), now, notices: Vec::new() }
    }

    /// The rows to write, if any has changed. Also those that have not: the answer depends on them.
    fn changes(&self, found: &[Found]) -> Result<Option<Vec<NewRow<'a>>>> {
        let both = || self.locks.iter().zip(found);
        if both().all(|((_, _, entry), found)| *entry == found.entry) {
            return Ok(None);
        }
        let changes = both().map(|((key, _, entry), found)| {
            let grants = entry.has_grants_since(&found.entry);
            let columns = Columns::of(key, entry, self.now.at)?;
            Ok(NewRow { key, version: found.version, next: fastrand::i64(..), grants, columns })
        });
        let mut changes = changes.collect::<Result<Vec<_>>>()?;
        // In the same order everywhere, so that no two writes wait for each other.
        changes.sort_by_key(|change| change.key);
        Ok(Some(changes))
    }
}

impl PostgresStore {
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.shared.hasher.hash_one(key)
    }

    fn gate(&self, key: &Key) -> usize {
        let gates = u64::try_from(GATES).unwrap_or(1);
        usize::try_from((self.hash(key) >> 32) % gates).unwrap_or_default()
    }

    /// The turn of this name, if no other step has it now.
    pub(crate) fn free_turn(&self, key: &Key) -> Option<Turn> {
        let gate = self.shared.gates.get(self.gate(key))?;
        Arc::clone(gate).try_lock_owned().ok()
    }

    /// Waits for the turn of these names. In the order of the gates, so that no two callers wait
    /// for each other.
    async fn turns(&self, keys: &[&Key], deadline: Deadline) -> Result<Vec<Turn>, Fault> {
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

    /// Reads one lock.
    pub(crate) async fn read_one(&self, key: &Key, deadline: Deadline) -> Result<Found, Fault> {
        let found = self.read(&[key], self.hash(key), deadline).await?;
        found.into_iter().next().ok_or_else(|| rows_lack().into())
    }

    /// Reads several locks at the same moment.
    async fn read(
        &self,
        keys: &[&Key],
        hash: u64,
        deadline: Deadline,
    ) -> Result<Vec<Found>, Fault> {
        let Shared { pool, statements, .. } = &*self.shared;
        let rows = if let [key] = keys {
            pool.ask(hash, &statements.read, &[(&key.as_str(), Type::TEXT)], deadline).await
        } else {
            let names: Vec<&str> = keys.iter().map(|key| key.as_str()).collect();
            pool.ask(hash, &statements.read_all, &[(&names, Type::TEXT_ARRAY)], deadline).await
        };
        // A statement that only reads has no effect, answered or not.
        let rows = rows.map_err(|fault| fault.with_effect(Effect::NotApplied))?;
        if rows.len() != keys.len() {
            return Err(rows_lack().into());
        }
        let found = keys
            .iter()
            .zip(&rows)
            .map(|(key, row)| Found::read(key, row).map_err(|error| error.on_key(key)));
        let found = found.collect::<Result<Vec<_>>>()?;
        if let Some(first) = found.first() {
            self.shared.clock.shows(first.now.at);
        }
        Ok(found)
    }

    /// Locks a lock's row and reads it, in a transaction that goes on.
    async fn read_locked(
        &self,
        key: &Key,
        deadline: Deadline,
    ) -> Result<(Transaction, Vec<Found>), Fault> {
        let Shared { pool, statements, .. } = &*self.shared;
        let name = key.as_str();
        let params: [Param<'_>; 1] = [(&name, Type::TEXT)];
        let (transaction, rows) =
            pool.begin([&statements.lock, &statements.read], &params, deadline).await?;
        let found = rows.iter().map(|row| Found::read(key, row)).collect::<Result<Vec<_>>>()?;
        Ok((transaction, found))
    }

    /// Begins a new epoch, unless another client has.
    async fn adopt(&self, hash: u64, deadline: Deadline) -> Result<(), Fault> {
        let Shared { pool, statements, .. } = &*self.shared;
        let grants = pool.dial.address.grants_after_failover;
        let asked = pool.ask(hash, &statements.adopt, &[(&grants, Type::BOOL)], deadline).await;
        asked.map(drop).map_err(|fault| fault.with_effect(Effect::NotApplied))
    }

    /// How durable the commit of a change is, as `commit_1` counts it. Before one waits for no
    /// disk, the database notes that a crash may lose writes, for the client that comes first after
    /// it.
    async fn durability(&self, hash: u64, deadline: Deadline) -> Result<i32, Fault> {
        let Shared { pool, statements, loss_noted, .. } = &*self.shared;
        if pool.dial.address.is_synchronous {
            return Ok(STANDBY);
        }
        if !pool.dial.address.is_async {
            return Ok(DISK);
        }
        if !loss_noted.load(Ordering::Relaxed) {
            let noted = pool.ask(hash, &statements.note_loss, &[], deadline).await;
            noted.map_err(|fault| fault.with_effect(Effect::NotApplied))?;
            loss_noted.store(true, Ordering::Relaxed);
        }
        Ok(SOON)
    }

    /// Carries a statement out that changes locks, with its durability behind its parameters.
    pub(crate) async fn change(
        &self,
        sql: &str,
        hash: u64,
        params: &[Param<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Row>, Fault> {
        let durability = self.durability(hash, deadline).await?;
        let params = [params, &[(&durability, Type::INT4)]].concat();
        self.shared.pool.ask(hash, sql, &params, deadline).await
    }

    /// Writes rows, on the connection of their transaction if they have one.
    async fn write(
        &self,
        transaction: Option<Transaction>,
        changes: &[NewRow<'_>],
        terms: &Terms,
        deadline: Deadline,
    ) -> Result<Written, Fault> {
        let Some(first) = changes.first() else { return Ok(Written::Yes) };
        macro_rules! column {
            ($change:ident => $value:expr) => {
                changes.iter().map(|$change| $value).collect::<Vec<_>>()
            };
        }
        let not_after = terms.not_after.map(to_sql_time);
        let names = column!(c => c.key.as_str());
        let olds = column!(c => c.version);
        let versions = column!(c => c.next);
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
        let params: [Param<'_>; 21] = [
            (&terms.epoch, Type::INT4),
            (&not_after, Type::TIMESTAMPTZ),
            (&terms.longest, Type::INT8),
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
        ];
        let Shared { pool, statements, .. } = &*self.shared;
        let hash = self.hash(first.key);
        let written = async {
            let durability = match self.durability(hash, deadline).await? {
                // The length of the longest lease must not be lost.
                SOON if terms.longest.is_some() => DISK,
                // What gives a lock back makes no promise.
                STANDBY if terms.not_after.is_none() => DISK,
                durability => durability,
            };
            let params = [&params[..], &[(&durability, Type::INT4)]].concat();
            match transaction {
                Some(transaction) => transaction.commit(&statements.write, &params, deadline).await,
                None => pool.ask(hash, &statements.write, &params, deadline).await,
            }
        };
        let rows = match written.await {
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

    /// Carries an operation out on one lock, which may have been read already.
    pub(crate) async fn carry_out<O>(
        &self,
        key: &Key,
        operation: &O,
        step: Step,
        found: Option<Found>,
        deadline: Deadline,
    ) -> Result<O::Answer, Fault>
    where
        O: Operation<Answer: Send + 'static> + Clone + Send + Sync + 'static,
    {
        let (mut turn, found) = match self.free_turn(key) {
            Some(turn) => (turn, found),
            None => {
                let turn = self.turns(&[key], deadline).await?.pop();
                // While others had their turns it may have changed.
                (turn.ok_or_else(|| deadline.missed(Effect::NotApplied))?, None)
            }
        };
        let mut tries = Tries::new(deadline);
        if *turn == 0 || !self.shared.pool.may_begin() {
            let act = |locks: &mut Locks<'_>| locks.perform(key, operation);
            match self.steps(&[key], step, found, Way::First, &mut tries, act).await? {
                Some(answer) => return Ok(answer),
                None => *turn = LOCKED_STEPS,
            }
        }
        *turn = turn.saturating_sub(1);
        // Its own task: it writes on another connection, and a `leave` must come after the write.
        let (store, key, operation) = (self.clone(), key.clone(), operation.clone());
        let task = self.shared.pool.driver.runtime().spawn(async move {
            let act = |locks: &mut Locks<'_>| locks.perform(&key, &operation);
            let outcome = store.steps(&[&key], step, None, Way::Locked, &mut tries, act).await;
            drop(turn);
            outcome
        });
        task.await.unwrap_or_else(|error| Err(unfinished(error)))?.ok_or_else(|| rows_lack().into())
    }

    /// Takes all of several locks or none. Its own task, since a `leave` for any of them must come
    /// after the write.
    pub(crate) async fn take_all(
        &self,
        requests: &[AcquireRequest],
        deadline: Deadline,
    ) -> Result<AcquireAll, Fault> {
        AcquireAll::check(requests)?;
        if requests.is_empty() {
            return Ok(AcquireAll::Granted(Vec::new()));
        }
        let (store, requests) = (self.clone(), requests.to_vec());
        let task = self.shared.pool.driver.runtime().spawn(async move {
            let keys: Vec<&Key> = requests.iter().map(|request| &request.key).collect();
            let _turns = store.turns(&keys, deadline).await?;
            let steps = requests.iter().map(|request| Step::new("acquire").lease(request));
            let step = steps.max_by_key(|step| step.longest);
            let step = step.unwrap_or_else(|| Step::new("acquire"));
            let act = |locks: &mut Locks<'_>| table::acquire_all(&requests, locks);
            store.steps(&keys, step, None, Way::Only, &mut Tries::new(deadline), act).await
        });
        task.await.unwrap_or_else(|error| Err(unfinished(error)))?.ok_or_else(|| rows_lack().into())
    }

    /// Reads locks, lets `act` change them, and writes them, again and again. `None` if another
    /// process came first and the row should be locked.
    async fn steps<A>(
        &self,
        keys: &[&Key],
        step: Step,
        mut known: Option<Found>,
        way: Way,
        tries: &mut Tries,
        act: impl Fn(&mut Locks<'_>) -> Result<A>,
    ) -> Result<Option<A>, Fault> {
        let deadline = tries.deadline;
        let pool = &self.shared.pool;
        let hash = keys.first().map_or(0, |key| self.hash(key));
        loop {
            let locks_row = way == Way::Locked && pool.may_begin() && !tries.waited();
            let locks_row = keys.first().filter(|_| locks_row);
            let found = match (known.take(), locks_row) {
                (Some(found), _) => Ok((None, vec![found])),
                (None, Some(key)) => {
                    let locked = self.read_locked(key, deadline).await;
                    locked.map(|(transaction, found)| (Some(transaction), found))
                }
                (None, None) => self.read(keys, hash, deadline).await.map(|found| (None, found)),
            };
            let (transaction, found) = match found {
                Err(fault) if fault.next == Next::Again => {
                    tries.again(&fault).await?;
                    continue;
                }
                Err(fault) if fault.next == Next::Locked => {
                    tries.waited_in_vain().await?;
                    continue;
                }
                // A pooler refuses transactions.
                Err(_) if locks_row.is_some() && !pool.may_begin() => continue,
                found => found?,
            };
            let Some(Found { now, epoch, longest_ttl, .. }) = found.first() else {
                return Err(rows_lack().into());
            };
            let Some(epoch) = *epoch else {
                drop(transaction);
                match self.adopt(hash, deadline).await {
                    Err(fault) if fault.next == Next::Again => tries.again(&fault).await?,
                    adopted => adopted?,
                }
                continue;
            };
            let warm_up = now.grants_from.saturating_since(now.at);
            if step.takes && !warm_up.is_zero() && !found.iter().zip(keys).any(is_held) {
                return Err(warming_up(warm_up).into());
            }
            let terms = tries.terms(step, epoch, *now, *longest_ttl);
            let mut locks = Locks::of(keys, &found, tries.now(*now));
            let answer = act(&mut locks)?;
            let Some(changes) = locks.changes(&found)? else {
                if let Some(transaction) = transaction {
                    transaction.end();
                }
                return Ok(Some(answer));
            };
            let (written, told) = if transaction.is_some() {
                (self.write(transaction, &changes, &terms, deadline).await, false)
            } else {
                let row = changes.first().map(|row| (row.key, row.next));
                let telling = self.tell_behind(hash, row, &locks.notices, deadline);
                join(self.write(None, &changes, &terms, deadline), telling).await
            };
            match written? {
                Written::Yes => {
                    if !told {
                        self.tell(hash, &locks.notices);
                    }
                    self.wrote();
                    return Ok(Some(answer));
                }
                Written::Changed if way == Way::First && pool.may_begin() => return Ok(None),
                Written::Changed => tries.changed().await?,
                Written::Locked => tries.locked().await?,
                Written::Late => tries.late().await?,
            }
        }
    }
}

fn is_held((found, key): (&Found, &&Key)) -> bool {
    let lock = found.entry.inspect(key, found.now.at);
    lock.is_some_and(|lock| !lock.holders.is_empty())
}

fn warming_up(left: Duration) -> Error {
    let why = "the database was restarted or promoted, and may have lost leases; a lock that is free then is granted \
               once the longest of them has ended";
    Error::new(ErrorKind::Unavailable, why).with_reason(Reason::TooYoung).passes_in(left)
}

fn rows_lack() -> Error {
    Error::new(ErrorKind::Protocol, "the server's answer lacks rows")
}

/// The fault of a step whose task was ended.
fn unfinished(error: JoinError) -> Fault {
    let why = "the step was ended before its answer";
    let error = Error::new(ErrorKind::Unavailable, why).caused_by(error);
    error.with_effect(Effect::Unknown).into()
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Acquire, Store as _, Token, Ttl};
    use tokio_postgres::NoTls;

    use super::*;
    use crate::differential::SERVER;

    const WITHIN: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_step_that_locks_the_row_waits_for_a_change_and_sees_it() {
        let url = format!("{}?create=yes&schema=locked", SERVER.url());
        let store = PostgresStore::connect(&url).await.unwrap();
        let ttl = Ttl::new(WITHIN).unwrap();
        let request = |key: &Key| AcquireRequest::new(key.clone(), Token::generate().unwrap(), ttl);
        let key = Key::new("row").unwrap();
        let held = request(&key);
        assert!(matches!(store.acquire(&held, WITHIN).await.unwrap(), Acquire::Granted(_)));

        let mut config = tokio_postgres::Config::new();
        config.host_path(SERVER.socket_dir()).port(SERVER.port());
        config.user("leasehold").dbname("postgres");
        let (session, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let (watcher, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let ending =
            "BEGIN; UPDATE locked.lock SET token = NULL, granted_at = NULL, version = version + 1";
        let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                       AND query LIKE '%locked.lock%'";
        for tries in 1.. {
            assert!(tries < 10, "it is never granted");
            session.batch_execute(ending).await.unwrap();
            *store.free_turn(&key).unwrap() = 2;
            let waiting = {
                let (store, next) = (store.clone(), request(&key));
                tokio::spawn(async move { store.acquire(&next, WITHIN).await.unwrap() })
            };
            while watcher.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) == 0 {
                assert!(!waiting.is_finished());
            }
            session.batch_execute("COMMIT").await.unwrap();
            match waiting.await.unwrap() {
                Acquire::Granted(_) => break,
                // A busy machine may commit after the second for which it waits.
                Acquire::Busy(_) => {}
                other => panic!("not granted: {other:?}"),
            }
        }
        // One step less locks the row.
        assert_eq!(*store.free_turn(&key).unwrap(), 1);
    }
}
