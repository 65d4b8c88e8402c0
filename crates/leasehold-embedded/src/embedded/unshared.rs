//! Opens files that a fork's child does not share with its parent.
//!
//! A `flock` belongs to an open file, which a fork's child has as well: killed while it has the
//! lock, a parent would leave it to children that know nothing of it. So in a child the
//! descriptors of such files are made to lead nowhere, before anything else runs there.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixDatagram;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// An open file that this process alone has, whatever it forks.
#[derive(Debug)]
pub(super) struct Unshared {
    // Dropped first: a number that is free may be somebody else's at the next fork.
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

/// What a place in the list has when it stands for no descriptor.
const FREE: RawFd = -1;

/// A place in the list. Places are never given back to memory, only used again, so a child can
/// walk the list in whatever state the parent's threads were.
#[derive(Debug)]
struct Place {
    descriptor: AtomicI32,
    next: *const Self,
}

// SAFETY: `next` is written before a place is seen by others, and what it points to lives for ever.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Place {}

static FIRST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

#[derive(Debug)]
struct Listed(&'static Place);

impl Listed {
    fn new(descriptor: RawFd) -> io::Result<Self> {
        watch_for_forks()?;
        let mut first = FIRST.load(Ordering::Acquire);
        let mut at = first.cast_const();
        // SAFETY: places in the list live for ever.
        while let Some(place) = unsafe { at.as_ref() } {
            let taken = place.descriptor.compare_exchange(
                FREE,
                descriptor,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                return Ok(Self(place));
            }
            at = place.next;
        }
        let place = Box::into_raw(Box::new(Place {
            descriptor: AtomicI32::new(descriptor),
            next: ptr::null(),
        }));
        loop {
            // SAFETY: nobody else has seen the place yet.
            unsafe { (*place).next = first };
            match FIRST.compare_exchange(first, place, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: it is in the list now and lives for ever.
                Ok(_) => return Ok(Self(unsafe { &*place })),
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

/// What leads nowhere: a socket that nobody can send to.
static NOWHERE: OnceLock<UnixDatagram> = OnceLock::new();
/// Its number, where a child may look for it.
static NOWHERE_DESCRIPTOR: AtomicI32 = AtomicI32::new(FREE);

fn watch_for_forks() -> io::Result<()> {
    /// What came of asking to be called in children: 0, or an error's number.
    static ASKED: OnceLock<i32> = OnceLock::new();

    let nowhere = match NOWHERE.get() {
        Some(nowhere) => nowhere,
        None => {
            let socket = UnixDatagram::unbound()?;
            NOWHERE.get_or_init(|| socket)
        }
    };
    NOWHERE_DESCRIPTOR.store(nowhere.as_raw_fd(), Ordering::Release);
    // SAFETY: the function called in children makes system calls and reads atomics, no more.
    let asked = ASKED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    if *asked == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(*asked)) }
}

/// Runs in a fork's only thread, before `fork` returns there.
unsafe extern "C" fn in_child() {
    let nowhere = NOWHERE_DESCRIPTOR.load(Ordering::Acquire);
    let mut at = FIRST.load(Ordering::Acquire).cast_const();
    // SAFETY: places in the list live for ever.
    while let Some(place) = unsafe { at.as_ref() } {
        let descriptor = place.descriptor.load(Ordering::Acquire);
        if descriptor != FREE && nowhere != FREE {
            // SAFETY: both are open; the file's owner goes on owning the number, which is closed
            // with it.
            unsafe {
                libc::dup2(nowhere, descriptor);
                libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
        at = place.next;
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
            // SAFETY: places in the list live for ever.
            while let Some(place) = unsafe { at.as_ref() } {
                length += 1;
                at = place.next;
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
