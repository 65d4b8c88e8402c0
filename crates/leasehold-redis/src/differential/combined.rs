//! Compares requests that share script calls with the table, one by one.
//!
//! All callers are tasks of one thread, so the order of their requests is known. The first goes
//! alone; then come the others' releases, and then their acquisitions.

use tokio::task::JoinSet;

use super::*;

/// So few that a script postpones none.
const TOGETHER: usize = 8;
const LOCKS: usize = 3;

/// A lock, and what its callers know of it.
#[derive(Default)]
struct One {
    entry: LockEntry,
    known: Known,
}

/// A request, with the number of its lock.
#[derive(Debug)]
enum Asked {
    Acquire(usize, leasehold_core::AcquireRequest),
    Release(usize, leasehold_core::ReleaseRequest),
}

fn asked(operation: &Operation, number: usize, keys: &[Key], locks: &[One]) -> Option<Asked> {
    let (key, known) = (&keys[number], &locks[number].known);
    match operation {
        Operation::Acquire(taking) => Some(Asked::Acquire(number, taking.request(key, known))),
        Operation::Release(ending) => {
            let mut request = ending.request(key, known);
            // A release with a cooldown has a separate call, in an undefined order.
            request.cooldown = leasehold_core::Cooldown::NONE;
            Some(Asked::Release(number, request))
        }
        _ => None,
    }
}

