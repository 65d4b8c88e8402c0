//! An open store, which all its users in this process share: data file and gate.
//!
//! LMDB's own locks and syncing are off (`MDB_NOLOCK`, `MDB_NOSYNC`). So every transaction,
//! reading or writing, must run inside the [`Gate`]: its soundness rests on that. This is why
//! beginning one requires a [`Pass`]. If a process dies in the middle, no committed tree points to
//! its half-written pages.

use std::borrow::Borrow;
use std::fmt;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use heed::types::Bytes;
use heed::{Database, RoTxn, RwTxn, WithoutTls};
use leasehold_clock::wall::FenceFloor;
use leasehold_clock::{Process, SystemClock};
use leasehold_core::table::{Notice, Now, StoreTime};
use leasehold_core::{ClientId, Clock as _, Effect, Error, ErrorKind, Reason, Result};
use tokio::sync::oneshot;

use super::commits::Commits;
use super::directory::{Access, DATA, GATE, unusable};
use super::gate::{Gate, Opening, Pass};
use super::in_use::InUse;
use super::noted::Noted;
use super::pages;
use super::room::{NoRoom, Room, Taken, Write};
use super::session::Sessions;
use super::still_there::StillThere;
use super::wake::{Channel, Wakes};
use super::word::Inside;
use super::worker::Worker;

#[derive(Debug)]
pub(super) struct Environment {
    pub(super) location: Arc<str>,
    pub(super) path: PathBuf,
    pub(super) access: Access,
    pub(super) sessions: Sessions,
    pub(super) wakes: Arc<Wakes>,
    lmdb: Lmdb,
    pub(super) records: Database<'static, Bytes, Bytes>,
    pub(super) gate: Arc<Gate>,
    worker: Worker,
    room: Room,
    /// Records which transaction is being committed.
    commits: Commits,
    still_there: StillThere,
    /// The time namespace whose clock leases go by.
    pub(super) time_namespace: String,
    pub(super) noted: Noted,
    fence_floor: FenceFloor,
    /// The process that opened it; a fork must not use it.
    process: Process,
    /// A lock that shows other processes that the store is in use.
    _in_use: InUse,
}

/// What [`Environment::new`] puts together.
pub(super) struct Parts {
    pub(super) location: Arc<str>,
    pub(super) path: PathBuf,
    pub(super) access: Access,
    pub(super) sessions: Sessions,
    pub(super) wakes: Wakes,
    pub(super) lmdb: heed::Env<WithoutTls>,
    pub(super) records: Database<'static, Bytes, Bytes>,
    pub(super) gate: Arc<Gate>,
    pub(super) data: File,
    pub(super) bytes_max: u64,
    pub(super) in_place: bool,
    pub(super) time_namespace: String,
    pub(super) in_use: InUse,
}

