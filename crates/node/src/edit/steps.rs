//! From the pieces of an edit to what is done for them, in the order of the file. Pure.

use stoker_format::ChunkRun;
use stoker_store::{EDIT_PIECES_MAX, ErrorKind, Piece, Result, StoreError, Subject};

use crate::part_copy::cut;

/// What is kept and not longer than this is copied: a run of its own costs more.
const COPY_BELOW: u64 = 64 << 10;

/// Runs shorter than this are small.
const SMALL: u64 = 256 << 10;

/// Zeros that are at least this many are a hole. Fewer are written: they cost less than a run of their own.
pub(crate) const HOLE_MIN: u64 = 64 << 10;

/// So many small runs beside one another are copied together.
const SMALL_RUNS_MAX: usize = 16;

/// Most bytes of a file.
const SIZE_MAX: u64 = 50 << 40;

/// What an edit does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Writes so many bytes of those that come.
    Take(u64),
    /// Writes all that come.
    Rest,
    /// Writes zeros.
    Zero(u64),
    /// Goes on with zeros that are stored nowhere.
    Hole(u64),
    /// Reads bytes of the base and writes them.
    Copy { start: u64, len: u64 },
    /// Goes on with chunks of the base, which start there.
    Refer { start: u64, run: ChunkRun },
}

impl Step {
    fn len(&self) -> u64 {
        match self {
            Step::Take(len) | Step::Zero(len) | Step::Hole(len) | Step::Copy { len, .. } => *len,
            Step::Rest => 0,
            Step::Refer { run, .. } => run.byte_len(),
        }
    }
}

fn invalid(message: &str) -> StoreError {
    StoreError::about(ErrorKind::Invalid, Subject::Size, message)
}

/// The steps of an edit of a file that has these chunks.
pub(crate) fn steps(runs: &[ChunkRun], size: u64, pieces: &[Piece]) -> Result<Vec<Step>> {
    if pieces.len() > EDIT_PIECES_MAX {
        return Err(invalid("an edit of too many pieces"));
    }
    let mut steps = Vec::new();
    let mut total = 0u64;
    for (at, piece) in joined(pieces).iter().enumerate() {
        let len = match *piece {
            Piece::Keep { start, end } if start > end || end > size => {
                return Err(invalid("an edit keeps what the file does not have"));
            }
            Piece::Keep { start, end } => {
                keep(&mut steps, runs, start, end);
                end - start
            }
            Piece::Take(len) => {
                steps.push(Step::Take(len));
                len
            }
            Piece::Zero(len) => {
                zeros(&mut steps, len);
                len
            }
            Piece::Rest if at + 1 == joined(pieces).len() => {
                steps.push(Step::Rest);
                0
            }
            Piece::Rest => return Err(invalid("only the last piece of an edit can be of any length")),
        };
        total = total
            .checked_add(len)
            .filter(|total| *total <= SIZE_MAX)
            .ok_or_else(|| invalid("the file would be longer than a file can be"))?;
    }
    steps.retain(|step| *step == Step::Rest || step.len() > 0);
    for step in &mut steps {
        // Only now that neighbours are one.
        if let Step::Zero(len) = *step
            && len >= HOLE_MIN
        {
            *step = Step::Hole(len);
        }
    }
    gather(&mut steps);
    Ok(steps)
}

/// Adds zeros, together with those in front of them.
fn zeros(steps: &mut Vec<Step>, len: u64) {
    match steps.last_mut() {
        Some(Step::Zero(before)) => *before = before.saturating_add(len),
        _ => steps.push(Step::Zero(len)),
    }
}

/// The same pieces, with neighbours in the base in one.
fn joined(pieces: &[Piece]) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match (all.last_mut(), piece) {
            (Some(Piece::Keep { end, .. }), Piece::Keep { start, end: more }) if end == start => *end = *more,
            _ => all.push(*piece),
        }
    }
    all
}

fn keep(steps: &mut Vec<Step>, runs: &[ChunkRun], start: u64, end: u64) {
    let has_hole = || runs.iter().any(|run| run.is_hole() && run.file_offset < end && run.end() > start);
    if end - start <= COPY_BELOW && !has_hole() {
        return steps.push(Step::Copy { start, len: end - start });
    }
    let (head, kept) = cut(runs, start, end);
    if head > 0 {
        steps.push(Step::Copy { start, len: head });
    }
    let mut at = start + head;
    for run in kept {
        match run.is_hole() {
            true => zeros(steps, run.byte_len()),
            false => steps.push(Step::Refer { start: at, run }),
        }
        at += run.byte_len();
    }
}

