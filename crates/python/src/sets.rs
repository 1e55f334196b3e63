//! Checkpoint sets.

use pyo3::prelude::*;
use stoker_store::{Key, SetId, SetRequest, ShardRequest, Store};

use crate::client::{json, key};
use crate::error;
use crate::file::path;
use crate::process::Lines;
use crate::writer::Writer;

/// The checkpoint sets of a node.
#[pyclass(frozen)]
pub struct Sets {
    pub lines: Lines,
}

/// The directory of a set, with its slash.
fn directory(volume: &str, name: &[u8]) -> PyResult<Key> {
    let end: &[u8] = if name.ends_with(b"/") { b"" } else { b"/" };
    key(volume, &[name, end].concat())
}

#[pymethods]
impl Sets {
    /// Begins a set, or gives the one that the same owner has open.
    #[pyo3(signature = (volume, target, owner, shards, deadline_s=None))]
    fn begin(
        &self,
        py: Python<'_>,
        volume: &str,
        target: &[u8],
        owner: String,
        shards: u32,
        deadline_s: Option<u32>,
    ) -> PyResult<String> {
        let target = directory(volume, target)?;
        let about = path(volume, &target);
        let request = SetRequest { target, owner, shards, deadline_s };
        let line = self.lines.here(py)?;
        let begun = line.wait(py, line.client().set_begin(volume, request))?;
        json(&begun.map_err(|fault| error::of(fault, &about))?)
    }

    /// Begins a shard.
    #[pyo3(signature = (volume, name, set, number, writer, size=None))]
    #[expect(clippy::too_many_arguments, reason = "named in Python")]
    fn shard(
        &self,
        py: Python<'_>,
        volume: &str,
        name: &[u8],
        set: u64,
        number: u32,
        writer: String,
        size: Option<u64>,
    ) -> PyResult<Writer> {
        let (line, key) = (self.lines.here(py)?, key(volume, name)?);
        let request = ShardRequest { number, writer, size, ..ShardRequest::default() };
        let made = line.wait(py, line.client().set_shard(volume, &key, SetId(set), request))?;
        let writer = made.map_err(|fault| error::of(fault, &path(volume, &key)))?;
        Ok(Writer::new(&self.lines, path(volume, &key), writer))
    }

    /// Makes all shards visible at once.
    fn publish(&self, py: Python<'_>, volume: &str, set: u64) -> PyResult<String> {
        let line = self.lines.here(py)?;
        let done = line.wait(py, line.client().set_publish(volume, SetId(set)))?;
        json(&done.map_err(|fault| error::of(fault, &format!("stoker://{volume}, set {set}")))?)
    }

    /// Gives a set up.
    fn abort(&self, py: Python<'_>, volume: &str, set: u64) -> PyResult<String> {
        let line = self.lines.here(py)?;
        let done = line.wait(py, line.client().set_abort(volume, SetId(set)))?;
        json(&done.map_err(|fault| error::of(fault, &format!("stoker://{volume}, set {set}")))?)
    }

    /// A set and which shards it lacks.
    fn status(&self, py: Python<'_>, volume: &str, set: u64) -> PyResult<String> {
        let line = self.lines.here(py)?;
        let done = line.wait(py, line.client().set_status(volume, SetId(set)))?;
        json(&done.map_err(|fault| error::of(fault, &format!("stoker://{volume}, set {set}")))?)
    }

    /// The set of a directory: open for it, or published as it.
    fn find(&self, py: Python<'_>, volume: &str, target: &[u8]) -> PyResult<String> {
        let (line, target) = (self.lines.here(py)?, directory(volume, target)?);
        let found = line.wait(py, line.client().set_find(volume, &target))?;
        json(&found.map_err(|fault| error::of(fault, &path(volume, &target)))?)
    }

    /// The set that was published last of those whose directory starts with these bytes.
    fn latest(&self, py: Python<'_>, volume: &str, prefix: &[u8]) -> PyResult<String> {
        let line = self.lines.here(py)?;
        let found = line.wait(py, line.client().set_latest(volume, prefix))?;
        json(&found.map_err(|fault| error::of(fault, &format!("stoker://{volume}")))?)
    }

    /// Sets behind one of them.
    #[pyo3(signature = (volume, after=None, limit=1000))]
    fn list(&self, py: Python<'_>, volume: &str, after: Option<u64>, limit: usize) -> PyResult<String> {
        let line = self.lines.here(py)?;
        let found = line.wait(py, line.client().sets(volume, after.map(SetId), limit))?;
        json(&found.map_err(|fault| error::of(fault, &format!("stoker://{volume}")))?)
    }
}
