//! Opening a store: its directory, its header, the look at its data file, and the one environment
//! per store and process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, EnvFlags, EnvOpenOptions, WithoutTls};
use leasehold_core::{Error, ErrorKind, Result};

use super::directory::{Access, DATA, Directory, GATE, SESSIONS, WAKE, unusable};
use super::environment::{Environment, Parts, allocate, corrupt, enter, lmdb_error};
use super::gate::{Gate, lock};
use super::header::{Header, Unreadable};
use super::in_use::InUse;
use super::machine::Machine;
use super::pages::{self, Damage};
use super::session::Sessions;
use super::wake::Wakes;
use super::{newer, session, table, wake};

/// How long opening waits for whoever is inside.
const ENTER_WITHIN: Duration = Duration::from_secs(5);

/// How much of the data file has its place on the disk from the start.
const FIRST_BYTES: u64 = 1 << 20;

/// Every store that this process has open, by the identity of its directory: LMDB must not open a
/// file twice in one process.
static OPEN: LazyLock<Mutex<HashMap<Identity, Weak<Environment>>>> = LazyLock::new(Mutex::default);

/// A file's device and number.
type Identity = (u64, u64);

/// What [`super::EmbeddedStoreOptions`] says about a store as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) access: Access,
    pub(super) bytes_max: u64,
}

/// The store in this directory, opened once per process.
pub(super) fn environment(directory: Directory, wanted: Wanted) -> Result<Arc<Environment>> {
    let meta = directory.handle.metadata().map_err(|error| unusable("look at", error))?;
    let identity = (meta.dev(), meta.ino());
    let mut open = lock(&OPEN);
    if let Some(environment) = open.get(&identity).and_then(Weak::upgrade) {
        if environment.is_ours() {
            return Ok(environment);
        }
        return Err(Error::new(
            ErrorKind::Misuse,
            "this process is a fork, and the store was open before; drop what uses it first, or \
             open stores after forking",
        ));
    }
    let environment = Arc::new(open_new(directory, wanted)?);
    open.retain(|_, other| other.strong_count() > 0);
    open.insert(identity, Arc::downgrade(&environment));
    Ok(environment)
}

fn open_new(directory: Directory, wanted: Wanted) -> Result<Environment> {
    let access = wanted.access;
    let gate = directory
        .open_file(GATE, access)
        .map_err(|error| unusable("make or open the file gate in", error))?;
    let gate = Gate::new(gate);
    let pass = enter(&gate, ENTER_WITHIN)?;
    let handle = directory.handle.try_clone().map_err(|error| unusable("open", error))?;
    let (in_use, alone) = InUse::look(handle).map_err(|error| unusable("lock", error))?;
    let machine = Machine::this()?;
    let header = fit_header(&directory, wanted, &machine, alone)?;
    let data = prepare_data(&directory, &header)?;
    let (lmdb, records) = open_lmdb(&directory, &header)?;
    if !header.ready {
        Header { ready: true, ..header.clone() }
            .write(&directory.path)
            .map_err(|error| unusable("write the file store in", error))?;
    }
    let made = |error| unusable("make a directory in", error);
    let sessions = directory.make_inner(SESSIONS, header.access).map_err(made)?;
    let wakes = directory.make_inner(WAKE, header.access).map_err(made)?;
    if alone {
        session::sweep(&sessions, usize::MAX);
        wake::sweep(&wakes);
    }
    in_use.share().map_err(|error| unusable("lock", error))?;
    let wakes = Wakes::open(wakes, header.access).map_err(|error| unusable("use", error))?;
    drop(pass);
    let environment = Environment::new(Parts {
        location: super::location(&directory.path).into(),
        path: directory.path,
        access: header.access,
        sessions: Sessions::new(sessions),
        wakes,
        lmdb,
        records,
        gate,
        data,
        bytes_max: header.bytes_max,
        in_place: header.in_place,
        in_use,
    })?;
    if !alone || header.machine.time_namespace == machine.time_namespace {
        return Ok(environment);
    }
    adopt(environment, &header, machine)
}

/// The header to go by: the store's own if it has one that fits, else a new one in an emptied
/// directory.
fn fit_header(
    directory: &Directory,
    wanted: Wanted,
    machine: &Machine,
    alone: bool,
) -> Result<Header> {
    let header = match Header::read(&directory.path) {
        Ok(header) => header,
        Err(Unreadable::Absent) if !directory.file(DATA).exists() => {
            return begin(directory, wanted, machine);
        }
        Err(Unreadable::Absent) => {
            return Err(Error::new(
                ErrorKind::Foreign,
                "there is a file data.mdb in this directory and no file store: some other program \
                 may use it; name another directory",
            ));
        }
        Err(Unreadable::Newer(format)) => return Err(newer(format)),
        Err(Unreadable::Corrupt) => return Err(corrupt("the file store is damaged")),
        Err(Unreadable::Io(error)) => return Err(unusable("read the file store in", error)),
    };
    if header.is_of_another_boot(machine) {
        if !alone {
            return Err(Error::new(
                ErrorKind::Misuse,
                "this store is in use by processes of another machine; name a directory on a \
                 local disk",
            ));
        }
        tracing::info!(path = %directory.path.display(), "the machine was started again: all leases are void");
        let kept = Wanted { access: header.access, bytes_max: header.bytes_max };
        return begin(directory, kept, machine);
    }
    if !header.ready {
        // Whoever was making it died, since this process is inside the gate.
        let kept = Wanted { access: header.access, bytes_max: header.bytes_max };
        return begin(directory, kept, machine);
    }
    if header.machine.time_namespace != machine.time_namespace && !alone {
        return Err(other_namespace());
    }
    Ok(header)
}

