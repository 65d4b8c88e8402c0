//! Writes each event to all nodes that keep a log, and reads from all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    BoxFuture, Error, ErrorKind, Key, LockLog, LogEntry, LogId, Result, settle_log,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::inspect::GRACE;
use crate::nodes::majority;
use crate::round::{Round, check_runtime};

/// How many appends may be under way to a node. A node with this many gets no more until it
/// answers.
const UNDER_WAY: usize = 32;

#[derive(Debug)]
pub(crate) struct QuorumLog {
    logs: Vec<NodeLog>,
}

#[derive(Debug)]
struct NodeLog {
    log: Arc<dyn LockLog>,
    room: Arc<Semaphore>,
}

impl QuorumLog {
    /// The quorum's log, if any node has one.
    pub(crate) fn of(logs: Vec<Arc<dyn LockLog>>) -> Option<Arc<dyn LockLog>> {
        let room = || Arc::new(Semaphore::new(UNDER_WAY));
        let logs: Vec<_> = logs.into_iter().map(|log| NodeLog { log, room: room() }).collect();
        (!logs.is_empty()).then(|| Arc::new(Self { logs }) as Arc<dyn LockLog>)
    }
}

fn nobody() -> Error {
    Error::new(ErrorKind::Unavailable, "no node of the quorum has answered")
}

impl LockLog for QuorumLog {
    fn keeps(&self) -> u32 {
        self.logs.iter().map(|node| node.log.keeps()).max().unwrap_or_default()
    }

    /// An event counts as written once one node has it, since it is for people only. The caller
    /// waits for a majority; other nodes get the event in the background.
    fn append<'a>(
        &'a self,
        entries: &'a [LogEntry],
        within: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            check_runtime()?;
            let entries: Arc<[LogEntry]> = entries.into();
            let keeping = self.logs.iter().filter(|node| node.log.keeps() > 0);
            let enough = majority(keeping.clone().count());
            let mut round = Round::new();
            for (node, NodeLog { log, room }) in keeping.enumerate() {
                let Ok(place) = Arc::clone(room).try_acquire_owned() else { continue };
                let (log, entries) = (Arc::clone(log), Arc::clone(&entries));
                round.ask(node, async move {
                    let answer = log.append(&entries, within).await;
                    drop(place);
                    answer
                });
            }
            let (mut outcome, mut written) = (Err(nobody()), 0_usize);
            while written < enough
                && let Some((_, answer)) = round.next().await
            {
                written = written.saturating_add(usize::from(answer.is_ok()));
                if outcome.is_err() {
                    outcome = answer;
                }
            }
            if !round.is_over() {
                tokio::spawn(round.finish());
            }
            outcome
        })
    }

    /// The events of all nodes, each once, with its earliest time.
    ///
    /// Nodes slower than a majority have as long again.
    fn read<'a>(
        &'a self,
        key: &'a Key,
        last: usize,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<LogEntry>>> {
        Box::pin(async move {
            check_runtime()?;
            let mut round = Round::new();
            for (node, NodeLog { log, .. }) in self.logs.iter().enumerate() {
                let (log, key) = (Arc::clone(log), key.clone());
                round.ask(node, async move { log.read(&key, last, within).await });
            }
            let (mut found, mut failed) = (BTreeMap::<LogId, LogEntry>::new(), None);
            let (mut answered, mut until) = (0_usize, None);
            let begin = Instant::now();
            loop {
                let next = match until {
                    Some(until) => timeout_at(until, round.next()).await.unwrap_or_default(),
                    None => round.next().await,
                };
                match next {
                    Some((_, Ok(entries))) => {
                        answered = answered.saturating_add(1);
                        for entry in entries {
                            let there = found.entry(entry.id).or_insert_with(|| entry.clone());
                            there.at = there.at.min(entry.at);
                        }
                    }
                    Some((_, Err(error))) => failed = Some(error),
                    None => break,
                }
                if until.is_none() && answered >= majority(self.logs.len()) {
                    until = Instant::now().checked_add(begin.elapsed().max(GRACE));
                }
            }
            if answered == 0 {
                return Err(failed.unwrap_or_else(nobody));
            }
            let mut entries: Vec<LogEntry> = found.into_values().collect();
            // The events of one client keep their order even if the nodes' clocks differ.
            settle_log(&mut entries);
            entries.sort_by_key(|entry| (entry.at, entry.id));
            let before = entries.len().saturating_sub(last);
            Ok(entries.split_off(before))
        })
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::Fence;

    use super::*;

    /// Has one event, or never answers.
    #[derive(Debug)]
    struct Node {
        answers: bool,
    }

    impl LockLog for Node {
        fn keeps(&self) -> u32 {
            10
        }

        fn append<'a>(&'a self, _: &'a [LogEntry], _: Duration) -> BoxFuture<'a, Result<()>> {
            Box::pin(
                async move { if self.answers { Ok(()) } else { std::future::pending().await } },
            )
        }

        fn read<'a>(
            &'a self,
            key: &'a Key,
            _: usize,
            _: Duration,
        ) -> BoxFuture<'a, Result<Vec<LogEntry>>> {
            let id = LogId { client: 1, number: 0 };
            let entry = LogEntry::new(key.clone(), id, "granted", Fence::from_value(1).unwrap());
            Box::pin(async move {
                if self.answers { Ok(vec![entry]) } else { std::future::pending().await }
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_caller_waits_for_a_node_that_hangs() {
        let nodes = [false, true, true].map(|answers| Arc::new(Node { answers }) as _);
        let log = QuorumLog::of(nodes.to_vec()).unwrap();
        let key = Key::new("k").unwrap();
        let within = Duration::from_secs(2);
        let begin = Instant::now();
        let entries = log.read(&key, 10, within).await.unwrap();
        assert_eq!(entries.len(), 1);
        assert!(begin.elapsed() < within);
        // More than may be under way to a node.
        for _ in 0..UNDER_WAY * 2 {
            log.append(&entries, within).await.unwrap();
        }
        assert!(begin.elapsed() < within);
    }
}
