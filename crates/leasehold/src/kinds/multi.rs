//! Several locks as one: all of them or none.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::PAUSE_MIN;
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Cooldown, Effect, Error, ErrorKind, Key, Mode, Result,
};

use crate::LOCK;
use crate::kinds::lock_value::{LockValue, lock};
use crate::lease::guard::Guard;
use crate::lease::handle::requests::Afterwards;
use crate::lease::held_leases::HeldLeases;
use crate::lease::release::{Release, Releases};
use crate::lease::run::{RunError, run_under};
use crate::options::setters;
use crate::refusal::refused;
use crate::rt;
use crate::shared::Inner;
use crate::waiting::acquisition::{Acquisition, Attempt, give_up, turn};
use crate::waiting::gate::Gates;
use crate::waiting::status::{Limits, WaitStatus};

/// Several locks that are taken together: all of them or none.
///
/// A value, which can't fail and sends its first request when it is locked. A try is one atomic
/// step if the store can do that for these names. Otherwise, as for names in different slots of a
/// cluster, the try takes one lock after the other. At the first busy lock it releases them all. A
/// caller that waits queues for one lock after the other, in the order of their names, and keeps
/// those it has. All callers use that order, so overlapping sets never deadlock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let transfer = client.multi(["account/7", "account/3"]);
/// let guard = transfer.lock().await?;
/// assert!(client.mutex("account/3").try_lock().await?.is_none());
/// for (key, fence) in guard.fences()? {
///     println!("{key}: {fence}");
/// }
/// # drop(guard); client.close().await
/// # }
/// ```
#[derive(Clone)]
#[must_use = "locks do nothing until they are locked"]
pub struct Multi {
    value: LockValue,
    /// Sorted; empty when the value is wrong.
    keys: Arc<[Key]>,
}

lock!(Multi);
setters!(Multi: holding_options owner_option waiting_options patience_options);

impl Multi {
    pub(crate) fn new(gates: &Arc<Gates>, keys: impl IntoIterator<Item = Result<Key>>) -> Self {
        let sorted = sorted(keys);
        let first = sorted.as_ref().map_err(Clone::clone).and_then(|keys| {
            let why = "no locks were named; name at least one";
            keys.first().cloned().ok_or_else(|| Error::new(ErrorKind::Config, why))
        });
        Self {
            value: LockValue::new(gates, first, Mode::Exclusive),
            keys: sorted.unwrap_or_default().into(),
        }
    }

    /// The names, in the order in which a caller waits for them.
    ///
    /// # Errors
    ///
    /// The error of the names, or of the first wrong setting.
    pub fn keys(&self) -> Result<&[Key]> {
        self.value.key().map(|_| &*self.keys)
    }

