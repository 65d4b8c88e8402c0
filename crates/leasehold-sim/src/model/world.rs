//! Two clients, one lock, and the messages between them.

#![expect(
    clippy::unwrap_used,
    reason = "numbers of a bound fit, and nothing goes on where they don't"
)]

use std::time::Duration;

use leasehold_core::table::{LockEntry, Notice, Now, Operation, StoreTime};
use leasehold_core::{
    AcquireRequest, Admission, ClientId, Fence, FenceBlock, HoldTerms, Key, LeaseMachine,
    LeaseState, LeaseStatus, LeaveRequest, Moment, Place, QueueRequest, Relay, ReleaseRequest,
    Renew, RenewRequest, Token, Ttl, Wake, margin,
};

use super::search::Explored;

const CLIENTS: usize = 2;
const TTL_MS: u64 = 1_000;
const WINDOW_MS: u64 = 800;
/// In true time, which no clock shows.
const START_US: u64 = 10_000_000;
/// How far time advances at most if no instant is due.
const STRIDE_US: u64 = 450_000;

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// How often each client acquires.
    pub(crate) acquisitions: [u8; CLIENTS],
    /// Requests of each client's acquisition; all but the first are heartbeats.
    pub(crate) asks: [u8; CLIENTS],
    /// Renewals of a lease.
    pub(crate) renewals: u8,
    /// How often a message is delivered at most.
    pub(crate) copies: u8,
    /// How much faster the store's clock is than true time, and how much slower the clients' clocks
    /// are.
    pub(crate) drift_ppm: i64,
    pub(crate) horizon_ms: u64,
    pub(crate) planted: Planted,
}

impl Bound {
    /// How long the store keeps a lease.
    fn stored_ttl(&self) -> Ttl {
        ttl(if self.planted == Planted::StoreEndsEarly { TTL_MS - 50 } else { TTL_MS })
    }
}

/// A fault of a client or a store, planted here and not in the product.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Planted {
    Nothing,
    /// A client counts a grant from the arrival of its answer.
    CountsFromAnswer,
    /// A client counts a queue's grant from the arrival of its notification.
    CountsFromArrival,
    /// A client counts a queue's grant from its last request, which the store may not have.
    CountsFromLast,
    /// A client's deadline has no margin.
    NoMargin,
    /// The store's leases end 50 ms early.
    StoreEndsEarly,
    /// A release ends the lease of any token.
    AnyTokenReleases,
    /// A lost lease becomes valid again by a renewal's answer.
    SendingRenews,
    /// A renewal's answer brings a lost lease back.
    LostLeaseRenewed,
    /// The store forgets a free lock with its last fence.
    StoreForgets,
    /// A client acquires the lock again with its earlier token.
    TokenUsedAgain,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Ask(usize),
    Renew(usize),
    Release(usize),
    GiveUp(usize),
    /// The message at this index arrives.
    Deliver(usize),
    /// Time advances to the next instant at which a rule changes its decision.
    Wait,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Message {
    Ask { from: Sender, beat: u8, place: Option<Place>, sent: Moment },
    Granted { to: Sender, fence: Fence, sent: Moment },
    Waiting { to: Sender, place: Place },
    HandedOver { to: Sender, beat: u8, fence: Fence },
    Renew { from: Sender, fence: Fence, sent: Moment },
    Renewed { to: Sender, sent: Moment },
    Release { from: Sender, fence: Fence },
    Leave { from: Sender },
}

/// An acquisition of a client.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
struct Sender {
    client: u8,
    acquisition: u8,
}

impl Sender {
    fn token(self, planted: Planted) -> Token {
        let acquisition = if planted == Planted::TokenUsedAgain { 0 } else { self.acquisition };
        Token::from_bytes([16 * self.client + acquisition + 1; 16])
    }
}

#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
struct Client {
    acquisition: u8,
    /// When each request was sent.
    beats: Vec<Moment>,
    place: Option<Place>,
    lease: Option<(LeaseMachine<()>, Fence)>,
    /// Whether this lease was ever lost.
    was_lost: bool,
    renewals: u8,
    is_done: bool,
}