impl Environment {
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let gate = parts.gate;
        let files = [(GATE, gate.file()), (DATA, &parts.data)];
        let still_there = StillThere::new(&parts.path, files, store_time());
        let commits = Commits::map(&parts.data, parts.in_place);
        Ok(Self {
            still_there: still_there.map_err(|error| unusable("look at", error))?,
            fence_floor: FenceFloor::new(store_time().as_micros()),
            time_namespace: parts.time_namespace,
            noted: Noted::default(),
            location: parts.location,
            path: parts.path,
            access: parts.access,
            sessions: parts.sessions,
            wakes: Arc::new(parts.wakes),
            lmdb: Lmdb::new(parts.lmdb),
            records: parts.records,
            worker: Worker::new(Arc::clone(&gate)),
            gate,
            commits: commits.map_err(|error| unusable("map the file data.mdb of", error))?,
            room: Room::new(parts.data, parts.in_place, parts.bytes_max),
            process: Process::current(),
            _in_use: parts.in_use,
        })
    }

    /// Whether this is the process that opened the store, not a fork of it.
    pub(super) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    pub(super) fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, message).at_store(Arc::clone(&self.location))
    }

    /// Carries out `step` inside the gate: here and now if it is free, otherwise on the worker's
    /// thread as soon as it is.
    ///
    /// Cancel safe: a request that has not entered is withdrawn; one that has is carried out.
    pub(super) async fn run<R, T>(
        self: &Arc<Self>,
        request: &R,
        within: Duration,
        step: impl Fn(&Self, &Pass<'_>, &R) -> Result<(T, Vec<Notice>)> + Copy + Send + 'static,
    ) -> Result<T>
    where
        R: ?Sized + Sync + ToOwned,
        R::Owned: Send + 'static,
        T: Send + 'static,
    {
        match self.run_here(|store, pass, _now| step(store, pass, request)) {
            Some(answer) => answer,
            None => {
                let request = request.to_owned();
                let step = move |store: &Self, pass: &Pass<'_>, _now: Now| {
                    step(store, pass, request.borrow())
                };
                self.run_queued(within, step).await
            }
        }
    }

    /// Carries out `step` inside the gate, here and now; `None` if another process is inside.
    pub(super) fn run_here<T>(
        &self,
        step: impl FnOnce(&Self, &Pass<'_>, Now) -> Result<(T, Vec<Notice>)>,
    ) -> Option<Result<T>> {
        if let Err(error) = self.check_ours() {
            return Some(Err(error));
        }
        match self.gate.enter_soon() {
            Ok(Some(pass)) => {
                let answer = self.carry_out(&pass, step);
                drop(pass);
                if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full) {
                    std::thread::sleep(FOR_OTHERS);
                }
                Some(answer.map(|(answer, notices)| {
                    self.wakes.deliver(notices);
                    answer
                }))
            }
            Ok(None) => None,
            Err(error) => Some(Err(self.no_gate(error))),
        }
    }

    /// Carries out `step` inside the gate on the worker's thread, as soon as the gate is free.
    pub(super) async fn run_queued<T: Send + 'static>(
        self: &Arc<Self>,
        within: Duration,
        step: impl FnOnce(&Self, &Pass<'_>, Now) -> Result<(T, Vec<Notice>)> + Send + 'static,
    ) -> Result<T> {
        self.check_usable()?;
        let until = SystemClock::new().now().saturating_add(within);
        let (reply, answer) = oneshot::channel();
        let this = Arc::clone(self);
        let job = move |pass: std::io::Result<&Pass<'_>>| {
            let answer = match pass {
                Ok(pass) => this.carry_out(pass, step),
                Err(error) => Err(this.no_gate(error)),
            };
            let answer = answer.map(|(answer, notices)| {
                this.wakes.deliver(notices);
                answer
            });
            // The caller may be gone; the step stays done.
            drop(reply.send(answer));
        };
        let _queued = self.worker.wait(until, Box::new(job)).map_err(|error| {
            self.error(ErrorKind::Unavailable, "can't start a thread to wait in")
                .with_reason(Reason::Threads)
                .caused_by(error)
        })?;
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.overdue(within)),
        }
    }

    /// Carries out a step. Its time is read inside, so after the request was sent and after all
    /// earlier steps of the store.
    ///
    /// If a step panics, its transaction is dropped and its caller gets [`Effect::Unknown`]. Other
    /// callers are not affected.
    fn carry_out<T>(
        &self,
        pass: &Pass<'_>,
        step: impl FnOnce(&Self, &Pass<'_>, Now) -> Result<(T, Vec<Notice>)>,
    ) -> Result<(T, Vec<Notice>)> {
        let now = self.now();
        self.check_there(now.at)?;
        self.undo_half_committed(pass)?;
        let answer = catch_unwind(AssertUnwindSafe(|| step(self, pass, now)));
        let answer = answer.unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            let message = format!(
                "a step in the store panicked ({}); please report this bug",
                said.unwrap_or("without a word")
            );
            Err(self.error(ErrorKind::Unavailable, message).with_effect(Effect::Unknown))
        })?;
        if pass.check().is_err() {
            let message = format!(
                "another program changed the file gate during a step, so the result is unknown. \
                 {MADE_ANEW}"
            );
            return Err(self.error(ErrorKind::Corrupt, message).with_effect(Effect::Unknown));
        }
        Ok(answer)
    }

    /// Fails if another process may be inside meanwhile.
    pub(super) fn check_inside(&self, pass: &Pass<'_>) -> Result<()> {
        pass.check().map_err(|error| self.no_gate(error).with_effect(Effect::NotApplied))
    }

    /// Closes what a fork's child inherited of its parent's store and can't use, so that it can
    /// open the store itself.
    pub(super) fn close_inherited(&self) {
        if !self.is_ours() {
            self.lmdb.close_inherited();
        }
    }

    /// Opens a client's notification channel.
    pub(super) fn listen(&self, client: ClientId) -> Result<Channel> {
        self.check_usable()?;
        self.wakes
            .listen(client)
            .map_err(|error| unusable("listen in", error).at_store(Arc::clone(&self.location)))
    }

    /// As [`run`](Self::run) for threads that may wait.
    #[cfg(test)]
    pub(super) fn enter(&self, within: Duration) -> Result<Pass<'_>> {
        self.check_usable()?;
        let pass = enter(&self.gate, within);
        let pass = pass.map_err(|error| error.at_store(Arc::clone(&self.location)))?;
        self.undo_half_committed(&pass)?;
        Ok(pass)
    }

    /// Undoes the transaction in whose commit its process died, if any: no caller got its answer.
    fn undo_half_committed(&self, pass: &Pass<'_>) -> Result<()> {
        if !self.commits.is_under_way() {
            return Ok(());
        }
        self.check_inside(pass)?;
        pages::undo_half_committed(self.room.data()).map_err(|error| {
            unusable("write the file data.mdb in", error).at_store(Arc::clone(&self.location))
        })
    }

    fn no_gate(&self, error: std::io::Error) -> Error {
        no_gate(error).at_store(Arc::clone(&self.location))
    }

    fn overdue(&self, within: Duration) -> Error {
        self.error(
            ErrorKind::Unavailable,
            format!("not let in within {within:?}{}", who_is_inside(&self.gate)),
        )
        .with_reason(Reason::NoAnswer)
    }

    fn check_usable(&self) -> Result<()> {
        self.check_ours()?;
        self.check_there(store_time())
    }

    fn check_ours(&self) -> Result<()> {
        if self.is_ours() {
            return Ok(());
        }
        Err(self.error(
            ErrorKind::Misuse,
            "opened before a fork, and this is the child; open stores after the fork",
        ))
    }

    fn check_there(&self, now: StoreTime) -> Result<()> {
        let Some(file) = self.still_there.missing(now) else { return Ok(()) };
        let what = if self.still_there.is_directory_there() {
            format!("the file {file} of this store was removed or replaced while in use")
        } else {
            "the store's directory was removed or replaced while in use, and its leases are void"
                .to_owned()
        };
        // Waiting does not help: the directory stays gone until all that use the store have ended.
        let message = format!("{what}; end all its processes and start again");
        Err(self.error(ErrorKind::Corrupt, message).with_reason(Reason::DirectoryGone))
    }

    /// The time of a step inside the gate.
    pub(super) fn now(&self) -> Now {
        let at = store_time();
        Now::new(at, self.fence_floor.at(at.as_micros()))
    }

    pub(super) fn read_txn(&self, _pass: &Pass<'_>) -> Result<RoTxn<'_, WithoutTls>> {
        self.lmdb.get().read_txn().map_err(|error| self.lmdb_error(error))
    }

    /// Begins a transaction, with room for what it writes.
    pub(super) fn write_txn(&self, _pass: &Pass<'_>) -> Result<RwTxn<'_>> {
        self.lmdb.get().write_txn().map_err(|error| self.lmdb_error(error))
    }

    /// Makes sure that a value of this size can be written.
    pub(super) fn reserve(&self, txn: &RwTxn<'_>, write: Write, value_bytes: usize) -> Result<()> {
        let file = self.file_pages();
        let value_bytes = value_bytes as u64;
        if self.room.is_reserved(bytes(file), write, value_bytes) {
            return Ok(());
        }
        let taken = self.taken(txn, file).map_err(|error| self.lmdb_error(error))?;
        self.room.reserve(taken, write, value_bytes).map_err(|error| match error {
            NoRoom::Limit => self.full(),
            NoRoom::Disk(error) => unusable("grow", error).at_store(Arc::clone(&self.location)),
        })
    }

    /// Whether changes have room on a full disk.
    pub(super) const fn has_room_ahead(&self) -> bool {
        self.room.is_ahead()
    }

    /// The number of pages of the data file that were ever used.
    fn file_pages(&self) -> usize {
        self.lmdb.get().info().last_page_number.saturating_add(1)
    }

    /// How many bytes of a data file of `pages` pages are taken.
    fn taken(&self, txn: &RwTxn<'_>, pages: usize) -> heed::Result<Taken> {
        /// The two meta pages, and the roots of both trees.
        const FIXED_PAGES: usize = 4;

        let stat = self.records.stat(txn)?;
        let records = stat.branch_pages.saturating_add(stat.leaf_pages);
        let records = records.saturating_add(stat.overflow_pages);
        // The list of free pages has a word for each page, and its own pages may be half full.
        let words = pages.saturating_sub(records).saturating_mul(2 * size_of::<usize>());
        let list = words.div_ceil(rustix::param::page_size());
        let live = records.saturating_add(list).saturating_add(FIXED_PAGES);
        Ok(Taken { file: bytes(pages), live: bytes(live) })
    }

    fn full(&self) -> Error {
        let mib = self.room.bytes_max() >> 20;
        self.error(
            ErrorKind::Full,
            format!(
                "full: it has at most {mib} MiB; use fewer names at a time, or re-create it with a \
                 higher bytes_max"
            ),
        )
        .with_reason(Reason::StoreFull)
    }

    pub(super) fn commit(&self, txn: RwTxn<'_>) -> Result<()> {
        let unsaid = |error, effect| {
            let error = unusable("write the file data.mdb in", error).with_effect(effect);
            error.at_store(Arc::clone(&self.location))
        };
        let begun = self.commits.begin(txn.id() as u64);
        begun.map_err(|error| unsaid(error, Effect::NotApplied))?;
        let committed = txn.commit();
        // Read from LMDB: a transaction that failed or wrote nothing does not become the last one.
        let ended = self.commits.end(self.lmdb.get().info().last_txn_id as u64);
        committed.map_err(|error| self.lmdb_error(error).with_effect(Effect::Unknown))?;
        ended.map_err(|error| unsaid(error, Effect::Unknown))
    }

    pub(super) fn lmdb_error(&self, error: heed::Error) -> Error {
        let error = match error {
            heed::Error::Mdb(heed::MdbError::MapFull) => return self.full(),
            error => error,
        };
        lmdb_error(error).at_store(Arc::clone(&self.location))
    }

    pub(super) fn corrupt(&self, what: &str) -> Error {
        corrupt(what).at_store(Arc::clone(&self.location))
    }
}

/// LMDB's environment. A fork's child may close its copy while stores are left that hold it.
struct Lmdb {
    environment: ManuallyDrop<heed::Env<WithoutTls>>,
    closed: AtomicBool,
}

impl Lmdb {
    const fn new(environment: heed::Env<WithoutTls>) -> Self {
        Self { environment: ManuallyDrop::new(environment), closed: AtomicBool::new(false) }
    }

    /// Only after [`Environment::check_ours`] has passed.
    fn get(&self) -> &heed::Env<WithoutTls> {
        &self.environment
    }

    /// Unmaps and closes this process's copy. Only in a fork's child, where no caller passes the
    /// check.
    fn close_inherited(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            // SAFETY: it is moved out of here once, as the flag ensures, and never used again.
            drop(unsafe { ptr::read(&*self.environment) });
        }
    }
}

