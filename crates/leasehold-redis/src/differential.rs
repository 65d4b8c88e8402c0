//! Runs random operations through the lock table and the scripts, and compares both.
//!
//! Every answer, every notification and all stored data must agree after each step.
//!
//! Time is virtual on both sides, so leases end exactly on time and the tests don't wait. The
//! scripts differ from the real ones only in the line that reads the clock.
//!
//! `LEASEHOLD_DIFFERENTIAL_CASES` sets how many sequences each test tries.
#![expect(clippy::future_not_send, reason = "each test runs on one thread")]

mod alike;
mod combined;
mod exits;
mod kept;
mod lost;
mod operation;
mod stopped;
mod stored;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::table::{LockEntry, Notice, Now, Obstacle, StoreTime};
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, ClientId, Convert, Fence, FenceBlock, Key, ListRequest,
    Listener, Mode, Place, Store as _, Token, Wake,
};
use leasehold_testkit::server::RedisServer;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use self::operation::{Home, Operation, Step, owner, sequence, waiter_that_asks_in_another_mode};
use self::stored::Stored;
use crate::connect::listen::first_in_line;
use crate::script::Scripts;
use crate::script::call::Request;
use crate::script::request::Deadline;
use crate::store::RedisStore;

const WITHIN: Duration = Duration::from_secs(20);
const CLOCK: &str = "clock";
/// 2027-01-15, a time with all sixteen digits.
const START_US: u64 = 1_800_000_000_000_000;
const TOKENS: u8 = 6;
const CLIENTS: u8 = 3;
const EPOCHS: u64 = 3;

fn token(number: u8) -> Token {
    Token::from_bytes([0x10 + number; 16])
}

fn client(number: u8) -> ClientId {
    ClientId::from_bytes([0xc0 + number % CLIENTS; 16])
}

/// What callers have received, and send later.
#[derive(Debug, Default)]
struct Known {
    fences: HashMap<Token, FenceBlock>,
    places: HashMap<Token, Place>,
}

impl Known {
    fn fences(&self, token: Token) -> FenceBlock {
        self.fences.get(&token).copied().unwrap_or(FenceBlock::new(Fence::ZERO, 1))
    }
}

/// A lock in the table, and its callers.
#[derive(Debug)]
struct Lock {
    key: Key,
    entry: LockEntry,
    known: Known,
}

impl Lock {
    fn new(number: u64) -> Self {
        let key = Key::new(format!("differential {{{number}}}")).unwrap();
        Self { key, entry: LockEntry::default(), known: Known::default() }
    }
}

/// One lock, on both sides.
struct Both<'a> {
    world: &'a mut World,
    lock: Lock,
    at_us: u64,
}

/// The state that all sequences share.
struct World {
    server: RedisServer,
    /// One store for each epoch.
    stores: Vec<RedisStore>,
    listeners: Vec<Box<dyn Listener>>,
    sequences: u64,
}

impl World {
    async fn new() -> Self {
        Self::with(Scripts::at_time_in(CLOCK)).await
    }

    async fn with(scripts: Scripts) -> Self {
        let server = RedisServer::start();
        let scripts: &'static Scripts = Box::leak(Box::new(scripts));
        let mut stores = Vec::new();
        for epoch in 0..EPOCHS {
            // On one runtime, what a request has learned from others is the same each time.
            let here = tokio::runtime::Handle::current();
            let builder = RedisStore::builder().runtime(here);
            let mut store = builder.connect(&server.url()).await.unwrap();
            let shared = Arc::get_mut(&mut store.shared).unwrap();
            shared.scripts = scripts;
            shared.epoch = epoch;
            stores.push(store);
        }
        let mut listeners = Vec::new();
        for number in 0..CLIENTS {
            listeners.push(stores[0].listen(client(number), WITHIN).await.unwrap());
        }
        Self { server, stores, listeners, sequences: 0 }
    }

