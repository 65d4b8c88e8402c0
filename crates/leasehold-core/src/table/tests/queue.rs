//! Tests of the queue: joining, hand-off, and the notices that waiters get.

use super::*;

#[test]
fn waiters_are_served_in_the_order_of_their_arrival() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 1_000);
    let (a, b, c) = (lock.wait(2), lock.wait(3), lock.wait(4));
    assert_eq!([a.position, b.position, c.position], [0, 1, 2]);
    assert!(a.place < b.place && b.place < c.place);
    assert_eq!(a.retry_after, ms(1_000));
    assert_eq!(number(&a.holder.unwrap().owner), 1);
    lock.release(1, lease);
    assert_eq!((lock.holders(), lock.waiters()), (vec![2], vec![3, 4]));
    lock.leave(2);
    assert_eq!((lock.holders(), lock.waiters()), (vec![3], vec![4]));
    lock.leave(3);
    assert_eq!((lock.holders(), lock.waiters()), (vec![4], vec![]));
}

#[test]
fn a_free_lock_is_granted_to_a_caller_that_would_wait() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&queued(1, 0)));
    assert!(lock.notices.is_empty());
}

#[test]
fn newcomers_do_not_overtake_the_queue() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 1_000, Mode::Shared)));
    lock.wait(2);
    busy(&lock.acquire(&with_mode(3, 1_000, Mode::Shared)));
    let third = waiting(&lock.acquire(&queued_with_mode(3, Mode::Shared)));
    assert_eq!(third.position, 1);
}

#[test]
fn a_small_wish_does_not_overtake_a_big_one() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 1_000, permits(2, 3))));
    waiting(&lock.acquire(&queued_with_mode(2, permits(3, 3))));
    busy(&lock.acquire(&with_mode(3, 1_000, permits(1, 3))));
    waiting(&lock.acquire(&queued_with_mode(3, permits(1, 3))));
    assert_eq!(lock.waiters(), [2, 3]);
}

#[test]
fn all_who_fit_together_are_served_together() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 1_000);
    for who in [2, 3] {
        waiting(&lock.acquire(&queued_with_mode(who, Mode::Shared)));
    }
    lock.wait(4);
    waiting(&lock.acquire(&queued_with_mode(5, Mode::Shared)));
    lock.release(1, lease);
    assert_eq!((lock.holders(), lock.waiters()), (vec![2, 3], vec![4, 5]));
    let told = [(client(2), 2, 0), (client(3), 3, 0)];
    assert_eq!(grants(&lock.notices), told);
}

#[test]
fn a_heartbeat_keeps_the_position_and_renews_it() {
    let mut lock = Lock::new();
    lock.take(1, 10_000);
    let first = lock.wait(2);
    let second = lock.wait(3);
    for n in 1..10 {
        lock.pass(WINDOW / 2);
        assert_eq!(waiting(&lock.heartbeat(3, n)).place, second.place);
        let again = waiting(&lock.heartbeat(2, n));
        assert_eq!((again.position, again.place), (0, first.place));
    }
    assert_eq!(lock.waiters(), [2, 3]);
}

#[test]
fn a_waiter_that_polls_outside_the_queue_keeps_its_position_unrenewed() {
    let mut lock = Lock::new();
    lock.take(1, 10_000);
    let place = lock.wait(2).place;
    lock.pass(WINDOW - 1);
    assert_eq!(waiting(&lock.acquire(&request(2, 100))).place, place);
    lock.pass(1);
    assert_eq!(lock.waiters(), [0_u8; 0]);
}

#[test]
fn a_lease_granted_to_the_head_runs_for_the_heartbeat_timeout_from_the_last_heartbeat() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.pass(90);
    lock.heartbeat(2, 7);
    lock.pass(100);
    lock.release(1, lease);
    let holder = lock.inspect().unwrap().holders[0].clone();
    assert_eq!((holder.remaining, holder.held_for), (ms(WINDOW - 100), ms(0)));
    assert!(holder.fence > lease.last());
    assert_eq!(grants(&lock.take_notices()), [(client(2), 2, 7)]);
    let again = already(&lock.heartbeat(2, 8));
    assert_eq!(again.fences.first(), holder.fence);
    assert_eq!(lock.inspect().unwrap().holders[0].remaining, ms(10_000));
}

