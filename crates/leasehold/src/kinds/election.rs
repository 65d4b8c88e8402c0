//! An election: one leader at a time, which all can see.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ErrorKind, Fence, Key, Metadata, Mode, Moment, OwnerName, Result};

use crate::kinds::lock_value::{LockValue, lock};
use crate::kinds::typed_guard::typed_guard;
use crate::lease::guard::Guard;
use crate::lease::held_lease::HeldLease;
use crate::options::{WaitLimit, setters};
use crate::rt;
use crate::waiting::gate::Gates;

/// How often an observer looks by default.
pub const DEFAULT_LOOK_EVERY: Duration = Duration::from_secs(1);

/// An election with one leader at a time, in any process that uses the same store.
///
/// A value, which can't fail and sends its first request with a campaign. The leader has a lease,
/// renewed while it leads, with a fencing token that grows with every leader. It learns of a loss
/// `stop_grace` before the store can grant the leadership to another candidate, so that it can step
/// down in time. Its [metadata](Self::metadata), such as its address, is visible to all.
///
/// The election is the lock of its name: a holder of a [`Mutex`](crate::Mutex) of that name
/// excludes all candidates and is seen as the leader. Use names for elections that no lock has.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let post = client.election("scheduler").metadata("10.0.0.7:8080");
/// let leadership = post.campaign().await?;
///
/// let leader = client.election("scheduler").leader().await?.unwrap();
/// assert_eq!(leader.metadata.as_str(), "10.0.0.7:8080");
/// assert_eq!(leader.fence, leadership.fence()?);
/// # leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "an election does nothing without a campaign"]
pub struct Election {
    value: LockValue,
    look_every: Duration,
}

lock!(Election);
setters!(Election: holding_options owner_option waiting_options patience_options);

/// A leader, as others see it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Leader {
    /// Its name.
    pub owner: OwnerName,
    /// Its metadata.
    pub metadata: Metadata,
    /// The fencing token of its lease, larger than all earlier leaders' tokens.
    pub fence: Fence,
}

impl Election {
    pub(crate) fn new(gates: &Arc<Gates>, key: Result<Key>) -> Self {
        let mut value = LockValue::new(gates, key, Mode::Exclusive);
        value.set(|settings| {
            // All others have to see each leader, with its fence.
            settings.handed_on = false;
            Ok(())
        });
        Self { value, look_every: DEFAULT_LOOK_EVERY }
    }

    /// How often [`observe`](Self::observe) looks, [`DEFAULT_LOOK_EVERY`] by default and every 5 ms
    /// at most; it looks sooner only when the leader's lease ends sooner.
    pub const fn look_every(mut self, look_every: Duration) -> Self {
        self.look_every = look_every;
        self
    }

