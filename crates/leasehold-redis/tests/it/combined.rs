//! Simultaneous requests of many callers, which are sent in few script calls.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::{
    Acquire, ClientId, Effect, Error, ErrorKind, FenceBlock, Leave, Mode, Release, Result,
    Store as _, Token, Ttl,
};
use leasehold_redis::RedisStore;
use leasehold_testkit::proxy::{Fault, Proxy};
use leasehold_testkit::server::RedisServer;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::common::{Caller, SHORT, WITHIN, key, put};
use crate::replicated::pair;

/// More than three calls take.
const MANY: usize = 100;
/// How many calls these requests may take. Most have 32 of them, but a call that is answered soon
/// makes room for one of the few that came meanwhile.
const FEW: u64 = 25;

fn callers(store: &RedisStore, number: usize) -> Vec<Caller> {
    (0..number).map(|_| Caller::new(store, &key())).collect()
}

/// All of them at once, in their order.
async fn take_together(callers: &[Caller]) -> Vec<Result<Acquire, Error>> {
    take_together_within(callers, WITHIN).await
}

async fn take_together_within(callers: &[Caller], within: Duration) -> Vec<Result<Acquire, Error>> {
    let mut tasks = JoinSet::new();
    for (place, caller) in callers.iter().enumerate() {
        let (store, request) = (caller.store.clone(), caller.request.clone());
        tasks.spawn(async move { (place, store.acquire(&request, within).await) });
    }
    let mut answers = tasks.join_all().await;
    answers.sort_unstable_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

async fn end_together(callers: &[Caller], fences: &[FenceBlock]) -> Vec<Release> {
    let mut tasks = JoinSet::new();
    for (caller, fences) in callers.iter().zip(fences) {
        let (store, request) = (caller.store.clone(), caller.ending(*fences));
        tasks.spawn(async move { store.release(&request, WITHIN).await.unwrap() });
    }
    tasks.join_all().await
}

fn fences(answers: Vec<Result<Acquire, Error>>) -> Vec<FenceBlock> {
    let granted = |answer| match answer {
        Ok(Acquire::Granted(granted)) => granted.fences,
        other => panic!("{other:?}"),
    };
    answers.into_iter().map(granted).collect()
}

/// A server, and a store that is connected and whose scripts are loaded.
async fn warm() -> (RedisServer, RedisStore) {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let caller = Caller::new(&store, &key());
    let fences = caller.take().await;
    store.release(&caller.ending(fences), WITHIN).await.unwrap();
    (server, store)
}

#[tokio::test]
async fn requests_that_come_together_take_few_calls_and_each_of_one_caller_takes_one() {
    let (server, store) = warm().await;
    let alone = callers(&store, MANY);
    let before = server.command_calls("evalsha");
    for caller in &alone {
        let fences = caller.take().await;
        assert_eq!(store.release(&caller.ending(fences), WITHIN).await.unwrap(), Release::Released);
    }
    let calls = server.command_calls("evalsha") - before;
    assert_eq!(calls, 2 * u64::try_from(MANY).unwrap());

    let before = server.command_calls("evalsha");
    let fences = fences(take_together(&alone).await);
    let calls = server.command_calls("evalsha") - before;
    assert!(calls <= FEW, "{calls} calls for {MANY} acquisitions");
    let before = server.command_calls("evalsha");
    let released = end_together(&alone, &fences).await;
    assert!(released.iter().all(|it| *it == Release::Released), "{released:?}");
    let calls = server.command_calls("evalsha") - before;
    assert!(calls <= FEW, "{calls} calls for {MANY} releases");
}

#[tokio::test]
async fn keys_without_an_expiry_expire_again_when_it_is_next_set() {
    // In separate calls, and in a shared one.
    for many in [1, MANY] {
        expire_again(many).await;
    }
}

async fn expire_again(many: usize) {
    let server = RedisServer::start();
    // The expiry is renewed when a quarter of this has passed.
    let url = format!("{}?fence_retention=1s", server.url());
    let store = RedisStore::connect(&url).await.unwrap();
    let mut callers = callers(&store, many);
    for caller in &mut callers {
        caller.request.ttl = Ttl::new(Duration::from_secs(1)).unwrap();
    }
    // How many of the keys answer a command with this number.
    let count = |command: &str, number: &str| {
        let script = "local count = 0
            for _, key in ipairs(redis.call('KEYS', 'leasehold:*')) do
              if redis.call(ARGV[1], key) == ARGV[2] + 0 then count = count + 1 end
            end
            return count";
        server.cli(&["EVAL", script, "0", command, number]).parse::<usize>().unwrap()
    };
    let mut made_endless = false;
    let deadline = Instant::now() + WITHIN;
    loop {
        let fences = fences(take_together(&callers).await);
        end_together(&callers, &fences).await;
        if !made_endless {
            assert_eq!(count("PERSIST", "1"), many);
            made_endless = true;
        } else if count("PTTL", "-1") == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "some live for ever");
        for caller in &mut callers {
            caller.request.token = Token::generate().unwrap();
        }
    }
}

