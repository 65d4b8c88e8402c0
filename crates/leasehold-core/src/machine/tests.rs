//! Walks the machine through every order of a few events, and through long random ones.
//!
//! Beside it is a ledger of what the store has confirmed. After each event both are held against
//! the promises.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const TTL_MS: u64 = 1_000;
const SHORT_MS: u64 = 400;
const LONG_MS: u64 = 3_000;
const GRACE: Duration = Duration::from_millis(50);

fn at(ms: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(ms))
}

fn ttl(ms: u64) -> Ttl {
    Ttl::new(Duration::from_millis(ms)).unwrap()
}

const TERMS: HoldTerms = HoldTerms { renews: true, max_hold: None, progress_within: None };

fn granted(terms: HoldTerms) -> LeaseMachine<u8> {
    let lease = LeaseState::granted(at(0), ttl(TTL_MS), GRACE, at(1)).unwrap();
    let relay = Relay { handoffs: 1, until: at(60_000) };
    LeaseMachine::new(lease, ttl(TTL_MS), terms, relay, 7, at(1))
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    Passes(u64),
    Renew,
    Due,
    /// The oldest renewal under way is answered so.
    Renewed,
    Failed,
    Refused,
    ChangeLength(u64),
    Changed,
    Unchanged,
    ChangeMode,
    /// Its change ends, answered or not.
    ChangeDone,
    InMode,
    HandOn,
    Claim,
    TakeBack,
    Progress,
    Asked,
    End,
}

/// A hold, its requests under way, and what is known of it without the machine.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Walk {
    now_ms: u64,
    lease: LeaseMachine<u8>,
    /// When the renewals under way were sent, and their lengths.
    renewals: Vec<(u64, Ttl)>,
    change: Option<Option<LengthChange>>,
    /// Until when the store has the lease at least, by what it has answered.
    proven_ms: u64,
    /// The shortest length that was requested and never answered.
    doubted_ms: Option<u64>,
    was_gone: bool,
    has_ended: bool,
    loss: Option<Lost>,
    /// How many more events of a kind there may be.
    left: [u8; 4],
}

impl Walk {
    fn new(terms: HoldTerms, left: [u8; 4]) -> Self {
        let mut lease = granted(terms);
        lease.watch();
        Self {
            now_ms: 1,
            lease,
            renewals: Vec::new(),
            change: None,
            proven_ms: TTL_MS,
            doubted_ms: None,
            was_gone: false,
            has_ended: false,
            loss: None,
            left,
        }
    }

    fn take(&mut self, kind: usize) -> bool {
        let left = &mut self.left[kind];
        let there = *left > 0;
        *left = left.saturating_sub(1);
        there
    }

    fn admitted(&mut self, renewal: Renewal) {
        assert!(!self.was_gone, "a renewal after the end");
        assert!(self.change.is_none(), "a renewal beside a change");
        assert!(at(self.now_ms) < renewal.lasting.lost_at);
        self.renewals.push((self.now_ms, renewal.ttl));
    }

    /// How long an answered request of this length proves the lease.
    fn proven(&self, ttl: Ttl) -> u64 {
        let ms = u64::from(ttl.as_millis());
        self.doubted_ms.map_or(ms, |doubted| doubted.min(ms))
    }

