//! A held lease as a pure machine: events and the time go in, answers and actions come out.
//!
//! It decides what a client does with a lease from the grant to the release. It says when to renew,
//! which requests may run side by side, and when the lease is lost. It also says whether the next
//! contender of the process may have it. The client carries out the [`Actions`] after each event.
//!
//! The machine promises four things, whatever the order of events. A lost lease stays lost. No
//! renewal begins after the end. No request to change the lease runs beside a renewal. The first
//! loss is the one that is reported.

use std::time::Duration;

use crate::clock::Moment;
use crate::lease::{LeaseState, LeaseStatus, margin};
use crate::ttl::Ttl;

/// What a length loses at most because it is sent in whole milliseconds.
const ROUNDED: Duration = Duration::from_millis(1);

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum LossReason {
    /// The store says that it is not held: it was force-released, or the store has forgotten it, or
    /// the store's directory was moved or removed.
    Refuted,
    /// It expired before a renewal was answered.
    Expired,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
}

impl LossReason {
    /// One word that means the same in every version: `refuted`, `expired` or `max_hold`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refuted => "refuted",
            Self::Expired => "expired",
            Self::MaxHold => "max_hold",
        }
    }
}

/// What decides whether a lease is renewed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "a client sets all of them")]
pub struct HoldTerms {
    /// Whether it is renewed in the background.
    pub renews: bool,
    /// How long one holder may hold it.
    pub max_hold: Option<Duration>,
    /// How often the holder has to report progress.
    pub progress_within: Option<Duration>,
}

/// How often and until when a lease may be handed off inside its process, before its release has to
/// go through the store, where others may wait.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "a client sets both")]
pub struct Relay {
    /// How often.
    pub handoffs: u32,
    /// Until when.
    pub until: Moment,
}

/// Whether a request for a lease may be sent now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a client must handle each of them")]
pub enum Admission<T> {
    /// It may, with this. The event of its end must follow.
    Start(T),
    /// Not while another request is under way.
    Wait,
    /// The lease has ended.
    Over,
}

impl<T> Admission<T> {
    /// The admission of what `make` makes of the content.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Admission<U> {
        match self {
            Self::Start(admitted) => Admission::Start(make(admitted)),
            Self::Wait => Admission::Wait,
            Self::Over => Admission::Over,
        }
    }
}

/// What is left of a lease without a renewal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "only the machine makes it")]
pub struct Lasting {
    /// The length of the last grant or renewal, or a shorter one that may have been carried out.
    pub length: Ttl,
    /// When it counts as lost.
    pub lost_at: Moment,
}

/// A renewal to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "only the machine makes it")]
pub struct Renewal {
    /// The length to renew to.
    pub ttl: Ttl,
    /// What is left without it.
    pub lasting: Lasting,
}

/// What a lease needs that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a client must handle each of them")]
pub enum Due {
    /// A renewal. [`LeaseMachine::request_done`] must follow.
    Renew(Renewal),
    /// Nothing before this moment.
    Look(Moment),
    /// Nothing more: it is lost.
    Forget,
    /// The next contender, or a release: the contender to which it was offered did not take it.
    TakenBack,
}

/// A change of a lease's length that is under way, for the event of its answer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LengthChange {
    ttl: Ttl,
    sent_at: Moment,
    before: LeaseState,
    shortest: Option<Ttl>,
}

/// The end of a hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "only the machine makes it")]
pub struct Ended {
    /// Whether it was held until then.
    pub in_time: bool,
    /// How long ago its deadline was, if that has passed.
    pub over_for: Option<Duration>,
    /// Whether no request with the lease's token is under way. Once the hold has ended, no other
    /// begins.
    pub is_settled: bool,
}

/// A loss.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "only the machine makes it")]
pub struct Lost {
    /// What ended the lease.
    pub reason: LossReason,
    /// How long before the loss the last confirmed request was sent.
    pub unconfirmed_for: Duration,
}

/// What a client has to do after an event.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "a client must carry out each of them")]
pub struct Actions {
    /// Wake the tasks that wait for a change.
    pub notify: bool,
    /// Report the loss.
    pub lost: bool,
}

