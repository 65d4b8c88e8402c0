//! Direct hand-off is safe whatever the network and the clocks do: a seeded simulation.
//!
//! Several clients wait for, hold, renew and release one lock of a lock table. Every message is
//! delayed by any length of time, lost, or delivered twice, and overtakes others; clients stop for
//! a while and go on; all clocks run at rates that differ by up to 1 %. At no moment may two
//! clients believe that they hold the lock. A client that counts a lease from the arrival of the
//! notification instead shows that the simulation can see the difference.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails where it can't go on")]

use std::time::Duration;

use fastrand::Rng;
use leasehold_core::table::{LockEntry, Notice, Now, StoreTime};
use leasehold_core::{
    Acquire, AcquireRequest, ClientId, Fence, FenceBlock, Key, LeaseState, LeaseStatus, Moment,
    Place, QueueRequest, ReleaseRequest, Renew, RenewRequest, Token, Ttl, Wake,
};

const CLIENTS: usize = 4;
const STEPS: usize = 400;
const TTL_MS: u64 = 1_000;
const WINDOW_MS: u64 = 800;

/// From which moment a client counts a lease that was handed to it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CountFrom {
    Heartbeat,
    Arrival,
}

#[derive(Clone, Debug)]
enum Message {
    Ask { client: usize, request: AcquireRequest, sent_at: Moment },
    Answer { client: usize, token: Token, answer: Acquire, sent_at: Moment },
    Wake { client: usize, wake: Wake },
    Renew { client: usize, request: RenewRequest, sent_at: Moment },
    Renewed { client: usize, token: Token, sent_at: Moment },
    Release { request: ReleaseRequest },
}

#[derive(Debug)]
struct Client {
    /// Clock rate in parts per million off the true one.
    rate_ppm: i64,
    acquisition: Option<Acquisition>,
    acquisitions: u8,
    asleep_until_us: u64,
}

#[derive(Debug)]
struct Acquisition {
    token: Token,
    ticket: u64,
    heartbeats: Vec<Moment>,
    place: Option<Place>,
    held: Option<(LeaseState, FenceBlock)>,
}

struct World {
    rng: Rng,
    count_from: CountFrom,
    true_us: u64,
    store_rate_ppm: i64,
    entry: LockEntry,
    clients: Vec<Client>,
    /// Messages with the true time of their arrival.
    under_way: Vec<(u64, Message)>,
    fences: Vec<Fence>,
    grants: usize,
}

fn key() -> Key {
    Key::new("k").unwrap()
}

fn ttl(ms: u64) -> Ttl {
    Ttl::new(Duration::from_millis(ms)).unwrap()
}

fn at_rate(true_us: u64, ppm: i64) -> u64 {
    let off = i128::from(true_us) * i128::from(ppm) / 1_000_000;
    u64::try_from(i128::from(true_us) + off).unwrap()
}

