//! The view of several held leases to which guards of several locks deref.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Fence, Key, Result};
use tokio_util::sync::CancellationToken;

use crate::lease::held_lease::{HeldLease, cancelled_after};
use crate::lease::run::Leases;
use crate::shared::Inner;
use crate::together::{all, any};

/// A view of the leases that were taken together: what the work under them needs to know.
///
/// Cheap to clone. It does not keep the locks, which the [`MultiGuard`](crate::MultiGuard) does.
/// Once the guard is gone, the view says that no lease is held.
#[derive(Clone)]
pub struct HeldLeases {
    client: Arc<Inner>,
    leases: Vec<HeldLease>,
}

impl HeldLeases {
    pub(crate) const fn new(client: Arc<Inner>, leases: Vec<HeldLease>) -> Self {
        Self { client, leases }
    }

    pub(crate) fn push(&mut self, lease: HeldLease) {
        self.leases.push(lease);
    }

    /// The single leases, in the order of their names.
    #[must_use]
    pub fn leases(&self) -> &[HeldLease] {
        &self.leases
    }

    /// Each lock with its fencing token, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) once any of them is lost.
    pub fn fences(&self) -> Result<Vec<(Key, Fence)>> {
        self.leases.iter().map(|lease| Ok((lease.key().clone(), lease.fence()?))).collect()
    }

    /// Whether all of them are held at this moment; sends no request.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.leases.iter().all(HeldLease::is_held)
    }

    /// How long all of them are held for certain; zero once any is lost. Renewals extend it.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases.iter().map(HeldLease::remaining).min().unwrap_or_default()
    }

    /// How long it is until the store may grant one of them to another holder. See
    /// [`HeldLease::until_deadline`].
    #[must_use]
    pub fn until_deadline(&self) -> Duration {
        self.leases.iter().map(HeldLease::until_deadline).min().unwrap_or_default()
    }

    /// Whether a renewal of any of them has failed or stayed unanswered; all still hold.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.leases.iter().any(HeldLease::is_at_risk)
    }

    /// Succeeds while all of them are held; for a look before each side effect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when one is not.
    pub fn check(&self) -> Result<()> {
        self.leases.iter().try_for_each(HeldLease::check)
    }

    /// Reports for all of them that the work makes progress. See [`HeldLease::progress`].
    pub fn progress(&self) {
        self.leases.iter().for_each(HeldLease::progress);
    }

    /// Returns when any of them is lost. See [`HeldLease::lost`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(losing)]
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn lost(&self) {
        any(self.leases.iter().map(HeldLease::lost)).await;
    }

    /// Returns when there is a release request for any of them, or one is lost. See
    /// [`HeldLease::asked`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(being_asked)]
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn asked(&self) {
        any(self.leases.iter().map(HeldLease::asked)).await;
    }

    /// Whether a release request for any of them has reached this holder. Sends no request.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.leases.iter().any(HeldLease::is_asked)
    }

    /// Reads from the store how long the first of them to end runs on there; zero when one is not
    /// held there. See [`HeldLease::ttl`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(asking_each)]
    ///
    /// # Errors
    ///
    /// As [`HeldLease::ttl`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn ttl(&self) -> Result<Duration> {
        let ttls = all(self.leases.iter().map(HeldLease::ttl)).await;
        ttls.into_iter().try_fold(Duration::MAX, |least, ttl| Ok(least.min(ttl?)))
    }

    /// Checks whether the store still has these very leases.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(asking_each)]
    ///
    /// # Errors
    ///
    /// As [`HeldLease::ttl`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn is_held_by_store(&self) -> Result<bool> {
        Ok(!self.ttl().await?.is_zero())
    }

    /// Sets a new length for all of them. See [`HeldLease::renew_to`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn_each)]
    ///
    /// # Errors
    ///
    /// The first error of [`HeldLease::renew_to`] for any of them; it names the lock. The others
    /// have the new length anyway.
    ///
    /// # Cancel safety
    ///
    /// As [`HeldLease::renew_to`].
    pub async fn renew_to(&self, ttl: Duration) -> Result<()> {
        renew_all(&self.leases, ttl).await
    }

    /// A token that is cancelled when any of them is lost or its guard is gone. See
    /// [`HeldLease::cancellation_token`].
    #[must_use]
    pub fn cancellation_token(&self) -> CancellationToken {
        let (leases, client) = (self.clone(), Arc::clone(&self.client));
        let ours = self.leases.iter().all(|lease| lease.handle().is_ours());
        cancelled_after(&client, ours, async move { leases.lost().await })
    }
}

impl Leases for HeldLeases {
    fn are_held(&self) -> bool {
        self.is_held()
    }

    fn lost(&self) -> impl Future<Output = ()> + Send {
        Self::lost(self)
    }

    fn were_held_for_longest(&self) -> bool {
        self.leases.iter().any(Leases::were_held_for_longest)
    }

    fn at_fault(&self) -> Option<HeldLease> {
        self.leases.iter().find(|lease| !lease.is_held()).cloned()
    }
}

/// Sets a new length for all of these; the first error is the answer.
pub(crate) async fn renew_all(leases: &[HeldLease], ttl: Duration) -> Result<()> {
    all(leases.iter().map(|lease| lease.renew_to(ttl))).await.into_iter().collect()
}

impl fmt::Debug for HeldLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.leases).finish()
    }
}