    /// The election's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    pub fn key(&self) -> Result<&Key> {
        self.value.key()
    }

    /// Becomes the leader if there is none. `None` if there is one.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if the request was on its way, it is undone in the background.
    pub async fn try_campaign(&self) -> Result<Option<Leadership>> {
        Ok(self.value.try_take().await?.map(Leadership))
    }

    /// Becomes the leader, and waits until it is. Candidates are elected in order of arrival.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future withdraws the candidate, in the background.
    pub async fn campaign(&self) -> Result<Leadership> {
        self.value.take(None).await.map(Leadership)
    }

    /// Becomes the leader, and waits for at most `limit`.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_within)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock_within`](crate::Mutex::lock_within).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future withdraws the candidate, in the background.
    pub async fn campaign_within(&self, limit: Duration) -> Result<Leadership> {
        self.value.take(Some(limit)).await.map(Leadership)
    }

    /// Campaigns, and runs `body` whenever this candidate leads. When the leadership is lost, the
    /// body is dropped where it stands, before another candidate can lead, and the next campaign
    /// begins. Resigns and returns what the body returned, or `None` once `stop` returns.
    ///
    /// While the store can't be reached, it tries again, each time after a pause of
    /// [`look_every`](Self::look_every).
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(leading)]
    ///
    /// # Errors
    ///
    /// Errors that another try can't mend, such as [`ErrorKind::Config`] and [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and leadership or candidacy is released in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// let stop = tokio::time::sleep(std::time::Duration::from_millis(20));
    /// let post = client.election("scheduler");
    /// let led: Option<()> = post.run(stop, async |_lease| std::future::pending().await).await?;
    /// assert!(led.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn run<T, F>(
        &self,
        stop: impl Future<Output = ()>,
        mut body: impl FnMut(HeldLease) -> F,
    ) -> Result<Option<T>>
    where
        F: Future<Output = T>,
    {
        let mut stop = std::pin::pin!(stop);
        loop {
            let leadership = tokio::select! {
                biased;
                () = &mut stop => return Ok(None),
                leadership = self.campaign_on() => leadership?,
            };
            let lease = leadership.lease().clone();
            let done = tokio::select! {
                biased;
                () = lease.lost() => None,
                () = &mut stop => Some(None),
                done = body(lease.clone()) => Some(Some(done)),
            };
            // What the body did is done, even if the resignation fails.
            drop(leadership.resign().await);
            if let Some(done) = done {
                return Ok(done);
            }
        }
    }

    /// As [`run`](Self::run), with calls instead of a body: `elected` when this candidate begins to
    /// lead, and `stepped_down` when it no longer does, before another candidate can lead.
    ///
    /// Keep the calls short: while one runs, all else here waits.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(leading)]
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: leadership or candidacy is released in the background; `stepped_down` is not
    /// called.
    pub async fn run_callbacks(
        &self,
        stop: impl Future<Output = ()>,
        mut elected: impl FnMut(&HeldLease),
        mut stepped_down: impl FnMut(),
    ) -> Result<()> {
        let mut stop = std::pin::pin!(stop);
        loop {
            let leadership = tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                leadership = self.campaign_on() => leadership?,
            };
            elected(leadership.lease());
            let stopped = tokio::select! {
                biased;
                () = &mut stop => true,
                () = leadership.lost() => false,
            };
            stepped_down();
            drop(leadership.resign().await);
            if stopped {
                return Ok(());
            }
        }
    }

    /// Campaigns through errors that may pass, without a limit.
    pub(crate) async fn campaign_on(&self) -> Result<Leadership> {
        let value = self.value.with(|settings| {
            settings.wait_limit = WaitLimit::Forever;
            Ok(())
        });
        loop {
            match value.take(None).await.map(Leadership) {
                Err(error) if error.is_retryable() && error.kind() != ErrorKind::Timeout => {
                    tracing::warn!(target: "leasehold", %error, "a campaign failed; trying again");
                    let clock = &*self.value.client().clock;
                    let pause = self.look_every.max(LOOK_EVERY_MIN);
                    rt::sleep_until(clock, clock.now().saturating_add(pause)).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// The current leader in the store's view. Takes no part in the election.
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
    /// Cancel safe.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(self.look().await?.map(|(leader, _)| leader))
    }

    /// Watches the leader; see [`Observer::changed`].
    pub fn observe(&self) -> Observer {
        Observer { election: self.clone(), seen: None, look_at: None }
    }

    /// The leader, and how long its lease runs.
    async fn look(&self) -> Result<Option<(Leader, Duration)>> {
        let Some(info) = self.value.client().look(self.value.key()?).await? else {
            return Ok(None);
        };
        let leader = info.holders.into_iter().find(|holder| holder.mode == Mode::Exclusive);
        Ok(leader.map(|holder| {
            let remaining = holder.remaining;
            let (owner, metadata, fence) = (holder.owner, holder.metadata, holder.fence);
            (Leader { owner, metadata, fence }, remaining)
        }))
    }
}

/// Sees leaders come and go. Made by [`Election::observe`].
///
/// It looks at [intervals](Election::look_every), so a leadership that is shorter than that can go
/// unseen.
#[derive(Debug)]
#[must_use = "an observer sees leaders only when it is polled"]
pub struct Observer {
    election: Election,
    seen: Option<Option<Leader>>,
    look_at: Option<Moment>,
}

impl Observer {
    /// The leader after a change, or `None` while there is none: another leader may come. The first
    /// call returns the current leader at once; each later call returns when the leader has
    /// changed.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(observing)]
    ///
    /// # Errors
    ///
    /// As [`Election::leader`]. The next call tries again, after the interval.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the next call returns a change that this one would have returned.
    pub async fn changed(&mut self) -> Result<Option<Leader>> {
        let clock = std::sync::Arc::clone(&self.election.value.client().clock);
        loop {
            rt::sleep_until(&*clock, self.look_at.unwrap_or_default()).await;
            let every = self.election.look_every.max(LOOK_EVERY_MIN);
            let looked = self.election.look().await;
            let now = clock.now();
            let remaining = match &looked {
                Ok(Some((_, remaining))) => *remaining,
                _ => every,
            };
            let pause = remaining.clamp(LOOK_EVERY_MIN, every);
            self.look_at = Some(now.saturating_add(pause));
            let leader = looked?.map(|(leader, _)| leader);
            if self.seen.as_ref() != Some(&leader) {
                self.seen = Some(leader.clone());
                return Ok(leader);
            }
        }
    }
}

const LOOK_EVERY_MIN: Duration = Duration::from_millis(5);

/// A leadership: the proof that this process leads.
///
/// It derefs to the [`HeldLease`], which has the [fencing token](HeldLease::fence) and says whether
/// the leadership is [lost](HeldLease::lost). Dropping it resigns in the background.
#[must_use = "dropping the leadership resigns in the background; call resign().await to be sure"]
#[clippy::has_significant_drop]
pub struct Leadership(Guard);

typed_guard!(
    Leadership: resign, resign_outcome, resign_with_cooldown, resign_with_cooldown_outcome
);
