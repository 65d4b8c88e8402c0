//! A lease that this process has: what its guard, the renewer and the reaper share.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use leasehold_clock::Process;
use leasehold_core::{
    Clock, Cooldown, Error, Fence, FenceBlock, Key, LeaseState, LeaseStatus, Moment, Reason,
    ReleaseRequest, RenewRequest, Token, Ttl, margin,
};
use tokio::sync::Notify;

use crate::LOCK;
use crate::audit::{LockEventKind, LossReason};
use crate::events::{self, Holding};
use crate::lease::loss::Loss;
use crate::rt;
use crate::settings::Settings;

/// What a length loses at most by being told in whole milliseconds.
const ROUNDED: Duration = Duration::from_millis(1);

/// How often and until when a lease may be handed on inside this process before its release has
/// to go through the store, where others may wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Relay {
    pub(crate) handoffs: u32,
    pub(crate) until: Moment,
}

/// A lease on its way to its next holder in this process, to be taken by one side only.
pub(crate) trait Offered: fmt::Debug + Send + Sync {
    /// Whether it has not been taken yet.
    fn is_there(&self) -> bool;

    /// Gives it to the next, or back to the store, unless it was taken.
    fn take_back(&self);
}

/// What a lease is known by, here and to the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Proof {
    pub(crate) key: Key,
    pub(crate) token: Token,
    /// The fences that came with the grant; requests name them.
    pub(crate) fences: FenceBlock,
    /// The holder's own, one of them.
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
    /// What the lock value was told.
    pub(crate) settings: Arc<Settings>,
    /// From when on its longest hold is counted.
    since: Moment,
    /// When the holder last said that it gets on, in nanoseconds.
    progress_ns: AtomicU64,
    process: Process,
    /// The task or thread that took it.
    taken_by: AtomicU64,
    state: Mutex<State>,
    /// How it was lost, once that was told.
    loss: OnceLock<Box<Loss>>,
    /// Whether the holder is asked to let go.
    asked: AtomicBool,
    /// Whether a change to a weaker mode was not answered: carried out late, it would weaken
    /// whatever this lease has become by then.
    mode_in_doubt: AtomicBool,
    changed: Notify,
    /// For the log and metrics.
    holding: Holding,
    /// The way to the one that it was handed to in this process, and until when it is open.
    offer: OnceLock<Box<(Weak<dyn Offered>, Moment)>>,
    /// When the renewer is to look again once an offer was taken, in nanoseconds.
    pub(crate) resume_ns: AtomicU64,
    /// The hold's moment in the schedule, in nanoseconds, and its place there; only touched under the
    /// schedule's lock.
    pub(crate) due_ns: AtomicU64,
    pub(crate) place: AtomicU32,
}

#[derive(Debug)]
struct State {
    lease: LeaseState,
    /// The length to renew to; a lease handed over in line may be shorter at first.
    ttl: Ttl,
    phase: Phase,
    requests_in_flight: u32,
    /// Whether a change was ever waited for; until then there are no waiters to be looked for.
    waited_for: bool,
    /// Whether one of them changes the length; no other renewal runs beside it, because whichever
    /// came last at the store would decide.
    changing: bool,
    /// The shortest length that was asked for and not answered. The store may carry that out at
    /// any later moment, so no answer proves more than this length from its own request on.
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

    /// What is left without a renewal of a lease that is held until then at most.
    fn lasting(&self, held_until: Option<Moment>) -> Lasting {
        let lost_at = self.lease.lost_at();
        Lasting {
            length: self.proven(self.lease.ttl()),
            lost_at: held_until.map_or(lost_at, |until| lost_at.min(until)),
        }
    }

    /// How long ago the deadline was, if it is over.
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

/// Whether a lease's length can be changed now.
#[derive(Debug)]
pub(crate) enum Change {
    /// This request does it. [`LeaseHandle::change_done`] must follow.
    Start(RenewRequest, Before),
    /// Not while another request is on the way.
    Wait,
    /// The lease is over.
    Over,
}

/// Whether a lease can be renewed now.
pub(crate) enum MayRenew {
    /// By this request; what it lasts without it. [`LeaseHandle::request_done`] must follow.
    Start(RenewRequest, Lasting),
    /// Not while its length is being changed.
    Wait,
    /// The lease is over.
    Over,
}

/// Whether a lease's mode can be changed now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ModeChange {
    /// The caller does it.
    Start,
    /// Not while another request is on the way.
    Wait,
    /// The lease is over.
    Over,
}

