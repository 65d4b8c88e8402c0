//! What the guards of all kinds of locks have in common, and the options of all kinds.

use std::sync::Arc;

use leasehold::retry::{Linear, RetryStrategy};
use leasehold::{Client, ErrorKind, LockOptions, Owner};
use leasehold_testkit::fault_store::{FaultStore, Op};

use crate::support::{World, cool, ms, secs};

/// Succeeds if no client can acquire the lock until the cooldown is over.
async fn closes(client: &Client, key: &str) {
    let closed_for = client.inspect(key).await.unwrap().unwrap().closed_for.unwrap();
    assert!(closed_for > secs(59), "{key} is closed for {closed_for:?}");
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_any_kind_can_leave_its_lock_closed() {
    let world = World::new();
    let client = world.client();
    let cooldown = cool(secs(60));

    client.mutex("mutex").lock().await.unwrap().release_with_cooldown(cooldown).await.unwrap();
    let rwlock = client.rwlock("reader");
    rwlock.read().await.unwrap().release_with_cooldown(cooldown).await.unwrap();
    let rwlock = client.rwlock("writer");
    rwlock.write().await.unwrap().release_with_cooldown(cooldown).await.unwrap();
    let semaphore = client.semaphore("permits", 3);
    semaphore.acquire_many(2).await.unwrap().release_with_cooldown(cooldown).await.unwrap();
    let post = client.election("post");
    post.campaign().await.unwrap().resign_with_cooldown(cooldown).await.unwrap();
    let both = client.multi(["one", "two"]);
    both.lock().await.unwrap().release_with_cooldown(cooldown).await.unwrap();
    for key in ["mutex", "reader", "writer", "permits", "post", "one", "two"] {
        closes(&client, key).await;
    }

    let owner = Owner::new();
    let reentrant = client.reentrant("again", &owner);
    let (outer, inner) = (reentrant.lock().await.unwrap(), reentrant.lock().await.unwrap());
    assert_eq!(inner.release_with_cooldown(cooldown).await.unwrap(), 1);
    assert!(outer.is_held(), "only the last hold closes the lock");
    drop(outer.release_with_cooldown(cooldown));
    while client.inspect("again").await.unwrap().unwrap().closed_for.is_none() {
        tokio::time::sleep(ms(1)).await;
    }
    closes(&client, "again").await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_any_kind_is_prolonged_and_asked_about_through_its_lease() {
    let world = World::new();
    let client = world.client();
    let options = LockOptions::new().ttl(secs(10)).renew(false);
    let reader = client.rwlock("a").options(&options).read().await.unwrap();
    let permits = client.semaphore("b", 3).options(&options).acquire().await.unwrap();
    let leader = client.election("c").options(&options).campaign().await.unwrap();
    let job = client.once_per("d", secs(60)).options(&options).try_start().await.unwrap().unwrap();
    let owner = Owner::new();
    let hold = client.reentrant("e", &owner).options(&options).lock().await.unwrap();
    for lease in [reader.lease(), permits.lease(), leader.lease(), job.lease(), hold.lease()] {
        lease.renew_to(secs(40)).await.unwrap();
        assert!(lease.ttl().await.unwrap() > secs(39));
        assert!(lease.is_held_by_store().await.unwrap());
    }
    let both = client.multi(["f", "g"]).options(&options).lock().await.unwrap();
    both.renew_to(secs(40)).await.unwrap();
    assert!(both.ttl().await.unwrap() > secs(39) && both.is_held_by_store().await.unwrap());
    let fence = both.leases()[1].fence().unwrap();
    client.force_release("g", fence).await.unwrap();
    assert!(!both.is_held_by_store().await.unwrap(), "one of them is gone");
    let error = both.renew_to(secs(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("\"g\""), "{error}");
    assert!(both.release().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_body_under_several_locks_ends_with_the_first_that_is_lost() {
    let world = World::new();
    let client = world.client();
    let both = client.multi(["a", "b"]).ttl(secs(3));
    assert_eq!(both.run(async |leases| leases.fences().unwrap().len()).await.unwrap(), 2);
    assert!(world.is_idle("a").await && world.is_idle("b").await);

    let thief = client.clone();
    let robbed = both.run(async |leases| {
        let fence = leases.leases()[1].fence().unwrap();
        thief.force_release("b", fence).await.unwrap();
        std::future::pending::<()>().await;
    });
    let error = robbed.await.unwrap_err();
    assert_eq!((error.kind(), error.output()), (ErrorKind::Lost, None));
    assert!(error.to_string().contains("\"b\""), "{error}");
    assert!(world.is_idle("a").await, "what was held is given back");

    let held = client.mutex("b").lock().await.unwrap();
    assert!(both.try_run(async |_| ()).await.unwrap().is_none());
    held.release().await.unwrap();
    let late = both.try_run(async |leases| {
        // The body does not look, and goes on after the loss without an await.
        client.force_release("b", leases.leases()[1].fence().unwrap()).await.unwrap();
        7
    });
    assert_eq!(late.await.unwrap_err().into_output(), Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_try_that_is_refused_says_who_holds_the_lock_in_one_request() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let held = client.mutex("a").owner("web-7").ttl(secs(20)).lock().await.unwrap();
    faults.forget_calls();
    let error = client.mutex("a").lock_within(secs(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.holder().unwrap().owner.as_str(), "web-7");
    assert!(error.retry_after().unwrap() > secs(19));
    assert_eq!(faults.count(Op::Acquire), 1);
    assert_eq!(faults.count(Op::Inspect), 0);
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn options_are_shared_by_locks_of_every_kind() {
    let world = World::new();
    let client = world.client();
    let chosen: Box<dyn RetryStrategy> = Box::new(Linear::new(ms(5)).limit(2));
    let options = LockOptions::new().ttl(secs(7)).owner("nightly").metadata("page 7").retry(chosen);
    let guard = client.mutex("a").options(&options).lock().await.unwrap();
    let reader = client.rwlock("b").options(&options).ttl(secs(9)).read().await.unwrap();
    let permit = client.semaphore("c", 1).options(&options).acquire().await.unwrap();
    let owner = Owner::named("its own");
    let hold = client.reentrant("d", &owner).options(&options).lock().await.unwrap();
    for (key, owner, least) in [("a", "nightly", 6), ("b", "nightly", 8), ("c", "nightly", 6)] {
        let holder = client.inspect(key).await.unwrap().unwrap().holders.remove(0);
        assert_eq!((holder.owner.as_str(), holder.metadata.as_str()), (owner, "page 7"));
        assert!(holder.remaining > secs(least) && holder.remaining <= secs(least + 1), "{key}");
    }
    let holder = client.inspect("d").await.unwrap().unwrap().holders.remove(0);
    assert_eq!(holder.owner.as_str(), "its own");
    let error = client.mutex("a").options(&options).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "the strategy gave up: {error}");

    let wrong = LockOptions::new().ttl(secs(0)).metadata("right");
    let error = client.mutex("e").options(&wrong).try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("\"e\""), "{error}");
    drop((guard, reader, permit, hold));
}

#[tokio::test(start_paused = true)]
async fn whatever_a_user_prints_is_one_readable_line() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("ledger").ttl(secs(30)).lock().await.unwrap();
    let fence = guard.fence().unwrap();
    let shown = format!("{guard:?}");
    assert!(
        shown.starts_with(&format!("Guard {{ key: \"ledger\", fence: {fence}, remaining: 2")),
        "{shown}"
    );
    let both = client.multi(["a", "b"]).lock().await.unwrap();
    for shown in [
        format!("{client:?}"),
        format!("{:?}", client.mutex("ledger")),
        format!("{:?}", client.semaphore("", 3)),
        format!("{:?}", LockOptions::new().ttl(secs(3)).max_waiters(None)),
        format!("{both:?}"),
        format!("{}", both.release_outcomes().await),
        shown,
    ] {
        assert!(shown.len() < 200 && !shown.contains('\n'), "{shown}");
    }
    guard.release().await.unwrap();
}
