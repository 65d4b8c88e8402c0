//! Visits every run of two clients, one lock and three nodes of a quorum.
//!
//! The product's own [`Ballot`] decides, and a [`LockEntry`] at each node grants.
//!
//! A client's requests to a node arrive in order and at any time, or get lost. Answers come at once
//! or get lost. A copy of the request that abandons a token may arrive at any later time. The
//! nodes' times of day differ. A node that restarts may have forgotten all data.

#![expect(
    clippy::unwrap_used,
    reason = "numbers of a bound fit, and nothing goes on where they don't"
)]

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_core::table::{LockEntry, Now, Operation, StoreTime};
use leasehold_core::{
    AcquireRequest, Effect, Error, ErrorKind, Fence, FenceBlock, Key, LeaseState, LeaseStatus,
    LeaveRequest, Moment, ReleaseRequest, Renew, RenewRequest, Result, Token, Ttl,
};
use leasehold_quorum::ballot::{Ballot, Next, Stands, Vote, counts_from};

use super::search::Explored;

const CLIENTS: usize = 2;
const NODES: usize = 3;
const MAJORITY: usize = 2;
const TTL: Duration = Duration::from_secs(1);
/// In true time, long after the nodes began.
const START_US: u64 = 10_000_000;
/// How far time advances at most if no instant is due.
const STRIDE_US: u64 = 900_000;
/// By how much each node's time of day is ahead.
const AHEAD_US: [u64; NODES] = [0, 400_000, 200_000];

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// How often each client tries.
    pub(crate) tries: [u8; CLIENTS],
    /// How many answers may get lost.
    pub(crate) lost: u8,
    /// How often a client may stop waiting for unanswered requests.
    pub(crate) given_up: u8,
    /// How often the request that abandons a token may arrive twice.
    pub(crate) doubled: u8,
    /// How often a node may forget all data; the clients know that one may.
    pub(crate) forgets: u8,
    /// Whether the first client can't reach the second node.
    pub(crate) is_cut: bool,
    /// Whether time passes while the client tries, or has messages under way.
    pub(crate) is_slow: [bool; CLIENTS],
    pub(crate) horizon_ms: u64,
    pub(crate) planted: Planted,
}

/// A fault of a quorum, planted here and not in the product.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Planted {
    Nothing,
    /// A node that forgot counts at once.
    YoungCounts,
    /// A node counts 50 ms too early.
    CountsEarly,
    /// A node's age is requested before it grants.
    AgeBeforeGrant,
    /// One node is enough.
    MinorityIsEnough,
    /// An unsuccessful try's grants are not abandoned.
    NotUndone,
    /// The client gets the lowest of the fences.
    LowestFence,
    /// The client gets a fence before a majority has taken it over.
    NotRaised,
    /// A lease counts from when the last answer came.
    CountsFromAnswer,
    /// A client tries again with an abandoned token.
    TokenAskedAgain,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Try(usize),
    /// The client's next message arrives at the node, and its answer at the client.
    Deliver(usize, usize),
    /// The message arrives, and its answer gets lost.
    Lose(usize, usize),
    /// The message arrives, and a copy of it is still under way.
    Double(usize, usize),
    /// The copy at this index arrives.
    Copy(usize),
    /// The client stops waiting for unanswered requests.
    GiveUp(usize),
    Release(usize),
    Forget(usize),
    Wait,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Question {
    Acquire,
    Age,
    Raise(FenceBlock),
    Leave,
    Release(FenceBlock),
}

/// A ballot, identified by its votes: each token is tried once here.
#[derive(Clone, Debug)]
struct Votes(Ballot);

impl Hash for Votes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.fences().hash(state);
        for vote in self.0.votes() {
            match vote {
                Vote::Asked => 0_u8.hash(state),
                Vote::Holds(holds) => holds.hash(state),
                Vote::Busy(_) => 1_u8.hash(state),
                Vote::Refused(_) => 2_u8.hash(state),
                Vote::Failed(error) => (3_u8, error.effect() as u8).hash(state),
            }
        }
    }
}

#[derive(Clone, Debug, Default, Hash)]
enum State {
    #[default]
    Idle,
    Trying {
        votes: Votes,
        sent: Moment,
    },
    Held {
        lease: LeaseState,
        fences: FenceBlock,
    },
}

#[derive(Clone, Debug, Default, Hash)]
struct Client {
    tries: u8,
    state: State,
    /// The messages under way to each node: the number of the try, and whether its answer is still
    /// awaited.
    under_way: [VecDeque<(u8, Question)>; NODES],
    /// The nodes that were still warming up when the try began.
    young: [bool; NODES],
}

