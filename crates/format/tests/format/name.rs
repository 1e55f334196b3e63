//! Name records: fields of later releases, and limits.

use crate::sample;
use stoker_format::*;

fn with_fields(fields: Vec<NameField>) -> NameRecord {
    NameRecord { fields, ..sample::name() }
}

/// A record with one field, written by hand.
fn raw_field(tag: u16, flags: u16, len: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = with_fields(vec![]).encode();
    bytes[28] = 1;
    bytes.extend_from_slice(&tag.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn fields(bytes: &[u8]) -> Result<Vec<NameField>, FormatError> {
    NameRecord::decode(bytes).map(|name| name.fields)
}

#[test]
fn unknown_fields_survive_byte_for_byte() {
    let bytes = raw_field(500, 0, 5, b"later\0\0\0");
    let name = NameRecord::decode(&bytes).unwrap();
    assert_eq!(name.fields, [NameField::Unknown { tag: 500, bytes: b"later".to_vec() }]);
    assert_eq!(name.encode(), bytes);
}

#[test]
fn fields_that_must_be_understood_are_refused() {
    let too_new = |tag| Err(FormatError::TooNew { found: tag, supported: 19 });
    assert_eq!(fields(&raw_field(500, 1, 0, b"")), too_new(500));
    assert_eq!(fields(&raw_field(20, 1, 0, b"")), too_new(20));
    assert_eq!(fields(&raw_field(1, 2, 0, b"")), too_new(1), "a flag of a later release");
}

#[test]
fn the_critical_mark_of_a_known_field_changes_nothing() {
    for flags in [0, 1] {
        assert_eq!(fields(&raw_field(6, flags, 4, &[7, 0, 0, 0])), Ok(vec![NameField::Uid(7)]));
    }
}

#[test]
fn newer_layouts_and_operations_are_refused_as_new() {
    let patched = |at: usize, value: u8| {
        let mut bytes = sample::name().encode();
        bytes[at] = value;
        NameRecord::decode(&bytes)
    };
    assert_eq!(patched(0, 2), Err(FormatError::TooNew { found: 2, supported: NAME_VERSION }));
    assert_eq!(patched(2, 11), Err(FormatError::TooNew { found: 11, supported: 10 }));
    assert!(matches!(patched(0, 0), Err(FormatError::Corrupt(_))));
    assert!(matches!(patched(2, 0), Err(FormatError::Corrupt(_))));
    assert!(patched(3, 0xff).is_ok(), "a reserved byte");
}

#[test]
fn malformed_fields_are_refused() {
    for (what, bytes) in [
        ("tag 0", raw_field(0, 0, 0, b"")),
        ("number too short", raw_field(3, 0, 4, &[0; 4])),
        ("number too long", raw_field(5, 0, 8, &[0; 8])),
        ("pair without a length", raw_field(10, 0, 3, &[0; 4])),
        ("pair longer than its field", raw_field(10, 0, 8, &[5, 0, 0, 0, 1, 2, 3, 4])),
        ("half a run", raw_field(13, 0, 40, &[0; 40])),
        ("empty checksum", raw_field(17, 0, 0, b"")),
        ("short set", raw_field(18, 0, 12, &[0; 12])),
        ("padding not zero", raw_field(1, 0, 1, b"k\0\0\x01")),
        ("bytes behind the last field", raw_field(1, 0, 1, b"k\0\0\0more")),
    ] {
        assert!(matches!(fields(&bytes), Err(FormatError::Corrupt(_))), "{what}: {:?}", fields(&bytes));
    }
    assert!(matches!(fields(&raw_field(1, 0, 5, b"key\0")), Err(FormatError::Short { need: 16, have: 12 })));
    assert!(matches!(fields(&raw_field(1, 0, u32::MAX, b"")), Err(FormatError::Short { .. })));
}

#[test]
fn runs_that_overflow_are_refused_both_ways() {
    let good = ChunkRun { file_offset: 0, first_index: 0, count: 1, ..sample::run() };
    for (what, run) in [
        ("no chunks", ChunkRun { count: 0, ..good }),
        ("last chunk longer", ChunkRun { last_len: good.chunk_len + 1, ..good }),
        ("chunk longer than a record", ChunkRun { chunk_len: RECORD_LEN_MAX as u32 + 1, ..good }),
        ("index past its end", ChunkRun { first_index: u32::MAX, ..good }),
        ("file past its end", ChunkRun { file_offset: u64::MAX, ..good }),
    ] {
        let name = with_fields(vec![NameField::Runs(vec![good, run])]);
        assert!(matches!(name.check(), Err(FormatError::Corrupt(_))), "{what}");

        let mut bytes = with_fields(vec![NameField::Runs(vec![good])]).encode();
        let body = bytes.len() - 36;
        bytes[body..body + 8].copy_from_slice(&run.file_offset.to_le_bytes());
        for (at, number) in [(20, run.first_index), (24, run.count), (28, run.chunk_len), (32, run.last_len)]
        {
            bytes[body + at..body + at + 4].copy_from_slice(&number.to_le_bytes());
        }
        assert!(matches!(NameRecord::decode(&bytes), Err(FormatError::Corrupt(_))), "{what}");
    }
    assert_eq!(good.byte_len(), u64::from(good.last_len));
    assert_eq!(sample::run().byte_len(), 2 * (4 << 20) + 12345);
}

#[test]
fn a_hole_is_a_run_of_no_version() {
    for len in [1, 4095, 4 << 20, (4 << 20) + 1, 1 << 40, 50 << 40] {
        let hole = ChunkRun::hole(77, len);
        assert_eq!((hole.byte_len(), hole.end(), hole.is_hole()), (len, 77 + len, true), "{len}");
        let name = with_fields(vec![NameField::Runs(vec![hole, sample::run()])]);
        name.check().unwrap();
        let bytes = name.encode();
        assert_eq!(NameRecord::decode(&bytes).unwrap(), name);
    }
    assert!(!sample::run().is_hole());
}

#[test]
fn limits_hold_both_ways() {
    let value = |len| NameField::Unknown { tag: 500, bytes: vec![1; len] };
    let fits = with_fields(vec![value(NAME_LEN_MAX - 40)]);
    assert_eq!(fits.encoded_len(), NAME_LEN_MAX);
    assert_eq!(NameRecord::decode(&fits.encode()), Ok(fits));
    assert!(with_fields(vec![value(NAME_LEN_MAX - 39)]).check().is_err());
    assert!(NameRecord::decode(&[with_fields(vec![]).encode(), vec![0; NAME_LEN_MAX]].concat()).is_err());

    let key = |len| with_fields(vec![NameField::Key(vec![b'k'; len])]);
    assert!(NameRecord::decode(&key(NAME_KEY_LEN_MAX).encode()).is_ok());
    assert!(key(NAME_KEY_LEN_MAX + 1).check().is_err());
    let long = raw_field(2, 0, NAME_KEY_LEN_MAX as u32 + 4, &[b'k'; NAME_KEY_LEN_MAX + 4]);
    assert!(matches!(fields(&long), Err(FormatError::Corrupt(_))));

    let many = |count| with_fields(vec![NameField::Tag { name: vec![], value: vec![] }; count]);
    assert!(many(NAME_FIELDS_MAX).check().is_ok());
    assert!(many(NAME_FIELDS_MAX + 1).check().is_err());
    let mut count = with_fields(vec![]).encode();
    count[28..32].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(fields(&count), Err(FormatError::Corrupt(_))));
}

#[test]
#[should_panic(expected = "too long")]
fn encoding_what_check_refuses_is_a_bug() {
    with_fields(vec![NameField::Key(vec![0; NAME_KEY_LEN_MAX + 1])]).encode();
}