impl Client {
    fn wants(&self, to: Sender) -> bool {
        self.acquisition == to.acquisition && !self.is_done && self.lease.is_none()
    }
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct World {
    true_us: u64,
    entry: LockEntry,
    clients: [Client; CLIENTS],
    /// In order, each with how often it may still arrive.
    under_way: Vec<(Message, u8)>,
    highest: Option<Fence>,
    fence_fell: bool,
    handed_over: bool,
    have_held: [bool; CLIENTS],
}

fn ttl(ms: u64) -> Ttl {
    Ttl::new(Duration::from_millis(ms)).unwrap()
}

/// A lease granted in answer to a request sent at `sent`. It counts as begun then, which makes
/// fewer states.
fn held(sent: Moment, ms: u64, now: Moment) -> Option<LeaseMachine<()>> {
    let lease = LeaseState::granted(sent, ttl(ms), Duration::ZERO, now)?;
    let terms = HoldTerms { renews: true, max_hold: None, progress_within: None };
    Some(LeaseMachine::new(lease, ttl(TTL_MS), terms, Relay::default(), 0, sent))
}

fn key() -> Key {
    Key::new("k").unwrap()
}

fn at_rate(true_us: u64, ppm: i64) -> u64 {
    u64::try_from(i128::from(true_us) * i128::from(1_000_000 + ppm) / 1_000_000).unwrap()
}

fn true_time(us: u64, ppm: i64) -> u64 {
    u64::try_from(i128::from(us) * 1_000_000 / i128::from(1_000_000 + ppm)).unwrap()
}

impl Explored for World {
    type Action = Action;
    type Bound = Bound;

    const MARKS: [&'static str; 2] = ["after a hand-over", "after both held"];

    fn marks(&self) -> [bool; 2] {
        [self.handed_over, self.have_held == [true; CLIENTS]]
    }

    fn start(_: &Bound) -> Self {
        Self {
            true_us: START_US,
            entry: LockEntry::default(),
            clients: Default::default(),
            under_way: Vec::new(),
            highest: None,
            fence_fell: false,
            handed_over: false,
            have_held: [false; CLIENTS],
        }
    }

    fn violated(&self) -> Option<&'static str> {
        if (0..CLIENTS).filter(|client| self.believes(*client)).count() > 1 {
            Some("exclusion")
        } else if self.fence_fell {
            Some("growing fences")
        } else if (0..CLIENTS).any(|n| self.clients[n].was_lost && self.believes(n)) {
            Some("final loss")
        } else {
            None
        }
    }

    /// Client 0 begins: the clients are equivalent.
    fn actions(&self, bound: &Bound) -> Vec<Action> {
        let mut actions = Vec::new();
        for (n, client) in self.clients.iter().enumerate() {
            let first = &self.clients[0];
            let has_begun = !first.beats.is_empty() || first.acquisition > 0 || first.is_done;
            let asked = u8::try_from(client.beats.len()).unwrap();
            match client.lease {
                Some(_) => {
                    if client.renewals < bound.renewals && self.believes(n) {
                        actions.push(Action::Renew(n));
                    }
                    actions.push(Action::Release(n));
                }
                None if client.is_done => {}
                None => {
                    if asked < bound.asks[n] && (n == 0 || has_begun) {
                        actions.push(Action::Ask(n));
                    }
                    if asked > 0 {
                        actions.push(Action::GiveUp(n));
                    }
                }
            }
        }
        actions.extend((0..self.under_way.len()).map(Action::Deliver));
        if self.true_us < START_US + bound.horizon_ms * 1_000 {
            actions.push(Action::Wait);
        }
        actions
    }

    fn after(&self, bound: &Bound, action: Action) -> Self {
        let mut next = self.clone();
        next.act(bound, action);
        let now = next.client_now(bound);
        for client in &mut next.clients {
            if let Some((lease, _)) = &mut client.lease {
                client.was_lost |= lease.status(now) == LeaseStatus::Lost;
            }
        }
        if bound.planted == Planted::StoreForgets
            && next.entry.inspect(&key(), next.store_now(bound).at).is_none()
        {
            next.entry = LockEntry::default();
        }
        next.forget_vain_messages(bound);
        next
    }
}

impl World {
    fn client_now(&self, bound: &Bound) -> Moment {
        Moment::from_origin(Duration::from_micros(at_rate(self.true_us, -bound.drift_ppm)))
    }

    fn store_now(&self, bound: &Bound) -> Now {
        let us = at_rate(self.true_us, bound.drift_ppm);
        Now::new(StoreTime::from_micros(us), Fence::new(0, us).unwrap())
    }

    fn believes(&self, client: usize) -> bool {
        self.clients[client].lease.is_some_and(|(mut lease, _)| {
            // `step` has already advanced the lease to the present.
            lease.status(Moment::default()) != LeaseStatus::Lost
        })
    }

