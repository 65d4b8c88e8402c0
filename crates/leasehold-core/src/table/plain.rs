//! The common form of an entry: free, or with one exclusive holder, and without a queue.
//!
//! A store can keep such an entry in columns that people and other programs read.

use std::collections::VecDeque;

use super::StoreTime;
use super::entry::{Holder, LockEntry};
use super::time::LockTime;
use crate::fence::{Fence, FenceBlock};
use crate::label::{Metadata, OwnerName};
use crate::store::{Kind, Mode, Place};
use crate::token::Token;

/// All there is to know of an entry in its common form.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "stores read and write each field")]
pub struct Plain {
    /// The last fence issued: the last one of the holder's block.
    pub last_fence: Option<Fence>,
    /// The exclusive holder.
    pub holder: Option<PlainHolder>,
    /// The token of the lease with the last fences, if it was released.
    pub released: Option<Token>,
    /// The tokens of the last other leases that were released, the latest first.
    pub ended: Vec<Token>,
}

/// The exclusive holder of an entry in its common form.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "stores read and write each field")]
pub struct PlainHolder {
    /// Its token. Secret.
    pub token: Token,
    /// How many fences its block has.
    pub fences: u32,
    /// How many holds it has.
    pub holds: u32,
    /// The start of the lease.
    pub granted_at: StoreTime,
    /// The lease's last grant or renewal.
    pub given_at: StoreTime,
    /// The end of the lease.
    pub expires_at: StoreTime,
    /// Its name, for people.
    pub owner: OwnerName,
    /// Its note, for people.
    pub metadata: Metadata,
}

impl LockEntry {
    /// The entry in its common form, if it has that when the store's clock shows `at`. The entry
    /// made of it behaves in the same way from then on.
    #[must_use]
    pub fn plain(&self, at: StoreTime) -> Option<Plain> {
        let Self { holders, waiters, kind, closed_until, last_fence, next_places, .. } = self;
        // Positions up to the present are accepted anyway.
        let is_past =
            |place: &Place| *place <= Place::on_arrival(at.as_micros(), place.is_preferred());
        if !waiters.is_empty()
            || closed_until.is_some()
            || !next_places.iter().flatten().all(is_past)
            || matches!(kind, Some(Kind::Semaphore { .. }))
            || self.time.ahead_us() > 0
        {
            return None;
        }
        let holder = match &holders[..] {
            [] => None,
            [holder] => {
                let last = (*last_fence)?;
                let is_plain = holder.mode == Mode::Exclusive
                    && holder.asked_by.is_none()
                    && holder.fences == FenceBlock::up_to(last, holder.fences.count());
                if !is_plain {
                    return None;
                }
                Some(PlainHolder {
                    token: holder.token,
                    fences: holder.fences.count(),
                    holds: holder.holds,
                    granted_at: holder.granted_at,
                    given_at: self.time.given_at(),
                    expires_at: holder.expires_at,
                    owner: holder.owner.clone(),
                    metadata: holder.metadata.clone(),
                })
            }
            _ => return None,
        };
        let ended = self.ended.iter().copied().collect();
        Some(Plain { last_fence: *last_fence, holder, released: self.released, ended })
    }

    /// The fences of the one exclusive holder, if they are the last ones issued.
    #[must_use]
    pub fn exclusive_fences(&self) -> Option<FenceBlock> {
        match &self.holders[..] {
            [holder] if holder.mode == Mode::Exclusive => {
                Some(holder.fences).filter(|fences| Some(fences.last()) == self.last_fence)
            }
            _ => None,
        }
    }

    /// Ends the lease of the exclusive holder whose fences end with this one: for a store whose
    /// users release a lock in a transaction of their own. The next step grants the lock to the
    /// head of the queue. A release by the holder itself then still counts as one.
    pub fn end_exclusive(&mut self, last: Fence) {
        if self.exclusive_fences().is_some_and(|fences| fences.last() == last) {
            let token = self.holders.remove(0).token;
            self.released = Some(token);
            // The next grant forgets the other.
            self.ended.push_front(token);
            self.ended.truncate(Self::ENDED_KEPT);
        }
    }

    /// Whether a step from `before` to this entry granted a lease, or made one exclusive.
    #[must_use]
    pub fn has_grants_since(&self, before: &Self) -> bool {
        self.holders.iter().any(|holder| {
            let known = before.holder(holder.token);
            Some(holder.fences.last()) > before.last_fence
                && known.is_none_or(|known| known.mode != holder.mode)
        })
    }
}

impl From<Plain> for LockEntry {
    fn from(plain: Plain) -> Self {
        let Plain { last_fence, holder, released, ended } = plain;
        let (kind, ended) = (last_fence.map(|_| Kind::Lock), VecDeque::from(ended));
        let mut entry = Self { kind, last_fence, released, ended, ..Self::default() };
        if let Some(holder) = holder {
            entry.time = LockTime::since(holder.given_at);
            entry.holders.push(Holder {
                token: holder.token,
                mode: Mode::Exclusive,
                fences: FenceBlock::up_to(last_fence.unwrap_or(Fence::ZERO), holder.fences),
                holds: holder.holds,
                granted_at: holder.granted_at,
                expires_at: holder.expires_at,
                owner: holder.owner,
                metadata: holder.metadata,
                asked_by: None,
            });
        }
        entry
    }
}
