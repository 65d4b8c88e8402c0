//! The store: every operation of the lock table as one script on the server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::Finding;
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, BoxFuture, Capability, ClientId, Convert,
    ConvertRequest, Effect, Error, ErrorKind, ForceRelease, ForceReleaseRequest, Key, Leave,
    LeaveRequest, ListRequest, Listener, LockInfo, Mode, Release, ReleaseRequest, Renew,
    RenewRequest, Result, SetLimit, SetLimitRequest, Store,
};
use redis::Value;

use crate::builder::{Door, RedisStoreBuilder};
use crate::call::Call;
use crate::classify::{Next, Verdict};
use crate::listen::{self, Source, Trust};
use crate::names::{Names, asker, label};
use crate::replication::Replication;
use crate::reply::{self, Asked, unix_parts};
use crate::script::Scripts;
use crate::slot::slot_of;
use crate::transport::{Answer, Care, Deadline, Request, Transport};

/// Locks renewed by one script: a hundred keep a server for about a fifth of a millisecond.
const RENEW_CHUNK: usize = 100;

/// Names that one `SCAN` looks at, and locks that one pipeline describes.
const SCAN_COUNT: usize = 512;
const INSPECT_CHUNK: usize = 128;

/// More locks than anybody reads; a list of them would no longer be of one moment.
const LIST_MAX: usize = 100_000;

/// The longest cool-down: a year.
const COOLDOWN_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Numbers in a script are exact below this.
const SCRIPT_NUMBER_MAX: u64 = 1 << 53;

