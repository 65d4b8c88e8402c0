//! The semaphore: up to a number of holders at a time, in any process.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Key, Kind, Mode, Result, SetLimit, SetLimitRequest};

use crate::kinds::lock_value::{LockValue, lock};
use crate::kinds::typed_guard::typed_guard;
use crate::lease::change_mode;
use crate::lease::guard::Guard;
use crate::lease::not_changed::NotChanged;
use crate::options::setters;
use crate::refusal::refused;
use crate::waiting::gate::Gates;

/// Permits, of which there is a limited number for all processes that use the same store.
///
/// A value, which can't fail and sends its first request when a permit is acquired. Each
/// acquisition is a lease of its own, for one permit or several, with a [`SemaphoreGuard`] that
/// renews it. A crashed holder's permits come back when its lease ends; there is no counter to
/// repair. Waiters are served in order of arrival, so a waiter that wants many permits gets its
/// turn before later ones that want few.
///
/// The limit is stored with the name while it is in use. A client that uses the name with another
/// limit is refused, with an error that names both, unless it [takes the stored
/// limit](Self::stored_limit).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let sale = client.semaphore("sale/7", 2);
/// let one = sale.acquire().await?;
/// let two = sale.acquire().await?;
/// assert!(sale.try_acquire().await?.is_none());
/// # drop((one, two)); client.close().await
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a semaphore does nothing until a permit is acquired"]
pub struct Semaphore {
    value: LockValue,
}

lock!(Semaphore);
setters!(Semaphore: holding_options owner_option waiting_options patience_options);

impl Semaphore {
    pub(crate) fn new(gates: &Arc<Gates>, key: Result<Key>, limit: u32) -> Self {
        let count = NonZeroU32::MIN;
        let mode = Mode::Permits { count, limit: NonZeroU32::new(limit).unwrap_or(count) };
        let mut value = LockValue::new(gates, key, mode);
        if limit == 0 {
            value.set(|_| {
                let why = "a semaphore with a limit of 0 could never be acquired; give at least 1";
                Err(Error::new(ErrorKind::Config, why))
            });
        }
        Self { value }
    }

    /// Whether a name that is in use with another limit is taken under that limit, instead of being
    /// refused. Set it for all users of a name before its limit changes: while old and new programs
    /// run together, the first user of the idle name sets the limit.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// let old = client.semaphore("connections", 5).acquire().await?;
    /// let new = client.semaphore("connections", 10).stored_limit(true);
    /// assert_eq!(new.available_permits().await?, 4);
    /// let guard = new.acquire().await?;
    /// # drop((old, guard)); client.close().await
    /// # }
    /// ```
    pub fn stored_limit(mut self, stored_limit: bool) -> Self {
        self.value.set(|settings| {
            settings.stored_limit = stored_limit;
            Ok(())
        });
        self
    }

    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    pub fn key(&self) -> Result<&Key> {
        self.value.key()
    }

    /// Tries to take a permit, once. `None` if none is free, or if there are waiters.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying)]
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`] – a bad name or setting.
    /// * [`ErrorKind::Conflict`] – the name is in use with another limit, or as another kind of
    ///   lock.
    /// * [`ErrorKind::Unavailable`] and others – the store could not be reached; see
    ///   [`Error::effect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the request was on its way, what it acquires is released in the background.
    pub async fn try_acquire(&self) -> Result<Option<SemaphoreGuard>> {
        self.try_acquire_many(1).await
    }

