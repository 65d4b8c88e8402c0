//! The view of a held lease to which guards deref.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Admission, Effect, Error, ErrorKind, Fence, Key, LeaseStatus, Mode, Moment, Reason, Renew,
    Result, Ttl,
};
use tokio_util::sync::CancellationToken;

use crate::lease::handle::LeaseHandle;
use crate::lease::loss::Loss;
use crate::lease::outcome::lateness;
use crate::lease::renewal::no_answer;
use crate::shared::Inner;

/// The reason in the error of a lost lease.
pub(crate) const LOST: &str = "the lease is lost; stop the work under it";

/// How often a holder that waits for release requests looks.
const LOOK_FOR_ASKERS: Duration = Duration::from_secs(1);

/// A view of a held lease: what the work under it needs to know.
///
/// Cheap to clone. It does not keep the lock, which the [`Guard`](crate::Guard) does. Once the
/// guard is gone, the view says that no lease is held.
#[derive(Clone)]
pub struct HeldLease {
    client: Arc<Inner>,
    handle: Arc<LeaseHandle>,
}

impl HeldLease {
    pub(crate) fn of(client: &Arc<Inner>, handle: Arc<LeaseHandle>) -> Self {
        Self { client: Arc::clone(client), handle }
    }

    /// The lock's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.handle.key
    }

    /// The text that is kept with the lease; empty if none was set.
    #[must_use]
    pub fn metadata(&self) -> &str {
        self.handle.settings.metadata.as_str()
    }

    /// How many of a semaphore's permits it has; `None` for other kinds of locks.
    #[must_use]
    pub fn permits(&self) -> Option<u32> {
        match self.handle.settings.mode {
            Mode::Permits { count, .. } => Some(count.get()),
            _ => None,
        }
    }

    /// The fencing token of this lease.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] once the lease is lost: no work may begin under it. For logs there is
    /// [`fence_even_if_lost`](Self::fence_even_if_lost).
    pub fn fence(&self) -> Result<Fence> {
        if self.is_held() { Ok(self.handle.fence()) } else { Err(self.lost_error()) }
    }

    /// The fencing token, whether or not the lease still holds; for logs.
    #[must_use]
    pub fn fence_even_if_lost(&self) -> Fence {
        self.handle.fence()
    }

    /// Whether the lease is held at this moment. Sends no request: it compares the lease's deadline
    /// with a clock that also counts while the machine sleeps.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.handle.is_held(self.client.clock.now())
    }

    /// How long the lease is held for certain; zero once it is lost. Renewals extend it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.handle.remaining(self.client.clock.now())
    }

    /// How long it is until the store may grant the lock to another holder:
    /// [`remaining`](Self::remaining) and the grace for stopping.
    #[must_use]
    pub fn until_deadline(&self) -> Duration {
        self.handle.state().deadline().saturating_since(self.client.clock.now())
    }

    /// Whether a renewal has failed or stayed unanswered; the lease still holds.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.handle.status(self.client.clock.now()) == LeaseStatus::AtRisk
    }

    /// Whether the longest hold (`max_hold`) has ended, or ends with the lease as it is now. It
    /// distinguishes an expected loss from any other.
    #[must_use]
    pub fn is_max_hold_over(&self) -> bool {
        self.handle.state().was_held_for_longest(self.client.clock.now())
    }

    /// How the lease was lost, if it was while its guard lived, with the error of the last failed
    /// renewal. Sends no request.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.handle.loss(self.client.clock.now())
    }

    /// Returns when the lease is lost, `stop_grace` before the store can grant the lock to another
    /// holder, or when its guard has been released or dropped.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(losing)]
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        self.handle.lost(&*self.client.clock).await;
    }

    /// Returns when [`ask`](crate::Client::ask) requests release from the holder. It also returns
    /// when the lease is lost or its guard is gone, so that every wait ends.
    /// [`is_asked`](Self::is_asked) distinguishes the two.
    ///
    /// While it is awaited it looks once a second, by a renewal that changes nothing; otherwise the
    /// holder learns of a request with its next renewal. The holder decides. A
    /// [`Guard::release`](crate::Guard::release) then goes to the next waiter in the store's queue,
    /// even if this process has waiters of its own.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(being_asked)]
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn asked(&self) {
        let Self { client, handle } = self;
        loop {
            let now = client.clock.now();
            if self.is_asked() || !handle.is_held(now) {
                return;
            }
            handle.asked_until(&*client.clock, now.saturating_add(LOOK_FOR_ASKERS)).await;
            if !self.is_asked() && handle.is_held(client.clock.now()) {
                self.ask_store().await;
            }
        }
    }

    /// Whether a release request has reached this holder. Sends no request.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.handle.state().is_asked()
    }

    /// Looks at the store by a renewal that changes nothing. Its answer says whether the store has
    /// the lease, and whether there is a release request.
    async fn ask_store(&self) {
        let Self { client, handle } = self;
        let Admission::Start(mut renewing) = handle.may_renew(client.clock.now()) else { return };
        // A renewal that may not shorten changes nothing at this ttl; only its answer counts.
        renewing.request.ttl = Ttl::MIN;
        let within = client.config.call_timeout.min(handle.length() / 6);
        let request = std::slice::from_ref(&renewing.request);
        let answer = client.store.renew(request, within).await.pop();
        let now = client.clock.now();
        match answer {
            Some(Ok(Renew::Asked)) => handle.on(|lease| lease.asked()),
            Some(Ok(Renew::Late | Renew::NotHeld)) => handle.on(|lease| lease.refuted(now)),
            Some(Err(error)) if error.reason() == Some(Reason::DirectoryGone) => {
                handle.renewal_failed(&error, now);
            }
            _ => {}
        }
    }

    /// Succeeds while the lease is held; for a look before each side effect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when it is not.
    pub fn check(&self) -> Result<()> {
        self.fence().map(drop)
    }

    /// Reports that the work under the lease makes progress, if its renewal depends on that: see
    /// [`Mutex::progress_within`](crate::Mutex::progress_within). Cheap enough for every turn of a
    /// loop. It does not bring back a lost lease.
    pub fn progress(&self) {
        let now = self.client.clock.now();
        if self.handle.on(|lease| lease.progress(now)) {
            self.client.schedule.look_now(&self.handle);
        }
    }

    /// Notes how the work under the lease ended, as in `sent 120 mails` or `exit 3`, for the log of
    /// the store: the event of its end has it as
    /// [`LogEntry::result`](crate::store::LogEntry::result). Call it before the release. The first
    /// note counts, up to 64 characters of it; without a log it is dropped. Sends no request.
    pub fn note_result(&self, result: &str) {
        self.handle.note_result(result);
    }

    /// A token that is cancelled when the lease is lost or its guard is gone, to pass down to
    /// tasks. It costs a small task on the thread that renews leases, and is independent of the
    /// caller's runtimes. In a child made by `fork` it is cancelled.
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        let lease = self.clone();
        cancelled_after(&self.client, self.handle.is_ours(), async move { lease.lost().await })
    }

    /// Reads from the store how long the lease runs on there; zero when it is not held there. If
    /// the store does not have the lease, it is lost from then on.
    ///
    /// For people and logs: decisions belong to [`is_held`](Self::is_held) and
    /// [`remaining`](Self::remaining), which count on this process's own clock.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] and the other errors of a store that can't be reached.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ttl(&self) -> Result<Duration> {
        let Self { client, handle } = self;
        let (store, limit) = client.to_call()?;
        let info = store.inspect(&handle.key, limit).await;
        let holders = match info {
            Ok(info) => info.map(|info| info.holders).unwrap_or_default(),
            Err(error) => {
                if error.reason() == Some(Reason::DirectoryGone) {
                    self.ask_store().await;
                }
                return Err(self.explain(error, "inspect"));
            }
        };
        let ours = holders.iter().find(|holder| handle.fences.contains(holder.fence));
        let left = ours.map(|holder| holder.remaining).unwrap_or_default();
        if left.is_zero() {
            // The inspection may be older than a change of the lease; the answer to a renewal is
            // not.
            self.ask_store().await;
        }
        Ok(left)
    }

    /// Checks whether the store still has this very lease. If it does not, the lease is lost from
    /// then on.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
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

    /// Sets a new length: the lease expires `ttl` from now unless it is renewed, even if that is
    /// earlier than before. Background renewals use the new length from here on.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Late`] – the lease had expired, here or in the store, but no other holder has
    ///   had the lock since. It stays lost: [`Mutex::relock`](crate::Mutex::relock) takes the lock
    ///   again, under a new fence.
    /// * [`ErrorKind::Lost`] – the store has another lease or none. Or the lease had expired here
    ///   and the store could not be reached.
    /// * [`ErrorKind::Config`] – the ttl is out of range, below the client's
    ///   [minimum](crate::ClientBuilder::min_ttl), or leaves no time to work. No request was sent.
    /// * [`ErrorKind::Unavailable`] – the store could not be reached, and the lease is what it was.
    ///   With [`Effect::Unknown`] it did not answer, and the lease counts as the shorter of the
    ///   two.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the store may or may not have set the new length, and this side
    /// counts on the shorter of the two.
    pub async fn renew_to(&self, ttl: Duration) -> Result<()> {
        self.change_length(Ttl::new(ttl)?).await.map_err(|error| self.explain(error, "renew"))
    }

    pub(crate) fn lost_error(&self) -> Error {
        let why = if self.handle.is_ours() {
            LOST
        } else {
            "this lease belongs to the parent process; a fork's child holds nothing"
        };
        self.explain(self.lost_by(ErrorKind::Lost, why), "use")
    }

    /// An error of this kind, caused by the last failed renewal if the lease is lost.
    pub(crate) fn lost_by(&self, kind: ErrorKind, why: &str) -> Error {
        let error = Error::new(kind, why);
        match self.loss().and_then(|loss| loss.error().cloned()) {
            Some(cause) => error.caused_by(cause),
            None => error,
        }
    }

    pub(crate) const fn handle(&self) -> &Arc<LeaseHandle> {
        &self.handle
    }

    pub(crate) const fn client(&self) -> &Arc<Inner> {
        &self.client
    }

    /// Hands the lease off to the next contender of this process. `false` when it has to be
    /// released.
    pub(crate) fn hand_to_successor(&self) -> bool {
        self.client.succession.hand_on(&self.handle)
    }

    pub(crate) fn explain(&self, error: Error, operation: &'static str) -> Error {
        error.during(operation).on_key(&self.handle.key).at_store(self.client.location())
    }
}