/// How the lease comes from a holder of this process to the next one.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Handover {
    /// It is with its holder.
    None,
    /// A contender may take it until then. The renewer looks at `resume` as it would have done.
    Offered { until: Moment, resume: Moment },
    /// It was taken, or taken back, and needs no renewal before `resume`.
    Taken { resume: Moment },
}

/// The state of one hold of a lease. `E` is the error of a failed renewal.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeaseMachine<E> {
    lease: LeaseState,
    /// The length to renew to; a lease granted from the queue may be shorter at first.
    ttl: Ttl,
    /// The shortest length that was requested and not answered. The store may carry that out at any
    /// later moment, so no answer proves more than this length from its own request on.
    shortest: Option<Ttl>,
    terms: HoldTerms,
    relay: Relay,
    handover: Handover,
    /// The task or thread that took it.
    holder: u64,
    /// When its longest hold begins.
    since: Moment,
    /// When the holder last reported progress.
    progress_at: Moment,
    is_over: bool,
    /// Requests with the lease's token that may run side by side.
    requests: u32,
    /// Whether a request changes the length or the mode. No other begins then: the last one to
    /// reach the store would decide.
    is_changing: bool,
    /// How the last renewal failed, if none succeeded after it.
    failure: Option<E>,
    loss: Option<Lost>,
    /// Whether there is a release request.
    is_asked: bool,
    /// Whether a change to a weaker mode was not answered. If the store carries it out later, it
    /// weakens whatever this lease is by then.
    is_mode_in_doubt: bool,
    /// Until when an unanswered acquisition with the lease's token may be carried out.
    in_doubt_until: Option<Moment>,
    /// Whether a task ever waited for a change; until then none has to be notified.
    is_watched: bool,
    actions: Actions,
}

/// Reading.
impl<E> LeaseMachine<E> {
    /// When the store may grant the lock to another holder, by this holder's clock.
    #[must_use]
    pub const fn deadline(&self) -> Moment {
        self.lease.deadline()
    }

    /// How long ago the deadline was, if it has passed.
    #[must_use]
    pub fn over_for(&self, now: Moment) -> Option<Duration> {
        Some(now.saturating_since(self.deadline())).filter(|over_for| !over_for.is_zero())
    }

    /// When the request was sent from which the lease counts.
    #[must_use]
    pub const fn counted_from(&self) -> Moment {
        self.deadline().saturating_sub(self.lease.ttl().duration())
    }

    /// The length to renew to.
    #[must_use]
    pub const fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// Whether this length would leave time to work.
    #[must_use]
    pub fn can_be(&self, ttl: Ttl) -> bool {
        self.lease.can_be(ttl)
    }

    /// What is left of it without a renewal.
    #[must_use]
    pub fn lasting(&self) -> Lasting {
        let lost_at = self.lease.lost_at();
        Lasting {
            length: self.proven(self.lease.ttl()),
            lost_at: self.held_until().map_or(lost_at, |until| lost_at.min(until)),
        }
    }

    /// Whether its guard has ended.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether there is a release request.
    #[must_use]
    pub const fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Whether a change to a weaker mode was not answered.
    #[must_use]
    pub const fn is_mode_in_doubt(&self) -> bool {
        self.is_mode_in_doubt
    }

    /// Until when an unanswered acquisition with its token may be carried out.
    #[must_use]
    pub const fn in_doubt_until(&self) -> Option<Moment> {
        self.in_doubt_until
    }

    /// The loss, once it was reported.
    #[must_use]
    pub const fn loss(&self) -> Option<Lost> {
        self.loss
    }

    /// How the last renewal failed, if none succeeded after it.
    #[must_use]
    pub const fn failure(&self) -> Option<&E> {
        self.failure.as_ref()
    }

