//! Keeps the log of the store's locks: lines in a file, and in the file before it.
//!
//! One write appends one line, so lines of several processes never mix, and a killed process leaves
//! whole lines. A full disk or a power failure may cut a line. Every write begins with an end of
//! line, so the next event is on a line of its own anyway. A file that has reached its size
//! replaces the file before it. Processes never wait for each other.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leasehold_clock::wall::unix_micros;
use leasehold_core::escape::{from_percent, percent_into};
use leasehold_core::{BoxFuture, Error, ErrorKind, Key, LockLog, LogEntry, Result};
use rustix::fs::{FlockOperation, OFlags};

use super::EmbeddedStore;
use super::directory::{Access, unusable};
use super::environment::Environment;

/// The current file, and the one before it.
const NAME: &str = "log";
const BEFORE: &str = "log.1";

/// The usual size of an event.
const EVENT_BYTES: u64 = 200;
/// Names and owners have at most a few hundred bytes each. A longer line is not an event.
const LINE_MAX: usize = 8_192;

impl LockLog for EmbeddedStore {
    fn keeps(&self) -> u32 {
        self.client.log
    }

    fn append<'a>(
        &'a self,
        entries: &'a [LogEntry],
        _within: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        let now = Duration::from_micros(unix_micros());
        let lines: String = entries.iter().map(|entry| line(entry, now)).collect();
        let bytes_max = u64::from(self.client.log.max(1)).saturating_mul(EVENT_BYTES);
        Box::pin(
            self.on_disk("write", move |store| {
                append(&store.path, store.access, &lines, bytes_max)
            }),
        )
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        last: usize,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Vec<LogEntry>>> {
        let wanted = key.clone();
        Box::pin(self.on_disk("read", move |store| read(&store.path, &wanted, last)))
    }
}

impl EmbeddedStore {
    /// Works on the files in a thread that may wait for the disk.
    async fn on_disk<T: Send + 'static>(
        &self,
        what: &'static str,
        act: impl FnOnce(&Environment) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = Arc::clone(&self.environment);
        if !store.is_ours() {
            let why = "the store was opened by the parent of this fork; open it again";
            return Err(self.environment.error(ErrorKind::Misuse, why));
        }
        let acting = tokio::task::spawn_blocking(move || act(&store));
        let named =
            |error: Error| error.during("log").at_store(Arc::clone(&self.environment.location));
        match acting.await {
            Ok(done) => done.map_err(|error| named(unusable(what, error))),
            Err(error) => {
                let why = "the log was not read, since the runtime ended";
                Err(named(Error::new(ErrorKind::Unavailable, why).caused_by(error)))
            }
        }
    }
}

fn append(directory: &Path, access: Access, lines: &str, bytes_max: u64) -> io::Result<()> {
    let path = directory.join(NAME);
    let mut file = open(&path, access)?;
    file.write_all(format!("\n{lines}").as_bytes())?;
    let meta = file.metadata()?;
    if meta.len() < bytes_max {
        return Ok(());
    }
    // Only one process renames the file, and only while it still has its name.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let renamed = match fs::metadata(&path) {
            Ok(there) if (there.dev(), there.ino()) == (meta.dev(), meta.ino()) => {
                fs::rename(&path, directory.join(BEFORE))
            }
            _ => Ok(()),
        };
        // Unlocked explicitly: a fork's child may share the opened file.
        rustix::fs::flock(&file, FlockOperation::Unlock)?;
        renamed?;
    }
    Ok(())
}

fn open(path: &Path, access: Access) -> io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let mut options = File::options();
    options.append(true).custom_flags(flags);
    let file = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mode = access.file_mode();
            match options.clone().create_new(true).mode(mode).open(path) {
                Ok(made) => {
                    access.settle(&made, path.parent().unwrap_or(path))?;
                    made
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path)?,
                Err(error) => return Err(error),
            }
        }
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("log is not a file of the store; remove it"));
    }
    Ok(file)
}

/// The last events of a lock, the oldest first.
fn read(directory: &Path, key: &Key, last: usize) -> io::Result<Vec<LogEntry>> {
    // The younger file first: if it is renamed meanwhile, it is read twice instead of left out.
    let opened = |name| match File::open(directory.join(name)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let (now, before) = (opened(NAME)?, opened(BEFORE)?);
    let number = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino()));
    let twice = match (&now, &before) {
        (Some(now), Some(before)) => number(now)? == number(before)?,
        _ => false,
    };
    let wanted = escaped(key.as_str());
    let mut found = VecDeque::new();
    for file in before.into_iter().filter(|_| !twice).chain(now) {
        let mut lines = BufReader::new(file);
        let mut bytes = Vec::new();
        while lines.read_until(b'\n', &mut bytes)? > 0 {
            let line = std::str::from_utf8(&bytes).ok().filter(|line| line.len() < LINE_MAX);
            if let Some(entry) = line.and_then(|line| entry(line.trim_end(), key, &wanted)) {
                if found.len() >= last {
                    found.pop_front();
                }
                found.push_back(entry);
            }
            bytes.clear();
        }
    }
    Ok(found.into())
}

