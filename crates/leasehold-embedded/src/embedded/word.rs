//! The number in shared memory that says which process is inside the gate.
//!
//! Uncontended, a process enters and leaves by one instruction each, without a system call.
//!
//! The number is [`FREE`], or the *slot* of the process inside: a random number that each open
//! store has for itself. The process locks the byte of that number in the same file, and the kernel
//! frees the lock when the process ends. If that byte is unlocked, the process has died inside, and
//! another one may replace it. It locks the dead one's byte first: until it is done, no newcomer
//! can draw the same slot.
//!
//! The locks belong to the open file (`F_OFD_SETLK`). Classic locks would belong to the process,
//! and vanish when it closes any of its descriptors of the file. A fork's child inherits neither:
//! see [`super::unshared`].
//!
//! A page of zeros or plain text differs from [`FREE`] and from every slot. So a file that was cut
//! off, or overwritten with those, lets no process in. Other bytes may look like the slot of a dead
//! process. The process inside then detects that before it commits, by [`Word::is_inside`]. A
//! process that touches the word of a file that is too short is killed (SIGBUS).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The word while the gate is free; no slot has its first bit.
const FREE: u64 = 0xf5ee_6a7e_0b5c_91d3;
/// The length of the file: one cache line, which the word shares with no other data.
const BYTES: u64 = 64;

/// A slot: random bits above, then the PID namespace, then the process in it. The latter two are
/// only for people.
const PROCESS_BITS: u32 = 22;
const NAMESPACE_BITS: u32 = 13;
const RANDOM_BITS: u32 = 63 - PROCESS_BITS - NAMESPACE_BITS;
/// Every slot has this bit, which plain text and zeros lack.
const MARK: u64 = 1 << 55;

/// How many slots are tried to find an unused one.
const DRAWS: usize = 64;

/// The word of an open store's gate.
#[derive(Debug)]
pub(super) struct Word {
    at: NonNull<AtomicU64>,
    slot: u64,
    /// Whether another program has changed it while this process was inside.
    broken: AtomicBool,
}

// SAFETY: what it points to is mapped for as long as this lives, and is changed atomically only.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

/// The process inside.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Inside {
    Process(u32),
    /// A process of another PID namespace, by its number there.
    OfAnotherNamespace(u32),
}

impl Word {
    /// Whether the file system supports the locks that the word needs.
    pub(super) fn works(file: &File) -> bool {
        lock_byte(file, 0).is_ok() && unlock_byte(file, 0).is_ok()
    }

    /// Prepares the file unless it is ready. Only while no process uses it.
    pub(super) fn make(file: &File) -> io::Result<()> {
        if file.metadata()?.len() == BYTES {
            let mut word = [0; size_of::<u64>()];
            file.read_exact_at(&mut word, 0)?;
            if is_sound(u64::from_ne_bytes(word)) {
                return Ok(());
            }
        }
        file.set_len(BYTES)?;
        // Allocated first: on a full disk, a write through the map would kill the process.
        fallocate(file, FallocateFlags::empty(), 0, BYTES)?;
        file.write_all_at(&FREE.to_ne_bytes(), 0)
    }

