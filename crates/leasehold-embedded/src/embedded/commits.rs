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
    use std::os::unix::fs::FileExt as _;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::{EmbeddedStore, pages};
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

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

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_transaction_in_whose_commit_somebody_dies_is_undone_by_the_next_one() {
        let directory = tempfile::tempdir_in("/dev/shm")
            .unwrap_or_else(|_| tempfile::tempdir().expect("a test has a directory"));
        let path = directory.path().join("locks");
        let ttl = leasehold_core::Ttl::new(Duration::from_secs(60)).unwrap();
        let request = |name: &str| {
            let token = leasehold_core::Token::generate().unwrap();
            leasehold_core::AcquireRequest::new(leasehold_core::Key::new(name).unwrap(), token, ttl)
        };
        let acquire = async |store: &EmbeddedStore, name: &str| {
            use leasehold_core::{Acquire, Store as _};
            let answer = store.acquire(&request(name), WITHIN).await.unwrap();
            matches!(answer, Acquire::Granted(_))
        };
        let store = EmbeddedStore::open(&path).unwrap();
        if !header_says(&path, "write in-place") {
            return;
        }
        assert!(acquire(&store, "held").await);
        let data = File::options().read(true).write(true).open(path.join("data.mdb")).unwrap();
        let page = rustix::param::page_size();
        let metas = || {
            let mut bytes = vec![0; 2 * page];
            data.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let mut store = Some(store);
        for (round, (written, opened)) in
            [(0, false), (0, true), (16, false), (16, true), (page, false), (page, true)]
                .into_iter()
                .enumerate()
        {
            let before = metas();
            let names = store.as_ref().unwrap().entries(WITHIN).await.unwrap().0;
            let environment = Arc::clone(&store.as_ref().unwrap().environment);
            let txn = environment.run_here(|store, pass, _now| {
                let mut txn = store.write_txn(pass)?;
                store.records.clear(&mut txn).unwrap();
                let id = txn.id();
                txn.commit().unwrap();
                Ok((id, Vec::new()))
            });
            let txn = txn.unwrap().unwrap();
            drop(environment);
            let after = metas();
            // Of its meta page, the number by which it counts is written, and what stands before that but for
            // so many bytes: none of it, what one store of a processor takes, or all.
            let meta = txn % 2 * page;
            let counts = meta + 16 + 8 + 2 * 8 + 2 * 48 + 8;
            assert_eq!(after[counts..counts + 8], txn.to_ne_bytes());
            let late = counts.saturating_sub(8 + written).max(meta)..counts;
            data.write_all_at(&before[late.clone()], late.start as u64).unwrap();
            let words = [txn as u64, !(txn as u64)].map(u64::to_ne_bytes).concat();
            data.write_all_at(&words, AT).unwrap();
            if opened {
                drop(store.take());
            }
            let store = store.get_or_insert_with(|| EmbeddedStore::open(&path).unwrap());
            assert_eq!(store.entries(WITHIN).await.unwrap().0, names, "round {round}");
            // Who held it has ended, where the store was opened anew.
            assert_eq!(acquire(store, "held").await, opened, "round {round}");
            assert!(acquire(store, &format!("new-{round}")).await);
            pages::check(&data, None).unwrap();
        }
    }

    #[cfg(target_os = "linux")]
    fn header_says(path: &std::path::Path, what: &str) -> bool {
        std::fs::read_to_string(path.join("store")).unwrap().contains(what)
    }
}
