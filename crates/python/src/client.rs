//! The door, call by call.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Serialize;
use stoker_client::{ClientOptions, Endpoint};
use stoker_format::VersionId;
use stoker_store::{
    Awaited, Condition, CopyRequest, JobLabel, Key, ListEntry, ListRequest, RenameMode, Result, Store,
    VolumeOptions, WriteRequest,
};

use crate::error;
use crate::file::{File, path};
use crate::process::{Lines, Node};
use crate::sets::Sets;
use crate::writer::Writer;

/// A node. Clones share its connection; each process has its own.
#[pyclass(frozen)]
pub struct Client {
    pub lines: Lines,
}

/// What Python makes a dictionary of.
pub fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// A line of a listing: key, whether it is a prefix, size, etag, time of publish in milliseconds.
type Line = (Vec<u8>, bool, u64, String, u64);

impl Client {
    pub fn ask<'a, T: Send>(
        &'a self,
        py: Python<'_>,
        about: impl FnOnce() -> String,
        call: impl FnOnce(&'a stoker_client::Client) -> stoker_store::BoxFuture<'a, Result<T>>,
    ) -> PyResult<T> {
        let line = self.lines.here(py)?;
        line.wait(py, call(line.client()))?.map_err(|fault| error::of(fault, &about()))
    }
}