/// Sends all requests at once.
async fn ask_together(store: &RedisStore, group: &[Asked]) -> Vec<String> {
    let mut tasks = JoinSet::new();
    for (place, asked) in group.iter().enumerate() {
        let store = store.clone();
        match asked {
            Asked::Acquire(_, request) => {
                let request = request.clone();
                tasks.spawn(async move {
                    let mut answer = store.acquire(&request, WITHIN).await.unwrap();
                    if let Acquire::Waiting(waiting) = &mut answer {
                        // Abandoned positions may count.
                        waiting.position = waiting.position.min(1);
                    }
                    (place, format!("{answer:?}"))
                });
            }
            Asked::Release(_, request) => {
                let request = request.clone();
                tasks.spawn(async move {
                    (place, format!("{:?}", store.release(&request, WITHIN).await.unwrap()))
                });
            }
        }
    }
    let mut answers = tasks.join_all().await;
    answers.sort_unstable();
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Carries the requests out in the table, in the order of the store.
fn apply(group: &[Asked], locks: &mut [One], now: Now, notices: &mut Vec<Notice>) -> Vec<String> {
    let mut answers = vec![String::new(); group.len()];
    let of = |releases: bool| {
        group
            .iter()
            .enumerate()
            .skip(1)
            .filter(move |(_, asked)| matches!(asked, Asked::Release(..)) == releases)
    };
    for (place, asked) in group.iter().enumerate().take(1).chain(of(true)).chain(of(false)) {
        answers[place] = match asked {
            Asked::Acquire(number, request) => {
                let One { entry, known } = &mut locks[*number];
                let mut answer = entry.perform(request, now, notices);
                match &mut answer {
                    Acquire::Granted(granted) => {
                        known.fences.insert(request.token, granted.fences);
                    }
                    Acquire::Waiting(waiting) => {
                        known.places.insert(request.token, waiting.place);
                        waiting.position = waiting.position.min(1);
                    }
                    _ => {}
                }
                format!("{answer:?}")
            }
            Asked::Release(number, request) => {
                format!("{:?}", locks[*number].entry.perform(request, now, notices))
            }
        };
    }
    answers
}

async fn agree(world: &mut World, steps: &[Step]) -> Result<(), TestCaseError> {
    world.sequences += 1;
    let sequence = world.sequences;
    // Left over from a failed sequence.
    world.messages().await;
    let keys: Vec<Key> = (0..LOCKS)
        .map(|number| Key::new(format!("combined {sequence}/{number}")).unwrap())
        .collect();
    let mut locks: Vec<One> = keys.iter().map(|_| One::default()).collect();
    let store = world.stores[0].clone();
    let mut at_us = START_US;
    for group in steps.chunks(TOGETHER) {
        at_us = at_us.checked_add_signed(group[0].pass_us).unwrap();
        let mut clock = redis::pipe();
        let (seconds, micros) = (at_us / 1_000_000, at_us % 1_000_000);
        clock.cmd("MSET").arg("clock:s").arg(seconds).arg("clock:us").arg(micros);
        world.ask(&clock).await;

        let group: Vec<Asked> = group
            .iter()
            .enumerate()
            .filter_map(|(place, step)| asked(&step.operation, place % LOCKS, &keys, &locks))
            .collect();
        let at = StoreTime::from_micros(at_us);
        let seen = store.shared.highest_sequence.load(Ordering::Relaxed);
        let sequence = at_us.max(seen) - Fence::ORIGIN_UNIX_US;
        let now = Now::new(at, Fence::new(0, sequence).unwrap());
        let mut notices = Vec::new();
        let table = apply(&group, &mut locks, now, &mut notices);
        prop_assert_eq!(ask_together(&store, &group).await, table, "of {:?}", group);

        let mut expected = vec![Vec::new(); CLIENTS.into()];
        for Notice { client: to, wake, .. } in &notices {
            let to = (0..CLIENTS).position(|number| client(number) == *to).unwrap();
            expected[to].push(format!("{wake:?}"));
            if let Wake::Granted { ticket, fences, .. } = wake {
                let holder = token(u8::try_from(*ticket).unwrap());
                // A ticket does not identify its lock; only one lock has just issued the fences.
                for lock in &mut locks {
                    let mut holders = lock.entry.inspect(&keys[0], at).into_iter();
                    if holders.any(|info| info.holders.iter().any(|it| it.fence == fences.first()))
                    {
                        lock.known.fences.insert(holder, *fences);
                    }
                }
            }
        }
        let mut heard: Vec<Vec<String>> = Vec::new();
        for messages in world.messages().await {
            heard.push(messages.iter().map(|wake| format!("{wake:?}")).collect());
        }
        // Notifications about different locks may come in any order.
        heard.iter_mut().chain(&mut expected).for_each(|messages| messages.sort_unstable());
        prop_assert_eq!(heard, expected, "the messages differ, of {:?}", group);

        for (key, lock) in keys.iter().zip(&locks) {
            let info = store.inspect(key, WITHIN).await.unwrap();
            prop_assert_eq!(info, lock.entry.inspect(key, at), "what is shown differs");
        }
    }
    Ok(())
}

/// A world whose server already has the scripts: sending them changes the order of requests.
async fn world() -> World {
    let world = World::new().await;
    let seconds = START_US / 1_000_000;
    world.ask(redis::pipe().cmd("MSET").arg("clock:s").arg(seconds).arg("clock:us").arg(0)).await;
    let (key, store) = (Key::new("known").unwrap(), &world.stores[0]);
    let ttl = leasehold_core::Ttl::new(Duration::from_secs(1)).unwrap();
    let taking = leasehold_core::AcquireRequest::new(key.clone(), token(0), ttl);
    let Acquire::Granted(granted) = store.acquire(&taking, WITHIN).await.unwrap() else {
        panic!("the lock is taken");
    };
    let ending = leasehold_core::ReleaseRequest::new(key, token(0), granted.fences);
    store.release(&ending, WITHIN).await.unwrap();
    world
}

fn check(home: Home) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let world = std::cell::RefCell::new(runtime.block_on(world()));
    let calls = || world.borrow().server.command_calls("evalsha");
    let groups = std::cell::Cell::new(0);
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&sequence(home), |steps| {
        groups.set(groups.get() + u64::try_from(steps.len().div_ceil(TOGETHER)).unwrap());
        runtime.block_on(agree(&mut world.borrow_mut(), &steps))
    });
    if let Err(failure) = outcome {
        panic!("{failure}\nthe server said: {}", world.borrow().server.log());
    }
    // One call alone, one for the other releases, one for the other acquisitions, and an inspection
    // of each lock. A few more come before the server has the scripts.
    let most = groups.get() * (3 + LOCKS as u64) + 9;
    assert!(calls() <= most, "{} calls for {} groups", calls(), groups.get());
}

#[test]
fn combined_scripts_and_table_agree_on_exclusive_locks() {
    check(Home::Exclusive);
}

#[test]
fn combined_scripts_and_table_agree_on_shared_and_exclusive_locks() {
    check(Home::Shared);
}

#[test]
fn combined_scripts_and_table_agree_on_semaphores() {
    check(Home::Permits);
}

#[test]
fn combined_scripts_and_table_agree_on_names_that_are_used_as_anything() {
    check(Home::Any);
}
