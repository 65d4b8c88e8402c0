//! Stops scripts that write to several locks, on both sides and at every call.
//!
//! A change to one lock before the stop stays and is reported as done. The other locks are
//! unchanged.

use leasehold_core::{AcquireAll, AcquireRequest, Release, ReleaseRequest};
use proptest::collection::vec;
use proptest::sample::select;

use super::*;
use crate::differential::operation::{Ending, Renewal, Taking, ending, renewal, step, taking};
use crate::script::call::Call;
use crate::script::request::Delivery;
use crate::wire::reply;
use crate::wire::request_text::RequestText;

/// The number of locks.
const LOCKS: usize = 3;

/// One script about several locks, each named by its number.
#[derive(Clone, Debug)]
pub(super) enum Batch {
    Renew(Vec<(usize, Renewal)>),
    AcquireAll(Vec<(usize, Taking)>),
    Acquire(Vec<(usize, Taking)>),
    Release(Vec<(usize, Ending)>),
}

#[derive(Clone, Debug)]
enum Event {
    One(usize, Step),
    Batch(Batch, i64),
}

fn alike<T: Clone>(locks: Vec<usize>, asked: &T) -> Vec<(usize, T)> {
    locks.into_iter().map(|lock| (lock, asked.clone())).collect()
}

fn batch(home: Home) -> impl Strategy<Value = Batch> {
    let several = vec((0..LOCKS, renewal()), 2..6);
    // Different locks, in any order.
    let orders = select(vec![[0, 1, 2], [2, 1, 0], [1, 2, 0]]);
    let all = (orders, vec(taking(home), 2..=LOCKS)).prop_map(|(order, takings)| {
        order.into_iter().zip(takings.into_iter().map(Taking::at_once)).collect()
    });
    let locks = || vec(0..LOCKS, 2..6);
    prop_oneof![
        several.prop_map(Batch::Renew),
        all.prop_map(Batch::AcquireAll),
        vec((0..LOCKS, taking(home)), 2..6).prop_map(Batch::Acquire),
        vec((0..LOCKS, ending()), 2..6).prop_map(Batch::Release),
        // Equal requests use a shorter form.
        (locks(), renewal()).prop_map(|(locks, renewal)| Batch::Renew(alike(locks, &renewal))),
        (locks(), taking(home)).prop_map(|(locks, taking)| Batch::Acquire(alike(locks, &taking))),
        (locks(), ending()).prop_map(|(locks, ending)| Batch::Release(alike(locks, &ending))),
    ]
}

/// Runs one script about several locks, and returns the answer and epoch of each.
async fn together(
    store: &RedisStore,
    call: Call<'static>,
    texts: &[RequestText],
) -> Vec<Result<(redis::Value, u64), Error>> {
    let deadline = Deadline::after(WITHIN);
    match call.run(&*store.shared.transport, Delivery::None, deadline).await {
        Ok(Answer { value, epoch, .. }) => {
            let values = reply::parts(value, texts.len()).into_iter();
            values.map(|value| Ok((value, epoch))).collect()
        }
        Err(verdict) => texts.iter().map(|_| Err(verdict.to_error())).collect(),
    }
}

async fn acquire(store: &RedisStore, requests: &[AcquireRequest]) -> Vec<Result<Acquire, Error>> {
    let texts: Vec<_> =
        requests.iter().map(|request| store.acquire_text(request).unwrap()).collect();
    let answers = together(store, store.acquire_call(texts.iter()), &texts).await;
    let read = |(answer, request): (Result<_, _>, &AcquireRequest)| {
        let (value, epoch) = answer?;
        reply::acquire(value, &store.asked(request, epoch))
    };
    answers.into_iter().zip(requests).map(read).collect()
}

async fn release(store: &RedisStore, requests: &[ReleaseRequest]) -> Vec<Result<Release, Error>> {
    let texts: Vec<_> = requests.iter().map(|request| store.release_text(request)).collect();
    let answers = together(store, store.release_call(texts.iter()), &texts).await;
    answers.into_iter().map(|answer| reply::release(answer?.0)).collect()
}

fn events(home: Home) -> impl Strategy<Value = Vec<Event>> {
    let one = (0..LOCKS, step(home)).prop_map(|(lock, step)| Event::One(lock, step));
    let passes = select(vec![0, 1, 300_000, 500_001, 1_000_000]);
    let batch = (batch(home), passes).prop_map(|(batch, pass_us)| Event::Batch(batch, pass_us));
    vec(prop_oneof![5 => one, 2 => batch], 20..40)
}

