//! Keeps a position in the store's queue: heartbeats, the head's timer, and hand-offs.
//!
//! A lease that the store hands to a waiter runs from the moment the store *received* the waiter's
//! last heartbeat, for the waiter's heartbeat timeout. The waiter knows when it sent that
//! heartbeat, which was earlier. So it may count the lease from then without a request. This is the
//! rule of every acquisition, for a request whose answer is delayed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::retry::PAUSE_MIN;
use leasehold_core::{
    Acquire, Busy, Error, FenceBlock, Moment, QueueRequest, Result, Ttl, Waiting, Wake,
};

use crate::events;
use crate::lease::guard::Guard;
use crate::lease::handle::LeaseHandle;
use crate::lease::handle::requests::UnderWay;
use crate::rt;
use crate::waiting::acquisition::{Acquisition, Attempt};
use crate::waiting::flight::{Flight, landed};
use crate::waiting::status::{Blocker, Limits, SharedStatus};
use crate::waiting::wake::Line;

/// The longest heartbeat timeout of most locks. The store skips a dead waiter after half of the
/// timeout. If it hands the lease over just before that, the queue waits for the whole timeout.
const WINDOW_MAX: Duration = Duration::from_secs(30);
/// How often the second in the queue looks whether the lock is free. The head is notified of that
/// or knows it, but may have died, and those behind it would notice only with their next
/// heartbeats. Those further back look less often.
const LOOK_PAST_HEAD: Duration = Duration::from_secs(1);
/// How long a waiter waits for the notification channel before it joins the queue without it.
const OPEN_WITHIN: Duration = Duration::from_secs(1);
/// How many heartbeats back a grant may refer to, besides the last that was answered.
const HEARTBEATS_KEPT: usize = 8;

/// A contender's exchange with the store, which can be passed to another contender of the same
/// process at any point. All state is in here; [`Wire::drive`] may be dropped and called again.
pub(crate) struct Wire {
    flight: Option<Flight>,
    acquisition: Box<Acquisition>,
    wakes: bool,
    /// The mailbox of notifications, once a position was requested.
    line: Option<Line>,
    window: Ttl,
    /// When each of the last heartbeats was sent.
    sent: VecDeque<(u32, Moment)>,
    /// When the last answered one was sent: the store knows it, even if all later ones fail.
    acknowledged: Option<(u32, Moment)>,
    /// When to send the next request.
    next: Moment,
    /// As `next`, by a notification that came while a request was on its way: the answer may be
    /// older.
    told_to_ask: Option<Moment>,
    seen: SharedStatus,
    /// Whether a request of this contender was answered.
    answered: bool,
    /// Whether it was notified since it last got the answer that it has to wait.
    told: bool,
    /// Whether the store has named the time at which it grants again: a position is worth having by
    /// then.
    is_named: bool,
    failures: u32,
}

enum Event {
    Answer(Result<Acquire>, Moment),
    Wake(Wake),
    AskAgain,
    RanOut,
}

impl Wire {
    pub(crate) fn new(acquisition: Box<Acquisition>, wakes: bool, seen: SharedStatus) -> Self {
        let terms = acquisition.terms;
        // A lease that is granted to a waiter first lasts for the rest of its heartbeat timeout,
        // which must leave time for the grace.
        let window = WINDOW_MAX.max(terms.grace.saturating_mul(4));
        Self {
            wakes,
            line: None,
            window: Ttl::new(window).map_or(terms.ttl, |window| window.min(terms.ttl)),
            sent: VecDeque::new(),
            acknowledged: None,
            flight: None,
            next: acquisition.client.clock.now(),
            told_to_ask: None,
            seen,
            answered: false,
            told: false,
            is_named: false,
            failures: 0,
            acquisition,
        }
    }

    /// From here on it waits for another contender, under that contender's limits.
    pub(crate) fn take_over(&mut self, limits: &Limits) {
        self.acquisition.limits = limits.clone();
        let client = &self.acquisition.client;
        self.flight = self.flight.take().map(|flight| flight.brought_here(client));
    }

    /// Abandons the position in the store's queue. See [`Acquisition::give_up`].
    pub(crate) async fn give_up(&mut self) {
        self.let_land();
        self.acquisition.give_up().await;
    }

