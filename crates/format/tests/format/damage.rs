//! Foreign bytes: no decoder panics, and no changed byte under a checksum is ever accepted.

use crate::{sample, strategy};
use proptest::collection::vec;
use proptest::prelude::*;
use stoker_format::*;

/// Some bytes to change: where, and what to xor with.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    vec((any::<prop::sample::Index>(), 1..=255_u8), 1..6)
}

/// Changes at least one byte of `bytes`; two changes never cancel out.
fn changed(bytes: &[u8], changes: &[(prop::sample::Index, u8)]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for (at, xor) in changes {
        let at = at.index(bytes.len());
        out[at] = bytes[at] ^ xor;
    }
    out
}

/// Bytes of one structure behind a true magic, so that the checks behind it are reached.
fn behind(magic: &'static [u8; 8]) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        strategy::bytes(300),
        strategy::bytes(300).prop_map(move |tail| [&magic[..], &tail].concat()),
        vec(any::<u8>(), BLOCK).prop_map(move |tail| [&magic[..], &tail[8..]].concat()),
    ]
}

proptest! {
    #[test]
    fn no_decoder_panics_on_foreign_bytes(
        record in behind(b"STOKERRC"),
        segment in behind(b"STOKERSG"),
        footer in behind(b"STOKERFT"),
        superblock in behind(b"STOKERSB"),
        other in strategy::bytes(600),
        place: (u64, u32, u32),
        numbers: (u32, u64),
    ) {
        let at = RecordPlace { nonce: place.0, offset: place.1, segment_size: place.2, ..sample::place() };
        prop_assert!(RecordHeader::decode(&record, &at).is_err());
        prop_assert!(SegmentHeader::decode(&segment).is_err());
        prop_assert!(Footer::decode(&footer).is_err());
        prop_assert!(Superblock::decode(&superblock).is_err());
        prop_assert!(Superblock::newest(&superblock, &other).is_err());
        let (entry_count, entries_crc) = numbers;
        let footer = Footer { entry_count, entries_crc, ..sample::footer() };
        prop_assert!(footer.decode_entries(&other).is_err() || entry_count == 0);
        let _ = decode_deaths(&other);
        let _ = NameRecord::decode(&other);
    }

    #[test]
    fn a_header_that_agrees_with_its_place_still_needs_its_crc(
        patch in vec(any::<u8>(), 128 - 44),
        table in strategy::bytes(400),
    ) {
        let mut bytes = sample::encoded_header();
        bytes[44..128].copy_from_slice(&patch);
        bytes.truncate(128);
        bytes.extend_from_slice(&table);
        prop_assert!(RecordHeader::decode(&bytes, &sample::place()).is_err());
    }

    #[test]
    fn no_change_of_a_record_is_accepted(record in strategy::record(), changes in changes()) {
        let bytes = strategy::encode(&record);
        let len = header_len(record.header.len as usize, record.header.aux_per_block);
        let bytes = changed(&bytes[..len], &changes);
        prop_assert!(RecordHeader::decode(&bytes, &sample::place()).is_err());
    }

    #[test]
    fn no_part_of_a_record_is_accepted(record in strategy::record(), cut: prop::sample::Index) {
        let bytes = strategy::encode(&record);
        let len = header_len(record.header.len as usize, record.header.aux_per_block);
        let decoded = RecordHeader::decode(&bytes[..cut.index(len)], &sample::place());
        let is_short = matches!(decoded, Err(RecordFault::Short { .. }));
        prop_assert!(is_short);
    }

    #[test]
    fn no_change_of_a_segment_header_is_accepted(segment in strategy::segment(), changes in changes()) {
        prop_assert!(SegmentHeader::decode(&changed(&segment.encode(), &changes)).is_err());
    }

    #[test]
    fn no_change_of_a_superblock_is_accepted(superblock in strategy::superblock(), changes in changes()) {
        prop_assert!(Superblock::decode(&changed(&superblock.encode(), &changes)).is_err());
    }

    #[test]
    fn no_change_of_a_footer_is_accepted((footer, entries) in strategy::footer(), changes in changes()) {
        let bytes = encode_footer(&footer, &entries);
        let trailer = &bytes[bytes.len() - BLOCK..];
        prop_assert!(Footer::decode(&changed(trailer, &changes)).is_err());
        if !entries.is_empty() {
            let index = changed(&bytes[..entries.len() * FOOTER_ENTRY_LEN], &changes);
            prop_assert!(Footer::decode(trailer).unwrap().decode_entries(&index).is_err());
        }
    }

    #[test]
    fn no_part_of_a_block_is_accepted(
        segment in strategy::segment(),
        (footer, entries) in strategy::footer(),
        superblock in strategy::superblock(),
        have in 0..BLOCK,
    ) {
        let short = FormatError::Short { need: BLOCK, have };
        prop_assert_eq!(SegmentHeader::decode(&segment.encode()[..have]), Err(short.clone()));
        prop_assert_eq!(Superblock::decode(&superblock.encode()[..have]), Err(short.clone()));
        let footer = encode_footer(&footer, &entries);
        prop_assert_eq!(Footer::decode(&footer[footer.len() - BLOCK..][..have]), Err(short));
    }

    /// Names have no checksum of their own. What decodes must be within the limits, so that it can be written.
    #[test]
    fn a_changed_name_is_refused_or_can_be_written_again(
        name in strategy::name(),
        changes in changes(),
        cut: prop::sample::Index,
    ) {
        let bytes = name.encode();
        let mut changed = changed(&bytes, &changes);
        for bytes in [changed.clone(), { changed.truncate(cut.index(bytes.len())); changed }] {
            if let Ok(name) = NameRecord::decode(&bytes) {
                let again = name.encode();
                prop_assert_eq!(again.len(), bytes.len());
                prop_assert_eq!(NameRecord::decode(&again), Ok(name));
            }
        }
        prop_assert!(NameRecord::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn a_dead_list_is_whole_or_refused(deaths in strategy::deaths(), cut in 0..480_usize) {
        let bytes = encode_deaths(&deaths);
        let cut = cut.min(bytes.len());
        prop_assert_eq!(decode_deaths(&bytes[..cut]).is_ok(), cut % DEATH_LEN == 0);
    }
}
