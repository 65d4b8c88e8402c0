//! The renewer: one task per client keeps all of its leases alive, each by its own due time. It
//! runs in the background of the process, so no runtime of the application's can hold it up.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Clock, Fence, Key, LeaseStatus, Moment, Renew, RenewRequest, Store, Ttl};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::LOCK;
use crate::events;
use crate::lease::handle::{Lasting, LeaseHandle, Phase};
use crate::rt;

/// All leases of a client by the time at which something is to be done about them.
#[derive(Debug)]
pub(crate) struct RenewalSchedule {
    store: Arc<dyn Store>,
    /// Whether a renewal was ever answered. Until then there may be no connection for it yet.
    answered: AtomicBool,
    clock: Arc<dyn Clock>,
    due: Mutex<Due>,
    sooner: Notify,
}

#[derive(Debug, Default)]
struct Due {
    /// By nanoseconds. Leases of about the same age share a moment, and each knows its place in it, so that a
    /// renewal costs no search among all of them.
    moments: BTreeMap<u64, Vec<Arc<LeaseHandle>>>,
    /// How many leases there are in all moments.
    held: usize,
    /// The moment that was left by its last lease, and is kept for the next one: where a lock is taken and released
    /// time and again, that falls due in the same.
    empty: Option<u64>,
    /// When the renewer means to look next, in nanoseconds; `None` while it has nothing to do.
    planned: Option<u64>,
}

