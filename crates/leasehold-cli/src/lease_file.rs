//! Reads and writes leases that outlive their process: in a file, a variable, or stdin.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use leasehold::DetachedLease;
use leasehold::interop::Layout;
use leasehold::store::escape;

use crate::cli::LeaseSource;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::replaced;
use crate::settings::given;

pub(crate) const LEASE_VARIABLE: &str = "LEASEHOLD_LEASE";
/// A lease is one line of some 200 bytes, and a command may take as many names as a command line
/// has.
const LEASES_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// For its user alone.
const MODE: u32 = 0o600;

/// What a lease of another library's lock begins with, before the library's name.
const LAYOUT: &str = "interop=";
/// What its own text begins with.
const TEXT: &str = " leasehold-lease-";

/// What begins a line of a file that is no lease, but says in which store they were taken.
const TAKEN_AT: &str = "# taken at ";

/// Leases as a file has them, with the store that they were taken in.
pub(crate) fn file_text(leases: &[DetachedLease], layout: Option<&Layout>, place: &str) -> String {
    lines(leases, layout) + TAKEN_AT + &escape::terminal(place).to_string() + "\n"
}

/// Leases as they are written, each on a line.
pub(crate) fn lines(leases: &[DetachedLease], layout: Option<&Layout>) -> String {
    leases.iter().map(|lease| text(lease, layout) + "\n").collect()
}

/// A lease on one line. Secret.
pub(crate) fn text(lease: &DetachedLease, layout: Option<&Layout>) -> String {
    let text = lease.to_secret_text();
    layout.map_or_else(|| text.clone(), |layout| format!("{LAYOUT}{layout} {text}"))
}

/// Reads a lease that was taken in this layout.
fn of_line(line: &str, layout: Option<&Layout>) -> Outcome<DetachedLease> {
    let theirs = line.strip_prefix(LAYOUT).and_then(|rest| Some((rest, rest.find(TEXT)?)));
    let (named, text) = match theirs.and_then(|(rest, at)| rest.split_at_checked(at)) {
        Some((named, text)) => (Some(named.to_owned()), text.trim_start()),
        None => (None, line),
    };
    match (named, layout.map(ToString::to_string)) {
        (named, given) if named == given => lease(text),
        (Some(named), _) => Err(Failure::usage(format!(
            "the lease is of a lock of another library; give --interop {}",
            escape::terminal(&named)
        ))),
        // What is no lease at all is of no lock.
        (None, _) => lease(text).and_then(|_| {
            Err(Failure::usage("the lease is of a lock of leasehold's own; leave --interop out"))
        }),
    }
}

fn lease(text: &str) -> Outcome<DetachedLease> {
    text.parse().map_err(|error| Failure::of_argument(&error))
}

/// Leases that were taken together.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) leases: Vec<DetachedLease>,
    /// When their file was written, which is right after they were taken or renewed.
    written: Option<SystemTime>,
    /// The store that they were taken in, if the file has it.
    place: Option<String>,
}

impl Taken {
    /// The store that they were taken in; this one, if the file has none.
    pub(crate) fn place_or(&self, place: &str) -> String {
        self.place.clone().unwrap_or_else(|| place.to_owned())
    }

    /// For how long a lease has been over, by the time of day: for people.
    pub(crate) fn over_for(&self, lease: &DetachedLease) -> Option<Duration> {
        let age = self.written?.elapsed().ok()?;
        age.checked_sub(lease.ttl().duration()).filter(|over_for| !over_for.is_zero())
    }

    /// The store that they were taken in, if the file has it and it is another one.
    pub(crate) fn place_but(&self, place: &str) -> Option<&str> {
        self.place.as_deref().filter(|taken_at| *taken_at != escape::terminal(place).to_string())
    }

    /// The message if this store does not know a lease, and another may.
    pub(crate) fn elsewhere(&self, place: &str) -> Option<String> {
        self.place_but(place).map(|taken_at| {
            format!(
                "it is not held here, but was taken at {taken_at}; name that store with --store. \
                 If it is this one, the lease is lost"
            )
        })
    }
}

/// The leases that were taken together, each on a line.
pub(crate) fn read(source: &LeaseSource, layout: Option<&Layout>) -> Outcome<Taken> {
    let mut written = None;
    let text = if let Some(path) = &source.lease_file {
        let refuse = |error| Failure::usage(format!("can't read {}: {error}", path.display()));
        let file = File::open(path).map_err(refuse)?;
        written = file.metadata().and_then(|file| file.modified()).ok();
        read_limited(file).map_err(refuse)?
    } else if let Some(text) = given(LEASE_VARIABLE)? {
        text.into_string().map_err(|_| {
            Failure::usage(format!(
                "{LEASE_VARIABLE} is not a lease; \
                                                               give what `acquire` printed"
            ))
        })?
    } else {
        read_limited(io::stdin().lock())
            .map_err(|error| Failure::usage(format!("can't read standard input: {error}")))?
    };
    let is_empty = text.trim().is_empty();
    let nothing = || match &source.lease_file {
        Some(path) if is_empty => {
            Failure::usage(format!("{} is empty; name the file of a lease", path.display()))
        }
        Some(path) => Failure::usage(format!(
            "{} has no lease in it; name the file of a lease",
            path.display()
        )),
        None => Failure::usage(format!(
            "no lease was given; name its file with --lease-file, or give it in {LEASE_VARIABLE} or on \
             standard input"
        )),
    };
    if is_empty {
        return Err(nothing());
    }
    let (leases, place) = parse(&text, layout)?;
    if leases.is_empty() {
        return Err(nothing());
    }
    Ok(Taken { leases, written, place })
}