impl HeldLease {
    async fn change_length(&self, ttl: Ttl) -> Result<()> {
        let Self { client, handle } = self;
        let lost = || self.lost_by(ErrorKind::Lost, LOST);
        client.check_process()?;
        client.config.allows(ttl)?;
        if !handle.state().can_be(ttl) {
            return Err(Error::new(
                ErrorKind::Config,
                format!("a ttl of {ttl} leaves this lease no time to work; give a longer one"),
            ));
        }
        let (request, change, sent_at) = loop {
            handle.settled().await;
            let sent_at = client.clock.now();
            match handle.change_length(ttl, sent_at) {
                Admission::Start((request, change)) => break (request, change, sent_at),
                Admission::Wait => {}
                Admission::Over => return Err(self.late_or_lost().await),
            }
        };
        let _changing = Changing { lease: self, sent_at: Some(sent_at) };
        let within = client.config.call_timeout.min(handle.length());
        let answer = client.store.renew(std::slice::from_ref(&request), within).await.pop();
        let now = client.clock.now();
        match answer {
            Some(Ok(answer @ (Renew::Renewed | Renew::Asked))) => {
                if answer == Renew::Asked {
                    handle.on(|lease| lease.asked());
                }
                if handle.on(|lease| lease.length_changed(change, now)) {
                    Ok(())
                } else {
                    Err(late(handle.state().over_for(now)))
                }
            }
            Some(Ok(answer)) => {
                handle.on(|lease| lease.refuted(now));
                let is_late = answer == Renew::Late;
                Err(if is_late { late(handle.state().over_for(now)) } else { lost() })
            }
            failed => {
                let error = failed.and_then(Result::err).unwrap_or_else(no_answer);
                let undone = error.effect() == Effect::NotApplied;
                #[cfg(leasehold_planted)]
                let undone = undone
                    || leasehold_core::planted::is(
                        leasehold_core::planted::Fault::ShorteningForgotten,
                    );
                if undone {
                    handle.on(|lease| lease.length_unchanged(change, now));
                }
                handle.renewal_failed(&error, now);
                Err(error)
            }
        }
    }
}

