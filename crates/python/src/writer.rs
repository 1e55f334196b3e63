//! Files being written.

use std::sync::Mutex;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use stoker_store::{Filler, Finish};

use crate::buffer::Memory;
use crate::error;
use crate::process::Lines;

/// A file, or a shard of a set, that becomes visible when it is finished. Dropped before that, nothing of it stays.
#[pyclass(frozen)]
pub struct Writer {
    lines: Lines,
    path: String,
    pid: u32,
    open: Mutex<Option<Filler>>,
}

impl Writer {
    pub fn new(lines: &Lines, path: String, writer: Box<dyn stoker_store::Writer>) -> Writer {
        let open = Mutex::new(Some(Filler::new(writer)));
        Writer { lines: lines.clone(), path, pid: std::process::id(), open }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Filler> {
        if self.pid != std::process::id() {
            let message =
                format!("{}: it was begun before a fork, and belongs to the other process", self.path);
            return Err(PyRuntimeError::new_err(message));
        }
        let open = py.detach(|| self.open.lock().map(|mut open| open.take()).unwrap_or(None));
        open.ok_or_else(|| {
            PyValueError::new_err(format!(
                "{}: it is finished, given up, or another thread writes to it",
                self.path
            ))
        })
    }

    fn put_back(&self, open: Filler) {
        if let Ok(mut slot) = self.open.lock() {
            *slot = Some(open);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // In a process that was forked, this is the file of the other one, and so are the connection and the shared memory.
        if self.pid != std::process::id()
            && let Ok(open) = self.open.get_mut()
        {
            std::mem::forget(open.take());
        }
    }
}

#[pymethods]
impl Writer {
    /// Adds bytes; when this returns, the memory may be used again.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let memory = Memory::of(data)?;
        let mut open = self.take(py)?;
        // What failed or was interrupted half way is not put back: nobody knows how much of it was taken.
        let done = self.lines.here(py)?.wait(py, open.put(memory.as_slice()))?;
        done.map_err(|fault| error::of(fault, &self.path))?;
        self.put_back(open);
        Ok(memory.len())
    }

    /// Publishes it; returns the receipt as JSON. When this returns, the bytes survive what the class promises.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let open = self.take(py)?;
        let receipt = self.lines.here(py)?.wait(py, open.finish(Finish::default()))?;
        crate::client::json(&receipt.map_err(|fault| error::of(fault, &self.path))?)
    }

    /// Gives it up.
    fn abort(&self, py: Python<'_>) {
        if let Ok(open) = self.take(py) {
            drop(open);
        }
    }
}
