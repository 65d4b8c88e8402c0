//! Runs a table operation inside the gate: read the entry, drop the dead, apply, write.

use std::ops::Bound;

use heed::RwTxn;
use leasehold_core::table::{Bury, Entries, LockEntry, Notice, Now, Operation, StoreTime};
use leasehold_core::{
    AcquireAll, AcquireRequest, Error, ErrorKind, Fence, Key, LockInfo, Reason, Renew,
    RenewRequest, Result, Token,
};

use super::environment::Environment;
use super::gate::Pass;
use super::noted::Clocks;
use super::pages::OWN;
use super::record::{self, Record, SessionId, Stored, Unreadable};
use super::room::Write;

/// A fence above all fences of the names that the store has forgotten. Names that it does not know
/// start above it.
const FORGOTTEN: &[u8] = &[OWN, b'f'];
/// The clocks when the store was last used.
pub(super) const CLOCKS: &[u8] = &[OWN, b'c'];
/// The cursor of the search for names to forget.
const SWEEP_CURSOR: &[u8] = &[OWN, b'h'];

/// Where the cursor starts: before every name, and after the store's own entries. (LMDB takes no
/// empty key.)
const BEFORE_ALL: &[u8] = &[OWN + 1];

/// Every n-th operation moves the cursor, so that old names are forgotten even if no new ones come.
const MOVE_ONE_IN: u32 = 16;
/// How many names the cursor passes then. With only one it would never catch up with new names.
const STEPS: usize = 4;
/// How many names the cursor passes if the store is full, and in how many transactions. Each of
/// these rewrites fewer pages than are set aside for changes. Together they free more than an
/// addition takes.
const FORGET_STEPS: usize = 256;
const FORGET_TURNS: usize = 32;
/// How many renewals share one transaction, and how many names one step lists. Either keeps other
/// processes out for about a millisecond.
pub(super) const BATCH: usize = 256;

pub(super) type Answer<T> = Result<(T, Vec<Notice>)>;

/// Carries out one operation on one lock. The session owns what it acquires.
pub(super) fn perform<O: Operation>(
    store: &Environment,
    pass: &Pass<'_>,
    now: Now,
    session: Option<SessionId>,
    key: &Key,
    operation: &O,
) -> Answer<O::Answer> {
    let attempt = || {
        let mut step = Step::begin_at(store, pass, session, now)?;
        let answer = step.perform(key, operation)?;
        step.end(answer)
    };
    if O::TAKES { where_there_is_room(store, pass, attempt) } else { attempt() }
}

/// Forgets idle names and tries again if the store was full.
fn where_there_is_room<T>(
    store: &Environment,
    pass: &Pass<'_>,
    attempt: impl Fn() -> Answer<T>,
) -> Answer<T> {
    match attempt() {
        Err(full) if full.kind() == ErrorKind::Full => {
            if forget_idle(store, pass) {
                attempt()
            } else {
                Err(full)
            }
        }
        answer => answer,
    }
}

/// Forgets some unused names, even recently used ones; returns whether it found any. In a full
/// store, a new lock is worth more than distinguishing an expired release from a lost one.
fn forget_idle(store: &Environment, pass: &Pass<'_>) -> bool {
    (0..FORGET_TURNS).fold(false, |any, _| {
        let turn = || {
            let mut step = Step::begin(store, pass, None)?;
            store.reserve(&step.txn, Write::Change, 0)?;
            let forgotten = step.forget(FORGET_STEPS, |stored, now| stored.used_until <= now)?;
            store.commit(step.txn)?;
            Ok::<_, Error>(forgotten)
        };
        turn().is_ok_and(|forgotten| forgotten > 0) || any
    })
}

/// Acquires all or none. If one is not free, it writes only what has expired or was granted to the
/// others' waiters.
pub(super) fn acquire_all(
    store: &Environment,
    pass: &Pass<'_>,
    session: Option<SessionId>,
    requests: &[AcquireRequest],
) -> Answer<AcquireAll> {
    where_there_is_room(store, pass, || {
        let mut step = Step::begin(store, pass, session)?;
        let answer = leasehold_core::table::acquire_all(requests, &mut step)?;
        step.end(answer)
    })
}