#[derive(Clone, Debug, Default, Hash)]
struct Node {
    entry: LockEntry,
    up_since_us: u64,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct World {
    true_us: u64,
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    lost: u8,
    given_up: u8,
    doubled: u8,
    /// The second copies: their node, token and content.
    copies: Vec<(usize, Token, Question)>,
    forgotten: u8,
    highest: Option<Fence>,
    fence_fell: bool,
    have_held: [bool; CLIENTS],
    in_vain: bool,
    /// A node still has a token that its client has abandoned, after all messages.
    left_behind: bool,
}

fn ttl() -> Ttl {
    Ttl::new(TTL).unwrap()
}

fn key() -> Key {
    Key::new("k").unwrap()
}

fn token(bound: &Bound, client: usize, tries: u8) -> Token {
    let tries = if bound.planted == Planted::TokenAskedAgain { 1 } else { tries };
    Token::from_bytes([16 * u8::try_from(client).unwrap() + tries; 16])
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Unavailable, "no answer").with_effect(Effect::Unknown)
}

impl Explored for World {
    type Action = Action;
    type Bound = Bound;

    const MARKS: [&'static str; 2] = ["after a try in vain", "after both held"];

    fn start(_: &Bound) -> Self {
        Self {
            true_us: START_US,
            nodes: Default::default(),
            clients: Default::default(),
            lost: 0,
            given_up: 0,
            doubled: 0,
            copies: Vec::new(),
            forgotten: 0,
            highest: None,
            fence_fell: false,
            have_held: [false; CLIENTS],
            in_vain: false,
            left_behind: false,
        }
    }

    fn marks(&self) -> [bool; 2] {
        [self.in_vain, self.have_held == [true; CLIENTS]]
    }

    fn violated(&self) -> Option<&'static str> {
        if (0..CLIENTS).filter(|client| self.believes(*client)).count() > 1 {
            Some("exclusion")
        } else if self.fence_fell {
            Some("growing fences")
        } else if self.left_behind {
            Some("nothing left behind")
        } else {
            None
        }
    }

    /// Client 0 begins: the clients are equivalent.
    fn actions(&self, bound: &Bound) -> Vec<Action> {
        let mut actions = Vec::new();
        for (n, client) in self.clients.iter().enumerate() {
            match &client.state {
                State::Idle => {
                    let may = n == 0 || self.clients[0].tries > 0;
                    if client.tries < bound.tries[n] && may {
                        actions.push(Action::Try(n));
                    }
                }
                State::Trying { .. } if self.given_up < bound.given_up => {
                    actions.push(Action::GiveUp(n));
                }
                State::Trying { .. } => {}
                State::Held { .. } => actions.push(Action::Release(n)),
            }
            for node in 0..NODES {
                let Some((tries, question)) = client.under_way[node].front() else { continue };
                actions.push(Action::Deliver(n, node));
                let waits = *tries == client.tries && matches!(client.state, State::Trying { .. });
                let gives_up = matches!(question, Question::Leave | Question::Release(_));
                if self.lost < bound.lost && waits && !gives_up {
                    actions.push(Action::Lose(n, node));
                }
                if self.doubled < bound.doubled && gives_up {
                    actions.push(Action::Double(n, node));
                }
            }
        }
        actions.extend((0..self.copies.len()).map(Action::Copy));
        if self.forgotten < bound.forgets {
            let holds = |node: &usize| self.nodes[*node].entry.tokens().next().is_some();
            actions.extend((0..NODES).filter(holds).map(Action::Forget));
        }
        let quick = |n: &usize| !bound.is_slow[*n];
        let is_busy = |n: usize| {
            let Client { state, under_way, .. } = &self.clients[n];
            matches!(state, State::Trying { .. }) || under_way.iter().any(|way| !way.is_empty())
        };
        if self.true_us < START_US + bound.horizon_ms * 1_000
            && !(0..CLIENTS).filter(quick).any(is_busy)
        {
            actions.push(Action::Wait);
        }
        actions
    }

    fn after(&self, bound: &Bound, action: Action) -> Self {
        let mut next = self.clone();
        next.act(bound, action);
        let now = next.now();
        for client in &mut next.clients {
            if let State::Held { lease, .. } = &mut client.state {
                lease.status(now);
            }
        }
        next.left_behind = next.is_left_behind(bound);
        next
    }
}