#[tokio::test]
async fn a_key_that_lives_for_too_long_expires_earlier_once_its_lock_is_free() {
    let server = RedisServer::start();
    // After a release a key lives for 2.25 times this, at most.
    let store =
        RedisStore::connect(&format!("{}?fence_retention=10s", server.url())).await.unwrap();
    for many in [1, MANY] {
        let mut callers = callers(&store, many);
        for caller in &mut callers {
            caller.request.ttl = Ttl::new(Duration::from_secs(3600)).unwrap();
        }
        let fences = fences(take_together(&callers).await);
        let lives = |caller: &Caller| -> u64 {
            let key = format!("leasehold:{{{}}}", caller.request.key);
            server.cli(&["PTTL", &key]).parse().unwrap()
        };
        assert!(callers.iter().all(|caller| lives(caller) > 3_600_000));
        end_together(&callers, &fences).await;
        let longest = callers.iter().map(lives).max();
        assert!(longest <= Some(22_500), "of {many}, one lives for {longest:?} ms more");
    }
}

#[tokio::test]
async fn a_lock_that_can_not_be_read_fails_alone_among_many() {
    let (server, store) = warm().await;
    let all = callers(&store, 24);
    let record = |number: usize| format!("leasehold:{{{}}}", all[number].request.key);
    drop(server.cli(&["SET", &record(3), "a string"]));
    drop(server.cli(&["HSET", &record(7), "a", "hash"]));
    drop(server.cli(&["HSET", &record(11), "state", "\u{11}too short"]));
    drop(server.cli(&["HSET", &record(15), "state", &format!("\u{12}{}", "x".repeat(50))]));
    let answers = take_together(&all).await;
    for (number, answer) in answers.iter().enumerate() {
        match number {
            3 | 7 | 11 | 15 => {
                let error = answer.as_ref().unwrap_err();
                let kind = if number < 11 { ErrorKind::Foreign } else { ErrorKind::Corrupt };
                let found = (error.kind(), error.effect());
                assert_eq!(found, (kind, Effect::NotApplied), "{error}");
            }
            _ => assert!(matches!(answer, Ok(Acquire::Granted(_))), "{number}: {answer:?}"),
        }
    }
}

#[tokio::test]
async fn a_damaged_lock_at_which_a_script_ends_fails_none_of_those_that_were_asked_for_with_it() {
    let (server, store) = warm().await;
    let holders = callers(&store, 24);
    fences(take_together(&holders).await);
    let client = ClientId::generate().unwrap();
    let waiters: Vec<_> =
        holders.iter().map(|holder| Caller::patient(&store, &holder.request.key, client)).collect();
    put(&server, &holders[7].request.key, b"state", Some(b"\x12not a state")).await;
    for (number, answer) in take_together(&waiters).await.iter().enumerate() {
        match answer {
            Err(error) if number == 7 => {
                let found = (error.kind(), error.effect());
                assert_eq!(found, (ErrorKind::Corrupt, Effect::NotApplied), "{error}");
            }
            answer => assert!(matches!(answer, Ok(Acquire::Waiting(_))), "{number}: {answer:?}"),
        }
    }
}