impl Batch {
    /// Whether it abandons what the waiter with this ticket has.
    pub(super) fn ends(&self, ticket: u64) -> bool {
        match self {
            Self::Release(releases) => {
                releases.iter().any(|(_, ending)| u64::from(ending.who) == ticket)
            }
            Self::Renew(_) | Self::AcquireAll(_) | Self::Acquire(_) => false,
        }
    }

    /// Whether it renews the lease of the waiter with this ticket.
    pub(super) fn renews(&self, ticket: u64) -> bool {
        match self {
            Self::Renew(renewals) => renewals.iter().any(|(_, renewal)| renewal.is_by(ticket)),
            Self::Release(_) | Self::AcquireAll(_) | Self::Acquire(_) => false,
        }
    }

    /// Carries it out on the server alone.
    pub(super) async fn attempt(&self, world: &World, locks: &[Lock]) -> Vec<Answered> {
        let store = &world.stores[0];
        match self {
            Self::Renew(renewals) => {
                let requests = renewals
                    .iter()
                    .map(|(lock, renewal)| renewal.request(&locks[*lock].key, &locks[*lock].known));
                let requests: Vec<_> = requests.collect();
                let answers = store.renew(&requests, WITHIN).await.into_iter().zip(renewals);
                let answered = answers.map(|(answer, (lock, _))| Answered {
                    locks: vec![*lock],
                    outcome: answer.map(|answer| answer.proves().is_some()),
                });
                answered.collect()
            }
            Self::AcquireAll(takings) => {
                let requests = takings
                    .iter()
                    .map(|(lock, taking)| taking.request(&locks[*lock].key, &locks[*lock].known));
                let requests: Vec<_> = requests.collect();
                let answer = store.acquire_all(&requests, WITHIN).await;
                vec![Answered {
                    locks: takings.iter().map(|(lock, _)| *lock).collect(),
                    outcome: answer.map(|answer| matches!(answer, AcquireAll::Granted(_))),
                }]
            }
            Self::Acquire(takings) => {
                let requests: Vec<_> = takings
                    .iter()
                    .map(|(lock, taking)| taking.request(&locks[*lock].key, &locks[*lock].known))
                    .collect();
                let answers = acquire(store, &requests).await.into_iter().zip(takings);
                let answered = answers.map(|(answer, (lock, _))| Answered {
                    locks: vec![*lock],
                    outcome: answer.map(|answer| answer.fences().is_some()),
                });
                answered.collect()
            }
            Self::Release(endings) => {
                let requests: Vec<_> = endings
                    .iter()
                    .map(|(lock, ending)| ending.request(&locks[*lock].key, &locks[*lock].known))
                    .collect();
                let answers = release(store, &requests).await.into_iter().zip(endings);
                let answered = answers.map(|(answer, (lock, _))| Answered {
                    locks: vec![*lock],
                    outcome: answer.map(|_| false),
                });
                answered.collect()
            }
        }
    }