    /// Leaves a request on its way to the background. It must not take again what is abandoned
    /// after it, and its answer says what there is to abandon.
    fn let_land(&mut self) {
        match self.flight.take() {
            Some(flight) if flight.is_begun() => self.acquisition.landing = Some(flight.land()),
            Some(_) => self.acquisition.never_sent(),
            None => {}
        }
    }

    /// Waits until the lease is here. Cancel safe: a new call continues where it was.
    pub(crate) async fn drive(&mut self) -> Result<Guard> {
        loop {
            // A store that answers at once must not keep the task from what else it waits for.
            tokio::task::coop::consume_budget().await;
            match self.next_event().await {
                Event::AskAgain => self.ask().await?,
                Event::Answer(answer, _) if self.acquisition.takes_stored_limit(&answer) => {
                    self.next = self.now();
                }
                Event::Answer(answer, sent_at) => {
                    let handed_over = matches!(answer, Ok(Acquire::Already(_)));
                    if handed_over && self.wakes && self.in_line() && !self.told {
                        self.acquisition.client.hub.untold();
                    }
                    let answer = self.acquisition.take_in(answer, sent_at);
                    if let Some(guard) = self.answered(answer, sent_at)? {
                        return Ok(guard);
                    }
                    if let Some(at) = self.told_to_ask.take() {
                        (self.told, self.next) = (true, self.next.min(at));
                    }
                }
                Event::Wake(Wake::Granted { heartbeat, fences, .. }) => {
                    self.told = true;
                    if let Some(guard) = self.handed_over(heartbeat, fences) {
                        return Ok(guard);
                    }
                }
                Event::Wake(Wake::First { retry_after, .. }) => {
                    self.told = true;
                    let at = self.now().saturating_add(retry_after);
                    self.ask_by(at);
                }
                Event::Wake(_) => self.ask_by(self.now()),
                Event::RanOut => {
                    return Err(self.acquisition.ran_out(&self.seen.get(), "timed out"));
                }
            }
        }
    }

    fn now(&self) -> Moment {
        self.acquisition.client.clock.now()
    }

    /// Sends a request then at the latest, even if the answer on its way names a later time.
    fn ask_by(&mut self, at: Moment) {
        self.next = self.next.min(at);
        if self.flight.is_some() {
            self.told_to_ask = Some(self.told_to_ask.map_or(at, |before| before.min(at)));
        }
    }

    /// Whether the store has said that it has a position in the queue.
    fn in_line(&self) -> bool {
        self.acquisition.request.queue.as_ref().is_some_and(|queue| queue.place.is_some())
    }

    async fn next_event(&mut self) -> Event {
        let Self { acquisition, line, flight, next, .. } = self;
        let clock = &*acquisition.client.clock;
        let asking = flight.is_some();
        // The first request has its own time, so that a limit of zero means one try.
        let untried = !self.answered && self.failures == 0;
        let until = acquisition.limits.until.filter(|_| !untried).map(|until| match flight {
            // Its answer says what there is to abandon, and may be the lease itself.
            Some(flight) => {
                until.max(flight.sent_at.saturating_add(acquisition.client.config.call_timeout))
            }
            None => until,
        });
        tokio::select! {
            biased;
            // First: the notified lease is held, whatever the answer to a request on its way.
            wake = next_message(line) => Event::Wake(wake),
            (answer, sent_at) = landed(flight) => Event::Answer(answer, sent_at),
            () = rt::sleep_until_some(clock, until) => Event::RanOut,
            () = rt::sleep_until(clock, *next), if !asking => Event::AskAgain,
        }
    }

    /// Sends the next request: a plain try before there is a notification channel, so that an
    /// uncontended lock does not pay for one, and a heartbeat after.
    async fn ask(&mut self) -> Result<()> {
        let client = Arc::clone(&self.acquisition.client);
        let mut within = self.acquisition.within();
        // A position that is there already is kept, even if other futures were dropped.
        if !client.reaper.has_none_ahead() && !self.acquisition.armed.may_have_something() {
            within = within.saturating_sub(Box::pin(self.acquisition.turn()).await?);
        }
        let probing = self.wakes && !client.hub.is_open() && !self.answered && !self.is_named;
        if !probing && self.line.is_none() {
            // The channel must be open before the position is taken, or a grant could be missed.
            if self.wakes && !self.open_channel().await? {
                return Ok(());
            }
            let line = client.hub.line();
            let mut queue = QueueRequest::new(client.hub.client(), line.ticket, self.window);
            queue.max_waiters = self.acquisition.limits.settings.max_waiters;
            self.acquisition.request.queue = Some(queue);
            self.line = Some(line);
        }
        if self.wakes && self.line.is_some() {
            client.hub.keep_trying(client.config.call_timeout);
        }
        let sent_at = client.clock.now();
        if let Some(queue) = &mut self.acquisition.request.queue {
            if let Some((last, _)) = self.sent.back() {
                queue.heartbeat = last.wrapping_add(1);
            }
            queue.behind = self.seen.behind();
            self.sent.push_back((queue.heartbeat, sent_at));
            if self.sent.len() > HEARTBEATS_KEPT {
                self.sent.pop_front();
            }
            within = within.min(patience(self.window));
        }
        self.told_to_ask = None;
        self.acquisition.sending(sent_at, within);
        let store = Arc::clone(&client.store);
        let request = self.acquisition.request.clone();
        let answer = async move { store.acquire(&request, within).await };
        self.flight = Some(Flight::new(answer, sent_at, sent_at.saturating_add(within)));
        Ok(())
    }

