//! Cases about renewing leases.

use std::time::Duration;

use leasehold_core::{Acquire, Busy, Release, ReleaseRequest, Renew, RenewRequest};

use super::context::{CALL, Context, LONG, Patience, SLACK, no_fences, token, ttl};
use super::party::Lease;

pub(super) async fn a_renewed_lease_outlives_its_first_ttl(cx: &Context) {
    // If the machine stalls for longer than the lease, the case proves nothing and tries a longer
    // one.
    for length in [1, 2, 4, 8, 16].map(|times| Duration::from_millis(400) * times) {
        let key = cx.key();
        let Some(lease) = cx.party(&key).ttl(length).take_in_time().await else { continue };
        match lease.renew(LONG).await {
            Renew::Renewed => {}
            Renew::Late => continue,
            other => panic!("a lease that nobody else could have is {other:?}"),
        }
        let mut patience = Patience::for_what("the first ttl to pass");
        loop {
            let holder = cx.show(&key).await.holders[0].clone();
            assert_eq!(holder.fence, lease.fences.first());
            if holder.held_for > length + SLACK {
                break;
            }
            patience.pause().await;
        }
        cx.party(&key).fail().await;
        lease.end().await;
        return;
    }
    panic!("the machine is too slow: five leases ended before they could be renewed");
}

pub(super) async fn a_renewal_never_shortens_unless_asked_to(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).ttl(LONG * 4).take().await;
    assert_eq!(lease.renew(cx.short()).await, Renew::Renewed);
    assert!(cx.show(&key).await.holders[0].remaining > LONG);
    let mut shorter = lease.renewal(LONG);
    shorter.shorten = true;
    assert_eq!(cx.renew(shorter).await, Renew::Renewed);
    assert!(cx.show(&key).await.holders[0].remaining <= LONG + SLACK);
    let mut shorter = lease.renewal(cx.short());
    shorter.shorten = true;
    assert_eq!(cx.renew(shorter).await, Renew::Renewed);
    cx.until_idle(&key).await;
}

pub(super) async fn a_renewal_changes_nothing_but_the_end(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).owner("worker").metadata("x").holds(2).fence_block(4).take().await;
    let before = cx.show(&key).await;
    assert_eq!(lease.renew(LONG * 2).await, Renew::Renewed);
    let after = cx.show(&key).await;
    let [old, new] = [&before.holders[0], &after.holders[0]];
    assert_eq!((&old.owner, &old.metadata, old.fence), (&new.owner, &new.metadata, new.fence));
    assert_eq!((old.holds, old.mode, after.holders.len()), (new.holds, new.mode, 1));
    assert_eq!(before.last_fence, after.last_fence);
    assert!(new.held_for >= old.held_for);
    lease.end().await;
}

pub(super) async fn a_renewal_never_creates_a_lease(cx: &Context) {
    let key = cx.key();
    let request = RenewRequest::new(key.clone(), token(), no_fences(), ttl(LONG));
    assert_eq!(cx.renew(request).await, Renew::NotHeld);
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_late_renewal_stays_ended_and_differs_from_a_lost_one(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).ttl(cx.short()).take().await;
    cx.until_idle(&key).await;
    assert_eq!(lease.renew(LONG).await, Renew::Late);
    assert_eq!(cx.inspect(&key).await, None, "a late renewal must not bring it back");
    let other = cx.party(&key).owner("other").take().await;
    assert_eq!(lease.renew(LONG).await, Renew::NotHeld);
    assert_eq!(cx.holders(&key).await, ["other"]);
    other.end().await;
    assert_eq!(lease.renew(LONG).await, Renew::NotHeld);
}