    /// Tries to take all of the locks, once. `None` if another holder has one of them.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(trying_several)]
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Config`] – a bad name or setting, a name given twice, or no names.
    /// * [`ErrorKind::Conflict`] – one of the names is in use as another kind of lock.
    /// * [`ErrorKind::Lost`] – one of them expired before the last was taken; none is held.
    /// * [`ErrorKind::Unavailable`] and others – the store could not be reached; see
    ///   [`Error::effect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: whatever was taken is released in the background.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        let all = self.acquisitions(Some(Duration::ZERO))?;
        Ok(try_all(all).await?.map(|guards| self.guard(guards)))
    }

    /// Takes all of the locks, and waits until they are free.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_several)]
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock), and [`ErrorKind::Timeout`] when the retry strategy ends.
    /// One of them can be lost while another is waited for, for example because the store was away
    /// for longer than its ttl. All are then requested again. After an error no lock is held.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: whatever was taken is released in the background.
    pub async fn lock(&self) -> Result<MultiGuard> {
        self.take(None).await
    }

    /// Takes all of the locks, and waits for at most `limit` in all.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(taking_several_within)]
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`ErrorKind::Timeout`] when the limit is reached. That error names
    /// the lock for which it waited.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: whatever was taken is released in the background.
    pub async fn lock_within(&self, limit: Duration) -> Result<MultiGuard> {
        self.take(Some(limit)).await
    }

    /// Takes all of the locks, runs `body` under them, and releases them. When one of them is lost,
    /// the body is dropped where it stands, before the store can grant that lock to another holder.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> leasehold::Result<()> {
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// let transfer = client.multi(["account/7", "account/3"]);
    /// let booked = transfer.run(async |leases| leases.fences().map(|fences| fences.len())).await?;
    /// assert_eq!(booked?, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(locking_and_running)]
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock) and [`Mutex::run`](crate::Mutex::run).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the leases are released in the background.
    pub async fn run<T, F>(&self, body: impl FnOnce(HeldLeases) -> F) -> Result<T, RunError<T>>
    where
        F: Future<Output = T>,
    {
        self.lock().await?.run(body).await
    }

    /// As [`run`](Self::run), if all of the locks are free; `None` if another holder has one of
    /// them.
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
    /// Cancel safe: the body is dropped, and the leases are released in the background.
    pub async fn try_run<T, F>(
        &self,
        body: impl FnOnce(HeldLeases) -> F,
    ) -> Result<Option<T>, RunError<T>>
    where
        F: Future<Output = T>,
    {
        match self.try_lock().await? {
            Some(guard) => guard.run(body).await.map(Some),
            None => Ok(None),
        }
    }

    async fn take(&self, limit: Option<Duration>) -> Result<MultiGuard> {
        let client = self.value.client();
        let limit = self.value.settings.clone()?.limit(limit);
        let mut all = self.acquisitions(limit)?;
        let first = all.first().map(|first| (first.request.key.clone(), first.limits.clone()));
        let Some((key, limits)) = first else { return Ok(self.guard(Vec::new())) };
        loop {
            // A loss before all are held costs only time.
            match self.take_once(all, &limits).await {
                Err(error) if error.kind() == ErrorKind::Lost => {
                    let now = client.clock.now();
                    let left = limits.until.map(|until| until.saturating_since(now));
                    if left == Some(Duration::ZERO) {
                        let why = "timed out, as one of the locks that it had was lost,";
                        return Err(limits.ran_out(&key, client, &WaitStatus::default(), why));
                    }
                    tracing::debug!(target: LOCK, %error, "requested again");
                    all = self.acquisitions(left)?;
                }
                outcome => return outcome,
            }
        }
    }

    async fn take_once(&self, all: Vec<Acquisition>, limits: &Limits) -> Result<MultiGuard> {
        let clock = &self.value.client().clock;
        let until = limits.until;
        let patience = || limits.patience(self.value.client());
        let mut met = match try_all(all).await {
            Ok(Some(guards)) => return Ok(self.guard(guards)),
            Ok(None) => None,
            // The wait for each lock also waits for the store.
            Err(error) if error.passes() && patience() != Some(Duration::ZERO) => Some(error),
            Err(error) => return Err(error),
        };
        let mut guard = self.guard(Vec::new());
        for key in &*self.keys {
            let left = until.map(|until| until.saturating_since(clock.now()));
            let one = self.only(key);
            let met = met.take();
            let taking = async {
                let mut acquisition = one.acquisition(left)?;
                acquisition.met = met;
                // The reported time of the wait is for all locks together.
                acquisition.limits.started = limits.started;
                one.wait(Box::new(acquisition)).await
            };
            let next = tokio::select! {
                biased;
                next = taking => next,
                error = self.keep(&guard) => return Err(self.give_up(guard, error, true).await),
            };
            match next.and_then(|next| next.check().map(|()| next)) {
                Ok(next) => guard.push(next),
                Err(error) => return Err(self.give_up(guard, error, false).await),
            }
        }
        match guard.check() {
            Ok(()) => Ok(guard),
            Err(error) => Err(self.give_up(guard, error, false).await),
        }
    }

    /// Releases what is held. An interrupted wait has left its position in a queue to the
    /// background, so this waits for that too. Returns once the store has answered, or after the
    /// time of one call.
    async fn give_up(&self, guard: MultiGuard, error: Error, left_a_place: bool) -> Error {
        let client = self.value.client();
        let by = client.clock.now().saturating_add(client.config.call_timeout);
        let given_up = async {
            drop(guard.release_outcomes().await);
            if left_a_place {
                client.reaper.idle().await;
            }
        };
        tokio::select! {
            biased;
            () = given_up => {}
            () = rt::sleep_until(&*client.clock, by) => {}
        }
        error
    }

    /// Renews what is held while another lock is waited for. The work begins later, so its progress
    /// does not count. Returns when one is lost.
    async fn keep(&self, guard: &MultiGuard) -> Error {
        let clock = &*self.value.client().clock;
        let progress_within = self.value.settings.as_ref().ok().and_then(|s| s.progress_within);
        while guard.is_held() {
            let again = progress_within.map(|limit| {
                guard.progress();
                clock.now().saturating_add((limit / 3).max(PAUSE_MIN))
            });
            tokio::select! {
                biased;
                () = guard.lost() => {}
                () = rt::sleep_until_some(clock, again) => {}
            }
        }
        match guard.check() {
            Err(error) => error,
            Ok(()) => std::future::pending().await,
        }
    }

    /// One acquisition for each lock.
    fn acquisitions(&self, limit: Option<Duration>) -> Result<Vec<Acquisition>> {
        self.value.key()?;
        self.keys.iter().map(|key| self.only(key).acquisition(limit)).collect()
    }

    fn guard(&self, guards: Vec<Guard>) -> MultiGuard {
        MultiGuard::new(Arc::clone(self.value.client()), guards)
    }

    fn only(&self, key: &Key) -> LockValue {
        self.value.of(key)
    }
}

