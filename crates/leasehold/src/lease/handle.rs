//! The state of a held lease, which its guard, the renewer and the reaper share.

mod next;
pub(crate) mod requests;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use leasehold_clock::Process;
use leasehold_core::{
    Clock, Error, Fence, FenceBlock, Key, LeaseState, LeaseStatus, Moment, Reason, Token, Ttl,
    margin,
};
use tokio::sync::Notify;

use crate::LOCK;
use crate::audit::{LockEventKind, LossReason};
use crate::events::{self, Holding};
use crate::lease::loss::Loss;
use crate::rt;
use crate::settings::Settings;

/// What a length loses at most because it is sent in whole milliseconds.
const ROUNDED: Duration = Duration::from_millis(1);

/// How often and until when a lease may be handed off inside this process before its release has to
/// go through the store, where others may wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Relay {
    pub(crate) handoffs: u32,
    pub(crate) until: Moment,
}

/// A lease on its way to its next holder in this process; one side only can take it.
pub(crate) trait Offered: fmt::Debug + Send + Sync {
    /// Whether it has not been taken yet.
    fn is_there(&self) -> bool;

    /// Passes it to the next contender, or back to the store, unless it was taken.
    fn take_back(&self);
}

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

#[derive(Debug)]
pub(crate) struct LeaseHandle {
    pub(crate) key: Key,
    pub(crate) token: Token,
    /// The fences that came with the grant; requests name them.
    pub(crate) fences: FenceBlock,
    /// This hold's own fence, one of them.
    fence: Fence,
    relay: Relay,
    /// The settings of the lock value.
    pub(crate) settings: Arc<Settings>,
    /// When its longest hold begins.
    since: Moment,
    /// When the holder last reported progress, in nanoseconds.
    progress_ns: AtomicU64,
    process: Process,
    /// The task or thread that took it.
    taken_by: AtomicU64,
    state: Mutex<State>,
    /// How it was lost, once that was reported.
    loss: OnceLock<Box<Loss>>,
    /// Whether there is a release request.
    asked: AtomicBool,
    /// Whether a change to a weaker mode was not answered. If the store carries it out later, it
    /// weakens whatever this lease is by then.
    mode_in_doubt: AtomicBool,
    /// Until when an unanswered acquisition with the lease's token may be carried out, in
    /// nanoseconds.
    in_doubt_ns: AtomicU64,
    changed: Notify,
    /// For the log and metrics.
    holding: Holding,
    /// The contender of this process to which it was handed off, and until when that one may take
    /// it.
    offer: OnceLock<Box<(Weak<dyn Offered>, Moment)>>,
    /// When the renewer has to look again once an offer was taken, in nanoseconds.
    pub(crate) resume_ns: AtomicU64,
    /// The hold's moment in the schedule, in nanoseconds, and its index there; only touched under
    /// the schedule's lock.
    pub(crate) due_ns: AtomicU64,
    pub(crate) place: AtomicU32,
}

#[derive(Debug)]
struct State {
    lease: LeaseState,
    /// The length to renew to; a lease granted from the queue may be shorter at first.
    ttl: Ttl,
    phase: Phase,
    requests_in_flight: u32,
    /// Whether a task ever waited for a change; until then none has to be notified.
    waited_for: bool,
    /// Whether one of them changes the length. No other renewal runs at the same time, because the
    /// last one to reach the store would decide.
    changing: bool,
    /// The shortest length that was requested and not answered. The store may carry that out at any
    /// later moment, so no answer proves more than this length from its own request on.
    shortest: Option<Ttl>,
    /// How the last renewal failed, if none succeeded after it.
    failure: Option<Error>,
}

impl State {
    fn new(lease: LeaseState, ttl: Ttl) -> Self {
        Self {
            lease,
            ttl,
            phase: Phase::Held,
            requests_in_flight: 0,
            waited_for: false,
            changing: false,
            shortest: None,
            failure: None,
        }
    }

    /// What is left without a renewal, of a lease that is held until `held_until` at most.
    fn lasting(&self, held_until: Option<Moment>) -> Lasting {
        let lost_at = self.lease.lost_at();
        Lasting {
            length: self.proven(self.lease.ttl()),
            lost_at: held_until.map_or(lost_at, |until| lost_at.min(until)),
        }
    }

    /// How long ago the deadline was, if it has passed.
    fn over_for(&self, now: Moment) -> Option<Duration> {
        Some(now.saturating_since(self.lease.deadline())).filter(|over_for| !over_for.is_zero())
    }

