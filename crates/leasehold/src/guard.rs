//! A held lock.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Effect, Error, ErrorKind, Fence, Key, LeaseStatus, Mode, Moment, Renew, RenewRequest, Result,
    Ttl,
};
use tokio_util::sync::CancellationToken;

use crate::LOCK;
use crate::change::NotChanged;
use crate::client::Inner;
use crate::detached::DetachedLease;
use crate::gate::Gates;
use crate::hold::{Change, Closing, Hold, Phase};
use crate::release::{self, Ending, Release};
use crate::run::{Leases, RunError, run_under};

/// How often a holder that waits to be asked looks.
const LOOK_FOR_ASKERS: Duration = Duration::from_secs(1);

/// A held lock: the proof that this process may act.
///
/// What can be asked of the lease, such as its [fence](HeldLease::fence), and whether it
/// [is held](HeldLease::is_held) or [lost](HeldLease::lost), is asked of the [`HeldLease`] that this
/// derefs to. The proof is as good as [`is_held`](HeldLease::is_held) says at the moment of asking,
/// and no better: see the guarantees page for what a lease can't promise. Give
/// [`fence`](HeldLease::fence) to the resource that is protected, so that it can refuse a late holder.
///
/// # Dropping is not releasing
///
/// A dropped guard gives its lease up in the background: soon, but not at a moment anybody can
/// tell, and if the store can't be reached or the process ends, only when its ttl has run out.
/// Drop never blocks, never panics and needs no runtime. Use [`release`](Self::release) to know.
///
/// In a child made by `fork` a guard is not held and does nothing.
#[must_use = "dropping the guard gives the lock up in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct Guard {
    lease: Option<HeldLease>,
}

/// A view of a held lease: what the work under it needs to know.
///
/// Cheap to clone. It does not keep the lock: that is the [`Guard`]'s part, and once the guard
/// is gone the view says that nothing is held.
#[derive(Clone)]
pub struct HeldLease {
    client: Arc<Inner>,
    hold: Arc<Hold>,
}

impl HeldLease {
    pub(crate) fn of(client: &Arc<Inner>, hold: &Arc<Hold>) -> Self {
        Self { client: Arc::clone(client), hold: Arc::clone(hold) }
    }

