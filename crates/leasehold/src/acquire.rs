//! One acquisition, from its token to its guard.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::PAUSE_MIN;
use leasehold_core::{
    Acquire, AcquireRequest, Busy, Effect, Error, ErrorKind, FenceBlock, HolderInfo, Kind,
    LeaseState, Mode, Moment, Refusal, Result, Token, Ttl, Waiting,
};

use crate::LOCK;
use crate::armed::Armed;
use crate::client::{Inner, LOCAL_HANDOFFS_FOR};
use crate::gate::Gates;
use crate::guard::Guard;
use crate::hold::{Hold, Proof, Relay, Terms};
use crate::in_line;
use crate::options::Order;
use crate::rt;
use crate::settings::Settings;

/// How long a waiter without a limit rides out the absence of a store that its client has reached.
const OUTAGE_MAX: Duration = Duration::from_secs(30);

/// An acquisition under way. Its token is the same in all its requests, unless the store undoes
/// what it could not complete; dropping it gives up whatever the token got.
#[derive(Debug)]
pub(crate) struct Acquisition {
    pub(crate) client: Arc<Inner>,
    pub(crate) limits: Limits,
    pub(crate) terms: Terms,
    pub(crate) request: AcquireRequest,
    pub(crate) armed: Armed,
}

/// What a caller waits under.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) settings: Arc<Settings>,
    pub(crate) started: Moment,
    pub(crate) until: Option<Moment>,
}

/// What one request brought.
#[derive(Debug)]
pub(crate) enum Attempt {
    Held(Guard),
    Busy(Busy),
    Waiting(Waiting),
    /// The lease was granted, but the answer came when it was all but over, or when the client
    /// was closed.
    TooLate,
}

/// What stood in the way when last seen, for the error message.
#[derive(Clone, Debug, Default)]
pub(crate) struct InTheWay {
    pub(crate) holder: Option<HolderInfo>,
    /// When it could come free at the earliest, as last seen.
    pub(crate) free_at: Option<Moment>,
    pub(crate) position: Option<u32>,
}

/// Whether the store is away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contact {
    outage: Option<Outage>,
}

#[derive(Clone, Debug)]
struct Outage {
    since: Moment,
    /// How the last request failed.
    error: Error,
    /// When it passes, if the store has said so.
    passes_at: Moment,
}

impl Contact {
    /// An answer came.
    pub(crate) fn is_good(&mut self) {
        self.outage = None;
    }

    /// The error of an outage that has lasted for as long as it may; without a `patience`, that is
    /// for ever.
    pub(crate) fn given_up(&self, now: Moment, patience: Option<Duration>) -> Option<&Error> {
        let outage = self.outage.as_ref()?;
        let over_at = outage.since.saturating_add(patience?).max(outage.passes_at);
        (now >= over_at).then_some(&outage.error)
    }
}

/// What is known while waiting, to all contenders of a local line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    pub(crate) in_the_way: InTheWay,
    pub(crate) contact: Contact,
}

impl Acquisition {
    /// Prepares an acquisition that may wait for `limit`, or for ever. Sends nothing.
    pub(crate) fn new(
        client: &Arc<Inner>,
        settings: &Result<Arc<Settings>>,
        limit: Option<Duration>,
    ) -> Result<Self> {
        let settings = settings.clone()?;
        client.check_open()?;
        rt::current()?;
        let terms = settings.terms()?;
        let token = Token::generate()?;
        let mut request = AcquireRequest::new(settings.key.clone(), token, terms.ttl);
        request.mode = settings.mode;
        request.preferred = settings.preferred;
        request.close_for = settings.close_for;
        request.owner = settings.owner.clone();
        request.metadata = settings.metadata.clone();
        // Beside other holders, fences kept for hand-offs would be below those granted meanwhile,
        // and out of order when they are used.
        if settings.mode == Mode::Exclusive && settings.handed_on {
            request.fence_block = client.config.fence_block();
        }
        let started = client.clock.now();
        Ok(Self {
            armed: Armed::new(client.reaper.clone(), &settings, token),
            client: Arc::clone(client),
            limits: Limits {
                settings,
                started,
                until: limit.map(|limit| started.saturating_add(limit)),
            },
            terms,
            request,
        })
    }