    /// Whether no request with its token is under way.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.requests == 0 && !self.is_changing
    }

    /// Whether it may go from holder to holder inside this process.
    #[must_use]
    pub const fn may_be_handed_on(&self) -> bool {
        self.relay.handoffs > 0
    }

    /// Whether it waits for the contender to which it was offered.
    #[must_use]
    pub const fn is_offered(&self) -> bool {
        matches!(self.handover, Handover::Offered { .. })
    }

    /// When the renewer looks at it after a hand-off, if that was not looked at yet.
    #[must_use]
    pub const fn resumes_at(&self) -> Option<Moment> {
        match self.handover {
            Handover::None => None,
            Handover::Offered { resume, .. } | Handover::Taken { resume } => Some(resume),
        }
    }

    /// The task or thread that took it.
    #[must_use]
    pub const fn holder(&self) -> u64 {
        self.holder
    }

    /// Whether it is renewed in the background.
    #[must_use]
    pub const fn renews(&self) -> bool {
        self.terms.renews
    }

    /// Whether the renewer should renew it.
    #[must_use]
    pub fn wants_renewal(&self, now: Moment) -> bool {
        self.terms.renews && !self.is_to_end(now) && !self.is_stalled(now)
    }

    /// Whether a lease that is lost now has come to the end of its longest hold.
    #[must_use]
    pub fn was_held_for_longest(&self, now: Moment) -> bool {
        // A loss is reported the grace before the end of the lease, which is at most half of it.
        let last = self.ttl.part(2).saturating_add(margin(self.ttl.duration()));
        let last = last.saturating_add(ROUNDED);
        self.is_to_end(now)
            && self.held_until().is_some_and(|until| until.saturating_since(now) <= last)
    }

    /// Whether the longest hold has ended, or ends with the lease as it is now.
    fn is_to_end(&self, now: Moment) -> bool {
        let Some(until) = self.held_until() else { return false };
        let ends = self.deadline().saturating_add(margin(self.lease.ttl().duration()));
        now >= until || ends.saturating_add(ROUNDED) >= until
    }

    /// Whether the holder should have reported progress, and has not.
    fn is_stalled(&self, now: Moment) -> bool {
        let quiet_for = now.saturating_since(self.progress_at);
        self.terms.progress_within.is_some_and(|limit| quiet_for > limit)
    }

    /// The end of its longest hold, if it has one.
    fn held_until(&self) -> Option<Moment> {
        self.terms.max_hold.map(|longest| self.since.saturating_add(longest))
    }

    /// What a renewal to this length proves.
    fn proven(&self, ttl: Ttl) -> Ttl {
        self.shortest.map_or(ttl, |shortest| shortest.min(ttl))
    }
}

/// Events.
impl<E: Clone> LeaseMachine<E> {
    /// A lease that was granted by `now` and that `holder` took. Renewals are to `ttl`.
    #[must_use]
    pub fn new(
        lease: LeaseState,
        ttl: Ttl,
        terms: HoldTerms,
        relay: Relay,
        holder: u64,
        now: Moment,
    ) -> Self {
        Self {
            lease,
            ttl,
            shortest: None,
            terms,
            relay,
            handover: Handover::None,
            holder,
            since: now,
            progress_at: now,
            is_over: false,
            requests: 0,
            is_changing: false,
            failure: None,
            loss: None,
            is_asked: false,
            is_mode_in_doubt: false,
            in_doubt_until: None,
            is_watched: false,
            actions: Actions::default(),
        }
    }

    /// Returns the actions that are due since the last call.
    pub fn take_actions(&mut self) -> Actions {
        std::mem::take(&mut self.actions)
    }

    /// A task waits for a change from here on.
    pub const fn watch(&mut self) {
        self.is_watched = true;
    }

    /// Looks at the clock, and reports a loss.
    pub fn status(&mut self, now: Moment) -> LeaseStatus {
        let status = self.look(now);
        if status == LeaseStatus::Lost {
            let over = self.was_held_for_longest(now);
            self.lose(if over { LossReason::MaxHold } else { LossReason::Expired }, now);
        }
        status
    }

    /// Whether its guard lives and it is not lost.
    pub fn is_held(&mut self, now: Moment) -> bool {
        !self.is_over && self.status(now) != LeaseStatus::Lost
    }

    /// How long it is held for certain.
    pub fn remaining(&mut self, now: Moment) -> Duration {
        if !self.is_held(now) {
            return Duration::ZERO;
        }
        let left = self.lease.remaining(now);
        self.held_until().map_or(left, |until| left.min(until.saturating_since(now)))
    }

    /// There is a release request.
    pub fn asked(&mut self) {
        if !std::mem::replace(&mut self.is_asked, true) {
            self.changed();
        }
    }

    /// The holder reports progress; returns whether that was overdue.
    pub fn progress(&mut self, now: Moment) -> bool {
        let was_stalled = self.is_stalled(now);
        self.progress_at = now;
        was_stalled
    }

