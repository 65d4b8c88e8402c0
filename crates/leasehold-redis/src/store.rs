//! The [`RedisStore`]: every operation of the lock table as one script on the server.

pub(crate) mod builder;
mod combine;
mod list;
pub(crate) mod log;
mod queue;
mod renewals;
mod requests;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Busy, Capability, ClientId,
    Convert, ConvertRequest, Effect, Error, ErrorKind, ForceRelease, ForceReleaseRequest, Key,
    Leave, LeaveRequest, ListRequest, Listener, Listing, LockInfo, LockLog, RawRequest, Release,
    ReleaseRequest, Renew, RenewRequest, Result, SetLimit, SetLimitRequest, Store, Ttl, Waiting,
    Wake,
};
use redis::Value;

use self::queue::{Combiner, Kind};
use crate::classify::{Next, Verdict};
use crate::connect::listen::{self, GrantSource, Source};
use crate::connect::transport::Transport;
use crate::script::Scripts;
use crate::script::call::Call;
use crate::script::call::Request;
use crate::script::request::{Answer, Deadline, Delivery};
use crate::script::unsent::Unsent;
use crate::store::builder::{LinkSecurity, RedisStoreBuilder};
use crate::topology::replication::{Acquaintance, Age, Replication};
use crate::topology::slot::slot_of;
use crate::wire::names::Names;
use crate::wire::reply;

/// Locks in a Redis or Valkey server, in one that sentinels fail over, or in a cluster.
///
/// Clones are cheap and share connections. The connections live on the process's own thread
/// ([`Driver`](leasehold_clock::Driver)), so they go on without a runtime of the callers.
/// [`RedisStore::connect`] makes a store from a URL, [`RedisStore::builder`] from anything else. A
/// fork's child needs a store of its own.
///
/// # Guarantees
///
/// Every operation is one script, so it happens as a whole or not at all, on the server's clock. A
/// lease is as durable as the server's data: it survives a restart only with persistence. Fences go
/// on growing in any case, because they are at least the time.
///
/// A fail-over loses what the promoted replica had not received. Fences grow over it, since they
/// are at least the time. With [`RedisStoreBuilder::replicate`], grants count only when replicas
/// have them.
///
/// # Time
///
/// Each operation ends within the time that its caller gives, connecting included. The next call
/// replaces a lost connection in the background, with pauses of 50 ms to 1.5 s between attempts.
///
/// # Cancel safety
///
/// After a future is dropped, the server may still carry the operation out. It carries out a later
/// `leave` after it, unless the connection was replaced in between. The lease's expiry is the last
/// resort.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) transport: Arc<dyn Transport>,
    /// Present if one call can be about several locks.
    pub(crate) combiner: Option<Arc<Combiner>>,
    pub(crate) wake: Option<Arc<Source>>,
    pub(crate) scripts: &'static Scripts,
    pub(crate) names: Names,
    pub(crate) fence_retention: Duration,
    /// How many events to log of each lock, by default 0.
    pub(crate) log: u32,
    /// A lower bound of the fail-over epoch, for all servers.
    pub(crate) epoch: u64,
    /// The highest fence sequence in the server's answers, counted from the Unix epoch.
    pub(crate) highest_sequence: Arc<AtomicU64>,
    /// Remembers the server's process, to know the age of one whose clock was set back.
    pub(crate) acquaintance: Arc<Acquaintance>,
    pub(crate) unsent: Arc<Unsent>,
    pub(crate) replication: Option<Replication>,
    pub(crate) location: Arc<str>,
    /// How the server is reached, and in which version of its protocol: for people.
    pub(crate) security: LinkSecurity,
    pub(crate) resp3: Option<bool>,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared {
            transport,
            combiner: _,
            wake,
            scripts: _,
            names,
            fence_retention,
            log,
            epoch: _,
            highest_sequence: _,
            acquaintance: _,
            unsent,
            replication,
            location,
            security: _,
            resp3: _,
        } = &*self.shared;
        f.debug_struct("RedisStore")
            .field("location", location)
            .field("prefix", &names.prefix())
            .field("fence_retention", fence_retention)
            .field("log", log)
            .field("replication", replication)
            .field("transport", transport)
            .field("wake", wake)
            .field("unsent", unsent)
            .finish()
    }
}