/// Renews all in one transaction. An unreadable entry fails its own request only; a failed write
/// fails them all.
pub(super) fn renew(
    store: &Environment,
    pass: &Pass<'_>,
    requests: &[RenewRequest],
) -> Answer<Vec<Result<Renew>>> {
    let mut step = Step::begin(store, pass, None)?;
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        answers.push(match step.load(&request.key) {
            Ok(mut loaded) => {
                let answer = step.apply(&mut loaded.record, request, step.now);
                step.save(&request.key, loaded, Write::Change)?;
                Ok(answer)
            }
            Err(error) => Err(error),
        });
    }
    step.end(answers)
}

/// Describes a lock without its dead holders, which the next operation would remove anyway.
pub(super) fn inspect(store: &Environment, pass: &Pass<'_>, key: &Key) -> Answer<Option<LockInfo>> {
    let at = store.now().at;
    let record = {
        let txn = store.read_txn(pass)?;
        let name = key.as_str().as_bytes();
        match store.records.get(&txn, name).map_err(|error| store.lmdb_error(error))? {
            Some(value) => decode(store, name, value)?,
            None => return Ok((None, Vec::new())),
        }
    };
    if store.sessions.dead(record.sessions(None), at, pass).is_empty() {
        return Ok((record.entry.inspect(key, at), Vec::new()));
    }
    let mut step = Step::begin(store, pass, None)?;
    let info = step.inspect_the_living(key)?;
    step.end(info)
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) locks: Vec<LockInfo>,
    /// Why some locks could not be described.
    pub(super) unreadable: Vec<Error>,
    /// Where to continue, unless the list has ended.
    pub(super) next: Option<Vec<u8>>,
}

impl ListFrom {
    /// From the first name with a prefix.
    pub(super) fn start(prefix: &str) -> Self {
        let prefix = prefix.as_bytes().to_vec();
        let name = if prefix.is_empty() { BEFORE_ALL.to_vec() } else { prefix.clone() };
        Self { name, prefix }
    }
}

/// Where a list continues, and the prefix of its names.
#[derive(Clone, Debug)]
pub(super) struct ListFrom {
    pub(super) name: Vec<u8>,
    pub(super) prefix: Vec<u8>,
}

/// Describes the locks in use from a name on, up to a maximum number of names.
pub(super) fn list(store: &Environment, pass: &Pass<'_>, from: &ListFrom) -> Answer<Listed> {
    let at = store.now().at;
    let (mut locks, mut unreadable) = (Vec::new(), Vec::new());
    let mut with_dead = Vec::new();
    let mut next = None;
    {
        let txn = store.read_txn(pass)?;
        let failed = |error| store.lmdb_error(error);
        let range = (Bound::Included(from.name.as_slice()), Bound::Unbounded);
        let names = store.records.range(&txn, &range).map_err(failed)?;
        for (count, item) in names.enumerate() {
            let (name, value) = item.map_err(failed)?;
            if name.first() == Some(&OWN) {
                continue;
            }
            if !name.starts_with(&from.prefix) {
                break;
            }
            if count >= BATCH {
                next = Some(name.to_vec());
                break;
            }
            let Ok(key) = Key::from_bytes(name) else {
                unreadable.push(damaged(store, "a name"));
                continue;
            };
            let record = match in_use(store, name, value, at) {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(error) => {
                    unreadable.push(error.on_key(&key));
                    continue;
                }
            };
            if store.sessions.dead(record.sessions(None), at, pass).is_empty() {
                locks.extend(record.entry.inspect(&key, at));
            } else {
                with_dead.push(key);
            }
        }
    }
    let mut step = Step::begin(store, pass, None)?;
    for key in with_dead {
        locks.extend(step.inspect_the_living(&key)?);
    }
    step.end(Listed { locks, unreadable, next })
}

/// The record, if the name is in use.
fn in_use(store: &Environment, name: &[u8], value: &[u8], at: StoreTime) -> Result<Option<Record>> {
    if stored(store, name, value)?.used_until <= at {
        return Ok(None);
    }
    decode(store, name, value).map(Some)
}

