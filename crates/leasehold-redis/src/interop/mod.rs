//! Locks in the layouts of other libraries.
//!
//! The layouts support exclusive leases only, so other requests are refused: queues, shared holds,
//! semaphores, cooldowns, and fences except Redisson's. Leases work as in other stores.

mod layout;
mod native;
mod requests;
mod tracker;
mod tracking;
mod watch;

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Already, Ask, AskRequest, BoxFuture, Busy, Capability,
    ClientId, Convert, ConvertRequest, Effect, Error, ErrorKind, Fence, FenceBlock, ForceRelease,
    ForceReleaseRequest, Granted, HolderInfo, Key, Kind, Leave, LeaveRequest, ListRequest,
    Listener, Listing, LockInfo, Mode, Place, Release, ReleaseRequest, Renew, RenewRequest, Result,
    SetLimit, SetLimitRequest, Store, Ttl, Waiting, escape,
};
use redis::Value;

pub use self::layout::Layout;
use self::native::Native;
use self::requests::{Answered, Requests};
use self::tracking::Servers;
use self::watch::Watches;
use crate::connect::listen::Source;
use crate::script::call::Call;
use crate::script::request::{Deadline, Delivery};
use crate::store::RedisStore;

/// How long a lock without expiry counts as held.
const WITHOUT_END: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Locks of another library in a Redis or Valkey server: a [`RedisStore`] that stores them as that
/// library does.
///
/// Cheap to clone. A lock's name is its key in the server, after the prefix of the [`Layout`]; the
/// store's own prefix is not used.
///
/// # Guarantees
///
/// Every operation is one script. A lease is granted only if the key was free, and renewed and
/// ended only while it belongs to its holder.
///
/// The server tracks keys. So waiters wake up when any program ends a lease, and a holder learns in
/// the same way that another program has ended its lease. On borrowed connections keys are not
/// tracked: waiters poll, and the next renewal detects a loss.
///
/// There is no queue, so waiters are served in any order. Releasing an expired lease is always
/// [`Release::NotHeld`], even if the lock has been free since.
#[derive(Clone, Debug)]
pub struct InteropStore {
    inner: RedisStore,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    requests: Requests,
    native: Native,
    watches: Arc<Watches>,
    /// Numbers instead of fences, which distinguish the leases of this process.
    numbers: AtomicU64,
    /// Locks that this store has given an expiry.
    adopted: Mutex<HashSet<Key>>,
}

impl InteropStore {
    /// Locks in this layout, on the server of `store`.
    #[must_use]
    pub fn new(store: RedisStore, layout: Layout) -> Self {
        let spread = store.shared.transport.is_spread();
        Self::with(store, Requests { layout, leftovers: None, spread })
    }

    fn with(inner: RedisStore, requests: Requests) -> Self {
        let shared = Shared {
            watches: Watches::new(requests.layout.clone()),
            requests,
            native: Native::default(),
            numbers: AtomicU64::new(1),
            adopted: Mutex::default(),
        };
        Self { inner, shared: Arc::new(shared) }
    }

    /// Gives this expiry to a lock that is found without any, so that it becomes free: it was left
    /// by a program that died between two commands. By default such a lock is left alone, since
    /// some libraries hold locks without expiry on purpose.
    ///
    /// A warning is logged for each lock that gets an expiry, and for each that is acquired
    /// afterwards.
    #[must_use]
    pub fn leftovers(self, expiry: Ttl) -> Self {
        let requests = Requests { leftovers: Some(expiry), ..self.shared.requests.clone() };
        Self::with(self.inner, requests)
    }

    /// How many notifications to the other library's waiters could not be sent for lack of a right.
    /// Those waiters rely on their own timers. The first one is logged as a warning. See
    /// [`RedisStore::messages_lost`].
    #[must_use]
    pub fn messages_lost(&self) -> u64 {
        self.inner.messages_lost()
    }

