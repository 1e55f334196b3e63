//! The sum of a block: CRC-64/NVME of its digest, then its bytes. So a block that lies where another should be does not fit.

use std::ops::Range;

use crc_fast::CrcAlgorithm;
use stoker_format::crc64_combine;

use crate::digest::Digest;

/// Copied and summed at once, small enough for the first cache: reading bytes again from memory would cost as much as the copy.
const STEP: usize = 16 << 10;

fn empty() -> crc_fast::Digest {
    crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme)
}

fn begin(digest: &Digest) -> crc_fast::Digest {
    let mut sum = empty();
    sum.update(&digest.0);
    sum
}

/// A copy of a block that lies in parts, and its sum.
pub(crate) fn copied(digest: &Digest, parts: &[&[u8]]) -> (Vec<u8>, u64) {
    let mut sum = begin(digest);
    let mut copy = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for step in parts.iter().flat_map(|part| part.chunks(STEP)) {
        copy.extend_from_slice(step);
        sum.update(&copy[copy.len() - step.len()..]);
    }
    (copy, sum.finalize())
}

/// Sums a piece of a block while it is filled in. What was written to memory is summed, not what it was copied from.
pub(crate) struct Piece<'a> {
    into: &'a mut [u8],
    filled: usize,
    sum: crc_fast::Digest,
}

impl<'a> Piece<'a> {
    /// The piece in front, whose sum begins with the digest.
    pub fn first(digest: &Digest, into: &'a mut [u8]) -> Piece<'a> {
        Piece { into, filled: 0, sum: begin(digest) }
    }

    /// Another one.
    pub fn further(into: &'a mut [u8]) -> Piece<'a> {
        Piece { into, filled: 0, sum: empty() }
    }

    /// Bytes that lack.
    pub fn lacks(&self) -> usize {
        self.into.len() - self.filled
    }

    /// Bytes that are there.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Takes bytes in, as many as lack.
    pub fn fill(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.lacks())];
        for step in bytes.chunks(STEP) {
            let to = &mut self.into[self.filled..self.filled + step.len()];
            to.copy_from_slice(step);
            self.sum.update(to);
            self.filled += step.len();
        }
    }

    /// The memory that lacks bytes.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.into[self.filled..]
    }

    /// Takes in bytes that lie in [`Self::room`] already.
    pub fn took(&mut self, found: Range<usize>) {
        let room = &mut self.into[self.filled..];
        let len = found.len();
        if found.start > 0 {
            room.copy_within(found, 0);
        }
        self.sum.update(&room[..len]);
        self.filled += len;
    }

    /// Its sum and length.
    pub fn end(self) -> (u64, u64) {
        (self.sum.finalize(), self.filled as u64)
    }
}

/// The sum of a block, from those of its pieces in order.
pub(crate) fn of_pieces(pieces: &[(u64, u64)]) -> u64 {
    let Some(((first, _), rest)) = pieces.split_first() else { return 0 };
    rest.iter().fold(*first, |sum, (piece, len)| crc64_combine(sum, *piece, *len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_sum_up_to_the_whole() {
        let (digest, bytes): (_, Vec<u8>) =
            (Digest([7; 16]), (0..100_000u32).map(|n| ((n * 31) >> 3) as u8).collect());
        let (copy, whole) = copied(&digest, &[&bytes]);
        assert_eq!(copy, bytes);
        assert_eq!(copied(&digest, &[&bytes[..5], &[], &bytes[5..]]), (copy, whole));
        for cut in [1, 16 << 10, 50_001, 99_999] {
            let mut into = vec![0; bytes.len()];
            let (front, back) = into.split_at_mut(cut);
            let (mut front, mut back) = (Piece::first(&digest, front), Piece::further(back));
            front.fill(&bytes[..cut]);
            back.fill(&bytes[cut..cut + 1]);
            let rest = &bytes[cut + 1..];
            // Read to a place behind the one where it belongs, as a piece that begins inside of a block is.
            let skip = rest.len().min(3);
            back.room()[..rest.len() - skip].copy_from_slice(&rest[..rest.len() - skip]);
            back.took(0..rest.len() - skip);
            back.fill(&rest[rest.len() - skip..]);
            assert_eq!((front.lacks(), back.lacks()), (0, 0));
            assert_eq!(of_pieces(&[front.end(), back.end()]), whole);
            assert_eq!(into, bytes);
        }
        let mut into = vec![0; bytes.len()];
        let mut piece = Piece::first(&digest, &mut into);
        piece.room()[3..503].copy_from_slice(&bytes[..500]);
        piece.took(3..503);
        piece.fill(&bytes[500..]);
        assert_eq!((piece.end().0, into), (whole, bytes.clone()));
        assert_ne!(copied(&Digest([8; 16]), &[&bytes]).1, whole);
    }
}
