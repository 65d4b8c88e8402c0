//! Computes for how long a holder may believe in its lease; no other code does.
//!
//! The store starts a lease's timer after it received the request. So a holder that counts from the
//! moment *before the request was sent* is on the safe side, for every round-trip time. What is
//! left is the difference of clock rates and the store's rounding, which [`margin`] covers. The
//! rules come from the Redis documentation's Redlock page ("MIN_VALIDITY"), and from A. Davis. He
//! shows that two machines can agree on a length of time given a margin for the drift of their
//! clocks. Where leasehold differs, it is stricter.

use std::time::Duration;

use crate::clock::{Moment, nanoseconds};
use crate::ttl::Ttl;

/// By how much two clocks may differ about a length: 1 % of it, for clocks that run at different
/// speeds, and 2 ms for the store's rounding. A holder's deadline is earlier by that than the end
/// of its lease in the store.
#[must_use]
pub fn margin(length: Duration) -> Duration {
    #[cfg(leasehold_planted)]
    if crate::planted::is(crate::planted::Fault::NoMargin) {
        return Duration::ZERO;
    }
    length.checked_div(100).unwrap_or_default().saturating_add(Duration::from_millis(2))
}

/// What a holder may believe.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(clippy::exhaustive_enums, reason = "a holder must handle each of them")]
pub enum LeaseStatus {
    /// The lease holds, and no renewal is overdue.
    Held,
    /// The lease still holds, but a renewal failed or was not answered in time.
    AtRisk,
    /// The lease can't be proven any more. Final.
    Lost,
}

/// A holder's view of one lease: a pure state machine over its own clock.
///
/// The lease counts as lost `grace` before its deadline, so that the holder has time to stop before
/// the store may grant it to another holder. Once lost it stays lost, whatever is answered later
/// and wherever the clock goes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeaseState {
    ttl: Ttl,
    /// The longest ttl so far, for which the full grace was set.
    longest: Ttl,
    grace_ns: u64,
    full_grace_ns: u64,
    deadline: Moment,
    latest: Moment,
    at_risk: bool,
    lost: bool,
}

