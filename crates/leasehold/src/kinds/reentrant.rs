//! The re-entrant mutex: its owner may take it again.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Cooldown, Key, Mode, Result};

use crate::kinds::lock_value::{LockValue, shown};
use crate::kinds::reentrant_lease::{Owned, ReentrantLease, Slot, Turn};
use crate::lease::handle::requests::Afterwards;
use crate::lease::held_lease::HeldLease;
use crate::lease::release::{self, Release};
use crate::lease::run::{RunError, run_under};
use crate::options::{LockOptions, setters};
use crate::owner::Owner;
use crate::rt;
use crate::waiting::acquisition::{Acquisition, Attempt};
use crate::waiting::gate::Gates;
use crate::waiting::status::WaitStatus;

/// A lock that one [`Owner`] has at a time, and may take again while it has it.
///
/// A value, which can't fail and sends its first request when it is locked. Taking it again is one
/// request: the store's count goes up, where others can see it. The lease runs for its ttl from
/// then, never shorter than before. All guards of the owner share one lease with one fencing token.
/// The lock comes free with the last of them. If the lease is lost, all of them lose it. An owner
/// [from a secret](Owner::from_secret) can take it again from other processes, too, with a lease in
/// each.
///
/// The lease has the settings of the first acquisition. A name used by a [`Mutex`](crate::Mutex)
/// and re-entrantly is one lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// use leasehold::Owner;
///
/// let owner = Owner::new();
/// let outer = client.reentrant("account/7", &owner).lock().await?;
/// // … somewhere below, which can't know that it is held already:
/// let inner = client.reentrant("account/7", &owner).lock().await?;
/// assert_eq!(inner.fence()?, outer.fence()?);
/// assert_eq!(inner.release().await?, 1, "one hold remains");
/// assert_eq!(outer.release().await?, 0, "the lock is free");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a lock does nothing until it is locked"]
pub struct Reentrant {
    value: LockValue,
    owned: Arc<Owned>,
    owner: Owner,
}

shown!(Reentrant);
setters!(Reentrant: holding_options waiting_options patience_options);

impl Reentrant {
    pub(crate) fn new(
        gates: &Arc<Gates>,
        owned: &Arc<Owned>,
        key: Result<Key>,
        owner: &Owner,
    ) -> Self {
        let bond = key.as_ref().ok().and_then(|key| owner.bond(key));
        let mode = bond.map_or(Mode::Exclusive, Mode::Joint);
        let mut value = LockValue::new(gates, key, mode);
        if let Some(name) = owner.name() {
            value.set(|settings| name.clone().map(|name| settings.owner = name));
        }
        Self { value, owned: Arc::clone(owned), owner: owner.clone() }
    }

    /// Sets what these options set, except the owner, which is this lock's [`Owner`]. The rest
    /// stays as it is.
    pub fn options(mut self, options: &LockOptions) -> Self {
        self.value.set(|settings| {
            let owner = settings.owner.clone();
            settings.set(options).map(|()| settings.owner = owner)
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

    /// Tries to take the lock, once. `None` when another owner has it.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying_again)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock). If this owner has the lock already, an error
    /// leaves its guards as they are.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what it may have taken, or counted, is released in the background.
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        let mut acquisition = self.value.acquisition(Some(Duration::ZERO))?;
        let slot = self.slot(&acquisition);
        loop {
            match slot.tried().await {
                Turn::Enter(entering) => {
                    if let Some(held) = entering.enter().await? {
                        return Ok(Some(ReentrantGuard::new(held)));
                    }
                }
                Turn::First(first) => {
                    let now = acquisition.client.clock.now();
                    let guard = acquisition.try_once(now).await?;
                    return Ok(guard.map(|guard| ReentrantGuard::new(first.got(guard))));
                }
                Turn::AfterTry | Turn::AfterWait => return Ok(None),
            }
            acquisition = self.value.acquisition(Some(Duration::ZERO))?;
        }
    }

    /// Takes the lock, and waits until it is free; at once when this owner has it.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_again)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what it may have taken, or counted, is released in the background.
    pub async fn lock(&self) -> Result<ReentrantGuard> {
        self.take(None).await
    }

    /// Takes the lock, and waits for at most `limit`.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_again_within)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock_within`](crate::Mutex::lock_within).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what it may have taken, or counted, is released in the background.
    pub async fn lock_within(&self, limit: Duration) -> Result<ReentrantGuard> {
        self.take(Some(limit)).await
    }

    async fn take(&self, limit: Option<Duration>) -> Result<ReentrantGuard> {
        let mut acquisition = self.value.acquisition(limit)?;
        let client = self.value.client();
        let until = acquisition.limits.until;
        let slot = self.slot(&acquisition);
        let (mut status, mut failures) = (WaitStatus::default(), 0_u32);
        loop {
            let turn = tokio::select! {
                biased;
                turn = slot.got_on() => turn,
                () = rt::sleep_until_some(&*client.clock, until) => {
                    let why = "timed out waiting for another task of the same owner";
                    return Err(acquisition.ran_out(&WaitStatus::default(), why));
                }
                () = client.closed.cancelled() => return Err(client.closed()),
            };
            match turn {
                Turn::Enter(entering) => match entering.enter().await {
                    Ok(Some(held)) => return Ok(ReentrantGuard::new(held)),
                    Ok(None) => {}
                    Err(error) => {
                        acquisition.ride_out(error, &mut status)?;
                        failures = failures.saturating_add(1);
                        acquisition.pause(acquisition.limits.pause_after(failures)).await?;
                    }
                },
                Turn::First(first) => {
                    // The owner's other tasks should wait for this one answer at most, not for the
                    // lock.
                    let guard = match acquisition.attempt().await {
                        Ok(Attempt::Held(guard)) => guard,
                        Err(error) if !acquisition.may_ride_out(&error) => return Err(error),
                        tried => {
                            acquisition.met = tried.err();
                            first.waits();
                            acquisition.start_anew()?;
                            self.value.wait(Box::new(acquisition)).await?
                        }
                    };
                    return Ok(ReentrantGuard::new(first.got(guard)));
                }
                Turn::AfterTry | Turn::AfterWait => {}
            }
            // The lease that the owner seemed to have is gone, or the store did not get the
            // request.
            let left = until.map(|until| until.saturating_since(client.clock.now()));
            acquisition = self.value.acquisition(left)?;
        }
    }

    fn slot(&self, acquisition: &Acquisition) -> Arc<Slot> {
        self.owned.slot(&acquisition.request.key, self.owner.id())
    }
}

/// A hold of a [`Reentrant`] lock: one of its owner's, which share one lease.
///
/// It derefs to the [`HeldLease`], which has the [fencing token](HeldLease::fence) and says whether
/// the lease is [lost](HeldLease::lost).
///
/// # Dropping is not releasing
///
/// A dropped guard counts down in the background, and the last one releases the lease there. Use
/// [`release`](Self::release) to be sure.
#[must_use = "dropping the guard counts down in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct ReentrantGuard {
    held: Option<Arc<ReentrantLease>>,
}

impl ReentrantGuard {
    const fn new(held: Arc<ReentrantLease>) -> Self {
        Self { held: Some(held) }
    }

