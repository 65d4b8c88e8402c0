//! Each broken promise is found by the cases that claim it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use leasehold_testkit::conformance::{Case, run};

use crate::broken_store::{BrokenStore, Fault};

/// Which cases must find which fault.
const FOUND_BY: &[(Fault, &[&str])] = &[
    (Fault::AcquireIsNotIdempotent, &["an_acquisition_sent_twice_is_one_lease_with_one_fence"]),
    (Fault::AcquireShortens, &["acquiring_again_renews_and_never_shortens"]),
    (Fault::AskIsForgotten, &["a_holder_that_is_asked_learns_of_it_by_renewing"]),
    (Fault::AskReachesEverybody, &["those_who_share_are_asked_together_or_by_their_fence"]),
    (Fault::BatchIsAnsweredInReverse, &["a_batch_of_renewals_is_answered_one_by_one_in_order"]),
    (Fault::BlockIsNotReserved, &["a_block_is_reserved_whole"]),
    (
        Fault::BusyIsGranted,
        &[
            "one_of_many_who_ask_at_once_is_granted",
            "calls_at_the_same_time_are_one_after_the_other_for_a_mutex",
            "holders_never_overlap_and_their_fences_grow_under_contention",
            "only_one_of_many_takes_an_expired_lock_over",
        ],
    ),
    (
        Fault::ContendersAreForgotten,
        &["contenders_behind_a_waiter_are_shown_as_its_last_heartbeat_said"],
    ),
    (
        Fault::ConversionIsForgotten,
        &[
            "a_downgrade_lets_readers_in_and_keeps_its_fence_and_end",
            "only_a_lone_reader_is_upgraded_past_the_queue_with_a_higher_fence",
            "permits_can_be_released_and_added_one_by_one",
        ],
    ),
    (
        Fault::CooldownIsForgotten,
        &[
            "a_cooldown_closes_the_lock_to_all_callers",
            "a_late_release_closes_too",
            "a_cooldown_ends_by_itself_and_not_before_its_time",
        ],
    ),
    (Fault::ExaminationGivesNoReason, &["an_examination_explains_itself_and_leaves_locks_alone"]),
    (
        Fault::FenceIsConstant,
        &[
            "fences_grow_over_every_way_to_lose_a_lease",
            "holders_never_overlap_and_their_fences_grow_under_contention",
            "the_first_fence_of_a_name_is_the_time_since_2020",
        ],
    ),
    (Fault::FencesAreForgottenWhenIdle, &["fences_grow_even_when_blocks_outrun_the_clock"]),
    (
        Fault::ForceReleaseIgnoresTheFence,
        &[
            "force_release_with_another_fence_changes_nothing",
            "an_old_fence_takes_nothing_from_the_next_holder",
            "force_release_of_a_free_lock_finds_no_holder",
        ],
    ),
    (Fault::GrantDoesNotClose, &["a_closing_grant_outlasts_its_lease_and_its_release"]),
    (
        Fault::HandedLeaseRunsForTheTtl,
        &["a_lease_of_the_queue_runs_for_the_heartbeat_timeout_and_then_for_the_ttl"],
    ),
    (Fault::HeartbeatIsNotTold, &["a_grants_notification_has_its_heartbeat_and_fences"]),
    (
        Fault::LateIsCalledLost,
        &[
            "a_release_after_the_end_is_late_while_no_other_caller_came",
            "a_late_renewal_stays_ended_and_differs_from_a_lost_one",
        ],
    ),
    (
        Fault::LeaveLeavesTheLease,
        &["leaving_ends_a_lease", "leaving_undoes_an_acquisition_dropped_at_any_await"],
    ),
    (Fault::ListIgnoresThePrefix, &["a_prefix_is_text_and_never_a_pattern"]),
    (Fault::ListIsUnordered, &["locks_in_use_are_listed_in_the_order_of_their_names"]),
    (
        Fault::LostIsCalledLate,
        &[
            "a_stale_release_leaves_the_new_holder_alone",
            "a_renewal_never_creates_a_lease",
            "a_stranger_releases_nothing",
        ],
    ),
    (Fault::MetadataEndsAtNul, &["owner_and_metadata_come_back_as_they_were_given"]),
    (Fault::NamesAreCutShort, &["the_longest_names_work_and_differ_in_their_last_byte"]),
    (
        Fault::NamesLoseTheirBraces,
        &["names_are_never_taken_for_each_other", "strange_names_are_listed_as_they_are"],
    ),
    (Fault::NotAppliedIsALie, &["an_acquisition_without_time_fails_cleanly_or_succeeds"]),
    (
        Fault::OwnerIsLost,
        &["a_free_lock_is_granted_and_shown", "waiters_are_shown_with_who_they_are"],
    ),
    (
        Fault::PermitsAreGrantedBeyondTheLimit,
        &[
            "a_semaphore_grants_permits_up_to_its_limit",
            "permits_never_exceed_the_limit_under_contention",
            "calls_at_the_same_time_are_one_after_the_other_for_a_semaphore",
            "more_permits_than_there_are_are_refused",
        ],
    ),
    (Fault::PlaceIsForgotten, &["a_forgotten_waiter_gets_its_old_position_back"]),
    (
        Fault::PreferenceIsIgnored,
        &[
            "preferred_waiters_stand_before_all_others",
            "a_preferred_reader_joins_readers_past_a_waiting_writer",
        ],
    ),
    (Fault::ReleaseDoesNotReopen, &["a_release_can_open_what_its_grant_has_closed"]),
    (
        Fault::ReleaseNeedsNoToken,
        &["a_stale_release_leaves_the_new_holder_alone", "a_stranger_releases_nothing"],
    ),
    (
        Fault::RenewalCreates,
        &[
            "a_renewal_never_creates_a_lease",
            "a_late_renewal_stays_ended_and_differs_from_a_lost_one",
        ],
    ),
    (Fault::RenewalShortens, &["a_renewal_never_shortens_unless_asked_to"]),
    (
        Fault::SetIsTakenInPart,
        &[
            "several_locks_are_taken_all_or_none",
            "calls_at_the_same_time_are_one_after_the_other_for_sets_of_locks",
        ],
    ),
    (
        Fault::SharedIsExclusive,
        &[
            "shared_holders_keep_an_exclusive_one_out_until_the_last_is_gone",
            "calls_at_the_same_time_are_one_after_the_other_for_a_read_write_lock",
        ],
    ),
    (Fault::TokenIsShown, &["tokens_are_never_shown"]),
    (
        Fault::WaitersMaxIsIgnored,
        &["a_full_queue_refuses_newcomers", "a_forgotten_waiter_comes_back_into_a_full_queue"],
    ),
];

#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    for (fault, cases) in FOUND_BY {
        for case in *cases {
            let open = async || Arc::new(BrokenStore::new(*fault));
            let found = catch_unwind(AssertUnwindSafe(|| run(Case::named(case), open))).is_err();
            if !found {
                missed.push((fault, case));
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
}
