//! What a runtime does, be it nothing for a while or its end, costs no lease that was taken on it.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leasehold::{Client, ErrorKind, Guard, Owner, Result};
use leasehold_clock::{ManualClock, SystemClock};
use leasehold_core::{Clock, Key, Moment, Store};
use leasehold_embedded::MemoryStore;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use tokio::runtime::{Builder, Runtime};

#[cfg(unix)]
use crate::alone::alone;
use crate::support::{PATIENCE, World, ms, secs};

/// Of leases that others may have to wait out.
const TTL: Duration = secs(2);
/// Of leases that are kept: long enough for a machine that does ten other things to renew in.
const KEPT: Duration = secs(5);

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A store that any number of clients reach, each as in a process of its own.
#[derive(Clone)]
struct Place(Arc<dyn Fn() -> Reach + Send + Sync>);

enum Reach {
    Store(Arc<dyn Store>),
    #[cfg(any(feature = "embedded", feature = "redis"))]
    Url(String),
}

impl Place {
    fn memory() -> Self {
        let store = MemoryStore::new();
        Self(Arc::new(move || Reach::Store(Arc::new(store.clone()))))
    }

    #[cfg(feature = "embedded")]
    fn embedded() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let reach =
            move || Reach::Url(format!("embedded:{}", directory.path().join("s").display()));
        Self(Arc::new(reach))
    }

    #[cfg(feature = "redis")]
    fn redis() -> Self {
        let server = leasehold_testkit::server::RedisServer::start();
        Self(Arc::new(move || Reach::Url(server.url())))
    }

    async fn client(&self) -> Client {
        let builder = Client::builder().ttl(TTL);
        match (self.0)() {
            Reach::Store(store) => builder.store(store).unwrap(),
            #[cfg(any(feature = "embedded", feature = "redis"))]
            Reach::Url(url) => builder.connect(url).await.unwrap(),
        }
    }

    async fn lock(&self) -> (Client, Guard) {
        let client = self.client().await;
        let guard = client.mutex("key").ttl(KEPT).lock().await.unwrap();
        (client, guard)
    }
}

/// Another contender, which tries all the time, on a thread and a runtime of its own.
struct Contender {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Option<Guard>>,
    tries: Arc<AtomicUsize>,
}

