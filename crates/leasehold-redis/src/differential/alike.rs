//! Compares both on many similar locks that are acquired, renewed and released together.
//!
//! Scripts have short loops for similar locks, which end at the first one that differs. So random
//! steps change one lock after the other.

use leasehold_core::{ReleaseRequest, RenewRequest, Ttl};
use tokio::task::JoinSet;

use super::*;

/// So few that one call renews all, and a script postpones none.
const MANY: usize = 9;

/// The common request.
#[derive(Clone, Copy, Debug)]
enum What {
    Take,
    Renew,
    Free,
}

/// Usually all of them are free, or all are held by these tokens, except for one lock.
fn what(turn: usize) -> What {
    [What::Take, What::Renew, What::Free, What::Take, What::Renew][turn % 5]
}

fn its_token(turn: usize, number: usize) -> Token {
    // The tokens that acquired them last renew and release them.
    token(u8::try_from((turn / 5 + number) % usize::from(TOKENS)).unwrap())
}

fn ttl(turn: usize) -> Ttl {
    Ttl::new(Duration::from_secs([1, 10, 100][turn % 3])).unwrap()
}

struct Many<'a> {
    world: &'a mut World,
    locks: Vec<(Lock, Stored)>,
    at_us: u64,
}

impl Many<'_> {
    /// Changes one of them.
    async fn step(&mut self, number: usize, step: &Step) -> Result<(), TestCaseError> {
        let (lock, stored) = self.locks.remove(number);
        let mut both = Both { world: &mut *self.world, lock, at_us: self.at_us };
        let stored = both.step(step, &stored).await?;
        self.at_us = both.at_us;
        self.locks.insert(number, (both.lock, stored));
        Ok(())
    }

    /// Makes the same request for all, on both sides, and compares answers, notifications and
    /// stored data.
    async fn together(&mut self, turn: usize) -> Result<(), TestCaseError> {
        let store = self.world.stores[0].clone();
        let now = self.world.now(self.at_us, 0);
        let what = what(turn);
        let (mut table, mut notices) = (Vec::new(), Vec::new());
        let (mut tasks, mut renewals) = (JoinSet::new(), Vec::new());
        for (number, (Lock { key, entry, known }, _)) in self.locks.iter_mut().enumerate() {
            let (key, token, store) = (key.clone(), its_token(turn, number), store.clone());
            let mut its = Vec::new();
            table.push(match what {
                What::Take => {
                    let request = AcquireRequest::new(key, token, ttl(turn));
                    let answer = entry.perform(&request, now, &mut its);
                    if let Acquire::Granted(granted) = &answer {
                        known.fences.insert(token, granted.fences);
                    }
                    tasks.spawn(async move {
                        (number, format!("{:?}", store.acquire(&request, WITHIN).await.unwrap()))
                    });
                    format!("{answer:?}")
                }
                What::Renew => {
                    let request = RenewRequest::new(key, token, known.fences(token), ttl(turn));
                    let answer = entry.perform(&request, now, &mut its);
                    renewals.push(request);
                    format!("{answer:?}")
                }
                What::Free => {
                    let mut request = ReleaseRequest::new(key, token, known.fences(token));
                    // As for holders without doubt about the lease. The deadline need not be sent
                    // then.
                    request.in_time = !turn.is_multiple_of(7);
                    let answer = entry.perform(&request, now, &mut its);
                    tasks.spawn(async move {
                        (number, format!("{:?}", store.release(&request, WITHIN).await.unwrap()))
                    });
                    format!("{answer:?}")
                }
            });
            known.hear(&its);
            notices.extend(its);
        }
        let mut scripts = tasks.join_all().await;
        for (number, answer) in store.renew(&renewals, WITHIN).await.into_iter().enumerate() {
            scripts.push((number, format!("{:?}", answer.unwrap())));
        }
        scripts.sort_unstable();
        let scripts: Vec<_> = scripts.into_iter().map(|(_, answer)| answer).collect();
        prop_assert_eq!(scripts, table, "the answers differ, of {:?}", what);

        let sorted = |mut all: Vec<Vec<Wake>>| {
            // Notifications about different locks may come in any order.
            all.iter_mut().for_each(|heard| heard.sort_by_cached_key(|wake| format!("{wake:?}")));
            all
        };
        let heard = sorted(self.world.messages().await);
        prop_assert_eq!(heard, sorted(by_client(&notices)), "the messages differ, of {:?}", what);

        for (Lock { key, entry, .. }, stored) in &mut self.locks {
            let info = store.inspect(key, WITHIN).await.unwrap();
            prop_assert_eq!(info, entry.inspect(key, now.at), "what is shown differs");
            let after = Stored::read(self.world, key).await;
            let table = Stored::of(entry, now);
            prop_assert_eq!(&after.state, &table.state, "what is stored differs, of {:?}", what);
            after.check_expiry(stored, &table, now)?;
            *stored = after;
        }
        Ok(())
    }
}

async fn agree(world: &mut World, steps: &[Step]) -> Result<(), TestCaseError> {
    for store in &world.stores {
        store.shared.highest_sequence.store(0, Ordering::Relaxed);
    }
    let mut locks = Vec::new();
    for _ in 0..MANY {
        world.sequences += 1;
        let lock = Lock::new(world.sequences);
        let stored = Stored::read(world, &lock.key).await;
        locks.push((lock, stored));
    }
    let mut many = Many { world, locks, at_us: START_US };
    for (turn, step) in steps.iter().enumerate() {
        if turn.is_multiple_of(8) {
            // After a while the keys' expiry has to be extended.
            many.at_us += 90_000_000;
        }
        // The first one's requests are sent alone, so it is left out.
        many.step(1 + (turn * 5) % (MANY - 1), step).await?;
        many.together(turn).await?;
    }
    Ok(())
}

/// A world whose server already has the scripts: sending them changes which requests share a call.
async fn world() -> World {
    let mut world = World::new().await;
    world.set_clock(START_US).await;
    world.sequences += 1;
    let Lock { key, .. } = Lock::new(world.sequences);
    let taking = AcquireRequest::new(key.clone(), token(0), ttl(0));
    let Acquire::Granted(granted) = world.stores[0].acquire(&taking, WITHIN).await.unwrap() else {
        panic!("the lock is taken");
    };
    let ending = ReleaseRequest::new(key, token(0), granted.fences);
    world.stores[0].release(&ending, WITHIN).await.unwrap();
    world
}

fn check(home: Home) {
    let turns = std::cell::Cell::new(0);
    let (world, _) = try_sequences(cases(), sequence(home), world(), async |world, steps| {
        turns.set(turns.get() + steps.len());
        agree(world, &steps).await
    });
    // Calls for the step and its changes, one lock alone, all others together, and an inspection of
    // each lock. A few more come before the server has the scripts.
    let most = u64::try_from(turns.get() * (4 + MANY) + 9).unwrap();
    let calls = world.server.command_calls("evalsha");
    assert!(calls <= most, "{calls} calls, of {most}");
}

#[test]
fn scripts_and_table_agree_on_many_exclusive_locks_at_a_time() {
    check(Home::Exclusive);
}

#[test]
fn scripts_and_table_agree_on_many_names_of_any_use_at_a_time() {
    check(Home::Any);
}
