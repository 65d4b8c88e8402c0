//! The guard of a held lock.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use leasehold_core::{Cooldown, LeaseStatus, Result};

use crate::LOCK;
use crate::audit::LockEventKind;
use crate::lease::detached::DetachedLease;
use crate::lease::handle::LeaseHandle;
use crate::lease::handle::requests::Afterwards;
use crate::lease::held_lease::HeldLease;
use crate::lease::not_changed::NotChanged;
use crate::lease::release::{self, End, Ending, Release};
use crate::lease::run::{RunError, run_under};
use crate::rt;
use crate::shared::Inner;

/// A held lock: the proof that this process may act.
///
/// It derefs to [`HeldLease`], which has the [fencing token](HeldLease::fence) and says whether the
/// lease [is held](HeldLease::is_held) or [lost](HeldLease::lost). [`is_held`](HeldLease::is_held)
/// is a proof for the moment of the call only: see the [guarantees](crate::docs::guarantees) for
/// what a lease can't promise. Give the fencing token to the protected resource, so that it can
/// refuse a stale holder.
///
/// # Dropping is not releasing
///
/// A dropped guard releases its lease in the background: soon, but without a time limit. If the
/// store can't be reached or the process ends, the lease expires. Drop never blocks or panics, and
/// works outside a runtime. Call [`release`](Self::release) to be sure.
///
/// In a child made by `fork` a guard counts as lost, and dropping it has no effect.
#[must_use = "dropping the guard gives the lock up in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct Guard {
    lease: Option<HeldLease>,
}

impl Guard {
    pub(crate) fn new(client: &Arc<Inner>, handle: Arc<LeaseHandle>) -> Self {
        Self { lease: Some(HeldLease::of(client, handle)) }
    }

    /// The lease, for a caller that ends it by other means.
    pub(crate) fn into_lease(mut self) -> HeldLease {
        self.lease.take().expect("BUG: a guard is ended once")
    }

    /// A view of the lease, for the work.
    #[must_use]
    pub fn lease(&self) -> &HeldLease {
        self.lease.as_ref().expect("BUG: only methods that consume the guard take its lease")
    }

    /// Ends the lease. An `Ok` says that it was held to its end: no other holder has had the lock
    /// while the guard lived. If another contender of this client takes the lease over, `Ok` relies
    /// on this process's clock alone. A force-release, or a store that forgot the lease, then shows
    /// at the next renewal.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing)]
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Late`](crate::ErrorKind::Late) – the lease had expired before, though no
    ///   other holder has had the lock since.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost) – the lease was not held any more, and the
    ///   work under it may have overlapped with another holder's.
    /// * What the store says. With [`Effect::Unknown`](crate::Effect::Unknown) it did not answer:
    ///   the background retries the release until the lease expires.
    ///
    /// [`release_outcome`](Self::release_outcome) has these as values.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        self.end_well(Afterwards::AsGranted).await
    }

    /// Ends the lease, and reports how that went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing)]
    ///
    /// # Errors
    ///
    /// When the store refuses, or can't be reached at all. The background then retries the release
    /// until the lease expires. A request that was sent but not answered is [`Release::Unknown`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release_outcome(self) -> Result<Release> {
        let mut end = End::begin(self.into_lease(), Afterwards::AsGranted);
        release::outcome(end.outcome().await)
    }

    /// Ends the lease, and starts `cooldown`: until its end no caller can acquire the lock.
    ///
    /// For a report that has just been made and should not be made again within the next minute.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, even before the first poll, the release goes on in the background,
    /// with its cooldown.
    pub fn release_with_cooldown(
        self,
        cooldown: Cooldown,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        self.end_well(Afterwards::Closed(cooldown))
    }

    /// As [`release_with_cooldown`](Self::release_with_cooldown), and reports how that went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
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
        cooldown: Cooldown,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        let answer = self.end(Afterwards::Closed(cooldown));
        async { release::outcome(answer.await) }
    }

    /// Ends the lease; an error unless it was held to its end.
    pub(crate) fn end_well(
        self,
        cooldown: Afterwards,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        self.into_lease().end_well(cooldown)
    }

    /// Ends the lease. A store that did not answer is an error that says so by its effect.
    pub(crate) fn end(
        self,
        cooldown: Afterwards,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        self.into_lease().end(cooldown)
    }

    /// Runs `body` under the held lock, and releases it: [`Mutex::run`](crate::Mutex::run) for
    /// locks of any kind. When the lease is lost, the body is dropped where it stands, before the
    /// store can grant the lock to another holder.
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
    /// # Cost
    ///
    #[doc = crate::cost::cost!(running)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the lease released in the background.
    pub async fn run<T, F>(self, body: impl FnOnce(HeldLease) -> F) -> Result<T, RunError<T>>
    where
        F: Future<Output = T>,
    {
        let lease = self.lease().clone();
        run_under(
            lease,
            |cooldown| self.end(cooldown),
            Afterwards::AsGranted,
            body,
            |_| Afterwards::AsGranted,
        )
        .await
    }

    /// Keeps the lease without this guard: it is renewed as before, and the client finds it [by
    /// name](crate::Client::held). It ends with [`release_held`](crate::Client::release_held),
    /// [`release_all`](crate::Client::release_all) or [`close`](crate::Client::close). Keep the
    /// client until then, since it renews the lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// client.mutex("stock").lock().await?.keep();
    /// // … elsewhere:
    /// assert!(client.is_held("stock")?);
    /// client.release_held("stock").await?;
    /// assert!(!client.is_held("stock")?);
    /// # Ok(()) }
    /// ```
    pub fn keep(mut self) {
        drop(self.lease.take());
    }

    /// Detaches the lease: the guard ends and the lease lives on, not renewed, until it expires. It
    /// belongs to the returned value, in this process or another. On the embedded store it still
    /// ends with this process, unless the client takes leases that outlive the process
    /// ([`ClientBuilder::detached`](crate::ClientBuilder::detached)).
    ///
    /// The value contains the lease's secret.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(detaching)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lease is lost already; the guard comes
    /// back with it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the lease is released in the background.
    pub async fn detach(mut self) -> Result<DetachedLease, NotChanged<Self>> {
        if let Err(error) = self.check() {
            return Err(NotChanged::new(self, error));
        }
        // If an acquisition were carried out after the adoption, it would bring this secret back.
        let (clock, in_doubt_until) =
            (&self.client().clock, self.handle().state().in_doubt_until());
        rt::sleep_until(&**clock, in_doubt_until.unwrap_or_default()).await;
        let lease = self.lease.take().expect("BUG: a guard is ended once");
        let ending = Ending::begin(lease.clone(), Afterwards::AsGranted);
        lease.handle().settled().await;
        // The answer that was on its way may have reported a loss.
        if lease.handle().status(lease.client().clock.now()) == LeaseStatus::Lost {
            let lost = lease.lost_error();
            return Err(NotChanged::new(Self { lease: Some(lease) }, lost));
        }
        let detached = DetachedLease::of(lease.handle());
        if let Ok(mut ending) = ending {
            ending.is_over();
        }
        tracing::debug!(target: LOCK, key = %detached.key(), fence = %detached.fence(), "detached");
        lease.handle().tell(LockEventKind::Detached);
        Ok(detached)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        if lease.handle().is_ours() {
            if !lease.hand_to_successor() {
                lease.give_up();
            }
        } else {
            // The parent's client must not be taken down from here, not even in memory: its
            // runtime does not exist in this process.
            std::mem::forget(lease);
        }
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
