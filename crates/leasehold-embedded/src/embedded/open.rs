//! Opens a store: directory, header, data file, and one environment per process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, TryLockError, Weak};
use std::time::Duration;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, EnvFlags, EnvOpenOptions, WithoutTls};
use leasehold_clock::{Process, SystemClock};
use leasehold_core::{Clock as _, Error, ErrorKind, Reason, Result};

use super::directory::{Access, DATA, Directory, GATE, SESSIONS, WAKE, unusable};
use super::environment::{Environment, Parts, begin_opening, corrupt, enter, lmdb_error, no_gate};
use super::filesystem;
use super::gate::{Gate, Pass};
use super::header::{BootClock, GateKind, Header, Unreadable};
use super::in_use::InUse;
use super::machine::Machine;
use super::pages::{self, Damage};
use super::room::{allocate, can_allocate, file_limit};
use super::session::Sessions;
use super::wake::Wakes;
use super::word::Word;
use super::{other_format, session, table, wake};

/// How long opening waits for the process inside.
const ENTER_WITHIN: Duration = Duration::from_secs(5);

/// How many pages are read of a store that must open at once.
const PAGES_AT_ONCE: usize = 64;
/// How many files of ended sessions are then checked.
const FILES_AT_ONCE: usize = 64;

/// The bits of a file number that identify the file: an overlay may use the upper half.
const NUMBER: u64 = 0xffff_ffff;

/// How much of the data file is allocated on the disk from the start.
const FIRST_BYTES: u64 = 1 << 20;

/// Every store that this process, and those that it was forked from, have open. LMDB must not open
/// a file twice in one process.
static OPEN: LazyLock<Mutex<Slots>> = LazyLock::new(Mutex::default);

/// Keyed by the process that opened the store, and the identity of its directory.
type Slots = HashMap<(Process, Identity), Arc<Slot>>;

/// An open store. Locked while the store is being opened, so that opening another one does not
/// wait.
type Slot = Mutex<Weak<Environment>>;

/// A file's device and number.
type Identity = (u64, u64);

/// The settings of [`super::EmbeddedStoreOptions`] that concern a store as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) access: Access,
    pub(super) bytes_max: u64,
    /// Whether the store is opened only if that needs no wait.
    pub(super) at_once: bool,
}

impl Wanted {
    /// How long to wait for other processes.
    const fn within(self) -> Duration {
        if self.at_once { Duration::ZERO } else { ENTER_WITHIN }
    }
}

/// The store in this directory, opened once per process.
pub(super) fn environment(directory: Directory, wanted: Wanted) -> Result<Arc<Environment>> {
    let meta = directory.handle.metadata().map_err(|error| unusable("look at", error))?;
    let slot = slot((meta.dev(), meta.ino()))?;
    let mut opened = lock_soon(&slot, wanted.within())?;
    if let Some(environment) = opened.upgrade() {
        return Ok(environment);
    }
    let environment = Arc::new(open_new(directory, wanted)?);
    *opened = Arc::downgrade(&environment);
    Ok(environment)
}

/// This process's slot for a store. A fork's child can't use the stores that it inherited, so it
/// closes them and starts with an empty map.
fn slot(identity: Identity) -> Result<Arc<Slot>> {
    let process = Process::current();
    // Also what opens at once waits for the map: a thread that is alive holds it for a few µs.
    let mut open = lock_soon(&OPEN, ENTER_WITHIN)?;
    let mut inherited = Vec::new();
    open.retain(|(by, _), slot| {
        // One that a thread is about to use: that one must find it unlocked. In a child the thread
        // does not exist.
        if *by == process && Arc::strong_count(slot) > 1 {
            return true;
        }
        let opened = match slot.try_lock() {
            Ok(opened) => opened,
            Err(TryLockError::Poisoned(opened)) => opened.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if *by == process {
            return opened.strong_count() > 0;
        }
        inherited.extend(opened.upgrade());
        false
    });
    let slot = Arc::clone(open.entry((process, identity)).or_default());
    drop(open);
    inherited.iter().for_each(|environment| environment.close_inherited());
    Ok(slot)
}

/// Locks what threads of this process share while one of them may be opening a store.
fn lock_soon<T>(mutex: &Mutex<T>, within: Duration) -> Result<MutexGuard<'_, T>> {
    let clock = SystemClock::new();
    let until = clock.now().saturating_add(within);
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if clock.now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "another thread of this process is opening it and makes no progress",
                )
                .with_reason(Reason::NoAnswer));
            }
        }
    }
}

