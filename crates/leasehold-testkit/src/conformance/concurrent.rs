//! Compares small sets of concurrent calls with some order of them through the lock table.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_core::table::{self, Entries, LockEntry, Now, Operation, StoreTime};
use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, ConvertRequest, Fence, Key, LeaveRequest, Mode,
    QueueRequest, ReleaseRequest, RenewRequest, Store, Token,
};
use tokio::sync::Barrier;

use super::context::{CALL, Context, LONG, no_fences, token, ttl};
use super::party::client;
use crate::linear::{self, Call};

/// How many sets of calls a case tries, and how many tasks make how many calls in each.
const WINDOWS: u64 = 100;
const TASKS: usize = 4;
const CALLS: usize = 3;

/// A request for one of two locks, under the token of one task.
#[derive(Clone, Debug)]
enum Ask {
    Acquire(AcquireRequest),
    AcquireAll(Vec<AcquireRequest>),
    Renew(RenewRequest),
    Release(ReleaseRequest),
    Leave(LeaveRequest),
    Convert(ConvertRequest),
}

/// The answer, except for times and fences, which the table can't predict.
type Answer = String;

fn acquired(answer: &Acquire) -> Answer {
    match answer {
        Acquire::Granted(_) => "granted".to_owned(),
        Acquire::Already(already) => format!("already {}", already.holds),
        // Exact for the first waiter. For others, abandoned positions may count.
        Acquire::Waiting(waiting) if waiting.position == 0 => "waiting first".to_owned(),
        Acquire::Waiting(_) => "waiting behind another".to_owned(),
        Acquire::Busy(_) => "busy".to_owned(),
        other => format!("{other:?}"),
    }
}

fn all_acquired(answer: &AcquireAll) -> Answer {
    match answer {
        AcquireAll::Granted(fences) => format!("granted {}", fences.len()),
        AcquireAll::Blocked { index, answer } => format!("blocked {index} {}", acquired(answer)),
        other => format!("{other:?}"),
    }
}

fn converted(answer: &leasehold_core::Convert) -> Answer {
    match answer {
        leasehold_core::Convert::Converted(_) => "converted".to_owned(),
        other => format!("{other:?}"),
    }
}

impl Ask {
    async fn send(&self, store: &dyn Store) -> Answer {
        const ANSWERS: &str = "a store that nobody disturbs answers";
        match self {
            Self::Acquire(request) => acquired(&store.acquire(request, CALL).await.expect(ANSWERS)),
            Self::AcquireAll(requests) => {
                all_acquired(&store.acquire_all(requests, CALL).await.expect(ANSWERS))
            }
            Self::Renew(request) => {
                let answers = store.renew(std::slice::from_ref(request), CALL).await;
                format!("{:?}", answers.into_iter().map(|one| one.expect(ANSWERS)).next())
            }
            Self::Release(request) => {
                format!("{:?}", store.release(request, CALL).await.expect(ANSWERS))
            }
            Self::Leave(request) => {
                format!("{:?}", store.leave(request, CALL).await.expect(ANSWERS))
            }
            Self::Convert(request) => {
                converted(&store.convert(request, CALL).await.expect(ANSWERS))
            }
        }
    }

    /// The same by the table. All leases outlast the calls, so its time stands still.
    fn step(&self, keys: &[Key; 2], entries: &mut [LockEntry; 2]) -> Answer {
        let now = Now::new(
            StoreTime::from_micros(1_000_000),
            Fence::from_value(1).expect("a small fence"),
        );
        let table = &mut Two { keys, entries, now };
        match self {
            Self::Acquire(request) => acquired(&table.perform_one(&request.key, request)),
            Self::AcquireAll(requests) => {
                let Ok(answer) = table::acquire_all(requests, table);
                all_acquired(&answer)
            }
            Self::Renew(request) => {
                format!("{:?}", Some(table.perform_one(&request.key, request)))
            }
            Self::Release(request) => {
                format!("{:?}", table.perform_one(&request.key, request))
            }
            Self::Leave(request) => {
                format!("{:?}", table.perform_one(&request.key, request))
            }
            Self::Convert(request) => converted(&table.perform_one(&request.key, request)),
        }
    }
}

/// Both locks, by the table.
struct Two<'a> {
    keys: &'a [Key; 2],
    entries: &'a mut [LockEntry; 2],
    now: Now,
}

impl Two<'_> {
    fn perform_one<O: Operation>(&mut self, key: &Key, operation: &O) -> O::Answer {
        let entry = &mut self.entries[usize::from(*key == self.keys[1])];
        entry.perform(operation, self.now, &mut Vec::new())
    }
}

impl Entries for Two<'_> {
    type Error = Infallible;

    fn perform<O: Operation>(
        &mut self,
        key: &Key,
        operation: &O,
    ) -> std::result::Result<O::Answer, Infallible> {
        Ok(self.perform_one(key, operation))
    }
}