    fn held(&self) -> &Arc<ReentrantLease> {
        self.held.as_ref().expect("BUG: only methods that consume the guard take its hold")
    }

    /// A view of the lease, for the work. It is of the lease, not of this one hold.
    #[must_use]
    pub fn lease(&self) -> &HeldLease {
        &self.held().lease
    }

    /// How many guards this owner has of the lock at this moment.
    #[must_use]
    pub fn holds(&self) -> u32 {
        self.held().holds()
    }

    /// Ends this hold, and with the last one the lease. Returns how many holds of the same owner
    /// remain; with 0 the lock is free.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing_hold)]
    ///
    /// # Errors
    ///
    /// As [`Guard::release`](crate::Guard::release). This hold has ended anyway, and a later
    /// request corrects the count at the store.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release(self) -> Result<u32> {
        self.end_well(Afterwards::AsGranted).await
    }

    /// Ends this hold. The last one ends the lease and starts `cooldown`: until its end no caller
    /// can acquire the lock. Returns how many holds of the same owner remain. The cooldown starts
    /// only if that is 0.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing_hold)]
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
    ) -> impl Future<Output = Result<u32>> + Send + use<> {
        self.end_well(Afterwards::Closed(cooldown))
    }

    /// Runs `body` under this hold, and ends the hold. See [`Guard::run`](crate::Guard::run).
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(running_here)]
    ///
    /// # Errors
    ///
    /// As [`Guard::run`](crate::Guard::run).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the hold ended in the background.
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

    fn end_well(self, cooldown: Afterwards) -> impl Future<Output = Result<u32>> + Send + use<> {
        let lease = self.lease().clone();
        let answer = self.end(cooldown);
        async move {
            match answer.await {
                Ok(Release::StillHeld { holds }) => Ok(holds),
                answer => lease.verdict(answer).map(|()| 0),
            }
        }
    }

    /// As [`release`](Self::release), and reports how that went: [`Release::StillHeld`] has the
    /// number of holds that remain.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing_hold)]
    ///
    /// # Errors
    ///
    /// As [`Guard::release_outcome`](crate::Guard::release_outcome).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub async fn release_outcome(self) -> Result<Release> {
        release::outcome(self.end(Afterwards::AsGranted).await)
    }

    /// Ends this hold. The end begins with the call, not with the first poll.
    pub(crate) fn end(
        mut self,
        cooldown: Afterwards,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        let answer = self.held.take().map(|held| held.release(cooldown));
        async {
            match answer {
                Some(answer) => answer.await,
                None => Ok(Release::NotHeld),
            }
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = HeldLease;

    fn deref(&self) -> &HeldLease {
        self.lease()
    }
}

impl Drop for ReentrantGuard {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        if held.lease.handle().is_ours() {
            held.release_in_background();
        } else {
            // A fork's child must not take down the parent's client.
            std::mem::forget(held);
        }
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.held {
            Some(held) => held.lease.describe("ReentrantGuard", f),
            None => f.write_str("ReentrantGuard { held: false }"),
        }
    }
}
