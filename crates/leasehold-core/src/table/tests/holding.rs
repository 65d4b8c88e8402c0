//! Tests of taking, renewing and releasing.

use super::*;

#[test]
fn a_free_lock_is_granted_with_the_fences_asked_for() {
    let mut lock = Lock::new();
    let mut asked = request(1, 100);
    asked.fence_block = count(64);
    let fences = granted(&lock.acquire(&asked));
    assert_eq!((fences.first(), fences.count()), (lock.floor, 64));
    let info = lock.inspect().unwrap();
    assert_eq!(info.kind, Kind::Lock);
    assert_eq!(info.last_fence, fences.last());
    assert_eq!(info.holders[0].fence, fences.first());
}

#[test]
fn an_acquisition_sent_twice_is_one_lease_with_one_fence() {
    let mut lock = Lock::new();
    let fences = lock.take(1, 100);
    lock.pass(60);
    assert_eq!(already(&lock.acquire(&request(1, 100))), Already::new(fences, 1));
    assert_eq!(lock.inspect().unwrap().holders.len(), 1);
    assert_eq!(lock.inspect().unwrap().holders[0].remaining, ms(100));
    assert_eq!(lock.inspect().unwrap().holders[0].held_for, ms(60));
}

#[test]
fn acquiring_again_never_shortens_and_sets_the_number_of_holds() {
    let mut lock = Lock::new();
    let fences = lock.take(1, 1_000);
    let mut again = request(1, 10);
    again.holds = count(3);
    assert_eq!(already(&lock.acquire(&again)), Already::new(fences, 3));
    assert_eq!(already(&lock.acquire(&again)), Already::new(fences, 3));
    assert_eq!(lock.inspect().unwrap().holders[0].remaining, ms(1_000));
}

#[test]
fn a_held_lock_says_who_holds_it_and_how_long_still() {
    let mut lock = Lock::new();
    let mut asked = request(1, 100);
    asked.metadata = Metadata::new("night run").unwrap();
    let fences = granted(&lock.acquire(&asked));
    lock.pass(30);
    let busy = busy(&lock.acquire(&request(2, 100)));
    assert_eq!(busy.retry_after, ms(70));
    let holder = busy.holder.unwrap();
    assert_eq!(number(&holder.owner), 1);
    assert_eq!(holder.metadata.as_str(), "night run");
    assert_eq!((holder.fence, holder.held_for, holder.remaining), (fences.first(), ms(30), ms(70)));
    assert_eq!(lock.waiters(), [0_u8; 0]);
}

#[test]
fn a_lease_ends_at_its_ttl_and_not_a_microsecond_before() {
    let mut lock = Lock::new();
    let first = lock.take(1, 100);
    lock.pass_us(99_999);
    busy(&lock.acquire(&request(2, 100)));
    lock.pass_us(1);
    assert_eq!(lock.inspect(), None);
    assert!(lock.take(2, 100).first() > first.last());
    assert_eq!(lock.holders(), [2]);
}

#[test]
fn an_exclusive_lease_takes_over_higher_fences_and_the_next_are_above_them() {
    let mut lock = Lock::new();
    let own = lock.take(1, 100);
    let higher = FenceBlock::new(own.first().saturating_add(5_000), own.count());
    assert_eq!(lock.renew(1, higher, 100), Renew::Renewed);
    assert_eq!(already(&lock.acquire(&request(1, 100))).fences, higher);
    assert_eq!(lock.renew(1, own, 100), Renew::Renewed);
    assert_eq!(lock.inspect().unwrap().holders[0].fence, higher.first());
    assert_eq!(lock.release(1, higher), Release::Released);
    assert!(lock.take(2, 100).first() > higher.last());
}

