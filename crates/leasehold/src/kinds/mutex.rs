//! The mutex: one holder at a time, in any process.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{AskRequest, Error, ErrorKind, Key, Mode, Result};

use crate::kinds::lock_value::{LockValue, lock};
use crate::lease::guard::Guard;
use crate::lease::handle::requests::Afterwards;
use crate::lease::held_lease::HeldLease;
use crate::lease::not_changed::NotChanged;
use crate::lease::prolonged::Prolonged;
use crate::lease::run::RunError;
use crate::options::setters;
use crate::settings::Named;
use crate::waiting::gate::Gates;

/// A lock that one holder has at a time, in any process that uses the same store.
///
/// A plain value, which can't fail and sends its first request when it is locked. The first method
/// that locks reports a wrong name or setting. One value serves any number of acquisitions, one
/// after the other or at once; each has its own lease and its own [`Guard`].
///
/// It is not re-entrant: a task that locks it twice waits for itself, and the log has a warning
/// after a ttl. [`Reentrant`](crate::Reentrant) is re-entrant.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// use std::time::Duration;
/// let mutex = client.mutex("reports/daily").ttl(Duration::from_secs(60));
///
/// if let Some(guard) = mutex.try_lock().await? {
///     // … the report …
///     assert!(mutex.try_lock().await?.is_none());
///     guard.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex {
    value: LockValue,
}

lock!(Mutex);
setters!(Mutex: holding_options owner_option waiting_options patience_options);

impl Mutex {
    pub(crate) fn new(gates: &Arc<Gates>, key: Result<Key>) -> Self {
        Self { value: LockValue::new(gates, key, Mode::Exclusive) }
    }