#[test]
fn a_lease_granted_to_the_head_has_the_requested_block_and_label() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    let mut asked = queued(2, 0);
    asked.fence_block = count(16);
    asked.metadata = Metadata::new("second").unwrap();
    waiting(&lock.acquire(&asked));
    lock.release(1, lease);
    assert_eq!(lock.inspect().unwrap().holders[0].metadata.as_str(), "second");
    let fences = already(&lock.acquire(&asked)).fences;
    assert_eq!(fences.count(), 16);
    assert_eq!(lock.entry.last_fence(), Some(fences.last()));
}

#[test]
fn an_expired_holder_makes_room_for_the_head_in_the_step_that_sees_it() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 100);
    lock.wait(2);
    lock.pass(100);
    let before = waiting(&lock.heartbeat(3, 0));
    assert_eq!((before.position, number(&before.holder.unwrap().owner)), (0, 2));
    assert_eq!(lock.renew(1, lease, 100), Renew::NotHeld);
    assert_eq!(lock.release(1, lease), Release::NotHeld);
    assert_eq!((lock.holders(), lock.waiters()), (vec![2], vec![3]));
}

#[test]
fn the_head_that_comes_when_the_lease_has_ended_is_answered_that_it_holds() {
    let mut lock = Lock::new();
    lock.take(1, 100);
    lock.wait(2);
    lock.pass(100);
    already(&lock.heartbeat(2, 1));
    assert_eq!(lock.holders(), [2]);
}

#[test]
fn a_dead_head_is_skipped() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.pass(WINDOW - 50);
    lock.wait(3);
    lock.pass(50);
    assert_eq!(lock.waiters(), [3]);
    assert_eq!(waiting(&lock.heartbeat(3, 1)).position, 0);
    lock.release(1, lease);
    assert_eq!(lock.holders(), [3]);
}

#[test]
fn a_waiter_with_less_than_half_its_timeout_left_is_passed_over() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.pass_us(WINDOW * 500 + 1);
    lock.wait(3);
    lock.release(1, lease);
    assert_eq!((lock.holders(), lock.waiters()), (vec![3], vec![]));

    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.pass_us(WINDOW * 500);
    lock.wait(3);
    lock.release(1, lease);
    assert_eq!((lock.holders(), lock.waiters()), (vec![2], vec![3]));
}

#[test]
fn a_forgotten_waiter_gets_its_old_position_back_and_only_with_it() {
    for with_place in [true, false] {
        let mut lock = Lock::new();
        lock.take(1, 10_000);
        let place = lock.wait(2).place;
        lock.pass(WINDOW);
        lock.wait(3);
        lock.wait(4);
        assert_eq!(lock.waiters(), [3, 4]);
        let mut back = queued(2, 5);
        back.queue.as_mut().unwrap().place = with_place.then_some(place);
        let again = waiting(&lock.acquire(&back));
        assert_eq!(
            (again.position, again.place == place),
            if with_place { (0, true) } else { (2, false) }
        );
        assert_eq!(lock.waiters(), if with_place { [2, 3, 4] } else { [3, 4, 2] });
    }
}

#[test]
fn a_waiter_with_a_delayed_heartbeat_is_not_passed_over_as_it_arrives() {
    let mut lock = Lock::new();
    lock.take(1, WINDOW - 1);
    lock.wait(2);
    lock.pass(WINDOW - 2);
    lock.wait(3);
    lock.pass(1);
    already(&lock.heartbeat(2, 1));
    assert_eq!((lock.holders(), lock.waiters()), (vec![2], vec![3]));
    assert_eq!(grants(&lock.notices), [(client(2), 2, 1)]);
}

