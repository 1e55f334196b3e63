//! Layout and partial reads: any range of a chunk, with any shards missing.

mod support;

use proptest::prelude::*;
use stoker_ec::{Codec, Error, Layout, ReadPlan, SHARD_UNIT, Scheme};
use support::{noise, scheme, views_mut};

/// A chunk and its shards, padding written out.
fn shards(codec: &Codec, chunk: &[u8]) -> (Layout, Vec<Vec<u8>>) {
    let layout = Layout::new(codec.scheme(), chunk.len()).unwrap();
    let mut shards: Vec<Vec<u8>> = layout.split(chunk).into_iter().map(<[u8]>::to_vec).collect();
    shards.iter_mut().for_each(|shard| shard.resize(layout.shard_len(), 0));
    let mut parity = vec![vec![0x99; layout.shard_len()]; codec.scheme().parity()];
    codec.encode_chunk(chunk, &mut views_mut(&mut parity)).unwrap();
    shards.append(&mut parity);
    (layout, shards)
}

/// Reads a range as a node would: what the plan names, and nothing else.
fn read(plan: &ReadPlan, shards: &[Vec<u8>]) -> Vec<u8> {
    let bytes: Vec<&[u8]> = plan.reads().iter().map(|read| &shards[read.shard][read.range.clone()]).collect();
    let mut out = vec![0xcc; plan.len()];
    plan.fill(&bytes, &mut out).unwrap();
    out
}

