//! Counts what the owners of a client hold, and how many times.
//!
//! The counts live with the client, as the lease, its renewals and its release do. An owner can be
//! used by several clients, and can outlive them. The store gets each count as an absolute number,
//! so the next request corrects one that was doubled, delayed or lost. The count here decides when
//! the lease ends.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use leasehold_core::{
    Acquire, AcquireRequest, Admission, Effect, Error, ErrorKind, Key, LeaveRequest, Moment,
    Release as StoreRelease, ReleaseRequest, Renew, RenewRequest, Result, margin,
};
use tokio::sync::{Mutex as Turns, Notify};

use crate::lease::guard::Guard;
use crate::lease::handle::requests::Afterwards;
use crate::lease::held_lease::HeldLease;
use crate::lease::orphans::{Orphan, last_of};
use crate::lease::release::Release;
use crate::owner::OwnerId;
use crate::shared::Inner;

/// The locks that a client's owners use, by name and owner.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    slots: Mutex<HashMap<(Key, OwnerId), Weak<Slot>>>,
}

impl Owned {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Key, OwnerId), Weak<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn slot(self: &Arc<Self>, key: &Key, owner: OwnerId) -> Arc<Slot> {
        let id = (key.clone(), owner);
        let mut slots = self.lock();
        if let Some(slot) = slots.get(&id).and_then(Weak::upgrade) {
            return slot;
        }
        let slot = Arc::new(Slot {
            owned: Arc::clone(self),
            id: id.clone(),
            state: Mutex::new(State::Free),
            changed: Notify::new(),
        });
        slots.insert(id, Arc::downgrade(&slot));
        slot
    }
}

