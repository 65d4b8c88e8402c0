//! Waiting in the store's line: heartbeats, the head's timer, and leases handed over.
//!
//! A lease that the store hands to a waiter runs from the moment the store *received* the
//! waiter's last heartbeat, for the waiter's window. The waiter knows when it sent that
//! heartbeat, which was earlier, so it may count the lease from then without asking anybody: the
//! rule of every acquisition, applied to a request that was answered late.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Acquire, BoxFuture, Error, FenceBlock, Moment, QueueRequest, Result, Ttl, Wake,
};

use crate::acquire::{Acquisition, Attempt, InTheWay};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::rt;
use crate::wake::Line;

/// The longest window: how long a dead waiter can hold up the line is half of it.
const WINDOW_MAX: Duration = Duration::from_secs(30);
/// How many heartbeats back a grant may refer to.
const HEARTBEATS_KEPT: usize = 8;

/// A request on its way, owned by itself so that it can be finished in the background.
type Flight = BoxFuture<'static, Result<Acquire>>;

/// A waiter in line.
struct Waiter {
    line: Line,
    window: Ttl,
    wakes: bool,
    /// When each of the last heartbeats was sent.
    sent: VecDeque<(u32, Moment)>,
    flight: Option<(Flight, Moment)>,
    /// When to ask again.
    next: Moment,
    in_the_way: InTheWay,
    heard_at: Option<Moment>,
    failures: u32,
}

enum Event {
    Answer(Result<Acquire>, Moment),
    Wake(Wake),
    AskAgain,
    RanOut,
}

impl Acquisition {
    /// Takes a place in line and keeps it until the lease is handed over.
    pub(crate) async fn wait_in_line(mut self, wakes: bool) -> Result<Guard> {
        let client = Arc::clone(&self.client);
        if wakes && !client.hub.is_open() {
            // The channel must stand before the place is taken, or the grant could be missed; an
            // uncontended lock should not pay for it.
            match self.attempt().await? {
                Attempt::Held(guard) => return Ok(guard),
                Attempt::Busy(busy) => {
                    let in_the_way = InTheWay {
                        holder: busy.holder,
                        retry_after: Some(busy.retry_after),
                        position: None,
                    };
                    self.refuse_in_vain(&in_the_way)?;
                    if self.until.is_some_and(|until| client.clock.now() >= until) {
                        return Err(self.ran_out(in_the_way, "the wait ran out"));
                    }
                }
                Attempt::Waiting(_) | Attempt::TooLate => {}
            }
            client.hub.open(self.within(client.clock.now())).await.map_err(|e| self.explain(e))?;
        }
        let window = Ttl::new(self.terms.ttl.duration().min(WINDOW_MAX))?;
        let line = client.hub.line();
        let mut queue = QueueRequest::new(client.hub.client(), line.ticket, window);
        queue.waiters_max = self.settings.waiters_max;
        self.request.queue = Some(queue);
        let mut waiter = Waiter {
            line,
            window,
            wakes,
            sent: VecDeque::new(),
            flight: None,
            next: client.clock.now(),
            in_the_way: InTheWay::default(),
            heard_at: None,
            failures: 0,
        };
        loop {
            match self.next_event(&mut waiter).await {
                Event::AskAgain => self.send_heartbeat(&mut waiter),
                Event::RanOut => {
                    return Err(self.ran_out(waiter.in_the_way, "the wait ran out"));
                }
                Event::Answer(answer, sent_at) => {
                    let answer = self.take_in(answer, sent_at);
                    if let Some(guard) = self.answered(&mut waiter, answer)? {
                        return Ok(guard);
                    }
                }
                Event::Wake(Wake::Granted { heartbeat, fences, .. }) => {
                    if let Some(guard) = self.handed_over(&mut waiter, heartbeat, fences) {
                        return Ok(guard);
                    }
                }
                Event::Wake(Wake::First { retry_after, .. }) => {
                    let at = client.clock.now().saturating_add(retry_after);
                    waiter.next = waiter.next.min(at);
                }
                Event::Wake(_) => waiter.next = client.clock.now(),
            }
        }
    }

    async fn next_event(&self, waiter: &mut Waiter) -> Event {
        let clock = &*self.client.clock;
        let Waiter { line, flight, next, .. } = waiter;
        let asking = flight.is_some();
        tokio::select! {
            biased;
            (answer, sent_at) = landed(flight) => Event::Answer(answer, sent_at),
            wake = line.next() => Event::Wake(wake),
            () = rt::sleep_until_some(clock, self.until) => Event::RanOut,
            () = rt::sleep_until(clock, *next), if !asking => Event::AskAgain,
        }
    }

