//! An open store, shared by all that use it in this process: the data file, the gate before it,
//! and the way in.
//!
//! LMDB runs without its own locks (`MDB_NOLOCK`) and without syncing. Every transaction, reading
//! or writing, is run inside the [`Gate`]; that is the invariant on which its soundness rests, and
//! it is why a [`Pass`] has to be shown to begin one. A process that dies in the middle leaves
//! behind half-written pages that no committed tree points to.

use std::borrow::Borrow;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use heed::types::Bytes;
use heed::{Database, RoTxn, RwTxn, WithoutTls};
use leasehold_clock::{Process, SystemClock, fence_floor};
use leasehold_core::table::{Notice, Now, StoreTime};
use leasehold_core::{ClientId, Clock as _, Effect, Error, ErrorKind, Result};
use tokio::sync::oneshot;

use super::directory::{Access, unusable};
use super::gate::{Gate, Pass};
use super::in_use::InUse;
use super::session::Sessions;
use super::wake::{Channel, Wakes};
use super::worker::Worker;

/// How often a store is looked for at its path: a process must not go on for long in a directory
/// that was removed, while others meet in a new one.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How much is to be free beyond the used pages when something is added, and when something that
/// is there is changed. The first is larger, so that on a full disk leases can still be renewed
/// and released.
const ROOM_TO_ADD: u64 = 1 << 20;
const ROOM_TO_CHANGE: u64 = 1 << 18;
/// In what steps room is reserved.
const ROOM_STEP: u64 = 1 << 21;

/// What an operation is going to write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Write {
    Add,
    Change,
}

#[derive(Debug)]
pub(super) struct Environment {
    pub(super) location: Arc<str>,
    pub(super) path: PathBuf,
    pub(super) access: Access,
    pub(super) sessions: Sessions,
    pub(super) wakes: Arc<Wakes>,
    pub(super) lmdb: heed::Env<WithoutTls>,
    pub(super) records: Database<'static, Bytes, Bytes>,
    pub(super) gate: Arc<Gate>,
    worker: Worker,
    room: Room,
    still_there: StillThere,
    /// The process that opened it; a fork must not use it.
    process: Process,
    /// Shows to others, by its lock, that the store is in use.
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
    pub(super) gate: Gate,
    pub(super) data: File,
    pub(super) bytes_max: u64,
    pub(super) in_place: bool,
    pub(super) in_use: InUse,
}