impl RenewalSchedule {
    /// Renews through `separate` where there is such a handle of the store.
    pub(crate) fn new(
        store: &Arc<dyn Store>,
        separate: Option<Arc<dyn Store>>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            answered: AtomicBool::new(separate.is_none()),
            store: separate.unwrap_or_else(|| Arc::clone(store)),
            clock,
            due: Mutex::default(),
            sooner: Notify::new(),
        })
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many leases are cared for.
    fn held(&self) -> usize {
        self.due().held
    }

    /// Takes care of a new lease that was asked for at `sent_at`.
    pub(crate) fn add(&self, handle: &Arc<LeaseHandle>, sent_at: Moment, now: Moment) {
        let next = if handle.wants_renewal(now) {
            // The first renewal comes early, to leave time for making its connection.
            let parts = if self.answered.load(Ordering::Relaxed) { 3 } else { 6 };
            renewal_due(sent_at, handle.length(), parts, self.held())
        } else {
            handle.lost_at()
        };
        self.put(handle, next.min(handle.lost_at()));
    }

    /// Takes care of a lease as it is, after a time without care.
    pub(crate) fn resume(&self, handle: &Arc<LeaseHandle>) {
        self.add(handle, handle.counted_from(), self.clock.now());
    }

    fn put(&self, handle: &Arc<LeaseHandle>, at: Moment) {
        let mut due = self.due();
        let lease = due.remove(handle).unwrap_or_else(|| Arc::clone(handle));
        if handle.phase() == Phase::Held {
            self.put_at(due, lease, at);
        }
    }

    /// Looks after a lease at another time, unless it is cared for no more.
    fn put_off(&self, handle: &LeaseHandle, at: Moment) {
        let mut due = self.due();
        if let Some(lease) = due.remove(handle) {
            self.put_at(due, lease, at);
        }
    }

    fn put_at(&self, mut due: MutexGuard<'_, Due>, lease: Arc<LeaseHandle>, at: Moment) {
        let at = at.as_nanos().max(1);
        due.insert(lease, at);
        let sooner = due.planned.is_none_or(|planned| at < planned);
        if sooner {
            due.planned = Some(at);
            drop(due);
            self.sooner.notify_one();
        }
    }

    /// Looks after a lease at once.
    pub(crate) fn look_now(&self, handle: &Arc<LeaseHandle>) {
        self.put(handle, self.clock.now());
    }

    /// Puts a lease's next hold into the place of the one before, and looks at `until` whether it
    /// was taken.
    pub(crate) fn hand_on(&self, before: &LeaseHandle, next: &Arc<LeaseHandle>, until: Moment) {
        let resume = match before.resume_ns.load(Ordering::Relaxed) {
            0 => before.due_ns.load(Ordering::Relaxed).max(1),
            resume => resume,
        };
        next.resume_ns.store(resume, Ordering::Relaxed);
        self.remove(before);
        self.put(next, until.min(Moment::from_nanos(resume)));
    }

    /// Whether a lease that was handed on needs no renewal yet: it may still be taken, or was taken
    /// early enough. One that was not taken goes to the next contender, or back to the store.
    fn is_on_its_way(&self, handle: &Arc<LeaseHandle>, now: Moment) -> bool {
        match handle.is_offered_until() {
            Some(until) if now < until => self.put_off(handle, until.min(handle.lost_at())),
            Some(_) => {
                self.remove(handle);
                handle.take_back();
            }
            None => {
                let resume = handle.resume_ns.load(Ordering::Relaxed);
                if resume == 0 {
                    return false;
                }
                handle.resume_ns.store(0, Ordering::Relaxed);
                let resume = Moment::from_nanos(resume);
                if now >= resume {
                    return false;
                }
                self.put_off(handle, resume.min(handle.lost_at()));
            }
        }
        true
    }

    /// Takes in that a lease is not its holder's any more, by the word of the store.
    pub(crate) fn taken_away(&self, key: &Key, fence: Fence) {
        let holds = self.holds().into_iter();
        for handle in holds.filter(|handle| handle.key == *key && handle.fences.first() == fence) {
            handle.refuted();
            self.remove(&handle);
        }
    }

    /// Forgets a lease.
    pub(crate) fn remove(&self, handle: &LeaseHandle) {
        let removed = self.due().remove(handle);
        drop(removed);
    }

    /// All leases that are cared for.
    pub(crate) fn holds(&self) -> Vec<Arc<LeaseHandle>> {
        self.due().until(u64::MAX)
    }

    /// Runs until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let next = self.turn();
            tokio::select! {
                () = rt::sleep_until_some(&*self.clock, next) => {}
                () = self.sooner.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Does what is due and says when to look again.
    fn turn(self: &Arc<Self>) -> Option<Moment> {
        let now = self.clock.now();
        let mut batches: BTreeMap<u32, Batch> = BTreeMap::new();
        let due = self.due().until(now.as_nanos());
        for handle in due {
            if handle.status(now) == LeaseStatus::Lost {
                self.remove(&handle);
                handle.take_back();
                continue;
            }
            if self.is_on_its_way(&handle, now) {
                continue;
            }
            // It stays in the schedule, where others look for what is held.
            if handle.wants_renewal(now)
                && let Some((request, lasting)) = handle.start_renewal(now)
            {
                self.put_off(&handle, lasting.lost_at);
                // Those that can wait about equally long for the answer go together, so that one
                // whose time is nearly over leaves the others theirs.
                let patience = patience(lasting.length);
                let within = lasting.lost_at.saturating_since(now).min(patience);
                let class = within.as_millis().max(1).ilog2();
                let batch = batches.entry(class).or_insert_with(Batch::new);
                batch.push(handle, request, lasting.lost_at, patience);
            } else {
                self.put_off(&handle, handle.lost_at());
            }
        }
        for batch in batches.into_values() {
            tokio::spawn(Arc::clone(self).renew(batch));
        }
        let mut due = self.due();
        due.forget_empty();
        due.planned = due.moments.first_key_value().map(|(at, _)| *at);
        due.planned.map(Moment::from_nanos)
    }

    async fn renew(self: Arc<Self>, batch: Batch) {
        let sent_at = self.clock.now();
        let Batch { holds, requests, lost_at, patience } = &batch;
        let within = lost_at.saturating_since(sent_at).min(*patience);
        let answers = self.store.renew(requests, within).await;
        let (now, held) = (self.clock.now(), self.held());
        let mut answers = answers.into_iter();
        // Most are of one length.
        let mut last: Option<(Ttl, Moment)> = None;
        let mut due = |length: Ttl| match last {
            Some((same, due)) if same == length => due,
            _ => last.insert((length, renewal_due(sent_at, length, 3, held))).1,
        };
        for (handle, request) in holds.iter().zip(requests) {
            let next = match answers.next() {
                Some(Ok(answer @ (Renew::Renewed | Renew::Asked))) => {
                    if answer == Renew::Asked {
                        handle.ask();
                    }
                    self.answered.store(true, Ordering::Relaxed);
                    tracing::trace!(target: LOCK, key = %handle.key, ttl = %request.ttl, "renewed");
                    let lasting = handle.renewed(sent_at, request.ttl, now);
                    lasting.map(|Lasting { length, lost_at }| due(length).min(lost_at))
                }
                Some(Ok(_not_ours)) => {
                    handle.refuted();
                    None
                }
                Some(Err(error)) => {
                    tracing::warn!(target: "leasehold", key = %handle.key, %error, "renewal failed");
                    events::count(events::RENEWALS_FAILED);
                    handle.renewal_failed();
                    Some(retry_due(now, handle.length()).min(handle.lost_at()))
                }
                None => {
                    handle.renewal_failed();
                    Some(retry_due(now, handle.length()).min(handle.lost_at()))
                }
            };
            if let Some(next) = next {
                self.put_off(handle, next);
            } else {
                self.remove(handle);
            }
        }
    }
}

