//! Carries one acquisition from its token to its guard.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::PAUSE_MIN;
use leasehold_core::{
    Acquire, AcquireRequest, Busy, Effect, Error, ErrorKind, FenceBlock, HolderInfo, Key, Kind,
    LeaseState, Mode, Moment, Refusal, Relay, Result, Ttl, Waiting, margin,
};
use tracing::Instrument as _;

use crate::LOCK;
use crate::audit::LockEventKind;
use crate::config::LOCAL_HANDOFFS_FOR;
use crate::events::{self, Contender};
use crate::lease::guard::Guard;
use crate::lease::handle::{Began, LeaseHandle, Proof};
use crate::lease::orphans::{GivenUp, Landing};
use crate::refusal::refused;
use crate::rt;
use crate::settings::{Named, Terms};
use crate::shared::Inner;
use crate::waiting::armed::Armed;
use crate::waiting::status::{Limits, WaitStatus};

/// How often a try is repeated at once when no contender got the lock, and the pauses before that:
/// random, and longer each time.
const SPLITS_MAX: u32 = 16;
const SPLIT_PAUSE: Duration = Duration::from_millis(2);
const SPLIT_PAUSE_MAX: Duration = Duration::from_millis(100);

/// How long to wait for the answer to a second `leave`, after a request that may have been carried
/// out in between.
const ANSWERED: Duration = Duration::from_millis(250);

/// An acquisition under way. Its token is the same in all its requests, except in stores that undo
/// what they can't complete. Dropped, it abandons whatever the token got.
#[derive(Debug)]
pub(crate) struct Acquisition {
    pub(crate) client: Arc<Inner>,
    pub(crate) limits: Limits,
    pub(crate) terms: Terms,
    pub(crate) request: AcquireRequest,
    pub(crate) armed: Armed,
    /// Brings the answer of a request that the background finishes.
    pub(crate) landing: Option<Landing>,
    /// The error of a try, for the wait that follows it.
    pub(crate) met: Option<Error>,
    /// The mark by which the client recognises what the token may have in the store.
    mark: Option<u32>,
}

/// The answer to one request.
#[derive(Debug)]
pub(crate) enum Attempt {
    Held(Guard),
    Busy(Busy),
    Waiting(Waiting),
    /// The lease was granted, but the answer came when it had nearly expired, or when the client
    /// was closed.
    TooLate,
}

impl Acquisition {
    /// Prepares an acquisition that may wait for `limit`, or for the limit of its settings. Sends
    /// no request.
    pub(crate) fn new(
        client: &Arc<Inner>,
        settings: &Result<Named>,
        limit: Option<Duration>,
    ) -> Result<Self> {
        let named = settings.as_ref().map_err(Error::clone)?;
        let settings = &*named.settings;
        client.check_open()?;
        rt::current()?;
        let terms = named.terms()?;
        let limit = settings.limit(limit);
        let token = client.store.token()?;
        let mut request = AcquireRequest::new(named.key.clone(), token, terms.ttl);
        request.mode = settings.mode;
        request.preferred = settings.preferred;
        request.cooldown = settings.cooldown;
        request.owner = settings.owner.clone();
        request.metadata = settings.metadata.clone();
        // With other holders at the same time, fences kept for hand-offs would be below those
        // granted meanwhile, and out of order when they are used.
        if settings.mode == Mode::Exclusive && settings.handed_on {
            request.fence_block = client.config.fence_block();
        }
        let started = client.clock.now();
        Ok(Self {
            armed: Armed::default(),
            client: Arc::clone(client),
            limits: Limits {
                settings: Arc::clone(&named.settings),
                started,
                until: limit.map(|limit| started.saturating_add(limit)),
            },
            terms,
            request,
            landing: None,
            met: None,
            mark: None,
        })
    }

