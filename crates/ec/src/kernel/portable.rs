//! The kernel of any processor: tables of products, of four outputs by one look.

use crate::field::PRODUCTS;

/// So much of each source is looked up before the next: the sums stay in the first cache.
const BLOCK: usize = 2048;
/// Outputs that one look makes.
const LANES: usize = 4;

/// What a byte of one source adds to four outputs.
pub type Products = [[u8; LANES]; 256];

/// Tables of factors, which are in the order of columns: for each column one per four rows.
pub fn tables(factors: &[u8], rows: usize) -> Vec<Products> {
    let groups = factors.chunks(rows.max(1)).flat_map(|column| column.chunks(LANES));
    let product = |factors: &[u8], value: usize| {
        std::array::from_fn(|lane| {
            factors.get(lane).map_or(0, |&factor| PRODUCTS[usize::from(factor)][value])
        })
    };
    groups.map(|factors| std::array::from_fn(|value| product(factors, value))).collect()
}

/// Computes outputs of one length from sources of the same.
pub fn run(tables: &[Products], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
    let groups = outputs.len().div_ceil(LANES);
    let len = outputs[0].len();
    let mut sums = [[0; LANES]; BLOCK];
    for from in (0..len).step_by(BLOCK) {
        let to = len.min(from + BLOCK);
        for (group, outputs) in outputs.chunks_mut(LANES).enumerate() {
            sums.fill([0; LANES]);
            for (source, tables) in sources.iter().zip(tables.chunks(groups)) {
                let products = &tables[group];
                for (sums, value) in sums.iter_mut().zip(&source[from..to]) {
                    let sum = u32::from_ne_bytes(*sums) ^ u32::from_ne_bytes(products[usize::from(*value)]);
                    *sums = sum.to_ne_bytes();
                }
            }
            for (lane, output) in outputs.iter_mut().enumerate() {
                for (byte, sums) in output[from..to].iter_mut().zip(&sums) {
                    *byte = sums[lane];
                }
            }
        }
    }
}
