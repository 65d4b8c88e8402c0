//! Tests of the checkers of histories.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use leasehold_clock::ManualClock;
use leasehold_core::{Fence, Key, Mode, Moment};

use super::*;

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn fence(number: u64) -> Fence {
    Fence::from_value(number).unwrap()
}

fn permits(count: u32, limit: u32) -> Mode {
    let number = |n| NonZeroU32::new(n).unwrap();
    Mode::Permits { count: number(count), limit: number(limit) }
}

fn at(ms: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(ms))
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A history written by hand: each hold is requested, granted and ended at these milliseconds.
struct Written(Vec<Record>);

impl Written {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn push(&mut self, attempt: u64, mode: Mode, when: u64, event: Event) {
        self.0.push(Record { at: at(when), attempt, key: key("k"), mode, event });
    }

    fn hold(mut self, attempt: u64, mode: Mode, times: [u64; 3], number: u64) -> Self {
        self.push(attempt, mode, times[0], Event::Asked);
        self.push(attempt, mode, times[1], Event::Granted { fence: fence(number) });
        self.push(attempt, mode, times[2], Event::ReleaseAsked);
        self.push(attempt, mode, times[2] + 1_000, Event::Released);
        self
    }

    fn with(mut self, attempt: u64, when: u64, event: Event) -> Self {
        self.push(attempt, Mode::Exclusive, when, event);
        self
    }
}

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;

#[test]
fn a_good_history_passes() {
    // The second requests while the first holds, and is granted in the instant of its release.
    let good = Written::new().hold(1, X, [0, 10, 20], 1).hold(2, X, [5, 20, 30], 2).hold(
        3,
        X,
        [31, 40, 50],
        3,
    );
    assert_eq!(overlaps(&good.0), []);
    assert_eq!(fence_faults(&good.0), []);
}

#[test]
fn two_exclusive_holds_that_overlap_are_found_with_their_exact_length() {
    let bad = Written::new().hold(1, X, [0, 10, 50], 1).hold(2, X, [5, 33, 90], 2);
    let found = overlaps(&bad.0);
    let expected = Overlap { key: key("k"), attempts: vec![1, 2], from: at(33), length: ms(17) };
    assert_eq!(found, [expected]);
    let text = found[0].to_string();
    assert_eq!(text, "\"k\": attempts [1, 2] held together for 17ms from 33ms");
}

#[test]
fn a_hold_within_another_and_one_over_several_are_all_found() {
    let bad = Written::new().hold(1, X, [0, 10, 100], 1).hold(2, X, [5, 20, 30], 2).hold(
        3,
        X,
        [5, 90, 120],
        3,
    );
    let lengths: Vec<Duration> = overlaps(&bad.0).iter().map(|found| found.length).collect();
    assert_eq!(lengths, [ms(10), ms(10)]);
}

#[test]
fn readers_may_overlap_readers_but_no_writer() {
    let good = Written::new().hold(1, S, [0, 10, 50], 1).hold(2, S, [0, 20, 60], 2);
    assert_eq!(overlaps(&good.0), []);
    let bad = good.hold(3, X, [0, 55, 70], 3);
    let found = overlaps(&bad.0);
    assert_eq!((found.len(), &found[0].attempts[..]), (1, &[2, 3][..]));
    assert_eq!(found[0].length, ms(5));
}

#[test]
fn permits_above_the_limit_are_found() {
    let good = Written::new()
        .hold(1, permits(2, 3), [0, 10, 50], 1)
        .hold(2, permits(1, 3), [0, 20, 40], 2)
        .hold(3, permits(1, 3), [0, 40, 60], 3);
    assert_eq!(overlaps(&good.0), []);
    let bad = good.hold(4, permits(2, 3), [0, 45, 90], 4);
    let found = overlaps(&bad.0);
    assert_eq!((found.len(), &found[0].attempts[..]), (1, &[1, 3, 4][..]));
    assert_eq!(found[0].length, ms(5));
}

#[test]
fn a_hold_of_another_kind_is_always_too_much() {
    let bad = Written::new().hold(1, X, [0, 10, 50], 1).hold(2, permits(1, 3), [0, 20, 30], 2);
    assert_eq!(overlaps(&bad.0).len(), 1);
}

#[test]
fn a_holder_that_was_notified_of_the_loss_believes_no_more() {
    let told = Written::new().hold(1, X, [0, 10, 50], 1).hold(2, X, [5, 33, 90], 2);
    let told = told.with(1, 30, Event::Lost);
    assert_eq!(overlaps(&told.0), []);
    let late = Written::new().hold(1, X, [0, 10, 50], 1).hold(2, X, [5, 33, 90], 2);
    let late = late.with(1, 40, Event::Lost);
    assert_eq!(overlaps(&late.0)[0].length, ms(7));
}

