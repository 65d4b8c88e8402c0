//! What the lock protects: a number that all holders read, and write back a little larger.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::Fence;
use leasehold::fencing::FencedCell;

/// A number behind a fence that counts from the first touch.
#[derive(Debug, Default)]
pub(crate) struct Fenced {
    number: FencedCell<u64>,
    acknowledged: AtomicU64,
    refused: AtomicU64,
}

impl Fenced {
    pub(crate) fn read(&self, fence: Fence) -> Option<u64> {
        let seen = self.number.read(fence, |number| *number);
        if seen.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        seen.ok()
    }

    /// Writes what follows from what was read.
    pub(crate) fn write(&self, fence: Fence, seen: u64) {
        let counter = match self.number.replace(fence, seen + 1) {
            Ok(_) => &self.acknowledged,
            Err(_) => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Updates that were acknowledged, and are not there.
    pub(crate) fn lost(&self) -> u64 {
        let number = self.number.read(self.number.seen(), |number| *number).unwrap();
        self.acknowledged.load(Ordering::Relaxed) - number
    }

    /// Touches that came too late.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// The same without a fence.
#[derive(Debug, Default)]
pub(crate) struct Open {
    number: Mutex<u64>,
    acknowledged: AtomicU64,
}

impl Open {
    pub(crate) fn read(&self) -> u64 {
        *self.number.lock().unwrap()
    }

    pub(crate) fn write(&self, seen: u64) {
        *self.number.lock().unwrap() = seen + 1;
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn lost(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed) - self.read()
    }
}