impl Contender {
    fn of(place: &Place) -> Self {
        let (stop, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count, place) = (Arc::clone(&stop), Arc::clone(&tries), place.clone());
        let thread = thread::spawn(move || {
            one_thread().block_on(async {
                let mutex = place.client().await.mutex("key");
                loop {
                    match mutex.try_lock().await {
                        Ok(Some(guard)) => return Some(guard),
                        Ok(None) => {
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        // A busy machine may keep an answer for longer than the client waits.
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                    }
                    if stopped.load(Ordering::Relaxed) {
                        return None;
                    }
                    tokio::time::sleep(ms(10)).await;
                }
            })
        });
        Self { stop, thread, tries }
    }

    /// Whether it got the lock before now.
    fn got_it(self) -> bool {
        assert!(self.tries.load(Ordering::Relaxed) > 10, "it has hardly tried");
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap().is_some()
    }
}

/// Blocks this thread until all leases have been renewed so late, as the store has it, that each
/// has outlived its length: the fourth renewal is the first one as late as that.
fn stand_still(place: &Place) {
    let place = place.clone();
    let observer = thread::spawn(move || {
        one_thread().block_on(async {
            let client = place.client().await;
            let outlived = async || {
                let Ok(list) = client.list("").await else { return false };
                let mut holders = list.locks.iter().flat_map(|lock| &lock.holders);
                holders.all(|holder| holder.held_for + holder.remaining > KEPT * 9 / 4)
            };
            let outlived = async {
                while !outlived().await {
                    tokio::time::sleep(ms(50)).await;
                }
            };
            tokio::time::timeout(PATIENCE, outlived).await.expect("a lease is not renewed");
        });
    });
    observer.join().unwrap();
}

/// The very thing that a lease that is renewed is for: a holder that works for longer than its
/// length, without giving its thread back once, and another contender that waits for it to slip.
fn a_runtime_that_stands_still_costs_no_lease(place: &Place) {
    for runtime in [one_thread(), two_threads()] {
        let (guard, others, contender) = runtime.block_on(async {
            let (client, guard) = place.lock().await;
            let mut others = Vec::new();
            for n in 0..20 {
                others.push(client.mutex(format!("other {n}")).ttl(KEPT).lock().await.unwrap());
            }
            let contender = Contender::of(place);
            // Each of two workers stands still, if there are two, and this thread as well.
            let workers = (0..2).map(|_| {
                let place = place.clone();
                tokio::spawn(async move { stand_still(&place) })
            });
            let workers: Vec<_> = workers.collect();
            stand_still(place);
            assert!(guard.is_held());
            for worker in workers {
                worker.await.unwrap();
            }
            assert!(guard.is_held());
            (guard, others, contender)
        });
        assert!(!contender.got_it());
        assert!(others.iter().all(|guard| guard.is_held()));
        runtime.block_on(async {
            guard.release().await.unwrap();
            for other in others {
                other.release().await.unwrap();
            }
        });
    }
}

/// The task that took the lock blocks its worker at once, before it was polled again: what it had
/// just woken must not wait in that worker's own slot.
fn a_task_that_blocks_right_after_it_took_the_lock_keeps_it(place: &Place) {
    let runtime = two_threads();
    runtime.block_on(async {
        let contending = place.clone();
        let place = place.clone();
        let task = tokio::spawn(async move {
            let (_client, guard) = place.lock().await;
            let contender = Contender::of(&contending);
            stand_still(&contending);
            let held = guard.is_held();
            guard.release().await.unwrap();
            (held, contender)
        });
        let (held, _contender) = task.await.unwrap();
        assert!(held);
    });
}

fn a_guard_outlives_the_runtime_that_it_was_made_on(place: &Place) {
    for runtime in [one_thread(), two_threads()] {
        let (client, guard) = runtime.block_on(place.lock());
        let contender = Contender::of(place);
        drop(runtime);
        stand_still(place);
        assert!(guard.is_held());
        assert!(!contender.got_it());
        // The client is as good as new on another runtime.
        let runtime = one_thread();
        runtime.block_on(async {
            let used = async {
                guard.release().await.unwrap();
                let again = client.mutex("key").lock().await.unwrap();
                let behind = client.mutex("key").metadata("of a line of its own");
                let waiting = tokio::spawn(async move { behind.lock().await.unwrap() });
                while client
                    .inspect("key")
                    .await
                    .unwrap()
                    .is_none_or(|info| info.waiters.is_empty())
                {
                    tokio::time::sleep(ms(5)).await;
                }
                again.release().await.unwrap();
                waiting.await.unwrap().release().await.unwrap();
                client.close().await.unwrap();
            };
            tokio::time::timeout(PATIENCE, used).await.expect("the client hangs");
        });
    }
}

fn a_guard_dropped_just_before_its_runtime_ends(place: &Place) {
    for runtime in [one_thread(), two_threads()] {
        let guard = runtime.block_on(async {
            place.client().await.mutex("key").ttl(secs(3600)).lock().await.unwrap()
        });
        drop(guard);
        drop(runtime);
        let next = one_thread().block_on(async {
            let client = place.client().await;
            let next = client.mutex("key").lock_within(PATIENCE).await;
            next.map(|guard| (guard.is_held(), client))
        });
        assert!(next.unwrap().0);
    }
}

fn a_token_is_cancelled_though_its_runtime_has_ended(place: &Place) {
    let runtime = one_thread();
    let (_client, guard) = runtime.block_on(place.lock());
    let before = guard.lease().cancellation_token();
    drop(runtime);
    let after = guard.lease().cancellation_token();
    assert!(!before.is_cancelled() && !after.is_cancelled());
    one_thread().block_on(async {
        let operator = place.client().await;
        operator.force_release("key", guard.fence().unwrap()).await.unwrap();
        let told = async {
            before.cancelled().await;
            after.cancelled().await;
            guard.lost().await;
        };
        tokio::time::timeout(PATIENCE, told).await.expect("nobody tells of the loss");
    });
    assert!(!guard.is_held());
}

/// A client that was made, and has waited, on a runtime of one thread that is not blocked any more.
fn an_idle_runtime_keeps_no_others_waiting(place: &Place) {
    let (left, others) = (one_thread(), [one_thread(), two_threads(), one_thread()]);
    let (client, held) = left.block_on(async {
        let (holder, held) = place.lock().await;
        let client = place.client().await;
        client.mutex("key").lock_within(ms(200)).await.unwrap_err();
        (client, (holder, held))
    });
    let (asked, all_asked) = mpsc::channel();
    let waiters: Vec<_> = others
        .into_iter()
        .map(|runtime| {
            let (mutex, asked) = (client.mutex("key"), asked.clone());
            thread::spawn(move || {
                runtime.block_on(async {
                    let mut wait = pin!(mutex.lock());
                    assert!(poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_pending())).await);
                    asked.send(()).unwrap();
                    let wait = async { tokio::time::timeout(PATIENCE, wait).await };
                    wait.await.expect("it waits though the lock is free").unwrap().release().await
                })
            })
        })
        .collect();
    for _ in &waiters {
        all_asked.recv().unwrap();
    }
    let (holder, held) = held;
    one_thread().block_on(async {
        while holder.inspect("key").await.unwrap().unwrap().waiters.is_empty() {
            tokio::time::sleep(ms(1)).await;
        }
        held.release().await.unwrap();
    });
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap().unwrap());
    one_thread().block_on(client.close()).unwrap();
    let again = left.block_on(async { place.client().await.mutex("key").try_lock().await });
    assert!(again.unwrap().is_some(), "a lease was left behind");
}