impl Environment {
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let gate = Arc::new(parts.gate);
        let gate_meta = gate.file().metadata().map_err(|error| unusable("look at", error))?;
        Ok(Self {
            still_there: StillThere::new(parts.path.join(super::directory::GATE), &gate_meta),
            location: parts.location,
            path: parts.path,
            access: parts.access,
            sessions: parts.sessions,
            wakes: Arc::new(parts.wakes),
            lmdb: parts.lmdb,
            records: parts.records,
            worker: Worker::new(Arc::clone(&gate)),
            gate,
            room: Room {
                data: parts.data,
                in_place: parts.in_place,
                bytes_max: parts.bytes_max,
                reserved: AtomicU64::new(0),
            },
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

    /// Carries out `step` inside the gate: here and now if the way is free, else on the worker's
    /// thread as soon as it is.
    ///
    /// Cancel safe: a request that has not got in is taken back; one that has is carried out.
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
        self.check_usable()?;
        match self.gate.enter_soon() {
            Ok(Some(pass)) => {
                let answer = step(self, &pass, request);
                drop(pass);
                return answer.map(|(answer, notices)| {
                    self.wakes.deliver(notices);
                    answer
                });
            }
            Ok(None) => {}
            Err(error) => return Err(self.no_gate(error)),
        }
        let until = SystemClock::new().now().saturating_add(within);
        let (reply, answer) = oneshot::channel();
        let (this, request) = (Arc::clone(self), request.to_owned());
        let job = move |pass: std::io::Result<&Pass<'_>>| {
            let answer = match pass {
                Ok(pass) => step(&this, pass, request.borrow()),
                Err(error) => Err(this.no_gate(error)),
            };
            let answer = answer.map(|(answer, notices)| {
                this.wakes.deliver(notices);
                answer
            });
            // Whoever asked may have gone; what was done stays done.
            drop(reply.send(answer));
        };
        let _in_line = self.worker.wait(until, Box::new(job)).map_err(|error| {
            self.error(ErrorKind::Unavailable, "can't start a thread to wait in").caused_by(error)
        })?;
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.overdue(within)),
        }
    }

    /// Opens a client's wake channel.
    pub(super) fn listen(&self, client: ClientId) -> Result<Channel> {
        self.check_usable()?;
        self.wakes
            .listen(client)
            .map_err(|error| unusable("listen in", error).at_store(Arc::clone(&self.location)))
    }

    /// As [`run`](Self::run) for threads that may wait: those that open a store.
    pub(super) fn enter(&self, within: Duration) -> Result<Pass<'_>> {
        self.check_usable()?;
        enter(&self.gate, within).map_err(|error| error.at_store(Arc::clone(&self.location)))
    }

    fn no_gate(&self, error: std::io::Error) -> Error {
        unusable("lock", error).at_store(Arc::clone(&self.location))
    }

    fn overdue(&self, within: Duration) -> Error {
        self.error(
            ErrorKind::Unavailable,
            format!("not let in within {within:?}{}", who_is_inside(&self.gate)),
        )
    }

    fn check_usable(&self) -> Result<()> {
        if !self.is_ours() {
            return Err(self.error(
                ErrorKind::Misuse,
                "opened before a fork, and this is the child; open stores after forking",
            ));
        }
        if !self.still_there.look() {
            return Err(self.error(
                ErrorKind::Unavailable,
                "the store's directory was removed or replaced while in use, and its leases are \
                 void; end what uses it and start again",
            ));
        }
        Ok(())
    }

    /// The time by which a step inside the gate goes.
    pub(super) fn now(&self) -> Now {
        Now { at: store_time(), fence_floor: fence_floor() }
    }

    pub(super) fn read_txn(&self, _pass: &Pass<'_>) -> Result<RoTxn<'_, WithoutTls>> {
        self.lmdb.read_txn().map_err(|error| self.lmdb_error(error))
    }

    /// Begins a transaction, with room for what it writes.
    pub(super) fn write_txn(&self, _pass: &Pass<'_>) -> Result<RwTxn<'_>> {
        self.lmdb.write_txn().map_err(|error| self.lmdb_error(error))
    }

    /// Makes sure that a value of so many bytes can be written.
    pub(super) fn reserve(&self, write: Write, value_bytes: usize) -> Result<()> {
        let used = used_bytes(&self.lmdb);
        self.room.reserve(used, write, value_bytes as u64).map_err(|error| match error {
            NoRoom::Limit => self.full(),
            NoRoom::Disk(error) => unusable("grow", error).at_store(Arc::clone(&self.location)),
        })
    }

    fn full(&self) -> Error {
        let mib = self.room.bytes_max >> 20;
        self.error(
            ErrorKind::Full,
            format!(
                "full: it was made for at most {mib} MiB; use fewer names at a time, or end what \
                 uses it, remove the directory and make it again with a higher bytes_max"
            ),
        )
    }

    pub(super) fn commit(&self, txn: RwTxn<'_>) -> Result<()> {
        txn.commit().map_err(|error| self.lmdb_error(error).with_effect(Effect::Unknown))
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

/// The present on the clock of leases.
pub(super) fn store_time() -> StoreTime {
    let since = SystemClock::new().now().since_origin();
    StoreTime::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// What is damaged, and how to go on.
pub(super) fn corrupt(what: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{what}; nothing was changed. End all processes that use this store, then remove its \
             directory: it will be made anew, without any leases"
        ),
    )
}

pub(super) fn lmdb_error(error: heed::Error) -> Error {
    use heed::MdbError as Mdb;

    match error {
        heed::Error::Io(error) => unusable("use", error),
        heed::Error::Mdb(Mdb::Other(code)) => {
            unusable("use", std::io::Error::from_raw_os_error(code))
        }
        heed::Error::Mdb(Mdb::MapFull | Mdb::TxnFull) => {
            Error::new(ErrorKind::Full, "the data file is full").caused_by(error)
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

/// How much of the data file is in use.
fn used_bytes(lmdb: &heed::Env<WithoutTls>) -> u64 {
    let pages = lmdb.info().last_page_number.saturating_add(1);
    (pages as u64).saturating_mul(rustix::param::page_size() as u64)
}

/// Room on the disk. A page that is written through the memory map must have its place on the
/// disk before, since a full disk would otherwise kill the process (SIGBUS).
#[derive(Debug)]
struct Room {
    data: File,
    in_place: bool,
    bytes_max: u64,
    /// How many bytes of the file have their place.
    reserved: AtomicU64,
}

enum NoRoom {
    Limit,
    Disk(std::io::Error),
}

impl Room {
    fn reserve(&self, used: u64, write: Write, value_bytes: u64) -> Result<(), NoRoom> {
        let ahead = match write {
            Write::Add => ROOM_TO_ADD,
            Write::Change => ROOM_TO_CHANGE,
        };
        let wanted = used.saturating_add(ahead).saturating_add(value_bytes.saturating_mul(2));
        if wanted > self.bytes_max && write == Write::Add {
            return Err(NoRoom::Limit);
        }
        let wanted = wanted.min(self.bytes_max);
        if !self.in_place || wanted <= self.reserved.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ample = wanted.saturating_add(ROOM_STEP).min(self.bytes_max);
        let reserved = match allocate(&self.data, ample) {
            Ok(()) => ample,
            Err(_) => {
                allocate(&self.data, wanted).map_err(NoRoom::Disk)?;
                wanted
            }
        };
        self.reserved.store(reserved, Ordering::Relaxed);
        Ok(())
    }
}

/// Gives the first `bytes` of a file their place on the disk. What has one keeps it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn allocate(file: &File, bytes: u64) -> std::io::Result<()> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bytes)
        .map_err(std::io::Error::from)
}

/// Elsewhere data files are not written in place.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn allocate(_file: &File, _bytes: u64) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Enters a gate, waiting for whoever is inside.
pub(super) fn enter(gate: &Gate, within: Duration) -> Result<Pass<'_>> {
    let clock = SystemClock::new();
    let until = clock.now().saturating_add(within);
    loop {
        match gate.enter_soon() {
            Ok(Some(pass)) => return Ok(pass),
            Ok(None) if clock.now() < until => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("not let in within {within:?}{}", who_is_inside(gate)),
                ));
            }
            Err(error) => return Err(unusable("lock", error)),
        }
    }
}

