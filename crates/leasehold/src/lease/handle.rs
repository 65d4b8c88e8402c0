//! A held lease, which its guard, the renewer and the reaper share: its machine, and its waiters.

pub(crate) mod requests;

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_clock::Process;
use leasehold_core::{
    Clock, Error, Fence, FenceBlock, HoldTerms, Key, LeaseMachine, LeaseState, LeaseStatus, Moment,
    Reason, Relay, Token, Ttl,
};
use tokio::sync::Notify;

use crate::LOCK;
use crate::audit::LockEventKind;
use crate::events::{self, Holding};
use crate::lease::loss::Loss;
use crate::rt;
use crate::settings::Settings;

/// The state of a hold.
pub(crate) type Machine = LeaseMachine<Error>;

/// What proves a lease, here and to the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Proof {
    pub(crate) key: Key,
    pub(crate) token: Token,
    /// The fences that came with the grant; requests name them.
    pub(crate) fences: FenceBlock,
    /// The holder's own fence, one of them.
    pub(crate) fence: Fence,
}

/// How a lease came to this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    pub(crate) at: Moment,
    pub(crate) how: LockEventKind,
}

/// The number of a hold in this process, in the order in which they began.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct HoldId(u64);

impl HoldId {
    fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Debug)]
pub(crate) struct LeaseHandle {
    pub(crate) id: HoldId,
    pub(crate) key: Key,
    pub(crate) token: Token,
    /// The fences that came with the grant; requests name them.
    pub(crate) fences: FenceBlock,
    /// This hold's own fence, one of them.
    fence: Fence,
    /// The settings of the lock value.
    pub(crate) settings: Arc<Settings>,
    process: Process,
    machine: Mutex<Machine>,
    changed: Notify,
    /// For the log and metrics.
    holding: Holding,
}

impl LeaseHandle {
    pub(crate) fn new(
        proof: Proof,
        lease: LeaseState,
        ttl: Ttl,
        relay: Relay,
        settings: Arc<Settings>,
        Began { at: granted_at, how }: Began,
    ) -> Self {
        let Settings { renew: renews, max_hold, progress_within, .. } = *settings;
        let terms = HoldTerms { renews, max_hold, progress_within };
        let machine = Machine::new(lease, ttl, terms, relay, rt::caller(), granted_at);
        Self::with(proof, settings, machine, how)
    }

