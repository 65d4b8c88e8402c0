//! A lock value: a client, and what was said about the lock. Every kind of lock is one of these
//! with a face of its own, and shares the setters.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Key, Mode, Result};

use crate::acquire::Acquisition;
use crate::client::{Client, Inner};
use crate::guard::Guard;
use crate::settings::Settings;

/// Cheap to clone; making one sends nothing and cannot fail.
#[derive(Clone, Debug)]
pub(crate) struct LockValue {
    pub(crate) client: Arc<Inner>,
    pub(crate) settings: Result<Arc<Settings>>,
}

impl LockValue {
    pub(crate) fn new(client: &Client, key: Result<Key>, mode: Mode) -> Self {
        let inner = client.inner();
        let settings = key.map(|key| Arc::new(Settings::new(&inner.config, key, mode)));
        Self { client: Arc::clone(inner), settings }
    }

    /// Sets something; the first thing that is wrong is kept and told by what locks.
    pub(crate) fn set(&mut self, set: impl FnOnce(&mut Settings) -> Result<()>) {
        if let Ok(settings) = &mut self.settings
            && let Err(error) = set(Arc::make_mut(settings))
        {
            let error = error.on_key(&settings.key);
            self.settings = Err(error);
        }
    }

    /// The same with something set.
    pub(crate) fn with(&self, set: impl FnOnce(&mut Settings) -> Result<()>) -> Self {
        let mut value = self.clone();
        value.set(set);
        value
    }

    pub(crate) fn key(&self) -> Result<&Key> {
        match &self.settings {
            Ok(settings) => Ok(&settings.key),
            Err(error) => Err(error.clone()),
        }
    }

    /// Tries once, without waiting.
    pub(crate) async fn try_take(&self) -> Result<Option<Guard>> {
        self.acquisition(Some(Duration::ZERO))?.try_once().await
    }

    /// Waits for at most `limit`, or for as long as it takes.
    pub(crate) async fn take(&self, limit: Option<Duration>) -> Result<Guard> {
        self.acquisition(limit)?.wait().await
    }

    pub(crate) fn acquisition(&self, limit: Option<Duration>) -> Result<Acquisition> {
        Acquisition::new(&self.client, &self.settings, limit)
    }
}

/// The setters of how a lock is held, which are the same for every kind of lock.
macro_rules! holding_setters {
    ($type:ident) => {
        impl $type {
            /// The length of a lease: 1 ms to 30 days, by default the client's. A crashed holder's
            /// lock comes free after at most this long; a live one renews it every third of it.
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.value.set(|settings| crate::Ttl::new(ttl).map(|ttl| settings.ttl = ttl));
                self
            }

            /// How long before the store could grant the lock to somebody else a loss is told, so
            /// that the work can stop in time: at most half of the ttl. By default 5 % of it, at
            /// least 20 ms and at most 5 s. A waiter that dies may hold up others for four times
            /// this, or half a minute where that is longer, and for its ttl at most.
            pub fn stop_grace(mut self, grace: std::time::Duration) -> Self {
                self.value.set(|settings| {
                    settings.grace = Some(grace);
                    Ok(())
                });
                self
            }

            /// Whether leases are renewed in the background; they are by default. A lease that is
            /// not ends with its ttl.
            pub fn renew(mut self, renew: bool) -> Self {
                self.value.set(|settings| {
                    settings.renew = renew;
                    Ok(())
                });
                self
            }

            /// The longest time for which one lease is held, renewals included; without limit by
            /// default. After it the lease counts as lost, and the store keeps it no longer.
            pub fn max_hold(mut self, max_hold: impl Into<Option<std::time::Duration>>) -> Self {
                let max_hold = max_hold.into();
                self.value.set(|settings| {
                    settings.max_hold = max_hold;
                    Ok(())
                });
                self
            }

            /// Renews the lease only while its work gets on: while
            /// [`HeldLease::progress`](crate::HeldLease::progress) is called at least this often.
            /// Without it, which is the default, a lease is renewed for as long as its guard
            /// lives, also when the work under it hangs.
            pub fn progress_within(
                mut self,
                limit: impl Into<Option<std::time::Duration>>,
            ) -> Self {
                let limit = limit.into();
                self.value.set(|settings| {
                    settings.progress_within = limit;
                    Ok(())
                });
                self
            }

            /// Text that is kept with the lease, readable by everybody who can inspect the lock.
            pub fn metadata(mut self, metadata: impl AsRef<str>) -> Self {
                self.value.set(|settings| {
                    crate::Metadata::new(metadata).map(|metadata| settings.metadata = metadata)
                });
                self
            }
        }
    };
}
pub(crate) use holding_setters;

/// The setter of who holds a lock, for the kinds to which that is only a word.
macro_rules! owner_setter {
    ($type:ident) => {
        impl $type {
            /// Who holds the lock, for people; by default the client's owner.
            pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
                self.value.set(|settings| {
                    crate::OwnerName::new(owner).map(|owner| settings.owner = owner)
                });
                self
            }
        }
    };
}
pub(crate) use owner_setter;

/// The setters of how a lock is waited for.
macro_rules! waiting_setters {
    ($type:ident) => {
        impl $type {
            /// Whether to wait in line, which is the default, or to compete: see
            /// [`Order`](crate::Order).
            pub fn order(mut self, order: crate::Order) -> Self {
                self.value.set(|settings| {
                    settings.order = order;
                    Ok(())
                });
                self
            }

            /// When to try again while waiting, and when to give up. By default 5 ms to 250 ms,
            /// growing, with jitter, for ever. The end of the holder's lease cuts a pause short.
            ///
            /// Who waits in line is woken and has no use for pauses, so this also sets
            /// [`Order::Barging`](crate::Order::Barging); with
            /// [`Order::Fifo`](crate::Order::Fifo) set after it, the pauses are those after
            /// errors.
            pub fn retry(mut self, strategy: impl crate::retry::RetryStrategy) -> Self {
                self.value.set(|settings| {
                    settings.retry = std::sync::Arc::new(strategy);
                    settings.order = crate::Order::Barging;
                    Ok(())
                });
                self
            }

            /// Gives up at once when the holder's lease, as it stands, runs past the time to wait.
            /// A holder that renews can only make that later.
            pub fn not_in_vain(mut self, not_in_vain: bool) -> Self {
                self.value.set(|settings| {
                    settings.not_in_vain = not_in_vain;
                    Ok(())
                });
                self
            }

            /// Refuses to wait when so many wait already; without limit by default.
            pub fn max_waiters(mut self, max: impl Into<Option<u32>>) -> Self {
                let max = max.into();
                self.value.set(|settings| {
                    settings.waiters_max = max;
                    Ok(())
                });
                self
            }
        }
    };
}
pub(crate) use waiting_setters;
