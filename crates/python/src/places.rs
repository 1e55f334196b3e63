//! Where samples are: the tables of a seal or of a source, looked up where they lie.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use stoker_dataset::fetch::Place;

use crate::buffer::Memory;

/// Samples of a seal start at multiples of this.
const GRAIN: u64 = 512;

/// Where samples are. The memory of the tables must not change.
#[pyclass(frozen)]
pub struct Places {
    path: String,
    table: Table,
}

enum Table {
    /// As in a seal: firsts of 64 bits, starts in grains and lengths of 32 bits.
    Sealed { firsts: Memory, starts: Memory, lens: Memory },
    /// The same, all of 64 bits, starts in bytes.
    Listed { firsts: Memory, starts: Memory, lens: Memory },
    /// Files, one sample each: lengths of 64 bits.
    Whole { lens: Memory },
}

fn longs(memory: &Memory) -> &[[u8; 8]] {
    memory.as_slice().as_chunks().0
}

fn words(memory: &Memory) -> &[[u8; 4]] {
    memory.as_slice().as_chunks().0
}

fn long(memory: &Memory, index: usize) -> Option<u64> {
    longs(memory).get(index).map(|bytes| u64::from_le_bytes(*bytes))
}

fn word(memory: &Memory, index: usize) -> Option<u64> {
    words(memory).get(index).map(|bytes| u64::from(u32::from_le_bytes(*bytes)))
}

/// Number of the file that a sample belongs to.
fn file_of(firsts: &Memory, sample: u64) -> Option<u64> {
    let behind = longs(firsts).partition_point(|first| u64::from_le_bytes(*first) <= sample);
    behind.checked_sub(1).map(|file| file as u64)
}

impl Places {
    fn count(&self) -> usize {
        match &self.table {
            Table::Sealed { lens, .. } => words(lens).len(),
            Table::Listed { lens, .. } | Table::Whole { lens } => longs(lens).len(),
        }
    }

    fn find(&self, sample: u64) -> Option<Place> {
        let index = usize::try_from(sample).ok()?;
        let (file, offset, len) = match &self.table {
            Table::Sealed { firsts, starts, lens } => {
                (file_of(firsts, sample)?, word(starts, index)? * GRAIN, word(lens, index)?)
            }
            Table::Listed { firsts, starts, lens } => {
                (file_of(firsts, sample)?, long(starts, index)?, long(lens, index)?)
            }
            Table::Whole { lens } => (sample, 0, long(lens, index)?),
        };
        Some(Place { file, offset, len: usize::try_from(len).ok()? })
    }

    /// Where a sample is.
    pub fn at(&self, sample: u64) -> PyResult<Place> {
        self.find(sample).ok_or_else(|| self.outside(sample))
    }

    fn outside(&self, sample: impl std::fmt::Display) -> PyErr {
        PyIndexError::new_err(format!("{}: sample {sample} of {}", self.path, self.count()))
    }
}

#[pymethods]
impl Places {
    /// Over the sections of a seal.
    #[staticmethod]
    fn sealed(
        path: String,
        firsts: &Bound<'_, PyAny>,
        starts: &Bound<'_, PyAny>,
        lens: &Bound<'_, PyAny>,
    ) -> PyResult<Places> {
        let (firsts, starts, lens) = (Memory::of(firsts)?, Memory::of(starts)?, Memory::of(lens)?);
        Ok(Places { path, table: Table::Sealed { firsts, starts, lens } })
    }

    /// Over arrays of 64-bit numbers.
    #[staticmethod]
    fn listed(
        path: String,
        firsts: &Bound<'_, PyAny>,
        starts: &Bound<'_, PyAny>,
        lens: &Bound<'_, PyAny>,
    ) -> PyResult<Places> {
        let (firsts, starts, lens) = (Memory::of(firsts)?, Memory::of(starts)?, Memory::of(lens)?);
        Ok(Places { path, table: Table::Listed { firsts, starts, lens } })
    }

    /// Whole files with these lengths, of 64 bits.
    #[staticmethod]
    fn whole(path: String, lens: &Bound<'_, PyAny>) -> PyResult<Places> {
        Ok(Places { path, table: Table::Whole { lens: Memory::of(lens)? } })
    }

    fn __len__(&self) -> usize {
        self.count()
    }

    /// Number of the file, offset and length of each of these samples.
    fn locate_many(&self, samples: Vec<i64>) -> PyResult<Vec<(u64, u64, usize)>> {
        let one = |sample: i64| {
            let place = u64::try_from(sample).ok().and_then(|sample| self.find(sample));
            place.map(|place| (place.file, place.offset, place.len)).ok_or_else(|| self.outside(sample))
        };
        samples.into_iter().map(one).collect()
    }

    /// Bytes of all samples, and the first that is not behind the one before it or not inside of its file. `sizes` are the
    /// lengths of the files.
    fn check(&self, py: Python<'_>, sizes: Vec<u64>) -> (u64, Option<u64>) {
        py.detach(|| {
            let (mut total, mut before) = (0, (0, 0));
            for sample in 0..self.count() as u64 {
                let place = self.find(sample);
                let size = place.and_then(|place| sizes.get(usize::try_from(place.file).ok()?));
                let (Some(place), Some(size)) = (place, size) else { return (total, Some(sample)) };
                let end = place.offset.checked_add(place.len as u64);
                let is_behind = place.file != before.0 || place.offset >= before.1;
                if !is_behind || end.is_none_or(|end| end > *size) {
                    return (total, Some(sample));
                }
                before = (place.file, place.offset);
                total += place.len as u64;
            }
            (total, None)
        })
    }
}