/// Names the process inside the gate, for people.
fn who_is_inside(gate: &Gate) -> String {
    let inside = gate.file().metadata().ok().and_then(|meta| {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        holder_of(&locks, meta.ino())
    });
    match inside {
        Some(process) => format!(
            "; process {process} is inside and does not go on: if it is stopped, continue it \
             (kill -CONT {process}) or end it"
        ),
        None => "; another process is inside and does not go on".to_owned(),
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

/// Whether the store is still at its path.
#[derive(Debug)]
struct StillThere {
    gate: PathBuf,
    identity: (u64, u64),
    looked_at_us: AtomicU64,
    gone: AtomicBool,
}

impl StillThere {
    fn new(gate: PathBuf, meta: &std::fs::Metadata) -> Self {
        Self {
            gate,
            identity: (meta.dev(), meta.ino()),
            looked_at_us: AtomicU64::new(store_time().as_micros()),
            gone: AtomicBool::new(false),
        }
    }

    /// Looks if the last look is long ago. Once gone is gone for good.
    fn look(&self) -> bool {
        let now = store_time();
        let looked = StoreTime::from_micros(self.looked_at_us.load(Ordering::Relaxed));
        if now >= looked.saturating_add(LOOK_EVERY) {
            self.looked_at_us.store(now.as_micros(), Ordering::Relaxed);
            let found = std::fs::metadata(&self.gate).map(|meta| (meta.dev(), meta.ino()));
            let gone = match found {
                Ok(found) => found != self.identity,
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            };
            if gone {
                self.gone.store(true, Ordering::Relaxed);
            }
        }
        !self.gone.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
