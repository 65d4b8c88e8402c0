//! Requests that reach the server after their callers stopped waiting acquire nothing.

use std::fmt::Debug;
use std::num::NonZeroU32;
use std::time::Duration;

use leasehold_core::{
    Bond, ClientId, Cooldown, Effect, Error, ErrorKind, Key, Kind, Leave, LeaveRequest, Mode,
    QueueRequest, Release, SetLimitRequest, Store as _,
};
use leasehold_redis::RedisStore;
use leasehold_redis::interop::{InteropStore, Layout};
use leasehold_testkit::proxy::{Fault, Proxy, Stats};
use leasehold_testkit::server::RedisServer;

use super::common::{Caller, SHORT, WITHIN, key, ttl};

/// A server, and a connection to it that can delay requests.
struct Road {
    _server: RedisServer,
    proxy: Proxy,
    direct: RedisStore,
    slow: RedisStore,
}

impl Road {
    async fn new() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.addr());
        let direct = RedisStore::connect(&server.url()).await.unwrap();
        let slow = RedisStore::connect(&proxy.url()).await.unwrap();
        // Without delay, and with all scripts loaded, so that no request has to send one later.
        let caller = Caller::new(&slow, &key());
        let fences = caller.take().await;
        direct.renew(&[caller.renewal(fences)], WITHIN).await.remove(0).unwrap();
        direct.release(&caller.ending(fences), WITHIN).await.unwrap();
        direct.leave(&caller.leaving(), WITHIN).await.unwrap();
        let other = Caller::new(&direct, &key());
        direct.acquire_all(std::slice::from_ref(&other.request), WITHIN).await.unwrap();
        let limit = SetLimitRequest::new(other.request.key, NonZeroU32::MIN);
        direct.set_limit(&limit, WITHIN).await.unwrap();
        Self { _server: server, proxy, direct, slow }
    }

    /// Sends a request that is delayed until its caller has abandoned it. Returns once the server
    /// has received it.
    async fn late<T: Debug>(&self, request: impl Future<Output = Result<T, Error>>) {
        // Keeps the connection from counting as dead.
        Caller::new(&self.slow, &key()).take().await;
        let before = self.proxy.stats();
        self.proxy.set(Fault::Stall);
        let error = request.await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
        self.proxy.set(Fault::Pass);
        let answered = |now: &Stats| {
            now.requests_forwarded > before.requests_forwarded
                && now.replies - before.replies
                    >= now.requests_forwarded - before.requests_forwarded
        };
        self.proxy.wait_for(answered).await;
    }

    async fn comes_free(&self, key: &Key) {
        let held = async || {
            let info = self.direct.inspect(key, WITHIN).await.unwrap();
            info.is_some_and(|info| !info.holders.is_empty())
        };
        let free = async {
            while held().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(WITHIN, free).await.unwrap();
    }

    /// Checks that the lock is free.
    async fn is_free(&self, key: &Key) {
        let info = self.direct.inspect(key, WITHIN).await.unwrap();
        let nothing = info.is_none_or(|info| {
            info.holders.is_empty() && info.waiters.is_empty() && info.closed_for.is_none()
        });
        assert!(nothing, "{:?}", self.direct.inspect(key, WITHIN).await);
        let other = Caller::new(&self.direct, key);
        let fences = other.take().await;
        other.store.release(&other.ending(fences), WITHIN).await.unwrap();
    }
}

/// A request for the lock in each possible mode.
fn ways(store: &RedisStore) -> Vec<Caller> {
    let number = |count: u32| NonZeroU32::new(count).unwrap();
    let modes = [
        Mode::Exclusive,
        Mode::Shared,
        Mode::Permits { count: number(1), limit: number(3) },
        Mode::Joint(Bond::new(7)),
    ];
    let each = modes.into_iter().flat_map(|mode| {
        [(false, false), (true, false), (false, true)].map(|(waits, closes)| {
            let mut caller = Caller::new(store, &key());
            caller.request.mode = mode;
            let client = ClientId::generate().unwrap();
            caller.request.queue = waits.then(|| QueueRequest::new(client, 7, ttl(60)));
            let day = Cooldown::new(Duration::from_secs(86_400)).unwrap();
            caller.request.cooldown = if closes { day } else { Cooldown::NONE };
            caller
        })
    });
    each.collect()
}

#[tokio::test]
async fn a_delayed_release_closes_nothing() {
    let road = Road::new().await;
    for runs_on in [true, false] {
        let mut caller = Caller::new(&road.slow, &key());
        caller.request.ttl = ttl(if runs_on { 60 } else { 1 });
        let fences = caller.take().await;
        let mut ending = caller.ending(fences);
        ending.in_time = runs_on;
        ending.cooldown = Cooldown::new(Duration::from_secs(86_400)).unwrap();
        if !runs_on {
            road.comes_free(&caller.request.key).await;
        }
        road.late(caller.store.release(&ending, SHORT)).await;
        let info = road.direct.inspect(&caller.request.key, WITHIN).await.unwrap();
        assert!(info.is_none_or(|info| info.closed_for.is_none()), "{ending:?}");
        // Sent again in time, it does both.
        let again = road.direct.release(&ending, WITHIN).await.unwrap();
        assert_eq!(again, if runs_on { Release::Released } else { Release::Late });
        let info = road.direct.inspect(&caller.request.key, WITHIN).await.unwrap().unwrap();
        assert!(info.holders.is_empty() && info.closed_for.is_some(), "{info:?}");
    }
}

