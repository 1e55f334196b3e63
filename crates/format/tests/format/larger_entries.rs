//! A later release may append to footer entries; this one reads what it knows.

use crate::{reseal, sample};
use stoker_format::*;

/// A footer of a release whose entries have `extra` more bytes.
fn encode_larger(entries: &[FooterEntry], extra: usize) -> (Vec<u8>, Vec<u8>) {
    let own = encode_footer(&sample::footer(), entries);
    let mut index = Vec::new();
    for entry in own[..entries.len() * FOOTER_ENTRY_LEN].chunks(FOOTER_ENTRY_LEN) {
        index.extend_from_slice(entry);
        index.extend((0..extra).map(|i| 0x40 + i as u8));
    }
    let mut trailer = own[own.len() - BLOCK..].to_vec();
    trailer[10..12].copy_from_slice(&((FOOTER_ENTRY_LEN + extra) as u16).to_le_bytes());
    trailer[88..96].copy_from_slice(&crc64_seeded(sample::NONCE, &[&index]).to_le_bytes());
    reseal::block(&mut trailer);
    index.resize(index.len().next_multiple_of(BLOCK), 0);
    (index, trailer)
}

#[test]
fn the_known_part_of_larger_entries_is_read() {
    for extra in [0, 8, 64, 192] {
        let (index, trailer) = encode_larger(&sample::entries(), extra);
        let footer = Footer::decode(&trailer).unwrap();
        assert_eq!(footer.decode_entries(&index).unwrap(), sample::entries(), "{extra} more bytes");
    }
}

#[test]
fn an_impossible_entry_size_is_refused() {
    for size in [0_u16, 8, 63, 65, 264, u16::MAX] {
        let (_, mut trailer) = encode_larger(&sample::entries(), 0);
        trailer[10..12].copy_from_slice(&size.to_le_bytes());
        reseal::block(&mut trailer);
        assert!(matches!(Footer::decode(&trailer), Err(FormatError::Corrupt(_))), "{size}");
    }
}

#[test]
fn a_count_beyond_the_bytes_is_short_and_not_an_allocation() {
    let footer = Footer { entry_count: u32::MAX, ..sample::footer() };
    let need = u32::MAX as usize * FOOTER_ENTRY_LEN;
    assert_eq!(footer.decode_entries(&[0; 64]), Err(FormatError::Short { need, have: 64 }));
}

#[test]
fn entries_of_another_generation_or_kind_are_refused() {
    let bytes = encode_footer(&sample::footer(), &sample::entries());
    let other_nonce = Footer { nonce: 1, ..sample::footer() };
    assert!(matches!(other_nonce.decode_entries(&bytes), Err(FormatError::Corrupt(_))));

    let mut bytes = bytes;
    bytes[48] = 9;
    let crc = crc64_seeded(sample::NONCE, &[&bytes[..2 * FOOTER_ENTRY_LEN]]);
    let resealed = Footer { entries_crc: crc, ..sample::footer() };
    assert!(matches!(resealed.decode_entries(&bytes), Err(FormatError::Corrupt(_))));
}

#[test]
fn spans_are_whole_blocks_and_a_trailer() {
    for (entries, blocks) in [(0, 1), (1, 2), (64, 2), (65, 3)] {
        assert_eq!(footer_span(entries), blocks * BLOCK, "{entries} entries");
        let footer = encode_footer(&sample::footer(), &vec![sample::entries()[0]; entries]);
        assert_eq!(footer.len(), footer_span(entries));
    }
}
