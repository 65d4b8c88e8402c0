//! Takes a lock, or several in one step.

use super::entry::{Holder, LockEntry};
use super::operation::{Current, Operation};
use super::{Now, StoreTime};
use crate::key::Key;
use crate::store::{Acquire, AcquireAll, AcquireRequest, Already, Granted, Mode, Refusal};
use crate::token::Token;

/// Takes the lock, takes or renews a position in the queue, or says why it can't be acquired now.
impl Operation for AcquireRequest {
    type Answer = Acquire;
    const TAKES: bool = true;

    fn token(&self) -> Option<Token> {
        Some(self.token)
    }

    /// Records the heartbeat first, or the waiter could be skipped by this very request.
    fn prepare(&self, entry: &mut LockEntry, at: StoreTime) {
        let Some(queue) = self.in_line() else { return };
        if let Some(waiter) = entry.waiters.iter_mut().find(|w| w.token == self.token) {
            waiter.seen_at = at;
            waiter.heartbeat = queue.heartbeat;
            waiter.window = queue.window;
            waiter.behind = queue.behind;
        }
    }

    fn apply(&self, Current { entry, now }: Current<'_>) -> Acquire {
        if let Some(refusal) = entry.refusal(self) {
            return Acquire::Refused(refusal);
        }
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Fault::AskedTwiceIsBusy)
            && entry.holder_mut(self.token).is_some()
        {
            return Acquire::Busy(entry.busy(now));
        }
        if let Some(holder) = entry.holder_mut(self.token) {
            let expires_at = now.at.saturating_add(self.ttl.duration());
            holder.expires_at = holder.expires_at.max(expires_at);
            holder.holds = self.holds.get();
            let already = Already::new(holder.fences, holder.holds);
            entry.time.give(now.at);
            return Acquire::Already(already);
        }
        if let Some(at) = entry.waiters.iter().position(|w| w.token == self.token) {
            if entry.has_bond(self.mode) && entry.is_to_be_had(self, now) {
                entry.waiters.remove(at);
            } else if let Some(waiter) = entry.waiters.get(at) {
                return Acquire::Waiting(entry.waiting(waiter.place, now));
            }
        }
        if entry.is_to_be_had(self, now) {
            return Acquire::Granted(entry.grant(self, now));
        }
        let Some(queue) = self.in_line() else {
            return Acquire::Busy(entry.busy(now));
        };
        let waiters = u32::try_from(entry.waiters.len()).unwrap_or(u32::MAX);
        if queue.place.is_none() && queue.max_waiters.is_some_and(|max| waiters >= max) {
            return Acquire::Refused(Refusal::QueueFull { waiters });
        }
        entry.kind = Some(self.mode.kind());
        let place = entry.join_line(self, queue, now.at);
        Acquire::Waiting(entry.waiting(place, now))
    }
}

/// Looks whether a request that does not queue can be granted. Returns its answer if it can't.
/// `None` if it can, or if the token has the lease already. It grants no lease.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a request, seen in another way")]
pub struct Obstacle<'a>(pub &'a AcquireRequest);

impl Operation for Obstacle<'_> {
    type Answer = Option<Acquire>;

    fn token(&self) -> Option<Token> {
        Some(self.0.token)
    }

    fn apply(&self, Current { entry, now }: Current<'_>) -> Option<Acquire> {
        let request = self.0;
        if let Some(refusal) = entry.refusal(request) {
            return Some(Acquire::Refused(refusal));
        }
        let waits = entry.waiters.iter().any(|waiter| waiter.token == request.token);
        let free =
            entry.holder_mut(request.token).is_some() || !waits && entry.is_to_be_had(request, now);
        (!free).then(|| Acquire::Busy(entry.busy(now)))
    }
}

/// Many entries, each under its name.
pub trait Entries {
    /// Why an entry could not be read or written.
    type Error;

    /// Carries an operation out on one of them, as [`LockEntry::perform`] does.
    ///
    /// # Errors
    ///
    /// The store's.
    fn perform<O: Operation>(&mut self, key: &Key, operation: &O)
    -> Result<O::Answer, Self::Error>;
}

/// Takes all of several locks, or none: [`Store::acquire_all`](crate::Store::acquire_all).
///
/// # Errors
///
/// As [`Entries::perform`]; then some may be taken, and the store has to undo the step.
pub fn acquire_all<E: Entries>(
    requests: &[AcquireRequest],
    entries: &mut E,
) -> Result<AcquireAll, E::Error> {
    for (index, request) in requests.iter().enumerate() {
        if let Some(answer) = entries.perform(&request.key, &Obstacle(request))? {
            return Ok(AcquireAll::Blocked { index, answer });
        }
    }
    let mut all = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        let answer = entries.perform(&request.key, request)?;
        match answer.fences() {
            Some(fences) => all.push(fences),
            None => return Ok(AcquireAll::Blocked { index, answer }),
        }
    }
    Ok(AcquireAll::Granted(all))
}

impl LockEntry {
    /// Why the lock can't be used like this at all. A token that has something of it already came
    /// under the limit of that time.
    fn refusal(&self, request: &AcquireRequest) -> Option<Refusal> {
        let mode = request.mode;
        if let Some(stored) = self.kind_in_use()
            && stored != mode.kind()
        {
            let resized = stored.limit().is_some() && mode.kind().limit().is_some();
            if !resized || !self.tokens().any(|token| *token == request.token) {
                return Some(Refusal::WrongKind { stored });
            }
        }
        match mode {
            Mode::Permits { count, limit } if count > limit => {
                Some(Refusal::TooManyPermits { limit })
            }
            Mode::Exclusive | Mode::Shared | Mode::Permits { .. } | Mode::Joint(_) => None,
        }
    }

    fn is_to_be_had(&self, request: &AcquireRequest, now: Now) -> bool {
        let at = now.at;
        now.no_grants_for().is_zero()
            && self.closed_for(at).is_none()
            && self.admits(request.mode)
            && request.after.is_none_or(|fences| self.last_fence == Some(fences.last()))
            && (self.has_bond(request.mode) || self.is_next(request, at))
    }

    /// Whether this mode has the bond of the holders. Behind others that wait for them it might
    /// wait for itself.
    fn has_bond(&self, mode: Mode) -> bool {
        let holder = self.holders.first();
        matches!(mode, Mode::Joint(_)) && holder.is_some_and(|holder| holder.mode == mode)
    }

    fn grant(&mut self, request: &AcquireRequest, now: Now) -> Granted {
        self.kind = Some(request.mode.kind());
        let cooldown = request.cooldown;
        #[cfg(leasehold_planted)]
        let cooldown = if crate::planted::is(crate::planted::Fault::PeriodForgotten) {
            Default::default()
        } else {
            cooldown
        };
        self.close(cooldown, now.at);
        let fences = self.issue(request.fence_block, now);
        self.time.give(now.at);
        self.holders.push(Holder {
            token: request.token,
            mode: request.mode,
            fences,
            holds: request.holds.get(),
            granted_at: now.at,
            expires_at: now.at.saturating_add(request.ttl.duration()),
            owner: request.owner.clone(),
            metadata: request.metadata.clone(),
            asked_by: None,
        });
        Granted::new(fences)
    }
}