    /// Whether the event can happen.
    fn happens(&mut self, event: Event) -> bool {
        let now = at(self.now_ms);
        match event {
            Event::Passes(ms) => self.now_ms += ms,
            Event::Renew => {
                if !self.take(0) {
                    return false;
                }
                match self.lease.may_renew(now) {
                    Admission::Start(renewal) => self.admitted(renewal),
                    Admission::Wait => assert!(self.change.is_some()),
                    Admission::Over => {}
                }
            }
            Event::Due => {
                if !self.take(0) {
                    return false;
                }
                match self.lease.due(now) {
                    Due::Renew(renewal) => self.admitted(renewal),
                    Due::Look(when) => assert!(when > now || self.lease.is_over()),
                    Due::Forget => assert!(self.lease.loss().is_some()),
                    Due::TakenBack => assert!(!self.lease.is_offered()),
                }
            }
            Event::Renewed | Event::Failed | Event::Refused => {
                if self.renewals.is_empty() {
                    return false;
                }
                let (sent_ms, ttl) = self.renewals.remove(0);
                match event {
                    Event::Renewed => {
                        if self.lease.renewed(at(sent_ms), ttl, now).is_some() {
                            self.proven_ms = self.proven_ms.max(sent_ms + self.proven(ttl));
                        }
                    }
                    Event::Failed => self.lease.renewal_failed(1),
                    _ => self.lease.refuted(now),
                }
                self.lease.request_done();
            }
            Event::ChangeLength(ms) => {
                if !self.take(1) {
                    return false;
                }
                match self.lease.change_length(ttl(ms), now) {
                    Admission::Start(change) => self.change_begins(Some(change)),
                    Admission::Wait => assert!(self.change.is_some() || !self.renewals.is_empty()),
                    Admission::Over => {}
                }
            }
            Event::ChangeMode => {
                if !self.take(1) {
                    return false;
                }
                match self.lease.change_mode(now) {
                    Admission::Start(()) => self.change_begins(None),
                    Admission::Wait => assert!(self.change.is_some() || !self.renewals.is_empty()),
                    Admission::Over => {}
                }
            }
            Event::Changed | Event::Unchanged => {
                let Some(Some(change)) = self.change else { return false };
                if event == Event::Changed {
                    if self.lease.length_changed(change, now) {
                        let sent_ms = change.sent_at.as_nanos() / 1_000_000;
                        self.proven_ms = sent_ms + self.proven(change.ttl);
                    }
                } else {
                    self.lease.length_unchanged(change, now);
                }
                self.change = None;
                self.lease.change_done();
            }
            Event::ChangeDone => {
                let Some(change) = self.change.take() else { return false };
                if let Some(change) = change {
                    let ms = u64::from(change.ttl.as_millis());
                    self.doubted_ms = Some(self.doubted_ms.map_or(ms, |doubted| doubted.min(ms)));
                    let sent_ms = change.sent_at.as_nanos() / 1_000_000;
                    self.proven_ms = self.proven_ms.min(sent_ms + ms);
                }
                self.lease.change_done();
            }
            Event::InMode | Event::HandOn => {
                // Between a change's answer and its end there is no other event of its caller.
                if self.change.is_some() || !self.take(2) {
                    return false;
                }
                let settled = self.renewals.is_empty();
                let next = match event {
                    Event::InMode => self.lease.in_mode(now),
                    _ => self.lease.hand_on(ttl(TTL_MS), now),
                };
                let Some(mut next) = next else { return true };
                assert!(!self.was_gone, "a hold that follows one that had ended");
                assert!(self.lease.is_over() && !self.lease.is_held(now));
                assert!(self.lease.may_renew(now) == Admission::Over);
                assert!(self.lease.end(now).is_none());
                assert_eq!(next.deadline(), self.lease.deadline());
                if event == Event::HandOn {
                    assert!(settled && self.doubted_ms.is_none() && !self.lease.is_asked());
                    next.offered(at(self.now_ms + 100), at(self.now_ms + 200));
                }
                // Answers to the old hold's requests no longer reach this one.
                self.renewals.clear();
                next.watch();
                next.take_actions();
                self.lease = next;
            }
            Event::Claim => {
                let was_offered = self.lease.is_offered();
                assert_eq!(self.lease.claimed(8), was_offered);
                assert!(!self.lease.claimed(9), "an offer that is taken twice");
                return was_offered;
            }
            Event::TakeBack => {
                let was_offered = self.lease.is_offered();
                assert_eq!(self.lease.take_back(), was_offered);
                assert!(!self.lease.claimed(9), "an offer that is taken after it was taken back");
                return was_offered;
            }
            Event::Progress => drop(self.lease.progress(now)),
            Event::Asked => self.lease.asked(),
            Event::End => {
                let ended = self.lease.end(now);
                assert_eq!(ended.is_none(), self.has_ended, "a hold that ends twice");
                if let Some(ended) = ended {
                    assert_eq!(ended.is_settled, self.renewals.is_empty() && self.change.is_none());
                    assert!(!ended.in_time || !self.was_gone);
                }
                self.has_ended = true;
            }
        }
        true
    }

