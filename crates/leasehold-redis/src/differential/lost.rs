//! Removes a field of each stored state (a stray `HDEL`, a partial restore), then operates.
//!
//! Scripts work on it or report it as unreadable, and a held lock is not granted to another caller.
//! The lock is free again when all leases are over.

use leasehold_core::{ErrorKind, Kind};

use super::operation::waiter_that_asks_for_its_place;
use super::*;

/// Longer than any sequence lasts and its fences reach ahead, and a quarter of the retention more.
/// A hold whose end is lost lasts that long.
const ALL_OVER_US: u64 = 1_000_000_000;

/// Counts of the trials.
#[derive(Debug, Default)]
struct Tally {
    states: u64,
    fields: u64,
    held: u64,
}

struct Lossy {
    world: World,
    tally: Tally,
}

impl Bench for Lossy {
    fn world(&self) -> &World {
        &self.world
    }

    fn tried(&self) -> String {
        format!("{:?}", self.tally)
    }
}

/// A mode that needs all of the lock, by its kind.
fn all_of(kind: Kind) -> Mode {
    match kind {
        Kind::Semaphore { limit } => Mode::Permits { count: limit, limit },
        _ => Mode::Exclusive,
    }
}

async fn try_all(
    world: &mut World,
    tally: &mut Tally,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    world.sequences += 1;
    world.messages().await;
    // The clock starts again, and the fences seen in the last sequence would be far ahead of it.
    for store in &world.stores {
        store.shared.highest_sequence.store(0, Ordering::Relaxed);
    }
    let mut lock = Lock::new(world.sequences);
    let mut stored = Stored::read(world, &lock.key).await;
    let mut at_us = START_US;
    for step in steps {
        tally.states += 1;
        world.set_clock(at_us).await;
        let before = world.kept([&lock.key]).await;
        for field in before.locks[0].content.keys() {
            world.put_back(&before).await;
            lose(world, tally, &lock, field, at_us, step).await?;
        }
        world.put_back(&before).await;
        let mut both = Both { world, lock, at_us };
        stored = both.step(step, &stored).await?;
        (at_us, lock) = (both.at_us, both.lock);
    }
    Ok(())
}

/// Removes a field, and checks what the lock does then.
async fn lose(
    world: &mut World,
    tally: &mut Tally,
    lock: &Lock,
    field: &[u8],
    at_us: u64,
    step: &Step,
) -> Result<(), TestCaseError> {
    let Lock { key, known, .. } = lock;
    tally.fields += 1;
    world.set_clock(at_us).await;
    let record = world.stores[0].shared.names.record(key);
    let held = world.stores[0].inspect(key, WITHIN).await.unwrap();
    let held = held.filter(|info| !info.holders.is_empty());
    let mut remove = redis::pipe();
    remove.cmd("HDEL").arg(&record).arg(field);
    remove.cmd("PTTL").arg(&record);
    let redis::Value::Int(lives_ms) = world.ask(&remove).await.remove(1) else { panic!() };
    if lives_ms == -2 {
        // It was the only field, so the server has forgotten the lock.
        return Ok(());
    }
    let of_record = matches!(field, b"about" | b"state");
    let field = field.escape_ascii();
    let fine = |outcome: Result<(), &leasehold_core::Error>| match outcome {
        Ok(()) => true,
        // A lock without its record is unreadable, and expires.
        Err(error) => {
            let unreadable = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Foreign);
            of_record && unreadable && lives_ms > 0
        }
    };
    if let Some(info) = held {
        tally.held += 1;
        let answer = world.stranger(key, all_of(info.kind)).await;
        let outcome = answer.as_ref().map(drop);
        prop_assert!(fine(outcome), "without {field}, a stranger is told {answer:?}");
        let granted = matches!(answer, Ok(Acquire::Granted(_)));
        prop_assert!(!granted, "without {field}, a second holder beside {:?}", info.holders);
    }
    world.set_clock(at_us.checked_add_signed(step.pass_us).unwrap()).await;
    // The second request meets the changes of the first.
    for _ in 0..2 {
        for answer in world.attempt(step, key, known).await {
            let outcome = answer.as_ref().map(drop);
            prop_assert!(fine(outcome), "without {field}: {answer:?} to {step:?}");
        }
    }
    let shown = world.stores[0].inspect(key, WITHIN).await;
    let outcome = shown.as_ref().map(drop);
    prop_assert!(fine(outcome), "without {field}, what is shown: {shown:?}");
    if !of_record {
        // What this client sees from here on must not affect the rest of the sequence.
        let seen = &world.stores[0].shared.highest_sequence;
        let seen_before = seen.load(Ordering::Relaxed);
        world.set_clock(at_us + ALL_OVER_US).await;
        // If earlier waiters were skipped, only the head of the queue may have moved, by one step.
        let answer = world.stranger(key, Mode::Exclusive).await;
        seen.store(seen_before, Ordering::Relaxed);
        let granted = matches!(answer, Ok(Acquire::Granted(_)));
        prop_assert!(granted, "without {field}, kept out: {answer:?}");
    }
    world.messages().await;
    Ok(())
}

fn check(home: Home) {
    let bench = async { Lossy { world: World::new().await, tally: Tally::default() } };
    let (bench, _) =
        try_sequences(cases().div_ceil(10), sequence(home), bench, async |bench, steps| {
            try_all(&mut bench.world, &mut bench.tally, &steps).await
        });
    assert!(bench.tally.held > 0, "no lock that was held lost a field");
}

#[test]
fn a_waiter_comes_back_to_a_position_that_was_removed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut world, mut tally) = (World::new().await, Tally::default());
        try_all(&mut world, &mut tally, &waiter_that_asks_for_its_place()).await.unwrap();
    });
}

#[test]
fn an_exclusive_lock_that_lost_a_field_has_no_second_holder_and_becomes_free() {
    check(Home::Exclusive);
}

#[test]
fn a_shared_lock_that_lost_a_field_has_no_second_holder_and_becomes_free() {
    check(Home::Shared);
}

#[test]
fn a_semaphore_that_lost_a_field_has_no_second_holder_and_becomes_free() {
    check(Home::Permits);
}
