//! The file `store`, which describes the store as text, for people and later versions.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use leasehold_clock::SystemClock;
use leasehold_clock::wall::unix_micros;
use leasehold_core::{Clock as _, Fence};

use super::checksum::checksum;
use super::directory::Access;
use super::machine::Machine;

/// The version of everything in the directory. Any other version is refused; earlier ones were
/// never released.
pub(super) const FORMAT: u32 = VERSION as u32;
const VERSION: u8 = 6;

pub(super) const NAME: &str = "store";
/// The name of a header until it is complete.
pub(super) const NEW: &str = "store.new";
const MARK: &str = "leasehold-store";

/// By how much two readings of the start by the time of day may differ, for small corrections of
/// that time. A machine that restarts this soon after its last start, with its data file intact,
/// counts as not restarted. Its sessions are dead anyway.
const SAME_BOOT_S: u64 = 10;

/// 2020. An earlier time of day was never set. It proves no restart.
const PLAUSIBLE_S: u64 = Fence::ORIGIN_UNIX_US / 1_000_000;

/// The clocks of this start of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct BootClock {
    /// The clock of leases, in seconds.
    pub(super) clock_s: u64,
    /// The time of day at that clock's zero, in seconds since 1970.
    pub(super) booted_at_s: u64,
}

impl BootClock {
    pub(super) fn now() -> Self {
        let clock = SystemClock::new().now().since_origin();
        let clock_us = u64::try_from(clock.as_micros()).unwrap_or(u64::MAX);
        let booted_at_us = unix_micros().saturating_sub(clock_us);
        Self { clock_s: clock.as_secs(), booted_at_s: booted_at_us / 1_000_000 }
    }
}

/// The content of the file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Header {
    pub(super) machine: Machine,
    /// The clock of leases when the store was made or taken over, in seconds. If the clock shows
    /// less, the machine has been started again.
    pub(super) made_at_s: u64,
    /// When the machine was started, by the time of day, in seconds since 1970.
    pub(super) booted_at_s: u64,
    /// The most that the data file may grow to, in bytes.
    pub(super) bytes_max: u64,
    /// Whether the data file is written through the memory map, in place.
    pub(super) in_place: bool,
    pub(super) access: Access,
    /// The type number of the file system through which it is used; see
    /// [`super::filesystem::Kind`].
    pub(super) file_system: u32,
    /// How the store is entered.
    pub(super) gate: GateKind,
    /// The number of the data file; 0 until that file exists.
    pub(super) data: u64,
    /// Whether the data file was made completely.
    pub(super) ready: bool,
}

/// How a store is entered, and by which file. All its processes must do it in the same way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct GateKind {
    /// By the word in the file, instead of a lock on it.
    pub(super) word: bool,
    /// The file's number.
    pub(super) inode: u64,
}

/// Why a header can't be used.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// There is none.
    Absent,
    /// It was written by another version, in this format.
    Other(u32),
    /// The content is not a header.
    Corrupt,
    Io(io::Error),
}

impl Header {
    pub(super) fn new(
        machine: Machine,
        bytes_max: u64,
        in_place: bool,
        access: Access,
        file_system: u32,
        gate: GateKind,
    ) -> Self {
        let clock = BootClock::now();
        Self {
            machine,
            made_at_s: clock.clock_s,
            booted_at_s: clock.booted_at_s,
            bytes_max,
            in_place,
            access,
            file_system,
            gate,
            data: 0,
            ready: false,
        }
    }

    /// Whether times kept in the store are void.
    ///
    /// A container may have its own boot id on the kernel that the store's leases run on. So a
    /// different id alone voids nothing: the start of the machine must differ as well.
    pub(super) fn is_of_another_boot(&self, now: &Machine, clock: BootClock) -> bool {
        if self.machine.time_namespace == now.time_namespace && clock.clock_s < self.made_at_s {
            return true;
        }
        self.machine.boot != now.boot
            && !(self.booted_at_s >= PLAUSIBLE_S
                && self.booted_at_s.abs_diff(clock.booted_at_s) <= SAME_BOOT_S)
    }

    /// This header with the current start of the machine, if the time of day was set since. A
    /// container with another boot id recognizes the boot by it.
    pub(super) fn with_start(&self, now: &Machine, clock: BootClock) -> Option<Self> {
        let moved = self.booted_at_s.abs_diff(clock.booted_at_s) > 1;
        (moved
            && self.machine.boot == now.boot
            && self.machine.time_namespace == now.time_namespace)
            .then(|| Self { booted_at_s: clock.booted_at_s, ..self.clone() })
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
        if format != FORMAT {
            return Err(Unreadable::Other(format));
        }
        let header = Self {
            machine: Machine {
                boot: next("boot")?.to_owned(),
                time_namespace: next("time-namespace")?.to_owned(),
            },
            made_at_s: number(next("made-at-s")?)?,
            booted_at_s: number(next("booted-at-s")?)?,
            bytes_max: number(next("bytes-max")?)?,
            in_place: either(next("write")?, "in-place", "copy")?,
            access: if either(next("access")?, "group", "private")? {
                Access::Group
            } else {
                Access::Private
            },
            file_system: number(next("file-system")?)?,
            gate: {
                let (kind, inode) = next("gate")?.split_once(' ').ok_or(Unreadable::Corrupt)?;
                GateKind { word: either(kind, "word", "lock")?, inode: number(inode)? }
            },
            data: number(next("data")?)?,
            ready: either(next("state")?, "ready", "making")?,
        };
        // `text` includes the checksum of these values.
        if header.text() == text { Ok(header) } else { Err(Unreadable::Corrupt) }
    }

