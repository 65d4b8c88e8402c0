//! Changing how a lock is held: its mode, its limit, its cooldown, and release requests.

use super::*;

fn converted(lock: &mut Lock, who: u8, fences: FenceBlock, mode: Mode) -> Convert {
    let request = ConvertRequest::new(key(), token(who), fences, mode);
    lock.entry.perform(&request, lock.now(), &mut lock.notices)
}

fn fences_of(answer: &Convert) -> FenceBlock {
    match answer {
        Convert::Converted(converted) => converted.fences,
        other => panic!("not converted: {other:?}"),
    }
}

fn resize(lock: &mut Lock, limit: u32) -> SetLimit {
    let request = SetLimitRequest::new(key(), count(limit));
    lock.entry.perform(&request, lock.now(), &mut lock.notices)
}

fn ask(lock: &mut Lock, fence: Option<Fence>) -> Ask {
    let mut request = AskRequest::new(key(), OwnerName::new("ops").unwrap());
    request.fence = fence;
    lock.entry.perform(&request, lock.now(), &mut lock.notices)
}

#[test]
fn a_downgrade_lets_waiting_readers_in_and_keeps_the_fence() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    waiting(&lock.acquire(&queued_with_mode(2, Mode::Shared)));
    waiting(&lock.acquire(&queued_with_mode(3, Mode::Exclusive)));
    let after = fences_of(&converted(&mut lock, 1, lease, Mode::Shared));
    assert_eq!(after, lease);
    assert_eq!((lock.holders(), lock.waiters()), (vec![1, 2], vec![3]));
}

#[test]
fn an_upgrade_of_the_only_reader_passes_the_queue_with_a_fence_above_all_readers() {
    let mut lock = Lock::new();
    let first = granted(&lock.acquire(&with_mode(1, 10_000, Mode::Shared)));
    let second = granted(&lock.acquire(&with_mode(2, 10_000, Mode::Shared)));
    waiting(&lock.acquire(&queued_with_mode(3, Mode::Exclusive)));
    assert_eq!(converted(&mut lock, 1, first, Mode::Exclusive), Convert::Busy { others: 1 });
    lock.release(2, second);
    let after = fences_of(&converted(&mut lock, 1, first, Mode::Exclusive));
    assert!(after.first() > second.last());
    assert_eq!(fences_of(&converted(&mut lock, 1, first, Mode::Exclusive)), after);
    assert_eq!((lock.holders(), lock.waiters()), (vec![1], vec![3]));
}

#[test]
fn a_downgrade_that_arrives_again_does_not_undo_an_upgrade() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    fences_of(&converted(&mut lock, 1, lease, Mode::Shared));
    fences_of(&converted(&mut lock, 1, lease, Mode::Exclusive));
    assert_eq!(converted(&mut lock, 1, lease, Mode::Shared), Convert::NotHeld);
    assert!(matches!(lock.acquire(&with_mode(2, 100, Mode::Shared)), Acquire::Busy(_)));
}

#[test]
fn only_a_holder_converts_and_late_is_distinguished_from_lost() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    lock.pass(100);
    assert_eq!(converted(&mut lock, 1, lease, Mode::Shared), Convert::Late);
    lock.take(2, 100);
    assert_eq!(converted(&mut lock, 1, lease, Mode::Shared), Convert::NotHeld);
}

#[test]
fn released_permits_serve_the_queue_and_more_are_not_taken_past_it() {
    let mut lock = Lock::new();
    let lease = granted(&lock.acquire(&with_mode(1, 10_000, permits(3, 4))));
    assert_eq!(fences_of(&converted(&mut lock, 1, lease, permits(4, 4))), lease);
    waiting(&lock.acquire(&queued_with_mode(2, permits(2, 4))));
    assert_eq!(fences_of(&converted(&mut lock, 1, lease, permits(2, 4))), lease);
    assert_eq!(lock.holders(), [1, 2]);
    assert_eq!(converted(&mut lock, 1, lease, permits(3, 4)), Convert::Busy { others: 2 });
    let limit = count(4);
    assert_eq!(
        converted(&mut lock, 1, lease, permits(5, 4)),
        Convert::Refused(Refusal::TooManyPermits { limit })
    );
    let stored = Kind::Semaphore { limit };
    for other in [permits(1, 5), Mode::Shared] {
        let refusal = Refusal::WrongKind { stored };
        assert_eq!(converted(&mut lock, 1, lease, other), Convert::Refused(refusal));
    }
}

