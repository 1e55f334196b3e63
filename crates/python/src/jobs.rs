//! Specs of jobs, as the command line reads them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::json;
use stoker_jobs::read_spec;

/// Reads a spec, YAML or JSON; gives name, project and spec as JSON.
#[pyfunction]
pub fn job_spec(text: &str) -> PyResult<String> {
    let read = read_spec(text).map_err(|fault| PyValueError::new_err(fault.to_string()))?;
    Ok(json!({ "name": read.name, "project": read.project, "spec": read.spec }).to_string())
}