    /// The lock's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.hold.key
    }

    /// The text that is kept with the lease; empty where none was given.
    #[must_use]
    pub fn metadata(&self) -> &str {
        self.hold.settings.as_ref().map_or("", |settings| settings.metadata.as_str())
    }

    /// How many of a semaphore's permits it is; `None` for other kinds of locks.
    #[must_use]
    pub fn permits(&self) -> Option<u32> {
        match self.hold.settings.as_ref()?.mode {
            Mode::Permits { count, .. } => Some(count.get()),
            _ => None,
        }
    }

    /// The fencing token of this lease.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] once the lease is lost: nobody should begin anything under it. For
    /// logs there is [`fence_even_if_lost`](Self::fence_even_if_lost).
    pub fn fence(&self) -> Result<Fence> {
        if self.is_held() { Ok(self.hold.fence()) } else { Err(self.lost_error()) }
    }

    /// The fencing token, whether or not the lease still holds; for logs.
    #[must_use]
    pub fn fence_even_if_lost(&self) -> Fence {
        self.hold.fence()
    }

    /// Whether the lease is held at this moment. Asks nobody: it compares the lease's deadline
    /// with a clock that also counts while the machine sleeps.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_held(self.client.clock.now())
    }

    /// How long the lease is held for certain; zero once it is lost. Renewals push it on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining(self.client.clock.now())
    }

    /// How long it is until the store may grant the lock to somebody else: [`remaining`]
    /// (Self::remaining) and the grace for stopping.
    ///
    /// [`remaining`]: Self::remaining
    #[must_use]
    pub fn until_deadline(&self) -> Duration {
        self.hold.deadline().saturating_since(self.client.clock.now())
    }

    /// Whether a renewal has failed or stayed unanswered; the lease still holds.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.hold.status(self.client.clock.now()) == LeaseStatus::AtRisk
    }

    /// Returns when the lease is lost, `stop_grace` before the store could grant the lock to
    /// somebody else, or when its guard has been released or dropped.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        self.hold.lost(&*self.client.clock).await;
    }

    /// Returns when somebody [asks](crate::Client::ask) the holder to let go; also when the lease
    /// is lost or its guard has gone, so that nobody waits here in vain. [`is_asked`]
    /// (Self::is_asked) tells the two apart.
    ///
    /// While it is awaited it looks once a second, by a renewal that changes nothing; otherwise
    /// the holder learns of it with its next renewal. Letting go is up to the holder: a
    /// [`Guard::release`] then goes to whoever waits in the store's line, not to one of this
    /// process's own.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    ///
    /// [`is_asked`]: Self::is_asked
    pub async fn asked(&self) {
        let Self { client, hold } = self;
        loop {
            let now = client.clock.now();
            if self.is_asked() || !hold.is_held(now) {
                return;
            }
            hold.asked_until(&*client.clock, now.saturating_add(LOOK_FOR_ASKERS)).await;
            if !self.is_asked() && hold.is_held(client.clock.now()) {
                self.look_for_askers().await;
            }
        }
    }

    /// Whether somebody has asked the holder to let go, as far as is known here. Asks nobody.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.hold.is_asked()
    }

    async fn look_for_askers(&self) {
        struct Done<'a>(&'a Hold);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.request_done();
            }
        }
        let Self { client, hold } = self;
        let Some(mut request) = hold.start_renewal(client.clock.now()) else { return };
        let _done = Done(hold);
        // It may not shorten, and so changes nothing; only the answer counts.
        let Ok(ttl) = Ttl::new(Duration::from_millis(1)) else { return };
        request.ttl = ttl;
        let within = client.config.call_timeout.min(hold.length().duration() / 6);
        match client.store.renew(std::slice::from_ref(&request), within).await.pop() {
            Some(Ok(Renew::Asked)) => hold.ask(),
            Some(Ok(Renew::Late | Renew::NotHeld)) => hold.refuted(),
            _ => {}
        }
    }

    /// Passes when the lease is held; for a look before each side effect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when it is not.
    pub fn check(&self) -> Result<()> {
        self.fence().map(drop)
    }

    /// Says that the work under the lease gets on, where its renewal depends on that: see
    /// [`Mutex::progress_within`](crate::Mutex::progress_within). Cheap enough for every turn of a
    /// loop. A lost lease does not come back by it.
    pub fn progress(&self) {
        let now = self.client.clock.now();
        let stalled = self.hold.is_stalled(now);
        self.hold.progress(now);
        if stalled {
            self.client.wheel.look_now(&self.hold);
        }
    }

    /// A token that is cancelled when the lease is lost or given up, for handing down to tasks.
    /// It costs a small task on the thread that renews leases, and depends on no runtime of the
    /// caller's. In a child made by `fork` it is cancelled.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        let lease = self.clone();
        cancelled_after(&self.client, self.hold.is_ours(), async move { lease.lost().await })
    }

    /// Asks the store how long the lease runs on there; zero when it is not held there.
    ///
    /// For people and logs: decisions belong to [`is_held`](Self::is_held) and
    /// [`remaining`](Self::remaining), which count on this process's own clock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] and the other ways in which a store can't be asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ttl(&self) -> Result<Duration> {
        let Self { client, hold } = self;
        let info = client.store.inspect(&hold.key, client.config.call_timeout).await;
        let info = info.map_err(|error| self.explain(error, "inspect"))?;
        let holders = info.map(|info| info.holders).unwrap_or_default();
        let ours = holders.iter().find(|holder| hold.fences.contains(holder.fence));
        Ok(ours.map(|holder| holder.remaining).unwrap_or_default())
    }

    /// Asks the store whether the lock is still held by this very lease.
    ///
    /// # Errors
    ///
    /// As [`ttl`](Self::ttl).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn is_held_by_store(&self) -> Result<bool> {
        Ok(!self.ttl().await?.is_zero())
    }

    /// Gives the lease a new length: it ends `ttl` from now unless it is renewed, also when
    /// that is earlier than before. Background renewals use the new length from here on.
    ///
    /// # Time
    ///
    /// One request, after a background renewal that may be on its way.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Late`] – the lease had run out, here or in the store, but nobody has held the
    ///   lock since. It stays lost: [`Mutex::relock`](crate::Mutex::relock) takes the lock anew,
    ///   under a new fence.
    /// * [`ErrorKind::Lost`] – the lease is not ours any more, or it had run out here and the store
    ///   could not be asked.
    /// * [`ErrorKind::Config`] – the ttl is out of range, below the client's
    ///   [minimum](crate::ClientBuilder::min_ttl), or leaves no time to work. Nothing was sent.
    /// * [`ErrorKind::Unavailable`] – the store could not be asked, and the lease is what it was;
    ///   or, with [`Effect::Unknown`], it did not answer, and the lease counts as the shorter of
    ///   the two.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the store may or may not have taken the new length, and this side
    /// counts on the shorter of the two.
    pub async fn renew_to(&self, ttl: Duration) -> Result<()> {
        self.change_length(Ttl::new(ttl)?).await.map_err(|error| self.explain(error, "renew"))
    }

    fn lost_error(&self) -> Error {
        let why = if self.hold.is_ours() {
            "the lease is lost; stop what was done under it"
        } else {
            "this lease belongs to the parent process; a fork's child holds nothing"
        };
        self.explain(Error::new(ErrorKind::Lost, why), "use")
    }

    pub(crate) const fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) const fn client(&self) -> &Arc<Inner> {
        &self.client
    }

    /// Ends the lease in the background.
    pub(crate) fn give_up(&self) {
        drop(Ending::begin(self, Closing::No));
    }

    pub(crate) fn explain(&self, error: Error, operation: &'static str) -> Error {
        error.during(operation).on_key(&self.hold.key).at_store(self.client.location())
    }
}