fn open_new(mut directory: Directory, wanted: Wanted) -> Result<Environment> {
    let access = wanted.access;
    directory.check_ours()?;
    // Read after opening for writing: an overlay may then copy a file up and give it another
    // number.
    let found = [GATE, DATA].map(|name| number_of(&directory, name));
    let gate = directory
        .open_file(GATE, access)
        .and_then(Gate::new)
        .map(Arc::new)
        .map_err(|error| unusable("make or open the file gate in", error))?;
    let _opening = begin_opening(&gate, wanted.within())?;
    let handle = directory.handle.try_clone().map_err(|error| unusable("open", error))?;
    let (in_use, alone) = InUse::look(handle).map_err(|error| unusable("lock", error))?;
    let (machine, clock) = (Machine::this()?, BootClock::now());
    let meta = gate.file().metadata().map_err(|error| unusable("look at", error))?;
    // ext2 and ext3 share ext4's type number but can't preallocate.
    directory.has_room_ahead = directory.has_room_ahead
        && can_allocate(gate.file()).map_err(|error| unusable("make room in", error))?;
    let word = directory.has_room_ahead && Word::works(gate.file());
    let kind = GateKind { word, inode: meta.ino() };
    let mut header = fit_header(&directory, wanted, (&machine, clock), alone, kind, found)?;
    if header.gate.word {
        if alone || !header.ready {
            Word::make(gate.file()).map_err(|error| unusable("make the file gate in", error))?;
        }
        directory.open_existing(GATE).and_then(|again| gate.by_word(&again)).map_err(no_gate)?;
    }
    let pass = enter(&gate, wanted.within())?;
    let data = prepare_data(&directory, &header, wanted)?;
    let meet_in = data.metadata().map_err(|error| unusable("look at", error))?.ino();
    let is_outdated = header.ready && header.data != meet_in;
    if is_outdated && !alone {
        return Err(replaced(DATA));
    }
    let (lmdb, records) = open_lmdb(&directory, &header, wanted)?;
    if !header.ready || is_outdated {
        header = Header { ready: true, data: meet_in, ..header };
        header
            .write(&directory.path)
            .map_err(|error| unusable("write the file store in", error))?;
    } else if let Some(noted) = header.with_start(&machine, clock) {
        // If this fails, the next process tries again.
        drop(noted.write(&directory.path));
    }
    let made = |error| unusable("make a directory in", error);
    let sessions = directory.make_inner(SESSIONS, header.access).map_err(made)?;
    let wakes = directory.make_inner(WAKE, header.access).map_err(made)?;
    if alone {
        // The next processes remove the rest.
        session::sweep(&sessions, if wanted.at_once { FILES_AT_ONCE } else { usize::MAX });
        wake::sweep(&wakes);
    }
    in_use.share().map_err(|error| unusable("lock", error))?;
    directory.freshen();
    // From now on other processes see that the store is in use, and which files identify it. A
    // process that opened it before could see neither.
    for (name, inode) in [(GATE, kind.inode), (DATA, meet_in)] {
        if number_of(&directory, name) != inode {
            return Err(replaced(name));
        }
    }
    let wakes = Wakes::open(wakes, header.access).map_err(|error| unusable("use", error))?;
    let environment = Environment::new(Parts {
        location: super::location(&directory.path).into(),
        path: directory.path.clone(),
        access: header.access,
        sessions: Sessions::new(sessions),
        wakes,
        lmdb,
        records,
        gate: Arc::clone(&gate),
        data,
        bytes_max: header.bytes_max,
        in_place: header.in_place,
        time_namespace: machine.time_namespace.clone(),
        in_use,
    })?;
    if alone {
        take_over(&environment, &pass, &header, (machine, clock))?;
    }
    // If this fails, the next process tries again.
    drop(table::note(&environment, &pass));
    Ok(environment)
}

