//! The one list of conformance cases.

use super::Case;
use super::Need::{list, queue, sets, shared, wake};

/// Expands to the table of cases or to a store's tests, so that both come from one list.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    ($what:ident [$($open:expr)?]) => {
        $crate::conformance_each! { $what [$($open)?]
            grant [] {
                a_free_lock_is_granted_and_shown,
                a_held_lock_says_who_holds_it_and_how_long_still,
                asking_without_waiting_leaves_nothing_behind,
                one_of_many_who_ask_at_once_is_granted,
                holders_never_overlap_and_their_fences_grow_under_contention,
                an_acquisition_sent_twice_is_one_lease_with_one_fence,
                an_acquisition_sent_many_times_at_once_is_one_lease,
                acquiring_again_renews_and_never_shortens,
                acquiring_again_sets_how_many_times_it_is_held,
                a_lease_lasts_its_ttl_and_then_ends_by_itself,
                only_one_of_many_takes_an_expired_lock_over,
                locks_of_other_names_are_independent,
                one_token_can_hold_several_locks,
            }
            renew [] {
                a_renewed_lease_outlives_its_first_ttl,
                a_renewal_never_shortens_unless_asked_to,
                a_renewal_changes_nothing_but_the_end,
                a_renewal_never_creates_a_lease,
                a_lock_is_taken_after_a_late_lease_only_if_it_was_free_since,
                a_late_renewal_stays_ended_and_differs_from_a_lost_one,
                a_strangers_renewal_extends_no_lease,
                a_batch_of_renewals_is_answered_one_by_one_in_order,
                an_empty_batch_is_answered_with_nothing,
                one_lease_may_stand_twice_in_a_batch,
                a_lease_that_is_transferred_has_a_new_token_and_the_old_one_is_spent,
            }
            release [] {
                a_released_lock_is_free_at_once,
                a_release_sent_again_is_still_released,
                a_release_sent_many_times_at_once_is_released,
                a_release_after_the_end_is_late_while_no_other_caller_came,
                a_stale_release_leaves_the_new_holder_alone,
                a_release_sent_again_does_not_touch_the_next_holder,
                a_stranger_releases_nothing,
                a_partial_release_leaves_the_holds_that_it_says,
                leaving_ends_a_lease,
                leaving_with_nothing_touches_no_holder,
                leaving_after_the_end_leaves_the_new_holder_alone,
            }
            changing [] {
                a_closing_grant_outlasts_its_lease_and_its_release,
                a_release_can_open_what_its_grant_has_closed,
                leaving_can_open_what_its_grant_has_closed,
                a_holder_that_is_asked_learns_of_it_by_renewing,
            }
            changing [shared] {
                a_lock_has_no_limit,
                who_holds_nothing_converts_nothing,
                those_who_share_are_asked_together_or_by_their_fence,
            }
            changing [queue] {
                preferred_waiters_stand_before_all_others,
            }
            changing [queue, shared] {
                a_downgrade_lets_readers_in_and_keeps_its_fence_and_end,
                only_a_lone_reader_is_upgraded_past_the_queue_with_a_higher_fence,
                a_downgrade_that_arrives_again_does_not_undo_an_upgrade,
                permits_can_be_released_and_added_one_by_one,
                a_raised_limit_serves_the_queue_and_binds_newcomers,
                a_lowered_limit_takes_nothing_from_holders,
                a_lowered_limit_ends_every_wait_for_more_wherever_it_stands,
                a_preferred_reader_joins_readers_past_a_waiting_writer,
            }
            changing [sets] {
                several_locks_are_taken_all_or_none,
                sets_that_overlap_are_never_held_together,
            }
            changing [sets, shared] {
                several_locks_that_can_not_be_taken_as_asked_are_refused,
            }
            concurrent [queue] {
                calls_at_the_same_time_are_one_after_the_other_for_a_mutex,
                calls_at_the_same_time_are_one_after_the_other_for_a_re_entrant_mutex,
            }
            concurrent [queue, shared] {
                calls_at_the_same_time_are_one_after_the_other_for_a_read_write_lock,
                calls_at_the_same_time_are_one_after_the_other_for_a_semaphore,
            }
            concurrent [queue, sets] {
                calls_at_the_same_time_are_one_after_the_other_for_sets_of_locks,
            }
            cooldown [] {
                a_cooldown_closes_the_lock_to_all_callers,
                a_cooldown_ends_by_itself_and_not_before_its_time,
                a_release_sent_again_does_not_close_for_longer,
                a_late_release_closes_too,
                a_release_of_what_is_lost_closes_nothing,
                a_partial_release_closes_nothing,
                no_time_and_next_to_no_time_are_no_cooldown,
            }
            cooldown [shared] {
                a_closed_name_keeps_its_kind,
            }
            cooldown [queue] {
                a_cooldown_keeps_the_queue_waiting_and_then_serves_it,
                a_caller_can_join_the_queue_during_a_cooldown,
            }
            fences [] {
                fences_grow_over_every_way_to_lose_a_lease,
                a_block_is_reserved_whole,
                a_lease_takes_over_higher_fences_and_later_ones_are_above_them,
                fences_grow_even_when_blocks_outrun_the_clock,
                a_fence_is_constant_for_its_lease,
                the_first_fence_of_a_name_is_the_time_since_2020,
                a_failed_acquisition_does_not_need_a_fence,
            }
            fences [shared] {
                shared_holders_have_fences_below_the_next_writers,
            }
            sharing [shared] {
                shared_holders_keep_an_exclusive_one_out_until_the_last_is_gone,
                an_exclusive_holder_keeps_shared_ones_out,
                a_shared_acquisition_sent_twice_is_one_hold,
                each_shared_lease_ends_for_itself,
                readers_and_writers_never_meet,
                holders_with_one_bond_are_one_owner_and_keep_all_others_out,
                a_semaphore_grants_permits_up_to_its_limit,
                a_semaphore_can_be_taken_whole_up_to_the_largest_limit,
                permits_of_an_expired_holder_come_back_by_themselves,
                permits_never_exceed_the_limit_under_contention,
                another_kind_or_limit_is_refused_and_changes_nothing,
                more_permits_than_there_are_are_refused,
                an_idle_name_can_be_used_as_another_kind,
            }
            sharing [shared, queue] {
                newcomers_do_not_overtake_the_queue,
                a_caller_with_the_holders_bond_comes_in_past_the_queue_and_from_within_it,
                a_small_wish_does_not_overtake_a_big_one,
                all_who_fit_together_are_served_together,
            }
            waiting [queue] {
                a_queue_request_is_granted_a_free_lock,
                waiters_stand_in_the_order_of_their_arrival,
                a_released_lock_goes_to_the_head_in_the_same_step,
                a_lease_of_the_queue_has_what_the_waiter_requested,
                a_lease_of_the_queue_runs_for_the_heartbeat_timeout_and_then_for_the_ttl,
                a_lease_of_the_queue_can_be_renewed_and_released_like_any_other,
                an_expired_holder_makes_room_for_the_head,
                a_look_grants_an_expired_lock_to_the_head,
                a_waiter_that_polls_twice_has_one_position,
                a_waiter_that_polls_many_times_at_once_has_one_position,
                leaving_the_queue_disturbs_no_other_position,
                leaving_in_the_moment_of_the_grant_passes_the_lease_on,
                a_queue_alone_keeps_a_name_in_use_until_it_is_gone,
                a_full_queue_refuses_newcomers,
                a_crowd_is_served_in_order_and_to_the_last,
            }
            waiting_faults [queue] {
                a_heartbeat_keeps_the_position,
                a_dead_head_is_skipped,
                a_waiter_with_less_than_half_its_timeout_left_is_passed_over,
                a_forgotten_waiter_gets_its_old_position_back,
                a_forgotten_waiter_comes_back_into_a_full_queue,
                a_position_of_another_waiter_is_not_given_twice,
                dead_waiters_do_not_fill_the_queue,
                a_waiter_with_a_late_heartbeat_is_served_at_once,
            }
            wake [queue, wake] {
                a_grants_notification_has_its_heartbeat_and_fences,
                a_grant_notifies_its_client_alone,
                waiters_of_one_client_are_distinguished_by_their_tickets,
                a_grant_by_leaving_and_by_force_is_notified_too,
                a_new_head_that_would_oversleep_is_notified,
                a_head_is_notified_of_a_lease_that_ends_earlier_now,
                a_closed_channel_harms_no_other_and_can_be_opened_again,
                a_dropped_wait_for_a_message_loses_none,
            }
            show [] {
                an_unused_name_is_not_there,
                what_is_over_is_never_shown,
                times_shown_fit_what_the_client_saw,
                tokens_are_never_shown,
            }
            show [shared] {
                shared_holders_are_shown_in_the_order_of_their_grants,
            }
            show [queue] {
                waiters_are_shown_with_who_they_are,
                contenders_behind_a_waiter_are_shown_as_its_last_heartbeat_said,
            }
            show [list] {
                locks_in_use_are_listed_in_the_order_of_their_names,
                a_listed_lock_is_described_as_inspect_does,
                idle_names_are_not_listed,
                an_empty_prefix_lists_everything,
                a_prefix_is_text_and_never_a_pattern,
                a_prefix_that_is_no_name_lists_nothing,
                a_prefix_may_be_of_wide_characters,
                many_locks_held_at_once_are_all_listed,
            }
            show [list, queue] {
                names_with_waiters_are_listed,
            }
            names [] {
                names_are_never_taken_for_each_other,
                a_name_may_start_with_anything,
                the_longest_names_work_and_differ_in_their_last_byte,
                the_longest_names_of_wide_characters_work,
                owner_and_metadata_come_back_as_they_were_given,
                the_longest_and_the_shortest_ttl_are_kept,
            }
            names [list] {
                strange_names_are_listed_as_they_are,
            }
            limits [] {
                every_argument_of_an_acquisition_is_taken_and_what_it_took_ends,
                every_argument_of_a_renewal_is_taken_and_the_lease_ends,
                a_release_may_leave_as_many_holds_as_there_can_be,
                operators_may_name_any_fence_and_list_by_any_text,
                a_call_may_take_as_long_as_a_number_can_say,
            }
            limits [shared] {
                every_mode_is_taken_and_what_it_took_ends,
                a_limit_may_be_anything_and_permits_come_back,
            }
            limits [queue] {
                every_argument_of_a_waiter_is_taken_and_the_queue_ends,
            }
            operator [] {
                force_release_ends_the_lease_that_was_seen,
                force_release_takes_any_fence_of_the_lease,
                force_release_with_another_fence_changes_nothing,
                force_release_of_a_free_lock_finds_no_holder,
                an_old_fence_takes_nothing_from_the_next_holder,
                an_examination_explains_itself_and_leaves_locks_alone,
            }
            operator [shared] {
                force_release_of_one_shared_holder_leaves_the_others,
            }
            operator [queue] {
                force_release_serves_the_queue,
            }
            trouble [] {
                an_acquisition_without_time_fails_cleanly_or_succeeds,
                no_call_without_time_hangs,
                leaving_undoes_an_acquisition_dropped_at_any_await,
                the_store_has_a_name_that_can_be_shown,
            }
            trouble [queue] {
                a_dropped_waiter_is_undone_by_leaving,
            }
            trouble [list] {
                a_thousand_names_leave_nothing_behind,
                names_that_are_never_released_leave_nothing_behind,
            }
        }
    };
}

/// Expands the list into a table or tests.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_each {
    (table [] $($module:ident $needs:tt { $($case:ident,)+ })+) => {
        &[$($(
            Case {
                name: stringify!($case),
                module: stringify!($module),
                needs: &$needs,
                check: |cx| Box::pin(super::$module::$case(cx)),
            },
        )+)+]
    };
    (tests [$open:expr] $($module:ident $needs:tt { $($case:ident,)+ })+) => {
        $($(
            #[test]
            fn $case() {
                $crate::conformance::run(
                    $crate::conformance::Case::named(stringify!($case)),
                    $open,
                );
            }
        )+)+
    };
}

/// All cases.
pub static CASES: &[Case] = crate::conformance_list!(table []);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::MODULES;

    #[test]
    fn every_module_of_the_list_is_run_where_modules_share_a_store() {
        let mut listed: Vec<&str> = CASES.iter().map(|case| case.module).collect();
        listed.dedup();
        for module in &listed {
            assert!(MODULES.contains(module), "{module} is missing");
        }
        for module in MODULES {
            assert!(listed.contains(module), "{module} has no cases");
        }
    }

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let mut names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