fn sorted(keys: impl IntoIterator<Item = Result<Key>>) -> Result<Vec<Key>> {
    let mut keys = keys.into_iter().collect::<Result<Vec<_>>>()?;
    keys.sort_unstable();
    match keys.windows(2).find(|pair| pair.first() == pair.last()) {
        Some([key, ..]) => {
            let why = "the same lock is named twice; name each once";
            Err(Error::new(ErrorKind::Config, why).on_key(key))
        }
        _ => Ok(keys),
    }
}

/// Tries to take all, at once.
async fn try_all(mut all: Vec<Acquisition>) -> Result<Option<Vec<Guard>>> {
    let outcome = try_in_one_step(&mut all).await;
    match outcome {
        Err(error) if error.kind() == ErrorKind::Unsupported => try_one_by_one(all).await,
        Ok(Some(guards)) => Ok(Some(guards)),
        failed => {
            give_up(&mut all).await;
            failed
        }
    }
}

async fn try_in_one_step(all: &mut [Acquisition]) -> Result<Option<Vec<Guard>>> {
    let Some(first) = all.first() else { return Ok(None) };
    let client = Arc::clone(&first.client);
    let within = first.within();
    let within = within.saturating_sub(turn(all).await?);
    let sent_at = client.clock.now();
    let requests: Vec<AcquireRequest> = all.iter().map(|one| one.request.clone()).collect();
    for one in &mut *all {
        one.sending(sent_at, within);
    }
    let answer = client.store.acquire_all(&requests, within).await;
    let now = client.clock.now();
    // A store that names a time to come again is there.
    if answer.as_ref().map_or_else(|error| error.retry_after().is_some(), |_| true) {
        client.heard(now);
    }
    match answer {
        Ok(AcquireAll::Granted(fences)) if fences.len() == all.len() => {
            let guards = all.iter_mut().zip(fences).map(|(one, fences)| {
                match one.granted(fences, sent_at, one.terms.ttl, now) {
                    Attempt::Held(guard) => Ok(guard),
                    _ if client.is_closed() => Err(client.closed()),
                    _ => Err(one.too_late()),
                }
            });
            // Each is granted, so that what one has is released when another came too late.
            let guards: Vec<Result<Guard>> = guards.collect();
            let (held, late): (Vec<_>, Vec<_>) = guards.into_iter().partition(Result::is_ok);
            let held = held.into_iter().flatten().collect();
            match late.into_iter().find_map(Result::err) {
                None => Ok(Some(held)),
                Some(error) => {
                    drop(MultiGuard::new(client, held).release_outcomes().await);
                    Err(error)
                }
            }
        }
        Ok(AcquireAll::Blocked { index, answer }) => {
            for one in &mut *all {
                one.armed.has_nothing(&client.reaper);
            }
            match (answer, all.get(index)) {
                (Acquire::Refused(refusal), Some(one)) => {
                    Err(one.explain(refused(refusal, one.request.mode.kind())))
                }
                _ => Ok(None),
            }
        }
        Ok(_) => {
            for one in &mut *all {
                one.armed.unanswered(now);
            }
            let why = "the store gave an unknown answer; update this program";
            Err(client.explain(Error::new(ErrorKind::Protocol, why), "acquire"))
        }
        Err(error) => {
            for one in &mut *all {
                if error.effect() == Effect::NotApplied {
                    one.armed.not_sent(&client.reaper);
                } else {
                    one.armed.unanswered(now);
                }
            }
            Err(client.explain(error, "acquire"))
        }
    }
}