#[test]
fn a_forgotten_waiter_takes_what_is_free_before_those_behind_it() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 10_000, permits(2, 3))));
    granted(&lock.acquire(&with_mode(2, 200, permits(1, 3))));
    let place = waiting(&lock.acquire(&queued_with_mode(3, permits(1, 3)))).place;
    lock.pass(WINDOW);
    waiting(&lock.acquire(&queued_with_mode(4, permits(2, 3))));
    let mut back = queued_with_mode(3, permits(1, 3));
    waiting(&lock.clone().acquire(&back));
    back.queue.as_mut().unwrap().place = Some(place);
    granted(&lock.acquire(&back));
    assert_eq!((lock.holders(), lock.waiters()), (vec![1, 3], vec![4]));
}

#[test]
fn two_waiters_never_share_a_position() {
    let mut lock = Lock::new();
    lock.take(1, 10_000);
    let place = lock.wait(2).place;
    let mut thief = queued(3, 0);
    thief.queue.as_mut().unwrap().place = Some(place);
    assert_ne!(waiting(&lock.acquire(&thief)).place, place);
    assert_eq!(lock.waiters(), [2, 3]);

    let mut ahead = queued(4, 0);
    let far = Place::on_arrival(lock.at_us + 1_000_000, false);
    ahead.queue.as_mut().unwrap().place = Some(far);
    assert!(waiting(&lock.acquire(&ahead)).place < far, "nobody was given a place to come");
    lock.wait(5);
    assert_eq!(lock.waiters(), [2, 3, 4, 5]);
}

#[test]
fn newcomers_come_behind_returning_waiters_and_without_gaps() {
    let mut lock = Lock::new();
    lock.take(1, 10_000);
    let old = [7_000, 9_000, 8_000].map(|us| Place::on_arrival(us, false));
    let bring = |lock: &mut Lock, who: u8, place| {
        let mut asked = queued(who, 0);
        asked.queue.as_mut().unwrap().place = Some(place);
        assert_eq!(waiting(&lock.acquire(&asked)).place, place);
    };
    bring(&mut lock, 2, old[0]);
    let newcomer = lock.wait(3).place;
    bring(&mut lock, 4, old[1]);
    lock.pass(1);
    assert_eq!(lock.wait(5).place.number(), newcomer.number() + 1);
    bring(&mut lock, 6, old[2]);
    assert_eq!(lock.waiters(), [2, 6, 4, 3, 5]);
}

#[test]
fn a_full_queue_refuses_newcomers() {
    let mut lock = Lock::new();
    lock.take(1, 10_000);
    lock.wait(2);
    let mut asked = queued(3, 0);
    asked.queue.as_mut().unwrap().max_waiters = Some(1);
    assert_eq!(refused(&lock.acquire(&asked)), Refusal::QueueFull { waiters: 1 });
    assert_eq!(lock.waiters(), [2]);
    asked.queue.as_mut().unwrap().max_waiters = Some(2);
    waiting(&lock.acquire(&asked));
    asked.queue.as_mut().unwrap().max_waiters = Some(1);
    waiting(&lock.acquire(&asked));
}

#[test]
fn the_dead_neither_fill_the_queue_nor_stay_in_it() {
    let mut lock = Lock::new();
    lock.take(1, 10_000);
    lock.wait(2);
    for who in 3..10 {
        lock.wait(who);
    }
    lock.pass(WINDOW / 2);
    lock.heartbeat(2, 1);
    lock.pass(WINDOW / 2);
    let mut asked = queued(10, 0);
    asked.queue.as_mut().unwrap().max_waiters = Some(2);
    assert_eq!(waiting(&lock.acquire(&asked)).position, 1);
    let tokens: Vec<Token> = lock.entry.tokens().copied().collect();
    assert_eq!(tokens, [token(1), token(2), token(10)]);
}

#[test]
fn a_forgotten_waiter_comes_back_into_a_full_queue() {
    let mut lock = Lock::new();
    lock.take(1, 10_000);
    let place = lock.wait(2).place;
    lock.pass(WINDOW);
    lock.wait(3);
    let mut back = queued(2, 5);
    back.queue.as_mut().unwrap().max_waiters = Some(1);
    assert_eq!(refused(&lock.acquire(&back)), Refusal::QueueFull { waiters: 1 });
    back.queue.as_mut().unwrap().place = Some(place);
    assert_eq!(waiting(&lock.acquire(&back)).position, 0);
}