/// Locks in a Redis or Valkey server, in one that sentinels fail over, or in a cluster.
///
/// Cheap to clone; clones share the connection. Made by [`RedisStore::connect`] from a URL, or by
/// [`RedisStore::builder`] from anything else.
///
/// # Guarantees
///
/// Every operation is one script, so it happens as a whole or not at all, on the server's clock. A
/// lease survives what the server's data survives: with persistence, a restart; without, nothing,
/// but fences go on growing, because they are at least the time.
///
/// A fail-over loses what the promoted replica had not received. Fences grow over it, since each
/// begins with the fail-over epoch. See [`RedisStoreBuilder::replicate`] for grants that count only
/// when replicas have them.
///
/// # Time
///
/// Each operation is bounded by the time its caller gives, connecting included. A connection that
/// was lost is made again in the background of the next call, with pauses of 50 ms to 1.5 s.
///
/// # Cancel safety
///
/// Dropping a future leaves it open whether the server carried the operation out. A `leave` sent
/// afterwards is carried out after it, unless the connection was replaced in between; the lease's
/// expiry is the last resort.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) wake: Option<Arc<Source>>,
    pub(crate) scripts: &'static Scripts,
    pub(crate) names: Names,
    pub(crate) fence_retention: Duration,
    /// The least fail-over epoch; each server is asked in its own.
    pub(crate) epoch: u64,
    pub(crate) replication: Option<Replication>,
    pub(crate) location: Arc<str>,
    /// How the server is reached, and in which version of its protocol: for people.
    pub(crate) door: Door,
    pub(crate) resp3: Option<bool>,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared {
            transport,
            wake,
            scripts: _,
            names,
            fence_retention,
            epoch: _,
            replication,
            location,
            door: _,
            resp3: _,
        } = &*self.shared;
        f.debug_struct("RedisStore")
            .field("location", location)
            .field("prefix", &names.prefix())
            .field("fence_retention", fence_retention)
            .field("replication", replication)
            .field("transport", transport)
            .field("wake", wake)
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
    /// Settings: `prefix` keeps locks apart from those of others on the same server (default
    /// `leasehold`), `fence_retention` says for how long an idle lock's last fence is kept (default
    /// `10m`), `protocol` is `resp2` (default) or `resp3`, `replicas`, `replicate_timeout` and
    /// `fsync` are as in [`RedisStoreBuilder::replicate`] and [`RedisStoreBuilder::fsync`], and for
    /// TLS there are `cafile`, `certfile` and `keyfile`. An unknown setting is refused. Special characters in names and
    /// passwords are percent-encoded.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`] – the URL can't be used. The message does not repeat it.
    /// * [`ErrorKind::Denied`] – wrong password, or no right to the commands that locks need.
    /// * [`ErrorKind::Unavailable`] – the server does not answer within five seconds.
    /// * [`ErrorKind::Unsupported`] – TLS in a build without it, or a server without scripts.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is left behind on the server.
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

    /// A store on a connection of the user's: a multiplexed one, a connection manager, a cluster's.
    ///
    /// It has no wake channel; see [`RedisStoreBuilder::subscriptions`] for that and for all other
    /// settings. What the connection does by itself, such as sending a request again, it goes on
    /// doing; every operation is idempotent per token, so that is safe. Its own time-outs should
    /// be longer than those of the locks.
    #[must_use]
    pub fn from_connection<C>(connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::builder().from_connection(connection)
    }

    /// A store that takes a connection for every request from a pool, or wherever `provide` gets
    /// it. Otherwise as [`RedisStore::from_connection`].
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

    /// Settings that a URL can't have, or that shall not stand in it.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }

    /// Asks the server for a sign of life.
    pub(crate) async fn ping(&self, within: Duration) -> Result<()> {
        let ping = redis::cmd("PING");
        let deadline = Deadline::after(within);
        let answer = self.shared.transport.one(&Request::plain(&ping), deadline).await;
        answer.map(drop).map_err(|verdict| self.error(&verdict, "connect", None))
    }

    fn call(&self, script: &'static crate::script::Script, key: &Key) -> Call<'static> {
        Call::new(script, self.shared.names.keys(key))
    }

    async fn run<T>(
        &self,
        call: Call<'_>,
        care: Care,
        within: Duration,
        operation: &'static str,
        key: &Key,
        read: impl FnOnce(Value) -> Result<T>,
    ) -> Result<T> {
        let answer = call
            .run(&*self.shared.transport, care, Deadline::after(within))
            .await
            .map_err(|verdict| self.error(&verdict, operation, Some(key)))?;
        if let Some(missing) = answer.unconfirmed {
            return Err(self.error(&missing, operation, Some(key)));
        }
        read(answer.value).map_err(|error| self.named(error, operation, Some(key)))
    }

    /// How a request is sent that must not overtake an acquisition.
    fn in_order(&self) -> Care {
        if self.shared.replication.is_some() { Care::InOrder } else { Care::None }
    }

    /// How a request is sent whose outcome must be on replicas before it counts.
    fn confirmed(&self, ttl: Duration, needed: fn(&Value) -> bool) -> Care {
        match self.shared.replication {
            Some(replication) => {
                let timeout = replication.timeout.min(ttl / 4);
                Care::Confirmed { replication: Replication { timeout, ..replication }, needed }
            }
            None => Care::None,
        }
    }

    async fn take(&self, request: &AcquireRequest, deadline: Deadline) -> Result<Acquire> {
        let named = |error| self.named(error, "acquire", Some(&request.key));
        let call = self.acquire_call(request).map_err(named)?;
        let care = self.confirmed(request.ttl.duration(), reply::is_grant);
        let Answer { value, epoch, unconfirmed } = call
            .run(&*self.shared.transport, care, deadline)
            .await
            .map_err(|verdict| named(verdict.to_error()))?;
        if let Some(missing) = unconfirmed {
            let effect = self.give_back(request, deadline).await;
            return Err(named(missing.with_effect(effect).to_error()));
        }
        reply::acquire(value, &self.asked(request, epoch)).map_err(named)
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
        let call = self.acquire_all_call(requests)?;
        let shortest = requests.iter().map(|request| request.ttl.duration()).min();
        let care = self.confirmed(shortest.unwrap_or_default(), reply::is_grant);
        let Answer { value, epoch, unconfirmed } = call
            .run(&*self.shared.transport, care, deadline)
            .await
            .map_err(|verdict| verdict.to_error())?;
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
        reply::acquire_all(value, &asked)
    }

    /// Gives back what was granted and does not count.
    async fn give_back(&self, request: &AcquireRequest, deadline: Deadline) -> Effect {
        if request.holds > NonZeroU32::MIN {
            // The holds before it are none of its business; the next answer sets the number right.
            return Effect::Applied;
        }
        let mut leave = LeaveRequest::new(request.key.clone(), request.token);
        leave.reopen = request.close_for.is_some();
        let call = self.leave_call(&leave);
        match call.run(&*self.shared.transport, self.in_order(), deadline).await {
            Ok(_) => Effect::NotApplied,
            Err(_) => Effect::Unknown,
        }
    }

    fn leave_call(&self, request: &LeaveRequest) -> Call<'static> {
        let mut call = self.call(&self.shared.scripts.leave, &request.key);
        call.arg(request.token.to_hex()).arg(self.retention_ms()).epoch(self.shared.epoch);
        if request.reopen {
            call.arg(1);
        }
        call
    }

    fn error(&self, verdict: &Verdict, operation: &'static str, key: Option<&Key>) -> Error {
        self.named(verdict.to_error(), operation, key)
    }

    fn named(&self, error: Error, operation: &'static str, key: Option<&Key>) -> Error {
        let error = error.during(operation).at_store(Arc::clone(&self.shared.location));
        match key {
            Some(key) => error.on_key(key),
            None => error,
        }
    }

    fn retention_ms(&self) -> u128 {
        self.shared.fence_retention.as_millis()
    }

    fn acquire_call(&self, request: &AcquireRequest) -> Result<Call<'static>> {
        let mut call = self.call(&self.shared.scripts.acquire, &request.key);
        call.arg(request.token.to_hex())
            .arg(request.ttl.as_millis())
            .epoch(self.shared.epoch)
            .arg(self.kept_ms(request))
            .arg(request.fence_block)
            .arg(profile(request));
        let (preferred, close_for) = (request.preferred, closing(request.close_for)?);
        let plain = !preferred && close_for == 0;
        if plain && request.queue.is_none() && request.mode == Mode::Exclusive {
            return Ok(call);
        }
        let (mode, permits, limit) = mode_words(request.mode)?;
        call.arg(mode).arg(permits).arg(limit);
        match &request.queue {
            Some(queue) => {
                let place = match queue.place {
                    Some(place) if place.number() >= SCRIPT_NUMBER_MAX => {
                        return Err(Error::new(
                            ErrorKind::Config,
                            "the place in line was not given out by this store",
                        ));
                    }
                    Some(place) => place.number().to_string(),
                    None => String::new(),
                };
                let waiters_max = queue.waiters_max.map(|max| max.to_string()).unwrap_or_default();
                call.arg(self.shared.names.channel(queue.client))
                    .arg(queue.ticket)
                    .arg(queue.heartbeat)
                    .arg(queue.window.as_millis())
                    .arg(place)
                    .arg(waiters_max);
            }
            None if plain => return Ok(call),
            None => {
                for _ in 0..6 {
                    call.arg("");
                }
            }
        }
        if !plain {
            call.arg(u8::from(preferred)).arg(close_for);
        }
        Ok(call)
    }

    fn acquire_all_call(&self, requests: &[AcquireRequest]) -> Result<Call<'static>> {
        let keys = requests.iter().flat_map(|request| self.shared.names.keys(&request.key));
        let mut call = Call::new(&self.shared.scripts.acquire_all, keys.collect::<Vec<_>>());
        call.epoch(self.shared.epoch);
        for request in requests {
            let (mode, permits, limit) = mode_words(request.mode)?;
            call.arg(request.token.to_hex())
                .arg(request.ttl.as_millis())
                .arg(self.kept_ms(request))
                .arg(request.fence_block)
                .arg(profile(request))
                .arg(mode)
                .arg(permits)
                .arg(limit)
                .arg(u8::from(request.preferred))
                .arg(closing(request.close_for)?);
        }
        Ok(call)
    }

    /// How long a record with a new lease is kept, in ms. It must outlive the fences reserved by
    /// it, or the next would issue them again.
    fn kept_ms(&self, request: &AcquireRequest) -> u128 {
        let block_ms = u128::from(request.fence_block.get() / 1_000).saturating_add(1);
        self.retention_ms().max(block_ms).saturating_add(request.ttl.as_millis().into())
    }

    /// `epoch` is that of the server which answered.
    fn asked(&self, request: &AcquireRequest, epoch: u64) -> Asked {
        let epoch = epoch.max(self.shared.epoch);
        Asked { epoch, block: request.fence_block, mode: request.mode }
    }

    fn convert_call(&self, request: &ConvertRequest) -> Result<Call<'static>> {
        let (epoch, sequence) = unix_parts(request.fences.last());
        let (mode, permits, limit) = mode_words(request.mode)?;
        let mut call = self.call(&self.shared.scripts.convert, &request.key);
        call.arg(request.token.to_hex())
            .arg(self.retention_ms())
            .epoch(self.shared.epoch)
            .arg(epoch)
            .arg(sequence)
            .arg(mode)
            .arg(permits)
            .arg(limit)
            .arg(request.fence_block);
        Ok(call)
    }

    fn ask_call(&self, request: &AskRequest) -> Call<'static> {
        let mut call = self.call(&self.shared.scripts.ask, &request.key);
        let (epoch, sequence) = match request.fence.map(unix_parts) {
            Some((epoch, sequence)) => (epoch.to_string(), sequence.to_string()),
            None => Default::default(),
        };
        call.arg(epoch)
            .arg(self.retention_ms())
            .epoch(self.shared.epoch)
            .arg(sequence)
            .arg(asker(&request.by));
        call
    }

    fn release_call(&self, request: &ReleaseRequest) -> Result<Call<'static>> {
        let cooldown = closing(request.cooldown)?;
        let (epoch, sequence) = unix_parts(request.fences.last());
        let mut call = self.call(&self.shared.scripts.release, &request.key);
        call.arg(request.token.to_hex())
            .arg(self.retention_ms())
            .epoch(self.shared.epoch)
            .arg(epoch)
            .arg(sequence);
        if request.remaining > 0 || cooldown > 0 || request.reopen {
            call.arg(request.remaining).arg(cooldown).arg(u8::from(request.reopen));
        }
        Ok(call)
    }

    fn renew_call(&self, requests: &[&RenewRequest]) -> Call<'static> {
        let mut keys = Vec::with_capacity(requests.len().saturating_mul(3));
        for request in requests {
            keys.extend(self.shared.names.keys(&request.key));
        }
        let mut call = Call::new(&self.shared.scripts.renew, keys);
        call.epoch(self.shared.epoch).arg(self.retention_ms());
        for request in requests {
            let (epoch, sequence) = unix_parts(request.fences.last());
            call.arg(request.token.to_hex())
                .arg(epoch)
                .arg(sequence)
                .arg(request.ttl.as_millis())
                .arg(u8::from(request.shorten));
        }
        call
    }

    /// Runs all of them, sent at once.
    async fn run_all(
        &self,
        calls: &[Call<'static>],
        care: Care,
        deadline: Deadline,
    ) -> Vec<std::result::Result<Answer, Verdict>> {
        let transport = &*self.shared.transport;
        let mut outcomes: Vec<_> =
            calls.iter().map(|_| Err(deadline.missed_unsent(None))).collect();
        let mut pending: Vec<_> = calls.iter().zip(&mut outcomes).collect();
        while pending.len() > 1 {
            let requests: Vec<_> = pending.iter().map(|(call, _)| call.by_digest(care)).collect();
            let answers = transport.many(&requests, deadline).await;
            for ((_, outcome), answer) in pending.iter_mut().zip(answers) {
                **outcome = answer;
            }
            pending.retain(|(_, outcome)| {
                matches!(outcome, Err(Verdict { next: Next::SendSource | Next::Retry, .. }))
            });
            if pending.is_empty() {
                break;
            }
            // One that is asked alone is asked until it is settled. Then the server that was asked
            // knows the script, or it is known where the others have to go.
            let (call, outcome) = pending.swap_remove(0);
            *outcome = call.run(transport, care, deadline).await;
        }
        for (call, outcome) in pending {
            *outcome = call.run(transport, care, deadline).await;
        }
        outcomes
    }

    /// Which renewals are one script: as many as it may hold, and where locks are spread over
    /// servers only those that share a slot.
    fn renewal_groups<'a>(
        &self,
        requests: &'a [RenewRequest],
    ) -> Vec<Vec<(usize, &'a RenewRequest)>> {
        let numbered = requests.iter().enumerate();
        if !self.shared.transport.is_spread() {
            let all: Vec<_> = numbered.collect();
            return all.chunks(RENEW_CHUNK).map(<[_]>::to_vec).collect();
        }
        let mut slots: BTreeMap<u16, Vec<_>> = BTreeMap::new();
        for (place, request) in numbered {
            let slot = slot_of(self.shared.names.record(&request.key));
            slots.entry(slot).or_default().push((place, request));
        }
        slots.values().flat_map(|group| group.chunks(RENEW_CHUNK)).map(<[_]>::to_vec).collect()
    }

    /// Renews all at once. A group that the server refused as a whole is renewed lock by lock, so
    /// that one bad lock does not fail the others.
    async fn renew_all(&self, requests: &[RenewRequest], deadline: Deadline) -> Vec<Result<Renew>> {
        let shortest = requests.iter().map(|request| request.ttl.duration()).min();
        let care = self.confirmed(shortest.unwrap_or_default(), |_| true);
        let groups = self.renewal_groups(requests);
        let call = |group: &[(usize, &RenewRequest)]| {
            self.renew_call(&group.iter().map(|(_, request)| *request).collect::<Vec<_>>())
        };
        let calls: Vec<_> = groups.iter().map(|group| call(group)).collect();
        let mut results: Vec<Option<Result<Renew>>> = requests.iter().map(|_| None).collect();
        let mut settle = |group: &[(usize, &RenewRequest)], outcomes: Vec<Result<Renew>>| {
            for ((place, _), outcome) in group.iter().zip(outcomes) {
                if let Some(result) = results.get_mut(*place) {
                    *result = Some(outcome);
                }
            }
        };
        for (group, answer) in groups.iter().zip(self.run_all(&calls, care, deadline).await) {
            match answer {
                Err(verdict) if verdict.next == Next::Fail && group.len() > 1 => {
                    for one in group.chunks(1) {
                        let answer = call(one).run(&*self.shared.transport, care, deadline).await;
                        settle(one, renewed(answer, 1));
                    }
                }
                answer => settle(group, renewed(answer, group.len())),
            }
        }
        let unanswered = || Error::new(ErrorKind::Protocol, "no answer in the answer");
        results
            .into_iter()
            .zip(requests)
            .map(|(result, request)| {
                result
                    .unwrap_or_else(|| Err(unanswered()))
                    .map_err(|error| self.named(error, "renew", Some(&request.key)))
            })
            .collect()
    }

    /// The names of all locks on one server that a pattern matches.
    async fn scan(
        &self,
        server: &dyn Transport,
        pattern: &str,
        keys: &mut BTreeSet<Key>,
        deadline: Deadline,
    ) -> Result<()> {
        let failed = |verdict: Verdict| self.error(&verdict, "list", None);
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
            scan.arg("TYPE").arg("string");
            let answer = server.one(&Request::plain(&scan), deadline).await.map_err(failed)?;
            let (next, found): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer.value)
                .map_err(|_| {
                    let why = "the server's answer to SCAN is not a list";
                    self.named(Error::new(ErrorKind::Protocol, why), "list", None)
                })?;
            keys.extend(found.iter().filter_map(|record| self.shared.names.lock(record)));
            if keys.len() > LIST_MAX {
                return Err(self.named(
                    Error::new(
                        ErrorKind::Unsupported,
                        format!("there are more than {LIST_MAX} locks; ask for a longer prefix"),
                    ),
                    "list",
                    None,
                ));
            }
            cursor = next;
            if cursor == "0" {
                return Ok(());
            }
            if deadline.is_over() {
                return Err(failed(deadline.missed()));
            }
        }
    }

    async fn list_all(&self, request: &ListRequest, deadline: Deadline) -> Result<Vec<LockInfo>> {
        let failed = |verdict: Verdict| self.error(&verdict, "list", None);
        let pattern = self.shared.names.pattern(&request.prefix);
        let mut keys = BTreeSet::new();
        match self.shared.transport.parts(deadline).await.map_err(failed)? {
            None => self.scan(&*self.shared.transport, &pattern, &mut keys, deadline).await?,
            Some(parts) if !parts.whole => {
                return Err(failed(Verdict::nobody_yet(
                    "some slots are with no node of the cluster, and locks in them would be missing",
                )));
            }
            Some(parts) => {
                for part in parts.servers {
                    self.scan(&*part.server, &pattern, &mut keys, deadline).await?;
                }
            }
        }
        let keys: Vec<_> = keys.into_iter().collect();
        let mut infos = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(INSPECT_CHUNK) {
            let calls: Vec<_> = chunk.iter().map(|key| self.inspect_call(key)).collect();
            for (key, answer) in chunk.iter().zip(self.run_all(&calls, Care::None, deadline).await)
            {
                match answer {
                    Ok(answer) => {
                        let info = reply::inspect(answer.value, key)
                            .map_err(|error| self.named(error, "list", Some(key)))?;
                        infos.extend(info);
                    }
                    // What is not a lock is not listed.
                    Err(verdict) if verdict.kind == ErrorKind::Foreign => {}
                    Err(verdict) => return Err(self.error(&verdict, "list", Some(key))),
                }
            }
        }
        Ok(infos)
    }

    fn inspect_call(&self, key: &Key) -> Call<'static> {
        self.call(&self.shared.scripts.inspect, key)
    }
}

