//! Simulates clients of a quorum from a seed, over a network that delays, loses and doubles.
//!
//! The nodes' clocks differ, and now and then a node forgets all data. Time is virtual, so a seed
//! always gives the same run; `LEASEHOLD_QUORUM_SEEDS` sets how many are tried.
//!
//! Each safeguard is also removed, and the same runs must then find the bug that it prevents.

mod node;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use leasehold_clock::TokioClock;
use leasehold_core::{
    Acquire, AcquireRequest, Clock, Fence, FenceBlock, Key, LeaseState, LeaseStatus, LeaveRequest,
    ReleaseRequest, Renew, RenewRequest, Store, Token, Ttl,
};
use leasehold_quorum::QuorumStore;
use leasehold_testkit::fault_store::{Fault, FaultStore};
use tokio::time::{Instant, sleep};

use self::node::{Lacks, Node};
use crate::support::{ms, secs};

const TTL: Duration = Duration::from_millis(400);
const MAX_TTL: Duration = Duration::from_secs(1);
const CLIENTS: u8 = 3;
const RUN: Duration = Duration::from_secs(20);

fn seeds() -> u64 {
    match std::env::var("LEASEHOLD_QUORUM_SEEDS") {
        Ok(seeds) => seeds.parse().expect("LEASEHOLD_QUORUM_SEEDS is a number"),
        Err(_) => 40,
    }
}

/// What an all-knowing observer sees.
#[derive(Debug, Default)]
struct Witness {
    /// Which client believes that it holds the lock, and until when at most.
    believes: Option<(u8, Instant)>,
    /// The highest fence that a client has got so far.
    told: Option<Fence>,
    /// All fences that clients have got, and their acquisitions.
    issued: Vec<(Token, FenceBlock)>,
    grants: u32,
    broken: Option<String>,
}

impl Witness {
    /// Records that a client has got a lease, whether or not it still had time to use it.
    fn issued(&mut self, token: Token, fences: FenceBlock) {
        let overlap = self.issued.iter().find(|(other, theirs)| {
            *other != token && theirs.first() <= fences.last() && fences.first() <= theirs.last()
        });
        if let Some((_, theirs)) = overlap {
            self.fail(format!("fences {fences:?} told after {theirs:?}, which they overlap"));
        }
        self.issued.push((token, fences));
    }

    fn granted(&mut self, who: u8, fences: FenceBlock, told_before: Option<Fence>, until: Instant) {
        self.grants += 1;
        let now = Instant::now();
        if let Some((other, theirs)) = self.believes
            && other != who
            && theirs > now
        {
            self.fail(format!("{who} and {other} both hold the lock"));
        }
        if told_before.is_some_and(|before| fences.first() <= before) {
            self.fail(format!("fence {} after {told_before:?}", fences.first()));
        }
        self.told = self.told.max(Some(fences.last()));
        self.believes = Some((who, until));
    }

    fn renewed(&mut self, who: u8, until: Instant) {
        if let Some((holder, theirs)) = &mut self.believes
            && *holder == who
        {
            *theirs = until;
        }
    }

    fn stops(&mut self, who: u8) {
        if self.believes.is_some_and(|(holder, _)| holder == who) {
            self.believes = None;
        }
    }

    fn fail(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }
}

/// Draws the fault of a message.
fn draw_fault(random: &mut Rng) -> Fault {
    let mut travel = || match random.u8(..100) {
        0..2 => ms(random.u64(100..1_500)),
        2..20 => ms(random.u64(5..60)),
        _ => Duration::from_micros(random.u64(50..5_000)),
    };
    let (before, after) = (travel(), travel());
    match random.u8(..100) {
        0..3 => Fault::DropRequest,
        3..6 => Fault::DropReply,
        6..8 => Fault::Duplicate,
        8..10 => Fault::Echo { after },
        _ => Fault::Delay { before, after },
    }
}

struct Client {
    who: u8,
    quorum: QuorumStore,
    clock: TokioClock,
    witness: Arc<Mutex<Witness>>,
    random: Rng,
    key: Key,
}

impl Client {
    fn token(&mut self) -> Token {
        let mut bytes = [self.who; 16];
        self.random.fill(&mut bytes[1..]);
        Token::from_bytes(bytes)
    }

    async fn run(mut self, end: Instant) {
        while Instant::now() < end {
            let token = self.token();
            let mut asked = AcquireRequest::new(self.key.clone(), token, Ttl::new(TTL).unwrap());
            asked.fence_block = std::num::NonZeroU32::new(4).unwrap();
            let (sent_at, told_before) = (self.clock.now(), self.witness.lock().unwrap().told);
            let answer = self.quorum.acquire(&asked, ms(300)).await;
            let fences = match answer {
                Ok(Acquire::Granted(granted)) => Some(granted.fences),
                Ok(Acquire::Already(already)) => Some(already.fences),
                _ => None,
            };
            if let Some(fences) = fences {
                self.witness.lock().unwrap().issued(token, fences);
                self.hold(&asked, fences, sent_at, told_before).await;
            } else if self.random.u8(..3) > 0 {
                // Abandons what an earlier attempt left, as a client's clean-up does.
                let leave = LeaveRequest::new(self.key.clone(), token);
                drop(self.quorum.leave(&leave, ms(200)).await);
            }
            sleep(ms(self.random.u64(1..40))).await;
        }
    }

