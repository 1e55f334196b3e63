//! What is staged next: jobs by when they are expected to start, each source once however many jobs want it, within the room that there is.
//!
//! A job whose data does not fit beside that of jobs in front of it waits, and so do those behind it that need room: otherwise small jobs
//! would pass a large one for ever. One that needs more than all the room waits for nobody, and nobody for it. What jobs hold already
//! counts first.

use std::cmp::Reverse;

/// A job that wants data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// When it is expected to start; none if nobody knows: behind all others.
    pub start_ms: Option<u64>,
    /// When it was submitted.
    pub since_ms: u64,
    /// It runs, or all its data was there: what it holds is not taken from it.
    pub is_admitted: bool,
    /// The sources that it wants on drives, by their number.
    pub sources: Vec<u32>,
}

/// A source that jobs want on drives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceNeed {
    /// All of its bytes; none if they were not counted yet.
    pub bytes: Option<u64>,
    /// Bytes of each of its pieces that are not there yet. Pieces that are complete may be left out.
    pub missing: Vec<u64>,
}

/// What limits a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Now.
    pub now_ms: u64,
    /// Bytes that drives hold for jobs at most.
    pub room_bytes: u64,
    /// Bytes a second that come at the moment; 0 if nobody knows.
    pub rate_bytes_per_s: u64,
    /// Pieces that are given out at most.
    pub pieces_max: usize,
    /// Bytes that are under way at the same time at most; one piece always is.
    pub bytes_max: u64,
}

/// What is to be said of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Something of it was not counted yet.
    Counting,
    /// It is there.
    Ready,
    /// It will be there then; none if the rate is not known.
    Staging(Option<u64>),
    /// It waits for room: it needs so much more, and so much is left.
    Waits {
        /// Bytes that it needs beside what is held.
        needs: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// It needs more than there is room for at all.
    TooLarge {
        /// Bytes that it needs.
        needs: u64,
        /// All the room.
        room: u64,
    },
}

/// What is done next.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Sources to be counted, most urgent first.
    pub count: Vec<u32>,
    /// Pieces to be brought, as source and piece, most urgent first.
    pub bring: Vec<(u32, u32)>,
    /// Of each job, in the order in which they were given.
    pub verdicts: Vec<Verdict>,
}

