//! Every kernel of this machine makes the bytes of the portable one, at any length and place in memory.

mod support;

use stoker_ec::{Codec, Error, Kernel, Scheme};
use support::{noise, scheme};

/// Parity of shards that begin and end at odd places, and what lies around it.
fn encode(codec: &Codec, len: usize, skew: usize) -> Vec<Vec<u8>> {
    let scheme = codec.scheme();
    let data: Vec<Vec<u8>> = (0..scheme.data()).map(|shard| noise(shard as u64 + 9, len + 80)).collect();
    let from = |shard: usize| (skew * (shard + 1)) % 67;
    let sources: Vec<&[u8]> =
        data.iter().enumerate().map(|(at, shard)| &shard[from(at)..from(at) + len]).collect();
    let mut parity = vec![vec![0x77; len + 80]; scheme.parity()];
    let mut outputs: Vec<&mut [u8]> = parity
        .iter_mut()
        .enumerate()
        .map(|(at, shard)| &mut shard[from(at + 3)..from(at + 3) + len])
        .collect();
    codec.encode(&sources, &mut outputs).unwrap();
    parity
}

fn same(scheme: Scheme, len: usize, skew: usize) {
    let expect = encode(&Codec::with_kernel(scheme, Kernel::Portable).unwrap(), len, skew);
    for kernel in Kernel::available() {
        let made = encode(&Codec::with_kernel(scheme, kernel).unwrap(), len, skew);
        assert_eq!(made, expect, "{scheme} by {kernel}, {len} bytes, skew {skew}");
    }
}

#[test]
fn all_lengths() {
    for len in (0..=300).chain([1023, 4095, 4096, 4097, 10_001]) {
        same(scheme("3+4"), len, 0);
        same(scheme("2+5"), len, 13);
    }
}

#[test]
fn all_numbers_of_shards() {
    for parity in 1..=8 {
        for data in [1, 2, 7, 14, 31, 32] {
            same(Scheme::new(data, parity).unwrap(), 777, 5 * parity + data);
        }
    }
}

#[test]
fn all_factors() {
    // Parity of one data shard is its multiple. Columns of all schemes have all factors but 0, 1 aside.
    for data in 1..=32 {
        same(Scheme::new(data, 8).unwrap(), 256, 0);
    }
}

#[test]
fn a_kernel_that_the_machine_lacks_is_refused() {
    for kernel in Kernel::ALL {
        let codec = Codec::with_kernel(scheme("4+2"), kernel);
        match kernel.is_available() {
            true => assert_eq!(codec.unwrap().kernel(), kernel),
            false => assert_eq!(codec.unwrap_err(), Error::Kernel(kernel)),
        }
    }
    assert!(Kernel::best().is_available() && Kernel::Portable.is_available());
}