    /// Tries once, in a request that goes out at `now`; contention is `None`.
    pub(crate) async fn try_once(&mut self, now: Moment) -> Result<Option<Guard>> {
        let contender = Contender::new(&self.request.key, self.request.mode);
        let outcome = pin!(self.only_try(now)).instrument(contender.span()).await;
        let fence = |guard: &Option<Guard>| guard.as_ref().map(|guard| guard.handle().fence());
        contender.ended(outcome.as_ref().map(fence));
        tell_failure(&outcome);
        if !matches!(outcome, Ok(Some(_))) {
            // Boxed: clean-up is rare, and would enlarge every try.
            Box::pin(self.give_up()).await;
        }
        outcome
    }

    async fn only_try(&mut self, now: Moment) -> Result<Option<Guard>> {
        match self.attempt_at(now).await? {
            Attempt::Held(guard) => Ok(Some(guard)),
            Attempt::Busy(busy) => {
                let Busy { holder, retry_after, .. } = &busy;
                let holder = holder.as_ref().map(|holder| holder.owner.as_str());
                let key = &self.request.key;
                tracing::debug!(target: LOCK, %key, holder, free_in = ?retry_after, "busy");
                events::count(events::CONTENDED);
                Ok(None)
            }
            Attempt::Waiting(_) => Ok(None),
            Attempt::TooLate if self.client.is_closed() => Err(self.client.closed()),
            Attempt::TooLate => Err(self.too_late()),
        }
    }

    /// Abandons whatever the token has. Returns once the store has answered, or after the time of
    /// one call. The reaper then goes on, as it does when this is dropped.
    pub(crate) async fn give_up(&mut self) {
        give_up(std::slice::from_mut(self)).await;
    }

    /// Continues with a new token if the store needs that after a refusal; whatever the old one may
    /// have got is abandoned.
    pub(crate) fn start_anew(&mut self) -> Result<()> {
        if !self.client.store.capability().undoes {
            return Ok(());
        }
        let token = self.client.store.token()?;
        drop(self.hand_over());
        self.unmark();
        self.armed = Armed::default();
        self.request.token = token;
        Ok(())
    }

    /// Sends one request and applies its answer.
    pub(crate) async fn attempt(&mut self) -> Result<Attempt> {
        let now = self.client.clock.now();
        self.attempt_at(now).await
    }

    async fn attempt_at(&mut self, now: Moment) -> Result<Attempt> {
        let held_up = if self.client.reaper.has_none_ahead() {
            Duration::ZERO
        } else {
            Box::pin(self.turn()).await?
        };
        let mut sent_at = now.saturating_add(held_up);
        let until = now.saturating_add(self.within());
        let mut splits = 0;
        // Each further turn follows a change of the limit, or a split among contenders.
        loop {
            let left = until.saturating_since(sent_at);
            self.sending(sent_at, left);
            let answer = self.client.store.acquire(&self.request, left).await;
            let goes_on = self.takes_stored_limit(&answer)
                || self.is_split(&answer) && Box::pin(self.settles(&mut splits, until)).await?;
            if !goes_on {
                return self.take_in(answer, sent_at);
            }
            sent_at = self.client.clock.now();
        }
    }

    /// Whether each of several contenders got a part of the lock, and this one's part was released.
    fn is_split(&self, answer: &Result<Acquire>) -> bool {
        matches!(answer, Ok(Acquire::Busy(busy)) if busy.is_contended())
            && self.client.store.capability().undoes
    }

    /// Pauses after a split, so that another contender gets the lock, and continues with a new
    /// token. `false` after too many splits, or if the pause is too long for the time that is left.
    async fn settles(&mut self, splits: &mut u32, until: Moment) -> Result<bool> {
        *splits = splits.saturating_add(1);
        let most = SPLIT_PAUSE.saturating_mul(1 << (*splits).min(10)).min(SPLIT_PAUSE_MAX);
        let pause = most.mul_f64(fastrand::f64());
        let now = self.client.clock.now();
        if *splits >= SPLITS_MAX || pause >= until.saturating_since(now) / 4 {
            return Ok(false);
        }
        self.armed.has_nothing(&self.client.reaper);
        tokio::select! {
            biased;
            () = rt::sleep_until(&*self.client.clock, now.saturating_add(pause)) => {}
            () = self.client.closed.cancelled() => return Err(self.client.closed()),
        }
        self.start_anew()?;
        Ok(true)
    }

