//! The renewer: one task per client keeps all of its leases alive, each by its own due time.
//!
//! It runs in the background of the process, so no runtime of the application's can delay it.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{
    Clock, Effect, Error, ErrorKind, Fence, Key, LeaseStatus, Moment, Renew, RenewRequest, Store,
    Ttl,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::LOCK;
use crate::events;
use crate::lease::handle::{Lasting, LeaseHandle};
use crate::rt;

/// All leases of a client by the time at which each needs a look.
#[derive(Debug)]
pub(crate) struct RenewalSchedule {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    due: Mutex<Due>,
    sooner: Notify,
}

#[derive(Debug, Default)]
struct Due {
    /// By nanoseconds. Leases of about the same age share a moment, and each knows its index in it,
    /// so that a renewal needs no search among all of them.
    moments: BTreeMap<u64, Vec<Arc<LeaseHandle>>>,
    /// How many leases there are in all moments.
    held: usize,
    /// A moment whose last lease has left, kept for the next one. If a lock is taken and released
    /// again and again, the next lease falls due in the same moment.
    empty: Option<u64>,
    /// When the renewer will look next, in nanoseconds; `None` while it has no lease.
    planned: Option<u64>,
}

impl RenewalSchedule {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { store, clock, due: Mutex::default(), sooner: Notify::new() })
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many leases are in the schedule.
    fn held(&self) -> usize {
        self.due().held
    }

    /// Adds a new lease, requested at `sent_at`, that is not shared yet.
    pub(crate) fn begin(
        &self,
        mut handle: LeaseHandle,
        sent_at: Moment,
        now: Moment,
    ) -> Arc<LeaseHandle> {
        let lasting = handle.lasts_as_granted();
        let at = first_look(handle.wants_renewal(now), sent_at);
        let handle = Arc::new(handle);
        let due = self.due();
        let at = at(lasting, due.held);
        self.put_at(due, Arc::clone(&handle), at);
        handle
    }

    /// Adds a lease that was requested at `sent_at`.
    pub(crate) fn add(&self, handle: &Arc<LeaseHandle>, sent_at: Moment, now: Moment) {
        self.put(handle, first_look(handle.wants_renewal(now), sent_at));
    }

    /// Adds a lease again that was out of the schedule for a time.
    pub(crate) fn resume(&self, handle: &Arc<LeaseHandle>) {
        self.add(handle, handle.counted_from(), self.clock.now());
    }

    /// Moves or adds a lease; `at` has what is left of it, and the number of leases in the
    /// schedule.
    fn put(&self, handle: &Arc<LeaseHandle>, at: impl FnOnce(Lasting, usize) -> Moment) {
        let mut due = self.due();
        let held = due.held;
        let lease = due.remove(handle).unwrap_or_else(|| Arc::clone(handle));
        if let Some(lasting) = handle.lasts() {
            self.put_at(due, lease, at(lasting, held));
        }
    }

    /// Moves leases to other times, except those that were removed or moved by others.
    fn put_off(&self, moves: &[Move<'_>]) {
        let mut due = self.due();
        due.put_off(moves);
        if let Some(at) = moves.iter().map(|one| one.to).min() {
            self.plan(due, at);
        }
    }

    fn put_at(&self, mut due: MutexGuard<'_, Due>, lease: Arc<LeaseHandle>, at: Moment) {
        let at = due_ns(at);
        due.insert(lease, at);
        self.plan(due, at);
    }

    /// Has the renewer look by then.
    fn plan(&self, mut due: MutexGuard<'_, Due>, at: u64) {
        let sooner = due.planned.is_none_or(|planned| at < planned);
        if sooner {
            due.planned = Some(at);
            drop(due);
            self.sooner.notify_one();
        }
    }

    /// Has the renewer look at a lease at once.
    pub(crate) fn look_now(&self, handle: &Arc<LeaseHandle>) {
        let now = self.clock.now();
        self.put(handle, |_, _| now);
    }

    /// Replaces a lease's hold by the next one, and looks at `until` whether it was taken.
    pub(crate) fn hand_on(&self, before: &LeaseHandle, next: &Arc<LeaseHandle>, until: Moment) {
        let resume = match before.resume_ns.load(Ordering::Relaxed) {
            0 => before.due_ns.load(Ordering::Relaxed).max(1),
            resume => resume,
        };
        next.resume_ns.store(resume, Ordering::Relaxed);
        self.remove(before);
        self.put(next, |_, _| until.min(Moment::from_nanos(resume)));
    }

    /// Whether a lease that was handed off needs no renewal yet: it may still be taken, or was
    /// taken early enough. An untaken one goes to the next contender, or back to the store.
    fn is_on_its_way(&self, found: &Found, now: Moment) -> bool {
        let handle = &found.lease;
        match handle.is_offered_until() {
            #[cfg(leasehold_planted)]
            Some(_) if leasehold_core::planted::is(leasehold_core::planted::Fault::OfferStays) => {
                return false;
            }
            Some(until) if now < until => {
                self.put_off(&[found.to(until.min(handle.lost_at()))]);
            }
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
                self.put_off(&[found.to(resume.min(handle.lost_at()))]);
            }
        }
        true
    }

    /// Records the store's answer that a lease is not held any more.
    pub(crate) fn taken_away(&self, key: &Key, fence: Fence) {
        let holds = self.holds().into_iter();
        for handle in holds.filter(|handle| handle.key == *key && handle.fences.first() == fence) {
            handle.refuted(self.clock.now());
            self.remove(&handle);
        }
    }

    /// Forgets a lease.
    pub(crate) fn remove(&self, handle: &LeaseHandle) {
        let removed = self.due().remove(handle);
        drop(removed);
    }

    /// All leases in the schedule.
    pub(crate) fn holds(&self) -> Vec<Arc<LeaseHandle>> {
        self.due().until(u64::MAX).into_iter().map(|found| found.lease).collect()
    }

    /// Runs until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let next = self.turn();
            tokio::select! {
                biased;
                () = rt::sleep_until_some(&*self.clock, next) => {}
                () = self.sooner.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Does what is due and returns when to look again.
    fn turn(self: &Arc<Self>) -> Option<Moment> {
        let (batches, next) = self.begin_renewals(self.clock.now());
        for batch in batches {
            tokio::spawn(Arc::clone(self).renew(batch));
        }
        next
    }

    /// The leases to renew now, and when to look again. Each lease stays in the schedule, where
    /// others look for what is held. It is there by its end, in case its renewal is not answered.
    fn begin_renewals(&self, now: Moment) -> (Vec<Batch>, Option<Moment>) {
        let all = self.due().until(now.as_nanos());
        let mut moves = Vec::with_capacity(all.len());
        let mut batches: Vec<Batch> = Vec::new();
        for found in &all {
            let Some((request, lasting)) = self.renewal_of(found, now) else { continue };
            moves.push(found.to(lasting.lost_at));
            // Leases that can wait about equally long for the answer share a batch, so that one
            // that is nearly over does not shorten the time of the others.
            let patience = patience(lasting.length);
            let within = lasting.lost_at.saturating_since(now).min(patience);
            let class = within.as_millis().max(1).ilog2();
            let place = batches.binary_search_by_key(&class, |batch| batch.class);
            let place = place.unwrap_or_else(|place| {
                batches.insert(place, Batch::new(class, all.len()));
                place
            });
            if let Some(batch) = batches.get_mut(place) {
                batch.push(Arc::clone(&found.lease), request, lasting.lost_at, patience);
            }
        }
        let mut due = self.due();
        due.put_off(&moves);
        due.forget_empty();
        (batches, due.plan_anew(now.as_nanos()).map(Moment::from_nanos))
    }

    /// The renewal to send for a lease that is due, and what is left of it without that. `None`
    /// when the lease needs something else, which is done here.
    fn renewal_of(&self, found: &Found, now: Moment) -> Option<(RenewRequest, Lasting)> {
        let handle = &found.lease;
        let renewal = || handle.wants_renewal(now).then(|| handle.start_renewal(now)).flatten();
        if !handle.was_handed_on()
            && let Some(renewal) = renewal()
        {
            return Some(renewal);
        }
        if handle.status(now) == LeaseStatus::Lost {
            self.remove(handle);
            handle.take_back();
            return None;
        }
        if self.is_on_its_way(found, now) {
            return None;
        }
        let renewal = renewal();
        if renewal.is_none() {
            self.put_off(&[found.to(handle.lost_at())]);
        }
        renewal
    }

    async fn renew(self: Arc<Self>, batch: Batch) {
        let sent_at = self.clock.now();
        let Batch { holds, requests, lost_at, patience, .. } = &batch;
        let within = lost_at.saturating_since(sent_at).min(*patience);
        let answers = self.store.renew(requests, within).await;
        let (now, held) = (self.clock.now(), self.held());
        let mut answers = answers.into_iter();
        // Most have one length.
        let mut last: Option<(Ttl, Moment)> = None;
        let mut due = |length: Ttl| match last {
            Some((same, due)) if same == length => due,
            _ => last.insert((length, renewal_due(sent_at, length, held))).1,
        };
        let (mut moves, mut is_store_gone) = (Vec::with_capacity(holds.len()), false);
        for (handle, request) in holds.iter().zip(requests) {
            let next = match answers.next() {
                Some(Ok(answer @ (Renew::Renewed | Renew::Asked))) => {
                    if answer == Renew::Asked {
                        handle.ask();
                    }
                    tracing::trace!(target: LOCK, key = %handle.key, ttl = %request.ttl, "renewed");
                    let lasting = handle.renewed(sent_at, request.ttl, now);
                    lasting.map(|Lasting { length, lost_at }| due(length).min(lost_at))
                }
                Some(Ok(_not_ours)) => {
                    handle.refuted(now);
                    None
                }
                failed => {
                    let error = failed.and_then(Result::err).unwrap_or_else(no_answer);
                    tracing::warn!(target: "leasehold", key = %handle.key, %error, "renewal failed");
                    events::count(events::RENEWALS_FAILED);
                    let may_hold = handle.renewal_failed(&error, now);
                    is_store_gone |= !may_hold;
                    may_hold.then(|| retry_due(now, handle.length()).min(handle.lost_at()))
                }
            };
            if let Some(next) = next {
                moves.push(Move { lease: handle, from: None, to: due_ns(next) });
            } else {
                self.remove(handle);
            }
        }
        // Before the requests count as done: a lease that is handed off then keeps its moment.
        self.put_off(&moves);
        if is_store_gone {
            // The others may have the same store, and have to learn of it at once.
            self.holds().iter().for_each(|handle| self.look_now(handle));
        }
    }
}