/// `holds owner metadata`, as records have it.
fn profile(request: &AcquireRequest) -> String {
    format!("{} {}", request.holds, label(&request.owner, &request.metadata))
}

/// A mode as scripts take it: its letter, the permits, and the limit or 0.
fn mode_words(mode: Mode) -> Result<(&'static str, u32, u32)> {
    match mode {
        Mode::Exclusive => Ok(("x", 1, 0)),
        Mode::Shared => Ok(("s", 1, 0)),
        Mode::Permits { count, limit } => Ok(("p", count.get(), limit.get())),
        _ => Err(Error::new(ErrorKind::Unsupported, "this store lacks such holds")),
    }
}

/// How long a lock is to be closed, in µs; 0 for not at all.
fn closing(length: Option<Duration>) -> Result<u128> {
    let length = length.unwrap_or_default();
    if length > COOLDOWN_MAX {
        return Err(Error::new(
            ErrorKind::Config,
            format!("closing a lock for {length:?} is too long; give at most a year"),
        ));
    }
    Ok(length.as_micros())
}

/// Reads the answer to `count` renewals. Those that replicas may lack do not count: on the next
/// primary the lease may end when it would have ended before.
fn renewed(answer: std::result::Result<Answer, Verdict>, count: usize) -> Vec<Result<Renew>> {
    let failed = |error: Error| (0..count).map(|_| Err(error.clone())).collect();
    let Answer { value, unconfirmed, epoch: _ } = match answer {
        Ok(answer) => answer,
        Err(verdict) => return failed(verdict.to_error()),
    };
    match reply::renew(value, count) {
        Ok(outcomes) => outcomes
            .into_iter()
            .map(|outcome| match (&unconfirmed, outcome) {
                (Some(missing), Ok(Renew::Renewed)) => Err(missing.to_error()),
                (_, outcome) => outcome,
            })
            .collect(),
        Err(error) => failed(error),
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
            let call = self
                .release_call(request)
                .map_err(|error| self.named(error, "release", Some(&request.key)))?;
            self.run(call, Care::None, within, "release", &request.key, reply::release).await
        })
    }

    fn leave<'a>(
        &'a self,
        request: &'a LeaveRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Leave>> {
        Box::pin(async move {
            let call = self.leave_call(request);
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
            let care = self.confirmed(Duration::MAX, reply::is_grant);
            self.run(call, care, within, "convert", &request.key, read).await
        })
    }

    fn set_limit<'a>(
        &'a self,
        request: &'a SetLimitRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<SetLimit>> {
        Box::pin(async move {
            let mut call = self.call(&self.shared.scripts.set_limit, &request.key);
            call.arg(request.limit).arg(self.retention_ms()).epoch(self.shared.epoch);
            let read = reply::set_limit;
            self.run(call, Care::None, within, "set-limit", &request.key, read).await
        })
    }

    fn ask<'a>(&'a self, request: &'a AskRequest, within: Duration) -> BoxFuture<'a, Result<Ask>> {
        Box::pin(async move {
            let (call, read) = (self.ask_call(request), reply::ask);
            self.run(call, Care::None, within, "ask", &request.key, read).await
        })
    }

    fn inspect<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(async move {
            let call = self.inspect_call(key);
            let read = |value| reply::inspect(value, key);
            self.run(call, Care::None, within, "inspect", key, read).await
        })
    }

    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<Vec<LockInfo>>> {
        Box::pin(self.list_all(request, Deadline::after(within)))
    }

    fn force_release<'a>(
        &'a self,
        request: &'a ForceReleaseRequest,
        within: Duration,
    ) -> BoxFuture<'a, Result<ForceRelease>> {
        Box::pin(async move {
            let (epoch, sequence) = unix_parts(request.fence);
            let mut call = self.call(&self.shared.scripts.force_release, &request.key);
            call.arg(epoch).arg(self.retention_ms()).epoch(self.shared.epoch).arg(sequence);
            let read = reply::force_release;
            self.run(call, Care::None, within, "force-release", &request.key, read).await
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
                    "a store on a borrowed connection has no wake channel; give its builder a \
                     client for subscriptions",
                );
                return Err(self.named(error, "listen", None));
            };
            let channel = self.shared.names.channel(client);
            // A message says nothing about replicas.
            let trust = if self.shared.replication.is_some() { Trust::Hint } else { Trust::Whole };
            listen::listen(Arc::clone(source), channel, trust, Deadline::after(within))
                .await
                .map_err(|verdict| self.error(&verdict, "listen", None))
        })
    }

    /// What `INFO server` says of the process's age. Whether a server keeps every acknowledged
    /// write through a restart can't be told from outside, so a restart counts as a loss.
    ///
    /// Where another server can take the place of this one, it is no age at all: the one that is
    /// promoted may have run for long, and lack leases all the same.
    fn remembers_for(&self, within: Duration) -> BoxFuture<'_, Result<Option<Duration>>> {
        Box::pin(async move {
            if self.shared.transport.fails_over() {
                let error = Error::new(
                    ErrorKind::Unsupported,
                    "what fails over can forget leases without a restart, and has no vote in a \
                     quorum; make single servers its nodes, or say that nodes keep their leases",
                );
                return Err(self.named(error, "ask for its age", None));
            }
            let mut question = redis::cmd("INFO");
            question.arg("server");
            let (question, deadline) = (Request::plain(&question), Deadline::after(within));
            let answer = self.shared.transport.one(&question, deadline).await;
            let answer = answer.map_err(|verdict| self.error(&verdict, "ask for its age", None))?;
            reply::age(answer.value)
                .map(Some)
                .map_err(|error| self.named(error, "ask for its age", None))
        })
    }

    fn examine<'a>(&'a self, within: Duration) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(self.look_at_server(within))
    }

    fn capability(&self) -> Capability {
        let mut capability = Capability::ALL;
        capability.wake = self.shared.wake.is_some();
        // Two names share a slot only by chance: each is its own hash tag.
        capability.sets = !self.shared.transport.is_spread();
        capability
    }

    fn location(&self) -> String {
        self.shared.location.to_string()
    }
}
