//! The kernel of any processor: a table of products for each factor.

use crate::field::PRODUCTS;

/// So much of each output stays in the first cache while the sources are added one after the other.
const BLOCK: usize = 2048;

/// Factors are in the order of columns, a row's after the other within each.
pub fn run(factors: &[u8], sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
    let rows = outputs.len();
    let len = outputs[0].len();
    for from in (0..len).step_by(BLOCK) {
        let to = len.min(from + BLOCK);
        for (row, output) in outputs.iter_mut().enumerate() {
            let output = &mut output[from..to];
            output.fill(0);
            for (column, source) in sources.iter().enumerate() {
                let products = &PRODUCTS[usize::from(factors[column * rows + row])];
                for (sum, value) in output.iter_mut().zip(&source[from..to]) {
                    *sum ^= products[usize::from(*value)];
                }
            }
        }
    }
}
