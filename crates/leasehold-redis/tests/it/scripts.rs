//! The scripts on a server: how they are loaded, and what they store.

use leasehold_core::{Acquire, Key, ListRequest, Mode, Release, Renew, RenewRequest, Store as _};
use leasehold_redis::RedisStore;
use leasehold_testkit::server::{self, RedisServer};

use crate::common::{Caller, WITHIN, key, place_name, put, slot, ttl};

#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_sent_them_again() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    for _ in 0..2 {
        let caller = Caller::new(&store, &key());
        drop(server.cli(&["SCRIPT", "FLUSH"]));
        let fences = caller.take().await;
        drop(server.cli(&["SCRIPT", "FLUSH"]));
        let renewed = store.renew(&[caller.renewal(fences)], WITHIN).await;
        assert_eq!(renewed.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), [Renew::Renewed]);
        drop(server.cli(&["SCRIPT", "FLUSH"]));
        let listed = store.list(&ListRequest::default(), WITHIN).await.unwrap().locks;
        assert_eq!(listed.len(), 1);
        drop(server.cli(&["SCRIPT", "FLUSH"]));
        let released = store.release(&caller.ending(fences), WITHIN).await.unwrap();
        assert_eq!(released, Release::Released);
    }
}

#[tokio::test]
async fn many_leases_are_renewed_in_few_scripts_and_each_gets_its_own_answer() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let mut requests: Vec<RenewRequest> = Vec::new();
    for _ in 0..250 {
        let caller = Caller::new(&store, &key());
        requests.push(caller.renewal(caller.take().await));
    }
    let stranger = Caller::new(&store, &requests[7].key);
    requests[7].token = stranger.request.token;
    drop(server.cli(&["SCRIPT", "FLUSH"]));
    for _ in 0..2 {
        let before = server.command_calls("evalsha");
        let answers = store.renew(&requests, WITHIN).await;
        assert_eq!(answers.len(), 250);
        for (number, answer) in answers.into_iter().enumerate() {
            let expected = if number == 7 { Renew::Late } else { Renew::Renewed };
            // Its fence is the last one, but the token is not the holder's.
            let expected = if number == 7 { [expected, Renew::NotHeld] } else { [expected; 2] };
            assert!(expected.contains(&answer.unwrap()), "{number}");
        }
        assert!(server.command_calls("evalsha") - before <= 14);
    }
}

#[tokio::test]
async fn one_foreign_key_does_not_fail_the_other_renewals() {
    let store = RedisStore::connect(&server::shared().url()).await.unwrap();
    let mut requests = Vec::new();
    for _ in 0..3 {
        let caller = Caller::new(&store, &key());
        requests.push(caller.renewal(caller.take().await));
    }
    let record = format!("leasehold:{{{}}}", requests[1].key);
    drop(server::shared().cli(&["DEL", &record]));
    drop(server::shared().cli(&["LPUSH", &record, "x"]));
    let answers = store.renew(&requests, WITHIN).await;
    assert_eq!(answers[0].as_ref().unwrap(), &Renew::Renewed);
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), leasehold_core::ErrorKind::Foreign);
    assert_eq!(error.key(), Some(&requests[1].key));
    assert_eq!(answers[2].as_ref().unwrap(), &Renew::Renewed);
}

#[tokio::test]
async fn an_uncontended_lock_is_one_script_and_one_key() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let warm = Caller::new(&store, &key());
    let fences = warm.take().await;
    store.release(&warm.ending(fences), WITHIN).await.unwrap();

    let calls = || ["evalsha", "eval"].map(|command| server.command_calls(command));
    let before = calls();
    let caller = Caller::new(&store, &warm.request.key);
    let fences = caller.take().await;
    assert_eq!(server.cli(&["DBSIZE"]), "1");
    store.release(&caller.ending(fences), WITHIN).await.unwrap();
    assert_eq!(server.cli(&["DBSIZE"]), "1");
    assert_eq!(calls(), [before[0] + 2, before[1]]);
}