#[test]
fn only_an_exclusive_holder_can_raise_fences() {
    let mut lock = Lock::new();
    let own = granted(&lock.acquire(&with_mode(1, 100, Mode::Shared)));
    let higher = FenceBlock::new(own.first().saturating_add(5_000), own.count());
    assert_eq!(lock.renew(1, higher, 100), Renew::Renewed);
    assert_eq!(lock.renew(2, higher, 100), Renew::NotHeld);
    assert_eq!(lock.inspect().unwrap().last_fence, own.last());
}

#[test]
fn shared_holders_share_and_keep_an_exclusive_one_out_until_the_last_is_gone() {
    let mut lock = Lock::new();
    let a = granted(&lock.acquire(&with_mode(1, 100, Mode::Shared)));
    let b = granted(&lock.acquire(&with_mode(2, 200, Mode::Shared)));
    assert!(b.first() > a.last());
    assert_eq!(busy(&lock.acquire(&request(3, 100))).retry_after, ms(100));
    assert_eq!(lock.release(1, a), Release::Released);
    busy(&lock.acquire(&request(3, 100)));
    assert_eq!(lock.release(2, b), Release::Released);
    lock.take(3, 100);
    busy(&lock.acquire(&with_mode(4, 100, Mode::Shared)));
}

#[test]
fn a_semaphore_grants_permits_up_to_its_limit() {
    let mut lock = Lock::new();
    let a = granted(&lock.acquire(&with_mode(1, 100, permits(2, 4))));
    granted(&lock.acquire(&with_mode(2, 100, permits(1, 4))));
    busy(&lock.acquire(&with_mode(3, 100, permits(2, 4))));
    granted(&lock.acquire(&with_mode(4, 100, permits(1, 4))));
    assert_eq!(lock.release(1, a), Release::Released);
    granted(&lock.acquire(&with_mode(3, 100, permits(2, 4))));
    assert_eq!(lock.inspect().unwrap().kind, Kind::Semaphore { limit: count(4) });
}

#[test]
fn the_largest_semaphore_is_full_when_all_its_permits_are_taken() {
    let mut lock = Lock::new();
    let all = granted(&lock.acquire(&with_mode(1, 100, permits(u32::MAX, u32::MAX))));
    busy(&lock.acquire(&with_mode(2, 100, permits(1, u32::MAX))));
    lock.release(1, all);
    granted(&lock.acquire(&with_mode(2, 100, permits(u32::MAX - 1, u32::MAX))));
    busy(&lock.acquire(&with_mode(3, 100, permits(2, u32::MAX))));
    granted(&lock.acquire(&with_mode(3, 100, permits(1, u32::MAX))));
}

#[test]
fn permits_of_an_expired_holder_come_back_by_themselves() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 100, permits(4, 4))));
    lock.pass(100);
    granted(&lock.acquire(&with_mode(2, 100, permits(4, 4))));
}

#[test]
fn another_kind_another_limit_and_too_many_permits_are_refused_and_change_nothing() {
    let mut lock = Lock::new();
    lock.take(1, 100);
    let before = lock.entry.clone();
    let stored = Kind::Lock;
    let answer = lock.acquire(&with_mode(2, 100, permits(1, 4)));
    assert_eq!(refused(&answer), Refusal::WrongKind { stored });
    assert_eq!(lock.entry, before);

    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 100, permits(1, 4))));
    let stored = Kind::Semaphore { limit: count(4) };
    let answer = lock.acquire(&with_mode(2, 100, permits(1, 5)));
    assert_eq!(refused(&answer), Refusal::WrongKind { stored });
    let answer = lock.acquire(&with_mode(2, 100, Mode::Shared));
    assert_eq!(refused(&answer), Refusal::WrongKind { stored });
    let answer = lock.acquire(&with_mode(2, 100, permits(5, 4)));
    assert_eq!(refused(&answer), Refusal::TooManyPermits { limit: count(4) });
}

#[test]
fn an_idle_name_can_be_used_as_another_kind() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    assert_eq!(lock.release(1, lease), Release::Released);
    granted(&lock.acquire(&with_mode(2, 100, permits(1, 4))));
    lock.pass(100);
    lock.take(3, 100);
}