    /// A new caller requests all of a lock.
    async fn stranger(&self, key: &Key, mode: Mode) -> leasehold_core::Result<Acquire> {
        let ttl = leasehold_core::Ttl::new(Duration::from_secs(1)).unwrap();
        let mut request = AcquireRequest::new(key.clone(), Token::from_bytes([0xee; 16]), ttl);
        request.mode = mode;
        self.stores[0].acquire(&request, WITHIN).await
    }

    /// The present, for a client of a store with what it has seen.
    fn now(&self, at_us: u64, epoch: u64) -> Now {
        let seen = self.stores[usize::try_from(epoch).unwrap()]
            .shared
            .highest_sequence
            .load(Ordering::Relaxed);
        let sequence = at_us.max(seen) - Fence::ORIGIN_UNIX_US;
        let at = StoreTime::from_micros(at_us);
        Now::new(at, Fence::new(epoch, sequence).unwrap())
    }

    async fn ask(&self, pipeline: &redis::Pipeline) -> Vec<redis::Value> {
        let transport = &self.stores[0].shared.transport;
        let requests: Vec<_> = pipeline.cmd_iter().map(Request::plain).collect();
        let answers = transport.many(&requests, Deadline::after(WITHIN)).await;
        answers.into_iter().map(|answer| answer.unwrap().value).collect()
    }

    /// All notifications so far, by client. A marker is sent through each channel after them.
    async fn messages(&mut self) -> Vec<Vec<Wake>> {
        let mut markers = redis::pipe();
        for number in 0..CLIENTS {
            let channel = self.stores[0].shared.names.channel(client(number));
            markers.cmd("PUBLISH").arg(channel).arg(first_in_line(u64::MAX, Duration::ZERO));
        }
        self.ask(&markers).await;
        let marker = Wake::First { ticket: u64::MAX, retry_after: Duration::ZERO };
        let mut all = Vec::new();
        for listener in &mut self.listeners {
            let mut heard = Vec::new();
            loop {
                let wake = tokio::time::timeout(WITHIN, listener.next()).await.unwrap();
                if wake == marker {
                    break;
                }
                heard.push(wake);
            }
            all.push(heard);
        }
        all
    }
}

/// The notifications of each client.
fn by_client(notices: &[Notice]) -> Vec<Vec<Wake>> {
    let mut all = vec![Vec::new(); CLIENTS.into()];
    for Notice { client: to, wake, .. } in notices {
        let to = (0..CLIENTS).position(|number| client(number) == *to).unwrap();
        all[to].push(wake.clone());
    }
    all
}

impl Known {
    /// Records the notifications to waiters.
    fn hear(&mut self, notices: &[Notice]) {
        for notice in notices {
            if let Wake::Granted { ticket, fences, .. } = &notice.wake {
                self.fences.insert(token(u8::try_from(*ticket).unwrap()), *fences);
            }
        }
    }
}