/// The header that applies: the store's own if it fits, otherwise a new one in an emptied
/// directory.
fn fit_header(
    directory: &Directory,
    wanted: Wanted,
    (machine, clock): (&Machine, BootClock),
    alone: bool,
    gate: GateKind,
    found: [u64; 2],
) -> Result<Header> {
    let mut header = match Header::read(&directory.path) {
        Ok(header) => header,
        Err(Unreadable::Absent) => {
            directory.check_ours()?;
            return begin(directory, wanted, machine, gate);
        }
        Err(Unreadable::Other(format)) => return Err(other_format(format)),
        Err(Unreadable::Corrupt) => return Err(corrupt("the file store is damaged")),
        Err(Unreadable::Io(error)) => return Err(unusable("read the file store in", error)),
    };
    if header.is_of_another_boot(machine, clock) {
        if !alone {
            return Err(Error::new(
                ErrorKind::Misuse,
                "this store is in use by another machine or a sandbox (another boot id); name \
                 another directory on a local disk",
            ));
        }
        if wanted.at_once {
            return Err(not_at_once("the machine was restarted"));
        }
        tracing::info!(path = %directory.path.display(), "the machine was restarted: all leases are void");
        // After a power failure the disk's content is undefined.
        if header.ready && prepare_data(directory, &header, wanted).is_ok() {
            let in_place = header.in_place && directory.has_room_ahead;
            let file_system = directory.file_system;
            return Ok(Header { in_place, file_system, gate, ..header });
        }
        let kept = Wanted { access: header.access, bytes_max: header.bytes_max, ..wanted };
        let header = begin(directory, kept, machine, gate)?;
        tracing::warn!(path = %directory.path.display(), "the data file can't be read after a restart of the machine: its cooldowns and periods are lost");
        return Ok(header);
    }
    if !header.ready {
        // This process is inside the gate, so the process that was creating the store has died.
        let kept = Wanted { access: header.access, bytes_max: header.bytes_max, ..wanted };
        return begin(directory, kept, machine, gate);
    }
    // A file keeps its number, or the lower half of it, in all views of an overlay. A copy has
    // another number.
    let is_same = |known: u64, found: u64| known & NUMBER == found & NUMBER;
    if header.file_system != directory.file_system
        && is_same(header.gate.inode, found[0])
        && is_same(header.data, found[1])
    {
        return Err(other_view(header.file_system));
    }
    if header.gate.inode != gate.inode && !alone {
        return Err(replaced(GATE));
    }
    if header.gate.word && !gate.word && !alone {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "other processes use this store with file locks that this system lacks; end them, and \
             start again",
        ));
    }
    // An unused store may have been copied to a file system that supports less.
    let kept = Header {
        in_place: header.in_place && directory.has_room_ahead,
        file_system: directory.file_system,
        gate: GateKind { word: header.gate.word && gate.word, ..gate },
        ..header.clone()
    };
    if alone && kept != header {
        kept.write(&directory.path).map_err(|error| unusable("write the file store in", error))?;
        header = kept;
    }
    if header.machine.time_namespace != machine.time_namespace {
        if !alone {
            return Err(other_namespace());
        }
        if wanted.at_once {
            return Err(not_at_once("it is to be taken over from another time namespace"));
        }
    }
    Ok(header)
}

fn replaced(file: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the file {file} of this store was removed or replaced while in use; end all its \
             processes and start again"
        ),
    )
    .with_reason(Reason::DirectoryGone)
}

/// The number of a file of the store, or 0 if it does not exist.
fn number_of(directory: &Directory, name: &str) -> u64 {
    fs::symlink_metadata(directory.file(name)).map_or(0, |meta| meta.ino())
}

fn other_view(file_system: u32) -> Error {
    Error::new(
        ErrorKind::Misuse,
        format!(
            "this store is in use through another mount ({}), which does not see its locks; use \
             one path, or end all its processes and remove its directory",
            filesystem::name_of(file_system)
        ),
    )
}

