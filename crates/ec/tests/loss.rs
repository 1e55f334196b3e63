//! Any `m` shards may be lost: the others give them back, byte for byte.

mod support;

use stoker_ec::{Codec, Error};
use support::{choices, noise, scheme, stripe, views_mut};

/// Loses these shards and makes them again from those that are left.
fn lose(codec: &Codec, shards: &[Vec<u8>], lost: &[usize]) {
    let width = codec.scheme().width();
    let present: Vec<usize> = (0..width).filter(|shard| !lost.contains(shard)).collect();
    let repair = codec.repair(&present, lost).unwrap();
    assert_eq!(repair.sources().len(), codec.scheme().data(), "k shards are read, however many are lost");
    let sources: Vec<&[u8]> = repair.sources().iter().map(|&shard| &shards[shard][..]).collect();
    let mut made = vec![vec![0x55; shards[0].len()]; lost.len()];
    repair.run(&sources, &mut views_mut(&mut made)).unwrap();
    for (shard, made) in lost.iter().zip(&made) {
        assert_eq!(*made, shards[*shard], "shard {shard} of {} without {lost:?}", codec.scheme());
    }
}

#[test]
fn every_loss_of_narrow_stripes() {
    for text in ["1+1", "2+1", "3+3", "4+2", "8+2"] {
        let codec = Codec::new(scheme(text));
        let shards = stripe(&codec, 70, 1);
        for count in 1..=codec.scheme().parity() {
            for lost in choices(codec.scheme().width(), count) {
                lose(&codec, &shards, &lost);
            }
        }
    }
}

#[test]
fn losses_of_wide_stripes() {
    for (text, step) in [("14+4", 7), ("10+4", 3)] {
        let codec = Codec::new(scheme(text));
        let shards = stripe(&codec, 64, 2);
        // A step that shares no factor with their number goes all over them.
        for lost in choices(codec.scheme().width(), codec.scheme().parity()).iter().step_by(step) {
            lose(&codec, &shards, lost);
        }
    }
    let codec = Codec::new(scheme("32+8"));
    let shards = stripe(&codec, 33, 3);
    for seed in 0..200 {
        let mut lost: Vec<usize> = noise(seed, 8).iter().map(|byte| usize::from(*byte) % 40).collect();
        lost.sort_unstable();
        lost.dedup();
        lose(&codec, &shards, &lost);
    }
}

/// The first shards of the list are read: whoever knows the slow ones puts them last.
#[test]
fn preferred_shards_are_read() {
    let codec = Codec::new(scheme("4+2"));
    let shards = stripe(&codec, 64, 4);
    let repair = codec.repair(&[5, 3, 4, 1, 2], &[0]).unwrap();
    assert_eq!(repair.sources(), [5, 3, 4, 1]);
    let sources: Vec<&[u8]> = repair.sources().iter().map(|&shard| &shards[shard][..]).collect();
    let mut made = vec![vec![0; 64]];
    repair.run(&sources, &mut views_mut(&mut made)).unwrap();
    assert_eq!(made[0], shards[0]);
}

/// Two shards in each other's place make other bytes: only their headers can tell, so they must be asked.
#[test]
fn swapped_sources_do_not_pass_for_right() {
    let codec = Codec::new(scheme("8+2"));
    let shards = stripe(&codec, 64, 5);
    let repair = codec.repair(&(1..10).collect::<Vec<_>>(), &[0]).unwrap();
    let mut sources: Vec<&[u8]> = repair.sources().iter().map(|&shard| &shards[shard][..]).collect();
    sources.swap(2, 3);
    let mut made = vec![vec![0; 64]];
    repair.run(&sources, &mut views_mut(&mut made)).unwrap();
    assert_ne!(made[0], shards[0]);
}

#[test]
fn what_cannot_be_done_is_refused() {
    let codec = Codec::new(scheme("4+2"));
    let refused = |present: &[usize], wanted: &[usize]| codec.repair(present, wanted).unwrap_err();
    let few = refused(&[0, 2, 5], &[1]);
    assert_eq!(few.to_string(), "3 of 6 shards left, 4 needed; missing shards: 1, 3, 4");
    assert_eq!(refused(&[0, 1, 2, 6], &[3]), Error::ShardIndex { shard: 6, width: 6 });
    assert_eq!(refused(&[0, 1, 2, 1], &[3]), Error::ShardTwice { shard: 1 });
    assert_eq!(refused(&[0, 1, 2, 4], &[3, 3]), Error::ShardTwice { shard: 3 });
    assert_eq!(refused(&[0, 1, 2, 3], &[3]), Error::ShardPresent { shard: 3 });

    let shards = stripe(&codec, 64, 6);
    let data: Vec<&[u8]> = shards[..4].iter().map(|shard| &shard[..]).collect();
    let encode = |data: &[&[u8]], lens: &[usize]| {
        let mut parity: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
        codec.encode(data, &mut views_mut(&mut parity)).unwrap_err()
    };
    assert_eq!(encode(&data[..3], &[64, 64]), Error::ShardCount { need: 4, have: 3 });
    assert_eq!(encode(&data, &[64]), Error::ShardCount { need: 2, have: 1 });
    assert_eq!(encode(&data, &[64, 63]), Error::ShardLength { place: 1, need: 64, have: 63 });
    let short = [data[0], data[1], &data[2][..60], data[3]];
    assert_eq!(encode(&short, &[64, 64]), Error::ShardLength { place: 2, need: 64, have: 60 });
    let repair = codec.repair(&[0, 1, 2, 4], &[3]).unwrap();
    let mut made = vec![vec![0; 64]];
    let failed = repair.run(&short, &mut views_mut(&mut made));
    assert_eq!(failed, Err(Error::ShardLength { place: 2, need: 64, have: 60 }));
    assert_eq!(made[0], [0; 64], "nothing is made up");
}
