//! R1: a record is accepted at its own place only, and impossible fields are refused whatever the CRC says.

use crate::{reseal, sample};
use stoker_format::*;

fn fault(bytes: &[u8], at: &RecordPlace) -> RecordFault {
    RecordHeader::decode(bytes, at).unwrap_err()
}

/// Writes bytes over the sample record and makes its CRC hold again.
fn patched(at: usize, patch: &[u8]) -> Vec<u8> {
    let mut bytes = sample::encoded_header();
    bytes.truncate(header_len(sample::PAYLOAD.len(), 0));
    bytes[at..at + patch.len()].copy_from_slice(patch);
    reseal::record(sample::NONCE, &mut bytes);
    bytes
}

#[test]
fn a_record_of_another_place_is_refused() {
    let bytes = sample::encoded_header();
    let here = sample::place();
    let check = |at: RecordPlace, expected| assert_eq!(fault(&bytes, &at), expected);
    check(RecordPlace { ring: RingId([1; 16]), ..here }, RecordFault::Foreign);
    check(RecordPlace { generation: Generation(8), ..here }, RecordFault::Stale);
    check(RecordPlace { generation: Generation(6), ..here }, RecordFault::Stale);
    check(RecordPlace { offset: here.offset + GRAIN as u32, ..here }, RecordFault::Misplaced);
    check(RecordPlace { nonce: here.nonce ^ 1, ..here }, RecordFault::Corrupt);
    assert!(RecordHeader::decode(&bytes, &here).is_ok());
}

#[test]
fn the_most_foreign_difference_is_reported() {
    let bytes = sample::encoded_header();
    let elsewhere = RecordPlace { generation: Generation(8), offset: 0, nonce: 0, ..sample::place() };
    assert_eq!(fault(&bytes, &elsewhere), RecordFault::Stale);
    let foreign = RecordPlace { ring: RingId::ZERO, ..elsewhere };
    assert_eq!(fault(&bytes, &foreign), RecordFault::Foreign);
    let newer = patched(8, &2_u16.to_le_bytes());
    assert_eq!(fault(&newer, &foreign), RecordFault::TooNew(2));
}

#[test]
fn free_space_is_not_a_record() {
    for bytes in [[0; 4096], [0xff; 4096]] {
        assert_eq!(fault(&bytes, &sample::place()), RecordFault::NotARecord);
    }
}

#[test]
fn a_cut_off_record_says_how_much_it_needs() {
    let (header, table, aux) = sample::header_with_aux();
    let bytes = sample::encode(&header, &table, &aux);
    let need = header_len(header.len as usize, header.aux_per_block);
    assert_eq!(need, 128 + 3 * 20);
    for len in 0..128 {
        assert_eq!(fault(&bytes[..len], &sample::place()), RecordFault::Short { need: 128 });
    }
    for len in 128..need {
        assert_eq!(fault(&bytes[..len], &sample::place()), RecordFault::Short { need });
    }
    assert!(RecordHeader::decode(&bytes[..need], &sample::place()).is_ok());
}

#[test]
fn impossible_fields_are_corrupt_even_under_a_good_crc() {
    let at = sample::place();
    let past_end = at.segment_size - BLOCK as u32 - sample::PAYLOAD.len() as u32 + 1;
    for (what, offset, patch) in [
        ("version 0", 8, 0_u16.to_le_bytes().to_vec()),
        ("kind 0", 10, vec![0]),
        ("kind 4", 10, vec![4]),
        ("payload in the segment header", 44, (BLOCK as u32 - 1).to_le_bytes().to_vec()),
        ("payload in the record header", 44, (at.offset + 131).to_le_bytes().to_vec()),
        ("payload in the footer", 44, past_end.to_le_bytes().to_vec()),
        ("payload far away", 44, u32::MAX.to_le_bytes().to_vec()),
        ("payload too long", 48, (RECORD_LEN_MAX as u32 + 1).to_le_bytes().to_vec()),
        ("payload absurdly long", 48, u32::MAX.to_le_bytes().to_vec()),
    ] {
        assert_eq!(fault(&patched(offset, &patch), &at), RecordFault::Corrupt, "{what}");
    }
}

#[test]
fn the_payload_may_touch_header_and_footer() {
    let at = sample::place();
    let last = at.segment_size - BLOCK as u32 - sample::PAYLOAD.len() as u32;
    for offset in [at.offset + 132, last] {
        let bytes = patched(44, &offset.to_le_bytes());
        assert_eq!(RecordHeader::decode(&bytes, &at).unwrap().header.payload_offset, offset);
    }
}

#[test]
fn a_segment_smaller_than_a_block_holds_nothing() {
    let at = RecordPlace { segment_size: 100, ..sample::place() };
    assert_eq!(fault(&sample::encoded_header(), &at), RecordFault::Corrupt);
}

#[test]
fn reserved_bytes_and_unknown_flags_are_for_later_releases() {
    for at in [52, 93, 112, 119] {
        let record = RecordHeader::decode(&patched(at, &[0xff]), &sample::place()).unwrap();
        assert_eq!(record.header, sample::header());
    }
    let flags = RecordFlags(0x8000_0006);
    let record = RecordHeader::decode(&patched(12, &flags.0.to_le_bytes()), &sample::place()).unwrap();
    assert_eq!(record.header.flags, flags);
}

#[test]
fn an_empty_payload_has_an_empty_table() {
    let header = RecordHeader { len: 0, payload_crc: 0, ..sample::header() };
    let bytes = sample::encode(&header, &[], &[]);
    assert_eq!(bytes.len(), 128);
    assert_eq!(RecordHeader::decode(&bytes, &sample::place()).unwrap().header, header);
}

#[test]
fn the_span_is_zeroed_and_the_rest_left_alone() {
    let mut out = vec![0xee; 512];
    sample::header().encode(sample::NONCE, &block_table(sample::PAYLOAD), &[], &mut out);
    assert_eq!(header_span(sample::PAYLOAD.len(), 0), 192);
    assert_eq!(out[132..192], [0; 60]);
    assert_eq!(out[192..], [0xee; 320]);
}

#[test]
#[should_panic(expected = "one CRC per block")]
fn a_wrong_table_is_a_bug() {
    sample::encode(&sample::header(), &[1, 2], &[]);
}

#[test]
fn flags_add_and_remove() {
    let flags = RecordFlags::PINNED.with(RecordFlags::DAMAGED);
    assert!(flags.contains(RecordFlags::DAMAGED) && flags.contains(flags));
    assert!(!flags.contains(RecordFlags::PINNED.with(RecordFlags::RELOCATED)));
    assert_eq!(flags.without(RecordFlags::PINNED), RecordFlags::DAMAGED);
}
