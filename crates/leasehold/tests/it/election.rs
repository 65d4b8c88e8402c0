//! One leader at a time, which all can see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::{ErrorKind, Leader, Release};
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};
use tokio_util::sync::CancellationToken;

use crate::cancel::cut;
use crate::support::{World, ms, secs};

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_next_does_after_its_resignation() {
    let world = World::new();
    let post = |name: &str| world.client().election("a").owner(name).metadata("addr");
    let one = post("one").campaign().await.unwrap();
    assert!(post("two").try_campaign().await.unwrap().is_none());
    let error = post("two").campaign_within(ms(20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let two = post("two");
    let two = tokio::spawn(async move { two.campaign().await.unwrap() });
    while world.waiters("a").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    let leader = post("three").leader().await.unwrap().unwrap();
    assert_eq!((leader.owner.as_str(), leader.metadata.as_str()), ("one", "addr"));
    let fence = one.fence().unwrap();
    assert_eq!(leader.fence, fence);
    assert_eq!(one.resign_outcome().await.unwrap(), Release::Released);
    let two = two.await.unwrap();
    assert!(two.fence().unwrap() > fence);
    assert_eq!(two.resign_outcome().await.unwrap(), Release::Released);
    assert_eq!(post("three").leader().await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_leaders_come_and_go() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let watching = world.client_of(Arc::new(faults.clone()));
    let mut observer = watching.election("a").look_every(secs(2)).observe();
    assert_eq!(observer.changed().await.unwrap(), None);
    let name = |leader: Option<Leader>| leader.map(|leader| leader.owner.as_str().to_owned());

    let one = world.client().election("a").owner("one").campaign().await.unwrap();
    assert_eq!(name(observer.changed().await.unwrap()).as_deref(), Some("one"));
    // Nothing new: it looks at its intervals and is silent.
    let looks = faults.count(Op::Inspect);
    assert!(tokio::time::timeout(secs(100), observer.changed()).await.is_err());
    let looked = faults.count(Op::Inspect) - looks;
    assert!((49..=51).contains(&looked), "it looked {looked} times");

    drop(one);
    assert_eq!(observer.changed().await.unwrap(), None);
    let started = tokio::time::Instant::now();
    let two = world.client().election("a").owner("two").ttl(secs(5)).renew(false);
    let two = two.campaign().await.unwrap();
    let mut observer = watching.election("a").look_every(secs(600)).observe();
    assert_eq!(name(observer.changed().await.unwrap()).as_deref(), Some("two"));
    // The end of the lease is seen when it comes, not at the next interval.
    assert_eq!(observer.changed().await.unwrap(), None);
    assert!(started.elapsed() < secs(6), "{:?}", started.elapsed());
    drop(two);
    let mut observer = watching.election("a").look_every(secs(2)).observe();
    assert_eq!(observer.changed().await.unwrap(), None);

    faults.black_out(true);
    assert_eq!(observer.changed().await.unwrap_err().kind(), ErrorKind::Unavailable);
    faults.black_out(false);
    let _three = world.client().election("a").owner("three").campaign().await.unwrap();
    assert_eq!(name(observer.changed().await.unwrap()).as_deref(), Some("three"));
}

#[tokio::test(start_paused = true)]
async fn who_loses_the_post_steps_down_in_time_and_campaigns_again() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    let client = world.client_of(Arc::new(faults.clone()));
    let terms = Arc::new(AtomicU32::new(0));
    let leads = Arc::new(AtomicU32::new(0));
    struct Leads(Arc<AtomicU32>);
    impl Drop for Leads {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let stop = CancellationToken::new();
    let run = {
        let (terms, leads, stop) = (Arc::clone(&terms), Arc::clone(&leads), stop.clone());
        tokio::spawn(async move {
            let post = client.election("a").ttl(secs(6));
            post.run(stop.cancelled_owned(), |lease| {
                terms.fetch_add(1, Ordering::SeqCst);
                leads.fetch_add(1, Ordering::SeqCst);
                let leads = Leads(Arc::clone(&leads));
                async move {
                    let _leads = leads;
                    assert!(lease.is_held());
                    std::future::pending::<()>().await;
                }
            })
            .await
        })
    };
    tokio::time::sleep(secs(30)).await;
    assert_eq!((terms.load(Ordering::SeqCst), leads.load(Ordering::SeqCst)), (1, 1));
    faults.black_out(true);
    // Another candidate leads as soon as the store allows it, and only after the first has stepped
    // down.
    let other = world.client().election("a").campaign().await.unwrap();
    assert_eq!(leads.load(Ordering::SeqCst), 0);
    faults.black_out(false);
    tokio::time::sleep(secs(30)).await;
    assert_eq!(terms.load(Ordering::SeqCst), 1);
    assert_eq!(other.resign_outcome().await.unwrap(), Release::Released);
    tokio::time::sleep(secs(30)).await;
    assert_eq!((terms.load(Ordering::SeqCst), leads.load(Ordering::SeqCst)), (2, 1));
    stop.cancel();
    assert_eq!(run.await.unwrap().unwrap(), None);
    assert_eq!(leads.load(Ordering::SeqCst), 0);
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ends_by_itself_ends_the_run_and_resigns() {
    let world = World::new();
    let post = world.client().election("a");
    let done = post.run(std::future::pending(), async |lease| lease.fence().unwrap()).await;
    assert!(done.unwrap().is_some());
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn callbacks_are_called_once_for_each_term() {
    let world = World::new();
    let client = world.client();
    let (begun, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let stop = CancellationToken::new();
    let run = {
        let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
        let (stop, post) = (stop.clone(), client.election("a").ttl(secs(6)));
        tokio::spawn(async move {
            let elected = |lease: &leasehold::HeldLease| {
                assert!(lease.is_held());
                begun.fetch_add(1, Ordering::SeqCst);
            };
            let stepped_down = || {
                ended.fetch_add(1, Ordering::SeqCst);
            };
            post.run_callbacks(stop.cancelled_owned(), elected, stepped_down).await
        })
    };
    tokio::time::sleep(secs(10)).await;
    let counts = || (begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
    assert_eq!(counts(), (1, 0));
    let leader = client.election("a").leader().await.unwrap().unwrap();
    client.force_release("a", leader.fence).await.unwrap();
    tokio::time::sleep(secs(10)).await;
    assert_eq!(counts(), (2, 1));
    stop.cancel();
    run.await.unwrap().unwrap();
    assert_eq!(counts(), (2, 2));
    assert!(world.is_idle("a").await);
}

#[tokio::test(start_paused = true)]
async fn what_can_never_succeed_ends_the_run_at_once() {
    let world = World::new();
    let client = world.client();
    let error = client.election("").run(std::future::pending(), async |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let _lead = client.election("a").campaign().await.unwrap();
    client.close().await.unwrap();
    let error = client.election("a").run(std::future::pending(), async |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn running_can_be_dropped_at_every_await() {
    cut(Op::Acquire, |trial| {
        let post = trial.client.election("a").ttl(secs(20));
        async move {
            drop(
                post.run(tokio::time::sleep(ms(80)), async |_| std::future::pending::<()>().await)
                    .await,
            );
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn all_observers_see_each_leader_also_one_of_the_same_process() {
    let world = World::new();
    let client = world.client();
    let mut observer = world.client().election("a").observe();
    let first = client.election("a").campaign().await.unwrap();
    let seen = observer.changed().await.unwrap().unwrap();
    assert_eq!(seen.fence, first.fence().unwrap());
    // As early in its term as a lease is handed off inside a process.
    let again = client.election("b").campaign().await.unwrap();
    let post = client.election("b");
    let second = tokio::spawn(async move { post.campaign().await.unwrap() });
    while world.waiters("b").await == 0 {
        tokio::time::sleep(ms(1)).await;
    }
    assert_eq!(again.resign_outcome().await.unwrap(), Release::Released);
    let second = second.await.unwrap();
    let leader = client.election("b").leader().await.unwrap().unwrap();
    assert_eq!(leader.fence, second.fence().unwrap());
}

#[tokio::test]
async fn a_store_that_is_away_is_not_asked_without_a_pause() {
    let world = World::new();
    let faults = FaultStore::new(Arc::new(world.store.clone()));
    faults.decide(|_| Fault::Refuse);
    let post = world.client_of(Arc::new(faults.clone())).election("a").look_every(ms(0));
    post.run(tokio::time::sleep(ms(300)), async |_| ()).await.unwrap();
    assert!((1..=61).contains(&faults.count(Op::Acquire)), "{}", faults.count(Op::Acquire));
}
