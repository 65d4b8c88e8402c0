//! The client: a store, and everything that happens over time.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_clock::Process;
use leasehold_core::doctor::{self, Finding};
use leasehold_core::{
    Ask, AskRequest, ClientId, Clock, Error, ErrorKind, Fence, ForceRelease, ForceReleaseRequest,
    IntoKey, Key, ListRequest, Listing, LockInfo, Moment, OwnerName, Release as StoreRelease,
    ReleaseRequest, Result, Store, Ttl,
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::LOCK;
use crate::builder::ClientBuilder;
use crate::detached::DetachedLease;
use crate::election::Election;
use crate::gate::Gates;
use crate::guard::{Guard, HeldLease};
use crate::hold::{Closing, Hold, Relay, as_nanos};
use crate::multi::Multi;
use crate::mutex::Mutex;
use crate::once::OncePer;
use crate::owned::Owned;
use crate::owner::Owner;
use crate::reap::Reaper;
use crate::reentrant::Reentrant;
use crate::release::{self, Release, Releases};
use crate::renew::Wheel;
use crate::rt;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;
use crate::wake::Hub;

/// The default length of a lease: long enough to ride out a fail-over, short enough for somebody
/// to wait for after a crash. It is renewed every third of it.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// How long one request to the store may take by default.
pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How often in a row a lease is handed on inside the process by default before others, who may
/// wait elsewhere, get their turn.
pub const DEFAULT_LOCAL_HANDOFFS: u32 = 16;
/// For how long a lease is handed on inside the process, counted from its grant.
pub(crate) const LOCAL_HANDOFFS_FOR: Duration = Duration::from_millis(50);
/// How long [`Client::close`] tries to give everything up.
pub const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A connection to a store of locks.
///
/// Cheap to clone; all clones share one store. Requests are made on the tokio runtime of whoever
/// makes them. Leases are renewed, their loss is noticed, and what dropped futures and guards leave
/// behind is given up on a thread of the process's own, `leasehold`, which all clients share: so
/// nothing that a runtime does, not even its end, costs a lease that it holds.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Where the work goes on that must not depend on any caller.
    pub(crate) background: Handle,
    pub(crate) wheel: Arc<Wheel>,
    pub(crate) reaper: Reaper,
    pub(crate) hub: Hub,
    pub(crate) gates: Arc<Gates>,
    pub(crate) owned: Arc<Owned>,
    pub(crate) config: Config,
    location: Arc<str>,
    next_id: AtomicU64,
    process: Process,
    pub(crate) closing: CancellationToken,
    stop: CancellationToken,
    /// When the store last answered, in nanoseconds; 0 before it ever did.
    heard_ns: AtomicU64,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) ttl: Ttl,
    pub(crate) min_ttl: Ttl,
    pub(crate) min_renewal: Ttl,
    pub(crate) owner: OwnerName,
    pub(crate) call_timeout: Duration,
    pub(crate) local_handoffs: u32,
    pub(crate) retry_store: Duration,
}

impl Config {
    /// Passes when a lease that is held may be made this short.
    pub(crate) fn allows(&self, ttl: Ttl) -> Result<()> {
        if ttl < self.min_renewal {
            let least = self.min_renewal;
            let why = format!("a ttl of {ttl} is below this client's minimum of {least}");
            return Err(Error::new(ErrorKind::Config, why));
        }
        Ok(())
    }

    /// The fences to reserve with each grant: the holder's own, and one for each hand-off inside
    /// the process.
    pub(crate) const fn fence_block(&self) -> NonZeroU32 {
        NonZeroU32::MIN.saturating_add(self.local_handoffs)
    }
}

impl Inner {
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn location(&self) -> Arc<str> {
        Arc::clone(&self.location)
    }

    /// The runtime of the caller, or the background's for one that has none.
    pub(crate) fn here(&self) -> Handle {
        Handle::try_current().unwrap_or_else(|_| self.background.clone())
    }

    /// Takes in that the store has answered.
    pub(crate) fn heard(&self) {
        self.heard_ns.store(as_nanos(self.clock.now()).max(1), Ordering::Relaxed);
    }