#[test]
fn a_changed_limit_serves_the_queue_and_is_what_newcomers_must_agree_with() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 10_000, permits(2, 2))));
    waiting(&lock.acquire(&queued_with_mode(2, permits(1, 2))));
    assert_eq!(resize(&mut lock, 3), SetLimit::Set { before: count(2) });
    assert_eq!(lock.holders(), [1, 2]);
    let stored = Kind::Semaphore { limit: count(3) };
    let refusal = refused(&lock.acquire(&with_mode(3, 100, permits(1, 2))));
    assert_eq!(refusal, Refusal::WrongKind { stored });
    // Holders under the old limit go on under the new one.
    assert!(lock.acquire(&with_mode(2, 10_000, permits(1, 2))).fences().is_some());
}

#[test]
fn a_lower_limit_takes_nothing_from_holders_and_drops_waiters_that_can_never_be_served() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 10_000, permits(3, 3))));
    waiting(&lock.acquire(&queued_with_mode(2, permits(3, 3))));
    waiting(&lock.acquire(&queued_with_mode(3, permits(1, 3))));
    resize(&mut lock, 2);
    assert_eq!((lock.holders(), lock.waiters()), (vec![1], vec![3]));
    assert!(matches!(lock.acquire(&with_mode(4, 100, permits(1, 2))), Acquire::Busy(_)));
}

#[test]
fn only_a_semaphore_in_use_has_a_limit() {
    let mut lock = Lock::new();
    assert_eq!(resize(&mut lock, 2), SetLimit::NotInUse);
    lock.take(1, 100);
    let stored = Kind::Lock;
    assert_eq!(resize(&mut lock, 2), SetLimit::Refused(Refusal::WrongKind { stored }));
}

#[test]
fn preferred_waiters_are_served_before_others_and_in_order_among_themselves() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    for (who, preferred) in [(2, false), (3, true), (4, false), (5, true)] {
        waiting(&lock.acquire(&AcquireRequest { preferred, ..queued(who, 0) }));
    }
    assert_eq!(lock.waiters(), [3, 5, 2, 4]);
    lock.release(1, lease);
    assert_eq!(lock.holders(), [3]);
}

#[test]
fn a_preferred_newcomer_passes_those_who_are_not_where_the_holders_leave_room() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 10_000, Mode::Shared)));
    waiting(&lock.acquire(&queued_with_mode(2, Mode::Exclusive)));
    let reader = with_mode(3, 10_000, Mode::Shared);
    assert!(matches!(lock.acquire(&reader), Acquire::Busy(_)));
    granted(&lock.acquire(&AcquireRequest { preferred: true, ..reader }));
    assert_eq!((lock.holders(), lock.waiters()), (vec![1, 3], vec![2]));
}

#[test]
fn a_closing_grant_keeps_the_lock_closed_though_its_holder_dies_or_releases() {
    let with_cooldown = |who| AcquireRequest { cooldown: cool(1_000), ..request(who, 100) };
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_cooldown(1)));
    lock.pass(100);
    assert!(
        matches!(lock.acquire(&with_cooldown(2)), Acquire::Busy(busy) if busy.retry_after == ms(900))
    );
    lock.pass(900);
    let lease = granted(&lock.acquire(&with_cooldown(2)));
    lock.release(2, lease);
    assert_eq!(lock.inspect().unwrap().closed_for, Some(ms(1_000)));
    assert!(matches!(lock.acquire(&request(3, 100)), Acquire::Busy(_)));
}

#[test]
fn a_release_that_reopens_serves_the_next_at_once() {
    let mut lock = Lock::new();
    let with_cooldown = AcquireRequest { cooldown: cool(1_000), ..request(1, 100) };
    let lease = granted(&lock.acquire(&with_cooldown));
    lock.wait(2);
    let reopening = ReleaseRequest { reopen: true, ..ReleaseRequest::new(key(), token(1), lease) };
    assert_eq!(lock.release_with(&reopening), Release::Released);
    assert_eq!(lock.holders(), [2]);
}

#[test]
fn an_acquisition_that_is_undone_leaves_nothing_closed_if_it_says_so() {
    let mut lock = Lock::new();
    for reopen in [true, false] {
        let with_cooldown = AcquireRequest { cooldown: cool(1_000), ..request(1, 100) };
        granted(&lock.acquire(&with_cooldown));
        let undoing = LeaveRequest { reopen, ..LeaveRequest::new(key(), token(1)) };
        assert_eq!(lock.entry.perform(&undoing, lock.now(), &mut lock.notices), Leave::Released);
        assert_eq!(lock.inspect().is_none(), reopen);
    }
}

