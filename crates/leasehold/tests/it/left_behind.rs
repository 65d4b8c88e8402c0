//! What a contender leaves behind that gets the lease from a holder of its own process while a
//! request of its own is on its way.

use std::collections::HashSet;
use std::future::{Future as _, poll_fn};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread;

use leasehold::Client;
use leasehold::store::{BoxFuture, Call, Capability, LockLog, Method, Store, StoreLayer};
use leasehold_core::Token;
use leasehold_embedded::MemoryStore;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{World, ms, secs};

/// A store whose acquisitions take a moment, and longer to be dropped.
#[derive(Clone, Debug, Default)]
struct Slow {
    inner: MemoryStore,
    seen: Arc<Mutex<Seen>>,
    /// Which of them takes all the time that it has.
    silent: Option<usize>,
}

#[derive(Debug, Default)]
struct Seen {
    begun: usize,
    released: usize,
    under_way: HashSet<Token>,
    /// Abandoned by a request that overtook the acquisition.
    overtaken: usize,
    left: usize,
}

impl Slow {
    fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An acquisition, until it is answered or can't be carried out any more.
struct UnderWay<'a> {
    slow: &'a Slow,
    token: Token,
    is_cut: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.is_cut {
            thread::sleep(ms(30));
        }
        self.slow.seen(|seen| seen.under_way.remove(&self.token));
    }
}

impl StoreLayer for Slow {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: std::time::Duration,
    ) -> BoxFuture<'a, C::Answer> {
        Box::pin(async move {
            let token = call.targets().first().and_then(|(_, token)| token.copied());
            let mut under_way = match (C::METHOD, token) {
                (Method::Acquire, Some(token)) => {
                    let number = self.seen(|seen| {
                        seen.begun += 1;
                        seen.under_way.insert(token);
                        seen.begun
                    });
                    let under_way = UnderWay { slow: self, token, is_cut: true };
                    sleep(if self.silent == Some(number) { within } else { ms(2) }).await;
                    Some(under_way)
                }
                (Method::Leave, Some(token)) => {
                    self.seen(|seen| {
                        seen.left += 1;
                        seen.overtaken += usize::from(seen.under_way.contains(&token));
                    });
                    None
                }
                (Method::Release, _) => {
                    self.seen(|seen| seen.released += 1);
                    None
                }
                _ => None,
            };
            let answer = call.send(&self.inner, within).await;
            if let Some(under_way) = &mut under_way {
                under_way.is_cut = false;
            }
            answer
        })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn location(&self) -> String {
        "slow:".to_owned()
    }
}

/// Has a contender get the lock from another task of its client, while it requests a position in
/// the store's queue, and release it. The holder releases as soon as the position is requested:
/// `asked` says how often, so far.
async fn hand_on_beside_a_request(client: &Client, asked: impl Fn() -> usize) {
    let mutex = client.mutex("a").ttl(secs(20));
    let held = mutex.lock().await.unwrap();
    let before = asked();
    let next = tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() });
    // It tries first, and then requests a position.
    while asked() < before + 2 {
        sleep(ms(1) / 10).await;
    }
    held.release().await.unwrap();
    next.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_cleanup_comes_before_its_request() {
    let slow = Slow::default();
    // A lease is handed off for a short time only, so on a busy machine it may go through the
    // store.
    for round in 1.. {
        // A contender that has requested a position before requests it at once, and then seldom.
        let client = Client::new(Arc::new(slow.clone())).unwrap();
        let released = slow.seen(|seen| seen.released);
        hand_on_beside_a_request(&client, || slow.seen(|seen| seen.begun)).await;
        client.close().await.unwrap();
        if slow.seen(|seen| seen.released) == released + 1 {
            break;
        }
        assert!(round < 1_000, "no lease was handed on");
    }
    assert_eq!(slow.seen(|seen| seen.overtaken), 0);
    let other = Client::new(Arc::new(slow.inner.clone())).unwrap();
    assert!(other.mutex("a").try_lock().await.unwrap().is_some(), "a lease was left behind");
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_the_answer_of_such_a_request_and_no_longer() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let calls = Arc::new(Mutex::new((0, 0)));
    let counted = Arc::clone(&calls);
    faults.decide(move |call| {
        let (asked, released) = &mut *counted.lock().unwrap();
        *asked += usize::from(call.op == Op::Acquire);
        *released += usize::from(call.op == Op::Release);
        if call.op == Op::Acquire {
            Fault::Delay { before: ms(4), after: ms(4) }
        } else {
            Fault::None
        }
    });
    let client = world.client_of(Arc::new(faults));
    hand_on_beside_a_request(&client, || calls.lock().unwrap().0).await;
    assert_eq!(calls.lock().unwrap().1, 1, "the first lease was handed on");
    let begun = Instant::now();
    client.close().await.unwrap();
    assert!(begun.elapsed() <= ms(20), "{:?}", begun.elapsed());
    world.idle("a").await;
}

