//! The simulated network and the nodes behind it.
//!
//! Every call is two messages, which may be delayed, doubled, reordered or lost.

use std::any::Any;
use std::borrow::Borrow;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_core::{
    BoxFuture, Call, Clock, Key, LockInfo, Method, Moment, Result, Store as _, Token, VALID_FOR,
};
use leasehold_embedded::MemoryStore;
use tokio::time::Instant;

use crate::profile::{Us, What};

/// Where a node's time of day begins: 2026-01-01.
const TIME_OF_DAY_US: u64 = 1_767_225_600_000_000;

/// A node's clock, which the simulation moves.
#[derive(Debug, Default)]
struct NodeClock(AtomicU64);

impl NodeClock {
    fn set(&self, us: u64) {
        self.0.store(us, Ordering::Relaxed);
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::Relaxed).saturating_mul(1_000))
    }
}

/// A store at the other end of the network.
pub(crate) struct Node {
    clock: Arc<NodeClock>,
    time_of_day: Arc<NodeClock>,
    rate_ppm: i64,
    /// By how much its time of day is ahead.
    ahead_us: u64,
    store: Mutex<MemoryStore>,
    up_since: AtomicU64,
    /// When it last forgot all data.
    forgot_at: AtomicU64,
    down_until: AtomicU64,
    /// Counts its restarts.
    pub(crate) life: AtomicU64,
}

type Delivery = Box<dyn FnOnce(&Net) + Send>;

struct Message {
    at: Us,
    number: u64,
    delivery: Delivery,
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Message {}

impl PartialOrd for Message {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Message {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Counts of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) messages: u64,
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    /// Requests carried out after their callers stopped waiting.
    pub(crate) late: u64,
}

struct State {
    rng: fastrand::Rng,
    queue: BinaryHeap<Reverse<Message>>,
    number: u64,
    now: Us,
    /// The faults now, and until when they last.
    wrong: Vec<(Us, What)>,
    /// When the last message of a connection arrives; its next ones come later.
    last: BTreeMap<(usize, usize, bool), Us>,
    tally: Tally,
    /// The force-released locks, and when.
    forced: Vec<(String, Us)>,
    /// The marks of tokens of doubled requests that had nothing any more.
    doubles: BTreeSet<u32>,
}

/// All nodes, and all messages under way.
pub(crate) struct Net {
    state: Mutex<State>,
    pub(crate) nodes: Vec<Node>,
}

thread_local! {
    /// The process that runs now: since when, by true time and by its own clock, and that clock's
    /// rate.
    static RUNNING: Cell<Option<(Us, Instant, i64)>> = const { Cell::new(None) };
}

/// From here on a process runs, and its clock shows `Instant::now()`.
pub(crate) fn runs_from(at: Us, rate_ppm: i64) {
    RUNNING.set(Some((at, Instant::now(), rate_ppm)));
}

pub(crate) fn runs_no_more() {
    RUNNING.set(None);
}

/// `us` by a clock of this rate.
pub(crate) fn by_clock(us: Us, rate_ppm: i64) -> Us {
    let parts = i128::from(us) * i128::from(1_000_000 + rate_ppm) / 1_000_000;
    u64::try_from(parts).unwrap_or_default()
}

impl Net {
    /// `rates_ppm`: how fast each node's clock is.
    pub(crate) fn new(seed: u64, rates_ppm: &[i64], start: Us) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let nodes = rates_ppm.iter().map(|rate_ppm| {
            let (clock, time_of_day) = (Arc::<NodeClock>::default(), Arc::<NodeClock>::default());
            let store = MemoryStore::with_clocks(
                Arc::<NodeClock>::clone(&clock),
                Arc::<NodeClock>::clone(&time_of_day),
            );
            Node {
                clock,
                time_of_day,
                rate_ppm: *rate_ppm,
                ahead_us: rng.u64(0..500_000),
                store: Mutex::new(store),
                up_since: AtomicU64::new(0),
                forgot_at: AtomicU64::new(0),
                down_until: AtomicU64::new(0),
                life: AtomicU64::new(0),
            }
        });
        let nodes = nodes.collect();
        let state = State {
            rng,
            queue: BinaryHeap::new(),
            number: 0,
            now: start,
            wrong: Vec::new(),
            last: BTreeMap::new(),
            tally: Tally::default(),
            forced: Vec::new(),
            doubles: BTreeSet::new(),
        };
        Self { state: Mutex::new(state), nodes }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True time, as seen by the running process or by the message being delivered.
    pub(crate) fn now(&self) -> Us {
        let now = self.state().now;
        let Some((since, then, rate_ppm)) = RUNNING.get() else { return now };
        let passed = u64::try_from(then.elapsed().as_micros()).unwrap_or(u64::MAX);
        now.max(since + by_clock(passed, -rate_ppm))
    }