#[tokio::test]
async fn a_call_that_would_take_long_puts_off_what_it_does_not_do() {
    let (server, store) = warm().await;
    let holders = callers(&store, MANY);
    fences(take_together(&holders).await);
    let mut others: Vec<_> =
        holders.iter().map(|holder| Caller::new(&store, &holder.request.key)).collect();
    for other in &mut others {
        other.request.mode = Mode::Shared;
    }
    let before = server.command_calls("evalsha");
    for answer in take_together(&others).await {
        assert!(matches!(answer, Ok(Acquire::Busy(_))), "{answer:?}");
    }
    // A call handles 32 locks that take more than a look.
    let calls = server.command_calls("evalsha") - before;
    let most = u64::try_from(MANY).unwrap();
    assert!((most / 32..most / 2).contains(&calls), "{calls}");
}

#[tokio::test]
async fn a_call_makes_few_locks_that_were_never_used_and_takes_more_that_were() {
    /// Enough to fill calls to their limit.
    const CROWD: usize = 640;
    let (server, store) = warm().await;
    let crowd = callers(&store, CROWD);
    // The server stands still until all have asked, so no call is sent half full.
    let take = async || {
        let before = server.command_calls("evalsha");
        server.pause();
        let taking = begun(&crowd, 50).await;
        server.resume();
        let taken = fences(join_all(taking).await);
        (taken, server.command_calls("evalsha") - before)
    };
    let (taken, of_new) = take().await;
    let released = end_together(&crowd, &taken).await;
    assert!(released.iter().all(|it| *it == Release::Released), "{released:?}");
    let (_, of_used) = take().await;
    assert!(of_used < of_new, "{of_new} calls make them, {of_used} take them again");
}

#[tokio::test]
async fn what_is_put_off_keeps_its_turn_before_what_comes_behind_it() {
    /// Enough to fill calls to their limit, with one lock left over.
    const CROWD: usize = 300;
    const BEHIND: usize = 100;
    let (_server, store) = warm().await;
    let mut crowd = callers(&store, CROWD);
    let second = Caller::patient(&store, &crowd[BEHIND].request.key, ClientId::generate().unwrap());
    crowd.insert(BEHIND + 1, second);
    let answers = take_together(&crowd).await;
    assert!(matches!(answers[BEHIND], Ok(Acquire::Granted(_))), "{:?}", answers[BEHIND]);
    let second = &answers[BEHIND + 1];
    assert!(matches!(second, Ok(Acquire::Waiting(_))), "{second:?}");
}

#[tokio::test]
async fn requests_that_come_together_make_a_server_know_the_scripts_again() {
    let (server, store) = warm().await;
    drop(server.cli(&["SCRIPT", "FLUSH"]));
    fences(take_together(&callers(&store, MANY)).await);
}

type Taking<'a> = Pin<Box<dyn Future<Output = Result<Acquire>> + Send + 'a>>;

/// Starts all of them, and yields to other tasks `turns` times.
async fn begun(callers: &[Caller], turns: usize) -> Vec<Taking<'_>> {
    let mut taking: Vec<Taking<'_>> = callers
        .iter()
        .map(|caller| caller.store.acquire(&caller.request, WITHIN))
        .map(|taking| -> Taking<'_> { taking })
        .collect();
    poll_fn(|cx| {
        assert!(taking.iter_mut().all(|one| one.as_mut().poll(cx).is_pending()));
        Poll::Ready(())
    })
    .await;
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
    taking
}