    /// Whether the store refused only the limit, so that the next request uses the stored one.
    pub(crate) fn takes_stored_limit(&mut self, answer: &Result<Acquire>) -> bool {
        let Ok(Acquire::Refused(Refusal::WrongKind { stored: Kind::Semaphore { limit } })) = answer
        else {
            return false;
        };
        let Mode::Permits { count, .. } = self.request.mode else { return false };
        if self.limits.settings.stored_limit {
            self.armed.has_nothing(&self.client.reaper);
            self.request.mode = Mode::Permits { count, limit: *limit };
        }
        self.limits.settings.stored_limit
    }

    /// Waits until a first request may be sent; returns how long that took of its time. Dropped
    /// meanwhile, this leaves nothing in the store.
    pub(crate) async fn turn(&self) -> Result<Duration> {
        turn(std::slice::from_ref(self)).await
    }

    /// A request goes out now, and may take `within`.
    pub(crate) fn sending(&mut self, sent_at: Moment, within: Duration) {
        if self.mark.is_none() {
            let mark = self.request.token.mark();
            self.client.unproven.add(mark);
            self.mark = Some(mark);
        }
        self.armed.sending(&self.client.reaper, sent_at, within, self.terms.ttl);
    }

    /// The last request was not sent at all.
    pub(crate) fn never_sent(&mut self) {
        self.armed.not_sent(&self.client.reaper);
    }

    /// Hands what the token may have to the reaper; `None` if it has nothing.
    fn hand_over(&mut self) -> Option<GivenUp> {
        let now = self.client.clock.now();
        self.armed.give_up(&self.client.reaper, now, &self.request, self.landing.take())
    }

    pub(crate) fn take_in(&mut self, answer: Result<Acquire>, sent_at: Moment) -> Result<Attempt> {
        let now = self.client.clock.now();
        // A store that names a time to come again is there.
        if answer.as_ref().map_or_else(|error| error.retry_after().is_some(), |_| true) {
            self.client.heard(now);
        }
        match answer {
            Ok(Acquire::Granted(granted)) => {
                Ok(self.granted(granted.fences, sent_at, self.terms.ttl, now))
            }
            Ok(Acquire::Already(already)) => {
                Ok(self.granted(already.fences, sent_at, self.terms.ttl, now))
            }
            Ok(Acquire::Waiting(waiting)) => {
                self.armed.has_something();
                if let Some(queue) = &mut self.request.queue {
                    queue.place = Some(waiting.place);
                }
                Ok(Attempt::Waiting(waiting))
            }
            Ok(Acquire::Busy(busy)) => {
                self.armed.has_nothing(&self.client.reaper);
                Ok(Attempt::Busy(busy))
            }
            Ok(Acquire::Refused(refusal)) => {
                self.armed.has_nothing(&self.client.reaper);
                Err(self.explain(refused(refusal, self.request.mode.kind())))
            }
            Ok(_) => {
                self.armed.unanswered(now);
                Err(self.explain(Error::new(
                    ErrorKind::Protocol,
                    "the store gave an unknown answer; update this program",
                )))
            }
            Err(error) => {
                match error.effect() {
                    Effect::NotApplied => self.armed.not_sent(&self.client.reaper),
                    Effect::Applied => self.armed.has_something(),
                    Effect::Unknown => self.armed.unanswered(now),
                }
                Err(self.explain(error))
            }
        }
    }

    fn unmark(&mut self) {
        if let Some(mark) = self.mark.take() {
            self.client.unproven.remove(mark);
        }
    }

