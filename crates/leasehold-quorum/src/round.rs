//! Sends a request to several nodes at once.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;

use leasehold_core::{BoxFuture, Error, ErrorKind, Result};

/// Requests under way, and the answers so far.
///
/// All requests are started before the first answer is returned: a quick majority must not keep the
/// others from being sent. There are only a few nodes, so every wake-up polls all of them. Dropping
/// it drops the requests under way.
pub(crate) struct Round<T> {
    asked: Vec<(usize, BoxFuture<'static, T>)>,
    answered: VecDeque<(usize, T)>,
}

impl<T> Round<T> {
    pub(crate) fn new() -> Self {
        Self { asked: Vec::new(), answered: VecDeque::new() }
    }

    /// Adds a request to a node.
    pub(crate) fn ask(&mut self, node: usize, question: impl Future<Output = T> + Send + 'static) {
        self.asked.push((node, Box::pin(question)));
    }

    /// The next answer and its node; `None` after the last one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        let Self { asked, answered } = self;
        poll_fn(|cx| {
            asked.retain_mut(|(node, question)| match question.as_mut().poll(cx) {
                Poll::Ready(answer) => {
                    answered.push_back((*node, answer));
                    false
                }
                Poll::Pending => true,
            });
            match answered.pop_front() {
                Some(answer) => Poll::Ready(Some(answer)),
                None if asked.is_empty() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Whether an answer is waiting.
    pub(crate) fn has_answers(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Whether all answers have come and been returned.
    pub(crate) fn is_over(&self) -> bool {
        self.asked.is_empty() && self.answered.is_empty()
    }

    /// Waits for all requests under way and discards their answers.
    pub(crate) async fn finish(mut self) {
        while self.next().await.is_some() {}
    }
}

/// Every round needs timers, and tasks that outlast it.
pub(crate) fn check_runtime() -> Result<()> {
    let misuse = |_| Error::new(ErrorKind::Misuse, "a quorum works inside a tokio runtime only");
    tokio::runtime::Handle::try_current().map(drop).map_err(misuse)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn every_node_is_asked_before_the_first_answer_is_given_out() {
        let asked = Arc::new(AtomicUsize::new(0));
        let mut round = Round::new();
        for node in 0..5 {
            let asked = Arc::clone(&asked);
            round.ask(node, async move { asked.fetch_add(1, Ordering::SeqCst) });
        }
        assert_eq!(round.next().await, Some((0, 0)));
        assert_eq!(asked.load(Ordering::SeqCst), 5);
        round.finish().await;
    }
}