/// Says what is done next.
pub fn plan(jobs: &[Want], sources: &[SourceNeed], limits: &Limits) -> Plan {
    let mut order: Vec<u32> = (0..jobs.len() as u32).collect();
    order.sort_unstable_by_key(|at| {
        let job = &jobs[*at as usize];
        (Reverse(job.is_admitted), job.start_ms.unwrap_or(u64::MAX), job.since_ms, *at)
    });
    let mut verdicts = vec![Verdict::Ready; jobs.len()];
    let mut plan = Plan::default();
    let mut state = vec![Standing::default(); sources.len()];
    let (mut left, mut is_blocked) = (limits.room_bytes, false);
    let (mut ahead, mut bytes_out) = (0_u64, 0_u64);
    for at in order {
        let job = &jobs[at as usize];
        let own = || job.sources.iter().filter(|source| (**source as usize) < sources.len());
        let mut is_counted = true;
        for source in own() {
            if sources[*source as usize].bytes.is_none() {
                is_counted = false;
                if !std::mem::replace(&mut state[*source as usize].is_asked, true) {
                    plan.count.push(*source);
                }
            }
        }
        if !is_counted {
            verdicts[at as usize] = Verdict::Counting;
            continue;
        }
        // A source may be named twice in one job.
        let (mut all, mut needs) = (0_u64, 0_u64);
        for source in own() {
            let standing = &mut state[*source as usize];
            if standing.seen_by != at + 1 {
                standing.seen_by = at + 1;
                let bytes = sources[*source as usize].bytes.unwrap_or(0);
                all = all.saturating_add(bytes);
                if !standing.is_admitted {
                    needs = needs.saturating_add(bytes);
                }
            }
        }
        if !job.is_admitted && needs > 0 && (is_blocked || needs > left) {
            verdicts[at as usize] = match all > limits.room_bytes {
                true => Verdict::TooLarge { needs: all, room: limits.room_bytes },
                false => {
                    is_blocked = true;
                    Verdict::Waits { needs, left }
                }
            };
            continue;
        }
        left = left.saturating_sub(needs);
        let (mut ready_behind, mut is_missing) = (0, false);
        for source in own() {
            let need = &sources[*source as usize];
            let standing = &mut state[*source as usize];
            if !std::mem::replace(&mut standing.is_admitted, true) {
                for (piece, bytes) in (0..).zip(&need.missing) {
                    if *bytes == 0 {
                        continue;
                    }
                    ahead = ahead.saturating_add(*bytes);
                    standing.ready_behind = ahead;
                    let fits = plan.bring.is_empty() || bytes_out.saturating_add(*bytes) <= limits.bytes_max;
                    if fits && plan.bring.len() < limits.pieces_max && !standing.is_cut {
                        bytes_out = bytes_out.saturating_add(*bytes);
                        plan.bring.push((*source, piece));
                    } else {
                        standing.is_cut = true;
                    }
                }
            }
            if standing.ready_behind > 0 {
                is_missing = true;
                ready_behind = ready_behind.max(standing.ready_behind);
            }
        }
        if is_missing {
            let ms = u128::from(ready_behind) * 1_000 / u128::from(limits.rate_bytes_per_s.max(1));
            let ms = u64::try_from(ms).unwrap_or(u64::MAX);
            let known = limits.rate_bytes_per_s > 0;
            verdicts[at as usize] = Verdict::Staging(known.then(|| limits.now_ms.saturating_add(ms)));
        }
    }
    plan.verdicts = verdicts;
    plan
}

#[derive(Clone, Default)]
struct Standing {
    is_asked: bool,
    is_admitted: bool,
    is_cut: bool,
    /// The number of the job that looked at it last, from 1 on.
    seen_by: u32,
    /// Missing bytes up to its last piece, in the order of the plan; 0 if nothing is missing.
    ready_behind: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(start_ms: Option<u64>, since_ms: u64, sources: &[u32]) -> Want {
        Want { start_ms, since_ms, is_admitted: false, sources: sources.to_vec() }
    }

    fn need(missing: &[u64], there: u64) -> SourceNeed {
        SourceNeed { bytes: Some(missing.iter().sum::<u64>() + there), missing: missing.to_vec() }
    }

    fn limits(room_bytes: u64) -> Limits {
        Limits { now_ms: 1_000, room_bytes, rate_bytes_per_s: 10, pieces_max: 100, bytes_max: u64::MAX }
    }

    #[test]
    fn the_job_that_starts_first_is_staged_first() {
        let jobs = [
            want(None, 1, &[0]),
            want(Some(9_000), 3, &[1]),
            want(Some(5_000), 4, &[2]),
            want(None, 0, &[2]),
        ];
        let sources = [need(&[10], 0), need(&[20, 5], 7), need(&[30], 0)];
        let plan = plan(&jobs, &sources, &limits(1_000));
        assert_eq!(plan.bring, [(2, 0), (1, 0), (1, 1), (0, 0)]);
        let at = |ms| Verdict::Staging(Some(ms));
        assert_eq!(plan.verdicts, [at(7_500), at(6_500), at(4_000), at(4_000)]);
    }

    #[test]
    fn a_source_is_brought_once_and_takes_room_once() {
        let jobs: Vec<Want> = (0..100).map(|at| want(Some(at), 0, &[0, 0])).collect();
        let plan = plan(&jobs, &[need(&[60], 40)], &limits(100));
        assert_eq!(plan.bring, [(0, 0)]);
        assert!(plan.verdicts.iter().all(|verdict| *verdict == Verdict::Staging(Some(7_000))));
    }

