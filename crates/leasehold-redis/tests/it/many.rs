//! More holders and waiters than one call visits, and dead ones among them.

use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{
    Acquire, AcquireAll, AcquireRequest, Ask, AskRequest, ClientId, ForceRelease,
    ForceReleaseRequest, Key, Metadata, Mode, OwnerName, Place, QueueRequest, Release, Renew,
    Store as _, Token, Ttl,
};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;
use tokio::time::{Instant, sleep};

use crate::common::{Caller, WITHIN, fields, key};

/// More than twice what one call visits.
const MANY: u32 = 700;
/// The rest of leases that expire in a test: to shorten them all takes less.
const SOON: Duration = Duration::from_secs(2);

fn permits(count: u32, limit: u32) -> Mode {
    let number = |n| NonZeroU32::new(n).unwrap();
    Mode::Permits { count: number(count), limit: number(limit) }
}

fn waiting(store: &RedisStore, key: &Key, client: ClientId, window_ms: u64) -> Caller {
    let mut caller = Caller::new(store, key);
    let window = Ttl::new(Duration::from_millis(window_ms)).unwrap();
    caller.request.queue = Some(QueueRequest::new(client, 7, window));
    caller
}

/// Acquires all of them, many at a time.
async fn take_all(store: &RedisStore, requests: Vec<AcquireRequest>) -> Vec<Acquire> {
    let mut tasks = tokio::task::JoinSet::new();
    for (number, request) in requests.into_iter().enumerate() {
        let store = store.clone();
        tasks.spawn(async move { (number, store.acquire(&request, WITHIN).await.unwrap()) });
    }
    let mut answers = tasks.join_all().await;
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// How many positions and sharers are stored, which have fields of these sizes: docs/wire.md.
async fn stored(server: &RedisServer, key: &Key) -> (usize, usize) {
    let fields = fields(server, key).await;
    let of = |length| fields.keys().filter(|name| name.len() == length).count();
    (of(8), fields.keys().filter(|name| name.len() == 5 && name.starts_with(b"@")).count())
}

/// When the first position of a queue may expire.
async fn soonest(server: &RedisServer, key: &Key) -> u64 {
    let state = &fields(server, key).await[&b"state"[..]];
    let soonest = f64::from_le_bytes(state[79..87].try_into().unwrap());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a time")]
    let soonest = soonest as u64;
    soonest
}

/// The server's time, likewise in µs.
fn present(server: &RedisServer) -> u64 {
    let time = server.cli(&["TIME"]);
    let mut parts = time.lines().map(|part| part.parse::<u64>().unwrap());
    parts.next().unwrap() * 1_000_000 + parts.next().unwrap()
}

/// Waits until this much time has passed on the server's clock.
async fn over(server: &RedisServer, length: Duration) {
    let end = present(server) + u64::try_from(length.as_micros()).unwrap();
    while present(server) <= end {
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn thousands_of_dead_waiters_are_swept_in_steps_and_keep_no_caller_from_the_lock() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let (key, client) = (key(), ClientId::generate().unwrap());
    let holder = Caller::new(&store, &key);
    let fences = holder.take().await;
    let dead = (0..3 * MANY).map(|_| waiting(&store, &key, client, 100).request).collect();
    take_all(&store, dead).await;
    over(&server, Duration::from_millis(100)).await;
    let alive = waiting(&store, &key, client, 60_000);
    alive.wait().await;
    assert_eq!(store.release(&holder.ending(fences), WITHIN).await.unwrap(), Release::Released);
    // Each call does a part; a newcomer without a position does not overtake the waiters.
    let mut calls = 0;
    while !matches!(alive.try_take().await.unwrap(), Acquire::Already(_) | Acquire::Granted(_)) {
        calls += 1;
        assert!(calls < 30, "{:?}", fields(&server, &key).await);
        assert!(matches!(Caller::new(&store, &key).try_take().await.unwrap(), Acquire::Busy(_)));
    }
    let deadline = Instant::now() + WITHIN;
    while stored(&server, &key).await.0 > 0 {
        assert!(Instant::now() < deadline, "the dead are never forgotten");
        waiting(&store, &key, client, 10).wait().await;
        sleep(Duration::from_millis(2)).await;
        Caller::new(&store, &key).try_take().await.unwrap();
    }
}

#[tokio::test]
async fn a_long_gap_in_the_queue_keeps_no_caller_from_a_free_lock() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let (key, client) = (key(), ClientId::generate().unwrap());
    let holder = Caller::new(&store, &key);
    let fences = holder.take().await;
    let [front, back] = [(); 2].map(|()| waiting(&store, &key, client, 60_000));
    front.wait().await;
    let dead = (0..MANY).map(|_| waiting(&store, &key, client, 10).request).collect();
    take_all(&store, dead).await;
    back.wait().await;
    // Until every position lasts long, so that the sweep finds none.
    let deadline = Instant::now() + WITHIN;
    while stored(&server, &key).await.0 > 2 || soonest(&server, &key).await < present(&server) {
        assert!(Instant::now() < deadline, "the dead are never forgotten");
        Caller::new(&store, &key).try_take().await.unwrap();
    }
    // Between the two, more positions were abandoned than one call visits.
    store.leave(&front.leaving(), WITHIN).await.unwrap();
    assert_eq!(store.release(&holder.ending(fences), WITHIN).await.unwrap(), Release::Released);
    for _ in 0..MANY / 256 {
        if let Acquire::Already(_) = back.try_take().await.unwrap() {
            return;
        }
    }
    panic!("waits for a lock that is free: {:?}", fields(&server, &key).await);
}

#[tokio::test]
async fn a_waiter_far_behind_its_predecessor_is_served_with_the_release() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let client = ClientId::generate().unwrap();
    // A range of the queue extends this far after a position, and waiters that left make larger
    // gaps.
    for steps in [1, 3] {
        let key = key();
        let holder = Caller::new(&store, &key);
        let fences = holder.take().await;
        let front = waiting(&store, &key, client, 60_000);
        let mut place = front.wait().await.place;
        let mut behind = Vec::new();
        for _ in 0..steps {
            place = Place::from_number(place.number() + 1_000);
            while present(&server) < place.arrival() {
                sleep(Duration::from_millis(1)).await;
            }
            let mut next = waiting(&store, &key, client, 60_000);
            next.request.queue.as_mut().unwrap().place = Some(place);
            assert_eq!(next.wait().await.place, place);
            behind.push(next);
        }
        let last = behind.pop().unwrap();
        for gone in behind.iter().chain([&front]) {
            store.leave(&gone.leaving(), WITHIN).await.unwrap();
        }
        assert_eq!(store.release(&holder.ending(fences), WITHIN).await.unwrap(), Release::Released);
        let state = &fields(&server, &key).await[&b"state"[..]];
        assert_eq!(state.len(), 51, "free, in spite of a waiter: {state:?}");
        assert!(matches!(last.try_take().await.unwrap(), Acquire::Already(_)));
    }
}

