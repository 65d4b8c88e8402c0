//! Queues requests until a script call takes them along.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Id;
use tokio::sync::oneshot;

use crate::classify::Verdict;
use crate::script::request::{Answer, Deadline, Delivery};
use crate::wire::request_text::RequestText;

/// How many requests a script call holds if few wait. The server then carries some out while
/// callers of others get their answers.
const PART: usize = 32;
/// How many it holds otherwise, and how many have to wait for that.
const WHOLE: usize = 64;
/// How many it holds at most. If the locks are free, they occupy a server for 0.25 ms. A script
/// puts off what takes longer.
const LARGE: usize = 128;
/// How many have to wait for that.
const CROWD: usize = 192;

/// Requests that one script can carry out together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Acquire,
    Release,
}

/// The outcome of a queued request.
pub(super) enum Told {
    /// The server's answer about this request alone.
    Outcome(Result<Answer, Verdict>),
    /// The server did not carry it out, so its caller sends it alone.
    GoAlone,
}

pub(super) struct Item {
    pub(super) text: RequestText,
    pub(super) delivery: Delivery,
    pub(super) deadline: Deadline,
    pub(super) tell: oneshot::Sender<Told>,
}

impl Item {
    /// Reports to the caller that its time ended before the request was sent.
    pub(super) fn run_out(self) {
        let missed = self.deadline.missed_unsent(None);
        // Its caller may have gone.
        drop(self.tell.send(Told::Outcome(Err(missed))));
    }
}

#[derive(Default)]
pub(super) struct State {
    /// Whether a caller sends a request alone.
    pub(super) alone: bool,
    pub(super) workers: usize,
    pub(super) releases: VecDeque<Item>,
    pub(super) acquires: VecDeque<Item>,
}

/// The requests of one runtime that go over one connection.
pub(super) struct Queue {
    runtime: Id,
    lane: u16,
    pub(super) state: Mutex<State>,
    /// Held from taking requests out of the queue until they are on their way.
    pub(super) order: Mutex<()>,
    /// Held from answering the callers of a batch until their next requests are on their way.
    pub(super) turn: tokio::sync::Mutex<()>,
}

/// All queues of a store.
#[derive(Default)]
pub(crate) struct Combiner {
    pub(super) queues: Mutex<Vec<Arc<Queue>>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Combiner {
    pub(super) fn queue(&self, runtime: Id, lane: u16) -> Arc<Queue> {
        let mut queues = lock(&self.queues);
        if let Some(queue) =
            queues.iter().find(|queue| queue.runtime == runtime && queue.lane == lane)
        {
            return Arc::clone(queue);
        }
        // Only this list still has the queues of runtimes that have ended.
        queues.retain(|queue| Arc::strong_count(queue) > 1);
        let (state, order) = (Mutex::default(), Mutex::default());
        let queue = Arc::new(Queue { runtime, lane, state, order, turn: Default::default() });
        queues.push(Arc::clone(&queue));
        queue
    }
}

impl State {
    pub(super) fn of(&mut self, kind: Kind) -> &mut VecDeque<Item> {
        match kind {
            Kind::Acquire => &mut self.acquires,
            Kind::Release => &mut self.releases,
        }
    }

    /// Whether what is taken next fills a script call.
    pub(super) fn has_whole_batch(&self) -> bool {
        let next = if self.releases.is_empty() { &self.acquires } else { &self.releases };
        next.len() >= WHOLE
    }

    /// Takes what one script call can hold. Releases come first, so that later acquisitions find
    /// the lock free.
    pub(super) fn take(&mut self) -> Option<(Kind, Vec<Item>)> {
        for kind in [Kind::Release, Kind::Acquire] {
            let waiting = self.of(kind);
            let most = match waiting.len() {
                CROWD.. => LARGE,
                WHOLE.. => WHOLE,
                _ => PART,
            };
            let mut batch: Vec<Item> = Vec::new();
            while let Some(next) = waiting.front() {
                if next.tell.is_closed() {
                    waiting.pop_front();
                    continue;
                }
                if next.deadline.is_over() {
                    let item = waiting.pop_front();
                    item.into_iter().for_each(Item::run_out);
                    continue;
                }
                let fits =
                    |first: &Item| batch.len() < most && first.delivery.is_like(&next.delivery);
                if !batch.first().is_none_or(fits) {
                    break;
                }
                batch.extend(waiting.pop_front());
            }
            if !batch.is_empty() {
                return Some((kind, batch));
            }
        }
        None
    }

    /// Removes the requests whose time has ended.
    pub(super) fn expired(&mut self) -> Vec<Item> {
        let mut expired = Vec::new();
        for waiting in [&mut self.releases, &mut self.acquires] {
            for item in std::mem::take(waiting) {
                if item.deadline.is_over() { expired.push(item) } else { waiting.push_back(item) }
            }
        }
        expired
    }
}