    /// What a renewal to this length proves.
    fn proven(&self, ttl: Ttl) -> Ttl {
        self.shortest.map_or(ttl, |shortest| shortest.min(ttl))
    }
}

/// What is left of a lease without a renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lasting {
    /// The length of the last grant or renewal, or a shorter one that may have been carried out.
    pub(crate) length: Ttl,
    /// When it counts as lost.
    pub(crate) lost_at: Moment,
}

/// Where a hold is in its life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Its guard lives.
    Held,
    /// Its guard is gone; the release is still to be done, here or in the reaper.
    Over,
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
        let Proof { key, token, fences, fence } = proof;
        let holding = Holding::new(&key, &settings, fence, how);
        Self {
            holding,
            key,
            token,
            fences,
            fence,
            relay,
            settings,
            since: granted_at,
            progress_ns: AtomicU64::new(granted_at.as_nanos()),
            process: Process::current(),
            taken_by: AtomicU64::new(rt::caller()),
            state: Mutex::new(State::new(lease, ttl)),
            loss: OnceLock::new(),
            asked: AtomicBool::new(false),
            mode_in_doubt: AtomicBool::new(false),
            in_doubt_ns: AtomicU64::new(0),
            changed: Notify::new(),
            offer: OnceLock::new(),
            resume_ns: AtomicU64::new(0),
            due_ns: AtomicU64::new(0),
            place: AtomicU32::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Records a release request.
    pub(crate) fn ask(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Returns when there is a release request, the guard has ended, the lease is lost, or at
    /// `until`. Cancel safe.
    pub(crate) async fn asked_until(&self, clock: &dyn Clock, until: Moment) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.wait_for_phase() != Phase::Held || self.is_asked() {
                return;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = rt::sleep_until(clock, until.min(self.lost_at())) => return,
            }
        }
    }

    /// Looks at the clock, and reports a loss to all that wait for it.
    pub(crate) fn status(&self, now: Moment) -> LeaseStatus {
        let status = self.look(&mut self.state(), now);
        self.told(status, now)
    }

    fn told(&self, status: LeaseStatus, now: Moment) -> LeaseStatus {
        if status == LeaseStatus::Lost {
            let over = self.was_held_for_longest(now);
            let reason = if over { LossReason::MaxHold } else { LossReason::Expired };
            self.announce_loss(reason, now);
        }
        status
    }

    /// The end of its longest hold, if it has one.
    fn held_until(&self) -> Option<Moment> {
        self.settings.max_hold.map(|longest| self.since.saturating_add(longest))
    }

    fn look(&self, state: &mut State, now: Moment) -> LeaseStatus {
        if self.held_until().is_some_and(|until| now >= until) {
            state.lease.refuted();
        }
        state.lease.status(now)
    }

    fn announce_loss(&self, reason: LossReason, now: Moment) {
        if self.loss.get().is_some() {
            return;
        }
        let unconfirmed_for = now.saturating_since(self.counted_from());
        let error = self.state().failure.clone();
        if self.loss.set(Box::new(Loss { reason, error, unconfirmed_for })).is_ok() {
            let (key, fence) = (&self.key, self.fence());
            let loss = self.loss.get();
            let error = loss.and_then(|loss| loss.error()).map(tracing::field::display);
            let cause = loss.and_then(|loss| loss.cause());
            let (why, of) = (reason.name(), cause.map(Reason::name));
            tracing::warn!(target: LOCK, %key, %fence, reason = why, cause = of, error, "lease lost");
            if self.holding.ended("lost") {
                events::count_by(events::LOST, "reason", reason.name());
                let lost = LockEventKind::Lost { reason, cause };
                self.holding.tell(key, &self.settings, fence, lost);
            }
            #[cfg(leasehold_planted)]
            if leasehold_core::planted::is(leasehold_core::planted::Fault::LossNotTold) {
                return;
            }
            self.changed.notify_waiters();
        }
    }

    /// How it was lost, if it was while its guard lived.
    pub(crate) fn loss(&self, now: Moment) -> Option<&Loss> {
        if self.is_ours() && self.phase() == Phase::Held {
            self.status(now);
        }
        self.loss.get().map(|loss| &**loss)
    }

    pub(crate) fn is_held(&self, now: Moment) -> bool {
        if !self.is_ours() {
            return false;
        }
        let mut state = self.state();
        if state.phase != Phase::Held {
            return false;
        }
        let status = self.look(&mut state, now);
        drop(state);
        self.told(status, now) != LeaseStatus::Lost
    }

    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        if !self.is_held(now) {
            return Duration::ZERO;
        }
        let left = self.state().lease.remaining(now);
        match self.held_until() {
            Some(until) => left.min(until.saturating_since(now)),
            None => left,
        }
    }

    /// When the store may grant the lock to another holder, by this holder's clock.
    pub(crate) fn deadline(&self) -> Moment {
        self.state().lease.deadline()
    }

    /// How long ago the deadline was, if it has passed.
    pub(crate) fn over_for(&self, now: Moment) -> Option<Duration> {
        self.state().over_for(now)
    }

    /// When the request was sent from which the lease counts.
    pub(crate) fn counted_from(&self) -> Moment {
        let state = self.state();
        state.lease.deadline().saturating_sub(state.lease.ttl().duration())
    }

    /// The length to renew to.
    pub(crate) fn ttl(&self) -> Ttl {
        self.state().ttl
    }

    /// What is left of it without a renewal, before it is shared.
    pub(crate) fn lasts_as_granted(&mut self) -> Lasting {
        let held_until = self.held_until();
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).lasting(held_until)
    }

    /// What is left of it without a renewal, while its guard lives.
    pub(crate) fn lasts(&self) -> Option<Lasting> {
        let state = self.state();
        (state.phase == Phase::Held).then(|| state.lasting(self.held_until()))
    }

    /// The length of the last grant or renewal, or a shorter one that may have been carried out.
    pub(crate) fn length(&self) -> Ttl {
        self.state().lasting(self.held_until()).length
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().phase
    }

    /// When the lease counts as lost unless renewed.
    pub(crate) fn lost_at(&self) -> Moment {
        self.state().lasting(self.held_until()).lost_at
    }

    /// Returns when the lease is lost, or its guard has ended. Cancel safe.
    pub(crate) async fn lost(&self, clock: &dyn Clock) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.wait_for_phase() != Phase::Held || self.status(clock.now()) == LeaseStatus::Lost
            {
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

    /// Whether the renewer should renew it.
    pub(crate) fn wants_renewal(&self, now: Moment) -> bool {
        self.settings.renew && !self.is_to_end(now) && !self.is_stalled(now)
    }

    /// Whether it is renewed in the background.
    pub(crate) fn renews(&self) -> bool {
        self.settings.renew
    }

    /// Whether the longest hold has ended, or ends with the lease as it is now.
    fn is_to_end(&self, now: Moment) -> bool {
        let Some(until) = self.held_until() else { return false };
        let lease = self.state().lease;
        let ends =
            lease.deadline().saturating_add(margin(lease.ttl().duration())).saturating_add(ROUNDED);
        now >= until || ends >= until
    }

    /// Whether a lease that is lost now has come to the end of its longest hold.
    pub(crate) fn was_held_for_longest(&self, now: Moment) -> bool {
        // A loss is reported the grace before the end of the lease, which is at most half of it.
        let ttl = self.ttl();
        let last =
            (ttl.duration() / 2).saturating_add(margin(ttl.duration())).saturating_add(ROUNDED);
        self.is_to_end(now)
            && self.held_until().is_some_and(|until| until.saturating_since(now) <= last)
    }

    /// Whether the holder should have reported progress, and has not.
    pub(crate) fn is_stalled(&self, now: Moment) -> bool {
        let last = Moment::from_nanos(self.progress_ns.load(Ordering::Relaxed));
        self.settings.progress_within.is_some_and(|limit| now.saturating_since(last) > limit)
    }

    /// Records that the holder made progress.
    pub(crate) fn progress(&self, now: Moment) {
        self.progress_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Reports an event to its readers.
    pub(crate) fn tell(&self, what: LockEventKind) {
        self.holding.tell(&self.key, &self.settings, self.fence, what);
    }

    /// Notes how the work ended.
    pub(crate) fn note_result(&self, result: &str) {
        self.holding.note_result(result);
    }

    /// Has the end of the phase notified; returns the current one. A fork's child has no lease to
    /// wait for.
    fn wait_for_phase(&self) -> Phase {
        if !self.is_ours() {
            return Phase::Over;
        }
        let mut state = self.state();
        state.waited_for = true;
        state.phase
    }
}
