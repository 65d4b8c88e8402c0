//! Tests of the store with faults.

use std::sync::Arc;
use std::time::Duration;

use leasehold_clock::TokioClock;
use leasehold_core::{
    Acquire, AcquireRequest, ClientId, Effect, Error, ErrorKind, Key, LeaveRequest, ListRequest,
    QueueRequest, Release, ReleaseRequest, Renew, RenewRequest, Result, Store, Token, Ttl, Wake,
};
use leasehold_embedded::MemoryStore;
use tokio::time::Instant;

use super::*;

const WITHIN: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_secs(60);

fn faulty() -> FaultStore {
    FaultStore::new(Arc::new(MemoryStore::with_clock(Arc::new(TokioClock::new()))))
}

fn key() -> Key {
    Key::new("k").unwrap()
}

fn request() -> AcquireRequest {
    AcquireRequest::new(key(), Token::generate().unwrap(), Ttl::new(TTL).unwrap())
}

#[track_caller]
fn is_unknown(error: Error) {
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
}

async fn is_held(store: &FaultStore) -> bool {
    store.shared.inner.inspect(&key(), WITHIN).await.unwrap().is_some()
}

async fn acquire(store: &FaultStore) -> Result<Acquire> {
    store.acquire(&request(), WITHIN).await
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_never_carried_out_and_takes_all_its_time() {
    let store = faulty();
    store.next(Op::Acquire, Fault::DropRequest);
    let started = Instant::now();
    is_unknown(acquire(&store).await.unwrap_err());
    assert_eq!(started.elapsed(), WITHIN);
    tokio::time::sleep(WITHIN * 10).await;
    assert!(!is_held(&store).await);
    assert!(matches!(acquire(&store).await, Ok(Acquire::Granted(_))), "only the next one");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_reply_is_lost_is_carried_out() {
    let store = faulty();
    store.next(Op::Acquire, Fault::DropReply);
    let started = Instant::now();
    is_unknown(acquire(&store).await.unwrap_err());
    assert_eq!(started.elapsed(), WITHIN);
    assert!(is_held(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_delay_within_the_time_is_only_slow() {
    let store = faulty();
    let (before, after) = (Duration::from_millis(300), Duration::from_millis(500));
    store.script([Fault::Delay { before, after }]);
    let started = Instant::now();
    assert!(matches!(acquire(&store).await, Ok(Acquire::Granted(_))));
    assert_eq!(started.elapsed(), before + after);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_acquires_nothing_and_a_delayed_release_counts() {
    let store = faulty();
    let before = WITHIN + Duration::from_secs(1);
    store.next(Op::Acquire, Fault::Delay { before, after: Duration::ZERO });
    is_unknown(acquire(&store).await.unwrap_err());
    tokio::time::sleep(WITHIN).await;
    assert!(!is_held(&store).await);
    let asked = request();
    let Ok(Acquire::Granted(granted)) = store.acquire(&asked, WITHIN).await else {
        panic!("not granted")
    };
    store.next(Op::Release, Fault::Delay { before, after: Duration::ZERO });
    let release = ReleaseRequest::new(key(), asked.token, granted.fences);
    is_unknown(store.release(&release, WITHIN).await.unwrap_err());
    assert!(is_held(&store).await);
    tokio::time::sleep(WITHIN).await;
    assert!(!is_held(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_is_reported_at_once_and_its_request_arrives() {
    let store = faulty();
    store.next(Op::Acquire, Fault::Break { before: WITHIN / 2 });
    let started = Instant::now();
    is_unknown(acquire(&store).await.unwrap_err());
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(!is_held(&store).await);
    tokio::time::sleep(WITHIN).await;
    assert!(is_held(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_caller_is_gone_still_arrives() {
    let store = faulty();
    store.next(Op::Acquire, Fault::Delay { before: WITHIN / 2, after: Duration::ZERO });
    let asked = request();
    let mut call = store.acquire(&asked, WITHIN);
    assert!(crate::cut::poll_at_most(&mut call, 1).await.is_none());
    drop(call);
    tokio::time::sleep(WITHIN).await;
    assert!(is_held(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_immediate_and_changes_nothing() {
    let store = faulty();
    store.next(Op::Acquire, Fault::Refuse);
    store.next(Op::Acquire, Fault::Fail(Error::new(ErrorKind::Full, "no room")));
    let started = Instant::now();
    let error = acquire(&store).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    assert_eq!(error.key(), Some(&key()));
    assert_eq!(acquire(&store).await.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(!is_held(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_outlasts_its_time_and_may_have_been_carried_out() {
    for applied in [false, true] {
        let store = faulty();
        store.next(Op::Acquire, Fault::Hang { applied });
        let call = tokio::time::timeout(WITHIN * 10, acquire(&store)).await;
        assert!(call.is_err(), "{call:?}");
        assert_eq!(is_held(&store).await, applied);
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_is_answered_by_its_second_run() {
    let store = faulty();
    store.next(Op::Acquire, Fault::Duplicate);
    assert!(matches!(acquire(&store).await, Ok(Acquire::Already(_))));
}

#[tokio::test(start_paused = true)]
async fn an_echo_comes_back_later() {
    let store = faulty();
    store.next(Op::Acquire, Fault::Echo { after: WITHIN });
    let asked = request();
    let Ok(Acquire::Granted(granted)) = store.acquire(&asked, WITHIN).await else {
        panic!("not granted")
    };
    let release = ReleaseRequest::new(key(), asked.token, granted.fences);
    assert_eq!(store.release(&release, WITHIN).await.unwrap(), Release::Released);
    assert!(!is_held(&store).await);
    tokio::time::sleep(WITHIN * 2).await;
    assert!(is_held(&store).await, "the late copy has taken the lock that nobody wants");
}

#[tokio::test(start_paused = true)]
async fn a_lost_batch_fails_for_each_of_its_leases() {
    let store = faulty();
    let asked = request();
    let Ok(Acquire::Granted(granted)) = store.acquire(&asked, WITHIN).await else {
        panic!("not granted")
    };
    let renewal = RenewRequest::new(key(), asked.token, granted.fences, asked.ttl);
    store.next(Op::Renew, Fault::DropRequest);
    let answers = store.renew(&[renewal.clone(), renewal.clone()], WITHIN).await;
    assert_eq!(answers.len(), 2);
    answers.into_iter().for_each(|answer| is_unknown(answer.unwrap_err()));
    let answers = store.renew(&[renewal], WITHIN).await;
    assert_eq!(*answers[0].as_ref().unwrap(), Renew::Renewed);
    let targets = store.calls()[1].targets.clone();
    assert_eq!(targets, vec![target_of(&asked); 2]);
}

fn target_of(asked: &AcquireRequest) -> Target {
    Target { key: asked.key.clone(), token: Some(asked.token.fingerprint()) }
}

#[tokio::test(start_paused = true)]
async fn every_call_is_recorded_with_its_time_and_without_its_token() {
    let store = faulty();
    let asked = request();
    store.script([Fault::None, Fault::Refuse]);
    drop(store.acquire(&asked, WITHIN).await);
    tokio::time::sleep(TTL / 2).await;
    drop(store.leave(&LeaveRequest::new(key(), asked.token), WITHIN).await);
    drop(store.inspect(&key(), WITHIN).await);
    drop(store.list(&ListRequest::default(), WITHIN).await);
    let calls = store.calls();
    let ops: Vec<Op> = calls.iter().map(|call| call.op).collect();
    assert_eq!(ops, [Op::Acquire, Op::Leave, Op::Inspect, Op::List]);
    assert_eq!(calls[1].at - calls[0].at, TTL / 2);
    assert!(matches!(calls[1].fault, Fault::Refuse) && calls[1].is_on(&key()));
    assert_eq!(calls[0].targets, [target_of(&asked)]);
    assert!(!format!("{calls:?}").contains(&asked.token.to_hex()));
    store.forget_calls();
    assert_eq!(store.count(Op::Acquire), 0);
}

#[tokio::test(start_paused = true)]
async fn a_black_out_loses_requests_and_messages_and_ends_with_a_resync() {
    let store = faulty();
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await.unwrap();
    let holder = request();
    drop(store.acquire(&holder, WITHIN).await);
    let mut waiter = request();
    waiter.queue = Some(QueueRequest::new(client, 1, waiter.ttl));
    drop(store.acquire(&waiter, WITHIN).await);

    store.black_out(true);
    is_unknown(store.inspect(&key(), WITHIN).await.unwrap_err());
    let leave = LeaveRequest::new(key(), holder.token);
    store.shared.inner.leave(&leave, WITHIN).await.unwrap();
    let silence = tokio::time::timeout(WITHIN, listener.next()).await;
    assert!(silence.is_err(), "{silence:?}");

    store.black_out(false);
    assert_eq!(listener.next().await, Wake::Resync);
    assert!(matches!(store.acquire(&waiter, WITHIN).await, Ok(Acquire::Already(_))));
}

#[tokio::test(start_paused = true)]
async fn messages_vanish_or_come_twice() {
    let store = faulty();
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await.unwrap();
    let mut holder = request();
    drop(store.acquire(&holder, WITHIN).await);
    for messages in [Messages::Vanish, Messages::ArriveTwice, Messages::Arrive] {
        store.messages(messages);
        let mut waiter = request();
        waiter.queue = Some(QueueRequest::new(client, 1, waiter.ttl));
        drop(store.acquire(&waiter, WITHIN).await);
        store.leave(&LeaveRequest::new(key(), holder.token), WITHIN).await.unwrap();
        holder = waiter;
        let mut told = 0;
        while tokio::time::timeout(WITHIN, listener.next()).await.is_ok() {
            told += 1;
        }
        let expected = match messages {
            Messages::Vanish => 0,
            Messages::Arrive => 1,
            Messages::ArriveTwice => 2,
        };
        assert_eq!(told, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_always_so_comes_before_what_was_foreseen_until_it_heals() {
    let store = faulty();
    store.script([Fault::Duplicate]);
    store.always(Fault::Refuse);
    for _ in 0..3 {
        assert_eq!(acquire(&store).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    store.heal();
    assert!(matches!(acquire(&store).await, Ok(Acquire::Granted(_))));
    assert_eq!(store.calls().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn one_seed_gives_one_run_and_every_fault_has_its_turn() {
    let run = async |seed| {
        let store = faulty();
        store.random(seed, 0.7, TTL);
        for _ in 0..200 {
            drop(acquire(&store).await);
        }
        let faults: Vec<String> =
            store.calls().iter().map(|call| format!("{:?}", call.fault)).collect();
        faults
    };
    let first = run(7).await;
    assert_eq!(first, run(7).await);
    assert_ne!(first, run(8).await);
    for kind in ["None", "DropRequest", "DropReply", "Delay", "Refuse", "Duplicate", "Echo"] {
        assert!(first.iter().any(|fault| fault.starts_with(kind)), "{kind} never came");
    }
}

mod without_faults {
    use super::*;

    crate::conformance_tests!(wrapped, async || {
        Arc::new(FaultStore::new(Arc::new(MemoryStore::new())))
    });
}