#[tokio::test]
async fn every_key_expires() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let holder = Caller::new(&store, &key());
    let fences = holder.take().await;
    let waiter = Caller::patient(&store, &holder.request.key, client());
    waiter.wait().await;
    let mut shared = Caller::new(&store, &key());
    shared.request.mode = Mode::Shared;
    shared.take().await;
    let idle = Caller::new(&store, &key());
    let ended = idle.take().await;
    store.release(&idle.ending(ended), WITHIN).await.unwrap();
    let check = |least: usize| {
        let keys = server.cli(&["KEYS", "*"]);
        assert!(keys.lines().count() >= least, "{keys}");
        for key in keys.lines() {
            let left: i64 = server.cli(&["PTTL", key]).parse().unwrap();
            assert_eq!(server.cli(&["TYPE", key]), "hash");
            // The lease or the position, the ten minutes for which fences are kept, and a quarter
            // of them in advance.
            assert!((600_000..=810_000).contains(&left), "{key} {left}");
        }
    };
    check(3);
    store.leave(&waiter.leaving(), WITHIN).await.unwrap();
    store.release(&holder.ending(fences), WITHIN).await.unwrap();
    check(3);
}

#[tokio::test]
async fn the_last_fence_is_kept_for_as_long_as_the_url_says() {
    let server = RedisServer::start();
    let url = format!("{}?fence_retention=2s&prefix=app:locks", server.url());
    let store = RedisStore::connect(&url).await.unwrap();
    let caller = Caller::new(&store, &Key::new("a}b").unwrap());
    let fences = caller.take().await;
    let left: i64 = server.cli(&["PTTL", "app:locks:{a%7Db}"]).parse().unwrap();
    assert!((50_000..=62_501).contains(&left), "{left}");
    store.release(&caller.ending(fences), WITHIN).await.unwrap();
    let left: i64 = server.cli(&["PTTL", "app:locks:{a%7Db}"]).parse().unwrap();
    assert!((-2..=2_501).contains(&left), "{left}");
    let deadline = tokio::time::Instant::now() + WITHIN;
    while server.cli(&["DBSIZE"]) != "0" {
        assert!(tokio::time::Instant::now() < deadline, "an idle name leaves something behind");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let again = caller.take().await;
    assert!(again.first() > fences.last(), "time alone keeps fences growing");
}

#[tokio::test]
async fn prefixes_keep_locks_apart() {
    let url = server::shared().url();
    let (one, other) = (
        RedisStore::connect(&format!("{url}?prefix=one")).await.unwrap(),
        RedisStore::connect(&format!("{url}?prefix=other*")).await.unwrap(),
    );
    let key = key();
    Caller::new(&one, &key).take().await;
    Caller::new(&other, &key).take().await;
    let listed = other.list(&ListRequest::new("it/"), WITHIN).await.unwrap().locks;
    assert!(listed.iter().any(|info| info.key == key));
    let elsewhere = RedisStore::connect(&format!("{url}?prefix=oth")).await.unwrap();
    assert_eq!(elsewhere.list(&ListRequest::default(), WITHIN).await.unwrap().locks, []);
}

#[tokio::test]
async fn names_of_any_letters_are_listed_as_they_are() {
    let server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let mut names = ["*", "?x", "[a]", "a\\b", "a{b}c", "}", "%7D", "ü/ñ", "a:crowd", "a", "a b"];
    names.sort_unstable();
    for name in names {
        Caller::new(&store, &Key::new(name).unwrap()).take().await;
    }
    let list = async |prefix: &str| -> Vec<String> {
        let infos = store.list(&ListRequest::new(prefix), WITHIN).await.unwrap().locks;
        infos.iter().map(|info| info.key.as_str().to_owned()).collect()
    };
    assert_eq!(list("").await, names);
    assert_eq!(list("a").await, ["a", "a b", "a:crowd", "a\\b", "a{b}c"]);
    assert_eq!(list("*").await, ["*"]);
    assert_eq!(list("[").await, ["[a]"]);
    assert_eq!(list("a{").await, ["a{b}c"]);
}

#[tokio::test]
async fn a_lock_that_lost_a_field_is_not_stuck_for_longer_than_its_leases() {
    let server = server::shared();
    // A hold with a missing field lasts for a quarter of the retention longer than what is known to
    // last.
    let url = format!("{}?fence_retention=1s", server.url());
    let store = RedisStore::connect(&url).await.unwrap();
    let short = |key: &Key, mode| {
        let mut caller = Caller::new(&store, key);
        (caller.request.mode, caller.request.ttl) = (mode, ttl(1));
        caller
    };
    let cases = [
        (Mode::Exclusive, "the waiter's place"),
        (Mode::Exclusive, "the waiter's token"),
        (Mode::Shared, "the waiter's place"),
        (Mode::Shared, "the holder's token"),
        (Mode::Shared, "the holder's number"),
    ];
    for (mode, lost) in cases {
        let key = key();
        let holder = short(&key, mode);
        holder.take().await;
        let mut waiter = Caller::patient(&store, &key, client());
        waiter.request.mode = Mode::Exclusive;
        waiter.request.queue.as_mut().unwrap().window = ttl(1);
        let place = waiter.wait().await.place;
        let field = match lost {
            "the waiter's place" => place_name(place.number()),
            "the waiter's token" => waiter.request.token.as_bytes().to_vec(),
            "the holder's token" => holder.request.token.as_bytes().to_vec(),
            _ => slot(1),
        };
        assert_eq!(put(server, &key, &field, None).await, 1);
        let deadline = tokio::time::Instant::now() + WITHIN;
        loop {
            match waiter.try_take().await.unwrap() {
                Acquire::Granted(_) | Acquire::Already(_) => break,
                _ => assert!(tokio::time::Instant::now() < deadline, "stuck without {lost}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn a_hold_that_was_lost_is_its_holders_also_when_another_has_its_number() {
    let server = server::shared();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    for renews in [false, true] {
        let key = key();
        let reader = || {
            let mut caller = Caller::new(&store, &key);
            caller.request.mode = Mode::Shared;
            caller
        };
        let (first, second, third) = (reader(), reader(), reader());
        let ended = first.take().await;
        let stays = second.take().await;
        let lost = third.take().await;
        assert_eq!(put(server, &key, &slot(3), None).await, 1);
        // The last one gets the number of the released one, and another gets the last number.
        let released = store.release(&first.ending(ended), WITHIN).await.unwrap();
        assert_eq!(released, Release::Released);
        let newcomer = reader();
        let new = newcomer.take().await;
        for _ in 0..2 {
            if renews {
                let renewed = store.renew(&[third.renewal(lost)], WITHIN).await.remove(0);
                assert_eq!(renewed.unwrap(), Renew::Renewed);
            }
        }
        let released = store.release(&third.ending(lost), WITHIN).await.unwrap();
        assert_eq!(released, Release::Released);
        let info = store.inspect(&key, WITHIN).await.unwrap().unwrap();
        let mut held: Vec<_> = info.holders.iter().map(|holder| holder.fence).collect();
        held.sort();
        assert_eq!(held, [stays.first(), new.first()]);
        for (reader, fences) in [(&second, stays), (&newcomer, new)] {
            let released = store.release(&reader.ending(fences), WITHIN).await.unwrap();
            assert_eq!(released, Release::Released);
        }
        assert!(store.inspect(&key, WITHIN).await.unwrap().is_none());
    }
}

fn client() -> leasehold_core::ClientId {
    leasehold_core::ClientId::generate().unwrap()
}

#[tokio::test]
async fn fences_reserved_ahead_of_time_are_not_issued_again_when_the_record_is_gone() {
    let server = RedisServer::start();
    let url = format!("{}?fence_retention=1s", server.url());
    let store = RedisStore::connect(&url).await.unwrap();
    let key = key();
    let mut last = leasehold_core::Fence::ZERO;
    for _ in 0..3 {
        let mut caller = Caller::new(&store, &key);
        caller.request.fence_block = 20_000_000.try_into().unwrap();
        caller.request.ttl = ttl(1);
        let fences = caller.take().await;
        assert!(fences.first() > last);
        last = fences.last();
        store.release(&caller.ending(fences), WITHIN).await.unwrap();
    }
    let left: i64 = server.cli(&["PTTL", &format!("leasehold:{{{key}}}")]).parse().unwrap();
    assert!(left > 30_000, "three blocks of twenty seconds: {left}");
}
