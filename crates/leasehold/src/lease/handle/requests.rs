//! Orders the requests for a lease, and applies their answers to it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::{
    Cooldown, Error, LeaseState, LeaseStatus, Moment, Reason, ReleaseRequest, RenewRequest, Ttl,
};

use crate::audit::LossReason;
use crate::lease::handle::{Lasting, LeaseHandle, Phase};

/// Whether a lease's length can be changed now.
#[derive(Debug)]
pub(crate) enum Change {
    /// With this request. [`LeaseHandle::change_done`] must follow.
    Start(RenewRequest, Before),
    /// Not while another request is on the way.
    Wait,
    /// The lease has ended.
    Over,
}

/// Whether a lease can be renewed now.
pub(crate) enum MayRenew {
    /// With this request; what is left of the lease without it. [`LeaseHandle::request_done`] must
    /// follow.
    Start(RenewRequest, Lasting),
    /// Not while its length is being changed.
    Wait,
    /// The lease has ended.
    Over,
}

/// Whether a lease's mode can be changed now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ModeChange {
    /// The caller sends the request.
    Start,
    /// Not while another request is on the way.
    Wait,
    /// The lease has ended.
    Over,
}

/// The state before a change of length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    lease: LeaseState,
    shortest: Option<Ttl>,
}

/// The last request of a lease, by which the store learns of its end.
#[derive(Debug)]
pub(crate) struct LastRequest {
    pub(crate) request: ReleaseRequest,
    /// How long ago its deadline was, if that has passed.
    pub(crate) over_for: Option<Duration>,
    /// Whether no other request with the lease's token is on the way, which
    /// [`LeaseHandle::settled`] waits for. Once the guard has ended, no other begins.
    pub(crate) is_settled: bool,
}

/// Whether a lease leaves a cooldown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Afterwards {
    /// The cooldown of its grant, if there was one.
    AsGranted,
    /// This cooldown.
    Closed(Cooldown),
    /// None, even if its grant had one.
    Open,
}

impl LeaseHandle {
    /// The renewal to send now, and what is left of the lease without it. `None` when the lease has
    /// ended, or its length is being changed. [`LeaseHandle::request_done`] must follow.
    pub(crate) fn start_renewal(&self, now: Moment) -> Option<(RenewRequest, Lasting)> {
        match self.may_renew(now) {
            MayRenew::Start(request, lasting) => Some((request, lasting)),
            MayRenew::Wait | MayRenew::Over => None,
        }
    }

    /// As [`start_renewal`](Self::start_renewal), but distinguishes a change of the length, which
    /// will finish, from the end of the lease.
    pub(crate) fn may_renew(&self, now: Moment) -> MayRenew {
        let mut state = self.state();
        if state.phase != Phase::Held || self.look(&mut state, now) == LeaseStatus::Lost {
            return MayRenew::Over;
        }
        if state.changing {
            return MayRenew::Wait;
        }
        // A store must not keep the lock for longer than it may be held.
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

    /// Begins to change the length, which may make the lease shorter. From here on this side counts
    /// on the shorter of the two.
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

    /// Records that the store has changed the length; returns whether the lease still holds.
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

    /// Records that the store has certainly not changed the length.
    pub(crate) fn length_unchanged(&self, before: Before, now: Moment) {
        let mut state = self.state();
        state.shortest = before.shortest;
        state.lease.not_shortened(&before.lease, now);
    }

    /// Begins to change the mode; no renewal starts meanwhile. [`LeaseHandle::change_done`] must
    /// follow.
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

    /// Records that a change to a weaker mode was not answered.
    pub(crate) fn mode_is_in_doubt(&self) {
        self.mode_in_doubt.store(true, Ordering::Release);
    }

    pub(crate) fn is_mode_in_doubt(&self) -> bool {
        self.mode_in_doubt.load(Ordering::Acquire)
    }

    /// Records that an acquisition with the lease's token was not answered, and may be carried out
    /// until then. After the lease's release it would take the lock without a holder.
    pub(crate) fn is_in_doubt_until(&self, until: Moment) {
        self.in_doubt_ns.fetch_max(until.as_nanos(), Ordering::AcqRel);
    }

    /// Until when an unanswered acquisition may be carried out.
    pub(crate) fn in_doubt_until(&self) -> Option<Moment> {
        let until = self.in_doubt_ns.load(Ordering::Acquire);
        (until > 0).then(|| Moment::from_nanos(until))
    }

    /// Records that the request to change the length is no longer on the way.
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

    /// Records a renewal's success; returns what is left of the lease if it still holds.
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

    /// Records that a renewal failed; returns whether the lease may still hold. If the store's
    /// directory was moved or removed, its leases are void: other processes use another one.
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

    /// Records the store's answer that this lease is not held.
    pub(crate) fn refuted(&self, now: Moment) {
        self.state().lease.refuted();
        self.announce_loss(LossReason::Refuted, now);
    }

    /// Whether this length would leave time to work.
    pub(crate) fn can_be(&self, ttl: Ttl) -> bool {
        self.state().lease.can_be(ttl)
    }

    /// Leaves [`Phase::Held`], and returns the request for the store; `None` if another caller did
    /// so before.
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

    /// Returns once no request with this token is on the way, so that a release sent after it is
    /// the last request. Each request has its own deadline, so this ends. Cancel safe.
    pub(crate) async fn settled(&self) {
        // Mostly none is on the way, and no notification is needed.
        while self.wait_for_requests() {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.wait_for_requests() {
                changed.await;
            }
        }
    }

    /// Has the end of the last request notified; `false` when none is on the way.
    fn wait_for_requests(&self) -> bool {
        let mut state = self.state();
        let waits = state.requests_in_flight > 0;
        state.waited_for |= waits;
        waits
    }
}
