//! The client on a real server: what it costs there, and what a bad wire does to it.

use std::sync::Arc;

use leasehold::{Client, ErrorKind, Mutex, Release};
use leasehold_core::{Acquire, AcquireRequest, Key, Renew, RenewRequest, Token, Ttl};
use leasehold_testkit::proxy::{AfterLoss, Proxy};
use leasehold_testkit::server::RedisServer;

use crate::connected::connected;
use crate::support::{ms, patiently, secs};

async fn waiting(client: &Client, key: &str) -> usize {
    // A busy machine may keep an answer for longer than the client waits.
    client.inspect(key).await.ok().flatten().map_or(0, |info| info.waiters.len())
}

async fn nothing_is_left(client: &Client) {
    patiently("the locks to come to rest", async {
        while client.list("").await.map_or(true, |list| !list.locks.is_empty()) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

/// How many scripts the server has run.
fn scripts(server: &RedisServer) -> u64 {
    server.command_calls("evalsha") + server.command_calls("eval")
}

/// A lock value with a local queue of its own, as in a process of its own.
fn alone(client: &Client, key: &str, n: usize) -> Mutex {
    client.mutex(key).metadata(n.to_string()).ttl(secs(60))
}

#[tokio::test]
async fn an_uncontended_lock_is_two_requests_and_no_subscription() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.unwrap();
    let mutex = client.mutex("a");
    assert_eq!(mutex.lock().await.unwrap().release_outcome().await.unwrap(), Release::Released);
    let before = scripts(&server);
    for _ in 0..10 {
        assert_eq!(mutex.lock().await.unwrap().release_outcome().await.unwrap(), Release::Released);
    }
    assert_eq!(scripts(&server) - before, 20);
    assert_eq!(server.command_calls("subscribe"), 0);
}

/// Waiters as of this many processes, each handed the lease once: the server's requests for each.
async fn requests_per_hand_off(waiters: usize) -> f64 {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.unwrap();
    let guard = client.mutex("a").lock().await.unwrap();
    let tasks: Vec<_> = (0..waiters)
        .map(|n| {
            // With heartbeat timeouts so long that no waiter sends a heartbeat while this runs.
            let mutex = alone(&client, "a", n).ttl(secs(3_600)).stop_grace(secs(600));
            tokio::spawn(
                async move { mutex.lock().await.unwrap().release_outcome().await.unwrap() },
            )
        })
        .collect();
    patiently("all waiters to be in the queue", async {
        while waiting(&client, "a").await < waiters {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    let before = scripts(&server);
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    for task in tasks {
        assert_eq!(patiently("a turn", task).await.unwrap(), Release::Released);
    }
    let requests = scripts(&server) - before;
    nothing_is_left(&client).await;
    f64::from(u32::try_from(requests).unwrap()) / f64::from(u32::try_from(waiters).unwrap())
}

#[tokio::test]
async fn a_hand_off_costs_the_server_the_same_for_two_waiters_and_for_a_thousand() {
    for waiters in [2, 16, 100, 1_000] {
        let requests = requests_per_hand_off(waiters).await;
        // Two are needed: the release, which grants the lock to the next waiter, and the request
        // that joined the queue. The rest is room for a slow machine.
        assert!(requests <= 3.0, "{requests} requests for each of {waiters} hand-offs");
    }
}

#[tokio::test]
async fn a_hand_off_inside_the_process_asks_the_server_nothing() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.unwrap();
    // The channel is opened first, or its opening would be counted.
    let guard = client.mutex("b").lock().await.unwrap();
    assert!(client.mutex("b").lock_within(ms(1)).await.is_err());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    let mutex = client.mutex("a");
    let before = scripts(&server);
    let turns = 17 * 20;
    let tasks: Vec<_> = (0..turns)
        .map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(
                async move { mutex.lock().await.unwrap().release_outcome().await.unwrap() },
            )
        })
        .collect();
    for task in tasks {
        assert_eq!(patiently("a turn", task).await.unwrap(), Release::Released);
    }
    let requests = scripts(&server) - before;
    // One acquisition and one release for 17 turns; time, not only number, can end a run early.
    assert!(requests * 4 <= turns, "{requests} requests for {turns} turns");
}

#[tokio::test]
async fn the_lock_of_a_dead_holder_is_taken_over_by_one_of_a_thousand_without_a_stampede() {
    let server = RedisServer::start();
    let client = Client::connect(server.url()).await.unwrap();
    let dead = AcquireRequest::new(
        Key::new("a").unwrap(),
        Token::generate().unwrap(),
        Ttl::new(secs(3_600)).unwrap(),
    );
    let Acquire::Granted(granted) = client.store().acquire(&dead, secs(5)).await.unwrap() else {
        panic!("it was free");
    };
    let (sender, mut held) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..1_000 {
        // With heartbeat timeouts so long that no waiter sends a heartbeat while this runs.
        let mutex = alone(&client, "a", n).ttl(secs(3_600)).stop_grace(secs(600));
        let sender = sender.clone();
        waiters.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            sender.send(guard.fence().unwrap()).unwrap();
            std::future::pending::<()>().await;
        });
    }
    patiently("all waiters to be in the queue", async {
        while waiting(&client, "a").await < 1_000 {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    // Its last sign of life.
    let ends = Ttl::new(secs(1)).unwrap();
    let mut last = RenewRequest::new(dead.key, dead.token, granted.fences, ends);
    last.shorten = true;
    let before = scripts(&server);
    let answer = client.store().renew(&[last], secs(5)).await.remove(0).unwrap();
    assert_eq!(answer, Renew::Renewed);
    patiently("the take-over", held.recv()).await.unwrap();
    let requests = scripts(&server) - before;
    assert!(requests <= 20, "{requests} requests for one take-over");
    assert!(held.try_recv().is_err());
}

#[tokio::test]
async fn a_queue_moves_on_though_its_subscriptions_are_killed_all_the_time() {
    let server = Arc::new(RedisServer::start());
    let holder = Client::connect(server.url()).await.unwrap();
    let guard = holder.mutex("a").lock().await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..20 {
        let client = Client::connect(server.url()).await.unwrap();
        tasks.push(tokio::spawn(async move {
            let mutex = client.mutex("a").ttl(secs(3)).metadata(n.to_string());
            let guard = mutex.lock().await.unwrap();
            assert!(guard.is_held());
            guard.release_outcome().await.unwrap()
        }));
    }
    patiently("all waiters to be in the queue", async {
        while waiting(&holder, "a").await < 20 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    let killer = tokio::spawn({
        let server = Arc::clone(&server);
        async move {
            loop {
                let server = Arc::clone(&server);
                let kill = move || server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                tokio::task::spawn_blocking(kill).await.unwrap();
                tokio::time::sleep(ms(3)).await;
            }
        }
    });
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    for task in tasks {
        assert_eq!(patiently("a turn", task).await.unwrap(), Release::Released);
    }
    killer.abort();
    nothing_is_left(&holder).await;
}

#[tokio::test]
async fn a_waiter_that_a_full_server_refuses_leaves_the_queue_and_its_lock_to_others() {
    let server = RedisServer::start();
    let holder = Client::connect(server.url()).await.unwrap();
    let waiter = Client::connect(server.url()).await.unwrap();
    let guard = holder.mutex("a").ttl(secs(2)).lock().await.unwrap();
    let mutex = waiter.mutex("a");
    let waits = tokio::spawn(async move { mutex.lock().await });
    patiently("the waiter to be in the queue", async {
        while waiting(&holder, "a").await == 0 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert_eq!(server.cli(&["config", "set", "maxmemory", "1"]), "OK");
    let error = patiently("the refusal", waits).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(waiting(&holder, "a").await, 0);
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    assert_eq!(holder.inspect("a").await.unwrap(), None, "a client holds it without knowing");
    assert_eq!(server.cli(&["config", "set", "maxmemory", "0"]), "OK");
    assert!(waiter.mutex("a").try_lock().await.unwrap().is_some(), "it is not free");
}

#[tokio::test]
async fn waiters_come_and_go_by_the_thousand_and_leave_nothing_on_the_server() {
    let server = RedisServer::start();
    let tasks = alive();
    let holder = Client::connect(server.url()).await.unwrap();
    let guard = holder.mutex("a").lock().await.unwrap();
    let client = Client::connect(server.url()).await.unwrap();
    let waiters: Vec<_> = (0..10_000)
        .map(|n| {
            let mutex = alone(&client, "a", n % 100);
            tokio::spawn(async move { mutex.lock_within(secs(1)).await.map(drop) })
        })
        .collect();
    for waiter in waiters {
        assert!(patiently("a waiter to give up", waiter).await.unwrap().is_err());
    }
    patiently("the line to be empty", async {
        while waiting(&holder, "a").await > 0 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
    client.close().await.unwrap();
    drop((client, holder));
    patiently("the subscription to end", async {
        while !server.cli(&["PUBSUB", "CHANNELS"]).trim().is_empty() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    patiently("the tasks to end", async {
        while alive() > tasks {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

fn alive() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Everything a client does with a lock, with one reply lost on the way; errors are fine, but
/// nothing may be left without an owner.
#[tokio::test]
async fn whichever_reply_is_lost_no_lock_is_left_behind() {
    let server = RedisServer::start();
    let watcher = Client::connect(server.url()).await.unwrap();
    for after in [AfterLoss::Close, AfterLoss::Cut, AfterLoss::Silence] {
        let mut cut_short = 0;
        for k in 1.. {
            let proxy = Proxy::start(server.addr());
            let builder = Client::builder().call_timeout(ms(400));
            let client = connected(builder, &proxy.url()).await;
            let dropped = proxy.stats().replies_dropped;
            proxy.drop_reply(k, after);
            everything(&client, &watcher).await;
            let reached = proxy.stats().replies_dropped > dropped;
            client.close().await.ok();
            nothing_is_left(&watcher).await;
            if !reached && k > 8 {
                break;
            }
            // On a busy machine a call times out, and the scenario ends early.
            cut_short += u32::from(!reached);
            assert!(cut_short < 5, "the scenario had only {k} replies");
        }
    }
}

/// An answer that was cut off is an outage as any other, and no strange protocol.
#[tokio::test]
async fn a_wait_goes_on_whichever_reply_is_cut_off() {
    let server = RedisServer::start();
    let watcher = Client::connect(server.url()).await.unwrap();
    for k in 1..=8 {
        let proxy = Proxy::start(server.addr());
        let client = connected(Client::builder().call_timeout(ms(400)), &proxy.url()).await;
        let held = watcher.mutex("a").lock().await.unwrap();
        proxy.drop_reply(k, AfterLoss::Cut);
        let mutex = client.mutex("a").ttl(secs(2));
        let releasing = async {
            tokio::time::sleep(ms(30)).await;
            held.release().await.unwrap();
        };
        let (waited, ()) = tokio::join!(mutex.lock_within(secs(30)), releasing);
        drop(waited.unwrap_or_else(|error| panic!("reply {k} was cut off: {error}")));
        client.close().await.ok();
        nothing_is_left(&watcher).await;
    }
}

async fn everything(client: &Client, watcher: &Client) {
    let mutex = client.mutex("a").ttl(secs(2));
    if let Ok(Some(guard)) = mutex.try_lock().await {
        drop(guard.renew_to(secs(3)).await);
        drop(guard.ttl().await);
        drop(guard.release().await);
    }
    let held = watcher.mutex("a").lock().await.unwrap();
    let waiting = async { mutex.lock_within(secs(6)).await };
    let releasing = async {
        tokio::time::sleep(ms(30)).await;
        drop(held.release().await);
    };
    if let (Ok(guard), ()) = tokio::join!(waiting, releasing) {
        drop(mutex.relock(guard).await);
    }
}

/// Damages the lock's record, as another program could.
fn damage(server: &RedisServer, key: &str, field: &str) {
    let garbage = "\u{11}garbage";
    assert_eq!(server.cli(&["HSET", &format!("leasehold:{{{key}}}"), field, garbage]), "0");
}

#[tokio::test]
async fn a_wait_for_a_lock_that_is_damaged_ends_at_once_and_says_so() {
    let server = RedisServer::start();
    let [holder, other] = [(); 2].map(|()| Client::connect(server.url()));
    let (holder, other) = (holder.await.unwrap(), other.await.unwrap());
    for field in ["state", "about"] {
        let guard = holder.mutex(field).ttl(secs(3)).lock().await.unwrap();
        let mutex = other.mutex(field).ttl(secs(3));
        let waits = tokio::spawn(async move { mutex.lock_within(secs(3_600)).await });
        patiently("the wait", async {
            while waiting(&other, field).await == 0 {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        damage(&server, field, field);
        let errors = [
            patiently("the end of a wait", waits).await.unwrap().unwrap_err(),
            patiently("a new wait", other.mutex(field).lock()).await.unwrap_err(),
            other.mutex(field).try_lock().await.unwrap_err(),
            other.inspect(field).await.unwrap_err(),
            other.list(field).await.unwrap().unreadable.remove(0),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{field}: {error}");
        }
        drop(guard.release().await);
    }
    // An unreadable lock is not abandoned again and again.
    patiently("nothing to be given up any more", other.close()).await.unwrap();
    patiently("nothing to be given up any more", holder.close()).await.unwrap();
}
