//! Releases at the nodes anything that a token may have there.
//!
//! A node that can't be reached owes the undoing, which is sent again once the node is back. What
//! it holds would otherwise block all contenders until its lease expires. With another node gone,
//! the lock would then be unavailable.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{BoxFuture, Error, Moment, Result, Token};
use tokio::time::timeout;

use crate::debts::{Collecting, Debts, OWED_MAX, Owed, Undoing};
use crate::nodes::Nodes;
use crate::round::Round;

/// How many undoings are sent to an answering node at a time.
const BATCH: usize = 32;
/// How often a node with debts is tried, at first and later. If it answers another request, it is
/// tried at once.
const TRY_EVERY: Duration = Duration::from_millis(100);
const TRY_EVERY_MAX: Duration = Duration::from_secs(1);
/// How long an aborted task may take to end.
const ENDS_WITHIN: Duration = Duration::from_millis(250);

impl Nodes {
    /// Sends a node the request that ends a lease, and sends it again if the node could not be
    /// reached. At `until` the lease has expired there.
    pub(crate) fn undo_at<T: Send + 'static>(
        self: &Arc<Self>,
        node: usize,
        (undoing, until): (Undoing, Moment),
        answer: impl Future<Output = Result<T>> + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static {
        let token = undoing.token();
        self.tokens.undoing(token, self.now());
        let nodes = Arc::clone(self);
        async move {
            let answer = answer.await;
            let fails = answer.as_ref().is_err_and(Error::is_retryable);
            if !fails || !nodes.owe(node, Owed { undoing, until }) {
                nodes.tokens.undone(token, answer.is_ok().then_some(node));
            }
            answer
        }
    }

    /// Ends a grant, so that nothing more is sent for it. Returns how long it held.
    pub(crate) async fn end(&self, token: Token) -> Option<Moment> {
        let (until, completion) = self.tokens.end(token);
        if let Some(completion) = completion {
            // It may be in the middle of a request. If its runtime is stopped, it does not end but
            // also sends nothing.
            let _elapsed = timeout(ENDS_WITHIN, completion).await;
        }
        until
    }