    fn change_begins(&mut self, change: Option<LengthChange>) {
        assert!(!self.was_gone, "a change after the end");
        assert!(self.change.is_none() && self.renewals.is_empty(), "a change beside a request");
        self.change = Some(change);
    }

    /// Applies the event, and checks the promises; returns whether it could happen.
    fn apply(&mut self, event: Event) -> bool {
        let before = self.lease;
        if !self.happens(event) {
            return false;
        }
        let now = at(self.now_ms);
        let is_next = matches!(event, Event::InMode | Event::HandOn) && !self.lease.is_over();
        let mut lease = self.lease;
        let is_held = lease.is_held(now);
        assert!(!(is_held && self.was_gone), "{event:?}: an ended lease holds again");
        assert!(!is_held || now < lease.lasting().lost_at);
        assert_eq!(is_held, lease.remaining(now) > Duration::ZERO);
        if is_held {
            // Nothing but what the store has confirmed is believed, and less by the margin.
            let deadline_ms = lease.deadline().as_nanos() / 1_000_000;
            assert!(deadline_ms < self.proven_ms, "{event:?}: {deadline_ms} {}", self.proven_ms);
        }
        self.was_gone |= !is_held;
        let actions = self.lease.take_actions();
        if !is_next {
            let news = [
                (before.is_over(), self.lease.is_over()),
                (before.loss().is_some(), self.lease.loss().is_some()),
                (before.is_asked(), self.lease.is_asked()),
                (before.is_settled(), self.lease.is_settled()),
            ];
            let is_news = news.iter().any(|(before, after)| !before && *after);
            assert!(actions.notify || !is_news, "{event:?}: no task learns of it");
        }
        assert_eq!(actions.lost, self.lease.loss().is_some() && self.loss.is_none());
        assert!(self.loss.is_none() || self.loss == self.lease.loss(), "another loss");
        self.loss = self.lease.loss();
        assert_eq!(self.lease.is_settled(), self.renewals.is_empty() && self.change.is_none());
        true
    }
}

/// Every order of these events, with at most two renewals, one change, and one successor.
#[test]
fn no_order_of_events_breaks_a_promise() {
    const EVENTS: [Event; 17] = [
        Event::Passes(450),
        Event::Renew,
        Event::Due,
        Event::Renewed,
        Event::Failed,
        Event::Refused,
        Event::ChangeLength(SHORT_MS),
        Event::ChangeLength(LONG_MS),
        Event::Changed,
        Event::Unchanged,
        Event::ChangeMode,
        Event::ChangeDone,
        Event::InMode,
        Event::HandOn,
        Event::Claim,
        Event::TakeBack,
        Event::End,
    ];
    let mut seen = HashSet::new();
    let mut ahead = vec![Walk::new(TERMS, [2, 1, 1, 0])];
    while let Some(walk) = ahead.pop() {
        if walk.now_ms > 1_000 {
            continue;
        }
        for event in EVENTS {
            let mut next = walk.clone();
            if next.apply(event) && seen.insert(next.clone()) {
                ahead.push(next);
            }
        }
    }
    assert!(seen.len() > 10_000, "{} states express too little", seen.len());
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u64..300).prop_map(Event::Passes),
        3 => Just(Event::Renew),
        3 => Just(Event::Due),
        4 => Just(Event::Renewed),
        1 => Just(Event::Failed),
        1 => (10_u64..4_000).prop_map(Event::ChangeLength),
        1 => Just(Event::ChangeMode),
        2 => Just(Event::Changed),
        1 => Just(Event::Unchanged),
        1 => Just(Event::ChangeDone),
        1 => Just(Event::InMode),
        1 => Just(Event::HandOn),
        1 => Just(Event::Claim),
        1 => Just(Event::TakeBack),
        1 => Just(Event::Progress),
        1 => prop_oneof![30 => Just(Event::Asked), 1 => Just(Event::Refused), 1 => Just(Event::End)],
    ]
}