/// How many names there are, and how many of them are in use.
pub(super) fn count(store: &Environment, pass: &Pass<'_>) -> Answer<(usize, usize)> {
    let at = store.now().at;
    let txn = store.read_txn(pass)?;
    let failed = |error| store.lmdb_error(error);
    let (mut all, mut in_use): (usize, usize) = (0, 0);
    for item in store.records.iter(&txn).map_err(failed)? {
        let (name, value) = item.map_err(failed)?;
        if name.first() != Some(&OWN) {
            all = all.saturating_add(1);
            // An unreadable entry may be in use.
            let used = Stored::open(name, value).map_or(true, |stored| stored.used_until > at);
            in_use = in_use.saturating_add(usize::from(used));
        }
    }
    Ok(((all, in_use), Vec::new()))
}

/// Whether any live lease belongs to no session.
pub(super) fn has_detached(store: &Environment, pass: &Pass<'_>) -> Result<bool> {
    let txn = store.read_txn(pass)?;
    let failed = |error| store.lmdb_error(error);
    for item in store.records.iter(&txn).map_err(failed)? {
        let (name, value) = item.map_err(failed)?;
        if name.first() == Some(&OWN) {
            continue;
        }
        let may_be_detached = Record::decode(name, value).map_or(true, |record| {
            record.entry.tokens().any(|token| record.session_of(token).is_none())
        });
        if may_be_detached {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the store's times belong to the clock of another time namespace.
pub(super) fn is_by_another_clock(store: &Environment, pass: &Pass<'_>) -> Result<bool> {
    let step = Step::begin(store, pass, None)?;
    Ok(step.clocks()?.is_some_and(|(_, namespace)| namespace != store.time_namespace))
}

/// Carries the store over to another clock: keeps only the last fences and the cooldowns.
///
/// A cooldown lasts as long as it would by the old clock, which goes on by the time of day. Called
/// again, it changes nothing more. It leaves out unreadable records, and cooldowns that a full
/// store has no room for.
pub(super) fn carry_over(store: &Environment, pass: &Pass<'_>) -> Result<()> {
    match carry(store, pass, |record, then, now| record.entry.carried_over(then, now)) {
        Err(full) if full.reason() == Some(Reason::StoreFull) => {
            tracing::warn!(store = %store.location, "the store is full: its cooldowns and periods are lost, and their locks are free now");
            carry(store, pass, |_, _, _| None)
        }
        carried => carried,
    }
}

fn carry(
    store: &Environment,
    pass: &Pass<'_>,
    carried: impl Fn(&Record, StoreTime, StoreTime) -> Option<LockEntry>,
) -> Result<()> {
    let failed = |error| store.lmdb_error(error);
    let mut step = Step::begin(store, pass, None)?;
    let then = step.clocks()?.map(|(clocks, _)| clocks.stand(step.now)).unwrap_or_default();
    let mut last_fence = step.forgotten()?;
    let mut closed = Vec::new();
    for item in store.records.iter(&step.txn).map_err(failed)? {
        let (name, value) = item.map_err(failed)?;
        if name.first() == Some(&OWN) {
            continue;
        }
        let Ok(record) = Record::decode(name, value) else { continue };
        last_fence = last_fence.max(record.entry.last_fence().unwrap_or(Fence::ZERO));
        if let Some(entry) = carried(&record, then, step.now.at) {
            closed.push((name.to_vec(), Record::of_nobody(entry)));
        }
    }
    store.records.clear(&mut step.txn).map_err(failed)?;
    step.put(FORGOTTEN, &last_fence.value().to_le_bytes())?;
    for (name, record) in closed {
        step.write(&name, &record, None, Write::Change)?;
    }
    let clocks = Clocks::at(step.now);
    step.note(clocks)?;
    store.commit(step.txn)?;
    store.noted.know(clocks);
    Ok(())
}

/// Notes the clocks if the last note is old.
pub(super) fn note(store: &Environment, pass: &Pass<'_>) -> Result<()> {
    let mut step = Step::begin(store, pass, None)?;
    if let Some((clocks, _)) = step.clocks()? {
        store.noted.know(clocks);
    }
    if let Some(clocks) = store.noted.due(step.now) {
        store.reserve(&step.txn, Write::Change, 0)?;
        step.note(clocks)?;
        store.commit(step.txn)?;
        store.noted.know(clocks);
    }
    Ok(())
}

/// A record as it was read, and its stored value if any.
#[derive(Default)]
struct Loaded {
    record: Record,
    before: Option<Vec<u8>>,
}

/// One transaction. It takes effect in [`end`](Self::end) alone.
struct Step<'a> {
    store: &'a Environment,
    pass: &'a Pass<'a>,
    /// The session that owns what the operations acquire.
    session: Option<SessionId>,
    now: Now,
    txn: RwTxn<'a>,
    changed: bool,
    /// The notifications of the operations.
    notices: Vec<Notice>,
}

impl Entries for Step<'_> {
    type Error = Error;

    /// Carries out an operation on one lock, after removing the dead in its way.
    fn perform<O: Operation>(&mut self, key: &Key, operation: &O) -> Result<O::Answer> {
        let mut loaded = self.load(key)?;
        self.bury_dead(&mut loaded.record, operation.token());
        let now = if loaded.before.is_none() { self.floor_of_the_forgotten()? } else { self.now };
        let answer = self.apply(&mut loaded.record, operation, now);
        let write = if O::TAKES { Write::Add } else { Write::Change };
        self.save(key, loaded, write)?;
        Ok(answer)
    }
}

impl<'a> Step<'a> {
    fn begin(
        store: &'a Environment,
        pass: &'a Pass<'_>,
        session: Option<SessionId>,
    ) -> Result<Self> {
        Self::begin_at(store, pass, session, store.now())
    }

    fn begin_at(
        store: &'a Environment,
        pass: &'a Pass<'_>,
        session: Option<SessionId>,
        now: Now,
    ) -> Result<Self> {
        let txn = store.write_txn(pass)?;
        Ok(Self { store, pass, session, now, txn, changed: false, notices: Vec::new() })
    }

    fn end<T>(mut self, answer: T) -> Answer<T> {
        if self.changed {
            if fastrand::u32(..MOVE_ONE_IN) == 0 {
                self.sweep(STEPS)?;
            }
            let due = self.store.noted.due(self.now);
            if let Some(clocks) = due {
                self.note(clocks)?;
            }
            self.store.check_inside(self.pass)?;
            self.store.commit(self.txn)?;
            if let Some(clocks) = due {
                self.store.noted.know(clocks);
            }
        }
        Ok((answer, self.notices))
    }

    fn apply<O: Operation>(&mut self, record: &mut Record, operation: &O, now: Now) -> O::Answer {
        let answer = record.entry.perform(operation, now, &mut self.notices);
        if let Some(token) = operation.token() {
            if O::TAKES {
                record.own(token, self.session);
            }
            if let Some(successor) = operation.successor() {
                record.pass_on(token, successor);
            }
        }
        answer
    }

    /// Removes what belongs to dead sessions. The requesting token is alive, so its own entries
    /// stay.
    fn bury_dead(&mut self, record: &mut Record, asking: Option<Token>) {
        let dead = self.store.sessions.dead(record.sessions(asking), self.now.at, self.pass);
        if dead.is_empty() {
            return;
        }
        let is_gone = |token: &Token| {
            Some(*token) != asking
                && record.session_of(token).is_some_and(|session| dead.contains(&session))
        };
        let gone: Vec<Token> = record.entry.tokens().copied().filter(is_gone).collect();
        record.entry.perform(&Bury(&gone), self.now, &mut self.notices);
    }

    /// Describes a lock after removing its dead holders and waiters.
    fn inspect_the_living(&mut self, key: &Key) -> Result<Option<LockInfo>> {
        let mut loaded = self.load(key)?;
        self.bury_dead(&mut loaded.record, None);
        let info = loaded.record.entry.inspect(key, self.now.at);
        self.save(key, loaded, Write::Change)?;
        Ok(info)
    }

    fn load(&self, key: &Key) -> Result<Loaded> {
        let name = key.as_str().as_bytes();
        let Some(value) = self.get(name)? else { return Ok(Loaded::default()) };
        let record = decode(self.store, name, value).map_err(|error| error.on_key(key))?;
        Ok(Loaded { record, before: Some(value.into()) })
    }

    /// Writes a record if it has changed. The two times in its head don't count, or every look at a
    /// busy lock would write.
    fn save(&mut self, key: &Key, loaded: Loaded, write: Write) -> Result<()> {
        let name = key.as_str().as_bytes();
        let Loaded { mut record, before } = loaded;
        if before.is_none() && record.is_blank() {
            return Ok(());
        }
        record.tidy();
        let is_new = before.is_none();
        if self.write(name, &record, before, write)? && is_new {
            self.sweep(STEPS)?;
        }
        Ok(())
    }

    /// Writes a record if its body has changed; returns whether it did.
    fn write(
        &mut self,
        name: &[u8],
        record: &Record,
        before: Option<Vec<u8>>,
        write: Write,
    ) -> Result<bool> {
        let encoded = record.encode(name, self.now.at, before.as_deref());
        let value = encoded.map_err(|error| damaged(self.store, "an entry").caused_by(error))?;
        if before.is_some_and(|before| record::body(&before) == record::body(&value)) {
            return Ok(false);
        }
        self.store.reserve(&self.txn, write, value.len())?;
        self.put(name, &value)?;
        Ok(true)
    }

    fn get(&self, name: &[u8]) -> Result<Option<&[u8]>> {
        self.store.records.get(&self.txn, name).map_err(|error| self.store.lmdb_error(error))
    }

    fn put(&mut self, name: &[u8], value: &[u8]) -> Result<()> {
        self.changed = true;
        self.store
            .records
            .put(&mut self.txn, name, value)
            .map_err(|error| self.store.lmdb_error(error))
    }

    /// The present for an unknown name, whose next fence is above all forgotten ones.
    fn floor_of_the_forgotten(&self) -> Result<Now> {
        let forgotten = self.forgotten()?;
        let fence_floor = self.now.fence_floor.max(forgotten.saturating_add(1));
        Ok(Now { fence_floor, ..self.now })
    }

    fn forgotten(&self) -> Result<Fence> {
        let Some(value) = self.get(FORGOTTEN)? else { return Ok(Fence::ZERO) };
        let bytes = <[u8; 8]>::try_from(value).map_err(|_| damaged(self.store, "a fence"))?;
        Fence::from_value(u64::from_le_bytes(bytes)).map_err(|_| damaged(self.store, "a fence"))
    }

    /// The clocks when the store was last used, and their time namespace. An unreadable note counts
    /// as missing.
    fn clocks(&self) -> Result<Option<(Clocks, &str)>> {
        Ok(self.get(CLOCKS)?.and_then(Clocks::decode))
    }

    fn note(&mut self, clocks: Clocks) -> Result<()> {
        self.put(CLOCKS, &clocks.encode(&self.store.time_namespace))
    }

    /// Moves the cursor a few names on and forgets those long unused.
    fn sweep(&mut self, steps: usize) -> Result<()> {
        self.forget(steps, |stored, now| stored.kept_until <= now).map(drop)
    }

    /// Moves the cursor `steps` names on, and forgets those that `may_be` allows; returns how many.
    /// Leaves unreadable entries alone.
    fn forget(
        &mut self,
        steps: usize,
        may_be: fn(&Stored<'_>, StoreTime) -> bool,
    ) -> Result<usize> {
        let failed = |error| self.store.lmdb_error(error);
        let mut cursor = self.get(SWEEP_CURSOR)?.unwrap_or(BEFORE_ALL).to_vec();
        let mut idle = Vec::new();
        let mut last_fence = Fence::ZERO;
        {
            let range = (Bound::Excluded(cursor.as_slice()), Bound::Unbounded);
            let mut names = self.store.records.range(&self.txn, &range).map_err(failed)?;
            let mut to = Vec::new();
            for _ in 0..steps {
                let Some(item) = names.next() else {
                    BEFORE_ALL.clone_into(&mut to);
                    break;
                };
                let (name, value) = item.map_err(failed)?;
                name.clone_into(&mut to);
                if name.first() == Some(&OWN)
                    || !Stored::open(name, value).is_ok_and(|stored| may_be(&stored, self.now.at))
                {
                    continue;
                }
                let Ok(record) = Record::decode(name, value) else { continue };
                if record.entry.may_be_forgotten(self.now) {
                    last_fence = last_fence.max(record.entry.last_fence().unwrap_or(Fence::ZERO));
                    idle.push(name.to_vec());
                }
            }
            cursor = to;
        }
        for name in &idle {
            self.changed = true;
            self.store.records.delete(&mut self.txn, name).map_err(failed)?;
        }
        if last_fence > self.forgotten()? {
            self.put(FORGOTTEN, &last_fence.value().to_le_bytes())?;
        }
        self.put(SWEEP_CURSOR, &cursor)?;
        Ok(idle.len())
    }
}

fn decode(store: &Environment, name: &[u8], value: &[u8]) -> Result<Record> {
    Record::decode(name, value).map_err(|why| unreadable(store, why))
}

fn stored<'a>(store: &Environment, name: &[u8], value: &'a [u8]) -> Result<Stored<'a>> {
    Stored::open(name, value).map_err(|why| unreadable(store, why))
}