#[test]
fn a_name_closed_by_a_cooldown_keeps_its_kind() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    lock.release_and_close(1, lease, 500);
    refused(&lock.acquire(&with_mode(2, 100, permits(1, 4))));
    lock.pass(500);
    granted(&lock.acquire(&with_mode(2, 100, permits(1, 4))));
}

#[test]
fn a_renewal_extends_and_shortens_only_when_asked() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    assert_eq!(lock.renew(1, lease, 500), Renew::Renewed);
    assert_eq!(lock.inspect().unwrap().holders[0].remaining, ms(500));
    assert_eq!(lock.renew(1, lease, 50), Renew::Renewed);
    assert_eq!(lock.inspect().unwrap().holders[0].remaining, ms(500));
    let mut shorter = RenewRequest::new(key(), token(1), lease, ttl(50));
    shorter.shorten = true;
    assert_eq!(lock.entry.perform(&shorter, lock.now(), &mut lock.notices), Renew::Renewed);
    assert_eq!(lock.inspect().unwrap().holders[0].remaining, ms(50));
}

#[test]
fn a_renewal_never_creates_and_distinguishes_late_from_lost() {
    let mut lock = Lock::new();
    assert_eq!(lock.renew(1, FenceBlock::new(lock.floor, 1), 100), Renew::NotHeld);
    assert_eq!(lock.inspect(), None);
    let lease = lock.take(1, 100);
    lock.pass(100);
    assert_eq!(lock.renew(1, lease, 100), Renew::Late);
    assert_eq!(lock.inspect(), None);
    lock.take(2, 100);
    assert_eq!(lock.renew(1, lease, 100), Renew::NotHeld);
    assert_eq!(lock.holders(), [2]);
}

#[test]
fn a_release_sent_again_is_still_released() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    assert_eq!(lock.release(1, lease), Release::Released);
    lock.pass(1_000);
    assert_eq!(lock.release(1, lease), Release::Released);
    assert_eq!(lock.inspect(), None);
}

#[test]
fn a_release_sent_again_after_the_next_grant_is_not_held() {
    let mut lock = Lock::new();
    let first = lock.take(1, 100);
    assert_eq!(lock.release(1, first), Release::Released);
    let second = lock.take(2, 100);
    assert_eq!(lock.release(1, first), Release::NotHeld);
    assert_eq!(lock.holders(), [2]);
    assert_eq!(lock.release(2, second), Release::Released);
}

#[test]
fn a_repeated_release_of_a_shared_lease_is_no_late_one_and_closes_nothing() {
    for mode in [Mode::Shared, permits(1, 9)] {
        let mut lock = Lock::new();
        let leases: Vec<_> =
            (1..=4).map(|who| granted(&lock.acquire(&with_mode(who, 100, mode)))).collect();
        for first in [3, 0, 1] {
            assert_eq!(lock.release(first + 1, leases[usize::from(first)]), Release::Released);
        }
        for again in [0, 3, 1] {
            let lease = leases[usize::from(again)];
            assert_eq!(lock.release_and_close(again + 1, lease, 500), Release::Released);
        }
        assert_eq!(lock.inspect().unwrap().closed_for, None, "{mode:?}");
        assert_eq!(lock.renew(4, leases[3], 100), Renew::NotHeld, "it did not run out");
        granted(&lock.acquire(&with_mode(5, 100, mode)));
        assert_eq!(lock.release(1, leases[0]), Release::Released, "also after the next grant");
    }
}

#[test]
fn a_release_after_the_end_is_late_or_not_held_if_another_holder_came() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    lock.pass(100);
    assert_eq!(lock.release(1, lease), Release::Late);
    assert_eq!(lock.release(1, lease), Release::Late);
    let second = lock.take(2, 100);
    assert_eq!(lock.release(1, lease), Release::NotHeld);
    assert_eq!(lock.holders(), [2]);
    assert_eq!(lock.release(2, second), Release::Released);
    assert_eq!(lock.release(1, lease), Release::NotHeld);
}

