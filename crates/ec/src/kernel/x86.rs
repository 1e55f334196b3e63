//! AVX2 and AVX-512, each with and without GFNI.

#![allow(unsafe_code, reason = "vector instructions")]

use super::Kernel;

/// Whether this machine has the kernel's instructions.
pub fn is_available(kernel: Kernel) -> bool {
    let avx512 = || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    match kernel {
        Kernel::Avx512Gfni => avx512() && is_x86_feature_detected!("gfni"),
        Kernel::Avx2Gfni => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"),
        Kernel::Avx512 => avx512(),
        Kernel::Avx2 => is_x86_feature_detected!("avx2"),
        Kernel::Neon | Kernel::Portable => false,
    }
}

/// Computes outputs by GFNI.
pub fn run_affine(kernel: Kernel, matrices: &[u64], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
    assert!(is_available(kernel), "{kernel} is not available");
    match kernel {
        // SAFETY: the instructions are there.
        Kernel::Avx512Gfni => unsafe { avx512_gfni::run(matrices, sources, outputs) },
        // SAFETY: the same.
        _ => unsafe { avx2_gfni::run(matrices, sources, outputs) },
    }
}

/// Computes outputs by byte shuffles.
pub fn run_nibbles(kernel: Kernel, nibbles: &[[u8; 32]], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
    assert!(is_available(kernel), "{kernel} is not available");
    match kernel {
        // SAFETY: the instructions are there.
        Kernel::Avx512 => unsafe { avx512::run(nibbles, sources, outputs) },
        // SAFETY: the same.
        _ => unsafe { avx2::run(nibbles, sources, outputs) },
    }
}

/// Functions of 64-byte vectors that both kernels with AVX-512 have.
macro_rules! wide {
    ($features:literal) => {
        const WIDTH: usize = 64;

        #[inline]
        #[target_feature(enable = $features)]
        fn zero() -> __m512i {
            _mm512_setzero_si512()
        }

        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load(from: *const u8) -> __m512i {
            // SAFETY: the caller has a whole vector there.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn store(to: *mut u8, vector: __m512i) {
            // SAFETY: the caller has a whole vector there.
            unsafe { _mm512_storeu_si512(to.cast(), vector) }
        }
    };
}

/// The same of 32-byte vectors, with AVX2.
macro_rules! narrow {
    ($features:literal) => {
        const WIDTH: usize = 32;

        #[inline]
        #[target_feature(enable = $features)]
        fn zero() -> __m256i {
            _mm256_setzero_si256()
        }

        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load(from: *const u8) -> __m256i {
            // SAFETY: the caller has a whole vector there.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn store(to: *mut u8, vector: __m256i) {
            // SAFETY: the caller has a whole vector there.
            unsafe { _mm256_storeu_si256(to.cast(), vector) }
        }
    };
}

mod avx512_gfni {
    use std::arch::x86_64::*;

    use crate::kernel::walk::{Shards, with_tail};

    wide!("avx512f,avx512bw,gfni");

    /// GFNI takes bytes as they are.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    fn halves(vector: __m512i) -> __m512i {
        vector
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    fn table(matrix: &u64) -> __m512i {
        _mm512_set1_epi64(matrix.cast_signed())
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,gfni")]
    fn add(sum: __m512i, vector: __m512i, matrix: __m512i) -> __m512i {
        _mm512_xor_si512(sum, _mm512_gf2p8affine_epi64_epi8::<0>(vector, matrix))
    }

    walk!("avx512f,avx512bw,gfni", u64, 4, 2);
}

mod avx2_gfni {
    use std::arch::x86_64::*;

    use crate::kernel::walk::{Shards, with_tail};

    narrow!("avx2,gfni");

    /// GFNI takes bytes as they are.
    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    fn halves(vector: __m256i) -> __m256i {
        vector
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    fn table(matrix: &u64) -> __m256i {
        _mm256_set1_epi64x(matrix.cast_signed())
    }

    #[inline]
    #[target_feature(enable = "avx2,gfni")]
    fn add(sum: __m256i, vector: __m256i, matrix: __m256i) -> __m256i {
        _mm256_xor_si256(sum, _mm256_gf2p8affine_epi64_epi8::<0>(vector, matrix))
    }

    walk!("avx2,gfni", u64, 2, 1);
}

mod avx512 {
    use std::arch::x86_64::*;

    use crate::kernel::walk::{Shards, with_tail};

    wide!("avx512f,avx512bw");

    /// The low and the high nibble of each byte.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn halves(vector: __m512i) -> (__m512i, __m512i) {
        let mask = _mm512_set1_epi8(15);
        (_mm512_and_si512(vector, mask), _mm512_and_si512(_mm512_srli_epi64::<4>(vector), mask))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn table(nibbles: &[u8; 32]) -> (__m512i, __m512i) {
        // SAFETY: 16 bytes each, out of 32. The load repeats them, which costs no shuffle.
        unsafe {
            let from = nibbles.as_ptr();
            let low = _mm512_broadcast_i32x4(_mm_loadu_si128(from.cast()));
            (low, _mm512_broadcast_i32x4(_mm_loadu_si128(from.add(16).cast())))
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn add(sum: __m512i, halves: (__m512i, __m512i), table: (__m512i, __m512i)) -> __m512i {
        let (low, high) = (_mm512_shuffle_epi8(table.0, halves.0), _mm512_shuffle_epi8(table.1, halves.1));
        // 0x96 is the sum of three.
        _mm512_ternarylogic_epi64::<0x96>(sum, low, high)
    }

    walk!("avx512f,avx512bw", [u8; 32], 2, 2);
}

mod avx2 {
    use std::arch::x86_64::*;

    use crate::kernel::walk::{Shards, with_tail};

    narrow!("avx2");

    /// The low and the high nibble of each byte.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn halves(vector: __m256i) -> (__m256i, __m256i) {
        let mask = _mm256_set1_epi8(15);
        (_mm256_and_si256(vector, mask), _mm256_and_si256(_mm256_srli_epi64::<4>(vector), mask))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn table(nibbles: &[u8; 32]) -> (__m256i, __m256i) {
        // SAFETY: 16 bytes each, out of 32.
        unsafe {
            let from = nibbles.as_ptr();
            let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
            (low, _mm256_broadcastsi128_si256(_mm_loadu_si128(from.add(16).cast())))
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(sum: __m256i, halves: (__m256i, __m256i), table: (__m256i, __m256i)) -> __m256i {
        let (low, high) = (_mm256_shuffle_epi8(table.0, halves.0), _mm256_shuffle_epi8(table.1, halves.1));
        _mm256_xor_si256(sum, _mm256_xor_si256(low, high))
    }

    walk!("avx2", [u8; 32], 2, 1);
}
