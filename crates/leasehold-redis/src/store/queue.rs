//! Queues requests until a script call takes them along.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Id;
use tokio::sync::oneshot;

use crate::classify::Verdict;
use crate::request::{Answer, Deadline, Delivery};
use crate::words::Words;

/// How many requests a script call holds if few wait: so the server carries some out while callers of
/// others are told.
const PART: usize = 32;
/// How many it holds otherwise, and how many have to wait for that.
const WHOLE: usize = 64;
/// How many it holds at most: free locks keep a server for a quarter of a millisecond then, and a script
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

/// What came of a request that was in a queue.
pub(super) enum Told {
    /// The server's answer about this request alone.
    Outcome(Result<Answer, Verdict>),
    /// It was not carried out.
    GoAlone,
}

pub(super) struct Item {
    pub(super) words: Words,
    pub(super) delivery: Delivery,
    pub(super) deadline: Deadline,
    pub(super) tell: oneshot::Sender<Told>,
}

impl Item {
    /// Tells that its time was over before it was sent.
    pub(super) fn run_out(self) {
        let missed = self.deadline.missed_unsent(None);
        // Its caller may have gone.
        drop(self.tell.send(Told::Outcome(Err(missed))));
    }
}

#[derive(Default)]
pub(super) struct State {
    /// Somebody sends a request alone.
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
    /// Held from telling the callers of a batch until what they ask for next is on its way.
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
        // Nobody uses those of runtimes that have ended.
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

    /// Takes what one script call can hold. Releases come first: what is asked for after a release
    /// was, finds the lock free.
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

    /// Takes those whose time is over while they are in the queue.
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