    /// Tries once; contention is `None`.
    pub(crate) async fn try_once(mut self) -> Result<Option<Guard>> {
        let outcome = self.only_try().await;
        tell_failure(&outcome);
        if !matches!(outcome, Ok(Some(_))) {
            self.give_up().await;
        }
        outcome
    }

    async fn only_try(&mut self) -> Result<Option<Guard>> {
        match self.attempt().await? {
            Attempt::Held(guard) => Ok(Some(guard)),
            Attempt::Busy(busy) => {
                let Busy { holder, retry_after, .. } = &busy;
                let holder = holder.as_ref().map(|holder| holder.owner.as_str());
                let key = &self.request.key;
                tracing::debug!(target: LOCK, %key, holder, free_in = ?retry_after, "busy");
                Ok(None)
            }
            Attempt::Waiting(_) => Ok(None),
            Attempt::TooLate if self.client.closing.is_cancelled() => Err(self.client.closed()),
            Attempt::TooLate => Err(self.too_late()),
        }
    }

    /// Waits until the lock is held, the limit is reached or the strategy stops. Whoever is told
    /// that it is not held has no place in the line any more, as far as the store can be asked.
    pub(crate) async fn wait(mut self) -> Result<Guard> {
        let capability = self.client.store.capability();
        if self.limits.settings.order == Order::Fifo && capability.queue {
            // Permits that are free are taken by many at the same time; only those for whom none
            // is left wait behind each other.
            if matches!(self.request.mode, Mode::Permits { .. })
                && !Gates::is_waited_for(&self.client, &self.limits.settings, &self.terms)
                && let Some(guard) = self.begin().await?
            {
                return Ok(guard);
            }
            return in_line::wait(self, capability.wake).await;
        }
        let outcome = self.poll().await;
        tell_failure(&outcome);
        if outcome.is_err() {
            self.give_up().await;
        }
        outcome
    }

    /// Asks once before waiting begins. `None` when there is something to wait for.
    pub(crate) async fn begin(&mut self) -> Result<Option<Guard>> {
        let outcome = match self.attempt().await {
            Ok(Attempt::Held(guard)) => Ok(Some(guard)),
            Err(error) if !self.may_ride_out(&error) => Err(error),
            Ok(_) | Err(_) => self.start_anew().map(|()| None),
        };
        if outcome.is_err() {
            self.give_up().await;
        }
        outcome
    }

    /// Asks again and again, by the strategy.
    async fn poll(&mut self) -> Result<Guard> {
        let mut sight = Sight::default();
        for tries in 1.. {
            if tries > 1 {
                self.start_anew()?;
            }
            let earliest = match self.attempt().await {
                Ok(Attempt::Held(guard)) => return Ok(guard),
                Ok(Attempt::Busy(busy)) => {
                    let now = self.client.clock.now();
                    sight.contact.is_good();
                    let after = busy.retry_after;
                    let free_at = Some(now.saturating_add(after));
                    if tries == 1 {
                        self.tell_of_waiting(busy.holder.as_ref());
                    }
                    sight.in_the_way = InTheWay { holder: busy.holder, free_at, position: None };
                    self.refuse_in_vain(&sight)?;
                    Some(after)
                }
                Ok(Attempt::Waiting(_) | Attempt::TooLate) => None,
                Err(error) => {
                    let passes_in = error.retry_after();
                    self.ride_out(error, &mut sight)?;
                    passes_in
                }
            };
            let Some(pause) = self.limits.settings.retry.pause(tries) else {
                return Err(self.ran_out(&sight, "the retry strategy gave up"));
            };
            let pause = earliest.map_or(pause, |earliest| pause.min(earliest));
            let now = self.client.clock.now();
            if self.limits.until.is_some_and(|until| now >= until) {
                return Err(self.ran_out(&sight, "the wait ran out"));
            }
            let again = now.saturating_add(pause.max(PAUSE_MIN));
            let again = self.limits.until.map_or(again, |until| again.min(until));
            tokio::select! {
                () = rt::sleep_until(&*self.client.clock, again) => {}
                () = self.client.closing.cancelled() => return Err(self.client.closed()),
            }
        }
        Err(self.ran_out(&sight, "the retry strategy gave up"))
    }

