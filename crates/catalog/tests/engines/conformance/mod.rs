//! What every engine promises. Each function takes a fresh catalog.

pub mod checks;
pub mod limits;
pub mod model;
pub mod pages;
pub mod races;
pub mod serial;
pub mod snapshots;
pub mod watching;
pub mod writes;

/// Runs the whole suite on an engine; the maker gives `None` where the engine cannot run here.
macro_rules! conformance {
    ($make:expr) => {
        $crate::conformance::conformance!($make;
            checks: each_kind_holds_or_fails, first_failure_is_named, checks_see_the_state_before,
                reading_only_validates;
            writes: later_write_wins, sums, bad_sums_change_nothing, ranges_are_deleted_to_their_bounds,
                rows_name_their_commit, numbers_rise;
            pages: any_bytes_in_order, pages_are_limited_in_bytes, bounds_that_hold_nothing;
            limits: limits_are_checked, largest_commit_passes;
            snapshots: one_get_is_one_state, one_page_is_one_state, acknowledged_is_seen;
            watching: no_change_is_missed, every_kind_of_write_wakes, other_prefixes_may_sleep;
            model: random_commits_like_the_model;
            serial: commits_are_serializable, skew_is_refused, membership_is_bounded,
                concurrent_sums_lose_nothing, numbers_follow_acknowledgements;
            races: absence_is_not_skewed, nothing_is_made_where_all_was_removed, counted_ranges_are_not_skewed,
                sums_are_seen_by_checks, limited_sums_are_exact, many_rows_in_any_order;
        );
    };
    ($make:expr; $($file:ident: $($case:ident),+;)+) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(fixture) = $make {
                    $crate::conformance::$file::$case(&fixture).await;
                }
            }
        )+)+
    };
}

pub(crate) use conformance;