    #[test]
    fn a_large_job_is_not_passed_for_ever() {
        let jobs = [
            Want { is_admitted: true, ..want(Some(1), 0, &[0]) },
            want(Some(2), 0, &[1]),
            want(Some(3), 0, &[2]),
            want(Some(4), 0, &[0]),
            want(Some(2), 9, &[3]),
        ];
        let sources = [need(&[], 50), need(&[80], 0), need(&[10], 0), need(&[1_000], 0)];
        let plan = plan(&jobs, &sources, &limits(100));
        assert!(plan.bring.is_empty());
        assert_eq!(
            plan.verdicts,
            [
                Verdict::Ready,
                Verdict::Waits { needs: 80, left: 50 },
                Verdict::Waits { needs: 10, left: 50 },
                // It needs nothing that is not held already.
                Verdict::Ready,
                Verdict::TooLarge { needs: 1_000, room: 100 },
            ]
        );
    }

    #[test]
    fn what_was_not_counted_is_counted_first() {
        let jobs = [want(Some(2), 0, &[0, 1]), want(Some(1), 0, &[2]), want(None, 0, &[])];
        let sources = [SourceNeed::default(), need(&[5], 0), SourceNeed::default()];
        let plan = plan(&jobs, &sources, &limits(100));
        assert_eq!(plan.count, [2, 0]);
        assert_eq!(plan.verdicts, [Verdict::Counting, Verdict::Counting, Verdict::Ready]);
        assert!(plan.bring.is_empty());
    }

    #[test]
    fn what_is_under_way_is_bounded() {
        let jobs = [want(Some(1), 0, &[0]), want(Some(2), 0, &[1])];
        let sources = [need(&[40, 40, 40], 0), need(&[1], 0)];
        let limits = Limits { bytes_max: 100, ..limits(1_000) };
        let found = plan(&jobs, &sources, &limits);
        assert_eq!(found.bring, [(0, 0), (0, 1), (1, 0)]);
        // A piece that is larger than the bound is brought alone.
        let found = plan(&jobs, &sources, &Limits { bytes_max: 10, ..limits });
        assert_eq!(found.bring, [(0, 0)]);
    }

    #[test]
    fn unknown_sources_are_left_out() {
        let found = plan(&[want(None, 0, &[7])], &[], &limits(1));
        assert_eq!(found.verdicts, [Verdict::Ready]);
    }

    proptest::proptest! {
        #[test]
        fn room_and_order_hold(
            starts in proptest::collection::vec((0_u64..20, proptest::collection::vec(0_u32..8, 0..4)), 0..30),
            sizes in proptest::collection::vec(proptest::collection::vec(0_u64..50, 0..4), 8..9),
            room in 0_u64..400,
        ) {
            let jobs: Vec<Want> = starts.iter().map(|(start, sources)| want(Some(*start), 0, sources)).collect();
            let sources: Vec<SourceNeed> = sizes.iter().map(|missing| need(missing, 0)).collect();
            let found = plan(&jobs, &sources, &limits(room));
            let mut brought: Vec<u32> = found.bring.iter().map(|(source, _)| *source).collect();
            let mut pieces = found.bring.clone();
            pieces.sort_unstable();
            pieces.dedup();
            assert_eq!(pieces.len(), found.bring.len(), "a piece is brought once");
            brought.sort_unstable();
            brought.dedup();
            let held: u64 = brought.iter().map(|source| sources[*source as usize].bytes.unwrap()).sum();
            assert!(held <= room, "{held} > {room}");
            for (job, verdict) in jobs.iter().zip(&found.verdicts) {
                let own: u64 = {
                    let mut own = job.sources.clone();
                    own.sort_unstable();
                    own.dedup();
                    own.iter().map(|source| sources[*source as usize].bytes.unwrap()).sum()
                };
                assert_eq!(matches!(verdict, Verdict::TooLarge { .. }), own > room && !matches!(verdict, Verdict::Ready));
            }
        }
    }
}
