//! Keeps the log of each lock: rows in the order of their writing.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use leasehold_core::{BoxFuture, Key, LockLog, LogEntry, Result};
use tokio_postgres::types::Type;

use crate::classify::{Deadline, Fault};
use crate::row::get;
use crate::store::PostgresStore;

/// Events that one call reads.
const READ_MAX: usize = 1_000;

impl LockLog for PostgresStore {
    fn keeps(&self) -> u32 {
        self.shared.log
    }

    fn append<'a>(
        &'a self,
        entries: &'a [LogEntry],
        within: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let appended = self.append_all(entries, Deadline::after(within)).await;
            appended.map_err(|fault| self.named(fault.error, "log", None))
        })
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        last: usize,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<LogEntry>>> {
        Box::pin(async move {
            let read = self.read_log(key, last, Deadline::after(within)).await;
            read.map_err(|fault| self.named(fault.error, "read the log", Some(key)))
        })
    }
}

impl PostgresStore {
    async fn append_all(&self, entries: &[LogEntry], deadline: Deadline) -> Result<(), Fault> {
        let (pool, statements) = (&self.shared.pool, &self.shared.statements);
        // One connection a name keeps their order.
        let appending = entries.iter().map(|entry| async move {
            let fields: Vec<String> = entry
                .fields()
                .into_iter()
                // SQL's text has no such byte.
                .flat_map(|(name, value)| [name.to_owned(), value.replace('\0', "\u{fffd}")])
                .collect();
            let name = entry.key.as_str();
            let params: [crate::pool::Param<'_>; 2] =
                [(&name, Type::TEXT), (&fields, Type::TEXT_ARRAY)];
            pool.ask(self.hash(&entry.key), &statements.log_append, &params, deadline)
                .await
                .map(drop)
        });
        join_all(appending).await.into_iter().collect::<Result<(), Fault>>()?;
        let names: BTreeSet<&Key> = entries.iter().map(|entry| &entry.key).collect();
        let keeps = i64::from(self.shared.log.max(1));
        let trimming = names.into_iter().map(|key| async move {
            let name = key.as_str();
            let params: [crate::pool::Param<'_>; 2] = [(&name, Type::TEXT), (&keeps, Type::INT8)];
            pool.ask(self.hash(key), &statements.log_trim, &params, deadline).await.map(drop)
        });
        join_all(trimming).await.into_iter().collect()
    }

    async fn read_log(
        &self,
        key: &Key,
        last: usize,
        deadline: Deadline,
    ) -> Result<Vec<LogEntry>, Fault> {
        let (pool, statements) = (&self.shared.pool, &self.shared.statements);
        let name = key.as_str();
        let last = i64::try_from(last.clamp(1, READ_MAX)).unwrap_or(1);
        let params: [crate::pool::Param<'_>; 2] = [(&name, Type::TEXT), (&last, Type::INT8)];
        let rows = pool.ask(self.hash(key), &statements.log_read, &params, deadline).await?;
        let mut events = Vec::with_capacity(rows.len());
        for row in rows.iter().rev() {
            let at: SystemTime = get(row, "at")?;
            let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            let at = Duration::from_millis(u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
            let fields: Vec<String> = get(row, "fields")?;
            let (pairs, _) = fields.as_chunks::<2>();
            events.extend(LogEntry::read(
                key.clone(),
                at,
                pairs.iter().map(|[name, value]| (name, value)),
            ));
        }
        Ok(events)
    }
}
