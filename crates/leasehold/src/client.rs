//! The client: a store, and everything that happens over time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::doctor::{self, Finding};
use leasehold_core::{
    AskRequest, Cooldown, Error, ErrorKind, Fence, ForceRelease, ForceReleaseRequest, IntoKey,
    ListRequest, Listing, LockInfo, LogEntry, OwnerName, RawRequest, Result, Store, Ttl,
    settle_log,
};

use crate::LOCK;
use crate::audit::{LockEventKind, LockEvents};
use crate::kinds::election::Election;
use crate::kinds::multi::Multi;
use crate::kinds::mutex::Mutex;
use crate::kinds::once::OncePer;
use crate::kinds::reentrant::Reentrant;
use crate::kinds::reentrant_lease::Owned;
use crate::kinds::rwlock::RwLock;
use crate::kinds::semaphore::Semaphore;
use crate::lease::detached::DetachedLease;
use crate::lease::guard::Guard;
use crate::lease::handle::requests::Afterwards;
use crate::lease::held_lease::HeldLease;
use crate::lease::prolonged::Prolonged;
use crate::lease::release::{self, Release, Releases};
use crate::log::{self, LogWriter};
use crate::owner::Owner;
use crate::rt;
use crate::shared::Inner;
use crate::waiting::acquisition::Acquisition;
use crate::waiting::gate::Gates;

/// How long [`Client::close`] tries to release everything.
pub const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A connection to a store of locks.
///
/// Cheap to clone; all clones share one store. Each request runs on the tokio runtime of its
/// caller. One thread of the process, `leasehold`, serves all clients. It renews leases, notices
/// their loss, and releases what dropped futures and guards leave behind. So a runtime that is
/// blocked or ends costs no lease.
#[derive(Clone)]
pub struct Client {
    gates: Arc<Gates>,
    owned: Arc<Owned>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner().fmt(f)
    }
}

impl Client {
    pub(crate) fn of(inner: Arc<Inner>) -> Self {
        Self { gates: Gates::new(inner), owned: Arc::default() }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        self.gates.client()
    }

    /// A mutex of this name: a value, which can't fail and sends its first request when it is
    /// locked.
    pub fn mutex(&self, key: impl IntoKey) -> Mutex {
        Mutex::new(&self.gates, key.into_key())
    }

    /// A read-write lock of this name: a value, which can't fail and sends its first request when
    /// it is locked.
    pub fn rwlock(&self, key: impl IntoKey) -> RwLock {
        RwLock::new(&self.gates, key.into_key())
    }

    /// Several locks that are taken together, all or none, in any order. A value, which can't fail
    /// and sends its first request when they are locked.
    pub fn multi<K: IntoKey>(&self, keys: impl IntoIterator<Item = K>) -> Multi {
        Multi::new(&self.gates, keys.into_iter().map(IntoKey::into_key))
    }

    /// An election of this name, with one leader at a time: a value, which can't fail and sends its
    /// first request with a campaign.
    pub fn election(&self, key: impl IntoKey) -> Election {
        Election::new(&self.gates, key.into_key())
    }

    /// A job of this name that starts at most once per `period`, on all hosts together: a value,
    /// which can't fail and sends its first request when it is started.
    pub fn once_per(&self, key: impl IntoKey, period: Duration) -> OncePer {
        OncePer::new(&self.gates, key.into_key(), period)
    }

    /// A lock of this name that `owner` may take again while it has it: a value, which can't fail
    /// and sends its first request when it is locked.
    pub fn reentrant(&self, key: impl IntoKey, owner: &Owner) -> Reentrant {
        Reentrant::new(&self.gates, &self.owned, key.into_key(), owner)
    }

    /// A semaphore of this name with `limit` permits: a value, which can't fail and sends its first
    /// request when a permit is acquired.
    pub fn semaphore(&self, key: impl IntoKey, limit: u32) -> Semaphore {
        Semaphore::new(&self.gates, key.into_key(), limit)
    }