fn other_namespace() -> Error {
    Error::new(
        ErrorKind::Misuse,
        "this store is in use in another time namespace (container), with another clock; use one \
         store per container, or a Redis server",
    )
}

/// Writes the header of a new store, and removes the previous store's data. The sweep of dead
/// sessions removes the old session files.
fn begin(
    directory: &Directory,
    wanted: Wanted,
    machine: &Machine,
    gate: GateKind,
) -> Result<Header> {
    if wanted.at_once {
        return Err(not_at_once("it is to be made first"));
    }
    check_file_limit(FIRST_BYTES)?;
    if wanted.access == Access::Group {
        directory.open_to_group().map_err(|error| unusable("give the group rights on", error))?;
    }
    let header = Header::new(
        machine.clone(),
        wanted.bytes_max,
        directory.has_room_ahead,
        wanted.access,
        directory.file_system,
        gate,
    );
    header.write(&directory.path).map_err(|error| unusable("write the file store in", error))?;
    match fs::remove_file(directory.file(DATA)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(unusable("remove the file data.mdb of", error))
        }
        _ => Ok(header),
    }
}

/// Refuses a size at which the file size limit would kill this process.
fn check_file_limit(bytes: u64) -> Result<()> {
    if file_limit() >= bytes {
        return Ok(());
    }
    Err(unusable("make the file data.mdb in", std::io::ErrorKind::FileTooLarge.into()))
}

fn not_at_once(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("not opened at once: {why}"))
}

/// Creates the data file, or checks every page of an existing one.
fn prepare_data(directory: &Directory, header: &Header, wanted: Wanted) -> Result<File> {
    if !header.ready {
        let data = directory
            .open_file(DATA, header.access)
            .map_err(|error| unusable("make the file data.mdb in", error))?;
        if header.in_place {
            // LMDB gives a new file its full size at once.
            check_file_limit(header.bytes_max)?;
            allocate(&data, FIRST_BYTES).map_err(|error| unusable("make room in", error))?;
        }
        return Ok(data);
    }
    let data = match directory.open_existing(DATA) {
        Ok(data) => data,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(corrupt("the file data.mdb is missing"));
        }
        Err(error) => return Err(unusable("open the file data.mdb in", error)),
    };
    let length = data.metadata().map_err(|error| unusable("look at", error))?.len();
    if header.in_place && length != header.bytes_max {
        return Err(corrupt(&format!(
            "data.mdb has {length} bytes instead of {}",
            header.bytes_max
        )));
    }
    pages::undo_half_committed(&data)
        .map_err(|error| unusable("write the file data.mdb in", error))?;
    match pages::check(&data, header.bytes_max, wanted.at_once.then_some(PAGES_AT_ONCE)) {
        Ok(()) => Ok(data),
        Err(Damage::Unread) => Err(not_at_once("all of its pages are to be read first")),
        Err(Damage::Corrupt(what)) => Err(corrupt(&format!("data.mdb is damaged ({what})"))),
        Err(Damage::Io(error)) => Err(unusable("read the file data.mdb in", error)),
    }
}