/// Copies small runs that stand close together, and fills small holes between them, so that a file that is changed all over
/// does not fall to pieces.
fn gather(steps: &mut [Step]) {
    let mut from = 0;
    while from < steps.len() {
        let is_small = |step: &Step| *step != Step::Rest && step.len() < SMALL;
        let count = steps[from..].iter().take_while(|step| is_small(step)).count();
        let near = &mut steps[from..from + count];
        let is_run = |step: &&Step| matches!(step, Step::Refer { .. } | Step::Hole(_));
        if near.iter().filter(is_run).count() > SMALL_RUNS_MAX {
            for step in near {
                match *step {
                    Step::Refer { start, run } => *step = Step::Copy { start, len: run.byte_len() },
                    Step::Hole(len) => *step = Step::Zero(len),
                    _ => {}
                }
            }
        }
        from += count + 1;
    }
}

/// Chunks that one layout has and another has not.
pub(crate) fn dropped(old: &[ChunkRun], new: &[ChunkRun]) -> Vec<ChunkRun> {
    let chunks = new.iter().filter(|run| !run.is_hole());
    let mut kept: Vec<(stoker_format::VersionId, u32, u32)> =
        chunks.map(|run| (run.version, run.first_index, run.first_index + run.count)).collect();
    kept.sort_unstable();
    let mut gone = Vec::new();
    for run in old.iter().filter(|run| !run.is_hole()) {
        let end = run.first_index + run.count;
        let mut from = run.first_index;
        let first = kept.partition_point(|(version, ..)| *version < run.version);
        for (version, start, stop) in &kept[first..] {
            if *version != run.version || *start >= end {
                break;
            }
            if *start > from {
                gone.push(part(run, from, *start));
            }
            from = from.max(*stop);
        }
        if from < end {
            gone.push(part(run, from, end));
        }
    }
    gone
}

fn part(run: &ChunkRun, first: u32, end: u32) -> ChunkRun {
    let is_last = end == run.first_index + run.count;
    ChunkRun {
        first_index: first,
        count: end - first,
        last_len: if is_last { run.last_len } else { run.chunk_len },
        ..*run
    }
}

#[cfg(test)]
mod tests {
    use stoker_format::VersionId;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn run(
        version: u8,
        file_offset: u64,
        first_index: u32,
        count: u32,
        chunk_len: u32,
        last_len: u32,
    ) -> ChunkRun {
        ChunkRun { file_offset, version: VersionId([version; 12]), first_index, count, chunk_len, last_len }
    }

    #[test]
    fn a_change_in_the_middle_copies_to_the_next_chunk() {
        let chunk = 4 * MIB;
        let runs = [run(1, 0, 0, 3, chunk as u32, chunk as u32)];
        let at = chunk + 1000;
        let pieces = [
            Piece::Keep { start: 0, end: at },
            Piece::Take(10),
            Piece::Keep { start: at + 10, end: 3 * chunk },
        ];
        let found = steps(&runs, 3 * chunk, &pieces).unwrap();
        assert_eq!(
            found,
            [
                Step::Refer { start: 0, run: run(1, 0, 0, 2, chunk as u32, 1000) },
                Step::Take(10),
                Step::Copy { start: at + 10, len: 2 * chunk - at - 10 },
                Step::Refer {
                    start: 2 * chunk,
                    run: run(1, 2 * chunk - at - 10, 2, 1, chunk as u32, chunk as u32)
                },
            ]
        );
    }

    #[test]
    fn neighbours_are_one_and_what_is_short_is_copied() {
        let runs = [run(1, 0, 0, 1, 100, 100)];
        let pieces = [
            Piece::Keep { start: 0, end: 40 },
            Piece::Keep { start: 40, end: 90 },
            Piece::Zero(0),
            Piece::Rest,
        ];
        assert_eq!(steps(&runs, 100, &pieces).unwrap(), [Step::Copy { start: 0, len: 90 }, Step::Rest]);
    }

    #[test]
    fn many_small_runs_are_gathered() {
        let len = 100 << 10;
        let runs: Vec<ChunkRun> =
            (1..21u8).map(|at| run(at, u64::from(at - 1) * len, 0, 1, len as u32, len as u32)).collect();
        let all = [Piece::Keep { start: 0, end: 20 * len }];
        let found = steps(&runs, 20 * len, &all).unwrap();
        assert!(found.iter().all(|step| matches!(step, Step::Copy { .. })), "{found:?}");
        assert_eq!(found.iter().map(Step::len).sum::<u64>(), 20 * len);
        let some = [Piece::Keep { start: 0, end: 10 * len }];
        assert!(steps(&runs, 20 * len, &some).unwrap().iter().all(|step| matches!(step, Step::Refer { .. })));
    }