    /// Replaces the file atomically and syncs it. After a power failure it must be readable, to
    /// show that the rest is void.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        let (new, place) = (directory.join(NEW), directory.join(NAME));
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
        let Self {
            machine,
            made_at_s,
            booted_at_s,
            bytes_max,
            in_place,
            access,
            file_system,
            gate,
            data,
            ready,
        } = self;
        let Machine { boot, time_namespace } = machine;
        let write = if *in_place { "in-place" } else { "copy" };
        let access = match access {
            Access::Private => "private",
            Access::Group => "group",
        };
        let state = if *ready { "ready" } else { "making" };
        let GateKind { word, inode } = gate;
        let kind = if *word { "word" } else { "lock" };
        let mut text = format!(
            "{MARK} {FORMAT}\nboot {boot}\ntime-namespace {time_namespace}\n\
             made-at-s {made_at_s}\nbooted-at-s {booted_at_s}\nbytes-max {bytes_max}\nwrite {write}\naccess {access}\n\
             file-system {file_system}\ngate {kind} {inode}\ndata {data}\nstate {state}\n"
        );
        let sum = checksum(NAME.as_bytes(), VERSION, text.as_bytes());
        // Writing to memory can't fail.
        _ = writeln!(text, "sum {sum:08x}");
        text
    }
}

/// Whether the file begins like a header of any version.
pub(super) fn is_marked(directory: &Path) -> bool {
    let mut begins = [0; MARK.len()];
    File::open(directory.join(NAME)).and_then(|mut file| file.read_exact(&mut begins)).is_ok()
        && begins == *MARK.as_bytes()
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
        let machine =
            Machine { boot: "abc-def".to_owned(), time_namespace: "4026531834 0.0".to_owned() };
        Header {
            machine,
            made_at_s: 7,
            booted_at_s: 1_700_000_000,
            bytes_max: 1 << 28,
            in_place: true,
            access: Access::Group,
            file_system: 0xef53,
            gate: GateKind { word: true, inode: 77 },
            data: 78,
            ready: true,
        }
    }

    #[test]
    fn it_is_read_back_as_it_was_written() {
        let lock = GateKind { word: false, inode: 78 };
        for (gate, data) in [(header().gate, 9), (lock, 0)] {
            let header = Header { gate, data, ..header() };
            assert_eq!(Header::parse(header.text().as_bytes()).unwrap(), header);
        }
    }

    #[test]
    fn another_format_is_known_as_such_whatever_follows() {
        for format in [FORMAT - 1, FORMAT + 1] {
            let other = format!("leasehold-store {format}\nsomething else\n");
            let read = Header::parse(other.as_bytes());
            assert!(matches!(read, Err(Unreadable::Other(other)) if other == format));
        }
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
    fn no_other_byte_makes_another_header() {
        let text = header().text().into_bytes();
        for at in 0..text.len() {
            for other in 0..=u8::MAX {
                let mut damaged = text.clone();
                damaged[at] = other;
                assert!(
                    damaged == text || Header::parse(&damaged).is_err(),
                    "{at}: {other} {}",
                    String::from_utf8_lossy(&damaged)
                );
            }
        }
    }

    #[test]
    fn another_start_voids_and_another_name_for_it_does_not() {
        let machine = |boot: &str, time_namespace: &str| Machine {
            boot: boot.to_owned(),
            time_namespace: time_namespace.to_owned(),
        };
        let now = header().machine;
        let here = BootClock { clock_s: 100, booted_at_s: 1_700_000_000 };
        let voids = |header: &Header, machine: &Machine, booted_at_s| {
            header.is_of_another_boot(machine, BootClock { booted_at_s, ..here })
        };
        let own_name = machine("new", &now.time_namespace);
        assert!(!voids(&header(), &now, here.booted_at_s));
        assert!(!voids(&header(), &own_name, here.booted_at_s + SAME_BOOT_S));
        assert!(voids(&header(), &own_name, here.booted_at_s + SAME_BOOT_S + 1));
        // The time of day was set; the name shows that it is the same start.
        assert!(!voids(&header(), &now, here.booted_at_s + 3_600));
        // A machine without a battery begins in 1970 at every start.
        let unset = Header { booted_at_s: 0, ..header() };
        assert!(voids(&unset, &own_name, 0));
        let container = machine(&now.boot, "1 0.0");
        assert!(!voids(&header(), &container, here.booted_at_s));
        let ahead = Header { made_at_s: u64::MAX, ..header() };
        assert!(voids(&ahead, &now, here.booted_at_s));
        assert!(!voids(&ahead, &container, here.booted_at_s));
    }

    #[test]
    fn a_start_is_noted_again_when_the_time_of_day_was_set() {
        let now = header().machine;
        let clock = |booted_at_s| BootClock { clock_s: 100, booted_at_s };
        assert_eq!(header().with_start(&now, clock(1_700_000_001)), None);
        let noted = header().with_start(&now, clock(1_700_003_600)).unwrap();
        assert_eq!(noted, Header { booted_at_s: 1_700_003_600, ..header() });
        let other = Machine { boot: "new".to_owned(), ..now };
        assert_eq!(header().with_start(&other, clock(1_700_003_600)), None);
    }
}