    /// Gives up whatever the token has. Returns once the store has answered that, or the time of
    /// one call is over; the reaper goes on then, as it does when this is dropped.
    pub(crate) async fn give_up(&mut self) {
        give_up(std::slice::from_mut(self)).await;
    }

    /// Goes on with a new token where a store needs it after a refusal; whatever the old one may
    /// have got is given up.
    pub(crate) fn start_anew(&mut self) -> Result<()> {
        if !self.client.store.capability().undoes {
            return Ok(());
        }
        let token = Token::generate()?;
        self.request.token = token;
        let reaper = self.client.reaper.clone();
        self.armed = Armed::new(reaper, &self.limits.settings, token);
        Ok(())
    }

    /// Sends one request and takes in its answer.
    pub(crate) async fn attempt(&mut self) -> Result<Attempt> {
        let sent_at = self.client.clock.now();
        let within = self.within();
        self.armed.sending(sent_at, self.expired_at(sent_at));
        let answer = self.client.store.acquire(&self.request, within).await;
        self.take_in(answer, sent_at)
    }

    /// When whatever a request sent now could get has run out by itself, the time for which it
    /// may lie in a buffer included.
    pub(crate) fn expired_at(&self, sent_at: Moment) -> Moment {
        let ttl = self.terms.ttl.duration();
        sent_at.saturating_add(ttl).saturating_add(self.client.config.call_timeout)
    }

    pub(crate) fn take_in(&mut self, answer: Result<Acquire>, sent_at: Moment) -> Result<Attempt> {
        // Who says when to come again is there.
        if answer.as_ref().map_or_else(|error| error.retry_after().is_some(), |_| true) {
            self.client.heard();
        }
        match answer {
            Ok(Acquire::Granted(granted)) => Ok(self.hold(granted.fences, sent_at, self.terms.ttl)),
            Ok(Acquire::Already(already)) => Ok(self.hold(already.fences, sent_at, self.terms.ttl)),
            Ok(Acquire::Waiting(waiting)) => {
                self.armed.has_something();
                if let Some(queue) = &mut self.request.queue {
                    queue.place = Some(waiting.place);
                }
                Ok(Attempt::Waiting(waiting))
            }
            Ok(Acquire::Busy(busy)) => {
                self.armed.has_nothing();
                Ok(Attempt::Busy(busy))
            }
            Ok(Acquire::Refused(refusal)) => {
                self.armed.has_nothing();
                Err(self.explain(refused(refusal, self.request.mode.kind())))
            }
            Ok(_) => {
                self.armed.unanswered();
                Err(self.explain(Error::new(
                    ErrorKind::Protocol,
                    "the store gave an answer that this version does not know",
                )))
            }
            Err(error) => {
                if error.effect() == Effect::NotApplied {
                    self.armed.not_sent();
                } else {
                    self.armed.unanswered();
                }
                Err(self.explain(error))
            }
        }
    }

