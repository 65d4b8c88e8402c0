//! Which transaction is being committed, in the data file's first page, behind what LMDB keeps there: so
//! the next one can [undo](super::pages::undo_half_committed) it whose process died in the middle, also in
//! a copy of the file.
//!
//! Layout: the number of the transaction, 0 for none, and its complement, so that no damaged byte makes
//! another of it.

use std::fs::File;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Where in the file they are: in its first page, beyond LMDB's 168 bytes.
const OFFSET: usize = 1024;
pub(super) const AT: u64 = OFFSET as u64;
/// What is mapped: less than a page of any system.
const BYTES: usize = 4096;

pub(super) type Words = [u64; 2];

/// The transaction that is said to be under way.
pub(super) fn under_way(bytes: [u8; size_of::<Words>()]) -> Option<u64> {
    let (txn, complement) = bytes.split_at(size_of::<u64>());
    let word = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
    word(txn).filter(|txn| *txn != 0 && word(complement) == Some(!*txn))
}

/// These words of a data file that is written through its map.
#[derive(Debug)]
pub(super) struct Commits(NonNull<[AtomicU64; 2]>);

// SAFETY: what it points to is mapped for as long as this lives, and is changed atomically only.
unsafe impl Send for Commits {}
// SAFETY: as above.
unsafe impl Sync for Commits {}

impl Commits {
    /// Maps those of a file that has its first page.
    pub(super) fn map(data: &File) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory at an address that the kernel chooses.
        let page = unsafe { mmap(null_mut(), BYTES, access, MapFlags::SHARED, data, 0)? };
        let at = page.wrapping_byte_add(OFFSET);
        NonNull::new(at.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn words(&self) -> &[AtomicU64; 2] {
        // SAFETY: mapped while this lives, aligned as a page is, and changed atomically by all.
        unsafe { self.0.as_ref() }
    }

    /// Whether a process died in a commit. Only inside the gate.
    pub(super) fn is_under_way(&self) -> bool {
        self.words()[0].load(Ordering::Relaxed) != 0
    }

    /// Says which transaction is being committed, until [`end`](Self::end). Only inside the gate.
    pub(super) fn begin(&self, txn: u64) {
        let [number, complement] = self.words();
        complement.store(!txn, Ordering::Relaxed);
        number.store(txn, Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.words()[0].store(0, Ordering::Release);
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        let page = self.0.as_ptr().cast::<u8>().wrapping_sub(OFFSET);
        // SAFETY: mapped by this with this length, and nobody can use it any more. Failing, it stays.
        _ = unsafe { munmap(page.cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: Words) -> [u8; size_of::<Words>()] {
        let mut bytes = [0; size_of::<Words>()];
        bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
        bytes
    }

    #[test]
    fn no_damaged_byte_makes_a_commit_of_none_or_another_of_one() {
        for txn in [0, 1, 2, 255, 256, 70_000] {
            let whole = bytes([txn, !txn]);
            assert_eq!(under_way(whole), (txn != 0).then_some(txn));
            for at in 0..whole.len() {
                for other in 0..=u8::MAX {
                    let mut damaged = whole;
                    damaged[at] = other;
                    assert!(
                        damaged == whole || under_way(damaged).is_none(),
                        "{txn} {at}: {other}"
                    );
                }
            }
        }
        assert_eq!(under_way(bytes([0, 0])), None);
    }
}
