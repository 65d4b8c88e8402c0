//! Leaving the queue is part of the answer. When a caller learns that it has not got a lock, the
//! store keeps nothing of it that could delay others, and its process may end at once.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::{Effect, ErrorKind, Fairness, Owner};
use leasehold_core::{BoxFuture, Call, Capability, Error, LockLog, Store, StoreLayer};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use tokio::time::Instant;

use crate::support::{World, cool, ms, secs};

/// A client on a wire that can be made slow, while another client holds the locks "a" and "c".
struct Scene {
    world: World,
    faults: FaultStore,
    client: leasehold::Client,
    held: Vec<leasehold::Guard>,
}

impl Scene {
    async fn new() -> Self {
        let world = World::new();
        let holder = world.client();
        let held = vec![
            holder.mutex("a").lock().await.unwrap(),
            holder.mutex("c").ttl(secs(600)).lock().await.unwrap(),
        ];
        let faults = FaultStore::new(Arc::new(world.store.clone()));
        let client = world.client_of(Arc::new(faults.clone()));
        Self { world, faults, client, held }
    }

    /// Delays each `leave` by this.
    fn slow_leave(&self, ms: u64) {
        let before = Duration::from_millis(ms);
        self.faults.decide(move |call| match call.op {
            Op::Leave => Fault::Delay { before, after: Duration::ZERO },
            _ => Fault::None,
        });
    }
}