/// A re-entrant lock whose holds end on a runtime that stands still from then on.
fn holds_that_end_on_an_idle_runtime_keep_no_others_waiting(place: &Place) {
    let (left, other) = (one_thread(), one_thread());
    let client = other.block_on(place.client());
    let lock = client.reentrant("key", &Owner::new());
    let (first, second) = left.block_on(async {
        let first = lock.lock().await.unwrap();
        let second = lock.lock().await.unwrap();
        drop(lock.lock().await.unwrap());
        (first, second)
    });
    left.block_on(async {
        drop(second);
        // The store gets the request, and the runtime stops before the answer.
        tokio::task::yield_now().await;
    });
    other.block_on(async {
        let again = async { tokio::time::timeout(PATIENCE, lock.lock()).await };
        let again = again.await.expect("it waits for a runtime that nobody drives").unwrap();
        for hold in [first, again] {
            let ends = async { tokio::time::timeout(PATIENCE, hold.release()).await };
            ends.await.expect("it waits for a runtime that nobody drives").unwrap();
        }
        client.close().await.unwrap();
    });
    drop(left);
}

/// Contenders of one client on two runtimes, one of which ends in their midst, again and again.
fn a_runtime_that_ends_takes_no_contender_of_another_one_along(place: &Place) {
    let lasting = two_threads();
    let client = lasting.block_on(place.client());
    for round in 0..40 {
        let ending = two_threads();
        for _ in 0..6 {
            let mutex = client.mutex("key");
            ending.spawn(async move {
                while let Ok(guard) = mutex.lock().await {
                    drop(guard.release().await);
                }
            });
        }
        let others = (0..4).map(|_| {
            let mutex = client.mutex("key");
            lasting.spawn(async move {
                for _ in 0..10 {
                    mutex.lock().await.unwrap().release().await.unwrap();
                }
            })
        });
        let others: Vec<_> = others.collect();
        thread::sleep(ms(round % 15));
        drop(ending);
        for other in others {
            let other = async { tokio::time::timeout(PATIENCE, other).await };
            lasting.block_on(other).expect("it waits though the lock is free").unwrap();
        }
    }
    lasting.block_on(client.close()).unwrap();
}