#[tokio::test]
async fn many_permits_expire_and_are_granted_again() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let key = key();
    let caller = |ms: u64| {
        let mut caller = Caller::new(&store, &key);
        caller.request.mode = permits(1, MANY);
        caller.request.ttl = Ttl::new(Duration::from_millis(ms)).unwrap();
        caller
    };
    let all: Vec<_> = (0..MANY).map(|_| caller(60_000)).collect();
    let answers = take_all(&store, all.iter().map(|one| one.request.clone()).collect()).await;
    assert!(answers.iter().all(|answer| matches!(answer, Acquire::Granted(_))));
    assert!(matches!(caller(1_000).try_take().await.unwrap(), Acquire::Busy(_)));
    assert_eq!(stored(&server, &key).await.1, 700);

    let mut shorter = Vec::new();
    for (number, (one, answer)) in all.iter().zip(&answers).enumerate() {
        let Acquire::Granted(granted) = answer else { panic!("{answer:?}") };
        if !number.is_multiple_of(7) {
            let mut renewal = one.renewal(granted.fences);
            renewal.ttl = Ttl::new(SOON).unwrap();
            renewal.shorten = true;
            shorter.push(renewal);
        }
    }
    let renewed = store.renew(&shorter, WITHIN).await;
    assert!(renewed.iter().all(|answer| matches!(answer, Ok(Renew::Renewed))), "{renewed:?}");
    over(&server, SOON).await;
    let mut calls = 0;
    while stored(&server, &key).await.1 > 100 {
        // If one step frees too little for a waiter, it keeps waiting; the next step frees more.
        let mut all_there_are = caller(1_000);
        all_there_are.request.mode = permits(MANY, MANY);
        assert!(matches!(all_there_are.try_take().await.unwrap(), Acquire::Busy(_)));
        calls += 1;
        assert!(calls < 20, "those whose time is over are never dropped");
    }
    let info = store.inspect(&key, WITHIN).await.unwrap().unwrap();
    assert_eq!(info.holders.len(), 100);
    let again: Vec<_> = (0..600).map(|_| caller(60_000).request).collect();
    let answers = take_all(&store, again).await;
    assert!(answers.iter().all(|answer| matches!(answer, Acquire::Granted(_))), "all came free");
    assert!(matches!(caller(1_000).try_take().await.unwrap(), Acquire::Busy(_)));

    let mut ask = AskRequest::new(key.clone(), OwnerName::new("anna").unwrap());
    assert_eq!(store.ask(&ask, WITHIN).await.unwrap(), Ask::Asked { holders: MANY });
    let last = store.inspect(&key, WITHIN).await.unwrap().unwrap().holders.pop().unwrap();
    ask.fence = Some(last.fence);
    assert_eq!(store.ask(&ask, WITHIN).await.unwrap(), Ask::Asked { holders: 1 });
    let force = ForceReleaseRequest::new(key.clone(), last.fence);
    assert_eq!(store.force_release(&force, WITHIN).await.unwrap(), ForceRelease::Released);
    let other = store.force_release(&force, WITHIN).await.unwrap();
    let ForceRelease::OtherFence { fences } = other else { panic!("{other:?}") };
    assert_eq!(fences.len(), 699);
}