impl Drop for Lmdb {
    fn drop(&mut self) {
        if !*self.closed.get_mut() {
            // SAFETY: dropped here and nowhere else, as the flag ensures.
            unsafe { ManuallyDrop::drop(&mut self.environment) };
        }
    }
}

impl fmt::Debug for Lmdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lmdb").field("closed", &self.closed).finish_non_exhaustive()
    }
}

/// The size of a number of pages in bytes.
fn bytes(pages: usize) -> u64 {
    (pages as u64).saturating_mul(rustix::param::page_size() as u64)
}

/// The present on the clock of leases.
pub(super) fn store_time() -> StoreTime {
    let since = SystemClock::new().now().since_origin();
    StoreTime::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// How long a caller waits outside after the store was full. The search for room takes long, and
/// waiting processes try the gate every two milliseconds. A caller that tried one new name after
/// another would never let them in.
const FOR_OTHERS: Duration = Duration::from_millis(5);

/// What to do about a damaged store.
const MADE_ANEW: &str = "End all processes that use this store, then remove its directory";

/// An error for a damaged store, with what to do.
pub(super) fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}; nothing was changed. {MADE_ANEW}"))
}

pub(super) fn lmdb_error(error: heed::Error) -> Error {
    use heed::MdbError as Mdb;

    match error {
        heed::Error::Io(error) => unusable("use", error),
        heed::Error::Mdb(Mdb::Other(code)) => {
            unusable("use", std::io::Error::from_raw_os_error(code))
        }
        heed::Error::Mdb(Mdb::MapFull | Mdb::TxnFull) => {
            Error::new(ErrorKind::Full, "the data file is full")
                .with_reason(Reason::StoreFull)
                .caused_by(error)
        }
        heed::Error::Mdb(
            Mdb::Corrupted
            | Mdb::PageNotFound
            | Mdb::Invalid
            | Mdb::VersionMismatch
            | Mdb::Incompatible
            | Mdb::Problem
            | Mdb::MapResized,
        ) => corrupt("data.mdb is damaged").caused_by(error),
        error => Error::new(ErrorKind::Unavailable, "the data file can't be used").caused_by(error),
    }
}