    /// The renewer looks at it, as planned.
    pub fn due(&mut self, now: Moment) -> Due {
        if self.status(now) == LeaseStatus::Lost {
            return if self.take_back() { Due::TakenBack } else { Due::Forget };
        }
        let Lasting { lost_at, .. } = self.lasting();
        match self.handover {
            #[cfg(leasehold_planted)]
            Handover::Offered { .. } if crate::planted::is(crate::planted::Fault::OfferStays) => {}
            Handover::Offered { until, .. } if now < until => return Due::Look(until.min(lost_at)),
            Handover::Offered { .. } => {
                self.take_back();
                return Due::TakenBack;
            }
            Handover::Taken { resume } => {
                self.handover = Handover::None;
                if now < resume {
                    return Due::Look(resume.min(lost_at));
                }
            }
            Handover::None => {}
        }
        let admission = if self.wants_renewal(now) { self.may_renew(now) } else { Admission::Over };
        match admission {
            Admission::Start(renewal) => Due::Renew(renewal),
            Admission::Wait | Admission::Over => Due::Look(lost_at),
        }
    }

    /// The client wants to send a renewal. [`LeaseMachine::request_done`] must follow.
    pub fn may_renew(&mut self, now: Moment) -> Admission<Renewal> {
        if self.has_ended(now) {
            return Admission::Over;
        }
        if self.is_changing {
            return Admission::Wait;
        }
        // A store must not keep the lock for longer than it may be held.
        let ttl = match self.held_until().map(|until| Ttl::new(until.saturating_since(now))) {
            Some(Ok(left)) => left.min(self.ttl),
            Some(Err(_)) => return Admission::Over,
            None => self.ttl,
        };
        self.request_started();
        Admission::Start(Renewal { ttl, lasting: self.lasting() })
    }

    /// Another task has a request with its token under way, which can't wait.
    pub const fn request_started(&mut self) {
        self.requests = self.requests.saturating_add(1);
    }

    /// A request that may run beside others has ended.
    pub fn request_done(&mut self) {
        self.requests = self.requests.saturating_sub(1);
        if self.is_settled() {
            self.changed();
        }
    }

    /// A renewal sent at `sent_at` succeeded; returns what is left of the lease if it still holds.
    pub fn renewed(&mut self, sent_at: Moment, ttl: Ttl, now: Moment) -> Option<Lasting> {
        let proven = self.proven(ttl);
        let held = self.lease.renewed(sent_at, proven, false, now);
        self.confirmed(held, now).then(|| self.lasting())
    }

    /// A renewal failed.
    pub fn renewal_failed(&mut self, error: E) {
        self.lease.renewal_failed();
        if self.loss.is_none() {
            self.failure = Some(error);
        }
    }

    /// The store answered that the lease is not held.
    pub fn refuted(&mut self, now: Moment) {
        self.lease.refuted();
        self.lose(LossReason::Refuted, now);
    }

    /// The client wants to change the length, which may make the lease shorter. From here on this
    /// side counts on the shorter of the two. [`LeaseMachine::change_done`] must follow.
    pub fn change_length(&mut self, ttl: Ttl, now: Moment) -> Admission<LengthChange> {
        self.may_change(now).map(|()| {
            let change =
                LengthChange { ttl, sent_at: now, before: self.lease, shortest: self.shortest };
            self.lease.may_shorten(now, ttl);
            self.shortest = Some(self.proven(ttl));
            self.changed();
            change
        })
    }

    /// The store has changed the length; returns whether the lease still holds.
    pub fn length_changed(&mut self, change: LengthChange, now: Moment) -> bool {
        self.shortest = change.shortest;
        let proven = self.proven(change.ttl);
        let held = self.lease.renewed(change.sent_at, proven, true, now);
        self.ttl = change.ttl;
        self.changed();
        self.confirmed(held, now)
    }

    /// The store has certainly not changed the length.
    pub fn length_unchanged(&mut self, change: LengthChange, now: Moment) {
        self.shortest = change.shortest;
        self.lease.not_shortened(&change.before, now);
    }

    /// The client wants to change the mode. [`LeaseMachine::change_done`] must follow.
    pub fn change_mode(&mut self, now: Moment) -> Admission<()> {
        self.may_change(now)
    }