impl World {
    /// All clocks run at the same rate here.
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_micros(self.true_us))
    }

    fn believes(&self, client: usize) -> bool {
        match self.clients[client].state {
            // `step` has already advanced the lease to the present.
            State::Held { mut lease, .. } => lease.status(Moment::default()) != LeaseStatus::Lost,
            _ => false,
        }
    }

    fn is_young(&self, bound: &Bound, node: usize) -> bool {
        let early = if bound.planted == Planted::CountsEarly { 50_000 } else { 0 };
        let up_since_us = self.nodes[node].up_since_us;
        let age = Duration::from_micros(self.true_us + early - up_since_us);
        up_since_us > 0 && age < counts_from(ttl())
    }

    fn act(&mut self, bound: &Bound, action: Action) {
        match action {
            Action::Wait => self.true_us = self.next_instant(),
            Action::Try(n) => {
                let young = std::array::from_fn(|node| {
                    bound.planted == Planted::AgeBeforeGrant && self.is_young(bound, node)
                });
                let keep = bound.forgets == 0 || bound.planted == Planted::YoungCounts;
                let few = bound.planted == Planted::MinorityIsEnough;
                let votes = Votes(Ballot::new(NODES, if few { 1 } else { MAJORITY }, keep, 1));
                let sent = self.now();
                let client = &mut self.clients[n];
                client.tries += 1;
                client.young = young;
                client.state = State::Trying { votes, sent };
                for node in (0..NODES).filter(|node| !(bound.is_cut && (n, *node) == (0, 1))) {
                    client.under_way[node].push_back((client.tries, Question::Acquire));
                }
            }
            Action::Release(n) => {
                let client = &mut self.clients[n];
                let State::Held { fences, .. } = client.state else { return };
                client.state = State::Idle;
                for on_the_way in &mut client.under_way {
                    on_the_way.push_back((client.tries, Question::Release(fences)));
                }
            }
            Action::Forget(node) => {
                self.forgotten += 1;
                self.nodes[node] = Node { entry: LockEntry::default(), up_since_us: self.true_us };
            }
            Action::GiveUp(n) => {
                self.given_up += 1;
                let client = &self.clients[n];
                let tries = client.tries;
                let unanswered: Vec<(usize, Question)> = (0..NODES)
                    .flat_map(|node| {
                        client.under_way[node].iter().map(move |(of, q)| (node, *of, *q))
                    })
                    .filter(|(_, of, _)| *of == tries)
                    .map(|(node, _, question)| (node, question))
                    .collect();
                for (node, question) in unanswered {
                    self.take_in(bound, n, (tries, node), question, Err(no_answer()));
                }
            }
            Action::Copy(index) => {
                let (node, token, question) = self.copies.remove(index);
                self.carry_out(bound, node, token, question);
            }
            Action::Deliver(n, node) | Action::Lose(n, node) | Action::Double(n, node) => {
                let Some((tries, question)) = self.clients[n].under_way[node].pop_front() else {
                    return;
                };
                let is_lost = matches!(action, Action::Lose(..));
                self.lost += u8::from(is_lost);
                let token = token(bound, n, tries);
                if matches!(action, Action::Double(..)) {
                    self.doubled += 1;
                    self.copies.push((node, token, question));
                }
                let answer = self.carry_out(bound, node, token, question);
                let answer = if is_lost { Err(no_answer()) } else { Ok(answer) };
                self.take_in(bound, n, (tries, node), question, answer);
            }
        }
    }

    /// A node carries out a message and answers.
    fn carry_out(
        &mut self,
        bound: &Bound,
        node: usize,
        token: Token,
        question: Question,
    ) -> Answer {
        match question {
            Question::Acquire => {
                Answer::Acquire(self.perform(node, &AcquireRequest::new(key(), token, ttl())))
            }
            Question::Age => Answer::Done(!self.is_young(bound, node)),
            Question::Raise(_) if bound.planted == Planted::NotRaised => Answer::Done(true),
            Question::Raise(fences) => {
                let request = RenewRequest::new(key(), token, fences, ttl());
                Answer::Done(self.perform(node, &request) == Renew::Renewed)
            }
            Question::Leave => {
                self.perform(node, &LeaveRequest::new(key(), token));
                Answer::Done(true)
            }
            Question::Release(fences) => {
                self.perform(node, &ReleaseRequest::new(key(), token, fences));
                Answer::Done(true)
            }
        }
    }

    fn perform<O: Operation>(&mut self, node: usize, operation: &O) -> O::Answer {
        let at = StoreTime::from_micros(self.true_us);
        let fence_floor = Fence::new(0, self.true_us + AHEAD_US[node]).unwrap();
        self.nodes[node].entry.perform(operation, Now::new(at, fence_floor), &mut Vec::new())
    }

    /// A client gets a node's answer, or an error instead.
    fn take_in(
        &mut self,
        bound: &Bound,
        n: usize,
        (tries, node): (u8, usize),
        question: Question,
        answer: Result<Answer>,
    ) {
        let client = &mut self.clients[n];
        let State::Trying { votes: Votes(ballot), .. } = &mut client.state else { return };
        if tries != client.tries {
            return;
        }
        let done = |answer: Result<Answer>| match answer {
            Ok(Answer::Done(false)) => Err(no_answer()),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        let next = match question {
            Question::Acquire => {
                let answer = answer.and_then(|answer| match answer {
                    Answer::Acquire(acquire) => Ok(acquire),
                    Answer::Done(_) => Err(no_answer()),
                });
                ballot.answered(node, answer, None, |_| String::new())
            }
            Question::Age => {
                ballot.is_old_enough(node, done(answer));
                Vec::new()
            }
            Question::Raise(fences) => {
                ballot.raised(node, fences, done(answer));
                Vec::new()
            }
            Question::Leave | Question::Release(_) => return,
        };
        self.go_on(bound, n, next);
        if let State::Trying { votes: Votes(ballot), .. } = &mut self.clients[n].state {
            let next = ballot.decide(None);
            self.go_on(bound, n, next);
        }
    }

    /// A client carries out the ballot's next steps.
    fn go_on(&mut self, bound: &Bound, n: usize, next: Vec<Next>) {
        let now = self.now();
        let client = &mut self.clients[n];
        let State::Trying { votes: Votes(ballot), sent } = &mut client.state else { return };
        for next in next {
            match next {
                Next::Tried(..) => {}
                Next::AskAge(node) if bound.planted == Planted::AgeBeforeGrant => {
                    let young = client.young[node];
                    ballot.is_old_enough(node, if young { Err(no_answer()) } else { Ok(()) });
                }
                Next::AskAge(node) => {
                    client.under_way[node].push_back((client.tries, Question::Age));
                }
                Next::Raise(node, fences) => {
                    client.under_way[node].push_back((client.tries, Question::Raise(fences)));
                }
            }
        }
        let stands = ballot.stands(false);
        if stands == Stands::Open {
            return;
        }
        let vain = ballot.vain(None);
        let lowest =
            ballot.votes().iter().filter_map(Vote::fences).min_by_key(|fences| fences.last());
        let told = if bound.planted == Planted::LowestFence { lowest } else { ballot.fences() };
        let counts_from = if bound.planted == Planted::CountsFromAnswer { now } else { *sent };
        let lease = LeaseState::granted(counts_from, ttl(), Duration::ZERO, now);
        if stands == Stands::Held
            && let (Some(lease), Some(fences)) = (lease, told)
        {
            client.state = State::Held { lease, fences };
            let fence = fences.first();
            self.fence_fell |= self.highest.is_some_and(|highest| fence <= highest);
            self.highest = self.highest.max(Some(fence));
            self.have_held[n] = true;
            return;
        }
        client.state = State::Idle;
        self.in_vain = true;
        if bound.planted != Planted::NotUndone {
            for node in vain.granted.into_iter().chain(vain.unknown) {
                client.under_way[node].push_back((client.tries, Question::Leave));
            }
        }
    }

    /// Whether a node still has a token that its client has abandoned, after all messages.
    fn is_left_behind(&self, bound: &Bound) -> bool {
        let at = StoreTime::from_micros(self.true_us);
        (0..CLIENTS).any(|n| {
            let client = &self.clients[n];
            let is_idle = matches!(client.state, State::Idle);
            is_idle
                && (0..NODES).any(|node| {
                    let entry = &self.nodes[node].entry;
                    let is_there = client.under_way[node].is_empty()
                        && (1..=client.tries)
                            .any(|tries| entry.tokens().any(|one| *one == token(bound, n, tries)));
                    is_there && entry.inspect(&key(), at).is_some_and(|i| !i.holders.is_empty())
                })
        })
    }

    /// The next instant just before or just after a rule changes its decision.
    fn next_instant(&self) -> u64 {
        let mut next = self.true_us + STRIDE_US;
        let mut consider = |us: u64| {
            for us in [us.saturating_sub(1), us + 1] {
                if us > self.true_us {
                    next = next.min(us);
                }
            }
        };
        let us = |length: Duration| u64::try_from(length.as_micros()).unwrap();
        for client in &self.clients {
            if let State::Held { lease, .. } = &client.state {
                consider(us(lease.lost_at().saturating_since(Moment::default())));
            }
        }
        let at = StoreTime::from_micros(self.true_us);
        for node in &self.nodes {
            let info = node.entry.inspect(&key(), at);
            for holder in info.iter().flat_map(|info| &info.holders) {
                consider(at.saturating_add(holder.remaining).as_micros());
            }
            if node.up_since_us > 0 {
                consider(node.up_since_us + us(counts_from(ttl())));
            }
        }
        next
    }
}

/// A node's answer.
enum Answer {
    Acquire(leasehold_core::Acquire),
    /// Whether the answer is yes, or the request was carried out.
    Done(bool),
}