impl RedisStore {
    /// Connects to the server that a URL names, and makes sure that it answers.
    ///
    /// ```text
    /// redis://[user:password@]host[:port][/database][?setting=value&…]
    /// rediss://…                  with TLS (also: valkeys://)
    /// valkey://…                  the same as redis://
    /// redis+unix:///path/socket   through a socket; ?db=2&user=…&pass=… where needed
    /// redis+sentinel://[user:password@]host[:port],host[:port],…/name
    ///                             the primary of this name, wherever these sentinels say it is;
    ///                             ?db=2&sentinel_user=…&sentinel_password=… where needed
    /// redis+cluster://[user:password@]host[:port],host[:port],…
    ///                             a cluster, some of whose nodes these are
    /// rediss+sentinel, rediss+cluster, valkey+…, valkeys+…: as above
    /// ```
    ///
    /// Special characters in names and passwords are percent-encoded. An unknown setting is
    /// refused. These are known:
    ///
    /// - `prefix` keeps locks apart from other locks on the same server (default `leasehold`).
    /// - `fence_retention` is how long an idle lock's last fence is kept (default `10m`).
    /// - `protocol` is `resp2` (default) or `resp3`.
    /// - `log`, `fsync`, `max_ttl` and `keep_leases` are described at the methods of
    ///   [`RedisStoreBuilder`] with these names.
    /// - `replicas` and `replicate_timeout` are described at [`RedisStoreBuilder::replicate`].
    /// - `cafile`, `certfile` and `keyfile` are for TLS.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`] – the URL can't be used. The message does not repeat it.
    /// * [`ErrorKind::Denied`] – wrong password, or no right to the commands that locks need.
    /// * [`ErrorKind::Unavailable`] – the server does not answer within five seconds.
    /// * [`ErrorKind::Unsupported`] – TLS in a build that lacks it, or a server without scripts.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it leaves no trace on the server.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// A store for the server that a URL names, which connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] and [`ErrorKind::Unsupported`], as [`RedisStore::connect`].
    pub fn connect_lazy(url: &str) -> Result<Self> {
        Self::builder().connect_lazy(url)
    }

    /// A store on a connection of the user: a multiplexed one, or a connection manager.
    ///
    /// The store reads the server's role before the first request and every two seconds from then
    /// on. A replica is refused as [`ErrorKind::Unavailable`]. A cluster is refused as
    /// [`ErrorKind::Unsupported`], since any of its nodes may answer. Let the store make its own
    /// connections to a cluster, with [`RedisStore::connect`] and `redis+cluster://`.
    ///
    /// It has no channel for notifications; see [`RedisStoreBuilder::subscriptions`] for that and
    /// for all other settings. The connection keeps its own behaviour, such as sending a request
    /// again. This is safe, because every operation is idempotent per token. Its own timeouts
    /// should be longer than the timeouts of the locks. Renewals use it too, so they depend on its
    /// runtime: if that stands still or ends, leases are lost.
    #[must_use]
    pub fn from_connection<C>(connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::builder().from_connection(connection)
    }

    /// A store that gets a connection for every request from `provide`, for example from a pool.
    /// Otherwise it is like [`RedisStore::from_connection`].
    #[must_use]
    pub fn from_fn<F, Fut, C, E>(provide: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<C, E>> + Send + 'static,
        C: redis::aio::ConnectionLike + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        Self::builder().from_fn(provide)
    }

    /// Settings that a URL can't have, or that should stay out of it.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }

    /// How many notifications this store and its clones could not send. A notification tells a
    /// waiter that it was granted the lock, or became first in the queue. If a server forbids
    /// scripts to publish, the store sends each notification as a command. So this counts what the
    /// server refused then too, mostly without the permission. The lock was still granted, and the
    /// waiter learns of it at its next heartbeat, up to a third of its heartbeat timeout later. The
    /// log has the first refusal as a warning.
    #[must_use]
    pub fn messages_lost(&self) -> u64 {
        self.shared.unsent.lost()
    }

