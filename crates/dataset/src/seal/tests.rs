use proptest::prelude::*;
use serde_json::json;
use stoker_format::crc64;

use super::*;

fn row(number: usize, size: u64) -> ShardRow {
    ShardRow { key: format!("d/s-{number:06}.tar"), size, version: "00".repeat(12), etag: "e".to_owned() }
}

/// Shards as lists of (blocks in front, length, name).
type Wish = Vec<Vec<(u64, u64, String)>>;

fn wishes() -> impl Strategy<Value = Wish> {
    let name = prop_oneof!["[a-c]{0,6}", "common/path/of/many/[0-9ä]{1,20}", "z{0,300}"];
    prop::collection::vec(prop::collection::vec((0u64..5, 0u64..5000, name), 0..60), 0..6)
}

fn sealed(wish: &Wish, has_names: bool) -> (Vec<u8>, Vec<(Sample, String)>) {
    let mut writer = SealWriter::new("data", json!({"by": "a test"}));
    if !has_names {
        writer = writer.without_names();
    }
    let mut expect = Vec::new();
    for (shard, samples) in wish.iter().enumerate() {
        writer.shard(row(shard, 1 << 30)).unwrap();
        let mut start = 0;
        for (gap, len, name) in samples {
            start += gap * GRAIN;
            writer.sample(start, *len, name.as_bytes()).unwrap();
            expect.push((Sample { shard, start, len: *len }, name.clone()));
            start = (start + len).next_multiple_of(GRAIN);
        }
    }
    let sealed = writer.finish().unwrap();
    let bytes = sealed.to_vec();
    assert_eq!(bytes.len() as u64, sealed.len());
    assert_eq!(bytes[bytes.len() - 8..], sealed.identity().to_le_bytes());
    (bytes, expect)
}

/// Looks at everything that can be asked for.
fn read_all(seal: &Seal<'_>) -> stoker_store::Result<()> {
    for number in 0..seal.len().min(10_000) {
        seal.sample(number).unwrap();
        seal.name(number)?;
    }
    assert_eq!(seal.sample(seal.len()), None);
    assert_eq!(seal.name(seal.len())?, None);
    Ok(())
}

fn fix_sums(bytes: &mut [u8]) {
    let crc = crc64(&bytes[..120]);
    bytes[120..128].copy_from_slice(&crc.to_le_bytes());
    let body = bytes.len() - 8;
    let crc = crc64(&bytes[..body]);
    bytes[body..].copy_from_slice(&crc.to_le_bytes());
}

proptest! {
    #[test]
    fn what_was_sealed_is_read(wish in wishes(), has_names in any::<bool>()) {
        let (bytes, expect) = sealed(&wish, has_names);
        let seal = Seal::open(&bytes).unwrap();
        prop_assert_eq!(seal.len(), expect.len() as u64);
        prop_assert_eq!(seal.shards().len(), wish.len());
        prop_assert_eq!(seal.volume(), "data");
        prop_assert_eq!(seal.bytes(), expect.iter().map(|(sample, _)| sample.len).sum::<u64>());
        for (number, (sample, name)) in expect.iter().enumerate() {
            prop_assert_eq!(seal.sample(number as u64), Some(*sample));
            let name = has_names.then(|| name.clone().into_bytes());
            prop_assert_eq!(seal.name(number as u64).unwrap(), name);
        }
        read_all(&seal).unwrap();
    }

    #[test]
    fn a_changed_byte_is_noticed(wish in wishes(), at in any::<usize>(), flip in 1u8..=255) {
        let (mut bytes, _) = sealed(&wish, true);
        let at = at % bytes.len();
        bytes[at] ^= flip;
        prop_assert!(Seal::open(&bytes).is_err());
    }

    #[test]
    fn a_seal_that_is_cut_off_is_refused(wish in wishes(), len in any::<usize>()) {
        let (bytes, _) = sealed(&wish, true);
        prop_assert!(Seal::open(&bytes[..len % bytes.len()]).is_err());
    }

    /// Sums that hold make nothing true: whoever wrote the seal may have meant harm.
    #[test]
    fn a_forged_seal_never_panics(
        wish in wishes(), at in any::<usize>(), value in prop_oneof![any::<u64>(), 0u64..2000], in_header in any::<bool>()
    ) {
        let (mut bytes, _) = sealed(&wish, true);
        let at = if in_header { 8 + at % 14 * 8 } else { at % (bytes.len() - 8) };
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        fix_sums(&mut bytes);
        if let Ok(seal) = Seal::open(&bytes) {
            let _ = read_all(&seal);
        }
    }

    #[test]
    fn any_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Seal::open(&bytes);
        if bytes.len() > 136 {
            bytes[..8].copy_from_slice(MAGIC);
            bytes[8..16].copy_from_slice(&[1, 0, 0, 0, 3, 0, 0, 0]);
            fix_sums(&mut bytes);
            let _ = Seal::open(&bytes);
        }
    }
}