    fn act(&mut self, bound: &Bound, action: Action) {
        let now = self.client_now(bound);
        let sender = |n: usize, client: &Client| Sender {
            client: u8::try_from(n).unwrap(),
            acquisition: client.acquisition,
        };
        match action {
            Action::Wait => self.true_us = self.next_instant(bound),
            Action::Ask(n) => {
                let client = &mut self.clients[n];
                let beat = u8::try_from(client.beats.len()).unwrap();
                client.beats.push(now);
                let (from, place) = (sender(n, client), client.place);
                self.send(bound, Message::Ask { from, beat, place, sent: now });
            }
            Action::Renew(n) => {
                let client = &mut self.clients[n];
                client.renewals += 1;
                let from = sender(n, client);
                let Some((lease, fence)) = &mut client.lease else { return };
                let Admission::Start(_) = lease.may_renew(now) else { return };
                if bound.planted == Planted::SendingRenews {
                    lease.renewed(now, ttl(TTL_MS), now);
                }
                // The call times out at once; its answer may still come, at any time.
                lease.request_done();
                let message = Message::Renew { from, fence: *fence, sent: now };
                self.send(bound, message);
            }
            Action::Release(n) | Action::GiveUp(n) => {
                let client = &mut self.clients[n];
                let from = sender(n, client);
                let message = match client.lease {
                    Some((_, fence)) => Message::Release { from, fence },
                    None => Message::Leave { from },
                };
                let acquisition = client.acquisition + 1;
                let is_done = acquisition >= bound.acquisitions[n];
                *client = Client { acquisition, is_done, ..Client::default() };
                self.send(bound, message);
            }
            Action::Deliver(n) => {
                let (message, left) = self.under_way[n];
                if left == 1 {
                    self.under_way.remove(n);
                } else {
                    self.under_way[n].1 = left - 1;
                }
                self.arrive(bound, message);
            }
        }
    }

    fn send(&mut self, bound: &Bound, message: Message) {
        if let Err(at) = self.under_way.binary_search_by(|(other, _)| other.cmp(&message)) {
            self.under_way.insert(at, (message, bound.copies));
        }
    }

    fn arrive(&mut self, bound: &Bound, message: Message) {
        let now = self.client_now(bound);
        match message {
            Message::Ask { from, beat, place, sent } => {
                let client = ClientId::from_bytes([from.client; 16]);
                let mut queue =
                    QueueRequest::new(client, u64::from(from.acquisition), ttl(WINDOW_MS));
                (queue.heartbeat, queue.place) = (u32::from(beat), place);
                let mut request =
                    AcquireRequest::new(key(), from.token(bound.planted), bound.stored_ttl());
                request.queue = Some(queue);
                let answer = self.perform(bound, &request);
                if let Some(fences) = answer.fences() {
                    let fence = fences.first();
                    self.send(bound, Message::Granted { to: from, fence, sent });
                } else if let leasehold_core::Acquire::Waiting(waiting) = answer {
                    self.send(bound, Message::Waiting { to: from, place: waiting.place });
                }
            }
            Message::Granted { to, fence, sent } => {
                let from_answer = bound.planted == Planted::CountsFromAnswer;
                self.take(bound, to, fence, if from_answer { now } else { sent }, TTL_MS);
            }
            Message::Waiting { to, place } => {
                let client = &mut self.clients[usize::from(to.client)];
                if client.wants(to) {
                    client.place = Some(place);
                }
            }
            Message::HandedOver { to, beat, fence } => {
                let beats = &self.clients[usize::from(to.client)].beats;
                let sent = match bound.planted {
                    Planted::CountsFromArrival => Some(now),
                    Planted::CountsFromLast => beats.last().copied(),
                    _ => beats.get(usize::from(beat)).copied(),
                };
                if let Some(sent) = sent {
                    self.handed_over |= self.take(bound, to, fence, sent, WINDOW_MS);
                }
            }
            Message::Renew { from, fence, sent } => {
                let (token, fences) = (from.token(bound.planted), FenceBlock::new(fence, 1));
                let request = RenewRequest::new(key(), token, fences, bound.stored_ttl());
                let answer = self.perform(bound, &request);
                if answer == Renew::Renewed {
                    self.send(bound, Message::Renewed { to: from, sent });
                }
            }
            Message::Renewed { to, sent } => {
                let client = &mut self.clients[usize::from(to.client)];
                if let Some((lease, _)) = &mut client.lease
                    && client.acquisition == to.acquisition
                    && lease.renewed(sent, ttl(TTL_MS), now).is_none()
                    && bound.planted == Planted::LostLeaseRenewed
                    && let Some(anew) = held(sent, TTL_MS, now)
                {
                    *lease = anew;
                }
            }
            Message::Release { from, fence } => {
                let mut token = from.token(bound.planted);
                if bound.planted == Planted::AnyTokenReleases {
                    token = self.entry.tokens().next().copied().unwrap_or(token);
                }
                self.perform(bound, &ReleaseRequest::new(key(), token, FenceBlock::new(fence, 1)));
            }
            Message::Leave { from } => {
                self.perform(bound, &LeaveRequest::new(key(), from.token(bound.planted)));
            }
        }
    }