#[test]
fn a_holder_that_is_asked_learns_of_it_with_its_next_renewal() {
    let mut lock = Lock::new();
    assert_eq!(ask(&mut lock, None), Ask::NotHeld);
    let lease = lock.take(1, 100);
    assert_eq!(ask(&mut lock, Some(lease.last().saturating_add(1))), Ask::NotHeld);
    assert_eq!(lock.renew(1, lease, 100), Renew::Renewed);
    assert_eq!(ask(&mut lock, Some(lease.first())), Ask::Asked { holders: 1 });
    assert_eq!(lock.renew(1, lease, 100), Renew::Asked);
    let holder = &lock.inspect().unwrap().holders[0];
    assert_eq!(holder.asked_by.as_ref().map(OwnerName::as_str), Some("ops"));
    lock.release(1, lease);
    let next = lock.take(2, 100);
    assert_eq!(lock.renew(2, next, 100), Renew::Renewed);
}

#[test]
fn a_renewal_of_the_shortest_length_asks_and_changes_nothing() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    let before = lock.entry.clone();
    assert_eq!(lock.renew(1, lease, 10), Renew::Renewed);
    assert_eq!(lock.entry, before);
}

#[test]
fn free_permits_with_a_waiter_are_not_taken_past_the_queue() {
    let mut lock = Lock::new();
    let lease = granted(&lock.acquire(&with_mode(1, 10_000, permits(1, 4))));
    granted(&lock.acquire(&with_mode(2, 10_000, permits(1, 4))));
    waiting(&lock.acquire(&queued_with_mode(3, permits(3, 4))));
    assert_eq!(converted(&mut lock, 1, lease, permits(2, 4)), Convert::Busy { others: 1 });
    lock.leave(3);
    assert_eq!(fences_of(&converted(&mut lock, 1, lease, permits(2, 4))), lease);
}

#[test]
fn an_upgrade_is_a_grant_after_which_an_old_release_finds_nothing() {
    let mut lock = Lock::new();
    let first = granted(&lock.acquire(&with_mode(1, 10_000, Mode::Shared)));
    let second = granted(&lock.acquire(&with_mode(2, 10_000, Mode::Shared)));
    assert_eq!(lock.release(2, second), Release::Released);
    assert_eq!(lock.release(2, second), Release::Released);
    fences_of(&converted(&mut lock, 1, first, Mode::Exclusive));
    assert_eq!(lock.release(2, second), Release::NotHeld);
}

fn adopt(lock: &mut Lock, who: u8, successor: u8, fences: FenceBlock) -> Renew {
    let mut request = RenewRequest::new(key(), token(who), fences, ttl(5_000));
    request.successor = Some(token(successor));
    lock.entry.perform(&request, lock.now(), &mut lock.notices)
}

#[test]
fn a_lease_that_is_transferred_is_the_successors_and_its_old_token_is_spent() {
    for mode in [Mode::Exclusive, Mode::Shared, permits(2, 3)] {
        let mut lock = Lock::new();
        let lease = granted(&lock.acquire(&with_mode(1, 10_000, mode)));
        let before = lock.inspect().unwrap();
        assert_eq!(adopt(&mut lock, 1, 2, lease), Renew::Renewed);
        assert_eq!(adopt(&mut lock, 1, 2, lease), Renew::Renewed, "sent again");
        let after = lock.inspect().unwrap();
        assert_eq!(before.holders[0].fence, after.holders[0].fence);
        assert_eq!(before.holders[0].owner, after.holders[0].owner);
        assert_eq!((before.holders[0].mode, after.holders.len()), (after.holders[0].mode, 1));
        let kept = lock.entry.clone();
        assert_eq!(adopt(&mut lock, 1, 3, lease), Renew::NotHeld);
        assert_eq!(lock.renew(1, lease, 60_000), Renew::NotHeld);
        assert_eq!(lock.release_and_close(1, lease, 60_000), Release::NotHeld);
        assert_eq!(lock.leave(1), Leave::NotHeld);
        assert_eq!(lock.entry, kept, "a spent token changed something");
        assert_eq!(lock.release(2, lease), Release::Released);
        assert_eq!(lock.release(1, lease), Release::NotHeld);
    }
}

#[test]
fn a_lease_is_transferred_to_no_token_that_is_in_use() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    waiting(&lock.acquire(&queued(2, 0)));
    assert_eq!(adopt(&mut lock, 1, 2, lease), Renew::NotHeld);
    assert_eq!(lock.renew(1, lease, 10_000), Renew::Renewed);
    assert_eq!((lock.holders(), lock.waiters()), (vec![1], vec![2]));
}

#[test]
fn a_lease_that_expired_before_its_transfer_is_late_and_stays_ended() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    lock.pass(100);
    assert_eq!(adopt(&mut lock, 1, 2, lease), Renew::Late);
    assert!(lock.inspect().is_none());
}
