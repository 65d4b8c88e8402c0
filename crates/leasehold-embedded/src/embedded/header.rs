//! The file `store`: what a store is, as text for people and for every later version.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use leasehold_clock::SystemClock;
use leasehold_core::Clock as _;

use super::directory::Access;
use super::machine::Machine;

/// The version of everything in the directory. A store of a later one is refused.
pub(super) const FORMAT: u32 = 1;

const NAME: &str = "store";
const MARK: &str = "leasehold-store";

/// What the file says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Header {
    pub(super) machine: Machine,
    /// The clock when the store was made, in seconds. A clock that stands before it has been
    /// started again since.
    pub(super) made_at_s: u64,
    /// The most that the data file can grow to, in bytes.
    pub(super) bytes_max: u64,
    /// Whether the data file is written through the memory map, in place.
    pub(super) in_place: bool,
    pub(super) access: Access,
    /// Whether the data file was made completely.
    pub(super) ready: bool,
}

/// Why a header is no use.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// There is none.
    Absent,
    /// It was written by a later version.
    Newer(u32),
    /// It says something else than a header does.
    Corrupt,
    Io(io::Error),
}

impl Header {
    pub(super) fn new(machine: Machine, bytes_max: u64, in_place: bool, access: Access) -> Self {
        let made_at_s = SystemClock::new().now().since_origin().as_secs();
        Self { machine, made_at_s, bytes_max, in_place, access, ready: false }
    }

    /// Whether times kept in the store mean nothing any more.
    pub(super) fn is_of_another_boot(&self, now: &Machine) -> bool {
        let clock_s = SystemClock::new().now().since_origin().as_secs();
        self.machine.boot != now.boot
            || (self.machine.time_namespace == now.time_namespace && clock_s < self.made_at_s)
    }

    pub(super) fn read(directory: &Path) -> Result<Self, Unreadable> {
        match fs::read(directory.join(NAME)) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Unreadable::Absent),
            Err(error) => Err(Unreadable::Io(error)),
        }
    }

    fn parse(text: &[u8]) -> Result<Self, Unreadable> {
        let text = std::str::from_utf8(text).map_err(|_| Unreadable::Corrupt)?;
        let mut lines = text.lines();
        let mut next = |word: &str| {
            let line = lines.next().ok_or(Unreadable::Corrupt)?;
            let (first, rest) = line.split_once(' ').ok_or(Unreadable::Corrupt)?;
            if first == word { Ok(rest) } else { Err(Unreadable::Corrupt) }
        };
        let format: u32 = number(next(MARK)?)?;
        if format > FORMAT {
            return Err(Unreadable::Newer(format));
        }
        let header = Self {
            machine: Machine {
                boot: next("boot")?.to_owned(),
                time_namespace: number(next("time-namespace")?)?,
            },
            made_at_s: number(next("made-at-s")?)?,
            bytes_max: number(next("bytes-max")?)?,
            in_place: either(next("write")?, "in-place", "copy")?,
            access: if either(next("access")?, "group", "private")? {
                Access::Group
            } else {
                Access::Private
            },
            ready: either(next("state")?, "ready", "making")?,
        };
        if header.text() == text { Ok(header) } else { Err(Unreadable::Corrupt) }
    }

    /// Puts the file in place at once or not at all, and on the disk: it has to be readable after
    /// a power failure, to say that the rest is void.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        let (new, place) = (directory.join("store.new"), directory.join(NAME));
        drop(fs::remove_file(&new));
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(self.access.file_mode())
            .open(&new)?;
        file.write_all(self.text().as_bytes())?;
        self.access.settle(&file, directory)?;
        file.sync_all()?;
        fs::rename(&new, &place)?;
        File::open(directory)?.sync_all()
    }

    fn text(&self) -> String {
        let Self { machine, made_at_s, bytes_max, in_place, access, ready } = self;
        let Machine { boot, time_namespace } = machine;
        let write = if *in_place { "in-place" } else { "copy" };
        let access = match access {
            Access::Private => "private",
            Access::Group => "group",
        };
        let state = if *ready { "ready" } else { "making" };
        format!(
            "{MARK} {FORMAT}\nboot {boot}\ntime-namespace {time_namespace}\n\
             made-at-s {made_at_s}\nbytes-max {bytes_max}\nwrite {write}\naccess {access}\n\
             state {state}\n"
        )
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, Unreadable> {
    text.parse().map_err(|_| Unreadable::Corrupt)
}

fn either(text: &str, yes: &str, no: &str) -> Result<bool, Unreadable> {
    if text == yes {
        Ok(true)
    } else if text == no {
        Ok(false)
    } else {
        Err(Unreadable::Corrupt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let machine = Machine { boot: "abc-def".to_owned(), time_namespace: 4_026_531_834 };
        Header {
            machine,
            made_at_s: 7,
            bytes_max: 1 << 28,
            in_place: true,
            access: Access::Group,
            ready: true,
        }
    }

    #[test]
    fn it_is_read_back_as_it_was_written() {
        assert_eq!(Header::parse(header().text().as_bytes()).unwrap(), header());
    }

    #[test]
    fn a_later_format_is_known_as_such_whatever_follows() {
        let later = "leasehold-store 2\nsomething new\n";
        assert!(matches!(Header::parse(later.as_bytes()), Err(Unreadable::Newer(2))));
    }

    #[test]
    fn what_is_cut_off_changed_or_added_is_refused() {
        let text = header().text();
        for end in 0..text.len() {
            let cut = Header::parse(&text.as_bytes()[..end]);
            assert!(matches!(cut, Err(Unreadable::Corrupt)), "{end}");
        }
        for other in ["", "\0\0\0\0", "leasehold-store x\n", &format!("{text}more\n")] {
            assert!(matches!(Header::parse(other.as_bytes()), Err(Unreadable::Corrupt)));
        }
    }

    #[test]
    fn another_boot_voids_and_another_namespace_does_not() {
        let machine =
            |boot: &str, time_namespace| Machine { boot: boot.to_owned(), time_namespace };
        let now = header().machine;
        assert!(!header().is_of_another_boot(&now));
        assert!(header().is_of_another_boot(&machine("new", now.time_namespace)));
        let container = machine(&now.boot, 1);
        assert!(!header().is_of_another_boot(&container));
        let ahead = Header { made_at_s: u64::MAX, ..header() };
        assert!(ahead.is_of_another_boot(&now));
        assert!(!ahead.is_of_another_boot(&container));
    }
}