    /// Makes the guard of a lease that was granted for `length`, by an answer that was read at
    /// `now` to a request sent at `sent_at`.
    pub(crate) fn granted(
        &mut self,
        fences: FenceBlock,
        sent_at: Moment,
        length: Ttl,
        now: Moment,
    ) -> Attempt {
        self.armed.has_something();
        let Some(lease) = LeaseState::granted(sent_at, length, self.terms.grace, now) else {
            return Attempt::TooLate;
        };
        // The reaper also undoes a cooldown that the grant has started.
        if self.client.is_closed() {
            return Attempt::TooLate;
        }
        let mut handle = LeaseHandle::new(
            Proof {
                key: self.request.key.clone(),
                token: self.request.token,
                fences,
                fence: fences.first(),
            },
            lease,
            self.terms.ttl,
            Relay {
                handoffs: if self.limits.settings.handed_on {
                    self.client.config.local_handoffs
                } else {
                    0
                },
                until: now.saturating_add(LOCAL_HANDOFFS_FOR),
            },
            self.limits.settings.in_mode(self.request.mode),
            Began { at: now, how: LockEventKind::Granted },
        );
        if let Some(until) = self.armed.in_doubt_until() {
            handle.before_shared().in_doubt(until);
        }
        let handle = self.client.schedule.begin(handle, sent_at, now);
        self.armed.disarm(&self.client.reaper);
        if self.client.store.capability().tells_loss {
            self.client.hub.keep_trying(self.client.config.call_timeout);
        }
        let (key, fence) = (&handle.key, handle.fence());
        let waited = now.saturating_since(self.limits.started);
        tracing::debug!(target: LOCK, %key, %fence, ttl = %length, ?waited, "acquired");
        let guard = Guard::new(&self.client, handle);
        // Closing begins before it looks for what is held: either it sees this lease, or it is seen
        // here.
        if self.client.is_closed() { Attempt::TooLate } else { Attempt::Held(guard) }
    }

    pub(crate) fn tell_of_waiting(&self, holder: Option<&HolderInfo>) {
        let holder = holder.map(|holder| holder.owner.as_str());
        tracing::debug!(target: LOCK, key = %self.request.key, holder, "waiting");
        events::count(events::CONTENDED);
    }

    /// How long one request may take, even beyond the time to wait: if it were cut short, it would
    /// be unknown whether there is something to abandon.
    pub(crate) fn within(&self) -> Duration {
        self.client.config.call_timeout.min(self.terms.ttl.duration())
    }

    /// Stops waiting at once, if set so, when the lock can't come free within the limit.
    pub(crate) fn give_up_early(&self, status: &WaitStatus) -> Result<()> {
        let (Some(until), Some(free_at)) = (self.limits.until, status.blocker.free_at) else {
            return Ok(());
        };
        if self.limits.settings.give_up_early && free_at > until {
            return Err(self.ran_out(status, "the lock can't be free in time"));
        }
        Ok(())
    }

