//! Acts on what a client holds under a name, for code that has no guard at hand.

use std::time::Duration;

use leasehold_core::{Error, ErrorKind, IntoKey, Key, Result};

use crate::client::Client;
use crate::lease::handle::requests::Afterwards;
use crate::lease::held_lease::HeldLease;
use crate::lease::held_leases;
use crate::lease::release::Releases;

impl Client {
    /// The leases that this client and its clones hold under a name, wherever their guards are. A
    /// mutex has one, a semaphore or a group of readers several. Sends no request.
    ///
    /// For code that has no guard at hand. The name finds what the whole client has. If parts of a
    /// program should not touch each other's locks, give each a client of its own, or pass their
    /// guards along.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// use std::time::Duration;
    ///
    /// let guard = client.mutex("stock").lock().await?;
    /// // … elsewhere:
    /// assert_eq!(client.held("stock")?.len(), 1);
    /// client.renew_held("stock", Duration::from_secs(60)).await?;
    /// client.release_held("stock").await?;
    /// assert!(!guard.is_held() && client.held("stock")?.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name.
    pub fn held(&self, key: impl IntoKey) -> Result<Vec<HeldLease>> {
        Ok(self.leases_of(&key.into_key()?))
    }

    /// Whether this client or a clone of it holds a lease under a name, wherever its guard is.
    /// Sends no request; [`inspect`](Self::inspect) reads from the store who holds the lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name.
    pub fn is_held(&self, key: impl IntoKey) -> Result<bool> {
        Ok(!self.held(key)?.is_empty())
    }

    /// Sets a new length for all that this client holds under a name. See [`HeldLease::renew_to`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn_each)]
    ///
    /// # Errors
    ///
    /// As [`HeldLease::renew_to`], and [`ErrorKind::Lost`] if it holds no lease under the name. The
    /// error is about the first lease that failed; the others have the new length anyway.
    ///
    /// # Cancel safety
    ///
    /// As [`HeldLease::renew_to`].
    pub async fn renew_held(&self, key: impl IntoKey, ttl: Duration) -> Result<()> {
        let leases = self.held_for_certain(&key.into_key()?, "renew")?;
        held_leases::renew_all(&leases, ttl).await
    }

    /// Releases all that this client holds under a name; the guards that remain hold no lease. An
    /// `Ok` says that it was held to its end. A [re-entrant lock](crate::Reentrant) is released
    /// with all of its holds.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn_each)]
    ///
    /// # Errors
    ///
    /// The worst error that [`Guard::release`](crate::Guard::release) would have returned for any
    /// of the leases, and [`ErrorKind::Lost`] if it holds no lease under the name.
    ///
    /// # Cancel safety
    ///
    /// As [`release_all`](Self::release_all).
    pub async fn release_held(&self, key: impl IntoKey) -> Result<()> {
        self.release_held_outcomes(key).await?.verdict()
    }

    /// As [`release_held`](Self::release_held), and reports for each lease how its release went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn_each)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name, [`ErrorKind::Lost`] if it holds no lease under it.
    ///
    /// # Cancel safety
    ///
    /// As [`release_all`](Self::release_all).
    pub async fn release_held_outcomes(&self, key: impl IntoKey) -> Result<Releases> {
        let leases = self.held_for_certain(&key.into_key()?, "release")?;
        let releases = leases.into_iter().map(|lease| async move {
            (lease.key().clone(), lease.give_back(Afterwards::AsGranted).await)
        });
        Ok(Releases::of(self.inner(), releases).await)
    }

    fn leases_of(&self, key: &Key) -> Vec<HeldLease> {
        let inner = self.inner();
        inner.holds_of(key).map(|handle| HeldLease::of(inner, handle)).collect()
    }

    fn held_for_certain(&self, key: &Key, operation: &'static str) -> Result<Vec<HeldLease>> {
        let leases = self.leases_of(key);
        if leases.is_empty() {
            let why = "this client holds nothing under that name; its lease was released or lost";
            let error = Error::new(ErrorKind::Lost, why);
            return Err(self.inner().explain(error, operation).on_key(key));
        }
        Ok(leases)
    }
}