    /// Takes a permit, and waits until one is free.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking)]
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and [`ErrorKind::Timeout`] when the retry strategy
    /// ends. A store that goes away during the wait has 30 s to come back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn acquire(&self) -> Result<SemaphoreGuard> {
        self.acquire_many(1).await
    }

    /// Takes a permit, and waits for at most `limit`; with a limit of zero it tries once.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_within)]
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); [`ErrorKind::Timeout`] when the limit is reached.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn acquire_within(&self, limit: Duration) -> Result<SemaphoreGuard> {
        self.acquire_many_within(1, limit).await
    }

    /// Tries to take `n` permits at once, all or none. See [`try_acquire`](Self::try_acquire).
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying)]
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire), and [`ErrorKind::Config`] for no permits, or more
    /// than there are.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the request was on its way, what it acquires is released in the background.
    pub async fn try_acquire_many(&self, n: u32) -> Result<Option<SemaphoreGuard>> {
        Ok(self.many(n).try_take().await?.map(SemaphoreGuard))
    }

    /// Takes `n` permits at once, and waits until they are free. See [`acquire`](Self::acquire).
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking)]
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`ErrorKind::Config`] for no permits, or more than there
    /// are.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn acquire_many(&self, n: u32) -> Result<SemaphoreGuard> {
        self.many(n).take(None).await.map(SemaphoreGuard)
    }

    /// Takes `n` permits at once, and waits for at most `limit`. See
    /// [`acquire_within`](Self::acquire_within).
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_within)]
    ///
    /// # Errors
    ///
    /// As [`acquire_within`](Self::acquire_within), and [`ErrorKind::Config`] for no permits, or
    /// more than there are.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn acquire_many_within(&self, n: u32, limit: Duration) -> Result<SemaphoreGuard> {
        self.many(n).take(Some(limit)).await.map(SemaphoreGuard)
    }

    /// The number of free permits in the store's view: the limit less the permits of all live
    /// holders. For people and logs: it may have changed when the answer comes.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn available_permits(&self) -> Result<u32> {
        let settings = self.value.settings.clone()?;
        let Mode::Permits { limit, .. } = settings.mode else { return Ok(0) };
        let Some(info) = self.value.client().look(&settings.key).await? else {
            return Ok(limit.get());
        };
        if let Kind::Semaphore { limit: stored } = info.kind
            && (stored == limit || settings.stored_limit)
        {
            let taken = info.holders.iter().fold(0_u32, |sum, holder| match holder.mode {
                Mode::Permits { count, .. } => sum.saturating_add(count.get()),
                _ => sum,
            });
            return Ok(stored.get().saturating_sub(taken));
        }
        let why =
            format!("the name is in use as a {}, not as a {}", info.kind, settings.mode.kind());
        Err(Error::new(ErrorKind::Conflict, why)
            .during("inspect")
            .on_key(&settings.key)
            .at_store(self.value.client().location()))
    }

    /// Changes the limit for all users of the name, and returns the semaphore with the new limit.
    /// Values with the old limit are refused from then on. Permits that are held stay held, also
    /// above a lower limit; waiters that want more than it are refused.
    ///
    /// For an idle name the call has no effect, since the next user sets the limit.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a limit of 0, [`ErrorKind::Conflict`] when the name is in use as
    /// another kind of lock, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the limit may or may not have been changed.
    pub async fn set_limit(&self, limit: u32) -> Result<Self> {
        let settings = self.value.settings.clone()?;
        let client = self.value.client();
        let explain = |error| client.explain(error, "set-limit").on_key(&settings.key);
        let Some(limit) = NonZeroU32::new(limit) else {
            let why = "a semaphore with a limit of 0 could never be acquired; give at least 1";
            return Err(explain(Error::new(ErrorKind::Config, why)));
        };
        let request = SetLimitRequest::new(settings.key.clone(), limit);
        let answer = client.store.set_limit(&request, client.config.call_timeout).await;
        let kind = Kind::Semaphore { limit };
        match answer.map_err(explain)? {
            SetLimit::Refused(refusal) => return Err(explain(refused(refusal, kind))),
            answer => {
                tracing::info!(target: "leasehold", key = %settings.key, %limit, ?answer, "set limit");
            }
        }
        let count = NonZeroU32::MIN;
        let value = self.value.with(|settings| {
            settings.mode = Mode::Permits { count, limit };
            Ok(())
        });
        Ok(Self { value })
    }

    fn many(&self, n: u32) -> LockValue {
        self.value.with(|settings| {
            let Mode::Permits { count, limit } = &mut settings.mode else { return Ok(()) };
            let refuse = |why: String| Err(Error::new(ErrorKind::Config, why));
            match NonZeroU32::new(n) {
                None => refuse("zero permits were requested; request at least one".to_owned()),
                Some(n) if n > *limit => {
                    refuse(format!("{n} permits were requested out of {limit}; request fewer"))
                }
                Some(n) => {
                    *count = n;
                    Ok(())
                }
            }
        })
    }
}

/// Held permits of a semaphore.
///
/// It derefs to the [`HeldLease`](crate::HeldLease), which says how many
/// [permits](crate::HeldLease::permits) it has and whether it is [lost](crate::HeldLease::lost).
/// Guards of other kinds of locks have no permits to release:
///
/// ```compile_fail,E0599
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let guard = client.mutex("ledger").lock().await?;
/// guard.release_permits(1).await?;
/// # Ok(()) }
/// ```
///
/// Dropped, it releases the permits in the background. Use [`release`](Self::release) to be sure.
#[must_use = "dropping the guard releases the permits in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct SemaphoreGuard(Guard);

impl SemaphoreGuard {
    /// Releases `n` of the permits and keeps the others, under the same lease with the same fence.
    /// Views of the lease that were handed out before hold no lease any more.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// let connections = client.semaphore("connections", 5);
    /// let guard = connections.acquire_many(5).await?;
    /// let guard = guard.release_permits(3).await?;
    /// assert_eq!(guard.permits(), Some(2));
    /// assert_eq!(connections.available_permits().await?, 3);
    /// # guard.release().await
    /// # }
    /// ```
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    /// With `n` = 0 there is no round trip.
    ///
    /// # Errors
    ///
    /// A guard comes with every error:
    ///
    /// * [`ErrorKind::Config`] – it has no more permits than that; use [`release`](Self::release)
    ///   for all. No request was sent.
    /// * [`ErrorKind::Conflict`] – the limit was changed meanwhile. [`ErrorKind::Unavailable`] –
    ///   the store did not answer. The guard counts as the smaller one here; the permits come back
    ///   with its release at the latest.
    /// * [`ErrorKind::Lost`], [`ErrorKind::Late`] – the lease is gone.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lease is released in the background.
    pub async fn release_permits(self, n: u32) -> Result<Self, NotChanged<Self>> {
        change_mode::release_permits(self.0, n).await.map(Self).map_err(|not| not.map(Self))
    }
}

impl TryFrom<Guard> for SemaphoreGuard {
    type Error = NotChanged<Guard>;

    /// The guard of permits that were [detached](SemaphoreGuard::detach) and
    /// [adopted](crate::Client::adopt).
    fn try_from(guard: Guard) -> Result<Self, NotChanged<Guard>> {
        if guard.permits().is_some() {
            return Ok(Self(guard));
        }
        let error = Error::new(ErrorKind::Misuse, "this is not a lease of permits");
        let error = guard.explain(error, "convert");
        Err(NotChanged::new(guard, error))
    }
}

typed_guard!(SemaphoreGuard);