    /// Goes on after an error while there is [patience](Limits::patience). If the limit is reached
    /// meanwhile, the error says so.
    pub(crate) fn ride_out(&self, error: Error, status: &mut WaitStatus) -> Result<()> {
        if !self.may_ride_out(&error) {
            return Err(error);
        }
        let now = self.client.clock.now();
        status.contact.is_bad(error, now);
        if self.limits.until.is_some_and(|until| now >= until) {
            return Err(self.ran_out(status, "timed out"));
        }
        if self.limits.settings.give_up_early
            && let (Some(until), Some(at)) = (self.limits.until, status.contact.passes_at())
            && at > until
        {
            return Err(self.ran_out(status, "the lock can't be granted in time"));
        }
        let patience = self.limits.patience(&self.client);
        status.contact.given_up(now, patience).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Pauses before the next try, but not beyond the wait's end.
    pub(crate) async fn pause(&self, pause: Duration) -> Result<()> {
        let again = self.client.clock.now().saturating_add(pause.max(PAUSE_MIN));
        let again = self.limits.until.map_or(again, |until| again.min(until));
        tokio::select! {
            biased;
            () = rt::sleep_until(&*self.client.clock, again) => Ok(()),
            () = self.client.closed.cancelled() => Err(self.client.closed()),
        }
    }

    /// Passes the error of a try to the wait that follows it. Without it, the wait would take other
    /// contenders' failed tries for holders.
    pub(crate) fn tell_what_it_met(&mut self, status: &mut WaitStatus) {
        if let Some(error) = self.met.take() {
            status.contact.is_bad(error, self.client.clock.now());
        }
    }

    /// Whether a wait goes on after this error, for a while at least.
    pub(crate) fn may_ride_out(&self, error: &Error) -> bool {
        error.passes() && self.limits.patience(&self.client) != Some(Duration::ZERO)
    }

    pub(crate) fn ran_out(&self, status: &WaitStatus, why: &str) -> Error {
        let error = self.limits.ran_out(&self.request.key, &self.client, status, why);
        // In an outage an earlier request, or the position in the queue, may still have brought the
        // lock.
        if error.kind() != ErrorKind::Timeout && self.armed.may_have_something() {
            return error.with_effect(Effect::Unknown);
        }
        error
    }

    pub(crate) fn too_late(&self) -> Error {
        self.explain(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the lease was granted, but the answer came when its ttl of {} was almost over, so \
                 it is released",
                self.terms.ttl
            ),
        ))
    }

    pub(crate) fn explain(&self, error: Error) -> Error {
        error.during("acquire").on_key(&self.request.key).at_store(self.client.location())
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        drop(self.hand_over());
        self.unmark();
    }
}

pub(crate) fn tell_failure<T>(outcome: &Result<T>) {
    if let Err(error) = outcome {
        tracing::debug!(target: LOCK, %error, "not acquired");
    }
}

/// Waits until the first request for all of these may be sent, for a quarter of its time at most;
/// returns how long that took.
pub(crate) async fn turn(acquisitions: &[Acquisition]) -> Result<Duration> {
    let Some(first) = acquisitions.first() else { return Ok(Duration::ZERO) };
    let client = &first.client;
    if client.reaper.has_none_ahead() {
        return Ok(Duration::ZERO);
    }
    let keys: Vec<&Key> = acquisitions.iter().map(|one| &one.request.key).collect();
    let held_up = client.reaper.none_ahead(&keys, &*client.clock, first.within() / 4).await;
    client.check_open()?;
    Ok(held_up)
}

/// Abandons whatever these have. Returns once the store has answered, or after the time of one
/// call.
pub(crate) async fn give_up(acquisitions: &mut [Acquisition]) {
    let Some(client) = acquisitions.first().map(|first| Arc::clone(&first.client)) else { return };
    let now = client.clock.now();
    let mut until = Moment::default();
    let mut orders = Vec::new();
    for one in acquisitions {
        let in_touch_since = one.armed.in_touch_since(now);
        // A request whose time has nearly passed can hardly be carried out any more.
        let is_young = |until: &Moment| until.saturating_since(now) > margin(one.within());
        let in_doubt_until = one.armed.in_doubt_until().filter(is_young);
        if let Some(order) = one.hand_over() {
            let since = one.limits.until.unwrap_or(now).min(in_touch_since);
            let over = in_doubt_until.map(|at| at.saturating_add(ANSWERED));
            until = until
                .max(since.saturating_add(client.config.call_timeout))
                .max(over.unwrap_or_default());
            orders.push(order);
        }
    }
    if orders.is_empty() {
        return;
    }
    let all = async {
        for order in orders {
            // If the reaper is gone, there is nothing left to wait for either.
            drop(order.await);
        }
    };
    tokio::select! {
        biased;
        () = all => {}
        () = rt::sleep_until(&*client.clock, until) => {}
    }
}
