//! The renewer: one task per client keeps all of its leases alive, each by its own due time.
//!
//! It runs in the background of the process, so no runtime of the application's can delay it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{
    Clock, Effect, Error, ErrorKind, Fence, Key, Lasting, Moment, Renew, RenewRequest, Store, Ttl,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::LOCK;
use crate::events;
use crate::lease::handle::requests::{Needs, Renewing, UnderWay};
use crate::lease::handle::{HoldId, LeaseHandle};
use crate::lease::succession::Succession;
use crate::rt;

/// All leases of a client by the time at which each needs a look.
#[derive(Debug)]
pub(crate) struct RenewalSchedule {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// Takes leases that were not taken by the contender to which they were offered.
    succession: Arc<Succession>,
    due: Mutex<Due>,
    sooner: Notify,
}

#[derive(Debug, Default)]
struct Due {
    /// In the order in which they fall due.
    order: BTreeMap<(Moment, HoldId), Arc<LeaseHandle>>,
    /// When each of them does.
    moments: HashMap<HoldId, Moment>,
    /// When the renewer will look next; `None` while it has no lease.
    planned: Option<Moment>,
}

impl RenewalSchedule {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        succession: Arc<Succession>,
    ) -> Arc<Self> {
        Arc::new(Self { store, clock, succession, due: Mutex::default(), sooner: Notify::new() })
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new lease, requested at `sent_at`, that is not shared yet.
    pub(crate) fn begin(
        &self,
        mut handle: LeaseHandle,
        sent_at: Moment,
        now: Moment,
    ) -> Arc<LeaseHandle> {
        let lease = handle.before_shared();
        let (at, lasting) = (first_look(lease.wants_renewal(now), sent_at), lease.lasting());
        let handle = Arc::new(handle);
        let due = self.due();
        let at = at(lasting, due.held());
        self.put_at(due, Arc::clone(&handle), at);
        handle
    }

    /// Adds a lease that was requested at `sent_at`.
    pub(crate) fn add(&self, handle: &Arc<LeaseHandle>, sent_at: Moment, now: Moment) {
        let renews = handle.state().wants_renewal(now);
        self.put(handle, first_look(renews, sent_at));
    }

    /// Adds a lease again that was out of the schedule for a time.
    pub(crate) fn resume(&self, handle: &Arc<LeaseHandle>) {
        let sent_at = handle.state().counted_from();
        self.add(handle, sent_at, self.clock.now());
    }

    /// Moves or adds a lease; `at` has what is left of it, and the number of leases in the
    /// schedule.
    fn put(&self, handle: &Arc<LeaseHandle>, at: impl FnOnce(Lasting, usize) -> Moment) {
        let mut due = self.due();
        let held = due.held();
        let lease = due.remove(handle.id).unwrap_or_else(|| Arc::clone(handle));
        let state = handle.state();
        let lasting = (!state.is_over()).then(|| state.lasting());
        drop(state);
        if let Some(lasting) = lasting {
            self.put_at(due, lease, at(lasting, held));
        }
    }

    /// Moves leases to other times, except those that were removed or moved by others.
    fn put_off(&self, moves: &[Move]) {
        let mut due = self.due();
        moves.iter().for_each(|one| due.put_off(one));
        if let Some(at) = moves.iter().map(|one| one.to).min() {
            self.plan(due, at);
        }
    }

    fn put_at(&self, mut due: MutexGuard<'_, Due>, lease: Arc<LeaseHandle>, at: Moment) {
        due.insert(lease, at);
        self.plan(due, at);
    }

    /// Has the renewer look by then.
    fn plan(&self, mut due: MutexGuard<'_, Due>, at: Moment) {
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
        let (at, resumes_at) = (self.due().at(before.id), before.state().resumes_at());
        let resume = resumes_at.or(at).unwrap_or_default();
        next.on(|lease| lease.offered(until, resume));
        self.remove(before);
        self.put(next, |_, _| until.min(resume));
    }

    /// Records the store's answer that a lease is not held any more.
    pub(crate) fn taken_away(&self, key: &Key, fence: Fence) {
        let now = self.clock.now();
        let holds = self.holds().into_iter();
        for handle in holds.filter(|handle| handle.key == *key && handle.fences.first() == fence) {
            handle.on(|lease| lease.refuted(now));
            self.remove(&handle);
        }
    }

    /// Forgets a lease.
    pub(crate) fn remove(&self, handle: &LeaseHandle) {
        let removed = self.due().remove(handle.id);
        drop(removed);
    }

    /// All leases in the schedule.
    pub(crate) fn holds(&self) -> Vec<Arc<LeaseHandle>> {
        self.due().order.values().cloned().collect()
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
        let all = self.due().until(now);
        let mut moves = Vec::with_capacity(all.len());
        let mut batches: Vec<Batch> = Vec::new();
        for found in &all {
            let (at, renewing) = self.look_at(found, now);
            moves.extend(at.map(|at| found.to(at)));
            let Some(renewing) = renewing else { continue };
            // Leases that can wait about equally long for the answer share a batch, so that one
            // that is nearly over does not shorten the time of the others.
            let Lasting { length, lost_at } = renewing.lasting;
            let patience = patience(length);
            let class = lost_at.saturating_since(now).min(patience).as_millis().max(1).ilog2();
            let place = batches.binary_search_by_key(&class, |batch| batch.class);
            let place = place.unwrap_or_else(|place| {
                batches.insert(place, Batch::new(class, all.len()));
                place
            });
            if let Some(batch) = batches.get_mut(place) {
                batch.push(renewing, patience);
            }
        }
        let mut due = self.due();
        moves.iter().for_each(|one| due.put_off(one));
        (batches, due.plan_anew(now))
    }

    /// Looks at a lease that is due. Returns when to look again, if it stays in the schedule, and
    /// the renewal to send, if there is one.
    fn look_at(&self, found: &Found, now: Moment) -> (Option<Moment>, Option<Renewing>) {
        let needs = found.lease.due(now);
        if matches!(needs, Needs::Nothing | Needs::Successor) {
            self.remove(&found.lease);
        }
        match needs {
            Needs::Renewal(renewing) => (Some(renewing.lasting.lost_at), Some(renewing)),
            Needs::Look(at) => (Some(at), None),
            Needs::Nothing => (None, None),
            Needs::Successor => {
                self.succession.take_back(&found.lease);
                (None, None)
            }
        }
    }

    async fn renew(self: Arc<Self>, batch: Batch) {
        let sent_at = self.clock.now();
        let Batch { leases, requests, lost_at, patience, .. } = &batch;
        let within = lost_at.saturating_since(sent_at).min(*patience);
        let answers = self.store.renew(requests, within).await;
        let (now, held) = (self.clock.now(), self.due().held());
        let mut answers = answers.into_iter();
        // Most have one length.
        let mut last: Option<(Ttl, Moment)> = None;
        let mut due = |length: Ttl| match last {
            Some((same, due)) if same == length => due,
            _ => last.insert((length, renewal_due(sent_at, length, held))).1,
        };
        let (mut moves, mut is_store_gone) = (Vec::with_capacity(leases.len()), false);
        for (handle, request) in leases.iter().zip(requests) {
            let next = match answers.next() {
                Some(Ok(answer @ (Renew::Renewed | Renew::Asked))) => {
                    if answer == Renew::Asked {
                        handle.on(|lease| lease.asked());
                    }
                    tracing::trace!(target: LOCK, key = %handle.key, ttl = %request.ttl, "renewed");
                    let lasting = handle.on(|lease| lease.renewed(sent_at, request.ttl, now));
                    lasting.map(|Lasting { length, lost_at }| due(length).min(lost_at))
                }
                Some(Ok(_not_ours)) => {
                    handle.on(|lease| lease.refuted(now));
                    None
                }
                failed => {
                    let error = failed.and_then(Result::err).unwrap_or_else(no_answer);
                    tracing::warn!(target: "leasehold", key = %handle.key, %error, "renewal failed");
                    events::count(events::RENEWALS_FAILED);
                    let may_hold = handle.renewal_failed(&error, now);
                    is_store_gone |= !may_hold;
                    let Lasting { length, lost_at } = handle.state().lasting();
                    may_hold.then(|| retry_due(now, length).min(lost_at))
                }
            };
            if let Some(next) = next {
                moves.push(Move { lease: handle.id, from: None, to: next });
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

/// A lease that is due, and since when.
#[derive(Debug)]
struct Found {
    lease: Arc<LeaseHandle>,
    at: Moment,
}

impl Found {
    /// To another moment, unless others moved it since it was found: they know more of it.
    fn to(&self, to: Moment) -> Move {
        Move { lease: self.lease.id, from: Some(self.at), to }
    }
}

/// A lease to move to another time.
#[derive(Clone, Copy, Debug)]
struct Move {
    lease: HoldId,
    /// If it is still there.
    from: Option<Moment>,
    to: Moment,
}

impl Due {
    /// How many leases there are.
    fn held(&self) -> usize {
        self.order.len()
    }

    /// When a lease is due, if it is there.
    fn at(&self, lease: HoldId) -> Option<Moment> {
        self.moments.get(&lease).copied()
    }

    /// Adds a lease that is not there.
    fn insert(&mut self, lease: Arc<LeaseHandle>, at: Moment) {
        self.moments.insert(lease.id, at);
        self.order.insert((at, lease.id), lease);
    }

    /// Removes a lease, if it is there.
    fn remove(&mut self, lease: HoldId) -> Option<Arc<LeaseHandle>> {
        let at = self.moments.remove(&lease)?;
        self.order.remove(&(at, lease))
    }

    /// Moves a lease, if it is there.
    fn put_off(&mut self, &Move { lease, from, to }: &Move) {
        let Some(at) = self.moments.get_mut(&lease) else { return };
        if from.is_none_or(|from| from == *at)
            && let Some(moved) = self.order.remove(&(*at, lease))
        {
            *at = to;
            self.order.insert((to, lease), moved);
        }
    }

    /// When to look next, after all that was due by now. A plan for a later time stays, even if its
    /// lease is gone. Otherwise a lock that is taken and released again and again would wake the
    /// renewer for each of its leases, after its end.
    fn plan_anew(&mut self, now: Moment) -> Option<Moment> {
        let first = self.order.first_key_value().map(|((at, _), _)| *at);
        let ahead = self.planned.filter(|planned| *planned > now);
        self.planned = first.into_iter().chain(ahead).min();
        self.planned
    }

    /// All leases up to a moment, which stay.
    fn until(&self, until: Moment) -> Vec<Found> {
        let due = self.order.iter().take_while(|((at, _), _)| *at <= until);
        due.map(|((at, _), lease)| Found { lease: Arc::clone(lease), at: *at }).collect()
    }
}

/// Renewals that are sent together.
#[derive(Debug)]
struct Batch {
    /// The binary logarithm of how many milliseconds they can wait for the answer.
    class: u32,
    leases: Vec<UnderWay>,
    requests: Vec<RenewRequest>,
    /// When the first of them counts as lost.
    lost_at: Moment,
    /// How long to wait for the answer, with time left.
    patience: Duration,
}

impl Batch {
    fn new(class: u32, most: usize) -> Self {
        let (leases, requests) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let lost_at = Moment::from_nanos(u64::MAX);
        Self { class, leases, requests, lost_at, patience: Duration::MAX }
    }

    fn push(&mut self, Renewing { lease, request, lasting }: Renewing, patience: Duration) {
        self.leases.push(lease);
        self.requests.push(request);
        self.lost_at = self.lost_at.min(lasting.lost_at);
        self.patience = self.patience.min(patience);
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