impl Both<'_> {
    /// Carries a step out on both sides and compares them.
    async fn step(&mut self, step: &Step, before: &Stored) -> Result<Stored, TestCaseError> {
        self.at_us = self.at_us.checked_add_signed(step.pass_us).unwrap();
        self.world.set_clock(self.at_us).await;

        let mut notices = Vec::new();
        let store = self.world.stores[usize::try_from(step.epoch).unwrap()].clone();
        let now = self.world.now(self.at_us, step.epoch);
        let (table, scripts) = self.carry_out(&step.operation, &store, now, &mut notices).await;
        prop_assert_eq!(table, scripts, "the answers differ");

        let heard = self.world.messages().await;
        prop_assert_eq!(heard, by_client(&notices), "the messages differ");

        let Lock { key, entry, .. } = &self.lock;
        let info = store.inspect(key, WITHIN).await.unwrap();
        prop_assert_eq!(info, entry.inspect(key, now.at), "what is shown differs");

        let after = Stored::read(self.world, key).await;
        let table = Stored::of(entry, now);
        prop_assert_eq!(&after.state, &table.state, "what is stored differs");
        prop_assert_eq!(after.emptied, 0, "fields are left empty: {:?}", after);
        after.check_expiry(before, &table, now)?;
        Ok(after)
    }

    async fn carry_out(
        &mut self,
        operation: &Operation,
        store: &RedisStore,
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> (String, String) {
        let Lock { entry, key, known } = &mut self.lock;
        let (table, scripts) = match operation {
            Operation::Acquire(acquire) => {
                let request = acquire.request(key, known);
                let table = entry.perform(&request, now, notices);
                match &table {
                    Acquire::Granted(granted) => {
                        known.fences.insert(request.token, granted.fences);
                    }
                    Acquire::Waiting(waiting) => {
                        known.places.insert(request.token, waiting.place);
                    }
                    _ => {}
                }
                let mut scripts = store.acquire(&request, WITHIN).await.unwrap();
                if let (Acquire::Waiting(table), Acquire::Waiting(scripts)) = (&table, &mut scripts)
                {
                    // Exact for the first waiter. For others, abandoned positions may count.
                    let first = [table.position, scripts.position].map(|position| position == 0);
                    if first[0] == first[1] && table.position <= scripts.position {
                        scripts.position = table.position;
                    }
                }
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Operation::AcquireAll(acquire) => {
                let requests = [acquire.request(key, known)];
                let [request] = &requests;
                let table = match entry.perform(&Obstacle(request), now, notices) {
                    Some(answer) => AcquireAll::Blocked { index: 0, answer },
                    None => {
                        let fences = entry.perform(request, now, notices).fences().unwrap();
                        known.fences.insert(request.token, fences);
                        AcquireAll::Granted(vec![fences])
                    }
                };
                let scripts = store.acquire_all(&requests, WITHIN).await.unwrap();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Operation::Convert(change) => {
                let request = change.request(key, known);
                let table = entry.perform(&request, now, notices);
                if let Convert::Converted(converted) = &table {
                    known.fences.insert(request.token, converted.fences);
                }
                let scripts = store.convert(&request, WITHIN).await.unwrap();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Operation::SetLimit(limit) => {
                let limit = NonZeroU32::new(*limit).unwrap();
                let request = leasehold_core::SetLimitRequest::new(key.clone(), limit);
                let table = entry.perform(&request, now, notices);
                let scripts = store.set_limit(&request, WITHIN).await.unwrap();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Operation::Ask { who, later, by } => {
                let mut request = leasehold_core::AskRequest::new(key.clone(), owner(*by));
                request.fence =
                    who.map(|who| known.fences(token(who)).first().saturating_add(*later));
                let table = entry.perform(&request, now, notices);
                let scripts = store.ask(&request, WITHIN).await.unwrap();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Operation::Renew(renewals) => {
                let requests: Vec<_> =
                    renewals.iter().map(|renewal| renewal.request(key, known)).collect();
                let table: Vec<_> =
                    requests.iter().map(|request| entry.perform(request, now, notices)).collect();
                let scripts: Vec<_> = store.renew(&requests, WITHIN).await;
                let scripts: Vec<_> = scripts.into_iter().map(Result::unwrap).collect();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Operation::Release(release) => {
                let request = release.request(key, known);
                let table = entry.perform(&request, now, notices);
                let scripts = store.release(&request, WITHIN).await.unwrap();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Operation::Leave { who, reopen } => {
                let mut request = leasehold_core::LeaveRequest::new(key.clone(), token(*who));
                request.reopen = *reopen;
                let table = entry.perform(&request, now, notices);
                let scripts = store.leave(&request, WITHIN).await.unwrap();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Operation::ForceRelease { who, later } => {
                let fence = known.fences(token(*who)).first().saturating_add(*later);
                let request = leasehold_core::ForceReleaseRequest::new(key.clone(), fence);
                let table = entry.perform(&request, now, notices);
                let scripts = store.force_release(&request, WITHIN).await.unwrap();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
        };
        known.hear(notices);
        (table, scripts)
    }
}

/// Carries a sequence out on both sides, and returns what was stored after each step.
async fn agree(world: &mut World, steps: &[Step]) -> Result<Vec<Stored>, TestCaseError> {
    world.sequences += 1;
    if world.sequences.is_multiple_of(2) {
        // Otherwise the fences that clients have seen would be far ahead of the clock.
        for store in &world.stores {
            store.shared.highest_sequence.store(0, Ordering::Relaxed);
        }
    }
    let lock = Lock::new(world.sequences);
    let mut stored = Stored::read(world, &lock.key).await;
    let mut both = Both { world, lock, at_us: START_US };
    let mut all = Vec::new();
    for step in steps {
        let after = both.step(step, &stored).await?;
        all.push(std::mem::replace(&mut stored, after));
    }
    all.push(stored);
    Ok(all)
}

fn cases() -> u32 {
    match std::env::var("LEASEHOLD_DIFFERENTIAL_CASES") {
        Ok(cases) => cases.parse().expect("LEASEHOLD_DIFFERENTIAL_CASES is a number"),
        Err(_) => 100,
    }
}

fn check(home: Home) {
    check_with(home, Scripts::at_time_in(CLOCK));
}

fn check_with(home: Home, scripts: Scripts) {
    let (world, runtime) =
        try_sequences(cases(), sequence(home), World::with(scripts), async |world, steps| {
            agree(world, &steps).await.map(drop)
        });
    let request = ListRequest::new("differential");
    let infos = runtime.block_on(world.stores[0].list(&request, WITHIN)).unwrap().locks;
    assert!(infos.iter().all(|info| info.key.as_str().starts_with("differential {")));
}

/// The state that all sequences of a test share.
trait Bench {
    fn world(&self) -> &World;

    /// The size of the test, for its output.
    fn tried(&self) -> String {
        format!("{} sequences", self.world().sequences)
    }
}

impl Bench for World {
    fn world(&self) -> &World {
        self
    }
}

/// Tries random sequences.
fn try_sequences<S: Strategy, B: Bench>(
    cases: u32,
    sequences: S,
    bench: impl Future<Output = B>,
    try_one: impl AsyncFn(&mut B, S::Value) -> Result<(), TestCaseError>,
) -> (B, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = std::cell::RefCell::new(runtime.block_on(bench));
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let outcome = TestRunner::new(config)
        .run(&sequences, |one| runtime.block_on(try_one(&mut bench.borrow_mut(), one)));
    let bench = bench.into_inner();
    println!("{}", bench.tried());
    if let Err(failure) = outcome {
        panic!("{failure}\nthe server said: {}", bench.world().server.log());
    }
    (bench, runtime)
}

#[test]
fn scripts_and_table_agree_on_exclusive_locks() {
    check(Home::Exclusive);
}

#[test]
fn scripts_and_table_agree_on_shared_and_exclusive_locks() {
    check(Home::Shared);
}

#[test]
fn scripts_and_table_agree_on_semaphores() {
    check(Home::Permits);
}

#[test]
fn scripts_and_table_agree_on_locks_of_owners_in_several_processes() {
    check(Home::Joint);
}

#[test]
fn scripts_and_table_agree_on_names_that_are_used_as_anything() {
    check(Home::Any);
}

#[test]
fn scripts_and_table_agree_on_a_waiter_that_asks_in_another_mode() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut world = World::with(Scripts::at_time_in(CLOCK)).await;
        agree(&mut world, &waiter_that_asks_in_another_mode()).await.unwrap();
        assert_eq!(world.sequences, 1);
    });
}

/// Then the client sends each notification, in a separate command.
#[test]
fn scripts_and_table_agree_where_no_script_can_publish() {
    check_with(Home::Any, Scripts::publishing_by("FORBIDDEN", Some(CLOCK)));
}
