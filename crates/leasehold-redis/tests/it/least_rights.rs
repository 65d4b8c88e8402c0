//! The rule of `acl::rule` for a feature lets a user do what it covers, and needs all its words.

use std::time::Duration;

use leasehold_core::{
    Acquire, ClientId, Cooldown, Effect, Error, ErrorKind, ForceReleaseRequest, ListRequest, Mode,
    Store as _,
};
use leasehold_redis::RedisStore;
use leasehold_redis::acl::{self, Feature};
use leasehold_testkit::server::RedisServer;
use tokio::time::{sleep, timeout};

use crate::common::{Caller, WITHIN, key, ttl};
use crate::log::event;

/// How long an allowed message may take; a forbidden one never comes.
const MESSAGE_WITHIN: Duration = Duration::from_secs(2);

async fn taken(caller: &Caller) -> Result<leasehold_core::FenceBlock, Error> {
    match caller.try_take().await? {
        Acquire::Granted(granted) => Ok(granted.fences),
        other => panic!("{other:?}"),
    }
}

/// Exclusive locks, in each way in which they can begin, continue and end.
async fn lock(store: &RedisStore) -> Result<(), Error> {
    let key = key();
    let holder = Caller::new(store, &key);
    let fences = taken(&holder).await?;
    assert!(matches!(Caller::new(store, &key).try_take().await?, Acquire::Busy(_)));
    assert!(matches!(holder.try_take().await?, Acquire::Already(_)));
    store.renew(&[holder.renewal(fences)], WITHIN).await.remove(0)?;
    let mut other_length = holder.renewal(fences);
    other_length.ttl = ttl(90);
    store.renew(&[other_length], WITHIN).await.remove(0)?;
    assert_eq!(store.inspect(&key, WITHIN).await?.unwrap().holders.len(), 1);
    store.release(&holder.ending(fences), WITHIN).await?;
    let closing = Caller::new(store, &key);
    let mut ending = closing.ending(taken(&closing).await?);
    ending.cooldown = Cooldown::new(Duration::from_millis(1)).unwrap();
    store.release(&ending, WITHIN).await?;
    let key = crate::common::key();
    let left = Caller::new(store, &key);
    taken(&left).await?;
    store.leave(&left.leaving(), WITHIN).await?;
    let forced = taken(&Caller::new(store, &key)).await?;
    let force = ForceReleaseRequest::new(key.clone(), forced.first());
    store.force_release(&force, WITHIN).await?;
    Ok(())
}

/// The queue: joined, kept, left, granted with a notification and without, and cleared of the dead.
async fn wait(store: &RedisStore) -> Result<(), Error> {
    let key = key();
    let client = ClientId::generate().unwrap();
    let mut listener = store.listen(client, WITHIN).await?;
    let holder = Caller::new(store, &key);
    let fences = taken(&holder).await?;
    let mut dead = Caller::patient(store, &key, client);
    if let Some(queue) = &mut dead.request.queue {
        queue.window = leasehold_core::Ttl::new(Duration::from_millis(20)).unwrap();
    }
    dead.try_take().await?;
    let waiter = Caller::patient(store, &key, client);
    let leaver = Caller::patient(store, &key, client);
    for heartbeat in 0..2 {
        for one in [&waiter, &leaver] {
            let mut request = one.request.clone();
            if let Some(queue) = &mut request.queue {
                queue.heartbeat = heartbeat;
            }
            assert!(matches!(store.acquire(&request, WITHIN).await?, Acquire::Waiting(_)));
        }
        // The dead waiter's position ends in the second round.
        sleep(Duration::from_millis(25)).await;
    }
    let late = Caller::patient(store, &key, client);
    late.try_take().await?;
    assert!(!store.inspect(&key, WITHIN).await?.unwrap().waiters.is_empty());
    store.leave(&leaver.leaving(), WITHIN).await?;
    store.renew(&[holder.renewal(fences)], WITHIN).await.remove(0)?;
    store.release(&holder.ending(fences), WITHIN).await?;
    let woken = timeout(MESSAGE_WITHIN, listener.next()).await;
    store.leave(&late.leaving(), WITHIN).await?;
    let Acquire::Already(handed) = waiter.try_take().await? else { panic!("it was handed over") };
    store.release(&waiter.ending(handed.fences), WITHIN).await?;
    woken.map(drop).map_err(|_| Error::new(ErrorKind::Unavailable, "nobody was woken"))
}

/// Shared holds and permits.
async fn share(store: &RedisStore) -> Result<(), Error> {
    let key = key();
    let mut sharers = [Caller::new(store, &key), Caller::new(store, &key)];
    for sharer in &mut sharers {
        sharer.request.mode = Mode::Shared;
    }
    let fences = taken(&sharers[0]).await?;
    taken(&sharers[1]).await?;
    assert!(matches!(sharers[0].try_take().await?, Acquire::Already(_)));
    assert!(matches!(Caller::new(store, &key).try_take().await?, Acquire::Busy(_)));
    let mut longer = sharers[0].renewal(fences);
    longer.ttl = ttl(90);
    store.renew(&[longer], WITHIN).await.remove(0)?;
    assert_eq!(store.inspect(&key, WITHIN).await?.unwrap().holders.len(), 2);
    let forced = ForceReleaseRequest::new(key.clone(), fences.first());
    store.force_release(&forced, WITHIN).await?;
    store.leave(&sharers[1].leaving(), WITHIN).await?;
    Ok(())
}