    /// The layout of its locks.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.shared.requests.layout
    }

    /// The servers that track the keys of waiters and holders.
    fn tracked(&self) -> Option<Servers> {
        match &**self.inner.shared.wake.as_ref()? {
            Source::Own(access) => Some(Servers::One(Arc::clone(access))),
            Source::Cluster(cluster) => Some(Servers::Cluster(cluster.clone())),
            Source::Client(_) => None,
        }
    }

    fn unsupported<T>(&self, what: &str, operation: &'static str, key: Option<&Key>) -> Result<T> {
        let layout = self.layout();
        let error = Error::new(ErrorKind::Unsupported, format!("locks of {layout} have no {what}"));
        Err(self.inner.named(error, operation, key))
    }

    fn check(&self, request: &AcquireRequest) -> Result<()> {
        let layout = self.layout();
        let key = Some(&request.key);
        let lacks = |what| self.unsupported(what, "acquire", key);
        if self.shared.requests.spread && layout.spreads() {
            return lacks("support in a cluster, where the keys of a lock are on two servers");
        }
        if request.mode != Mode::Exclusive {
            return lacks("shared holds");
        }
        if request.after.is_some() {
            return lacks("record of their last holder");
        }
        if !request.cooldown.is_none() {
            return lacks("cooldown");
        }
        if request.holds > NonZeroU32::MIN && !layout.counts_holds() {
            return lacks("count of holds");
        }
        if !request.metadata.as_str().is_empty() && !layout.has_metadata() {
            return lacks("room for metadata");
        }
        self.inner.check_ttl(request.ttl).map_err(|it| self.inner.named(it, "acquire", key))
    }

    /// The fences of a grant: the server's number, or one of this process.
    fn fences(&self, number: u64) -> FenceBlock {
        let number = match number {
            0 => self.shared.numbers.fetch_add(1, Ordering::Relaxed),
            number => number,
        };
        FenceBlock::new(Fence::new(0, number).unwrap_or(Fence::ZERO), 1)
    }

    async fn take(&self, requests: &[AcquireRequest], within: Duration) -> Result<Taken> {
        let deadline = Deadline::after(within);
        requests.iter().try_for_each(|request| self.check(request))?;
        let first = requests.first().map(|request| &request.key);
        let call = self.shared.requests.acquire_call(requests)?;
        let shortest = requests.iter().map(|request| request.ttl.duration()).min();
        let delivery = self.inner.confirmed(shortest.unwrap_or_default(), requests::is_grant);
        let answer = call
            .run(&*self.inner.shared.transport, delivery, deadline)
            .await
            .map_err(|verdict| self.inner.error(&verdict, "acquire", first))?;
        if let Some(missing) = answer.unconfirmed {
            let effect = self.give_back(requests, deadline).await;
            return Err(self.inner.error(&missing.with_effect(effect), "acquire", first));
        }
        match requests::acquired(answer.value) {
            Some(Answered::Held { again, number }) => {
                let mut all = Vec::with_capacity(requests.len());
                for request in requests {
                    let before = self.shared.watches.fence_under(&request.key, request.token);
                    let fences = match before.filter(|_| again) {
                        Some(fence) => FenceBlock::new(fence, 1),
                        None => self.fences(number),
                    };
                    let (key, ttl) = (&request.key, request.ttl.duration());
                    self.shared.watches.holds(key, request.token, fences.first(), ttl);
                    if !again && let Some(value) = self.shared.requests.lasting_value(request) {
                        self.shared.watches.holds_by(key, request.token, value);
                    }
                    self.tell_of_takeover(key);
                    all.push(fences);
                }
                Ok(Taken::Held { again, all })
            }
            Some(Answered::Busy { place, left, value, adopted }) => {
                let request = requests.get(place).or_else(|| requests.first());
                if let Some(key) = request.map(|request| &request.key).filter(|_| adopted) {
                    self.tell_of_leftover(key);
                }
                let retry_after = left.unwrap_or(WITHOUT_END);
                let busy = Busy::new(retry_after, Some(self.holder(&value, retry_after, 1)));
                Ok(Taken::Busy { place, busy })
            }
            Some(Answered::Foreign { place, sort }) => {
                let request = requests.get(place).or_else(|| requests.first());
                let error = self.foreign(&sort);
                Err(self.inner.named(error, "acquire", request.map(|request| &request.key)))
            }
            None => Err(self.unreadable("acquire", first)),
        }
    }

    fn holder(&self, value: &[u8], remaining: Duration, holds: u32) -> HolderInfo {
        let mut holder = HolderInfo::new(Mode::Exclusive, Fence::ZERO, Duration::ZERO, remaining);
        (holder.owner, holder.metadata) = self.layout().read(value);
        holder.holds = holds;
        holder
    }

    fn foreign(&self, sort: &str) -> Error {
        let layout = self.layout();
        let sort = escape::terminal(sort);
        let error = Error::new(
            ErrorKind::Foreign,
            format!("its key holds a {sort}, which is not a lock of {layout}; use another name"),
        );
        error.with_effect(Effect::NotApplied)
    }

    /// The answer of a script about a key; `None` if it can't be read.
    async fn look(
        &self,
        call: Call<'static>,
        key: &Key,
        deadline: Deadline,
    ) -> Result<Option<Option<Answered>>> {
        let answer = call.run(&*self.inner.shared.transport, Delivery::None, deadline).await;
        let answer = answer.map_err(|verdict| self.inner.error(&verdict, "inspect", Some(key)))?;
        Ok(requests::looked(answer.value))
    }

    fn unreadable(&self, operation: &'static str, key: Option<&Key>) -> Error {
        let error = Error::new(ErrorKind::Protocol, "the server's answer can't be read");
        self.inner.named(error.with_effect(Effect::Unknown), operation, key)
    }

    fn adopted(&self) -> std::sync::MutexGuard<'_, HashSet<Key>> {
        self.shared.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_of_leftover(&self, key: &Key) {
        let expiry = self.shared.requests.leftovers.map(|expiry| expiry.to_string());
        let expiry = expiry.unwrap_or_default();
        tracing::warn!(target: "leasehold", %key, %expiry, "a lock without an expiry got one");
        self.adopted().insert(key.clone());
    }

    fn tell_of_takeover(&self, key: &Key) {
        if self.shared.requests.leftovers.is_some() && self.adopted().remove(key) {
            tracing::warn!(target: "leasehold", %key, "a leftover lock without an expiry was acquired");
        }
    }

    /// Abandons grants that don't count.
    async fn give_back(&self, requests: &[AcquireRequest], deadline: Deadline) -> Effect {
        let mut effect = Effect::NotApplied;
        for request in requests {
            if request.holds > NonZeroU32::MIN {
                // The request does not know the earlier holds; the next answer corrects the count.
                return Effect::Applied;
            }
            let call = self.shared.requests.end_call(&request.key, request.token, 0);
            let call = call.telling(&self.inner.shared.unsent);
            if call
                .run(&*self.inner.shared.transport, self.inner.in_order(), deadline)
                .await
                .is_err()
            {
                effect = Effect::Unknown;
            }
        }
        effect
    }

    async fn end(
        &self,
        (key, token, remaining): (&Key, leasehold_core::Token, u32),
        operation: &'static str,
        within: Duration,
    ) -> Result<bool> {
        let value = self.shared.watches.value_of(key, token).filter(|_| remaining == 0);
        if remaining == 0 {
            self.shared.watches.forget(key, token);
        }
        let call = self.shared.requests.end_call(key, token, remaining);
        let call = call.telling(&self.inner.shared.unsent);
        let transport = &*self.inner.shared.transport;
        let (delivery, deadline) = (self.inner.in_order(), Deadline::after(within));
        let answer = match value {
            Some(value) => {
                let stored = (&*self.layout().key(key), &*value);
                self.shared.native.end(stored, &call, transport, delivery, deadline).await
            }
            None => call.run(transport, delivery, deadline).await,
        };
        let answer = answer.map_err(|verdict| self.inner.error(&verdict, operation, Some(key)))?;
        match &answer.value {
            Value::Int(held) => Ok(*held == 1),
            // The notifications after it were sent meanwhile.
            Value::Array(parts) if **parts == [Value::Int(1)] => Ok(true),
            _ => Err(self.unreadable(operation, Some(key))),
        }
    }
}

