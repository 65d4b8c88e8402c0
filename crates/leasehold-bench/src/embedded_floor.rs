//! Measures the embedded store's frame alone, without lock table and client.
//!
//! Each of two steps locks and unlocks a word in a shared file, and replaces one small record in a
//! transaction.

use std::fs::{self, File};
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail, ensure};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The default size of the store's data file.
const BYTES_MAX: usize = 256 << 20;
/// The size of the record of a lock with one holder.
const RECORD: [u8; 128] = [7; 128];

/// The lock around each transaction.
pub(crate) struct Word(NonNull<AtomicU64>);

// SAFETY: what it points to is mapped for as long as this lives, and is changed atomically only.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    const FREE: u64 = 0;
    const TAKEN: u64 = 1;

    fn change(&self, from: u64, to: u64) -> anyhow::Result<()> {
        // SAFETY: mapped while this lives, page-aligned, and changed only atomically.
        let word = unsafe { self.0.as_ref() };
        let changed = word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        ensure!(changed.is_ok(), "another thread is inside");
        Ok(())
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and this was the last user. If unmapping fails, it stays
        // mapped.
        _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<AtomicU64>()) };
    }
}

#[derive(Clone, Debug)]
pub(crate) struct EmbeddedFloor {
    environment: Env<WithoutTls>,
    records: Database<'static, Bytes, Bytes>,
}

impl EmbeddedFloor {
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir(folder)?;
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(BYTES_MAX);
        let flags =
            EnvFlags::NO_LOCK | EnvFlags::NO_SYNC | EnvFlags::NO_META_SYNC | EnvFlags::WRITE_MAP;
        // SAFETY: this folder is new, and only one task of this process writes to it.
        let environment = unsafe {
            options.flags(flags);
            options.open(folder)?
        };
        let txn = environment.write_txn()?;
        let made = environment.create_databases_and_commit(txn, |create, txn| {
            create.create_database(txn, None).map(CommitOrAbort::<_, ()>::Commit)
        });
        let CommitOrAbort::Commit(records) = made? else { bail!("there is no place for records") };
        Ok(Self { environment, records })
    }

    /// The lock around each transaction.
    pub(crate) fn gate(&self) -> anyhow::Result<Word> {
        let path = self.environment.path().join("gate");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(size_of::<AtomicU64>() as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory at an address that the kernel chooses.
        let page = unsafe {
            mmap(null_mut(), size_of::<AtomicU64>(), access, MapFlags::SHARED, &file, 0)?
        };
        NonNull::new(page.cast()).map(Word).context("no memory")
    }

    /// Two steps, as an acquisition and a release.
    pub(crate) fn cycle(&self, gate: &Word) -> anyhow::Result<()> {
        for step in [1, 2] {
            gate.change(Word::FREE, Word::TAKEN)?;
            let mut txn = self.environment.write_txn()?;
            let found = self.records.get(&txn, b"uncontended/0")?;
            ensure!(found.is_none_or(|record| record.len() == RECORD.len()), "a torn record");
            let mut record = RECORD;
            record[0] = step;
            self.records.put(&mut txn, b"uncontended/0", &record)?;
            txn.commit()?;
            gate.change(Word::TAKEN, Word::FREE)?;
        }
        Ok(())
    }
}