/// The requests that a kind of lock allows.
#[derive(Clone, Copy)]
struct Kind {
    modes: &'static [Mode],
    holds: u32,
    converts: bool,
    sets: bool,
}

fn ask(kind: Kind, keys: &[Key; 2], token: Token, who: usize, random: &mut fastrand::Rng) -> Ask {
    let key = if kind.sets { keys[random.usize(..2)].clone() } else { keys[0].clone() };
    let mode = kind.modes[random.usize(..kind.modes.len())];
    let acquire = |key: &Key| {
        let mut request = AcquireRequest::new(key.clone(), token, ttl(LONG));
        request.mode = mode;
        request
    };
    let mut acquire_one = acquire(&key);
    acquire_one.holds = acquire_one.holds.saturating_add(kind.holds);
    match random.u8(..10) {
        0..=1 => Ask::Acquire(acquire_one),
        2..=3 if kind.sets => Ask::AcquireAll(keys.iter().map(acquire).collect()),
        2..=4 => {
            let ticket = u64::try_from(who).expect("few tasks");
            acquire_one.queue = Some(QueueRequest::new(client(), ticket, ttl(LONG)));
            Ask::Acquire(acquire_one)
        }
        5 => Ask::Renew(RenewRequest::new(key, token, no_fences(), ttl(LONG))),
        6 if kind.converts => Ask::Convert(ConvertRequest::new(key, token, no_fences(), mode)),
        6 => Ask::Leave(LeaveRequest::new(key, token)),
        _ => {
            let mut request = ReleaseRequest::new(key, token, no_fences());
            request.remaining = random.u32(..=kind.holds);
            Ask::Release(request)
        }
    }
}

/// Tries sets of calls until one has no explanation.
async fn explained(cx: &Context, kind: Kind) {
    for seed in 0..WINDOWS {
        let keys = [cx.key(), cx.key()];
        let clock = Arc::new(AtomicU64::new(0));
        let start = Arc::new(Barrier::new(TASKS));
        let mut tasks = tokio::task::JoinSet::new();
        let mut tokens = Vec::new();
        for who in 0..TASKS {
            let (store, keys, token) = (cx.shared_store(), keys.clone(), token());
            let (clock, start) = (Arc::clone(&clock), Arc::clone(&start));
            tokens.push(token);
            tasks.spawn(async move {
                let mut random = fastrand::Rng::with_seed(seed << 8 | who as u64);
                let mut calls = Vec::new();
                start.wait().await;
                for _ in 0..CALLS {
                    let asked = ask(kind, &keys, token, who, &mut random);
                    let invoked = clock.fetch_add(1, Ordering::SeqCst);
                    let answer = asked.send(&*store).await;
                    let returned = clock.fetch_add(1, Ordering::SeqCst);
                    calls.push(Call { asked, answer, invoked, returned });
                }
                calls
            });
        }
        let calls: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        let entries = [LockEntry::default(), LockEntry::default()];
        let order = linear::order(&calls, &entries, |entries, asked| asked.step(&keys, entries));
        assert!(order.is_some(), "no order of these explains the answers: {calls:#?}");
        for (token, key) in
            tokens.into_iter().flat_map(|token| keys.each_ref().map(|key| (token, key)))
        {
            cx.leave(key, token).await;
        }
    }
}

const fn permits(count: u32) -> Mode {
    match (std::num::NonZeroU32::new(count), std::num::NonZeroU32::new(3)) {
        (Some(count), Some(limit)) => Mode::Permits { count, limit },
        _ => Mode::Exclusive,
    }
}

pub(super) async fn calls_at_the_same_time_are_one_after_the_other_for_a_mutex(cx: &Context) {
    let modes = &[Mode::Exclusive];
    explained(cx, Kind { modes, holds: 0, converts: false, sets: false }).await;
}

pub(super) async fn calls_at_the_same_time_are_one_after_the_other_for_a_re_entrant_mutex(
    cx: &Context,
) {
    let modes = &[Mode::Exclusive];
    explained(cx, Kind { modes, holds: 2, converts: false, sets: false }).await;
}

pub(super) async fn calls_at_the_same_time_are_one_after_the_other_for_a_read_write_lock(
    cx: &Context,
) {
    let modes = &[Mode::Shared, Mode::Shared, Mode::Exclusive];
    explained(cx, Kind { modes, holds: 0, converts: true, sets: false }).await;
}

pub(super) async fn calls_at_the_same_time_are_one_after_the_other_for_a_semaphore(cx: &Context) {
    const MODES: &[Mode] = &[permits(1), permits(2), permits(3)];
    explained(cx, Kind { modes: MODES, holds: 0, converts: true, sets: false }).await;
}

pub(super) async fn calls_at_the_same_time_are_one_after_the_other_for_sets_of_locks(cx: &Context) {
    let modes = &[Mode::Exclusive];
    explained(cx, Kind { modes, holds: 0, converts: false, sets: true }).await;
}