/// `time key name=value …`, the time in ms since the Unix epoch.
fn line(entry: &LogEntry, now: Duration) -> String {
    let mut line = format!("{} {}", now.as_millis(), escaped(entry.key.as_str()));
    for (name, value) in entry.fields() {
        line.push_str(&format!(" {name}={}", escaped(&value)));
    }
    line.push('\n');
    line
}

fn entry(line: &str, key: &Key, wanted: &str) -> Option<LogEntry> {
    let mut words = line.split(' ');
    let at = words.next()?.parse().ok().map(Duration::from_millis)?;
    if words.next()? != wanted {
        return None;
    }
    let pair = |word: &str| {
        let (name, value) = word.split_once('=')?;
        Some((name.to_owned(), from_percent(value)?))
    };
    let fields: Vec<_> = words.map(pair).collect::<Option<_>>()?;
    LogEntry::read(key.clone(), at, fields)
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    percent_into(&mut out, text, |byte| byte <= b' ' || matches!(byte, b'%' | b'=' | 0x7f));
    out
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Fence, LogId, OwnerName};

    use super::*;

    fn event(key: &str, number: u64) -> LogEntry {
        let key = Key::new(key).unwrap();
        let id = LogId { client: 1, number };
        let mut entry = LogEntry::new(key, id, "granted", Fence::from_value(5).unwrap());
        entry.owner = OwnerName::new("a = b%\n").unwrap();
        entry
    }

    fn append_to(directory: &Path, entry: &LogEntry, bytes_max: u64) {
        let line = line(entry, Duration::from_secs(1));
        append(directory, Access::Private, &line, bytes_max).unwrap();
    }

    fn numbers(directory: &Path, key: &str, last: usize) -> Vec<u64> {
        let read = read(directory, &Key::new(key).unwrap(), last).unwrap();
        read.iter().map(|entry| entry.id.number).collect()
    }

    #[test]
    fn a_lock_has_its_own_events_whatever_its_name() {
        let directory = tempfile::tempdir().unwrap();
        for (number, key) in (1..).zip(["a", "a b", "a=b%20", "a"]) {
            append_to(directory.path(), &event(key, number), 10_000);
        }
        assert_eq!(numbers(directory.path(), "a", 9), [1, 4]);
        assert_eq!(numbers(directory.path(), "a b", 9), [2]);
        let read = read(directory.path(), &Key::new("a=b%20").unwrap(), 9).unwrap();
        assert_eq!(read[0].owner.as_str(), "a = b%\n");
        assert_eq!(read[0].at, Duration::from_secs(1));
    }

    #[test]
    fn a_line_that_was_cut_costs_no_other() {
        let directory = tempfile::tempdir().unwrap();
        append_to(directory.path(), &event("a", 1), 10_000);
        let whole = fs::read(directory.path().join(NAME)).unwrap();
        for cut in 1..whole.len() {
            fs::write(directory.path().join(NAME), &whole[..cut]).unwrap();
            append_to(directory.path(), &event("a", 2), 10_000);
            let read = numbers(directory.path(), "a", 9);
            // A line without its end may still be complete.
            assert!(read == [2] || read == [1, 2], "{cut}: {read:?}");
        }
    }

    #[test]
    fn the_last_events_are_kept_and_the_files_stay_within_their_size() {
        let directory = tempfile::tempdir().unwrap();
        for number in 1..=1_000 {
            append_to(directory.path(), &event("a", number), 2_000);
        }
        let read = numbers(directory.path(), "a", 1_000);
        assert!((20..100).contains(&read.len()), "{}", read.len());
        assert_eq!(*read.last().unwrap(), 1_000);
        assert!(read.windows(2).all(|two| two[0] + 1 == two[1]), "{read:?}");
        assert_eq!(numbers(directory.path(), "a", 3), [998, 999, 1_000]);
        let size = |name| fs::metadata(directory.path().join(name)).unwrap().len();
        assert!(size(BEFORE) < 2_200 && size(NAME) < 2_200);
    }

    #[test]
    fn what_is_no_file_is_not_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = directory.path().join("elsewhere");
        fs::write(&elsewhere, "").unwrap();
        std::os::unix::fs::symlink(&elsewhere, directory.path().join(NAME)).unwrap();
        let line = line(&event("a", 1), Duration::ZERO);
        assert!(append(directory.path(), Access::Private, &line, 1_000).is_err());
        assert_eq!(fs::read(&elsewhere).unwrap(), b"");
    }
}
