//! Samples as dictionaries: the stem as `__key__`, and the bytes of each member by its extension.

use std::collections::HashMap;
use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PySlice, PyString};
use stoker_dataset::tar::{NoSample, divide, pieces};

use crate::buffer::Memory;

pyo3::create_exception!(_stoker, TarError, PyValueError, "Bytes that are no tar.");

/// Extensions that are remembered as Python's text; datasets have a few.
const WORDS_MAX: usize = 256;

/// Text of extensions, made once.
#[derive(Default)]
pub struct Words(HashMap<Vec<u8>, Py<PyString>>);

impl Words {
    fn get<'py>(&mut self, py: Python<'py>, extension: &[u8]) -> PyResult<Bound<'py, PyString>> {
        if let Some(word) = self.0.get(extension) {
            return Ok(word.bind(py).clone());
        }
        let word = text(py, extension)?.call_method0("lower")?.cast_into::<PyString>()?;
        if self.0.len() < WORDS_MAX {
            self.0.insert(extension.to_vec(), word.clone().unbind());
        }
        Ok(word)
    }
}

/// Text of a name; bytes that are no UTF-8 come as surrogates.
fn text<'py>(py: Python<'py>, name: &[u8]) -> PyResult<Bound<'py, PyString>> {
    match std::str::from_utf8(name) {
        Ok(name) => Ok(PyString::new(py, name)),
        Err(_) => {
            PyString::from_encoded_object(&PyBytes::new(py, name), Some(c"utf-8"), Some(c"surrogateescape"))
        }
    }
}

fn refused(fault: NoSample) -> PyErr {
    TarError::new_err(fault.0)
}

/// The members of a sample of a tar; `value` makes what stands for a range of its bytes.
pub fn sample<'py>(
    py: Python<'py>,
    bytes: &[u8],
    words: &mut Words,
    value: impl Fn(Range<usize>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let made = PyDict::new(py);
    let mut key: Option<Vec<u8>> = None;
    for piece in pieces(bytes) {
        let piece = piece.map_err(refused)?;
        let (stem, extension) = divide(&piece.name);
        match &key {
            None => {
                made.set_item(pyo3::intern!(py, "__key__"), text(py, stem)?)?;
                key = Some(stem.to_vec());
            }
            Some(key) if key == stem => {}
            Some(key) => {
                let (key, stem) = (String::from_utf8_lossy(key), String::from_utf8_lossy(stem));
                return Err(TarError::new_err(format!("members of two samples in one: {key} and {stem}")));
            }
        }
        let word = words.get(py, extension)?;
        if made.contains(&word)? {
            let stem = String::from_utf8_lossy(stem);
            return Err(TarError::new_err(format!("{stem} has two members .{word}")));
        }
        made.set_item(word, value(piece.range)?)?;
    }
    match key {
        Some(_) => Ok(made),
        None => Err(TarError::new_err("a sample without members")),
    }
}

/// A part of a view.
pub fn part<'py>(view: &Bound<'py, PyAny>, range: Range<usize>) -> PyResult<Bound<'py, PyAny>> {
    view.get_item(PySlice::new(view.py(), range.start as isize, range.end as isize, 1))
}

/// The members of a sample of a tar, by extension.
#[pyfunction]
#[pyo3(signature = (data, views=false))]
pub fn members<'py>(py: Python<'py>, data: &Bound<'py, PyAny>, views: bool) -> PyResult<Bound<'py, PyDict>> {
    let memory = Memory::of(data)?;
    let bytes = memory.as_slice();
    if !views {
        return sample(py, bytes, &mut Words::default(), |range| {
            Ok(PyBytes::new(py, &bytes[range]).into_any())
        });
    }
    let view = PyMemoryView::from(data)?.into_any();
    sample(py, bytes, &mut Words::default(), |range| part(&view, range))
}

/// CRC-64/NVME of some bytes.
#[pyfunction]
pub fn crc64(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
    let memory = Memory::of(data)?;
    Ok(py.detach(|| stoker_format::crc64(memory.as_slice())))
}
