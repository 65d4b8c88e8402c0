//! What a client reports about its leases.

use leasehold::{Client, LockEvent, LockEventKind, LockEvents, LossReason, Release, Wait as _};

use crate::support::{World, cool, ms, secs};

/// The next event, which is to be about this lock.
async fn next(events: &mut LockEvents, key: &str) -> LockEvent {
    let event = tokio::time::timeout(secs(60), events.next()).await;
    let event = event.expect("something happens").expect("the client is there");
    assert_eq!(event.key.as_str(), key, "{event:?}");
    event
}

#[tokio::test(start_paused = true)]
async fn a_grant_and_a_release_are_reported_with_the_fence() {
    let world = World::new();
    let client = world.client();
    let mut events = client.events();
    let guard = client.mutex("k").lock().await.unwrap();
    let (fence, granted) = (guard.fence().unwrap(), next(&mut events, "k").await);
    assert_eq!((granted.what, granted.fence), (LockEventKind::Granted, fence));
    guard.release_with_cooldown(cool(secs(5))).await.unwrap();
    let released = next(&mut events, "k").await;
    let outcome = Release::Released;
    let what = LockEventKind::Released { outcome, cooldown: Some(secs(5)) };
    assert_eq!((released.what, released.fence), (what, fence));
    assert_eq!(released.what.name(), "released");

    // A guard that is dropped is released in the background.
    drop(client.mutex("other").lock().await.unwrap());
    assert_eq!(next(&mut events, "other").await.what, LockEventKind::Granted);
    let what = LockEventKind::Released { outcome, cooldown: None };
    assert_eq!(next(&mut events, "other").await.what, what);
    assert_eq!(events.missed(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_off_in_the_process_is_reported_with_its_new_fence() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("k").lock().await.unwrap();
    let from = guard.fence().unwrap();
    let waiter = tokio::spawn({
        let mutex = client.mutex("k");
        async move { mutex.lock().await }
    });
    while client.inspect("k").await.unwrap().unwrap().waiters.is_empty() {
        tokio::time::sleep(ms(1)).await;
    }
    let mut events = client.events();
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let told = next(&mut events, "k").await;
    assert_eq!((told.what, told.fence), (LockEventKind::HandedOn { from }, guard.fence().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_with_its_reason() {
    let world = World::new();
    let (client, operator) = (world.client(), world.client());
    let (mut events, mut by_force) = (client.events(), operator.events());
    let guard = client.mutex("k").lock().await.unwrap();
    let fence = guard.fence().unwrap();
    assert_eq!(next(&mut events, "k").await.what, LockEventKind::Granted);
    operator.force_release("k", fence).await.unwrap();
    let forced = next(&mut by_force, "k").await;
    assert_eq!((forced.what, forced.fence), (LockEventKind::Forced, fence));
    guard.lost().await;
    let lost = next(&mut events, "k").await;
    let what = LockEventKind::Lost { reason: LossReason::Refuted, cause: None };
    assert_eq!((lost.what, lost.fence), (what, fence));
    drop(guard);

    let mutex = client.mutex("short").max_hold(secs(20));
    let guard = mutex.lock().await.unwrap();
    guard.lost().await;
    let mut told = Vec::new();
    while told.last() != Some(&"lost") {
        told.push(events.next().await.unwrap().what.name());
    }
    assert!(told.contains(&"granted"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_changes_hands_by_its_text_is_reported() {
    let world = World::new();
    let client = world.client();
    let mut events = client.events();
    let lease = client.mutex("k").lock().await.unwrap().detach().await.unwrap();
    let guard = client.adopt(&lease).await.unwrap();
    let lease = guard.detach().await.unwrap();
    client.release(&lease, None).await.unwrap();
    for name in ["granted", "detached", "adopted", "detached", "released"] {
        assert_eq!(next(&mut events, "k").await.what.name(), name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_misses_the_oldest_and_holds_nothing_up() {
    let world = World::new();
    let client = world.client();
    let (mut slow, mut other) = (client.events(), client.events());
    for _ in 0..600 {
        client.mutex("k").lock().await.unwrap().release().await.unwrap();
        assert_eq!(next(&mut other, "k").await.what, LockEventKind::Granted);
        next(&mut other, "k").await;
    }
    next(&mut slow, "k").await;
    assert_eq!((slow.missed(), other.missed()), (1_200 - 1_024, 0));
}

#[cfg(feature = "embedded")]
#[tokio::test]
async fn the_stream_ends_with_the_client() {
    let client = Client::connect("memory:").await.unwrap();
    let mut events = client.events();
    client.mutex("k").lock().await.unwrap().release().await.unwrap();
    client.close().await.unwrap();
    drop(client);
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        told.push(event.what.name());
    }
    assert_eq!(told, ["granted", "released"]);
}

#[cfg(feature = "embedded")]
#[test]
fn threads_get_events_as_well() {
    let client = Client::connect("memory:").wait().unwrap();
    let mut events = client.events();
    client.mutex("k").lock().wait().unwrap().release().wait().unwrap();
    for name in ["granted", "released"] {
        assert_eq!(events.next().wait().unwrap().unwrap().what.name(), name);
    }
    assert_eq!(events.missed(), 0);
    client.close().wait().unwrap();
}
