//! Kernels: the ways in which processors multiply many bytes at once. All give the same bytes.
//!
//! Each makes all outputs in one pass, so that every source is read once: for a block of a few vectors it holds the sums of all outputs
//! in registers and adds source after source. Two ways to multiply: GFNI applies an 8x8 matrix of bits to each byte; a byte shuffle looks
//! up the products of the two halves of each byte. The walk over sources and outputs is one macro, so kernels differ in a few lines.

mod portable;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[macro_use]
mod walk;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

use crate::field;

/// A way to multiply. Ask [`Kernel::available`] for those of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// AVX-512 and GFNI: 64 bytes by one instruction.
    Avx512Gfni,
    /// AVX2 and GFNI.
    Avx2Gfni,
    /// AVX-512 with byte shuffles.
    Avx512,
    /// AVX2 with byte shuffles.
    Avx2,
    /// NEON with byte shuffles.
    Neon,
    /// Any processor.
    Portable,
}

/// What a kernel looks up, for each factor, in the order of columns.
#[derive(Clone, Debug)]
pub enum Tables {
    /// Products of bytes, for any processor.
    Bytes(Vec<portable::Products>),
    /// Matrices of bits, for GFNI.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86-64 has GFNI"))]
    Affine(Vec<u64>),
    /// Products of nibbles, for byte shuffles.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(dead_code, reason = "the other processors have no shuffle here")
    )]
    Nibbles(Vec<[u8; 32]>),
}

impl Kernel {
    /// All kernels, the best first.
    pub const ALL: [Kernel; 6] =
        [Self::Avx512Gfni, Self::Avx2Gfni, Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// Those of this machine, the best first.
    pub fn available() -> impl Iterator<Item = Kernel> {
        Self::ALL.into_iter().filter(|kernel| kernel.is_available())
    }

    /// The best of this machine.
    pub fn best() -> Kernel {
        Self::available().next().unwrap_or(Self::Portable)
    }

    /// Whether this machine has its instructions.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Gfni | Self::Avx2Gfni | Self::Avx512 | Self::Avx2 => x86::is_available(self),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Self::Portable => true,
            _ => false,
        }
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512Gfni => "avx512-gfni",
            Self::Avx2Gfni => "avx2-gfni",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// What it looks up for these factors, which are in the order of columns, a row's after the other within each.
    pub(crate) fn tables(self, factors: &[u8], rows: usize) -> Tables {
        let each = factors.iter().copied();
        match self {
            Self::Avx512Gfni | Self::Avx2Gfni => Tables::Affine(each.map(field::affine).collect()),
            Self::Avx512 | Self::Avx2 | Self::Neon => Tables::Nibbles(each.map(field::nibbles).collect()),
            Self::Portable => Tables::Bytes(portable::tables(factors, rows)),
        }
    }

    /// Computes outputs of one length from sources of the same, at least one of each. The kernel must be one of this machine.
    pub(crate) fn run(self, tables: &Tables, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        match tables {
            Tables::Bytes(products) => portable::run(products, sources, outputs),
            #[cfg(target_arch = "x86_64")]
            Tables::Affine(matrices) => x86::run_affine(self, matrices, sources, outputs),
            #[cfg(target_arch = "x86_64")]
            Tables::Nibbles(nibbles) => x86::run_nibbles(self, nibbles, sources, outputs),
            #[cfg(target_arch = "aarch64")]
            Tables::Nibbles(nibbles) => neon::run_nibbles(nibbles, sources, outputs),
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("{self} on a machine without it"),
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
