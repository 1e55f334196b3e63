//! Stripes of known bytes.

#![allow(dead_code, reason = "each test uses a part of it")]

use stoker_ec::{Codec, Scheme};

/// Bytes that a seed repeats.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// All shards of a stripe of random data.
pub fn stripe(codec: &Codec, len: usize, seed: u64) -> Vec<Vec<u8>> {
    let scheme = codec.scheme();
    let mut shards: Vec<Vec<u8>> =
        (0..scheme.data()).map(|shard| noise(seed * 64 + shard as u64, len)).collect();
    let mut parity = vec![vec![0xee; len]; scheme.parity()];
    codec.encode(&views(&shards), &mut views_mut(&mut parity)).unwrap();
    shards.append(&mut parity);
    shards
}

pub fn views(shards: &[Vec<u8>]) -> Vec<&[u8]> {
    shards.iter().map(|shard| &shard[..]).collect()
}

pub fn views_mut(shards: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    shards.iter_mut().map(|shard| &mut shard[..]).collect()
}

pub fn scheme(text: &str) -> Scheme {
    text.parse().unwrap()
}

/// All sets of `count` numbers below `width`.
pub fn choices(width: usize, count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for last in count - 1..width {
        for mut choice in choices(last, count - 1) {
            choice.push(last);
            all.push(choice);
        }
    }
    all
}
