//! Text and byte forms of ids.

use proptest::prelude::*;
use stoker_format::*;

#[test]
fn ids_have_one_spelling() {
    let ring = RingId(std::array::from_fn(|i| 0xf0 | i as u8));
    assert_eq!(ring.to_string(), "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
    assert_eq!(ring.to_string().parse(), Ok(ring));
    assert_eq!(format!("{ring:?}"), format!("RingId({ring})"));
    for text in ["", "f0", "F0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF", "g0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", "ä"] {
        assert!(text.parse::<RingId>().is_err(), "{text}");
    }
    assert!(RingId::ZERO.is_zero() && !ring.is_zero());
}

#[test]
fn numbers_have_one_spelling() {
    assert_eq!("17".parse(), Ok(SegmentId(17)));
    assert_eq!("0".parse(), Ok(Generation(0)));
    assert_eq!(format!("{:08} {:?}", SegmentId(17), Seq(3)), "00000017 Seq(3)");
    for text in ["", "+1", "-1", "01", "00", "1 ", "4294967296"] {
        assert!(text.parse::<VolumeId>().is_err(), "{text}");
    }
}

#[test]
fn chunk_ids_have_one_spelling() {
    let chunk = ChunkId::new(VersionId([0xab; 12]), 42);
    assert_eq!(chunk.to_string(), "abababababababababababab.42");
    assert_eq!(chunk.to_string().parse(), Ok(chunk));
    for text in ["", ".", "abababababababababababab", "abababababababababababab.", "ab.42"] {
        let error = text.parse::<ChunkId>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "not an id: expected 24 lower-case hex digits, a dot and a decimal number"
        );
    }
}

proptest! {
    #[test]
    fn chunk_ids_survive_and_sort_as_bytes_and_text(a: [u8; 16], b: [u8; 16], same_version: bool) {
        let mut b = b;
        if same_version {
            b[..12].copy_from_slice(&a[..12]);
        }
        let (x, y) = (ChunkId::from_bytes(a), ChunkId::from_bytes(b));
        prop_assert_eq!(x.to_bytes(), a);
        prop_assert_eq!(x.to_string().parse(), Ok(x));
        prop_assert_eq!(x.cmp(&y), a.cmp(&b));
    }
}