impl HeldLease {
    /// How an expired lease ended: the store decides whether another holder can have come, so this
    /// sends it a renewal that changes nothing.
    async fn late_or_lost(&self) -> Error {
        let Self { client, handle } = self;
        let lost = self.lost_by(ErrorKind::Lost, LOST);
        if !handle.is_ours() || handle.state().is_over() {
            return lost;
        }
        // A renewal that may not shorten changes nothing at this ttl; only its answer counts.
        let request = handle.renewal(Ttl::MIN);
        let within = client.config.call_timeout;
        match client.store.renew(std::slice::from_ref(&request), within).await.pop() {
            Some(Ok(Renew::Renewed | Renew::Asked | Renew::Late)) => {
                late(handle.state().over_for(client.clock.now()))
            }
            Some(Err(error)) => lost.caused_by(error),
            _ => lost,
        }
    }
}

/// The error of a request for a lease that had expired this long before.
pub(crate) fn late(over_for: Option<Duration>) -> Error {
    let by = over_for.map_or_else(String::new, |by| lateness(by) + " ");
    let why = format!(
        "the lease expired {by}before, though no other holder has come since; take it again with a \
         longer ttl"
    );
    Error::new(ErrorKind::Late, why)
}

/// A change of length or mode under way. Dropped at any point, it ends the change, and the renewer
/// looks after the lease as it is believed to be then.
pub(crate) struct Changing<'a> {
    pub(crate) lease: &'a HeldLease,
    /// When a request that changes the length was sent.
    pub(crate) sent_at: Option<Moment>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let HeldLease { client, handle } = self.lease;
        handle.on(|lease| lease.change_done());
        match self.sent_at {
            Some(sent_at) => client.schedule.add(handle, sent_at, client.clock.now()),
            None => client.schedule.resume(handle),
        }
    }
}

impl HeldLease {
    /// The lease on one line, under the name of the type that stands for it.
    pub(crate) fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(name);
        shown.field("key", &self.key().as_str()).field("fence", &self.handle.fence().value());
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

/// A token that is cancelled once `lost` returns, or at once in a fork's child.
pub(crate) fn cancelled_after(
    client: &Inner,
    is_ours: bool,
    lost: impl Future<Output = ()> + Send + 'static,
) -> CancellationToken {
    let token = CancellationToken::new();
    // However the task ends, it cancels the token, since it would report no later loss.
    let cancel = token.clone().drop_guard();
    if is_ours {
        let child = token.clone();
        client.background.spawn(async move {
            let _cancel = cancel;
            tokio::select! {
                biased;
                () = lost => {}
                () = child.cancelled() => {}
            }
        });
    }
    token
}
