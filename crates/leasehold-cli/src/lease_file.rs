//! Leases that outlive the process which took them, as they are kept: in a file, in a variable, on
//! standard input.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use leasehold::DetachedLease;
use leasehold::interop::Layout;
use leasehold::store::escape;

use crate::cli::LeaseSource;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::settings::{create_private, given};

pub(crate) const LEASE_VARIABLE: &str = "LEASEHOLD_LEASE";
/// A lease is one line, with a name of at most 512 bytes.
const LEASES_BYTES_MAX: u64 = 256 * 1024;

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
            "the lease is of a lock that is kept as another library does; give --interop {}",
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
    /// The store that they were taken in, where that is told.
    place: Option<String>,
}

impl Taken {
    /// The store that they were taken in; this one, where that is not told.
    pub(crate) fn place_or(&self, place: &str) -> String {
        self.place.clone().unwrap_or_else(|| place.to_owned())
    }

    /// For how long a lease has been over, by the time of day: for people.
    pub(crate) fn over_for(&self, lease: &DetachedLease) -> Option<Duration> {
        let age = self.written?.elapsed().ok()?;
        age.checked_sub(lease.ttl().duration()).filter(|over_for| !over_for.is_zero())
    }

    /// What to add where this store does not know one of them, and another one may.
    pub(crate) fn elsewhere(&self, place: &str) -> Option<String> {
        let taken_at = self.place.as_ref()?;
        (*taken_at != escape::terminal(place).to_string()).then(|| {
            format!(
                "it is not held there; it was taken at {taken_at}: if that is another store, name it \
                 with --store, and if it is the same, the lease was lost"
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
        text.into_string().map_err(|_| Failure::usage(format!("{LEASE_VARIABLE} is no lease")))?
    } else {
        read_limited(io::stdin().lock())
            .map_err(|error| Failure::usage(format!("can't read standard input: {error}")))?
    };
    let is_empty = text.trim().is_empty();
    let nothing = || match &source.lease_file {
        Some(path) if is_empty => Failure::usage(format!(
            "{} is empty: an `acquire` that still waits has yet to write a lease to it, or one was \
             killed before it had; remove the file if none runs",
            path.display()
        )),
        Some(path) => Failure::usage(format!(
            "{} has no lease, only where one was taken; name the file of a lease",
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
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let (mut leases, mut place) = (Vec::new(), None);
    for line in text.split('\n') {
        match line.strip_prefix(TAKEN_AT) {
            Some(told) => place = Some(told.to_owned()),
            None => leases.push(of_line(line, layout)?),
        }
    }
    if leases.is_empty() {
        return Err(nothing());
    }
    Ok(Taken { leases, written, place })
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
            "{operation} at {place}: there is no store; a lease that was taken there is lost, and \
             for one that was taken elsewhere name that store"
        ),
    )
}

/// Whether there is a file without anything in it.
fn is_empty(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0)
}

/// A file that was made for a lease, and is removed again unless it is kept.
#[derive(Debug)]
pub(crate) struct LeaseFile<'a> {
    path: &'a Path,
    file: File,
    kept: bool,
}

impl<'a> LeaseFile<'a> {
    pub(crate) fn create(path: &'a Path) -> Outcome<Self> {
        let shown = path.display();
        let file = create_private(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists if is_empty(path) => Failure::usage(format!(
                "{shown} is there already and empty: another `acquire` waits and will write its lease \
                 to it, or was killed; remove the file if none runs, or name another"
            )),
            io::ErrorKind::AlreadyExists => Failure::usage(format!(
                "{shown} is there already and may hold a lease; release it, or name another file"
            )),
            _ => Failure::new(Exit::Output, format!("can't create {shown}: {error}")),
        })?;
        Ok(Self { path, file, kept: false })
    }

    pub(crate) fn write(&mut self, text: &str) -> Outcome<()> {
        let written = self.file.write_all(text.as_bytes());
        written.map_err(|error| {
            let shown = self.path.display();
            Failure::new(Exit::Output, format!("can't write {shown}: {error}"))
        })
    }

    /// Leaves the file where it is, with what was written.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for LeaseFile<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // It is private, and its lease is given back: no harm if it stays.
            drop(fs::remove_file(self.path));
        }
    }
}

/// Replaces a lease file in one step: whoever reads it finds the old lease or the new one.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = Path::new(&name);
    let written = create_private(beside)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(beside, path));
    if written.is_err() {
        drop(fs::remove_file(beside));
    }
    written
}