/// Enters a gate, waiting for the process inside.
pub(super) fn enter(gate: &Gate, within: Duration) -> Result<Pass<'_>> {
    come_in(gate, within, Gate::enter_soon)
}

/// Begins to open a store, waiting for the process that is opening it.
pub(super) fn begin_opening(gate: &Gate, within: Duration) -> Result<Opening<'_>> {
    come_in(gate, within, Gate::try_open)
}

fn come_in<'a, T>(
    gate: &'a Gate,
    within: Duration,
    come_in: impl Fn(&'a Gate) -> std::io::Result<Option<T>>,
) -> Result<T> {
    let clock = SystemClock::new();
    let until = clock.now().saturating_add(within);
    loop {
        match come_in(gate) {
            Ok(Some(inside)) => return Ok(inside),
            Ok(None) if clock.now() < until => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("not let in within {within:?}{}", who_is_inside(gate)),
                )
                .with_reason(Reason::NoAnswer));
            }
            Err(error) => return Err(no_gate(error)),
        }
    }
}

/// An error for a gate that can't be tried.
pub(super) fn no_gate(error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::InvalidData {
        return corrupt(&error.to_string());
    }
    unusable("lock", error)
}

/// Names the process inside the gate, for people.
fn who_is_inside(gate: &Gate) -> String {
    /// How often `/proc/locks` is read. The kernel returns it in pages and finds the next page by
    /// counting, so a lock that appears in between hides another one. One read in twenty missed it
    /// on a machine that only locked files.
    const LOOKS: usize = 16;
    let by_lock = || {
        gate.file().metadata().ok().and_then(|meta| {
            (0..LOOKS).find_map(|_| {
                let locks = std::fs::read_to_string("/proc/locks").ok()?;
                holder_of(&locks, meta.ino()).map(Inside::Process)
            })
        })
    };
    match gate.inside().or_else(by_lock) {
        Some(Inside::Process(process)) => format!(
            "; process {process} is inside and makes no progress: continue it (kill -CONT \
             {process}), or end it"
        ),
        Some(Inside::OfAnotherNamespace(process)) => format!(
            "; process {process} of another container is inside and makes no progress: continue \
             it, or end it"
        ),
        None => "; another process is inside and makes no progress".to_owned(),
    }
}