#[test]
fn leaving_the_queue_disturbs_no_other_position() {
    let mut lock = Lock::new();
    lock.take(1, 10_000);
    lock.wait(2);
    lock.wait(3);
    let place = lock.wait(4).place;
    assert_eq!(lock.leave(3), Leave::Left);
    assert_eq!(lock.leave(3), Leave::NotHeld);
    let again = waiting(&lock.heartbeat(4, 1));
    assert_eq!((again.position, again.place), (1, place));
    assert_eq!(lock.holders(), [1]);
}

#[test]
fn leaving_in_the_moment_of_the_grant_passes_the_lease_on() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.wait(3);
    lock.release(1, lease);
    assert_eq!(lock.leave(2), Leave::Released);
    assert_eq!(lock.holders(), [3]);
    assert_eq!(grants(&lock.notices), [(client(2), 2, 0), (client(3), 3, 0)]);
}

#[test]
fn a_queue_that_loses_a_demanding_head_serves_the_rest_at_once() {
    let mut lock = Lock::new();
    granted(&lock.acquire(&with_mode(1, 10_000, Mode::Shared)));
    lock.wait(2);
    waiting(&lock.acquire(&queued_with_mode(3, Mode::Shared)));
    lock.leave(2);
    assert_eq!(lock.holders(), [1, 3]);
}

#[test]
fn a_cooldown_keeps_the_queue_waiting_and_then_serves_it() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.release_and_close(1, lease, WINDOW);
    assert_eq!((lock.holders(), lock.waiters()), (vec![], vec![2]));
    assert_eq!(lock.wait(3).retry_after, ms(WINDOW));
    lock.pass(WINDOW / 2);
    assert_eq!(waiting(&lock.heartbeat(2, 1)).position, 0);
    lock.pass(WINDOW / 2);
    assert_eq!(waiting(&lock.heartbeat(4, 0)).position, 0);
    assert_eq!(lock.holders(), [2]);
}

#[test]
fn a_head_is_notified_of_a_cooldown_that_ends_before_its_heartbeat() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    let again =
        ReleaseRequest { cooldown: cool(50), ..ReleaseRequest::new(key(), token(1), lease) };
    assert_eq!(lock.release_with(&again), Release::Released);
    let told = Wake::First { ticket: 2, retry_after: ms(50) };
    assert_eq!(lock.take_notices(), [Notice { client: client(2), wake: told }]);
    assert_eq!(lock.release_with(&again), Release::Released);
    assert_eq!(lock.take_notices(), []);
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.release_and_close(1, lease, 10_000);
    assert_eq!(lock.take_notices(), [], "it asks before that anyway");
}

#[test]
fn a_head_is_notified_of_a_lease_that_ends_earlier_now() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    let mut shorter = RenewRequest::new(key(), token(1), lease, ttl(50));
    assert_eq!(lock.renew_with(&shorter), Renew::Renewed);
    assert_eq!(lock.take_notices(), [], "it ends no earlier");
    shorter.shorten = true;
    assert_eq!(lock.renew_with(&shorter), Renew::Renewed);
    let told = Wake::First { ticket: 2, retry_after: ms(50) };
    assert_eq!(lock.take_notices(), [Notice { client: client(2), wake: told }]);
    assert_eq!(lock.renew_with(&shorter), Renew::Renewed);
    assert_eq!(lock.take_notices(), []);
    shorter.successor = Some(token(7));
    shorter.ttl = ttl(40);
    assert_eq!(lock.renew_with(&shorter), Renew::Renewed);
    assert_eq!(lock.take_notices().len(), 1, "handed over, and shorter");
    shorter.ttl = ttl(30);
    assert_eq!(lock.renew_with(&shorter), Renew::Renewed);
    assert_eq!(lock.take_notices().len(), 1, "handed over before, and shorter again");
    shorter.ttl = ttl(5_000);
    assert_eq!(lock.renew_with(&shorter), Renew::Renewed);
    assert_eq!(lock.take_notices(), [], "it ends later");
}