/// What a change of length was begun on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    lease: LeaseState,
    shortest: Option<Ttl>,
}

/// How the store is told that a lease is over.
#[derive(Debug)]
pub(crate) struct LastRequest {
    pub(crate) request: ReleaseRequest,
    /// How long ago its deadline was, if that is over.
    pub(crate) over_for: Option<Duration>,
    /// Whether no other request with the lease's token is on the way, which [`LeaseHandle::settled`] waits
    /// for; once the guard's life is over none is begun.
    pub(crate) is_settled: bool,
}

/// How a lease leaves its lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Afterwards {
    /// Closed for as long as its grant said, if it did.
    AsGranted,
    /// Closed for so long.
    Closed(Cooldown),
    /// Open, also if its grant closed it.
    Open,
}

/// Where a hold is in its life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Its guard lives.
    Held,
    /// Its guard is gone; what is left to do is the release, here or in the reaper.
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

    /// Whether it may go from holder to holder inside this process.
    pub(crate) const fn may_be_handed_on(&self) -> bool {
        self.relay.handoffs > 0
    }

    /// The hold of the next in this process's own line, under the same lease with the next fence.
    /// `None` when the lease has to go back through the store. On success this hold has ended.
    pub(crate) fn hand_on(&self, now: Moment) -> Option<Self> {
        let Relay { handoffs, until } = self.relay;
        let fence = self.fence.saturating_add(1);
        #[cfg(leasehold_planted)]
        let same = leasehold_core::planted::is(leasehold_core::planted::Fault::LocalFenceRepeats);
        #[cfg(leasehold_planted)]
        let fence = if same { self.fence } else { fence };
        let mut state = self.state();
        let may = self.is_ours()
            && !self.is_asked()
            && handoffs > 0
            && now < until
            && self.fences.contains(fence)
            && state.phase == Phase::Held
            && state.requests_in_flight == 0
            && state.shortest.is_none()
            && self.settings.ttl == state.ttl
            && self.look(&mut state, now) == LeaseStatus::Held
            && state.lease.remaining(now) > state.lease.ttl().duration() / 4;
        if !may {
            return None;
        }
        let began = LockEventKind::HandedOn { from: self.fence };
        let next = self.succeed(&mut state, now, fence, ("handed_on", began));
        drop(state);
        self.changed.notify_waiters();
        Some(Self {
            relay: Relay { handoffs: handoffs.saturating_sub(1), until },
            since: now,
            ..next
        })
    }

    /// Takes in that the lease waits until then to be taken in this process.
    pub(crate) fn offered(&self, offered: Weak<dyn Offered>, until: Moment) {
        self.offer.get_or_init(|| Box::new((offered, until)));
    }

    /// Whether it came from a holder of this process: then it may wait to be taken, or have a renewal of that
    /// one's before it.
    pub(crate) fn was_handed_on(&self) -> bool {
        self.offer.get().is_some() || self.resume_ns.load(Ordering::Relaxed) != 0
    }

    /// Until when the lease waits to be taken, if it has not been.
    pub(crate) fn is_offered_until(&self) -> Option<Moment> {
        let (offered, until) = &**self.offer.get()?;
        offered.upgrade().filter(|offered| offered.is_there()).map(|_| *until)
    }

    /// Takes in that the caller has taken it from another one of this process.
    pub(crate) fn taken(&self) {
        self.taken_by.store(rt::caller(), Ordering::Relaxed);
    }

    /// Whether this task or thread took it.
    pub(crate) fn is_of(&self, caller: u64) -> bool {
        self.taken_by.load(Ordering::Relaxed) == caller
    }

    /// Ends the wait to be taken.
    pub(crate) fn take_back(&self) {
        if let Some(offered) = self.offer.get().and_then(|offer| offer.0.upgrade()) {
            offered.take_back();
        }
    }

    /// The hold of the same lease in another mode, with the fences that it has then. `None` when
    /// the guard's life is over, or the lease lost. On success this hold has ended.
    pub(crate) fn in_mode(
        &self,
        settings: Arc<Settings>,
        fences: FenceBlock,
        now: Moment,
    ) -> Option<Self> {
        let mut state = self.state();
        if !self.is_ours()
            || state.phase != Phase::Held
            || self.look(&mut state, now) == LeaseStatus::Lost
        {
            return None;
        }
        let fence = if fences == self.fences { self.fence } else { fences.first() };
        let began = LockEventKind::Changed { from: self.fence };
        let next = self.succeed(&mut state, now, fence, ("changed", began));
        drop(state);
        self.changed.notify_waiters();
        Some(Self { settings, fences, ..next })
    }

    /// Ends this hold, for this `why`, and makes the next one of the same lease, which began like this.
    fn succeed(
        &self,
        state: &mut State,
        now: Moment,
        fence: Fence,
        (why, began): (&'static str, LockEventKind),
    ) -> Self {
        state.phase = Phase::Over;
        self.holding.ended(why);
        let (shortest, failure) = (state.shortest, state.failure.clone());
        let next = State { shortest, failure, ..State::new(state.lease, state.ttl) };
        Self {
            key: self.key.clone(),
            token: self.token,
            fences: self.fences,
            fence,
            holding: Holding::new(&self.key, &self.settings, fence, began),
            relay: Relay::default(),
            settings: Arc::clone(&self.settings),
            since: self.since,
            progress_ns: AtomicU64::new(now.as_nanos()),
            process: self.process,
            taken_by: AtomicU64::new(self.taken_by.load(Ordering::Relaxed)),
            state: Mutex::new(next),
            loss: OnceLock::new(),
            asked: AtomicBool::new(self.is_asked()),
            mode_in_doubt: AtomicBool::new(self.mode_in_doubt.load(Ordering::Acquire)),
            changed: Notify::new(),
            offer: OnceLock::new(),
            resume_ns: AtomicU64::new(0),
            due_ns: AtomicU64::new(0),
            place: AtomicU32::new(0),
        }
    }

    /// Begins to change the mode; no renewal starts beside it. [`LeaseHandle::change_done`] must follow.
    pub(crate) fn start_mode_change(&self, now: Moment) -> ModeChange {
        let mut state = self.state();
        if state.phase != Phase::Held || self.look(&mut state, now) == LeaseStatus::Lost {
            return ModeChange::Over;
        }
        if state.requests_in_flight > 0 {
            return ModeChange::Wait;
        }
        state.requests_in_flight = 1;
        state.changing = true;
        ModeChange::Start
    }

    /// A change to a weaker mode was not answered.
    pub(crate) fn mode_is_in_doubt(&self) {
        self.mode_in_doubt.store(true, Ordering::Release);
    }

    pub(crate) fn is_mode_in_doubt(&self) -> bool {
        self.mode_in_doubt.load(Ordering::Acquire)
    }

    /// Takes in that the holder is asked to let go.
    pub(crate) fn ask(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Returns when the holder is asked to let go, its guard's life is over, the lease is lost, or
    /// at `until`. Cancel safe.
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

    /// Looks at the clock and makes a loss known to all that wait for it.
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

    /// When its longest hold is over, if it has one.
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

    /// When the store may grant the lock to another holder, as far as this holder knows.
    pub(crate) fn deadline(&self) -> Moment {
        self.state().lease.deadline()
    }

    /// How long ago the deadline was, if it is over.
    pub(crate) fn over_for(&self, now: Moment) -> Option<Duration> {
        self.state().over_for(now)
    }

    /// When the request was sent that the lease is counted from.
    pub(crate) fn counted_from(&self) -> Moment {
        let state = self.state();
        state.lease.deadline().saturating_sub(state.lease.ttl().duration())
    }

    /// The length to renew to.
    pub(crate) fn ttl(&self) -> Ttl {
        self.state().ttl
    }

    /// What is left of it without a renewal, before others have it.
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

    /// Returns when the lease is lost, or its guard's life is over. Cancel safe.
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
            // The deadline is watched here too: loss must be told even when the renewer starves.
            tokio::select! {
                biased;
                () = changed => {}
                () = rt::sleep_until(clock, self.lost_at()) => {}
            }
        }
    }

    /// Whether it is the renewer's business.
    pub(crate) fn wants_renewal(&self, now: Moment) -> bool {
        self.settings.renew && !self.is_to_end(now) && !self.is_stalled(now)
    }

    /// Whether it is kept alive in the background.
    pub(crate) fn renews(&self) -> bool {
        self.settings.renew
    }

    /// Whether the longest hold is over, or the lease runs to its end and no further.
    fn is_to_end(&self, now: Moment) -> bool {
        let Some(until) = self.held_until() else { return false };
        let lease = self.state().lease;
        let ends = lease.deadline().saturating_add(margin(lease.ttl())).saturating_add(ROUNDED);
        now >= until || ends >= until
    }

    /// Whether a lease that is lost now has come to the end of its longest hold.
    pub(crate) fn was_held_for_longest(&self, now: Moment) -> bool {
        // A loss is told the grace before the end of the lease, which is at most half of it.
        let ttl = self.ttl();
        let last = (ttl.duration() / 2).saturating_add(margin(ttl)).saturating_add(ROUNDED);
        self.is_to_end(now)
            && self.held_until().is_some_and(|until| until.saturating_since(now) <= last)
    }

    /// Whether the holder was to say that it gets on, and has not.
    pub(crate) fn is_stalled(&self, now: Moment) -> bool {
        let last = Moment::from_nanos(self.progress_ns.load(Ordering::Relaxed));
        self.settings.progress_within.is_some_and(|limit| now.saturating_since(last) > limit)
    }

    /// The holder says that it gets on.
    pub(crate) fn progress(&self, now: Moment) {
        self.progress_ns.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// The renewal to send now, and what the lease lasts without it; `None` when the lease is over, or
    /// its length is being changed.
    /// [`LeaseHandle::request_done`] must follow.
    pub(crate) fn start_renewal(&self, now: Moment) -> Option<(RenewRequest, Lasting)> {
        match self.may_renew(now) {
            MayRenew::Start(request, lasting) => Some((request, lasting)),
            MayRenew::Wait | MayRenew::Over => None,
        }
    }

    /// As [`start_renewal`](Self::start_renewal), and tells a change of the length, which comes to an end,
    /// from the end of the lease.
    pub(crate) fn may_renew(&self, now: Moment) -> MayRenew {
        let mut state = self.state();
        if state.phase != Phase::Held || self.look(&mut state, now) == LeaseStatus::Lost {
            return MayRenew::Over;
        }
        if state.changing {
            return MayRenew::Wait;
        }
        // The store is not to keep the lock for longer than it may be held.
        let ttl = match self.held_until().map(|until| Ttl::new(until.saturating_since(now))) {
            Some(Ok(left)) => left.min(state.ttl),
            Some(Err(_)) => return MayRenew::Over,
            None => state.ttl,
        };
        state.requests_in_flight = state.requests_in_flight.saturating_add(1);
        let lasting = state.lasting(self.held_until());
        drop(state);
        let request = RenewRequest::new(self.key.clone(), self.token, self.fences, ttl);
        MayRenew::Start(request, lasting)
    }

    /// Begins to change the length, which may make the lease shorter. From here on this side
    /// believes in the shorter of the two.
    pub(crate) fn start_change(&self, ttl: Ttl, now: Moment) -> Change {
        let mut state = self.state();
        if state.phase != Phase::Held || self.look(&mut state, now) == LeaseStatus::Lost {
            return Change::Over;
        }
        if state.requests_in_flight > 0 {
            return Change::Wait;
        }
        state.requests_in_flight = 1;
        state.changing = true;
        let before = Before { lease: state.lease, shortest: state.shortest };
        state.lease.may_shorten(now, ttl);
        state.shortest = Some(state.proven(ttl));
        drop(state);
        self.changed.notify_waiters();
        let mut request = RenewRequest::new(self.key.clone(), self.token, self.fences, ttl);
        request.shorten = true;
        Change::Start(request, before)
    }

    /// Takes in that the store has changed the length; whether the lease still holds.
    pub(crate) fn length_changed(
        &self,
        before: Before,
        sent_at: Moment,
        ttl: Ttl,
        now: Moment,
    ) -> bool {
        let mut state = self.state();
        state.shortest = before.shortest;
        let proven = state.proven(ttl);
        let held = state.lease.renewed(sent_at, proven, true, now);
        state.ttl = ttl;
        state.failure = state.failure.take().filter(|_| !held);
        drop(state);
        self.changed.notify_waiters();
        if !held {
            self.announce_loss(LossReason::Expired, now);
        }
        held
    }

    /// Takes in that the store has certainly not changed the length.
    pub(crate) fn length_unchanged(&self, before: Before, now: Moment) {
        let mut state = self.state();
        state.shortest = before.shortest;
        state.lease.not_shortened(&before.lease, now);
    }

    /// The request that was to change the length is no longer on the way.
    pub(crate) fn change_done(&self) {
        self.state().changing = false;
        self.request_done();
    }

    /// Counts a request with this lease's token that another task has on the way.
    pub(crate) fn request_started(&self) {
        let mut state = self.state();
        state.requests_in_flight = state.requests_in_flight.saturating_add(1);
    }

    pub(crate) fn request_done(&self) {
        let mut state = self.state();
        state.requests_in_flight = state.requests_in_flight.saturating_sub(1);
        if state.requests_in_flight == 0 && state.waited_for {
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Takes in a renewal's success; what the lease lasts if it still holds.
    pub(crate) fn renewed(&self, sent_at: Moment, ttl: Ttl, now: Moment) -> Option<Lasting> {
        let mut state = self.state();
        let proven = state.proven(ttl);
        let held = state.lease.renewed(sent_at, proven, false, now);
        state.failure = state.failure.take().filter(|_| !held);
        let lasting = state.lasting(self.held_until());
        drop(state);
        if !held {
            self.announce_loss(LossReason::Expired, now);
        }
        held.then_some(lasting)
    }

    /// Takes in that a renewal failed; whether the lease may hold all the same. The leases of a store that
    /// is not in its place any more are void: others meet in another.
    pub(crate) fn renewal_failed(&self, error: &Error, now: Moment) -> bool {
        let mut state = self.state();
        state.lease.renewal_failed();
        state.failure = Some(error.clone());
        drop(state);
        let is_void = error.reason() == Some(Reason::DirectoryGone);
        if is_void {
            self.refuted(now);
        }
        !is_void
    }

    /// Takes in the store's word that the lease is not ours.
    pub(crate) fn refuted(&self, now: Moment) {
        self.state().lease.refuted();
        self.announce_loss(LossReason::Refuted, now);
    }

    /// Whether this length would leave time to work.
    pub(crate) fn can_be(&self, ttl: Ttl) -> bool {
        self.state().lease.can_be(ttl)
    }

    /// Moves on from [`Phase::Held`], and says how the store is told; `None` if another caller did before.
    pub(crate) fn begin_end(&self, afterwards: Afterwards, now: Moment) -> Option<LastRequest> {
        let mut state = self.state();
        if state.phase != Phase::Held {
            return None;
        }
        state.phase = Phase::Over;
        let in_time = self.look(&mut state, now) != LeaseStatus::Lost;
        let (waited_for, is_settled) = (state.waited_for, state.requests_in_flight == 0);
        let over_for = state.over_for(now);
        drop(state);
        self.holding.ended("ended");
        if waited_for {
            self.changed.notify_waiters();
        }
        let mut request = ReleaseRequest::new(self.key.clone(), self.token, self.fences);
        request.in_time = in_time;
        match afterwards {
            Afterwards::AsGranted => {}
            Afterwards::Closed(cooldown) => request.cooldown = cooldown,
            Afterwards::Open => request.reopen = true,
        }
        Some(LastRequest { request, over_for, is_settled })
    }

    /// Tells those who listen what became of it.
    pub(crate) fn tell(&self, what: LockEventKind) {
        self.holding.tell(&self.key, &self.settings, self.fence, what);
    }

    /// Notes how the work ended.
    pub(crate) fn note_result(&self, result: &str) {
        self.holding.note_result(result);
    }

    /// Returns once no request with this token is on the way, so that a release sent after it is
    /// the last word. Each request has its own deadline, so this ends. Cancel safe.
    pub(crate) async fn settled(&self) {
        // Most often there is none, and nothing to be told of.
        while self.wait_for_requests() {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.wait_for_requests() {
                changed.await;
            }
        }
    }

    /// Has the end of the last request told; `false` when none is on the way.
    fn wait_for_requests(&self) -> bool {
        let mut state = self.state();
        let waits = state.requests_in_flight > 0;
        state.waited_for |= waits;
        waits
    }

    /// Has the end of the phase told; which one it is. A fork's child holds nothing, and is told of nothing.
    fn wait_for_phase(&self) -> Phase {
        if !self.is_ours() {
            return Phase::Over;
        }
        let mut state = self.state();
        state.waited_for = true;
        state.phase
    }
}
