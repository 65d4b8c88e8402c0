//! Every public future dropped at every one of its awaits: nothing is left, whatever became of
//! its requests.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use leasehold::Client;
use leasehold::retry::Linear;
use leasehold_testkit::cut::cut_at_every_await;
use leasehold_testkit::fault_store::{Fault, FaultStore, Op};

use crate::support::{World, cool, ms, secs};

/// What becomes of the requests of a future that is dropped.
fn fates() -> [Fault; 4] {
    [
        Fault::None,
        Fault::Delay { before: ms(40), after: ms(40) },
        Fault::DropRequest,
        Fault::DropReply,
    ]
}

/// A client behind faults, and everything needed to see that nothing is left of it.
pub(crate) struct Trial {
    pub(crate) world: World,
    faults: FaultStore,
    pub(crate) client: Client,
    tasks: usize,
}

impl Trial {
    fn new(op: Op, fate: Fault) -> Self {
        let world = World::new();
        let faults = FaultStore::new(Arc::new(world.store.clone()));
        let tasks = alive();
        let client = world.client_of(Arc::new(faults.clone()));
        // Slow for every request, so that there is something to cut; the fate is the first one's.
        let mut first = Some(fate);
        faults.decide(move |call| match (call.op == op).then(|| first.take()).flatten() {
            None | Some(Fault::None) => Fault::Delay { before: ms(3), after: ms(3) },
            Some(fate) => fate,
        });
        Self { world, faults, client, tasks }
    }

    fn mutex(&self) -> leasehold::Mutex {
        self.client.mutex("a").ttl(secs(20))
    }

