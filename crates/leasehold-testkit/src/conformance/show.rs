//! Cases about what a store shows to people.

use std::time::Instant;

use leasehold_core::{Kind, LockInfo};

use super::context::{Context, LONG, Patience, SLACK, key};

pub(super) async fn an_unused_name_is_not_there(cx: &Context) {
    let key = cx.key();
    assert_eq!(cx.inspect(&key).await, None);
    assert_eq!(cx.inspect(&key).await, None);
    cx.party(&key).take().await.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn what_is_over_is_never_shown(cx: &Context) {
    let key = cx.key();
    let asked_at = Instant::now();
    cx.party(&key).ttl(cx.short()).take().await;
    let mut patience = Patience::for_what("a lease to end");
    while let Some(info) = cx.inspect(&key).await {
        assert_eq!(info.holders.len(), 1);
        assert!(!info.holders[0].remaining.is_zero(), "{info:?}");
        assert!(info.holders[0].remaining <= cx.short() + SLACK, "{info:?}");
        patience.pause().await;
    }
    assert!(asked_at.elapsed() + cx.short() / 100 + SLACK >= cx.short());
}

pub(super) async fn times_shown_fit_what_the_client_saw(cx: &Context) {
    let key = cx.key();
    let asked_at = Instant::now();
    let lease = cx.party(&key).take().await;
    let granted_at = Instant::now();
    tokio::time::sleep(cx.short()).await;
    let at_least = granted_at.elapsed();
    let holder = cx.show(&key).await.holders[0].clone();
    let at_most = asked_at.elapsed();
    let slack = SLACK + LONG / 100;
    assert!(holder.held_for + slack >= at_least && holder.held_for <= at_most + slack);
    let sum = holder.held_for + holder.remaining;
    assert!(sum + slack >= LONG && sum <= LONG + slack, "{holder:?}");
    lease.end().await;
}

pub(super) async fn waiters_are_shown_with_who_they_are(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let asked_at = Instant::now();
    let waiter = cx.party(&key).owner("w").metadata("for the report").queued();
    waiter.wait().await;
    let shown = cx.show(&key).await.waiters[0].clone();
    assert_eq!((shown.owner.as_str(), shown.metadata.as_str()), ("w", "for the report"));
    assert!(shown.waited <= asked_at.elapsed() + SLACK + SLACK);
    lease.end().await;
    waiter.leave().await;
}

pub(super) async fn contenders_behind_a_waiter_are_shown_as_its_last_heartbeat_said(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let first = cx.party(&key).queued().behind(2);
    let second = cx.party(&key).queued();
    first.wait().await;
    second.wait().await;
    let behind = |info: &LockInfo| info.waiters.iter().map(|it| it.behind).collect::<Vec<_>>();
    let info = cx.show(&key).await;
    assert_eq!((behind(&info), info.waiting()), (vec![2, 0], 4));
    let (first, second) = (first.behind(u32::MAX).next_beat(), second.behind(7).next_beat());
    first.wait().await;
    second.wait().await;
    assert_eq!(behind(&cx.show(&key).await), [u32::MAX, 7]);
    lease.end().await;
    first.leave().await;
    second.leave().await;
}

pub(super) async fn shared_holders_are_shown_in_the_order_of_their_grants(cx: &Context) {
    let key = cx.key();
    let owners = ["c", "a", "d", "b"];
    let mut leases = Vec::new();
    for owner in owners {
        leases.push(cx.party(&key).permits(1, 9).owner(owner).take().await);
    }
    assert_eq!(cx.holders(&key).await, owners);
    let info = cx.show(&key).await;
    assert!(info.holders.is_sorted_by(|a, b| a.fence < b.fence));
    assert_eq!(info.last_fence, leases[3].fences.last());
    for lease in leases {
        lease.end().await;
    }
}

pub(super) async fn locks_in_use_are_listed_in_the_order_of_their_names(cx: &Context) {
    let held = cx.named("held");
    let closed = cx.named("closed");
    let shared = cx.named("Zoo");
    let longer = cx.named("held/more");
    let lease = cx.party(&held).owner("h").take().await;
    cx.party(&closed).take().await.release_and_close(LONG).await;
    let other = cx.party(&shared).owner("s").take().await;
    let last = cx.party(&longer).take().await;
    cx.party(&cx.named("idle")).take().await.end().await;
    let listed = cx.list(cx.prefix()).await;
    let names: Vec<_> = listed.iter().map(|info| &info.key).collect();
    assert_eq!(names, [&shared, &closed, &held, &longer]);
    assert!(listed.iter().all(|info| info.kind == Kind::Lock));
    assert!(listed[1].closed_for.is_some() && listed[1].holders.is_empty());
    assert_eq!(listed[2].holders[0].owner.as_str(), "h");
    assert_eq!(listed[2].holders[0].fence, lease.fences.first());
    for lease in [lease, other, last] {
        lease.end().await;
    }
}

pub(super) async fn a_listed_lock_is_described_as_inspect_does(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).owner("h").metadata("m").holds(2).fence_block(3).take().await;
    let still = |mut info: LockInfo| {
        for holder in &mut info.holders {
            holder.held_for = LONG;
            holder.remaining = LONG;
        }
        info
    };
    let listed = cx.list(cx.prefix()).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(still(listed[0].clone()), still(cx.show(&key).await));
    lease.end().await;
}