fn new_runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Passes a request that is on its way to a contender on another runtime. `end` has the first
/// runtime then.
fn pass_a_request_on(end: impl FnOnce(Runtime)) {
    let slow = Slow { silent: Some(2), ..Slow::default() };
    let (first, second) = (new_runtime(), new_runtime());
    let asked_as_often_as = |times| {
        let slow = &slow;
        async move {
            while slow.seen(|seen| seen.begun) < times {
                sleep(ms(1) / 10).await;
            }
        }
    };
    let (held, client) = second.block_on(async {
        let holder = Client::new(Arc::new(slow.inner.clone())).unwrap();
        let held = holder.mutex("a").ttl(secs(600)).lock().await.unwrap();
        let client = Client::builder().call_timeout(ms(500)).store(Arc::new(slow.clone()));
        (held, client.unwrap())
    });
    let mutex = client.mutex("a").ttl(secs(600));
    let mut waits = Box::pin(mutex.lock());
    first.block_on(async {
        tokio::select! {
            _ = &mut waits => unreachable!("it is held"),
            () = asked_as_often_as(2) => {}
        }
    });
    second.block_on(async {
        let mut next = Box::pin({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        });
        assert!(poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await);
        let next = tokio::spawn(next);
        drop(waits);
        end(first);
        timeout(secs(60), asked_as_often_as(3)).await.expect("it asks no more");
        held.release().await.unwrap();
        let lease =
            timeout(secs(60), next).await.expect("it was get no notification").unwrap().unwrap();
        lease.release().await.unwrap();
        client.close().await.unwrap();
    });
}

#[test]
fn a_request_whose_runtime_has_ended_is_repeated_by_the_next_in_the_queue() {
    pass_a_request_on(Runtime::shutdown_background);
}

#[test]
fn a_request_whose_runtime_is_blocked_is_waited_for_as_long_as_a_call_takes() {
    let mut kept = None;
    pass_a_request_on(|sick| kept = Some(sick));
    drop(kept);
}

#[test]
fn a_try_that_is_dropped_on_its_way_is_abandoned_whatever_its_runtime_does() {
    let slow = Slow::default();
    let left = || slow.seen(|seen| seen.left);
    let (driven, forsaken) = (new_runtime(), new_runtime());
    let client = driven.block_on(async { Client::new(Arc::new(slow.clone())).unwrap() });
    for (runtime, goes_on) in [(&driven, true), (&forsaken, false)] {
        let before = left();
        runtime.block_on(async {
            let mutex = client.mutex("a");
            // One may be over by then on a busy machine, or be held up by the one before.
            loop {
                let begun = slow.seen(|seen| seen.begun);
                tokio::select! {
                    biased;
                    ended = mutex.try_lock() => drop(ended),
                    () = tokio::task::yield_now() => if slow.seen(|seen| seen.begun) > begun { break },
                }
            }
            while goes_on && left() == before {
                sleep(ms(1)).await;
            }
        });
        let gone = (0..60_000).any(|_| {
            thread::sleep(ms(1));
            left() > before
        });
        assert!(gone, "not given up");
    }
    driven.block_on(client.close()).unwrap();
}

#[test]
fn a_heartbeat_that_the_lease_overtook_delays_its_release_no_longer_than_a_call_takes() {
    let slow = Slow { silent: Some(3), ..Slow::default() };
    let (left, other) = (new_runtime(), new_runtime());
    let (client, lease) = left.block_on(async {
        let holder = Client::new(Arc::new(slow.inner.clone())).unwrap();
        let held = holder.mutex("a").ttl(secs(600)).lock().await.unwrap();
        let client = Client::new(Arc::new(slow.clone())).unwrap();
        let mutex = client.mutex("a").ttl(secs(2));
        let lets_go = async {
            while slow.seen(|seen| seen.begun) < 3 {
                sleep(ms(1)).await;
            }
            held.release().await.unwrap();
        };
        let (lease, ()) = tokio::join!(mutex.lock(), lets_go);
        (client, lease.unwrap())
    });
    other.block_on(async {
        let released = timeout(secs(60), lease.release()).await;
        released.expect("it waits for a runtime that nobody drives").unwrap();
        client.close().await.unwrap();
    });
}

#[test]
fn a_runtime_that_is_blocked_keeps_no_position() {
    let slow = Slow::default();
    let runtime = new_runtime();
    let begun = || slow.seen(|seen| seen.begun);
    let client = runtime.block_on(async {
        let other = Client::new(Arc::new(slow.inner.clone())).unwrap();
        let client = Client::new(Arc::new(slow.clone())).unwrap();
        let held = other.mutex("a").lock().await.unwrap();
        let mutex = client.mutex("a").ttl(secs(600));
        tokio::select! {
            _ = mutex.lock() => unreachable!("it is held"),
            () = async { while begun() < 2 { sleep(ms(1) / 10).await } } => {}
        }
        held.release().await.unwrap();
        client
    });
    // What is left on the runtime is unpolled. When it is polled, it acquires no lock.
    let given_up = || slow.seen(|seen| seen.left > 0);
    let gone = (0..60_000).any(|_| {
        thread::sleep(ms(1));
        given_up()
    });
    assert!(gone, "not given up");
    runtime.block_on(async {
        sleep(ms(10)).await;
        let third = Client::new(Arc::new(slow.inner.clone())).unwrap();
        assert!(third.mutex("a").try_lock().await.unwrap().is_some(), "a lease was left behind");
        drop(client);
    });
}