/// One owner's use of one lock. It lives while the lock is held or wanted.
#[derive(Debug)]
pub(crate) struct Slot {
    owned: Arc<Owned>,
    id: (Key, OwnerId),
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
enum State {
    Free,
    /// One of the owner's tasks requests it from the store.
    Trying,
    /// One of the owner's tasks waits in the queue for it.
    Waiting,
    Held(Weak<ReentrantLease>),
}

/// What a contender can do.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The owner holds it: take it once more.
    Enter(Entering),
    /// No task of the owner has it or requests it: send a request.
    First(First),
    /// Another of the owner's tasks has sent a request, and will have its answer soon.
    AfterTry,
    /// Another of the owner's tasks waits for it.
    AfterWait,
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, next: State) {
        *self.state() = next;
        self.changed.notify_waiters();
    }

    /// Frees the slot, unless the owner has taken the lock again since.
    fn clear(&self, over: &ReentrantLease) {
        let mut state = self.state();
        if matches!(&*state, State::Held(held) if std::ptr::eq(held.as_ptr(), over)) {
            *state = State::Free;
            drop(state);
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn turn(self: &Arc<Self>) -> Turn {
        let mut state = self.state();
        match &*state {
            State::Trying => return Turn::AfterTry,
            State::Waiting => return Turn::AfterWait,
            State::Held(held) => {
                if let Some(entering) = held.upgrade().and_then(|held| held.begin_entering()) {
                    return Turn::Enter(entering);
                }
            }
            State::Free => {}
        }
        *state = State::Trying;
        Turn::First(First { slot: Arc::clone(self), got: false })
    }

    /// Returns once the contender before has got the lock or stopped. Cancel safe.
    pub(crate) async fn got_on(self: &Arc<Self>) -> Turn {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.turn() {
                Turn::AfterTry | Turn::AfterWait => changed.await,
                turn => return turn,
            }
        }
    }

    /// Returns once the request of the contender before is answered. Cancel safe.
    pub(crate) async fn tried(self: &Arc<Self>) -> Turn {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.turn() {
                Turn::AfterTry => changed.await,
                turn => return turn,
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.owned.lock();
        // The name may have been used again since the last user was dropped.
        if slots.get(&self.id).is_some_and(|slot| slot.strong_count() == 0) {
            slots.remove(&self.id);
        }
    }
}

/// The one of an owner's tasks that requests the lock. Dropped without success, the next one may.
#[derive(Debug)]
pub(crate) struct First {
    slot: Arc<Slot>,
    got: bool,
}

impl First {
    /// Another holder has the lock; from here on it may take long.
    pub(crate) fn waits(&self) {
        self.slot.set(State::Waiting);
    }

    /// The lock is held now.
    pub(crate) fn got(mut self, guard: Guard) -> Arc<ReentrantLease> {
        self.got = true;
        let held = Arc::new(ReentrantLease {
            lease: guard.into_lease(),
            count: Mutex::new(Count { guards: 1, entering: 0, held_to_the_end: false }),
            wire: Turns::new(Wired { holds: 1, expires_at: None }),
            slot: Arc::clone(&self.slot),
        });
        self.slot.set(State::Held(Arc::downgrade(&held)));
        held
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if !self.got {
            self.slot.set(State::Free);
        }
    }
}

/// A lease that one owner holds, once or several times.
#[derive(Debug)]
pub(crate) struct ReentrantLease {
    pub(crate) lease: HeldLease,
    count: Mutex<Count>,
    /// Requests that change the count at the store go one after the other.
    wire: Turns<Wired>,
    slot: Arc<Slot>,
}

#[derive(Debug)]
struct Count {
    guards: u32,
    /// Holds whose request is on its way.
    entering: u32,
    /// Whether the lease was held when the last of them ended.
    held_to_the_end: bool,
}

#[derive(Debug)]
struct Wired {
    /// The count that the store has, by its last answer.
    holds: u32,
    /// Until when there may be a lease that no guard has: an unanswered request to hold the lock
    /// once more may have acquired one.
    expires_at: Option<Moment>,
}

impl Count {
    const fn all(&self) -> u32 {
        self.guards.saturating_add(self.entering)
    }
}

impl ReentrantLease {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many times it is held.
    pub(crate) fn holds(&self) -> u32 {
        self.count().guards
    }

    fn begin_entering(self: Arc<Self>) -> Option<Entering> {
        if !self.lease.is_held() {
            return None;
        }
        let mut count = self.count();
        if count.all() == 0 {
            return None;
        }
        count.entering = count.entering.checked_add(1)?;
        drop(count);
        Some(Entering { held: Some(self) })
    }

    /// Counts down here; returns how many remain.
    fn count_down(&self, down: impl FnOnce(&mut Count)) -> u32 {
        let is_held = self.lease.is_held();
        let mut count = self.count();
        down(&mut count);
        let remaining = count.all();
        count.held_to_the_end = is_held && remaining == 0;
        drop(count);
        if remaining == 0 {
            self.slot.clear(self);
        }
        remaining
    }

    /// Ends one of the holds, and the lease with the last, with this cooldown. The end begins with
    /// the call, not with the first poll.
    pub(crate) fn release(
        self: Arc<Self>,
        cooldown: Afterwards,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        let remaining = self.count_down(|count| count.guards = count.guards.saturating_sub(1));
        let client = Arc::clone(self.lease.client());
        let (given_back, told) = if remaining == 0 {
            (Some((self.lease.clone().give_back(cooldown), self)), None)
        } else {
            (None, Some(client.background.spawn(self.tell_count(remaining))))
        };
        async move {
            match (given_back, told) {
                // Dropping this abandons a request in doubt, and would end the lease if that came
                // first.
                (Some((answer, _held)), _) => answer.await,
                (None, Some(told)) => told.await.unwrap_or_else(|_| {
                    let why = "the runtime is shutting down; the lease ends with its ttl";
                    Err(Error::new(ErrorKind::Closed, why).with_effect(Effect::Unknown))
                }),
                (None, None) => Ok(Release::NotHeld),
            }
        }
    }

    /// Ends one of the holds in the background.
    pub(crate) fn release_in_background(self: Arc<Self>) {
        let remaining = self.count_down(|count| count.guards = count.guards.saturating_sub(1));
        self.tell_in_background(remaining);
    }

    fn tell_in_background(self: Arc<Self>, remaining: u32) {
        if remaining == 0 {
            self.lease.clone().give_up();
        } else {
            let client = Arc::clone(self.lease.client());
            client.background.spawn(self.tell_count(remaining));
        }
    }

    /// Whether other tasks have ended the lease meanwhile, and it was held until then.
    fn was_ended_in_time(&self) -> bool {
        let count = self.count();
        count.all() == 0 && count.held_to_the_end
    }

    /// Sends the number of holds to the store, if the store has another one. The answer is for the
    /// hold after which `remaining` were left.
    async fn tell_count(self: Arc<Self>, remaining: u32) -> Result<Release> {
        let mut wired = self.wire.lock().await;
        let lease = &self.lease;
        let (client, handle) = (lease.client(), lease.handle());
        let (renewing, holds) = loop {
            let holds = self.count().all();
            if wired.holds == holds {
                return Ok(Release::StillHeld { holds: remaining });
            }
            let now = client.clock.now();
            match if holds == 0 { Admission::Over } else { handle.may_renew(now) } {
                Admission::Start(renewing) => break (renewing, holds),
                Admission::Wait => handle.settled().await,
                Admission::Over => {
                    // The other holds may have ended since, and the last of them ended the lease.
                    let still_held = Release::StillHeld { holds: remaining };
                    return Ok(if self.was_ended_in_time() {
                        still_held
                    } else {
                        Release::NotHeld
                    });
                }
            }
        };
        let renewal = &renewing.request;
        let mut request = ReleaseRequest::new(renewal.key.clone(), renewal.token, renewal.fences);
        request.remaining = holds;
        match client.store.release(&request, client.config.call_timeout).await {
            Ok(StoreRelease::StillHeld { holds }) => {
                wired.holds = holds;
                if !handle.state().renews() {
                    self.run_on(renewal).await;
                }
                Ok(Release::StillHeld { holds: remaining })
            }
            Ok(_) if self.was_ended_in_time() => Ok(Release::StillHeld { holds: remaining }),
            Ok(answer) => {
                let now = client.clock.now();
                handle.on(|lease| lease.refuted(now));
                let by = handle.state().over_for(now);
                let is_late = answer == StoreRelease::Late;
                Ok(if is_late { Release::Late { by } } else { Release::NotHeld })
            }
            Err(error) => {
                if error.effect() != Effect::NotApplied {
                    // Other than every count of remaining holds, so that the next one is sent.
                    wired.holds = 0;
                }
                Err(lease.explain(error, "release"))
            }
        }
    }

    /// Extends a lease that is not renewed by its ttl, for the holds that remain.
    async fn run_on(&self, renewal: &RenewRequest) {
        let (client, handle) = (self.lease.client(), self.lease.handle());
        let sent_at = client.clock.now();
        let within = client.config.call_timeout.min(handle.length());
        let answer = client.store.renew(std::slice::from_ref(renewal), within).await.pop();
        let now = client.clock.now();
        match answer {
            Some(Ok(answer @ (Renew::Renewed | Renew::Asked))) => handle.on(|lease| {
                if answer == Renew::Asked {
                    lease.asked();
                }
                lease.renewed(sent_at, renewal.ttl, now);
            }),
            Some(Ok(_)) => handle.on(|lease| lease.refuted(now)),
            // The lease is what it was.
            Some(Err(_)) | None => {}
        }
    }

    /// Counts one more hold at the store; `false` when the lease is gone.
    async fn tell_entry(self: Arc<Self>) -> Result<bool> {
        let mut wired = self.wire.lock().await;
        let (client, handle) = (self.lease.client(), self.lease.handle());
        let (renewing, sent_at) = loop {
            let sent_at = client.clock.now();
            match handle.may_renew(sent_at) {
                Admission::Start(renewing) => break (renewing, sent_at),
                Admission::Wait => handle.settled().await,
                Admission::Over => return Ok(false),
            }
        };
        let holds = self.count().all();
        let RenewRequest { key, token, ttl, .. } = renewing.request.clone();
        let mut request = AcquireRequest::new(key, token, ttl);
        request.holds = NonZeroU32::new(holds).unwrap_or(NonZeroU32::MIN);
        request.mode = handle.settings.mode;
        request.owner = handle.settings.owner.clone();
        request.metadata = handle.settings.metadata.clone();
        let within = client.config.call_timeout.min(handle.length());
        let carried_out = sent_at.saturating_add(within).saturating_add(margin(within));
        let until = carried_out.saturating_add(request.ttl.duration());
        match client.store.acquire(&request, within).await {
            Ok(Acquire::Already(already)) if already.fences == handle.fences => {
                wired.holds = already.holds;
                let now = client.clock.now();
                Ok(handle.on(|lease| lease.renewed(sent_at, request.ttl, now)).is_some())
            }
            Ok(Acquire::Granted(_) | Acquire::Already(_)) => {
                // The lease was gone, and this is another one, which no guard has.
                handle.on(|lease| lease.refuted(client.clock.now()));
                let leave = LeaveRequest::new(request.key, request.token);
                if client.store.leave(&leave, within).await.is_err() {
                    wired.expires_at = Some(until);
                }
                Ok(false)
            }
            Ok(_) => {
                handle.on(|lease| lease.refuted(client.clock.now()));
                Ok(false)
            }
            Err(error) => {
                if error.effect() != Effect::NotApplied {
                    wired.holds = 0;
                    wired.expires_at = Some(until);
                    let in_doubt_until = last_of(carried_out, client.clock.now());
                    handle.on(|lease| lease.in_doubt(in_doubt_until));
                }
                Err(self.lease.explain(error, "acquire"))
            }
        }
    }
}

impl Drop for ReentrantLease {
    fn drop(&mut self) {
        let handle = self.lease.handle();
        if let Some(until) = self.wire.get_mut().expires_at
            && handle.is_ours()
        {
            self.lease.client().reaper.send(Orphan::Acquisition {
                key: handle.key.clone(),
                token: handle.token,
                until,
                in_doubt_until: handle.state().in_doubt_until(),
                is_only: false,
                landing: None,
                reopen: false,
            });
        }
    }
}

/// A hold that is about to begin. Dropped, it does not begin.
#[derive(Debug)]
pub(crate) struct Entering {
    held: Option<Arc<ReentrantLease>>,
}

impl Entering {
    /// Begins the hold; `None` when the lease is gone.
    pub(crate) async fn enter(mut self) -> Result<Option<Arc<ReentrantLease>>> {
        let Some(held) = &self.held else { return Ok(None) };
        // In a task of its own: if the request were cut off, it could be carried out after the
        // release. All holders of the lease wait for it, on whatever runtime, so it runs in the
        // background.
        let client: Arc<Inner> = Arc::clone(held.lease.client());
        let told = client.background.spawn(Arc::clone(held).tell_entry()).await;
        let told = told
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the runtime is shutting down")));
        // The lease may have been lost between the answer and this.
        if !told? || !held.lease.is_held() {
            return Ok(None);
        }
        let held = self.held.take();
        if let Some(held) = &held {
            let mut count = held.count();
            count.entering = count.entering.saturating_sub(1);
            count.guards = count.guards.saturating_add(1);
        }
        Ok(held)
    }
}

impl Drop for Entering {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let remaining = held.count_down(|count| count.entering = count.entering.saturating_sub(1));
        held.tell_in_background(remaining);
    }
}