/// The process that holds the lock on the file with this number; see proc_locks(5).
fn holder_of(locks: &str, inode: u64) -> Option<u32> {
    let line = locks.lines().find(|line| {
        let mut words = line.split_whitespace();
        words.nth(1) == Some("FLOCK")
            && words.nth(3).and_then(|file| file.rsplit(':').next()?.parse().ok()) == Some(inode)
    })?;
    line.split_whitespace().nth(4)?.parse().ok().filter(|process| *process != 0)
}

#[cfg(test)]
mod tests {
    use super::super::EmbeddedStore;
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    /// A step that panics with a transaction under way.
    fn panics(store: &Environment, pass: &Pass<'_>, (): &()) -> Result<((), Vec<Notice>)> {
        let mut txn = store.write_txn(pass)?;
        store.records.put(&mut txn, b"half", b"done").map_err(|error| store.lmdb_error(error))?;
        panic!("on purpose")
    }

    #[tokio::test]
    async fn a_step_that_panics_is_an_error_and_the_next_one_is_carried_out() {
        let directory = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(directory.path().join("locks")).unwrap();
        let environment = Arc::clone(&store.environment);
        // On the calling thread, and on the worker's.
        let other = Gate::beside(&environment.path);
        for held in [false, true] {
            let inside = held.then(|| other.try_enter().unwrap().unwrap());
            let running = environment.run(&(), WITHIN, panics);
            let release = async {
                tokio::task::yield_now().await;
                drop(inside);
            };
            let (answer, ()) = tokio::join!(running, release);
            let error = answer.unwrap_err();
            assert_eq!(error.effect(), Effect::Unknown);
            assert!(error.to_string().contains("panicked (on purpose)"), "{error}");
            assert_eq!(store.entries(WITHIN).await.unwrap(), (0, 0));
        }
        // The worker's thread survives for the next request.
        let inside = other.try_enter().unwrap().unwrap();
        let counting = store.entries(WITHIN);
        let release = async {
            tokio::task::yield_now().await;
            drop(inside);
        };
        assert_eq!(tokio::join!(counting, release).0.unwrap(), (0, 0));
    }

