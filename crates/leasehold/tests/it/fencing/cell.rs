//! The cell in this process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread;

use leasehold::fencing::{FencedCell, StaleFence};
use leasehold::{Error, ErrorKind, Fence};
use proptest::prelude::*;

use super::{fence, pairs};

#[derive(Clone, Debug)]
enum Touch {
    Begin,
    Read,
    Update(u32),
    Replace(u32),
}

fn touches() -> impl Strategy<Value = Vec<(u64, Touch)>> {
    let touch = prop_oneof![
        Just(Touch::Begin),
        Just(Touch::Read),
        any::<u32>().prop_map(Touch::Update),
        any::<u32>().prop_map(Touch::Replace),
    ];
    prop::collection::vec((0_u64..12, touch), 0..40)
}

proptest! {
    #[test]
    fn a_cell_obeys_the_highest_fence_that_touched_it(touches in touches()) {
        let cell = FencedCell::new(0_u32);
        let (mut highest, mut value) = (Fence::ZERO, 0);
        for (given, touch) in touches {
            let given = fence(given);
            let outcome = match &touch {
                Touch::Begin => cell.begin(given).map(|()| value),
                Touch::Read => cell.read(given, |value| *value),
                Touch::Update(by) => cell.update(given, |value| {
                    *value = value.wrapping_add(*by);
                    *value
                }),
                Touch::Replace(new) => cell.replace(given, *new),
            };
            let expected = if given < highest {
                Err(StaleFence::new(highest, given))
            } else {
                highest = given;
                let before = value;
                match touch {
                    Touch::Begin | Touch::Read => Ok(value),
                    Touch::Update(by) => {
                        value = value.wrapping_add(by);
                        Ok(value)
                    }
                    Touch::Replace(new) => {
                        value = new;
                        Ok(before)
                    }
                }
            };
            prop_assert_eq!(outcome, expected);
            prop_assert_eq!(cell.seen(), highest);
        }
        prop_assert_eq!(cell.into_parts(), (value, highest));
    }
}

#[test]
fn a_lower_fence_is_refused_and_no_other() {
    for (first, second, passes) in pairs() {
        let cell = FencedCell::new(());
        cell.begin(first).unwrap();
        assert_eq!(cell.begin(second).is_ok(), passes, "{second} after {first}");
    }
}

#[test]
fn in_any_race_of_threads_no_write_follows_one_with_a_higher_fence() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 500;
    let cell = FencedCell::new(Vec::new());
    let start = Barrier::new(usize::try_from(THREADS).unwrap());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cell, start) = (&cell, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..ROUNDS {
                    let given = fence(round * THREADS + thread);
                    if let Err(stale) = cell.update(given, |written| written.push(given)) {
                        assert!(stale.seen() > Some(given));
                    }
                }
            });
        }
    });
    let (written, seen) = cell.into_parts();
    assert!(written.is_sorted(), "a late write got through: {written:?}");
    assert_eq!(written.last(), Some(&seen));
    assert_eq!(seen, fence(THREADS * ROUNDS - 1));
}

#[test]
fn a_read_shuts_the_stale_holder_out() {
    let cell = FencedCell::new("early");
    assert_eq!(cell.read(fence(2), |value| *value), Ok("early"));
    assert_eq!(cell.replace(fence(1), "late"), Err(StaleFence::new(fence(2), fence(1))));
    assert_eq!(cell.read(fence(2), |value| *value), Ok("early"));
}

#[test]
fn a_cell_that_was_loaded_remembers_what_its_guard_had_seen() {
    let cell = FencedCell::with_seen("stored", fence(7));
    assert!(cell.begin(fence(6)).is_err());
    assert!(cell.begin(fence(7)).is_ok());
}

#[test]
fn a_panic_in_the_work_leaves_the_cell_usable_and_guarded() {
    let cell = FencedCell::new(0);
    let work = AssertUnwindSafe(|| cell.update(fence(2), |_| panic!("the work went wrong")));
    assert!(catch_unwind(work).is_err());
    assert!(cell.begin(fence(1)).is_err());
    assert_eq!(cell.update(fence(2), |value| *value + 1), Ok(1));
}

#[test]
fn a_stale_fence_becomes_an_error_that_says_lost_and_keeps_both_fences() {
    let stale = StaleFence::new(fence(9), fence(3));
    assert_eq!((stale.seen(), stale.given()), (Some(fence(9)), fence(3)));
    let error = Error::from(stale);
    assert_eq!(error.kind(), ErrorKind::Lost);
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.downcast_ref::<StaleFence>(), Some(&stale));
    assert!(
        source.to_string().contains("fence 3 is stale: a later holder, with fence 9, has touched"),
        "{source}"
    );
}

#[test]
fn shared_leases_refuse_only_what_a_writer_has_outlived() {
    let cell = FencedCell::new(0);
    assert_eq!(cell.read_shared(fence(2), |value| *value), Ok(0));
    assert!(cell.read_shared(fence(1), |value| *value).is_ok(), "readers don't refuse each other");
    assert_eq!(cell.begin(fence(1)), Err(StaleFence::new(fence(2), fence(1))));
    assert_eq!(cell.replace(fence(3), 7), Ok(0));
    assert!(cell.read_shared(fence(2), |value| *value).is_err());
    assert_eq!(cell.read_shared(fence(3), |value| *value), Ok(7));
    assert_eq!(cell.seen(), fence(3));
}
