//! Sends requests of many callers as one script call.
//!
//! A lone caller sends its request itself. Requests that come while another is under way go to a
//! queue. Up to [`WORKERS`] tasks take as many from it as one script call may hold, send them, and
//! report to each caller its own outcome. With more callers, a request so takes fewer calls, and no
//! caller waits for others to come along.
//!
//! A batch is sent once, and only over an open connection. If that fails before the server carries
//! it out, each caller goes on alone. So the outcome, the retries and the timeouts of a request
//! don't depend on its neighbours. A request is not sent again if its caller has gone.
//!
//! Callers on different runtimes don't share a queue: a task lives as long as its runtime, and so
//! do the callers that wait for it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_core::{BoxFuture, Effect, Result as StoreResult};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::RedisStore;
use super::queue::{Item, Kind, Queue, Told, lock};
use crate::classify::Verdict;
use crate::connect::connection::lane_of;
use crate::script::call::Call;
use crate::script::request::{Answer, Deadline, Delivery};
use crate::topology::slot::slot_of;
use crate::wire::reply;
use crate::wire::request_text::RequestText;

/// Script calls that are under way at a time, for one runtime. With fewer of them a request waits
/// longer for its turn where the server is far away; with more of them each holds fewer requests.
const WORKERS: usize = 3;

/// How long after its deadline a caller may learn of it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a caller does with its request.
enum Way {
    Alone(RequestText, Option<Alone>),
    Queued(oneshot::Receiver<Told>),
}

/// Marks the queue while a caller sends a request alone.
struct Alone(Arc<Queue>);

impl Drop for Alone {
    fn drop(&mut self) {
        lock(&self.0.state).alone = false;
    }
}

/// One of the tasks that send what is in a queue.
struct Worker {
    queue: Arc<Queue>,
    ended: bool,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.ended {
            // Its runtime ends.
            let mut state = lock(&self.queue.state);
            state.workers -= 1;
            if state.workers == 0 {
                state.releases.clear();
                state.acquires.clear();
            }
        }
    }
}

/// A caller whose request was taken out of the queue.
struct Caller {
    deadline: Deadline,
    tell: Option<oneshot::Sender<Told>>,
}

/// The outcome of a batch, and its requests. The outcome is `None` if there was no open connection.
type Sent = (Option<Result<Answer, Verdict>>, Vec<RequestText>);

impl Caller {
    fn told(&mut self, told: Told) {
        if let Some(tell) = self.tell.take() {
            // The caller may have gone.
            drop(tell.send(told));
        }
    }
}

/// A script call on its way.
struct Batch {
    kind: Kind,
    delivery: Delivery,
    callers: Vec<Caller>,
    sending: BoxFuture<'static, Sent>,
    done: Option<Sent>,
}

/// The outcome for each caller of a batch.
struct Answered(Vec<(Caller, Told)>);