    /// When the store last answered, if it ever did.
    pub(crate) fn heard_at(&self) -> Option<Moment> {
        match self.heard_ns.load(Ordering::Relaxed) {
            0 => None,
            ns => Some(Moment::from_origin(Duration::from_nanos(ns))),
        }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.is_cancelled() {
            return Err(self.closed());
        }
        if !self.process.is_current() {
            let why = "this client belongs to the parent process; a fork's child must connect anew";
            return Err(Error::new(ErrorKind::Misuse, why).at_store(self.location()));
        }
        Ok(())
    }

    pub(crate) fn closed(&self) -> Error {
        Error::new(ErrorKind::Closed, "the client was closed").at_store(self.location())
    }

    /// Asks the store what there is under a name.
    pub(crate) async fn look(&self, key: &Key) -> Result<Option<LockInfo>> {
        let info = self.store.inspect(key, self.config.call_timeout).await;
        info.map_err(|error| self.explain(error, "inspect").on_key(key))
    }

    /// Asks holders to let go.
    pub(crate) async fn ask(&self, request: AskRequest) -> Result<u32> {
        let answer = self.store.ask(&request, self.config.call_timeout).await;
        match answer.map_err(|error| self.explain(error, "ask").on_key(&request.key))? {
            Ask::Asked { holders } => Ok(holders),
            _ => Ok(0),
        }
    }

    pub(crate) fn explain(&self, error: Error, operation: &'static str) -> Error {
        error.during(operation).at_store(self.location())
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("store", &self.location)
            .field("owner", &self.config.owner.as_str())
            .field("closed", &self.closing.is_cancelled())
            .finish()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Client {
    /// Connects to a store: `memory:`, `embedded:` (one directory per user of this machine),
    /// `embedded:/path`, `redis://…`, `rediss://…`, `redis+unix:///path`,
    /// `redis+sentinel://host,host/name`, `redis+cluster://host,host` (both also as `rediss+…`), and
    /// with the feature `quorum` a majority of several:
    ///
    /// ```text
    /// quorum+redis://[user:password@]host,host,host[/database][?setting=value&…]
    /// quorum:STORE,STORE,STORE       stores of any sort; settings may stand among them
    /// ```
    ///
    /// with the settings `max_ttl` (the longest lease that anybody takes there, `60s`; a node
    /// that was restarted counts after so long), `node_timeout` (`500ms`) and `keep_leases` (`yes`
    /// if no node loses a lease by a restart; `no`).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a URL that can't be used, [`ErrorKind::Unsupported`] for a store
    /// that this build leaves out, and what the store says when it can't be opened or reached.
    /// No message repeats the URL's password.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// A client with settings of its own.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A client of this store, with default settings.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] outside a tokio runtime.
    pub fn new(store: Arc<dyn Store>) -> Result<Self> {
        Self::builder().store(store)
    }

    /// Starts what a client does over time, on `background`.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        config: Config,
        background: Handle,
    ) -> Result<Self> {
        // What lives on the background's runtime already need not be separated from others.
        let separate = if background.id() == rt::current()?.id() { None } else { store.separate() };
        let stop = CancellationToken::new();
        let wheel = Wheel::new(&store, separate.clone(), Arc::clone(&clock));
        background.spawn(Arc::clone(&wheel).run(stop.clone()));
        let reaper = Reaper::start(&background, Arc::clone(&store), separate, Arc::clone(&clock));
        let client = ClientId::generate()?;
        let hub = Hub::new(Arc::clone(&store), background.clone(), client, stop.clone());
        Ok(Self {
            inner: Arc::new(Inner {
                location: store.location().into(),
                store,
                clock,
                background,
                wheel,
                reaper,
                hub,
                gates: Arc::default(),
                owned: Arc::default(),
                config,
                next_id: AtomicU64::new(1),
                process: Process::current(),
                closing: CancellationToken::new(),
                stop,
                heard_ns: AtomicU64::new(0),
            }),
        })
    }

    pub(crate) const fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// A mutex of this name. A value: nothing is sent, and nothing can fail before it is locked.
    pub fn mutex(&self, key: impl IntoKey) -> Mutex {
        Mutex::new(self, key.into_key())
    }

    /// A read-write lock of this name. A value: nothing is sent, and nothing can fail before it is
    /// locked.
    pub fn rwlock(&self, key: impl IntoKey) -> RwLock {
        RwLock::new(self, key.into_key())
    }

    /// Several locks that are taken together, all or none; their order does not matter. A value:
    /// nothing is sent, and nothing can fail before they are locked.
    pub fn multi<K: IntoKey>(&self, keys: impl IntoIterator<Item = K>) -> Multi {
        Multi::new(self, keys.into_iter().map(IntoKey::into_key))
    }

    /// A post of this name that one candidate has at a time. A value: nothing is sent, and nothing
    /// can fail before a campaign.
    pub fn election(&self, key: impl IntoKey) -> Election {
        Election::new(self, key.into_key())
    }

    /// A job of this name that starts at most once per `period`, on all hosts together. A value:
    /// nothing is sent, and nothing can fail before it is started.
    pub fn once_per(&self, key: impl IntoKey, period: Duration) -> OncePer {
        OncePer::new(self, key.into_key(), period)
    }

    /// A lock of this name that `owner` may take again while it has it. A value: nothing is sent,
    /// and nothing can fail before it is locked.
    pub fn reentrant(&self, key: impl IntoKey, owner: &Owner) -> Reentrant {
        Reentrant::new(self, key.into_key(), owner)
    }

    /// A semaphore of this name with so many permits. A value: nothing is sent, and nothing can
    /// fail before a permit is acquired.
    pub fn semaphore(&self, key: impl IntoKey, limit: u32) -> Semaphore {
        Semaphore::new(self, key.into_key(), limit)
    }

    /// The store's name for people: scheme and host or path.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.inner.location
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// The owner that this client's locks show by default.
    #[must_use]
    pub fn owner(&self) -> &OwnerName {
        &self.inner.config.owner
    }

    /// Describes a lock: who holds it, who waits. `None` when nobody uses it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn inspect(&self, key: impl IntoKey) -> Result<Option<LockInfo>> {
        self.inner.look(&key.into_key()?).await
    }