    /// A change to a weaker mode was not answered.
    pub const fn mode_in_doubt(&mut self) {
        self.is_mode_in_doubt = true;
    }

    /// The request for a change has ended.
    pub fn change_done(&mut self) {
        self.is_changing = false;
        if self.is_settled() {
            self.changed();
        }
    }

    /// An acquisition with its token was not answered, and may be carried out until then. After the
    /// lease's release it would take the lock without a holder.
    pub fn in_doubt(&mut self, until: Moment) {
        self.in_doubt_until = self.in_doubt_until.max(Some(until));
    }

    /// The guard ends; `None` if it had ended before.
    pub fn end(&mut self, now: Moment) -> Option<Ended> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        self.changed();
        Some(Ended {
            in_time: self.look(now) != LeaseStatus::Lost,
            over_for: self.over_for(now),
            is_settled: self.is_settled(),
        })
    }

    /// The hold of the next contender in this process, which wants a lease of this length. `None`
    /// when the lease has to go back through the store. On success this hold has ended.
    pub fn hand_on(&mut self, ttl: Ttl, now: Moment) -> Option<Self> {
        let Relay { handoffs, until } = self.relay;
        let may = !self.is_over
            && !self.is_asked
            && now < until
            && self.is_settled()
            && self.shortest.is_none()
            && ttl == self.ttl
            && self.look(now) == LeaseStatus::Held
            && self.lease.remaining(now) > self.lease.ttl().part(4);
        let relay = Relay { handoffs: handoffs.checked_sub(1)?, until };
        may.then(|| Self { relay, since: now, ..self.succeeded(now) })
    }

    /// The hold of the same lease in another mode. `None` when the guard has ended, or the lease is
    /// lost. On success this hold has ended.
    pub fn in_mode(&mut self, now: Moment) -> Option<Self> {
        (!self.has_ended(now)).then(|| Self { relay: Relay::default(), ..self.succeeded(now) })
    }

    /// A contender may take it until then. Its holder before was due at `resume`.
    pub const fn offered(&mut self, until: Moment, resume: Moment) {
        self.handover = Handover::Offered { until, resume };
    }

    /// The contender takes it; returns whether it was still offered.
    pub fn claimed(&mut self, holder: u64) -> bool {
        let was_offered = self.take_back();
        if was_offered {
            self.holder = holder;
        }
        was_offered
    }

    /// The offer ends; returns whether there was one.
    pub fn take_back(&mut self) -> bool {
        let Handover::Offered { resume, .. } = self.handover else { return false };
        self.handover = Handover::Taken { resume };
        true
    }

    /// Ends this hold, and makes the next one of the same lease.
    fn succeeded(&mut self, now: Moment) -> Self {
        self.is_over = true;
        self.changed();
        Self {
            handover: Handover::None,
            progress_at: now,
            is_over: false,
            requests: 0,
            is_changing: false,
            loss: None,
            is_watched: false,
            actions: Actions::default(),
            ..self.clone()
        }
    }

    fn may_change(&mut self, now: Moment) -> Admission<()> {
        if self.has_ended(now) {
            return Admission::Over;
        }
        if !self.is_settled() {
            return Admission::Wait;
        }
        self.is_changing = true;
        Admission::Start(())
    }

    fn has_ended(&mut self, now: Moment) -> bool {
        self.is_over || self.look(now) == LeaseStatus::Lost
    }

    fn look(&mut self, now: Moment) -> LeaseStatus {
        if self.held_until().is_some_and(|until| now >= until) {
            self.lease.refuted();
        }
        self.lease.status(now)
    }

    /// Takes in the store's answer that it has the lease.
    fn confirmed(&mut self, held: bool, now: Moment) -> bool {
        if held {
            self.failure = None;
        } else {
            self.lose(LossReason::Expired, now);
        }
        held
    }

    fn lose(&mut self, reason: LossReason, now: Moment) {
        if self.loss.is_none() {
            let unconfirmed_for = now.saturating_since(self.counted_from());
            self.loss = Some(Lost { reason, unconfirmed_for });
            self.actions.lost = true;
            self.changed();
        }
    }

    fn changed(&mut self) {
        self.actions.notify |= self.is_watched;
    }
}

#[cfg(test)]
mod tests;
