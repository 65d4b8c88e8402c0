//! Servers that refuse one of the commands in the middle of a script: what is called undone is
//! undone, and the lock goes on as if nothing had been asked.

use leasehold_core::{
    AskRequest, ClientId, ConvertRequest, Effect, Error, ErrorKind, FenceBlock,
    ForceReleaseRequest, Mode, OwnerName, Store as _,
};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::RedisServer;

use crate::common::{Caller, WITHIN, key, ttl};

/// A lock in use: its holders with their fences, those who wait, and one who has not come yet.
struct Scene {
    holders: Vec<(Caller, FenceBlock)>,
    waiters: Vec<Caller>,
    newcomer: Caller,
}

impl Scene {
    /// Shared by so many, or held alone.
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

    /// The operation of that number, over this store; `None` after the last.
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
                let request = AskRequest::new(key.clone(), OwnerName::new("somebody").unwrap());
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
            _ => return None,
        })
    }
}

fn content(server: &RedisServer, key: &str) -> Vec<[String; 2]> {
    let all = server.cli(&["HGETALL", key]);
    let lines: Vec<&str> = all.lines().collect();
    let mut fields: Vec<_> =
        lines.chunks(2).map(|field| [field[0].to_owned(), field[1].to_owned()]).collect();
    fields.sort_unstable();
    fields
}

/// Carries each operation out while something is refused, and says how many were.
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
            let record = format!("leasehold:{{{key}}}");
            let before = content(server, &record);
            assert_eq!(server.cli(switch[0]), "OK");
            let outcome = scene.carry_out(number, refused).await;
            assert_eq!(server.cli(switch[1]), "OK");
            let Some(outcome) = outcome else { break };
            let what = format!("operation {number} with {sharers}: {outcome:?}");
            if let Err(error) = &outcome {
                count += 1;
                assert_eq!((error.kind(), error.effect()), (kind, Effect::NotApplied), "{what}");
                assert_eq!(content(server, &record), before, "{what}");
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