    #[test]
    fn a_store_with_a_process_inside_is_not_opened_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks");
        drop(EmbeddedStore::open(&path).unwrap());
        let other = Gate::beside(&path);
        let inside = other.try_enter().unwrap();
        let open = || EmbeddedStore::options().at_once(true).open(&path);
        let refused = open().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        let named = format!("kill -CONT {}", std::process::id());
        assert!(refused.to_string().contains(&named), "{refused}");
        drop(inside);
        open().unwrap();
    }

    #[test]
    fn a_store_is_opened_at_once_while_threads_open_others() {
        let directory = tempfile::tempdir().unwrap();
        std::thread::scope(|threads| {
            for name in ["0", "1", "2", "3"] {
                let path = directory.path().join(name);
                threads.spawn(move || {
                    drop(EmbeddedStore::open(&path).unwrap());
                    for _ in 0..200 {
                        drop(EmbeddedStore::options().at_once(true).open(&path).unwrap());
                    }
                });
            }
        });
    }

    #[test]
    fn a_step_that_another_program_lets_others_into_is_neither_done_nor_reported_as_done() {
        let directory = tempfile::tempdir_in("/dev/shm")
            .unwrap_or_else(|_| tempfile::tempdir().expect("a test has a directory"));
        let path = directory.path().join("locks");
        drop(EmbeddedStore::open(&path).unwrap());
        let gate = path.join("gate");
        let free = std::fs::read(&gate).unwrap();
        if free.is_empty() {
            // Without the word, the kernel reports who is inside.
            return;
        }
        let write_over = || {
            let file = File::options().write(true).open(&gate).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &free, 0).unwrap();
        };
        for written in [false, true] {
            let store = EmbeddedStore::open(&path).unwrap();
            let ended = store.environment.run_here(|store, pass, _now| {
                let mut txn = store.write_txn(pass)?;
                let put = store.records.put(&mut txn, b"half", b"done");
                put.map_err(|error| store.lmdb_error(error))?;
                if !written {
                    write_over();
                    store.check_inside(pass)?;
                }
                store.commit(txn)?;
                write_over();
                Ok(((), Vec::new()))
            });
            let error = ended.unwrap().unwrap_err();
            let effect = if written { Effect::Unknown } else { Effect::NotApplied };
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, effect), "{error}");
            // This store no longer trusts the gate; others may.
            assert!(store.environment.run_here(|_, _, _| Ok(((), Vec::new()))).unwrap().is_err());
        }
    }

    #[test]
    fn the_process_inside_is_named_while_others_lock_files() {
        let directory = tempfile::tempdir().unwrap();
        let gate = Gate::new(File::create(directory.path().join("gate")).unwrap()).unwrap();
        let pass = gate.try_enter().unwrap();
        let named = format!("kill -CONT {}", std::process::id());
        // Enough for a list of several pages.
        let others: Vec<File> =
            (0..300).map(|n| File::create(directory.path().join(n.to_string())).unwrap()).collect();
        let done = AtomicBool::new(false);
        let missed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let file = &others[fastrand::usize(..others.len())];
                    if fastrand::bool() { file.lock() } else { file.unlock() }.unwrap();
                }
            });
            let missed = (0..600).filter(|_| !who_is_inside(&gate).contains(&named)).count();
            done.store(true, Ordering::Relaxed);
            missed
        });
        drop(pass);
        assert_eq!(missed, 0);
    }

    #[test]
    fn the_process_inside_is_found_in_the_list_of_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 fe:00:5 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 fe:00:6 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 fe:00:6 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 14 fe:00:5 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 fe:00:7 0 EOF\n";
        assert_eq!(holder_of(locks, 5), Some(14));
        assert_eq!(holder_of(locks, 6), Some(12));
        assert_eq!(holder_of(locks, 7), None);
        assert_eq!(holder_of(locks, 8), None);
    }
}