impl World {
    fn new(seed: u64, count_from: CountFrom) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut rate = || rng.i64(-4_900..=4_900);
        let store_rate_ppm = rate();
        let client =
            |rate_ppm| Client { rate_ppm, acquisition: None, acquisitions: 0, asleep_until_us: 0 };
        let clients = (0..CLIENTS).map(|_| client(rate())).collect();
        Self {
            rng,
            count_from,
            true_us: 10_000_000,
            store_rate_ppm,
            entry: LockEntry::default(),
            clients,
            under_way: Vec::new(),
            fences: Vec::new(),
            grants: 0,
        }
    }

    fn store_now(&self) -> Now {
        let us = at_rate(self.true_us, self.store_rate_ppm);
        Now::new(StoreTime::from_micros(us), Fence::new(0, us).unwrap())
    }

    fn client_now(&self, client: usize) -> Moment {
        let us = at_rate(self.true_us, self.clients[client].rate_ppm);
        Moment::from_origin(Duration::from_micros(us))
    }

    fn send(&mut self, message: Message) {
        if self.rng.u8(..) < 25 {
            return;
        }
        for _ in 0..if self.rng.u8(..) < 25 { 2 } else { 1 } {
            let delay = match self.rng.u8(0..10) {
                0..6 => self.rng.u64(100..5_000),
                6..9 => self.rng.u64(5_000..300_000),
                _ => self.rng.u64(300_000..3_000_000),
            };
            self.under_way.push((self.true_us + delay, message.clone()));
        }
    }

    /// Lets something happen, and returns how many clients believe in their leases after it.
    fn step(&mut self) -> usize {
        let act_at = self.true_us + self.rng.u64(1..60_000);
        let arrival = self.under_way.iter().enumerate().min_by_key(|(_, (at, _))| *at);
        match arrival.map(|(n, (at, _))| (n, *at)) {
            Some((n, at)) if at <= act_at => {
                self.true_us = self.true_us.max(at);
                let (_, message) = self.under_way.swap_remove(n);
                self.arrive(message);
            }
            _ => {
                self.true_us = act_at;
                let client = self.rng.usize(0..CLIENTS);
                if self.clients[client].asleep_until_us <= self.true_us {
                    self.act(client);
                }
            }
        }
        (0..CLIENTS).filter(|client| self.believes(*client)).count()
    }

    fn believes(&mut self, client: usize) -> bool {
        let now = self.client_now(client);
        let held = self.clients[client].acquisition.as_mut().and_then(|a| a.held.as_mut());
        held.is_some_and(|(lease, _)| lease.status(now) != LeaseStatus::Lost)
    }

    fn act(&mut self, client: usize) {
        if self.rng.u8(..) < 10 {
            self.clients[client].asleep_until_us = self.true_us + self.rng.u64(..2_000_000);
            return;
        }
        let now = self.client_now(client);
        let choice = self.rng.u8(0..10);
        let Some(acquisition) = &mut self.clients[client].acquisition else {
            let number = self.clients[client].acquisitions.wrapping_add(1);
            self.clients[client].acquisitions = number;
            let token = Token::from_bytes([u8::try_from(client).unwrap() * 64 + number % 64; 16]);
            self.clients[client].acquisition = Some(Acquisition {
                token,
                ticket: u64::from(number),
                heartbeats: Vec::new(),
                place: None,
                held: None,
            });
            return self.ask(client);
        };
        match &mut acquisition.held {
            None => self.ask(client),
            Some((lease, fences)) => {
                let (token, fences) = (acquisition.token, *fences);
                if choice < 3 || lease.status(now) == LeaseStatus::Lost {
                    self.clients[client].acquisition = None;
                    let request = ReleaseRequest::new(key(), token, fences);
                    self.send(Message::Release { request });
                } else if choice < 8 {
                    let request = RenewRequest::new(key(), token, fences, ttl(TTL_MS));
                    self.send(Message::Renew { client, request, sent_at: now });
                }
            }
        }
    }

    fn ask(&mut self, client: usize) {
        let now = self.client_now(client);
        let Some(acquisition) = &mut self.clients[client].acquisition else { return };
        let id = ClientId::from_bytes([u8::try_from(client).unwrap(); 16]);
        let mut queue = QueueRequest::new(id, acquisition.ticket, ttl(WINDOW_MS));
        queue.heartbeat = u32::try_from(acquisition.heartbeats.len()).unwrap();
        queue.place = acquisition.place;
        acquisition.heartbeats.push(now);
        let mut request = AcquireRequest::new(key(), acquisition.token, ttl(TTL_MS));
        request.queue = Some(queue);
        self.send(Message::Ask { client, request, sent_at: now });
    }

    fn arrive(&mut self, message: Message) {
        let store_now = self.store_now();
        let mut notices = Vec::new();
        match message {
            Message::Ask { client, request, sent_at } => {
                let answer = self.entry.perform(&request, store_now, &mut notices);
                let token = request.token;
                self.send(Message::Answer { client, token, answer, sent_at });
            }
            Message::Renew { client, request, sent_at } => {
                if self.entry.perform(&request, store_now, &mut notices) == Renew::Renewed {
                    self.send(Message::Renewed { client, token: request.token, sent_at });
                }
            }
            Message::Release { request } => {
                self.entry.perform(&request, store_now, &mut notices);
            }
            Message::Answer { client, token, answer, sent_at } => {
                self.answered(client, token, answer, sent_at);
            }
            Message::Renewed { client, token, sent_at } => {
                let now = self.client_now(client);
                let acquisition = self.clients[client].acquisition.as_mut();
                if let Some(acquisition) = acquisition.filter(|a| a.token == token)
                    && let Some((lease, _)) = &mut acquisition.held
                {
                    lease.renewed(sent_at, ttl(TTL_MS), false, now);
                }
            }
            Message::Wake { client, wake: Wake::Granted { ticket, heartbeat, fences } } => {
                let now = self.client_now(client);
                let acquisition = self.clients[client].acquisition.as_ref();
                let Some(acquisition) = acquisition.filter(|a| a.ticket == ticket) else { return };
                let sent = acquisition.heartbeats.get(usize::try_from(heartbeat).unwrap());
                let from = match self.count_from {
                    CountFrom::Heartbeat => *sent.unwrap(),
                    CountFrom::Arrival => now,
                };
                self.take(client, fences, from, WINDOW_MS);
            }
            Message::Wake { .. } => {}
        }
        for Notice { client, wake, .. } in notices {
            let client = usize::from(client.as_bytes()[0]);
            self.send(Message::Wake { client, wake });
        }
    }

    fn answered(&mut self, client: usize, token: Token, answer: Acquire, sent_at: Moment) {
        let acquisition = self.clients[client].acquisition.as_mut();
        let Some(acquisition) = acquisition.filter(|a| a.token == token) else { return };
        match answer {
            Acquire::Granted(granted) => self.take(client, granted.fences, sent_at, TTL_MS),
            Acquire::Already(already) => self.take(client, already.fences, sent_at, TTL_MS),
            Acquire::Waiting(waiting) => acquisition.place = Some(waiting.place),
            other => panic!("{other:?}"),
        }
    }

    fn take(&mut self, client: usize, fences: FenceBlock, from: Moment, length_ms: u64) {
        let now = self.client_now(client);
        let Some(acquisition) = &mut self.clients[client].acquisition else { return };
        if acquisition.held.is_some() {
            return;
        }
        let lease = LeaseState::granted(from, ttl(length_ms), Duration::ZERO, now);
        if let Some(lease) = lease {
            acquisition.held = Some((lease, fences));
            self.fences.push(fences.first());
            self.grants += 1;
        }
    }
}

/// The seed of the first overlap, and how many leases were believed in.
fn overlap(seeds: u64, count_from: CountFrom) -> (Option<u64>, usize) {
    let mut grants = 0;
    for seed in 0..seeds {
        let mut world = World::new(seed, count_from);
        for _ in 0..STEPS {
            if world.step() > 1 {
                return (Some(seed), grants);
            }
        }
        let ordered = world.fences.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(ordered, "seed {seed}: fences out of order: {:?}", world.fences);
        grants += world.grants;
    }
    (None, grants)
}

#[test]
fn no_two_clients_ever_believe_in_the_lock_at_once() {
    let seeds = std::env::var("LEASEHOLD_SEEDS").map_or(2_000, |seeds| seeds.parse().unwrap());
    let (overlap, grants) = overlap(seeds, CountFrom::Heartbeat);
    assert_eq!(overlap, None, "two holders with this seed");
    assert!(grants > 1_000, "the simulation hardly did anything: {grants} grants");
}

#[test]
fn counting_from_the_arrival_of_the_message_is_caught() {
    assert!(overlap(20_000, CountFrom::Arrival).0.is_some());
}
