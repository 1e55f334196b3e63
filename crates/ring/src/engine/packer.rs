//! Lays records out: a large one as header blocks and payload, small ones together in shared blocks. (D2)
//!
//! A batch holds all headers first, then payloads of odd length on the grain, then payloads of whole blocks on block
//! boundaries, so that those can be read in place. It starts and ends on a block: a block that holds an acknowledged
//! byte is never written again.

use stoker_format::{BLOCK, FOOTER_ENTRY_LEN, GRAIN, header_len, header_span};

use crate::buffer::blocks_up;

/// Where one record of a batch lies, relative to the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// Start of the header.
    pub header: usize,
    /// Start of the payload.
    pub payload: usize,
}

/// Layout of a batch, given by payload lengths and aux bytes per block: a spot each, and the whole length.
pub fn lay_out(lens: &[(usize, u8)]) -> (Vec<Spot>, usize) {
    let mut spots = Vec::with_capacity(lens.len());
    let mut at = 0;
    for &(len, aux) in lens {
        spots.push(Spot { header: at, payload: 0 });
        at += header_span(len, aux);
    }
    let lens = || lens.iter().map(|(len, _)| *len);
    for (spot, len) in spots.iter_mut().zip(lens()).filter(|(_, len)| !len.is_multiple_of(BLOCK)) {
        spot.payload = at;
        at = (at + len).next_multiple_of(GRAIN);
    }
    at = blocks_up(at);
    for (spot, len) in spots.iter_mut().zip(lens()).filter(|(_, len)| len.is_multiple_of(BLOCK)) {
        spot.payload = at;
        at += len;
    }
    (spots, blocks_up(at))
}

/// Layout of a large record: header blocks, then payload blocks.
pub fn lay_out_large(len: usize, aux: u8) -> (usize, usize) {
    let head = blocks_up(header_len(len, aux));
    (head, head + blocks_up(len))
}

/// Drive bytes that a record accounts for, its footer line included and its share of batch padding not.
pub fn record_span(len: usize, aux: u8, small_max: usize) -> usize {
    if len > small_max {
        lay_out_large(len, aux).1 + FOOTER_ENTRY_LEN
    } else {
        header_span(len, aux) + len.next_multiple_of(GRAIN) + FOOTER_ENTRY_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn spots_never_overlap(lens in prop::collection::vec((1usize..70_000, prop_oneof![Just(0u8), Just(16u8)]), 1..40)) {
            let (spots, total) = lay_out(&lens);
            let mut ranges: Vec<(usize, usize)> = Vec::new();
            for (spot, &(len, aux)) in spots.iter().zip(&lens) {
                prop_assert!(spot.header % GRAIN == 0 && spot.payload % GRAIN == 0);
                prop_assert!(!len.is_multiple_of(BLOCK) || spot.payload.is_multiple_of(BLOCK));
                ranges.push((spot.header, spot.header + header_span(len, aux)));
                ranges.push((spot.payload, spot.payload + len));
            }
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
            prop_assert!(ranges.last().unwrap().1 <= total && total.is_multiple_of(BLOCK));
            let spans: usize = lens.iter().map(|&(len, aux)| header_span(len, aux) + len.next_multiple_of(GRAIN)).sum();
            prop_assert!(total <= spans + 2 * BLOCK, "padding of a batch is under two blocks");
        }
    }

    #[test]
    fn a_tiny_record_needs_one_block_and_a_block_needs_two() {
        assert_eq!(lay_out(&[(512, 0)]).1, BLOCK);
        assert_eq!(lay_out(&[(BLOCK, 0)]).1, 2 * BLOCK);
        assert_eq!(lay_out_large(4 << 20, 0), (2 * BLOCK, (4 << 20) + 2 * BLOCK));
        assert_eq!(lay_out_large(4 << 20, 16), (6 * BLOCK, (4 << 20) + 6 * BLOCK));
    }
}
