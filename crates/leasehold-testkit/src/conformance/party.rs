//! A client that wants a lock in a case, and what it gets.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireRequest, Already, Busy, ClientId, ErrorKind, FenceBlock, Key, Leave,
    LeaveRequest, Metadata, Mode, OwnerName, Place, QueueRequest, Refusal, Release, ReleaseRequest,
    Renew, RenewRequest, Store, Token, Ttl, Waiting,
};

use super::context::{CALL, LONG, Patience, cool, token, ttl};

/// The longest random pause after a split among contenders.
const SPLIT_PAUSE_MAX: Duration = Duration::from_millis(100);

/// One acquisition: its token and request.
#[derive(Clone, Debug)]
pub(super) struct Party {
    store: Arc<dyn Store>,
    pub(super) request: AcquireRequest,
}

impl Party {
    pub(super) fn new(store: Arc<dyn Store>, key: &Key) -> Self {
        Self { store, request: AcquireRequest::new(key.clone(), token(), ttl(LONG)) }
    }

    pub(super) fn owner(mut self, name: &str) -> Self {
        self.request.owner = OwnerName::new(name).expect("cases use good names");
        self
    }

    pub(super) fn metadata(mut self, text: &str) -> Self {
        self.request.metadata = Metadata::new(text).expect("cases use good metadata");
        self
    }

    pub(super) fn ttl(mut self, length: Duration) -> Self {
        self.request.ttl = ttl(length);
        self
    }

    pub(super) fn mode(mut self, mode: Mode) -> Self {
        self.request.mode = mode;
        self
    }

    pub(super) fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    pub(super) fn permits(self, count: u32, limit: u32) -> Self {
        self.mode(Mode::Permits { count: number(count), limit: number(limit) })
    }

    pub(super) fn fence_block(mut self, count: u32) -> Self {
        self.request.fence_block = number(count);
        self
    }

    pub(super) fn holds(mut self, count: u32) -> Self {
        self.request.holds = number(count);
        self
    }

    /// Queues as a new client, with a heartbeat timeout as long as the lease.
    pub(super) fn queued(self) -> Self {
        self.queued_as(client(), 1)
    }

    pub(super) fn queued_as(mut self, client: ClientId, ticket: u64) -> Self {
        self.request.queue = Some(QueueRequest::new(client, ticket, self.request.ttl));
        self
    }

    pub(super) fn window(mut self, length: Duration) -> Self {
        self.queue_mut().window = ttl(length);
        self
    }

    pub(super) fn max_waiters(mut self, max: u32) -> Self {
        self.queue_mut().max_waiters = Some(max);
        self
    }

    pub(super) fn behind(mut self, contenders: u32) -> Self {
        self.queue_mut().behind = contenders;
        self
    }

    pub(super) fn place(mut self, place: Place) -> Self {
        self.queue_mut().place = Some(place);
        self
    }

    /// The same party with the number of its next heartbeat.
    pub(super) fn next_beat(mut self) -> Self {
        let queue = self.queue_mut();
        queue.heartbeat = queue.heartbeat.checked_add(1).expect("few heartbeats");
        self
    }

    fn queue_mut(&mut self) -> &mut QueueRequest {
        self.request.queue.as_mut().expect("a party in the queue")
    }

    pub(super) fn token(&self) -> Token {
        self.request.token
    }

    pub(super) async fn ask(&self) -> Acquire {
        self.store.acquire(&self.request, CALL).await.expect("acquire answers")
    }

    /// As [`ask`](Self::ask); `None` if a quorum took longer than the shortest lease lasts.
    pub(super) async fn ask_in_time(&self) -> Option<Acquire> {
        let brief = self.store.capability().undoes && self.request.ttl == Ttl::MIN;
        match self.store.acquire(&self.request, CALL).await {
            Ok(Acquire::Busy(busy)) if brief && busy.is_contended() => None,
            Err(error) if brief && error.kind() == ErrorKind::Unavailable => None,
            answer => Some(answer.expect("acquire answers")),
        }
    }

    /// The same party for a request after a refusal or an abandoned one. It has a new token if the
    /// store needs that.
    pub(super) fn again(mut self) -> Self {
        if self.store.capability().undoes {
            self.request.token = token();
        }
        self
    }

    /// Requests like a client, which retries after a split among contenders until the result is
    /// clear. Also returns the party of the last request.
    pub(super) async fn ask_until_settled(mut self) -> (Acquire, Self) {
        let mut patience = Patience::for_what("contenders to settle it");
        loop {
            match self.ask().await {
                Acquire::Busy(busy) if busy.is_contended() && self.store.capability().undoes => {
                    patience.pause_within(SPLIT_PAUSE_MAX).await;
                    self = self.again();
                }
                answer => return (answer, self),
            }
        }
    }

