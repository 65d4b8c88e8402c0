//! Ends a lease: for its holder, a dropped future, an operator, or a dead process.

use std::time::Duration;

use super::StoreTime;
use super::entry::LockEntry;
use super::operation::{Current, Operation};
use crate::store::{
    ForceRelease, ForceReleaseRequest, Leave, LeaveRequest, Mode, Release, ReleaseRequest,
};
use crate::token::Token;

/// Ends the lease, or sets how many of its holds remain.
impl Operation for ReleaseRequest {
    type Answer = Release;

    fn token(&self) -> Option<Token> {
        Some(self.token)
    }

    /// A lease that is ended in time does not expire before.
    fn prepare(&self, entry: &mut LockEntry, at: StoreTime) {
        if !self.in_time || self.remaining > 0 {
            return;
        }
        for holder in &mut entry.holders {
            if holder.token == self.token && holder.mode == Mode::Exclusive {
                holder.expires_at =
                    holder.expires_at.max(at.saturating_add(Duration::from_micros(1)));
            }
        }
    }

    fn apply(&self, Current { entry, now }: Current<'_>) -> Release {
        let held = entry.holders.iter().position(|h| h.token == self.token);
        #[cfg(leasehold_planted)]
        let any = crate::planted::is(crate::planted::Fault::ReleaseWithoutToken);
        #[cfg(leasehold_planted)]
        let held = held.or_else(|| (any && !entry.holders.is_empty()).then_some(0));
        let Some(at) = held else {
            if entry.released == Some(self.token) || entry.ended.contains(&self.token) {
                return Release::Released;
            }
            if entry.is_late(self.fences) {
                entry.reopen(self.reopen);
                entry.close(self.cooldown, now.at);
                return Release::Late;
            }
            return Release::NotHeld;
        };
        let remaining = self.remaining;
        #[cfg(leasehold_planted)]
        let remaining =
            if crate::planted::is(crate::planted::Fault::InnerEndsAll) { 0 } else { remaining };
        if let Some(holder) = entry.holders.get_mut(at)
            && remaining > 0
        {
            holder.holds = remaining;
            return Release::StillHeld { holds: remaining };
        }
        entry.end(at);
        entry.reopen(self.reopen);
        entry.close(self.cooldown, now.at);
        Release::Released
    }
}

/// Ends whatever the token has.
impl Operation for LeaveRequest {
    type Answer = Leave;

    fn token(&self) -> Option<Token> {
        Some(self.token)
    }

    fn apply(&self, Current { entry, .. }: Current<'_>) -> Leave {
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Fault::LeaveKeepsPlace)
            && entry.waiters.iter().any(|w| w.token == self.token)
        {
            return Leave::Left;
        }
        if let Some(at) = entry.waiters.iter().position(|w| w.token == self.token) {
            entry.waiters.remove(at);
            Leave::Left
        } else if let Some(at) = entry.holders.iter().position(|h| h.token == self.token) {
            entry.end(at);
            entry.reopen(self.reopen);
            Leave::Released
        } else {
            Leave::NotHeld
        }
    }
}

/// Ends the lease with this fence. The next fence is above any that its holder could still hand
/// off.
impl Operation for ForceReleaseRequest {
    type Answer = ForceRelease;

    fn apply(&self, Current { entry, .. }: Current<'_>) -> ForceRelease {
        if let Some(at) = entry.holders.iter().position(|h| h.fences.contains(self.fence)) {
            entry.holders.remove(at);
            entry.last_fence = entry.last_fence.map(|fence| fence.saturating_add(1));
            ForceRelease::Released
        } else if entry.holders.is_empty() {
            ForceRelease::NotHeld
        } else {
            let fences = entry.holders.iter().map(|h| h.fences.first()).collect();
            ForceRelease::OtherFence { fences }
        }
    }
}

/// Ends the leases and positions of these tokens early, for a store that knows that their clients
/// are gone.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "stores make it")]
pub struct Bury<'a>(pub &'a [Token]);

impl Operation for Bury<'_> {
    type Answer = ();

    /// Before anything is granted: a dead waiter gets no lease.
    fn prepare(&self, entry: &mut LockEntry, _at: StoreTime) {
        entry.holders.retain(|holder| !self.0.contains(&holder.token));
        entry.waiters.retain(|waiter| !self.0.contains(&waiter.token));
    }

    fn apply(&self, _lock: Current<'_>) {}
}