fn unreadable(store: &Environment, why: Unreadable) -> Error {
    match why {
        Unreadable::Damaged => {
            store.corrupt("the record of this lock in data.mdb is damaged; other locks are fine")
        }
        Unreadable::Corrupt => damaged(store, "an entry"),
        Unreadable::Newer(version) => {
            super::other_format(u32::from(version)).at_store(store.location.to_string())
        }
    }
}

fn damaged(store: &Environment, what: &str) -> Error {
    store.corrupt(&format!("{what} in data.mdb is damaged"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::{Acquire, FenceBlock, LeaveRequest, Ttl};

    use super::super::EmbeddedStore;
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    fn request(name: &str) -> AcquireRequest {
        let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
        AcquireRequest::new(Key::new(name).unwrap(), Token::generate().unwrap(), ttl)
    }

    /// Acquires and releases, at a time that the test sets.
    fn use_name(store: &Environment, name: &str, now: Now) -> FenceBlock {
        let pass = store.enter(WITHIN).unwrap();
        let mut step = Step::begin(store, &pass, None).unwrap();
        step.now = now;
        let asked = request(name);
        let Acquire::Granted(grant) = step.perform(&asked.key, &asked).unwrap() else {
            panic!("{name} is not free")
        };
        let leaving = LeaveRequest::new(asked.key.clone(), asked.token);
        step.perform(&asked.key, &leaving).unwrap();
        step.end(grant.fences).unwrap().0
    }

    fn names(store: &Environment) -> usize {
        let pass = store.enter(WITHIN).unwrap();
        count(store, &pass).unwrap().0.0
    }

    #[test]
    fn idle_names_are_forgotten_after_ten_minutes_of_use_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(directory.path().join("locks")).unwrap();
        let store = &*store.environment;
        let start = store.now();
        for n in 0..500 {
            use_name(store, &format!("name-{n}"), start);
        }
        let at = start.at.saturating_add(crate::RETENTION);
        let soon = Now {
            at: leasehold_core::table::StoreTime::from_micros(at.as_micros() - 1),
            ..store.now()
        };
        for n in 0..500 {
            use_name(store, &format!("other-{n}"), soon);
        }
        assert_eq!(names(store), 1_000);
        let late = Now { at, ..store.now() };
        let mut uses = 0;
        while names(store) > 501 {
            use_name(store, "busy", late);
            uses += 1;
            assert!(uses < 50_000, "{} names are left", names(store));
        }
    }

    #[test]
    fn a_forgotten_name_gets_a_higher_fence_even_if_the_time_of_day_goes_back() {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(directory.path().join("locks")).unwrap();
        let store = &*store.environment;
        let start = store.now();
        let before = use_name(store, "k", start);
        let late = Now { at: start.at.saturating_add(crate::RETENTION), ..store.now() };
        while names(store) > 1 {
            use_name(store, "busy", late);
        }
        let back = Now { fence_floor: Fence::from_value(1).unwrap(), ..late };
        let after = use_name(store, "k", back);
        assert!(after.first() > before.last());
    }
}