#[test]
fn a_release_in_time_ends_a_lease_that_expires_on_its_way() {
    let in_time = |who, lease| {
        let mut request = ReleaseRequest::new(key(), token(who), lease);
        request.in_time = true;
        request
    };
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    lock.pass(150);
    for _ in 0..2 {
        assert_eq!(lock.release_with(&in_time(1, lease)), Release::Released);
    }
    let second = lock.take(2, 100);
    assert!(second.first() > lease.last());
    assert_eq!(lock.release_with(&in_time(1, lease)), Release::NotHeld);
    lock.wait(3);
    lock.pass(100);
    assert_eq!(lock.release_with(&in_time(2, second)), Release::Released);
    assert_eq!(lock.holders(), [3], "it goes to the next in the queue");
    assert_eq!(lock.release_with(&in_time(2, second)), Release::NotHeld);
}

#[test]
fn only_an_exclusive_lease_that_ends_as_a_whole_is_ended_in_time() {
    let mut lock = Lock::new();
    let lease = granted(&lock.acquire(&with_mode(1, 100, Mode::Shared)));
    lock.pass(100);
    let mut request = ReleaseRequest::new(key(), token(1), lease);
    request.in_time = true;
    assert_eq!(lock.release_with(&request), Release::Late);
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    lock.pass(100);
    let mut request = ReleaseRequest::new(key(), token(1), lease);
    (request.in_time, request.remaining) = (true, 1);
    assert_eq!(lock.release_with(&request), Release::Late);
}

#[test]
fn a_stranger_releases_nothing() {
    let mut lock = Lock::new();
    lock.take(1, 100);
    let before = lock.entry.clone();
    assert_eq!(lock.release(2, FenceBlock::new(Fence::ZERO, 1)), Release::NotHeld);
    assert_eq!(lock.entry, before);
}

#[test]
fn a_partial_release_sets_the_holds_that_remain() {
    let mut lock = Lock::new();
    let mut asked = request(1, 100);
    asked.holds = count(3);
    let lease = granted(&lock.acquire(&asked));
    let mut release = ReleaseRequest::new(key(), token(1), lease);
    release.remaining = 2;
    release.cooldown = cool(500);
    for _ in 0..2 {
        assert_eq!(lock.release_with(&release), Release::StillHeld { holds: 2 });
    }
    assert_eq!(lock.inspect().unwrap().closed_for, None);
    assert_eq!(lock.inspect().unwrap().holders[0].holds, 2);
    release.remaining = 0;
    assert_eq!(lock.release_with(&release), Release::Released);
    assert_eq!(lock.inspect().unwrap().closed_for, Some(ms(500)));
}

#[test]
fn a_cooldown_keeps_all_callers_out_and_then_opens() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    assert_eq!(lock.release_and_close(1, lease, 500), Release::Released);
    lock.pass(200);
    let answer = busy(&lock.acquire(&request(1, 100)));
    assert_eq!((answer.retry_after, answer.holder), (ms(300), None));
    assert_eq!(lock.release_and_close(1, lease, 500), Release::Released);
    assert_eq!(lock.inspect().unwrap().closed_for, Some(ms(300)), "sent again, it must not add");
    lock.pass(300);
    assert_eq!(lock.inspect(), None);
    lock.take(2, 100);
}

#[test]
fn a_late_release_closes_too() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    lock.pass(150);
    assert_eq!(lock.release_and_close(1, lease, 500), Release::Late);
    assert_eq!(busy(&lock.acquire(&request(2, 100))).retry_after, ms(500));
}

