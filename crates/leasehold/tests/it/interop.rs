//! Locks of other libraries, whose programs are played here by single commands. The programs
//! themselves are run by `cargo xtask interop`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::interop::{InteropStore, Layout, Plain, Redisson};
use leasehold::{Client, Effect, ErrorKind, LockOptions, Owner, Release, WaitLimit};
use leasehold_core::{AcquireRequest, ClientId, Key, ReleaseRequest, Store as _, Token, Ttl};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;
use tokio::task::JoinSet;

use crate::support::{PATIENCE, cool, ms, patiently, secs};

pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    patiently(what, async {
        while !holds() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

pub(crate) fn layouts() -> impl Iterator<Item = Layout> {
    let all = "plain redis-py python-redis-lock node-redlock redis-semaphore redislock redsync \
               symfony spring:registry shedlock:prod redisson redisson-fenced";
    all.split(' ').map(|layout| layout.parse().unwrap())
}

async fn client(server: &RedisServer, layout: Layout) -> Client {
    Client::builder().interop(layout).connect(server.url()).await.unwrap()
}

/// A program of another library does something.
fn does(server: &RedisServer, command: &[&str]) {
    drop(server.cli(command));
}

/// How many scripts the server has run.
fn scripts(server: &RedisServer) -> u64 {
    server.command_calls("evalsha") + server.command_calls("eval")
}

/// Returns once the server tracks keys for this many connections.
async fn tracked(server: &RedisServer, connections: u64) {
    until("the keys to be tracked", || {
        let clients = server.info("clients");
        clients.get("tracking_clients").is_some_and(|n| n.parse::<u64>().unwrap() >= connections)
    })
    .await;
}

/// Returns once a client reads a key because it waits for it or holds it.
pub(crate) async fn watched(server: &RedisServer) {
    until("a key to be watched", || {
        let stats = server.info("stats");
        stats.get("tracking_total_keys").is_some_and(|n| n.parse::<u64>().unwrap() > 0)
    })
    .await;
}

#[tokio::test]
async fn every_layout_has_one_holder_and_leaves_nothing_behind() {
    for layout in layouts() {
        let server = RedisServer::start();
        let one = client(&server, layout.clone()).await;
        let other = client(&server, layout.clone()).await;
        let guard = one.mutex("a").lock().await.unwrap();
        assert!(other.mutex("a").try_lock().await.unwrap().is_none(), "{layout}");
        assert!(guard.is_held_by_store().await.unwrap(), "{layout}");
        let waiting = tokio::spawn(async move { other.mutex("a").lock().await });
        watched(&server).await;
        guard.release().await.unwrap();
        let guard = patiently("the release", waiting).await.unwrap().unwrap();
        assert_eq!(guard.release_outcome().await.unwrap(), Release::Released, "{layout}");
        let left = server.cli(&["KEYS", "*"]);
        let expected = match layout {
            Layout::PythonRedisLock => "lock-signal:a",
            Layout::RedissonFenced => "redisson_lock_token:{a}",
            _ => "",
        };
        assert_eq!(left.trim(), expected, "{layout}");
    }
}

#[tokio::test]
async fn a_lease_is_renewed_in_every_layout() {
    for layout in layouts() {
        let server = RedisServer::start();
        let client = client(&server, layout.clone()).await;
        let guard = client.mutex("a").ttl(secs(6)).lock().await.unwrap();
        let left = async || client.inspect("a").await.unwrap().unwrap().holders[0].remaining;
        patiently("a renewal", async {
            let mut before = left().await;
            loop {
                tokio::time::sleep(ms(20)).await;
                let now = left().await;
                if now > before {
                    return;
                }
                before = now;
            }
        })
        .await;
        assert!(guard.is_held() && guard.is_held_by_store().await.unwrap(), "{layout}");
        guard.renew_to(secs(120)).await.unwrap();
        assert!(guard.ttl().await.unwrap() > secs(60), "{layout}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn another_programs_release_wakes_a_waiter_that_does_not_poll_meanwhile() {
    let server = RedisServer::start();
    does(&server, &["SET", "orders", "another's", "PX", "600000"]);
    let locks = Plain::connect(server.url(), Layout::RedisPy).await.unwrap();
    let waiting = tokio::spawn(async move { locks.mutex("orders").lock().await });
    watched(&server).await;
    let before = scripts(&server);
    tokio::time::sleep(secs(2)).await;
    assert_eq!(scripts(&server), before, "nobody asks while the key stands");
    does(&server, &["DEL", "orders"]);
    let guard = patiently("the release", waiting).await.unwrap().unwrap();
    assert_eq!(scripts(&server), before + 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_expiry_that_another_program_cuts_short_is_waited_for() {
    let server = RedisServer::start();
    does(&server, &["SET", "orders", "another's", "PX", "600000"]);
    let locks = Plain::connect(server.url(), Layout::Redsync).await.unwrap();
    let waiting = tokio::spawn(async move { locks.mutex("orders").lock().await });
    watched(&server).await;
    does(&server, &["PEXPIRE", "orders", "300"]);
    patiently("the expiry", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_lease_that_another_program_ends_is_lost_at_once() {
    let ways: [&[&str]; 4] =
        [&["DEL", "a"], &["SET", "a", "another's"], &["FLUSHALL"], &["LPUSH", "other", "1"]];
    for renew in [true, false] {
        for way in ways {
            let server = RedisServer::start();
            let locks = Plain::connect(server.url(), Layout::Redislock).await.unwrap();
            // The next renewal is far away.
            let mutex = locks.mutex("a").ttl(secs(3_600)).renew(renew);
            let guard = mutex.lock().await.unwrap();
            tracked(&server, 1).await;
            watched(&server).await;
            does(&server, way);
            if way.contains(&"other") {
                tokio::time::sleep(ms(300)).await;
                assert!(guard.is_held(), "a change to another key is no loss");
                continue;
            }
            patiently("the loss", guard.lost()).await;
            assert_eq!(guard.release_outcome().await.unwrap(), Release::NotHeld, "{way:?}");
            if way.contains(&"another's") {
                assert_eq!(server.cli(&["GET", "a"]).trim(), "another's");
            }
        }
    }
}

#[tokio::test]
async fn what_a_holder_does_itself_is_no_loss() {
    let server = RedisServer::start();
    let locks = Plain::connect(server.url(), Layout::NodeRedlock).await.unwrap();
    let guard = locks.mutex("a").ttl(ms(900)).lock().await.unwrap();
    for _ in 0..20 {
        guard.renew_to(secs(30)).await.unwrap();
        tokio::time::sleep(ms(20)).await;
        guard.renew_to(ms(900)).await.unwrap();
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
    let again = locks.mutex("a").lock().await.unwrap();
    tokio::time::sleep(ms(200)).await;
    assert!(again.is_held(), "the release before is none of the new lease's business");
    again.release().await.unwrap();
}

#[tokio::test]
async fn a_value_of_another_type_is_named_and_left_alone() {
    for layout in layouts() {
        let server = RedisServer::start();
        let client = client(&server, layout.clone()).await;
        let stored = client.mutex("a").lock().await.unwrap();
        let key = server.cli(&["KEYS", "*a"]).lines().next().unwrap().to_owned();
        let key = if key.contains("token") { "a".to_owned() } else { key };
        stored.release().await.unwrap();
        does(&server, &["RPUSH", &key, "x"]);
        let error = client.mutex("a").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Foreign, "{layout}");
        assert!(error.to_string().contains("list"), "{error}");
        assert_eq!(client.inspect("a").await.unwrap_err().kind(), ErrorKind::Foreign, "{layout}");
        assert_eq!(server.cli(&["LRANGE", &key, "0", "-1"]).trim(), "x", "{layout}");
    }
}

#[tokio::test]
async fn a_lock_without_expiry_is_taken_over_only_where_that_was_asked_for() {
    let server = RedisServer::start();
    for key in ["text", "hash"] {
        let layout = if key == "text" { Layout::Plain } else { Layout::Redisson };
        match key {
            "text" => does(&server, &["SET", key, "left over"]),
            _ => does(&server, &["HSET", key, "left:over", "1"]),
        };
        let careful = client(&server, layout.clone()).await;
        let wait = careful.mutex(key).lock_within(ms(50)).await;
        assert_eq!(wait.unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(server.cli(&["PTTL", key]).trim(), "-1", "it is left alone");

        let store = RedisStore::connect(&server.url()).await.unwrap();
        let expiry = Ttl::new(ms(400)).unwrap();
        let store = InteropStore::new(store, layout).leftovers(expiry);
        let bold = Client::new(Arc::new(store)).unwrap();
        let guard = patiently("the takeover", bold.mutex(key).lock()).await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn metadata_stands_behind_the_token_and_is_read_there() {
    let server = RedisServer::start();
    let locks = Plain::connect(server.url(), Layout::Redislock).await.unwrap();
    let guard = locks.mutex("a").metadata("billing 7").lock().await.unwrap();
    let value = server.cli(&["GET", "a"]);
    assert!(value.trim().len() == 22 + 9 && value.trim().ends_with("billing 7"), "{value}");
    assert_eq!(value.trim(), format!("{}billing 7", guard.token()));
    assert_eq!(locks.metadata("a").await.unwrap().unwrap().as_str(), "billing 7");
    guard.renew_to(secs(60)).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(locks.metadata("a").await.unwrap(), None);

    let shedlock = Layout::ShedLock { environment: "prod".to_owned() };
    let locks = Plain::connect(server.url(), shedlock).await.unwrap();
    let error = locks.mutex("a").metadata("x").try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn redissons_lock_counts_the_holds_of_its_owner() {
    let server = RedisServer::start();
    let locks = Redisson::connect(server.url()).await.unwrap();
    let (owner, stranger) = (Owner::new(), Owner::new());
    let outer = locks.lock("a", &owner).lock().await.unwrap();
    let inner = locks.lock("a", &owner).lock().await.unwrap();
    assert!(locks.lock("a", &stranger).try_lock().await.unwrap().is_none());
    assert_eq!(server.cli(&["HVALS", "a"]).trim(), "2");
    assert_eq!(inner.token().unwrap(), None);
    assert_eq!(inner.release().await.unwrap(), 1);
    assert_eq!(server.cli(&["HVALS", "a"]).trim(), "1");
    assert_eq!(outer.release().await.unwrap(), 0);
    assert_eq!(server.cli(&["EXISTS", "a"]).trim(), "0");
}

#[tokio::test]
async fn an_owner_of_redissons_lock_is_its_own_clients_alone() {
    let server = RedisServer::start();
    let (here, there) = (Redisson::connect(server.url()), Redisson::connect(server.url()));
    let (here, there) = (here.await.unwrap(), there.await.unwrap());
    // Other processes may have the same id.
    let by_id = Owner::from_secret("the caller's own id").unwrap();
    let error = here.lock("a", &by_id).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(server.cli(&["EXISTS", "a"]).trim(), "0");
    let owner = Owner::new();
    let held = here.lock("a", &owner).lock().await.unwrap();
    assert!(there.lock("a", &owner).try_lock().await.unwrap().is_none());
    // Who counts under the field of another one has nothing of it: the lock ends with its holder's
    // release.
    let field = server.cli(&["HKEYS", "a"]);
    assert_eq!(server.cli(&["HINCRBY", "a", field.trim(), "1"]).trim(), "2");
    assert_eq!(held.release().await.unwrap(), 0);
    assert_eq!(server.cli(&["EXISTS", "a"]).trim(), "0");
}

#[tokio::test]
async fn redissons_fenced_lock_issues_growing_numbers() {
    let server = RedisServer::start();
    let locks = Redisson::connect_fenced(server.url()).await.unwrap();
    let owner = Owner::new();
    let mut last = 0;
    for _ in 0..3 {
        let outer = locks.lock("a", &owner).lock().await.unwrap();
        let inner = locks.lock("a", &owner).lock().await.unwrap();
        let token = outer.token().unwrap().unwrap();
        assert_eq!(inner.token().unwrap(), Some(token), "one lease, one number");
        assert!(token > last);
        last = token;
        inner.release().await.unwrap();
        outer.release().await.unwrap();
    }
    assert_eq!(server.cli(&["GET", "redisson_lock_token:{a}"]).trim(), last.to_string());
}

#[tokio::test]
async fn a_release_notifies_waiters_in_the_way_of_the_library() {
    let server = RedisServer::start();
    let url = server.url();
    for (layout, pattern) in
        [("redisson", "redisson_lock__channel:*"), ("spring:reg", "reg-channel:*")]
    {
        let layout: Layout = layout.parse().unwrap();
        let listener = redis::Client::open(&*url).unwrap();
        let mut listener = listener.get_async_pubsub().await.unwrap();
        listener.psubscribe(pattern).await.unwrap();
        let client = client(&server, layout.clone()).await;
        client.mutex("a").lock().await.unwrap().release().await.unwrap();
        let (_, mut messages) = listener.split();
        let next = std::future::poll_fn(|cx| {
            futures_core::Stream::poll_next(std::pin::Pin::new(&mut messages), cx)
        });
        let message = patiently("the message", next).await.unwrap();
        let payload: String = message.get_payload().unwrap();
        let expected = if layout.counts_holds() { "0" } else { "reg:a" };
        assert_eq!(payload, expected, "{layout}");
    }
}

#[tokio::test]
async fn what_a_layout_lacks_is_unsupported() {
    let server = RedisServer::start();
    let client = client(&server, Layout::RedisPy).await;
    let refused = [
        client.semaphore("a", 3).try_acquire().await.map(drop),
        client.rwlock("a").try_read().await.map(drop),
        client.list("").await.map(drop),
        client.mutex("a").ask().await.map(drop),
    ];
    for error in refused {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let guard = client.mutex("a").lock().await.unwrap();
    // The end is not refused with its wish.
    let error = guard.release_with_cooldown(cool(secs(1))).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::Applied));
    assert!(error.to_string().contains("released, but without its cooldown"), "{error}");
    client.mutex("a").try_lock().await.unwrap().unwrap().release().await.unwrap();
    let plain = Plain::connect(server.url(), Layout::Redisson).await.unwrap_err();
    assert_eq!(plain.kind(), ErrorKind::Config);
    let memory = Client::builder().interop(Layout::Plain).connect("memory:").await.unwrap_err();
    assert_eq!(memory.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn the_settings_of_all_locks_go_for_each_of_them() {
    let server = RedisServer::start();
    let usual = LockOptions::new().ttl(secs(1)).renew(false).wait_limit(WaitLimit::Ttl);
    let plain = Plain::connect(server.url(), Layout::Redislock).await.unwrap().options(&usual);
    let held = plain.mutex("a").ttl(secs(600)).lock().await.unwrap();
    let wait = patiently("a wait of one ttl", plain.mutex("a").lock()).await;
    assert!(wait.unwrap_err().is_not_obtained());
    let wait = patiently("a wait of its own", plain.mutex("a").wait_limit(ms(9)).lock()).await;
    assert!(wait.unwrap_err().is_not_obtained());
    held.release().await.unwrap();

    let redisson = Redisson::connect(server.url()).await.unwrap().options(&usual);
    let [one, two] = [Owner::new(), Owner::new()];
    let held = redisson.lock("b", &one).ttl(secs(600)).lock().await.unwrap();
    let wait = patiently("a wait of one ttl", redisson.lock("b", &two).lock()).await;
    assert!(wait.unwrap_err().is_not_obtained());
    held.release().await.unwrap();
}

#[tokio::test]
async fn locking_again_refreshes_what_is_held_and_takes_what_was_lost() {
    let server = RedisServer::start();
    let plain = Plain::connect(server.url(), Layout::Redislock).await.unwrap();
    let left = || server.cli(&["PTTL", "a"]).trim().parse::<u64>().unwrap();
    let mutex = plain.mutex("a").ttl(secs(60)).renew(false);
    let guard = mutex.lock().await.unwrap();
    let token = guard.lease().token();
    let guard = mutex.clone().ttl(secs(600)).relock(guard).await.unwrap().unwrap();
    assert!(left() > 60_000);
    assert_eq!(guard.lease().token(), token, "refreshed");

    does(&server, &["DEL", "a"]);
    let guard = mutex.relock(guard).await.unwrap().unwrap();
    assert_ne!(guard.lease().token(), token, "taken anew");

    does(&server, &["SET", "a", "another's", "PX", "600000"]);
    assert!(mutex.relock(guard).await.unwrap().is_none());
    assert_eq!(server.cli(&["GET", "a"]).trim(), "another's");

    let other = plain.mutex("b").lock().await.unwrap();
    let not_changed = mutex.relock(other).await.unwrap_err();
    assert_eq!(not_changed.kind(), ErrorKind::Misuse);
    not_changed.into_guard().release().await.unwrap();
}

#[tokio::test]
async fn locks_are_taken_together_or_not_at_all() {
    let server = RedisServer::start();
    let client = client(&server, Layout::Redislock).await;
    does(&server, &["SET", "b", "another's", "PX", "600000"]);
    assert!(client.multi(["a", "b"]).try_lock().await.unwrap().is_none());
    assert_eq!(server.cli(&["EXISTS", "a"]).trim(), "0");
    does(&server, &["DEL", "b"]);
    let both = client.multi(["a", "b"]).try_lock().await.unwrap().unwrap();
    assert_eq!(server.cli(&["EXISTS", "a", "b"]).trim(), "2");
    both.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "a", "b"]).trim(), "0");
}

#[tokio::test]
async fn a_refusal_to_track_keys_is_no_channel() {
    let server = RedisServer::builder().acl_user("poor on >x ~* +@all -client +client|id").start();
    let store = RedisStore::connect(&server.url_for("poor", "x")).await.unwrap();
    let store = InteropStore::new(store, Layout::Plain);
    let error = store.listen(ClientId::generate().unwrap(), PATIENCE).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_full_server_grants_nothing_and_keeps_what_is_held_in_every_layout() {
    for layout in layouts() {
        let server = RedisServer::start();
        let client = client(&server, layout.clone()).await;
        let held = client.mutex("a").ttl(secs(30)).lock().await.unwrap();
        does(&server, &["CONFIG", "SET", "maxmemory", "1"]);
        let refused = client.mutex("b").try_lock().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Full, "{layout}: {refused}");
        held.renew_to(secs(60)).await.unwrap();
        assert_eq!(held.release_outcome().await.unwrap(), Release::Released, "{layout}");
    }
}

#[tokio::test]
async fn short_holds_among_many_who_wait_are_not_taken_for_lost() {
    for layout in [Layout::Plain, Layout::Redisson] {
        let server = RedisServer::start();
        let mut contenders = JoinSet::new();
        for _ in 0..8 {
            let client = client(&server, layout.clone()).await;
            contenders.spawn(async move {
                for _ in 0..40 {
                    let guard = patiently("its turn", client.mutex("a").lock()).await.unwrap();
                    tokio::task::yield_now().await;
                    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
                }
            });
        }
        contenders.join_all().await;
    }
}

#[tokio::test]
async fn a_waiter_whose_server_tracks_nothing_polls() {
    let server = RedisServer::builder().acl_user("poor on >x ~* +@all -client +client|id").start();
    let locks = Plain::connect(server.url_for("poor", "x"), Layout::Plain).await.unwrap();
    does(&server, &["SET", "a", "another's", "PX", "600000"]);
    let waiting = tokio::spawn(async move { locks.mutex("a").lock().await });
    let before = scripts(&server);
    until("the waiter to ask", || scripts(&server) > before + 3).await;
    does(&server, &["DEL", "a"]);
    patiently("the release", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_look_that_the_server_refuses_is_no_loss() {
    let server = RedisServer::builder().acl_user("poor on >x ~* &* +@all -hkeys").start();
    let locks = Redisson::connect(server.url_for("poor", "x")).await.unwrap();
    let lock = locks.lock("a", &Owner::new()).ttl(secs(3_600));
    let guard = lock.lock().await.unwrap();
    until("a look", || server.info("commandstats").contains_key("cmdstat_hkeys")).await;
    tokio::time::sleep(ms(300)).await;
    assert!(guard.is_held());
    assert_eq!(guard.release_outcome().await.unwrap(), Release::Released);
}

/// Takes and releases a lock, and returns whether the release found it held.
async fn once_around(store: &InteropStore) -> leasehold_core::Release {
    let (key, token) = (Key::new("a").unwrap(), Token::generate().unwrap());
    let request = AcquireRequest::new(key.clone(), token, Ttl::new(secs(60)).unwrap());
    let fences = store.acquire(&request, PATIENCE).await.unwrap().fences().unwrap();
    let release = ReleaseRequest::new(key, token, fences);
    store.release(&release, PATIENCE).await.unwrap()
}

#[tokio::test]
async fn a_command_that_the_server_lacks_is_tried_once() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let store = InteropStore::new(store, Layout::Redislock);
    let refused = || server.info("errorstats").get("errorstat_ERR").cloned();
    let mut seen = Vec::new();
    for _ in 0..5 {
        assert_eq!(once_around(&store).await, leasehold_core::Release::Released);
        assert_eq!(server.cli(&["EXISTS", "a"]).trim(), "0");
        seen.push(refused());
    }
    // Two commands may be tried.
    assert_eq!(seen[1], seen[4], "{seen:?}");
}

#[tokio::test]
async fn an_adoption_that_no_layout_has_changes_nothing() {
    let server = RedisServer::start();
    for layout in layouts() {
        let name = layout.to_string();
        let client = client(&server, layout).await;
        let guard = client.mutex(&name).ttl(secs(600)).lock().await.unwrap();
        let lease = guard.detach().await.unwrap();
        client.renew(&lease, secs(60)).await.unwrap();
        let error = client.adopt(&lease).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
        let left = client.inspect(&name).await.unwrap().unwrap().holders[0].remaining;
        assert!(left <= secs(60), "{name}: it was renewed to {left:?}");
        client.release(&lease, None).await.unwrap();
    }
}

/// What a program of one deployment takes around its work.
#[derive(Clone, Copy, Debug)]
enum Deployed {
    Old,
    Both,
    New,
}

#[tokio::test]
async fn moving_to_leaseholds_own_locks_by_way_of_both_loses_no_update() {
    let server = RedisServer::start();
    let count = Arc::new(AtomicU32::new(0));
    let mut expected = 0;
    // Each deployment meets the one before it and the one after it, and never both.
    for deployments in [[Deployed::Old, Deployed::Both], [Deployed::Both, Deployed::New]] {
        let mut workers = tokio::task::JoinSet::new();
        for deployed in deployments.into_iter().cycle().take(6) {
            let (url, count) = (server.url(), Arc::clone(&count));
            workers.spawn(async move {
                let old = Plain::connect(&url, Layout::Redislock).await.unwrap();
                let new = Client::connect(&url).await.unwrap();
                for _ in 0..15 {
                    let first = match deployed {
                        Deployed::New => None,
                        _ => Some(old.mutex("orders").lock().await.unwrap()),
                    };
                    let second = match deployed {
                        Deployed::Old => None,
                        _ => Some(new.mutex("orders").lock().await.unwrap()),
                    };
                    let seen = count.load(Ordering::SeqCst);
                    tokio::time::sleep(ms(1)).await;
                    count.store(seen + 1, Ordering::SeqCst);
                    if let Some(guard) = second {
                        guard.release().await.unwrap();
                    }
                    if let Some(guard) = first {
                        guard.release().await.unwrap();
                    }
                }
            });
            expected += 15;
        }
        patiently("the workers", workers.join_all()).await;
        assert_eq!(count.load(Ordering::SeqCst), expected, "{deployments:?}");
    }
}