    /// Carries it out on both sides.
    async fn carry_out(
        &self,
        world: &World,
        locks: &mut [Lock],
        now: Now,
        notices: &mut Vec<Notice>,
    ) -> (String, String) {
        let store = &world.stores[0];
        match self {
            Self::Renew(renewals) => {
                let mut table = Vec::new();
                let mut requests = Vec::new();
                for (number, renewal) in renewals {
                    let Lock { key, entry, known } = &mut locks[*number];
                    let request = renewal.request(key, known);
                    let before = notices.len();
                    table.push(entry.perform(&request, now, notices));
                    requests.push(request);
                    known.hear(&notices[before..]);
                }
                let scripts = store.renew(&requests, WITHIN).await.into_iter();
                let scripts: Vec<_> = scripts.map(Result::unwrap).collect();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Self::AcquireAll(takings) => {
                let (mut requests, mut blocked) = (Vec::new(), None);
                for (index, (number, taking)) in takings.iter().enumerate() {
                    let Lock { key, entry, known } = &mut locks[*number];
                    let request = taking.request(key, known);
                    if blocked.is_none() {
                        let before = notices.len();
                        let answer = entry.perform(&Obstacle(&request), now, notices);
                        blocked = answer.map(|answer| AcquireAll::Blocked { index, answer });
                        known.hear(&notices[before..]);
                    }
                    requests.push(request);
                }
                let table = blocked.unwrap_or_else(|| {
                    let granted = takings.iter().zip(&requests).map(|((number, _), request)| {
                        let Lock { entry, known, .. } = &mut locks[*number];
                        let fences = entry.perform(request, now, notices).fences().unwrap();
                        known.fences.insert(request.token, fences);
                        fences
                    });
                    AcquireAll::Granted(granted.collect())
                });
                let scripts = store.acquire_all(&requests, WITHIN).await.unwrap();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Self::Acquire(takings) => {
                let requests: Vec<_> = takings
                    .iter()
                    .map(|(lock, taking)| taking.request(&locks[*lock].key, &locks[*lock].known))
                    .collect();
                let mut table = Vec::new();
                for ((number, _), request) in takings.iter().zip(&requests) {
                    let Lock { entry, known, .. } = &mut locks[*number];
                    let before = notices.len();
                    let mut answer = entry.perform(request, now, notices);
                    known.hear(&notices[before..]);
                    match &mut answer {
                        Acquire::Granted(granted) => {
                            known.fences.insert(request.token, granted.fences);
                        }
                        Acquire::Waiting(waiting) => {
                            known.places.insert(request.token, waiting.place);
                            // Abandoned positions may count.
                            waiting.position = waiting.position.min(1);
                        }
                        _ => {}
                    }
                    table.push(answer);
                }
                let mut scripts = Vec::new();
                for answer in acquire(store, &requests).await {
                    let mut answer = answer.unwrap();
                    if let Acquire::Waiting(waiting) = &mut answer {
                        waiting.position = waiting.position.min(1);
                    }
                    scripts.push(answer);
                }
                (format!("{table:?}"), format!("{scripts:?}"))
            }
            Self::Release(endings) => {
                let requests: Vec<_> = endings
                    .iter()
                    .map(|(lock, ending)| ending.request(&locks[*lock].key, &locks[*lock].known))
                    .collect();
                let mut table = Vec::new();
                for ((number, _), request) in endings.iter().zip(&requests) {
                    let Lock { entry, known, .. } = &mut locks[*number];
                    let before = notices.len();
                    table.push(entry.perform(request, now, notices));
                    known.hear(&notices[before..]);
                }
                let scripts: Vec<_> =
                    release(store, &requests).await.into_iter().map(Result::unwrap).collect();
                (format!("{table:?}"), format!("{scripts:?}"))
            }
        }
    }
}

impl Stops {
    async fn try_batches(&mut self, events: &[Event]) -> Result<(), TestCaseError> {
        self.world.messages().await;
        let first = self.world.sequences + 1;
        self.world.sequences += u64::try_from(LOCKS).unwrap();
        let mut locks: Vec<_> = (first..=self.world.sequences).map(Lock::new).collect();
        let mut stored = Vec::new();
        for lock in &locks {
            stored.push(Stored::read(&self.world, &lock.key).await);
        }
        let mut at_us = START_US;
        for event in events {
            match event {
                Event::One(number, step) => {
                    let lock = locks.swap_remove(*number);
                    let mut both = Both { world: &mut self.world, lock, at_us };
                    stored[*number] = both.step(step, &stored[*number]).await?;
                    at_us = both.at_us;
                    let last = locks.len();
                    locks.push(both.lock);
                    locks.swap(*number, last);
                }
                Event::Batch(batch, pass_us) => {
                    at_us = at_us.checked_add_signed(*pass_us).unwrap();
                    let keys: Vec<_> = locks.iter().map(|lock| lock.key.clone()).collect();
                    self.stop_everywhere(&keys, &Trial::Batch(batch, &locks), at_us).await?;
                    self.agree_on(batch, &mut locks, at_us).await?;
                    for (lock, stored) in locks.iter().zip(&mut stored) {
                        *stored = Stored::read(&self.world, &lock.key).await;
                    }
                }
            }
        }
        Ok(())
    }

    async fn agree_on(
        &mut self,
        batch: &Batch,
        locks: &mut [Lock],
        at_us: u64,
    ) -> Result<(), TestCaseError> {
        self.world.set_clock(at_us).await;
        let (now, mut notices) = (self.world.now(at_us, 0), Vec::new());
        let (table, scripts) = batch.carry_out(&self.world, locks, now, &mut notices).await;
        prop_assert_eq!(table, scripts, "the answers differ");
        // A script sends the notifications lock by lock.
        let sorted = |mut all: Vec<Vec<Wake>>| {
            all.iter_mut().for_each(|one| one.sort_by_key(|wake| format!("{wake:?}")));
            all
        };
        let heard = sorted(self.world.messages().await);
        prop_assert_eq!(heard, sorted(by_client(&notices)), "the messages differ");
        for Lock { key, entry, .. } in &*locks {
            let stored = Stored::read(&self.world, key).await;
            prop_assert_eq!(&stored.state, &Stored::of(entry, now).state, "{:?}", key);
        }
        Ok(())
    }
}

#[test]
fn batches_stopped_anywhere_leave_every_lock_whole() {
    run(events(Home::Any), async |stops, events| stops.try_batches(&events).await);
}

#[test]
fn batches_stopped_anywhere_leave_every_exclusive_lock_whole() {
    run(events(Home::Exclusive), async |stops, events| stops.try_batches(&events).await);
}
