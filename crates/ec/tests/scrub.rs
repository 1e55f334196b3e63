//! Mistakes in stripes are found: by parity where a shard does not fit, by headers where it belongs elsewhere.

mod support;

use proptest::prelude::*;
use stoker_ec::{Codec, Identity, Misplaced, SHARD_HEADER_LEN, ShardHeader};
use stoker_format::{ChunkId, FormatError, VersionId, crc32c, crc64};
use support::{noise, scheme, stripe, views};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn one_wrong_shard_is_located(
        parity in 2..=8usize, data in 1..=20usize, len in 1..9000usize, shard in 0..28usize, at in 0..9000usize, more in 0..300usize, by in 1..=255u8,
    ) {
        let codec = Codec::new(stoker_ec::Scheme::new(data, parity).unwrap());
        let mut shards = stripe(&codec, len, 3);
        prop_assert!(codec.verify(&views(&shards)).unwrap().is_sound());
        let (shard, at) = (shard % shards.len(), at % len);
        let to = len.min(at + 1 + more);
        shards[shard][at..to].iter_mut().for_each(|byte| *byte ^= by);
        let verdict = codec.verify(&views(&shards)).unwrap();
        prop_assert_eq!(verdict.culprit(), Some(shard));
        prop_assert_eq!(&verdict.wrong[0].range, &(at..to));
        prop_assert_eq!(verdict.wrong[0].bytes, to - at);
        let disagreeing: Vec<usize> = verdict.disagreeing.iter().collect();
        let expect: Vec<usize> = if shard < data { (data..data + parity).collect() } else { vec![shard] };
        prop_assert_eq!(disagreeing, expect);
    }

    /// With three parity shards, two that are wrong at one place are never taken for one that is right.
    #[test]
    fn two_wrong_shards_are_not_explained_by_a_third(first in 0..13usize, second in 0..13usize, by in (1..=255u8, 1..=255u8)) {
        prop_assume!(first != second);
        let codec = Codec::new(scheme("10+3"));
        let mut shards = stripe(&codec, 100, 4);
        shards[first][50] ^= by.0;
        shards[second][50] ^= by.1;
        let verdict = codec.verify(&views(&shards)).unwrap();
        prop_assert_eq!((verdict.wrong.len(), verdict.unexplained_bytes), (0, 1));
    }

    #[test]
    fn headers_come_back(header in headers()) {
        prop_assert_eq!(ShardHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn hostile_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        prop_assert!(ShardHeader::decode(&bytes).is_err());
    }

    /// Any field, with a checksum that holds.
    #[test]
    fn hostile_fields_are_refused_or_sound(header in headers(), at in 8..56usize, value: u8) {
        let mut bytes = header.encode();
        bytes[at] = value;
        let crc = crc64(&bytes[..56]);
        bytes[56..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(decoded) = ShardHeader::decode(&bytes) {
            prop_assert!(usize::from(decoded.shard) < decoded.stripe.scheme.width());
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn a_flipped_bit_is_refused(header in headers(), bit in 0..SHARD_HEADER_LEN * 8) {
        let mut bytes = header.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(ShardHeader::decode(&bytes).is_err());
    }
}

fn headers() -> impl Strategy<Value = ShardHeader> {
    (
        any::<[u8; 16]>(),
        any::<u32>(),
        (1..=32usize, 1..=8usize),
        0..=1u32 << 30,
        any::<u32>(),
        any::<u32>(),
        any::<u8>(),
    )
        .prop_map(|(chunk, encoding, (data, parity), chunk_len, chunk_crc, crc, shard)| {
            let scheme = stoker_ec::Scheme::new(data, parity).unwrap();
            let stripe =
                Identity { chunk: ChunkId::from_bytes(chunk), encoding, scheme, chunk_len, chunk_crc };
            ShardHeader { stripe, shard: shard % (data + parity) as u8, crc }
        })
}

/// Two shards wrong at different places are both named.
#[test]
fn wrong_places_of_several_shards() {
    let codec = Codec::new(scheme("8+2"));
    let mut shards = stripe(&codec, 20_000, 5);
    shards[3][10] ^= 1;
    shards[9][19_999] ^= 1;
    let verdict = codec.verify(&views(&shards)).unwrap();
    let wrong: Vec<(usize, usize)> =
        verdict.wrong.iter().map(|wrong| (wrong.shard, wrong.range.start)).collect();
    assert_eq!((wrong, verdict.culprit()), (vec![(3, 10), (9, 19_999)], None));
    let codec = Codec::new(scheme("8+1"));
    let mut shards = stripe(&codec, 100, 5);
    shards[3][10] ^= 1;
    let verdict = codec.verify(&views(&shards)).unwrap();
    assert_eq!(
        (verdict.wrong.len(), verdict.unexplained_bytes),
        (0, 1),
        "one parity shard finds, and cannot locate"
    );
}

/// Bugs that a write path could have, each with shards whose own bytes are whole. Parity sees them all.
#[test]
fn planted_bugs_are_found_by_parity() {
    let codec = Codec::new(scheme("8+2"));
    let good = stripe(&codec, 500, 6);
    let older = stripe(&codec, 500, 7);
    let found = |what: &str, plant: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut shards = good.clone();
        plant(&mut shards);
        let verdict = codec.verify(&views(&shards)).unwrap();
        assert!(!verdict.is_sound(), "{what}");
        verdict
    };
    found("data in the wrong order", &|shards| shards.swap(0, 1));
    found("parity in the wrong order", &|shards| shards.swap(8, 9));
    found("data and parity in each other's place", &|shards| shards.swap(7, 8));
    found("data rotated by one", &|shards| shards[..8].rotate_left(1));
    let stale = found("a stale shard after a rejoin", &|shards| shards[4] = older[4].clone());
    assert_eq!(stale.culprit(), Some(4));
    let torn = found("parity of a torn write", &|shards| shards[9][256..].copy_from_slice(&older[9][256..]));
    assert_eq!((torn.culprit(), torn.wrong[0].range.start), (Some(9), 256));
    let empty = found("a shard that was never written", &|shards| shards[2].fill(0));
    assert_eq!(empty.culprit(), Some(2));
    found("one shard twice", &|shards| shards[5] = shards[6].clone());
    found("parity of fewer data shards", &|shards| {
        let mut data = shards[..8].to_vec();
        data[7].fill(0);
        let mut parity = vec![vec![0; 500]; 2];
        codec.encode(&views(&data), &mut support::views_mut(&mut parity)).unwrap();
        shards[8..].clone_from_slice(&parity);
    });
    let shifted = found("a shard that begins a byte late", &|shards| shards[1].rotate_right(1));
    assert_eq!(shifted.culprit(), Some(1));
}

/// Good bytes with good checksums in the wrong place are refused by their header, before anything is decoded.
#[test]
fn shards_of_elsewhere_are_refused() {
    let chunk = noise(8, 500 * 8);
    let stripe = Identity {
        chunk: ChunkId::new(VersionId([7; 12]), 3),
        encoding: 5,
        scheme: scheme("8+2"),
        chunk_len: chunk.len() as u32,
        chunk_crc: crc32c(&chunk),
    };
    let bytes = &noise(9, 512)[..];
    let header = ShardHeader::new(stripe, 2, bytes);
    let found = |header: ShardHeader| ShardHeader::decode(&header.encode()).unwrap().check(&stripe, 2);
    let of = |stripe: Identity| found(ShardHeader { stripe, ..header });
    assert_eq!(found(header), Ok(()));
    let other = ChunkId::new(VersionId([7; 12]), 4);
    assert_eq!(of(Identity { chunk: other, ..stripe }), Err(Misplaced::Chunk { found: other }));
    assert_eq!(of(Identity { encoding: 4, ..stripe }), Err(Misplaced::Encoding { found: 4, expected: 5 }));
    assert_eq!(
        of(Identity { scheme: scheme("8+3"), ..stripe }),
        Err(Misplaced::Scheme { found: scheme("8+3") })
    );
    assert_eq!(of(Identity { chunk_len: 1, ..stripe }), Err(Misplaced::Content));
    assert_eq!(of(Identity { chunk_crc: 1, ..stripe }), Err(Misplaced::Content));
    assert_eq!(found(ShardHeader { shard: 3, ..header }), Err(Misplaced::Shard { found: 3 }));
    assert_eq!(header.check_bytes(bytes), Ok(()));
    assert_eq!(header.check_bytes(&bytes[1..]), Err(Misplaced::Length { need: 512, have: 511 }));
    assert_eq!(header.check_bytes(&noise(10, 512)), Err(Misplaced::Checksum));
}

/// The bytes of a header, which must never change.
#[test]
fn header_bytes() {
    let stripe = Identity {
        chunk: ChunkId::new(VersionId(*b"version-id--"), 0x0102_0304),
        encoding: 0x1122_3344,
        scheme: scheme("14+4"),
        chunk_len: 4 << 20,
        chunk_crc: 0x5566_7788,
    };
    let bytes = ShardHeader { stripe, shard: 17, crc: 0x99aa_bbcc }.encode();
    let mut expect = b"STKSHARD\x01\0\x0e\x04\x11\0\0\0version-id--\x01\x02\x03\x04".to_vec();
    expect.extend(b"\x44\x33\x22\x11\0\0\x40\0\x88\x77\x66\x55\xcc\xbb\xaa\x99\0\0\0\0\0\0\0\0");
    assert_eq!(bytes[..56], expect);
    assert_eq!(bytes[56..], crc64(&expect).to_le_bytes());
    assert!(matches!(ShardHeader::decode(&bytes[..63]), Err(FormatError::Short { need: 64, have: 63 })));
    let mut newer = bytes;
    newer[8] = 2;
    let crc = crc64(&newer[..56]);
    newer[56..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(ShardHeader::decode(&newer), Err(FormatError::TooNew { found: 2, supported: 1 }));
}