/// A key; `about` says whose it is.
pub fn key(volume: &str, bytes: &[u8]) -> PyResult<Key> {
    Key::new(bytes)
        .map_err(|fault| error::of(fault, &format!("stoker://{volume}/{}", String::from_utf8_lossy(bytes))))
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (endpoint, token=None, timeout_s=10.0, ca=None, job=None))]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        token: Option<String>,
        timeout_s: f64,
        ca: Option<PathBuf>,
        job: Option<String>,
    ) -> PyResult<Client> {
        let endpoint: Endpoint =
            endpoint.parse().map_err(|fault| PyValueError::new_err(format!("{fault}")))?;
        let connect_timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|_| PyValueError::new_err("timeout_s is not a number of seconds"))?;
        let job = job.map(|job| JobLabel::parse(&job)).transpose();
        let job = job.map_err(|fault| PyValueError::new_err(fault.message))?;
        let mut options = ClientOptions { connect_timeout, job, ..ClientOptions::default() };
        if let Some(ca) = ca {
            options = options.trusting(&ca).map_err(|fault| PyValueError::new_err(fault.to_string()))?;
        }
        Ok(Client { lines: Lines::new(py, Node { endpoint, token, options })? })
    }

    /// Where the node is.
    #[getter]
    fn endpoint(&self) -> String {
        self.lines.endpoint().to_string()
    }

    /// Its checkpoint sets.
    #[getter]
    fn sets(&self) -> Sets {
        Sets { lines: self.lines.clone() }
    }

    fn volumes(&self, py: Python<'_>) -> PyResult<String> {
        json(&self.ask(py, || self.endpoint(), |client| client.volumes())?)
    }

    fn volume(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        let line = self.lines.here(py)?;
        let found = line.wait(py, line.client().volume(name))?;
        json(&found.map_err(|fault| error::of(fault, &format!("stoker://{name}")))?)
    }

    /// Makes a volume with the options of the node.
    fn volume_create(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        let line = self.lines.here(py)?;
        let made = line.wait(py, line.client().volume_create(name, VolumeOptions::default()))?;
        json(&made.map_err(|fault| error::of(fault, &format!("stoker://{name}")))?)
    }

    fn stat(&self, py: Python<'_>, volume: &str, name: &[u8]) -> PyResult<String> {
        let (line, key) = (self.lines.here(py)?, key(volume, name)?);
        let found = line.wait(py, line.client().stat(volume, &key))?;
        json(&found.map_err(|fault| error::of(fault, &path(volume, &key)))?)
    }

    fn open(&self, py: Python<'_>, volume: &str, name: &[u8]) -> PyResult<File> {
        File::open(py, &self.lines, volume, key(volume, name)?)
    }

    /// One page of a listing: its lines, and whether more follow.
    #[pyo3(signature = (volume, prefix, delimiter=None, after=None, limit=1000))]
    fn list(
        &self,
        py: Python<'_>,
        volume: &str,
        prefix: Vec<u8>,
        delimiter: Option<Vec<u8>>,
        after: Option<Vec<u8>>,
        limit: usize,
    ) -> PyResult<(Vec<Line>, bool)> {
        let about = format!("stoker://{volume}/{}", String::from_utf8_lossy(&prefix));
        let request = ListRequest { prefix, delimiter, after, limit };
        let line = self.lines.here(py)?;
        let page = line.wait(py, line.client().list(volume, request))?;
        let page = page.map_err(|fault| error::of(fault, &about))?;
        let entry = |entry| match entry {
            ListEntry::File(info) => (info.key.into_bytes(), false, info.size, info.etag, info.modified_ms),
            ListEntry::Prefix(prefix) => (prefix, true, 0, String::new(), 0),
        };
        Ok((page.entries.into_iter().map(entry).collect(), page.more))
    }

    /// Begins a file. `exclusive`: only if there is none of that name.
    #[pyo3(signature = (volume, name, size=None, exclusive=false, append=false))]
    fn create(
        &self,
        py: Python<'_>,
        volume: &str,
        name: &[u8],
        size: Option<u64>,
        exclusive: bool,
        append: bool,
    ) -> PyResult<Writer> {
        let (line, key) = (self.lines.here(py)?, key(volume, name)?);
        let condition = if exclusive { Condition::absent() } else { Condition::default() };
        let request = WriteRequest { size, condition, append, ..WriteRequest::default() };
        let made = line.wait(py, line.client().create(volume, &key, request))?;
        let writer = made.map_err(|fault| error::of(fault, &path(volume, &key)))?;
        Ok(Writer::new(&self.lines, path(volume, &key), writer))
    }

    /// Deletes files; for each, whether it was there.
    fn delete(&self, py: Python<'_>, volume: &str, names: Vec<Vec<u8>>) -> PyResult<Vec<bool>> {
        let keys = names.iter().map(|name| Ok((key(volume, name)?, Condition::default())));
        let keys = keys.collect::<PyResult<Vec<_>>>()?;
        let line = self.lines.here(py)?;
        let all = line.wait(py, line.client().delete(volume, keys.clone()))?;
        let all = all.map_err(|fault| error::of(fault, &format!("stoker://{volume}")))?;
        let one = |(done, (key, _)): (Result<bool>, &(Key, Condition))| {
            done.map_err(|fault| error::of(fault, &path(volume, key)))
        };
        all.into_iter().zip(&keys).map(one).collect()
    }

    fn rename(&self, py: Python<'_>, volume: &str, from: &[u8], to: &[u8], replace: bool) -> PyResult<()> {
        let (from, to) = (key(volume, from)?, key(volume, to)?);
        let mode = if replace { RenameMode::Replace } else { RenameMode::NoReplace };
        let line = self.lines.here(py)?;
        let done = line.wait(py, line.client().rename(volume, &from, &to, mode))?;
        done.map_err(|fault| error::of(fault, &path(volume, &from)))
    }

    /// Two names swap what they are. `number`: what the first one has to be, so that asking again does not undo it.
    #[pyo3(signature = (volume, first, second, number = None))]
    fn exchange(
        &self,
        py: Python<'_>,
        volume: &str,
        first: &[u8],
        second: &[u8],
        number: Option<u64>,
    ) -> PyResult<()> {
        let (first, second) = (key(volume, first)?, key(volume, second)?);
        let line = self.lines.here(py)?;
        let mode = RenameMode::Exchange { inode: number };
        let done = line.wait(py, line.client().rename(volume, &first, &second, mode))?;
        done.map_err(|fault| error::of(fault, &path(volume, &first)))
    }

    fn copy(
        &self,
        py: Python<'_>,
        from_volume: &str,
        from: &[u8],
        to_volume: &str,
        to: &[u8],
    ) -> PyResult<String> {
        let request = CopyRequest {
            from_volume: from_volume.to_owned(),
            from: key(from_volume, from)?,
            from_condition: Condition::default(),
            to_volume: to_volume.to_owned(),
            to: key(to_volume, to)?,
            condition: Condition::default(),
            attributes: None,
        };
        let about = path(from_volume, &request.from);
        json(&self.ask(py, || about, |client| client.copy(request))?)
    }

    fn receipt(&self, py: Python<'_>, volume: &str, name: &[u8]) -> PyResult<String> {
        let (line, key) = (self.lines.here(py)?, key(volume, name)?);
        let found = line.wait(py, line.client().receipt(volume, &key))?;
        json(&found.map_err(|fault| error::of(fault, &path(volume, &key)))?)
    }

    /// Waits until a version is committed or in the lake.
    #[pyo3(signature = (volume, name, version, drained))]
    fn wait(
        &self,
        py: Python<'_>,
        volume: &str,
        name: &[u8],
        version: Option<&str>,
        drained: bool,
    ) -> PyResult<String> {
        let (line, key) = (self.lines.here(py)?, key(volume, name)?);
        let version: Option<VersionId> = match version {
            Some(text) => Some(text.parse().map_err(|_| PyValueError::new_err("that is no version"))?),
            None => None,
        };
        let awaited = if drained { Awaited::Drained } else { Awaited::Committed };
        let done = line.wait(py, line.client().wait(volume, &key, version, awaited))?;
        json(&done.map_err(|fault| error::of(fault, &path(volume, &key)))?)
    }

    fn drain(&self, py: Python<'_>, volume: &str, prefix: &[u8]) -> PyResult<u64> {
        let line = self.lines.here(py)?;
        let done = line.wait(py, line.client().drain(volume, prefix))?;
        done.map_err(|fault| error::of(fault, &format!("stoker://{volume}")))
    }

    fn stage(&self, py: Python<'_>, volume: &str, name: &[u8]) -> PyResult<u64> {
        let (line, key) = (self.lines.here(py)?, key(volume, name)?);
        let done = line.wait(py, line.client().stage(volume, &key))?;
        done.map_err(|fault| error::of(fault, &path(volume, &key)))
    }

    /// What a scheduler asks about jobs, and what it is told; both as JSON.
    fn job(&self, py: Python<'_>, order: &str) -> PyResult<String> {
        let order: stoker_store::JobOrder = serde_json::from_str(order)
            .map_err(|fault| PyValueError::new_err(format!("no order about jobs: {fault}")))?;
        json(&self.ask(py, || "jobs".to_owned(), |client| client.job(order))?)
    }

    /// Counters of the node: name, value; for tests and benches that count what they cost.
    fn counters(&self, py: Python<'_>) -> PyResult<String> {
        json(&self.ask(py, || self.endpoint(), |client| client.counters())?)
    }

    fn status(&self, py: Python<'_>) -> PyResult<String> {
        json(&self.ask(py, || self.endpoint(), |client| client.status())?)
    }
}
