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
/// It derefs to [`HeldLease`], which has the [fence](HeldLease::fence) and tells whether the lease
/// [is held](HeldLease::is_held) or [lost](HeldLease::lost). The proof is as good as
/// [`is_held`](HeldLease::is_held) at the moment of the call, and no better: see the
/// [guarantees](crate::docs::guarantees) for what a lease can't promise. Give the
/// [fence](HeldLease::fence) to the protected resource, so that it can refuse a late holder.
///
/// # Dropping is not releasing
///
/// A dropped guard gives its lease up in the background: soon, but at no certain moment. If the
/// store can't be reached or the process ends, the lease ends with its ttl. Drop never blocks,
/// never panics and needs no runtime. Call [`release`](Self::release) to be sure.
///
/// In a child made by `fork` a guard is not held and does nothing.
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

    /// A view of the lease, to be given to the work.
    #[must_use]
    pub fn lease(&self) -> &HeldLease {
        self.lease.as_ref().expect("BUG: only methods that consume the guard take its lease")
    }

    /// Ends the lease. An `Ok` says that it was held to its end: no other holder has had the lock
    /// while the guard lived. Where another contender of this client takes the lease over, that is said by
    /// this process's clock alone: a lease that was taken away meanwhile, or forgotten by its store, is
    /// known to be lost with its next renewal.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing)]
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Late`](crate::ErrorKind::Late) – the lease had run out before, though no
    ///   other holder has had the lock since.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost) – the lease was not held any more, and the work under it may have
    ///   overlapped with another holder's.
    /// * What the store says, with [`Effect::Unknown`](crate::Effect::Unknown) when it did not answer: the release is
    ///   retried in the background, and the lease ends with its ttl at the latest.
    ///
    /// [`release_outcome`](Self::release_outcome) has these as values.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        self.end_well(Afterwards::AsGranted).await
    }

    /// Ends the lease, and says how that went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing)]
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
        let mut end = End::begin(self.into_lease(), Afterwards::AsGranted);
        release::outcome(end.outcome().await)
    }

    /// Ends the lease, and keeps the lock closed for `cooldown` after.
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
    /// with its cool-down.
    pub fn release_with_cooldown(
        self,
        cooldown: Cooldown,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        self.end_well(Afterwards::Closed(cooldown))
    }

    /// As [`release_with_cooldown`](Self::release_with_cooldown), and says how that went.
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

    /// Runs `body` under the held lock, and releases it; for locks of any kind what
    /// [`Mutex::run`](crate::Mutex::run) is for a mutex. When the lease is lost, the body is
    /// dropped where it stands, before the store can grant the lock to another holder.
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
    /// Cancel safe: the body is dropped, and the lease given up in the background.
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

    /// Keeps the lease without this guard: it is renewed as before, and the client has it [by
    /// name](crate::Client::held). It ends with [`release_held`](crate::Client::release_held),
    /// [`release_all`](crate::Client::release_all) or [`close`](crate::Client::close). A program keeps
    /// the client for as long, since nothing renews the lease without it.
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

    /// Lets go of the lease without ending it. The lease lives on until its ttl, not renewed, and
    /// belongs to the returned value, in this process or another. On the embedded store it ends
    /// with this process all the same, unless the client takes leases that outlive the process
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
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lease is lost already; the guard comes back with it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the lease is released in the background.
    pub async fn detach(mut self) -> Result<DetachedLease, NotChanged<Self>> {
        if let Err(error) = self.check() {
            return Err(NotChanged::new(self, error));
        }
        // Carried out once the lease was adopted, an acquisition would bring this secret back.
        let (clock, in_doubt_until) = (&self.client().clock, self.handle().in_doubt_until());
        rt::sleep_until(&**clock, in_doubt_until.unwrap_or_default()).await;
        let lease = self.lease.take().expect("BUG: a guard is ended once");
        let ending = Ending::begin(lease.clone(), Afterwards::AsGranted);
        lease.handle().settled().await;
        // What was on its way may have said that it is not held any more.
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
