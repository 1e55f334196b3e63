//! Which bytes go where, in what order, and in which pieces they are read.

use crate::error::GpuError;

/// Gaps up to this are read over: one long read costs less than two.
const GAP_MAX: u64 = 256 << 10;

/// A range of a file and the memory that it belongs into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Which file, as the source counts them.
    pub file: usize,
    /// Where it begins there.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
    /// Address on the device.
    pub to: u64,
}

impl Segment {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// A part of a file that is read at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub file: usize,
    pub offset: u64,
    pub len: usize,
    /// The first segment that has bytes of it.
    pub first: usize,
}

/// All ranges of a load.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(crate) segments: Vec<Segment>,
    pub(crate) pieces: Vec<Piece>,
}

impl Plan {
    /// Puts segments in the order of their files and cuts them into pieces that end at multiples of `piece`.
    pub fn new(mut segments: Vec<Segment>, piece: usize) -> Result<Plan, GpuError> {
        let piece = (piece as u64).max(1);
        segments.retain(|segment| segment.len > 0);
        segments.sort_unstable_by_key(|segment| (segment.file, segment.offset));
        for segment in &segments {
            let fits = |start: u64| start.checked_add(segment.len).is_some_and(|end| end < u64::MAX - piece);
            if !fits(segment.offset) || !fits(segment.to) {
                return Err(GpuError::Invalid(format!(
                    "{} bytes at {} are no range",
                    segment.len, segment.offset
                )));
            }
        }
        if let Some(pair) =
            segments.windows(2).find(|two| two[0].file == two[1].file && two[1].offset < two[0].end())
        {
            return Err(GpuError::Invalid(format!("two ranges of a file share bytes at {}", pair[1].offset)));
        }
        let mut pieces = Vec::new();
        let mut index = 0;
        while index < segments.len() {
            let first = segments[index];
            let (mut at, mut end, mut run_end) = (first.offset, first.end(), index + 1);
            while let Some(next) = segments.get(run_end)
                && next.file == first.file
                && next.offset - end <= GAP_MAX
            {
                end = next.end();
                run_end += 1;
            }
            while at < end {
                let stop = (at / piece + 1).saturating_mul(piece).min(end);
                while segments[index].end() <= at {
                    index += 1;
                }
                pieces.push(Piece { file: first.file, offset: at, len: (stop - at) as usize, first: index });
                at = stop;
            }
            index = run_end;
        }
        Ok(Plan { segments, pieces })
    }

    /// Bytes that will be copied.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(segments: &[(usize, u64, u64)], piece: usize) -> Vec<(usize, u64, usize, usize)> {
        let segment = |&(file, offset, len)| Segment { file, offset, len, to: 0 };
        let plan = Plan::new(segments.iter().map(segment).collect(), piece).unwrap();
        plan.pieces.iter().map(|one| (one.file, one.offset, one.len, one.first)).collect()
    }

    #[test]
    fn pieces_end_at_multiples_and_gaps_are_read_over() {
        assert_eq!(pieces(&[], 10), []);
        assert_eq!(pieces(&[(0, 5, 0)], 10), []);
        assert_eq!(pieces(&[(0, 5, 20)], 10), [(0, 5, 5, 0), (0, 10, 10, 0), (0, 20, 5, 0)]);
        assert_eq!(
            pieces(&[(1, 4, 3), (0, 0, 2), (0, 3, 9)], 10),
            [(0, 0, 10, 0), (0, 10, 2, 1), (1, 4, 3, 2)]
        );
        let far = GAP_MAX + 10;
        assert_eq!(pieces(&[(0, 0, 2), (0, far, 1)], 1 << 20), [(0, 0, 2, 0), (0, far, 1, 1)]);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let one = Segment { file: 0, offset: 0, len: 5, to: 0 };
        let refused = |segments: &[Segment]| Plan::new(segments.to_vec(), 10).is_err();
        assert!(refused(&[one, Segment { offset: 4, ..one }]));
        assert!(refused(&[Segment { offset: u64::MAX - 4, ..one }]));
        assert!(refused(&[Segment { to: u64::MAX - 4, ..one }]));
        assert!(!refused(&[one, Segment { file: 1, ..one }]));
    }
}