    /// Describes the locks in use whose names start with `prefix`, ordered by name. A `*` at the
    /// end of the prefix is allowed and means nothing more. What can't be read of one lock is told in
    /// [`Listing::unreadable`], and takes no other off the list.
    ///
    /// # Errors
    ///
    /// What the store says. It is asked for as long as ten ordinary calls may take.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Listing> {
        let prefix = prefix.as_ref();
        let request = ListRequest::new(prefix.strip_suffix('*').unwrap_or(prefix));
        let Inner { store, config, .. } = &*self.inner;
        let list = store.list(&request, config.call_timeout.saturating_mul(10)).await;
        list.map_err(|error| self.inner.explain(error, "list"))
    }

    /// Looks at where the locks are kept (settings of the server, rights, clocks, room) and says
    /// what that means for them, the worst first. Changes nothing.
    ///
    /// # Errors
    ///
    /// What the store says when it can't be reached; anything else is a finding. It is asked for
    /// as long as ten ordinary calls may take.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        let Inner { store, config, .. } = &*self.inner;
        let findings = store.examine(config.call_timeout.saturating_mul(10)).await;
        let mut findings = findings.map_err(|error| self.inner.explain(error, "examine"))?;
        doctor::sort(&mut findings);
        Ok(findings)
    }

    /// Takes a lease away from its holder, who learns of it at its next renewal. The fence must
    /// be the one that [`inspect`](Self::inspect) showed; another holder is left alone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not have been taken away.
    pub async fn force_release(&self, key: impl IntoKey, fence: Fence) -> Result<ForceRelease> {
        let key = key.into_key()?;
        let request = ForceReleaseRequest::new(key.clone(), fence);
        let Inner { store, config, .. } = &*self.inner;
        let answer = store.force_release(&request, config.call_timeout).await;
        let answer =
            answer.map_err(|error| self.inner.explain(error, "force-release").on_key(&key))?;
        tracing::info!(target: "leasehold", %key, %fence, ?answer, "force release");
        Ok(answer)
    }

    /// Asks all holders of a lock to let go, and says how many were asked; 0 when nobody holds it.
    /// They learn of it with their next renewal, or within a second where they
    /// [wait for it](HeldLease::asked). Nobody is forced.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// If dropped, they may or may not have been asked.
    pub async fn ask(&self, key: impl IntoKey) -> Result<u32> {
        let key = key.into_key()?;
        self.inner.ask(AskRequest::new(key, self.inner.config.owner.clone())).await
    }

    /// As [`ask`](Self::ask), of the one lease whose fence [`inspect`](Self::inspect) showed.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    ///
    /// # Cancel safety
    ///
    /// If dropped, it may or may not have been asked.
    pub async fn ask_holder(&self, key: impl IntoKey, fence: Fence) -> Result<u32> {
        let mut request = AskRequest::new(key.into_key()?, self.inner.config.owner.clone());
        request.fence = Some(fence);
        self.inner.ask(request).await
    }

    /// Takes over a lease that was [detached](Guard::detach), here or elsewhere, by renewing it. The
    /// guard has the metadata, the permits and the grace that it had, and is renewed if it was; a
    /// longest hold and renewal by progress are not carried over.
    ///
    /// The same step gives the lease a new secret, so `lease` and its text are spent: of several that
    /// adopt it, one gets a guard, and the others change nothing. Detach the guard again for a text
    /// that is valid.
    ///
    /// Costs one round trip, and one more when the first is not answered.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Late`] – it has run out; nobody has held the lock since.
    /// * [`ErrorKind::Lost`] – it has run out, and somebody has; or it was adopted before.
    /// * What the store says. With [`Effect::Unknown`](leasehold_core::Effect::Unknown) the lease may
    ///   be spent without anybody holding it; it ends with its ttl then.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease stays detached or is spent; a spent one ends with its ttl.
    pub async fn adopt(&self, lease: &DetachedLease) -> Result<Guard> {
        self.inner.check_open()?;
        let settings = lease.settings(&self.inner.config);
        let terms = settings.terms().map_err(|error| self.inner.explain(error, "adopt"))?;
        let (proof, sent_at) = lease.take_over(&self.inner).await?;
        let now = self.inner.clock.now();
        let Some(state) = leasehold_core::LeaseState::granted(sent_at, terms.ttl, terms.grace, now)
        else {
            return Err(self.inner.explain(
                Error::new(
                    ErrorKind::Unavailable,
                    "the lease was adopted, but the answer came when it was all but over; it ends \
                     with its ttl",
                )
                .on_key(lease.key()),
                "adopt",
            ));
        };
        let hold = Arc::new(Hold::new(
            self.inner.next_id(),
            proof,
            state,
            terms,
            Relay::default(),
            Some(Arc::new(settings)),
            now,
        ));
        self.inner.wheel.add(&hold, sent_at);
        let (key, fence) = (&hold.key, hold.fence());
        tracing::debug!(target: LOCK, %key, %fence, ttl = %lease.ttl(), "adopted");
        let guard = Guard::new(&self.inner, hold);
        self.inner.check_open().map(|()| guard)
    }

    /// Renews a detached lease without taking it over.
    ///
    /// # Errors
    ///
    /// As [`adopt`](Self::adopt), and [`ErrorKind::Config`] when the ttl is out of range.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not have been renewed.
    pub async fn renew(&self, lease: &DetachedLease, ttl: Duration) -> Result<DetachedLease> {
        let explain = |error| self.inner.explain(error, "renew").on_key(lease.key());
        let ttl = Ttl::new(ttl).map_err(explain)?;
        self.inner.config.allows(ttl).map_err(explain)?;
        let answer = lease.renewed(&self.inner, ttl, None).await;
        answer.map_err(|error| self.inner.explain(error, "renew").on_key(lease.key()))?;
        tracing::debug!(target: LOCK, key = %lease.key(), fence = %lease.fence(), %ttl, "renewed");
        Ok(lease.with_ttl(ttl))
    }

    /// Ends a detached lease, and keeps the lock closed for `cooldown` after if one is given. An
    /// `Ok` says that the lease was held to its end.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`], but nothing is retried in the background.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not have ended.
    pub async fn release(&self, lease: &DetachedLease, cooldown: Option<Duration>) -> Result<()> {
        let answer = self.release_outcome(lease, cooldown).await;
        release::verdict_of(&self.inner, lease.key(), answer)
    }

    /// As [`release`](Self::release), and says how that went.
    ///
    /// # Errors
    ///
    /// What the store says; see [`Error::effect`] for whether the lease may have ended.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not have ended.
    pub async fn release_outcome(
        &self,
        lease: &DetachedLease,
        cooldown: Option<Duration>,
    ) -> Result<Release> {
        let mut request =
            ReleaseRequest::new(lease.key().clone(), lease.proof().token, lease.proof().fences);
        request.cooldown = cooldown;
        let Inner { store, config, .. } = &*self.inner;
        let answer = store.release(&request, config.call_timeout).await;
        release::tell(lease.key(), lease.fence(), &answer);
        match answer {
            Ok(StoreRelease::Released | StoreRelease::StillHeld { .. }) => Ok(Release::Released),
            Ok(StoreRelease::Late) => Ok(Release::Late),
            Ok(_) => Ok(Release::NotHeld),
            Err(error) => Err(self.inner.explain(error, "release").on_key(lease.key())),
        }
    }

    /// Releases every lease that this client holds, at the same time; the guards that remain hold
    /// nothing. An `Ok` says that all were held to their end.
    ///
    /// # Errors
    ///
    /// The worst of what [`Guard::release`] would have said of any of them; it names the lock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, what was not released yet is released in the background, as far
    /// as it was begun, or stays held.
    pub async fn release_all(&self) -> Result<()> {
        self.release_all_outcomes().await.verdict()
    }

    /// As [`release_all`](Self::release_all), and says for each lease how its release went.
    ///
    /// # Cancel safety
    ///
    /// As [`release_all`](Self::release_all).
    pub async fn release_all_outcomes(&self) -> Releases {
        let releases = self.inner.wheel.holds().into_iter().map(|hold| {
            let lease = HeldLease::of(&self.inner, &hold);
            async move { (hold.key.clone(), lease.give_back(Closing::No).await) }
        });
        Releases::of(&self.inner, releases).await
    }

    /// Closes the client: nothing new can be acquired, everything held is released, and what
    /// dropped futures and guards left behind is given up. Takes [`CLOSE_WITHIN`] at most.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] when something could not be given up in time; it is tried on in
    /// the background, and ends with its ttl.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the client stays closed, and giving up goes on in the background.
    pub async fn close(&self) -> Result<()> {
        self.inner.closing.cancel();
        let client = self.clone();
        // In the background, so that it goes on when this future is dropped, or its runtime ends.
        let clean_up = self.inner.background.spawn(async move {
            let outcomes = client.release_all_outcomes().await;
            client.inner.reaper.idle_for_good().await;
            client.inner.stop.cancel();
            outcomes.into_iter().try_for_each(|(_, outcome)| outcome.map(drop))
        });
        let limit = self.inner.clock.now().saturating_add(CLOSE_WITHIN);
        let outcome = tokio::select! {
            Ok(outcome) = clean_up => outcome,
            () = rt::sleep_until(&*self.inner.clock, limit) => Err(self.inner.explain(
                Error::new(
                    ErrorKind::Unavailable,
                    format!("not all leases could be given up within {CLOSE_WITHIN:?}; they end \
                             with their ttl"),
                )
                .with_effect(leasehold_core::Effect::Unknown),
                "close",
            )),
        };
        self.inner.stop.cancel();
        outcome
    }
}