/// The error of a renewal for which the store's answer has no entry.
pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Protocol, "no answer to a renewal").with_effect(Effect::Unknown)
}

/// A lease that is due.
#[derive(Debug)]
struct Found {
    lease: Arc<LeaseHandle>,
    /// Its moment, in nanoseconds.
    at: u64,
}

impl Found {
    /// To another moment, unless others moved it since it was found: they know more of it.
    fn to(&self, at: Moment) -> Move<'_> {
        Move { lease: &self.lease, from: Some(self.at), to: due_ns(at) }
    }
}

/// A lease to move to another time.
#[derive(Clone, Copy, Debug)]
struct Move<'l> {
    lease: &'l LeaseHandle,
    /// If it is still there.
    from: Option<u64>,
    to: u64,
}

impl Move<'_> {
    /// The lease's moment, if it is in the schedule and has to move.
    fn starts_at(&self) -> Option<u64> {
        let at = self.lease.due_ns.load(Ordering::Relaxed);
        (at != self.to && self.from.is_none_or(|from| from == at)).then_some(at)
    }
}

impl Due {
    /// Adds a lease that is not there.
    fn insert(&mut self, lease: Arc<LeaseHandle>, at: u64) {
        // If leases were taken one after the other, most moments have one.
        put(self.moments.entry(at).or_insert_with(|| Vec::with_capacity(1)), lease, at);
        self.held = self.held.saturating_add(1);
    }