    /// Acquires a free lock.
    pub(super) async fn take(&self) -> Lease {
        match self.ask().await {
            Acquire::Granted(granted) => self.lease(granted.fences),
            other => panic!("{} was not granted: {other:?}", self.request.key),
        }
    }

    /// Acquires a free lock with a short lease. `None` if the nodes of a quorum took longer than a
    /// quarter of it: what some may still have of it expires soon.
    pub(super) async fn take_in_time(&self) -> Option<Lease> {
        match self.store.acquire(&self.request, CALL).await {
            Ok(Acquire::Granted(granted)) => Some(self.lease(granted.fences)),
            Err(error)
                if self.store.capability().undoes && error.kind() == ErrorKind::Unavailable =>
            {
                None
            }
            other => panic!("{} was not granted: {other:?}", self.request.key),
        }
    }

    /// Acquires what this token already holds.
    pub(super) async fn take_again(&self) -> Already {
        let mut patience = Patience::for_what("an answer that a majority gives");
        loop {
            match self.ask().await {
                Acquire::Already(already) => return already,
                // Slow nodes of a quorum don't know the lease yet.
                Acquire::Busy(busy) if busy.is_contended() => patience.pause().await,
                other => panic!("{} was not held already: {other:?}", self.request.key),
            }
        }
    }

    /// The lease that the queue granted to it.
    pub(super) async fn took(&self) -> Lease {
        self.lease(self.take_again().await.fences)
    }

    /// Queues for a lock that another party holds.
    pub(super) async fn wait(&self) -> Waiting {
        match self.ask().await {
            Acquire::Waiting(waiting) => waiting,
            other => panic!("not queued for {}: {other:?}", self.request.key),
        }
    }

    pub(super) async fn fail(&self) -> Busy {
        match self.ask().await {
            Acquire::Busy(busy) => busy,
            other => panic!("{} was not busy: {other:?}", self.request.key),
        }
    }

    /// Requests a lock that is unavailable for a while; returns the reason. A lease ends at each
    /// node of a quorum a moment apart. Until the nodes agree, a quorum gives no reason, so the
    /// request is repeated.
    pub(super) async fn learn_why_not(&self) -> Busy {
        let mut patience = Patience::for_what("a reason that a majority gives");
        let mut party = self.clone();
        loop {
            let busy = party.fail().await;
            if !busy.is_contended() {
                return busy;
            }
            patience.pause().await;
            party = party.again();
        }
    }

    pub(super) async fn be_refused(&self) -> Refusal {
        match self.ask().await {
            Acquire::Refused(refusal) => refusal,
            other => panic!("{} was not refused: {other:?}", self.request.key),
        }
    }

    pub(super) async fn leave(&self) -> Leave {
        let request = LeaveRequest::new(self.request.key.clone(), self.request.token);
        self.store.leave(&request, CALL).await.expect("leave answers")
    }

    pub(super) fn lease(&self, fences: FenceBlock) -> Lease {
        Lease {
            store: Arc::clone(&self.store),
            key: self.request.key.clone(),
            token: self.request.token,
            fences,
        }
    }
}

/// A lease that a party was granted.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    store: Arc<dyn Store>,
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) fences: FenceBlock,
}

impl Lease {
    pub(super) fn renewal(&self, length: Duration) -> RenewRequest {
        RenewRequest::new(self.key.clone(), self.token, self.fences, ttl(length))
    }

    pub(super) async fn renew(&self, length: Duration) -> Renew {
        let mut answers = self.store.renew(&[self.renewal(length)], CALL).await;
        assert_eq!(answers.len(), 1, "one request, one answer");
        answers.remove(0).expect("renew answers")
    }

    pub(super) fn ending(&self) -> ReleaseRequest {
        ReleaseRequest::new(self.key.clone(), self.token, self.fences)
    }

    /// Repeats the release if it fails, since a node of a quorum has little time for each request.
    pub(super) async fn release_with(&self, request: &ReleaseRequest) -> Release {
        let mut patience = Patience::for_what("an answer to a release");
        loop {
            match self.store.release(request, CALL).await {
                Err(error) if error.kind() == ErrorKind::Unavailable => patience.pause().await,
                answer => return answer.expect("release answers"),
            }
        }
    }

    pub(super) async fn release(&self) -> Release {
        self.release_with(&self.ending()).await
    }

    pub(super) async fn release_and_close(&self, cooldown: Duration) -> Release {
        let mut request = self.ending();
        request.cooldown = cool(cooldown);
        self.release_with(&request).await
    }

    pub(super) async fn end(self) {
        assert_eq!(self.release().await, Release::Released);
    }
}

pub(super) fn client() -> ClientId {
    ClientId::generate().expect("the operating system has randomness")
}

pub(super) fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("cases count from 1")
}
