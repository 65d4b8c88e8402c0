//! Memory that a process shares with its forks, at the same address.

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

/// A value that each of them changes by way of atomics.
#[derive(Debug)]
pub(crate) struct Mapped<T: Sync>(NonNull<T>);

// SAFETY: the value is only ever reached as `&T`, which may be used from everywhere.
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T: Sync> Mapped<T> {
    pub(crate) fn new(value: T) -> io::Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the system chooses touches no memory in use.
        let place =
            unsafe { libc::mmap(std::ptr::null_mut(), size_of::<T>(), protection, flags, -1, 0) };
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let place = NonNull::new(place.cast::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the mapping is large enough, writable, aligned to a page, and has no other user
        // yet.
        unsafe { place.write(value) };
        Ok(Self(place))
    }
}

impl<T: Sync> Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: it was initialized by `new` and stays mapped as long as `self` lives.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Sync> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}