    /// Checks that the server answers.
    pub(crate) async fn ping(&self, within: Duration) -> Result<()> {
        let ping = redis::cmd("PING");
        let deadline = Deadline::after(within);
        let answer = self.shared.transport.one(&Request::plain(&ping), deadline).await;
        answer.map(drop).map_err(|verdict| self.error(&verdict, "connect", None))
    }

    pub(crate) async fn run<T>(
        &self,
        call: Call<'_>,
        delivery: Delivery,
        within: Duration,
        operation: &'static str,
        key: &Key,
        read: impl FnOnce(Value) -> Result<T>,
    ) -> Result<T> {
        let answer = call
            .run(&*self.shared.transport, delivery, Deadline::after(within))
            .await
            .map_err(|verdict| self.error(&verdict, operation, Some(key)))?;
        if let Some(missing) = answer.unconfirmed {
            return Err(self.error(&missing, operation, Some(key)));
        }
        read(answer.value).map_err(|error| self.named(error, operation, Some(key)))
    }

    /// How a request is sent that must not overtake an acquisition.
    pub(crate) fn in_order(&self) -> Delivery {
        if self.shared.replication.is_some() { Delivery::InOrder } else { Delivery::None }
    }

    /// How a request is sent whose outcome must be on replicas before it counts. A server that may
    /// have forgotten leases gets it only if it [keeps a position](Delivery::keeping_place).
    pub(crate) fn confirmed(&self, ttl: Duration, needed: fn(&Value) -> bool) -> Delivery {
        match self.shared.replication {
            Some(replication) => {
                let timeout = replication.timeout.min(ttl / 4);
                let replication = Replication { timeout, ..replication };
                Delivery::Confirmed { replication, needed, keeps_place: false }
            }
            None => Delivery::None,
        }
    }

    /// The same for renewals, at a server of any age: a server that has forgotten a lease can't
    /// renew it.
    pub(crate) fn confirmed_renewal(&self, ttl: Duration) -> Delivery {
        match self.confirmed(ttl, |_| true) {
            Delivery::Confirmed { replication, needed, keeps_place } => {
                let replication = Replication { longest: None, ..replication };
                Delivery::Confirmed { replication, needed, keeps_place }
            }
            delivery => delivery,
        }
    }

    /// Refuses a lease that could outlast the warm-up of a restarted server.
    pub(crate) fn check_ttl(&self, ttl: Ttl) -> Result<()> {
        match self.shared.replication.and_then(|replication| replication.longest) {
            Some(longest) if ttl > longest => Err(Error::new(
                ErrorKind::Config,
                format!(
                    "a ttl of {ttl} is longer than max_ttl ({longest}); give a shorter ttl, or all \
                     users a longer max_ttl"
                ),
            )),
            _ => Ok(()),
        }
    }

    async fn take(&self, request: &AcquireRequest, deadline: Deadline) -> Result<Acquire> {
        let named = |error| self.named(error, "acquire", Some(&request.key));
        self.check_ttl(request.ttl).map_err(named)?;
        let delivery = self.confirmed(request.ttl.duration(), reply::is_grant);
        let delivery = delivery.keeping_place(request.in_line().is_some());
        let text = || self.acquire_text(request);
        let Answer { value, epoch, unconfirmed } = self
            .combined(Kind::Acquire, text, delivery, deadline)
            .await
            .map_err(named)?
            .map_err(|verdict| named(verdict.to_error()))?;
        let kept = unconfirmed.as_ref().is_some_and(|missing| missing.passes_in.is_some());
        if let Some(missing) = unconfirmed.clone().filter(|_| !kept) {
            let effect = Box::pin(self.give_back(request, deadline)).await;
            return Err(named(missing.with_effect(effect).to_error()));
        }
        let answer = reply::acquire(value, &self.asked(request, epoch)).map_err(named)?;
        self.observe(&answer);
        match unconfirmed {
            // A release would cost the position. A refusal counts during the warm-up too.
            Some(young) if !matches!(answer, Acquire::Refused(_)) => Err(named(young.to_error())),
            _ => Ok(answer),
        }
    }

    /// Notes the fences in an answer.
    fn observe(&self, answer: &Acquire) {
        if let Some(fences) = answer.fences() {
            self.observe_fence(fences.last());
        }
        let (Acquire::Busy(Busy { holder: Some(holder), .. })
        | Acquire::Waiting(Waiting { holder: Some(holder), .. })) = answer
        else {
            return;
        };
        self.observe_fence(holder.fence);
    }