/// A token that is cancelled once `lost` returns, or at once in a fork's child.
pub(crate) fn cancelled_after(
    client: &Inner,
    is_ours: bool,
    lost: impl Future<Output = ()> + Send + 'static,
) -> CancellationToken {
    let token = CancellationToken::new();
    // Whatever ends the task cancels the token: nobody would tell of a loss any more.
    let cancel = token.clone().drop_guard();
    if is_ours {
        let child = token.clone();
        client.background.spawn(async move {
            let _cancel = cancel;
            tokio::select! {
                () = lost => {}
                () = child.cancelled() => {}
            }
        });
    }
    token
}

impl Leases for HeldLease {
    fn are_held(&self) -> bool {
        self.is_held()
    }

    fn lost(&self) -> impl Future<Output = ()> + Send {
        Self::lost(self)
    }

    fn were_held_for_longest(&self) -> bool {
        self.hold.was_held_for_longest(self.client.clock.now())
    }

    fn at_fault(&self) -> Option<HeldLease> {
        Some(self.clone())
    }
}

impl Guard {
    pub(crate) fn new(client: &Arc<Inner>, hold: Arc<Hold>) -> Self {
        Self { lease: Some(HeldLease { client: Arc::clone(client), hold }) }
    }

    /// The lease, for whoever ends it by other means.
    pub(crate) fn into_lease(mut self) -> HeldLease {
        self.lease.take().expect("BUG: a guard is ended once")
    }

    /// A view of the lease, to be given to the work.
    #[must_use]
    pub fn lease(&self) -> &HeldLease {
        self.lease.as_ref().expect("BUG: only methods that consume the guard take its lease")
    }

