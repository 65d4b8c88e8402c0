//! Servers that refuse one of the commands in the middle of a script.
//!
//! A change reported as undone is undone, and the lock continues as if it had not been requested.
//! Also keys from which another program removed the expiry.

use leasehold_core::{
    AskRequest, ClientId, ConvertRequest, Effect, Error, ErrorKind, FenceBlock,
    ForceReleaseRequest, Key, Mode, OwnerName, Renew, SetLimitRequest, Store as _, Token,
};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;

use crate::common::{Caller, WITHIN, fields, key, record, ttl};

/// A lock in use: its holders with their fences, its waiters, and a caller that comes later.
struct Scene {
    holders: Vec<(Caller, FenceBlock)>,
    waiters: Vec<Caller>,
    newcomer: Caller,
}

impl Scene {
    /// A lock with `sharers` sharers, or with an exclusive holder.
    async fn set(store: &RedisStore, sharers: usize) -> Self {
        let (key, client) = (key(), ClientId::generate().unwrap());
        let mut holders = Vec::new();
        for _ in 0..sharers.max(1) {
            let mut caller = Caller::new(store, &key);
            if sharers > 0 {
                caller.request.mode = Mode::Shared;
            }
            let fences = caller.take().await;
            holders.push((caller, fences));
        }
        let waiters: Vec<_> = (0..3).map(|_| Caller::patient(store, &key, client)).collect();
        for waiter in &waiters {
            waiter.wait().await;
        }
        Self { holders, waiters, newcomer: Caller::patient(store, &key, client) }
    }

    /// Carries out the operation with this number over this store; `None` after the last.
    async fn carry_out(&self, number: usize, store: &RedisStore) -> Option<Result<(), Error>> {
        let (holder, fences) = &self.holders[0];
        let key = &holder.request.key;
        Some(match number {
            0 => store.release(&holder.ending(*fences), WITHIN).await.map(drop),
            1 => store.leave(&holder.leaving(), WITHIN).await.map(drop),
            2 => store.leave(&self.waiters[0].leaving(), WITHIN).await.map(drop),
            3 => store.renew(&[holder.renewal(*fences)], WITHIN).await.remove(0).map(drop),
            4 => {
                let mut longer = holder.renewal(*fences);
                longer.ttl = ttl(3_600);
                store.renew(&[longer], WITHIN).await.remove(0).map(drop)
            }
            5 => {
                let mode = if holder.request.mode == Mode::Shared {
                    Mode::Exclusive
                } else {
                    Mode::Shared
                };
                let token = holder.request.token;
                let request = ConvertRequest::new(key.clone(), token, *fences, mode);
                store.convert(&request, WITHIN).await.map(drop)
            }
            6 => {
                let request = AskRequest::new(key.clone(), OwnerName::new("operator").unwrap());
                store.ask(&request, WITHIN).await.map(drop)
            }
            7 => {
                let request = ForceReleaseRequest::new(key.clone(), fences.first());
                store.force_release(&request, WITHIN).await.map(drop)
            }
            8 => store.acquire(&self.waiters[1].request, WITHIN).await.map(drop),
            9 => store.acquire(&self.newcomer.request, WITHIN).await.map(drop),
            10 => {
                let requests = [holder.request.clone()];
                store.acquire_all(&requests, WITHIN).await.map(drop)
            }
            11 => store.leave(&self.waiters[2].leaving(), WITHIN).await.map(drop),
            _ => return None,
        })
    }
}

/// Carries each operation out while a command is refused; returns how many were refused.
async fn refuse(
    server: &RedisServer,
    store: &RedisStore,
    refused: &RedisStore,
    switch: [&[&str]; 2],
    kind: ErrorKind,
) -> usize {
    let mut count = 0;
    for sharers in [0, 1, 3] {
        for number in 0.. {
            let scene = Scene::set(store, sharers).await;
            let key = scene.holders[0].0.request.key.clone();
            let record = record(&key);
            let before = fields(server, &key).await;
            assert_eq!(server.cli(switch[0]), "OK");
            let outcome = scene.carry_out(number, refused).await;
            assert_eq!(server.cli(switch[1]), "OK");
            let Some(outcome) = outcome else { break };
            let what = format!("operation {number} with {sharers}: {outcome:?}");
            if let Err(error) = &outcome {
                count += 1;
                assert_eq!((error.kind(), error.effect()), (kind, Effect::NotApplied), "{what}");
                assert_eq!(fields(server, &key).await, before, "{what}");
            }
            store.inspect(&key, WITHIN).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let holders = scene.holders.iter().map(|(caller, _)| caller);
            for caller in holders.chain(&scene.waiters).chain([&scene.newcomer]) {
                let left = store.leave(&caller.leaving(), WITHIN).await;
                assert!(left.is_ok(), "{what}: {left:?}");
            }
            let stranger = Caller::new(store, &key);
            let fences = stranger.take().await;
            store.release(&stranger.ending(fences), WITHIN).await.unwrap();
            assert_ne!(server.cli(&["PTTL", &record]), "-1", "{what}");
        }
    }
    count
}

