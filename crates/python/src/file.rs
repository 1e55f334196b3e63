//! Open files: one version each, read into memory of the caller.

use std::sync::{Arc, Mutex};

use futures_util::{TryStreamExt, stream};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use stoker_store::{BoxFuture, ErrorKind, FileInfo, Key, Result, Store, StoreError, alone_many};

use crate::buffer::Memory;
use crate::error::{self, ConflictError};
use crate::process::{Blocked, Line, Lines, Own};

/// How a long read is divided.
const PIECE: usize = 1 << 20;
/// Pieces under way at once.
const PIECES: usize = 8;

/// So much is worth threads of its own.
const THREADS_FROM: usize = 4 << 20;

/// A read that is to be made.
type Call<'a> = Result<BoxFuture<'a, Result<()>>>;

/// An open file in one process.
pub type Opened = Arc<dyn stoker_store::File>;

/// One version of a file. Safe to use from several threads, and after a fork.
#[pyclass(frozen)]
pub struct File {
    lines: Lines,
    volume: String,
    key: Key,
    info: FileInfo,
    own: Own<Opened>,
}

impl File {
    pub fn open(py: Python<'_>, lines: &Lines, volume: &str, key: Key) -> PyResult<File> {
        let opened = open(py, lines, volume, &key)?;
        let info = opened.info().clone();
        Ok(File { lines: lines.clone(), volume: volume.to_owned(), key, info, own: Own::new(opened) })
    }

    pub fn path(&self) -> String {
        path(&self.volume, &self.key)
    }

    /// Its length.
    pub fn len(&self) -> u64 {
        self.info.size
    }

    /// The connection of this process that it is read by.
    pub fn line(&self, py: Python<'_>) -> PyResult<&Line> {
        self.lines.here(py)
    }

    pub fn opened(&self, py: Python<'_>) -> PyResult<&Opened> {
        self.own.here(|| {
            let opened = open(py, &self.lines, &self.volume, &self.key)?;
            if opened.info().version != self.info.version {
                let message = "the file was replaced since this process was forked: open it again";
                return Err(ConflictError::new_err((libc::ESTALE, message, self.path())));
            }
            Ok(opened)
        })
    }

    fn fill(&self, py: Python<'_>, offset: u64, into: &mut [u8]) -> PyResult<usize> {
        let len =
            usize::try_from(self.info.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        if len == 0 {
            return Ok(0);
        }
        let (opened, line) = (self.opened(py)?.as_ref(), self.lines.here(py)?);
        let into = &mut into[..len];
        let done = match len >= THREADS_FROM {
            true => line.wait_blocking(py, |blocked| fill_by_threads(opened, offset, into, blocked)),
            false => line.wait(py, fill(opened, offset, into)),
        };
        done?.map_err(|fault| error::of(fault, &self.path()))?;
        Ok(len)
    }
}

/// What nobody expects of an open file.
pub fn too_short() -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "the file ends before the length that it was opened with")
}

/// What people call a file.
pub fn path(volume: &str, key: &Key) -> String {
    format!("stoker://{volume}/{key}")
}

fn open(py: Python<'_>, lines: &Lines, volume: &str, key: &Key) -> PyResult<Opened> {
    let line = lines.here(py)?;
    let opened = line.wait(py, line.client().open(volume, key))?;
    opened.map(Opened::from).map_err(|fault| error::of(fault, &path(volume, key)))
}

/// Fills memory with the bytes at an offset; there are as many.
pub async fn fill(file: &dyn stoker_store::File, offset: u64, into: &mut [u8]) -> Result<()> {
    if into.len() <= PIECE {
        return fill_piece(file, offset, into).await;
    }
    let mut calls: Vec<Call<'_>> = Vec::with_capacity(into.len().div_ceil(PIECE));
    let mut at = offset;
    for piece in into.chunks_mut(PIECE) {
        let len = piece.len() as u64;
        calls.push(Ok(Box::pin(fill_piece(file, at, piece))));
        at += len;
    }
    stream::iter(calls).try_buffer_unordered(PIECES).try_collect::<()>().await
}

/// The same by threads that read from the drive themselves, straight to where the bytes belong if the memory lies for that.
fn fill_by_threads(
    file: &dyn stoker_store::File,
    offset: u64,
    into: &mut [u8],
    blocked: &Blocked,
) -> Result<()> {
    let fault = Mutex::new(None);
    alone_many(PIECES, into.chunks_mut(PIECE).enumerate(), |(number, piece)| {
        if fault.lock().unwrap().is_none()
            && let Err(found) = blocked.run(fill_piece(file, offset + (number * PIECE) as u64, piece))
        {
            fault.lock().unwrap().get_or_insert(found);
        }
    });
    fault.into_inner().unwrap().map_or(Ok(()), Err)
}

async fn fill_piece(file: &dyn stoker_store::File, mut offset: u64, mut into: &mut [u8]) -> Result<()> {
    while !into.is_empty() {
        let found = file.read_within(offset, into.len(), into).await?;
        let count = found.len();
        if found.start > 0 {
            into.copy_within(found, 0);
        }
        let (filled, rest) = into.split_at_mut(count);
        if filled.is_empty() {
            return Err(too_short());
        }
        offset += filled.len() as u64;
        into = rest;
    }
    Ok(())
}

#[pymethods]
impl File {
    /// Length in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.info.size
    }

    /// Everything that is known of it, as JSON.
    fn info(&self) -> PyResult<String> {
        crate::client::json(&self.info)
    }

    /// Fills memory from an offset on; returns how many bytes that were.
    fn read_into(&self, py: Python<'_>, into: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let mut memory = Memory::to_fill(into)?;
        self.fill(py, offset, memory.as_mut_slice())
    }

    /// At most so many bytes from an offset on.
    fn read<'py>(&self, py: Python<'py>, offset: u64, len: usize) -> PyResult<Bound<'py, PyBytes>> {
        let len = usize::try_from(self.info.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(len);
        PyBytes::new_with(py, len, |into| self.fill(py, offset, into).map(drop))
    }

    /// Fills memory with many ranges, one behind the other: (offset, length) each.
    fn read_many(&self, py: Python<'_>, ranges: Vec<(u64, usize)>, into: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut memory = Memory::to_fill(into)?;
        let mut rest = memory.as_mut_slice();
        let mut wishes = Vec::with_capacity(ranges.len());
        for (offset, len) in ranges {
            let inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.info.size);
            if !inside || len > rest.len() {
                let message =
                    format!("{}: {len} bytes at {offset} are not inside the file or the memory", self.path());
                return Err(pyo3::exceptions::PyValueError::new_err(message));
            }
            let (own, others) = rest.split_at_mut(len);
            rest = others;
            wishes.push((offset, own));
        }
        let opened = self.opened(py)?;
        let mut calls: Vec<Call<'_>> = Vec::with_capacity(wishes.len());
        for (offset, own) in wishes {
            calls.push(Ok(Box::pin(fill(opened.as_ref(), offset, own))));
        }
        let all = stream::iter(calls).try_buffer_unordered(2 * PIECES).try_collect::<()>();
        self.lines.here(py)?.wait(py, all)?.map_err(|fault| error::of(fault, &self.path()))
    }
}
