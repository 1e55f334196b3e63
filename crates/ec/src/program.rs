//! Rows of factors, with the tables that a kernel wants: a matrix that is applied to any number of bytes.

use crate::kernel::{Kernel, Tables};
use crate::scheme::PARITY_MAX;

/// Makes each output as the sum of all sources, each times its factor.
#[derive(Clone, Debug)]
pub struct Program {
    kernel: Kernel,
    rows: usize,
    columns: usize,
    tables: Tables,
}

impl Program {
    /// Prepares a matrix of at most [`PARITY_MAX`] rows.
    pub fn new(kernel: Kernel, rows: &[Vec<u8>]) -> Self {
        assert!(rows.len() <= PARITY_MAX, "more outputs than a pass has");
        let columns = rows.first().map_or(0, Vec::len);
        let factors: Vec<u8> =
            (0..columns).flat_map(|column| rows.iter().map(move |row| row[column])).collect();
        Self { kernel, rows: rows.len(), columns, tables: kernel.tables(&factors, rows.len()) }
    }

    /// Computes the outputs. The sources may be fewer than the matrix has columns: those that are not given count as zeros. All
    /// sources and outputs must have one length; the caller checks foreign ones first.
    pub fn run(&self, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        assert_eq!(outputs.len(), self.rows, "one output for each row");
        assert!(sources.len() <= self.columns, "at most a source for each column");
        let Some(len) = outputs.first().map(|output| output.len()) else { return };
        assert!(outputs.iter().all(|output| output.len() == len), "outputs of one length");
        assert!(sources.iter().all(|source| source.len() == len), "sources as long as the outputs");
        if sources.is_empty() {
            outputs.iter_mut().for_each(|output| output.fill(0));
        } else {
            self.kernel.run(&self.tables, sources, outputs);
        }
    }
}
