//! What the frame of the embedded store costs by itself: for each of two steps a file locked and
//! unlocked, and a transaction that replaces one small record. No lock table, no client.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{bail, ensure};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};
use rustix::fs::{FlockOperation, flock};

/// As large as the store makes its data file unless it is told otherwise.
const BYTES_MAX: usize = 256 << 20;
/// As many bytes as the record of a lock with one holder has.
const RECORD: [u8; 128] = [7; 128];

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
        // SAFETY: this folder was made just now, and one task of this process writes to it.
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

    /// The file that is locked around each transaction.
    pub(crate) fn gate(&self) -> anyhow::Result<File> {
        Ok(File::create(self.environment.path().join("gate"))?)
    }

    /// Two steps.
    pub(crate) fn cycle(&self, gate: &File) -> anyhow::Result<()> {
        for step in [1, 2] {
            flock(gate, FlockOperation::NonBlockingLockExclusive)?;
            let mut txn = self.environment.write_txn()?;
            let found = self.records.get(&txn, b"uncontended/0")?;
            ensure!(found.is_none_or(|record| record.len() == RECORD.len()), "a torn record");
            let mut record = RECORD;
            record[0] = step;
            self.records.put(&mut txn, b"uncontended/0", &record)?;
            txn.commit()?;
            flock(gate, FlockOperation::Unlock)?;
        }
        Ok(())
    }
}
