//! How a lease was lost, and where that is reported.

use std::sync::Arc;

use leasehold::{Client, Error, ErrorKind, LockEventKind, LossReason, Reason};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use crate::support::{World, secs};

#[tokio::test(start_paused = true)]
async fn a_no_of_the_store_is_a_loss() {
    for ask_for_ttl in [false, true] {
        let world = World::new();
        let (client, operator) = (world.client(), world.client());
        let guard = client.mutex("a").ttl(secs(60)).renew(false).lock().await.unwrap();
        operator.force_release("a", guard.fence().unwrap()).await.unwrap();
        let other = operator.mutex("a").lock().await.unwrap();
        assert!(guard.is_held(), "nothing has told it");
        if ask_for_ttl {
            assert!(guard.ttl().await.unwrap().is_zero());
        } else {
            assert!(!guard.is_held_by_store().await.unwrap());
        }
        assert!(!guard.is_held() && guard.remaining().is_zero());
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.fence().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.loss().unwrap().reason(), LossReason::Refuted);
        guard.lost().await;
        assert!(other.is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn a_yes_of_the_store_and_a_lease_that_is_released_are_no_losses() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").lock().await.unwrap();
    let lease = guard.lease().clone();
    assert!(lease.is_held_by_store().await.unwrap());
    assert!(lease.loss().is_none() && lease.is_held());
    guard.release().await.unwrap();
    assert!(!lease.is_held_by_store().await.unwrap());
    assert!(lease.loss().is_none());
}

/// A client whose renewals can be made to fail.
fn scene() -> (World, FaultStore, Client) {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    (world, faults, client)
}

fn fail_renewals(faults: &FaultStore, error: Error) {
    faults.decide(move |call| match call.op {
        Op::Renew => Fault::Fail(error.clone()),
        _ => Fault::None,
    });
}

fn refused() -> Error {
    Error::new(ErrorKind::Denied, "no such user").with_reason(Reason::WrongPassword)
}

#[tokio::test(start_paused = true)]
async fn a_loss_has_the_error_of_the_last_renewal_that_failed() {
    let (_world, faults, client) = scene();
    let mut events = client.events();
    let guard = client.mutex("a").ttl(secs(6)).lock().await.unwrap();
    let lease = guard.lease().clone();
    assert!(lease.loss().is_none());
    fail_renewals(&faults, refused());
    lease.lost().await;
    let loss = lease.loss().unwrap();
    assert_eq!((loss.reason(), loss.cause()), (LossReason::Expired, Some(Reason::WrongPassword)));
    assert!(loss.error().unwrap().to_string().contains("no such user"));
    assert!(loss.unconfirmed_for() > secs(5));
    let told = loss.to_string();
    assert!(told.starts_with("no renewal was confirmed for 5."), "{told}");
    assert!(told.contains("no such user"), "{told}");
    let error = lease.check().unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Lost, Some(Reason::WrongPassword)));
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("no such user"));
    let mut what = events.next().await.unwrap().what;
    while what.name() != "lost" {
        what = events.next().await.unwrap().what;
    }
    let (reason, cause) = (LossReason::Expired, Some(Reason::WrongPassword));
    assert_eq!(what, LockEventKind::Lost { reason, cause });
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_failed_before_one_that_succeeded_is_no_cause() {
    let (world, faults, client) = scene();
    let guard = client.mutex("a").ttl(secs(6)).lock().await.unwrap();
    fail_renewals(&faults, refused());
    while !guard.is_at_risk() {
        tokio::time::sleep(secs(1)).await;
    }
    faults.heal();
    while guard.is_at_risk() {
        tokio::time::sleep(secs(1)).await;
    }
    world.client().force_release("a", guard.fence().unwrap()).await.unwrap();
    guard.lost().await;
    let loss = guard.loss().unwrap();
    assert!(loss.reason() == LossReason::Refuted && loss.error().is_none(), "{loss}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_cut_short_learns_why() {
    let (_world, faults, client) = scene();
    fail_renewals(&faults, refused());
    let mutex = client.mutex("a").ttl(secs(6));
    let cut = mutex.run(|_| std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::Lost);
    assert_eq!(cut.error().reason(), Some(Reason::WrongPassword));
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_directory_is_gone_loses_its_leases_at_the_step_that_finds_it() {
    let (_world, faults, client) = scene();
    let guard = client.mutex("a").ttl(secs(60)).lock().await.unwrap();
    let second = client.mutex("b").ttl(secs(600)).lock().await.unwrap();
    let gone = Error::new(ErrorKind::Corrupt, "removed").with_reason(Reason::DirectoryGone);
    fail_renewals(&faults, gone);
    guard.lost().await;
    assert!(guard.until_deadline() > secs(20), "not at the deadline");
    for guard in [guard, second] {
        guard.lost().await;
        let loss = guard.loss().unwrap();
        assert_eq!(
            (loss.reason(), loss.cause()),
            (LossReason::Refuted, Some(Reason::DirectoryGone))
        );
        assert!(guard.until_deadline() > secs(20));
        assert!(loss.to_string().contains("removed"), "{loss}");
    }
}
