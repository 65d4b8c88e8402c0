//! Once per period: a job that runs at most once in it, on whichever host is first.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Cooldown, Error, ErrorKind, Key, Mode, Result, length};

use crate::kinds::lock_value::{LockValue, lock};
use crate::kinds::typed_guard::typed_guard;
use crate::lease::guard::Guard;
use crate::lease::handle::requests::Afterwards;
use crate::lease::held_lease::HeldLease;
use crate::lease::release::{self, Release};
use crate::lease::run::{RunError, run_under};
use crate::options::setters;
use crate::waiting::gate::Gates;

/// A job that starts at most once per period, on all hosts together.
///
/// The grant starts a cooldown in the same step, for the rest of the period, counted from the grant
/// on the store's clock. With `replicas=` the job starts a little later, once they have confirmed
/// the grant. The period stays closed if the job is quick, if it fails, and if its host crashes. No
/// caller waits for the lock here: for a closed period the answer is `None`.
///
/// # At least, at most
///
/// In the words of schedulers' locks, the period is the *at-least* time in which no other start
/// succeeds, and [`max_hold`](Self::max_hold) is the *at-most* time for which one run excludes
/// others. A run that takes longer than the period goes on excluding them, since its lease is
/// renewed. A crashed run excludes them until its lease and the period have ended, whichever is
/// later.
///
/// # Schedules
///
/// The period begins when the lock is granted, not at the full hour. With a schedule of every hour
/// and a period of one hour, a grant at 10:00:00.2 would skip the start at 11:00:00.0. Use a period
/// that is clearly shorter than the schedule's and longer than all differences between the hosts'
/// clocks: 55 minutes for an hour.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// use std::time::Duration;
///
/// let report = client.once_per("reports/hourly", Duration::from_secs(55 * 60));
/// assert_eq!(report.run(async |_lease| "written").await?, Some("written"));
/// assert_eq!(report.run(async |_lease| "written twice").await?, None);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "nothing is done until it is started"]
pub struct OncePer {
    value: LockValue,
}

lock!(OncePer);
setters!(OncePer: holding_options owner_option);

impl OncePer {
    pub(crate) fn new(gates: &Arc<Gates>, key: Result<Key>, period: Duration) -> Self {
        let mut value = LockValue::new(gates, key, Mode::Exclusive);
        value.set(|settings| {
            settings.cooldown =
                Cooldown::new(period).ok().filter(|_| period >= PERIOD_MIN).ok_or_else(|| {
                    let why = format!(
                        "a period of {} is out of range; give {PERIOD_RANGE}",
                        length::typed(period)
                    );
                    Error::new(ErrorKind::Config, why)
                })?;
            Ok(())
        });
        Self { value }
    }

    /// The job's name.
    ///
    /// # Errors
    ///
    /// The error of the name, or of the first wrong setting.
    pub fn key(&self) -> Result<&Key> {
        self.value.key()
    }

    /// Starts the job. `None` if it has been started in this period already, or still runs.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](crate::Mutex::try_lock). If the answer was lost, the job has not
    /// started, and the period is reopened in the background. It stays closed if the store can't be
    /// reached for as long as the lease would have run.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, a period that it may have closed is reopened in the background.
    pub async fn try_start(&self) -> Result<Option<OnceGuard>> {
        Ok(self.value.try_take().await?.map(OnceGuard))
    }

    /// Runs `body`. `None` if the job has been started in this period already, or still runs. When
    /// the lease is lost, the body is dropped where it stands. The period stays closed, even if the
    /// body fails or panics.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(starting_and_running)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the lease released in the background; the period stays
    /// closed.
    pub async fn run<T, F>(
        &self,
        body: impl FnOnce(HeldLease) -> F,
    ) -> Result<Option<T>, RunError<T>>
    where
        F: Future<Output = T>,
    {
        let Some(guard) = self.try_start().await? else { return Ok(None) };
        guard.run(body).await.map(Some)
    }

    /// As [`run`](Self::run), for a body that can fail: when it does, the period is reopened, and
    /// the next caller may start the job.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(starting_and_running)]
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run). The body's own error is in the answer.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_or_reopen<T, E, F>(
        &self,
        body: impl FnOnce(HeldLease) -> F,
    ) -> Result<Option<Result<T, E>>, RunError<Result<T, E>>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let Some(guard) = self.try_start().await? else { return Ok(None) };
        let cooldown = |done: &Result<T, E>| match done {
            Ok(_) => Afterwards::AsGranted,
            Err(_) => Afterwards::Open,
        };
        let lease = guard.lease().clone();
        run_under(lease, |cooldown| guard.0.end(cooldown), Afterwards::Open, body, cooldown)
            .await
            .map(Some)
    }
}

/// The shortest period: a shorter one would have no effect.
pub const PERIOD_MIN: Duration = Duration::from_millis(1);
/// The range of periods, in words: up to the longest [`Cooldown`].
pub const PERIOD_RANGE: &str = "1 ms to 365 days";

/// A job that has started: its lease, in a period that stays closed.
///
/// It derefs to the view of its lease, which has the fencing token, the time left and the loss.
/// Dropping it releases the lease in the background, and the period stays closed.
#[must_use = "dropping the guard releases the lock in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct OnceGuard(Guard);

impl OnceGuard {
    /// Ends the lease of a job that has failed, and reopens the period for another start.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, even before the first poll, the release goes on in the background,
    /// and reopens the period.
    pub fn release_and_reopen(self) -> impl Future<Output = Result<()>> + Send + use<> {
        self.0.end_well(Afterwards::Open)
    }

    /// As [`release_and_reopen`](Self::release_and_reopen), and reports how that went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn)]
    ///
    /// # Errors
    ///
    /// As [`Guard::release_outcome`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the release goes on in the background.
    pub fn release_and_reopen_outcome(
        self,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        let answer = self.0.end(Afterwards::Open);
        async { release::outcome(answer.await) }
    }
}

typed_guard!(OnceGuard);
