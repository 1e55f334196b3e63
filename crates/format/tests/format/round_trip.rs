//! What was written is what is read.

use crate::{sample, strategy};
use proptest::prelude::*;
use stoker_format::*;

proptest! {
    #[test]
    fn record(record in strategy::record()) {
        let mut bytes = strategy::encode(&record);
        bytes.extend_from_slice(b"the next record");
        prop_assert_eq!(RecordHeader::decode(&bytes, &sample::place()), Ok(record));
    }

    #[test]
    fn dead(deaths in strategy::deaths()) {
        let bytes = encode_deaths(&deaths);
        prop_assert_eq!(bytes.len(), deaths.len() * DEATH_LEN);
        prop_assert_eq!(decode_deaths(&bytes), Ok(deaths));
    }

    #[test]
    fn segment(segment in strategy::segment()) {
        prop_assert_eq!(SegmentHeader::decode(&segment.encode()), Ok(segment));
    }

    #[test]
    fn footer((footer, entries) in strategy::footer()) {
        let bytes = encode_footer(&footer, &entries);
        prop_assert_eq!(bytes.len(), footer_span(entries.len()));
        let decoded = Footer::decode(&bytes[bytes.len() - BLOCK..]).unwrap();
        let expected = Footer {
            entry_size: 64,
            entry_count: entries.len() as u32,
            entries_crc: decoded.entries_crc,
            ..footer
        };
        prop_assert_eq!(decoded, expected);
        prop_assert_eq!(decoded.decode_entries(&bytes), Ok(entries.clone()));
        prop_assert_eq!(decoded.decode_entries(&bytes[..entries.len() * FOOTER_ENTRY_LEN]), Ok(entries));
    }

    #[test]
    fn superblock(superblock in strategy::superblock()) {
        prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
    }

    #[test]
    fn name(name in strategy::name()) {
        let bytes = name.encode();
        prop_assert_eq!(bytes.len(), name.encoded_len());
        prop_assert_eq!(NameRecord::decode(&bytes), Ok(name));
    }
}