    async fn take_all(
        &self,
        requests: &[AcquireRequest],
        deadline: Deadline,
    ) -> Result<AcquireAll> {
        if self.shared.transport.is_spread() {
            let slot = |request: &AcquireRequest| slot_of(self.shared.names.record(&request.key));
            if requests.windows(2).any(|two| two.first().map(slot) != two.last().map(slot)) {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "a cluster can't take locks of several slots in one step",
                ));
            }
        }
        requests.iter().try_for_each(|request| self.check_ttl(request.ttl))?;
        let call = self.acquire_all_call(requests)?;
        let shortest = requests.iter().map(|request| request.ttl.duration()).min();
        let delivery = self.confirmed(shortest.unwrap_or_default(), reply::is_grant);
        let Answer { value, epoch, unconfirmed } = call
            .run(&*self.shared.transport, delivery, deadline)
            .await
            .map_err(|verdict| match verdict.kind {
                // The script did not come to say which.
                ErrorKind::Corrupt => {
                    let names: Vec<_> =
                        requests.iter().map(|request| format!("\"{}\"", request.key)).collect();
                    verdict.of_one_of(&names.join(", ")).to_error()
                }
                _ => verdict.to_error(),
            })?;
        if let Some(missing) = unconfirmed {
            let mut effect = Effect::NotApplied;
            for request in requests {
                match self.give_back(request, deadline).await {
                    Effect::NotApplied => {}
                    _ => effect = Effect::Unknown,
                }
            }
            return Err(missing.with_effect(effect).to_error());
        }
        let asked: Vec<_> = requests.iter().map(|request| self.asked(request, epoch)).collect();
        let answer = reply::acquire_all(value, &asked).map_err(|(index, error)| {
            match index.and_then(|index| requests.get(index)) {
                Some(request) => error.on_key(&request.key),
                None => error,
            }
        })?;
        match &answer {
            AcquireAll::Granted(all) => {
                all.iter().for_each(|fences| self.observe_fence(fences.last()))
            }
            AcquireAll::Blocked { answer, .. } => self.observe(answer),
            _ => {}
        }
        Ok(answer)
    }

    /// Releases a grant that does not count.
    async fn give_back(&self, request: &AcquireRequest, deadline: Deadline) -> Effect {
        if request.holds > NonZeroU32::MIN {
            // The token's earlier holds stay valid, and the next answer corrects their number.
            return Effect::Applied;
        }
        let mut leave = LeaveRequest::new(request.key.clone(), request.token);
        leave.reopen = !request.cooldown.is_none();
        let call = self.leave_call(&leave);
        self.settle_order();
        match call.run(&*self.shared.transport, self.in_order(), deadline).await {
            Ok(_) => Effect::NotApplied,
            Err(_) => Effect::Unknown,
        }
    }

    pub(crate) fn error(
        &self,
        verdict: &Verdict,
        operation: &'static str,
        key: Option<&Key>,
    ) -> Error {
        self.named(verdict.to_error(), operation, key)
    }

    pub(crate) fn named(&self, error: Error, operation: &'static str, key: Option<&Key>) -> Error {
        let error = error.during(operation).at_store(Arc::clone(&self.shared.location));
        match key {
            Some(key) => error.on_key(key),
            None => error,
        }
    }

    /// Opens a client's channel for notifications.
    pub(crate) async fn listen_at(
        &self,
        source: &Arc<Source>,
        client: ClientId,
        deadline: Deadline,
    ) -> std::result::Result<Box<dyn Listener>, Verdict> {
        let channel = self.shared.names.channel(client);
        // A notification can't say whether replicas have the grant.
        let grants = if self.shared.replication.is_some() {
            GrantSource::Answer
        } else {
            GrantSource::Message
        };
        let inner = listen::listen(Arc::clone(source), channel, grants, deadline).await?;
        Ok(Box::new(Learning { store: self.clone(), inner }))
    }

    /// Sends all calls at once, and returns their outcomes in order.
    pub(crate) async fn run_all(
        &self,
        calls: &[Call<'static>],
        delivery: Delivery,
        deadline: Deadline,
    ) -> Vec<std::result::Result<Answer, Verdict>> {
        let transport = &*self.shared.transport;
        if let [call] = calls {
            return vec![call.run(transport, delivery, deadline).await];
        }
        let mut outcomes: Vec<_> =
            calls.iter().map(|_| Err(deadline.missed_unsent(None))).collect();
        let mut pending: Vec<_> = calls.iter().zip(&mut outcomes).collect();
        while pending.len() > 1 {
            let requests: Vec<_> =
                pending.iter().map(|(call, _)| call.by_digest(delivery)).collect();
            let answers = transport.many(&requests, deadline).await;
            for ((call, outcome), answer) in pending.iter_mut().zip(answers) {
                **outcome = match answer {
                    Ok(answer) => Ok(call.told(answer, transport, deadline).await),
                    Err(verdict) => Err(verdict),
                };
            }
            pending.retain(|(_, outcome)| {
                let next = outcome.as_ref().err().map(|verdict| verdict.next);
                matches!(next, Some(Next::SendSource | Next::Retry))
            });
            if pending.is_empty() {
                break;
            }
            // One call runs alone until it has an outcome. After that, its server knows the script,
            // or the transport knows where to send the others.
            let (call, outcome) = pending.swap_remove(0);
            *outcome = call.run(transport, delivery, deadline).await;
        }
        for (call, outcome) in pending {
            *outcome = call.run(transport, delivery, deadline).await;
        }
        outcomes
    }
}

