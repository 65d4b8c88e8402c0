//! Adopts a lease: makes a guard for a lease that had none.

use std::sync::Arc;

use leasehold_core::{Error, ErrorKind, LeaseState, Relay, Result};

use crate::LOCK;
use crate::audit::LockEventKind;
use crate::lease::detached::DetachedLease;
use crate::lease::guard::Guard;
use crate::lease::handle::{Began, LeaseHandle};
use crate::shared::Inner;

impl DetachedLease {
    /// Adopts the lease; see [`Client::adopt`](crate::Client::adopt).
    pub(crate) async fn adopt(&self, client: &Arc<Inner>) -> Result<Guard> {
        let settings = self.settings(client);
        let terms = settings.terms().map_err(|error| client.explain(error, "adopt"))?;
        let (proof, sent_at) = self.take_over(client).await?;
        let now = client.clock.now();
        let Some(state) = LeaseState::granted(sent_at, terms.ttl, terms.grace, now) else {
            return Err(client.explain(
                Error::new(
                    ErrorKind::Unavailable,
                    "the lease was adopted, but the answer came when it was almost over; it \
                     expires with its ttl",
                )
                .on_key(self.key()),
                "adopt",
            ));
        };
        let handle = LeaseHandle::new(
            proof,
            state,
            terms.ttl,
            Relay::default(),
            settings.settings,
            Began { at: now, how: LockEventKind::Adopted },
        );
        let handle = client.schedule.begin(handle, sent_at, now);
        let (key, fence) = (&handle.key, handle.fence());
        tracing::debug!(target: LOCK, %key, %fence, ttl = %self.ttl(), "adopted");
        let guard = Guard::new(client, handle);
        client.check_open().map(|()| guard)
    }
}