    /// Removes a lease, if it is there.
    fn remove(&mut self, handle: &LeaseHandle) -> Option<Arc<LeaseHandle>> {
        let at = handle.due_ns.load(Ordering::Relaxed);
        let moment = self.moments.get_mut(&at)?;
        let lease = take(moment, handle)?;
        if moment.is_empty() && self.empty != Some(at) {
            self.forget_empty();
            self.empty = Some(at);
        }
        self.held = self.held.saturating_sub(1);
        Some(lease)
    }

    /// Moves leases to other moments, except those that are not there. Leases that fall due
    /// together mostly move together, so their moments are looked up once.
    fn put_off(&mut self, mut moves: &[Move<'_>]) {
        while let Some(first) = moves.first() {
            let (from, to) = (first.starts_at(), first.to);
            let alike = moves.iter().take_while(|one| one.to == to && one.starts_at() == from);
            let (these, rest) = moves.split_at(alike.count().max(1));
            moves = rest;
            match (from, these) {
                (None, _) => {}
                (Some(_), [one]) => {
                    if let Some(lease) = self.remove(one.lease) {
                        self.insert(lease, to);
                    }
                }
                (Some(from), these) => self.put_off_together(from, to, these),
            }
        }
    }

    fn put_off_together(&mut self, from: u64, to: u64, these: &[Move<'_>]) {
        let mut there = self.moments.remove(&to).unwrap_or_default();
        if let Some(left) = self.moments.get_mut(&from) {
            there.reserve_exact(these.len());
            for one in these {
                if let Some(lease) = take(left, one.lease) {
                    put(&mut there, lease, to);
                }
            }
            if left.is_empty() {
                self.moments.remove(&from);
            }
        }
        if !there.is_empty() {
            self.moments.insert(to, there);
        }
    }

    /// When to look next, after all that was due by now. A plan for a later time stays, even if its
    /// lease is gone. Otherwise a lock that is taken and released again and again would wake the
    /// renewer for each of its leases, after its end.
    fn plan_anew(&mut self, now_ns: u64) -> Option<u64> {
        let first = self.moments.first_key_value().map(|(at, _)| *at);
        let ahead = self.planned.filter(|planned| *planned > now_ns);
        self.planned = first.into_iter().chain(ahead).min();
        self.planned
    }

    fn forget_empty(&mut self) {
        if let Some(at) = self.empty.take()
            && self.moments.get(&at).is_some_and(Vec::is_empty)
        {
            self.moments.remove(&at);
        }
    }

    /// All leases up to a moment, which stay.
    fn until(&self, at: u64) -> Vec<Found> {
        let mut found = Vec::new();
        for (at, leases) in self.moments.range(..=at) {
            found.extend(leases.iter().map(|lease| Found { lease: Arc::clone(lease), at: *at }));
        }
        found
    }
}

/// Adds a lease to this moment.
fn put(moment: &mut Vec<Arc<LeaseHandle>>, lease: Arc<LeaseHandle>, at: u64) {
    lease.due_ns.store(at, Ordering::Relaxed);
    lease.place.store(u32::try_from(moment.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
    moment.push(lease);
}

/// Removes a lease from a moment, if it is there.
fn take(moment: &mut Vec<Arc<LeaseHandle>>, handle: &LeaseHandle) -> Option<Arc<LeaseHandle>> {
    let number = handle.place.load(Ordering::Relaxed);
    let place = usize::try_from(number).ok()?;
    if !moment.get(place).is_some_and(|there| ptr::eq(&**there, handle)) {
        return None;
    }
    let lease = moment.swap_remove(place);
    if let Some(moved) = moment.get(place) {
        moved.place.store(number, Ordering::Relaxed);
    }
    Some(lease)
}

/// A moment as the schedule has it.
fn due_ns(at: Moment) -> u64 {
    at.as_nanos().max(1)
}

/// Renewals that are sent together. Dropping it, at any point, counts the request as no longer on
/// the way.
#[derive(Debug)]
struct Batch {
    /// The binary logarithm of how many milliseconds they can wait for the answer.
    class: u32,
    holds: Vec<Arc<LeaseHandle>>,
    requests: Vec<RenewRequest>,
    /// When the first of them counts as lost.
    lost_at: Moment,
    /// How long to wait for the answer, with time left.
    patience: Duration,
}

impl Batch {
    fn new(class: u32, most: usize) -> Self {
        let (holds, requests) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let lost_at = Moment::from_nanos(u64::MAX);
        Self { class, holds, requests, lost_at, patience: Duration::MAX }
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

/// The first look at a lease that was requested at `sent_at`.
fn first_look(renews: bool, sent_at: Moment) -> impl FnOnce(Lasting, usize) -> Moment {
    move |Lasting { length, lost_at }, held| {
        if renews { renewal_due(sent_at, length, held).min(lost_at) } else { lost_at }
    }
}

/// When a third of the lease has passed, rounded down to a grid so that one call renews leases of
/// about the same age.
fn renewal_due(sent_at: Moment, ttl: Ttl, held: usize) -> Moment {
    let due = sent_at.saturating_add(ttl.part(3));
    let grid_ns = Moment::from_origin(grid(ttl, held)).as_nanos();
    let over_ns = due.as_nanos().checked_rem(grid_ns).unwrap_or_default();
    due.saturating_sub(Duration::from_nanos(over_ns))
}

/// How many leases should fall due in one moment, on average, if more could.
const TOGETHER: u32 = 32;

/// A 64th of the ttl, and less with many leases. Thousands of renewals in one moment would delay
/// all other requests to the store. A power of two: the moments of a coarse grid are in each finer
/// one, so leases fall due together even if their number changes.
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

/// How long to wait for the answer to a renewal: a sixth of the ttl, so that three tries fit.
fn patience(ttl: Ttl) -> Duration {
    (ttl.duration() / 6).clamp(Duration::from_millis(5), Duration::from_secs(5))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests;