impl Worker {
    /// Takes a batch and sends it. If the queue is empty, it returns `None` and the worker ends.
    fn next(&mut self, store: &RedisStore, cx: &mut Context<'_>) -> Option<Batch> {
        let _in_order = lock(&self.queue.order);
        let taken = {
            let mut state = lock(&self.queue.state);
            let taken = state.take();
            if taken.is_none() {
                state.workers -= 1;
                self.ended = true;
            }
            taken
        };
        let (kind, items) = taken?;
        let delivery = items.first()?.delivery;
        let deadline = Deadline::of_all(items.iter().map(|item| item.deadline))?;
        let mut texts = Vec::with_capacity(items.len());
        let mut callers = Vec::with_capacity(items.len());
        for Item { text: its, deadline, tell, delivery: _ } in items {
            texts.push(its);
            callers.push(Caller { deadline, tell: Some(tell) });
        }
        let mut sending = Box::pin(store.clone().sent(kind, texts, delivery, deadline));
        let done = match sending.as_mut().poll(cx) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        };
        Some(Batch { kind, delivery, callers, sending, done })
    }

    async fn work(mut self, store: RedisStore) {
        let queue = Arc::clone(&self.queue);
        // Callers that are about to send a request join the batch.
        yield_now().await;
        let mut under_way = self.sends(&store).await;
        while let Some(batch) = under_way {
            let answered = batch.answered(&queue).await;
            // One batch after the other, from its answer to its callers' next requests. Otherwise,
            // answers that came together lead to calls that go together. From then on, server and
            // client wait for each other.
            let _turn = queue.turn.lock().await;
            let mut next = None;
            if lock(&queue.state).has_whole_batch() {
                // The server works on the next batch while this thread wakes the callers of the
                // last one.
                next = self.sends(&store).await;
            }
            answered.tell();
            yield_now().await;
            if next.is_none() && !self.ended {
                next = self.sends(&store).await;
            }
            under_way = next;
        }
    }

    async fn sends(&mut self, store: &RedisStore) -> Option<Batch> {
        poll_fn(|cx| Poll::Ready(self.next(store, cx))).await
    }
}

impl Batch {
    /// Waits for the answer. Requests that the server put off go back to the queue.
    async fn answered(self, queue: &Queue) -> Answered {
        let Self { kind, delivery, mut callers, mut sending, mut done } = self;
        let (outcome, texts) = loop {
            if let Some(sent) = done {
                break sent;
            }
            let now = Instant::now();
            let first = callers.iter().filter(|caller| caller.tell.is_some());
            let first = first.map(|caller| caller.deadline.at).min().unwrap_or(now + LOOK_EVERY);
            done = timeout_at(first.min(now + LOOK_EVERY), &mut sending).await.ok();
            if done.is_none() {
                for caller in callers.iter_mut().filter(|caller| caller.deadline.is_over()) {
                    caller.told(Told::Outcome(Err(caller.deadline.missed())));
                }
                let expired = lock(&queue.state).expired();
                expired.into_iter().for_each(Item::run_out);
            }
        };
        let Answer { value, epoch, unconfirmed } = match outcome {
            Some(Ok(answer)) => answer,
            Some(Err(verdict)) if verdict.effect != Effect::NotApplied => {
                let all = || Told::Outcome(Err(verdict.clone()));
                return Answered(callers.into_iter().map(|caller| (caller, all())).collect());
            }
            Some(Err(_)) | None => {
                let all = callers.into_iter().map(|caller| (caller, Told::GoAlone));
                return Answered(all.collect());
            }
        };
        let values = reply::parts(value, callers.len());
        let mut answered = Vec::with_capacity(callers.len());
        let mut put_off = Vec::new();
        for ((mut caller, text), value) in callers.into_iter().zip(texts).zip(values) {
            if reply::is_put_off(&value)
                && let Some(tell) = caller.tell.take()
            {
                put_off.push(Item { text, delivery, deadline: caller.deadline, tell });
                continue;
            }
            let needs_it = matches!(delivery, Delivery::Confirmed { needed, .. } if needed(&value));
            let concerned = |missing: &&Verdict| needs_it || missing.passes_in.is_some();
            let unconfirmed = unconfirmed.as_ref().filter(concerned).cloned();
            answered.push((caller, Told::Outcome(Ok(Answer { value, epoch, unconfirmed }))));
        }
        if !put_off.is_empty() {
            let mut state = lock(&queue.state);
            let waiting = state.of(kind);
            put_off.into_iter().rev().for_each(|item| waiting.push_front(item));
        }
        Answered(answered)
    }
}

impl Answered {
    fn tell(self) {
        self.0.into_iter().for_each(|(mut caller, told)| caller.told(told));
    }
}