/// As [`try_in_one_step`], for a store that can't.
async fn try_one_by_one(all: Vec<Acquisition>) -> Result<Option<Vec<Guard>>> {
    let mut guards = Vec::new();
    for mut one in all {
        match one.try_once(one.client.clock.now()).await {
            Ok(Some(guard)) => guards.push(guard),
            failed => {
                // Released before the caller has the answer, so that a retry at once finds these
                // locks free.
                release(guards).await;
                return failed.map(|_| None);
            }
        }
    }
    // The first may be lost by the time the last is granted.
    match guards.iter().try_for_each(|guard| guard.check()) {
        Ok(()) => Ok(Some(guards)),
        Err(lost) => {
            release(guards).await;
            Err(lost)
        }
    }
}

async fn release(mut guards: Vec<Guard>) {
    while let Some(guard) = guards.pop() {
        drop(guard.release_outcome().await);
    }
}

/// Several held locks. Lost when any of them is lost.
///
/// It derefs to the [`HeldLeases`], which have the [fencing tokens](HeldLeases::fences).
///
/// # Dropping is not releasing
///
/// Dropped, it releases all leases in the background. Use [`release`](Self::release) to be sure.
#[must_use = "dropping the guard releases the locks in the background; call release().await to be sure"]
#[clippy::has_significant_drop]
pub struct MultiGuard {
    client: Arc<Inner>,
    guards: Vec<Guard>,
    leases: HeldLeases,
}

impl MultiGuard {
    pub(crate) fn new(client: Arc<Inner>, guards: Vec<Guard>) -> Self {
        let leases = guards.iter().map(|guard| guard.lease().clone()).collect();
        let leases = HeldLeases::new(Arc::clone(&client), leases);
        Self { client, guards, leases }
    }

    fn push(&mut self, guard: Guard) {
        self.leases.push(guard.lease().clone());
        self.guards.push(guard);
    }

    /// A view of the leases, for the work.
    #[must_use]
    pub const fn lease(&self) -> &HeldLeases {
        &self.leases
    }

    /// Ends all leases, at the same time. An `Ok` says that all were held to their end.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing_several)]
    ///
    /// # Errors
    ///
    /// The worst error that [`Guard::release`] returned for any of them; it names the lock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the releases go on in the background.
    pub async fn release(self) -> Result<()> {
        self.release_outcomes().await.verdict()
    }

    /// Ends all leases, at the same time, and starts `cooldown` for each lock. See
    /// [`Guard::release_with_cooldown`].
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(request_in_turn_each)]
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, even before the first poll, the releases go on in the background,
    /// with the cooldown.
    pub fn release_with_cooldown(
        self,
        cooldown: Cooldown,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let releases = self.end_all(Afterwards::Closed(cooldown));
        async { releases.await.verdict() }
    }

    /// Runs `body` under all of the leases, and releases them. When one of them is lost, the body
    /// is dropped where it stands, before the store can grant that lock to another holder.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(running_several)]
    ///
    /// # Errors
    ///
    /// As [`Mutex::run`](crate::Mutex::run), for the worst outcome of any of them.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the body is dropped, and the leases are released in the background.
    pub async fn run<T, F>(self, body: impl FnOnce(HeldLeases) -> F) -> Result<T, RunError<T>>
    where
        F: Future<Output = T>,
    {
        let leases = self.leases.clone();
        run_under(
            leases,
            |cooldown| self.end(cooldown),
            Afterwards::AsGranted,
            body,
            |_| Afterwards::AsGranted,
        )
        .await
    }

    /// Ends all leases, at the same time, and reports for each how its release went.
    ///
    /// # Cost
    ///
    #[doc = crate::cost::cost!(releasing_several)]
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: if dropped, the releases go on in the background.
    pub async fn release_outcomes(self) -> Releases {
        self.end_all(Afterwards::AsGranted).await
    }

    /// Ends all leases; the outcome is the worst.
    pub(crate) fn end(
        self,
        cooldown: Afterwards,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        let releases = self.end_all(cooldown);
        async { releases.await.worst() }
    }

    /// Ends all leases. The end begins with the call, not with the first poll.
    fn end_all(self, cooldown: Afterwards) -> impl Future<Output = Releases> + Send + use<> {
        let client = self.client;
        let releases: Vec<_> = self
            .guards
            .into_iter()
            .map(|guard| {
                let (key, answer) = (guard.key().clone(), guard.end(cooldown));
                async move { (key, answer.await) }
            })
            .collect();
        async move { Releases::of(&client, releases.into_iter()).await }
    }

    /// The guards of the single locks, to be released one by one.
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }
}

impl Deref for MultiGuard {
    type Target = HeldLeases;

    fn deref(&self) -> &HeldLeases {
        &self.leases
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultiGuard").field(&self.leases).finish()
    }
}