/// The result of an acquisition.
enum Taken {
    Held { again: bool, all: Vec<FenceBlock> },
    Busy { place: usize, busy: Busy },
}

impl Store for InteropStore {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        Box::pin(async move {
            let taken = self.take(std::slice::from_ref(request), within).await?;
            Ok(match taken {
                Taken::Held { again, all } => {
                    let fences = all.first().copied().unwrap_or_else(|| self.fences(0));
                    // To a waiter, `Already` would mean that the queue has granted it the lock.
                    if again && request.queue.is_none() {
                        Acquire::Already(Already::new(fences, request.holds.get()))
                    } else {
                        Acquire::Granted(Granted::new(fences))
                    }
                }
                Taken::Busy { busy, .. } => match &request.queue {
                    Some(queue) => {
                        let window = queue.window.duration();
                        let watches = &self.shared.watches;
                        watches.waits(&request.key, queue.ticket, request.token, window);
                        // Every waiter is first: there is no queue.
                        let place = queue.place.unwrap_or(Place::from_number(1));
                        let Busy { retry_after, holder, .. } = busy;
                        Acquire::Waiting(Waiting::new(
                            0,
                            place,
                            retry_after,
                            holder.map(|holder| *holder),
                        ))
                    }
                    None => Acquire::Busy(busy),
                },
            })
        })
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(async move {
            let deadline = Deadline::after(within);
            let longest = requests.iter().map(|request| request.ttl.duration()).max();
            let delivery = self.inner.confirmed_renewal(longest.unwrap_or_default());
            // A renewal with a successor is unsupported, so it is left out as a whole.
            let can_be = |request: &&RenewRequest| request.successor.is_none();
            let calls = requests.iter().filter(can_be);
            let calls: Vec<_> =
                calls.map(|request| self.shared.requests.renew_call(request)).collect();
            let mut answers = self.inner.run_all(&calls, delivery, deadline).await.into_iter();
            requests
                .iter()
                .map(|request| {
                    let key = Some(&request.key);
                    if !can_be(&request) {
                        return self.unsupported("transfer", "renew", key);
                    }
                    let Some(answer) = answers.next() else {
                        return Err(self.unreadable("renew", key));
                    };
                    let answer = answer.map_err(|it| self.inner.error(&it, "renew", key))?;
                    if let Some(missing) = answer.unconfirmed {
                        return Err(self.inner.error(&missing, "renew", key));
                    }
                    match answer.value {
                        Value::Int(1) => {
                            let ttl = request.ttl.duration();
                            self.shared.watches.renewed(&request.key, request.token, ttl);
                            Ok(Renew::Renewed)
                        }
                        Value::Int(_) => Ok(Renew::NotHeld),
                        _ => Err(self.unreadable("renew", key)),
                    }
                })
                .collect()
        })
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            let ReleaseRequest { key, token, remaining, .. } = request;
            if !request.cooldown.is_none() {
                return self.unsupported("cooldown", "release", Some(key));
            }
            let held = self.end((key, *token, *remaining), "release", within).await?;
            Ok(match (held, *remaining) {
                (true, 0) => Release::Released,
                (true, holds) => Release::StillHeld { holds },
                (false, _) => Release::NotHeld,
            })
        })
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        Box::pin(async move {
            let held = self.end((&request.key, request.token, 0), "leave", within).await?;
            Ok(if held { Leave::Released } else { Leave::NotHeld })
        })
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        Box::pin(async move {
            if !self.capability().sets {
                return self.unsupported("joint acquisition here", "acquire", None);
            }
            Ok(match self.take(requests, within).await? {
                Taken::Held { all, .. } => AcquireAll::Granted(all),
                Taken::Busy { place, busy } => {
                    AcquireAll::Blocked { index: place, answer: Acquire::Busy(busy) }
                }
            })
        })
    }

    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Convert>> {
        let answer = self.unsupported("modes", "convert", Some(&request.key));
        Box::pin(std::future::ready(answer))
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        let answer = self.unsupported("limit", "set the limit", Some(&request.key));
        Box::pin(std::future::ready(answer))
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, _within: Duration) -> BoxFuture<'a, Result<Ask>> {
        let answer = self.unsupported("release requests", "ask", Some(&request.key));
        Box::pin(std::future::ready(answer))
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move {
            let deadline = Deadline::after(within);
            let requests = &self.shared.requests;
            let mut looked = self.look(requests.look_call(key), key, deadline).await?;
            let mut counted = Fence::ZERO;
            if let Some(counter) = requests.look_at_counter_call(key)
                && let Some(Some(Answered::Busy { value: before, .. })) = &looked
            {
                let before = before.clone();
                let number = self.look(counter, key, deadline).await.unwrap_or_default();
                // The number belongs to this holder only if the lock has not changed hands in
                // between.
                looked = self.look(requests.look_call(key), key, deadline).await?;
                if let Some(Some(Answered::Busy { value: number, .. })) = number
                    && let Some(Some(Answered::Busy { value, .. })) = &looked
                    && *value == before
                {
                    let number = str::from_utf8(&number).ok().and_then(|it| it.parse().ok());
                    let fence = number.and_then(|number| Fence::new(0, number).ok());
                    counted = fence.unwrap_or(Fence::ZERO);
                }
            }
            match looked {
                Some(None) => Ok(None),
                Some(Some(Answered::Busy { place: holds, left, value, .. })) => {
                    let remaining = left.unwrap_or(WITHOUT_END);
                    let holds = u32::try_from(holds).unwrap_or(u32::MAX);
                    let mut info = LockInfo::new(key.clone(), Kind::Lock, counted);
                    let mut holder = self.holder(&value, remaining, holds);
                    holder.fence = self.shared.watches.fence_of(key, &value).unwrap_or(Fence::ZERO);
                    info.holders = vec![holder];
                    Ok(Some(info))
                }
                Some(Some(Answered::Foreign { sort, .. })) => {
                    Err(self.inner.named(self.foreign(&sort), "inspect", Some(key)))
                }
                Some(Some(Answered::Held { .. })) | None => {
                    Err(self.unreadable("inspect", Some(key)))
                }
            }
        })
    }

    fn list<'a>(
        &'a self,
        _request: &'a ListRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<Listing>> {
        let answer = self.unsupported("list", "list", None);
        Box::pin(std::future::ready(answer))
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        _within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        let answer = self.unsupported("fence", "force release", Some(&request.key));
        Box::pin(std::future::ready(answer))
    }

    fn listen<'a>(
        &'a self,
        _client: ClientId,
        within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let Some(servers) = self.tracked() else {
                return self.unsupported("tracking on this connection", "listen", None);
            };
            let watches = Arc::clone(&self.shared.watches);
            tracking::listen(servers, watches, Deadline::after(within))
                .await
                .map_err(|verdict| self.inner.error(&verdict, "listen", None))
        })
    }

    fn remembers_for(&self, _within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        let answer = self.unsupported("vote in a quorum", "ask for its age", None);
        Box::pin(std::future::ready(answer))
    }

    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        self.inner.examine(within)
    }

    fn capability(&self) -> Capability {
        let tracked = self.tracked().is_some();
        let mut capability = Capability::NONE;
        // Without notifications, a wait in the queue would only be a slower poll.
        (capability.queue, capability.wake, capability.tells_loss) = (tracked, tracked, tracked);
        capability.sets = !self.inner.shared.transport.is_spread()
            && self.layout().shape() == layout::Shape::Text;
        capability.longest = self.inner.capability().longest;
        capability
    }

    fn location(&self) -> String {
        format!("{}, locks of {}", self.inner.location(), self.layout())
    }
}
