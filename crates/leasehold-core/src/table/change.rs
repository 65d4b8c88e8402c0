//! Operations that change a lock without taking or ending a lease.

use super::Now;
use super::entry::{LockEntry, Notice};
use crate::change::{
    Ask, AskRequest, Convert, ConvertRequest, Converted, SetLimit, SetLimitRequest,
};
use crate::fence::FenceBlock;
use crate::store::{Kind, Mode, Refusal};

impl LockEntry {
    /// Changes the mode in which a lease is held, at once or not at all.
    ///
    /// An upgrade needs nobody else to share the lock, but may pass those who wait: they would
    /// wait for this reader in any case. More permits are for whoever is next, so not while
    /// somebody waits.
    pub fn convert(
        &mut self,
        request: &ConvertRequest,
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> Convert {
        let first = self.first_in_line();
        self.settle(now, notices);
        let answer = self.convert_settled(request, now);
        self.settle(now, notices);
        self.tell_new_first(first, None, now.at, notices);
        answer
    }

    fn convert_settled(&mut self, request: &ConvertRequest, now: Now) -> Convert {
        let Some(at) = self.holders.iter().position(|h| h.token == request.token) else {
            let late = self.is_late(request.fences);
            return if late { Convert::Late } else { Convert::NotHeld };
        };
        let sharers = u32::try_from(self.holders.len()).unwrap_or(u32::MAX).saturating_sub(1);
        let waited_for = !self.waiters.is_empty();
        let stored = self.kind_in_use().unwrap_or(Kind::Lock);
        let taken = self.permits_taken();
        let Some(holder) = self.holders.get_mut(at) else { return Convert::NotHeld };
        let same = |fences: FenceBlock| Convert::Converted(Converted::new(fences));
        match (holder.mode, request.mode) {
            (Mode::Exclusive, Mode::Exclusive) | (Mode::Shared, Mode::Shared) => {
                same(holder.fences)
            }
            // A downgrade that arrives again after a later upgrade must not undo it.
            (Mode::Exclusive, Mode::Shared) if holder.fences.last() != request.fences.last() => {
                Convert::NotHeld
            }
            (Mode::Exclusive, Mode::Shared) => {
                holder.mode = Mode::Shared;
                same(holder.fences)
            }
            (Mode::Shared, Mode::Exclusive) if sharers > 0 => Convert::Busy { others: sharers },
            (Mode::Shared, Mode::Exclusive) => {
                let fences = self.issue(request.fence_block, now);
                if let Some(holder) = self.holders.get_mut(at) {
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
                if more > 0 && (waited_for || more > limit.get().saturating_sub(taken)) {
                    return Convert::Busy { others: taken.saturating_sub(held.get()) };
                }
                holder.mode = request.mode;
                same(holder.fences)
            }
            _ => Convert::Refused(Refusal::WrongKind { stored }),
        }
    }

    /// Changes the limit of a semaphore in use.
    pub fn set_limit(
        &mut self,
        request: &SetLimitRequest,
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> SetLimit {
        let first = self.first_in_line();
        self.settle(now, notices);
        let answer = match self.kind_in_use() {
            None => SetLimit::NotInUse,
            Some(Kind::Semaphore { limit: before }) => {
                let limit = request.limit;
                self.kind = Some(Kind::Semaphore { limit });
                self.waiters.retain(|waiter| match waiter.mode {
                    Mode::Permits { count, .. } => count <= limit,
                    Mode::Exclusive | Mode::Shared => true,
                });
                let modes = self.holders.iter_mut().map(|holder| &mut holder.mode);
                for mode in modes.chain(self.waiters.iter_mut().map(|waiter| &mut waiter.mode)) {
                    if let Mode::Permits { limit: of, .. } = mode {
                        *of = limit;
                    }
                }
                SetLimit::Set { before }
            }
            Some(stored @ Kind::Lock) => SetLimit::Refused(Refusal::WrongKind { stored }),
        };
        self.settle(now, notices);
        self.tell_new_first(first, None, now.at, notices);
        answer
    }

    /// Notes that holders are asked to let go.
    pub fn ask(&mut self, request: &AskRequest, now: Now, notices: &mut Vec<Notice>) -> Ask {
        let first = self.first_in_line();
        self.settle(now, notices);
        self.tell_new_first(first, None, now.at, notices);
        let mut holders: u32 = 0;
        for holder in &mut self.holders {
            if request.fence.is_none_or(|fence| holder.fences.contains(fence)) {
                holder.asked_by = Some(request.by.clone());
                holders = holders.saturating_add(1);
            }
        }
        if holders == 0 { Ask::NotHeld } else { Ask::Asked { holders } }
    }
}