pub(super) async fn a_lock_is_taken_after_a_late_lease_only_if_it_was_free_since(cx: &Context) {
    let mut patience = Patience::for_what("a late lease that is followed");
    let (key, late, party, anew) = loop {
        let key = cx.key();
        let late = cx.party(&key).ttl(cx.short()).take().await;
        cx.until_idle(&key).await;
        let mut party = cx.party(&key);
        party.request.after = Some(late.fences);
        match party.ask().await {
            Acquire::Granted(granted) => {
                let anew = party.lease(granted.fences);
                break (key, late, party, anew);
            }
            // A quorum's node that granted the lease later than the others keeps it for longer. A
            // grant by those others then belongs to another lease.
            Acquire::Busy(Busy { holder: None, .. }) => patience.pause().await,
            other => panic!("{key}: {other:?}"),
        }
    };
    assert!(anew.fences.first() > late.fences.last());
    // Sent again, it is the same lease; for other contenders it is too late.
    assert_eq!(party.take_again().await.fences, anew.fences);
    let mut second = cx.party(&key);
    second.request.after = Some(late.fences);
    second.fail().await;
    anew.end().await;
    second.again().fail().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_strangers_renewal_extends_no_lease(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let stranger = RenewRequest::new(key.clone(), token(), no_fences(), ttl(LONG * 10));
    assert_eq!(cx.renew(stranger).await, Renew::NotHeld);
    assert!(cx.show(&key).await.holders[0].remaining <= LONG + SLACK);
    lease.end().await;
}

pub(super) async fn a_batch_of_renewals_is_answered_one_by_one_in_order(cx: &Context) {
    const BATCH: usize = 250;
    let mut leases: Vec<Lease> = Vec::new();
    let mut expired = Vec::new();
    for n in 0..BATCH {
        let key = cx.key();
        let length = if n % 5 == 3 { cx.short() } else { LONG };
        leases.push(cx.party(&key).ttl(length).take().await);
        if n % 5 == 3 {
            expired.push(key);
        }
    }
    for key in &expired {
        cx.until_idle(key).await;
    }
    let requests: Vec<RenewRequest> = leases
        .iter()
        .enumerate()
        .map(|(n, lease)| {
            let mut request = lease.renewal(LONG * 4);
            if n % 5 == 1 {
                request.token = token();
                request.fences = no_fences();
            }
            request
        })
        .collect();
    let answers = cx.store().renew(&requests, CALL).await;
    assert_eq!(answers.len(), BATCH);
    for (n, answer) in answers.into_iter().enumerate() {
        let expected = match n % 5 {
            1 => Renew::NotHeld,
            3 => Renew::Late,
            _ => Renew::Renewed,
        };
        assert_eq!(answer.expect("renew answers"), expected, "number {n}");
    }
    for (n, lease) in leases.iter().enumerate() {
        let info = cx.inspect(&lease.key).await;
        let remaining = info.map(|info| info.holders[0].remaining);
        match n % 5 {
            1 => assert!(remaining.is_some_and(|left| left <= LONG + SLACK), "number {n}"),
            3 => assert_eq!(remaining, None, "number {n}"),
            _ => assert!(remaining.is_some_and(|left| left > LONG + SLACK), "number {n}"),
        }
        if n % 5 != 3 {
            lease.clone().end().await;
        }
    }
}

pub(super) async fn an_empty_batch_is_answered_with_nothing(cx: &Context) {
    assert!(cx.store().renew(&[], CALL).await.is_empty());
}

pub(super) async fn one_lease_may_stand_twice_in_a_batch(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let requests = [lease.renewal(LONG * 2), lease.renewal(LONG * 4), lease.renewal(LONG)];
    for answer in cx.store().renew(&requests, CALL).await {
        assert_eq!(answer.expect("renew answers"), Renew::Renewed);
    }
    assert!(cx.show(&key).await.holders[0].remaining > LONG * 3);
    lease.end().await;
}

pub(super) async fn a_lease_that_is_transferred_has_a_new_token_and_the_old_one_is_spent(
    cx: &Context,
) {
    let key = cx.key();
    let lease = cx.party(&key).owner("worker").metadata("x").ttl(LONG * 2).take().await;
    let before = cx.show(&key).await;
    let to = |successor| {
        let mut request = lease.renewal(LONG * 4);
        request.successor = Some(successor);
        request
    };
    let successor = token();
    assert_eq!(cx.renew(to(successor)).await, Renew::Renewed);
    assert_eq!(cx.renew(to(successor)).await, Renew::Renewed, "it may be sent again");
    let after = cx.show(&key).await;
    let [old, new] = [&before.holders[0], &after.holders[0]];
    assert_eq!((&old.owner, &old.metadata, old.fence), (&new.owner, &new.metadata, new.fence));
    assert_eq!((after.holders.len(), after.last_fence), (1, before.last_fence));
    assert!(new.remaining > LONG * 2);
    assert_eq!(cx.renew(to(token())).await, Renew::NotHeld);
    assert_eq!(lease.renew(LONG).await, Renew::NotHeld);
    assert_eq!(lease.release_and_close(LONG).await, Release::NotHeld);
    assert_eq!(cx.show(&key).await.closed_for, None, "a spent token closed the lock");
    let release = ReleaseRequest::new(key.clone(), successor, lease.fences);
    assert_eq!(cx.release(&release).await, Release::Released);
    cx.party(&key).take().await.end().await;
}
