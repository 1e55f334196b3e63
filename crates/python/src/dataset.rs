//! Packing and sealing.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use stoker_dataset::{Fault, Meter, PackOptions, SealOptions, Source};
use stoker_store::Store;

use crate::client::{Client, json};
use crate::error;

/// An error of packing, as Python's own.
fn raised(fault: Fault) -> PyErr {
    match fault {
        Fault::Store { path, error } => error::of(error, &path),
        Fault::Io { path, error } => match error.raw_os_error() {
            Some(number) => {
                let words = error.to_string();
                let words = words.split(" (os error").next().unwrap_or_default().to_owned();
                pyo3::exceptions::PyOSError::new_err((number, words, path))
            }
            None => pyo3::exceptions::PyOSError::new_err(format!("{path}: {error}")),
        },
    }
}

/// Text of a key: the seal has it as JSON.
fn text(volume: &str, bytes: &[u8]) -> PyResult<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| {
        let shown = String::from_utf8_lossy(bytes);
        PyValueError::new_err(format!("stoker://{volume}/{shown}: a key of a dataset is UTF-8"))
    })
}

/// Runs what takes long: the callback sees how far it is, Ctrl-C and an error of the callback end it.
fn run<T: Send>(
    py: Python<'_>,
    client: &Client,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(Arc<dyn Store>, Arc<Meter>) -> stoker_store::BoxFuture<'static, Result<T, Fault>>,
) -> PyResult<T> {
    let line = client.lines.here(py)?;
    let meter = Arc::new(Meter::default());
    let call = work(Arc::new(line.client().clone()), meter.clone());
    let mut told = None;
    let tell = |py: Python<'_>| {
        let now = meter.progress();
        match progress {
            Some(progress) if told != Some(now) => {
                told = Some(now);
                progress.call1(py, (json(&now)?,)).map(drop)
            }
            _ => Ok(()),
        }
    };
    line.wait_telling(py, call, tell)?.map_err(raised)
}

/// Packs the files of a directory (a path, or volume and key) as tar shards with a seal; the report as JSON.
#[pyfunction]
#[pyo3(signature = (client, source, volume, prefix, shard_bytes=None, jobs=None, replace=false, progress=None))]
#[expect(clippy::too_many_arguments, reason = "named in Python")]
pub fn pack(
    py: Python<'_>,
    client: &Client,
    source: SourceOf,
    volume: String,
    prefix: &[u8],
    shard_bytes: Option<u64>,
    jobs: Option<usize>,
    replace: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let source = match source {
        SourceOf::Local(path) => Source::Local(path),
        SourceOf::Volume((volume, key)) => Source::Volume { directory: text(&volume, &key)?, volume },
    };
    let prefix = text(&volume, prefix)?;
    let shard_bytes = shard_bytes.unwrap_or(stoker_dataset::SHARD_BYTES_DEFAULT);
    let jobs = jobs.unwrap_or(stoker_dataset::JOBS_DEFAULT);
    let options = PackOptions { volume, prefix, shard_bytes, jobs, replace };
    let work = |store, meter| -> stoker_store::BoxFuture<'static, _> {
        Box::pin(stoker_dataset::pack(store, source, options, meter))
    };
    json(&run(py, client, progress.as_ref(), work)?)
}

/// Where files to be packed are.
#[derive(FromPyObject)]
pub enum SourceOf {
    Volume((String, Vec<u8>)),
    Local(PathBuf),
}

/// Makes a seal of tar shards that are there: keys, or what several keys start with. The report as JSON.
#[pyfunction]
#[pyo3(signature = (client, volume, prefixes, to_volume, to, jobs=None, replace=false, progress=None))]
#[expect(clippy::too_many_arguments, reason = "named in Python")]
pub fn seal(
    py: Python<'_>,
    client: &Client,
    volume: String,
    prefixes: Vec<Vec<u8>>,
    to_volume: String,
    to: &[u8],
    jobs: Option<usize>,
    replace: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let prefixes = prefixes.iter().map(|prefix| text(&volume, prefix)).collect::<PyResult<_>>()?;
    let to = text(&to_volume, to)?;
    let jobs = jobs.unwrap_or(stoker_dataset::JOBS_DEFAULT);
    let options = SealOptions { volume, prefixes, to_volume, to, jobs, replace };
    let work = |store, meter| -> stoker_store::BoxFuture<'static, _> {
        Box::pin(stoker_dataset::seal_shards(store, options, meter))
    };
    json(&run(py, client, progress.as_ref(), work)?)
}
