//! Records the running transaction and the last one on the first page of the data file.
//!
//! By this record the next process can [undo](super::pages::undo_half_committed) a transaction
//! whose process died in the middle, in a copy of the file as well. It also shows which transaction
//! was the last, even if one of LMDB's own page numbers is damaged.
//!
//! Layout: the number of the running transaction (0 for none) and its complement; then the number
//! of the last one and its complement (both 0 before the first). The complements reveal damaged
//! bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The offset in the file: in its first page, beyond LMDB's 168 bytes.
const OFFSET: usize = 1024;
pub(super) const AT: u64 = OFFSET as u64;
/// The mapped bytes: at most one page on any system.
const BYTES: usize = 4096;

const WORDS: usize = 4;

/// The record as read from a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct CommitMark([u64; WORDS]);

impl CommitMark {
    pub(super) const fn of(last: u64) -> Self {
        Self([0, 0, last, !last])
    }

    const fn with_under_way(txn: u64, last: [u64; 2]) -> Self {
        Self([txn, !txn, last[0], last[1]])
    }

    /// Reads the record of a file that has its first page.
    pub(super) fn read(data: &File) -> io::Result<Self> {
        let mut bytes = [0; WORDS * 8];
        data.read_exact_at(&mut bytes, AT)?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(Self(words))
    }

    pub(super) fn write(self, data: &File) -> io::Result<()> {
        let mut bytes = [0; WORDS * 8];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.0) {
            *bytes = word.to_ne_bytes();
        }
        data.write_all_at(&bytes, AT)
    }

    /// The transaction that was running.
    pub(super) fn under_way(self) -> Option<u64> {
        let [txn, complement, ..] = self.0;
        (txn != 0 && complement == !txn).then_some(txn)
    }

    /// The last transaction, 0 before the first; `None` if the number is damaged.
    pub(super) fn last(self) -> Option<u64> {
        let [_, _, last, complement] = self.0;
        (complement == !last || (last, complement) == (0, 0)).then_some(last)
    }
}

/// The live words of an open data file.
#[derive(Debug)]
pub(super) struct Commits {
    words: NonNull<[AtomicU64; WORDS]>,
    /// Set if the file is not written through its map.
    by_file: Option<File>,
}

// SAFETY: what it points to is mapped for as long as this lives, and is changed atomically only.
unsafe impl Send for Commits {}
// SAFETY: as above.
unsafe impl Sync for Commits {}

impl Commits {
    /// Maps the words of a file that has its first page.
    pub(super) fn map(data: &File, in_place: bool) -> io::Result<Self> {
        let by_file = (!in_place).then(|| data.try_clone()).transpose()?;
        let mut access = ProtFlags::READ;
        access.set(ProtFlags::WRITE, in_place);
        // SAFETY: new memory at an address that the kernel chooses.
        let page = unsafe { mmap(null_mut(), BYTES, access, MapFlags::SHARED, data, 0)? };
        let at = page.wrapping_byte_add(OFFSET);
        let words = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { words, by_file })
    }

    fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: mapped while this lives, page-aligned, and changed only atomically or by the
        // kernel.
        unsafe { self.words.as_ref() }
    }

    /// Whether a process died in a commit. Only inside the gate.
    pub(super) fn is_under_way(&self) -> bool {
        self.words()[0].load(Ordering::Relaxed) != 0
    }

    /// Records which transaction is being committed, until [`end`](Self::end). Only inside the
    /// gate.
    pub(super) fn begin(&self, txn: u64) -> io::Result<()> {
        let [number, complement, last @ ..] = self.words();
        if let Some(data) = &self.by_file {
            let last = last.each_ref().map(|word| word.load(Ordering::Relaxed));
            return CommitMark::with_under_way(txn, last).write(data);
        }
        complement.store(!txn, Ordering::Relaxed);
        number.store(txn, Ordering::Release);
        Ok(())
    }

    /// Records that the commit has ended, and which transaction was the last. Until then the next
    /// process would undo it.
    pub(super) fn end(&self, txn: u64) -> io::Result<()> {
        if let Some(data) = &self.by_file {
            return CommitMark::of(txn).write(data);
        }
        let [number, its_complement, last, complement] = self.words();
        complement.store(!txn, Ordering::Relaxed);
        last.store(txn, Ordering::Relaxed);
        number.store(0, Ordering::Release);
        // Otherwise one damaged bit could pass for a last transaction.
        its_complement.store(0, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        let page = self.words.as_ptr().cast::<u8>().wrapping_sub(OFFSET);
        // SAFETY: mapped here with this length, and this was the last user. If unmapping fails, it
        // stays mapped.
        _ = unsafe { munmap(page.cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::{EmbeddedStore, pages};
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    #[test]
    fn no_damaged_byte_makes_a_commit_of_none_or_another_of_one() {
        for txn in [0, 1, 2, 255, 256, 70_000] {
            let whole = CommitMark::with_under_way(txn, [txn, !txn]);
            assert_eq!((whole.under_way(), whole.last()), ((txn != 0).then_some(txn), Some(txn)));
            for (word, shift) in
                (0..WORDS).flat_map(|word| (0..64).step_by(8).map(move |it| (word, it)))
            {
                for other in 1..=u64::from(u8::MAX) {
                    let mut damaged = whole;
                    damaged.0[word] ^= other << shift;
                    let said = (damaged.under_way(), damaged.last());
                    let expected =
                        if word < 2 { (None, Some(txn)) } else { (whole.under_way(), None) };
                    assert_eq!(said, expected, "{txn} {word} {shift}: {other}");
                }
            }
        }
        let none = CommitMark([0; WORDS]);
        assert_eq!((none.under_way(), none.last()), (None, Some(0)));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_transaction_whose_process_dies_in_its_commit_is_undone_by_the_next_one() {
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
            // Leaves the meta page as a crash may. The number that makes it count is new, but the
            // last 8, the last 24, or all bytes before it are still old.
            let meta = txn % 2 * page;
            let counts = meta + 16 + 8 + 2 * 8 + 2 * 48 + 8;
            assert_eq!(after[counts..counts + 8], txn.to_ne_bytes());
            let late = counts.saturating_sub(8 + written).max(meta)..counts;
            data.write_all_at(&before[late.clone()], late.start as u64).unwrap();
            let CommitMark([.., last, complement]) = CommitMark::read(&data).unwrap();
            CommitMark::with_under_way(txn as u64, [last, complement]).write(&data).unwrap();
            if opened {
                drop(store.take());
            }
            let store = store.get_or_insert_with(|| EmbeddedStore::open(&path).unwrap());
            assert_eq!(store.entries(WITHIN).await.unwrap().0, names, "round {round}");
            // Reopening the store has ended the lease's session.
            assert_eq!(acquire(store, "held").await, opened, "round {round}");
            assert!(acquire(store, &format!("new-{round}")).await);
            pages::check(&data, data.metadata().unwrap().len(), None).unwrap();
        }
    }

    #[cfg(target_os = "linux")]
    fn header_says(path: &std::path::Path, what: &str) -> bool {
        std::fs::read_to_string(path.join("store")).unwrap().contains(what)
    }
}