fn other_namespace() -> Error {
    Error::new(
        ErrorKind::Misuse,
        "this store is in use in another time namespace (another container), where clocks show \
         other times; use one store per container, or a Redis server",
    )
}

/// Empties the directory of what a store had there, and writes the header of a new one.
fn begin(directory: &Directory, wanted: Wanted, machine: &Machine) -> Result<Header> {
    let failed = |error| unusable("empty", error);
    let remove = |path: &Path| match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    };
    let header =
        Header::new(machine.clone(), wanted.bytes_max, directory.has_room_ahead, wanted.access);
    header.write(&directory.path).map_err(|error| unusable("write the file store in", error))?;
    remove(&directory.file(DATA))?;
    for inner in [SESSIONS, WAKE] {
        let Ok(files) = fs::read_dir(directory.file(inner)) else { continue };
        for file in files.flatten() {
            remove(&file.path())?;
        }
    }
    Ok(header)
}

/// Makes the data file, or looks at every page of the one that is there.
fn prepare_data(directory: &Directory, header: &Header) -> Result<File> {
    let path = directory.file(DATA);
    if !header.ready {
        let data = directory
            .open_file(DATA, header.access)
            .map_err(|error| unusable("make the file data.mdb in", error))?;
        if header.in_place {
            allocate(&data, FIRST_BYTES).map_err(|error| unusable("make room in", error))?;
        }
        return Ok(data);
    }
    let data = match File::options().read(true).write(true).open(&path) {
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
    match pages::check(&data) {
        Ok(()) => Ok(data),
        Err(Damage::Corrupt(what)) => Err(corrupt(&format!("data.mdb is damaged ({what})"))),
        Err(Damage::Newer(version)) => Err(newer(u32::from(version))),
        Err(Damage::Io(error)) => Err(unusable("read the file data.mdb in", error)),
    }
}

type Lmdb = (heed::Env<WithoutTls>, Database<'static, Bytes, Bytes>);

fn open_lmdb(directory: &Directory, header: &Header) -> Result<Lmdb> {
    /// Another thread of this process may be just about to close the same file.
    const TRIES: usize = 1_000;

    let bytes_max = usize::try_from(header.bytes_max)
        .map_err(|_| Error::new(ErrorKind::Unsupported, "too large for this machine"))?;
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(bytes_max);
    let mut flags = EnvFlags::NO_LOCK | EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC;
    flags.set(EnvFlags::WRITE_MAP, header.in_place);
    // SAFETY: without LMDB's own locks the caller has to see to it that transactions exclude one
    // another, which the gate does for all processes; the file is on a local disk, was looked at,
    // and nobody else changes it. Without syncing a crash of the machine can damage the file, and
    // then it is emptied before it is opened: the boot is another one.
    unsafe { options.flags(flags) };
    let mut tries: usize = 0;
    let lmdb = loop {
        // SAFETY: as above.
        match unsafe { options.open(&directory.path) } {
            Ok(lmdb) => break lmdb,
            Err(heed::Error::EnvAlreadyOpened) if tries < TRIES => {
                tries = tries.saturating_add(1);
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(heed::Error::EnvAlreadyOpened) => {
                return Err(Error::new(
                    ErrorKind::Misuse,
                    "this process still uses a store that was at this path before and was \
                     removed; drop what uses it first",
                ));
            }
            Err(error) => return Err(lmdb_error(error)),
        }
    };
    close_on_exec(&directory.path.join(DATA)).map_err(|error| unusable("look at", error))?;
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

/// Keeps programs that this process starts from inheriting LMDB's open file: LMDB asks for that
/// with some of its files only.
#[cfg(target_os = "linux")]
fn close_on_exec(data: &Path) -> std::io::Result<()> {
    use rustix::io::{FdFlags, fcntl_setfd};
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::MetadataExt as _;

    let identity = |file: std::fs::Metadata| (file.dev(), file.ino());
    let data = identity(fs::metadata(data)?);
    for entry in fs::read_dir("/proc/self/fd")?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if fs::metadata(entry.path()).is_ok_and(|file| identity(file) == data) {
            // SAFETY: the number was just seen open on the data file, whose only descriptors in
            // this process are LMDB's, which lives on, and ours, which the caller holds.
            let file = unsafe { BorrowedFd::borrow_raw(number) };
            fcntl_setfd(file, FdFlags::CLOEXEC)?;
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn close_on_exec(_data: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Takes over a store that was made in another time namespace and that nobody uses. Sessions are
/// all over, but a detached lease may still run on the other clock.
fn adopt(environment: Environment, header: &Header, machine: Machine) -> Result<Environment> {
    let pass = environment.enter(ENTER_WITHIN)?;
    if table::has_detached(&environment, &pass)? {
        return Err(other_namespace());
    }
    table::clear(&environment, &pass)?;
    let header = Header { machine, ready: true, ..header.clone() };
    header.write(&environment.path).map_err(|error| unusable("write the file store in", error))?;
    drop(pass);
    Ok(environment)
}
