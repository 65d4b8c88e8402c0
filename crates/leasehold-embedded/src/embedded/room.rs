//! Makes room for what is written: in the data file, which has a largest size, and on the disk.
//!
//! A full disk would kill the process (SIGBUS) when it writes a page of the memory map that is not
//! yet allocated. So pages are allocated before they are written. A data file never shrinks, but
//! its free pages are used again.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much must be free beyond the used pages to add something, and to change something. The first
/// is larger, so that on a full disk leases can still be renewed and released.
const TO_ADD: u64 = 1 << 20;
const TO_CHANGE: u64 = 1 << 18;
/// How much is allocated in one step.
const STEP: u64 = 1 << 21;

/// The kind of write that an operation plans.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Write {
    Add,
    Change,
}

/// How much of a data file is taken, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// Up to the last page ever used.
    pub(super) file: u64,
    /// Pages in use.
    pub(super) live: u64,
}

#[derive(Debug)]
pub(super) struct Room {
    data: File,
    in_place: bool,
    bytes_max: u64,
    /// The process's limit on the size of a file.
    file_limit: u64,
    /// How many bytes of the file are allocated.
    reserved: AtomicU64,
}

/// Why there is no room.
#[derive(Debug)]
pub(super) enum NoRoom {
    /// The data file has its largest size.
    Limit,
    /// The disk is full.
    Disk(io::Error),
}

impl Room {
    pub(super) fn new(data: File, in_place: bool, bytes_max: u64) -> Self {
        Self { data, in_place, bytes_max, file_limit: file_limit(), reserved: AtomicU64::new(0) }
    }

    /// The data file.
    pub(super) const fn data(&self) -> &File {
        &self.data
    }

    /// Whether space is allocated before it is used.
    pub(super) const fn is_ahead(&self) -> bool {
        self.in_place
    }

    pub(super) const fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Whether a value of this size surely fits into what is already allocated, given that the file
    /// is used up to `file`.
    pub(super) fn is_reserved(&self, file: u64, write: Write, value_bytes: u64) -> bool {
        let beyond = match write {
            Write::Add => TO_ADD,
            Write::Change => TO_CHANGE,
        };
        let value = value_bytes.saturating_mul(2);
        file.saturating_add(beyond).saturating_add(value) <= self.reserved.load(Ordering::Relaxed)
    }

    /// Makes sure that a value of this size can be written.
    pub(super) fn reserve(
        &self,
        taken: Taken,
        write: Write,
        value_bytes: u64,
    ) -> Result<(), NoRoom> {
        let value = value_bytes.saturating_mul(2);
        // Free pages inside the file serve as well as those behind it. The exception are those that
        // the last transaction freed, which are fewer than are set aside for changes.
        let free = taken.file.saturating_sub(taken.live).saturating_sub(value);
        let inside = free >= 2 * TO_CHANGE && taken.file <= self.file_limit;
        let change = self.extend(taken.file.saturating_add(TO_CHANGE).saturating_add(value), write);
        if write == Write::Change {
            return if inside { Ok(()) } else { change };
        }
        let add = self.extend(taken.file.saturating_add(TO_ADD).saturating_add(value), write);
        let Err(no_room) = add else { return add };
        // The last pages are set aside for changes. If they are used up, as many must stay free
        // inside the file.
        let enough = match (change.is_ok(), &no_room) {
            (true, _) => inside,
            (false, NoRoom::Limit) => free >= TO_ADD,
            (false, NoRoom::Disk(_)) => false,
        };
        if enough { Ok(()) } else { Err(no_room) }
    }

    /// Allocates the file's first `wanted` bytes, and some more in advance.
    fn extend(&self, wanted: u64, write: Write) -> Result<(), NoRoom> {
        if wanted > self.bytes_max && write == Write::Add {
            return Err(NoRoom::Limit);
        }
        let wanted = wanted.min(self.bytes_max);
        if !self.in_place {
            return if wanted > self.file_limit {
                Err(NoRoom::Disk(io::ErrorKind::FileTooLarge.into()))
            } else {
                Ok(())
            };
        }
        if wanted <= self.reserved.load(Ordering::Relaxed) {
            return Ok(());
        }
        let ample = wanted.saturating_add(STEP).min(self.bytes_max);
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

/// Allocates the first `bytes` of a file on the disk; keeps what is already allocated.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bytes)
        .map_err(io::Error::from)
}

/// Whether this file's bytes can be allocated before they are written.
pub(super) fn can_allocate(file: &File) -> io::Result<bool> {
    match allocate(file, 64) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(error),
    }
}

/// Other systems don't write data files in place.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn allocate(_file: &File, _bytes: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// How large this process may make a file; beyond it the kernel kills the process (SIGXFSZ).
pub(super) fn file_limit() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(in_place: bool) -> Room {
        Room::new(tempfile::tempfile().unwrap(), in_place, 4 * MIB)
    }

    fn refused(room: &Room, file: u64, live: u64, write: Write) -> bool {
        room.reserve(Taken { file, live }, write, 100).is_err()
    }

    #[test]
    fn what_was_full_has_room_again_when_its_pages_are_free() {
        for room in [room(false), room(true)] {
            assert!(!refused(&room, 2 * MIB, 2 * MIB, Write::Add));
            assert!(refused(&room, 3 * MIB, 3 * MIB, Write::Add));
            assert!(!refused(&room, 3 * MIB, 3 * MIB, Write::Change));
            assert!(!refused(&room, 3 * MIB, 2 * MIB + 1, Write::Add));
            assert!(refused(&room, 3 * MIB, 3 * MIB - 2 * TO_CHANGE, Write::Add));
            assert!(refused(&room, 4 * MIB, 3 * MIB + 1, Write::Add));
            assert!(!refused(&room, 3 * MIB, MIB, Write::Add));
            assert!(!refused(&room, 4 * MIB, MIB, Write::Add));
        }
    }

    #[test]
    fn a_file_is_not_written_beyond_the_limit_of_the_process() {
        let room = Room { file_limit: 2 * MIB, ..room(false) };
        assert!(!refused(&room, MIB / 2, MIB / 2, Write::Add));
        assert!(refused(&room, MIB + 1, MIB + 1, Write::Add));
        assert!(!refused(&room, MIB + 1, MIB + 1, Write::Change));
        // The file may have free pages inside.
        assert!(!refused(&room, 2 * MIB, 0, Write::Change));
        let no_room = room.reserve(Taken { file: 2 * MIB + 1, live: 0 }, Write::Change, 100);
        assert!(matches!(no_room, Err(NoRoom::Disk(_))), "{no_room:?}");
    }
}