proptest! {
    #[test]
    fn no_long_run_breaks_a_promise(
        events in prop::collection::vec(event(), 1..120),
        renews: bool,
        max_hold in prop::option::of(500_u64..5_000),
        progress_within in prop::option::of(100_u64..2_000),
    ) {
        let terms = HoldTerms {
            renews,
            max_hold: max_hold.map(Duration::from_millis),
            progress_within: progress_within.map(Duration::from_millis),
        };
        let mut walk = Walk::new(terms, [u8::MAX; 4]);
        for event in events {
            walk.apply(event);
        }
    }
}

#[test]
fn a_longest_hold_ends_by_itself_and_a_renewal_asks_for_no_more_than_is_left_of_it() {
    let max_hold = Some(Duration::from_millis(1_500));
    let mut lease = granted(HoldTerms { max_hold, ..TERMS });
    let Admission::Start(renewal) = lease.may_renew(at(801)) else { panic!() };
    assert_eq!(renewal.ttl, ttl(700));
    assert_eq!(
        lease.renewed(at(801), renewal.ttl, at(802)).unwrap().lost_at,
        lease.lasting().lost_at
    );
    lease.request_done();
    assert!(!lease.wants_renewal(at(803)));
    assert_eq!(lease.status(lease.lasting().lost_at), LeaseStatus::Lost);
    assert_eq!(lease.loss().unwrap().reason, LossReason::MaxHold);
    assert!(lease.lasting().lost_at <= at(1_501));
}

#[test]
fn a_holder_without_progress_is_not_renewed_until_it_reports_some() {
    let progress_within = Some(Duration::from_millis(300));
    let mut lease = granted(HoldTerms { progress_within, ..TERMS });
    assert!(lease.wants_renewal(at(301)));
    assert_eq!(lease.due(at(302)), Due::Look(lease.lasting().lost_at));
    assert!(lease.progress(at(303)));
    assert!(!lease.progress(at(304)));
    assert!(matches!(lease.due(at(305)), Due::Renew(_)));
}

#[test]
fn an_offer_that_is_not_taken_goes_back_and_one_that_is_taken_is_renewed_in_time() {
    let mut first = granted(TERMS);
    let mut next = first.hand_on(ttl(TTL_MS), at(100)).unwrap();
    next.offered(at(200), at(330));
    assert_eq!(next.due(at(150)), Due::Look(at(200)));
    let mut untaken = next;
    assert_eq!(untaken.due(at(200)), Due::TakenBack);
    assert!(!untaken.claimed(8));
    assert!(next.claimed(8));
    assert_eq!((next.holder(), next.resumes_at()), (8, Some(at(330))));
    assert_eq!(next.due(at(200)), Due::Look(at(330)));
    assert!(matches!(next.due(at(330)), Due::Renew(_)));
    assert!(first.is_over());
    // The relay is used up.
    assert!(next.hand_on(ttl(TTL_MS), at(331)).is_none());
}

#[test]
fn the_last_failure_is_kept_until_a_renewal_succeeds_and_a_loss_keeps_its_own() {
    let mut lease = granted(TERMS);
    lease.renewal_failed(3);
    assert_eq!(lease.failure(), Some(&3));
    assert!(lease.renewed(at(300), ttl(TTL_MS), at(301)).is_some());
    assert_eq!(lease.failure(), None);
    lease.renewal_failed(4);
    lease.refuted(at(700));
    lease.renewal_failed(5);
    assert_eq!(lease.failure(), Some(&4));
    let lost = lease.loss().unwrap();
    assert_eq!(lost.reason, LossReason::Refuted);
    assert_eq!(lost.unconfirmed_for, Duration::from_millis(700 - 300 + 12));
}
