//! Tests with a store's clock that is set back: leases last as long as before.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const HOUR: u64 = 3_600_000;

impl Lock {
    fn at_a_late_hour() -> Self {
        Self { at_us: 10 * HOUR * 1_000, ..Self::new() }
    }

    fn set_back(&mut self, by_ms: u64) {
        self.at_us -= by_ms * 1_000;
    }

    fn remaining(&self) -> Vec<Duration> {
        self.inspect()
            .iter()
            .flat_map(|info| &info.holders)
            .map(|holder| holder.remaining)
            .collect()
    }
}

#[test]
fn a_dead_holder_keeps_the_lock_for_its_ttl_from_the_next_request() {
    for mode in [Mode::Exclusive, Mode::Shared, permits(2, 2), Mode::Joint(Bond::new(Bond::LEAST))]
    {
        let mut lock = Lock::at_a_late_hour();
        granted(&lock.acquire(&with_mode(1, 10_000, mode)));
        lock.pass(4_000);
        lock.set_back(HOUR);
        let before = lock.entry.clone();
        assert_eq!(lock.remaining(), [ms(10_000)], "{mode:?}");
        assert_eq!(lock.entry, before, "looking changes nothing");
        let of_its_kind = if let Mode::Permits { .. } = mode { mode } else { Mode::Exclusive };
        let other = with_mode(2, 10_000, of_its_kind);
        assert_eq!(busy(&lock.acquire(&other)).retry_after, ms(10_000), "{mode:?}");
        assert_eq!(lock.inspect().unwrap().clock_set_back, ms(HOUR - 4_000));
        lock.pass(9_999);
        assert_eq!(lock.remaining(), [ms(1)]);
        busy(&lock.acquire(&other));
        lock.pass(1);
        granted(&lock.acquire(&other));
    }
}

#[test]
fn a_lease_that_is_renewed_runs_for_its_ttl_from_each_renewal() {
    let mut lock = Lock::at_a_late_hour();
    let lease = lock.take(1, 10_000);
    lock.set_back(HOUR);
    assert_eq!(lock.renew(1, lease, 10_000), Renew::Renewed);
    assert_eq!(lock.remaining(), [ms(10_000)]);
    lock.pass(3_000);
    assert_eq!(lock.renew(1, lease, 10_000), Renew::Renewed);
    assert_eq!(lock.remaining(), [ms(10_000)]);
    assert_eq!(lock.inspect().unwrap().holders[0].held_for, ms(3_000));
    lock.pass(10_000);
    lock.take(9, 1_000);
}

#[test]
fn a_step_that_is_put_right_again_costs_a_waiter_a_ttl_at_most() {
    let mut lock = Lock::at_a_late_hour();
    lock.pass(HOUR);
    lock.take(1, 10_000);
    lock.set_back(HOUR);
    lock.wait(2);
    lock.pass(10_000);
    // The waiter was heard long ago.
    assert!(lock.waiters().is_empty());
    lock.take(9, 1_000);
}

#[test]
fn a_lock_is_closed_for_no_longer_than_its_cooldown() {
    let mut lock = Lock::at_a_late_hour();
    let lease = lock.take(1, 10_000);
    lock.release_and_close(1, lease, 60_000);
    lock.pass(20_000);
    lock.set_back(HOUR);
    assert_eq!(busy(&lock.acquire(&request(2, 1_000))).retry_after, ms(60_000));
    lock.pass(60_000);
    lock.take(9, 1_000);
}

#[test]
fn a_dead_waiter_is_gone_after_its_timeout_and_a_live_one_keeps_its_position() {
    let mut lock = Lock::at_a_late_hour();
    lock.take(1, 10 * WINDOW);
    lock.wait(2);
    lock.wait(3);
    lock.set_back(HOUR);
    for beat in 1..3 {
        lock.heartbeat(3, beat);
        lock.pass(WINDOW / 2);
    }
    assert_eq!(lock.waiters(), [3]);
}

#[test]
fn an_unused_lock_goes_by_the_clock_again() {
    let mut lock = Lock::at_a_late_hour();
    let lease = lock.take(1, 10_000);
    lock.set_back(HOUR);
    lock.release(1, lease);
    lock.take(2, 1_000);
    assert_eq!(lock.inspect().unwrap().clock_set_back, Duration::ZERO);
    assert_eq!(lock.entry.in_use_until(), Some(StoreTime::from_micros(lock.at_us + 1_000_000)));
}

#[test]
fn a_lock_is_in_use_by_the_stores_clock() {
    let mut lock = Lock::at_a_late_hour();
    let lease = lock.take(1, 10_000);
    lock.set_back(HOUR);
    lock.renew(1, lease, 10_000);
    assert_eq!(lock.entry.in_use_until(), Some(StoreTime::from_micros(lock.at_us + 10_000_000)));
}

/// What happens between two looks at the lock: true time passes, and the clock is set back by this
/// much.
fn between() -> impl Strategy<Value = (u64, u64)> {
    (0..400_u64, prop_oneof![4 => Just(0), 1 => 1..1_000_u64, 1 => Just(HOUR)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn leases_last_until_their_true_end_and_never_for_more_than_their_length(
        steps in vec((between(), 0..4_u8, 0..3_u8), 1..60)
    ) {
        const TTL: u64 = 1_000;
        let mut lock = Lock { at_us: 1 << 50, ..Lock::new() };
        let (mut true_ms, mut held) = (0, None::<(u8, FenceBlock, u64)>);
        for ((pass, back), who, what) in steps {
            true_ms += pass;
            lock.pass(pass);
            lock.set_back(back);
            match (what, held) {
                (0, _) => {
                    let answer = lock.acquire(&request(who, TTL));
                    if let Some((holder, _, ends)) = held && true_ms < ends && holder != who {
                        busy(&answer);
                    }
                    match answer {
                        Acquire::Granted(granted) => held = Some((who, granted.fences, true_ms + TTL)),
                        Acquire::Already(already) => held = Some((who, already.fences, true_ms + TTL)),
                        _ => {}
                    }
                }
                (1, Some((holder, fences, ends))) => {
                    let renewed = lock.renew(holder, fences, TTL) == Renew::Renewed;
                    prop_assert!(renewed || true_ms >= ends, "ended before its time");
                    held = renewed.then_some((holder, fences, true_ms + TTL));
                }
                (_, Some((holder, fences, ends))) if who == 0 => {
                    let released = lock.release(holder, fences) == Release::Released;
                    prop_assert!(released || true_ms >= ends, "ended before its time");
                    held = None;
                }
                _ => {}
            }
            let remaining = lock.remaining();
            prop_assert!(remaining.iter().all(|left| *left <= ms(TTL)), "{remaining:?}");
        }
    }
}
