//! Cases about notifications to clients.

use std::time::Duration;

use leasehold_core::{ClientId, FenceBlock, Leave, Listener, Release, Renew, Wake};

use super::context::{CALL, Context, LONG, SLACK, patiently};
use super::party::client;

async fn listen(cx: &Context, client: ClientId) -> Box<dyn Listener> {
    cx.store().listen(client, CALL).await.expect("listen answers")
}

/// The next grant; skips hints, which may come at any time.
async fn next_grant(listener: &mut dyn Listener) -> (u64, u32, FenceBlock) {
    patiently("a grant to be told", async {
        loop {
            if let Wake::Granted { ticket, heartbeat, fences } = listener.next().await {
                return (ticket, heartbeat, fences);
            }
        }
    })
    .await
}

/// How soon this waiter can be served, according to the next notification to a head.
async fn next_first(listener: &mut dyn Listener, waiter: u64) -> Duration {
    patiently("the head to be told", async {
        loop {
            if let Wake::First { ticket, retry_after } = listener.next().await {
                assert_eq!(ticket, waiter);
                return retry_after;
            }
        }
    })
    .await
}

pub(super) async fn a_grants_notification_has_its_heartbeat_and_fences(cx: &Context) {
    let key = cx.key();
    let us = client();
    let mut listener = listen(cx, us).await;
    let lease = cx.party(&key).take().await;
    let waiter = cx.party(&key).fence_block(4).queued_as(us, 77);
    waiter.wait().await;
    let waiter = waiter.next_beat().next_beat();
    waiter.wait().await;
    lease.end().await;
    let (ticket, heartbeat, fences) = next_grant(&mut *listener).await;
    assert_eq!((ticket, heartbeat), (77, 2));
    assert_eq!(fences, waiter.clone().next_beat().take_again().await.fences);
    assert_eq!(fences.count(), 4);
    waiter.lease(fences).end().await;
}

pub(super) async fn a_grant_notifies_its_client_alone(cx: &Context) {
    let key = cx.key();
    let clients = [client(), client(), client()];
    let mut listeners = Vec::new();
    for client in clients {
        listeners.push(listen(cx, client).await);
    }
    let lease = cx.party(&key).take().await;
    let mut line = Vec::new();
    for (ticket, client) in (0..).zip(clients) {
        let waiter = cx.party(&key).queued_as(client, ticket);
        waiter.wait().await;
        line.push(waiter);
    }
    lease.end().await;
    // A notification to the wrong client would come before that client's own.
    for ((number, waiter), listener) in (0..).zip(line).zip(&mut listeners) {
        let (ticket, heartbeat, fences) = next_grant(&mut **listener).await;
        assert_eq!((ticket, heartbeat), (number, 0));
        assert_eq!(waiter.lease(fences).release().await, Release::Released);
    }
}

pub(super) async fn waiters_of_one_client_are_distinguished_by_their_tickets(cx: &Context) {
    let us = client();
    let mut listener = listen(cx, us).await;
    let keys = [cx.key(), cx.key()];
    let holders = [cx.party(&keys[0]).take().await, cx.party(&keys[1]).take().await];
    let waiters = [
        cx.party(&keys[0]).queued_as(us, 5),
        cx.party(&keys[1]).queued_as(us, u64::from(u32::MAX) + 6),
    ];
    for waiter in &waiters {
        waiter.wait().await;
    }
    for (holder, waiter) in holders.into_iter().zip(waiters).rev() {
        holder.end().await;
        let (ticket, _, fences) = next_grant(&mut *listener).await;
        let queue = waiter.request.queue.as_ref().expect("a party in the queue");
        assert_eq!(ticket, queue.ticket);
        waiter.lease(fences).end().await;
    }
}