    async fn hold(
        &mut self,
        asked: &AcquireRequest,
        fences: FenceBlock,
        sent_at: leasehold_core::Moment,
        told_before: Option<Fence>,
    ) {
        let now = self.clock.now();
        let release = ReleaseRequest::new(self.key.clone(), asked.token, fences);
        if let Some(mut lease) = LeaseState::granted(sent_at, asked.ttl, Duration::ZERO, now) {
            let until = Instant::now() + lease.remaining(now);
            self.witness.lock().unwrap().granted(self.who, fences, told_before, until);
            for _ in 0..self.random.u8(..4) {
                sleep(ms(self.random.u64(1..200))).await;
                if lease.status(self.clock.now()) == LeaseStatus::Lost {
                    break;
                }
                let renewal = RenewRequest::new(self.key.clone(), asked.token, fences, asked.ttl);
                let sent_at = self.clock.now();
                let answer = self.quorum.renew(&[renewal], TTL / 4).await.remove(0);
                let now = self.clock.now();
                match answer {
                    Ok(Renew::Renewed) if lease.renewed(sent_at, asked.ttl, false, now) => {
                        let until = Instant::now() + lease.remaining(now);
                        self.witness.lock().unwrap().renewed(self.who, until);
                    }
                    Ok(Renew::Renewed) | Err(_) => {}
                    Ok(_lost) => break,
                }
            }
            // The next client may have it from the moment at which this one decides to release it.
            if lease.status(self.clock.now()) == LeaseStatus::Held {
                self.witness.lock().unwrap().stops(self.who);
            }
        }
        drop(self.quorum.release(&release, ms(200)).await);
    }
}

/// One run; returns how many leases were granted, or what went wrong.
fn simulate(seed: u64, lacks: Lacks) -> Result<u32, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    fastrand::seed(seed);
    runtime.block_on(async {
        let mut random = Rng::with_seed(seed);
        let count = if seed.is_multiple_of(2) { 3 } else { 5 };
        let nodes: Vec<Node> = (0..count).map(|_| Node::new(&mut random, lacks)).collect();
        let witness = Arc::new(Mutex::new(Witness::default()));
        let clock = TokioClock::new();
        // Lets the nodes' warm-up pass.
        sleep(secs(2)).await;
        let end = Instant::now() + RUN;
        let mut clients = Vec::new();
        for who in 0..CLIENTS {
            let links = nodes.iter().map(|node| {
                let link = FaultStore::new(Arc::new(node.clone()));
                let mut random = random.fork();
                link.decide(move |_| draw_fault(&mut random));
                Arc::new(link) as Arc<dyn Store>
            });
            let quorum = QuorumStore::builder(links.collect())
                .node_timeout(ms(80))
                .max_ttl(MAX_TTL)
                .clock(Arc::new(clock));
            let client = Client {
                who,
                quorum: quorum.build().unwrap(),
                clock,
                witness: Arc::clone(&witness),
                random: random.fork(),
                key: Key::new("k").unwrap(),
            };
            clients.push(tokio::spawn(client.run(end)));
        }
        while Instant::now() < end {
            sleep(ms(random.u64(100..1_200))).await;
            nodes[random.usize(..nodes.len())].restart_empty();
        }
        for client in clients {
            client.await.unwrap();
        }
        let witness = witness.lock().unwrap();
        match &witness.broken {
            Some(what) => Err(format!("seed {seed}: {what}")),
            None => Ok(witness.grants),
        }
    })
}

/// How many of the runs find a violation.
fn broken_runs(lacks: Lacks) -> Vec<String> {
    (0..seeds()).filter_map(|seed| simulate(seed, lacks).err()).collect()
}

#[test]
fn no_two_clients_hold_at_once_and_fences_grow() {
    let mut grants = 0;
    for seed in 0..seeds() {
        grants += simulate(seed, Lacks::Nothing).unwrap();
    }
    assert!(grants > 5 * u32::try_from(seeds()).unwrap(), "hardly anything was granted: {grants}");
}

#[test]
fn a_seed_always_gives_the_same_run() {
    assert_eq!(simulate(7, Lacks::Nothing), simulate(7, Lacks::Nothing));
}

#[test]
fn without_the_delay_after_a_restart_two_clients_hold_at_once() {
    let broken = broken_runs(Lacks::Age);
    assert!(broken.iter().any(|what| what.contains("both hold")), "{broken:?}");
}

#[test]
fn without_the_write_back_fences_go_back() {
    let broken = broken_runs(Lacks::WriteBack);
    assert!(broken.iter().any(|what| what.contains("after")), "{broken:?}");
    assert!(!broken.iter().any(|what| what.contains("both hold")), "{broken:?}");
}
