//! Files being written.

use std::sync::Mutex;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use stoker_store::{Buf, Finish, Result};

use crate::buffer::Memory;
use crate::error;
use crate::process::Lines;

struct Open {
    writer: Box<dyn stoker_store::Writer>,
    /// Filled in part.
    buf: Option<Buf>,
}

/// A file, or a shard of a set, that becomes visible when it is finished. Dropped before that, nothing of it stays.
#[pyclass(frozen)]
pub struct Writer {
    lines: Lines,
    path: String,
    pid: u32,
    open: Mutex<Option<Open>>,
}

impl Writer {
    pub fn new(lines: &Lines, path: String, writer: Box<dyn stoker_store::Writer>) -> Writer {
        let open = Mutex::new(Some(Open { writer, buf: None }));
        Writer { lines: lines.clone(), path, pid: std::process::id(), open }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Open> {
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

    fn put_back(&self, open: Open) {
        if let Ok(mut slot) = self.open.lock() {
            *slot = Some(open);
        }
    }
}

async fn write(open: &mut Open, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let mut buf = match open.buf.take() {
            Some(buf) => buf,
            None => open.writer.buffer().await?,
        };
        let part = bytes.len().min(buf.capacity() - buf.len());
        buf.fill(&bytes[..part]);
        bytes = &bytes[part..];
        match buf.len() == buf.capacity() {
            true => open.writer.write(buf).await?,
            false => open.buf = Some(buf),
        }
    }
    Ok(())
}

#[pymethods]
impl Writer {
    /// Adds bytes; when this returns, the memory may be used again.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let memory = Memory::of(data)?;
        let mut open = self.take(py)?;
        // What failed or was interrupted half way is not put back: nobody knows how much of it was taken.
        let done = self.lines.here(py)?.wait(py, write(&mut open, memory.as_slice()))?;
        done.map_err(|fault| error::of(fault, &self.path))?;
        self.put_back(open);
        Ok(memory.len())
    }

    /// Publishes it; returns the receipt as JSON. When this returns, the bytes survive what the class promises.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let mut open = self.take(py)?;
        let receipt = self.lines.here(py)?.wait(py, async move {
            if let Some(buf) = open.buf.take().filter(|buf| !buf.is_empty()) {
                open.writer.write(buf).await?;
            }
            open.writer.finish(Finish::default()).await
        })?;
        crate::client::json(&receipt.map_err(|fault| error::of(fault, &self.path))?)
    }

    /// Gives it up.
    fn abort(&self, py: Python<'_>) {
        if let Ok(open) = self.take(py) {
            drop(open);
        }
    }
}