type Lmdb = (heed::Env<WithoutTls>, Database<'static, Bytes, Bytes>);

fn open_lmdb(directory: &Directory, header: &Header, wanted: Wanted) -> Result<Lmdb> {
    /// Another thread of this process may be about to close the same file.
    const TRIES: usize = 1_000;

    let bytes_max = usize::try_from(header.bytes_max)
        .map_err(|_| Error::new(ErrorKind::Unsupported, "too large for this machine"))?;
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(bytes_max);
    let mut flags = EnvFlags::NO_LOCK | EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC;
    flags.set(EnvFlags::WRITE_MAP, header.in_place);
    // SAFETY: without LMDB's own locks the caller has to keep transactions apart, and the gate does
    // so for all processes. The file is on a local disk, was checked, and is changed by this
    // library only. Without syncing, a crash of the machine can damage the file. The boot then
    // differs, so the file is emptied before it is opened.
    unsafe { options.flags(flags) };
    let mut tries: usize = 0;
    let lmdb = loop {
        // SAFETY: as above.
        match unsafe { options.open(&directory.path) } {
            Ok(lmdb) => break lmdb,
            Err(heed::Error::EnvAlreadyOpened) if tries < TRIES && !wanted.at_once => {
                tries = tries.saturating_add(1);
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(heed::Error::EnvAlreadyOpened) => {
                return Err(Error::new(
                    ErrorKind::Misuse,
                    "this process still uses a removed store of this path; drop its clients first",
                ));
            }
            Err(error) => return Err(lmdb_error(error)),
        }
    };
    close_on_exec(&lmdb).map_err(|error| unusable("look at", error))?;
    let txn = lmdb.write_txn().map_err(lmdb_error)?;
    let made = lmdb.create_databases_and_commit(txn, |create, txn| {
        create.create_database::<Bytes, Bytes>(txn, None).map(CommitOrAbort::<_, ()>::Commit)
    });
    let records = match made.map_err(lmdb_error)? {
        CommitOrAbort::Commit(records) => records,
        CommitOrAbort::Abort(()) => return Err(corrupt("data.mdb has no place for records")),
    };
    Ok((lmdb, records))
}

/// Keeps programs that this process starts from inheriting LMDB's open data file, for which LMDB
/// does not set the flag itself.
#[cfg(target_os = "linux")]
fn close_on_exec(lmdb: &heed::Env<WithoutTls>) -> std::io::Result<()> {
    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
    use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};

    let copy = lmdb.try_clone_inner_file().map_err(std::io::Error::other)?;
    let data = rustix::fs::fstat(&copy)?;
    // Whether the descriptor was LMDB's and lacked the flag.
    let close = |number: RawFd| {
        // SAFETY: the number is used for three calls, which touch no memory. Descriptors of the
        // data file belong to LMDB, which lives on, and to this function. If another one is closed
        // meanwhile, the calls fail.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let is_data = rustix::fs::fstat(file)
            .is_ok_and(|file| (file.st_dev, file.st_ino) == (data.st_dev, data.st_ino));
        match fcntl_getfd(file) {
            Ok(flags) if is_data && !flags.contains(FdFlags::CLOEXEC) => {
                fcntl_setfd(file, flags | FdFlags::CLOEXEC).map(|()| true)
            }
            _ => Ok(false),
        }
    };
    // Each file gets the lowest free number, so LMDB's is below its copy's, unless another thread
    // closed one in between.
    let mut is_found = false;
    for number in 3..copy.as_raw_fd() {
        is_found |= close(number)?;
    }
    if is_found {
        return Ok(());
    }
    for entry in fs::read_dir("/proc/self/fd")?.flatten() {
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            close(number)?;
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn close_on_exec(_lmdb: &heed::Env<WithoutTls>) -> std::io::Result<()> {
    Ok(())
}

/// Takes over an unused store whose times go by another clock: the machine was started again, or
/// the time namespace differs. All its sessions have ended. A cooldown or period goes on by the
/// time of day.
fn take_over(
    environment: &Environment,
    pass: &Pass<'_>,
    header: &Header,
    (machine, clock): (Machine, BootClock),
) -> Result<()> {
    let restarted = header.is_of_another_boot(&machine, clock);
    let moved = header.machine.time_namespace != machine.time_namespace;
    if moved && !restarted && table::has_detached(environment, pass)? {
        return Err(Error::new(
            ErrorKind::Misuse,
            "leases were detached here in another time namespace (container), with another clock; \
             release them there, or remove the directory",
        ));
    }
    // The process that carried the store over may have died before it wrote the header.
    if restarted || moved || table::is_by_another_clock(environment, pass)? {
        table::carry_over(environment, pass)?;
    }
    if restarted || moved {
        let BootClock { clock_s, booted_at_s } = clock;
        let header = Header { machine, made_at_s: clock_s, booted_at_s, ..header.clone() };
        header
            .write(&environment.path)
            .map_err(|error| unusable("write the file store in", error))?;
    }
    Ok(())
}
