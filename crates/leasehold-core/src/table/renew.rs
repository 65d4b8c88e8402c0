//! Extends a lease.

use super::entry::LockEntry;
use super::operation::{Current, Operation};
use crate::fence::FenceBlock;
use crate::store::{Mode, Renew, RenewRequest};
use crate::token::Token;

/// It only extends leases that exist. An exclusive lease gets higher fences; see
/// [`RenewRequest::fences`].
impl Operation for RenewRequest {
    type Answer = Renew;

    fn token(&self) -> Option<Token> {
        Some(self.token)
    }

    fn successor(&self) -> Option<Token> {
        self.successor
    }

    fn apply(&self, Current { entry, now }: Current<'_>) -> Renew {
        let higher = Some(self.fences.last()).filter(|last| Some(*last) > entry.last_fence);
        let token = self.renewed_token();
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Fault::AdoptedTwice) && self.successor.is_some() {
            return match entry.holder_mut(self.token) {
                Some(_) => Renew::Renewed,
                None => Renew::NotHeld,
            };
        }
        if let Some(successor) = self.successor {
            entry.hand_to(successor, self.token);
        }
        let Some(holder) = entry.holder_mut(token) else {
            #[cfg(leasehold_planted)]
            if crate::planted::is(crate::planted::Fault::RefusedRenewalTold) {
                return Renew::Renewed;
            }
            let late = entry.is_late(self.fences);
            return if late { Renew::Late } else { Renew::NotHeld };
        };
        let expires_at = now.at.saturating_add(self.ttl.duration());
        holder.expires_at =
            if self.shorten { expires_at } else { holder.expires_at.max(expires_at) };
        let answer = if holder.asked_by.is_some() { Renew::Asked } else { Renew::Renewed };
        if holder.mode == Mode::Exclusive
            && let Some(last) = higher
        {
            holder.fences = FenceBlock::up_to(last, holder.fences.count());
            entry.last_fence = Some(last);
        }
        entry.time.give(now.at);
        answer
    }
}

impl LockEntry {
    /// Gives a lease another token, unless the table knows that one already.
    fn hand_to(&mut self, successor: Token, token: Token) {
        if self.tokens().all(|known| *known != successor)
            && let Some(holder) = self.holder_mut(token)
        {
            holder.token = successor;
        }
    }
}
