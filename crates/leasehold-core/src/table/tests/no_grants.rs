//! Tests of a store that may have forgotten leases, and of which steps grant one.

use super::*;
use crate::table::Plain;

impl Lock {
    fn grant_nothing_for(&mut self, length_ms: u64) {
        self.grants_from_us = self.at_us + length_ms * 1_000;
    }
}

#[test]
fn a_store_that_may_have_forgotten_leases_grants_none_until_it_may() {
    let mut lock = Lock::new();
    lock.grant_nothing_for(1_000);
    assert_eq!(busy(&lock.acquire(&request(1, 500))).retry_after, ms(1_000));
    let mut asked = queued(2, 0);
    asked.queue.as_mut().unwrap().window = ttl(9_000);
    let position = waiting(&lock.acquire(&asked));
    assert_eq!((position.position, position.retry_after), (0, ms(1_000)));
    lock.pass(999);
    assert_eq!(busy(&lock.acquire(&request(1, 500))).retry_after, ms(1));
    assert!(lock.take_notices().is_empty());
    lock.pass(1);
    hand_on_to_the_head(&mut lock);
    assert_eq!(lock.holders(), [2]);
}

/// Any step grants the lock to the head of the queue.
fn hand_on_to_the_head(lock: &mut Lock) {
    busy(&lock.acquire(&request(1, 500)));
    assert_eq!(grants(&lock.take_notices()), [(client(2), 2, 0)]);
}

#[test]
fn meanwhile_holders_renew_and_release_and_no_waiter_follows_them() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 300);
    lock.grant_nothing_for(1_000);
    lock.pass(200);
    assert_eq!(lock.renew(1, lease, 300), Renew::Renewed);
    lock.wait(2);
    assert_eq!(lock.release(1, lease), Release::Released);
    assert_eq!((lock.holders(), lock.waiters()), (vec![], vec![2]));
    assert!(grants(&lock.take_notices()).is_empty());
}

#[test]
fn meanwhile_no_reader_becomes_a_writer_and_no_holder_gets_more_permits() {
    for (mode, more) in [(Mode::Shared, Mode::Exclusive), (permits(1, 9), permits(2, 9))] {
        let mut lock = Lock::new();
        let lease = granted(&lock.acquire(&with_mode(1, 5_000, mode)));
        let request = ConvertRequest::new(key(), token(1), lease, more);
        lock.grant_nothing_for(1_000);
        let answer = lock.entry.perform(&request, lock.now(), &mut Vec::new());
        assert!(matches!(answer, Convert::Busy { .. }), "{answer:?}");
        lock.pass(1_000);
        let answer = lock.entry.perform(&request, lock.now(), &mut Vec::new());
        assert!(matches!(answer, Convert::Converted(_)), "{answer:?}");
    }
}

#[test]
fn a_lock_that_is_ahead_of_the_clock_waits_as_long() {
    let mut lock = Lock { at_us: 90_000_000, ..Lock::new() };
    lock.take(1, 10);
    lock.at_us -= 50_000_000;
    lock.grant_nothing_for(1_000);
    lock.pass(500);
    assert_eq!(busy(&lock.acquire(&request(2, 10))).retry_after, ms(500));
    lock.pass(500);
    granted(&lock.acquire(&request(2, 10)));
}

#[test]
fn a_step_grants_if_a_token_gets_a_lease_or_an_exclusive_one() {
    let mut lock = Lock::new();
    let before = lock.entry.clone();
    let lease = lock.take(1, 300);
    assert!(lock.entry.has_grants_since(&before));
    let before = lock.entry.clone();
    lock.renew(1, lease, 300);
    lock.wait(2);
    assert!(!lock.entry.has_grants_since(&before));
    lock.release(1, lease);
    assert!(lock.entry.has_grants_since(&before), "the waiter has it now");

    let mut lock = Lock::new();
    let lease = granted(&lock.acquire(&with_mode(1, 300, Mode::Shared)));
    let before = lock.entry.clone();
    let request = ConvertRequest::new(key(), token(1), lease, Mode::Exclusive);
    lock.entry.perform(&request, lock.now(), &mut Vec::new());
    assert!(lock.entry.has_grants_since(&before));
    let before = lock.entry.clone();
    lock.force_release(lock.entry.last_fence().unwrap());
    assert!(!lock.entry.has_grants_since(&before));
}

#[test]
fn only_a_free_lock_and_one_with_a_single_exclusive_holder_have_the_common_form() {
    let mut lock = Lock::new();
    assert_eq!(lock.entry.plain(lock.at()), Some(Plain::default()));
    let lease = lock.take(1, 300);
    let plain = lock.entry.plain(lock.at()).unwrap();
    assert_eq!(plain.last_fence, Some(lease.last()));
    assert_eq!(plain.holder.unwrap().token, token(1));
    assert_eq!(LockEntry::from(lock.entry.plain(lock.at()).unwrap()), lock.entry);
    lock.wait(2);
    assert_eq!(lock.entry.plain(lock.at()), None, "a waiter");
    lock.pass(1);
    lock.leave(2);
    assert!(lock.entry.plain(lock.at()).is_some());
    lock.entry.perform(
        &AskRequest::new(key(), OwnerName::new("x").unwrap()),
        lock.now(),
        &mut Vec::new(),
    );
    assert_eq!(lock.entry.plain(lock.at()), None, "a holder that was asked");
    lock.release_and_close(1, lease, 50);
    assert_eq!(lock.entry.plain(lock.at()), None, "a cooldown");
    lock.pass(50);
    granted(&lock.acquire(&with_mode(1, 300, Mode::Shared)));
    assert_eq!(lock.entry.plain(lock.at()), None, "a reader");
}

#[test]
fn a_lease_that_was_ended_elsewhere_counts_as_released_and_the_next_step_grants_the_lock() {
    let mut lock = Lock::new();
    assert_eq!(lock.entry.exclusive_fences(), None);
    let lease = lock.take(1, 300);
    lock.wait(2);
    assert_eq!(lock.entry.exclusive_fences(), Some(lease));
    lock.entry.end_exclusive(lease.last().saturating_add(1));
    assert_eq!(lock.holders(), [1], "another fence");
    lock.entry.end_exclusive(lease.last());
    assert_eq!(lock.release(1, lease), Release::Released);
    assert_eq!((lock.holders(), grants(&lock.take_notices()).len()), (vec![2], 1));
    let mut lock = Lock::new();
    let lease = granted(&lock.acquire(&with_mode(1, 300, Mode::Shared)));
    lock.entry.end_exclusive(lease.last());
    assert_eq!((lock.holders(), lock.entry.exclusive_fences()), (vec![1], None));
}