    /// Ends the lease. An `Ok` says that it was held to its end: nobody else has had the lock
    /// while the guard was there.
    ///
    /// # Time
    ///
    /// One request, or none where the lock goes to the next waiter of this client.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Late`] – the lease had run out before, though nobody has held the lock since.
    /// * [`ErrorKind::Lost`] – the lease was not held any more, and the work under it may have
    ///   overlapped with another holder's.
    /// * What the store says, with [`Effect::Unknown`] when it did not answer: the release is
    ///   retried in the background, and the lease ends with its ttl at the latest.
    ///
    /// [`release_outcome`](Self::release_outcome) has these as values.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        self.end_well(Closing::No).await
    }

    /// Ends the lease, and says how that went.
    ///
    /// # Errors
    ///
    /// When the store refuses, or can't be reached at all. The lease is then given up in the
    /// background, as far as possible, and ends with its ttl otherwise. A request that was sent
    /// and not answered is [`Release::Unknown`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release_outcome(self) -> Result<Release> {
        release::outcome(self.end(Closing::No).await)
    }

    /// Ends the lease, and keeps the lock closed to everybody for `cooldown` after.
    ///
    /// The report has just been run: nobody should run it again within the next minute.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, even before the first poll, the release goes on in the background,
    /// with its cool-down.
    pub fn release_with_cooldown(
        self,
        cooldown: Duration,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        self.end_well(Closing::For(cooldown))
    }

    /// As [`release_with_cooldown`](Self::release_with_cooldown), and says how that went.
    ///
    /// # Errors
    ///
    /// As [`release_outcome`](Self::release_outcome).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub fn release_with_cooldown_outcome(
        self,
        cooldown: Duration,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        let answer = self.end(Closing::For(cooldown));
        async { release::outcome(answer.await) }
    }

    /// Ends the lease; an error unless it was held to its end.
    pub(crate) fn end_well(
        self,
        closing: Closing,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let lease = self.lease().clone();
        let answer = self.end(closing);
        async move { lease.verdict(answer.await) }
    }

    /// Ends the lease. A store that did not answer is an error that says so by its effect.
    pub(crate) fn end(
        self,
        closing: Closing,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        self.into_lease().end(closing)
    }

    /// Runs `body` under the held lock, and releases it; for locks of any kind what
    /// [`Mutex::run`](crate::Mutex::run) is for a mutex. When the lease is lost, the body is
    /// dropped where it stands, before the store could grant the lock to somebody else.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// let permit = client.semaphore("uploads", 3).acquire().await?;
    /// let uploaded = permit.run(async |lease| lease.is_held()).await?;
    /// assert!(uploaded);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the lease given up in the background.
    pub async fn run<T, F>(self, body: impl FnOnce(HeldLease) -> F) -> Result<T, RunError<T>>
    where
        F: Future<Output = T>,
    {
        let lease = self.lease().clone();
        run_under(lease, |closing| self.end(closing), Closing::No, body, |_| Closing::No).await
    }

    /// Lets go of the lease without ending it: it lives on until its ttl, for whoever has the
    /// returned value, in this process or another. It is not renewed any more.
    ///
    /// The value contains the lease's secret.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the lease is lost already; the guard comes back with it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the lease is released in the background.
    pub async fn detach(mut self) -> Result<DetachedLease, NotChanged<Self>> {
        if let Err(error) = self.check() {
            return Err(NotChanged::new(self, error));
        }
        let lease = self.lease.take().expect("BUG: a guard is ended once");
        let ending = Ending::begin(&lease, Closing::No);
        lease.hold.settled().await;
        let detached = DetachedLease::of(&lease.hold);
        if let Some(ending) = ending {
            ending.done();
        }
        tracing::debug!(target: LOCK, key = %detached.key(), fence = %detached.fence(), "detached");
        Ok(detached)
    }
}