impl LeaseState {
    /// The lease granted in answer to a request sent at `sent_at`, whose answer was read at `now`.
    ///
    /// `None` when no time to work is left: the answer was too late, or the ttl is used up by its
    /// margin and grace. Such a grant must be returned, never used.
    #[must_use]
    pub fn granted(sent_at: Moment, ttl: Ttl, grace: Duration, now: Moment) -> Option<Self> {
        #[cfg(leasehold_planted)]
        let sent_at = if crate::planted::is(crate::planted::Fault::DeadlineFromAnswer) {
            now
        } else {
            sent_at
        };
        let state = Self {
            ttl,
            longest: ttl,
            grace_ns: nanoseconds(grace),
            full_grace_ns: nanoseconds(grace),
            deadline: Self::deadline_of(sent_at, ttl),
            latest: now.max(sent_at),
            at_risk: false,
            lost: false,
        };
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Fault::LateGrantCounts) {
            return Some(state);
        }
        (state.latest < state.lost_at()).then_some(state)
    }

    /// The grace that suits most leases: 5 % of the ttl, at least 20 ms and at most 5 s, but never
    /// more than a quarter of the ttl.
    #[must_use]
    pub fn default_grace(ttl: Ttl) -> Duration {
        let share = ttl.part(20).clamp(Duration::from_millis(20), Duration::from_secs(5));
        share.min(ttl.part(4))
    }

    fn deadline_of(sent_at: Moment, ttl: Ttl) -> Moment {
        sent_at.saturating_add(ttl.duration()).saturating_sub(margin(ttl.duration()))
    }

    /// The status at `now`. A look can lose the lease: the first one at or after
    /// [`LeaseState::lost_at`] makes the loss final.
    pub fn status(&mut self, now: Moment) -> LeaseStatus {
        self.latest = self.latest.max(now);
        if self.latest >= self.lost_at() {
            self.lost = true;
        }
        match (self.lost, self.at_risk) {
            (true, _) => LeaseStatus::Lost,
            (false, true) => LeaseStatus::AtRisk,
            (false, false) => LeaseStatus::Held,
        }
    }

    /// How long the holder may still work; zero once lost.
    pub fn remaining(&mut self, now: Moment) -> Duration {
        match self.status(now) {
            LeaseStatus::Lost => Duration::ZERO,
            LeaseStatus::Held | LeaseStatus::AtRisk => self.lost_at().saturating_since(self.latest),
        }
    }

    /// Records a successful renewal for `ttl`, requested at `sent_at` and answered by `now`.
    ///
    /// Returns whether the lease still holds. A renewal moves the deadline back only with
    /// `shorten`. It never brings a lost lease back. With a shorter ttl the grace shrinks by the
    /// same share, so that shortening a lease is not losing it.
    pub fn renewed(&mut self, sent_at: Moment, ttl: Ttl, shorten: bool, now: Moment) -> bool {
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Fault::RenewalRevives) {
            (self.lost, self.latest, self.deadline) =
                (false, sent_at, Self::deadline_of(sent_at, ttl));
        }
        if self.status(now) == LeaseStatus::Lost {
            return false;
        }
        let deadline = Self::deadline_of(sent_at, ttl);
        self.deadline = if shorten { deadline } else { self.deadline.max(deadline) };
        self.ttl = ttl;
        self.grace_ns = nanoseconds(self.grace_for(ttl));
        if ttl > self.longest {
            self.longest = ttl;
        }
        self.at_risk = false;
        self.status(now) != LeaseStatus::Lost
    }

    /// Records a request that is about to be sent, at `sent_at`, and may make the lease as short as
    /// `ttl`. From here on the holder counts on no more than that, since the store may carry the
    /// request out and its answer get lost. The grace shrinks as with a renewal.
    pub fn may_shorten(&mut self, sent_at: Moment, ttl: Ttl) {
        let deadline = Self::deadline_of(sent_at, ttl);
        if deadline < self.deadline {
            self.deadline = deadline;
            self.grace_ns = nanoseconds(self.grace_for(ttl));
        }
    }

    /// Records that the request announced by [`LeaseState::may_shorten`] was certainly not carried
    /// out. If the lease is still held, deadline and grace are what they were `before`.
    pub fn not_shortened(&mut self, before: &Self, now: Moment) {
        if self.status(now) != LeaseStatus::Lost {
            (self.deadline, self.grace_ns) = (before.deadline, before.grace_ns);
        }
    }

    /// Whether a renewal to this ttl would leave time to work.
    #[must_use]
    pub fn can_be(&self, ttl: Ttl) -> bool {
        let start = Moment::default();
        Self::granted(start, ttl, self.grace_for(ttl), start).is_some()
    }

    fn grace_for(&self, ttl: Ttl) -> Duration {
        let grace = Duration::from_nanos(self.full_grace_ns);
        if ttl >= self.longest {
            return grace;
        }
        grace.mul_f64(ttl.duration().as_secs_f64() / self.longest.duration().as_secs_f64())
    }

    /// Records a renewal that failed without a definite answer: the deadline stays.
    pub fn renewal_failed(&mut self) {
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Fault::FailedRenewalProlongs) {
            self.deadline = self.deadline.saturating_add(self.ttl.part(3));
        }
        self.at_risk = true;
    }

    /// Records the store's answer that the holder has this lease no more.
    pub fn refuted(&mut self) {
        self.lost = true;
    }

    /// The ttl of the last grant or renewal.
    #[must_use]
    pub const fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// The grace between the signal of loss and the deadline.
    #[must_use]
    pub const fn grace(&self) -> Duration {
        Duration::from_nanos(self.grace_ns)
    }

    /// From here on the store may grant the lock to another holder.
    #[must_use]
    pub const fn deadline(&self) -> Moment {
        self.deadline
    }

    /// When the lease counts as lost unless it is renewed before: the deadline less the grace.
    #[must_use]
    pub const fn lost_at(&self) -> Moment {
        self.deadline.saturating_sub(self.grace())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    fn ttl(ms: u64) -> Ttl {
        Ttl::new(Duration::from_millis(ms)).unwrap()
    }

    const NO_GRACE: Duration = Duration::ZERO;

    #[test]
    fn the_deadline_counts_from_the_send_and_leaves_the_margin() {
        let lease = LeaseState::granted(at(1_000), ttl(10_000), NO_GRACE, at(1_500)).unwrap();
        assert_eq!(lease.deadline(), at(1_000 + 10_000 - 100 - 2));
    }

    #[test]
    fn an_answer_that_came_too_late_is_no_lease() {
        assert!(LeaseState::granted(at(0), ttl(1_000), NO_GRACE, at(988)).is_none());
        assert!(LeaseState::granted(at(0), ttl(1_000), NO_GRACE, at(987)).is_some());
        // The shortest lease leaves time to work, and to renew it after a third.
        let grace = LeaseState::default_grace(Ttl::MIN);
        let shortest = LeaseState::granted(at(0), Ttl::MIN, grace, at(0)).unwrap();
        assert!(shortest.lost_at() > at(5));
        let grace = Duration::from_millis(8);
        assert!(LeaseState::granted(at(0), Ttl::MIN, grace, at(0)).is_none());
    }

    #[test]
    fn loss_is_final_even_when_a_renewal_succeeds_later_or_the_clock_goes_back() {
        let mut lease = LeaseState::granted(at(0), ttl(1_000), NO_GRACE, at(1)).unwrap();
        assert_eq!(lease.status(at(988)), LeaseStatus::Lost);
        assert!(!lease.renewed(at(500), ttl(60_000), false, at(989)));
        assert_eq!(lease.status(at(10)), LeaseStatus::Lost);
        assert_eq!(lease.remaining(at(10)), Duration::ZERO);
    }

    #[test]
    fn what_the_store_refutes_is_lost_for_good() {
        let mut lease = LeaseState::granted(at(0), ttl(1_000), NO_GRACE, at(1)).unwrap();
        assert_eq!(lease.remaining(at(88)), Duration::from_millis(900));
        lease.refuted();
        assert_eq!(lease.status(at(89)), LeaseStatus::Lost);
        assert_eq!(lease.remaining(at(89)), Duration::ZERO);
        assert!(!lease.renewed(at(89), ttl(1_000), false, at(90)));
    }

    #[test]
    fn the_default_grace_is_a_twentieth_within_its_bounds() {
        let graces = [(40, 10), (100, 20), (1_000, 50), (30_000, 1_500), (600_000, 5_000)];
        for (ttl_ms, grace_ms) in graces {
            let grace = LeaseState::default_grace(ttl(ttl_ms));
            assert_eq!(grace, Duration::from_millis(grace_ms), "of {ttl_ms} ms");
        }
    }

    #[test]
    fn a_clock_that_goes_back_gives_no_time_back() {
        let mut lease = LeaseState::granted(at(0), ttl(1_000), NO_GRACE, at(1)).unwrap();
        let left = lease.remaining(at(900));
        assert_eq!(lease.remaining(at(100)), left);
    }

    #[test]
    fn a_failed_renewal_is_a_risk_and_moves_nothing() {
        let mut lease = LeaseState::granted(at(0), ttl(1_000), NO_GRACE, at(1)).unwrap();
        let deadline = lease.deadline();
        lease.renewal_failed();
        assert_eq!(lease.status(at(500)), LeaseStatus::AtRisk);
        assert_eq!(lease.deadline(), deadline);
        assert!(lease.renewed(at(600), ttl(1_000), false, at(601)));
        assert_eq!(lease.status(at(602)), LeaseStatus::Held);
    }

    #[test]
    fn a_shortening_counts_from_when_it_is_sent_and_is_undone_only_for_certain() {
        let grace = Duration::from_secs(3);
        let mut lease = LeaseState::granted(at(0), ttl(60_000), grace, at(1)).unwrap();
        let before = lease;
        lease.may_shorten(at(10), ttl(1_000));
        assert_eq!(lease.deadline(), at(10 + 1_000 - 12));
        assert_eq!(lease.grace(), Duration::from_millis(50));
        assert_eq!(lease.status(at(11)), LeaseStatus::Held);
        lease.not_shortened(&before, at(20));
        assert_eq!((lease.deadline(), lease.grace()), (before.deadline(), grace));
        lease.may_shorten(at(10), ttl(90_000));
        assert_eq!((lease.deadline(), lease.grace()), (before.deadline(), grace));
        lease.may_shorten(at(30), ttl(1_000));
        assert_eq!(lease.status(at(1_030)), LeaseStatus::Lost);
        lease.not_shortened(&before, at(1_031));
        assert_eq!(lease.status(at(1_032)), LeaseStatus::Lost);
        assert!(lease.can_be(ttl(10)));
    }

    #[test]
    fn a_renewal_shortens_only_when_asked() {
        let mut lease = LeaseState::granted(at(0), ttl(60_000), NO_GRACE, at(1)).unwrap();
        let deadline = lease.deadline();
        assert!(lease.renewed(at(10), ttl(1_000), false, at(11)));
        assert_eq!(lease.deadline(), deadline);
        assert!(lease.renewed(at(10), ttl(1_000), true, at(11)));
        assert_eq!(lease.deadline(), at(10 + 1_000 - 12));
    }

    #[test]
    fn a_lease_that_is_shortened_below_its_grace_is_not_lost_and_gets_the_grace_back() {
        let grace = Duration::from_secs(3);
        let mut lease = LeaseState::granted(at(0), ttl(60_000), grace, at(1)).unwrap();
        assert!(lease.renewed(at(10), ttl(1_000), true, at(11)));
        assert_eq!(lease.grace(), Duration::from_millis(50));
        assert_eq!(lease.lost_at(), at(10 + 1_000 - 12 - 50));
        assert!(lease.renewed(at(20), ttl(1_000), false, at(21)));
        assert_eq!(lease.grace(), Duration::from_millis(50));
        assert!(lease.renewed(at(30), ttl(120_000), false, at(31)));
        assert_eq!(lease.grace(), grace);
    }

    proptest! {
        /// Whatever the delays: while the holder believes, the store's timer, which started at or
        /// after the send and may run up to 1 % faster, has not expired.
        #[test]
        fn belief_ends_before_the_store_may_grant_again(
            sent in 0_u64..1_000_000, delay in 0_u64..10_000, ttl_ms in 10_u64..2_000_000,
            look in 0_u64..3_000_000, grace_ms in 0_u64..2_000,
        ) {
            let ttl = ttl(ttl_ms);
            let grace = Duration::from_millis(grace_ms);
            if let Some(mut lease) = LeaseState::granted(at(sent), ttl, grace, at(sent + delay)) {
                let now = sent + delay + look;
                if lease.status(at(now)) != LeaseStatus::Lost {
                    let passed_on_a_fast_store = (now - sent) as f64 * 1.01;
                    prop_assert!(passed_on_a_fast_store < ttl_ms as f64);
                }
            }
        }
    }
}