    pub(crate) fn tally(&self) -> Tally {
        self.state().tally
    }

    /// The locks force-released since the last call, and when.
    pub(crate) fn take_forced(&self) -> Vec<(String, Us)> {
        std::mem::take(&mut self.state().forced)
    }

    /// Whether the second copy of an answered request may have taken something for this token,
    /// which had nothing any more. Its client has no reason to look for that, so it lasts for a
    /// ttl.
    pub(crate) fn is_double(&self, mark: u32) -> bool {
        self.state().doubles.contains(&mark)
    }

    /// A fault begins, and lasts until then.
    pub(crate) fn begin(&self, what: What, until: Us) {
        self.state().wrong.push((until, what));
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.state().wrong.clear();
        for node in &self.nodes {
            node.down_until.store(0, Ordering::Relaxed);
        }
    }

    /// When each copy of a message arrives that is sent now.
    fn arrivals(&self, now: Us, host: usize, node: usize, there: bool) -> Vec<Us> {
        self.arrivals_on(now, host, node, there, &mut false)
    }

    /// As [`arrivals`](Self::arrivals); also sets `breaks` if the sender notices that its
    /// connection breaks.
    fn arrivals_on(
        &self,
        now: Us,
        host: usize,
        node: usize,
        there: bool,
        breaks: &mut bool,
    ) -> Vec<Us> {
        let mut state = self.state();
        let State { rng, wrong, last, tally, .. } = &mut *state;
        tally.messages += 1;
        wrong.retain(|(until, _)| *until > now);
        let (mut copies, mut in_order, mut more) = (1, true, 0);
        for (_, what) in &*wrong {
            match *what {
                What::Cut { host: of, node: to } if of == host && to == node => copies = 0,
                What::Alone { node: cut } if cut == node => copies = 0,
                What::Loss { percent } if rng.u32(..100) < percent => copies = 0,
                What::Double { percent } if rng.u32(..100) < percent && copies > 0 => copies = 2,
                What::Slow { percent } if rng.u32(..100) < percent => {
                    more = if rng.bool() {
                        rng.u64(1_000..200_000)
                    } else {
                        rng.u64(200_000..3_000_000)
                    };
                }
                What::Reorder { percent } if rng.u32(..100) < percent => {
                    (in_order, more) = (false, rng.u64(1_000..6_000_000));
                }
                // Stands for a connection that was closed with the request still in its buffers.
                What::Late { percent } if rng.u32(..100) < percent => {
                    if there {
                        (in_order, more) = (false, rng.u64(50_000..8_000_000));
                        *breaks = true;
                    } else {
                        copies = 0;
                    }
                }
                _ => {}
            }
        }
        match copies {
            0 => tally.lost += 1,
            1 => {}
            _ => tally.doubled += 1,
        }
        let least = if wrong.is_empty() { 200..500 } else { 100..3_000 };
        let arrivals = (0..copies).map(|copy: u64| {
            let at = now + rng.u64(least.clone()) + more + copy * rng.u64(0..400_000);
            let last = last.entry((host, node, there)).or_default();
            if !in_order || copy > 0 {
                return at;
            }
            *last = at.max(*last + 1);
            *last
        });
        arrivals.collect()
    }

    fn push(&self, at: Us, delivery: Delivery) {
        let mut state = self.state();
        state.number += 1;
        let number = state.number;
        state.queue.push(Reverse(Message { at, number, delivery }));
    }

    /// Advances time, delivering what arrives.
    pub(crate) fn run_until(&self, then: Us) {
        loop {
            let message = {
                let mut state = self.state();
                if state.queue.peek().is_none_or(|Reverse(next)| next.at > then) {
                    state.now = then;
                    return;
                }
                let Some(Reverse(message)) = state.queue.pop() else { return };
                state.now = state.now.max(message.at);
                message
            };
            (message.delivery)(self);
        }
    }

