//! Sends requests of many callers in one statement.
//!
//! A lone caller sends its request itself. Those that come before it is sent go with it, and those
//! that come while it is under way go together after it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{AcquireRequest, Effect, Error, ErrorKind, Key, ReleaseRequest, Result};
use tokio::sync::{Mutex as Gate, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout_at;

use crate::classify::{Deadline, Fault};
use crate::short::Short;
use crate::store::PostgresStore;

/// Requests in one statement: it takes some 5 ms.
const AT_ONCE: usize = 256;
/// A caller with less time goes alone: the time of one limits all.
const PATIENT: Duration = Duration::from_secs(1);

/// The requests for one connection that wait.
#[derive(Default)]
pub(crate) struct Queues {
    takes: Arc<Queue<AcquireRequest>>,
    releases: Arc<Queue<ReleaseRequest>>,
}

pub(crate) struct Queue<R> {
    state: Mutex<State<R>>,
    /// Held while a statement for several is under way.
    together: Gate<()>,
}

struct State<R> {
    is_sending: bool,
    waiting: Vec<Waiting<R>>,
}

struct Waiting<R> {
    request: R,
    deadline: Deadline,
    tell: oneshot::Sender<Result<Short, Fault>>,
}

impl<R> Default for Queue<R> {
    fn default() -> Self {
        let state = Mutex::new(State { is_sending: false, waiting: Vec::new() });
        Self { state, together: Gate::default() }
    }
}

impl<R> Queue<R> {
    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that one statement can have many of.
pub(crate) trait Together: Clone + Send + Sync + Sized + 'static {
    fn key(&self) -> &Key;
    fn queue(queues: &Queues) -> &Arc<Queue<Self>>;
    /// The server carries it out by the first deadline, and answers by the second.
    fn send(
        store: &PostgresStore,
        requests: &[&Self],
        deadlines: [Deadline; 2],
    ) -> impl Future<Output = Result<Vec<Result<Short>>, Fault>> + Send;
}

impl Together for AcquireRequest {
    fn key(&self) -> &Key {
        &self.key
    }

    fn queue(queues: &Queues) -> &Arc<Queue<Self>> {
        &queues.takes
    }

    async fn send(
        store: &PostgresStore,
        requests: &[&Self],
        [first, last]: [Deadline; 2],
    ) -> Result<Vec<Result<Short>>, Fault> {
        store.taken(requests, first, last).await
    }
}

impl Together for ReleaseRequest {
    fn key(&self) -> &Key {
        &self.key
    }

    fn queue(queues: &Queues) -> &Arc<Queue<Self>> {
        &queues.releases
    }

    async fn send(
        store: &PostgresStore,
        requests: &[&Self],
        [_, last]: [Deadline; 2],
    ) -> Result<Vec<Result<Short>>, Fault> {
        store.released(requests, last).await
    }
}

/// The right to send. When it is dropped, those that wait go together.
struct Turn<R: Together> {
    store: PostgresStore,
    queue: Arc<Queue<R>>,
}

impl<R: Together> Drop for Turn<R> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if state.waiting.is_empty() {
            state.is_sending = false;
            return;
        }
        drop(state);
        let (store, queue) = (self.store.clone(), Arc::clone(&self.queue));
        self.store
            .shared
            .pool
            .driver
            .runtime()
            .spawn(async move { while store.send_waiting(&queue).await {} });
    }
}

impl PostgresStore {
    fn queues(&self, key: &Key) -> Option<&Queues> {
        self.shared.queues.get(self.shared.pool.place(self.hash(key)))
    }

    /// Sends a request, alone or with others.
    pub(crate) async fn together<R: Together>(
        &self,
        request: &R,
        deadline: Deadline,
    ) -> Result<Short, Fault> {
        let alone = async || {
            let outcome = R::send(self, &[request], [deadline; 2]).await?.pop();
            Ok(outcome.transpose()?.unwrap_or(Short::Missed(None)))
        };
        let Some(queues) = self.queues(request.key()).filter(|_| deadline.left() >= PATIENT) else {
            return alone().await;
        };
        let queue = R::queue(queues);
        let join = |state: &mut State<R>| {
            let (tell, told) = oneshot::channel();
            state.waiting.push(Waiting { request: request.clone(), deadline, tell });
            told
        };
        let joined = {
            let mut state = queue.state();
            let is_sending = std::mem::replace(&mut state.is_sending, true);
            is_sending.then(|| join(&mut state))
        };
        let told = match joined {
            Some(told) => told,
            None => {
                let _turn = Turn { store: self.clone(), queue: Arc::clone(queue) };
                // The answer that woke this caller may have woken others, which then ask now.
                yield_now().await;
                let joined = {
                    let mut state = queue.state();
                    (!state.waiting.is_empty()).then(|| join(&mut state))
                };
                match joined {
                    Some(told) => told,
                    None => return alone().await,
                }
            }
        };
        match timeout_at(deadline.at, told).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(deadline.missed(Effect::Unknown)),
        }
    }

    /// Sends some of those that wait, and returns whether there were any.
    async fn send_waiting<R: Together>(&self, queue: &Queue<R>) -> bool {
        let _together = queue.together.lock().await;
        let mut all = {
            let mut state = queue.state();
            // The callers of the others have gone.
            state.waiting.retain(|waiting| !waiting.tell.is_closed());
            let count = state.waiting.len().min(AT_ONCE);
            state.is_sending = count > 0;
            state.waiting.drain(..count).collect::<Vec<_>>()
        };
        // In the same order everywhere, so that no two statements wait for each other.
        all.sort_by(|one, other| one.request.key().cmp(other.request.key()));
        let deadlines = || all.iter().map(|one| one.deadline);
        let (first, last) =
            (deadlines().min_by_key(|it| it.at), deadlines().max_by_key(|it| it.at));
        let Some((first, last)) = first.zip(last) else { return false };
        let requests: Vec<&R> = all.iter().map(|one| &one.request).collect();
        let outcome = R::send(self, &requests, [first, last]).await;
        let mut outcomes = outcome.map(Vec::into_iter);
        for one in all {
            let told = match &mut outcomes {
                Ok(outcomes) => match outcomes.next() {
                    Some(outcome) => outcome.map_err(Fault::from),
                    None => Err(Error::new(ErrorKind::Protocol, "the answer lacks rows").into()),
                },
                Err(fault) => Err(fault.clone()),
            };
            // Its caller may have gone.
            drop(one.tell.send(told));
        }
        true
    }

    /// Waits until the request of a dropped future is answered, if it was sent with others.
    pub(crate) async fn answered(&self, key: &Key, within: Duration) -> Result<()> {
        let Some(queues) = self.queues(key) else { return Ok(()) };
        let deadline = Deadline::after(within);
        let together = timeout_at(deadline.at, queues.takes.together.lock()).await;
        let missed = |_| self.named(deadline.missed(Effect::NotApplied).error, "leave", Some(key));
        together.map(drop).map_err(missed)
    }
}