#[tokio::test]
async fn all_who_can_share_are_served_though_one_call_serves_only_some() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let (key, client) = (key(), ClientId::generate().unwrap());
    let holder = Caller::new(&store, &key);
    let fences = holder.take().await;
    let mut readers = Vec::new();
    for _ in 0..MANY {
        let mut reader = waiting(&store, &key, client, 60_000).request;
        reader.mode = Mode::Shared;
        readers.push(reader);
    }
    take_all(&store, readers.clone()).await;
    assert_eq!(stored(&server, &key).await.0, 700);
    store.release(&holder.ending(fences), WITHIN).await.unwrap();
    assert!(stored(&server, &key).await.1 >= 256);
    let answers = take_all(&store, readers).await;
    assert!(answers.iter().all(|answer| matches!(answer, Acquire::Already(_))), "{answers:?}");
    assert_eq!(stored(&server, &key).await, (0, 700));
}

#[tokio::test]
async fn a_queue_that_the_server_forgot_comes_back_in_its_old_order() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let (key, client) = (key(), ClientId::generate().unwrap());
    Caller::new(&store, &key).take().await;
    let mut waiters = Vec::new();
    for _ in 0..20 {
        let mut waiter = waiting(&store, &key, client, 60_000).request;
        waiter.token = Token::generate().unwrap();
        let Acquire::Waiting(told) = store.acquire(&waiter, WITHIN).await.unwrap() else {
            panic!("the lock is held")
        };
        if let Some(queue) = &mut waiter.queue {
            queue.place = Some(told.place);
        }
        waiters.push(waiter);
    }
    drop(server.cli(&["DEL", &format!("leasehold:{{{key}}}")]));
    let holder = Caller::new(&store, &key);
    let mut fences = holder.take().await;
    let newcomer = waiting(&store, &key, client, 60_000);
    newcomer.wait().await;
    for number in [7, 3, 19, 0, 12, 1, 2, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18] {
        let answer = store.acquire(&waiters[number], WITHIN).await.unwrap();
        assert!(matches!(answer, Acquire::Waiting(_)), "{answer:?}");
    }
    let mut ending = holder.ending(fences);
    for waiter in waiters.iter().chain([&newcomer.request]) {
        assert_eq!(store.release(&ending, WITHIN).await.unwrap(), Release::Released);
        let answer = store.acquire(waiter, WITHIN).await.unwrap();
        let Acquire::Already(already) = answer else { panic!("{answer:?}") };
        fences = already.fences;
        ending.token = waiter.token;
        ending.fences = fences;
    }
}

#[tokio::test]
async fn labels_that_can_not_be_read_decide_nothing() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let holder = Caller::new(&store, &key());
    let fences = holder.take().await;
    let name = format!("leasehold:{{{}}}", holder.request.key);
    let strange = format!("1795316944 542648 1 1 {} %zz", "x".repeat(257));
    assert_eq!(server.cli(&["HSET", &name, "about", &strange]), "0");
    let info = store.inspect(&holder.request.key, WITHIN).await.unwrap().unwrap();
    assert_eq!(info.holders[0].owner.as_str(), "");
    let other = Caller::new(&store, &holder.request.key).try_take().await.unwrap();
    assert!(matches!(other, Acquire::Busy(_)), "{other:?}");
    assert_eq!(store.release(&holder.ending(fences), WITHIN).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn each_of_many_locks_that_are_acquired_at_once_gets_what_was_wanted_of_it() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let callers: Vec<Caller> = (0..MANY).map(|_| Caller::new(&store, &key())).collect();
    let mut requests: Vec<AcquireRequest> =
        callers.iter().map(|caller| caller.request.clone()).collect();
    for (number, request) in requests.iter_mut().enumerate() {
        request.metadata = Metadata::new(number.to_string()).unwrap();
    }
    let answer = store.acquire_all(&requests, WITHIN).await.unwrap();
    assert!(matches!(answer, AcquireAll::Granted(_)), "{answer:?}");
    for (number, request) in requests.iter().enumerate() {
        let info = store.inspect(&request.key, WITHIN).await.unwrap().unwrap();
        assert_eq!(info.holders[0].metadata.as_str(), number.to_string());
    }
}
