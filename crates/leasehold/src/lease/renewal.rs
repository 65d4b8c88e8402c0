//! The renewer: one task per client keeps all of its leases alive, each by its own due time. It
//! runs in the background of the process, so no runtime of the application's can hold it up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Clock, Fence, Key, LeaseStatus, Moment, Renew, RenewRequest, Store, Ttl};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::LOCK;
use crate::events;
use crate::lease::handle::{LeaseHandle, Phase, as_nanos};
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
    holds: BTreeMap<(u64, u64), Arc<LeaseHandle>>,
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

    /// Takes care of a new lease that was asked for at `sent_at`.
    pub(crate) fn add(&self, handle: &Arc<LeaseHandle>, sent_at: Moment) {
        let now = self.clock.now();
        let next = if handle.wants_renewal(now) {
            // The first renewal comes early, to leave time for making its connection.
            let parts = if self.answered.load(Ordering::Relaxed) { 3 } else { 6 };
            renewal_due(sent_at, handle.length(), parts)
        } else {
            handle.lost_at()
        };
        self.put(handle, next.min(handle.lost_at()));
    }

    /// Takes care of a lease as it is, after a time without care.
    pub(crate) fn resume(&self, handle: &Arc<LeaseHandle>) {
        self.add(handle, handle.counted_from());
    }

    fn put(&self, handle: &Arc<LeaseHandle>, at: Moment) {
        let at = as_nanos(at).max(1);
        let mut due = self.due();
        due.remove(handle);
        if handle.phase() != Phase::Held {
            return;
        }
        handle.due_ns.store(at, Ordering::Relaxed);
        due.holds.insert((at, handle.id), Arc::clone(handle));
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
        self.put(next, until.min(moment(resume)));
    }

    /// Whether a lease that was handed on needs no renewal yet: it may still be taken, or was taken
    /// early enough. One that was not taken goes to the next contender, or back to the store.
    fn is_on_its_way(&self, handle: &Arc<LeaseHandle>, now: Moment) -> bool {
        match handle.is_offered_until() {
            Some(until) if now < until => self.put(handle, until.min(handle.lost_at())),
            Some(_) => {
                self.remove(handle);
                handle.take_back();
            }
            None => {
                let resume = moment(handle.resume_ns.swap(0, Ordering::Relaxed));
                if now >= resume {
                    return false;
                }
                self.put(handle, resume.min(handle.lost_at()));
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
        self.due().remove(handle);
    }

    /// All leases that are cared for.
    pub(crate) fn holds(&self) -> Vec<Arc<LeaseHandle>> {
        self.due().holds.values().map(Arc::clone).collect()
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
        for handle in self.due_at(now) {
            if handle.status(now) == LeaseStatus::Lost {
                self.remove(&handle);
                handle.take_back();
                continue;
            }
            if self.is_on_its_way(&handle, now) {
                continue;
            }
            if handle.wants_renewal(now)
                && let Some(request) = handle.start_renewal(now)
            {
                // Those that can wait about equally long for the answer go together, so that one
                // whose time is nearly over leaves the others theirs.
                let class = limit(&handle, now).as_millis().max(1).ilog2();
                batches.entry(class).or_default().push(Arc::clone(&handle), request);
            }
            self.put(&handle, handle.lost_at());
        }
        for batch in batches.into_values() {
            tokio::spawn(Arc::clone(self).renew(batch));
        }
        let mut due = self.due();
        due.planned = due.holds.first_key_value().map(|((at, _), _)| *at);
        due.planned.map(moment)
    }

    /// What is due. It stays in the schedule, where others look for what is held.
    fn due_at(&self, now: Moment) -> Vec<Arc<LeaseHandle>> {
        let end = (as_nanos(now).saturating_add(1), 0);
        self.due().holds.range(..end).map(|(_, handle)| Arc::clone(handle)).collect()
    }

    async fn renew(self: Arc<Self>, batch: Batch) {
        let sent_at = self.clock.now();
        let Batch { holds, requests } = &batch;
        let within = holds.iter().map(|handle| limit(handle, sent_at)).min().unwrap_or_default();
        let answers = self.store.renew(requests, within).await;
        let now = self.clock.now();
        let mut answers = answers.into_iter();
        for (handle, request) in holds.iter().zip(requests) {
            let next = match answers.next() {
                Some(Ok(answer @ (Renew::Renewed | Renew::Asked))) => {
                    if answer == Renew::Asked {
                        handle.ask();
                    }
                    self.answered.store(true, Ordering::Relaxed);
                    tracing::trace!(target: LOCK, key = %handle.key, ttl = %request.ttl, "renewed");
                    handle
                        .renewed(sent_at, request.ttl, now)
                        .then(|| renewal_due(sent_at, handle.length(), 3))
                }
                Some(Ok(_not_ours)) => {
                    handle.refuted();
                    None
                }
                Some(Err(error)) => {
                    tracing::warn!(target: "leasehold", key = %handle.key, %error, "renewal failed");
                    events::count(events::RENEWALS_FAILED);
                    handle.renewal_failed();
                    Some(retry_due(now, handle.length()))
                }
                None => {
                    handle.renewal_failed();
                    Some(retry_due(now, handle.length()))
                }
            };
            if let Some(next) = next {
                self.put(handle, next.min(handle.lost_at()));
            } else {
                self.remove(handle);
            }
        }
    }
}

impl Due {
    fn remove(&mut self, handle: &LeaseHandle) {
        self.holds.remove(&(handle.due_ns.load(Ordering::Relaxed), handle.id));
    }
}

/// Renewals that are sent together. Dropping it, at whatever point, tells their holds that the
/// request is no longer on the way.
#[derive(Debug, Default)]
struct Batch {
    holds: Vec<Arc<LeaseHandle>>,
    requests: Vec<RenewRequest>,
}

impl Batch {
    fn push(&mut self, handle: Arc<LeaseHandle>, request: RenewRequest) {
        self.holds.push(handle);
        self.requests.push(request);
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for handle in &self.holds {
            handle.request_done();
        }
    }
}

fn moment(nanoseconds: u64) -> Moment {
    Moment::from_origin(Duration::from_nanos(nanoseconds))
}

/// When this part of the lease, usually a third, has passed, moved onto a grid of a 64th of the ttl so that leases of
/// about the same age are renewed by one call.
fn renewal_due(sent_at: Moment, ttl: Ttl, parts: u32) -> Moment {
    let due = sent_at.saturating_add(ttl.part(parts)).since_origin();
    let grid = (ttl.duration() / 64).max(Duration::from_millis(1));
    let over = due.as_nanos().checked_rem(grid.as_nanos()).unwrap_or_default();
    Moment::from_origin(
        due.saturating_sub(Duration::from_nanos(u64::try_from(over).unwrap_or_default())),
    )
}

/// A twelfth of the ttl after a failure, give or take a quarter of that.
fn retry_due(now: Moment, ttl: Ttl) -> Moment {
    let pause = ttl.duration() / 12;
    now.saturating_add(pause.mul_f64(0.75 + 0.5 * fastrand::f64()))
}

/// How long to wait for the answer to the renewal of this lease.
fn limit(handle: &LeaseHandle, now: Moment) -> Duration {
    handle.lost_at().saturating_since(now).min(patience(handle.length()))
}

/// How long to wait for the answer to a renewal, with time left: a sixth of the ttl, so that three tries fit.
fn patience(ttl: Ttl) -> Duration {
    (ttl.duration() / 6).clamp(Duration::from_millis(5), Duration::from_secs(5))
}