    /// The word in a file, with a slot of its own.
    ///
    /// `file` stays open while this lives and is not inherited by forks. A fork's child inherits
    /// the map, and with it the open file that was mapped. So that is `again`, the same file opened
    /// a second time, which has no locks.
    pub(super) fn map(file: &File, again: &File) -> io::Result<Self> {
        let (meta, other) = (file.metadata()?, again.metadata()?);
        if meta.len() != BYTES || (meta.dev(), meta.ino()) != (other.dev(), other.ino()) {
            return Err(damaged());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = size_of::<u64>();
        // SAFETY: new memory at an address that the kernel chooses.
        let page = unsafe { mmap(null_mut(), bytes, access, MapFlags::SHARED, again, 0)? };
        let at = NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut word = Self { at, slot: 0, broken: AtomicBool::new(false) };
        if !is_sound(word.get().load(Ordering::Relaxed)) {
            return Err(damaged());
        }
        word.slot = word.draw(file)?;
        Ok(word)
    }

    fn get(&self) -> &AtomicU64 {
        // SAFETY: mapped while this lives, aligned as a page is, and changed atomically by all.
        unsafe { self.at.as_ref() }
    }

    /// A slot that no other process has, dead inside or alive. A dead one would otherwise look
    /// alive again.
    fn draw(&self, file: &File) -> io::Result<u64> {
        let process = u64::from(std::process::id()) & mask(PROCESS_BITS);
        let below = namespace() << PROCESS_BITS | process;
        for _ in 0..DRAWS {
            let random = fastrand::u64(..1 << RANDOM_BITS);
            let slot = random << (NAMESPACE_BITS + PROCESS_BITS) | MARK | below;
            if lock_byte(file, slot)? {
                if self.get().load(Ordering::Relaxed) != slot {
                    return Ok(slot);
                }
                unlock_byte(file, slot)?;
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Enters unless another process is inside.
    pub(super) fn try_enter(&self) -> io::Result<bool> {
        match self.get().compare_exchange(FREE, self.slot, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) if self.broken.load(Ordering::Relaxed) => {
                self.leave();
                Err(damaged())
            }
            Ok(_) => Ok(true),
            Err(inside) if is_sound(inside) && inside != self.slot => Ok(false),
            // Its own number is damage as well: this process is not inside, since it tries to
            // enter.
            Err(_) => Err(damaged()),
        }
    }

    /// Replaces a process that died inside.
    pub(super) fn try_follow(&self, file: &File) -> io::Result<bool> {
        let inside = self.get().load(Ordering::Relaxed);
        // Its own byte is locked already, and would be unlocked below.
        if inside == self.slot {
            return Err(damaged());
        }
        if inside == FREE || !is_sound(inside) || !lock_byte(file, inside)? {
            return Ok(false);
        }
        let entered =
            self.get().compare_exchange(inside, self.slot, Ordering::Acquire, Ordering::Relaxed);
        // Kept, it would be the lock of a slot without a process.
        drop(unlock_byte(file, inside));
        Ok(entered.is_ok())
    }

    /// Whether the word still has this process's slot; called between entering and leaving.
    pub(super) fn is_inside(&self) -> bool {
        self.get().load(Ordering::Acquire) == self.slot
    }

    /// Lets the next one in.
    pub(super) fn leave(&self) {
        let left =
            self.get().compare_exchange(self.slot, FREE, Ordering::Release, Ordering::Relaxed);
        if left.is_err() {
            self.broken.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn inside(&self) -> Option<Inside> {
        let inside = self.get().load(Ordering::Relaxed);
        if inside == FREE || !is_sound(inside) {
            return None;
        }
        let process = u32::try_from(inside & mask(PROCESS_BITS)).unwrap_or_default();
        let of = inside >> PROCESS_BITS & mask(NAMESPACE_BITS);
        let here = of == namespace();
        Some(if here { Inside::Process(process) } else { Inside::OfAnotherNamespace(process) })
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // SAFETY: mapped here with this length, and this was the last user. If unmapping fails, it
        // stays mapped.
        _ = unsafe { munmap(self.at.as_ptr().cast(), size_of::<u64>()) };
    }
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Whether the word is [`FREE`] or a possible slot.
const fn is_sound(word: u64) -> bool {
    word == FREE || word >> 63 == 0 && word & MARK != 0
}

pub(super) fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file gate was changed by another program")
}

/// The number of this PID namespace. Namespaces that exist together have numbers near each other.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino()) & mask(NAMESPACE_BITS)
}

/// Locks one byte; `false` if another open file has locked it.
fn lock_byte(file: &File, at: u64) -> io::Result<bool> {
    match set_lock(file, at, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        },
    }
}

fn unlock_byte(file: &File, at: u64) -> io::Result<()> {
    set_lock(file, at, libc::F_UNLCK)
}

fn set_lock(file: &File, at: u64, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    let plain = |number: libc::c_int| libc::c_short::try_from(number).map_err(io::Error::other);
    lock.l_type = plain(kind)?;
    lock.l_whence = plain(libc::SEEK_SET)?;
    lock.l_start = libc::off_t::try_from(at).map_err(io::Error::other)?;
    lock.l_len = 1;
    // SAFETY: reads the struct, which outlives the call.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
