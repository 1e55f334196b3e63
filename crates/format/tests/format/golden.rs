//! The bytes of version 1, checked in. A drive that was written by an old release must stay readable, so a
//! difference here is a change of format, never a file to refresh. `STOKER_BLESS=1` writes new files.

use crate::{hexdump, sample};
use stoker_format::*;

fn check(name: &str, bytes: &[u8]) -> Vec<u8> {
    // Tests run in the folder of their package. The one that they were built in may be another: checkouts share builds.
    let path = format!("tests/golden/{name}.hex");
    let actual = hexdump::render(bytes);
    if std::env::var_os("STOKER_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &actual).expect("golden file is writable");
    }
    let expected = std::fs::read_to_string(&path).expect("golden file exists; STOKER_BLESS=1 writes it");
    assert_eq!(actual, expected, "the bytes of {name} changed");
    hexdump::parse(&expected)
}

#[test]
fn record() {
    let golden = check("record", &sample::encoded_header());
    let record = RecordHeader::decode(&golden, &sample::place()).unwrap();
    assert_eq!(record.header, sample::header());
    assert_eq!(record.table, [crc32c(sample::PAYLOAD)]);
    assert!(record.aux.is_empty());
}

#[test]
fn record_with_aux() {
    let (header, table, aux) = sample::header_with_aux();
    let golden = check("record_with_aux", &sample::encode(&header, &table, &aux));
    let record = RecordHeader::decode(&golden, &sample::place()).unwrap();
    assert_eq!(record, Record { header, table, aux });
}

#[test]
fn sealed_record() {
    let (header, table, aux) = sample::header_sealed();
    let golden = check("sealed_record", &sample::encode(&header, &table, &aux));
    let record = RecordHeader::decode(&golden, &sample::place()).unwrap();
    let seal = record.seal().expect("it is sealed");
    assert_eq!((seal.key, seal.salt, seal.tags.len()), (KeyId(77), header.salt, 3 * SEAL_TAG_LEN));
    // What is sealed in a way that nobody here knows has no seal, and is not taken for plain bytes.
    let other = Record { header: RecordHeader { cipher: 2, ..header }, ..record };
    assert_eq!(other.seal(), None);
}

#[test]
fn dead() {
    let golden = check("dead", &encode_deaths(&sample::deaths()));
    assert_eq!(decode_deaths(&golden).unwrap(), sample::deaths());
}

#[test]
fn segment() {
    let golden = check("segment", &sample::segment().encode());
    assert_eq!(SegmentHeader::decode(&golden).unwrap(), sample::segment());
}

#[test]
fn footer() {
    let given = Footer { entry_count: 0, entries_crc: 0, ..sample::footer() };
    let golden = check("footer", &encode_footer(&given, &sample::entries()));
    let footer = Footer::decode(&golden[golden.len() - BLOCK..]).unwrap();
    assert_eq!(footer, sample::footer());
    assert_eq!(footer.decode_entries(&golden).unwrap(), sample::entries());
}

#[test]
fn superblock() {
    let golden = check("superblock", &sample::superblock().encode());
    assert_eq!(Superblock::decode(&golden).unwrap(), sample::superblock());
}

#[test]
fn name() {
    let golden = check("name", &sample::name().encode());
    assert_eq!(NameRecord::decode(&golden).unwrap(), sample::name());
}

#[test]
fn the_documented_example_is_the_golden_record() {
    let page = std::fs::read_to_string("../../docs/data-file.md").expect("the page exists");
    let golden = std::fs::read_to_string("tests/golden/record.hex").expect("the file exists");
    assert!(page.contains(&golden), "docs/data-file.md shows other bytes than tests/golden/record.hex");
}