    fn send_heartbeat(&mut self, waiter: &mut Waiter) {
        let sent_at = self.client.clock.now();
        let within = self.within(sent_at).min(heartbeat_patience(waiter.window));
        self.armed.sending(self.expired_at(sent_at));
        let Some(queue) = &mut self.request.queue else { return };
        if let Some((last, _)) = waiter.sent.back() {
            queue.heartbeat = last.wrapping_add(1);
        }
        waiter.sent.push_back((queue.heartbeat, sent_at));
        if waiter.sent.len() > HEARTBEATS_KEPT {
            waiter.sent.pop_front();
        }
        let store = Arc::clone(&self.client.store);
        let request = self.request.clone();
        let flight = Box::pin(async move { store.acquire(&request, within).await });
        waiter.flight = Some((flight, sent_at));
    }

    /// Takes in the answer to a heartbeat.
    fn answered(&self, waiter: &mut Waiter, answer: Result<Attempt>) -> Result<Option<Guard>> {
        let now = self.client.clock.now();
        let every = QueueRequest::heartbeat_every(waiter.window);
        match answer {
            Ok(Attempt::Held(guard)) => return Ok(Some(guard)),
            Ok(Attempt::Waiting(waiting)) => {
                waiter.heard_at = Some(now);
                waiter.failures = 0;
                waiter.in_the_way = InTheWay {
                    holder: waiting.holder,
                    retry_after: Some(waiting.retry_after),
                    position: Some(waiting.position),
                };
                self.refuse_in_vain(&waiter.in_the_way)?;
                let mut pause = every.mul_f64(0.9 + 0.1 * fastrand::f64());
                if waiting.position == 0 {
                    pause = pause.min(waiting.retry_after);
                }
                if !waiter.wakes {
                    pause = pause.min(self.poll_pause());
                }
                waiter.next = now.saturating_add(pause.max(leasehold_core::retry::PAUSE_MIN));
            }
            Ok(Attempt::Busy(_) | Attempt::TooLate) => waiter.next = now,
            Err(error) => {
                self.ride_out(error, waiter.heard_at)?;
                waiter.failures = waiter.failures.saturating_add(1);
                waiter.next = now.saturating_add(self.pause_after(waiter.failures).min(every));
            }
        }
        Ok(None)
    }

    /// Takes over a lease that the store has handed to this waiter.
    fn handed_over(
        &mut self,
        waiter: &mut Waiter,
        heartbeat: u32,
        fences: FenceBlock,
    ) -> Option<Guard> {
        let sent_at = waiter.sent.iter().find(|(number, _)| *number == heartbeat)?.1;
        let Attempt::Held(guard) = self.hold(fences, sent_at, waiter.window) else {
            // The message was long on its way; asking says what the token still has.
            waiter.next = self.client.clock.now();
            return None;
        };
        if let Some((flight, _)) = waiter.flight.take() {
            self.finish_in_background(flight, guard.hold());
        }
        // The window may be shorter than the ttl, and a part of it has passed.
        self.client.wheel.add_due_now(guard.hold());
        Some(guard)
    }

    /// A heartbeat that is on its way when the lease arrives must not be carried out after the
    /// lease's release, where it would put a ghost in line; the release waits for it.
    fn finish_in_background(&self, flight: Flight, hold: &Arc<Hold>) {
        struct Done(Arc<Hold>);
        impl Drop for Done {
            fn drop(&mut self) {
                self.0.request_done();
            }
        }
        hold.request_started();
        let done = Done(Arc::clone(hold));
        self.client.runtime.spawn(async move {
            drop(flight.await);
            drop(done);
        });
    }

    fn poll_pause(&self) -> Duration {
        self.pause_after(u32::MAX)
    }

    fn pause_after(&self, tries: u32) -> Duration {
        self.settings.retry.pause(tries.max(1)).unwrap_or(Duration::from_millis(100))
    }
}

/// The answer of the request on its way; for ever while there is none.
async fn landed(flight: &mut Option<(Flight, Moment)>) -> (Result<Acquire, Error>, Moment) {
    let Some((request, sent_at)) = flight else { return std::future::pending().await };
    let answer = request.await;
    let sent_at = *sent_at;
    *flight = None;
    (answer, sent_at)
}

/// A heartbeat that takes longer than this is tried again while the place can still be kept.
fn heartbeat_patience(window: Ttl) -> Duration {
    (window.duration() / 6).max(Duration::from_millis(20))
}