/// The bytes of version 1 stay what they are: an old seal has to be read by every release.
#[test]
fn the_first_version_stays_as_it_is() {
    let mut writer = SealWriter::new("v", json!({"by": "stoker pack"}));
    writer
        .shard(ShardRow { key: "a-000000.tar".into(), size: 4096, version: "0b".into(), etag: "x".into() })
        .unwrap();
    writer.sample(0, 1024, b"a/1").unwrap();
    writer.sample(1024, 1536, b"a/12").unwrap();
    let bytes = writer.finish().unwrap().to_vec();
    let shards = br#"{"volume":"v","shards":[{"key":"a-000000.tar","size":4096,"version":"0b","etag":"x"}],"made":{"by":"stoker pack"}}"#;
    let mut expect = b"STKRSEAL\x01\0\0\0\x03\0\0\0".to_vec();
    let firsts = (128 + shards.len()).next_multiple_of(64);
    for number in
        [2, 1, 2560, 128, shards.len(), firsts, 16, firsts + 64, 8, firsts + 128, 8, firsts + 192, 16]
    {
        expect.extend_from_slice(&(number as u64).to_le_bytes());
    }
    expect.extend_from_slice(&crc64(&expect).to_le_bytes());
    expect.extend_from_slice(shards);
    expect.resize(firsts, 0);
    expect.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    expect.resize(firsts + 64, 0);
    expect.extend_from_slice(&[0, 0, 0, 0, 2, 0, 0, 0]);
    expect.resize(firsts + 128, 0);
    expect.extend_from_slice(&[0, 4, 0, 0, 0, 6, 0, 0]);
    expect.resize(firsts + 192, 0);
    expect.extend_from_slice(b"\x01\0\0\0\0\0\0\0\0\x03a/1\x03\x012");
    expect.extend_from_slice(&crc64(&expect).to_le_bytes());
    assert_eq!(bytes, expect);
}

#[test]
fn what_no_seal_can_hold_is_refused() {
    let mut writer = SealWriter::new("v", json!({}));
    assert!(writer.shard(row(0, SHARD_LEN_MAX + 1)).is_err());
    writer.shard(row(0, SHARD_LEN_MAX)).unwrap();
    for (start, len) in [(100, 1), (0, SAMPLE_LEN_MAX + 1), (SHARD_LEN_MAX - 512, 513), (u64::MAX - 511, 512)]
    {
        assert!(writer.sample(start, len, b"a").is_err(), "{start} {len}");
    }
    assert!(writer.sample(0, 1, &[b'x'; NAME_LEN_MAX + 1]).is_err());
    assert!(writer.sample(0, 1, b"\xff").is_err());
    writer.sample(512, SAMPLE_LEN_MAX, &[b'x'; NAME_LEN_MAX]).unwrap();
    assert!(writer.sample(0, 1, b"a").is_err(), "out of order");
    let bytes = writer.finish().unwrap().to_vec();
    assert_eq!(Seal::open(&bytes).unwrap().name(0).unwrap().unwrap().len(), NAME_LEN_MAX);
}

/// Millions of samples in tens of megabytes, handed out in small pieces.
#[test]
fn a_million_samples_take_few_bytes() {
    let mut writer = SealWriter::new("data", json!({}));
    for shard in 0..100 {
        writer.shard(row(shard, 1 << 30)).unwrap();
        for number in 0..10_000u64 {
            let name = format!("train/n{shard:04}/{:08}", shard as u64 * 10_000 + number);
            writer.sample(number * 17_408, 17_408, name.as_bytes()).unwrap();
        }
    }
    let sealed = writer.finish().unwrap();
    assert!(sealed.len() < 14 << 20, "{}", sealed.len());
    assert!(sealed.pieces().all(|piece| piece.len() <= 3 << 20));
    let bytes = sealed.to_vec();
    let seal = Seal::open(&bytes).unwrap();
    assert_eq!(seal.name(987_654).unwrap().unwrap(), b"train/n0098/00987654");
    assert_eq!(seal.sample(987_654), Some(Sample { shard: 98, start: 7654 * 17_408, len: 17_408 }));
}
