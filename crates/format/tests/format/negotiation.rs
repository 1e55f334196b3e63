//! Which drives this release may read and write, and which copy of a superblock counts.

use crate::{reseal, sample};
use stoker_format::*;

const TOO_NEW: FormatError = FormatError::TooNew { found: 2, supported: FORMAT_VERSION };

/// A drive of this release, altered.
fn drive(alter: impl FnOnce(&mut Superblock)) -> Superblock {
    let mut superblock = Superblock { features_ro_compat: 0, features_compat: 0, ..sample::superblock() };
    alter(&mut superblock);
    superblock
}

#[test]
fn access_follows_version_and_features() {
    let check = |what: &str, superblock: Superblock, expected: Result<Access, FormatError>| {
        let decoded = Superblock::decode(&superblock.encode()).expect("identity is readable in every case");
        assert_eq!(decoded, superblock);
        assert_eq!(negotiate(&decoded), expected, "{what}");
    };
    let newer = |superblock: &mut Superblock| {
        superblock.format_version = 9;
        superblock.reader_version_min = 2;
    };
    check("own", drive(|_| {}), Ok(Access::ReadWrite));
    check("newer, still readable", drive(|s| s.format_version = 9), Ok(Access::ReadWrite));
    check("newer, not readable", drive(newer), Err(TOO_NEW));
    check("unknown compat", drive(|s| s.features_compat = u64::MAX), Ok(Access::ReadWrite));
    check("unknown ro-compat", drive(|s| s.features_ro_compat = 1 << 63), Ok(Access::ReadOnly));
    check("unknown incompat", drive(|s| s.features_incompat = 1), Err(TOO_NEW));
    let both = drive(|s| (s.features_incompat, s.features_ro_compat) = (1 << 40, 1));
    check("incompat wins over ro-compat", both, Err(TOO_NEW));
}

#[test]
fn the_copy_updated_last_counts() {
    let (old, new) = (drive(|s| s.update = 5), drive(|s| s.update = 6));
    for (a, b) in [(&old, &new), (&new, &old)] {
        assert_eq!(&Superblock::newest(&a.encode(), &b.encode()).unwrap(), &new);
    }
}

#[test]
fn one_good_copy_is_enough() {
    let good = drive(|_| {});
    let mut torn = drive(|s| s.update += 1).encode();
    torn[2000] ^= 1;
    for bad in [&torn[..], &[0; BLOCK], &[]] {
        assert_eq!(Superblock::newest(&good.encode(), bad).unwrap(), good);
        assert_eq!(Superblock::newest(bad, &good.encode()).unwrap(), good);
    }
}

#[test]
fn the_more_informative_error_is_reported() {
    let patched = |at: usize, patch: &[u8]| {
        let mut bytes = drive(|_| {}).encode();
        bytes[at..at + patch.len()].copy_from_slice(patch);
        reseal::block(&mut bytes);
        bytes.to_vec()
    };
    let mut damaged = drive(|_| {}).encode().to_vec();
    damaged[100] ^= 1;
    // A layout that does not exist yet, from a release that says so.
    let mut too_new = patched(140, &[3]);
    too_new[10] = 2;
    reseal::block(&mut too_new);
    let ranked = [
        (too_new, TOO_NEW),
        (
            patched(12, &512_u32.to_le_bytes()),
            FormatError::Unsupported("a drive with blocks of 512 bytes".into()),
        ),
        (damaged, FormatError::Corrupt("the checksum of a superblock does not hold")),
        (vec![0; BLOCK], FormatError::BadMagic),
        (vec![0; 7], FormatError::Short { need: BLOCK, have: 7 }),
    ];
    for (i, (bytes, error)) in ranked.iter().enumerate() {
        for (other, _) in &ranked[i..] {
            assert_eq!(Superblock::newest(bytes, other).as_ref(), Err(error));
            assert_eq!(Superblock::newest(other, bytes).as_ref(), Err(error));
        }
    }
}

#[test]
fn impossible_geometry_is_refused_under_a_good_crc() {
    let size_too_large = SEGMENT_SIZE_MAX + BLOCK as u64;
    for (what, at, patch) in [
        ("version 0", 8, vec![0, 0]),
        ("segment too small", 128, (SEGMENT_SIZE_MIN - BLOCK as u64).to_le_bytes().to_vec()),
        ("segment too large", 128, size_too_large.to_le_bytes().to_vec()),
        ("segment not in blocks", 128, (SEGMENT_SIZE_MIN + 512).to_le_bytes().to_vec()),
        ("too few segments", 136, 3_u32.to_le_bytes().to_vec()),
        ("too many segments", 136, ((1_u32 << 24) + 1).to_le_bytes().to_vec()),
        ("unknown layout", 140, 3_u32.to_le_bytes().to_vec()),
        ("data not in blocks", 152, 1_u64.to_le_bytes().to_vec()),
        ("data past the end of numbers", 152, (u64::MAX - 4095).to_le_bytes().to_vec()),
        ("label not text", 160, vec![0xff]),
    ] {
        let mut bytes = drive(|_| {}).encode();
        bytes[at..at + patch.len()].copy_from_slice(&patch);
        reseal::block(&mut bytes);
        assert!(matches!(Superblock::decode(&bytes), Err(FormatError::Corrupt(_))), "{what}");
    }
}

#[test]
fn a_label_may_fill_its_place() {
    let superblock = drive(|s| s.label = "x".repeat(LABEL_LEN_MAX));
    assert_eq!(Superblock::decode(&superblock.encode()).unwrap(), superblock);
}

#[test]
fn blocks_of_a_newer_version_are_called_new_and_not_damaged() {
    let mut segment = sample::segment().encode();
    segment[8] = 2;
    reseal::block(&mut segment);
    assert_eq!(SegmentHeader::decode(&segment), Err(TOO_NEW));
    let mut footer = encode_footer(&sample::footer(), &[]);
    footer[8] = 2;
    reseal::block(&mut footer);
    assert_eq!(Footer::decode(&footer), Err(TOO_NEW));
}