#[test]
fn a_dead_head_is_skipped_during_a_cooldown_too() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.release_and_close(1, lease, 10_000);
    lock.pass(WINDOW);
    assert_eq!(lock.wait(3).position, 0);
    lock.pass(WINDOW);
    assert_eq!(lock.leave(9), Leave::NotHeld);
    assert_eq!(lock.entry.tokens().count(), 0);
}

#[test]
fn the_buried_lose_holds_and_positions_and_the_next_is_served() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.wait(3);
    lock.bury(&[1, 2]);
    assert_eq!((lock.holders(), lock.waiters()), (vec![3], vec![]));
    assert_eq!(lock.release(1, lease), Release::NotHeld);
    let before = lock.entry.clone();
    lock.bury(&[7]);
    assert_eq!(lock.entry, before);
}

#[test]
fn taking_a_lease_away_serves_the_head() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    assert_eq!(lock.force_release(lease.first()), ForceRelease::Released);
    assert_eq!(lock.holders(), [2]);
    assert!(lock.inspect().unwrap().holders[0].fence > lease.last().saturating_add(1));
}

#[test]
fn a_new_head_is_notified_when_it_would_oversleep() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.pass(100);
    let mut sleepy = queued(3, 0);
    sleepy.queue.as_mut().unwrap().window = ttl(6_000);
    waiting(&lock.acquire(&sleepy));
    lock.release(1, lease);
    let told = lock.take_notices();
    assert_eq!(grants(&told), [(client(2), 2, 0)]);
    let left = ms(WINDOW - 100);
    let first = Notice { client: client(3), wake: Wake::First { ticket: 3, retry_after: left } };
    assert_eq!(told[1..], [first]);
}

#[test]
fn a_new_head_that_was_heard_before_the_clock_was_set_back_polls_no_later_for_it() {
    let mut lock = Lock::new();
    lock.pass(4 * WINDOW);
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.wait(3);
    lock.at_us -= WINDOW / 2 * 1_000;
    lock.heartbeat(2, 1);
    lock.release(1, lease);
    assert_eq!(grants(&lock.take_notices()), [(client(2), 2, 1)], "and nothing else was sent");
}

#[test]
fn a_new_head_that_will_be_up_in_time_is_left_alone() {
    let mut lock = Lock::new();
    let lease = lock.take(1, 10_000);
    lock.wait(2);
    lock.wait(3);
    lock.release(1, lease);
    assert_eq!(lock.notices.len(), 1);
}

#[test]
fn a_waiter_that_polls_is_answered_and_not_notified_as_well() {
    let mut lock = Lock::new();
    lock.take(1, 500);
    lock.wait(2);
    lock.pass(WINDOW);
    let mut sleepy = queued(3, 0);
    sleepy.queue.as_mut().unwrap().window = ttl(6_000);
    assert_eq!(waiting(&lock.acquire(&sleepy)).position, 0);
    assert!(lock.notices.is_empty());
}

#[test]
fn a_refused_request_still_notifies_the_new_head() {
    let mut lock = Lock::new();
    lock.take(1, 100);
    lock.wait(2);
    let mut sleepy = queued(3, 0);
    sleepy.queue.as_mut().unwrap().window = ttl(6_000);
    waiting(&lock.acquire(&sleepy));
    lock.pass(100);
    refused(&lock.acquire(&with_mode(4, 100, permits(1, 2))));
    let told = lock.take_notices();
    assert_eq!(told.len(), 2);
    assert!(matches!(told[1].wake, Wake::First { ticket: 3, .. }));
}

#[test]
fn a_position_of_this_moment_is_restored_and_one_of_the_future_is_not() {
    let mut lock = Lock::new();
    lock.take(1, 1_000);
    lock.wait(2);
    lock.pass_us(10);
    let bring = |us| {
        let mut asked = queued(3, 0);
        asked.queue.as_mut().unwrap().place = Some(Place::on_arrival(us, false));
        asked
    };
    let (now, mut other) = (lock.at_us, lock.clone());
    assert_eq!(waiting(&lock.acquire(&bring(now))).place.arrival(), now);
    assert_ne!(waiting(&other.acquire(&bring(now + 1))).place.arrival(), now + 1);
}