    /// Opens the notification channel, if it can be opened for now; `false` when the wait has timed
    /// out.
    async fn open_channel(&mut self) -> Result<bool> {
        let Acquisition { client, limits, .. } = &*self.acquisition;
        let (client, until) = (Arc::clone(client), limits.until);
        let later = client.clock.now().saturating_add(OPEN_WITHIN);
        tokio::select! {
            biased;
            opened = client.hub.open(client.config.call_timeout) => {
                opened.map(|()| true).map_err(|error| self.acquisition.explain(error))
            }
            () = rt::sleep_until_some(&*client.clock, until) => Ok(false),
            () = rt::sleep_until(&*client.clock, later) => Ok(true),
        }
    }

    fn heard(&mut self) {
        self.answered = true;
        self.failures = 0;
        self.acknowledged = self.sent.back().copied().or(self.acknowledged);
    }

    fn failed(&mut self, error: Error) -> Result<()> {
        let passes_in = error.retry_after();
        self.seen.with(|status| self.acquisition.ride_out(error, status))?;
        self.failures = self.failures.saturating_add(1);
        let every = QueueRequest::heartbeat_every(self.window);
        let pause = match passes_in {
            // The store is there: request the lease when it grants again, and the position until
            // then.
            Some(passes_in) => {
                self.acknowledged = self.sent.back().copied().or(self.acknowledged);
                // It named the time of the next request, as a notification does.
                (self.is_named, self.told) = (true, true);
                if self.line.is_some() { passes_in } else { Duration::ZERO }
            }
            None => self.acquisition.limits.pause_after(self.failures),
        };
        self.next = self.now().saturating_add(pause.min(every).max(PAUSE_MIN));
        Ok(())
    }

    fn answered(&mut self, answer: Result<Attempt>, sent_at: Moment) -> Result<Option<Guard>> {
        let now = self.now();
        let every = QueueRequest::heartbeat_every(self.window);
        let try_lasts = self.acquisition.client.config.call_timeout;
        if !self.answered
            && let Ok(Attempt::Busy(Busy { holder, .. }) | Attempt::Waiting(Waiting { holder, .. })) =
                &answer
        {
            self.acquisition.tell_of_waiting(holder.as_deref());
        }
        match answer {
            Ok(Attempt::Held(guard)) => {
                self.seen.got();
                return Ok(Some(guard));
            }
            Ok(Attempt::Waiting(waiting)) => {
                self.heard();
                self.told = false;
                let blocker = Blocker {
                    holder: waiting.holder,
                    seen_at: now,
                    free_at: Some(now.saturating_add(waiting.retry_after)),
                    position: Some(waiting.position),
                    contended: false,
                };
                self.seen.set(blocker, try_lasts);
                self.acquisition.give_up_early(&self.seen.get())?;
                let mut pause = every.mul_f64(0.9 + 0.1 * fastrand::f64());
                pause = pause.min(match waiting.position {
                    0 => {
                        // Counted from the sending: a request that travels as long as this one did
                        // then arrives just after the lease's end, even if the answer was delayed.
                        let over = sent_at.saturating_add(waiting.retry_after);
                        over.saturating_since(now)
                    }
                    position => LOOK_PAST_HEAD.saturating_mul(position),
                });
                if let Some(look) = self.acquisition.client.store.capability().notices_death {
                    pause = pause.min(look.saturating_mul(looks_apart(waiting.position)));
                }
                if !self.wakes || !self.acquisition.client.hub.tells() {
                    // The head finds out first, and those behind it need only that.
                    let ask = self.acquisition.limits.pause_after(u32::MAX);
                    pause = pause.min(ask.saturating_mul(waiting.position.saturating_add(1)));
                }
                #[cfg(leasehold_planted)]
                if leasehold_core::planted::is(leasehold_core::planted::Fault::WaiterNeverAsks) {
                    pause = std::time::Duration::from_secs(3_600);
                }
                self.next = now.saturating_add(pause.max(PAUSE_MIN));
            }
            Ok(Attempt::Busy(busy)) => {
                self.heard();
                self.seen.set(Blocker::of(busy, now), try_lasts);
                self.acquisition.give_up_early(&self.seen.get())?;
                // After a plain try it requests a position; a store that refuses that gets pauses.
                let asked_for_a_place = self.acquisition.request.queue.is_some();
                let pause = if asked_for_a_place {
                    self.acquisition.limits.pause_after(1)
                } else {
                    Duration::ZERO
                };
                self.next = now.saturating_add(pause);
            }
            // Its position and its lease are abandoned for it.
            Ok(Attempt::TooLate) if self.acquisition.client.is_closed() => {
                return Err(self.acquisition.client.closed());
            }
            Ok(Attempt::TooLate) => self.next = now,
            Err(error) => self.failed(error)?,
        }
        Ok(None)
    }

