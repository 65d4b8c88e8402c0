//! Makes the next hold of the same lease: for another task, or in another mode.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use leasehold_core::{Fence, FenceBlock, LeaseStatus, Moment};
use tokio::sync::Notify;

use crate::audit::LockEventKind;
use crate::events::Holding;
use crate::lease::handle::{LeaseHandle, Offered, Phase, Relay, State};
use crate::rt;
use crate::settings::Settings;

impl LeaseHandle {
    /// Whether it may go from holder to holder inside this process.
    pub(crate) const fn may_be_handed_on(&self) -> bool {
        self.relay.handoffs > 0
    }

    /// The hold of the next contender in this process, under the same lease with the next fence.
    /// `None` when the lease has to go back through the store. On success this hold has ended.
    pub(crate) fn hand_on(&self, now: Moment) -> Option<Self> {
        let Relay { handoffs, until } = self.relay;
        let fence = self.fence.saturating_add(1);
        #[cfg(leasehold_planted)]
        let same = leasehold_core::planted::is(leasehold_core::planted::Fault::LocalFenceRepeats);
        #[cfg(leasehold_planted)]
        let fence = if same { self.fence } else { fence };
        let mut state = self.state();
        let may = self.is_ours()
            && !self.is_asked()
            && handoffs > 0
            && now < until
            && self.fences.contains(fence)
            && state.phase == Phase::Held
            && state.requests_in_flight == 0
            && state.shortest.is_none()
            && self.settings.ttl == state.ttl
            && self.look(&mut state, now) == LeaseStatus::Held
            && state.lease.remaining(now) > state.lease.ttl().duration() / 4;
        if !may {
            return None;
        }
        let began = LockEventKind::HandedOn { from: self.fence };
        let next = self.succeed(&mut state, now, fence, ("handed_on", began));
        drop(state);
        self.changed.notify_waiters();
        Some(Self {
            relay: Relay { handoffs: handoffs.saturating_sub(1), until },
            since: now,
            ..next
        })
    }

    /// The hold of the same lease in another mode, with the fences that it has then. `None` when
    /// the guard has ended, or the lease is lost. On success this hold has ended.
    pub(crate) fn in_mode(
        &self,
        settings: Arc<Settings>,
        fences: FenceBlock,
        now: Moment,
    ) -> Option<Self> {
        let mut state = self.state();
        if !self.is_ours()
            || state.phase != Phase::Held
            || self.look(&mut state, now) == LeaseStatus::Lost
        {
            return None;
        }
        let fence = if fences == self.fences { self.fence } else { fences.first() };
        let began = LockEventKind::Changed { from: self.fence };
        let next = self.succeed(&mut state, now, fence, ("changed", began));
        drop(state);
        self.changed.notify_waiters();
        Some(Self { settings, fences, ..next })
    }

    /// Ends this hold with this outcome, and makes the next one of the same lease, which began by
    /// this event.
    fn succeed(
        &self,
        state: &mut State,
        now: Moment,
        fence: Fence,
        (why, began): (&'static str, LockEventKind),
    ) -> Self {
        state.phase = Phase::Over;
        self.holding.ended(why);
        let (shortest, failure) = (state.shortest, state.failure.clone());
        let next = State { shortest, failure, ..State::new(state.lease, state.ttl) };
        Self {
            key: self.key.clone(),
            token: self.token,
            fences: self.fences,
            fence,
            holding: Holding::new(&self.key, &self.settings, fence, began),
            relay: Relay::default(),
            settings: Arc::clone(&self.settings),
            since: self.since,
            progress_ns: AtomicU64::new(now.as_nanos()),
            process: self.process,
            taken_by: AtomicU64::new(self.taken_by.load(Ordering::Relaxed)),
            state: Mutex::new(next),
            loss: OnceLock::new(),
            asked: AtomicBool::new(self.is_asked()),
            mode_in_doubt: AtomicBool::new(self.mode_in_doubt.load(Ordering::Acquire)),
            in_doubt_ns: AtomicU64::new(self.in_doubt_ns.load(Ordering::Acquire)),
            changed: Notify::new(),
            offer: OnceLock::new(),
            resume_ns: AtomicU64::new(0),
            due_ns: AtomicU64::new(0),
            place: AtomicU32::new(0),
        }
    }

    /// Records that the lease can be taken in this process until then.
    pub(crate) fn offered(&self, offered: Weak<dyn Offered>, until: Moment) {
        self.offer.get_or_init(|| Box::new((offered, until)));
    }

    /// Whether it came from a holder of this process. It may then be waiting to be taken, or be
    /// renewed later because the holder before renewed it.
    pub(crate) fn was_handed_on(&self) -> bool {
        self.offer.get().is_some() || self.resume_ns.load(Ordering::Relaxed) != 0
    }

    /// Until when the lease can be taken, if it has not been.
    pub(crate) fn is_offered_until(&self) -> Option<Moment> {
        let (offered, until) = &**self.offer.get()?;
        offered.upgrade().filter(|offered| offered.is_there()).map(|_| *until)
    }

    /// Records that the caller has taken it over from another task of this process.
    pub(crate) fn taken(&self) {
        self.taken_by.store(rt::caller(), Ordering::Relaxed);
    }

    /// Whether this task or thread took it.
    pub(crate) fn is_of(&self, caller: u64) -> bool {
        self.taken_by.load(Ordering::Relaxed) == caller
    }

    /// Ends the wait to be taken.
    pub(crate) fn take_back(&self) {
        if let Some(offered) = self.offer.get().and_then(|offer| offer.0.upgrade()) {
            offered.take_back();
        }
    }
}
