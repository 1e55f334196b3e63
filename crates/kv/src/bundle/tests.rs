//! Bytes of bundles: one drawn by hand, round trips, and whatever else a file may hold.

use proptest::prelude::*;

use super::*;

fn record(name: u8, offset: u64, len: u32) -> Record {
    Record { digest: Digest([name; 16]), offset, len, sum: 0x1122, written_ms: 5, expires_ms: NEVER }
}

fn decode(file: &[u8]) -> Result<(Trailer, Vec<Record>), Fault> {
    let trailer = decode_trailer(file, file.len() as u64)?;
    let index = &file[trailer.index_at as usize..][..trailer.index_len()];
    trailer.decode_index(index).map(|records| (trailer, records))
}

/// A file with these blocks, whose bytes do not matter here.
fn file(records: &[Record], index_at: u64) -> Vec<u8> {
    let mut file = vec![0; index_at as usize];
    file.extend(encode_tail(records, index_at, 77));
    file
}

/// With sums that hold again after a change.
fn resummed(mut file: Vec<u8>) -> Vec<u8> {
    let at = file.len() - TRAILER_LEN;
    let index_at = usize::try_from(u64_at(&file, at + 16)).unwrap_or(usize::MAX);
    if let Some(index) = file.get(index_at..at) {
        let sum = crc64(index).to_le_bytes();
        file[at + 32..at + 40].copy_from_slice(&sum);
    }
    let sum = crc64(&file[at..at + 56]).to_le_bytes();
    file[at + 56..].copy_from_slice(&sum);
    file
}

#[test]
fn the_bytes_are_those_of_the_page() {
    let tail = encode_tail(&[record(0xab, 4096, 1000)], 8192, 0x0102);
    let mut expect = vec![0xab; 16];
    expect.extend(4096u64.to_le_bytes());
    expect.extend(1000u32.to_le_bytes());
    expect.extend([0; 4]);
    expect.extend(0x1122u64.to_le_bytes());
    expect.extend(5u64.to_le_bytes());
    expect.extend([0xff; 8]);
    let index_sum = crc64(&expect);
    expect.extend(b"STKRKVBN");
    expect.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    expect.extend(8192u64.to_le_bytes());
    expect.extend(1u64.to_le_bytes());
    expect.extend(index_sum.to_le_bytes());
    expect.extend(0x0102u64.to_le_bytes());
    expect.extend((8192u64 + 56 + 64).to_le_bytes());
    let sum = crc64(&expect[56..]);
    expect.extend(sum.to_le_bytes());
    assert_eq!(tail, expect);
}

#[test]
fn claims_that_cannot_be_true_are_refused() {
    let good = file(&[record(1, 0, 4096), record(2, 4096, 1)], 8192);
    assert!(decode(&good).is_ok());
    let at = good.len() - TRAILER_LEN;
    let with = |place: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[place..place + bytes.len()].copy_from_slice(bytes);
        decode(&resummed(file)).unwrap_err()
    };
    for count in [0, 1, 3, 1 << 20, u64::MAX / 56, u64::MAX] {
        assert!(matches!(with(at + 24, &count.to_le_bytes()), Fault::Damaged(_)), "{count} blocks");
    }
    for index_at in [0, 4096, 8191, 1 << 40, u64::MAX - 4095] {
        assert!(matches!(with(at + 16, &index_at.to_le_bytes()), Fault::Damaged(_)), "index at {index_at}");
    }
    for offset in [1, 8192, 4096 * 1000, u64::MAX - 4095] {
        assert!(matches!(with(8192 + 16, &offset.to_le_bytes()), Fault::Damaged(_)), "block at {offset}");
    }
    for len in [0, 4097, u32::MAX] {
        assert!(matches!(with(8192 + 24, &len.to_le_bytes()), Fault::Damaged(_)), "{len} bytes");
    }
    assert_eq!(with(at + 8, &[2]), Fault::TooNew(2));
    assert_eq!(with(at + 12, &[1]), Fault::TooNew(1));
    assert!(matches!(decode_trailer(&good[at..], BUNDLE_LEN_MAX + 1), Err(Fault::Damaged(_))));
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(lens in prop::collection::vec((1u32..20_000, any::<u64>(), any::<u64>()), 0..40)) {
        let mut offset = 0;
        let mut records = Vec::new();
        for (number, (len, sum, expires_ms)) in lens.into_iter().enumerate() {
            records.push(Record { sum, expires_ms, ..record(number as u8, offset, len) });
            offset += block_span(u64::from(len));
        }
        let file = file(&records, offset);
        if records.is_empty() {
            prop_assert_eq!(decode(&file).map(|(_, records)| records), Ok(records));
        } else {
            let (trailer, decoded) = decode(&file).unwrap();
            prop_assert_eq!((trailer.index_at, trailer.written_ms, decoded), (offset, 77, records));
        }
    }

    #[test]
    fn every_changed_byte_of_the_tail_shows(at in 0usize..(2 * RECORD_LEN + TRAILER_LEN), by in 1u8..) {
        let mut file = file(&[record(1, 0, 5000), record(2, 8192, 1)], 12_288);
        let start = file.len() - 2 * RECORD_LEN - TRAILER_LEN;
        file[start + at] ^= by;
        prop_assert!(decode(&file).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), size in any::<u64>()) {
        let _ = decode_trailer(&bytes, size);
        if bytes.len() >= TRAILER_LEN {
            let mut file = bytes.clone();
            let at = file.len() - TRAILER_LEN;
            file[at..at + 8].copy_from_slice(MAGIC);
            file[at + 8..at + 16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
            let file = resummed(file);
            let _ = decode_trailer(&file, file.len() as u64).map(|trailer| trailer.decode_index(&bytes));
        }
    }

    #[test]
    fn a_cut_file_is_no_bundle(cut in 1usize..12_288) {
        let file = file(&[record(1, 0, 5000), record(2, 8192, 1)], 12_288);
        let cut = file.len().saturating_sub(cut);
        prop_assert!(decode(&file[..cut]).is_err());
    }
}