async fn do_what_it_says(store: &RedisStore, feature: Feature) -> Result<(), Error> {
    match feature {
        Feature::Lock => lock(store).await,
        Feature::Wait => wait(store).await,
        Feature::Share => share(store).await,
        Feature::List => store.list(&ListRequest::default(), WITHIN).await.map(drop),
        Feature::Log => {
            let log = store.log().unwrap();
            log.append(&[event(&key(), 0)], WITHIN).await?;
            log.read(&key(), 1, WITHIN).await.map(drop)
        }
        Feature::Quorum => store.remembers_for(WITHIN).await.map(drop),
        other => panic!("{other:?} is tried elsewhere"),
    }
}

/// Gives the user `locks` exactly the rights of these words, and uses the features.
async fn tried(
    server: &RedisServer,
    url: &str,
    words: &[&str],
    features: &[Feature],
) -> Result<(), Error> {
    assert_eq!(server.cli(words), "OK");
    // A script that the server has needs no EVAL.
    assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    let store = RedisStore::connect(url).await?;
    for feature in features {
        do_what_it_says(&store, *feature).await?;
    }
    Ok(())
}

async fn is_enough_and_least(server: &RedisServer, setting: &str, features: &[Feature]) {
    let url = format!("{}{setting}", server.url_for("locks", "secret"));
    let rule = acl::rule(&url, "locks", features).unwrap().replace(">PASSWORD", ">secret");
    let words: Vec<&str> = rule.split(' ').collect();
    let outcome = tried(server, &url, &words, features).await;
    outcome.unwrap_or_else(|error| panic!("{rule} is not enough for {features:?}: {error}"));
    for (at, right) in words.iter().enumerate() {
        if !right.starts_with(['+', '~', '&']) {
            continue;
        }
        let mut fewer = words.clone();
        fewer.remove(at);
        let error = tried(server, &url, &fewer, features)
            .await
            .expect_err(&format!("{features:?} can do without {right}"));
        if *right == "+publish" {
            assert_eq!(error.to_string(), "nobody was woken", "all else goes on");
        } else {
            assert_eq!(error.kind(), ErrorKind::Denied, "{features:?} without {right}: {error}");
        }
    }
}

#[tokio::test]
async fn the_rights_to_lock_are_enough_and_each_is_needed() {
    is_enough_and_least(&RedisServer::start(), "", &[Feature::Lock]).await;
}

#[tokio::test]
async fn the_rights_to_wait_are_enough_and_each_is_needed() {
    is_enough_and_least(&RedisServer::start(), "", &[Feature::Lock, Feature::Wait]).await;
}

#[tokio::test]
async fn the_rights_to_share_are_enough_and_each_is_needed() {
    is_enough_and_least(&RedisServer::start(), "", &[Feature::Lock, Feature::Share]).await;
}

#[tokio::test]
async fn the_rights_to_list_and_to_be_in_a_quorum_are_enough_and_each_is_needed() {
    let server = RedisServer::start();
    is_enough_and_least(&server, "", &[Feature::Lock, Feature::List, Feature::Quorum]).await;
}

#[tokio::test]
async fn the_rights_to_keep_a_log_are_enough_and_each_is_needed() {
    is_enough_and_least(&RedisServer::start(), "", &[Feature::Lock, Feature::Log]).await;
}

#[tokio::test]
async fn the_rights_of_a_service_are_enough_and_each_is_needed_with_all_settings_of_a_url() {
    let server = RedisServer::start();
    let setting = "/3?prefix=a*b:c-d&protocol=resp3";
    is_enough_and_least(&server, setting, &Feature::SERVICE).await;
}

#[tokio::test]
async fn a_new_lock_whose_expiry_is_refused_leaves_nothing_behind() {
    let server = RedisServer::builder().acl_user("u on >pw ~* &* +@all -pexpire").start();
    let store = RedisStore::connect(&server.url_for("u", "pw")).await.unwrap();
    let permits =
        Mode::Permits { count: std::num::NonZeroU32::MIN, limit: std::num::NonZeroU32::MIN };
    for mode in [Mode::Exclusive, Mode::Shared, permits] {
        let mut caller = Caller::new(&store, &key());
        caller.request.mode = mode;
        let one = caller.try_take().await.unwrap_err();
        let all =
            store.acquire_all(std::slice::from_ref(&caller.request), WITHIN).await.unwrap_err();
        for error in [one, all] {
            let judged = (error.kind(), error.effect());
            assert_eq!(judged, (ErrorKind::Denied, Effect::NotApplied), "{mode:?}: {error}");
        }
        assert_eq!(server.cli(&["DBSIZE"]), "0", "{mode:?}");
    }
}