/// The leases of a text, and the store that they were taken in where it says so.
fn parse(text: &str, layout: Option<&Layout>) -> Outcome<(Vec<DetachedLease>, Option<String>)> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let (mut leases, mut place) = (Vec::new(), None);
    for line in text.split('\n') {
        match line.strip_prefix(TAKEN_AT) {
            Some(told) => place = Some(told.to_owned()),
            None => leases.push(of_line(line, layout)?),
        }
    }
    Ok((leases, place))
}

fn read_limited(source: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    source.take(LEASES_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Of leases that were taken in a store which is not there, or in another one.
pub(crate) fn has_no_store(operation: &str, place: &str) -> Failure {
    Failure::new(
        Exit::Lost,
        format!(
            "{operation} at {place}: no store is there; a lease that was taken there is lost. For \
             a lease of another store, name that store"
        ),
    )
}

/// A file for new leases. It may have earlier leases. Leases of a dead process are replaced, and
/// leases that may be held are never overwritten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseFile<'a> {
    pub(crate) path: &'a Path,
    layout: Option<&'a Layout>,
}

impl<'a> LeaseFile<'a> {
    /// Looks whether it can be written. To be called before a lock is taken, so that none is held
    /// in vain.
    pub(crate) fn at(path: &'a Path, layout: Option<&'a Layout>) -> Outcome<Self> {
        let shown = path.display();
        if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(Failure::usage(format!(
                "{shown} is not a regular file; name another file"
            )));
        }
        replaced::try_beside(path).map_err(|error| {
            Failure::new(Exit::Output, format!("can't create {shown}: {error}"))
        })?;
        Ok(Self { path, layout })
    }

    /// The leases that it has of before.
    pub(crate) fn old(&self) -> Outcome<Option<Taken>> {
        match File::open(self.path) {
            Ok(file) => self.read(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(Failure::usage(format!("can't read {}: {error}", self.path.display())))
            }
        }
    }

    fn read(&self, file: File) -> Outcome<Option<Taken>> {
        let shown = self.path.display();
        let text = read_limited(file)
            .map_err(|error| Failure::usage(format!("can't read {shown}: {error}")))?;
        // Made by hand, or by a version that made it before it had a lease.
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = parse(&text, self.layout).map_err(|Failure { message, .. }| {
            Failure::usage(format!(
                "{shown} has no readable lease ({message}); remove it, or name another file"
            ))
        });
        let (leases, place) = parsed?;
        Ok(Some(Taken { leases, written: None, place }))
    }

    /// Writes leases to it, unless `judge` refuses because of the earlier leases.
    pub(crate) async fn write(
        &self,
        text: &str,
        judge: impl AsyncFnOnce(&Taken) -> Outcome<()>,
    ) -> Outcome<()> {
        let shown = self.path.display();
        let failed = |error| Failure::new(Exit::Output, format!("can't write {shown}: {error}"));
        loop {
            let locked = match locked(self.path) {
                Ok(locked) => locked,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match replaced::create(self.path, text, MODE) {
                        // Another one was first, which has got on.
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                        created => return created.map_err(failed),
                    }
                }
                Err(error) => return Err(failed(error)),
            };
            let file = locked.try_clone().map_err(failed)?;
            if let Some(of_before) = self.read(file)? {
                judge(&of_before).await?;
            }
            return replace(self.path, text).map_err(failed);
        }
    }

    /// Removes it if these leases are what it has.
    pub(crate) fn remove(&self, leases: &[DetachedLease]) -> io::Result<()> {
        let file = match locked(self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let text = read_limited(file.try_clone()?)?;
        match parse(&text, self.layout) {
            Ok((found, _)) if found == leases => fs::remove_file(self.path),
            // The next one, which has the lock by now, has written its own.
            _ => Ok(()),
        }
    }
}

impl Taken {
    /// Removes the file that these leases were read from, unless others stand there by now.
    pub(crate) fn remove(&self, path: &Path, layout: Option<&Layout>) -> io::Result<()> {
        LeaseFile { path, layout }.remove(&self.leases)
    }
}

/// Opens and locks a file: all writers of lease files wait for that lock.
fn locked(path: &Path) -> io::Result<File> {
    // In each round another process has replaced or removed it, so one of them makes progress.
    loop {
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        match file.lock() {
            // Some file systems have no locks. There it is as safe as can be.
            Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
            _ => {}
        }
        let mine = file.metadata()?;
        let is_mine = |there: fs::Metadata| (there.dev(), there.ino()) == (mine.dev(), mine.ino());
        if fs::symlink_metadata(path).is_ok_and(is_mine) {
            return Ok(file);
        }
    }
}

/// Replaces a lease file in one step. It can be read by its user alone.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    replaced::write(path, text, MODE)
}
