//! Cases about too little time, dropped futures, and many names.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::{
    Acquire, Effect, Error, ErrorKind, Fence, ForceReleaseRequest, Leave, LeaveRequest,
    ListRequest, Result,
};
use tokio::task::JoinSet;

use super::context::{CALL, Context, LONG, Patience, no_fences, patiently};
use super::party::{Party, client};
use crate::cut::cut_at_every_await;

const HARDLY: [Duration; 3] = [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(1)];

/// The only error that a call without time may return.
fn check<T>(answer: Result<T>) -> Option<Error> {
    let error = answer.err()?;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_ne!(error.effect(), Effect::Applied, "{error}");
    Some(error)
}

pub(super) async fn an_acquisition_without_time_fails_cleanly_or_succeeds(cx: &Context) {
    for within in HARDLY {
        let key = cx.key();
        let party = cx.party(&key);
        let call = cx.store().acquire(&party.request, within);
        let answer = patiently("an answer or a time-out", call).await;
        match check(answer) {
            None => assert_eq!(party.leave().await, Leave::Released),
            Some(error) if error.effect() == Effect::NotApplied => {
                assert_eq!(cx.inspect(&key).await, None, "applied after all");
            }
            Some(_) => {
                // The request may have been sent, so the token's owner cleans up.
                party.leave().await;
                let mut patience = Patience::for_what("what was unknown to be undone");
                while cx.inspect(&key).await.is_some() {
                    party.leave().await;
                    patience.pause().await;
                }
            }
        }
        cx.party(&key).take().await.end().await;
    }
}

pub(super) async fn no_call_without_time_hangs(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).take().await;
    for within in HARDLY {
        let store = cx.store();
        let other = cx.key();
        let leave = LeaveRequest::new(other.clone(), lease.token);
        let force = ForceReleaseRequest::new(other.clone(), Fence::ZERO);
        let mut release = lease.ending();
        release.key = other.clone();
        release.fences = no_fences();
        let all = async {
            check(store.leave(&leave, within).await);
            check(store.release(&release, within).await);
            check(store.force_release(&force, within).await);
            check(store.inspect(&other, within).await);
            if store.capability().list {
                check(store.list(&ListRequest::new(cx.prefix()), within).await);
            }
            if store.capability().wake {
                check(store.listen(client(), within).await);
            }
            let renewals = [lease.renewal(LONG), lease.renewal(LONG)];
            let answers = store.renew(&renewals, within).await;
            assert_eq!(answers.len(), 2, "one answer per request, also when there was no time");
            for answer in answers {
                check(answer);
            }
        };
        patiently("answers or time-outs", all).await;
    }
    let info = cx.show(&key).await;
    assert_eq!(info.holders[0].fence, lease.fences.first(), "the store is of use after that");
    lease.end().await;
}

pub(super) async fn leaving_undoes_an_acquisition_dropped_at_any_await(cx: &Context) {
    let key = cx.key();
    let parties: Mutex<Vec<Party>> = Mutex::default();
    let asked = || parties.lock().expect("no task panics with it");
    let last = || asked().last().cloned().expect("one has asked");
    let mut cuts = 0;
    loop {
        let cut = cut_at_every_await(
            || {
                // An abandoned token is never requested again.
                let party = cx.party(&key);
                asked().push(party.clone());
                async move { cx.store().acquire(&party.request, CALL).await }
            },
            async |_| {
                last().leave().await;
                assert_eq!(cx.inspect(&key).await, None, "it has to be free at once");
            },
        );
        // A real store's timing varies, so the number of polls differs between runs.
        let (answer, polls) = patiently("an acquisition to be cut everywhere", cut).await;
        assert!(matches!(answer.expect("acquire answers"), Acquire::Granted(_)));
        last().leave().await;
        assert_eq!(cx.inspect(&key).await, None);
        cuts += polls;
        if cuts >= 20 {
            break;
        }
    }
    let parties = std::mem::take(&mut *asked());
    for party in parties {
        assert_eq!(party.leave().await, Leave::NotHeld);
    }
}

pub(super) async fn a_dropped_waiter_is_undone_by_leaving(cx: &Context) {
    let key = cx.key();
    let lease = cx.party(&key).owner("holder").take().await;
    for _ in 0..10 {
        let waiter = cx.party(&key).queued();
        let mut call = cx.store().acquire(&waiter.request, CALL);
        let polled = std::future::poll_fn(|task| std::task::Poll::Ready(call.as_mut().poll(task)));
        drop(polled.await);
        drop(call);
        waiter.leave().await;
        assert!(cx.show(&key).await.waiters.is_empty());
    }
    assert_eq!(cx.holders(&key).await, ["holder"]);
    lease.end().await;
    assert_eq!(cx.inspect(&key).await, None);
}

pub(super) async fn a_thousand_names_leave_nothing_behind(cx: &Context) {
    const TASKS: usize = 8;
    const NAMES: usize = 125;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = cx.shared_store();
        let names: Vec<_> = (0..NAMES).map(|n| cx.named(format_args!("{task}/{n}"))).collect();
        tasks.spawn(async move {
            for name in names {
                Party::new(Arc::clone(&store), &name).take().await.end().await;
            }
        });
    }
    tasks.join_all().await;
    assert!(cx.list(cx.prefix()).await.is_empty());
}

pub(super) async fn names_that_are_never_released_leave_nothing_behind(cx: &Context) {
    for _ in 0..100 {
        cx.party(&cx.key()).ttl(cx.short()).take().await;
    }
    let mut patience = Patience::for_what("a hundred expired names to leave the list");
    while !cx.list(cx.prefix()).await.is_empty() {
        patience.pause().await;
    }
}

pub(super) async fn the_store_has_a_name_that_can_be_shown(cx: &Context) {
    let location = cx.store().location();
    assert!(!location.is_empty());
    assert!(!location.chars().any(char::is_control), "{location:?}");
    assert_eq!(cx.store().location(), location);
}
