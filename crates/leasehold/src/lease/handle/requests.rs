//! The requests for a lease, and how long each of them is under way.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Admission, Cooldown, Due, Ended, Error, Lasting, LengthChange, Moment, Reason, ReleaseRequest,
    RenewRequest, Renewal, Ttl,
};

use crate::lease::handle::LeaseHandle;

/// A lease with a request of its own under way. Dropping it, at any point, ends that.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<LeaseHandle>);

impl UnderWay {
    /// Of a request that another task has sent.
    pub(crate) fn begin(lease: &Arc<LeaseHandle>) -> Self {
        lease.on(|lease| lease.request_started());
        Self(Arc::clone(lease))
    }
}

impl Deref for UnderWay {
    type Target = Arc<LeaseHandle>;

    fn deref(&self) -> &Arc<LeaseHandle> {
        &self.0
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.on(|lease| lease.request_done());
    }
}

/// A renewal to send.
#[derive(Debug)]
pub(crate) struct Renewing {
    pub(crate) lease: UnderWay,
    pub(crate) request: RenewRequest,
    /// What is left of the lease without it.
    pub(crate) lasting: Lasting,
}

/// What a lease needs that is due.
#[derive(Debug)]
pub(crate) enum Needs {
    Renewal(Renewing),
    /// Another look at this moment.
    Look(Moment),
    /// Nothing more.
    Nothing,
    /// The next contender, or a release.
    Successor,
}

/// The last request of a lease, by which the store learns of its end.
#[derive(Debug)]
pub(crate) struct LastRequest {
    pub(crate) request: ReleaseRequest,
    /// How long ago its deadline was, if that has passed.
    pub(crate) over_for: Option<Duration>,
    /// Whether no other request with the lease's token is under way, which
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
    /// The renewal to send now, if one may be sent.
    pub(crate) fn may_renew(self: &Arc<Self>, now: Moment) -> Admission<Renewing> {
        self.on(|lease| lease.may_renew(now)).map(|renewal| self.renewing(renewal))
    }

    /// What it needs now that it is due.
    pub(crate) fn due(self: &Arc<Self>, now: Moment) -> Needs {
        match self.on(|lease| lease.due(now)) {
            Due::Renew(renewal) => Needs::Renewal(self.renewing(renewal)),
            Due::Look(at) => Needs::Look(at),
            Due::Forget => Needs::Nothing,
            Due::TakenBack => Needs::Successor,
        }
    }

    fn renewing(self: &Arc<Self>, Renewal { ttl, lasting }: Renewal) -> Renewing {
        let lease = UnderWay(Arc::clone(self));
        Renewing { lease, request: self.renewal(ttl), lasting }
    }

    pub(crate) fn renewal(&self, ttl: Ttl) -> RenewRequest {
        RenewRequest::new(self.key.clone(), self.token, self.fences, ttl)
    }

    /// The request that changes the length. [`LeaseMachine::change_done`] must follow.
    ///
    /// [`LeaseMachine::change_done`]: leasehold_core::LeaseMachine::change_done
    pub(crate) fn change_length(
        &self,
        ttl: Ttl,
        now: Moment,
    ) -> Admission<(RenewRequest, LengthChange)> {
        self.on(|lease| lease.change_length(ttl, now)).map(|change| {
            let mut request = self.renewal(ttl);
            request.shorten = true;
            (request, change)
        })
    }

    /// Records that a renewal failed; returns whether the lease may still hold. If the store's
    /// directory was moved or removed, its leases are void: other processes use another one.
    pub(crate) fn renewal_failed(&self, error: &Error, now: Moment) -> bool {
        let is_void = error.reason() == Some(Reason::DirectoryGone);
        self.on(|lease| {
            lease.renewal_failed(error.clone());
            if is_void {
                lease.refuted(now);
            }
        });
        !is_void
    }

    /// Ends the hold, and returns the request for the store; `None` if another caller did so
    /// before.
    pub(crate) fn begin_end(&self, afterwards: Afterwards, now: Moment) -> Option<LastRequest> {
        let Ended { in_time, over_for, is_settled } = self.on(|lease| lease.end(now))?;
        self.holding.ended("ended");
        let mut request = ReleaseRequest::new(self.key.clone(), self.token, self.fences);
        request.in_time = in_time;
        match afterwards {
            Afterwards::AsGranted => {}
            Afterwards::Closed(cooldown) => request.cooldown = cooldown,
            Afterwards::Open => request.reopen = true,
        }
        Some(LastRequest { request, over_for, is_settled })
    }
}