/// Expects a wait to time out, and to return once its position was abandoned.
async fn runs_out<T>(
    scene: &Scene,
    key: &str,
    limit: Duration,
    wait: impl Future<Output = leasehold::Result<T>>,
) {
    let started = Instant::now();
    let error = wait.await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(started.elapsed() >= limit + ms(700), "{:?}", started.elapsed());
    assert_eq!(scene.world.waiters(key).await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_stands_at_a_key_and_is_not_ours_keeps_no_client_from_closing() {
    for kind in [ErrorKind::Foreign, ErrorKind::Corrupt] {
        let scene = Scene::new().await;
        scene.faults.decide(move |call| match call.op {
            Op::Acquire => Fault::Hang { applied: false },
            Op::Leave => Fault::Fail(Error::new(kind, "it is not ours")),
            _ => Fault::None,
        });
        let mutex = scene.client.mutex("b").ttl(secs(600));
        let dropped = tokio::time::timeout(ms(10), mutex.try_lock()).await;
        dropped.unwrap_err();
        scene.client.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_timed_out_ends_when_it_has_left_the_queue() {
    let scene = Scene::new().await;
    scene.slow_leave(700);
    let Scene { world, client, .. } = &scene;
    let owner = Owner::new();
    let permit = world.client().semaphore("b", 1).acquire().await.unwrap();
    for limit in [ms(300), secs(15)] {
        runs_out(&scene, "a", limit, client.mutex("a").lock_within(limit)).await;
        runs_out(&scene, "a", limit, client.rwlock("a").read_within(limit)).await;
        runs_out(&scene, "a", limit, client.rwlock("a").write_within(limit)).await;
        runs_out(&scene, "a", limit, client.reentrant("a", &owner).lock_within(limit)).await;
        runs_out(&scene, "a", limit, client.election("a").campaign_within(limit)).await;
        runs_out(&scene, "b", limit, client.semaphore("b", 1).acquire_within(limit)).await;
        runs_out(&scene, "a", limit, client.multi(["0", "a", "b"]).lock_within(limit)).await;
        assert!(world.is_idle("0").await, "what several locks had is given back as well");
    }
    permit.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_refused_or_cut_short_ends_when_it_has_left_the_queue() {
    let scene = Scene::new().await;
    let Scene { world, client, .. } = &scene;
    scene.slow_leave(700);
    let vain = client.mutex("c").give_up_early(true).lock_within(secs(5)).await.unwrap_err();
    assert_eq!((vain.kind(), world.waiters("c").await), (ErrorKind::Timeout, 0));

    let waiting = tokio::spawn({
        let mutex = client.mutex("a");
        async move { mutex.lock().await.unwrap_err() }
    });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    client.close().await.unwrap();
    assert_eq!(world.waiters("a").await, 0, "closing has not waited for those that wait");
    assert_eq!(waiting.await.unwrap().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_a_full_store_refuses_ends_at_once_without_its_position() {
    let scene = Scene::new().await;
    let Scene { world, faults, client, .. } = &scene;
    let full = || {
        let error = Error::new(ErrorKind::Full, "the server is at its memory limit");
        Fault::Fail(error.with_effect(Effect::NotApplied))
    };
    for limit in [None, Some(secs(500))] {
        let locks =
            [client.mutex("a"), client.mutex("a").fairness(Fairness::Barging), client.mutex("a")];
        let waits = locks.map(|mutex| {
            tokio::spawn(async move {
                match limit {
                    Some(limit) => mutex.lock_within(limit).await,
                    None => mutex.lock().await,
                }
            })
        });
        while world.waiters("a").await == 0 {
            tokio::time::sleep(ms(1)).await;
        }
        faults.decide(move |call| if call.op == Op::Acquire { full() } else { Fault::None });
        let refused = Instant::now();
        for wait in waits {
            let error = wait.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        }
        // It is refused with its next sign of life.
        assert!(refused.elapsed() <= secs(11), "{:?}", refused.elapsed());
        assert_eq!(world.waiters("a").await, 0);
        let error = client.multi(["0", "a"]).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        faults.heal();
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_heartbeats_fail_still_learns_of_its_lease() {
    let mut scene = Scene::new().await;
    let Scene { world, faults, client, held } = &mut scene;
    let mutex = client.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let asked = faults.count(Op::Acquire);
    faults.decide(|call| if call.op == Op::Acquire { Fault::Refuse } else { Fault::None });
    // More of them than a waiter could keep in mind.
    while faults.count(Op::Acquire) < asked + 12 {
        tokio::time::sleep(ms(1)).await;
    }
    let released = Instant::now();
    held.swap_remove(0).release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    assert!(released.elapsed() <= ms(10), "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn leaving_at_a_silent_store_takes_no_longer_than_one_call() {
    let scene = Scene::new().await;
    let Scene { faults, client, .. } = &scene;
    faults.decide(|call| match call.op {
        Op::Leave => Fault::Hang { applied: false },
        _ => Fault::None,
    });
    let started = Instant::now();
    let error = client.mutex("a").lock_within(ms(300)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(started.elapsed() <= ms(2_310), "{:?}", started.elapsed());
    // A request whose answer never came has had its time already.
    faults.decide(|_| Fault::DropRequest);
    let started = Instant::now();
    client.mutex("a").try_lock().await.unwrap_err();
    assert!(started.elapsed() <= ms(2_010), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_position_goes_to_the_next_contender_instead_of_being_abandoned() {
    let scene = Scene::new().await;
    scene.slow_leave(700);
    let Scene { world, faults, client, held } = scene;
    let behind = tokio::spawn({
        let mutex = client.mutex("a");
        async move {
            let (first, second) = tokio::join!(mutex.lock_within(secs(1)), mutex.lock());
            assert_eq!(first.unwrap_err().kind(), ErrorKind::Timeout);
            second.unwrap()
        }
    });
    tokio::time::sleep(secs(2)).await;
    assert_eq!((world.waiters("a").await, faults.count(Op::Leave)), (1, 0));
    drop(held);
    behind.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_on_its_way_when_the_wait_ends_may_still_bring_the_lock() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let stranger = world.stranger_takes("a", secs(2)).await;
    faults.decide(|call| match call.op {
        Op::Acquire => Fault::Delay { before: ms(300), after: ms(300) },
        _ => Fault::None,
    });
    // Sent at the end of the stranger's lease, answered after the limit.
    let guard = client.mutex("a").lock_within(ms(2_100)).await.unwrap();
    assert!(guard.is_held());
    drop(stranger);
}

#[tokio::test(start_paused = true)]
async fn a_dead_waiter_with_a_long_grace_delays_others_for_four_times_that() {
    for (grace, window) in [(secs(5), secs(30)), (secs(150), secs(600))] {
        let world = World::new();
        let holder = world.client().mutex("a").lock().await.unwrap();
        let faults = FaultStore::new(Arc::new(world.store.clone()));
        let dying = world.client_of(Arc::new(faults.clone()));
        let waiting = tokio::spawn({
            let mutex = dying.mutex("a").ttl(secs(600)).stop_grace(grace);
            async move { mutex.lock().await.map(drop) }
        });
        while world.waiters("a").await == 0 {
            tokio::time::sleep(ms(1)).await;
        }
        faults.black_out(true);
        waiting.abort();
        let died = Instant::now();
        holder.release().await.unwrap();
        drop(world.client().mutex("a").lock().await.unwrap());
        let held_up = died.elapsed();
        assert!(
            held_up <= window + ms(10) && held_up >= window - secs(1),
            "{grace:?}: {held_up:?}"
        );
    }
}

fn doomed(world: &World) -> (FaultStore, leasehold::Client) {
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    (faults, client)
}

/// Waiters that die before another one, each with a heartbeat timeout of its own, and when that one
/// gets the lock.
async fn behind_the_dead(windows: &[Duration], holder_dies: bool, cooldown: Duration) -> Duration {
    let world = World::new();
    let (its_faults, holder) = doomed(&world);
    let guard = holder.mutex("a").ttl(secs(2)).lock().await.unwrap();
    let mut dying = vec![];
    for (n, window) in windows.iter().enumerate() {
        let (faults, client) = doomed(&world);
        let mutex = client.mutex("a").ttl(*window);
        dying.push((faults, tokio::spawn(async move { mutex.lock().await.map(drop) })));
        while world.waiters("a").await <= n {
            tokio::time::sleep(ms(1)).await;
        }
    }
    let mutex = world.client().mutex("a").ttl(secs(30));
    let alive = tokio::spawn(async move { mutex.lock().await.map(drop) });
    while world.waiters("a").await <= windows.len() {
        tokio::time::sleep(ms(1)).await;
    }
    for (faults, waiting) in dying {
        faults.black_out(true);
        waiting.abort();
    }
    let died = Instant::now();
    if holder_dies {
        its_faults.black_out(true);
        std::mem::forget(guard);
    } else {
        tokio::time::sleep(ms(300)).await;
        guard.release_with_cooldown(cool(cooldown)).await.unwrap();
    }
    alive.await.unwrap().unwrap();
    died.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_the_dead_is_served_once_the_lock_is_free_and_their_timeouts_are_over() {
    for windows in [&[1][..], &[5], &[1, 5], &[5, 1], &[5, 5, 5]] {
        let windows: Vec<_> = windows.iter().map(|window| secs(*window)).collect();
        let over = *windows.iter().max().unwrap();
        let look = secs(windows.len() as u64);
        for (holder_dies, free) in [(true, secs(2)), (false, secs(1)), (false, secs(4))] {
            let waited = behind_the_dead(&windows, holder_dies, free).await;
            let most = over.max(free + ms(300)) + look + ms(50);
            assert!(waited + ms(100) >= free, "{windows:?}, {holder_dies}, {free:?}: {waited:?}");
            assert!(waited <= most, "{windows:?}, {holder_dies}, {free:?}: {waited:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn contenders_of_one_client_ride_out_one_outage_together() {
    let scene = Scene::new().await;
    let Scene { world, faults, client, .. } = &scene;
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let mutex = client.mutex("c").ttl(secs(600));
            tokio::spawn(async move { (mutex.lock().await.map(drop), Instant::now()) })
        })
        .collect();
    while world.waiters("c").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    faults.black_out(true);
    let began = Instant::now();
    for one in waiting {
        let (outcome, at) = one.await.unwrap();
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
        // 30 s, the wait for the next heartbeat, and the `leave`.
        assert!(at - began <= secs(50), "{:?}", at - began);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_when_a_wait_times_out_is_not_called_busy() {
    let scene = Scene::new().await;
    let Scene { world, faults, client, .. } = &scene;
    let mutex = client.mutex("a").ttl(secs(3));
    let barging = client.mutex("a").fairness(leasehold::Fairness::Barging);
    let down = async {
        while world.waiters("a").await == 0 {
            tokio::time::sleep(ms(1)).await;
        }
        faults.black_out(true);
    };
    let (on_the_wire, behind, barging, ()) = tokio::join!(
        mutex.lock_within(secs(9)),
        mutex.lock_within(secs(8)),
        barging.lock_within(secs(9)),
        down
    );
    for outcome in [on_the_wire, behind, barging] {
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.holder()), (ErrorKind::Unavailable, None), "{error}");
        assert!(error.to_string().contains("so the state of the lock is unknown"), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }
}

#[cfg(feature = "redis")]
mod processes {
    //! Programs that end right after their answer, judged by what the server has then.

    use std::process::{Command, Stdio};

    use leasehold::{Client, ErrorKind, Owner, Wait as _};
    use leasehold_testkit::process::TestProcess;
    use leasehold_testkit::server::RedisServer;

    use crate::support::ms;

    const URL: &str = "LEASEHOLD_TEST_GIVES_UP_AT";
    const KIND: &str = "LEASEHOLD_TEST_GIVES_UP_ON";

    /// The program: this test binary, started again. In an ordinary run of the tests it has nothing
    /// to do.
    #[test]
    #[expect(clippy::exit, reason = "nothing may run after the answer, not even what ends a test")]
    fn program() {
        let (Ok(url), Ok(kind)) = (std::env::var(URL), std::env::var(KIND)) else { return };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = if let Some(kind) = kind.strip_prefix("thread's ") {
            of_a_thread(&url, kind)
        } else {
            runtime.block_on(wait_for(&url, &kind))
        };
        std::process::exit(if error.kind() == ErrorKind::Timeout { 75 } else { 1 });
    }

    async fn wait_for(url: &str, kind: &str) -> leasehold::Error {
        let client = Client::connect(url).await.unwrap();
        let limit = ms(200);
        match kind {
            "mutex" => client.mutex("a").lock_within(limit).await.unwrap_err(),
            "barging" => {
                let mutex = client.mutex("a").fairness(leasehold::Fairness::Barging);
                mutex.lock_within(limit).await.unwrap_err()
            }
            "read" => client.rwlock("a").read_within(limit).await.unwrap_err(),
            "write" => client.rwlock("a").write_within(limit).await.unwrap_err(),
            "reentrant" => {
                client.reentrant("a", &Owner::new()).lock_within(limit).await.unwrap_err()
            }
            "election" => client.election("a").campaign_within(limit).await.unwrap_err(),
            "semaphore" => client.semaphore("b", 1).acquire_within(limit).await.unwrap_err(),
            "multi" => client.multi(["a", "a0"]).lock_within(limit).await.unwrap_err(),
            "multi, the first free" => {
                client.multi(["0", "a"]).lock_within(limit).await.unwrap_err()
            }
            other => panic!("no such kind: {other}"),
        }
    }

    fn of_a_thread(url: &str, kind: &str) -> leasehold::Error {
        let client = Client::connect(url).wait().unwrap();
        match kind {
            "mutex" => client.mutex("a").lock_within(ms(200)).wait().unwrap_err(),
            "multi" => client.multi(["0", "a"]).lock_within(ms(200)).wait().unwrap_err(),
            other => panic!("no such kind: {other}"),
        }
    }

    #[tokio::test]
    async fn a_program_that_ends_when_its_wait_timed_out_leaves_nothing_in_the_store() {
        let server = RedisServer::start();
        let holder = Client::connect(server.url()).await.unwrap();
        let _a = holder.mutex("a").lock().await.unwrap();
        let _b = holder.semaphore("b", 1).acquire().await.unwrap();
        let kinds = [
            "mutex",
            "barging",
            "read",
            "write",
            "reentrant",
            "election",
            "semaphore",
            "multi",
            "multi, the first free",
            "thread's mutex",
            "thread's multi",
        ];
        for kind in kinds {
            for turn in 0..3 {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["leaving::processes::program", "--exact", "--nocapture"]);
                command.env(URL, server.url()).env(KIND, kind).stdout(Stdio::null());
                let ended =
                    tokio::task::spawn_blocking(|| TestProcess::spawn(command).unwrap().wait());
                assert_eq!(ended.await.unwrap().code(), Some(75), "{kind}");
                let left = holder.list("").await.unwrap().locks;
                let names: Vec<_> = left.iter().map(|lock| lock.key.as_str()).collect();
                assert_eq!(names, ["a", "b"], "{kind}, turn {turn}");
                let waiters: usize = left.iter().map(|lock| lock.waiters.len()).sum();
                assert_eq!(waiters, 0, "{kind}, turn {turn}");
            }
        }
    }
}

/// A client whose next acquisition breaks off, and is carried out `before` later.
async fn broken(world: &World, before: Duration) -> (FaultStore, leasehold::Client) {
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    // It has heard of the store, so it tries again.
    drop(client.mutex("b").lock().await.unwrap());
    faults.next(Op::Acquire, Fault::Break { before });
    (faults, client)
}

/// Nothing is left of "a", and nothing comes.
async fn stays_idle(world: &World) {
    for _ in 0..50 {
        assert!(world.is_idle("a").await);
        tokio::time::sleep(ms(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_outlasts_a_request_of_its_lease_that_was_not_answered() {
    for before in [ms(300), ms(1_900)] {
        let world = World::new();
        let (_faults, client) = broken(&world, before).await;
        let guard = client.mutex("a").lock_within(secs(9)).await.unwrap();
        let started = Instant::now();
        guard.release().await.unwrap();
        assert!(started.elapsed() < secs(3), "{:?}", started.elapsed());
        stays_idle(&world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_does_so_in_the_background() {
    let world = World::new();
    let (_faults, client) = broken(&world, ms(1_500)).await;
    drop(client.mutex("a").lock_within(secs(9)).await.unwrap());
    client.close().await.unwrap();
    stays_idle(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_try_that_broke_off_is_cleaned_up_when_its_error_is_returned() {
    let world = World::new();
    let (_faults, client) = broken(&world, ms(700)).await;
    let error = client.mutex("a").try_lock().await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
    stays_idle(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_has_left_is_not_brought_back_to_its_position() {
    let world = World::new();
    let holder = world.client().mutex("a").lock().await.unwrap();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let waiting = tokio::spawn({
        let mutex = client.mutex("a").ttl(secs(3));
        async move { mutex.lock_within(ms(1_600)).await }
    });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(10)).await;
    }
    faults.decide(|call| match call.op {
        Op::Acquire => Fault::Break { before: ms(900) },
        _ => Fault::None,
    });
    waiting.await.unwrap().unwrap_err();
    holder.release().await.unwrap();
    stays_idle(&world).await;
}

#[tokio::test(start_paused = true)]
async fn the_secret_of_a_detached_lease_is_not_brought_back() {
    let world = World::new();
    let (_faults, client) = broken(&world, ms(1_500)).await;
    let guard = client.mutex("a").lock_within(secs(9)).await.unwrap();
    let detached = guard.detach().await.unwrap();
    let guard = client.adopt(&detached).await.unwrap();
    guard.release().await.unwrap();
    stays_idle(&world).await;
}

/// A store that repeats an acquisition for ten seconds, as a store may after the answer that it was
/// not carried out. Then the connection breaks behind the last, which is carried out later.
#[derive(Clone, Debug)]
struct Repeats {
    inner: Arc<dyn Store>,
    done: Arc<AtomicBool>,
}

impl StoreLayer for Repeats {
    fn carry<'a, C: Call + ?Sized>(
        &'a self,
        call: &'a C,
        within: Duration,
    ) -> BoxFuture<'a, C::Answer> {
        Box::pin(async move {
            if C::METHOD != Op::Acquire || self.done.swap(true, Ordering::SeqCst) {
                return call.send(&*self.inner, within).await;
            }
            tokio::time::sleep(secs(10)).await;
            let (inner, last) = (Arc::clone(&self.inner), call.to_owned());
            tokio::spawn(async move {
                tokio::time::sleep(ms(1_500)).await;
                drop(Borrow::<C>::borrow(&last).send(&*inner, within).await);
            });
            let why = Error::new(ErrorKind::Unavailable, "the connection broke");
            call.fail(why.with_effect(Effect::Unknown))
        })
    }

    fn log(&self) -> Option<Arc<dyn LockLog>> {
        None
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_store_repeated_is_in_doubt_from_its_last_time_on() {
    let world = World::new();
    let store = Repeats { inner: Arc::new(world.store.clone()), done: Arc::default() };
    let client = leasehold::Client::builder().call_timeout(secs(20)).store(Arc::new(store));
    let error = client.unwrap().mutex("a").try_lock().await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
    stays_idle(&world).await;
}
