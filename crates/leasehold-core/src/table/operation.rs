//! The operations on a lock, and what happens around each.

use super::entry::{Holder, LockEntry, Notice, Waiter};
use super::time::LockTime;
use super::{Now, StoreTime};
use crate::store::{Place, Wake};
use crate::token::Token;

/// One operation on one lock, as a store carries it out: [`LockEntry::perform`].
///
/// The requests of a [`Store`](crate::Store) that name one lock are operations.
pub trait Operation {
    /// What it answers.
    type Answer;

    /// Whether it may give its token a lease, or a position in the queue.
    const TAKES: bool = false;

    /// The token that it is carried out for. Its client is alive, since it sent this.
    fn token(&self) -> Option<Token> {
        None
    }

    /// The token of the lease of [`token`](Self::token) from now on.
    fn successor(&self) -> Option<Token> {
        None
    }

    /// Enters the request's facts about waiters and holders, before any of them expires.
    fn prepare(&self, _entry: &mut LockEntry, _at: StoreTime) {}

    /// Carries the operation out.
    fn apply(&self, lock: Current<'_>) -> Self::Answer;
}

/// A lock as it is now: expired leases and positions are gone, and what came free is granted. Only
/// [`LockEntry::perform`] makes one, so no operation sees a lock that is out of date.
#[derive(Debug)]
pub struct Current<'a> {
    pub(super) entry: &'a mut LockEntry,
    pub(super) now: Now,
}

impl LockEntry {
    /// Carries an operation out.
    ///
    /// Before it, expired holders and waiters are dropped, and what came free goes to the head of
    /// the queue. After it, so does what the operation left free. `notices` gets the waiters'
    /// notifications.
    pub fn perform<O: Operation>(
        &mut self,
        operation: &O,
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> O::Answer {
        let at = self.time.go_on(now.at);
        let now = Now { at, grants_from: at.saturating_add(now.no_grants_for()), ..now };
        let first = self.first_in_line();
        operation.prepare(self, now.at);
        self.expire(now.at);
        self.grant_to_line(now, notices);
        let closed_until = self.closed_until;
        let end = self.end_for(operation);
        let answer = operation.apply(Current { entry: self, now });
        let is_shorter =
            end.zip(self.end_for(operation)).is_some_and(|(before, after)| after < before);
        self.grant_to_line(now, notices);
        // The head's timer targets the end of a lease: notify it of an earlier end, and of a later
        // cooldown.
        let first = first.filter(|_| !is_shorter && self.closed_until <= closed_until);
        let asking = operation.token().filter(|_| O::TAKES);
        self.tell_new_first(first, asking, now, notices);
        if !self.is_in_use() {
            self.time = LockTime::default();
        }
        answer
    }

    /// Drops the expired holders and waiters.
    fn expire(&mut self, at: StoreTime) {
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Fault::StoreEndsEarly) {
            let at = at.saturating_add(std::time::Duration::from_millis(50));
            self.holders.retain(|holder| holder.expires_at > at);
        }
        self.holders.retain(|holder| holder.expires_at > at);
        self.waiters.retain(|waiter| !waiter.window_left(at).is_zero());
    }

    /// Grants what is free to the head of the queue, as often as there is room for one.
    fn grant_to_line(&mut self, now: Now, notices: &mut Vec<Notice>) {
        if self.closed_for(now.at).is_some() {
            return;
        }
        self.closed_until = None;
        if !now.no_grants_for().is_zero() {
            return;
        }
        loop {
            let Some(head) = self.waiters.front() else { return };
            if !self.admits(head.mode) {
                return;
            }
            let Some(head) = self.waiters.pop_front() else { return };
            if head.can_be_served(now.at) {
                self.grant_to(head, now, notices);
            }
        }
    }

    fn grant_to(&mut self, head: Waiter, now: Now, notices: &mut Vec<Notice>) {
        #[cfg(leasehold_planted)]
        let before = self.last_fence;
        let fences = self.issue(head.fence_block, now);
        #[cfg(leasehold_planted)]
        let fences = match before {
            Some(last) if crate::planted::is(crate::planted::Fault::FenceRepeats) => {
                crate::FenceBlock::new(last, fences.count())
            }
            _ => fences,
        };
        let wake = Wake::Granted { ticket: head.ticket, heartbeat: head.heartbeat, fences };
        notices.push(Notice { client: head.client, wake });
        self.time.give(now.at);
        self.holders.push(Holder {
            token: head.token,
            mode: head.mode,
            fences,
            holds: 1,
            granted_at: now.at,
            expires_at: now.at.saturating_add(head.window_left(now.at)),
            owner: head.owner,
            metadata: head.metadata,
            asked_by: None,
        });
    }

    /// When the operation's own lease ends.
    fn end_for<O: Operation>(&self, operation: &O) -> Option<StoreTime> {
        let tokens = [operation.successor(), operation.token()];
        let holder = tokens.into_iter().flatten().find_map(|token| self.holder(token))?;
        Some(holder.expires_at)
    }

    fn first_in_line(&self) -> Option<Place> {
        self.waiters.front().map(|head| head.place)
    }

    /// Notifies a head that is new, or whose timer is wrong now, of when the lock can come free, if
    /// its next heartbeat would come after that. With equal ttls it never does.
    fn tell_new_first(
        &self,
        before: Option<Place>,
        asking: Option<Token>,
        now: Now,
        notices: &mut Vec<Notice>,
    ) {
        let at = now.at;
        let Some(head) = self.waiters.front() else { return };
        if before == Some(head.place) || asking == Some(head.token) {
            return;
        }
        let retry_after = self.next_free_in(now);
        if at.saturating_add(retry_after) < head.next_heartbeat(at) {
            let wake = Wake::First { ticket: head.ticket, retry_after };
            notices.push(Notice { client: head.client, wake });
        }
    }
}