    /// Makes the guard of a lease that was granted for `length` in answer to a request sent at
    /// `sent_at`.
    pub(crate) fn hold(&mut self, fences: FenceBlock, sent_at: Moment, length: Ttl) -> Attempt {
        self.armed.has_something();
        let now = self.client.clock.now();
        let Some(lease) = LeaseState::granted(sent_at, length, self.terms.grace, now) else {
            return Attempt::TooLate;
        };
        // What the grant has closed is opened again with what is left to the reaper.
        if self.client.closing.is_cancelled() {
            return Attempt::TooLate;
        }
        let hold = Arc::new(Hold::new(
            self.client.next_id(),
            Proof {
                key: self.request.key.clone(),
                token: self.request.token,
                fences,
                fence: fences.first(),
            },
            lease,
            self.terms,
            Relay {
                handoffs: if self.limits.settings.handed_on {
                    self.client.config.local_handoffs
                } else {
                    0
                },
                until: now.saturating_add(LOCAL_HANDOFFS_FOR),
            },
            Some(Arc::clone(&self.limits.settings)),
            now,
        ));
        self.client.wheel.add(&hold, sent_at);
        self.armed.disarm();
        let (key, fence) = (&hold.key, hold.fence());
        let waited = now.saturating_since(self.limits.started);
        tracing::debug!(target: LOCK, %key, %fence, ttl = %length, ?waited, "acquired");
        let guard = Guard::new(&self.client, hold);
        // Closing begins before it looks for what is held: either it sees this lease, or it is
        // seen here.
        if self.client.closing.is_cancelled() { Attempt::TooLate } else { Attempt::Held(guard) }
    }

    pub(crate) fn tell_of_waiting(&self, holder: Option<&HolderInfo>) {
        let holder = holder.map(|holder| holder.owner.as_str());
        tracing::debug!(target: LOCK, key = %self.request.key, holder, "waiting");
    }

    /// How long one request may take, whatever is left of the time to wait: one that was cut short
    /// would leave it open whether there is something to give up.
    pub(crate) fn within(&self) -> Duration {
        self.client.config.call_timeout.min(self.terms.ttl.duration())
    }

    /// Gives up at once, when asked to, if the lock can't come free within the limit.
    pub(crate) fn refuse_in_vain(&self, sight: &Sight) -> Result<()> {
        let (Some(until), Some(free_at)) = (self.limits.until, sight.in_the_way.free_at) else {
            return Ok(());
        };
        if self.limits.settings.not_in_vain && free_at > until {
            return Err(self.ran_out(sight, "the lock can't come free in time"));
        }
        Ok(())
    }

    /// Goes on after an error while there is [patience](Limits::patience). When the limit is
    /// reached meanwhile, that is what the caller is told.
    pub(crate) fn ride_out(&self, error: Error, sight: &mut Sight) -> Result<()> {
        if !self.may_ride_out(&error) {
            return Err(error);
        }
        let now = self.client.clock.now();
        let since = sight.contact.outage.as_ref().map_or(now, |outage| outage.since);
        let passes_at = now.saturating_add(error.retry_after().unwrap_or_default());
        sight.contact.outage = Some(Outage { since, error, passes_at });
        if self.limits.until.is_some_and(|until| now >= until) {
            return Err(self.ran_out(sight, "the wait ran out"));
        }
        let patience = self.limits.patience(&self.client);
        sight.contact.given_up(now, patience).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Whether a wait goes on after this error, for a while at least.
    pub(crate) fn may_ride_out(&self, error: &Error) -> bool {
        passes(error) && self.limits.patience(&self.client) != Some(Duration::ZERO)
    }

    pub(crate) fn ran_out(&self, sight: &Sight, why: &str) -> Error {
        self.limits.ran_out(&self.client, sight, why)
    }

    pub(crate) fn too_late(&self) -> Error {
        self.explain(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the lease was granted, but the answer came when its ttl of {} was all but over; \
                 it is being given back",
                self.terms.ttl
            ),
        ))
    }

    pub(crate) fn explain(&self, error: Error) -> Error {
        error.during("acquire").on_key(&self.request.key).at_store(self.client.location())
    }
}

impl Limits {
    /// How long the store may be away while it is waited for; `None` while the wait has time. A
    /// store that was never reached may not exist, and is waited for only as far as the client was
    /// told to.
    pub(crate) fn patience(&self, client: &Inner) -> Option<Duration> {
        let asked = client.config.retry_store;
        match (client.heard_at(), self.until) {
            (None, _) => Some(asked),
            (Some(_), Some(_)) => None,
            (Some(_), None) => Some(asked.max(OUTAGE_MAX)),
        }
    }