    /// The store at a node, its clocks set to the present.
    pub(crate) fn store(&self, node: usize) -> MemoryStore {
        let now = self.state().now;
        let node = &self.nodes[node];
        node.clock.set(by_clock(now, node.rate_ppm));
        node.time_of_day.set(TIME_OF_DAY_US + node.ahead_us + now);
        node.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A node restarts, with or without its data.
    pub(crate) fn restart(&self, number: usize, keeps: bool, down: Us) {
        let now = self.state().now;
        let node = &self.nodes[number];
        if !keeps {
            let fresh = MemoryStore::with_clocks(
                Arc::<NodeClock>::clone(&node.clock),
                Arc::<NodeClock>::clone(&node.time_of_day),
            );
            *node.store.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
            node.up_since.store(now + down, Ordering::Relaxed);
            node.forgot_at.store(now, Ordering::Relaxed);
        }
        node.life.fetch_add(1, Ordering::Relaxed);
        node.down_until.store(now + down, Ordering::Relaxed);
    }

    /// Whether a node has forgotten all data since then.
    pub(crate) fn has_forgotten_since(&self, then: Us) -> bool {
        self.nodes.iter().any(|node| node.forgot_at.load(Ordering::Relaxed) > then)
    }

    /// When a message arrives that a node sends to a process now, if it arrives.
    pub(crate) fn tells(&self, host: usize, node: usize) -> Vec<Us> {
        self.arrivals(self.now(), host, node, false)
    }

    /// Sends a call; `answered` gets the answer, if one comes. Returns whether the connection
    /// broke.
    pub(crate) fn call<C: Call + ?Sized>(
        &self,
        call: &C,
        (host, node): (usize, usize),
        within: Duration,
        answered: impl FnOnce(C::Answer) + Send + 'static,
    ) -> bool {
        let sent_at = self.now();
        let given_up_at = sent_at + u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
        let valid_for = u64::try_from(within.min(VALID_FOR).as_micros()).unwrap_or(u64::MAX);
        let call: Arc<C::Owned> = Arc::new(call.to_owned());
        let answered = Arc::new(Mutex::new(Some(answered)));
        let mut breaks = false;
        let mut arrivals = self.arrivals_on(sent_at, host, node, true, &mut breaks);
        if C::METHOD == Method::Listen {
            // This channel is a connection: it opens once, and only while its caller waits.
            arrivals.retain(|at| *at <= given_up_at);
            arrivals.truncate(1);
        }
        for at in arrivals {
            let (call, answered) = (Arc::clone(&call), Arc::clone(&answered));
            let deliver = move |net: &Self| {
                let now = net.state().now;
                let Node { down_until, rate_ppm, .. } = &net.nodes[node];
                if down_until.load(Ordering::Relaxed) > now {
                    return;
                }
                // The node counts the caller's time by its own clock.
                let takes = !C::METHOD.gives_back();
                #[cfg(leasehold_planted)]
                let takes = takes
                    && !leasehold_core::planted::is(
                        leasehold_core::planted::Fault::LateIsCarriedOut,
                    );
                if takes && by_clock(now - sent_at, *rate_ppm) > valid_for {
                    return;
                }
                let call: &C = (*call).borrow();
                let unknown =
                    if is_taken(&answered) { net.unknown(call, node) } else { Vec::new() };
                let Some(answer) = net.carry_out(call, node, within) else { return };
                net.take_note(call, unknown, (now, given_up_at));
                let answer = Arc::new(Mutex::new(Some(answer)));
                for at in net.arrivals(now, host, node, false) {
                    let (answer, answered) = (Arc::clone(&answer), Arc::clone(&answered));
                    let take_in = move |_: &Self| {
                        let answered = take(&answered);
                        if let (Some(answered), Some(answer)) = (answered, take(&answer)) {
                            answered(answer);
                        }
                    };
                    net.push(at, Box::new(take_in));
                }
            };
            self.push(at, Box::new(deliver));
        }
        breaks
    }

    fn carry_out<C: Call + ?Sized>(
        &self,
        call: &C,
        node: usize,
        within: Duration,
    ) -> Option<C::Answer> {
        if C::METHOD == Method::RemembersFor {
            let up =
                self.state().now.saturating_sub(self.nodes[node].up_since.load(Ordering::Relaxed));
            let answer: Result<Option<Duration>> = Ok(Some(Duration::from_micros(up)));
            let answer: Box<dyn Any> = Box::new(answer);
            return answer.downcast().ok().map(|answer| *answer);
        }
        let store = self.store(node);
        let mut answer: BoxFuture<'_, C::Answer> = call.send(&store, within);
        match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Records what needs more than its answer to be judged.
    /// The marks of the tokens in this call that have nothing at this node.
    fn unknown<C: Call + ?Sized>(&self, call: &C, node: usize) -> Vec<u32> {
        let store = self.store(node);
        let is_unknown = |(key, token): (&Key, Option<&Token>)| {
            let mark = token?.mark();
            let info = inspect(&store, key.as_str());
            let is_known = info.is_some_and(|info| {
                info.holders.iter().any(|it| it.mark == mark)
                    || info.waiters.iter().any(|it| it.mark == mark)
            });
            (!is_known).then_some(mark)
        };
        call.targets().into_iter().filter_map(is_unknown).collect()
    }

    fn take_note<C: Call + ?Sized>(
        &self,
        call: &C,
        unknown: Vec<u32>,
        (now, given_up_at): (Us, Us),
    ) {
        let mut state = self.state();
        state.tally.late += u64::from(now > given_up_at);
        if !C::METHOD.gives_back() {
            state.doubles.extend(unknown);
        }
        if C::METHOD == Method::ForceRelease {
            let targets = call.targets();
            state.forced.extend(targets.iter().map(|(key, _)| (key.as_str().to_owned(), now)));
        }
    }
}

/// The entry of a lock in a store in memory.
pub(crate) fn inspect(store: &MemoryStore, name: &str) -> Option<LockInfo> {
    let key = Key::new(name).ok()?;
    let mut looking = store.inspect(&key, Duration::ZERO);
    match looking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(info) => info.ok().flatten(),
        Poll::Pending => None,
    }
}

fn is_taken<T>(from: &Mutex<Option<T>>) -> bool {
    from.lock().unwrap_or_else(PoisonError::into_inner).is_none()
}

fn take<T>(from: &Mutex<Option<T>>) -> Option<T> {
    from.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use leasehold_core::{
        AcquireRequest, ClientId, LeaveRequest, Listener, QueueRequest, RenewRequest, Ttl, Wake,
    };

    use super::*;

    const WITHIN: Duration = Duration::from_secs(5);

    fn answer<C: Call + ?Sized>(net: &Net, call: &C) -> C::Answer {
        let (told, answer) = mpsc::channel();
        net.call(call, (0, 0), WITHIN, move |answer| drop(told.send(answer)));
        net.run_until(net.now() + 1_000_000);
        answer.try_recv().unwrap()
    }

    fn next(listener: &mut dyn Listener) -> Option<Wake> {
        match listener.next().as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(wake) => Some(wake),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_second_copy_of_an_answered_request_may_take_what_was_given_back() {
        for seed in 0..80 {
            let (net, is_transferred) = (Net::new(seed, &[0], 1_000_000), seed % 2 == 1);
            let (client, key) = (ClientId::from_bytes([1; 16]), Key::new("k").unwrap());
            let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
            let mut taking = AcquireRequest::new(key.clone(), Token::from_bytes([2; 16]), ttl);
            taking.queue = Some(QueueRequest::new(client, 5, ttl));
            let mark = taking.token.mark();
            answer(&net, &taking).unwrap();
            answer(&net, &LeaveRequest::new(key.clone(), taking.token)).unwrap();
            answer(&net, &taking).unwrap();
            assert!(!net.is_double(mark), "each was requested once");
            answer(&net, &LeaveRequest::new(key.clone(), taking.token)).unwrap();

            net.begin(What::Double { percent: 100 }, Us::MAX);
            let (told, first) = mpsc::channel();
            net.call(&taking, (0, 0), WITHIN, move |answer| drop(told.send(answer)));
            let granted = loop {
                net.run_until(net.now() + 100);
                if let Ok(answer) = first.try_recv() {
                    break answer.unwrap().fences();
                }
            };
            let mut token = taking.token;
            if let Some(fences) = granted.filter(|_| is_transferred) {
                let mut renewal = RenewRequest::new(key.clone(), token, fences, ttl);
                token = Token::from_bytes([3; 16]);
                renewal.successor = Some(token);
                answer(&net, std::slice::from_ref(&renewal));
            }
            answer(&net, &LeaveRequest::new(key.clone(), token)).unwrap();
            let is_left = inspect(&net.store(0), "k").is_some_and(|it| !it.holders.is_empty());
            assert!(!is_left || net.is_double(mark), "seed {seed}");
        }
    }

    #[test]
    fn a_subscription_whose_request_comes_twice_is_the_one_that_brings_the_messages() {
        let net = Net::new(7, &[0], 1_000_000);
        net.begin(What::Double { percent: 100 }, Us::MAX);
        let (client, key) = (ClientId::from_bytes([1; 16]), Key::new("k").unwrap());
        let mut listener = answer(&net, &client).unwrap();
        let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
        let holder = AcquireRequest::new(key.clone(), Token::from_bytes([2; 16]), ttl);
        let mut waiter = AcquireRequest::new(key.clone(), Token::from_bytes([3; 16]), ttl);
        waiter.queue = Some(QueueRequest::new(client, 5, ttl));
        answer(&net, &holder).unwrap();
        answer(&net, &waiter).unwrap();
        answer(&net, &LeaveRequest::new(key, holder.token)).unwrap();
        let wake = next(&mut *listener);
        assert!(matches!(wake, Some(Wake::Granted { ticket: 5, .. })), "{wake:?}");
    }
}