#[tokio::test]
async fn a_right_that_is_missing_in_the_middle_of_a_script_breaks_no_lock() {
    for (right, is_needed) in
        [("hset", true), ("hdel", true), ("pexpire", true), ("publish", false)]
    {
        let rule = format!("u on >pw ~* &* +@all -{right}");
        let server = RedisServer::builder().acl_user(&rule).start();
        let store = RedisStore::connect(&server.url()).await.unwrap();
        let refused = RedisStore::connect(&server.url_for("u", "pw")).await.unwrap();
        let nothing: &[&str] = &["CLIENT", "SETNAME", "nobody"];
        let count = refuse(&server, &store, &refused, [nothing, nothing], ErrorKind::Denied).await;
        assert_eq!(count > 0, is_needed, "without {right}: {count} refused");
    }
}

#[tokio::test]
async fn a_full_server_refuses_scripts_before_they_change_anything() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let full = [
        &["CONFIG", "SET", "maxmemory", "1"] as &[&str],
        &["CONFIG", "SET", "maxmemory", "0"] as &[&str],
    ];
    assert!(refuse(&server, &store, &store, full, ErrorKind::Full).await > 0);
}

#[tokio::test]
async fn leases_that_are_renewed_together_at_the_memory_limit_stay_their_holders() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let mut holders = [key(), key(), key()].map(|key| Caller::new(&store, &key));
    // Of digits, so that part of one could pass for a length.
    for (holder, digits) in holders.iter_mut().zip([0x11, 0x22, 0x33]) {
        holder.request.token = Token::from_bytes([digits; 16]);
    }
    let mut renewals = Vec::new();
    for holder in &holders {
        renewals.push(holder.renewal(holder.take().await));
    }
    assert_eq!(server.cli(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    for _ in 0..2 {
        for renewed in store.renew(&renewals, WITHIN).await {
            assert_eq!(renewed.unwrap(), Renew::Renewed);
        }
    }
    for holder in &holders {
        let info = store.inspect(&holder.request.key, WITHIN).await.unwrap().unwrap();
        assert_eq!(info.holders.len(), 1);
        let ended = store.leave(&holder.leaving(), WITHIN).await;
        assert!(ended.is_ok(), "{ended:?}");
    }
}

/// Removes the key's expiry, runs an operation, and returns whether it changed the lock. An
/// operation with a change must set the expiry again. The exception is an early exit, which does
/// not check it; then the next operation without an exit must set it.
async fn is_ended_again<T>(
    server: &RedisServer,
    store: &RedisStore,
    key: &Key,
    happens: impl Future<Output = Result<T, Error>>,
) -> bool {
    let record = record(key);
    assert_eq!(server.cli(&["PERSIST", &record]), "1");
    let before = fields(server, key).await;
    happens.await.unwrap();
    let changed = fields(server, key).await != before;
    let left = || server.cli(&["PTTL", &record]).parse::<i64>().unwrap();
    if changed && left() == -1 {
        let asked = AskRequest::new(key.clone(), OwnerName::new("an operator").unwrap());
        let mut closing = Caller::new(store, key);
        closing.request.cooldown =
            leasehold_core::Cooldown::new(std::time::Duration::from_secs(1)).unwrap();
        store.ask(&asked, WITHIN).await.unwrap();
        closing.try_take().await.unwrap();
    }
    let left = left();
    // Fences are remembered for ten minutes, and with a lease of an hour a little longer.
    assert!(!changed || (600_000..=4_500_000).contains(&left), "{left} after a change");
    changed
}

#[tokio::test]
async fn a_key_without_an_expiry_expires_again_with_what_takes_no_early_exit() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let mut changes = 0;
    for sharers in [0, 1, 3] {
        for number in 0.. {
            let scene = Scene::set(&store, sharers).await;
            let key = &scene.holders[0].0.request.key;
            let mut known = true;
            let happens = async {
                let outcome = scene.carry_out(number, &store).await;
                known = outcome.is_some();
                outcome.unwrap_or(Ok(()))
            };
            changes += usize::from(is_ended_again(&server, &store, key, happens).await);
            if !known {
                break;
            }
        }
    }
    assert!(changes > 25, "{changes} operations changed something");

    let holder = Caller::new(&store, &key());
    let (key, first) = (&holder.request.key, holder.take().await);
    let renewal = [holder.renewal(first)];
    let renewed = async { store.renew(&renewal, WITHIN).await.remove(0) };
    assert!(is_ended_again(&server, &store, key, renewed).await, "renewed");
    let ending = holder.ending(first);
    assert!(is_ended_again(&server, &store, key, store.release(&ending, WITHIN)).await, "released");
    assert!(is_ended_again(&server, &store, key, holder.try_take()).await, "taken again");
    // A mere look writes nothing.
    let busy = Caller::new(&store, key);
    assert!(!is_ended_again(&server, &store, key, busy.try_take()).await, "found busy");

    let mut permit = Caller::new(&store, &crate::common::key());
    let (count, limit) = (1.try_into().unwrap(), 2.try_into().unwrap());
    permit.request.mode = Mode::Permits { count, limit };
    permit.take().await;
    let key = &permit.request.key;
    let raised = SetLimitRequest::new(key.clone(), 5.try_into().unwrap());
    assert!(is_ended_again(&server, &store, key, store.set_limit(&raised, WITHIN)).await, "raised");
}