#[tokio::test]
async fn callers_that_go_disturb_no_other_and_their_requests_can_be_abandoned() {
    let (server, store) = warm().await;
    // When only the first request was sent, and when most of them were.
    for turns in [0, 50] {
        let all = callers(&store, MANY);
        server.pause();
        let mut goes = false;
        let mut taking = begun(&all, turns).await;
        taking.retain(|_| {
            goes = !goes;
            !goes
        });
        server.resume();
        for taking in taking {
            assert!(matches!(taking.await, Ok(Acquire::Granted(_))));
        }
        for gone in all.iter().step_by(2) {
            let left = store.leave(&gone.leaving(), WITHIN).await.unwrap();
            assert!(matches!(left, Leave::Released | Leave::NotHeld), "{left:?}");
            Caller::new(&store, &gone.request.key).take().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandonment_comes_after_the_request_that_it_abandons() {
    let (_server, store) = warm().await;
    for round in 0..60 {
        let all = callers(&store, 20);
        let mut tasks = JoinSet::new();
        for (number, caller) in all.iter().enumerate() {
            let (store, request) = (caller.store.clone(), caller.request.clone());
            let leaving = caller.leaving();
            tasks.spawn(async move {
                let taking = store.acquire(&request, WITHIN);
                tokio::select! {
                    biased;
                    _ = async { for _ in 0..(number + round) % 5 { tokio::task::yield_now().await } } => {}
                    _ = taking => {}
                }
                store.leave(&leaving, WITHIN).await.unwrap();
            });
        }
        tasks.join_all().await;
        for caller in &all {
            let look = store.inspect(&caller.request.key, WITHIN).await.unwrap();
            assert!(look.is_none_or(|info| info.holders.is_empty()), "{:?}", caller.request.key);
        }
    }
}

#[tokio::test]
async fn each_of_many_callers_has_a_limit_of_its_own() {
    let (server, store) = warm().await;
    let all = callers(&store, MANY);
    server.pause();
    let (mut hasty, mut patient) = (JoinSet::new(), JoinSet::new());
    for (place, caller) in all.iter().enumerate() {
        let (store, request) = (caller.store.clone(), caller.request.clone());
        let within = if place % 2 == 1 { SHORT } else { WITHIN };
        let tasks = if place % 2 == 1 { &mut hasty } else { &mut patient };
        tasks.spawn(async move { (place, store.acquire(&request, within).await) });
    }
    let hasty = hasty.join_all().await;
    server.resume();
    for (_, answer) in patient.join_all().await {
        assert!(matches!(answer, Ok(Acquire::Granted(_))), "{answer:?}");
    }
    for (place, answer) in hasty {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        if error.effect() == Effect::NotApplied {
            Caller::new(&store, &all[place].request.key).take().await;
        }
    }
}

#[tokio::test]
async fn each_of_many_callers_learns_the_result_of_its_request_when_the_connection_goes() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = RedisStore::connect(&proxy.url()).await.unwrap();
    let warm = callers(&store, MANY);
    fences(take_together(&warm).await);
    // More than all calls under way can hold.
    let all = callers(&store, 3 * MANY);
    proxy.set(Fault::Stall);
    let before = proxy.stats().requests;
    let tasks = tokio::spawn({
        let all: Vec<_> = all.iter().map(|it| (it.store.clone(), it.request.clone())).collect();
        async move {
            let mut tasks = JoinSet::new();
            for (place, (store, request)) in all.into_iter().enumerate() {
                tasks.spawn(async move { (place, store.acquire(&request, WITHIN).await) });
            }
            tasks.join_all().await
        }
    });
    // One request that is sent alone, and one of the three calls that follow it. Questions for the
    // server's clock and its role may precede them.
    proxy.wait_for(|stats| stats.requests >= before + 4).await;
    let _proxy = tokio::task::spawn_blocking(move || {
        proxy.kill_connections();
        proxy.set(Fault::Pass);
        proxy
    })
    .await
    .unwrap();
    let plain = RedisStore::connect(&server.url()).await.unwrap();
    let (mut granted, mut unknown) = (0, 0);
    for (place, answer) in tasks.await.unwrap() {
        match answer {
            Ok(Acquire::Granted(_)) => granted += 1,
            Err(error) if error.effect() == Effect::Unknown => unknown += 1,
            Err(error) => {
                assert_eq!(error.effect(), Effect::NotApplied, "{error}");
                Caller::new(&plain, &all[place].request.key).take().await;
            }
            other => panic!("{other:?}"),
        }
    }
    // The requests in the queue use the next connection.
    assert!(unknown > 1 && granted > 0, "{granted} granted, {unknown} unknown");
}

#[tokio::test]
async fn a_runtime_that_ends_leaves_the_call_queue_to_the_next_caller() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let other = store.clone();
    // The server stays silent until the runtime has ended.
    server.pause();
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let all = callers(&other, MANY);
        drop(runtime.block_on(begun(&all, 0)));
        drop(runtime);
    })
    .await
    .unwrap();
    server.resume();
    fences(take_together(&callers(&store, MANY)).await);
}

