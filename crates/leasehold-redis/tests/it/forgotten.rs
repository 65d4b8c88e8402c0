//! Servers that may have forgotten leases, if grants count only after replicas have confirmed them.

use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{
    Acquire, ClientId, ConvertRequest, Effect, Error, ErrorKind, Fence, FenceBlock, Mode, Renew,
    Store as _,
};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;
use tokio::time::{Instant, sleep};

use crate::common::{Caller, WITHIN, key, ttl};
use crate::replicated::{pair, take_at_last};

/// Waits until the server reports that it has run for longer than this.
async fn grow_old(server: &RedisServer, seconds: u64) {
    let deadline = Instant::now() + WITHIN;
    while server.info("server")["uptime_in_seconds"].parse::<u64>().unwrap() <= seconds {
        assert!(Instant::now() < deadline, "time stands still");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_server_that_was_restarted_empty_grants_nothing_while_a_lease_may_run() {
    let (primary, replica) = pair().await;
    let url = format!("{}?replicas=1&max_ttl=4s", primary.url());
    let of_process = || RedisStore::connect_lazy(&url).unwrap();
    let (name, store) = (key(), of_process());
    let taker = |store: &RedisStore| {
        let mut caller = Caller::new(store, &name);
        caller.request.ttl = ttl(4);
        caller
    };
    grow_old(&primary, 5).await;
    let holder = taker(&store);
    let fences = take_at_last(&holder).await;
    let believed_until = Instant::now() + ttl(4).duration();

    // Before any client notices: the replica follows, and forgets as well.
    primary.restart();
    assert_eq!(primary.cli(&["DBSIZE"]), "0");
    let (fresh, mut refused) = (of_process(), 0);
    let deadline = Instant::now() + WITHIN;
    loop {
        assert!(Instant::now() < deadline, "it is never believed again");
        let asked_at = Instant::now();
        // A new process each time, without earlier knowledge, and two stores that stay.
        let answers = [
            taker(&of_process()).try_take().await,
            taker(&fresh).try_take().await,
            taker(&store).try_take().await,
        ];
        if answers.iter().any(|answer| matches!(answer, Ok(Acquire::Granted(_)))) {
            assert!(asked_at > believed_until, "two hold: {answers:?}");
            break;
        }
        for error in answers.into_iter().filter_map(Result::err) {
            if error.to_string().contains("warming up after its start") {
                let found = (error.kind(), error.effect(), error.is_retryable());
                assert_eq!(found, (ErrorKind::Unavailable, Effect::NotApplied, true));
                refused += 1;
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert!(refused > 0);
    let mut renewal = holder.renewal(fences);
    renewal.ttl = ttl(4);
    let answer = store.renew(&[renewal], WITHIN).await.remove(0).unwrap();
    assert_ne!(answer, Renew::Renewed, "what was forgotten is not renewed");
    drop(replica);
}

/// A store for which the server is warming up, and a store that trusts it.
async fn wary_and_sure(primary: &RedisServer) -> (RedisStore, RedisStore) {
    let url = format!("{}?replicas=1", primary.url());
    let wary = RedisStore::connect(&url).await.unwrap();
    (wary, RedisStore::connect(&format!("{url}&keep_leases=yes")).await.unwrap())
}

#[tokio::test]
async fn nothing_else_that_proves_a_lease_comes_from_a_server_that_may_have_forgotten_some() {
    let (primary, _replica) = pair().await;
    let (wary, sure) = wary_and_sure(&primary).await;
    let mut reader = Caller::new(&sure, &key());
    reader.request.mode = Mode::Shared;
    let fences = take_at_last(&reader).await;
    let Caller { request, .. } = &reader;
    let upgrade = ConvertRequest::new(request.key.clone(), request.token, fences, Mode::Exclusive);
    let two = [Caller::new(&wary, &key()).request, Caller::new(&wary, &key()).request];
    for error in [
        wary.convert(&upgrade, WITHIN).await.unwrap_err(),
        wary.acquire_all(&two, WITHIN).await.unwrap_err(),
        wary.acquire(request, WITHIN).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
        assert!(error.to_string().contains("set keep_leases=yes"), "{error}");
    }
    let error = wary.acquire(request, WITHIN).await.unwrap_err();
    let after = error.retry_after().expect("it says when it grants");
    assert!(after > ttl(30).duration() && after < ttl(65).duration(), "{after:?}");
    // The leases that it remembers continue.
    let renewed = wary.renew(&[reader.renewal(fences)], WITHIN).await.remove(0).unwrap();
    assert_eq!(renewed, Renew::Renewed);
}

#[tokio::test]
async fn a_queue_position_is_kept_at_a_server_that_may_have_forgotten_leases_and_proves_nothing() {
    let (primary, _replica) = pair().await;
    let (wary, sure) = wary_and_sure(&primary).await;
    let (name, client) = (key(), ClientId::generate().unwrap());
    let callers: Vec<Caller> = (0..20).map(|_| Caller::patient(&wary, &name, client)).collect();
    for round in 0..3 {
        // In the first round one after the other, for a known order; then all together.
        let answers = if round == 0 {
            let mut answers = Vec::new();
            for caller in &callers {
                answers.push(caller.try_take().await);
            }
            answers
        } else {
            let tasks: Vec<_> = callers
                .iter()
                .map(|caller| {
                    let (store, request) = (caller.store.clone(), caller.request.clone());
                    tokio::spawn(async move { store.acquire(&request, WITHIN).await })
                })
                .collect();
            let mut answers = Vec::new();
            for task in tasks {
                answers.push(task.await.unwrap());
            }
            answers
        };
        for answer in answers {
            let error = answer.unwrap_err();
            let found = (error.kind(), error.effect());
            assert_eq!(found, (ErrorKind::Unavailable, Effect::Applied), "{error}");
            assert!(error.retry_after().is_some(), "{error}");
        }
        let info = wary.inspect(&name, WITHIN).await.unwrap().unwrap();
        assert_eq!((info.holders.len(), info.waiters.len()), (1, 19));
    }
    // Its effects count for callers that come after the warm-up.
    for (position, caller) in callers.iter().enumerate() {
        match sure.acquire(&caller.request, WITHIN).await.unwrap() {
            Acquire::Already(_) => assert_eq!(position, 0),
            Acquire::Waiting(waiting) => assert_eq!(waiting.position as usize + 1, position),
            other => panic!("{other:?}"),
        }
    }
    let mut other = Caller::patient(&wary, &name, client);
    let one = NonZeroU32::MIN;
    other.request.mode = Mode::Permits { count: one, limit: one };
    let answer = other.try_take().await.unwrap();
    assert!(matches!(answer, Acquire::Refused(_)), "no time mends that: {answer:?}");
}

#[tokio::test]
async fn a_lease_that_would_outlast_the_longest_is_refused() {
    let (primary, _replica) = pair().await;
    let url = format!("{}?replicas=1&max_ttl=2s", primary.url());
    let store = RedisStore::connect(&url).await.unwrap();
    let caller = Caller::new(&store, &key());
    let fences = FenceBlock::new(Fence::ZERO, 1);
    let mut short = caller.renewal(fences);
    short.ttl = ttl(2);
    let mut answers = store.renew(&[caller.renewal(fences), short], WITHIN).await;
    assert_eq!(answers.remove(1).unwrap(), Renew::NotHeld, "the other is none the worse for it");
    let refused: [Error; 3] = [
        answers.remove(0).unwrap_err(),
        caller.try_take().await.unwrap_err(),
        store.acquire_all(std::slice::from_ref(&caller.request), WITHIN).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Config, Effect::NotApplied));
        assert!(error.to_string().contains("a longer max_ttl"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_report_its_age_is_not_believed() {
    let (primary, _replica) = pair().await;
    let rules = ["ACL", "SETUSER", "shy", "on", ">pw", "~*", "&*", "+@all", "-info"];
    assert_eq!(primary.cli(&rules), "OK");
    let url = format!("{}?replicas=1", primary.url_for("shy", "pw"));
    let store = RedisStore::connect(&url).await.unwrap();
    let error = Caller::new(&store, &key()).try_take().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::NotApplied));
    assert!(error.to_string().contains("may not run INFO"), "{error}");
}
