//! What a release says, to callers that look at nothing but `?`.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Effect, ErrorKind, Owner, Release};
use leasehold_clock::ManualClock;
use leasehold_embedded::MemoryStore;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use crate::support::{World, cool, secs};

#[tokio::test(start_paused = true)]
async fn a_release_passes_only_when_the_lease_was_held_to_its_end() {
    let world = World::new();
    let client = world.client();
    let mutex = client.mutex("a").ttl(secs(1)).renew(false);
    mutex.lock().await.unwrap().release().await.unwrap();

    let guard = mutex.lock().await.unwrap();
    tokio::time::advance(secs(2)).await;
    let late = guard.release().await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Late);
    // The deadline is 1 % and 2 ms before the end of the ttl.
    let why = "release \"a\" at memory: the lease expired 1.0s before its release";
    assert!(late.to_string().starts_with(why), "{late}");

    let guard = mutex.lock().await.unwrap();
    tokio::time::advance(secs(2)).await;
    let _other = world.client().mutex("a").lock().await.unwrap();
    let lost = guard.release_with_cooldown(cool(secs(60))).await.unwrap_err();
    assert_eq!((lost.kind(), lost.key().unwrap().as_str()), (ErrorKind::Lost, "a"));
}

#[tokio::test(start_paused = true)]
async fn only_a_release_in_time_says_that_it_is() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let mutex = client.mutex("a").ttl(secs(3)).renew(false);
    for begun_in_time in [true, false] {
        let guard = mutex.lock().await.unwrap();
        // Expired by the holder's clock, though not by the store's.
        let rest = if begun_in_time { Duration::from_secs(1) } else { Duration::ZERO };
        tokio::time::advance(guard.remaining() - rest).await;
        faults.next(
            Op::Release,
            Fault::Delay { before: Duration::from_millis(1_500), after: Duration::ZERO },
        );
        let outcome = guard.release_outcome().await.unwrap();
        assert_eq!(
            outcome,
            if begun_in_time { Release::Released } else { Release::Late { by: None } }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_was_not_answered_is_an_error_that_says_so() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    for fault in [Fault::DropReply, Fault::DropRequest] {
        let guard = client.mutex("a").lock().await.unwrap();
        faults.next(Op::Release, fault);
        assert_eq!(guard.release().await.unwrap_err().effect(), Effect::Unknown);
        world.idle("a").await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_guard_reports_a_loss_by_its_release() {
    let world = World::new();
    let client = world.client();
    let lose = async |key: &str| {
        let info = client.inspect(key).await.unwrap().unwrap();
        client.force_release(key, info.holders[0].fence).await.unwrap();
        drop(world.client().mutex(key).lock().await.unwrap());
        world.idle(key).await;
    };
    let owner = Owner::new();

    let guard = client.rwlock("a").read().await.unwrap();
    lose("a").await;
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let guard = client.rwlock("a").write().await.unwrap();
    lose("a").await;
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let guard = client.reentrant("a", &owner).lock().await.unwrap();
    lose("a").await;
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let guard = client.once_per("b", secs(1)).try_start().await.unwrap().unwrap();
    let fence = guard.fence().unwrap();
    client.force_release("b", fence).await.unwrap();
    tokio::time::advance(secs(2)).await;
    drop(world.client().mutex("b").lock().await.unwrap());
    world.idle("b").await;
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let post = client.election("a").campaign().await.unwrap();
    lose("a").await;
    assert_eq!(post.resign().await.unwrap_err().kind(), ErrorKind::Lost);
    let guards = client.multi(["a", "c"]).lock().await.unwrap();
    lose("a").await;
    let lost = guards.release().await.unwrap_err();
    assert_eq!((lost.kind(), lost.key().unwrap().as_str()), (ErrorKind::Lost, "a"));
    let guard = client.mutex("a").lock().await.unwrap();
    lose("a").await;
    let detached = client.mutex("c").lock().await.unwrap().detach().await.unwrap();
    lose("c").await;
    assert_eq!(client.release(&detached, None).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(client.release_all().await.unwrap_err().kind(), ErrorKind::Lost);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn the_worst_outcome_of_several_is_their_verdict() {
    let world = World::new();
    let all = world.client().multi(["a", "b"]).ttl(secs(1)).renew(false).lock().await.unwrap();
    tokio::time::advance(secs(2)).await;
    world.client().mutex("b").lock().await.unwrap().release().await.unwrap();
    let outcomes = all.release_outcomes().await;
    let worst = outcomes.verdict().unwrap_err();
    assert_eq!((worst.kind(), worst.key().unwrap().as_str()), (ErrorKind::Lost, "b"));
    let outcomes: Vec<_> = outcomes.iter().map(|(_, outcome)| outcome.clone().unwrap()).collect();
    let by = Some(Duration::from_millis(1_012));
    assert_eq!(outcomes, [Release::Late { by }, Release::NotHeld]);
}

#[tokio::test(start_paused = true)]
async fn a_release_of_what_is_held_more_than_once_says_how_many_holds_remain() {
    let world = World::new();
    let client = world.client();
    let owner = Owner::new();
    let lock = client.reentrant("a", &owner);
    let (one, two, three) =
        (lock.lock().await.unwrap(), lock.lock().await.unwrap(), lock.lock().await.unwrap());
    assert_eq!(two.release().await.unwrap(), 2);
    assert_eq!(one.release().await.unwrap(), 1);
    assert_eq!(three.release().await.unwrap(), 0);
}

#[tokio::test]
async fn a_body_that_ends_after_its_lease_gives_its_output_back_inside_the_error() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    let client = || {
        let builder = leasehold::Client::builder().clock(Arc::new(clock.clone()));
        builder.store(Arc::new(store.clone())).unwrap()
    };
    let (client, other) = (client(), client());
    let mutex = client.mutex("a").ttl(secs(5)).renew(false);
    let late = mutex
        .run(async |_| {
            clock.advance(secs(6));
            7
        })
        .await
        .unwrap_err();
    assert_eq!((late.kind(), late.output()), (ErrorKind::Late, Some(&7)));
    let lost = mutex
        .run(async |_| {
            clock.advance(secs(6));
            other.mutex("a").try_lock().await.unwrap().unwrap().release().await.unwrap();
            8
        })
        .await
        .unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert_eq!(lost.into_output(), Some(8));
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_takes_nothing_from_a_body_that_ended_in_time() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    for fault in [Fault::DropReply, Fault::DropRequest, Fault::Refuse] {
        faults.next(Op::Release, fault);
        assert_eq!(client.mutex("a").run(async |_| 7).await.unwrap(), 7);
        world.idle("a").await;
    }
    assert!(faults.count(Op::Release) >= 3);
}