pub(super) async fn a_grant_by_leaving_and_by_force_is_notified_too(cx: &Context) {
    let key = cx.key();
    let us = client();
    let mut listener = listen(cx, us).await;
    let holder = cx.party(&key);
    holder.take().await;
    let [a, b] = [1, 2].map(|ticket| cx.party(&key).queued_as(us, ticket));
    a.wait().await;
    b.wait().await;
    assert_eq!(holder.leave().await, Leave::Released);
    let (ticket, _, fences) = next_grant(&mut *listener).await;
    assert_eq!(ticket, 1);
    cx.force_release(&key, fences.first()).await;
    let (ticket, _, fences) = next_grant(&mut *listener).await;
    assert_eq!(ticket, 2);
    b.lease(fences).end().await;
}

pub(super) async fn a_new_head_that_would_oversleep_is_notified(cx: &Context) {
    let key = cx.key();
    let us = client();
    let mut listener = listen(cx, us).await;
    let lease = cx.party(&key).take().await;
    let head = cx.party(&key).queued();
    head.wait().await;
    // Its next heartbeat would be long after the holder's end.
    let sleepy = cx.party(&key).ttl(LONG * 20).queued_as(us, 9);
    sleepy.wait().await;
    assert_eq!(head.leave().await, Leave::Left);
    let retry_after = next_first(&mut *listener, 9).await;
    assert!(!retry_after.is_zero() && retry_after <= LONG + SLACK, "{retry_after:?}");
    lease.end().await;
    sleepy.leave().await;
}

pub(super) async fn a_head_is_notified_of_a_lease_that_ends_earlier_now(cx: &Context) {
    let key = cx.key();
    let us = client();
    let mut listener = listen(cx, us).await;
    let lease = cx.party(&key).ttl(LONG * 10).take().await;
    // Its next heartbeat would be long after the holder's new end.
    let sleepy = cx.party(&key).ttl(LONG * 20).queued_as(us, 9);
    sleepy.wait().await;
    let mut shorter = lease.renewal(LONG);
    shorter.shorten = true;
    assert_eq!(cx.renew(shorter).await, Renew::Renewed);
    let retry_after = next_first(&mut *listener, 9).await;
    assert!(!retry_after.is_zero() && retry_after <= LONG + SLACK, "{retry_after:?}");
    lease.end().await;
    sleepy.leave().await;
}

pub(super) async fn a_closed_channel_harms_no_other_and_can_be_opened_again(cx: &Context) {
    let key = cx.key();
    let us = client();
    let lease = cx.party(&key).take().await;
    let [a, b] = [1, 2].map(|ticket| cx.party(&key).queued_as(us, ticket));
    drop(listen(cx, us).await);
    a.wait().await;
    b.wait().await;
    lease.end().await;
    let fences = a.clone().next_beat().take_again().await.fences;
    let mut listener = listen(cx, us).await;
    a.lease(fences).end().await;
    let (mut ticket, _, mut fences) = next_grant(&mut *listener).await;
    if ticket == 1 {
        // Notifications to the closed channel may still be under way between a cluster's nodes.
        (ticket, _, fences) = next_grant(&mut *listener).await;
    }
    assert_eq!(ticket, 2);
    b.lease(fences).end().await;
}

pub(super) async fn a_dropped_wait_for_a_message_loses_none(cx: &Context) {
    let key = cx.key();
    let us = client();
    let mut listener = listen(cx, us).await;
    for round in 0..20 {
        let lease = cx.party(&key).take().await;
        let waiter = cx.party(&key).queued_as(us, round);
        waiter.wait().await;
        lease.end().await;
        for _ in 0..round {
            // Polled once, then dropped.
            tokio::select! {
                biased;
                wake = listener.next() => {
                    assert!(!matches!(wake, Wake::Granted { ticket, .. } if ticket < round));
                    if let Wake::Granted { ticket, fences, .. } = wake {
                        assert_eq!(ticket, round);
                        waiter.lease(fences).end().await;
                        break;
                    }
                }
                () = std::future::ready(()) => {}
            }
        }
        if cx.inspect(&key).await.is_some() {
            let (ticket, _, fences) = next_grant(&mut *listener).await;
            assert_eq!(ticket, round);
            waiter.lease(fences).end().await;
        }
    }
}
