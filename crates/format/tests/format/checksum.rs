//! Checksums against their published check values and against the bytes they stand for.

use proptest::prelude::*;
use stoker_format::*;

#[test]
fn check_values_of_the_algorithms() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
    assert_eq!(crc32c(b""), 0);
}

#[test]
fn zeros_are_summed_without_reading_them() {
    for len in [0u64, 1, 2, 3, 7, 4096, 4097, 1 << 20, (1 << 20) + 12_345] {
        assert_eq!(crc64_zeros(len), crc64(&vec![0; len as usize]), "{len}");
    }
    let tib = crc64_zeros(1 << 40);
    assert_eq!(crc64_combine(tib, crc64_zeros(5), 5), crc64_zeros((1 << 40) + 5));
    assert_ne!(crc64_zeros(u64::MAX), crc64_zeros(u64::MAX - 1));
}

#[test]
fn a_seeded_crc_is_that_of_nonce_and_parts_end_to_end() {
    let nonce = 0x0102_0304_0506_0708_u64;
    let whole = [&nonce.to_le_bytes()[..], b"first", b"second"].concat();
    assert_eq!(crc64_seeded(nonce, &[b"first", b"", b"second"]), crc64(&whole));
    assert_ne!(crc64_seeded(nonce, &[b"first"]), crc64_seeded(nonce + 1, &[b"first"]));
}

#[test]
fn a_table_stands_for_its_payload_around_block_edges() {
    let payload: Vec<u8> = (0..17 * BLOCK + 5).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let near = |edge: usize| edge.saturating_sub(2)..=edge + 2;
    for len in [0, BLOCK, 2 * BLOCK, 3 * BLOCK, 16 * BLOCK, 17 * BLOCK].into_iter().flat_map(near) {
        let table = block_table(&payload[..len]);
        assert_eq!(table.len(), block_count(len));
        assert_eq!(table_crc(&table, len), crc32c(&payload[..len]), "{len} bytes");
    }
}

#[test]
fn a_table_stands_for_the_largest_payload() {
    let payload: Vec<u8> = (0..RECORD_LEN_MAX).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    assert_eq!(table_crc(&block_table(&payload), payload.len()), crc32c(&payload));
}

#[test]
#[should_panic(expected = "does not fit")]
fn a_table_of_another_length_is_a_bug() {
    table_crc(&[1, 2], BLOCK);
}

proptest! {
    #[test]
    fn combined_is_the_crc_of_both(bytes in proptest::collection::vec(any::<u8>(), 0..600), cut: prop::sample::Index) {
        let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
        prop_assert_eq!(crc32c_combine(crc32c(first), crc32c(second), second.len() as u64), crc32c(&bytes));
        prop_assert_eq!(crc64_combine(crc64(first), crc64(second), second.len() as u64), crc64(&bytes));
    }

    #[test]
    fn combined_over_any_length_agrees_with_the_library(first: u32, second: u32, len: u64) {
        let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
        let expected = crc_fast::checksum_combine(algorithm, first.into(), second.into(), len);
        prop_assert_eq!(u64::from(crc32c_combine(first, second, len)), expected);
    }

    #[test]
    fn long_ones_too(first: u64, second: u64, len: u64) {
        let algorithm = crc_fast::CrcAlgorithm::Crc64Nvme;
        let expected = crc_fast::checksum_combine(algorithm, first, second, len);
        prop_assert_eq!(crc64_combine(first, second, len), expected);
    }
}