    fn with(proof: Proof, settings: Arc<Settings>, machine: Machine, how: LockEventKind) -> Self {
        let Proof { key, token, fences, fence } = proof;
        Self {
            id: HoldId::next(),
            holding: Holding::new(&key, &settings, fence, how),
            key,
            token,
            fences,
            fence,
            settings,
            process: Process::current(),
            machine: Mutex::new(machine),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, to read it.
    pub(crate) fn state(&self) -> impl Deref<Target = Machine> {
        self.lock()
    }

    /// Applies an event, and carries out what follows from it.
    pub(crate) fn on<T>(&self, event: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machine = self.lock();
        let answer = event(&mut machine);
        let actions = machine.take_actions();
        let loss = if actions.lost { Loss::of(&machine) } else { None };
        drop(machine);
        if let Some(loss) = &loss {
            self.report(loss);
            #[cfg(leasehold_planted)]
            if leasehold_core::planted::is(leasehold_core::planted::Fault::LossNotTold) {
                return answer;
            }
        }
        if actions.notify {
            self.changed.notify_waiters();
        }
        answer
    }

    /// As [`on`](Self::on), before it is shared: no task waits for it yet.
    pub(crate) fn before_shared(&mut self) -> &mut Machine {
        self.machine.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, loss: &Loss) {
        let (key, fence, reason) = (&self.key, self.fence, loss.reason());
        let error = loss.error().map(tracing::field::display);
        let (why, of) = (reason.name(), loss.cause().map(Reason::name));
        tracing::warn!(target: LOCK, %key, %fence, reason = why, cause = of, error, "lease lost");
        if self.holding.ended("lost") {
            events::count_by(events::LOST, "reason", reason.name());
            self.tell(LockEventKind::Lost { reason, cause: loss.cause() });
        }
    }

    /// Whether this process made the hold; a fork's child must not act on its parent's leases.
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    pub(crate) fn proof(&self) -> Proof {
        let Self { key, token, fences, fence, .. } = self;
        Proof { key: key.clone(), token: *token, fences: *fences, fence: *fence }
    }

    pub(crate) const fn fence(&self) -> Fence {
        self.fence
    }

    /// Looks at the clock, and reports a loss to all that wait for it.
    pub(crate) fn status(&self, now: Moment) -> LeaseStatus {
        self.on(|lease| lease.status(now))
    }

    pub(crate) fn is_held(&self, now: Moment) -> bool {
        self.is_ours() && self.on(|lease| lease.is_held(now))
    }

    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        if self.is_ours() { self.on(|lease| lease.remaining(now)) } else { Duration::ZERO }
    }

    /// How it was lost, if it was while its guard lived.
    pub(crate) fn loss(&self, now: Moment) -> Option<Loss> {
        self.is_held(now);
        Loss::of(&self.state())
    }

    /// The length of the last grant or renewal, or a shorter one that may have been carried out.
    pub(crate) fn length(&self) -> Duration {
        self.state().lasting().length.duration()
    }

    /// When the lease counts as lost unless renewed.
    pub(crate) fn lost_at(&self) -> Moment {
        self.state().lasting().lost_at
    }

    /// Returns when there is a release request, the guard has ended, the lease is lost, or at
    /// `until`. Cancel safe.
    pub(crate) async fn asked_until(&self, clock: &dyn Clock, until: Moment) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_reached(|lease| lease.is_over() || lease.is_asked()) {
                return;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = rt::sleep_until(clock, until.min(self.lost_at())) => return,
            }
        }
    }

    /// Returns when the lease is lost, or its guard has ended. Cancel safe.
    pub(crate) async fn lost(&self, clock: &dyn Clock) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_reached(|lease| !lease.is_held(clock.now())) {
                return;
            }
            #[cfg(leasehold_planted)]
            if leasehold_core::planted::is(leasehold_core::planted::Fault::LossNotTold) {
                changed.await;
                continue;
            }
            // The deadline is watched here too: a starved renewer must hide no loss.
            tokio::select! {
                biased;
                () = changed => {}
                () = rt::sleep_until(clock, self.lost_at()) => {}
            }
        }
    }

    /// Returns once no request with this token is under way, so that a release sent after it is
    /// the last request. Each request has its own deadline, so this ends. Cancel safe.
    pub(crate) async fn settled(&self) {
        // Mostly none is under way, and no notification is needed.
        while !self.state().is_settled() {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_reached(|lease| lease.is_settled()) {
                return;
            }
            changed.await;
        }
    }

    /// Whether a wait is over; has later changes notified. A fork's child has no lease to wait for.
    fn is_reached(&self, is_over: impl FnOnce(&mut Machine) -> bool) -> bool {
        !self.is_ours()
            || self.on(|lease| {
                lease.watch();
                is_over(lease)
            })
    }

    /// The hold of the next contender in this process, under the same lease with the next fence.
    /// `None` when the lease has to go back through the store. On success this hold has ended.
    pub(crate) fn hand_on(&self, now: Moment) -> Option<Self> {
        let fence = self.fence.saturating_add(1);
        #[cfg(leasehold_planted)]
        let same = leasehold_core::planted::is(leasehold_core::planted::Fault::LocalFenceRepeats);
        #[cfg(leasehold_planted)]
        let fence = if same { self.fence } else { fence };
        if !self.is_ours() || !self.fences.contains(fence) {
            return None;
        }
        let next = self.on(|lease| lease.hand_on(self.settings.ttl, now))?;
        self.holding.ended("handed_on");
        let began = LockEventKind::HandedOn { from: self.fence };
        Some(Self::with(Proof { fence, ..self.proof() }, Arc::clone(&self.settings), next, began))
    }

    /// The hold of the same lease in another mode, with the fences that it has then. `None` when
    /// the guard has ended, or the lease is lost. On success this hold has ended.
    pub(crate) fn in_mode(
        &self,
        settings: Arc<Settings>,
        fences: FenceBlock,
        now: Moment,
    ) -> Option<Self> {
        if !self.is_ours() {
            return None;
        }
        let fence = if fences == self.fences { self.fence } else { fences.first() };
        let next = self.on(|lease| lease.in_mode(now))?;
        self.holding.ended("changed");
        let began = LockEventKind::Changed { from: self.fence };
        Some(Self::with(Proof { fences, fence, ..self.proof() }, settings, next, began))
    }

    /// Reports an event to its readers.
    pub(crate) fn tell(&self, what: LockEventKind) {
        self.holding.tell(&self.key, &self.settings, self.fence, what);
    }

    /// Notes how the work ended.
    pub(crate) fn note_result(&self, result: &str) {
        self.holding.note_result(result);
    }
}