    /// The store's name for people: scheme and host or path.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.inner().location
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner().store
    }

    /// The owner that this client's locks show by default.
    #[must_use]
    pub fn owner(&self) -> &OwnerName {
        &self.inner().config.owner
    }

    /// Reports the events of this client's leases from now on: granted, handed off, released, lost,
    /// and leases of others that it force-releases. For a record that a program keeps. It sends no
    /// request, and leaves out the leases of other clients.
    ///
    /// Each call has a reader of its own, for which the last 1 024 events are kept. A slower reader
    /// [misses](LockEvents::missed) some and delays no other work.
    pub fn events(&self) -> LockEvents {
        self.inner().audience.listen()
    }

    /// The last events of a lock in the log of its store, the oldest first: at most `last`, and no
    /// more than are kept. Clients write them if their store's URL has `log`, as in
    /// `redis://host?log=1000` or `embedded:/path?log=1000`, each for its own leases. Any client
    /// can read them.
    ///
    /// A log is for people and is no proof. Events are written after the fact. So one is missing if
    /// its process was killed first, or if the store was away ([`log_missed`](Self::log_missed)).
    /// The end of a dead holder's lease has no event. Times are the store's.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if a store has no log (`memory:`, locks of other libraries),
    /// [`ErrorKind::Config`] for a bad name, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn log(&self, key: impl IntoKey, last: usize) -> Result<Vec<LogEntry>> {
        let key = key.into_key()?;
        let (store, limit) = self.inner().to_call()?;
        let explain = |error| self.inner().explain(error, "read the log").on_key(&key);
        let log = log::of(store).map_err(explain)?;
        let mut entries = log.read(&key, last, limit).await.map_err(explain)?;
        settle_log(&mut entries);
        Ok(entries)
    }

    /// How many events of this client are missing in the log of its store, because they could not
    /// be written.
    #[must_use]
    pub fn log_missed(&self) -> u64 {
        self.inner().audience.log().map_or(0, LogWriter::missed)
    }

    /// Describes a lock: its holders and its waiters. `None` if it is not in use.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn inspect(&self, key: impl IntoKey) -> Result<Option<LockInfo>> {
        self.inner().look(&key.into_key()?).await
    }

    /// What a Redis store has stored for a lock, in words for people, with a line for each field
    /// that is stored. A quorum lists it for each node. [`inspect`](Self::inspect) is for programs:
    /// these words may change with any version. A token is a secret, so its fingerprint stands for
    /// it.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the store has no such record (`embedded:`, `memory:`, locks of
    /// other libraries), [`ErrorKind::Config`] for a bad name, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn raw(&self, key: impl IntoKey) -> Result<Vec<String>> {
        let request = RawRequest::new(key.into_key()?);
        let (store, limit) = self.inner().to_call()?;
        let raw = store.raw(&request, limit).await;
        raw.map_err(|error| self.inner().explain(error, "show").on_key(&request.key))
    }

    /// Whether a holder or waiter of an inspection is this client's own, by its `mark`. That is a
    /// lease, a position in a queue, or a grant whose answer has not come yet. The owner's name
    /// does not show this, since others may have the same. Costs no request; looks at each lease
    /// that this client has.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// let guard = client.mutex("import").lock().await?;
    /// let info = client.inspect("import").await?.unwrap();
    /// assert!(client.is_own(info.holders[0].mark));
    /// # guard.release().await }
    /// ```
    #[must_use]
    pub fn is_own(&self, mark: u32) -> bool {
        mark != 0 && self.inner().is_own(mark)
    }

    /// Describes the locks in use whose names start with `prefix`, ordered by name. A trailing `*`
    /// in the prefix is ignored. A lock that can't be read is in [`Listing::unreadable`]; all
    /// others are listed.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(listing)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] and the other errors of a store that can't be reached;
    /// [`ErrorKind::Unsupported`] when more than 100 000 locks are in use.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Listing> {
        let prefix = prefix.as_ref();
        let request = ListRequest::new(prefix.strip_suffix('*').unwrap_or(prefix));
        let (store, limit) = self.inner().to_call()?;
        let list = store.list(&request, limit.saturating_mul(10)).await;
        list.map_err(|error| self.inner().explain(error, "list"))
    }

    /// Checks whether the store is set up well for locks (settings of the server, rights, clocks,
    /// room), and returns its findings, the worst first. Changes nothing.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(examining)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] and the other errors of a store that can't be reached. All other
    /// faults are findings.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        let (store, limit) = self.inner().to_call()?;
        let findings = store.examine(limit.saturating_mul(10)).await;
        let mut findings = findings.map_err(|error| self.inner().explain(error, "examine"))?;
        doctor::sort(&mut findings);
        Ok(findings)
    }

    /// Force-releases a lease. Its holder learns of that at its next renewal, since the store sends
    /// holders no message. The holder of a lease that is not renewed can look by
    /// [`is_held_by_store`](HeldLease::is_held_by_store). The fence must be the one that
    /// [`inspect`](Self::inspect) showed; another holder's lease is left alone.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not have been released.
    pub async fn force_release(&self, key: impl IntoKey, fence: Fence) -> Result<ForceRelease> {
        let key = key.into_key()?;
        let request = ForceReleaseRequest::new(key.clone(), fence);
        let (store, limit) = self.inner().to_call()?;
        let answer = store.force_release(&request, limit).await;
        let answer =
            answer.map_err(|error| self.inner().explain(error, "force-release").on_key(&key))?;
        tracing::info!(target: "leasehold", %key, %fence, ?answer, "force-release");
        if answer == ForceRelease::Released {
            self.inner().audience.tell(&key, fence, None, None, LockEventKind::Forced);
        }
        Ok(answer)
    }

    /// Requests release from all holders of a lock. Returns how many there are; 0 if the lock is
    /// not held. They learn of it with their next renewal, or within a second while they [wait for
    /// it](HeldLease::asked). The holders decide.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// If dropped, they may or may not get the request.
    pub async fn ask(&self, key: impl IntoKey) -> Result<u32> {
        let key = key.into_key()?;
        self.inner().ask(AskRequest::new(key, self.inner().config.owner.clone())).await
    }

    /// As [`ask`](Self::ask), for the one lease whose fence [`inspect`](Self::inspect) showed.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the holder may or may not get the request.
    pub async fn ask_holder(&self, key: impl IntoKey, fence: Fence) -> Result<u32> {
        let mut request = AskRequest::new(key.into_key()?, self.inner().config.owner.clone());
        request.fence = Some(fence);
        self.inner().ask(request).await
    }

    /// Adopts a lease that was [detached](Guard::detach), here or elsewhere, by renewing it. The
    /// guard has the metadata, the permits and the grace that the lease had, and is renewed if it
    /// was. A longest hold and renewal by progress are not carried over.
    ///
    /// The same step gives the lease a new secret, so `lease` and its text are spent. If several
    /// adopt it, one gets a guard, and the others change nothing. Detach the guard again for a
    /// valid text.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(adopting)]
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Late`] – it had expired; no other holder has had the lock since.
    /// * [`ErrorKind::Lost`] – it had expired, and another holder may have had the lock since; or
    ///   it was adopted before.
    /// * What the store says. With [`Effect::Unknown`](leasehold_core::Effect::Unknown) the lease
    ///   may be spent without a holder; it then expires.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease stays detached or is spent; a spent one expires.
    pub async fn adopt(&self, lease: &DetachedLease) -> Result<Guard> {
        self.inner().check_open()?;
        lease.adopt(self.inner()).await
    }

    /// Renews a detached lease without adopting it.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// As [`adopt`](Self::adopt), and [`ErrorKind::Config`] when the ttl is out of range or leaves
    /// no time to work. No request was sent then.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not have been renewed.
    pub async fn renew(&self, lease: &DetachedLease, ttl: Duration) -> Result<DetachedLease> {
        let explain = |error| self.inner().explain(error, "renew").on_key(lease.key());
        let ttl = Ttl::new(ttl).map_err(explain)?;
        self.inner().config.allows(ttl).map_err(explain)?;
        let settings = lease.settings(self.inner());
        settings.settings.grace_of(ttl).map_err(explain)?;
        let answer = lease.renewed(self.inner(), ttl, None).await;
        answer.map_err(|error| self.inner().explain(error, "renew").on_key(lease.key()))?;
        tracing::debug!(target: LOCK, key = %lease.key(), fence = %lease.fence(), %ttl, "renewed");
        Ok(lease.with_ttl(ttl))
    }

    /// Renews a detached lease. If it has expired and the lock had no holder since, re-acquires the
    /// lock in the name of this client, returns [`Prolonged::Late`], and logs a warning. If another
    /// holder came, the lease stays lost. See [`Mutex::prolong`](crate::Mutex::prolong).
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(prolonging)]
    ///
    /// # Errors
    ///
    /// As [`renew`](Self::renew), without [`ErrorKind::Late`]: after another holder the lease is
    /// [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not have been renewed. One that was re-acquired is released
    /// in the background.
    pub async fn prolong(
        &self,
        lease: &DetachedLease,
        ttl: Duration,
    ) -> Result<Prolonged<DetachedLease>> {
        match self.renew(lease, ttl).await {
            Ok(renewed) => return Ok(Prolonged::InTime(renewed)),
            Err(error) if error.kind() == ErrorKind::Late => {}
            Err(error) => return Err(error),
        }
        let mut named = lease.settings(self.inner());
        Arc::make_mut(&mut named.settings).ttl = Ttl::new(ttl)?;
        let mut acquisition = Acquisition::new(self.inner(), &Ok(named), Some(Duration::ZERO))?;
        acquisition.request.after = Some(lease.fences());
        let began = acquisition.limits.started;
        let guard = acquisition.try_once(began).await?.ok_or_else(|| {
            let why = "the lease expired, and another holder has come since";
            self.inner().explain(Error::new(ErrorKind::Lost, why).on_key(lease.key()), "renew")
        })?;
        let anew = guard.detach().await.map_err(|not| not.into_parts().1)?;
        let (key, ttl) = (lease.key(), anew.ttl());
        tracing::warn!(target: LOCK, %key, %ttl, "prolonged after it had expired; no other holder came since");
        Ok(Prolonged::Late(anew))
    }

    /// Ends a detached lease, and starts a cooldown if one is given. An `Ok` says that the lease
    /// was held to its end.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// As [`Guard::release`], but without retries in the background.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease may or may not have ended.
    pub async fn release(&self, lease: &DetachedLease, cooldown: Option<Cooldown>) -> Result<()> {
        let answer = self.release_outcome(lease, cooldown).await;
        release::verdict_of(self.inner(), lease.key(), answer)
    }

    /// As [`release`](Self::release), and reports how that went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
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
        cooldown: Option<Cooldown>,
    ) -> Result<Release> {
        lease.release(self.inner(), cooldown.unwrap_or_default()).await
    }

    /// Releases every lease that this client holds, at the same time; the guards that remain hold
    /// no lease. An `Ok` says that all were held to their end.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn_each)]
    ///
    /// # Errors
    ///
    /// The worst error that [`Guard::release`] would have returned for any of them; it names the
    /// lock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, releases that have begun go on in the background. The other leases
    /// stay held.
    pub async fn release_all(&self) -> Result<()> {
        self.inner().check_process()?;
        self.release_all_outcomes().await.verdict()
    }

    /// As [`release_all`](Self::release_all), and reports for each lease how its release went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn_each)]
    ///
    /// # Cancel safety
    ///
    /// As [`release_all`](Self::release_all).
    pub async fn release_all_outcomes(&self) -> Releases {
        let ours = self.inner().check_process().is_ok();
        let held = if ours { self.inner().schedule.holds() } else { Vec::new() };
        let releases = held.into_iter().map(|handle| {
            let key = handle.key.clone();
            let lease = HeldLease::of(self.inner(), handle);
            async move { (key, lease.give_back(Afterwards::AsGranted).await) }
        });
        Releases::of(self.inner(), releases).await
    }

    /// The runtime on which leases are renewed, on a thread of its own. The command's watchdog
    /// needs it to learn of renewals while the command's own runtime stands still. Whatever blocks
    /// there delays renewals.
    #[doc(hidden)]
    #[must_use]
    pub fn renewing_runtime(&self) -> &tokio::runtime::Handle {
        &self.inner().background
    }

    /// Closes the client: no lock can be acquired any more, everything held is released, and so is
    /// what dropped futures and guards left behind. Takes [`CLOSE_WITHIN`] at most.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(closing)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if something could not be released in time. The background goes
    /// on trying, and what is left expires.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the client stays closed, and the releases go on in the background.
    pub async fn close(&self) -> Result<()> {
        self.inner().check_process()?;
        self.inner().begin_to_close();
        if self.inner().has_nothing_left() {
            self.inner().stop();
            return Ok(());
        }
        let client = self.clone();
        // In the background, so that it goes on when this future is dropped, or its runtime ends.
        let clean_up = self.inner().background.spawn(async move {
            let outcomes = client.release_all_outcomes().await;
            client.inner().reaper.idle_for_good().await;
            if let Some(log) = client.inner().audience.log() {
                log.flushed().await;
            }
            client.inner().stop();
            outcomes.into_iter().try_for_each(|(_, outcome)| outcome.map(drop))
        });
        let limit = self.inner().clock.now().saturating_add(CLOSE_WITHIN);
        let outcome = tokio::select! {
            biased;
            Ok(outcome) = clean_up => outcome,
            () = rt::sleep_until(&*self.inner().clock, limit) => Err(self.inner().explain(
                Error::new(
                    ErrorKind::Unavailable,
                    format!("not all leases were released within {CLOSE_WITHIN:?}; they expire \
                             with their ttl"),
                )
                .with_effect(leasehold_core::Effect::Unknown),
                "close",
            )),
        };
        self.inner().stop();
        outcome
    }
}
