//! The queue inside this process: one contender per client and lock talks to the store.
//!
//! The others wait behind it, and a lease may go from one to the next without a request to the
//! store.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use leasehold_core::{Cooldown, Key, Metadata, Mode, Moment, OwnerName, Result};

use crate::LOCK;
use crate::events;
use crate::lease::guard::Guard;
use crate::lease::handle::LeaseHandle;
use crate::lease::succession::Successors;
use crate::refusal;
use crate::rt;
use crate::settings::{Settings, Terms};
use crate::shared::Inner;
use crate::waiting::mailbox::{Receiver, Sender, mailbox};
use crate::waiting::status::SharedStatus;
use crate::waiting::wire::Wire;

/// How long a contender has to take a lease that was handed off to it in the process. Then the next
/// contender gets it, or the store, since some futures are never polled.
pub(crate) const CLAIM_WITHIN: Duration = Duration::from_secs(1);
/// How often each contender is polled, if its executor polls it at all.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// A contender that was not polled for this long is overtaken by those behind it.
const UNPOLLED_MAX: Duration = Duration::from_secs(3);

/// All local queues of a client.
#[derive(Debug)]
pub(crate) struct Gates {
    client: Arc<Inner>,
    gates: Mutex<HashMap<GateKey, Gate>>,
    next: AtomicU64,
}

/// Contenders share a queue when they want the very same; what the store keeps about a lease is
/// then true of each contender that gets it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct GateKey {
    key: Key,
    mode: Mode,
    preferred: bool,
    handed_on: bool,
    cooldown: Cooldown,
    terms: Terms,
    owner: OwnerName,
    metadata: Metadata,
    /// A contender that can share the lock with the one before need not wait for it, and has a
    /// queue of its own.
    alone: Option<u64>,
}

/// Few queues differ in other fields than these two, and a wait looks its queue up several times.
impl Hash for GateKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
        self.alone.hash(state);
    }
}

impl GateKey {
    fn new(key: &Key, settings: &Settings, terms: &Terms) -> Self {
        Self {
            key: key.clone(),
            mode: settings.mode,
            preferred: settings.preferred,
            handed_on: settings.handed_on,
            cooldown: settings.cooldown,
            terms: *terms,
            owner: settings.owner.clone(),
            metadata: settings.metadata.clone(),
            alone: None,
        }
    }
}

#[derive(Debug, Default)]
struct Gate {
    line: VecDeque<Contender>,
    seen: SharedStatus,
}

impl Gate {
    /// Updates the count after a change of the queue.
    fn count(&self) {
        let contenders = u32::try_from(self.line.len()).unwrap_or(u32::MAX);
        self.seen.count(contenders);
    }
}

#[derive(Clone, Debug)]
struct Contender {
    id: u64,
    messages: Sender<Handover>,
    pulse: Pulse,
}

/// When a contender's future was last polled, in nanoseconds.
#[derive(Clone, Debug)]
struct Pulse(Arc<AtomicU64>);

impl Pulse {
    fn beat(&self, now: Moment) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn stands_still(&self, now: Moment) -> bool {
        let last = Moment::from_nanos(self.0.load(Ordering::Relaxed));
        now.saturating_since(last) > UNPOLLED_MAX
    }
}

/// A lease on its way to a contender that has not taken it yet. It is not renewed; after
/// [`CLAIM_WITHIN`] the renewer takes it back. Dropped, it goes to the next.
#[derive(Debug)]
pub(crate) struct Offer(Option<Guard>);

impl Offer {
    /// The lease, if it was not taken back, and still holds.
    pub(crate) fn claim(mut self) -> Option<Guard> {
        let guard = self.0.take()?;
        if !guard.handle().on(|lease| lease.claimed(rt::caller())) {
            guard.keep();
            return None;
        }
        let guard = Some(guard).filter(|guard| guard.is_held())?;
        let (key, fence) = (guard.key(), guard.handle().fence());
        tracing::debug!(target: LOCK, %key, %fence, "acquired inside the process");
        Some(guard)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take()
            && guard.handle().is_ours()
            && !guard.handle().on(|lease| lease.take_back())
        {
            // The renewer was first.
            guard.keep();
        }
    }
}