impl HeldLease {
    async fn change_length(&self, ttl: Ttl) -> Result<()> {
        let Self { client, hold } = self;
        let lost = || Error::new(ErrorKind::Lost, "the lease is lost; stop what was done under it");
        client.config.allows(ttl)?;
        if !hold.can_be(ttl) {
            return Err(Error::new(
                ErrorKind::Config,
                format!("a ttl of {ttl} leaves this lease no time to work; give a longer one"),
            ));
        }
        let (request, before, sent_at) = loop {
            hold.settled().await;
            let sent_at = client.clock.now();
            match hold.start_change(ttl, sent_at) {
                Change::Start(request, before) => break (request, before, sent_at),
                Change::Wait => {}
                Change::Over => return Err(self.late_or_lost().await),
            }
        };
        let _changing = Changing { lease: self, sent_at };
        let within = client.config.call_timeout.min(hold.length().duration());
        let answer = client.store.renew(std::slice::from_ref(&request), within).await.pop();
        match answer {
            Some(Ok(answer @ (Renew::Renewed | Renew::Asked))) => {
                if answer == Renew::Asked {
                    hold.ask();
                }
                if hold.length_changed(before, sent_at, ttl, client.clock.now()) {
                    Ok(())
                } else {
                    Err(late())
                }
            }
            Some(Ok(Renew::Late)) => {
                hold.refuted();
                Err(late())
            }
            Some(Ok(_)) => {
                hold.refuted();
                Err(lost())
            }
            Some(Err(error)) => {
                if error.effect() == Effect::NotApplied {
                    hold.length_unchanged(before, client.clock.now());
                }
                hold.renewal_failed();
                Err(error)
            }
            None => {
                hold.renewal_failed();
                Err(Error::new(ErrorKind::Protocol, "the store gave no answer to a renewal")
                    .with_effect(Effect::Unknown))
            }
        }
    }
}

impl HeldLease {
    /// What has become of a lease that has run out here: whether another holder can have come is
    /// for the store to say. It is asked without changing anything.
    async fn late_or_lost(&self) -> Error {
        let Self { client, hold } = self;
        let lost = Error::new(ErrorKind::Lost, "the lease is lost; stop what was done under it");
        if !hold.is_ours() || hold.phase() != Phase::Held {
            return lost;
        }
        // It may not shorten, and so changes nothing; only the answer counts.
        let Ok(ttl) = Ttl::new(Duration::from_millis(1)) else { return lost };
        let request = RenewRequest::new(hold.key.clone(), hold.token, hold.fences, ttl);
        let within = client.config.call_timeout;
        match client.store.renew(std::slice::from_ref(&request), within).await.pop() {
            Some(Ok(Renew::Renewed | Renew::Asked | Renew::Late)) => late(),
            Some(Err(error)) => lost.caused_by(error),
            _ => lost,
        }
    }
}

fn late() -> Error {
    Error::new(
        ErrorKind::Late,
        "the lease had run out before, though nobody has held the lock since; take it anew with a \
         longer ttl",
    )
}

/// A change of length on the way; dropping it, at whatever point, says that it no longer is, and
/// has the renewer look after the lease by what is believed of it then.
struct Changing<'a> {
    lease: &'a HeldLease,
    sent_at: Moment,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let HeldLease { client, hold } = self.lease;
        hold.change_done();
        client.wheel.add(hold, self.sent_at);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        if lease.hold.is_ours() {
            if !Gates::hand_on(&lease.client, &lease.hold) {
                drop(Ending::begin(&lease, Closing::No));
            }
        } else {
            // The parent's client must not be taken down from here, not even in memory: its
            // runtime does not exist in this process.
            std::mem::forget(lease);
        }
    }
}

impl HeldLease {
    /// The lease on one line, under the name of the type that stands for it.
    pub(crate) fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(name);
        shown.field("key", &self.key().as_str()).field("fence", &self.hold.fence().value());
        if self.is_held() {
            let ms = Duration::from_millis(self.remaining().as_millis().try_into().unwrap_or(0));
            shown.field("remaining", &ms).finish()
        } else {
            shown.field("held", &false).finish()
        }
    }
}

impl fmt::Debug for HeldLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe("HeldLease", f)
    }
}

impl Deref for Guard {
    type Target = HeldLease;

    fn deref(&self) -> &HeldLease {
        self.lease()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.lease {
            Some(lease) => lease.describe("Guard", f),
            None => f.write_str("Guard { held: false }"),
        }
    }
}