macro_rules! on_each_store {
    ($($name:ident),+ $(,)?) => {
        mod memory {
            $(#[test] fn $name() { super::$name(&super::Place::memory()); })+
        }
        #[cfg(feature = "embedded")]
        mod embedded {
            $(#[test] fn $name() { super::$name(&super::Place::embedded()); })+
        }
        #[cfg(feature = "redis")]
        mod redis {
            $(#[test] fn $name() { super::$name(&super::Place::redis()); })+
        }
    };
}

on_each_store!(
    a_runtime_that_stands_still_costs_no_lease,
    a_task_that_blocks_right_after_it_took_the_lock_keeps_it,
    a_guard_outlives_the_runtime_that_it_was_made_on,
    a_guard_dropped_just_before_its_runtime_ends,
    a_token_is_cancelled_though_its_runtime_has_ended,
    a_runtime_that_ends_takes_no_contender_of_another_one_along,
    an_idle_runtime_keeps_no_others_waiting,
    holds_that_end_on_an_idle_runtime_keep_no_others_waiting,
    outside_a_runtime_a_call_is_an_error_and_no_panic,
);

fn outside_a_runtime_a_call_is_an_error_and_no_panic(place: &Place) {
    let runtime = one_thread();
    let (client, guard) = runtime.block_on(place.lock());
    let (key, other) = (client.mutex("key"), client.mutex("other"));
    refused(key.lock());
    refused(key.lock_within(secs(1)));
    refused(other.lock());
    refused(other.try_lock());
    refused(client.rwlock("other").write());
    refused(client.rwlock("other").try_read());
    refused(client.semaphore("permits", 2).acquire());
    refused(client.multi(["other", "third"]).lock());
    refused(client.reentrant("other", &Owner::process()).lock());
    refused(client.once_per("other", secs(60)).try_start());
    refused(client.election("post").campaign());
    assert!(guard.is_held());
    runtime.block_on(guard.release()).unwrap();
}

/// Expects the error of a call that has no runtime, from its first poll.
fn refused<T>(call: impl Future<Output = Result<T>>) {
    let outcome = pin!(call).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = outcome else { panic!("it was not refused") };
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
}

/// Calls that need a server, or that a store without one answers anywhere.
#[cfg(feature = "redis")]
#[test]
fn outside_a_runtime_a_call_to_a_server_is_an_error_and_no_panic() {
    let place = Place::redis();
    let runtime = one_thread();
    let (client, guard) = runtime.block_on(place.lock());
    refused(client.inspect("key"));
    refused(client.list(""));
    refused(client.examine());
    refused(client.ask("key"));
    refused(client.force_release("key", guard.fence().unwrap()));
    refused(guard.ttl());
    refused(guard.renew_to(secs(9)));
    refused(guard.release());
}

/// Counts how often it is read.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl Clock for Counting {
    fn now(&self) -> Moment {
        self.0.fetch_add(1, Ordering::Relaxed);
        SystemClock::new().now()
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_while_the_runtimes_time_is_paused_takes_real_time_and_keeps_no_processor_busy() {
    let store = MemoryStore::new();
    let client = |clock: &Arc<Counting>| {
        let builder = Client::builder().clock(Arc::<Counting>::clone(clock));
        builder.store(Arc::new(store.clone())).unwrap()
    };
    let (holders, waiters) = (Arc::new(Counting::default()), Arc::new(Counting::default()));
    let _guard = client(&holders).mutex("key").lock().await.unwrap();
    let begun = SystemClock::new().now();
    let error = client(&waiters).mutex("key").lock_within(ms(500)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(SystemClock::new().now().saturating_since(begun) >= ms(500));
    let read = waiters.0.load(Ordering::Relaxed);
    assert!(read < 2_000, "the clock was read {read} times");
}

#[cfg(feature = "embedded")]
#[tokio::test(start_paused = true)]
async fn a_users_test_with_paused_time_sees_leases_renewed_and_expire_in_no_time() {
    let begun = SystemClock::new().now();
    let client = Client::builder().tokio_time().connect("memory:").await.unwrap();
    let kept = client.mutex("kept").lock().await.unwrap();
    let fixed = client.mutex("fixed").renew(false).lock().await.unwrap();
    fixed.lost().await;
    tokio::time::sleep(secs(24 * 3600)).await;
    assert!(kept.is_held() && !fixed.is_held());
    assert!(client.mutex("fixed").try_lock().await.unwrap().is_some());
    assert!(SystemClock::new().now().saturating_since(begun) < secs(3600));
}

/// A lease that is about to end has hardly any time left for an answer. Another one that is renewed
/// at the same moment has all of its own.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_about_to_end_takes_no_time_from_those_renewed_with_it() {
    let world = World::new();
    let faults = Arc::new(FaultStore::new(Arc::new(world.store.clone())));
    let client = world.client_of(Arc::<FaultStore>::clone(&faults));
    let ending = client.mutex("ending").ttl(secs(12)).max_hold(ms(4_050)).lock().await.unwrap();
    let other = client.mutex("other").ttl(secs(12)).lock().await.unwrap();
    faults.decide(|call| match call.op {
        Op::Renew => Fault::Delay { before: ms(250), after: ms(250) },
        _ => Fault::None,
    });
    ending.lost().await;
    for _ in 0..20 {
        tokio::time::sleep(secs(1)).await;
        assert!(!other.lease().is_at_risk());
    }
    assert!(faults.count(Op::Renew) >= 5);
}

/// A close whose release grants the lock to a waiter of the same client, before the waiter's
/// runtime has notified it of the close: it releases the lease, and does not request it again.
#[cfg(unix)]
/// Has one wait whose client has waited on another runtime before, while the clock stands still: so
/// it does not request by itself. `meanwhile` says what happens to the other one.
fn a_waiter_is_notified(before: Runtime, meanwhile: impl FnOnce(Runtime)) {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let store = MemoryStore::with_clock(Arc::clone(&clock));
    let faults = FaultStore::new(Arc::new(store.clone()));
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    faults.decide(move |call| {
        counted.fetch_add(usize::from(call.op == Op::Acquire), Ordering::SeqCst);
        Fault::None
    });
    let (asked, here) = (move || asked.load(Ordering::SeqCst), two_threads());
    let (client, held) = before.block_on(async {
        let builder = || Client::builder().clock(Arc::clone(&clock)).ttl(secs(600));
        let held = builder().store(Arc::new(store)).unwrap().mutex("key").lock().await.unwrap();
        let client = builder().store(Arc::new(faults)).unwrap();
        let mutex = client.mutex("key");
        tokio::select! {
            _ = mutex.lock() => unreachable!("it is held"),
            () = tokio::time::sleep(ms(50)) => {}
        }
        (client, held)
    });
    let (mutex, so_far) = (client.mutex("key"), asked());
    let waits = here.spawn(async move { mutex.lock().await.unwrap().release().await });
    until(|| asked() > so_far, "it does not ask for a place");
    meanwhile(before);
    here.block_on(async {
        held.release().await.unwrap();
        tokio::time::timeout(PATIENCE, waits).await.expect("nobody told it").unwrap().unwrap();
    });
}

fn until(is_so: impl Fn() -> bool, or_else: &str) {
    let soon = (0..60_000).any(|_| {
        thread::sleep(ms(1));
        is_so()
    });
    assert!(soon, "{or_else}");
}

#[test]
fn a_waiter_is_notified_though_the_runtime_of_earlier_waiters_is_idle() {
    let mut kept = None;
    a_waiter_is_notified(one_thread(), |before| kept = Some(before));
    drop(kept);
}

#[test]
fn a_waiter_is_notified_though_the_runtime_of_earlier_waiters_ends() {
    for before in [one_thread(), two_threads()] {
        a_waiter_is_notified(before, drop);
    }
}

/// A runtime runs short of file descriptors first.
#[cfg(all(feature = "redis", target_os = "linux"))]
#[test]
fn runtimes_that_have_ended_leave_no_file_open() {
    alone("background::runtimes_that_have_ended_leave_no_file_open", || {
        let server = leasehold_testkit::server::RedisServer::start();
        let first = one_thread();
        let client = first.block_on(Client::connect(server.url())).unwrap();
        let cycle = |name: &str| {
            let mutex = client.mutex(name);
            async move { mutex.lock().await.unwrap().release().await.unwrap() }
        };
        first.block_on(cycle("first"));
        let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = count();
        for _ in 0..3 {
            let runtimes: Vec<_> = (0..20).map(|_| one_thread()).collect();
            for (number, runtime) in runtimes.iter().enumerate() {
                runtime.block_on(cycle(&format!("name/{number}")));
            }
            assert!(count() >= before + 20, "a runtime has files of its own");
            drop(runtimes);
            // The thread that has woken the last caller may be about to forget it.
            until(|| count() <= before, "files stay open");
        }
    });
}

#[test]
fn a_waiter_that_gets_the_lock_by_a_close_ends_and_leaves_it() {
    alone("background::a_waiter_that_gets_the_lock_by_a_close_ends_and_leaves_it", || {
        one_thread().block_on(async {
            let store = MemoryStore::new();
            let client = Client::new(Arc::new(store.clone())).unwrap();
            let key = Key::new("a").unwrap();
            let look = || {
                let asked = pin!(store.inspect(&key, PATIENCE));
                let Poll::Ready(info) = asked.poll(&mut Context::from_waker(Waker::noop())) else {
                    panic!("a store in memory answers at once")
                };
                info.unwrap()
            };
            let mutex = client.mutex("a");
            let guard = mutex.lock().await.unwrap();
            let fence = look().unwrap().holders[0].fence;
            let held_up = Arc::new(AtomicBool::new(false));
            let is_held_up = Arc::clone(&held_up);
            let waiting = tokio::spawn(async move {
                let mut lock = pin!(mutex.lock());
                let polled = poll_fn(|context| {
                    if is_held_up.load(Ordering::Relaxed) {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    lock.as_mut().poll(context)
                });
                polled.await
            });
            while look().unwrap().waiters.is_empty() {
                tokio::time::sleep(ms(1)).await;
            }
            held_up.store(true, Ordering::Relaxed);
            let mut close = pin!(client.close());
            let granted = async {
                while look().unwrap().holders.first().is_none_or(|holder| holder.fence == fence) {
                    tokio::time::sleep(ms(1)).await;
                }
            };
            tokio::select! {
                biased;
                _ = &mut close => panic!("closed, and a wait has not ended"),
                () = granted => {}
            }
            // Long enough for the message of it.
            let early = tokio::time::timeout(ms(100), &mut close).await;
            assert!(early.is_err(), "closed, and a wait has not ended");
            held_up.store(false, Ordering::Relaxed);
            close.await.unwrap();
            assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
            assert!(!guard.is_held());
            assert_eq!(look(), None);
        });
    });
}