/// A channel for notifications whose store notes the fences in them.
#[derive(Debug)]
struct Learning {
    store: RedisStore,
    inner: Box<dyn Listener>,
}

impl Listener for Learning {
    fn next(&mut self) -> BoxFuture<'_, Wake> {
        Box::pin(async {
            let wake = self.inner.next().await;
            if let Wake::Granted { fences, .. } = &wake {
                self.store.observe_fence(fences.last());
            }
            wake
        })
    }
}

impl Store for RedisStore {
    fn acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Acquire>> {
        Box::pin(self.take(request, Deadline::after(within)))
    }

    fn renew<'a>(
        &'a self,
        requests: &'a [RenewRequest],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Result<Renew>>> {
        Box::pin(self.renew_all(requests, Deadline::after(within)))
    }

    fn release<'a>(
        &'a self,
        request: &'a ReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Release>> {
        Box::pin(async move {
            if !request.cooldown.is_none() {
                // Alone in its call, because the server refuses a delayed call as a whole.
                let call = self.release_call(std::iter::once(&self.release_text(request)));
                let (key, read) = (&request.key, |value| reply::release(reply::part(value)));
                return self.run(call, Delivery::None, within, "release", key, read).await;
            }
            let named = |error| self.named(error, "release", Some(&request.key));
            let (text, deadline) = (|| Ok(self.release_text(request)), Deadline::after(within));
            let outcome = self.combined(Kind::Release, text, Delivery::None, deadline).await;
            let answer = outcome.map_err(named)?.map_err(|verdict| named(verdict.to_error()))?;
            reply::release(answer.value).map_err(named)
        })
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        Box::pin(async move {
            let call = self.leave_call(request);
            self.settle_order();
            self.run(call, self.in_order(), within, "leave", &request.key, reply::leave).await
        })
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [AcquireRequest],
        within: Duration,
    ) -> BoxFuture<'a, Result<AcquireAll>> {
        Box::pin(async move {
            let failed = |error| self.named(error, "acquire", None);
            AcquireAll::check(requests).map_err(failed)?;
            if requests.is_empty() {
                return Ok(AcquireAll::Granted(Vec::new()));
            }
            self.take_all(requests, Deadline::after(within)).await.map_err(failed)
        })
    }

    fn convert<'a>(
        &'a self,
        request: &'a ConvertRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Convert>> {
        Box::pin(async move {
            let call = self
                .convert_call(request)
                .map_err(|error| self.named(error, "convert", Some(&request.key)))?;
            let read = |value| reply::convert(value, request.mode);
            // The store does not know for how long it is held, so the timeout is not cut short.
            let delivery = self.confirmed(Duration::MAX, reply::is_grant);
            let answer = self.run(call, delivery, within, "convert", &request.key, read).await?;
            if let Convert::Converted(converted) = &answer {
                self.observe_fence(converted.fences.last());
            }
            Ok(answer)
        })
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        Box::pin(async move {
            let call = self.set_limit_call(request);
            let read = reply::set_limit;
            self.run(call, Delivery::None, within, "set-limit", &request.key, read).await
        })
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>> {
        Box::pin(async move {
            let (mut holders, mut from) = (0_u32, 1);
            // A script looks at some holders only, so that no call keeps the server long.
            while from > 0 {
                let call = self.ask_call(request, from);
                let key = &request.key;
                let (asked, onward) =
                    self.run(call, Delivery::None, within, "ask", key, reply::ask).await?;
                holders = holders.saturating_add(asked);
                from = onward;
            }
            Ok(if holders == 0 { Ask::NotHeld } else { Ask::Asked { holders } })
        })
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move {
            let call = self.inspect_call(key);
            let read = |value| reply::inspect(value, key, self.shared.fence_retention);
            self.run(call, Delivery::None, within, "inspect", key, read).await
        })
    }

    fn raw<'a>(
        &'a self,
        request: &'a RawRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<String>>> {
        Box::pin(async move {
            let (call, record) =
                (self.inspect_call(&request.key), self.shared.names.record(&request.key));
            let read = |value| reply::raw(value, &record);
            self.run(call, Delivery::None, within, "show", &request.key, read).await
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Listing>> {
        Box::pin(self.list_all(request, Deadline::after(within)))
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        Box::pin(async move {
            let (mut seen, mut from) = (Vec::new(), 1);
            // A script looks at some holders only, so that no call keeps the server long.
            while from > 0 {
                let call = self.force_release_call(request, from);
                let (key, read) = (&request.key, reply::force_release);
                let (answer, onward) =
                    self.run(call, Delivery::None, within, "force-release", key, read).await?;
                match answer {
                    ForceRelease::OtherFence { fences } => seen.extend(fences),
                    answer => return Ok(answer),
                }
                from = onward;
            }
            seen.sort_unstable();
            Ok(ForceRelease::OtherFence { fences: seen })
        })
    }

    fn listen<'a>(
        &'a self,
        client: ClientId,
        within: Duration,
    ) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let Some(source) = &self.shared.wake else {
                let error = Error::new(
                    ErrorKind::Unsupported,
                    "a store on a borrowed connection has no notification channel; give its \
                     builder a client for subscriptions",
                );
                return Err(self.named(error, "listen", None));
            };
            let listening = self.listen_at(source, client, Deadline::after(within)).await;
            listening.map_err(|verdict| self.error(&verdict, "listen", None))
        })
    }

    /// The server's age by `INFO server`. A restart counts as a loss, since a client can't see
    /// whether the server kept every acknowledged write.
    ///
    /// It fails if another server can replace this one: a promoted server may have run for long,
    /// and still lack leases.
    fn remembers_for(&self, within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        Box::pin(async move {
            if self.shared.transport.fails_over() {
                let error = Error::new(
                    ErrorKind::Unsupported,
                    "a node that fails over can lose leases without a restart; use single servers, \
                     or set keep_leases=yes",
                );
                return Err(self.named(error, "ask for its age", None));
            }
            let question = Age::question();
            let (question, deadline) = (Request::plain(&question), Deadline::after(within));
            let answer = self.shared.transport.one(&question, deadline).await;
            let answer = answer.map_err(|verdict| self.error(&verdict, "ask for its age", None))?;
            let info = answer.value;
            reply::uptime(info.clone())
                .map(|told| Some(self.shared.acquaintance.age(&info, told.at_least)))
                .map_err(|error| self.named(error, "ask for its age", None))
        })
    }

    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(self.look_at_server(within))
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        Some(Arc::new(self.clone()))
    }

    fn capability(&self) -> Capability {
        let mut capability = Capability::ALL;
        capability.wake = self.shared.wake.is_some();
        // Two names share a slot only by chance: each is its own hash tag.
        capability.sets = !self.shared.transport.is_spread();
        let longest = self.shared.replication.and_then(|replication| replication.longest);
        capability.longest = longest.map(Ttl::duration);
        capability
    }

    fn location(&self) -> String {
        self.shared.location.to_string()
    }
}