fn schemes() -> impl Strategy<Value = Scheme> {
    (1..=16usize, 1..=5usize).prop_map(|(data, parity)| Scheme::new(data, parity).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn parity_of_a_chunk_is_that_of_its_padded_shards(scheme in schemes(), len in 0..5000usize, seed: u64) {
        let codec = Codec::new(scheme);
        let (_, shards) = shards(&codec, &noise(seed, len));
        let data: Vec<&[u8]> = shards[..scheme.data()].iter().map(|shard| &shard[..]).collect();
        let mut parity = vec![vec![0; data[0].len()]; scheme.parity()];
        codec.encode(&data, &mut views_mut(&mut parity)).unwrap();
        prop_assert_eq!(&parity, &shards[scheme.data()..]);
    }

    #[test]
    fn every_byte_has_one_place(scheme in schemes(), len in 0..5000usize) {
        let layout = Layout::new(scheme, len).unwrap();
        prop_assert_eq!(layout.shard_len() % SHARD_UNIT, 0);
        let filled: usize = (0..scheme.data()).map(|shard| layout.filled(shard)).sum();
        prop_assert_eq!(filled, len);
        prop_assert_eq!(filled + layout.padding(), layout.shard_len() * scheme.data());
        let mut at = 0;
        for piece in layout.pieces(0..len).unwrap() {
            prop_assert_eq!(piece.chunk_at, at);
            for inside in [piece.range.start, piece.range.end - 1] {
                let chunk_at = at + inside - piece.range.start;
                prop_assert_eq!(layout.chunk_at(piece.shard, inside), Some(chunk_at));
            }
            at += piece.range.len();
        }
        prop_assert_eq!(at, len);
        prop_assert_eq!(layout.chunk_at(scheme.data(), 0), None);
    }

    #[test]
    fn degraded_reads_give_the_bytes(
        scheme in schemes(),
        len in 1..6000usize,
        seed: u64,
        cut in (0.0..1.0f64, 0.0..1.0f64),
        lost in prop::collection::vec(0..21usize, 0..6),
        order: u64,
    ) {
        let codec = Codec::new(scheme);
        let chunk = noise(seed, len);
        let (layout, mut shards) = shards(&codec, &chunk);
        let mut lost: Vec<usize> = lost.iter().map(|shard| shard % scheme.width()).collect();
        lost.sort_unstable();
        lost.dedup();
        lost.truncate(scheme.parity());
        lost.iter().for_each(|&shard| shards[shard].fill(0xdd));
        let mut present: Vec<usize> = (0..scheme.width()).filter(|shard| !lost.contains(shard)).collect();
        present.sort_by_key(|&shard| order.rotate_left(shard as u32 * 3) & 0xff);
        let from = (cut.0 * len as f64) as usize;
        let to = from + (cut.1 * (len - from) as f64) as usize;
        let plan = ReadPlan::new(&codec, &layout, from..to, &present).unwrap();
        prop_assert_eq!(read(&plan, &shards), &chunk[from..to]);
        prop_assert!(plan.reads().iter().all(|read| present.contains(&read.shard)));
        let missing = layout.pieces(from..to).unwrap().any(|piece| lost.contains(&piece.shard));
        prop_assert_eq!(plan.is_degraded(), missing);
        // Never more than the range and, for what is lost of it, the same places of k shards.
        let own: usize = layout.pieces(from..to).unwrap().filter(|piece| lost.contains(&piece.shard)).map(|piece| piece.range.len()).sum();
        prop_assert!(plan.read_bytes() <= (to - from) - own + own * scheme.data());
    }

    #[test]
    fn too_few_shards_name_the_lost_bytes(
        scheme in schemes(), len in 1..6000usize, seed: u64, cut in (0.0..1.0f64, 0.0..1.0f64), first in 0..21usize,
    ) {
        let codec = Codec::new(scheme);
        let chunk = noise(seed, len);
        let (layout, shards) = shards(&codec, &chunk);
        // One shard less than is needed.
        let present: Vec<usize> = (0..scheme.data() - 1).map(|at| (first + at) % scheme.width()).collect();
        let from = (cut.0 * len as f64) as usize;
        let to = from + (cut.1 * (len - from) as f64) as usize;
        let lost = match ReadPlan::new(&codec, &layout, from..to, &present) {
            Ok(plan) => {
                prop_assert_eq!(read(&plan, &shards), &chunk[from..to]);
                Vec::new()
            }
            Err(Error::Lost { ranges, missing, .. }) => {
                prop_assert_eq!(missing.len(), scheme.parity() + 1);
                ranges
            }
            Err(other) => panic!("{other}"),
        };
        for at in from..to {
            let shard = at / layout.shard_len();
            let named = lost.iter().any(|range| range.contains(&at));
            prop_assert_eq!(named, !present.contains(&shard), "byte {} of shard {}", at, shard);
        }
    }
}

/// A small read of a missing shard costs its own length from k shards, not the chunk.
#[test]
fn a_small_range_reads_little() {
    let codec = Codec::new(scheme("8+2"));
    let chunk = noise(7, 4 << 20);
    let (layout, shards) = shards(&codec, &chunk);
    let present: Vec<usize> = (1..10).collect();
    let plan = ReadPlan::new(&codec, &layout, 5000..9096, &present).unwrap();
    assert_eq!(plan.read_bytes(), 8 * 4096);
    assert!(plan.reads().iter().all(|read| read.range == (5000..9096)));
    assert_eq!(read(&plan, &shards), &chunk[5000..9096]);
    // The other shards as they are: nothing is read for the missing one.
    let plan =
        ReadPlan::new(&codec, &layout, layout.shard_len()..layout.shard_len() + 100, &present).unwrap();
    assert_eq!((plan.read_bytes(), plan.is_degraded()), (100, false));
    // The whole chunk: seven shards are read anyway, and one of parity.
    let plan = ReadPlan::new(&codec, &layout, 0..chunk.len(), &present).unwrap();
    assert_eq!(plan.read_bytes(), 8 * layout.shard_len());
}

#[test]
fn what_does_not_fit_is_refused() {
    let codec = Codec::new(scheme("4+2"));
    let layout = Layout::new(scheme("4+2"), 1000).unwrap();
    let all: Vec<usize> = (0..6).collect();
    let plan = |range, present: &[usize]| ReadPlan::new(&codec, &layout, range, present);
    assert_eq!(plan(900..1001, &all).unwrap_err(), Error::Range { range: 900..1001, chunk_len: 1000 });
    #[expect(clippy::reversed_empty_ranges, reason = "what a caller might ask")]
    let backwards = plan(9..8, &all).unwrap_err();
    assert_eq!(backwards.to_string(), "bytes 9 to 8 are not in a chunk of 1000 bytes");
    assert_eq!(plan(0..10, &[0, 0]).unwrap_err(), Error::ShardTwice { shard: 0 });
    let good = plan(0..10, &all).unwrap();
    assert_eq!(good.fill(&[], &mut [0; 10]), Err(Error::ShardCount { need: 1, have: 0 }));
    assert_eq!(good.fill(&[&[0; 9]], &mut [0; 10]), Err(Error::ShardLength { place: 0, need: 10, have: 9 }));
    assert_eq!(good.fill(&[&[0; 10]], &mut [0; 9]), Err(Error::ShardLength { place: 0, need: 10, have: 9 }));
    assert!(plan(5..5, &[]).unwrap().is_empty());
    let lost = plan(0..1000, &[0, 2, 5]).unwrap_err();
    let text = "3 of 6 shards left, 4 needed; missing shards: 1, 3, 4; lost bytes: 256 to 512, 768 to 1000";
    assert_eq!(lost.to_string(), text);
    assert_eq!(Layout::new(scheme("4+2"), usize::MAX), Err(Error::ChunkLength(usize::MAX)));
}

#[test]
fn schemes_are_written_one_way() {
    for (data, parity) in [(1, 1), (8, 2), (14, 4), (32, 8)] {
        let made = Scheme::new(data, parity).unwrap();
        assert_eq!(made.to_string().parse(), Ok(made));
    }
    for text in ["", "8", "8+", "+2", "08+2", "8+2 ", "8 + 2", "8+-2", "8+2+1", "99999999999999999999+1"] {
        assert_eq!(text.parse::<Scheme>(), Err(Error::SchemeText), "{text}");
    }
    for text in ["33+1", "1+9"] {
        assert!(matches!(text.parse::<Scheme>(), Err(Error::Scheme { .. })), "{text}");
    }
    assert!(Scheme::new(0, 2).is_err() && Scheme::new(2, 0).is_err());
}
