//! NEON, with byte shuffles.

#![allow(unsafe_code, reason = "vector instructions")]

use std::arch::aarch64::*;

use super::walk::{Shards, with_tail};

const WIDTH: usize = 16;

#[inline]
#[target_feature(enable = "neon")]
fn zero() -> uint8x16_t {
    vdupq_n_u8(0)
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(from: *const u8) -> uint8x16_t {
    // SAFETY: the caller has a whole vector there.
    unsafe { vld1q_u8(from) }
}

#[inline]
#[target_feature(enable = "neon")]
unsafe fn store(to: *mut u8, vector: uint8x16_t) {
    // SAFETY: the caller has a whole vector there.
    unsafe { vst1q_u8(to, vector) }
}

/// The low and the high nibble of each byte.
#[inline]
#[target_feature(enable = "neon")]
fn halves(vector: uint8x16_t) -> (uint8x16_t, uint8x16_t) {
    (vandq_u8(vector, vdupq_n_u8(15)), vshrq_n_u8::<4>(vector))
}

#[inline]
#[target_feature(enable = "neon")]
fn table(nibbles: &[u8; 32]) -> (uint8x16_t, uint8x16_t) {
    // SAFETY: 16 bytes each, out of 32.
    unsafe { (vld1q_u8(nibbles.as_ptr()), vld1q_u8(nibbles.as_ptr().add(16))) }
}

#[inline]
#[target_feature(enable = "neon")]
fn add(sum: uint8x16_t, halves: (uint8x16_t, uint8x16_t), table: (uint8x16_t, uint8x16_t)) -> uint8x16_t {
    veorq_u8(sum, veorq_u8(vqtbl1q_u8(table.0, halves.0), vqtbl1q_u8(table.1, halves.1)))
}

/// Computes outputs. NEON is part of every aarch64 that Rust builds for.
pub fn run_nibbles(nibbles: &[[u8; 32]], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
    assert!(std::arch::is_aarch64_feature_detected!("neon"), "NEON is not available");
    // SAFETY: the instructions are there.
    unsafe { run(nibbles, sources, outputs) }
}

walk!("neon", [u8; 32], 4, 2);
