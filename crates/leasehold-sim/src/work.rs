//! What the tasks of a simulated process do with locks of all kinds.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use leasehold::{
    Client, Cooldown, DetachedLease, ErrorKind, Fence, Guard, HeldLease, Mutex, Owner,
    ReentrantGuard, Result,
};
use leasehold_core::Token;
use tokio::time::{sleep, timeout};

use crate::judge::{Books, Mode, Who};
use crate::net::Net;
use crate::profile::{Kinds, Profile, Us};

/// The plain locks, whose waiters' order is judged.
pub(crate) const PLAIN: [&str; 2] = ["mutex0", "mutex1"];
/// The locks of all kinds.
pub(crate) const KEYS: [&str; 9] =
    ["mutex0", "mutex1", "rw", "sem", "re", "elect", "multi-a", "multi-b", "flood"];
/// The locks that are acquired together, the first one first. It stays held while the second is
/// awaited.
pub(crate) const SEVERAL: [&str; 2] = ["multi-a", "multi-b"];
/// The job that is started once in each period.
pub(crate) const JOB: &str = "once";
const PERMITS: u32 = 3;
pub(crate) const PERIOD: Duration = Duration::from_secs(2);
/// How many futures one flood drops.
const FLOOD: usize = 1_000;
/// The next contender has to get the lock within this time.
const FLOOD_MAX: Duration = Duration::from_secs(3);

