//! Keeps the log of each lock: a stream in the slot of its record.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use leasehold_core::{BoxFuture, Error, ErrorKind, Key, LockLog, LogEntry, Result};
use redis::Value;

use crate::script::Script;
use crate::script::call::Call;
use crate::script::request::{Deadline, Delivery};
use crate::store::RedisStore;

/// How long the log of a lock is kept after its last event: a week.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Events that one call appends: at some µs each, well below a millisecond.
const CHUNK: usize = 64;
/// Events that one call reads. It does nothing more.
const READ_MAX: usize = 1_000;

struct Scripts {
    append: Script,
    read: Script,
}

static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    append: Script::without_comments(include_str!("../scripts/log_append.lua")),
    read: Script::without_comments(include_str!("../scripts/log_read.lua")),
});

impl RedisStore {
    fn append_call(&self, key: &Key, entries: &[&LogEntry]) -> Call<'static> {
        let mut call = Call::new(&SCRIPTS.append, &[self.shared.names.log(key)]);
        call.arg(self.shared.log.max(1)).arg(RETENTION.as_millis().to_string());
        for entry in entries {
            let fields = entry.fields();
            call.arg(fields.len().saturating_mul(2));
            for (name, value) in fields {
                call.arg(name).arg(value);
            }
        }
        call
    }
}

impl LockLog for RedisStore {
    fn keeps(&self) -> u32 {
        self.shared.log
    }

    fn append<'a>(
        &'a self,
        entries: &'a [LogEntry],
        within: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut locks: BTreeMap<&Key, Vec<&LogEntry>> = BTreeMap::new();
            for entry in entries {
                locks.entry(&entry.key).or_default().push(entry);
            }
            let deadline = Deadline::after(within);
            let longest = locks.values().map(Vec::len).max().unwrap_or_default();
            // Calls that are sent together may be carried out in any order, but a lock's events
            // must keep theirs.
            for from in (0..longest).step_by(CHUNK) {
                let chunks = locks.iter().filter_map(|(key, entries)| {
                    let chunk = entries.get(from..)?.chunks(CHUNK).next()?;
                    Some(self.append_call(key, chunk))
                });
                let calls: Vec<_> = chunks.collect();
                for answer in self.run_all(&calls, Delivery::None, deadline).await {
                    answer.map_err(|verdict| self.error(&verdict, "log", None))?;
                }
            }
            Ok(())
        })
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        last: usize,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<LogEntry>>> {
        Box::pin(async move {
            let mut call = Call::new(&SCRIPTS.read, &[self.shared.names.log(key)]);
            call.arg(last.clamp(1, READ_MAX));
            let read = |value| events(value, key);
            self.run(call, Delivery::None, within, "read the log", key, read).await
        })
    }
}

/// Reads a part of a stream, which comes newest first. Skips entries that are not events.
fn events(answer: Value, key: &Key) -> Result<Vec<LogEntry>> {
    let Value::Array(answer) = answer else {
        return Err(Error::new(ErrorKind::Protocol, "the answer is not part of a stream"));
    };
    Ok(answer.into_iter().rev().filter_map(|item| event(item, key)).collect())
}

fn event(item: Value, key: &Key) -> Option<LogEntry> {
    let Value::Array(parts) = item else { return None };
    let mut parts = parts.into_iter();
    let (id, words) = (parts.next()?, parts.next()?);
    let Value::Array(words) = words else { return None };
    let at = text(id)?.split_once('-')?.0.parse().ok().map(Duration::from_millis)?;
    let words: Vec<String> = words.into_iter().map(text).collect::<Option<_>>()?;
    let (pairs, _) = words.as_chunks::<2>();
    LogEntry::read(key.clone(), at, pairs.iter().map(|[name, value]| (name, value)))
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