    /// The lock's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    pub fn key(&self) -> Result<&Key> {
        self.value.key()
    }

    /// Tries to take the lock, once. `None` if another holder has it. Its name and its time left
    /// are in the error of [`lock_within`](Self::lock_within) with a limit of zero, which also
    /// tries once.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying)]
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`] – a bad name or setting.
    /// * [`ErrorKind::Conflict`] – the name is in use as another kind of lock.
    /// * [`ErrorKind::Unavailable`] and others – the store could not be reached; see
    ///   [`Error::effect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the request was on its way, what it acquires is released in the background.
    pub async fn try_lock(&self) -> Result<Option<Guard>> {
        self.value.try_take().await
    }

    /// Takes the lock, and waits until it is free.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking)]
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), and [`ErrorKind::Timeout`] when the retry strategy ends. A
    /// store that goes away during the wait has 30 s to come back.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn lock(&self) -> Result<Guard> {
        self.value.take(None).await
    }

    /// Takes the lock, and waits for at most `limit`; with a limit of zero it tries once.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_within)]
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`ErrorKind::Timeout`] when the limit is reached. That error names
    /// the holder ([`Error::holder`]) and says how long its lease still runs
    /// ([`Error::retry_after`]). If the store can't be reached at the limit, the error is
    /// [`ErrorKind::Unavailable`], since the lock may be free.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, its position in the queue is abandoned in the background.
    pub async fn lock_within(&self, limit: Duration) -> Result<Guard> {
        self.value.take(Some(limit)).await
    }

    /// Takes the lock, runs `body` under it, and releases it. When the lease is lost, the body is
    /// dropped where it stands, before the store can grant the lock to another holder.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(locking_and_running)]
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). [`ErrorKind::Lost`] when the body was cut short, or when the lock
    /// was not held until the body had ended. [`ErrorKind::Late`] when the lease had expired,
    /// though no other holder took the lock. What the body has returned is in the error
    /// ([`RunError::into_output`]).
    ///
    /// If the body ended in time and the release fails, `run` still returns `Ok`. The failure is
    /// logged, and the release is retried in the background.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the lease released in the background.
    pub async fn run<T, F>(&self, body: impl FnOnce(HeldLease) -> F) -> Result<T, RunError<T>>
    where
        F: Future<Output = T>,
    {
        let guard = self.lock().await?;
        guard.run(body).await
    }

    /// As [`run`](Self::run), if the lock is free; `None` if another holder has it.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying_and_running)]
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the lease released in the background.
    pub async fn try_run<T, F>(
        &self,
        body: impl FnOnce(HeldLease) -> F,
    ) -> Result<Option<T>, RunError<T>>
    where
        F: Future<Output = T>,
    {
        match self.try_lock().await? {
            Some(guard) => guard.run(body).await.map(Some),
            None => Ok(None),
        }
    }

    /// Requests release from the holder of the lock; `false` if the lock is not held. See
    /// [`Client::ask`](crate::Client::ask).
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request)]
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] for a bad name or setting, and what the store says.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the holder may or may not get the request.
    pub async fn ask(&self) -> Result<bool> {
        let settings = self.value.settings.clone()?;
        let request = AskRequest::new(settings.key.clone(), settings.owner.clone());
        Ok(self.value.client().ask(request).await? > 0)
    }

    /// Renews the lease of `guard` to this value's ttl, which may have changed since. If the lease
    /// is gone, takes the lock again with a new fence; `None` if another holder has it. It waits
    /// for that up to [`wait_limit`](Self::wait_limit), or tries once if that is not set.
    ///
    /// | if the lease | [`renew_to`](HeldLease::renew_to) | [`prolong`](Self::prolong) | `relock` |
    /// | --- | --- | --- | --- |
    /// | is held | renews it | renews it | renews it |
    /// | had expired, and no other holder came since | `Late` | takes it again, and reports it | takes it again |
    /// | was lost to another holder | `Lost` | `Lost` | takes it again once it is free, else `None` |
    ///
    /// Compare the fences before and after to distinguish a renewal from a new lease.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(refreshing)]
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock) and [`HeldLease::renew_to`], and [`ErrorKind::Misuse`] when
    /// the guard is of another lock. The guard comes back with the error, and holds what it held.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease is released in the background.
    pub async fn relock(&self, guard: Guard) -> Result<Option<Guard>, NotChanged<Guard>> {
        let settings = match self.settings_for(&guard) {
            Ok(settings) => settings,
            Err(error) => return Err(NotChanged::new(guard, error)),
        };
        match guard.renew_to(settings.ttl.duration()).await {
            Ok(()) => return Ok(Some(guard)),
            Err(error) if matches!(error.kind(), ErrorKind::Late | ErrorKind::Lost) => {
                tracing::warn!(target: "leasehold", key = %settings.key, %error, "locking again");
            }
            Err(error) => return Err(NotChanged::new(guard, error)),
        }
        // The guard is kept in case the lock can't be acquired; it holds no lease from here on.
        if let Err(error) = guard.lease().clone().give_back(Afterwards::AsGranted).await {
            return Err(NotChanged::new(guard, error));
        }
        let anew = match settings.limit(None) {
            Some(limit) => self.lock_within(limit).await.map(Some),
            None => self.try_lock().await,
        };
        match anew {
            Ok(anew) => Ok(anew),
            Err(error) if error.is_not_obtained() => Ok(None),
            Err(error) => Err(NotChanged::new(guard, error)),
        }
    }

    /// Prolongs a lock that `guard` may still hold: to this value's ttl if it does. If the lease
    /// has expired and the lock had no holder since, takes it again, reports that, and logs a
    /// warning: the ttl was too short. If another holder came, it stays lost, even if it is free
    /// again; [`relock`](Self::relock) would take it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// use leasehold::Prolonged;
    /// use std::time::Duration;
    ///
    /// let mutex = client.mutex("report").ttl(Duration::from_secs(60)).renew(false);
    /// let guard = mutex.lock().await?;
    /// // … a chapter …
    /// let guard = match mutex.prolong(guard).await? {
    ///     Prolonged::InTime(guard) => guard,
    ///     // No other holder wrote meanwhile, but one could have.
    ///     late => late.into_guard(),
    /// };
    /// # guard.release().await
    /// # }
    /// ```
    ///
    /// # Cost
    ///
    /// One round trip in time, and three or four when late.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Lost`] – another holder came since, or the store has forgotten whether one
    ///   did.
    /// * [`ErrorKind::Misuse`] – the guard is of another lock.
    /// * As [`try_lock`](Self::try_lock) and [`HeldLease::renew_to`].
    ///
    /// The guard comes back with the error.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the lease is released in the background.
    pub async fn prolong(&self, guard: Guard) -> Result<Prolonged, NotChanged<Guard>> {
        let settings = match self.settings_for(&guard) {
            Ok(settings) => settings,
            Err(error) => return Err(NotChanged::new(guard, error)),
        };
        match guard.renew_to(settings.ttl.duration()).await {
            Ok(()) => return Ok(Prolonged::InTime(guard)),
            Err(error) if error.kind() == ErrorKind::Late => {}
            Err(error) => return Err(NotChanged::new(guard, error)),
        }
        match self.take_after(&guard).await {
            Ok(anew) => {
                let (key, ttl) = (&settings.key, settings.ttl);
                tracing::warn!(target: "leasehold", %key, %ttl, "prolonged after it had expired; no other holder came since");
                Ok(Prolonged::Late(anew))
            }
            Err(error) => Err(NotChanged::new(guard, error)),
        }
    }

    /// Takes the lock again, unless another holder came since this lease.
    async fn take_after(&self, guard: &Guard) -> Result<Guard> {
        // The lease expires here before it does in the store: end what is left there first.
        guard.lease().clone().give_back(Afterwards::AsGranted).await.map(drop)?;
        let mut acquisition = self.value.acquisition(Some(Duration::ZERO))?;
        acquisition.request.after = Some(guard.handle().fences);
        acquisition.try_once(acquisition.limits.started).await?.ok_or_else(|| {
            let why = "the lease expired, and another holder has come since";
            guard.lease().explain(Error::new(ErrorKind::Lost, why), "renew")
        })
    }

    /// This value's settings, for a guard that is of this lock.
    fn settings_for(&self, guard: &Guard) -> Result<Named> {
        let settings = self.value.settings.clone()?;
        if *guard.key() != settings.key || !Arc::ptr_eq(guard.client(), self.value.client()) {
            let why = format!("the guard is of another lock, \"{}\"", guard.key());
            return Err(Error::new(ErrorKind::Misuse, why).on_key(&settings.key));
        }
        Ok(settings)
    }
}
