//! Foreign data is left unchanged, byte for byte.

use leasehold_core::{
    Effect, Error, ErrorKind, Fence, ForceReleaseRequest, ListRequest, Mode, Store as _,
};
use leasehold_redis::{RedisStore, redis};
use leasehold_testkit::server::{self, RedisServer};

use crate::common::{Caller, WITHIN, connection, key};

fn dump(server: &RedisServer, key: &str) -> String {
    // Lists and other types lack a common command that shows them; type and length suffice here.
    let kind = server.cli(&["TYPE", key]);
    let content = match &*kind {
        "string" => server.cli(&["GET", key]),
        "list" => server.cli(&["LRANGE", key, "0", "-1"]),
        "hash" => server.cli(&["HGETALL", key]),
        "set" => server.cli(&["SMEMBERS", key]),
        "zset" => server.cli(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
        _ => String::new(),
    };
    format!("{kind} {content} {}", server.cli(&["PTTL", key]))
}

/// Tries every operation on the lock, and returns the error of each.
async fn try_all(caller: &Caller) -> Vec<(&'static str, Option<Error>)> {
    let Caller { store, request } = caller;
    let fences = leasehold_core::FenceBlock::new(Fence::ZERO, 1);
    let patient =
        Caller::patient(store, &request.key, leasehold_core::ClientId::generate().unwrap());
    let force = ForceReleaseRequest::new(request.key.clone(), Fence::ZERO);
    let mut shared = Caller::new(store, &request.key);
    shared.request.mode = leasehold_core::Mode::Shared;
    vec![
        ("acquire", caller.try_take().await.err()),
        ("acquire shared", shared.try_take().await.err()),
        ("wait", patient.try_take().await.err()),
        ("renew", store.renew(&[caller.renewal(fences)], WITHIN).await.remove(0).err()),
        ("release", store.release(&caller.ending(fences), WITHIN).await.err()),
        ("leave", store.leave(&caller.leaving(), WITHIN).await.err()),
        ("force-release", store.force_release(&force, WITHIN).await.err()),
        ("inspect", store.inspect(&request.key, WITHIN).await.err()),
    ]
}

#[tokio::test]
async fn a_foreign_value_at_the_lock_s_key_is_named_and_left_alone() {
    let server = server::shared();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    for make in [
        &["SET", "K", "3f2a"] as &[&str],
        &["SET", "K", ""],
        &["SET", "K", "leasehold/1 held by a thief"],
        &["SET", "K", "leasehold/1"],
        &["SET", "K", "leasehold/x held"],
        &["SET", "K", "leasehold/1 0000000001 aa"],
        &["LPUSH", "K", "a"],
        &["SET", "K", "leasehold/2 whatever that will be"],
        &["HSET", "K", "a", "1"],
        &["HSET", "K", "a", "1", "@1", "held"],
        &["HSET", "K", "a", "1", "#6299094584476691", "waits"],
        &["HSET", "K", "token", "x", "@", "1", "#x", "2", "locked", "leasehold/1"],
        &["ZADD", "K", "1", "a"],
    ] {
        let caller = Caller::new(&store, &key());
        let record = format!("leasehold:{{{}}}", caller.request.key);
        let make: Vec<&str> =
            make.iter().map(|word| if *word == "K" { record.as_str() } else { word }).collect();
        drop(server.cli(&make));
        let before = dump(server, &record);
        for (what, error) in try_all(&caller).await {
            let error = error.unwrap_or_else(|| panic!("{what} with {make:?}"));
            assert_eq!(error.kind(), ErrorKind::Foreign, "{what} with {make:?}: {error}");
            assert!(!error.to_string().contains("damaged"), "{what} with {make:?}: {error}");
            assert_eq!(error.effect(), Effect::NotApplied, "{what} with {make:?}");
            assert_eq!(error.key(), Some(&caller.request.key), "{what}");
        }
        assert_eq!(dump(server, &record), before, "{make:?}");
        assert_eq!(server.cli(&["KEYS", &format!("{record}?*")]), "", "{make:?}");
        let listed = store.list(&ListRequest::new(caller.request.key.as_str()), WITHIN).await;
        let listed = listed.unwrap();
        assert_eq!((listed.locks.len(), listed.unreadable.len()), (0, 0), "{make:?}");
    }
}

#[tokio::test]
async fn what_has_a_field_of_a_lock_is_a_damaged_one_and_left_alone() {
    let server = server::shared();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    for fields in [
        // The upper half of the first byte is the version, the lower half the shape.
        &["state", "\u{11}3f2a", "token", "x"] as &[&str],
        &["state", "\u{11} held by a thief"],
        &["state", "\u{12}"],
        &["state", "\u{10}held"],
        &["state", ""],
        &["state", "\u{13}a state that is too short", "about", "1795316944 542648 1 1  "],
    ] {
        let caller = Caller::new(&store, &key());
        let record = format!("leasehold:{{{}}}", caller.request.key);
        drop(server.cli(&[&["HSET", &record], fields].concat()));
        let before = dump(server, &record);
        for (what, error) in try_all(&caller).await {
            let error = error.unwrap_or_else(|| panic!("{what} with {fields:?}"));
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what} with {fields:?}: {error}");
            assert_eq!(error.effect(), Effect::NotApplied, "{what} with {fields:?}");
            assert_eq!(error.key(), Some(&caller.request.key), "{what}");
        }
        assert_eq!(dump(server, &record), before, "{fields:?}");
        let listed = store.list(&ListRequest::new(caller.request.key.as_str()), WITHIN).await;
        let unreadable: Vec<_> = listed.unwrap().unreadable.iter().map(Error::kind).collect();
        assert_eq!(unreadable, [ErrorKind::Corrupt], "{fields:?}");
    }
}