    /// Takes a lease that the store has handed to this position.
    fn handed_over(&mut self, heartbeat: u32, fences: FenceBlock) -> Option<Guard> {
        let mut sent = self.sent.iter().chain(&self.acknowledged);
        let sent_at = sent.find(|(number, _)| *number == heartbeat).map(|sent| sent.1);
        let now = self.now();
        #[cfg(leasehold_planted)]
        let from_now =
            leasehold_core::planted::is(leasehold_core::planted::Fault::HandOverFromArrival);
        #[cfg(leasehold_planted)]
        let sent_at = sent_at.map(|sent_at| if from_now { now } else { sent_at });
        let attempt =
            sent_at.map(|sent_at| self.acquisition.granted(fences, sent_at, self.window, now));
        let Some(Attempt::Held(guard)) = attempt else {
            // The notification was long on its way; a request shows what the token still has.
            self.ask_by(now);
            return None;
        };
        events::count_by(events::HANDOFFS, "path", "store");
        self.seen.got();
        if let Some(flight) = self.flight.take().filter(Flight::is_begun) {
            self.finish_in_background(flight, guard.handle());
        }
        Some(guard)
    }

    /// A heartbeat may be on its way when the lease arrives. Carried out after the lease's release,
    /// it would queue a ghost, so the release waits for it.
    fn finish_in_background(&self, flight: Flight, handle: &Arc<LeaseHandle>) {
        let (done, client) = (UnderWay::begin(handle), Arc::clone(&self.acquisition.client));
        let landed = flight.landed(&client);
        client.background.clone().spawn(async move {
            drop(landed.await);
            drop(done);
        });
    }
}

async fn next_message(line: &mut Option<Line>) -> Wake {
    match line {
        Some(line) => line.next().await,
        None => std::future::pending().await,
    }
}

/// How much rarer a waiter looks for the dead than the head does: the head may have died with the
/// holder, and so may all between. Waiters further back look less often, since each look of a long
/// queue is work for all that use the store.
fn looks_apart(position: u32) -> u32 {
    position.saturating_add(1).min(5).max(position / 8)
}

/// A heartbeat that takes longer than this is repeated while the position can still be kept.
fn patience(window: Ttl) -> Duration {
    (window.duration() / 6).max(Duration::from_millis(20))
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.let_land();
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acquisition, window, next, seen, .. } = self;
        f.debug_struct("Wire")
            .field("acquisition", acquisition)
            .field("window", window)
            .field("next", next)
            .field("seen", seen)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_for_the_dead_are_never_far_apart_and_no_crowd_looks_all_the_time() {
        assert_eq!([0, 1, 4, 40, 48].map(looks_apart), [1, 2, 5, 5, 6]);
        let looks: f64 = (0..1_000).map(|place| 1.0 / f64::from(looks_apart(place))).sum();
        // This many in the time in which the head looks once.
        assert!(looks < 40.0, "{looks}");
        assert_eq!(looks_apart(u32::MAX), u32::MAX / 8);
    }
}