impl RedisStore {
    /// Sends requests as one script call.
    async fn sent(
        self,
        kind: Kind,
        texts: Vec<RequestText>,
        delivery: Delivery,
        deadline: Deadline,
    ) -> Sent {
        let call = self.call_of(kind, texts.iter());
        let transport = &*self.shared.transport;
        let request = call.by_digest(delivery);
        let Some(sending) = transport.at_once(&request, deadline) else {
            return (None, texts);
        };
        let answer = match sending.await {
            Ok(answer) => Ok(call.told(answer, transport, deadline).await),
            Err(verdict) => Err(verdict),
        };
        (Some(answer), texts)
    }

    fn call_of<'w>(
        &self,
        kind: Kind,
        each: impl ExactSizeIterator<Item = &'w RequestText> + Clone,
    ) -> Call<'static> {
        match kind {
            Kind::Acquire => self.acquire_call(each),
            Kind::Release => self.release_call(each),
        }
    }

    /// Runs a request, together with requests of other callers if there are some. The answer is
    /// about it alone.
    ///
    /// The future of a queued request is kept small: with a thousand of them, their size decides
    /// whether all fit into the processor's caches. So the part that only a lone request needs is
    /// boxed.
    pub(super) async fn combined(
        &self,
        kind: Kind,
        text: impl Fn() -> StoreResult<RequestText>,
        delivery: Delivery,
        deadline: Deadline,
    ) -> StoreResult<Result<Answer, Verdict>> {
        Ok(match self.way(kind, text()?, delivery, deadline) {
            Way::Alone(text, _alone) => Box::pin(self.alone(kind, &text, delivery, deadline)).await,
            Way::Queued(told) => match told.await {
                Ok(Told::Outcome(outcome)) => outcome,
                Ok(Told::GoAlone) => {
                    let text = text()?;
                    Box::pin(self.alone(kind, &text, delivery, deadline)).await
                }
                Err(_) => Err(Verdict::out_of_time(
                    Effect::Unknown,
                    "the runtime that sent the request has ended",
                )),
            },
        })
    }

    fn way(&self, kind: Kind, text: RequestText, delivery: Delivery, deadline: Deadline) -> Way {
        let (Some(combiner), Ok(runtime)) = (&self.shared.combiner, Handle::try_current()) else {
            return Way::Alone(text, None);
        };
        let lane = match delivery {
            Delivery::None => 0,
            // In a batch, this deadline would shorten the wait for replicas for all.
            Delivery::Confirmed { replication, .. }
                if replication.timeout > deadline.left() / 2 =>
            {
                return Way::Alone(text, None);
            }
            Delivery::InOrder | Delivery::Confirmed { .. } => 1 + lane_of(slot_of(text.key())),
        };
        let queue = combiner.queue(runtime.id(), lane);
        let mut state = lock(&queue.state);
        if !state.alone && state.workers == 0 {
            state.alone = true;
            drop(state);
            return Way::Alone(text, Some(Alone(queue)));
        }
        let (tell, told) = oneshot::channel();
        state.of(kind).push_back(Item { text, delivery, deadline, tell });
        let starts = state.workers < WORKERS;
        if starts {
            state.workers += 1;
        }
        drop(state);
        if starts {
            runtime.spawn(Worker { queue, ended: false }.work(self.clone()));
        }
        Way::Queued(told)
    }

    /// Returns once all requests that were taken out of a queue are on their way, so that what is
    /// sent from now on over the same connection comes after them.
    pub(super) fn settle_order(&self) {
        if let Some(combiner) = &self.shared.combiner {
            let queues = lock(&combiner.queues).clone();
            queues.iter().for_each(|queue| drop(lock(&queue.order)));
        }
    }

    async fn alone(
        &self,
        kind: Kind,
        text: &RequestText,
        delivery: Delivery,
        deadline: Deadline,
    ) -> Result<Answer, Verdict> {
        let call = self.call_of(kind, std::iter::once(text));
        let mut answer = call.run(&*self.shared.transport, delivery, deadline).await?;
        answer.value = reply::part(answer.value);
        Ok(answer)
    }
}