    /// The lock is free again long before a ttl has passed, and with the client gone no task of
    /// its is left.
    async fn nothing_is_left(self, cut: u32) {
        let Self { world, faults, client, tasks } = self;
        let started = tokio::time::Instant::now();
        world.idle("a").await;
        assert!(started.elapsed() < secs(15), "cut {cut}: left to its ttl");
        // Whatever is still on its way arrives, and puts nothing back.
        tokio::time::sleep(secs(10)).await;
        assert!(world.is_idle("a").await, "cut {cut}: a late request came back");
        let renewals = faults.count(Op::Renew);
        tokio::time::sleep(secs(40)).await;
        assert_eq!(faults.count(Op::Renew), renewals, "cut {cut}: renewed for nobody");
        drop((client, faults));
        tokio::time::timeout(secs(60), async {
            while alive() > tasks {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("cut {cut}: {} tasks left", alive() - tasks));
    }
}

fn alive() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Cuts the future that `act` makes of a fresh trial, at each await and for each fate.
#[expect(clippy::future_not_send, reason = "it runs on the thread of its test")]
pub(crate) async fn cut<F: Future<Output = ()>>(op: Op, act: impl Fn(&Trial) -> F) {
    for fate in fates() {
        let trial: Mutex<Option<Trial>> = Mutex::new(None);
        let make = || {
            let fresh = Trial::new(op, fate.clone());
            let future = act(&fresh);
            *trial.lock().unwrap() = Some(fresh);
            future
        };
        let ((), polls) = cut_at_every_await(make, async |n| {
            let cut = trial.lock().unwrap().take().unwrap();
            cut.nothing_is_left(n).await;
        })
        .await;
        assert!(polls > 1, "there was nothing to cut");
        let last = trial.lock().unwrap().take().unwrap();
        last.nothing_is_left(polls).await;
    }
}

#[tokio::test(start_paused = true)]
async fn trying() {
    cut(Op::Acquire, |trial| {
        let mutex = trial.mutex();
        async move { drop(mutex.try_lock().await) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn locking_what_is_free() {
    cut(Op::Acquire, |trial| {
        let mutex = trial.mutex();
        async move { drop(mutex.lock().await) }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn polling_for_what_is_held() {
    cut(Op::Acquire, |trial| {
        let (world, mutex) = (trial.world.clone(), trial.mutex().retry(Linear::new(ms(50))));
        async move {
            let _held = world.stranger_takes("a", ms(200)).await;
            drop(mutex.lock_within(secs(10)).await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_in_the_queue_for_a_lease_that_expires() {
    cut(Op::Acquire, |trial| {
        let (world, mutex) = (trial.world.clone(), trial.mutex());
        async move {
            let _held = world.stranger_takes("a", ms(200)).await;
            drop(mutex.lock().await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_in_the_queue_for_a_released_lease() {
    cut(Op::Acquire, |trial| {
        let (holder, mutex) = (trial.world.client(), trial.mutex());
        async move {
            let held = holder.mutex("a").lock().await.unwrap();
            let release = async {
                tokio::time::sleep(ms(100)).await;
                drop(held.release().await);
            };
            drop(tokio::join!(mutex.lock(), release));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn several_in_the_local_queue() {
    cut(Op::Acquire, |trial| {
        let mutex = trial.mutex();
        async move {
            let turn = async || {
                let guard = mutex.lock().await.ok();
                tokio::time::sleep(ms(5)).await;
                drop(guard);
            };
            tokio::join!(turn(), turn(), turn());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out() {
    cut(Op::Acquire, |trial| {
        let (world, mutex) = (trial.world.clone(), trial.mutex());
        async move {
            let _held = world.stranger_takes("a", secs(2)).await;
            drop(mutex.lock_within(ms(300)).await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn opening_the_channel_for_notifications() {
    cut(Op::Listen, |trial| {
        let (world, mutex) = (trial.world.clone(), trial.mutex());
        async move {
            let _held = world.stranger_takes("a", ms(200)).await;
            drop(mutex.lock().await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn releasing() {
    cut(Op::Release, |trial| {
        let mutex = trial.mutex();
        async move {
            let guard = mutex.lock().await.unwrap();
            drop(guard.release().await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn prolonging() {
    cut(Op::Renew, |trial| {
        let mutex = trial.mutex();
        async move {
            let guard = mutex.lock().await.unwrap();
            drop(guard.renew_to(secs(25)).await);
            drop(guard.release().await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn releasing_while_a_renewal_is_on_its_way() {
    cut(Op::Renew, |trial| {
        let mutex = trial.mutex().ttl(ms(900));
        async move {
            let guard = mutex.lock().await.unwrap();
            tokio::time::sleep(ms(302)).await;
            drop(guard.release().await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn running_a_body() {
    cut(Op::Release, |trial| {
        let mutex = trial.mutex();
        async move {
            drop(mutex.run(async |_| tokio::time::sleep(Duration::from_secs(1)).await).await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn locking_again() {
    cut(Op::Renew, |trial| {
        let mutex = trial.mutex();
        async move {
            let guard = mutex.lock().await.unwrap();
            drop(mutex.relock(guard).await);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn detaching_and_releasing_what_was_detached() {
    cut(Op::Acquire, |trial| {
        let (client, mutex) = (trial.client.clone(), trial.mutex().ttl(secs(10)));
        async move {
            let Ok(guard) = mutex.lock().await else { return };
            let lease = guard.detach().await.unwrap();
            drop(client.adopt(&lease).await.unwrap());
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn closing() {
    cut(Op::Release, |trial| {
        let (client, mutex) = (trial.client.clone(), trial.mutex());
        async move {
            let guard = mutex.lock().await.unwrap();
            drop(client.close().await);
            drop(guard);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_close_that_is_dropped_goes_on() {
    let world = World::new();
    let client = world.client();
    let guard = client.mutex("a").lock().await.unwrap();
    {
        let mut close = pin!(client.close());
        assert!(close.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    let started = tokio::time::Instant::now();
    world.idle("a").await;
    assert!(started.elapsed() < secs(5));
    assert!(!guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_a_release_under_way_and_for_its_result() {
    let world = World::new();
    let client = world.client();
    let release = client.mutex("a").lock().await.unwrap().release_with_cooldown(cool(secs(60)));
    let mut close = pin!(client.close());
    let early = tokio::time::timeout(secs(3), &mut close).await;
    assert!(early.is_err(), "closed, and a release is neither done nor given up");
    drop(release);
    close.await.unwrap();
    let info = world.client().inspect("a").await.unwrap().unwrap();
    assert!(info.holders.is_empty() && info.closed_for.is_some(), "{info:?}");
}