#[tokio::test]
async fn a_record_of_a_later_version_is_left_alone() {
    let server = server::shared();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let caller = Caller::new(&store, &key());
    let record = format!("leasehold:{{{}}}", caller.request.key);
    let later = "\u{21}whatever that will be";
    drop(server.cli(&["HSET", &record, "state", later, "line", "too"]));
    for (what, error) in try_all(&caller).await {
        let error = error.unwrap_or_else(|| panic!("{what}"));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error}");
        assert!(error.to_string().contains("update this program"), "{what}: {error}");
    }
    assert_eq!(server.cli(&["HMGET", &record, "state", "line"]), format!("{later}\ntoo"));
}

#[tokio::test]
async fn unreadable_records_are_reported_with_the_readable_locks() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let [held, later, damaged] = [key(), key(), key()].map(|key| Caller::new(&store, &key));
    held.take().await;
    damaged.take().await;
    let record = |caller: &Caller| format!("leasehold:{{{}}}", caller.request.key);
    drop(server.cli(&["HSET", &record(&later), "state", "\u{21}whatever that will be"]));
    drop(server.cli(&["HSET", &record(&damaged), "state", "\u{11}nobody"]));
    drop(server.cli(&["SET", "leasehold:{string}", "leasehold/1"]));
    let listing = store.list(&ListRequest::new(""), WITHIN).await.unwrap();
    let locks: Vec<_> = listing.locks.iter().map(|info| &info.key).collect();
    assert_eq!(locks, [&held.request.key]);
    let mut unreadable: Vec<_> =
        listing.unreadable.iter().map(|error| (error.key().unwrap(), error.kind())).collect();
    unreadable.sort_unstable_by_key(|(key, _)| *key);
    let mut expected =
        [(&later.request.key, ErrorKind::Unsupported), (&damaged.request.key, ErrorKind::Corrupt)];
    expected.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(unreadable, expected);
}

#[tokio::test]
async fn what_is_damaged_is_called_that_by_whatever_comes_across_it() {
    let server = server::shared();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let mut reader = Caller::new(&store, &key());
    reader.request.mode = Mode::Shared;
    let fences = reader.take().await;
    let record = format!("leasehold:{{{}}}", reader.request.key);
    drop(server.cli(&["HSET", &record, "state", "\u{13}garbage"]));
    let told = |error: leasehold_core::Error| {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("delete its key"), "{error}");
    };
    told(Caller::new(&store, &reader.request.key).try_take().await.unwrap_err());
    told(store.release(&reader.ending(fences), WITHIN).await.unwrap_err());
    told(store.renew(&[reader.renewal(fences)], WITHIN).await.remove(0).unwrap_err());
    told(store.inspect(&reader.request.key, WITHIN).await.unwrap_err());
    assert_eq!(server.cli(&["HGET", &record, "state"]), "\u{13}garbage", "it is left alone");
}

#[tokio::test]
async fn names_that_are_only_remembered_do_not_count_in_a_list() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let held = Caller::new(&store, &key());
    held.take().await;
    let model = Caller::new(&store, &key());
    let fences = model.take().await;
    store.release(&model.ending(fences), WITHIN).await.unwrap();
    // More than the limit of a list.
    let copy = "local stored = redis.call('HGETALL', KEYS[1])
         for i = 1, 100001 do redis.call('HSET', 'leasehold:{idle/' .. i .. '}', unpack(stored)) end";
    let record = format!("leasehold:{{{}}}", model.request.key);
    let client = redis::Client::open(server.url()).unwrap();
    let mut raw = connection(&client).await.unwrap();
    let () = redis::cmd("EVAL").arg(copy).arg(1).arg(&record).query_async(&mut raw).await.unwrap();
    assert_eq!(server.cli(&["DBSIZE"]), "100003");
    let patience = WITHIN * 6;
    let listing = store.list(&ListRequest::new(""), patience).await.unwrap();
    assert_eq!(listing.locks.len(), 1);
    assert_eq!(listing.locks[0].key, held.request.key);
    assert!(listing.unreadable.is_empty());
}