#[test]
fn leaving_ends_a_lease_and_is_no_late_release() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    assert_eq!(lock.leave(2), Leave::NotHeld);
    assert_eq!(lock.leave(1), Leave::Released);
    assert_eq!(lock.leave(1), Leave::NotHeld);
    assert_eq!(lock.release(1, lease), Release::Released);
    assert_eq!(lock.inspect(), None);
}

#[test]
fn fences_grow_over_every_way_to_lose_a_lease() {
    let mut lock = Lock::new();
    let mut last = Fence::ZERO;
    for way in 0..5 {
        let mut asked = request(1, 100);
        asked.fence_block = count(10);
        let lease = granted(&lock.acquire(&asked));
        assert!(lease.first() > last, "way {way}");
        last = lease.last();
        match way {
            0 => drop(lock.release(1, lease)),
            1 => drop(lock.leave(1)),
            2 => lock.pass(100),
            3 => drop(lock.force_release(lease.first())),
            _ => lock.bury(&[1]),
        }
        assert_eq!(lock.inspect(), None, "way {way}");
    }
}

#[test]
fn fences_follow_the_time_and_the_epoch_but_never_go_back() {
    let mut lock = Lock::new();
    let first = lock.take(1, 100);
    lock.release(1, first);
    lock.floor = Fence::new(0, 9_000).unwrap();
    let second = lock.take(1, 100);
    assert_eq!(second.first(), lock.floor);
    lock.release(1, second);
    lock.floor = Fence::new(2, 4_000).unwrap();
    let third = lock.take(1, 100);
    assert_eq!(third.first(), Fence::new(2, 9_001).unwrap());
    lock.release(1, third);
    lock.floor = Fence::new(1, 4_000).unwrap();
    let fourth = lock.take(1, 100);
    assert_eq!(fourth.first(), Fence::new(1, 9_002).unwrap());
    lock.release(1, fourth);
    lock.floor = Fence::new(0, 9_100).unwrap();
    assert_eq!(lock.take(1, 100).first(), Fence::new(0, 9_100).unwrap());
}

#[test]
fn an_entry_is_kept_while_it_is_used_and_until_the_time_has_passed_its_last_fence() {
    let mut lock = Lock::new();
    assert!(lock.entry.may_be_forgotten(lock.now()));
    let mut asked = request(1, 100);
    asked.fence_block = count(1_000);
    let lease = granted(&lock.acquire(&asked));
    let later = Fence::new(0, 1_999).unwrap();
    let past = Fence::new(0, 2_000).unwrap();
    assert!(!lock.entry.may_be_forgotten(Now::new(lock.at(), past)));
    assert_eq!(lock.entry.in_use_until(), Some(StoreTime::from_micros(lock.at_us + 100_000)));
    lock.release(1, lease);
    assert_eq!(lock.entry.in_use_until(), None);
    assert_eq!(lock.entry.last_fence(), Some(later));
    assert!(!lock.entry.may_be_forgotten(Now::new(lock.at(), later)));
    assert!(lock.entry.may_be_forgotten(Now::new(lock.at(), past)));

    lock.release_and_close(1, lease, 0);
    let lease = lock.take(1, 100);
    lock.release_and_close(1, lease, 500);
    assert_eq!(lock.entry.in_use_until(), Some(StoreTime::from_micros(lock.at_us + 500_000)));
    lock.pass(500);
    let past = Fence::new(0, 9_000).unwrap();
    assert!(lock.entry.may_be_forgotten(Now::new(lock.at(), past)));
}