    /// What a wait in vain ends with. A store that could not be reached when it ended is told as
    /// that: nobody knows then whether the lock is held.
    pub(crate) fn ran_out(&self, client: &Inner, sight: &Sight, why: &str) -> Error {
        let now = client.clock.now();
        let waited = now.saturating_since(self.started);
        let explain = |error: Error| {
            error.during("acquire").on_key(&self.settings.key).at_store(client.location())
        };
        let Sight { in_the_way, contact } = sight;
        if let Some(Outage { error, .. }) = &contact.outage {
            let silence = match client.heard_at() {
                Some(heard) => {
                    let last = now.saturating_since(heard);
                    format!("could not be asked any more, last contact {last:.1?} ago")
                }
                None => "could not be reached".to_owned(),
            };
            let why = format!(
                "{why} after {waited:.1?}, and the store {silence}; whether the lock is held is \
                 unknown"
            );
            return explain(Error::new(error.kind(), why).caused_by(error.clone()));
        }
        let InTheWay { holder, free_at, position } = in_the_way.clone();
        let retry_after = free_at.map(|at| at.saturating_since(now));
        let place = match position {
            Some(position) => format!(" at place {} in line", position.saturating_add(1)),
            None => String::new(),
        };
        let why = format!("{why} after {waited:.1?}{place}");
        explain(Error::new(ErrorKind::Timeout, why).held_by(holder, retry_after))
    }
}

pub(crate) fn tell_failure<T>(outcome: &Result<T>) {
    if let Err(error) = outcome {
        tracing::debug!(target: LOCK, %error, "not acquired");
    }
}

/// Whether it is of use to wait for this to pass. A store that is full takes no sign of life, so
/// those who waited there would be passed over or, worse, handed a lock that they can't ask about;
/// and it is still there to be told that they have gone.
pub(crate) fn passes(error: &Error) -> bool {
    error.is_retryable() && error.kind() != ErrorKind::Full
}

/// Gives up whatever these have. Returns once the store has answered that, or the time of one call
/// is over.
pub(crate) async fn give_up(acquisitions: &mut [Acquisition]) {
    let Some(client) = acquisitions.first().map(|first| Arc::clone(&first.client)) else { return };
    let now = client.clock.now();
    let mut since = Moment::default();
    let mut orders = Vec::new();
    for one in acquisitions {
        let in_touch_since = one.armed.in_touch_since(now);
        if let Some(order) = one.armed.give_up() {
            since = since.max(one.limits.until.unwrap_or(now).min(in_touch_since));
            orders.push(order);
        }
    }
    if orders.is_empty() {
        return;
    }
    let all = async {
        for order in orders {
            // An error says as well that there is nothing left to wait for.
            drop(order.await);
        }
    };
    tokio::select! {
        () = all => {}
        () = rt::sleep_until(&*client.clock, since.saturating_add(client.config.call_timeout)) => {}
    }
}

pub(crate) fn refused(refusal: Refusal, asked: Kind) -> Error {
    let why = match refusal {
        Refusal::WrongKind { stored } => {
            let remedy = match (stored, asked) {
                (Kind::Semaphore { .. }, Kind::Semaphore { .. }) => {
                    "agree on one limit, or change it for everybody with `set_limit`"
                }
                _ => "use it as that, or wait until nobody uses it",
            };
            format!("the name is in use as a {stored}, not as a {asked}; {remedy}")
        }
        Refusal::TooManyPermits { limit } => {
            format!("more permits were asked for than there are ({limit})")
        }
        Refusal::QueueFull { waiters } => {
            format!("{waiters} are waiting already, which is the limit asked for")
        }
        _ => "the store refuses this use of the name".to_owned(),
    };
    Error::new(ErrorKind::Conflict, why)
}
