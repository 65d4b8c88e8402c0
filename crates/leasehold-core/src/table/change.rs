//! Changes a lock without taking or ending a lease.

use super::operation::{Current, Operation};
use crate::fence::FenceBlock;
use crate::store::{
    Ask, AskRequest, Convert, ConvertRequest, Converted, Kind, Mode, Refusal, SetLimit,
    SetLimitRequest,
};
use crate::token::Token;

/// Changes the mode in which a lease is held, at once or not at all.
///
/// An upgrade needs to be the only reader, but may pass the waiters: they would wait for this
/// reader in any case. More permits go to the next in the queue, so a holder gets none while others
/// wait.
impl Operation for ConvertRequest {
    type Answer = Convert;

    fn token(&self) -> Option<Token> {
        Some(self.token)
    }

    fn apply(&self, Current { entry, now }: Current<'_>) -> Convert {
        let Some(at) = entry.holders.iter().position(|h| h.token == self.token) else {
            let late = entry.is_late(self.fences);
            return if late { Convert::Late } else { Convert::NotHeld };
        };
        let sharers = u32::try_from(entry.holders.len()).unwrap_or(u32::MAX).saturating_sub(1);
        #[cfg(leasehold_planted)]
        let sharers = if crate::planted::is(crate::planted::Fault::UpgradeBesideReaders) {
            0
        } else {
            sharers
        };
        let waited_for = !entry.waiters.is_empty();
        // The store may have forgotten the others that share the lock.
        let forgets = !now.no_grants_for().is_zero();
        let stored = entry.kind_in_use().unwrap_or(Kind::Lock);
        let taken = entry.permits_taken();
        let Some(holder) = entry.holders.get_mut(at) else { return Convert::NotHeld };
        let same = |fences: FenceBlock| Convert::Converted(Converted::new(fences));
        match (holder.mode, self.mode) {
            (Mode::Exclusive, Mode::Exclusive) | (Mode::Shared, Mode::Shared) => {
                same(holder.fences)
            }
            // A downgrade that arrives again after a later upgrade must not undo it.
            (Mode::Exclusive, Mode::Shared) if holder.fences.last() != self.fences.last() => {
                Convert::NotHeld
            }
            (Mode::Exclusive, Mode::Shared) => {
                holder.mode = Mode::Shared;
                same(holder.fences)
            }
            (Mode::Shared, Mode::Exclusive) if sharers > 0 || forgets => {
                Convert::Busy { others: sharers.max(1) }
            }
            (Mode::Shared, Mode::Exclusive) => {
                let fences = entry.issue(self.fence_block, now);
                if let Some(holder) = entry.holders.get_mut(at) {
                    holder.mode = Mode::Exclusive;
                    holder.fences = fences;
                }
                same(fences)
            }
            (Mode::Permits { count: held, .. }, Mode::Permits { count, limit }) => {
                if stored != (Kind::Semaphore { limit }) {
                    return Convert::Refused(Refusal::WrongKind { stored });
                }
                if count > limit {
                    return Convert::Refused(Refusal::TooManyPermits { limit });
                }
                let more = count.get().saturating_sub(held.get());
                if more > 0 && (forgets || waited_for || more > limit.get().saturating_sub(taken)) {
                    return Convert::Busy { others: taken.saturating_sub(held.get()) };
                }
                holder.mode = self.mode;
                same(holder.fences)
            }
            _ => Convert::Refused(Refusal::WrongKind { stored }),
        }
    }
}

/// Changes the limit of a semaphore in use.
impl Operation for SetLimitRequest {
    type Answer = SetLimit;

    fn apply(&self, Current { entry, .. }: Current<'_>) -> SetLimit {
        match entry.kind_in_use() {
            None => SetLimit::NotInUse,
            Some(Kind::Semaphore { limit: before }) => {
                let limit = self.limit;
                entry.kind = Some(Kind::Semaphore { limit });
                entry.waiters.retain(|waiter| match waiter.mode {
                    Mode::Permits { count, .. } => count <= limit,
                    Mode::Exclusive | Mode::Shared | Mode::Joint(_) => true,
                });
                let modes = entry.holders.iter_mut().map(|holder| &mut holder.mode);
                for mode in modes.chain(entry.waiters.iter_mut().map(|waiter| &mut waiter.mode)) {
                    if let Mode::Permits { limit: of, .. } = mode {
                        *of = limit;
                    }
                }
                SetLimit::Set { before }
            }
            Some(stored @ Kind::Lock) => SetLimit::Refused(Refusal::WrongKind { stored }),
        }
    }
}

/// Records a release request for holders.
impl Operation for AskRequest {
    type Answer = Ask;

    fn apply(&self, Current { entry, .. }: Current<'_>) -> Ask {
        let mut holders: u32 = 0;
        for holder in &mut entry.holders {
            if self.fence.is_none_or(|fence| holder.fences.contains(fence)) {
                holder.asked_by = Some(self.by.clone());
                holders = holders.saturating_add(1);
            }
        }
        if holders == 0 { Ask::NotHeld } else { Ask::Asked { holders } }
    }
}
