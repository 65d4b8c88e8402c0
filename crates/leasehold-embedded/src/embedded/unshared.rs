//! Opens files that a fork's child does not share with its parent.
//!
//! A fork's child shares the open files of its parent, and with them their `flock`. If the parent
//! were killed while it holds the lock, its children would unknowingly keep it. So a fork's child
//! first points these descriptors nowhere, before any other code runs.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixDatagram;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// An open file that this process never shares with a fork.
#[derive(Debug)]
pub(super) struct Unshared {
    // Dropped first: once the number is free, another file may have it at the next fork.
    _listed: Listed,
    file: File,
}

impl Unshared {
    pub(super) fn new(file: File) -> io::Result<Self> {
        Ok(Self { _listed: Listed::new(file.as_raw_fd())?, file })
    }
}

impl Deref for Unshared {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// The descriptor of an unused slot.
const FREE: RawFd = -1;

/// An element of the list. Slots are reused and never freed, so a child can walk the list whatever
/// the parent's threads were doing.
#[derive(Debug)]
struct Slot {
    descriptor: AtomicI32,
    next: *const Self,
}

// SAFETY: `next` is written before other threads see a slot, and what it points to is never freed.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

static FIRST: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

#[derive(Debug)]
struct Listed(&'static Slot);

impl Listed {
    fn new(descriptor: RawFd) -> io::Result<Self> {
        watch_for_forks()?;
        let mut first = FIRST.load(Ordering::Acquire);
        let mut at = first.cast_const();
        // SAFETY: slots in the list are never freed.
        while let Some(slot) = unsafe { at.as_ref() } {
            let taken = slot.descriptor.compare_exchange(
                FREE,
                descriptor,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                return Ok(Self(slot));
            }
            at = slot.next;
        }
        let slot = Box::into_raw(Box::new(Slot {
            descriptor: AtomicI32::new(descriptor),
            next: ptr::null(),
        }));
        loop {
            // SAFETY: no other thread has seen the slot yet.
            unsafe { (*slot).next = first };
            match FIRST.compare_exchange(first, slot, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: it is in the list now and never freed.
                Ok(_) => return Ok(Self(unsafe { &*slot })),
                Err(other) => first = other,
            }
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.0.descriptor.store(FREE, Ordering::Release);
    }
}

/// The target for a child's descriptors: a socket that is bound to no address.
static NOWHERE: OnceLock<UnixDatagram> = OnceLock::new();
/// Its number, for a child to find.
static NOWHERE_DESCRIPTOR: AtomicI32 = AtomicI32::new(FREE);

fn watch_for_forks() -> io::Result<()> {
    /// The result of registering the handler for children: 0, or an error's number.
    static ASKED: OnceLock<i32> = OnceLock::new();

    let nowhere = match NOWHERE.get() {
        Some(nowhere) => nowhere,
        None => {
            let socket = UnixDatagram::unbound()?;
            NOWHERE.get_or_init(|| socket)
        }
    };
    NOWHERE_DESCRIPTOR.store(nowhere.as_raw_fd(), Ordering::Release);
    // SAFETY: the registered function only makes system calls and reads atomics.
    let asked = ASKED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    if *asked == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(*asked)) }
}

/// Runs in a fork's only thread, before `fork` returns there.
unsafe extern "C" fn in_child() {
    let nowhere = NOWHERE_DESCRIPTOR.load(Ordering::Acquire);
    let mut at = FIRST.load(Ordering::Acquire).cast_const();
    // SAFETY: slots in the list are never freed.
    while let Some(slot) = unsafe { at.as_ref() } {
        let descriptor = slot.descriptor.load(Ordering::Acquire);
        if descriptor != FREE && nowhere != FREE {
            // SAFETY: both are open. The file still owns the number and closes it.
            unsafe {
                libc::dup2(nowhere, descriptor);
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
        at = slot.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again() {
        let list = |count: usize| -> Vec<Unshared> {
            (0..count).map(|_| Unshared::new(tempfile::tempfile().unwrap()).unwrap()).collect()
        };
        let length = || {
            let mut at = FIRST.load(Ordering::Acquire).cast_const();
            let mut length = 0;
            // SAFETY: slots in the list are never freed.
            while let Some(slot) = unsafe { at.as_ref() } {
                length += 1;
                at = slot.next;
            }
            length
        };
        drop(list(200));
        let before = length();
        for _ in 0..50 {
            drop(list(100));
        }
        assert!(length() < before + 200, "{} after {before}", length());
    }
}