/// The state that all tasks of a simulation share.
#[derive(Default)]
pub(crate) struct Shared {
    books: StdMutex<Books>,
    /// All faults are over.
    pub(crate) healed: AtomicBool,
    pub(crate) stop: AtomicBool,
    /// Leases without a guard.
    detached: StdMutex<Vec<(&'static str, DetachedLease)>>,
}

impl Shared {
    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn detached(&self) -> MutexGuard<'_, Vec<(&'static str, DetachedLease)>> {
        self.detached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One task of a process.
pub(crate) struct Task {
    pub(crate) client: Client,
    pub(crate) net: Arc<Net>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) profile: Arc<Profile>,
    pub(crate) who: Who,
    /// The owner that the tasks of the process share.
    pub(crate) owner: Owner,
    /// Whether the process has closed the client.
    pub(crate) closed: Arc<AtomicBool>,
    pub(crate) rng: fastrand::Rng,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn us(length: Duration) -> Us {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

impl Task {
    fn now(&self) -> Us {
        self.net.now()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.shared.books()
    }

    fn healed(&self) -> bool {
        self.shared.healed.load(Ordering::Relaxed)
    }

    fn one_in(&mut self, percent: u32) -> bool {
        self.rng.u32(..100) < percent
    }

    /// Works until the run stops or the client is closed.
    pub(crate) async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let pause =
                if self.one_in(self.profile.rates.no_pause) { 0 } else { self.rng.u64(1..60) };
            sleep(ms(pause)).await;
            let outcome = self.round().await;
            if outcome.is_err_and(|error| error.kind() == ErrorKind::Closed) {
                return;
            }
        }
    }

    async fn round(&mut self) -> Result<()> {
        let rates = self.profile.rates;
        if self.one_in(rates.forces) && !self.healed() {
            self.force().await;
        }
        if self.one_in(rates.detaches) {
            self.adopt().await?;
        }
        if rates.floods > 0 && self.who.task == 0 {
            // After the faults, only one process makes floods, so that their effect can be judged.
            let judged = self.books().calm;
            let one_in = if judged { 20 } else { 1_000 };
            if (self.who.host == 0 || !judged) && self.rng.u32(..one_in) == 0 {
                return self.flood().await;
            }
        }
        if self.one_in(rates.unpolled) {
            return self.leave_unpolled().await;
        }
        match self.profile.kinds {
            Kinds::All => {}
            Kinds::Plain => return self.plain().await,
            Kinds::Readers => return self.readers_and_writers().await,
            Kinds::Permits => return self.permits().await,
        }
        match (self.profile.nodes > 1, self.rng.u8(..8)) {
            (_, 0..2) => self.plain().await,
            (_, 2) => self.reentrant().await,
            (_, 3) => self.election().await,
            (_, 4) => self.job().await,
            (_, 5) => self.several().await,
            (false, 6) => self.readers_and_writers().await,
            (false, _) => self.permits().await,
            (true, _) => self.plain().await,
        }
    }

    fn mutex(&mut self, key: &'static str) -> Mutex {
        let rates = self.profile.rates;
        let mutex = self.client.mutex(key).renew(!self.one_in(rates.no_renewal));
        if self.one_in(rates.no_grace) { mutex.stop_grace(Duration::ZERO) } else { mutex }
    }

    /// Waits for a lock; `None` if the wait is dropped or fails.
    async fn wait<T>(
        &mut self,
        key: &'static str,
        limited: bool,
        acquire: impl Future<Output = Result<Option<T>>>,
    ) -> Result<Option<T>> {
        let number = self.books().waits(self.who, key, limited, self.now());
        let dropped = self.one_in(self.profile.rates.dropped) && !self.profile.in_order;
        let answer = if dropped {
            let after = self.rng.u64(..1_500);
            timeout(ms(after), acquire).await.unwrap_or(Ok(None))
        } else {
            acquire.await
        };
        let in_order = self.profile.in_order && matches!(answer, Ok(Some(_)));
        let now = self.now();
        self.books().waited(number, in_order, now);
        match answer {
            Err(error) if error.kind() == ErrorKind::Closed => Err(error),
            Err(error) => {
                let Who { host, .. } = self.who;
                self.books().note(now, &format!("host {host} has no {key}: {:?}", error.kind()));
                Ok(None)
            }
            Ok(answer) => Ok(answer),
        }
    }

    fn granted(
        &self,
        key: &'static str,
        mode: Mode,
        group: u64,
        lease: &HeldLease,
        on: bool,
    ) -> u64 {
        let now = self.now();
        self.books().granted(self.who, key, mode, group, lease, on, now)
    }

    /// How long to wait. A wait whose order is judged is practically unlimited.
    fn limit(&mut self) -> Duration {
        ms(if self.profile.in_order { 3_600_000 } else { self.rng.u64(..10_000) })
    }

    /// A new group.
    fn group(&mut self) -> u64 {
        self.rng.u64(..) | 1 << 63
    }

    fn length(&mut self) -> Duration {
        let ttl = u64::try_from(self.profile.ttl.as_millis()).unwrap_or(u64::MAX);
        if self.healed() {
            return ms(self.rng.u64(..20));
        }
        if self.one_in(self.profile.rates.long_hold) {
            return ms(self.rng.u64(ttl / 2..ttl * 3));
        }
        if self.rng.u8(..5) == 0 { ms(self.rng.u64(..500)) } else { ms(self.rng.u64(..20)) }
    }

    /// Works for this time; only briefly once all faults are over.
    async fn busy(&self, length: Duration) {
        let mut left = length;
        loop {
            let part = left.min(ms(50));
            sleep(part).await;
            left = left.saturating_sub(part);
            if left.is_zero() || self.healed() && length > ms(500) {
                return;
            }
        }
    }

    /// Works while the hold lasts.
    async fn work(&mut self, number: u64, lease: &HeldLease) {
        let length = self.length();
        self.books().listens(number, true);
        let lost = tokio::select! {
            biased;
            () = lease.lost() => true,
            () = self.busy(length) => false,
        };
        self.books().listens(number, false);
        if !lost {
            return;
        }
        let now = self.now();
        self.books().told(number, now);
        if self.one_in(self.profile.rates.stays_when_lost) {
            for _ in 0..20 {
                sleep(self.profile.ttl / 40).await;
            }
        }
    }

    fn ends(&self, number: u64, how: &str) {
        self.books().ends(number, how, self.now());
    }

    /// Ends a hold in one of the possible ways.
    async fn end(&mut self, number: u64, guard: Guard) {
        match self.rng.u8(..8) {
            0 => {
                self.ends(number, "dropped");
                drop(guard);
            }
            1 => {
                self.ends(number, "its release is dropped");
                poll_once(&mut std::pin::pin!(guard.release_outcome())).await;
            }
            2 if self.one_in(self.profile.rates.cooldown * 5) => {
                self.ends(number, "released with a cool-down");
                let cooldown = Cooldown::try_from(ms(50)).unwrap_or(Cooldown::MAX);
                drop(guard.release_with_cooldown_outcome(cooldown).await);
            }
            _ => {
                self.ends(number, "released");
                let answer = guard.release_outcome().await;
                let answer = answer.map_err(|error| error.kind());
                let Who { host, .. } = self.who;
                let now = self.now();
                self.books().note(now, &format!("host {host} was answered: {answer:?}"));
            }
        }
    }

    async fn plain(&mut self) -> Result<()> {
        let key = if self.profile.in_order { PLAIN[0] } else { PLAIN[self.rng.usize(..2)] };
        let mutex = self.mutex(key);
        let limit = ms(self.rng.u64(..20_000));
        let way = if self.profile.in_order { 9 } else { self.rng.u8(..10) };
        let again = mutex.clone();
        let (limited, got) = match way {
            0 => (true, self.wait(key, true, async { again.try_lock().await }).await?),
            1..4 => {
                let wait = async { again.lock_within(limit).await.map(Some) };
                (true, self.wait(key, true, wait).await?)
            }
            _ => (false, self.wait(key, false, async { again.lock().await.map(Some) }).await?),
        };
        _ = limited;
        let Some(mut guard) = got else { return Ok(()) };
        let mut number = {
            let group = self.group();
            self.granted(key, Mode::Alone, group, guard.lease(), false)
        };
        self.work(number, &guard.lease().clone()).await;
        if self.one_in(self.profile.rates.prolongs) {
            match self.prolong(&mutex, key, number, guard).await {
                Some(next) => (number, guard) = next,
                None => return Ok(()),
            }
            self.work(number, &guard.lease().clone()).await;
        }
        if self.one_in(self.profile.rates.detaches) && !self.healed() {
            match guard.detach().await {
                Ok(detached) => {
                    self.ends(number, "detached");
                    self.shared.detached().push((key, detached));
                    return Ok(());
                }
                Err(refused) => guard = refused.into_guard(),
            }
        }
        self.end(number, guard).await;
        Ok(())
    }

    /// Changes a hold's length in one of the three possible ways.
    async fn prolong(
        &mut self,
        mutex: &Mutex,
        key: &'static str,
        number: u64,
        guard: Guard,
    ) -> Option<(u64, Guard)> {
        let fence = guard.fence_even_if_lost();
        let renewed = match self.rng.u8(..4) {
            0 => mutex.relock(guard).await,
            1 => mutex.prolong(guard).await.map(|prolonged| Some(prolonged.into_guard())),
            _ => {
                let most = if self.profile.nodes > 1 { 100 } else { 200 };
                // A much shorter lease would expire before the next request corrects it.
                let most = if self.rng.bool() { 40 } else { most };
                let percent = self.rng.u32(10..=most);
                let length = self.profile.ttl * percent / 100;
                let answer = guard.renew_to(length).await.map_err(|error| error.kind());
                let now = self.now();
                let what = format!("host {} renews {key} to {length:?}: {answer:?}", self.who.host);
                self.books().note(now, &what);
                return Some((number, guard));
            }
        };
        match renewed {
            Ok(Some(guard)) if guard.fence_even_if_lost() == fence => Some((number, guard)),
            Ok(Some(guard)) => {
                self.ends(number, "locked anew");
                let group = self.group();
                let number = self.granted(key, Mode::Alone, group, guard.lease(), false);
                Some((number, guard))
            }
            Ok(None) => {
                self.ends(number, "could not be locked anew");
                None
            }
            Err(refused) => Some((number, refused.into_guard())),
        }
    }

    /// Adopts a lease that has no guard, sometimes one that was adopted before.
    async fn adopt(&mut self) -> Result<()> {
        let found = {
            let mut detached = self.shared.detached();
            if self.rng.bool() { detached.last().cloned() } else { detached.pop() }
        };
        let Some((key, lease)) = found else { return Ok(()) };
        let Ok(guard) = self.client.adopt(&lease).await else { return Ok(()) };
        let text = lease.to_secret_text();
        let token = text.split(' ').nth(1).and_then(|hex| Token::from_hex(hex).ok());
        if token.is_some_and(|token| self.net.is_double(token.mark())) {
            // A doubled request had taken the lock again: the lease has another fence there.
            drop(guard.release().await);
            return Ok(());
        }
        let group = self.group();
        let number = self.granted(key, Mode::Alone, group, guard.lease(), true);
        self.work(number, &guard.lease().clone()).await;
        self.end(number, guard).await;
        Ok(())
    }

    async fn force(&mut self) {
        let key = PLAIN[1];
        let Some(fence) = self.books().any_fence_of(key).and_then(|f| Fence::from_value(f).ok())
        else {
            return;
        };
        drop(self.client.force_release(key, fence).await);
    }

    /// Begins to wait for a lock and then stops polling.
    async fn leave_unpolled(&mut self) -> Result<()> {
        let mutex = self.mutex(PLAIN[1]);
        let mut waiting = std::pin::pin!(async move { mutex.lock().await });
        let got = poll_once(&mut waiting).await;
        // With a long lease each offer takes long. The first task of each process keeps polling, so
        // that there are grants.
        let may_be_long = self.profile.ttl <= ms(3_000) && self.who.task > 0;
        let is_long = may_be_long && self.rng.u8(..4) == 0;
        let most = if is_long { 60_000 } else { 6_000 };
        let mut away = self.rng.u64(..most);
        let Who { host, task, .. } = self.who;
        let now = self.now();
        self.books().note(
            now,
            &format!(
                "host {host} task {task} asks for {} and does not go on for {away} ms",
                PLAIN[1]
            ),
        );
        let (stop, closed) = (&self.shared.stop, &self.closed);
        while away > 0 && !stop.load(Ordering::Relaxed) && !closed.load(Ordering::Relaxed) {
            let part = away.min(500);
            sleep(ms(part)).await;
            away -= part;
        }
        if let Some(Ok(guard)) = got {
            drop(guard);
        }
        Ok(())
    }

    /// Begins [`FLOOD`] waits, drops them all, and then waits.
    async fn flood(&mut self) -> Result<()> {
        let key = "flood";
        let mutex = self.client.mutex(key);
        for _ in 0..FLOOD {
            poll_once(&mut std::pin::pin!(mutex.lock())).await;
        }
        let (began, was_calm) = (self.now(), self.books().calm);
        let wait = async { mutex.lock_within(ms(20_000)).await.map(Some) };
        let got = self.wait(key, true, wait).await?;
        let now = self.now();
        let took = Duration::from_micros(now.saturating_sub(began));
        if was_calm && self.who.host == 0 {
            self.books().floods += 1;
            if took > FLOOD_MAX {
                let why = format!("{FLOOD} dropped futures cost {took:?}");
                self.books().accuse(now, "FLOOD", key, &why);
            }
        }
        let Some(guard) = got else { return Ok(()) };
        let group = self.group();
        let number = self.granted(key, Mode::Alone, group, guard.lease(), false);
        self.end(number, guard).await;
        Ok(())
    }

    async fn reentrant(&mut self) -> Result<()> {
        let key = "re";
        let shares = self.rng.bool();
        let (owner, group) = if shares {
            // Shared by all tasks of the process, and so is its group.
            (self.owner.clone(), (self.who.host as u64) << 32 | self.who.life)
        } else {
            (Owner::new(), self.group())
        };
        let lock = self.client.reentrant(key, &owner);
        let limit = ms(self.rng.u64(..10_000));
        let wait = async { lock.lock_within(limit).await.map(Some) };
        let Some(outer) = self.wait(key, true, wait).await? else { return Ok(()) };
        let first = self.granted(key, Mode::Alone, group, outer.lease(), false);
        if self.rng.bool() {
            let wait = async { lock.lock_within(limit).await.map(Some) };
            if let Some(inner) = self.wait(key, true, wait).await? {
                let second = self.granted(key, Mode::Alone, group, inner.lease(), true);
                self.work(second, &inner.lease().clone()).await;
                self.end_one(second, inner).await;
            }
        }
        self.work(first, &outer.lease().clone()).await;
        self.end_one(first, outer).await;
        Ok(())
    }

    async fn end_one(&mut self, number: u64, guard: ReentrantGuard) {
        if self.rng.u8(..4) == 0 {
            self.ends(number, "dropped");
            drop(guard);
        } else {
            self.ends(number, "released");
            drop(guard.release_outcome().await);
        }
    }

    async fn election(&mut self) -> Result<()> {
        let key = "elect";
        let election = self.client.election(key);
        let limit = ms(self.rng.u64(..10_000));
        let wait = async { election.campaign_within(limit).await.map(Some) };
        let Some(leadership) = self.wait(key, true, wait).await? else { return Ok(()) };
        let group = self.group();
        let number = self.granted(key, Mode::Alone, group, leadership.lease(), false);
        self.work(number, &leadership.lease().clone()).await;
        self.end(number, leadership.into_guard()).await;
        Ok(())
    }

    async fn job(&mut self) -> Result<()> {
        let key = JOB;
        let asked = self.now();
        let job = self.client.once_per(key, PERIOD);
        let Some(guard) = self.wait(key, true, async { job.try_start().await }).await? else {
            return Ok(());
        };
        let group = self.group();
        let number = self.granted(key, Mode::Alone, group, guard.lease(), false);
        let now = self.now();
        self.books().started(key, asked, us(PERIOD), (now, &self.net));
        self.work(number, &guard.lease().clone()).await;
        if self.rng.u8(..6) == 0 {
            self.ends(number, "released and opened again");
            self.books().reopened(key);
            drop(guard.release_and_reopen_outcome().await);
        } else {
            self.end(number, guard.into_guard()).await;
        }
        Ok(())
    }

    async fn several(&mut self) -> Result<()> {
        let keys = SEVERAL;
        let all = self.client.multi(keys);
        let limit = ms(self.rng.u64(..10_000));
        let wait = async { all.lock_within(limit).await.map(Some) };
        let Some(guard) = self.wait(keys[0], true, wait).await? else { return Ok(()) };
        let mut numbers = Vec::new();
        for key in keys {
            let lease = guard.lease().leases().iter().find(|lease| lease.key().as_str() == key);
            let Some(lease) = lease.cloned() else { continue };
            let group = self.group();
            numbers.push((self.granted(key, Mode::Alone, group, &lease, false), lease));
        }
        if let Some((number, lease)) = numbers.first() {
            self.work(*number, &lease.clone()).await;
        }
        for (number, _) in &numbers {
            self.ends(*number, "released with the other");
        }
        if self.rng.u8(..4) == 0 {
            drop(guard);
        } else {
            drop(guard.release_outcomes().await);
        }
        Ok(())
    }

    async fn readers_and_writers(&mut self) -> Result<()> {
        let key = "rw";
        let lock = self.client.rwlock(key);
        let limit = self.limit();
        let group = self.group();
        if self.rng.u8(..3) > 0 {
            let wait = async { lock.read_within(limit).await.map(Some) };
            let Some(guard) = self.wait(key, true, wait).await? else { return Ok(()) };
            let number = self.granted(key, Mode::Shared, group, guard.lease(), false);
            self.work(number, &guard.lease().clone()).await;
            if self.rng.u8(..3) > 0 {
                self.end(number, guard.into_guard()).await;
                return Ok(());
            }
            match guard.upgrade().await {
                Ok(guard) => {
                    self.ends(number, "upgraded");
                    let number = self.granted(key, Mode::Alone, group, guard.lease(), true);
                    self.work(number, &guard.lease().clone()).await;
                    self.end(number, guard.into_guard()).await;
                }
                Err(refused) => self.end(number, refused.into_guard().into_guard()).await,
            }
            return Ok(());
        }
        let wait = async { lock.write_within(limit).await.map(Some) };
        let Some(guard) = self.wait(key, true, wait).await? else { return Ok(()) };
        let number = self.granted(key, Mode::Alone, group, guard.lease(), false);
        self.work(number, &guard.lease().clone()).await;
        if self.rng.bool() {
            self.end(number, guard.into_guard()).await;
            return Ok(());
        }
        match guard.downgrade().await {
            Ok(guard) => {
                self.ends(number, "downgraded");
                let number = self.granted(key, Mode::Shared, group, guard.lease(), true);
                self.work(number, &guard.lease().clone()).await;
                self.end(number, guard.into_guard()).await;
            }
            Err(refused) => {
                // The store may have let readers in, so the hold may be shared now.
                let guard = refused.into_guard();
                self.ends(number, "perhaps downgraded");
                self.end(number, guard.into_guard()).await;
            }
        }
        Ok(())
    }

    async fn permits(&mut self) -> Result<()> {
        let key = "sem";
        let semaphore = self.client.semaphore(key, PERMITS);
        let limit = self.limit();
        let count = self.rng.u32(1..=2);
        let wait = async { semaphore.acquire_many_within(count, limit).await.map(Some) };
        let Some(guard) = self.wait(key, true, wait).await? else { return Ok(()) };
        let group = self.group();
        let mode = |count| Mode::Permits { count, limit: PERMITS };
        let number = self.granted(key, mode(count), group, guard.lease(), false);
        self.work(number, &guard.lease().clone()).await;
        if count == 1 || self.rng.bool() {
            self.end(number, guard.into_guard()).await;
            return Ok(());
        }
        // From here on it counts with the fewer permits.
        self.ends(number, "gives a permit back");
        match guard.release_permits(1).await {
            Ok(guard) => {
                let number = self.granted(key, mode(1), group, guard.lease(), true);
                self.work(number, &guard.lease().clone()).await;
                self.end(number, guard.into_guard()).await;
            }
            Err(refused) => drop(refused.into_guard()),
        }
        Ok(())
    }
}

/// Polls a future once, like a caller that then does other work.
async fn poll_once<F: Future>(future: &mut Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