    fn perform<O: Operation>(&mut self, bound: &Bound, operation: &O) -> O::Answer {
        let mut notices = Vec::new();
        let answer = self.entry.perform(operation, self.store_now(bound), &mut notices);
        for Notice { client, wake, .. } in notices {
            if let Wake::Granted { ticket, heartbeat, fences } = wake {
                let to = Sender {
                    client: client.as_bytes()[0],
                    acquisition: u8::try_from(ticket).unwrap(),
                };
                let beat = u8::try_from(heartbeat).unwrap();
                self.send(bound, Message::HandedOver { to, beat, fence: fences.first() });
            }
        }
        answer
    }

    /// A client takes a lease if it wants one and the lease still holds.
    fn take(&mut self, bound: &Bound, to: Sender, fence: Fence, sent: Moment, ms: u64) -> bool {
        let now = self.client_now(bound);
        let client = &mut self.clients[usize::from(to.client)];
        if !client.wants(to) {
            return false;
        }
        let kept = if bound.planted == Planted::NoMargin {
            margin(ttl(ms).duration())
        } else {
            Duration::ZERO
        };
        let sent = sent.saturating_add(kept);
        let Some(lease) = held(sent, ms, now) else { return false };
        client.lease = Some((lease, fence));
        self.fence_fell |= self.highest.is_some_and(|highest| fence <= highest);
        self.highest = self.highest.max(Some(fence));
        self.have_held[usize::from(to.client)] = true;
        true
    }

    /// The next instant just before or just after a rule changes its decision.
    fn next_instant(&self, bound: &Bound) -> u64 {
        let mut next = self.true_us + STRIDE_US;
        let mut consider = |us: u64| {
            for us in [us.saturating_sub(1), us + 1] {
                if us > self.true_us {
                    next = next.min(us);
                }
            }
        };
        for (lease, _) in self.clients.iter().filter_map(|client| client.lease.as_ref()) {
            let us = lease.lasting().lost_at.saturating_since(Moment::default()).as_micros();
            consider(true_time(u64::try_from(us).unwrap(), -bound.drift_ppm));
        }
        let at = self.store_now(bound).at;
        if let Some(info) = self.entry.inspect(&key(), at) {
            for holder in &info.holders {
                let end = at.saturating_add(holder.remaining).as_micros();
                consider(true_time(end, bound.drift_ppm));
            }
        }
        next
    }

    /// Drops messages that would change nothing at any time: fewer states, the same runs.
    fn forget_vain_messages(&mut self, bound: &Bound) {
        let now = self.client_now(bound);
        let longest = Duration::from_millis(TTL_MS + 100);
        let is_old = |sent: Moment| now >= sent.saturating_add(longest);
        let arrival_counts = bound.planted == Planted::CountsFromArrival;
        let last_counts = bound.planted == Planted::CountsFromLast;
        let answer_counts = bound.planted == Planted::CountsFromAnswer;
        let clients = &self.clients;
        self.under_way.retain(|(message, _)| match *message {
            Message::Granted { to, sent, .. } => {
                clients[usize::from(to.client)].wants(to) && (answer_counts || !is_old(sent))
            }
            Message::Waiting { to, place } => {
                let client = &clients[usize::from(to.client)];
                client.wants(to) && client.place != Some(place)
            }
            Message::HandedOver { to, beat, .. } => {
                let client = &clients[usize::from(to.client)];
                let sent = if last_counts {
                    client.beats.last()
                } else {
                    client.beats.get(usize::from(beat))
                };
                client.wants(to) && (arrival_counts || sent.is_some_and(|sent| !is_old(*sent)))
            }
            Message::Renewed { to, sent } => {
                let client = &clients[usize::from(to.client)];
                client.acquisition == to.acquisition && client.lease.is_some() && !is_old(sent)
            }
            Message::Ask { .. }
            | Message::Renew { .. }
            | Message::Release { .. }
            | Message::Leave { .. } => true,
        });
    }
}