#[test]
fn force_release_takes_only_the_lease_that_was_seen_and_raises_the_fence() {
    let mut lock = Lock::new();
    assert_eq!(lock.force_release(lock.floor), ForceRelease::NotHeld);
    let mut asked = request(1, 100);
    asked.fence_block = count(8);
    let lease = granted(&lock.acquire(&asked));
    let wrong = lock.force_release(lease.last().saturating_add(1));
    assert_eq!(wrong, ForceRelease::OtherFence { fences: vec![lease.first()] });
    assert_eq!(lock.holders(), [1]);
    assert_eq!(lock.force_release(lease.last()), ForceRelease::Released);
    assert_eq!(lock.entry.last_fence(), Some(lease.last().saturating_add(1)));
    assert_eq!(lock.force_release(lease.last()), ForceRelease::NotHeld);
    assert_eq!(lock.entry.last_fence(), Some(lease.last().saturating_add(1)));
    assert_eq!(lock.renew(1, lease, 100), Renew::NotHeld);
    assert_eq!(lock.release(1, lease), Release::NotHeld);
}

#[test]
fn force_release_of_one_shared_holder_leaves_the_others() {
    let mut lock = Lock::new();
    let a = granted(&lock.acquire(&with_mode(1, 100, Mode::Shared)));
    granted(&lock.acquire(&with_mode(2, 100, Mode::Shared)));
    assert_eq!(lock.force_release(a.first()), ForceRelease::Released);
    assert_eq!(lock.holders(), [2]);
}

#[test]
fn inspecting_changes_nothing_and_never_shows_what_is_over() {
    let mut lock = Lock::new();
    assert_eq!(lock.inspect(), None);
    lock.take(1, 100);
    lock.wait(2);
    let before = lock.entry.clone();
    lock.pass(200);
    assert_eq!(lock.holders(), [0_u8; 0]);
    assert_eq!(lock.waiters(), [2]);
    lock.pass(WINDOW);
    assert_eq!(lock.inspect(), None);
    assert_eq!(lock.entry, before);
}

#[test]
fn each_holder_and_waiter_is_named_by_a_token() {
    let mut lock = Lock::new();
    lock.take(1, 100);
    lock.wait(2);
    lock.wait(3);
    let tokens: Vec<Token> = lock.entry.tokens().copied().collect();
    assert_eq!(tokens, [token(1), token(2), token(3)]);
}

#[test]
fn a_shown_entry_gives_no_token_away() {
    let mut lock = Lock::new();
    lock.take(1, 100);
    lock.wait(2);
    let shown = format!("{:?} {:?}", lock.entry, lock.inspect());
    for who in [1, 2] {
        assert!(!shown.contains(&token(who).to_hex()));
        assert!(!shown.contains(&format!("{:?}", token(who).as_bytes())));
    }
}

#[test]
fn holders_with_one_bond_come_in_past_the_queue_and_others_do_not() {
    let [ours, theirs] = [7, 8].map(|number| Mode::Joint(Bond::new(number)));
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 1_000, ours)));
    lock.wait(2);
    granted(&lock.acquire(&with_mode(3, 1_000, ours)));
    busy(&lock.acquire(&with_mode(4, 1_000, theirs)));
    waiting(&lock.acquire(&queued_with_mode(5, theirs)));
    assert_eq!((lock.holders(), lock.waiters()), (vec![1, 3], vec![2, 5]));
}

#[test]
fn a_lock_is_taken_after_a_lease_only_while_its_fences_are_the_last() {
    let mut lock = Lock::new();
    let first = lock.take(1, 100);
    lock.pass(100);
    let after = |fences| AcquireRequest { after: Some(fences), ..request(2, 100) };
    let second = granted(&lock.acquire(&after(first)));
    lock.release(2, second);
    busy(&lock.acquire(&after(first)));
    granted(&lock.acquire(&after(second)));
}

#[test]
fn a_token_that_has_something_is_refused_as_another_kind() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 100, permits(1, 5))));
    let stored = Kind::Semaphore { limit: count(5) };
    assert_eq!(refused(&lock.acquire(&request(1, 100))), Refusal::WrongKind { stored });
    let mut lock = Lock::new();
    lock.take(1, 100);
    let asked = with_mode(1, 100, permits(1, 5));
    assert_eq!(refused(&lock.acquire(&asked)), Refusal::WrongKind { stored: Kind::Lock });
}