impl Due {
    /// Puts in a lease that is not there.
    fn insert(&mut self, lease: Arc<LeaseHandle>, at: u64) {
        // Where leases were taken one after the other, most moments have one.
        let moment = self.moments.entry(at).or_insert_with(|| Vec::with_capacity(1));
        lease.due_ns.store(at, Ordering::Relaxed);
        lease.place.store(u32::try_from(moment.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        moment.push(lease);
        self.held = self.held.saturating_add(1);
    }

    /// Takes out a lease, if it is there.
    fn remove(&mut self, handle: &LeaseHandle) -> Option<Arc<LeaseHandle>> {
        let at = handle.due_ns.load(Ordering::Relaxed);
        let number = handle.place.load(Ordering::Relaxed);
        let place = usize::try_from(number).ok()?;
        let moment = self.moments.get_mut(&at)?;
        if !moment.get(place).is_some_and(|there| ptr::eq(&**there, handle)) {
            return None;
        }
        let lease = moment.swap_remove(place);
        if let Some(moved) = moment.get(place) {
            moved.place.store(number, Ordering::Relaxed);
        }
        if moment.is_empty() && self.empty != Some(at) {
            self.forget_empty();
            self.empty = Some(at);
        }
        self.held = self.held.saturating_sub(1);
        Some(lease)
    }

    fn forget_empty(&mut self) {
        if let Some(at) = self.empty.take()
            && self.moments.get(&at).is_some_and(Vec::is_empty)
        {
            self.moments.remove(&at);
        }
    }

    /// All leases up to a moment, which stay.
    fn until(&self, at: u64) -> Vec<Arc<LeaseHandle>> {
        self.moments.range(..=at).flat_map(|(_, leases)| leases).map(Arc::clone).collect()
    }
}

/// Renewals that are sent together. Dropping it, at whatever point, tells their holds that the
/// request is no longer on the way.
#[derive(Debug)]
struct Batch {
    holds: Vec<Arc<LeaseHandle>>,
    requests: Vec<RenewRequest>,
    /// When the first of them counts as lost.
    lost_at: Moment,
    /// How long to wait for the answer, with time left.
    patience: Duration,
}

impl Batch {
    const fn new() -> Self {
        let lost_at = Moment::from_nanos(u64::MAX);
        Self { holds: Vec::new(), requests: Vec::new(), lost_at, patience: Duration::MAX }
    }

    fn push(
        &mut self,
        handle: Arc<LeaseHandle>,
        request: RenewRequest,
        lost_at: Moment,
        patience: Duration,
    ) {
        self.holds.push(handle);
        self.requests.push(request);
        self.lost_at = self.lost_at.min(lost_at);
        self.patience = self.patience.min(patience);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for handle in &self.holds {
            handle.request_done();
        }
    }
}

/// When this part of the lease, usually a third, has passed, moved onto a grid so that leases of about the same age
/// are renewed by one call.
fn renewal_due(sent_at: Moment, ttl: Ttl, parts: u32, held: usize) -> Moment {
    let due = sent_at.saturating_add(ttl.part(parts));
    let grid_ns = Moment::from_origin(grid(ttl, held)).as_nanos();
    let over_ns = due.as_nanos().checked_rem(grid_ns).unwrap_or_default();
    due.saturating_sub(Duration::from_nanos(over_ns))
}

/// Leases that fall due in one moment, on average, where so many are held that more could.
const TOGETHER: u32 = 32;

/// A 64th of the ttl; with many leases less, so that no store is asked to renew thousands in one moment, in which it
/// would serve nobody else. In steps of two: the moments of a coarse grid are in each finer one, so that leases fall
/// due together though the number of them changes.
fn grid(ttl: Ttl, held: usize) -> Duration {
    let held = u32::try_from(held).unwrap_or(u32::MAX).max(1);
    let even = ttl.part(3).saturating_mul(TOGETHER).checked_div(held).unwrap_or_default();
    let grid = (ttl.duration() / 64).min(even).max(Duration::from_millis(1));
    let grid_ns = u64::try_from(grid.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(1 << grid_ns.ilog2())
}

/// A twelfth of the ttl after a failure, give or take a quarter of that.
fn retry_due(now: Moment, ttl: Ttl) -> Moment {
    let pause = ttl.duration() / 12;
    now.saturating_add(pause.mul_f64(0.75 + 0.5 * fastrand::f64()))
}

/// How long to wait for the answer to a renewal, with time left: a sixth of the ttl, so that three tries fit.
fn patience(ttl: Ttl) -> Duration {
    (ttl.duration() / 6).clamp(Duration::from_millis(5), Duration::from_secs(5))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use leasehold_embedded::MemoryStore;

    use super::*;
    use crate::Client;

    /// How many of so many leases, taken over a twelfth of their ttl, fall due in one moment at most.
    fn most_at_once(held: u32) -> usize {
        let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
        let mut moments: BTreeMap<Moment, usize> = BTreeMap::new();
        for number in 0..held {
            let sent_at = ttl.duration() / 12 * number / held;
            let due = renewal_due(Moment::from_origin(sent_at), ttl, 3, held as usize);
            let early = (sent_at + ttl.part(3)).checked_sub(due.since_origin()).unwrap();
            assert!(early <= ttl.duration() / 64);
            *moments.entry(due).or_default() += 1;
        }
        moments.into_values().max().unwrap_or_default()
    }

    #[test]
    fn few_leases_are_renewed_together_and_many_in_small_groups() {
        assert_eq!(most_at_once(1), 1);
        assert!((10..=100).contains(&most_at_once(100)));
        for held in [1000, 10_000, 100_000] {
            let most = most_at_once(held);
            assert!((32..=200).contains(&most), "{held}: {most}");
        }
    }

    /// Leases that are put in, moved and taken out at random, beside a list of what is where.
    #[tokio::test]
    async fn every_lease_is_at_the_moment_to_which_it_was_put_last() {
        let client = Client::new(Arc::new(MemoryStore::new())).unwrap();
        let (mut guards, mut leases) = (Vec::new(), Vec::new());
        for number in 0..40 {
            let guard = client.mutex(number.to_string()).try_lock().await.unwrap().unwrap();
            client.inner().schedule.remove(guard.handle());
            leases.push(Arc::clone(guard.handle()));
            guards.push(guard);
        }
        let mut random = fastrand::Rng::with_seed(11);
        let mut due = Due::default();
        let mut expected: BTreeMap<usize, u64> = BTreeMap::new();
        for _ in 0..10_000 {
            let number = random.usize(..leases.len());
            let lease = leases.get(number).unwrap();
            assert_eq!(due.remove(lease).is_some(), expected.remove(&number).is_some());
            if random.bool() {
                let at = random.u64(1..10);
                due.insert(Arc::clone(lease), at);
                expected.insert(number, at);
            }
            let until = random.u64(..12);
            let place = |lease| leases.iter().position(|other| Arc::ptr_eq(other, lease)).unwrap();
            let mut found: Vec<usize> = due.until(until).iter().map(place).collect();
            found.sort_unstable();
            let there = expected.iter().filter(|(_, at)| **at <= until);
            assert_eq!(found, there.map(|(number, _)| *number).collect::<Vec<_>>());
            assert_eq!(due.held, expected.len());
            assert!(due.moments.values().filter(|moment| moment.is_empty()).count() <= 1);
        }
        due.forget_empty();
        assert!(due.moments.values().all(|moment| !moment.is_empty()));
    }
}