    #[test]
    fn zeros_are_holes_unless_they_are_few() {
        let tib = 1 << 40;
        let runs = [run(1, 0, 0, 1, MIB as u32, MIB as u32), ChunkRun::hole(MIB, tib)];
        let size = MIB + tib;
        let check = |pieces: &[Piece], expect: &[Step]| {
            assert_eq!(steps(&runs, size, pieces).unwrap(), expect);
        };
        let first = Step::Refer { start: 0, run: runs[0] };
        check(&[Piece::Keep { start: 0, end: size }, Piece::Zero(5)], &[first, Step::Hole(tib + 5)]);
        check(&[Piece::Zero(HOLE_MIN - 1)], &[Step::Zero(HOLE_MIN - 1)]);
        check(&[Piece::Zero(HOLE_MIN - 1), Piece::Zero(1)], &[Step::Hole(HOLE_MIN)]);
        // What is written into a hole leaves one on both sides.
        check(
            &[
                Piece::Keep { start: 0, end: tib / 2 },
                Piece::Take(4),
                Piece::Keep { start: tib / 2 + 4, end: size },
            ],
            &[first, Step::Hole(tib / 2 - MIB), Step::Take(4), Step::Hole(size - tib / 2 - 4)],
        );
        // What is left of a hole and shorter than the least is written.
        check(
            &[Piece::Keep { start: MIB - 10, end: MIB + 10 }],
            &[Step::Copy { start: MIB - 10, len: 10 }, Step::Zero(10)],
        );
        assert!(dropped(&runs, &[ChunkRun::hole(0, tib)]) == [runs[0]]);
    }

    #[test]
    fn small_holes_between_small_runs_are_filled() {
        let len = 100 << 10;
        let runs: Vec<ChunkRun> = (0..30u8)
            .map(|at| match at % 2 {
                0 => run(at + 1, u64::from(at) * len, 0, 1, len as u32, len as u32),
                _ => ChunkRun::hole(u64::from(at) * len, len),
            })
            .collect();
        let found = steps(&runs, 30 * len, &[Piece::Keep { start: 0, end: 30 * len }]).unwrap();
        assert!(found.iter().all(|step| matches!(step, Step::Copy { .. } | Step::Zero(_))), "{found:?}");
        assert_eq!(found.iter().map(Step::len).sum::<u64>(), 30 * len);
        // Between large ones they stay.
        let large = [run(1, 0, 0, 1, MIB as u32, MIB as u32), ChunkRun::hole(MIB, len)];
        let found = steps(&large, MIB + len, &[Piece::Keep { start: 0, end: MIB + len }]).unwrap();
        assert_eq!(found[1], Step::Hole(len));
    }

    #[test]
    fn nonsense_is_refused() {
        let runs = [run(1, 0, 0, 1, 100, 100)];
        for pieces in [
            vec![Piece::Keep { start: 0, end: 101 }],
            vec![Piece::Keep { start: 9, end: 3 }],
            vec![Piece::Rest, Piece::Take(1)],
            vec![Piece::Zero(u64::MAX), Piece::Zero(2)],
            vec![Piece::Take(1); EDIT_PIECES_MAX + 1],
        ] {
            assert_eq!(steps(&runs, 100, &pieces).unwrap_err().kind, ErrorKind::Invalid);
        }
    }

    #[test]
    fn what_is_not_kept_is_dropped() {
        let old = [run(1, 0, 0, 10, 4, 3), run(2, 39, 0, 1, 4, 4)];
        let check = |new: &[ChunkRun], expect: &[(u8, u32, u32, u32)]| {
            let found: Vec<_> = dropped(&old, new)
                .iter()
                .map(|run| (run.version.0[0], run.first_index, run.count, run.last_len))
                .collect();
            assert_eq!(found, expect);
        };
        check(&old, &[]);
        check(&[], &[(1, 0, 10, 3), (2, 0, 1, 4)]);
        check(
            &[run(1, 0, 2, 3, 4, 1), run(3, 0, 0, 1, 4, 4), run(1, 0, 9, 1, 4, 3)],
            &[(1, 0, 2, 4), (1, 5, 4, 4), (2, 0, 1, 4)],
        );
    }
}