#[tokio::test]
async fn grants_that_come_together_wait_for_replicas_together_and_count_only_then() {
    let (primary, replica) = pair().await;
    let url = format!("{}?replicas=1&keep_leases=yes&replicate_timeout", primary.url());
    let patient = RedisStore::connect(&format!("{url}=15s")).await.unwrap();
    let hasty = RedisStore::connect(&format!("{url}=1s")).await.unwrap();
    for store in [&patient, &hasty] {
        for caller in &callers(store, MANY) {
            crate::replicated::take_at_last(caller).await;
        }
    }
    let before = primary.command_calls("wait");
    // With less than twice the time for replicas, each request would be sent alone.
    let within = Duration::from_secs(60);
    fences(take_together_within(&callers(&patient, MANY), within).await);
    let waits = primary.command_calls("wait") - before;
    // There are eight connections to wait on.
    assert!(waits <= 8 * 4, "{waits} waits for {MANY} grants");

    replica.pause();
    let refused = callers(&hasty, MANY);
    for answer in take_together(&refused).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
        assert_eq!(error.effect(), Effect::NotApplied, "{error}");
    }
    let plain = RedisStore::connect(&primary.url()).await.unwrap();
    fences(
        take_together(
            &refused.iter().map(|it| Caller::new(&plain, &it.request.key)).collect::<Vec<_>>(),
        )
        .await,
    );
}

#[tokio::test]
async fn a_server_without_the_scripts_is_not_sent_an_abandoned_request_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.addr());
    let store = RedisStore::connect(&proxy.url()).await.unwrap();
    let direct = RedisStore::connect(&server.url()).await.unwrap();
    Caller::new(&store, &key()).take().await;
    // The server has the script that abandons, but not the one that acquires.
    assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    let nothing = Caller::new(&direct, &key());
    direct.leave(&nothing.leaving(), WITHIN).await.unwrap();
    // Answers are slow, so that callers have gone by then.
    proxy.set_latency(Duration::ZERO, Duration::from_millis(400));
    let all = callers(&store, 9);
    let mut tasks = JoinSet::new();
    let sent = server.command_calls("evalsha");
    for caller in &all {
        let (store, request) = (caller.store.clone(), caller.request.clone());
        tasks.spawn(async move { store.acquire(&request, WITHIN).await });
    }
    // One request is sent alone, and the others together.
    let deadline = Instant::now() + WITHIN;
    while server.command_calls("evalsha") < sent + 2 {
        assert!(Instant::now() < deadline, "the requests are not sent");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tasks.shutdown().await;
    for caller in &all {
        direct.leave(&caller.leaving(), WITHIN).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    for caller in &all {
        let info = direct.inspect(&caller.request.key, WITHIN).await.unwrap();
        assert!(info.is_none_or(|info| info.holders.is_empty()), "taken for nobody");
    }
}