/// What one contender passes to the next.
#[derive(Debug)]
pub(crate) enum Handover {
    /// The lease itself, to be claimed.
    Lease(Offer),
    /// The position in the store's queue.
    Wire(Box<Wire>),
    /// The head of the local queue, without a position in the store's.
    Start,
}

impl Gates {
    pub(crate) fn new(client: Arc<Inner>) -> Arc<Self> {
        let gates = Self { client, gates: Mutex::default(), next: AtomicU64::new(0) };
        let gates = Arc::new(gates);
        let successors: Weak<Self> = Arc::downgrade(&gates);
        gates.client.succession.leads_to(successors);
        gates
    }

    /// The client whose queues these are.
    pub(crate) const fn client(&self) -> &Arc<Inner> {
        &self.client
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<GateKey, Gate>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A contender's position in the local queue. Dropping it leaves the queue and passes on what it
/// has.
#[derive(Debug)]
pub(crate) struct LocalPlace {
    gates: Arc<Gates>,
    key: GateKey,
    id: u64,
    first: bool,
    /// Since when it has been at the head of the queue without a handover that makes it the first.
    ahead_since: Option<Moment>,
    seen: SharedStatus,
    contender: Contender,
    pub(crate) messages: Receiver<Handover>,
    pub(crate) wire: Option<Box<Wire>>,
}

impl LocalPlace {
    /// Joins the end of the queue.
    pub(crate) fn join(gates: &Arc<Gates>, key: &Key, settings: &Settings) -> Result<Self> {
        let gates = Arc::clone(gates);
        let mut key = GateKey::new(key, settings, &settings.terms()?);
        let id = gates.next.fetch_add(1, Ordering::Relaxed);
        key.alone = (settings.mode == Mode::Shared).then_some(id);
        let (sender, messages) = mailbox();
        let mut lock = gates.lock();
        let gate = lock.entry(key.clone()).or_default();
        let waiters = u32::try_from(gate.line.len()).unwrap_or(u32::MAX);
        if waiters > 0 && settings.max_waiters.is_some_and(|max| waiters >= max) {
            return Err(refusal::queue_full(waiters));
        }
        let pulse = Pulse(Arc::new(AtomicU64::new(gates.client.clock.now().as_nanos())));
        let contender = Contender { id, messages: sender, pulse };
        gate.line.push_back(contender.clone());
        gate.count();
        let seen = gate.seen.clone();
        gates.client.succession.count(lock.len());
        drop(lock);
        let (first, ahead_since, wire) = (waiters == 0, None, None);
        Ok(Self { gates, key, id, first, ahead_since, seen, contender, messages, wire })
    }

    /// Joins the end of the queue again, after it did not take a lease in time. It keeps its
    /// position in the store's queue.
    pub(crate) fn rejoin(&mut self) {
        let mut gates = self.gates.lock();
        let gate = gates.entry(self.key.clone()).or_default();
        if gate.line.iter().any(|contender| contender.id == self.id) {
            return;
        }
        self.first |= gate.line.is_empty();
        gate.line.push_back(self.contender.clone());
        gate.count();
        self.seen = gate.seen.clone();
        self.gates.client.succession.count(gates.len());
    }

    /// Returns what records that it was polled; call that at every poll.
    pub(crate) fn pulse(&self) -> impl Fn(Moment) + use<> {
        let pulse = self.contender.pulse.clone();
        move |now| pulse.beat(now)
    }

    /// Overtakes contenders whose futures are not polled: those before it, and one that got a lease
    /// and would have passed its part on by now. Two of a client that talk to the store do no harm.
    pub(crate) fn overtake(&mut self, now: Moment) {
        if self.first {
            return;
        }
        let mut gates = self.gates.lock();
        let Some(gate) = gates.get_mut(&self.key) else { return };
        let unpolled = gate
            .line
            .iter()
            .take_while(|other| other.id != self.id && other.pulse.stands_still(now))
            .count();
        if gate.line.get(unpolled).is_none_or(|next| next.id != self.id) {
            self.ahead_since = None;
            return;
        }
        gate.line.rotate_left(unpolled);
        let since = *self.ahead_since.get_or_insert(now);
        self.first = unpolled > 0 || now.saturating_since(since) > UNPOLLED_MAX;
    }

    /// The lock.
    pub(crate) const fn key(&self) -> &Key {
        &self.key.key
    }

    /// Whether this is the contender that talks to the store.
    pub(crate) const fn is_first(&self) -> bool {
        self.first
    }

    /// Records that the one before has gone.
    pub(crate) const fn now_first(&mut self) {
        self.first = true;
    }

    /// What the contender that talks to the store last saw.
    pub(crate) const fn seen(&self) -> &SharedStatus {
        &self.seen
    }
}

impl LocalPlace {
    /// Leaves the queue, and passes on what it has. Returns what no other contender takes over.
    pub(crate) fn leave(mut self) -> Vec<Handover> {
        self.pass_on()
    }

    fn pass_on(&mut self) -> Vec<Handover> {
        let mut wire = self.wire.take();
        let mut unused = Vec::new();
        let mut gates = self.gates.lock();
        // They are sent under the lock: unread ones are passed on as well.
        while let Some(handover) = self.messages.try_recv() {
            self.first |= !matches!(handover, Handover::Lease(_));
            match handover {
                Handover::Wire(passed) if wire.is_none() => wire = Some(passed),
                other => unused.push(other),
            }
        }
        let mut own = self.first.then(|| wire.map_or(Handover::Start, Handover::Wire));
        self.first = false;
        let Some(gate) = gates.get_mut(&self.key) else {
            return own.into_iter().chain(unused).collect();
        };
        gate.line.retain(|contender| contender.id != self.id);
        gate.count();
        if let Some(next) = gate.line.front()
            && let Some(passed) = own.take()
        {
            own = next.messages.send(passed).err();
        }
        if gate.line.is_empty() {
            gates.remove(&self.key);
            self.gates.client.succession.count(gates.len());
        }
        // A position is abandoned before a lease is released, or the store might grant that to it.
        own.into_iter().chain(unused).collect()
    }
}

impl Drop for LocalPlace {
    fn drop(&mut self) {
        // A lease, or a position in the store's queue, that no other takes over is released without
        // the gates' lock: the release may need that.
        drop(self.pass_on());
    }
}

impl Gates {
    /// Whether the local queue has a contender already.
    pub(crate) fn is_waited_for(&self, key: &Key, settings: &Settings, terms: &Terms) -> bool {
        self.lock().contains_key(&GateKey::new(key, settings, terms))
    }
}

impl Successors for Gates {
    fn hand_on(&self, handle: &Arc<LeaseHandle>) -> bool {
        let client = &self.client;
        let mut gates = self.lock();
        if client.is_closed() {
            return false;
        }
        let Ok(terms) = handle.settings.terms() else { return false };
        let line = GateKey::new(&handle.key, &handle.settings, &terms);
        let Some(gate) = gates.get_mut(&line) else { return false };
        if gate.line.is_empty() {
            return false;
        }
        let now = client.clock.now();
        let Some(next) = handle.hand_on(now) else { return false };
        events::count_by(events::HANDOFFS, "path", "process");
        let next = Arc::new(next);
        let until = now.saturating_add(CLAIM_WITHIN);
        client.schedule.hand_on(handle, &next, until);
        let offer = Offer(Some(Guard::new(client, next)));
        let mut handover = Some(Handover::Lease(offer));
        // Closing begins before it looks for what is held: either it sees this lease, or it is seen
        // here.
        while !client.is_closed()
            && let Some(lease) = handover.take()
        {
            let Some(contender) = gate.line.pop_front() else {
                handover = Some(lease);
                break;
            };
            handover = contender.messages.send(lease).err();
        }
        gate.count();
        // Contenders that have just gone pass their part on by themselves. A lease that no other
        // took is released like any dropped guard, which locks the gates again.
        drop(gates);
        drop(handover);
        true
    }

    fn take_back(&self, handle: &Arc<LeaseHandle>) {
        drop(Guard::new(&self.client, Arc::clone(handle)));
    }
}