#[tokio::test]
async fn an_acquisition_that_comes_after_it_was_abandoned_takes_and_closes_nothing() {
    let road = Road::new().await;
    for caller in ways(&road.slow) {
        road.late(caller.store.acquire(&caller.request, SHORT)).await;
        let left = road.direct.leave(&caller.leaving(), WITHIN).await.unwrap();
        assert_eq!(left, Leave::NotHeld, "{:?}", caller.request);
        road.is_free(&caller.request.key).await;
    }
}

#[tokio::test]
async fn nor_do_several_at_once() {
    let road = Road::new().await;
    let each = [0, 1].map(|_| Caller::new(&road.slow, &key()).request);
    road.late(road.slow.acquire_all(&each, SHORT)).await;
    for request in each {
        road.is_free(&request.key).await;
    }
}

#[tokio::test]
async fn a_position_is_neither_taken_nor_kept_by_a_delayed_request() {
    let road = Road::new().await;
    for was_there in [false, true] {
        let key = key();
        let holder = Caller::new(&road.direct, &key);
        let fences = holder.take().await;
        let waiter = Caller::patient(&road.slow, &key, ClientId::generate().unwrap());
        if was_there {
            waiter.wait().await;
        }
        let leave = async {
            let outcome = road.slow.acquire(&waiter.request, SHORT).await;
            road.direct.leave(&waiter.leaving(), WITHIN).await.unwrap();
            outcome
        };
        road.late(leave).await;
        road.direct.release(&holder.ending(fences), WITHIN).await.unwrap();
        road.is_free(&key).await;
    }
}

#[tokio::test]
async fn a_delayed_renewal_prolongs_nothing_and_a_delayed_limit_changes_nothing() {
    let road = Road::new().await;
    let caller = Caller::new(&road.slow, &key());
    let fences = caller.take().await;
    let left = async || {
        let info = road.direct.inspect(&caller.request.key, WITHIN).await.unwrap().unwrap();
        info.holders[0].remaining
    };
    let before = left().await;
    let mut renewal = caller.renewal(fences);
    renewal.ttl = ttl(6_000);
    let renewing = async || road.slow.renew(std::slice::from_ref(&renewal), SHORT).await.remove(0);
    road.late(renewing()).await;
    assert!(left().await <= before);

    let pool = Caller::new(&road.direct, &key());
    let limit = |number| NonZeroU32::new(number).unwrap();
    let mut request = pool.request.clone();
    request.mode = Mode::Permits { count: limit(1), limit: limit(3) };
    road.direct.acquire(&request, WITHIN).await.unwrap();
    let key = request.key;
    road.late(road.slow.set_limit(&SetLimitRequest::new(key.clone(), limit(9)), SHORT)).await;
    let info = road.direct.inspect(&key, WITHIN).await.unwrap().unwrap();
    assert_eq!(info.kind, Kind::Semaphore { limit: limit(3) });
}

#[tokio::test]
async fn a_delayed_release_still_counts() {
    let road = Road::new().await;
    let caller = Caller::new(&road.slow, &key());
    let fences = caller.take().await;
    road.late(road.slow.release(&caller.ending(fences), SHORT)).await;
    road.comes_free(&caller.request.key).await;
    let caller = Caller::new(&road.slow, &key());
    caller.take().await;
    road.late(road.slow.leave(&caller.leaving(), SHORT)).await;
    road.comes_free(&caller.request.key).await;
}

#[tokio::test]
async fn what_is_in_the_buffers_of_a_client_that_has_ended_is_not_carried_out() {
    let road = Road::new().await;
    let before = road.proxy.stats();
    let client = RedisStore::connect(&road.proxy.url()).await.unwrap();
    let caller = Caller::new(&client, &key());
    road.proxy.set(Fault::Stall);
    drop(client.acquire(&caller.request, SHORT).await);
    let key = caller.request.key.clone();
    drop((caller, client));
    road.proxy.set(Fault::Pass);
    road.proxy.wait_for(|stats| stats.connections_ended > before.connections_ended).await;
    road.is_free(&key).await;
}

#[tokio::test]
async fn locks_of_other_libraries_are_not_taken_by_a_delayed_request() {
    let road = Road::new().await;
    for layout in ["plain", "redis-py", "symfony", "redisson", "redisson-fenced"] {
        let layout: Layout = layout.parse().unwrap();
        let [slow, direct] = [&road.slow, &road.direct]
            .map(|store| InteropStore::new(store.clone(), layout.clone()));
        let request = Caller::new(&road.slow, &key()).request;
        let known = Caller::new(&road.direct, &key()).request;
        direct.acquire(&known, WITHIN).await.unwrap();
        road.late(slow.acquire(&request, SHORT)).await;
        let leave = LeaveRequest::new(request.key.clone(), request.token);
        assert_eq!(direct.leave(&leave, WITHIN).await.unwrap(), Leave::NotHeld);
        assert!(direct.inspect(&request.key, WITHIN).await.unwrap().is_none(), "{layout}");
    }
}
