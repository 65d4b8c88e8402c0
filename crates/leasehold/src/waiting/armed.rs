//! Registers an acquisition for cleanup in case its future is dropped.

use std::time::Duration;

use leasehold_core::{AcquireRequest, Moment, Ttl, margin};

use crate::lease::orphans::{GivenUp, Landing, Orphan, Reaper, last_of};

/// What an acquisition may have left in the store.
///
/// It is armed before the first byte is sent. Dropped at any point after, the acquisition [abandons
/// its token](Self::give_up). Only an answer that rules out a lease and a position disarms it.
#[derive(Debug, Default)]
pub(crate) struct Armed {
    /// Whether closing the client waits for this, since there may be something to abandon.
    is_counted: bool,
    until: Moment,
    /// When the last request was sent.
    sent_at: Moment,
    /// A request is on its way.
    asking: bool,
    /// Whether that was the only one.
    is_only: bool,
    /// Until when the last request may be carried out, repeats by its store included.
    asked_until: Moment,
    /// A request was never answered, and may be carried out until then.
    in_doubt_until: Option<Moment>,
    /// The last answer said that the token has something.
    has_something: bool,
}

impl Armed {
    /// Whether the token may have something in the store.
    pub(crate) fn may_have_something(&self) -> bool {
        self.asking || self.in_doubt_until.is_some() || self.has_something
    }

    /// From when on to wait for the store: from now if it has answered, and otherwise from the last
    /// request, so that a silent store is waited for once.
    pub(crate) fn in_touch_since(&self, now: Moment) -> Moment {
        if self.has_something { now } else { self.sent_at }
    }

    /// A request goes out now, and may take `within`; what it takes has expired `ttl` after that.
    pub(crate) fn sending(&mut self, reaper: &Reaper, now: Moment, within: Duration, ttl: Ttl) {
        self.asking = true;
        self.is_only = self.sent_at == Moment::default();
        self.sent_at = now;
        self.asked_until = now.saturating_add(within).saturating_add(margin(within));
        self.until = self.until.max(self.asked_until.saturating_add(ttl.duration()));
        if !self.is_counted {
            self.is_counted = true;
            reaper.arm();
        }
    }

    /// Records the answer that the token has something in the store.
    pub(crate) fn has_something(&mut self) {
        self.asking = false;
        self.has_something = true;
    }

    /// Records the answer that the token has nothing in the store.
    pub(crate) fn has_nothing(&mut self, reaper: &Reaper) {
        self.asking = false;
        self.has_something = false;
        self.count_no_more(reaper);
    }

    /// Records that the request did not reach the store; what earlier ones brought stays.
    pub(crate) fn not_sent(&mut self, reaper: &Reaper) {
        self.asking = false;
        self.count_no_more(reaper);
    }

    /// Records that no answer came.
    pub(crate) fn unanswered(&mut self, now: Moment) {
        self.asking = false;
        self.in_doubt_until = self.in_doubt_until.max(Some(last_of(self.asked_until, now)));
    }

    /// Until when a request that was never answered may be carried out.
    pub(crate) const fn in_doubt_until(&self) -> Option<Moment> {
        self.in_doubt_until
    }

    /// Records that a guard has the token now.
    pub(crate) fn disarm(&mut self, reaper: &Reaper) {
        (self.asking, self.in_doubt_until, self.has_something) = (false, None, false);
        self.count_no_more(reaper);
    }

    fn count_no_more(&mut self, reaper: &Reaper) {
        if self.is_counted && !self.may_have_something() {
            self.is_counted = false;
            reaper.disarm();
        }
    }

    /// Hands what this request's token may have to the reaper; `None` if it has nothing. If a
    /// request is on its way, its `landing` brings the answer, which says more.
    pub(crate) fn give_up(
        &mut self,
        reaper: &Reaper,
        now: Moment,
        request: &AcquireRequest,
        landing: Option<Landing>,
    ) -> Option<GivenUp> {
        #[cfg(leasehold_planted)]
        if leasehold_core::planted::is(leasehold_core::planted::Fault::DroppedNotGivenUp) {
            self.disarm(reaper);
            return None;
        }
        let cut = self.asking && landing.is_none();
        let in_doubt_until = self.in_doubt_until.max(cut.then_some(last_of(self.asked_until, now)));
        let given_up = self.may_have_something().then(|| {
            reaper.send(Orphan::Acquisition {
                key: request.key.clone(),
                token: request.token,
                until: self.until,
                in_doubt_until,
                is_only: self.is_only,
                landing: landing.map(|landing| (landing, self.asked_until)),
                // A grant has started a cooldown, for work that will not be done now.
                reopen: !request.cooldown.is_none(),
            })
        });
        self.disarm(reaper);
        given_up
    }
}
