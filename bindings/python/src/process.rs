//! Tells what this process made from what a fork's child inherited.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use leasehold::{Error, ErrorKind, Result};
use leasehold_clock::Process;
use tokio::runtime::Handle;

/// A value that each process makes for itself. A fork's child sees none until it has made its own,
/// and leaves its parent's alone. Takes no lock, which another thread could hold during the fork.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    made: AtomicPtr<Made<T>>,
    owns: PhantomData<Made<T>>,
}

#[derive(Debug)]
struct Made<T> {
    process: Process,
    value: T,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { made: AtomicPtr::new(null_mut()), owns: PhantomData }
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// This process's value.
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: what was stored here is freed only with `self`.
        let made = unsafe { self.made.load(Ordering::Acquire).as_ref() }?;
        made.process.is_current().then_some(&made.value)
    }

    /// Sets this process's value, unless it has one. Returns the one that it has.
    pub(crate) fn set(&self, value: T) -> &T {
        let made = Box::into_raw(Box::new(Made { process: Process::current(), value }));
        let mut seen = self.made.load(Ordering::Acquire);
        loop {
            if let Some(value) = self.get() {
                // SAFETY: no other code has the address of the new value.
                drop(unsafe { Box::from_raw(made) });
                return value;
            }
            // The parent's value is never dropped here: its threads do not exist in this process.
            match self.made.compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: just stored, so it is freed only with `self`.
                Ok(_) => return unsafe { &(*made).value },
                Err(other) => seen = other,
            }
        }
    }

    pub(crate) fn get_or(&self, make: impl FnOnce() -> T) -> &T {
        self.get().unwrap_or_else(|| self.set(make()))
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let made = *self.made.get_mut();
        // SAFETY: what was stored here is freed only here, and no reference outlives `self`.
        if unsafe { made.as_ref() }.is_some_and(|made| made.process.is_current()) {
            // SAFETY: as above; it came from a box.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// A part of this process. A fork's child is refused its use, and forgets it.
#[derive(Debug)]
pub(crate) struct Ours<T> {
    part: ManuallyDrop<T>,
    process: Process,
}

impl<T> Ours<T> {
    pub(crate) fn new(part: T) -> Self {
        Self { part: ManuallyDrop::new(part), process: Process::current() }
    }

    pub(crate) fn get(&self) -> Result<&T> {
        if self.is_ours() { Ok(&self.part) } else { Err(inherited()) }
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_current()
    }
}

impl<T> Drop for Ours<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.part) }
        }
    }
}

fn inherited() -> Error {
    let why = "this belongs to the parent process; a fork's child takes locks of its own";
    Error::new(ErrorKind::Misuse, why)
}

/// The runtime of leasehold's own thread.
pub(crate) fn driver() -> Result<&'static Handle> {
    static DRIVER: PerProcess<Handle> = PerProcess::new();
    match DRIVER.get() {
        Some(driver) => Ok(driver),
        None => leasehold::driver().map(|driver| DRIVER.set(driver)),
    }
}
