//! Matrices over the field: the one that makes parity, and its inverses.

use crate::field::{inverse, multiply};
use crate::scheme::Scheme;

/// Rows of factors.
pub type Rows = Vec<Vec<u8>>;

/// The row that makes a shard from the data shards: ISA-L's `gf_gen_cauchy1_matrix`. Data shards have a row of the identity.
pub fn row(scheme: Scheme, shard: usize) -> Vec<u8> {
    let factor = |column: usize| match shard.checked_sub(scheme.data()) {
        None => u8::from(column == shard),
        // Never 0: the row's number is above every column's.
        Some(_) => inverse((shard ^ column) as u8),
    };
    (0..scheme.data()).map(factor).collect()
}

/// The rows that make the data shards from these shards, of which there must be as many as data shards, each once.
pub fn inverted(scheme: Scheme, sources: &[usize]) -> Rows {
    let width = scheme.data();
    assert_eq!(sources.len(), width, "as many sources as data shards");
    let mut left: Rows = sources.iter().map(|&shard| row(scheme, shard)).collect();
    let mut right: Rows =
        (0..width).map(|at| (0..width).map(|column| u8::from(column == at)).collect()).collect();
    for at in 0..width {
        // Every square part of a Cauchy matrix can be inverted, so there is a pivot.
        let pivot = (at..width).find(|&below| left[below][at] != 0).expect("shards named twice");
        left.swap(at, pivot);
        right.swap(at, pivot);
        let factor = inverse(left[at][at]);
        scale(&mut left[at], factor);
        scale(&mut right[at], factor);
        for other in (0..width).filter(|&other| other != at) {
            let factor = left[other][at];
            add_multiple(&mut left, other, at, factor);
            add_multiple(&mut right, other, at, factor);
        }
    }
    right
}

/// The row of factors `left * rows`.
pub fn combined(left: &[u8], rows: &Rows) -> Vec<u8> {
    let mut sum = vec![0; rows[0].len()];
    for (&factor, row) in left.iter().zip(rows) {
        for (sum, &value) in sum.iter_mut().zip(row) {
            *sum ^= multiply(factor, value);
        }
    }
    sum
}

fn scale(row: &mut [u8], factor: u8) {
    row.iter_mut().for_each(|value| *value = multiply(*value, factor));
}

fn add_multiple(rows: &mut Rows, to: usize, from: usize, factor: u8) {
    for column in 0..rows[to].len() {
        rows[to][column] ^= multiply(rows[from][column], factor);
    }
}