pub(super) async fn names_with_waiters_are_listed(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    let waiter = cx.party(&key).owner("w").queued();
    waiter.wait().await;
    let listed = cx.list(cx.prefix()).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].waiters[0].owner.as_str(), "w");
    lease.end().await;
    waiter.leave().await;
    assert!(cx.list(cx.prefix()).await.is_empty());
}

pub(super) async fn idle_names_are_not_listed(cx: &Context) {
    let leases = [cx.key(), cx.key(), cx.key()];
    for key in &leases {
        cx.party(key).take().await.end().await;
    }
    assert!(cx.list(cx.prefix()).await.is_empty());
    let key = cx.key();
    cx.party(&key).ttl(cx.short()).take().await;
    let mut patience = Patience::for_what("an expired name to leave the list");
    while !cx.list(cx.prefix()).await.is_empty() {
        patience.pause().await;
    }
}

pub(super) async fn an_empty_prefix_lists_everything(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    assert!(cx.names("").await.contains(&key));
    lease.end().await;
    assert!(!cx.names("").await.contains(&key));
}

pub(super) async fn a_prefix_is_text_and_never_a_pattern(cx: &Context) {
    let rest = ["a*b", "a?b", "a[b]", "aXb", "a\\b", "a^b", "ab", "a**b", "a[^x]b", "a-b"];
    let mut leases = Vec::new();
    for rest in rest {
        leases.push(cx.party(&cx.named(rest)).take().await);
    }
    for prefix in ["a*", "a?", "a[", "a\\", "a[^", "a**", "ab", "a-", "a^", "a[a-z]", "*", "?"] {
        let mut expected: Vec<_> = rest
            .iter()
            .filter(|rest| rest.starts_with(prefix))
            .map(|rest| cx.named(rest))
            .collect();
        expected.sort();
        let listed = cx.names(&format!("{}{prefix}", cx.prefix())).await;
        assert_eq!(listed, expected, "for {prefix}");
    }
    assert!(cx.names(&format!("*{}", cx.prefix())).await.is_empty());
    for lease in leases {
        lease.end().await;
    }
}

pub(super) async fn a_prefix_that_is_no_name_lists_nothing(cx: &Context) {
    let lease = cx.party(&cx.key()).take().await;
    let long = format!("{}{}", cx.prefix(), "x".repeat(600));
    let control = format!("{}\n\0", cx.prefix());
    for prefix in [long, control] {
        assert!(cx.names(&prefix).await.is_empty());
    }
    lease.end().await;
}

pub(super) async fn a_prefix_may_be_of_wide_characters(cx: &Context) {
    let name = cx.named("日本");
    let lease = cx.party(&name).take().await;
    assert_eq!(cx.names(&format!("{}日", cx.prefix())).await, [name]);
    assert!(cx.names(&format!("{}本", cx.prefix())).await.is_empty());
    lease.end().await;
}

pub(super) async fn many_locks_held_at_once_are_all_listed(cx: &Context) {
    const MANY: usize = 400;
    let mut leases = Vec::new();
    for _ in 0..MANY {
        leases.push(cx.party(&cx.key()).take().await);
    }
    let names = cx.names(cx.prefix()).await;
    assert_eq!(names.len(), MANY);
    assert!(names.is_sorted());
    for lease in leases {
        lease.end().await;
    }
    assert!(cx.list(cx.prefix()).await.is_empty());
}

pub(super) async fn tokens_are_never_shown(cx: &Context) {
    let name = cx.key();
    let holder = cx.party(&name).owner("h");
    let lease = holder.take().await;
    let mut shown = vec![
        format!("{:?}", cx.show(&name).await),
        format!("{:?}", cx.party(&name).fail().await),
        format!("{:?}", holder.ask().await),
        format!("{:?}", cx.store()),
        cx.store().location(),
    ];
    let capability = cx.store().capability();
    let mut tokens = vec![holder.token()];
    if capability.queue {
        let waiter = cx.party(&name).owner("w").queued();
        shown.push(format!("{:?}", waiter.ask().await));
        shown.push(format!("{:?}", cx.show(&name).await));
        tokens.push(waiter.token());
    }
    if capability.list {
        shown.push(format!("{:?}", cx.list(cx.prefix()).await));
    }
    for token in tokens {
        let bytes = format!("{:?}", token.as_bytes());
        for text in &shown {
            assert!(!text.contains(&token.to_hex()) && !text.contains(&bytes));
            assert!(!text.contains(&token.to_hex().to_uppercase()));
        }
        cx.leave(&name, token).await;
    }
    assert_eq!(lease.key, name);
    assert_eq!(cx.inspect(&key(name.as_str())).await, None);
}