    /// Sends all nodes the request that ends a lease. It includes nodes that did not answer, since
    /// they may have carried out the acquisition. No acquisition of the lease is sent after it.
    pub(crate) async fn undo_everywhere<T: Send + 'static>(
        self: &Arc<Self>,
        undoing: &Undoing,
        ask: impl Fn(usize) -> BoxFuture<'static, Result<T>> + Send + Sync,
    ) -> Round<Result<T>> {
        let longest = self.now().saturating_add(self.max_ttl.duration());
        let until = self.end(undoing.token()).await.unwrap_or(longest);
        let until = until.saturating_add(self.node_timeout);
        let mut round = Round::new();
        for node in 0..self.count() {
            round.ask(node, self.undo_at(node, (undoing.clone(), until), ask(node)));
        }
        round
    }

    /// Records a node's debt, if there is room for it.
    fn owe(self: &Arc<Self>, node: usize, owed: Owed) -> bool {
        let Some(debts) = self.debts.get(node) else { return false };
        let mut list = debts.list();
        if list.owed.len() >= OWED_MAX {
            let now = self.now();
            let over = |one: &Owed| one.until <= now;
            list.owed.retain(|one| !over(one));
        }
        // Keeps the oldest: the node was reachable then, so it probably holds those leases.
        if list.owed.len() >= OWED_MAX {
            return false;
        }
        list.owed.push_back(owed);
        let collecting = std::mem::replace(&mut list.collecting, true);
        // Unlocked before spawning: a runtime that is shutting down drops the task at once, and
        // `Collecting` then locks the list.
        drop(list);
        if !collecting {
            let collecting = Collecting::new(Arc::clone(debts));
            tokio::spawn(Arc::clone(self).collect(node, collecting));
        }
        true
    }

    /// Sends a node its debts until none are left.
    async fn collect(self: Arc<Self>, node: usize, mut collecting: Collecting) {
        let debts = Arc::clone(&collecting.debts);
        let mut pause = TRY_EVERY;
        let mut answers = false;
        loop {
            if !answers {
                // Either the node is back, or it is time to try it.
                let _elapsed = timeout(pause, debts.back.notified()).await;
                pause = pause.saturating_mul(2).min(TRY_EVERY_MAX);
            }
            let due = self.due(&debts, if answers { BATCH } else { 1 });
            if due.is_empty() {
                if collecting.end_if_paid() {
                    return;
                }
                continue;
            }
            answers = self.collect_some(node, &debts, due).await;
            if answers {
                pause = TRY_EVERY;
            }
        }
    }

    /// The next debts with anything left to undo.
    fn due(&self, debts: &Debts, count: usize) -> Vec<Owed> {
        let now = self.now();
        let mut list = debts.list();
        list.owed.retain(|one| one.until > now);
        let count = count.min(list.owed.len());
        list.owed.drain(..count).collect()
    }

    /// Sends some debts; returns whether the node has answered all. Unanswered ones stay owed.
    async fn collect_some(self: &Arc<Self>, node: usize, debts: &Debts, due: Vec<Owed>) -> bool {
        let mut round = Round::new();
        for one in due {
            let sent = self.send(node, &one.undoing);
            round.ask(node, async move { (one, sent.await) });
        }
        let mut all = true;
        while let Some((_, (one, answer))) = round.next().await {
            match answer {
                Err(error) if error.is_retryable() => {
                    all = false;
                    debts.list().owed.push_front(one);
                }
                answer => {
                    let error = answer.err();
                    tracing::debug!(
                        target: "leasehold", key = %one.undoing.key(), ?error, "released later"
                    );
                    self.tokens.undone(one.undoing.token(), Some(node));
                }
            }
        }
        all
    }

    fn send(&self, node: usize, undoing: &Undoing) -> BoxFuture<'static, Result<()>> {
        let patience = self.node_timeout;
        match undoing.clone() {
            Undoing::Leave(request) => Box::pin(self.ask(node, patience, move |store, within| {
                Box::pin(async move { store.leave(&request, within).await.map(drop) })
            })),
            Undoing::Release(request) => {
                Box::pin(self.ask(node, patience, move |store, within| {
                    Box::pin(async move { store.release(&request, within).await.map(drop) })
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use leasehold_core::{Key, LeaveRequest};
    use leasehold_embedded::MemoryStore;
    use tokio::runtime::Runtime;
    use tokio::task::yield_now;

    use super::*;
    use crate::store::QuorumStore;

    /// Exceeded only by a thread that hangs.
    const LONG: Duration = Duration::from_secs(60);

    fn one_node() -> Arc<Nodes> {
        QuorumStore::new(vec![Arc::new(MemoryStore::new())]).unwrap().nodes
    }

    fn owed(nodes: &Nodes) -> Owed {
        let request = LeaveRequest::new(Key::new("k").unwrap(), Token::generate().unwrap());
        Owed { undoing: Undoing::Leave(Arc::new(request)), until: nodes.now().saturating_add(LONG) }
    }

    /// Waits until the node owes nothing and its collector has ended.
    async fn paid(nodes: &Nodes) {
        let is_paid = || {
            let list = nodes.debts[0].list();
            list.owed.is_empty() && !list.collecting
        };
        timeout(LONG, async {
            while !is_paid() {
                yield_now().await;
            }
        })
        .await
        .expect("what is owed is collected");
    }

    #[test]
    fn cleanup_on_a_runtime_that_ended_delays_no_caller_and_is_collected_on_the_next() {
        let nodes = one_node();
        let over = Runtime::new().unwrap();
        let handle = over.handle().clone();
        over.shutdown_timeout(LONG);
        let (told, done) = mpsc::channel();
        let on_it = Arc::clone(&nodes);
        thread::spawn(move || {
            let _entered = handle.enter();
            told.send(on_it.owe(0, owed(&on_it))).unwrap();
        });
        let entered = done.recv_timeout(LONG).expect("owing on a runtime that ended returns");
        assert!(entered, "there is room for it");
        assert!(!nodes.debts[0].list().collecting, "nobody collects on a runtime that ended");
        assert_eq!(nodes.debts[0].list().owed.len(), 1);
        Runtime::new().unwrap().block_on(async {
            assert!(nodes.owe(0, owed(&nodes)));
            paid(&nodes).await;
        });
    }

    #[tokio::test]
    async fn collecting_leaves_nothing_in_memory() {
        let nodes = one_node();
        for _ in 0..3 {
            assert!(nodes.owe(0, owed(&nodes)));
            paid(&nodes).await;
        }
        let debts = Arc::downgrade(&nodes.debts[0]);
        drop(nodes);
        timeout(LONG, async {
            while debts.strong_count() > 0 {
                yield_now().await;
            }
        })
        .await
        .expect("debts of a quorum that is gone are gone");
    }
}
