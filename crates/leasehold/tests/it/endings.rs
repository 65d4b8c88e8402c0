//! Every end of a lease, at the limits of its argument, in every sort of store: no end is refused, and
//! after it the lock is free or closed.

use std::time::Duration;

use leasehold::{Client, Cooldown, Owner};
use leasehold_testkit::server::RedisServer;

use crate::support::secs;

/// Ends a lease of each kind with this cool-down, and says under which names.
async fn end_each_kind(client: &Client, cooldown: Cooldown) -> Vec<String> {
    let key = |kind: &str| format!("{kind} {cooldown}");
    let guard = client.mutex(key("mutex")).lock().await.unwrap();
    guard.release_with_cooldown(cooldown).await.unwrap();
    let guard = client.rwlock(key("reader")).read().await.unwrap();
    guard.release_with_cooldown(cooldown).await.unwrap();
    let guard = client.rwlock(key("writer")).write().await.unwrap();
    guard.release_with_cooldown(cooldown).await.unwrap();
    let guard = client.semaphore(key("permits"), 3).acquire_many(3).await.unwrap();
    guard.release_with_cooldown(cooldown).await.unwrap();
    let post = client.election(key("post")).campaign().await.unwrap();
    post.resign_with_cooldown(cooldown).await.unwrap();
    let guard = client.multi([key("one"), key("other")]).lock().await.unwrap();
    guard.release_with_cooldown(cooldown).await.unwrap();
    let guard = client.reentrant(key("again"), &Owner::new()).lock().await.unwrap();
    assert_eq!(guard.release_with_cooldown(cooldown).await.unwrap(), 0);
    let lease = client.mutex(key("detached")).lock().await.unwrap().detach().await.unwrap();
    client.release(&lease, Some(cooldown)).await.unwrap();
    let names =
        ["mutex", "reader", "writer", "permits", "post", "one", "other", "again", "detached"];
    names.map(key).into()
}

async fn every_end_frees_or_closes(client: &Client) {
    let least = Cooldown::new(Duration::from_micros(1)).unwrap();
    for cooldown in [Cooldown::NONE, least, Cooldown::MAX] {
        for key in end_each_kind(client, cooldown).await {
            let info = client.inspect(key.as_str()).await.unwrap();
            let holders = info.as_ref().map_or(0, |info| info.holders.len());
            assert_eq!(holders, 0, "{key} is still held");
            let closed_for = info.and_then(|info| info.closed_for).unwrap_or_default();
            if cooldown == Cooldown::MAX {
                assert!(closed_for > cooldown.duration() - secs(600), "{key}: {closed_for:?}");
            } else {
                assert!(closed_for <= cooldown.duration(), "{key}: {closed_for:?}");
            }
        }
    }
    let job = client.once_per("job", Cooldown::MAX.duration());
    job.try_start().await.unwrap().unwrap().release_and_reopen().await.unwrap();
    job.try_start().await.unwrap().unwrap().release().await.unwrap();
    assert!(job.try_start().await.unwrap().is_none());
    client.close().await.unwrap();
}

#[tokio::test]
async fn no_end_is_refused_for_its_cool_down_in_memory() {
    every_end_frees_or_closes(&Client::connect("memory:").await.unwrap()).await;
}

#[tokio::test]
async fn no_end_is_refused_for_its_cool_down_on_one_machine() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", directory.path().join("locks").display());
    every_end_frees_or_closes(&Client::connect(url).await.unwrap()).await;
}

#[tokio::test]
async fn no_end_is_refused_for_its_cool_down_on_redis() {
    let server = RedisServer::start();
    every_end_frees_or_closes(&Client::connect(server.url()).await.unwrap()).await;
}