#[test]
fn the_dead_believe_nothing_and_the_silent_believe_for_ever() {
    let next = || Written::new().hold(2, X, [50, 60, 70], 2);
    let silent = next().with(1, 0, Event::Asked).with(1, 10, Event::Granted { fence: fence(1) });
    assert_eq!(overlaps(&silent.0)[0].length, ms(10));
    let dead = silent.with(1, 20, Event::Died);
    assert_eq!(overlaps(&dead.0), []);
}

#[test]
fn an_acquisition_that_failed_or_is_unknown_is_no_hold() {
    let history = Written::new()
        .hold(1, X, [0, 10, 50], 1)
        .with(2, 20, Event::Asked)
        .with(2, 30, Event::NotGranted)
        .with(3, 20, Event::Asked)
        .with(3, 30, Event::Unknown);
    assert_eq!(overlaps(&history.0), []);
    assert_eq!(fence_faults(&history.0), []);
}

#[test]
fn a_fence_that_repeats_is_found() {
    let bad = Written::new().hold(1, X, [0, 10, 20], 7).hold(2, X, [30, 40, 50], 7);
    let expected = FenceFault::Repeated { key: key("k"), fence: fence(7), attempts: [1, 2] };
    assert_eq!(fence_faults(&bad.0), [expected]);
}

#[test]
fn a_fence_that_falls_is_found_also_across_others() {
    let bad = Written::new().hold(1, X, [0, 10, 20], 9).hold(2, X, [21, 30, 40], 5).hold(
        3,
        X,
        [41, 50, 60],
        6,
    );
    let fell = |attempt, low| FenceFault::Fell {
        key: key("k"),
        attempts: [1, attempt],
        fences: [fence(9), fence(low)],
    };
    assert_eq!(fence_faults(&bad.0), [fell(2, 5), fell(3, 6)]);
    assert!(fell(2, 5).to_string().contains("attempt 2 has fence 5, after 1 had 9"));
}

#[test]
fn fences_of_acquisitions_at_the_same_time_may_come_in_any_order() {
    let good = Written::new().hold(1, S, [0, 30, 40], 2).hold(2, S, [30, 35, 50], 1);
    assert_eq!(fence_faults(&good.0), []);
}

#[test]
fn locks_are_judged_one_by_one() {
    let mut history = Written::new().hold(1, X, [0, 10, 50], 7).0;
    let other = Written::new().hold(2, X, [60, 70, 90], 7).hold(3, X, [0, 20, 40], 3).0;
    history.extend(other.into_iter().map(|record| Record { key: key("other"), ..record }));
    assert_eq!(overlaps(&history), []);
    assert_eq!(fence_faults(&history), []);
}

#[test]
fn a_recorder_keeps_its_events_with_the_times_of_its_clock() {
    let clock = Arc::new(ManualClock::new());
    let recorder = Recorder::new(3, Arc::<ManualClock>::clone(&clock));
    let first = recorder.acquire(&key("k"), X);
    clock.advance(ms(5));
    let held = first.granted(fence(1));
    let second = recorder.acquire(&key("k"), X);
    clock.advance(ms(5));
    held.lost();
    let third = recorder.acquire(&key("k"), X);
    third.failed();
    clock.advance(ms(5));
    let other = second.granted(fence(2));
    held.release().done();
    other.release().unknown();
    recorder.acquire(&key("k"), X).unknown();
    recorder.acquire(&key("k"), S).granted(fence(3)).died();
    let records = recorder.records();
    assert_eq!(overlaps(&records), []);
    assert_eq!(fence_faults(&records), []);
    assert!(records.is_sorted_by_key(|record| record.at));
    let events: Vec<(u64, Event)> =
        records.iter().map(|record| (record.attempt & 0xffff, record.event)).take(6).collect();
    let expected = [
        (0, Event::Asked),
        (0, Event::Granted { fence: fence(1) }),
        (1, Event::Asked),
        (0, Event::Lost),
        (2, Event::Asked),
        (2, Event::NotGranted),
    ];
    assert_eq!(events, expected);
    assert_eq!(records[1].at.saturating_since(records[0].at), ms(5));
    assert_eq!(records[0].attempt >> 32, 3);
}

#[test]
fn a_record_is_read_back_from_its_line() {
    let events = [
        Event::Asked,
        Event::Granted { fence: fence(123_456) },
        Event::NotGranted,
        Event::Unknown,
        Event::Lost,
        Event::ReleaseAsked,
        Event::Released,
        Event::Died,
    ];
    for event in events {
        for mode in [X, S, permits(2, 5)] {
            let key = key("a name with blanks");
            let record = Record { at: at(1_234), attempt: 9, key, mode, event };
            assert_eq!(record.to_string().parse(), Ok(record));
        }
    }
    for bad in ["", "1 2 x asked", "1 2 y asked k", "1 2 x granted k", "x 2 x asked k"] {
        assert!(bad.parse::<Record>().is_err(), "{bad}");
    }
}
